"""A journal from the name of its file, and the runs of it that somebody may mean by a word: what
every tool around a journal begins with. Commands and tests use it."""

from __future__ import annotations

import os
from typing import Final

from bae.exceptions import JournalError
from bae.journal.run_file import RecordedRuns, is_sqlite
from bae.journal.store import Journal, RunInfo

NEWEST: Final = "last"
"""The word for the newest run."""


def open_to_read(file: str | os.PathLike[str]) -> Journal:
    """The journal in a file that is there: that of a `SQLiteJournal`, or one that
    `Journal.export` has written, which can be read and replayed but not written."""
    if not is_sqlite(file):
        return RecordedRuns.of(file)
    return _sqlite(file)


def open_to_write(file: str | os.PathLike[str]) -> Journal:
    """The `SQLiteJournal` in a file, which is made where there is none; any other file is refused
    with `bae-journal-readonly`, and left as it is."""
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


async def runs_meant(journal: Journal, said: str, *, most: int = 5) -> list[RunInfo]:
    """The runs that a word may mean, the newest first: the one of that id, or else those whose
    ids begin so, and no more than `most`; "last" is the newest run of all."""
    try:
        return [(await journal.read(said)).info]
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
    if said == NEWEST:
        return await journal.runs(limit=1)
    found: list[RunInfo] = []
    if said:
        async for info in journal.every_run():
            if info.run_id.startswith(said):
                found.append(info)
            if len(found) == most:
                break
    return found


def _sqlite(file: str | os.PathLike[str]) -> Journal:
    from bae.journal.sqlite import SQLiteJournal

    return SQLiteJournal(file)
