"""What SQLite complains about, said so that somebody can act on it. The writer and the reader of a
`SQLiteJournal`, and `file.py`, pass every error of theirs through here."""

from __future__ import annotations

import os
import shutil
import sqlite3

from bae.exceptions import JournalError, describe

_NEARLY_NOTHING = 1 << 20
"""Free bytes of a disk below which a write that failed is put down to its being full."""


def told(error: BaseException, path: str, run_id: str | None = None) -> JournalError:
    """The error to raise for one of SQLite's about the file at `path`."""
    if isinstance(error, JournalError):
        return error
    code = code_of(error)
    if is_busy(error):
        return JournalError(
            f"{path} is locked by somebody else, and stayed so",
            code="bae-journal-locked",
            cause=error,
            run_id=run_id,
            fix="end whatever holds the file (a backup, an open transaction in another program), "
            "or wait longer with SQLiteJournal(…, busy_timeout=60)",
        )
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path)):
        return JournalError(
            f"the disk of {path} is full",
            code="bae-journal-full",
            cause=error,
            run_id=run_id,
            fix="make room, then resume the run: what was acknowledged is there; "
            "journal.prune(older_than=…) makes room inside the file",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH) or (
        code == sqlite3.SQLITE_CANTOPEN and not is_writable(path)
    ):
        return JournalError(
            f"{path} cannot be written by this user",
            code="bae-journal-readonly",
            cause=error,
            run_id=run_id,
            fix="let the user of this process write the file and its folder, where SQLite keeps "
            "two more files while it works",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "decode to UTF-8" in str(error):
        return damaged(path, "SQLite cannot make sense of it", run_id=run_id, cause=error)
    return JournalError(
        f"{path} could not be read or written",
        code="bae-journal-failed",
        cause=error,
        run_id=run_id,
        fix="see the cause; once it is mended, resume the run",
    )


def code_of(error: BaseException) -> int:
    """The primary result code of an SQLite error; 0 for anything else."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether somebody else held the file for longer than we wait."""
    return code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def wants_new_connection(error: BaseException) -> bool:
    """Whether a connection that had this error may go on having it when its cause is gone."""
    return code_of(error) in (
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
    )


def is_writable(path: str) -> bool:
    """Whether this user may write a file and beside it."""
    beside = os.access(os.path.dirname(path), os.W_OK)
    return beside and (not os.path.exists(path) or os.access(path, os.W_OK))


def damaged(
    path: str, what: str, *, run_id: str | None = None, cause: BaseException | None = None
) -> JournalError:
    """The error about a file that is not, or is no longer, a journal."""
    return JournalError(
        f"{path} is damaged, or is no journal: {what}",
        code="bae-journal-damaged",
        cause=cause,
        run_id=run_id,
        fix="nothing of it was changed. Copy the file, and those beside it that end in -wal and "
        "-shm, before you do anything; then try `sqlite3 FILE .recover`, or a backup",
    )


def foreign(path: str) -> JournalError:
    """The error about a sound file that is not bae's."""
    return JournalError(
        f"{path} is no journal of bae: it is the SQLite file of another program",
        code="bae-journal-foreign",
        fix="name another file; nothing of this one was changed",
    )


def gone(path: str, run_id: str | None = None) -> JournalError:
    """The error about a file that was taken away from under a journal."""
    return JournalError(
        f"{path} was deleted, moved or replaced while it was in use",
        code="bae-journal-gone",
        run_id=run_id,
        fix="put the file back and resume its runs, or begin them anew; stop the processes that "
        "use a journal before you move it",
    )


def closed(path: str, run_id: str | None = None, *, begun: bool = False) -> JournalError:
    """The error about a journal that is closed; `begun` where a run was under way."""
    fix = "close it when its last run has ended; this one can be resumed"
    return JournalError(
        f"the journal {path} is closed",
        code="bae-journal-closed",
        run_id=run_id,
        fix=fix if begun else "open it again, SQLiteJournal(…), and close it when you are done",
    )


def unknown(path: str, run_id: str) -> JournalError:
    """The error about a run that is not there."""
    return JournalError(
        f"{path} has no run {run_id!r}",
        code="bae-run-unknown",
        run_id=run_id,
        fix="look at `await journal.runs()`: it may be in another journal, or was deleted",
    )


def taken(path: str, run_id: str, by: str | None) -> JournalError:
    """The error for an owner that has lost its run."""
    who = f"{by} has it" if by else "it was deleted, or given up"
    return JournalError(
        f"run {run_id!r} is no longer this process's: {who} now",
        code="bae-run-taken",
        run_id=run_id,
        path=path,
        fix="leave it to whoever has it. A process that stands still for longer than its lease "
        "loses its runs: SQLiteJournal(…, lease=120) gives it longer",
    )


def oneline(error: BaseException) -> str:
    """An error in one line, for a message."""
    return describe(error)


def _is_full(path: str) -> bool:
    try:
        return shutil.disk_usage(os.path.dirname(path)).free < _NEARLY_NOTHING
    except OSError:
        return False
