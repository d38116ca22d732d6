"""A layered layout for directed graphs. Boxes are in rows. Edges are lines with right angles that
pass through no box. All positions are whole numbers, so the layout serves drawings in pixels and in
characters."""

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
    """Distances, in the unit of the drawing. The default layout has horizontal rows, and edges lead
    down. *Across* means along a row. *Along* means in the direction of the edges. A crossbar is the
    part of an edge that runs across, between two rows. A loop is an edge from a box to itself."""

    apart: int
    """Across: the distance between two boxes."""
    beside: int
    """Across: the distance between a line and a neighboring line or box."""
    joins: int
    """Across: the distance between two lines that end at the same box."""
    inset: int
    """Across: the distance from the corner of a box to the first line."""
    tail: int
    """Along: the distance from a box to the first crossbar."""
    track: int
    """Along: the distance between two crossbars."""
    head: int
    """Along: the distance from the last crossbar to the next box. It has room for the arrow
    head."""
    loop: int
    """Across: the distance from a box to the far side of its loop."""
    loop_at: tuple[int, int]
    """Along: the distances from the corner of a box to the points where its loop leaves and comes
    back."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """A finished layout."""

    corners: tuple[Point, ...]
    """The upper left corner of each box."""
    sizes: tuple[Size, ...]
    """The size of each box."""
    lines: tuple[tuple[Point, ...], ...]
    """The line of each edge, as points from its tail to its head."""
    width: int
    """The width of the whole drawing."""
    height: int
    """The height of the whole drawing."""


def arrange(
    sizes: Sequence[Size], edges: Sequence[Edge], spacing: Spacing, *, across: bool = False
) -> Arranged:
    """Lay out boxes and edges. The first box is at the top, or with `across` at the left. If the
    lines at a box need more room, the box gets wider."""
    if across:
        transposed = [Size(size.height, size.width) for size in sizes]
        turned_layout = arrange(transposed, edges, spacing)
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
        routes, tracks = _assign_tracks([(link.top, link.bottom) for link in links], spacing.joins)
        top = bottom + spacing.tail + tracks * spacing.track + spacing.head
        for link, route in zip(links, routes, strict=True):
            points = lines[link.edge]
            if rows.is_box(link.upper):
                points.append((link.top, tops[-1] + sizes[link.upper].height))
            at = link.top
            for place, track in route:
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
    # Some lines may be left of x = 0, because they make a detour. Move everything to the right.
    shift = max(0, -min((x for line in lines for x, _ in line), default=0))
    corners = [(x + shift, y) for x, y in corners]
    shifted = [tuple((x + shift, y) for x, y in _drop_repeats(line)) for line in lines]
    ends = [x + rows.widths[box] for box, (x, _) in enumerate(corners)]
    ends += [x + 1 for line in shifted for x, _ in line]
    height = max((y + sizes[box].height for box, (_, y) in enumerate(corners)), default=0)
    return Arranged(tuple(corners), tuple(sizes), tuple(shifted), max(ends, default=0), height)


def _widen(box: int, size: Size, down: Sequence[Edge], spacing: Spacing) -> Size:
    """Return the size of a box, with enough width for the lines at its upper and lower sides."""
    most = max(sum(a == box != b for a, b in down), sum(b == box != a for a, b in down))
    needed = 2 * spacing.inset + max(0, most - 1) * spacing.joins + 1
    return Size(max(size.width, needed), size.height)


def _drop_repeats(points: Iterable[Point]) -> list[Point]:
    """Remove points that equal the point before, and the inner points of vertical lines."""
    simplified: list[Point] = []
    for point in points:
        if simplified and simplified[-1] == point:
            continue
        if len(simplified) > 1 and simplified[-2][0] == simplified[-1][0] == point[0]:
            simplified.pop()
        simplified.append(point)
    return simplified


# The row of each box


def layers(count: int, edges: Sequence[Edge]) -> tuple[list[int], set[int], list[int]]:
    """Assign each box to a row.

    Returns:
        The row of each box.
        The indexes of the edges that lead upward, because they close a cycle.
        The boxes in the order of a depth-first walk. This order keeps related boxes together.
    """
    onward: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for place, (a, b) in enumerate(edges):
        if a != b:
            onward[a].append((place, b))
    upward: set[int] = set()
    walk: dict[int, None] = {}
    finished: list[int] = []
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
                finished.append(here)
                path.pop()
    rows = [0] * count
    # In this order, each box is after all boxes that lead to it. So the longest path sets its row.
    for box in reversed(finished):
        for place, target in onward[box]:
            if place not in upward:
                rows[target] = max(rows[target], rows[box] + 1)
    return rows, upward, list(walk)


# The order within each row, and the place of each box in it

SWEEPS: Final = 12
ROUNDS: Final = 6
PULL: Final = (8.0, 2.0, 1.0)
"""How strongly a link, which is the part of an edge between two rows, pulls its ends to one line.
An end is a box or a stand-in: see `_Rows`. The index is the number of ends that are boxes. A link
between two stand-ins pulls most, because a bend is more visible in a long edge."""


class _Rows:
    """The rows of a layout. A row consists of vertices, which are boxes and stand-ins. In each row
    that an edge skips, the edge has a stand-in. The boxes have the first numbers, and the stand-ins
    the next. The chain of an edge has its boxes and stand-ins, from top to bottom."""

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
        """The width of each vertex, with the room for its loop."""
        self.left = [0] * count
        """The x position of the left side of each vertex."""

    def is_box(self, vertex: int) -> bool:
        """Return whether a vertex is a box. All other vertices are stand-ins."""
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
        """Set the x positions. Move boxes to the middle of their neighbors. Move the stand-ins of
        an edge to a straight line."""
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
        """Order each row by the mean position of each vertex's neighbors in the previous row."""
        linked = self.above if downward else self.below
        rows = self.rows if downward else self.rows[::-1]
        for before, row in pairwise(rows):
            at = {vertex: index for index, vertex in enumerate(before)}
            middle: dict[int, float] = {}
            for index, vertex in enumerate(row):
                positions = [at[neighbor] for neighbor in linked[vertex]]
                middle[vertex] = fsum(positions) / len(positions) if positions else float(index)
            row.sort(key=lambda vertex: middle[vertex])

    def _crossings(self) -> int:
        total = 0
        for row, next_row in pairwise(self.rows):
            at = {vertex: index for index, vertex in enumerate(next_row)}
            earlier_ends: list[int] = []
            for vertex in row:
                ends = sorted(at[neighbor] for neighbor in self.below[vertex])
                total += sum(len(earlier_ends) - bisect_right(earlier_ends, end) for end in ends)
                for end in ends:
                    insort(earlier_ends, end)
        return total

    def _step(self, a: int, b: int) -> int:
        """Return the minimum distance between the left sides of two neighbors in a row."""
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
            for neighbor in (neighbor for linked in directions for neighbor in linked[vertex]):
                weight = PULL[self.is_box(vertex) + self.is_box(neighbor)]
                total += weight
                pulled += weight * (self.left[neighbor] + (self.drawn[neighbor] - 1) / 2)
            wanted.append(pulled / total - half if total else self.left[vertex])
            weights.append(total or 0.1)
        places = settle_places(wanted, weights, self._steps(row))
        for vertex, left in zip(row, places, strict=True):
            self.left[vertex] = left

    def _straighten(self, chain: list[int], at: dict[int, tuple[list[int], int]]) -> None:
        """Put the stand-ins of an edge on a vertical line, if nothing is in the way. If possible,
        choose a line that meets the box at an end of the edge."""
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
            inset = self.drawn[end] // 3  # leave room for other lines at both sides
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
    """Return positions on a line that are as near as possible to the wanted positions.

    The positions keep their order. Neighbors have at least the `distances` between them. Among all
    such positions, the weighted sum of the squared distances to the `wanted` positions is minimal.
    With `low` and `high`, the positions are between these bounds, if there is enough room.
    """
    # Subtract the distances first: then the positions only need to be in rising order. Neighbors in
    # the wrong order are merged into a pool with one position, until all pools are in order.
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
"""The weight of a line that can be straight. All other lines have the weight 1."""


@dataclass(slots=True)
class _Link:
    """The part of an edge from one row to the next."""

    edge: int
    """The index of the edge."""
    upper: int
    """The vertex in the upper row."""
    lower: int
    """The vertex in the lower row."""
    top: int
    """The x position at the upper vertex."""
    bottom: int
    """The x position at the lower vertex."""


def _link_rows(rows: _Rows) -> list[list[_Link]]:
    """Return the links of all edges, grouped by the upper row. If one box is straight above the
    other, the link between them is straight. Links at the same side of a box do not cross there."""
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
            position = min(max((middle + sum(other) / 2) / 2, start), end)
            wanted.append(position if straight else middle)
            weights.append(STRAIGHT if straight else 1.0)
        places = settle_places(wanted, weights, [spacing.joins] * (len(links) - 1), low, high)
        for link, place in zip(links, places, strict=True):
            setattr(link, "top" if upper else "bottom", place)

    for links in link_rows:
        for upper in (True, False):
            by_box: dict[int, list[_Link]] = {}
            for link in links:
                by_box.setdefault(link.upper if upper else link.lower, []).append(link)
            for box, box_links in by_box.items():
                if rows.is_box(box):
                    settle(box_links, box, upper)
    return link_rows


# The space between two rows


@dataclass(slots=True, eq=False)
class _Crossbar:
    """A horizontal part of a link. The link comes down from above at `top` and continues down at
    `bottom`."""

    link: int
    """The index of the link."""
    top: int
    """The x position above the crossbar."""
    bottom: int
    """The x position below the crossbar."""
    track: int = 0
    """The track between the two rows, counted from the top."""

    @property
    def low(self) -> int:
        return min(self.top, self.bottom)

    @property
    def high(self) -> int:
        return max(self.top, self.bottom)


def _assign_tracks(links: Sequence[tuple[int, int]], clear: int) -> tuple[list[list[Point]], int]:
    """Assign the crossbars of links to tracks, so that no two links overlap. `links` are pairs of
    the x positions at the top and at the bottom. Lines overlap if their distance is less than
    `clear`.

    Returns:
        The crossbars of each link, from top to bottom. A crossbar is the x position below it, and
        its track.
        The number of tracks.
    """
    bars = [_Crossbar(place, *link) for place, link in enumerate(links) if link[0] != link[1]]
    order = _order_bars(bars, {end for link in links for end in link}, clear)
    routes: list[list[Point]] = [[] for _ in links]
    for place, bar in enumerate(order):
        over = [
            other.track
            for other in order[:place]
            if other.link == bar.link
            or (other.low < bar.high + clear and bar.low < other.high + clear)
        ]
        bar.track = max(over, default=-1) + 1
        routes[bar.link].append((bar.bottom, bar.track))
    return routes, max((bar.track for bar in order), default=-1) + 1


def _order_bars(bars: list[_Crossbar], occupied: set[int], clear: int) -> list[_Crossbar]:
    """Return the crossbars from top to bottom, in an order in which no vertical line overlaps the
    vertical line of another link. To make such an order possible, split a crossbar if needed."""
    order: list[_Crossbar] = []
    # Lines that lead in the same direction cross least if the outermost crossbar is at the top.
    bars.sort(key=lambda bar: -bar.top if bar.top < bar.bottom else bar.top)
    # If another bar comes down where this bar continues down, the other bar must be above.
    waits = {
        bar: {b for b in bars if b is not bar and abs(bar.bottom - b.top) < clear} for bar in bars
    }
    while bars:
        bar = next((bar for bar in bars if not waits[bar]), None)
        if bar is not None:
            bars.remove(bar)
            order.append(bar)
        else:
            # The bars wait for each other in a circle. Split one bar into two, with a detour.
            bar = min(bars, key=lambda waiting: (len(waits[waiting]), waiting.high - waiting.low))
            through = _free_place((bar.top + bar.bottom) // 2, occupied, clear)
            occupied.add(through)
            order.append(_Crossbar(bar.link, bar.top, through))
            second = _Crossbar(bar.link, through, bar.bottom)
            bars[bars.index(bar)] = second
            waits[second] = waits.pop(bar)
        for others in waits.values():
            others.discard(bar)
    return order


def _free_place(near: int, occupied: set[int], clear: int) -> int:
    step = 0
    while True:
        for place in (near + step, near - step):
            if all(abs(place - other) >= clear for other in occupied):
                return place
        step += 1
