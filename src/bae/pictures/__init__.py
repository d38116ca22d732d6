"""Pictures of graphs: as text for a terminal, as SVG or as Mermaid, drawn from the plans that run
the graph. `picture_of` has what is shown, as data."""

from __future__ import annotations

from bae.pictures.contents import Arrow, Box, Picture, Shown
from bae.pictures.drawing import to_mermaid, to_svg, to_text
from bae.pictures.reading import picture_of
from bae.pictures.terminal import Drawing

__all__ = [
    "Arrow",
    "Box",
    "Drawing",
    "Picture",
    "Shown",
    "picture_of",
    "to_mermaid",
    "to_svg",
    "to_text",
]
