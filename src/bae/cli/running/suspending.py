"""Ctrl-Z while a run goes on: the display is taken off the screen and the terminal is as it was
before the program stands still, and both come back with `fg`. `carrying.py` runs inside."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import AbstractContextManager, ExitStack
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from bae.cli.running.terminal_input import show_prompt_again
from bae.cli.running.terminal_settings import TerminalSettings, is_in_front


class Pausing(Protocol):
    """A display that can be taken off the screen for a while."""

    def paused(self) -> AbstractContextManager[object]:
        """Take it off in the block."""
        ...


class Suspension:
    """Catches Ctrl-Z in its block, which is entered in the loop of the run, or of a question that
    there is no display for."""

    def __init__(self, display: Pausing | None = None) -> None:
        self._display = display
        self._before: dict[signal.Signals, Any] = {}
        self._asked = False
        self._pause: ExitStack | None = None
        self._settings: Any = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._terminal = TerminalSettings()
        if (
            hasattr(signal, "SIGTSTP")
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
            and is_in_front()
        ):
            self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._caught)
            self._before[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._continued)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        if self._pause is not None:
            self._pause.close()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self._asked:  # somebody's code blocks the loop: it stands still as it is
            self._stand_still()
            return
        self._asked = True
        # The display has locks, which the code that was interrupted here may hold.
        self._loop.call_soon_threadsafe(self._suspend)

    def _continued(self, number: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._come_back)

    def _suspend(self) -> None:
        if not self._asked:
            return
        if self._pause is None:
            self._pause = ExitStack()
            if self._display is not None:
                self._pause.enter_context(self._display.paused())
        self._stand_still()
        self._come_back()

    def _stand_still(self) -> None:
        settings = self._terminal.restore()
        if self._settings is None:
            self._settings = settings
        caught = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when somebody has it go on
        signal.signal(signal.SIGTSTP, caught)
        self._asked = False

    def _come_back(self) -> None:
        """Show everything again, where the terminal is ours: `bg` leaves it to the shell."""
        if not is_in_front():
            return
        settings, self._settings = self._settings, None
        self._terminal.put(settings)
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.close()
            show_prompt_again()
