"""The errors of the SQL stores: what went wrong, and what to do about it."""

from __future__ import annotations

import os
import shutil
import sqlite3

from bae.exceptions import JournalError

_NEARLY_NOTHING = 1 << 20
"""With fewer free bytes on the disk than this, a write that failed means that the disk is full."""


def as_journal_error(error: BaseException, path: str, run_id: str | None = None) -> JournalError:
    """The error to raise for one of SQLite's."""
    if isinstance(error, JournalError):
        return error
    result = code_of(error)
    if is_busy(error):
        what, code = f"{path} is locked by another program, and stayed locked", "bae-journal-locked"
        fix = (
            "end whatever holds the file (a backup, an open transaction in another program), "
            "or wait longer with SQLiteJournal(…, busy_timeout=60)"
        )
    elif result == sqlite3.SQLITE_FULL or (result == sqlite3.SQLITE_IOERR and _is_full(path)):
        what, code = f"the disk of {path} is full", "bae-journal-full"
        fix = (
            "make room, then resume the run: what was acknowledged is stored; "
            "journal.prune(older_than=…) makes room inside the file"
        )
    elif result in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH) or (
        result == sqlite3.SQLITE_CANTOPEN and not is_writable(path)
    ):
        return readonly(path, run_id, error)
    elif result in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "decode to UTF-8" in str(
        error
    ):
        return damaged(path, "SQLite cannot read it", run_id=run_id, cause=error)
    else:
        what, code = f"{path} could not be read or written", "bae-journal-failed"
        fix = "see the cause; once it is fixed, resume the run"
    return JournalError(what, code=code, cause=error, run_id=run_id, fix=fix)


def code_of(error: BaseException) -> int:
    """The primary result code of an SQLite error; 0 for any other error."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether another connection held the file for longer than we wait."""
    return code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def needs_new_connection(error: BaseException) -> bool:
    """Whether a connection may keep failing this way after the cause is gone."""
    return code_of(error) in (
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
    )


def is_writable(path: str) -> bool:
    """Whether this user may write a file and its folder."""
    beside = os.access(os.path.dirname(path), os.W_OK)
    return beside and (not os.path.exists(path) or os.access(path, os.W_OK))


def _is_full(path: str) -> bool:
    try:
        return shutil.disk_usage(os.path.dirname(path)).free < _NEARLY_NOTHING
    except OSError:
        return False


# About the file


def damaged(
    path: str, what: str, *, run_id: str | None = None, cause: BaseException | None = None
) -> JournalError:
    return JournalError(
        f"the journal {path} is damaged, or is no journal: {what}",
        code="bae-journal-damaged",
        cause=cause,
        run_id=run_id,
        fix="nothing in it was changed. Copy the file, and those beside it that end in -wal and "
        "-shm, before you do anything; then try `sqlite3 FILE .recover`, or a backup",
    )


def readonly(
    path: str, run_id: str | None = None, cause: BaseException | None = None
) -> JournalError:
    return JournalError(
        f"{path} cannot be written by this user",
        code="bae-journal-readonly",
        cause=cause,
        run_id=run_id,
        fix="allow this user to write the file and its folder: SQLite keeps two more files there",
    )


def gone(path: str, run_id: str | None = None) -> JournalError:
    return JournalError(
        f"{path} was deleted, moved or replaced while it was in use",
        code="bae-journal-gone",
        run_id=run_id,
        fix="put the file back and resume its runs, or start them again; stop the processes that "
        "use a journal before you move it",
    )


def closed(name: str, run_id: str | None = None, *, in_progress: bool = False) -> JournalError:
    fix = "close it when its last run has ended; this run can be resumed"
    return JournalError(
        f"the journal {name} is closed",
        code="bae-journal-closed",
        run_id=run_id,
        fix=fix if in_progress else "open a new one, and close it when you are done",
    )


def forked(path: str, run_id: str | None = None) -> JournalError:
    return JournalError(
        f"{path} was opened before this process was forked, and the parent still has it open",
        code="bae-journal-forked",
        run_id=run_id,
        fix="open the journal after the fork, start processes with "
        "multiprocessing.get_context('spawn'), or give each process a file of its own",
    )


# About a run


def unknown(name: str, run_id: str) -> JournalError:
    return JournalError(
        f"the journal {name} has no run {run_id!r}",
        code="bae-run-unknown",
        run_id=run_id,
        fix="look at `await journal.runs()`: it may be in another journal, or was deleted",
    )


def exists(run_id: str) -> JournalError:
    return JournalError(
        f"there is a run {run_id!r} already",
        code="bae-run-exists",
        run_id=run_id,
        fix="give the new run another id, or continue that one: graph.resume(run_id, …)",
    )


def owned(run_id: str, owner: str, seconds: float) -> JournalError:
    return JournalError(
        f"run {run_id!r} is owned by {owner}, whose lease lasts {max(seconds, 0):.1f} s more",
        code="bae-run-owned",
        run_id=run_id,
        fix="leave the run to its owner. If the owner has died on another machine, try again "
        "when its lease is over",
    )


def ended(run_id: str) -> JournalError:
    return JournalError(
        f"run {run_id!r} has ended and cannot be continued",
        code="bae-run-ended",
        run_id=run_id,
        fix="graph.resume(run_id, …) returns its result; to do some of it again, fork it",
    )


def taken(run_id: str, owner: str | None) -> JournalError:
    who = f"{owner} owns it" if owner else "it was deleted, or given up"
    return JournalError(
        f"this process has lost run {run_id!r}: {who} now",
        code="bae-run-taken",
        run_id=run_id,
        fix="leave it to its new owner. A process that is stopped for longer than its lease "
        "loses its runs: SQLiteJournal(…, lease=120) gives it longer",
    )


def released(run_id: str) -> JournalError:
    return JournalError(
        f"run {run_id!r} was released: nothing more is written under that claim",
        code="bae-run-taken",
        run_id=run_id,
        fix="claim it again to continue it: graph.resume(run_id, …)",
    )


def other_claim(name: str, run_id: str) -> JournalError:
    return JournalError(
        f"run {run_id!r} was not claimed through the journal {name}",
        code="bae-journal-failed",
        run_id=run_id,
        fix="use the journal that made the claim",
    )
