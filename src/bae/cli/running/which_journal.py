"""Which journal new runs are kept in."""

from bae.cli.journals import journal_for

__all__ = ["journal_for"]
