"""The second step of a layout: the order within each row. An edge that skips rows gets a stand-in
in each of them; then boxes and stand-ins change places until few edges cross."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import Final

SWEEPS: Final = 12
SWAPPED: Final = 300
"""Up to how many boxes and stand-ins neighbours are tried the other way round as well: beyond, it
takes too long for what it brings."""


@dataclass(slots=True)
class Rows:
    """Boxes, and stand-ins numbered on from them, in rows. A chain has the boxes and stand-ins that
    an edge passes, from above to below."""

    boxes: int
    rows: list[list[int]]
    chains: list[list[int]]

    def is_box(self, vertex: int) -> bool:
        """Whether it is a box, and no stand-in."""
        return vertex < self.boxes


def ordered(layer: Sequence[int], down: Sequence[tuple[int, int]]) -> Rows:
    """Rows in which few edges cross, of edges that all lead downwards."""
    found = _with_stand_ins(layer, down)
    above, below = neighbours(found)
    best, fewest = found.rows, _crossings(found.rows, below)
    rows = [list(row) for row in best]
    small = sum(len(row) for row in rows) <= SWAPPED
    for sweep in range(SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        _sweep(rows, above if downwards else below, downwards)
        if small:
            _swap(rows, above, below)
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    found.rows = best
    return found


def neighbours(rows: Rows) -> tuple[list[list[int]], list[list[int]]]:
    """What each is linked to in the row above, and in the row below."""
    count = sum(len(row) for row in rows.rows)
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for chain in rows.chains:
        for a, b in pairwise(chain):
            below[a].append(b)
            above[b].append(a)
    return above, below


def _with_stand_ins(layer: Sequence[int], down: Sequence[tuple[int, int]]) -> Rows:
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for box in _walked(len(layer), down):
        rows[layer[box]].append(box)
    free = len(layer)
    chains: list[list[int]] = []
    for a, b in down:
        chain = [a]
        for between in range(layer[a] + 1, layer[b]):
            rows[between].append(free)
            chain.append(free)
            free += 1
        chains.append([*chain, b])
    return Rows(len(layer), rows, chains)


def _walked(count: int, down: Sequence[tuple[int, int]]) -> list[int]:
    """The boxes as a walk in depth comes by: those that belong together stay together."""
    onward: list[list[int]] = [[] for _ in range(count)]
    for a, b in down:
        onward[a].append(b)
    walked: dict[int, None] = {}
    for root in range(count):
        ahead = [root]
        while ahead:
            here = ahead.pop()
            if here not in walked:
                walked[here] = None
                ahead.extend(reversed(onward[here]))
    return list(walked)


def _sweep(rows: list[list[int]], linked: list[list[int]], downwards: bool) -> None:
    """Order each row by where the neighbours in the row before it stand."""
    places = range(1, len(rows)) if downwards else range(len(rows) - 2, -1, -1)
    for place in places:
        before = rows[place - 1 if downwards else place + 1]
        at = {vertex: index for index, vertex in enumerate(before)}
        middle: dict[int, float] = {}
        for index, vertex in enumerate(rows[place]):
            near = [at[each] for each in linked[vertex]]
            middle[vertex] = fsum(near) / len(near) if near else float(index)
        rows[place].sort(key=lambda vertex: middle[vertex])


def _swap(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Change neighbours round while that takes crossings away."""
    for _ in range(4):
        changed = False
        at = {vertex: index for row in rows for index, vertex in enumerate(row)}
        for row in rows:
            for index in range(len(row) - 1):
                a, b = row[index], row[index + 1]
                if _between(a, b, above, below, at) > _between(b, a, above, below, at):
                    row[index], row[index + 1] = b, a
                    at[a], at[b] = index + 1, index
                    changed = True
        if not changed:
            return


def _between(
    a: int, b: int, above: list[list[int]], below: list[list[int]], at: dict[int, int]
) -> int:
    """How many edges of `a` cross edges of `b` when `a` stands to the left."""
    return sum(at[x] > at[y] for linked in (above, below) for x in linked[a] for y in linked[b])


def _crossings(rows: list[list[int]], below: list[list[int]]) -> int:
    total = 0
    for place, row in enumerate(rows[:-1]):
        at = {vertex: index for index, vertex in enumerate(rows[place + 1])}
        seen: list[int] = []
        for vertex in row:
            ends = sorted(at[each] for each in below[vertex])
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total
