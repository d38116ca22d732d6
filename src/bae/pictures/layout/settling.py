"""Places on a line: each as near as can be to where it wants to be, in a given order and with given
distances. Boxes in a row and the ends of lines on a box are both placed by it."""

from __future__ import annotations

from collections.abc import Sequence


def settled(
    wanted: Sequence[float],
    weights: Sequence[float],
    distances: Sequence[int],
    low: float | None = None,
    high: float | None = None,
) -> list[int]:
    """The places with the least weighted squares of how far they are off. `distances` are from one
    to the next. All are within `low` and `high`, where there is room."""
    # Without the distances the places need only rise: neighbours in the wrong order are pooled
    # until none is.
    offsets = [0]
    for distance in distances:
        offsets.append(offsets[-1] + distance)
    pools: list[tuple[float, float, int]] = []
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        pool = (want - offset, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            value, heavy, many = pools.pop()
            both = heavy + pool[1]
            pool = ((value * heavy + pool[0] * pool[1]) / both, both, many + pool[2])
        pools.append(pool)
    values = [round(value) for value, _, many in pools for _ in range(many)]
    if high is not None:
        values = [min(value, int(high) - offsets[-1]) for value in values]
    if low is not None:
        values = [max(value, int(low)) for value in values]
    return [value + offset for value, offset in zip(values, offsets, strict=True)]
