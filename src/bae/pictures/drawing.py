"""A graph in each of the formats, by one function each. They take the same options and hand the
picture to the module that knows the format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bae.pictures.palette import Theme
from bae.pictures.reading import picture_of
from bae.pictures.terminal import Direction, Drawing, draw_text

if TYPE_CHECKING:
    from pathlib import Path

    from bae.graph import Graph
    from bae.pictures.pdf import PdfFonts
    from bae.pictures.scene import Scene


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


def to_html(
    graph: Graph[Any, Any],
    *,
    fields: bool = True,
    direction: Direction = "TD",
    theme: Theme = "auto",
) -> str:
    """The graph as a page that tells more of a node when it is clicked. It needs no network."""
    from bae.pictures.composing import compose
    from bae.pictures.html import write_html
    from bae.pictures.svg import SystemFonts

    picture = picture_of(graph)
    scene = compose(picture, SystemFonts(), fields=fields, direction=direction)
    return write_html(picture, scene, theme=theme)


def to_mermaid(graph: Graph[Any, Any], *, fields: bool = True, direction: Direction = "TD") -> str:
    """The graph as a Mermaid flowchart. Without `fields` it has the nodes and arrows of the graph
    itself, and not the graphs inside."""
    from bae.pictures.mermaid import draw_mermaid

    return draw_mermaid(picture_of(graph), fields=fields, direction=direction)


def to_pdf(
    graph: Graph[Any, Any],
    *,
    fields: bool = True,
    direction: Direction = "TD",
    theme: Theme = "auto",
    font: str | Path | None = None,
) -> bytes:
    """The graph as a PDF of one page. It needs the extra `pictures`.

    The fonts of a PDF have the letters of western Europe; others are spelled by their number, as
    U+03B1, unless you give the file of a `font` that has them."""
    from bae.pictures.pdf import write_pdf

    scene, fonts = _for_pdf(graph, fields, direction, font)
    return write_pdf(scene, fonts, dark=theme == "dark")


def to_png(
    graph: Graph[Any, Any],
    *,
    fields: bool = True,
    direction: Direction = "TD",
    theme: Theme = "auto",
    font: str | Path | None = None,
    scale: float = 2,
) -> bytes:
    """The graph as a PNG, as `to_pdf` has it, with `scale` pixels for a point."""
    from bae.pictures.pdf import write_pdf, write_png

    scene, fonts = _for_pdf(graph, fields, direction, font)
    return write_png(write_pdf(scene, fonts, dark=theme == "dark"), scale=scale)


@dataclass(frozen=True, slots=True)
class Written:
    """A picture as the content of a file. `unknown` has the characters that its fonts lack."""

    content: bytes
    unknown: str = ""


def written(
    graph: Graph[Any, Any],
    format: str,
    *,
    fields: bool = True,
    direction: Direction = "TD",
    theme: Theme = "auto",
    font: str | Path | None = None,
    scale: float = 2,
) -> Written:
    """The graph in one of the `FORMATS`, as the content of a file."""
    text = _TEXTS.get(format)
    if text is not None:
        return Written(text(graph, fields, direction, theme).encode())
    if format not in FORMATS:
        raise ValueError(f"{format!r} is no format; there are {', '.join(FORMATS)}")
    from bae.pictures.pdf import write_pdf, write_png

    scene, fonts = _for_pdf(graph, fields, direction, font)
    content = write_pdf(scene, fonts, dark=theme == "dark")
    if format == "png":
        content = write_png(content, scale=scale)
    return Written(content, "".join(sorted(fonts.unknown)))


def _for_pdf(
    graph: Graph[Any, Any], fields: bool, direction: Direction, font: str | Path | None
) -> tuple[Scene, PdfFonts]:
    from bae.pictures.composing import compose
    from bae.pictures.pdf import PdfFonts

    fonts = PdfFonts(font)
    return compose(picture_of(graph), fonts, fields=fields, direction=direction), fonts


_TEXTS: Final[dict[str, Callable[[Graph[Any, Any], bool, Direction, Theme], str]]] = {
    "svg": lambda graph, fields, direction, theme: to_svg(
        graph, fields=fields, direction=direction, theme=theme
    ),
    "html": lambda graph, fields, direction, theme: to_html(
        graph, fields=fields, direction=direction, theme=theme
    ),
    "mmd": lambda graph, fields, direction, theme: to_mermaid(
        graph, fields=fields, direction=direction
    ),
}

FORMATS: Final = ("svg", "html", "mmd", "png", "pdf")
"""The formats of files, by how their names end."""
