"""A display is told of the records of runs and knows their sum. This one shows nothing; `tree.py`
and `lines.py` have those that do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from time import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.text import Text

from bae.cli.live.drawing import signs_for
from bae.cli.live.runs import Pictures
from bae.cli.live.wording import summary_of

if TYPE_CHECKING:
    from rich.console import Console

    from bae.journal.records import Record
    from bae.lm.usage import Usage
    from bae.observers import ObservedRun


class Silent:
    """Shows nothing of runs. As any display, enter it, give its `observe` to
    `bae.observers.observing`, and leave it when the run is over."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.signs = signs_for(console)
        self.pictures = Pictures()
        self.lock = Lock()
        """Held by whoever looks at the pictures: records come in from several threads."""

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
            self.pictures.take(run, record)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the terminal to somebody else for the block, as to ask something."""
        yield

    def summary(self, usage: Usage | None = None, seconds: float | None = None) -> Text:
        """The run in a line, to be printed when it is over: nodes, time, and what LM calls used.
        What is not given is counted from the records."""
        with self.lock:
            nodes, used, lasted = self.pictures.sum(time())
        said = summary_of(nodes, lasted if seconds is None else seconds, usage or used)
        return Text(self.signs.said(said), "dim")
