"""The third step of a layout: where in its row each box and each stand-in is. Boxes are drawn to
the middle of what they are linked to, and the stand-ins of one edge to one straight line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from bae.pictures.layout.ordering import Rows, neighbours
from bae.pictures.layout.settling import settled

ROUNDS: Final = 16
LINE, LINE_TO_BOX, BOX_TO_BOX = 8.0, 2.0, 1.0
"""How much a link wants to be straight: the longer an edge, the more a bend shows."""


def placed(
    rows: Rows, widths: Sequence[int], drawn: Sequence[int], apart: int, beside: int
) -> list[int]:
    """The left side of every box and the place of every stand-in. `widths` is what a box takes up,
    `drawn` how much of that is the box itself."""
    return _Placing(rows, widths, drawn, apart, beside).result()


class _Placing:
    def __init__(
        self, rows: Rows, widths: Sequence[int], drawn: Sequence[int], apart: int, beside: int
    ) -> None:
        self.rows = rows
        count = sum(len(row) for row in rows.rows)
        lines = [1] * (count - rows.boxes)
        self.widths = [*widths, *lines]
        self.drawn = [*drawn, *lines]
        self.above, self.below = neighbours(rows)
        self.gaps = [
            [self._gap(a, b, apart, beside) for a, b in pairwise(row)] for row in rows.rows
        ]
        self.left = [0] * count
        for row, gaps in zip(rows.rows, self.gaps, strict=True):
            at = -sum(self.widths[vertex] for vertex in row) // 2 - sum(gaps) // 2
            for vertex, gap in zip(row, [*gaps, 0], strict=True):
                self.left[vertex] = at
                at += self.widths[vertex] + gap

    def result(self) -> list[int]:
        places = range(len(self.rows.rows))
        for _ in range(ROUNDS):
            for place in places:
                self._settle(place, (self.above,))
            for place in reversed(places):
                self._settle(place, (self.below,))
        for place in places:
            self._settle(place, (self.above, self.below))
        for _ in range(2):
            for chain in sorted(self.rows.chains, key=len, reverse=True):
                self._straighten(chain)
        first = min(self.left, default=0)
        return [left - first for left in self.left]

    def _gap(self, a: int, b: int, apart: int, beside: int) -> int:
        boxes = self.rows.is_box(a) and self.rows.is_box(b)
        return apart if boxes else beside

    def _middle(self, vertex: int) -> float:
        return self.left[vertex] + (self.drawn[vertex] - 1) / 2

    def _settle(self, place: int, directions: tuple[list[list[int]], ...]) -> None:
        row = self.rows.rows[place]
        wanted: list[float] = []
        weights: list[float] = []
        for vertex in row:
            links = [each for linked in directions for each in linked[vertex]]
            total = pulled = 0.0
            for each in links:
                weight = self._weight(vertex, each)
                total += weight
                pulled += weight * self._middle(each)
            if total:
                wanted.append(pulled / total - (self.drawn[vertex] - 1) / 2)
                weights.append(total)
            else:
                wanted.append(self.left[vertex])
                weights.append(0.1)
        distances = [
            self.widths[vertex] + gap for vertex, gap in zip(row, self.gaps[place], strict=False)
        ]
        for vertex, left in zip(row, settled(wanted, weights, distances), strict=True):
            self.left[vertex] = left

    def _weight(self, a: int, b: int) -> float:
        boxes = self.rows.is_box(a) + self.rows.is_box(b)
        return (LINE, LINE_TO_BOX, BOX_TO_BOX)[boxes]

    def _straighten(self, chain: list[int]) -> None:
        """Put the stand-ins of an edge on one line where nothing is in the way, above a box that it
        leads to if that can be."""
        between = chain[1:-1]
        if not between:
            return
        low, high = -(10**9), 10**9
        for vertex in between:
            room = self._room(vertex)
            low, high = max(low, room[0]), min(high, room[1])
        if low > high:
            return
        for end in (chain[-1], chain[0]):
            # A third of the box at either side is left to other lines.
            inset = self.drawn[end] // 3
            first = max(low, self.left[end] + inset)
            last = min(high, self.left[end] + self.drawn[end] - 1 - inset)
            if first <= last:
                low, high = first, last
        middle = sorted(self.left[vertex] for vertex in between)[len(between) // 2]
        for vertex in between:
            self.left[vertex] = min(max(middle, low), high)

    def _room(self, vertex: int) -> tuple[int, int]:
        """From where to where it can go while all others stay."""
        for row, gaps in zip(self.rows.rows, self.gaps, strict=True):
            if vertex not in row:
                continue
            at = row.index(vertex)
            low, high = -(10**9), 10**9
            if at:
                before = row[at - 1]
                low = self.left[before] + self.widths[before] + gaps[at - 1]
            if at + 1 < len(row):
                high = self.left[row[at + 1]] - gaps[at] - self.widths[vertex]
            return low, high
        raise LookupError(vertex)
