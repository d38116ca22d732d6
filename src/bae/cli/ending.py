"""The end of the program `bae`: threads of somebody's own may still be at work then, which nobody
can stop and Python would wait for."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

from bae.cli import exits

GRACE: Final = 1.0
"""Seconds that a program which has nothing left to do waits for threads that nobody can stop."""


def end_in_time(code: int) -> None:
    """Have the process end with `code` soon, though threads go on. Those of a run that came to an
    end as it should are waited for, unless they are calls of dependencies, which the run itself has
    given up: what they do may be to be finished."""
    left = [each for each in threading.enumerate() if not each.daemon]
    others = [each for each in left if each is not threading.main_thread()]
    if not others:
        return
    _let_ctrl_c_end_it()
    if code in (exits.DONE, exits.WAITING) and not all(map(_is_given_up, others)):
        return

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(code)

    timer = threading.Timer(GRACE, end)
    timer.daemon = True
    timer.start()
    # Python does this first once the threads are done; what others have registered may take longer.
    atexit.register(timer.cancel)


def _is_given_up(thread: threading.Thread) -> bool:
    return thread.name.startswith("bae ")


def _let_ctrl_c_end_it() -> None:
    """Python would print a traceback of its own waiting."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
