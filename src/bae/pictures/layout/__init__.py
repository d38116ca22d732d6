"""A layered layout for directed graphs: boxes in rows, edges as lines with right angles that pass
through no box. Pure functions on whole numbers, so that the same layout is drawn in pixels, points
and characters. `arranging.py` puts the steps together."""

from __future__ import annotations

from bae.pictures.layout.arranging import Arranged, Size, Spacing, arrange

__all__ = ["Arranged", "Size", "Spacing", "arrange"]
