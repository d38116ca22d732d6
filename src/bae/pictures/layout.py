"""A layered layout for directed graphs: boxes in rows, edges as lines with right angles that pass
through no box. Pure functions on whole numbers, so that pixels and characters share one layout."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import fsum
from typing import Final

Point = tuple[int, int]
Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Size:
    """The width and the height of a box."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Spacing:
    """Distances, in the unit of the drawing. *Across* is along a row, and *along* is the direction
    of the graph."""

    apart: int
    """Across, between two boxes."""
    beside: int
    """Across, between a line and its neighbor."""
    joins: int
    """Across, between two lines at one box."""
    inset: int
    """Across, from the corner of a box to the first line."""
    tail: int
    """Along, from a box to the first crossbar."""
    track: int
    """Along, from one crossbar to the next."""
    head: int
    """Along, from the last crossbar to the next box: the arrow head is there."""
    loop: int
    """Across, the distance of a line from a box to itself."""
    loop_at: tuple[int, int]
    """Along, where such a line leaves its box and comes back."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """The positions: the upper left corner and the size of each box, and for each edge the points
    of its line, from its tail to its head."""

    corners: tuple[Point, ...]
    sizes: tuple[Size, ...]
    lines: tuple[tuple[Point, ...], ...]
    width: int
    height: int


def arrange(
    sizes: Sequence[Size], edges: Sequence[Edge], spacing: Spacing, *, across: bool = False
) -> Arranged:
    """Lay out boxes, the first box at the top, or with `across` at the left. A box gets wider if
    the lines that end at it need the room."""
    if across:
        turned = [Size(size.height, size.width) for size in sizes]
        turned_layout = arrange(turned, edges, spacing)
        return Arranged(
            tuple((y, x) for x, y in turned_layout.corners),
            tuple(Size(size.height, size.width) for size in turned_layout.sizes),
            tuple(tuple((y, x) for x, y in line) for line in turned_layout.lines),
            turned_layout.height,
            turned_layout.width,
        )
    layer, upward, walk = layers(len(sizes), edges)
    down = [(b, a) if place in upward else (a, b) for place, (a, b) in enumerate(edges)]
    sizes = [_widen(box, size, down, spacing) for box, size in enumerate(sizes)]
    rows = _Rows(layer, down, walk, sizes, spacing)
    rows.order()
    rows.place()
    tops: list[int] = []
    lines: list[list[Point]] = [[] for _ in edges]
    top = 0
    for row, links in zip(rows.rows, _link_rows(rows), strict=True):
        tops.append(top)
        bottom = top + max(sizes[box].height for box in row if rows.is_box(box))
        ways, tracks = _assign_tracks([(link.top, link.bottom) for link in links], spacing.joins)
        top = bottom + spacing.tail + tracks * spacing.track + spacing.head
        for link, way in zip(links, ways, strict=True):
            points = lines[link.edge]
            if rows.is_box(link.upper):
                points.append((link.top, tops[-1] + sizes[link.upper].height))
            at = link.top
            for place, track in way:
                y = bottom + spacing.tail + track * spacing.track
                points += [(at, y), (place, y)]
                at = place
            if rows.is_box(link.lower):
                points.append((at, top))
    corners = [(rows.left[box], tops[layer[box]]) for box in range(len(sizes))]
    for place, (a, b) in enumerate(edges):
        if a == b:
            (x, y), (first, last) = corners[a], spacing.loop_at
            right, out = x + sizes[a].width, x + rows.widths[a] - 1
            lines[place] = [
                (right, y + first),
                (out, y + first),
                (out, y + last),
                (right, y + last),
            ]
        elif place in upward:
            lines[place].reverse()
    # A detour may lead out of the picture at the left.
    shift = max(0, -min((x for line in lines for x, _ in line), default=0))
    corners = [(x + shift, y) for x, y in corners]
    moved = [tuple((x + shift, y) for x, y in _drop_repeats(line)) for line in lines]
    ends = [x + rows.widths[box] for box, (x, _) in enumerate(corners)]
    ends += [x + 1 for line in moved for x, _ in line]
    height = max((y + sizes[box].height for box, (_, y) in enumerate(corners)), default=0)
    return Arranged(tuple(corners), tuple(sizes), tuple(moved), max(ends, default=0), height)


def _widen(box: int, size: Size, down: Sequence[Edge], spacing: Spacing) -> Size:
    """The size, as wide as the lines at the upper or at the lower side need."""
    most = max(sum(a == box != b for a, b in down), sum(b == box != a for a, b in down))
    needed = 2 * spacing.inset + max(0, most - 1) * spacing.joins + 1
    return Size(max(size.width, needed), size.height)


def _drop_repeats(points: Iterable[Point]) -> list[Point]:
    """Leave out points that repeat the point before, or are on the way to the next."""
    kept: list[Point] = []
    for point in points:
        if kept and kept[-1] == point:
            continue
        if len(kept) > 1 and kept[-2][0] == kept[-1][0] == point[0]:
            kept.pop()
        kept.append(point)
    return kept


# The row of each box


def layers(count: int, edges: Sequence[Edge]) -> tuple[list[int], set[int], list[int]]:
    """The row of every box; the positions of the edges that close a cycle and so lead upward; and
    the boxes in the order of a depth-first walk, which keeps related boxes together."""
    onward: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for place, (a, b) in enumerate(edges):
        if a != b:
            onward[a].append((place, b))
    upward: set[int] = set()
    walk: dict[int, None] = {}
    done: list[int] = []
    for root in range(count):
        path = [] if root in walk else [(root, iter(onward[root]))]
        open_boxes = {root}
        while path:
            here, rest = path[-1]
            walk[here] = None
            for place, target in rest:
                if target in open_boxes:
                    upward.add(place)
                elif target not in walk:
                    open_boxes.add(target)
                    path.append((target, iter(onward[target])))
                    break
            else:
                open_boxes.discard(here)
                done.append(here)
                path.pop()
    rows = [0] * count
    for box in reversed(done):  # after all boxes that lead to it, so that the longest path counts
        for place, target in onward[box]:
            if place not in upward:
                rows[target] = max(rows[target], rows[box] + 1)
    return rows, upward, list(walk)


# The order within each row, and the place of each box in it

SWEEPS: Final = 12
ROUNDS: Final = 6
PULL: Final = (8.0, 2.0, 1.0)
"""The weight of a straight link with no, one or two boxes at its ends: the longer an edge, the more
visible is a bend."""


class _Rows:
    """Boxes, and stand-ins for edges that skip rows, numbered after them. A chain has the boxes and
    stand-ins that an edge passes, from above to below."""

    def __init__(
        self,
        layer: Sequence[int],
        down: Sequence[Edge],
        walk: Sequence[int],
        sizes: Sequence[Size],
        spacing: Spacing,
    ) -> None:
        self.spacing = spacing
        self.boxes = len(layer)
        self.rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
        for box in walk:
            self.rows[layer[box]].append(box)
        count = self.boxes
        self.chains: list[list[int]] = []
        for a, b in down:
            chain = [a]
            for row in range(layer[a] + 1, layer[b]):
                self.rows[row].append(count)
                chain.append(count)
                count += 1
            self.chains.append([*chain, b] if a != b else [])
        self.above: list[list[int]] = [[] for _ in range(count)]
        self.below: list[list[int]] = [[] for _ in range(count)]
        for chain in self.chains:
            for a, b in pairwise(chain):
                self.below[a].append(b)
                self.above[b].append(a)
        loops = {a for a, b in down if a == b}
        self.drawn = [*(size.width for size in sizes), *[1] * (count - self.boxes)]
        self.widths = [w + spacing.loop * (box in loops) for box, w in enumerate(self.drawn)]
        """With room for a line from a box to itself."""
        self.left = [0] * count
        """The left side of every box, and the position of every stand-in."""

    def is_box(self, vertex: int) -> bool:
        """Whether it is a box, not a stand-in."""
        return vertex < self.boxes

    def order(self) -> None:
        """Order each row so that few edges cross."""
        best, fewest = self.rows, self._crossings()
        self.rows = [list(row) for row in best]
        for sweep in range(SWEEPS):
            if not fewest:
                break
            self._sweep(downward=sweep % 2 == 0)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def place(self) -> None:
        """Draw boxes to the middle of their neighbors, and the stand-ins of one edge to one
        straight line."""
        for row in self.rows:
            steps = self._steps(row)
            for vertex, at in zip(row, accumulate(steps, initial=-sum(steps) // 2), strict=True):
                self.left[vertex] = at
        for _ in range(ROUNDS):
            for row in self.rows:
                self._settle(row, self.above)
            for row in reversed(self.rows):
                self._settle(row, self.below)
        for row in self.rows:
            self._settle(row, self.above, self.below)
        at = {vertex: (row, place) for row in self.rows for place, vertex in enumerate(row)}
        for _ in range(2):
            for chain in sorted(self.chains, key=len, reverse=True):
                self._straighten(chain, at)
        first = min(self.left, default=0)
        self.left = [left - first for left in self.left]

    def _sweep(self, downward: bool) -> None:
        """Order each row by the positions of the neighbors in the row before it."""
        linked = self.above if downward else self.below
        rows = self.rows if downward else self.rows[::-1]
        for before, row in pairwise(rows):
            at = {vertex: index for index, vertex in enumerate(before)}
            middle: dict[int, float] = {}
            for index, vertex in enumerate(row):
                near = [at[each] for each in linked[vertex]]
                middle[vertex] = fsum(near) / len(near) if near else float(index)
            row.sort(key=lambda vertex: middle[vertex])

    def _crossings(self) -> int:
        total = 0
        for row, next_row in pairwise(self.rows):
            at = {vertex: index for index, vertex in enumerate(next_row)}
            seen: list[int] = []
            for vertex in row:
                ends = sorted(at[each] for each in self.below[vertex])
                total += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return total

    def _step(self, a: int, b: int) -> int:
        """The least distance from the left side of a box to that of the next."""
        boxes = self.is_box(a) and self.is_box(b)
        return self.widths[a] + (self.spacing.apart if boxes else self.spacing.beside)

    def _steps(self, row: list[int]) -> list[int]:
        return [self._step(a, b) for a, b in pairwise(row)]

    def _settle(self, row: list[int], *directions: list[list[int]]) -> None:
        wanted: list[float] = []
        weights: list[float] = []
        for vertex in row:
            total = pulled = 0.0
            half = (self.drawn[vertex] - 1) / 2
            for each in (each for linked in directions for each in linked[vertex]):
                weight = PULL[self.is_box(vertex) + self.is_box(each)]
                total += weight
                pulled += weight * (self.left[each] + (self.drawn[each] - 1) / 2)
            wanted.append(pulled / total - half if total else self.left[vertex])
            weights.append(total or 0.1)
        places = settle_places(wanted, weights, self._steps(row))
        for vertex, left in zip(row, places, strict=True):
            self.left[vertex] = left

    def _straighten(self, chain: list[int], at: dict[int, tuple[list[int], int]]) -> None:
        """Put the stand-ins of an edge on one line if nothing is in the way, if possible above a
        box that it leads to."""
        between = chain[1:-1]
        low, high = -(10**9), 10**9
        for vertex in between:
            row, place = at[vertex]
            for before in row[max(0, place - 1) : place]:
                low = max(low, self.left[before] + self._step(before, vertex))
            for after in row[place + 1 : place + 2]:
                high = min(high, self.left[after] - self._step(vertex, after))
        if not between or low > high:
            return
        for end in (chain[-1], chain[0]):
            inset = self.drawn[end] // 3  # at either side, for other lines
            first = max(low, self.left[end] + inset)
            last = min(high, self.left[end] + self.drawn[end] - 1 - inset)
            if first <= last:
                low, high = first, last
        middle = sorted(self.left[vertex] for vertex in between)[len(between) // 2]
        for vertex in between:
            self.left[vertex] = min(max(middle, low), high)


def settle_places(
    wanted: Sequence[float],
    weights: Sequence[float],
    distances: Sequence[int],
    low: int | None = None,
    high: int | None = None,
) -> list[int]:
    """Positions on a line, in their order, with the least weighted squares of their distances from
    the wanted positions. `distances` are the least distances from one to the next. All are within
    `low` and `high`, if there is room."""
    # Without the distances, the positions need only rise: neighbors in the wrong order are pooled
    # until none is.
    offsets = list(accumulate(distances, initial=0))
    pools: list[tuple[float, float, int]] = []
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        pool = (want - offset, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            value, heavy, many = pools.pop()
            both = heavy + pool[1]
            pool = ((value * heavy + pool[0] * pool[1]) / both, both, many + pool[2])
        pools.append(pool)
    values = [round(value) for value, _, many in pools for _ in range(many)]
    if low is not None and high is not None:
        values = [max(min(value, high - offsets[-1]), low) for value in values]
    return [value + offset for value, offset in zip(values, offsets, strict=True)]


# Where on its box each line begins and ends

STRAIGHT: Final = 1000.0
"""How much more a line counts that can be straight."""


@dataclass(slots=True)
class _Link:
    """A piece of an edge, from one row to the next, and where it begins and ends."""

    edge: int
    upper: int
    lower: int
    top: int
    bottom: int


def _link_rows(rows: _Rows) -> list[list[_Link]]:
    """The links of all edges, grouped by the row above them: straight if two boxes are above each
    other, and without crossings where they leave."""
    left, spacing = rows.left, rows.spacing
    at = {vertex: (y, x) for y, row in enumerate(rows.rows) for x, vertex in enumerate(row)}
    link_rows: list[list[_Link]] = [[] for _ in rows.rows]
    for edge, chain in enumerate(rows.chains):
        for upper, lower in pairwise(chain):
            link_rows[at[upper][0]].append(_Link(edge, upper, lower, left[upper], left[lower]))

    def reach(vertex: int) -> tuple[int, int]:
        if not rows.is_box(vertex):
            return left[vertex], left[vertex]
        return left[vertex] + spacing.inset, left[vertex] + rows.drawn[vertex] - 1 - spacing.inset

    def settle(links: list[_Link], box: int, upper: bool) -> None:
        links.sort(key=lambda link: (at[link.lower if upper else link.upper], link.edge))
        low, high = reach(box)
        middle = (low + high) / 2
        wanted: list[float] = []
        weights: list[float] = []
        for link in links:
            other = reach(link.lower) if upper else (link.top, link.top)
            start, end = max(low, other[0]), min(high, other[1])
            straight = start <= end
            near = min(max((middle + sum(other) / 2) / 2, start), end)
            wanted.append(near if straight else middle)
            weights.append(STRAIGHT if straight else 1.0)
        places = settle_places(wanted, weights, [spacing.joins] * (len(links) - 1), low, high)
        for link, place in zip(links, places, strict=True):
            setattr(link, "top" if upper else "bottom", place)

    for links in link_rows:
        for upper in (True, False):
            by_box: dict[int, list[_Link]] = {}
            for link in links:
                by_box.setdefault(link.upper if upper else link.lower, []).append(link)
            for box, each in by_box.items():
                if rows.is_box(box):
                    settle(each, box, upper)
    return link_rows


# The space between two rows


@dataclass(slots=True, eq=False)
class _Crossbar:
    """A horizontal piece of a line, from where the line comes down to where it continues down."""

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


def _assign_tracks(links: Sequence[tuple[int, int]], clear: int) -> tuple[list[list[Point]], int]:
    """For each link of (top, bottom) its crossbars, from above to below: the position it leads to
    and its track. Also the number of tracks. No two links overlap: lines that are less than `clear`
    apart count as touching."""
    bars = [_Crossbar(place, *link) for place, link in enumerate(links) if link[0] != link[1]]
    order = _order_bars(bars, {end for link in links for end in link}, clear)
    ways: list[list[Point]] = [[] for _ in links]
    for place, bar in enumerate(order):
        over = [
            other.track
            for other in order[:place]
            if other.link == bar.link
            or (other.low < bar.high + clear and bar.low < other.high + clear)
        ]
        bar.track = max(over, default=-1) + 1
        ways[bar.link].append((bar.bottom, bar.track))
    return ways, max((bar.track for bar in order), default=-1) + 1


def _order_bars(left: list[_Crossbar], taken: set[int], clear: int) -> list[_Crossbar]:
    """An order of the bars in which a line that comes down above a bar is not under it."""
    order: list[_Crossbar] = []
    # Lines cross least if the outermost bar of those in one direction is above.
    left.sort(key=lambda bar: -bar.top if bar.top < bar.bottom else bar.top)
    # A bar waits for the bars that come down where it continues down.
    waits = {
        bar: {b for b in left if b is not bar and abs(bar.bottom - b.top) < clear} for bar in left
    }
    while left:
        bar = next((bar for bar in left if not waits[bar]), None)
        if bar is not None:
            left.remove(bar)
            order.append(bar)
        else:
            # They wait for each other in a circle: one of them makes a detour.
            bar = min(left, key=lambda each: (len(waits[each]), each.high - each.low))
            through = _free_place((bar.top + bar.bottom) // 2, taken, clear)
            taken.add(through)
            order.append(_Crossbar(bar.link, bar.top, through))
            second = _Crossbar(bar.link, through, bar.bottom)
            left[left.index(bar)] = second
            waits[second] = waits.pop(bar)
        for others in waits.values():
            others.discard(bar)
    return order


def _free_place(near: int, taken: set[int], clear: int) -> int:
    step = 0
    while True:
        for place in (near + step, near - step):
            if all(abs(place - each) >= clear for each in taken):
                return place
        step += 1
