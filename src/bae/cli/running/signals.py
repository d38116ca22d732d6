"""Ctrl-C, SIGTERM and SIGHUP while a run goes on: the first cancels it, so that everything it
opened is closed and the journal says so; a second one ends the process at once. `carrying.py` runs
inside; `suspending.py` has Ctrl-Z."""

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

from bae.cli.running.terminal_settings import TerminalSettings

CAUGHT: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""Not every system has all of them."""


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
        self._terminal = TerminalSettings()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in CAUGHT:
                each: signal.Signals | None = getattr(signal, name, None)
                # One that is ignored, as by nohup or in the background of a script, stays so.
                if each is not None and signal.getsignal(each) is not signal.SIG_IGN:
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
        """Have the first signal cancel `task`, and call `heard`; in the loop of the task. One that
        comes once the task is done calls `heard` all the same: things are being closed then."""
        self._task, self._heard, self._loop = task, heard, asyncio.get_running_loop()
        self._loop.set_default_executor(_UnawaitedThreads())
        if self.code:
            self._stop()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        # A plain handler and not one of the loop's: it works while somebody's code blocks the loop.
        if self.code:
            self._end_at_once()
        self.code = 128 + number
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed: everything is
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
        if self._heard is not None:
            self._heard()

    def _end_at_once(self) -> None:
        self._terminal.restore()
        said = self._last_words() if self._last_words is not None else ""
        with suppress(AttributeError, OSError, ValueError):  # past the locks of the stream
            os.write(sys.stderr.fileno(), f"\nended at once\n{said}".rstrip().encode() + b"\n")
        os._exit(self.code)


class _UnawaitedThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. Those that are at work when the loop is closed are not
    waited for there: how the run came out is told before."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of the threads."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
