"""Runs in an SQLite file: `journal.py` is what the rest of bae sees of it."""

from bae.journal.sqlite.journal import SQLiteJournal

__all__ = ["SQLiteJournal"]
