"""Layouts of boxes and arrows, which the page draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bae.pictures.layout import Arranged, Size, arrange
from bae.pictures.svg import SPACING
from bae.serve.views import BoxView, EdgeView

_WIDTH: Final = 48
_LETTER: Final = 9
_HEIGHT: Final = 40
"""The sizes of a box in pixels: the width of an empty box, the width of a letter, and the
height."""


def lay_out(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> Arranged:
    """Return the positions of boxes with these names, and the lines between the boxes."""
    sizes = [Size(_WIDTH + _LETTER * len(name), _HEIGHT) for name in names]
    return arrange(sizes, edges, SPACING)


def draw_boxes(
    names: Sequence[str], links: Sequence[tuple[int, int]], width: int, height: int
) -> tuple[list[BoxView], list[EdgeView]]:
    """Return boxes of the same size and the arrows between the boxes, from left to right. Each of
    `links` has the indexes of the two names that an arrow connects."""
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
