"""Displays of a run in progress: a tree at a terminal, lines elsewhere, or nothing with
`--quiet`."""

from __future__ import annotations

from rich.console import Console

from bae.cli.live.display import Display
from bae.cli.live.lines import PlainLines
from bae.cli.live.screen import LiveTree, can_redraw

__all__ = ["Display", "LiveTree", "PlainLines", "display_for"]


def display_for(console: Console, quiet: bool = False) -> Display:
    """Make the display of a run for a console, usually stderr."""
    if quiet:
        return Display(console)
    return LiveTree(console) if can_redraw(console) else PlainLines(console)
