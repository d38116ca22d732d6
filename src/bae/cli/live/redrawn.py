"""A part of the screen that is drawn again a few times a second, in a thread of its own, with what
others print meanwhile above it. `tree.py` shows runs in it, and other progress has a line there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

from rich.live import Live
from rich.text import Text

from bae.cli.live.beside import Diversion

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FRAMES: Final = 10
"""How often it is drawn in a second."""


class Redrawn:
    """What `picture` gives, on the screen from `start` to `stop`."""

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        self._console = console
        self._picture = picture
        self._live: Live | None = None
        self._others = Diversion(self._above)

    def start(self) -> None:
        """Draw it, unless it is drawn already."""
        if self._live is None:
            self._live = _Drawn(
                console=self._console,
                get_renderable=self._picture,
                refresh_per_second=FRAMES,
                transient=True,
                vertical_overflow="crop",
                redirect_stdout=False,  # Rich would take half lines for lines
                redirect_stderr=False,
            )
            self._live.start()
            self._others.start()

    def stop(self) -> None:
        """Take it off the screen, if it is there."""
        live, self._live = self._live, None
        if live is not None:
            self._others.stop()
            live.stop()

    def _above(self, real: TextIO, line: str) -> None:
        with suppress(OSError):
            self._console.print(Text.from_ansi(line), soft_wrap=True)


class _Drawn(Live):
    """What Rich draws, as long as the terminal is there."""

    def refresh(self) -> None:
        # In the thread that draws, nobody would catch it.
        with suppress(OSError):
            super().refresh()
