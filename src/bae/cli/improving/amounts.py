"""Numbers of evaluations as cells of tables: those of `bae.evals.page`, and how they are
coloured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.evals.page import changed, dollars, many, score, scored, seconds, share

if TYPE_CHECKING:
    from bae.evals.intervals import Interval

__all__ = [
    "changed",
    "difference_style",
    "dollars",
    "many",
    "score",
    "scored",
    "seconds",
    "share",
]


def difference_style(found: Interval | None) -> str:
    """How a difference is coloured: as nothing where it may be chance."""
    if found is None or not found.excludes_zero:
        return ""
    return "green" if found.mean > 0 else "red"
