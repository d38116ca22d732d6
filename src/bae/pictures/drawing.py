"""A graph in each of the formats, by one function each. They take the same options and hand the
picture to the module that knows the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bae.pictures.palette import Theme
from bae.pictures.reading import picture_of
from bae.pictures.terminal import Direction, Drawing, draw_text

if TYPE_CHECKING:
    from bae.graph import Graph


def to_text(
    graph: Graph[Any, Any],
    *,
    width: int = 80,
    fields: bool = True,
    direction: Direction = "TD",
    ascii_only: bool = False,
    compact: bool = False,
) -> Drawing:
    """The graph as text of at most `width` columns; print it, or colour its rows.

    Boxes and lines that would need more become a list that names every arrow, as they do with
    `compact`."""
    return draw_text(
        picture_of(graph),
        width=width,
        fields=fields,
        direction=direction,
        ascii_only=ascii_only,
        compact=compact,
    )


def to_svg(
    graph: Graph[Any, Any],
    *,
    fields: bool = True,
    direction: Direction = "TD",
    theme: Theme = "auto",
) -> str:
    """The graph as SVG. Its colours follow the reader's choice of light or dark, unless `theme`
    says which."""
    from bae.pictures.composing import compose
    from bae.pictures.svg import SystemFonts, write_svg

    scene = compose(picture_of(graph), SystemFonts(), fields=fields, direction=direction)
    return write_svg(scene, theme=theme)


def to_mermaid(graph: Graph[Any, Any], *, fields: bool = True, direction: Direction = "TD") -> str:
    """The graph as a Mermaid flowchart. Without `fields` it has the nodes and arrows of the graph
    itself, and not the graphs inside."""
    from bae.pictures.mermaid import draw_mermaid

    return draw_mermaid(picture_of(graph), fields=fields, direction=direction)
