"""The first step of a layout: which row each box stands in. Edges that close a cycle are turned
round, then every box goes below all that lead to it."""

from __future__ import annotations

from collections.abc import Sequence

Edge = tuple[int, int]


def layers(count: int, edges: Sequence[Edge]) -> tuple[list[int], set[int]]:
    """The row of every box, and the places of the edges that lead upwards. No edge may lead from a
    box to itself."""
    upward = _closing(count, edges)
    down = [(b, a) if place in upward else (a, b) for place, (a, b) in enumerate(edges)]
    return _longest(count, down), upward


def _closing(count: int, edges: Sequence[Edge]) -> set[int]:
    """The edges that lead back to where a walk in depth, from box 0 on, has come from."""
    onward: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for place, (a, b) in enumerate(edges):
        onward[a].append((place, b))
    closing: set[int] = set()
    state = [0] * count  # 1 while the walk is below it, 2 when it is done
    for root in range(count):
        if state[root]:
            continue
        state[root] = 1
        path = [(root, iter(onward[root]))]
        while path:
            here, rest = path[-1]
            for place, target in rest:
                if state[target] == 1:
                    closing.add(place)
                elif state[target] == 0:
                    state[target] = 1
                    path.append((target, iter(onward[target])))
                    break
            else:
                state[here] = 2
                path.pop()
    return closing


def _longest(count: int, edges: Sequence[Edge]) -> list[int]:
    """Rows by the longest way from above; the edges have no cycle."""
    below: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for a, b in edges:
        below[a].append(b)
        waiting[b] += 1
    rows = [0] * count
    ready = [each for each in range(count) if not waiting[each]]
    for each in ready:
        for target in below[each]:
            rows[target] = max(rows[target], rows[each] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return rows
