"""Pictures of graphs as text for a terminal, SVG or Mermaid. They show the same plans that bae
runs. `picture_of` returns the content of a picture as data."""

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
