"""What is drawn again and again at a terminal that can move its cursor: the tree of a run, whose
nodes are printed when they are done, and stay; and a line for other long work."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Final, Self, cast

from rich.console import Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from bae.cli.live.display import Display, RunView
from bae.cli.live.drawing import ViewRow, cut_cells, draw_rows, squeeze_rows
from bae.cli.live.rows import graph_rows, step_rows
from bae.cli.wording import describe_duration, in_one_line

if TYPE_CHECKING:
    from rich.console import Console

    from bae.observers import ObservedRun
    from bae.records import Record

_NARROWEST: Final = 20
"""Columns that a tree has to have."""
_FRAMES: Final = 10
"""How often it is drawn in a second."""


def can_redraw(console: Console) -> bool:
    """Whether the cursor of a console can be moved. FORCE_COLOR makes a terminal of a file, which
    takes colors and no cursor."""
    moves = console.is_terminal and not console.is_dumb_terminal and console.width >= _NARROWEST
    return moves and console.file.isatty()


class LiveTree(Display):
    """Shows what is in progress, and prints nodes that are done above it. When it is left, the rest
    of the tree stays too."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._screen = Redrawn(console, self._group)
        self._printing = Lock()
        """Held while nodes are printed, so that they are in order; never in the thread that
        draws."""
        self._last: list[Text] = []
        self._asked_at = -1

    def __enter__(self) -> Self:
        self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.stop()
        self._print(self.all_lines())

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take in a record of a run, and print what is done with it."""
        with self._printing:
            with self.lock:
                view = self.add(run, record)
                first = next(iter(self.views.values()))
                rows = self._done_rows(view) if view is first and self._screen.is_on else []
            self._print(self._draw(rows))

    @contextmanager
    def asking(self) -> Generator[None]:
        """Take the tree off the screen for the block, with the rows of what led to the question
        left there."""
        self._screen.stop()
        with self.lock:
            view = next(iter(self.views.values()), None)
            at = -1 if view is None or view.history.run.newest is None else view.printed + 1
        if at != self._asked_at:  # else the question before has them above it
            self._print(self.all_lines())
            self.console.print()
        self._asked_at = at
        try:
            yield
        finally:
            self._screen.start()

    def frame(self) -> list[Text]:
        """The lines of what is in progress, no more than the terminal has."""
        rows = squeeze_rows(self._rows(), max(1, self.console.height - 2))
        return [*self._draw(rows), spinning_line(self, self.summary().plain)]

    def all_lines(self) -> list[Text]:
        """The lines of all runs, without those of nodes that were printed."""
        return self._draw(self._rows())

    def _rows(self) -> list[ViewRow]:
        now, rows = time(), list[ViewRow]()
        with self.lock:
            for place, view in enumerate(self.views.values()):
                run = view.history.run
                if place:
                    state = "done" if run.outcome == "ended" else "going"
                    rows.append(ViewRow((), "item", state, run.name or "a run", "a run of its own"))
                rows += graph_rows(view, run, (), now)
        return rows

    def _done_rows(self, view: RunView) -> list[ViewRow]:
        """The rows of nodes that are done and have led on to another; from now on those are on the
        screen."""
        rows: list[ViewRow] = []
        now, steps = time(), view.history.run.steps
        while (step := steps.get(view.printed + 1)) and step.number + 1 in steps:
            if view.state(step) != "done":
                break
            rows += step_rows(view, step, (), now, last=False)
            view.printed += 1
        return rows

    def _draw(self, rows: list[ViewRow]) -> list[Text]:
        return draw_rows(rows, self.console.size.width, time(), self.signs)

    def _print(self, lines: list[Text]) -> None:
        if lines:
            self.console.print(Text("\n").join(lines), soft_wrap=True)

    def _group(self) -> Group:
        with suppress(Exception):  # rather the picture before than a thread that dies in one
            self._last = self.frame()
        return Group(*self._last)


class ProgressLine(Display):
    """How far `bae eval` or `bae optimize` is: at a terminal one line that is drawn again,
    elsewhere a few plain lines. A `quiet` one prints only what `say` is given."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console)
        self._quiet = quiet
        self._began = perf_counter()
        self._text = ""
        moves = can_redraw(console) and not quiet
        self._screen = Redrawn(console, self._line) if moves else None

    def __enter__(self) -> Self:
        self._began = perf_counter()
        if self._screen is not None:
            self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._screen is not None:
            self._screen.stop()

    def update(self, text: str, *, milestone: bool = False) -> None:
        """How far it is now, in a line; from any thread. Without a terminal only milestones are
        printed: keep them few."""
        self._text = text
        if milestone and self._screen is None and not self._quiet:
            line = f"{perf_counter() - self._began:7.1f} s  {text}"
            self.console.print(Text(in_one_line(line)), soft_wrap=True)

    def inform(self, text: str) -> None:
        """Print a line that is part of the progress."""
        if self._screen is not None:
            self.say(text)
        else:
            self.update(text, milestone=True)

    def _line(self) -> Text:
        parts = [in_one_line(self._text), describe_duration(perf_counter() - self._began)]
        return spinning_line(self, " · ".join(filter(None, parts)))


def spinning_line(display: Display, text: str) -> Text:
    """A line with a spinner before it."""
    width, signs = display.console.width, display.signs
    line = Text(no_wrap=True).append(f"{signs.spin(time())} ", "yellow")
    line.append(cut_cells(signs.writable(text), max(1, width - 3), signs.dots), "dim").truncate(
        width
    )
    return line


class Redrawn:
    """What `picture` gives, drawn again a few times a second in a thread of its own, from `start`
    to `stop`. What others print meanwhile, log handlers included, is above it."""

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        self._console = console
        self._picture = picture
        self._shown: ExitStack | None = None

    @property
    def is_on(self) -> bool:
        """Whether it is on the screen."""
        return self._shown is not None

    def start(self) -> None:
        """Draw it."""
        before = sys.stderr
        self._shown = ExitStack()
        self._shown.enter_context(
            _Drawn(
                console=self._console,
                get_renderable=self._picture,
                refresh_per_second=_FRAMES,
                transient=True,
                vertical_overflow="crop",
                redirect_stdout=False,
                redirect_stderr=False,
            )
        )
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream.isatty():  # what goes to a file goes there
                above = _WholeLines(self._console, stream)
                setattr(sys, name, above)
                self._shown.callback(setattr, sys, name, stream)
                self._shown.callback(above.end)
        turn_logging(before, sys.stderr)
        self._shown.callback(turn_logging, sys.stderr, before)

    def stop(self) -> None:
        """Take it off the screen, if it is there."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()


class _Drawn(Live):
    """What Rich draws, as long as the terminal is there."""

    def refresh(self) -> None:
        # In the thread that draws, it would not be caught.
        with suppress(OSError):
            super().refresh()


class _WholeLines(FileProxy):
    """Prints whole lines above what is drawn. Rich would take half a line that is flushed for one,
    and for markup."""

    _half = False

    def write(self, text: str) -> int:
        self._half = not text.endswith("\n") if text else self._half
        return super().write(text)

    def flush(self) -> None:
        """Does nothing: the rest of the line follows."""

    def end(self) -> None:
        """Print a line that has begun."""
        if self._half:
            self.write("\n")


def turn_logging(before: Any, after: Any) -> None:
    """Have log handlers that write to one stream write to another."""
    root = logging.getLogger()
    for logger in [root, *root.manager.loggerDict.values()]:
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if isinstance(handler, logging.StreamHandler):
                written = cast("logging.StreamHandler[Any]", handler)
                if written.stream is before and before is not after:
                    written.setStream(after)
