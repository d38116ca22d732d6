"""The command `bae`. Each command or group of commands has a module, which is imported when the
user calls the command. The module parses arguments, calls the library and prints the result."""

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
    """Run the command line `arguments`, and return the exit code. The default is `sys.argv`."""
    if not (is_there("typer") and is_there("rich")):
        print(
            f"error: the command line of bae needs typer and rich\n  try:   {install_line('cli')}",
            file=sys.stderr,
        )
        return 1
    from bae.cli.app import run_command
    from bae.cli.messages import escape_messages

    if arguments is None:
        escape_messages()  # threads and `atexit` print messages after the command
    code = run_command(sys.argv[1:] if arguments is None else list(arguments))
    if arguments is None:
        _leave_threads(code)
        # Skip Python's search for reference cycles at exit. The search is a fifth of the time of a
        # short command.
        gc.freeze()
    return code


def _leave_threads(code: int) -> None:
    """Exit within a second, even if calls that bae abandoned still block threads. If the user's
    code started a thread, and the command succeeded or parked the run, Python waits for all threads
    instead."""
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    threads = [thread for thread in threads if thread is not threading.main_thread()]
    if not threads:
        return
    from bae.threads import NAME_PREFIX

    all_abandoned = all(thread.name.startswith(NAME_PREFIX) for thread in threads)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while Python waits
    if code in (0, 3) and not all_abandoned:
        return
    end = time.monotonic() + 1
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if not any(thread.is_alive() for thread in threads):
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)
