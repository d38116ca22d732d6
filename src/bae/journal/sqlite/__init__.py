"""Runs in an SQLite file: `journal.py` is the interface for the rest of bae."""

from bae.journal.sqlite.journal import SQLiteJournal

__all__ = ["SQLiteJournal"]
