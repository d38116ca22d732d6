"""The run as a tree that changes while it goes on, at a terminal that can move its cursor. Records
come in wherever the run writes them; the tree is drawn a few times a second, in a thread of its
own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from time import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Group
from rich.text import Text

from bae.cli.live.display import Display
from bae.cli.live.drawing import SPINNING, drawn, fitted
from bae.cli.live.redrawn import Redrawn
from bae.cli.live.wording import summary_of

if TYPE_CHECKING:
    from rich.console import Console

WHOLE: Final = 400
"""Lines of a run that is over, which stay on the screen, unless that has more."""


class LiveTree(Display):
    """Shows runs as they go on. When it is left, the whole tree stays where it was."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._entered = False
        self._screen = Redrawn(console, self._group)
        self._last: list[Text] = []
        self._asked_at = 0

    def __enter__(self) -> Self:
        self._entered = True
        self._screen.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered = False
        with suppress(OSError):  # of a terminal that is gone: the run came out as it did
            self._screen.stop()
            self._print_rows()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Take the tree off the screen for the block."""
        self._screen.stop()
        try:
            with super().paused():
                yield
        finally:
            if self._entered and not self.pauses:
                self._screen.start()

    @contextmanager
    def asking(self) -> Generator[None]:
        """Take the tree off the screen for the block, with the rows of what led to the question
        left there. Nodes that are done by then are not shown again."""
        self._screen.stop()  # else it would be drawn anew below them
        with self.lock:
            steps = self.views.steps
        if steps != self._asked_at:  # else the question before has them above it
            with suppress(OSError):
                self._print_rows()
                self.console.print()
        self._asked_at = steps
        with self.lock:
            self.views.leave_out_done()
        with self.paused():
            yield

    def frame(self) -> list[Text]:
        """The lines of the tree as it is now, no more than the terminal has."""
        width, height = self.console.size
        now = time()
        with self.lock:
            rows = self.views.rows(now, max(1, height - 2))
            nodes, usage, seconds = self.views.sum(now)
        # Out here no run waits while values are written out.
        lines = list(drawn(rows, width, now, self.signs))
        turn = int(now * SPINNING) % len(self.signs.spinner)
        said = self.signs.said(summary_of(nodes, seconds, usage))
        status = Text(no_wrap=True).append(f"{self.signs.spinner[turn]} ", "yellow")
        status.append(fitted(said, max(1, width - 2), self.signs.dots), "dim")
        status.truncate(width)
        return [*lines, status]

    def whole(self) -> list[Text]:
        """The lines of the tree when the run is over, as long as it is within reason."""
        now = time()
        with self.lock:
            rows = self.views.rows(now, max(WHOLE, self.console.size.height))
        return list(drawn(rows, self.console.size.width, now, self.signs))

    def _print_rows(self) -> None:
        if lines := self.whole():
            self.console.print(Text("\n").join(lines), soft_wrap=True)

    def _group(self) -> Group:
        with suppress(Exception):  # rather the picture before than a thread that dies in one
            self._last = self.frame()
        return Group(*self._last)
