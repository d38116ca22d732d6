"""A display is told of the records of runs and knows their sum. This one shows nothing; `tree.py`
and `lines.py` have those that do."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from time import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.text import Text

from bae.cli.live.beside import held_back
from bae.cli.live.drawing import signs_for
from bae.cli.live.runs import RunViews
from bae.cli.live.wording import summary_of
from bae.cli.texts import in_lines

if TYPE_CHECKING:
    from rich.console import Console

    from bae.observers import ObservedRun
    from bae.records import Record
    from bae.usage import Usage


class Display:
    """What all displays have in common; by itself it shows nothing. Enter it, give its `observe` to
    `bae.observers.observing`, and leave it when the run is over."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.signs = signs_for(console)
        self.views = RunViews()
        self.pauses = 0
        """How many have the terminal to themselves."""
        self.lock = Lock()
        """Held while the views are read: records arrive from several threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave on the screen what is to stay there."""

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take in a record of a run; quick, and from any thread."""
        with self.lock:
            self.views.add(run, record)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the terminal to somebody else for the block, as to ask something. What others print
        meanwhile is kept until it is over."""
        self.pauses += 1
        try:
            with held_back():
                yield
        finally:
            self.pauses -= 1

    def asking(self) -> AbstractContextManager[None]:
        """The same, for a question about the run: what led to it stays on the screen."""
        return self.paused()

    def say(self, text: str) -> None:
        """Print a line about something beside the run, which no display is torn by."""
        if self.pauses:
            print(in_lines(text, 4), file=sys.stderr)  # held back
        else:
            self.console.print(Text(in_lines(text, 4), "dim"), soft_wrap=True)

    def summary(self, usage: Usage | None = None, seconds: float | None = None) -> Text:
        """The run in a line, to be printed when it is over: nodes, time, and what LM calls used.
        What is not given is counted from the records."""
        with self.lock:
            nodes, used, lasted = self.views.sum(time())
        said = summary_of(nodes, lasted if seconds is None else seconds, usage or used)
        return Text(self.signs.said(said), "dim")
