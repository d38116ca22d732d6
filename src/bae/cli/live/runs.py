"""The pictures of all runs that a display is told of: mostly one, and those that its bodies start
by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bae.cli.live.folding import RunPicture
from bae.cli.live.row import Row
from bae.cli.live.rows import rows_of
from bae.cli.live.wording import count
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.observers import ObservedRun
    from bae.records import Record

OTHERS: Final = 3
"""Runs that are shown beside the first."""


class Pictures:
    """Runs in the order they began."""

    def __init__(self) -> None:
        self._of: dict[ObservedRun, RunPicture] = {}
        self._gone = 0

    def __iter__(self) -> Iterator[RunPicture]:
        return iter(self._of.values())

    def take(self, run: ObservedRun, record: Record) -> RunPicture:
        """Take in a record of a run."""
        picture = self._of.get(run)
        if picture is None:
            if len(self._of) > OTHERS:
                self._forget_one()
            picture = self._of[run] = RunPicture(run.past)
        picture.take(record)
        return picture

    def rows(self, now: float, room: int) -> list[Row]:
        """The rows of all of them, at most so many: the first run has half of the room at least."""
        if not self._of:
            return []
        first, *others = self._of.values()
        below: list[Row] = []
        share = room // (2 * len(others)) if others else 0
        for picture in others:
            if share > 1:
                name = picture.whole.name or "a run"
                state = "done" if picture.whole.outcome == "ended" else "going"
                below.append(Row((), "item", state, name, "a run of its own"))
                below += rows_of(picture, now, share - 1)
        if self._gone:
            below.append(Row((), "more", name=f"{count(self._gone, 'more run')} done"))
        return [*rows_of(first, now, max(1, room - len(below))), *below][:room]

    @property
    def steps(self) -> int:
        """How many nodes of the first run are done or under way."""
        first = next(iter(self._of.values()), None)
        return 0 if first is None else len(first.whole.steps) + first.whole.left_out

    def leave_out_done(self) -> None:
        """Have no more rows of nodes of the first run that are done: they stand on the screen."""
        for picture in [*self._of.values()][:1]:
            done = [n for n, step in sorted(picture.whole.steps.items()) if step.state == "done"]
            if done:
                picture.whole.shown = max(done)

    def sum(self, now: float) -> tuple[int, Usage, float]:
        """The nodes of the first run, what it used, and how long it has lasted. A run that another
        one starts counts for itself."""
        if not self._of:
            return 0, Usage(), 0.0
        first = next(iter(self._of.values()))
        since = first.resumed_at or first.whole.began
        until = first.whole.ended or now
        return first.nodes, first.usage, max(0.0, until - since) if since else 0.0

    def _forget_one(self) -> None:
        """Let go of another run, one that is over where there is one."""
        _, *others = self._of
        over = [run for run in others if self._of[run].whole.outcome]
        del self._of[over[0] if over else others[0]]
        self._gone += 1
