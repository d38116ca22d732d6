"""Finding a journal by the name of its file, and a run by its id or the first letters of it."""

from __future__ import annotations

import os
from typing import Final

from bae.exceptions import JournalError
from bae.journal.run_file import RecordedRuns, is_sqlite
from bae.journal.store import Journal, RunInfo

NEWEST: Final = "last"
"""The word that means the newest run."""


def open_to_read(file: str | os.PathLike[str]) -> Journal:
    """The journal in a file that exists: that of a `SQLiteJournal`, or one that `Journal.export`
    wrote, which can be read and replayed but not written."""
    if not is_sqlite(file):
        return RecordedRuns.of(file)
    return _sqlite(file)


def open_to_write(file: str | os.PathLike[str]) -> Journal:
    """The `SQLiteJournal` in a file, which is created if there is none. Any other file is refused
    with `bae-journal-readonly` and not changed."""
    if os.path.isdir(file) or (
        os.path.exists(file) and os.path.getsize(file) and not is_sqlite(file)
    ):
        raise JournalError(
            f"{os.fspath(file)} is no journal that can be written",
            code="bae-journal-readonly",
            fix="give the file of a SQLiteJournal; runs of an exported file are loaded into one "
            "with `bae runs load`, or journal.load(path)",
        )
    return _sqlite(file)


async def find_runs(journal: Journal, word: str, *, most: int = 5) -> list[RunInfo]:
    """The runs that a word may mean, the newest first: the one of that id, or at most `most` runs
    whose ids begin with it; "last" is the newest run of all."""
    try:
        return [(await journal.read(word)).info]
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
    if word == NEWEST:
        return await journal.runs(limit=1)
    found: list[RunInfo] = []
    if word:
        async for info in journal.every_run():
            if info.run_id.startswith(word):
                found.append(info)
            if len(found) == most:
                break
    return found


def _sqlite(file: str | os.PathLike[str]) -> Journal:
    from bae.journal.sqlite import SQLiteJournal

    return SQLiteJournal(file)
