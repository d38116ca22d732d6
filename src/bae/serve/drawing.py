"""Layouts of boxes and arrows for the page, which draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bae.pictures.layout import Arranged, Size, arrange
from bae.pictures.svg import SPACING
from bae.serve.views import BoxView, EdgeView

_WIDTH: Final = 48
_LETTER: Final = 9
_HEIGHT: Final = 40
"""The size of a box in pixels: its width without its name, the width of a letter, and its
height."""


def lay_out(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> Arranged:
    """The positions of boxes with these names, and the lines between them."""
    sizes = [Size(_WIDTH + _LETTER * len(name), _HEIGHT) for name in names]
    return arrange(sizes, edges, SPACING)


def draw_boxes(
    names: Sequence[str], links: Sequence[tuple[int, int]], width: int, height: int
) -> tuple[list[BoxView], list[EdgeView]]:
    """Boxes of one size and the arrows between them, from left to right. Each of `links` has the
    indexes of the two names that an arrow connects."""
    layout = arrange([Size(width, height)] * len(names), links, SPACING, across=True)
    boxes = [
        BoxView(node=name, x=x, y=y, width=size.width, height=size.height)
        for name, (x, y), size in zip(names, layout.corners, layout.sizes, strict=True)
    ]
    edges = [
        EdgeView(source=names[a], target=names[b], chosen_by="certain", line=[*line])
        for (a, b), line in zip(links, layout.lines, strict=True)
    ]
    return boxes, edges
