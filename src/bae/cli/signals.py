"""Ctrl-C, SIGTERM and SIGHUP: the first cancels what is done, so that everything it opened is
closed and the journal says so; a second one ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

CAUGHT: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""Not every system has all of them."""


class Signals:
    """Catches Ctrl-C, SIGTERM and SIGHUP in its block. `code` is the exit code that one of them
    asks for, and 0 while there was none."""

    def __init__(self, last_words: Callable[[], str]) -> None:
        self.code = 0
        self._last_words = last_words
        self._before: dict[signal.Signals, Any] = {}
        self._stop: Callable[[], object] | None = None
        self._settings: Any = None

    def __enter__(self) -> Signals:
        with suppress(Exception):  # no Unix, or no terminal
            import termios

            self._settings = termios.tcgetattr(sys.stdin.fileno())
        if threading.current_thread() is threading.main_thread():
            for name in CAUGHT:
                each: signal.Signals | None = getattr(signal, name, None)
                # One that is ignored, as by nohup or in the background of a script, stays so.
                if each is not None and signal.getsignal(each) is not signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def cancels(self, task: asyncio.Task[Any], heard: Callable[[], object]) -> None:
        """Have the first signal cancel `task`, and call `heard`; in the loop of the task."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            task.cancel()
            heard()

        def soon() -> None:
            with suppress(RuntimeError):  # the loop is closed: everything is
                loop.call_soon_threadsafe(stop)

        self._stop = soon
        if self.code:
            stop()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        # A plain handler and not one of the loop's: it works while the user's code blocks the loop.
        if self.code:
            self._end_at_once()
        self.code = 128 + number
        if self._stop is not None:
            self._stop()

    def _end_at_once(self) -> None:
        with suppress(Exception):  # as it was, with its cursor; nothing here waits for a lock
            if self._settings is not None:
                import termios

                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._settings)
            if os.isatty(2) and os.environ.get("TERM") != "dumb":
                os.write(2, b"\x1b[?25h")
        with suppress(OSError):  # past the locks of the stream
            os.write(2, f"\nended at once\n{self._last_words()}".rstrip().encode() + b"\n")
        os._exit(self.code)
