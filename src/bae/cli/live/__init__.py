"""Shows a run while it goes on: as a tree at a terminal, as lines elsewhere, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bae.cli.live.display import Display
from bae.cli.live.lines import PlainLines
from bae.cli.live.tree import LiveTree

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST: Final = 20
"""Columns that a tree has to have."""

__all__ = ["Display", "LiveTree", "PlainLines", "display_for"]


def display_for(console: Console, quiet: bool = False) -> Display:
    """The display that fits a console, mostly that of stderr: a tree where the cursor can be moved,
    lines elsewhere, and nothing where it is to be quiet."""
    if quiet:
        return Display(console)
    moves = console.is_terminal and not console.is_dumb_terminal and console.width >= NARROWEST
    # FORCE_COLOR makes a terminal of a file, which takes colours and no cursor.
    if moves and console.file.isatty():
        return LiveTree(console)
    return PlainLines(console)
