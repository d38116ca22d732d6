"""Pictures of graphs: as text for a terminal, SVG, a web page, PDF, PNG or Mermaid, all of them
drawn from the plans that run the graph. `picture_of` has what is shown, as data."""

from __future__ import annotations

from bae.pictures.contents import Arrow, Box, Picture, Shown
from bae.pictures.drawing import (
    FORMATS,
    Written,
    to_html,
    to_mermaid,
    to_pdf,
    to_png,
    to_svg,
    to_text,
    written,
)
from bae.pictures.reading import picture_of
from bae.pictures.terminal import Drawing

__all__ = [
    "FORMATS",
    "Arrow",
    "Box",
    "Drawing",
    "Picture",
    "Shown",
    "Written",
    "picture_of",
    "to_html",
    "to_mermaid",
    "to_pdf",
    "to_png",
    "to_svg",
    "to_text",
    "written",
]
