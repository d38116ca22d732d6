"""Shows a run while it goes on: as a tree at a terminal, as lines elsewhere, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.cli.live.display import Silent
from bae.cli.live.lines import PlainLines
from bae.cli.live.tree import LiveTree

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["LiveTree", "PlainLines", "Silent", "display_for"]


def display_for(console: Console, quiet: bool = False) -> Silent:
    """The display that fits a console, mostly that of stderr: a tree where the cursor can be moved,
    lines elsewhere, and nothing where it is to be quiet."""
    if quiet:
        return Silent(console)
    moves = console.is_terminal and not console.is_dumb_terminal
    # FORCE_COLOR makes a terminal of a file, which takes colours and no cursor.
    if moves and console.file.isatty():
        return LiveTree(console)
    return PlainLines(console)
