"""Displays that are redrawn at a terminal: the tree of a run, and a progress line for other long
work."""

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
    """Return whether the cursor of a console can be moved, and the console is wide enough. This is
    false for a file, even with FORCE_COLOR."""
    moves = console.is_terminal and not console.is_dumb_terminal and console.width >= _NARROWEST
    return moves and console.file.isatty()


class LiveTree(Display):
    """Shows a run as a tree. It redraws the nodes in progress, and prints finished nodes above
    them. On exit, the rest of the tree stays on the screen."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._screen = Redrawn(console, self._group)
        self._printing = Lock()
        """Keeps printed nodes in order. The drawing thread never waits for this lock."""
        self._last: list[Text] = []
        self._asked_at = -1

    def __enter__(self) -> Self:
        self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.stop()
        self._print(self.all_lines())

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Add a record of a run, and print the nodes that the record finishes."""
        with self._printing:
            with self.lock:
                view = self.add(run, record)
                first = next(iter(self.views.values()))
                rows = self._done_rows(view) if view is first and self._screen.is_on else []
            self._print(self._draw(rows))

    @contextmanager
    def asking(self) -> Generator[None]:
        """Stop drawing while the block asks the user a question. The rows of the current node stay
        above the question."""
        self._screen.stop()
        with self.lock:
            view = next(iter(self.views.values()), None)
            at = -1 if view is None or view.history.run.newest is None else view.printed + 1
        if at != self._asked_at:  # otherwise, the previous question has printed the rows
            self._print(self.all_lines())
            self.console.print()
        self._asked_at = at
        try:
            yield
        finally:
            self._screen.start()

    def frame(self) -> list[Text]:
        """Return the lines of the work in progress, at most as many as the terminal has."""
        rows = squeeze_rows(self._rows(), max(1, self.console.height - 2))
        return [*self._draw(rows), spinning_line(self, self.summary().plain)]

    def all_lines(self) -> list[Text]:
        """Return the lines of all runs, without the nodes that are already printed."""
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
        """Return the rows of the finished nodes that are not printed yet, and mark the nodes as
        printed. The last node is left out."""
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
        with suppress(Exception):  # if drawing fails, show the last frame again
            self._last = self.frame()
        return Group(*self._last)


class ProgressLine(Display):
    """Shows the progress of `bae eval` or `bae optimize`. At a terminal, it redraws one line.
    Elsewhere, it prints a few lines. With `quiet`, it prints only the texts of `say`."""

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
        """Show the current progress, from any thread. Outside a terminal, a line is printed only
        for a `milestone`, so there should be few milestones."""
        self._text = text
        if milestone and self._screen is None and not self._quiet:
            line = f"{perf_counter() - self._began:7.1f} s  {text}"
            self.console.print(Text(in_one_line(line)), soft_wrap=True)

    def inform(self, text: str) -> None:
        """Print a line about the progress. At a terminal, the line is above the redrawn line."""
        if self._screen is not None:
            self.say(text)
        else:
            self.update(text, milestone=True)

    def _line(self) -> Text:
        parts = [in_one_line(self._text), describe_duration(perf_counter() - self._began)]
        return spinning_line(self, " · ".join(filter(None, parts)))


def spinning_line(display: Display, text: str) -> Text:
    """Return a line that begins with a spinner."""
    width, signs = display.console.width, display.signs
    line = Text(no_wrap=True).append(f"{signs.spin(time())} ", "yellow")
    line.append(cut_cells(signs.writable(text), max(1, width - 3), signs.dots), "dim").truncate(
        width
    )
    return line


class Redrawn:
    """A drawing at the bottom of the terminal. From `start` to `stop`, a thread calls `picture`
    several times a second and draws the result. Other output and log messages appear above it."""

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        self._console = console
        self._picture = picture
        self._shown: ExitStack | None = None

    @property
    def is_on(self) -> bool:
        """Whether the drawing is on the screen."""
        return self._shown is not None

    def start(self) -> None:
        """Start drawing."""
        before = sys.stderr
        self._shown = ExitStack()
        self._shown.enter_context(
            _SafeLive(
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
            if stream.isatty():  # output to a file must still reach the file
                above = _CompleteLines(self._console, stream)
                setattr(sys, name, above)
                self._shown.callback(setattr, sys, name, stream)
                self._shown.callback(above.end)
        turn_logging(before, sys.stderr)
        self._shown.callback(turn_logging, sys.stderr, before)

    def stop(self) -> None:
        """Stop drawing, and remove the drawing from the screen."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()


class _SafeLive(Live):
    """A Rich display that ignores errors of a closed terminal."""

    def refresh(self) -> None:
        # Nothing would catch an error in the drawing thread.
        with suppress(OSError):
            super().refresh()


class _CompleteLines(FileProxy):
    """Prints complete lines above the drawing. If a program flushed a half line, Rich would print
    it as a line and parse it as markup."""

    _has_half_line = False

    def write(self, text: str) -> int:
        self._has_half_line = not text.endswith("\n") if text else self._has_half_line
        return super().write(text)

    def flush(self) -> None:
        """Do nothing, because the rest of the line follows."""

    def end(self) -> None:
        """Print the half line, if there is one."""
        if self._has_half_line:
            self.write("\n")


def turn_logging(before: Any, after: Any) -> None:
    """Make all log handlers that write to the stream `before` write to `after`."""
    root = logging.getLogger()
    for logger in [root, *root.manager.loggerDict.values()]:
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if isinstance(handler, logging.StreamHandler):
                written = cast("logging.StreamHandler[Any]", handler)
                if written.stream is before and before is not after:
                    written.setStream(after)
