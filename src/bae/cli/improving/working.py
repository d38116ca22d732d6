"""Long work of a command, with its progress shown and signals heeded."""

from bae.cli.execute import Ended, work

__all__ = ["Ended", "work"]
