"""The fifth step of a layout: the space between two rows. A link that is not straight goes across
on a track; tracks are given out so that no two links lie on each other and few cross."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Crossbar:
    """A way across, from where it comes down to where it goes on down."""

    link: int
    top: int
    bottom: int
    track: int = 0

    @property
    def low(self) -> int:
        return min(self.top, self.bottom)

    @property
    def high(self) -> int:
        return max(self.top, self.bottom)


def tracked(
    links: Sequence[tuple[int, int]], clear: int
) -> tuple[list[list[tuple[int, int]]], int]:
    """The ways across for each link of (top, bottom): for each the place it goes to and the track
    it goes on, from above to below. And how many tracks there are. Lines that are less than `clear`
    apart count as touching."""
    bars = [
        _Crossbar(place, top, bottom) for place, (top, bottom) in enumerate(links) if top != bottom
    ]
    taken = sorted({end for link in links for end in link})
    order = _from_above(bars, taken, clear)
    for place, bar in enumerate(order):
        over = [
            other.track
            for other in order[:place]
            if other.link == bar.link
            or (other.low < bar.high + clear and bar.low < other.high + clear)
        ]
        bar.track = max(over, default=-1) + 1
    ways: list[list[tuple[int, int]]] = [[] for _ in links]
    for bar in sorted(order, key=lambda bar: bar.track):
        ways[bar.link].append((bar.bottom, bar.track))
    return ways, max((bar.track for bar in order), default=-1) + 1


def _from_above(bars: list[_Crossbar], taken: list[int], clear: int) -> list[_Crossbar]:
    """An order of the bars in which what comes down above a bar is not under it."""
    left = list(bars)
    order: list[_Crossbar] = []
    under: dict[_Crossbar, set[_Crossbar]] = {
        bar: {b for b in left if b is not bar and abs(b.bottom - bar.top) < clear} for bar in left
    }
    # under[a] has those that must not be above a: they would go down where a comes from.
    waits: dict[_Crossbar, set[_Crossbar]] = {bar: set() for bar in left}
    for bar, others in under.items():
        for other in others:
            waits[other].add(bar)
    cost = {
        bar: sum(_crossings(bar, b) - _crossings(b, bar) for b in left if b is not bar)
        for bar in left
    }
    while left:
        free = [bar for bar in left if not waits[bar]]
        if not free:
            # They wait for each other in a circle: one of them goes a way round.
            bar = min(left, key=lambda each: (len(waits[each]), each.high - each.low))
            through = _free_place((bar.top + bar.bottom) // 2, taken, clear)
            taken.append(through)
            first = _Crossbar(bar.link, bar.top, through)
            second = _Crossbar(bar.link, through, bar.bottom)
            left[left.index(bar)] = second
            waits[second] = waits.pop(bar)
            for others in waits.values():
                others.discard(bar)  # what waited for it to leave its top, which `first` does
            cost[second] = cost.pop(bar)
            order.append(first)
            continue
        bar = min(free, key=lambda each: cost[each])
        left.remove(bar)
        order.append(bar)
        for other in left:
            waits[other].discard(bar)
            cost[other] -= _crossings(other, bar) - _crossings(bar, other)
    return order


def _crossings(a: _Crossbar, b: _Crossbar) -> int:
    """How often they cross when `a` is above."""
    return (a.low < b.top < a.high) + (b.low < a.bottom < b.high)


def _free_place(near: int, taken: list[int], clear: int) -> int:
    step = 0
    while True:
        for place in (near + step, near - step):
            if all(abs(place - each) >= clear for each in taken):
                return place
        step += 1
