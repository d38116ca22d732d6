"""The writer and the reader of a journal's tables. The writer stores all jobs that arrive at the
same time in one transaction."""

from __future__ import annotations

import os
import sqlite3
from asyncio import Future
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bae.exceptions import JournalError
from bae.journal.sqlite.lease import Lease, SQLiteClaim
from bae.journal.sqlite.schema import (
    FileGone,
    as_journal_error,
    is_busy,
    is_writable,
    open_in_memory,
    open_to_read,
    open_to_write,
)
from bae.journal.stored_runs import Line

# Adds nothing if another process has claimed the run since, because a claim changes the epoch.
_ADD_LINE = """insert into lines (id, kind, at, path, step, data, version)
    select ? + (run << 32), ?, ?, ?, ?, ?, ? from runs where run = ? and epoch = ?"""


_ADD_FILE = """insert or ignore into files (hash, data)
    select ?, ? from runs where run = ? and epoch = ?"""
_USE_FILE = """insert or ignore into file_uses (hash, run)
    select ?, run from runs where run = ? and epoch = ?"""


@dataclass(slots=True, eq=False)
class WriteJob:
    """A job for the writer: lines to add under a claim, and work for the same transaction. For the
    reader, `do` is a query."""

    run_id: str | None = None
    do: Callable[[sqlite3.Connection], Any] | None = None
    """The work, which is called in the transaction."""
    claim: SQLiteClaim | None = None
    lines: Sequence[Line] = ()
    files: Mapping[str, bytes] | None = None
    """Files that the next lines refer to, by hash."""
    ends: bool = False
    """Whether the job gives up the claim, even if the job cannot be stored."""
    then: Callable[[sqlite3.Connection], None] | None = None
    """Called after the commit."""
    future: Future[Any] | None = None
    """Gets `value` or `error`. None if no caller waits."""
    value: Any = None
    """The result of `do`."""
    error: BaseException | None = None
    """The reason why the job was not stored."""


class SQLiteWriter:
    """Stores jobs, in the thread that calls the writer. `path` is None for a journal in memory."""

    def __init__(
        self, path: str | None, lease: Lease, synchronous: str = "off", busy_timeout: float = 0.0
    ) -> None:
        self.path = path
        self.name = path or "in memory"
        self.lease = lease
        self.wait = lease.wait
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._holds_files = False
        """Whether a claim has files that are not stored yet."""

    def connect(self) -> sqlite3.Connection:
        """Return the connection. It is opened on first use, and again after some errors."""
        if self._connection is None:
            if self.path is None:
                self._connection = open_in_memory()
            else:
                self._connection = open_to_write(self.path, self._busy_timeout, self._synchronous)
                self._identity = _identity(self.path)
        return self._connection

    def serve(self, batch: Sequence[WriteJob]) -> None:
        """Store jobs, in one transaction if all succeed. Afterwards each job is stored or has an
        error."""
        for work in batch:
            if work.claim is not None:
                try:
                    work.claim.take(work.lines)
                    if work.files:
                        work.claim.files.update(work.files)
                        self._holds_files = True
                except (JournalError, ValueError) as error:
                    work.error = error
        self._store(batch)
        for work in batch:
            if work.ends and work.claim is not None:
                failed = work.error is not None
                self.lease.drop(work.claim, "it was released", unreleased=failed)

    def close(self) -> None:
        """Store pending lines, give up all runs, and close the file."""
        lease = self.lease
        try:
            if lease.claims or lease.unreleased:
                self.connect()
            if self._connection is not None:
                self._connection.execute("begin immediate")
                pending_rows = [line + claim.fence for claim in lease.claims for line in claim.held]
                _add_files(self._connection, lease.claims)
                add_lines(self._connection, pending_rows)
                lease.end(self._connection)
                self._connection.execute("commit")
        except (sqlite3.Error, JournalError):
            pass  # other processes must then wait for the end of the lease
        self._disconnect()
        lease.drop_all("bae-journal-closed", self.name)

    def _store(self, batch: Sequence[WriteJob]) -> None:
        for work in batch:
            if work.error is None and work.claim is not None and work.claim.lost is not None:
                work.error = work.claim.lost()
        pending = [work for work in batch if work.error is None]
        try:
            self._commit(self.connect(), pending)
        except _ClaimLost:
            self._store(pending)
        except Exception as error:
            self._roll_back()
            if len(pending) > 1 and not is_busy(error) and not isinstance(error, FileGone):
                for work in pending:  # one by one, so that only the faulty job fails
                    self._store([work])
            else:
                self._fail(pending, error)

    def _commit(self, db: sqlite3.Connection, batch: Sequence[WriteJob]) -> None:
        lease = self.lease
        claims = dict.fromkeys([work.claim for work in batch if work.claim is not None])
        rows = [line + claim.fence for claim in claims for line in claim.held]
        jobs_to_do = [work for work in batch if work.do is not None]
        has_files = self._holds_files
        if jobs_to_do or has_files or len(rows) != 1 or lease.has_work():
            db.execute("begin immediate")
            lease.maintain(db)
        if has_files:
            _add_files(db, claims)
        # A single line needs no `begin`: its statement is a transaction, which saves 5 µs of 70.
        if rows and not add_lines(db, rows):
            self._roll_back()
            lease.drop_lost(db, claims)
            raise _ClaimLost
        for work in jobs_to_do:
            assert work.do is not None
            db.execute("savepoint work")
            try:
                if work.claim is not None:
                    lease.confirm(db, work.claim)
                work.value = work.do(db)
            except UnicodeError:
                raise  # not a refusal: SQLite got text that it cannot store
            except (JournalError, ValueError) as refused:
                work.error = refused
                db.execute("rollback to work")
            db.execute("release work")
        if db.in_transaction:
            db.execute("commit")
            lease.note_commit()
        if self.path is not None:
            self._check_files(self.path)
        for claim in claims:
            claim.held = []
        if has_files:
            for claim in claims:
                claim.files = {}
            self._holds_files = any(claim.files for claim in lease.claims)
        for work in jobs_to_do:
            if work.error is None and isinstance(work.value, SQLiteClaim):
                lease.hold(work.value)
            if work.error is None and work.then is not None:
                try:
                    work.then(db)
                except JournalError as error:
                    work.error = error

    def _fail(self, batch: Sequence[WriteJob], why: Exception) -> None:
        """Set the errors of jobs after a failure to store them. The claims keep their lines for the
        next transaction, unless the file is gone."""
        self.lease.note_failure()
        if isinstance(why, FileGone):
            self.lease.drop_all("bae-journal-gone", self.name)
        for work in batch:
            work.error = as_journal_error(why, self.name, work.run_id)
        if isinstance(why, sqlite3.Error) and not is_busy(why):
            self._disconnect()  # this connection might fail even after the cause is fixed

    def _check_files(self, path: str) -> None:
        """Raise `FileGone` if the file was deleted or replaced, since the new data is then lost."""
        # Do not call `stat` on the log: each commit would take 40 µs longer. On newer kernels, the
        # next write to a file whose times were read also writes its inode.
        if _identity(path) != self._identity or not os.access(f"{path}-wal", os.F_OK):
            raise FileGone

    def _roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class JournalReader:
    """Answers queries while the writer writes. The write-ahead log lets both work at once. If there
    is no file yet, the reader queries an empty journal."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def wait(self) -> float:
        """Return -1: a reader has no lease to renew."""
        return -1.0

    def serve(self, batch: Sequence[WriteJob]) -> None:
        """Answer queries one by one."""
        for work in batch:
            assert work.do is not None
            assert work.future is not None
            try:
                if not work.future.cancelled():
                    work.value = self._answer(work.do)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                self.close()  # the next query opens the file again
                work.error = as_journal_error(error, self.path, work.run_id)
            except Exception as error:
                work.error = error

    def close(self) -> None:
        """Close the file. The next query opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _answer(self, question: Callable[[sqlite3.Connection], Any]) -> Any:
        now = _identity(self.path)
        if now != self._identity or not is_writable(self.path):
            self.close()  # a connection does not notice when a file becomes writable
        if self._connection is None:
            self._connection = open_to_read(self.path, self._busy_timeout)
            self._identity = now
        if self._connection is not None:
            return question(self._connection)
        with closing(open_in_memory()) as empty:
            return question(empty)


def add_lines(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> bool:
    """Add rows of `(*line, *fence)`. Return False if a claim was lost: the caller must
    then roll back."""
    return db.executemany(_ADD_LINE, rows).rowcount == len(rows)


def _add_files(db: sqlite3.Connection, claims: Iterable[SQLiteClaim]) -> None:
    """Add the files of claims, except the files of lost claims."""
    for claim in claims:
        for hash, data in claim.files.items():
            db.execute(_ADD_FILE, (hash, data, *claim.fence))
            db.execute(_USE_FILE, (hash, *claim.fence))


def _identity(path: str) -> tuple[int, int] | None:
    """Return numbers that identify a file, or None if there is no file. A file that replaces it has
    other numbers."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


class _ClaimLost(Exception):
    """A claim of the batch is lost."""
