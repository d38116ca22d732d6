"""Writing a journal: whatever is asked at the same time is stored in one transaction."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bae.exceptions import JournalError
from bae.journal.sqlite import statements
from bae.journal.sqlite.lease import Fence, Lease, SQLiteClaim
from bae.journal.sqlite.schema import (
    as_journal_error,
    closed,
    gone,
    is_busy,
    needs_new_connection,
    open_in_memory,
    open_to_write,
)
from bae.journal.store import Line, ParkedGate, Rewrite, Status

VACUUM_SECONDS = 60.0
"""Seconds that a vacuum may take, however small the file is,"""
VACUUM_SPEED = 5e6
"""and bytes of the file for which it may take one second more."""


@dataclass(slots=True, eq=False)
class Work:
    """Lines to add under a claim: they are stored, or `error` says why not. Subclasses do more in
    the same transaction. `future` gets the `value` or the error, if there is one."""

    claim: SQLiteClaim | None = None
    lines: Sequence[Line] = ()
    future: Future[Any] | None = None
    value: Any = None
    error: BaseException | None = None

    def write(self, writer: Writer, db: sqlite3.Connection) -> None:
        """What to do in the transaction. Called again if that has to be repeated."""

    def stored(self, writer: Writer, db: sqlite3.Connection) -> None:
        """What to do once the transaction is committed."""

    def failed(self, writer: Writer) -> None:
        """What to do once it is certain that nothing was stored."""


@dataclass(slots=True, eq=False, kw_only=True)
class Call(Work):
    """Calls a function in the transaction."""

    do: Callable[[sqlite3.Connection], Any]

    def write(self, writer: Writer, db: sqlite3.Connection) -> None:
        self.value = self.do(db)


@dataclass(slots=True, eq=False, kw_only=True)
class Take(Work):
    """Claims a run that `do` creates or takes over."""

    run_id: str
    do: Callable[[sqlite3.Connection, Lease], tuple[Fence, int]]

    def write(self, writer: Writer, db: sqlite3.Connection) -> None:
        self.failed(writer)  # an attempt before this one was rolled back
        lease = writer.lease
        lease.renew_if_due(db)
        fence, due = self.do(db, lease)
        self.value = SQLiteClaim(self.run_id, lease.owner, fence, due)
        lease.claims[fence[0]] = self.value

    def failed(self, writer: Writer) -> None:
        if self.value is not None:
            writer.lease.claims.pop(self.value.fence[0], None)
            self.value = None


@dataclass(slots=True, eq=False, kw_only=True)
class Release(Work):
    """Adds the last lines of a run, stores how it ended and gives up the claim."""

    status: Status
    waiting: Sequence[ParkedGate] = ()
    failure: str = ""

    def write(self, writer: Writer, db: sqlite3.Connection) -> None:
        assert self.claim is not None
        how = self.status, self.waiting, self.failure
        if not statements.release(db, self.claim.fence, *how):
            raise writer.lease.lose(db, self.claim)

    def stored(self, writer: Writer, db: sqlite3.Connection) -> None:
        assert self.claim is not None
        writer.lease.drop(self.claim)

    def failed(self, writer: Writer) -> None:
        assert self.claim is not None
        writer.lease.drop(self.claim, unreleased=True)


class Confirm(Work):
    """Asks whether the claim is still good that earlier work, which is stored, relies on."""

    __slots__ = ()

    def write(self, writer: Writer, db: sqlite3.Connection) -> None:
        assert self.claim is not None
        if not writer.lease.holds(db, self.claim):
            raise writer.lease.lose(db, self.claim)


@dataclass(slots=True, eq=False, kw_only=True)
class Replace(Work):
    """Replaces lines and leaves nothing of the old ones in the file: pages have copies of lines
    that were moved, and so has the log."""

    changes: Sequence[Rewrite]

    def write(self, writer: Writer, db: sqlite3.Connection) -> None:
        if writer.lease.claims:  # it cannot be renewed while the file is vacuumed
            size = 0 if writer.path is None else os.stat(writer.path).st_size
            writer.lease.renew(db, VACUUM_SECONDS + size / VACUUM_SPEED)
        self.value = statements.rewrite(db, writer.name, self.changes)

    def stored(self, writer: Writer, db: sqlite3.Connection) -> None:
        due, self.value = self.value, None
        try:
            if due:
                statements.vacuum(db)
        except sqlite3.Error as error:
            raise self._half_done(writer, error) from error
        finally:
            if writer.lease.claims:
                with contextlib.suppress(sqlite3.Error):  # then the longer lease stays
                    writer.lease.renew(db)
                    writer.lease.committed()

    def _half_done(self, writer: Writer, error: sqlite3.Error) -> JournalError:
        run_id = self.changes[0].run_id if len(self.changes) == 1 else None
        who = ", ".join(repr(change.run_id) for change in self.changes)
        failed = as_journal_error(error, writer.name, run_id)
        failed.message += f"; run {who} is changed, but the file still has old lines"
        if is_busy(error):
            failed.fix = "do it again when no other process uses the file"
        return failed


class Writer:
    """Stores work, in the thread that calls it. `path` is None for a journal in memory."""

    def __init__(
        self, path: str | None, lease: Lease, synchronous: str = "off", busy_timeout: float = 0.0
    ) -> None:
        self.path = path
        self.name = path or "in memory"
        self.lease = lease
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def connect(self) -> sqlite3.Connection:
        """The connection, which is made when it is first used and after some errors."""
        if self._connection is None:
            if self.path is None:
                self._connection = open_in_memory()
            else:
                self._connection = open_to_write(self.path, self._busy_timeout, self._synchronous)
                self._identity = identity(self.path)
        return self._connection

    def store(self, batch: Sequence[Work]) -> None:
        """Store work in one transaction: afterwards each has an error, or is stored."""
        for work in batch:
            if work.claim is not None:
                try:
                    work.claim.take(work.lines)
                except (JournalError, ValueError) as error:
                    work.error = error
        self._store(batch)
        for work in batch:
            if work.error is not None:
                work.failed(self)

    def close(self) -> None:
        """Give up all runs and close the file."""
        claims = list(self.lease.claims.values())
        late = [line + claim.fence for claim in claims for line in claim.held]
        try:
            if claims or self.lease.unreleased:
                self.connect()
            if self._connection is not None:
                self._connection.execute("begin immediate")
                statements.add_lines(self._connection, late)
                self.lease.end(self._connection)
                self._connection.execute("commit")
        except (sqlite3.Error, JournalError):
            pass  # other processes must wait for the end of the lease then
        self._disconnect()
        for claim in claims:
            claim.lost = closed(self.name, claim.run_id, in_progress=True)

    def _store(self, batch: Sequence[Work]) -> None:
        try:
            self._commit(self.connect(), [work for work in batch if work.error is None])
        except _ClaimLost:
            self._store_rest(batch)
        except Exception as error:
            self._roll_back()
            if len(batch) > 1 and not is_busy(error) and not isinstance(error, _FileGone):
                for work in batch:  # one of them is at fault: it shall not hurt the others
                    self._store_rest([work])
            else:
                self._fail(batch, error)

    def _store_rest(self, batch: Sequence[Work]) -> None:
        """Store the work whose claim was not lost in the attempt before."""
        for work in batch:
            if work.error is None and work.claim is not None:
                work.error = work.claim.lost
        self._store(batch)

    def _commit(self, db: sqlite3.Connection, batch: Sequence[Work]) -> None:
        lease = self.lease
        claims = dict.fromkeys([work.claim for work in batch if work.claim is not None])
        rows = [line + claim.fence for claim in claims for line in claim.held]
        more = [work for work in batch if type(work) is not Work]
        if more or len(rows) != 1 or lease.unreleased or not lease.wait():
            db.execute("begin immediate")
            lease.maintain(db)
        # else a chain adds one line: the statement is its own transaction, 5 µs of 70 faster.
        if rows and not statements.add_lines(db, rows):
            self._roll_back()
            for claim in claims:
                if not lease.holds(db, claim):
                    lease.lose(db, claim)
            raise _ClaimLost
        for work in more:
            try:
                work.write(self, db)
            except UnicodeError:
                raise  # not a refusal: SQLite was given text that it cannot store
            except (JournalError, ValueError) as refused:
                work.error = refused
        if db.in_transaction:
            db.execute("commit")
        if self.path is not None:
            self._check_files(self.path)
        lease.committed()
        for claim in claims:
            claim.held = []
        for work in more:
            if work.error is None:
                try:
                    work.stored(self, db)
                except (JournalError, sqlite3.Error) as error:
                    work.error = as_journal_error(error, self.name)

    def _fail(self, batch: Sequence[Work], why: Exception) -> None:
        """Nothing was stored. The claims keep their lines for the next time, unless the file
        itself is gone."""
        self.lease.failed()
        if isinstance(why, _FileGone):
            for claim in self.lease.claims.values():
                claim.lost = gone(self.name, claim.run_id)
            self.lease.start_over()
        for work in batch:
            run_id = None if work.claim is None else work.claim.run_id
            if isinstance(why, _FileGone):
                work.error = gone(self.name, run_id)
            elif work.error is None:
                work.error = as_journal_error(why, self.name, run_id)
        if isinstance(why, _FileGone) or needs_new_connection(why):
            self._disconnect()

    def _check_files(self, path: str) -> None:
        """What was written to files that cannot be opened any more was not stored."""
        # The log is not looked at with `stat`: on newer kernels the next write to a file whose
        # times were asked for writes its inode too, and each commit takes 40 µs longer.
        if identity(path) != self._identity or not os.access(f"{path}-wal", os.F_OK):
            raise _FileGone

    def _roll_back(self) -> None:
        self.lease.rolled_back()
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def identity(path: str) -> tuple[int, int] | None:
    """What tells a file from another one that replaced it; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _ClaimLost(Exception):
    """Some claim of the batch is no longer good."""


class _FileGone(Exception):
    """The file was taken away."""
