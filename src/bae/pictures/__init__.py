"""Pictures of graphs: text for a terminal, SVG or Mermaid, drawn from the plans that run the graph.
`picture_of` has the content of a picture as data."""

from __future__ import annotations

from bae.pictures.mermaid import to_mermaid
from bae.pictures.picture import Arrow, Box, BoxField, Picture, picture_of
from bae.pictures.svg import to_svg
from bae.pictures.terminal import Drawing, to_text

__all__ = [
    "Arrow",
    "Box",
    "BoxField",
    "Drawing",
    "Picture",
    "picture_of",
    "to_mermaid",
    "to_svg",
    "to_text",
]
