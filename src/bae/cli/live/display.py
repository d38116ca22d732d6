"""Displays: they are given the records of runs and know their sum. The plain one shows nothing;
`LiveTree` draws a tree that changes while the run is in progress, at a terminal that can move its
cursor. Nodes that are done are printed, and stay."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Lock
from time import time
from typing import Any, Final, Self, cast

from rich.console import Console, Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from bae.cli.live.drawing import Row, draw_rows, fitted, signs_for
from bae.cli.live.rows import graph_rows, squeeze_rows, step_rows
from bae.cli.live.view import RunView
from bae.cli.wording import in_lines, summary_of
from bae.history import History
from bae.observers import ObservedRun
from bae.records import Record
from bae.usage import Usage

_NARROWEST: Final = 20
"""Columns that a tree has to have."""
_FRAMES: Final = 10
"""How often a tree is drawn in a second."""
_RUNS: Final = 4
"""Runs that are kept when they are over: the first one, and the newest that its bodies start."""


def can_redraw(console: Console) -> bool:
    """Whether the cursor of a console can be moved. FORCE_COLOR makes a terminal of a file, which
    takes colors and no cursor."""
    moves = console.is_terminal and not console.is_dumb_terminal and console.width >= _NARROWEST
    return moves and console.file.isatty()


class Display:
    """What all displays have in common; by itself it shows nothing. Enter it, give its `observe` to
    `bae.observers.observing`, and leave it when the run is over."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.signs = signs_for(console)
        self.views: dict[ObservedRun, RunView] = {}
        """Mostly one run, and those that its bodies start, in the order they began."""
        self.lock = Lock()
        """Held while the views are read: records arrive from several threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave on the screen what is to stay there."""

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take in a record of a run; quick, and from any thread."""
        with self.lock:
            self.add(run, record)

    def add(self, run: ObservedRun, record: Record) -> RunView:
        """Take in a record, while the lock is held."""
        view = self.views.get(run)
        if view is None:
            over = [run for run in [*self.views][1:] if self.views[run].history.run.outcome]
            for each in over[: max(0, len(self.views) + 1 - _RUNS)]:
                del self.views[each]
            view = self.views[run] = RunView(run.past)
        view.add(record)
        return view

    def history_of(self, run_id: str) -> History | None:
        """What is known of a run, as it was begun or resumed last; None where it has not begun."""
        found = [view.history for run, view in [*self.views.items()] if run.run_id == run_id]
        return found[-1] if found else None

    @contextmanager
    def asking(self) -> Generator[None]:
        """Leave the terminal to a question about the run for the block."""
        yield

    def say(self, text: str) -> None:
        """Print a line about something beside the run, which no display is torn by."""
        self.console.print(Text(in_lines(text, 4), "dim"), soft_wrap=True)

    def summary(self, usage: Usage | None = None, seconds: float | None = None) -> Text:
        """The run in a line, to be printed when it is over: nodes, time, and what LM calls used.
        What is not given is counted from the records. A run that another one starts counts for
        itself."""
        with self.lock:
            nodes, used, lasted = 0, Usage(), 0.0
            for view in [*self.views.values()][:1]:
                history, since = view.history, view.since
                until = time() if history.run.ended is None else history.run.ended
                nodes, used = history.whole_steps, history.usage
                lasted = max(0.0, until - since) if since else 0.0
        said = summary_of(nodes, lasted if seconds is None else seconds, usage or used)
        return Text(self.signs.said(said), "dim")


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
        with suppress(OSError):  # of a terminal that is gone: the run came out as it did
            self._screen.stop()
            self._print(self.whole())

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take in a record of a run, and print what is done with it."""
        with self._printing:
            with self.lock:
                view = self.add(run, record)
                first = next(iter(self.views.values()))
                rows = self._done_rows(view) if view is first and self._screen.is_on else []
            with suppress(OSError):
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
            with suppress(OSError):
                self._print(self.whole())
                self.console.print()
        self._asked_at = at
        try:
            yield
        finally:
            self._screen.start()

    def frame(self) -> list[Text]:
        """The lines of what is in progress, no more than the terminal has."""
        width, height = self.console.size
        rows = squeeze_rows(self._rows(), max(1, height - 2))
        line = Text(no_wrap=True).append(f"{self.signs.spin(time())} ", "yellow")
        said = self.summary().plain
        line.append(fitted(said, max(1, width - 3), self.signs.dots), "dim").truncate(width)
        return [*self._draw(rows), line]

    def whole(self) -> list[Text]:
        """The lines of all runs, without those of nodes that were printed."""
        return self._draw(self._rows())

    def _rows(self) -> list[Row]:
        now, rows = time(), list[Row]()
        with self.lock:
            for place, view in enumerate(self.views.values()):
                run = view.history.run
                if place:
                    state = "done" if run.outcome == "ended" else "going"
                    rows.append(Row((), "item", state, run.name or "a run", "a run of its own"))
                rows += graph_rows(view, run, (), now)
        return rows

    def _done_rows(self, view: RunView) -> list[Row]:
        """The rows of nodes that are done and have led on to another; from now on those are on the
        screen."""
        rows: list[Row] = []
        now, steps = time(), view.history.run.steps
        while (step := steps.get(view.printed + 1)) and step.number + 1 in steps:
            if view.state(step) != "done":
                break
            rows += step_rows(view, step, (), now, last=False)
            view.printed += 1
        return rows

    def _draw(self, rows: list[Row]) -> list[Text]:
        return list(draw_rows(rows, self.console.size.width, time(), self.signs))

    def _print(self, lines: list[Text]) -> None:
        if lines:
            self.console.print(Text("\n").join(lines), soft_wrap=True)

    def _group(self) -> Group:
        with suppress(Exception):  # rather the picture before than a thread that dies in one
            self._last = self.frame()
        return Group(*self._last)


class Redrawn:
    """What `picture` gives, drawn again a few times a second in a thread of its own, from `start`
    to `stop`. What others print meanwhile, log handlers included, stands above it."""

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        self._console = console
        self._picture = picture
        self._live: Live | None = None

    @property
    def is_on(self) -> bool:
        """Whether it is on the screen."""
        return self._live is not None

    def start(self) -> None:
        """Draw it."""
        before = sys.stderr
        self._live = _Drawn(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=_FRAMES,
            transient=True,
            vertical_overflow="crop",
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file goes there
        )
        self._live.start()
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, FileProxy):
                setattr(sys, name, _WholeLines(self._console, stream.rich_proxied_file))
        turn_logging(before, sys.stderr)

    def stop(self) -> None:
        """Take it off the screen, if it is there."""
        live, self._live = self._live, None
        if live is not None:
            for stream in (sys.stdout, before := sys.stderr):
                if isinstance(stream, _WholeLines):
                    stream.end()
            live.stop()
            turn_logging(before, sys.stderr)


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
