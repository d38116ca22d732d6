"""How the terminal is set: a question may have turned its echo off, and a display its cursor.
`signals.py` and `suspending.py` put it back."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Final

SHOW_CURSOR: Final = b"\x1b[?25h"


class TerminalSettings:
    """The settings as they are when this is made."""

    def __init__(self) -> None:
        self._input = terminal_of(sys.stdin)
        self._screen = terminal_of(sys.stderr)
        self._kept = self._now()

    def restore(self) -> Any:
        """Set them so again, whatever state everything is in: nothing here waits for a lock.
        Answers what they were until now, for `put`."""
        before = self._now()
        self.put(self._kept)
        if self._screen is not None and os.environ.get("TERM") != "dumb":
            with suppress(OSError):
                os.write(self._screen, SHOW_CURSOR)
        return before

    def put(self, settings: Any) -> None:
        """Set what `restore` has answered."""
        if settings is not None and self._input is not None:
            with suppress(Exception):
                import termios

                termios.tcsetattr(self._input, termios.TCSANOW, settings)

    def _now(self) -> list[Any] | None:
        if self._input is None:
            return None
        try:
            import termios

            return termios.tcgetattr(self._input)
        except Exception:  # no Unix; or a terminal that went away
            return None


def is_in_front() -> bool:
    """Whether this program has the terminal, rather than being in the background of a shell."""
    number = terminal_of(sys.stdin)
    if number is None:
        return False
    with suppress(AttributeError, OSError):  # no Unix; or not the terminal of this process
        return os.tcgetpgrp(number) == os.getpgrp()
    return True


def terminal_of(stream: Any) -> int | None:
    """The number of a terminal's file; None where the stream is none."""
    try:
        number: int = stream.fileno()
        return number if os.isatty(number) else None
    except (AttributeError, OSError, ValueError):
        return None
