"""Live drawing for terminals with cursor movement: the tree of a run, whose finished nodes are
printed for good, and a line for other long work."""

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
"""Minimum columns for a tree."""
_FRAMES: Final = 10
"""Frames per second."""


def can_redraw(console: Console) -> bool:
    """Whether the cursor of a console can be moved. With FORCE_COLOR, a file counts as a terminal
    for colors only."""
    moves = console.is_terminal and not console.is_dumb_terminal and console.width >= _NARROWEST
    return moves and console.file.isatty()


class LiveTree(Display):
    """Shows work in progress, and prints finished nodes above it. On exit, the rest of the tree
    stays on the screen."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._screen = Redrawn(console, self._group)
        self._printing = Lock()
        """Held while nodes are printed, which keeps their order; never held by the drawing
        thread."""
        self._last: list[Text] = []
        self._asked_at = -1

    def __enter__(self) -> Self:
        self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.stop()
        self._print(self.all_lines())

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Observe a record of a run, and print nodes that it finishes."""
        with self._printing:
            with self.lock:
                view = self.add(run, record)
                first = next(iter(self.views.values()))
                rows = self._done_rows(view) if view is first and self._screen.is_on else []
            self._print(self._draw(rows))

    @contextmanager
    def asking(self) -> Generator[None]:
        """Remove the tree from the screen for the block, and leave the rows that led to the
        question."""
        self._screen.stop()
        with self.lock:
            view = next(iter(self.views.values()), None)
            at = -1 if view is None or view.history.run.newest is None else view.printed + 1
        if at != self._asked_at:  # otherwise the rows are above the previous question
            self._print(self.all_lines())
            self.console.print()
        self._asked_at = at
        try:
            yield
        finally:
            self._screen.start()

    def frame(self) -> list[Text]:
        """The lines of the work in progress, at most as many as the terminal has."""
        rows = squeeze_rows(self._rows(), max(1, self.console.height - 2))
        return [*self._draw(rows), spinning_line(self, self.summary().plain)]

    def all_lines(self) -> list[Text]:
        """The lines of all runs, without printed nodes."""
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
        """The rows of finished nodes that led to another node. They count as printed from now
        on."""
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
        with suppress(Exception):  # keep the last frame if drawing fails
            self._last = self.frame()
        return Group(*self._last)


class ProgressLine(Display):
    """The progress of `bae eval` or `bae optimize`: one line that is redrawn at a terminal, a few
    plain lines elsewhere. A `quiet` line prints only what `say` gets."""

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
        """Show the current progress, from any thread. Without a terminal only milestones are
        printed, so keep them few."""
        self._text = text
        if milestone and self._screen is None and not self._quiet:
            line = f"{perf_counter() - self._began:7.1f} s  {text}"
            self.console.print(Text(in_one_line(line)), soft_wrap=True)

    def inform(self, text: str) -> None:
        """Print a line as part of the progress."""
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
    """Draws the result of `picture` several times a second in its own thread, from `start` to
    `stop`. Other output, including log messages, appears above it."""

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
            if stream.isatty():  # a file keeps its own stream
                above = _WholeLines(self._console, stream)
                setattr(sys, name, above)
                self._shown.callback(setattr, sys, name, stream)
                self._shown.callback(above.end)
        turn_logging(before, sys.stderr)
        self._shown.callback(turn_logging, sys.stderr, before)

    def stop(self) -> None:
        """Remove it from the screen, if it is there."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()


class _Drawn(Live):
    """A Rich display that stops if the terminal is gone."""

    def refresh(self) -> None:
        # An error in the drawing thread would be uncaught.
        with suppress(OSError):
            super().refresh()


class _WholeLines(FileProxy):
    """Prints whole lines above the drawing. Rich would print a flushed half line as a line, and
    parse it as markup."""

    _half = False

    def write(self, text: str) -> int:
        self._half = not text.endswith("\n") if text else self._half
        return super().write(text)

    def flush(self) -> None:
        """Do nothing: the rest of the line follows."""

    def end(self) -> None:
        """Print a line that has begun."""
        if self._half:
            self.write("\n")


def turn_logging(before: Any, after: Any) -> None:
    """Redirect log handlers from one stream to another."""
    root = logging.getLogger()
    for logger in [root, *root.manager.loggerDict.values()]:
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if isinstance(handler, logging.StreamHandler):
                written = cast("logging.StreamHandler[Any]", handler)
                if written.stream is before and before is not after:
                    written.setStream(after)
