"""What a layout promises: boxes do not touch, and every edge is a line between its boxes that
crosses no box and lies on no other line."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bae.pictures.layout import Arranged, Size, arrange
from bae.pictures.svg import SPACING as PIXELS
from bae.pictures.terminal import SPACING as CELLS
from bae.pictures.terminal import SPACING_ACROSS as CELLS_ACROSS

Edges = list[tuple[int, int]]
Graph = tuple[list[Size], Edges]


@st.composite
def graphs(draw: st.DrawFn, most: int = 14) -> Graph:
    count = draw(st.integers(1, most))
    sizes = st.builds(Size, st.integers(50, 300), st.integers(40, 200))
    ends = st.integers(0, count - 1)
    edges = st.lists(st.tuples(ends, ends), max_size=3 * count, unique=True)
    return draw(st.lists(sizes, min_size=count, max_size=count)), draw(edges)


def check(graph: Graph, laid: Arranged, across: bool) -> None:
    sizes, edges = graph
    boxes = list(zip(laid.corners, laid.sizes, strict=True))
    for given_size, (_, size) in zip(sizes, boxes, strict=True):
        assert size.width >= given_size.width
        assert size.height >= given_size.height
    for ((ax, ay), a), ((bx, by), b) in combinations(boxes, 2):
        apart = ax + a.width <= bx or bx + b.width <= ax
        assert apart or ay + a.height <= by or by + b.height <= ay
    for (x, y), size in boxes:
        assert 0 <= x <= x + size.width <= laid.width
        assert 0 <= y <= y + size.height <= laid.height
    assert len(laid.lines) == len(edges)
    for (tail, head), line in zip(edges, laid.lines, strict=True):
        assert is_on(line[0], *boxes[tail])
        assert is_on(line[-1], *boxes[head])
        for (ax, ay), (bx, by) in pairwise(line):
            assert (ax == bx) != (ay == by), line
            for (x, y), size in boxes:
                beside = max(ax, bx) <= x or min(ax, bx) >= x + size.width
                assert beside or max(ay, by) <= y or min(ay, by) >= y + size.height
    for one, other in combinations(laid.lines, 2):
        for a in pairwise(one):
            assert not any(overlap(a, b) for b in pairwise(other)), (one, other)


def is_on(point: tuple[int, int], corner: tuple[int, int], size: Size) -> bool:
    (px, py), (x, y) = point, corner
    level = x <= px <= x + size.width and py in (y, y + size.height)
    upright = y <= py <= y + size.height and px in (x, x + size.width)
    return level or upright


def overlap(a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...]) -> bool:
    """Whether two stretches lie on each other for more than a point."""
    for one, other in ((0, 1), (1, 0)):
        if a[0][one] == a[1][one] == b[0][one] == b[1][one]:
            spans = [sorted(point[other] for point in ends) for ends in (a, b)]
            if min(spans[0][1], spans[1][1]) > max(spans[0][0], spans[1][0]):
                return True
    return False


@settings(deadline=None, derandomize=True, max_examples=60)
@given(graphs(), st.booleans())
@example(([Size(50, 40)], [(0, 0)]), False)
@example(([Size(50, 40)] * 3, [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]), True)
def test_no_line_crosses_a_box_or_lies_on_another_line(graph: Graph, across: bool):
    check(graph, arrange(*graph, PIXELS, across=across), across)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(graphs(8))
def test_no_line_crosses_a_box_in_a_character_layout(graph: Graph):
    sizes, edges = graph
    small = [Size(size.width // 10, size.height // 10) for size in sizes]
    check((small, edges), arrange(small, edges, CELLS), False)
    wide = [Size(max(size.width, 9), size.height) for size in small]
    check((wide, edges), arrange(wide, edges, CELLS_ACROSS, across=True), True)


@pytest.mark.parametrize("length", [2, 7, 40])
def test_a_cycle_is_drawn_downwards_with_one_line_back(length: int):
    edges = [(place, (place + 1) % length) for place in range(length)]
    laid = arrange([Size(60, 40)] * length, edges, PIXELS)

    check(([Size(60, 40)] * length, edges), laid, False)
    assert [y for _, y in laid.corners] == sorted(y for _, y in laid.corners)
    assert [line[-1][1] < line[0][1] for line in laid.lines] == [False] * (length - 1) + [True]


def test_a_chain_is_drawn_in_one_straight_column():
    sizes = [Size(61, 40), Size(201, 40), Size(81, 40)]
    laid = arrange(sizes, [(0, 1), (1, 2)], PIXELS)

    assert {x + size.width // 2 for (x, _), size in zip(laid.corners, sizes, strict=True)} == {100}
    assert all(len(line) == 2 for line in laid.lines)


def test_a_box_is_wide_enough_for_its_lines():
    edges = [(0, place) for place in range(1, 20)]
    laid = arrange([Size(50, 40)] * 20, edges, PIXELS)

    assert laid.sizes[0].width >= 19 * PIXELS.joins
    starts = [line[0][0] for line in laid.lines]
    assert all(abs(a - b) >= PIXELS.joins for a, b in combinations(starts, 2))
