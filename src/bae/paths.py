"""Questions about paths through a graph of node classes, as plain functions of its edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

V = TypeVar("V")


def path_avoiding(
    edges: Mapping[V, Sequence[V]], start: V, goal: V, avoided: Callable[[V], bool]
) -> list[V] | None:
    """The shortest path from `start` to `goal` that passes no avoided place before the goal."""
    if start == goal:
        return [start]
    came_from: dict[V, V] = {}
    ahead = [start]
    for place in ahead:
        if avoided(place):
            continue
        for following in edges.get(place, ()):
            if following == goal:
                path = [goal, place]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if following not in came_from and following != start:
                came_from[following] = place
                ahead.append(following)
    return None


def endless_loops(edges: Mapping[V, Sequence[V]], exits: Collection[V]) -> list[list[V]]:
    """The loops that no path leaves towards an exit, each as its places in the order of a walk."""
    leads_out = set(exits)
    grown = True
    while grown:
        more = {p for p in edges if p not in leads_out and leads_out.intersection(edges[p])}
        leads_out |= more
        grown = bool(more)
    stuck = [place for place in edges if place not in leads_out]
    reach = {place: _reachable(edges, place) for place in stuck}
    loops: list[list[V]] = []
    told: set[V] = set()
    for place in stuck:
        # A place that everything it reaches leads back to stands in a loop with no way on.
        if place in told or place not in reach[place]:
            continue
        if all(place in reach[other] for other in reach[place]):
            told |= reach[place]
            loops.append(_loop_through(edges, place))
    return loops


def _reachable(edges: Mapping[V, Sequence[V]], start: V) -> set[V]:
    seen: set[V] = set()
    ahead = list(edges.get(start, ()))
    for place in ahead:
        if place not in seen:
            seen.add(place)
            ahead.extend(edges.get(place, ()))
    return seen


def _loop_through(edges: Mapping[V, Sequence[V]], place: V) -> list[V]:
    back = path_avoiding(edges, edges[place][0], place, lambda _: False)
    assert back is not None, "in a loop that nothing leaves, every way on leads back"
    return [place, *back[:-1]]
