"""Progress of `bae eval` and `bae optimize`: at a terminal one line that is drawn again, elsewhere
a few plain lines, or nothing."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.text import Text

from bae.cli.wording import in_lines, in_one_line, took

if TYPE_CHECKING:
    from rich.console import Console


class ProgressLine:
    """How far the work is. A `quiet` one prints only what `say` is given."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._began = perf_counter()
        self._text = ""
        # FORCE_COLOR makes a terminal of a file, which takes colors and no cursor.
        moves = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
        self._live = console.status(_Line(self)) if moves and not quiet else None

    def __enter__(self) -> Self:
        self._began = perf_counter()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, text: str, *, milestone: bool = False) -> None:
        """How far it is now, in a line; from any thread. Without a terminal only milestones are
        printed: keep them few."""
        self._text = text
        if milestone and self._live is None and not self._quiet:
            seconds = perf_counter() - self._began
            self._print(Text(in_one_line(f"{seconds:7.1f} s  {text}")))

    def inform(self, text: str) -> None:
        """Print a line that is part of the progress."""
        if self._live is not None:
            self.say(text)
        else:
            self.update(text, milestone=True)

    def say(self, text: str) -> None:
        """Print a line beside it, also if it is quiet."""
        self._print(Text(in_lines(text, 4), "dim"))

    def line(self) -> Text:
        """The line at a terminal."""
        lasted = took(perf_counter() - self._began)
        text = in_one_line(" · ".join(filter(None, [self._text, lasted])))
        return Text(text, "dim", no_wrap=True, overflow="ellipsis")

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


class _Line:
    """The line as Rich draws it, again and again."""

    def __init__(self, progress: ProgressLine) -> None:
        self._progress = progress

    def __rich__(self) -> Text:
        return self._progress.line()
