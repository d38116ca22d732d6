"""Ctrl-C and SIGTERM while a run goes on: the first cancels it, so that everything it opened is
closed and the journal says so; a second one ends the process at once. `running.py` runs inside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, Self

GRACE: Final = 1.0
"""Seconds that a program which was interrupted waits for threads that nobody can stop."""
SHOW_CURSOR: Final = b"\x1b[?25h"


class Interruption:
    """Catches the signals in its block. `code` is the exit code that one of them asks for, and 0
    while there was none."""

    def __init__(self, last_words: Callable[[], str] | None = None) -> None:
        self.code = 0
        self._last_words = last_words
        self._before: dict[signal.Signals, Any] = {}
        self._task: asyncio.Task[Any] | None = None
        self._heard: Callable[[], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._terminal = _TerminalSettings()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                # One that is ignored, as by nohup or in the background of a script, stays so.
                if signal.getsignal(each) is not signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._caught)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._before.clear()
        self._task = self._loop = None

    def cancels(self, task: asyncio.Task[Any], heard: Callable[[], object] | None = None) -> None:
        """Have the first signal cancel `task`, and call `heard` then; in the loop of the task."""
        self._task, self._heard, self._loop = task, heard, asyncio.get_running_loop()
        self._loop.set_default_executor(_Abandoned(self))
        if self.code:
            self._stop()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        # A plain handler and not one of the loop's: it works while somebody's code blocks the loop.
        if self.code:
            self._end_at_once()
        self.code = 128 + number
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            if self._heard is not None:
                self._heard()

    def _end_at_once(self) -> None:
        self._terminal.restore()
        said = self._last_words() if self._last_words is not None else ""
        _write(sys.stderr, f"\nended at once\n{said}".rstrip() + "\n")
        os._exit(self.code)


def end_in_time(code: int) -> None:
    """Have the process end with `code` soon, though a thread of somebody's own goes on: Python
    would wait for it, and nobody can stop it. For a program that has nothing left to do."""

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            _write(stream, "")
        os._exit(code)

    timer = threading.Timer(GRACE, end)
    timer.daemon = True
    timer.start()


class _Abandoned(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. Those of a run that was interrupted are not waited for
    when the loop is closed."""

    def __init__(self, interruption: Interruption) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._interruption = interruption

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of the threads."""
        stopped = bool(self._interruption.code)
        super().shutdown(wait=wait and not stopped, cancel_futures=cancel_futures or stopped)


class _TerminalSettings:
    """How the terminal was set when the run began: a question may have turned its echo off, and a
    display its cursor."""

    def __init__(self) -> None:
        self._kept: list[Any] | None = None
        self._input = _descriptor(sys.stdin)
        self._screen = _descriptor(sys.stderr)
        if self._input is not None:
            with suppress(Exception):  # no Unix; or a terminal that went away
                import termios

                self._kept = termios.tcgetattr(self._input)

    def restore(self) -> None:
        """Set it so again, whatever state everything is in: nothing here waits for a lock."""
        if self._kept is not None and self._input is not None:
            with suppress(Exception):
                import termios

                termios.tcsetattr(self._input, termios.TCSANOW, self._kept)
        if self._screen is not None and os.environ.get("TERM") != "dumb":
            with suppress(OSError):
                os.write(self._screen, SHOW_CURSOR)


def _descriptor(stream: Any) -> int | None:
    """The number of a terminal's file; None where the stream is none."""
    try:
        number: int = stream.fileno()
        return number if os.isatty(number) else None
    except (AttributeError, OSError, ValueError):
        return None


def _write(stream: Any, text: str) -> None:
    """Write to a stream past its locks, and what it still holds."""
    with suppress(AttributeError, OSError, ValueError):
        if text:
            os.write(stream.fileno(), text.encode(errors="replace"))
        else:
            stream.flush()
