"""The command `bae`: a module for each command or group of commands, imported when it is called.
They read what is typed, call what the rest of bae offers, and print what it answers."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from bae.lm.extras import install_line, is_there

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what a command line says, `sys.argv` where none is given, and answer the exit code."""
    if not (is_there("typer") and is_there("rich")):
        print(
            f"error: the command line of bae needs typer and rich\n  try:   {install_line('cli')}",
            file=sys.stderr,
        )
        return 1
    from bae.cli.app import run_command
    from bae.cli.messages import escape_messages

    if arguments is None:
        escape_messages()  # those of threads and of `atexit` come after the command
    code = run_command(sys.argv[1:] if arguments is None else list(arguments))
    if arguments is None:
        _leave_threads(code)
        # Python searches all that was imported for cycles when it ends, which takes a short command
        # a fifth of its time.
        gc.freeze()
    return code


def _leave_threads(code: int) -> None:
    """End the process soon, though threads that cannot be stopped are still working: those of calls
    that a run has given up, and all of them if the run did not end well. They have a second."""
    others = [each for each in threading.enumerate() if not each.daemon]
    others = [each for each in others if each is not threading.main_thread()]
    if not others:
        return
    from bae.threads import NAME_PREFIX

    given_up = all(each.name.startswith(NAME_PREFIX) for each in others)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of Python waiting for threads
    if code in (0, 3) and not given_up:
        return
    end = time.monotonic() + 1
    for each in others:
        each.join(max(0.0, end - time.monotonic()))
    if not any(each.is_alive() for each in others):
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)
