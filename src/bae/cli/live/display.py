"""Displays: they are given the records of runs and know their sum. The plain one shows nothing;
`LiveTree` draws a tree that changes while the run goes on, at a terminal that can move its cursor,
and `Status` is a line about other long work."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Lock
from time import perf_counter, time
from typing import Any, Final, Self, cast

from rich.console import Console, Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from bae.cli.live.drawing import SPINNING, drawn, fitted, signs_for
from bae.cli.live.view import RunViews
from bae.cli.live.wording import summary_of, took
from bae.cli.texts import in_lines, in_one_line
from bae.observers import ObservedRun
from bae.records import Record
from bae.usage import Usage

_NARROWEST: Final = 20
"""Columns that a tree has to have."""
_FRAMES: Final = 10
"""How often a tree is drawn in a second."""
_WHOLE: Final = 400
"""Lines of a run that is over, which stay on the screen, unless that has more."""


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
        self.views = RunViews()
        self.lock = Lock()
        """Held while the views are read: records arrive from several threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave on the screen what is to stay there."""

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take in a record of a run; quick, and from any thread."""
        with self.lock:
            self.views.add(run, record)

    @contextmanager
    def asking(self) -> Generator[None]:
        """Leave the terminal to a question about the run for the block."""
        yield

    def say(self, text: str) -> None:
        """Print a line about something beside the run, which no display is torn by."""
        self.console.print(Text(in_lines(text, 4), "dim"), soft_wrap=True)

    def summary(self, usage: Usage | None = None, seconds: float | None = None) -> Text:
        """The run in a line, to be printed when it is over: nodes, time, and what LM calls used.
        What is not given is counted from the records."""
        with self.lock:
            nodes, used, lasted = self.views.sum(time())
        said = summary_of(nodes, lasted if seconds is None else seconds, usage or used)
        return Text(self.signs.said(said), "dim")


class LiveTree(Display):
    """Shows runs as they go on. When it is left, the whole tree stays where it was."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._screen = Redrawn(console, self._group)
        self._last: list[Text] = []
        self._asked_at = 0

    def __enter__(self) -> Self:
        self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # of a terminal that is gone: the run came out as it did
            self._screen.stop()
            self._print_rows()

    @contextmanager
    def asking(self) -> Generator[None]:
        """Take the tree off the screen for the block, with the rows of what led to the question
        left there. Nodes that are done by then are not shown again."""
        self._screen.stop()
        with self.lock:
            steps = self.views.steps
        if steps != self._asked_at:  # else the question before has them above it
            with suppress(OSError):
                self._print_rows()
                self.console.print()
        self._asked_at = steps
        with self.lock:
            self.views.leave_out_done()
        try:
            yield
        finally:
            self._screen.start()

    def frame(self) -> list[Text]:
        """The lines of the tree as it is now, no more than the terminal has."""
        width, height = self.console.size
        now = time()
        with self.lock:
            rows = self.views.rows(now, max(1, height - 2))
            nodes, usage, seconds = self.views.sum(now)
        # Out here no run waits while values are written out.
        lines = list(drawn(rows, width, now, self.signs))
        status = _spinning(self.console, self.signs, summary_of(nodes, seconds, usage))
        return [*lines, status]

    def whole(self) -> list[Text]:
        """The lines of the tree when the run is over, as long as it is within reason."""
        now = time()
        with self.lock:
            rows = self.views.rows(now, max(_WHOLE, self.console.size.height))
        return list(drawn(rows, self.console.size.width, now, self.signs))

    def _print_rows(self) -> None:
        if lines := self.whole():
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


class Status:
    """Progress of long work. This one is quiet: it prints what is said beside it, and shows
    nothing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.signs = signs_for(console)
        self.began = perf_counter()

    def __enter__(self) -> Self:
        self.began = perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing on the screen."""

    def update(self, text: str, *, milestone: bool = False) -> None:
        """How far it is now, in a line; from any thread. Where no line can be drawn again only
        milestones are printed: keep them few."""

    def inform(self, text: str) -> None:
        """Print a line that is part of the progress."""

    def say(self, text: str) -> None:
        """Print a line beside it, however quiet it is to be."""
        self.console.print(Text(in_lines(text, 4), "dim"), soft_wrap=True)


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
        self._screen = Redrawn(console, self._line)

    def __enter__(self) -> Self:
        self._screen.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # of a terminal that is gone
            self._screen.stop()

    def inform(self, text: str) -> None:
        """Print it above the line."""
        self.say(text)

    def update(self, text: str, *, milestone: bool = False) -> None:
        """Draw this from now on."""
        self._text = text

    def _line(self) -> Text:
        lasted = took(perf_counter() - self.began)
        said = in_one_line(" · ".join(filter(None, [self._text, lasted])))
        return _spinning(self.console, self.signs, said)


def status_for(console: Console, *, quiet: bool) -> Status:
    """The status that fits a console, mostly that of stderr."""
    if quiet:
        return Status(console)
    return LiveStatus(console) if can_redraw(console) else LineStatus(console)


def _spinning(console: Console, signs: Any, said: str) -> Text:
    """A line with a spinner in front, no wider than the terminal."""
    turn = int(time() * SPINNING) % len(signs.spinner)
    line = Text(no_wrap=True).append(f"{signs.spinner[turn]} ", "yellow")
    line.append(fitted(signs.said(said), max(1, console.width - 3), signs.dots), "dim")
    line.truncate(console.width)
    return line
