"""`arrange` puts the steps of a layout together: rows, order, places, joins and tracks become
rectangles and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bae.pictures.layout.joining import joined
from bae.pictures.layout.layering import Edge, layers
from bae.pictures.layout.ordering import ordered
from bae.pictures.layout.placing import placed
from bae.pictures.layout.tracks import tracked

Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Size:
    """How wide and how high a box is."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Spacing:
    """Distances, in the unit of the drawing. *Across* is along a row, and *along* is the way the
    graph goes."""

    apart: int
    """Across, between two boxes."""
    beside: int
    """Across, between a line and what is beside it."""
    joins: int
    """Across, between two lines at one box."""
    inset: int
    """Across, from the corner of a box to the first line."""
    tail: int
    """Along, from a box to the first way across."""
    track: int
    """Along, from one way across to the next."""
    head: int
    """Along, from the last way across to the next box: the arrow head is there."""
    loop: int
    """Across, how far a line from a box to itself goes out."""
    loop_at: tuple[int, int]
    """Along, where on its box it leaves and comes back."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """Where everything is: the upper left corner and the size of each box, and for each edge the
    points of its line, from its tail to its head."""

    corners: tuple[Point, ...]
    sizes: tuple[Size, ...]
    lines: tuple[tuple[Point, ...], ...]
    width: int
    height: int


def arrange(
    sizes: Sequence[Size], edges: Sequence[Edge], spacing: Spacing, *, across: bool = False
) -> Arranged:
    """Lay out boxes, the first one on top, or with `across` at the left. A box comes out wider than
    it was where the lines that end at it need the room."""
    if across:
        turned = [Size(size.height, size.width) for size in sizes]
        found = arrange(turned, edges, spacing)
        return Arranged(
            tuple((y, x) for x, y in found.corners),
            tuple(Size(size.height, size.width) for size in found.sizes),
            tuple(tuple((y, x) for x, y in line) for line in found.lines),
            found.height,
            found.width,
        )
    others = [place for place, (a, b) in enumerate(edges) if a != b]
    loops = {edges[place][0] for place in range(len(edges)) if edges[place][0] == edges[place][1]}
    proper = [edges[place] for place in others]
    layer, upward = layers(len(sizes), proper)
    down = [(b, a) if place in upward else (a, b) for place, (a, b) in enumerate(proper)]
    sizes = _with_room(sizes, down, spacing)
    rows = ordered(layer, down)
    drawn = [size.width for size in sizes]
    widths = [size.width + (spacing.loop if box in loops else 0) for box, size in enumerate(sizes)]
    left = placed(rows, widths, drawn, spacing.apart, spacing.beside)
    links = joined(rows, left, drawn, spacing.inset, spacing.joins)

    tops: list[int] = []
    pieces: list[list[Point]] = [[] for _ in proper]
    top = 0
    for row, below in zip(rows.rows, links, strict=True):
        tops.append(top)
        bottom = top + max(sizes[box].height for box in row if rows.is_box(box))
        ways, tracks = tracked([(link.top, link.bottom) for link in below], spacing.joins)
        top = bottom + spacing.tail + tracks * spacing.track + spacing.head
        for link, way in zip(below, ways, strict=True):
            points = pieces[link.edge]
            if rows.is_box(link.upper):
                points.append((link.top, tops[-1] + sizes[link.upper].height))
            at = link.top
            for place, track in way:
                y = bottom + spacing.tail + track * spacing.track
                points += [(at, y), (place, y)]
                at = place
            if rows.is_box(link.lower):
                points.append((at, top))
    height = max((tops[layer[box]] + size.height for box, size in enumerate(sizes)), default=0)

    corners = tuple((left[box], tops[layer[box]]) for box in range(len(sizes)))
    lines: list[tuple[Point, ...]] = []
    drawn_lines = {place: pieces[index] for index, place in enumerate(others)}
    for place, (a, _) in enumerate(edges):
        if place in drawn_lines:
            points = _without_repeats(drawn_lines[place])
            lines.append(tuple(reversed(points) if others.index(place) in upward else points))
            continue
        x, y = corners[a]
        right, (first, last) = x + sizes[a].width, spacing.loop_at
        out = right + spacing.loop - 1
        lines.append(((right, y + first), (out, y + first), (out, y + last), (right, y + last)))
    # A way round may lead out of the picture at the left.
    first = min([0, *(x for line in lines for x, _ in line)])
    corners = tuple((x - first, y) for x, y in corners)
    lines = [tuple((x - first, y) for x, y in line) for line in lines]
    width = max(
        [
            *(x + size for (x, _), size in zip(corners, widths, strict=True)),
            *(x + 1 for line in lines for x, _ in line),
        ],
        default=0,
    )
    return Arranged(corners, tuple(sizes), tuple(lines), width, height)


def _with_room(sizes: Sequence[Size], down: Sequence[Edge], spacing: Spacing) -> list[Size]:
    """The sizes, as wide as the lines at the upper or at the lower side need."""
    found: list[Size] = []
    for box, size in enumerate(sizes):
        most = max(sum(a == box for a, _ in down), sum(b == box for _, b in down))
        needed = 2 * spacing.inset + max(0, most - 1) * spacing.joins + 1
        found.append(Size(max(size.width, needed), size.height))
    return found


def _without_repeats(points: list[Point]) -> list[Point]:
    """Leave out points that are the one before, or on the way to the next."""
    kept: list[Point] = []
    for point in points:
        if kept and kept[-1] == point:
            continue
        if len(kept) > 1 and (kept[-2][0] == kept[-1][0] == point[0]):
            kept.pop()
        kept.append(point)
    return kept
