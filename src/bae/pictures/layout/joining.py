"""The fourth step of a layout: where on its box each line begins and ends, so that lines are
straight where two boxes stand above each other, and do not cross where they leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bae.pictures.layout.ordering import Rows
from bae.pictures.layout.settling import settled

STRAIGHT = 1000.0
"""How much more than another a line counts that can be straight."""


@dataclass(slots=True)
class Link:
    """A piece of an edge, from one row to the next, and where it begins and ends."""

    edge: int
    upper: int
    lower: int
    top: int = 0
    bottom: int = 0


def joined(
    rows: Rows, left: Sequence[int], drawn: Sequence[int], inset: int, apart: int
) -> list[list[Link]]:
    """The links of all edges, those below each row together."""
    at = {
        vertex: (row, index)
        for row, each in enumerate(rows.rows)
        for index, vertex in enumerate(each)
    }
    found: list[list[Link]] = [[] for _ in rows.rows]
    for edge, chain in enumerate(rows.chains):
        for upper, lower in pairwise(chain):
            found[at[upper][0]].append(Link(edge, upper, lower, left[upper], left[lower]))

    def reach(vertex: int) -> tuple[int, int]:
        if not rows.is_box(vertex):
            return left[vertex], left[vertex]
        return left[vertex] + inset, left[vertex] + drawn[vertex] - 1 - inset

    def settle(links: list[Link], box: int, upper: bool, first: bool) -> None:
        links.sort(key=lambda link: (at[link.lower if upper else link.upper][1], link.edge))
        low, high = reach(box)
        middle = (low + high) / 2
        wanted: list[float] = []
        weights: list[float] = []
        for link in links:
            other = reach(link.lower if upper else link.upper)
            if not first:
                fixed = link.bottom if upper else link.top
                other = (fixed, fixed)
            from_, to = max(low, other[0]), min(high, other[1])
            if from_ <= to:
                wanted.append(min(max((middle + sum(other) / 2) / 2, from_), to))
                weights.append(STRAIGHT)
            else:
                wanted.append(middle)
                weights.append(1.0)
        places = settled(wanted, weights, [apart] * (len(links) - 1), low, high)
        for link, place in zip(links, places, strict=True):
            if upper:
                link.top = place
            else:
                link.bottom = place

    for links in found:
        for upper, first in ((True, True), (False, False), (True, False)):
            by_box: dict[int, list[Link]] = {}
            for link in links:
                box = link.upper if upper else link.lower
                if rows.is_box(box):
                    by_box.setdefault(box, []).append(link)
            for box, each in by_box.items():
                settle(each, box, upper, first)
    return found
