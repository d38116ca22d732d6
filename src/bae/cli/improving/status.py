"""Progress of long work: at a terminal one line that is drawn again, elsewhere a few plain lines,
or nothing. `working.py` has it around the work; `eval.py` and `optimize.py` say what is in it."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from time import perf_counter, time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.text import Text

from bae.cli.live import NARROWEST
from bae.cli.live.beside import held_back
from bae.cli.live.drawing import SPINNING, fitted, signs_for
from bae.cli.live.redrawn import Redrawn
from bae.cli.live.wording import took
from bae.cli.texts import in_lines, in_one_line

if TYPE_CHECKING:
    from rich.console import Console


class Status:
    """How far work is. This one is quiet: it prints what is said beside it, and shows nothing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.signs = signs_for(console)
        self.began = perf_counter()
        self.pauses = 0
        """How many have the terminal to themselves."""

    def __enter__(self) -> Self:
        self.began = perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave nothing on the screen."""

    def update(self, text: str, *, milestone: bool = False) -> None:
        """How far it is now, in a line; from any thread. Where no line can be drawn again only
        milestones are printed: keep them few."""

    def inform(self, text: str) -> None:
        """Print a line that is part of the progress."""

    def say(self, text: str) -> None:
        """Print a line beside it, however quiet it is to be."""
        if self.pauses:
            print(in_lines(text, 4), file=sys.stderr)  # held back
        else:
            self.console.print(Text(in_lines(text, 4), "dim"), soft_wrap=True)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the terminal to somebody else for the block."""
        self.pauses += 1
        try:
            with held_back():
                yield
        finally:
            self.pauses -= 1


class LineStatus(Status):
    """A line for every milestone, with the seconds in front."""

    def inform(self, text: str) -> None:
        """Print it as a milestone."""
        self.update(text, milestone=True)

    def update(self, text: str, *, milestone: bool = False) -> None:
        """Print a milestone."""
        if milestone:
            seconds = perf_counter() - self.began
            said = self.signs.said(in_one_line(f"{seconds:7.1f} s  {text}"))
            self.console.print(Text(said), soft_wrap=True)


class LiveStatus(Status):
    """One line, drawn again a few times a second, and gone at the end."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._text = ""
        self._entered = False
        self._screen = Redrawn(console, self._line)

    def __enter__(self) -> Self:
        self._entered = True
        self._screen.start()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered = False
        with suppress(OSError):  # of a terminal that is gone
            self._screen.stop()

    def inform(self, text: str) -> None:
        """Print it above the line."""
        self.say(text)

    def update(self, text: str, *, milestone: bool = False) -> None:
        """Draw this from now on."""
        self._text = text

    @contextmanager
    def paused(self) -> Generator[None]:
        """Take the line off the screen for the block."""
        self._screen.stop()
        try:
            with super().paused():
                yield
        finally:
            if self._entered and not self.pauses:
                self._screen.start()

    def _line(self) -> Text:
        width = self.console.width
        turn = int(time() * SPINNING) % len(self.signs.spinner)
        lasted = took(perf_counter() - self.began)
        said = self.signs.said(in_one_line(" · ".join(filter(None, [self._text, lasted]))))
        line = Text(no_wrap=True).append(f"{self.signs.spinner[turn]} ", "yellow")
        line.append(fitted(said, max(1, width - 3), self.signs.dots), "dim")
        line.truncate(width)
        return line


def status_for(console: Console, *, quiet: bool) -> Status:
    """The status that fits a console, mostly that of stderr."""
    if quiet:
        return Status(console)
    moves = console.is_terminal and not console.is_dumb_terminal and console.width >= NARROWEST
    # FORCE_COLOR makes a terminal of a file, which takes colours and no cursor.
    if moves and console.file.isatty():
        return LiveStatus(console)
    return LineStatus(console)
