"""Where on a line the times of a run stand. The times in which nobody was at it, between a crash
and the resume say, are a few columns wide however long they were; so is that since a run was
parked, while it waits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from bae.journal.report import Span

if TYPE_CHECKING:
    from bae.journal.report import Timeline

_GAP: Final = 2
"""Columns of a gap, where there is room for it."""


class Scale:
    """The columns of a line, from 0 to `columns`, and which time stands where.

    `gaps` are the lengths of the times in between, `gap_columns` where they stand.
    """

    def __init__(self, timeline: Timeline, columns: int) -> None:
        self.columns = columns
        lives, end = timeline.lives, timeline.end
        if end > lives[-1].end:
            lives = *lives, Span(end, end)
        self._lives = lives
        self.gaps = [max(0.0, after.start - life.end) for life, after in pairwise(lives)]
        count = len(self.gaps)
        wide = next((each for each in (_GAP, 1) if count * (each + 2) <= columns // 2), 0)
        total = sum(life.seconds for life in lives)
        room = columns - count * wide
        spare = room - (len(lives) if wide else 0)
        self._starts: list[float] = []
        self._rooms: list[float] = []
        self.gap_columns: set[int] = set()
        at = 0.0
        for index, life in enumerate(lives):
            share = life.seconds / total if total > 0 else 1 / len(lives)
            # Whole columns where there are gaps, so that these stand between cells.
            mine = 1 + round(spare * share) if wide else room * share
            if index == count and wide:
                mine = max(1, columns - at)
            self._starts.append(at)
            self._rooms.append(mine)
            at += mine
            if index < count and wide:
                self.gap_columns.update(range(int(at), int(at) + wide))
                at += wide

    def place(self, at: float) -> float:
        """Where a time stands, in columns from the left."""
        index = max(0, bisect_right(self._lives, at, key=lambda life: life.start) - 1)
        life = self._lives[index]
        part = (at - life.start) / life.seconds if life.seconds > 0 else 0.0
        found = self._starts[index] + self._rooms[index] * min(1.0, max(0.0, part))
        return min(found, float(self.columns))

    def column(self, at: float) -> int:
        """The column that a time stands in."""
        return min(int(self.place(at)), self.columns - 1)

    def halves(self, spans: Sequence[Span]) -> list[bool]:
        """Which halves of the columns are covered; each span covers one at least."""
        covered = [False] * (2 * self.columns)
        for span in spans:
            first = min(int(2 * self.place(span.start)), len(covered) - 1)
            last = max(first + 1, round(2 * self.place(span.end)))
            covered[first:last] = [True] * (min(last, len(covered)) - first)
        return covered
