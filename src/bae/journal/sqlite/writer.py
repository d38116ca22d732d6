"""Writing a journal, in a thread, so that no event loop waits for a disk: whatever is asked at the
same time is stored in one transaction."""

from __future__ import annotations

import atexit
import contextlib
import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from bae.exceptions import JournalError
from bae.journal.sqlite import statements
from bae.journal.sqlite.lease import Fence, Lease, SQLiteClaim
from bae.journal.sqlite.schema import (
    as_journal_error,
    closed,
    forked,
    gone,
    is_busy,
    needs_new_connection,
    open_in_memory,
    open_to_write,
)
from bae.journal.store import Line, ParkedGate, Rewrite, Status

AT_EXIT = 5.0
"""Seconds that a program which ends waits for lines that are still to be stored."""
NOTED = 0.05
"""Seconds that a noted line waits at most for one that a caller waits for."""
VACUUM_SECONDS = 60.0
"""Seconds that a vacuum may take, however small the file is,"""
VACUUM_SPEED = 5e6
"""and bytes of the file for which it may take one second more."""

I = TypeVar("I")  # noqa: E741 - an item of the queue


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

    def relies_on(self) -> SQLiteClaim | None:
        """The claim that must still be good when the caller is told of success."""
        return self.claim


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

    def relies_on(self) -> SQLiteClaim | None:
        return self.value


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

    def relies_on(self) -> None:
        return None


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


def settle(works: Sequence[Work], lease: Lease, put: Callable[[Work], None]) -> None:
    """Tell the callers, in the thread of their event loop, what came of their work. A process that
    was stopped for longer than its lease asks first whether it still owns the run: the caller would
    start an effect that another process may have done."""
    now = time()
    for work in works:
        future = work.future
        assert future is not None
        claim = None if work.error is not None else work.relies_on()
        if future.done():  # it was cancelled
            if claim is not None and isinstance(work, Take):
                put(Release(claim, status="running"))
        elif claim is not None and claim.lost is None and now >= lease.until:
            put(Confirm(claim, (), future, work.value))
        elif (error := work.error or (claim and claim.lost)) is not None:
            future.set_exception(error)
            future.exception()  # a caller that does not wait is told at the next line
        else:
            future.set_result(work.value)


class Worker(ABC, Generic[I]):
    """A thread that takes items from `queue`, in their order, until it is told to stop."""

    def __init__(self, path: str, name: str) -> None:
        if path in _inherited:
            raise forked(path)
        self.path = path
        self.queue: deque[I] = deque()
        self.over = False
        """Whether nothing that is queued from now on will be looked at."""
        self.stopping = False
        self.forked = False
        # A lock that is released to wake the thread: by far the cheapest way.
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread = threading.Thread(target=self._run, name=f"bae {name} {path}", daemon=True)
        _alive.add(self)
        self.thread.start()

    def put(self, item: I) -> None:
        """Queue an item and wake the thread. After the thread's end the item is refused."""
        self.queue.append(item)
        self.awaken()
        if self.over:
            self.refuse_rest()

    def awaken(self) -> None:
        """Let the thread look at its queue."""
        if self.wake.locked():
            try:  # noqa: SIM105 - the plain form is the faster one
                self.wake.release()
            except RuntimeError:  # another thread was first
                pass

    def stop(self) -> None:
        """Let the thread do what is queued, close what is open and end."""
        self.stopping = True
        self.awaken()

    def refuse_rest(self) -> None:
        """Refuse everything that is queued."""
        while self.queue:
            try:
                item = self.queue.popleft()
            except IndexError:
                return
            self.refuse(item, forked(self.path) if self.forked else closed(self.path))

    @abstractmethod
    def refuse(self, item: I, error: JournalError) -> None:
        """Tell the caller that an item failed."""

    @abstractmethod
    def work(self) -> None:
        """Take from the queue until `stopping`, then close what is open."""

    def _run(self) -> None:
        try:
            self.work()
        finally:
            self.over = True
            self.refuse_rest()


class WriterThread(Worker[Work]):
    """Stores all work that is queued in one transaction, then tells all callers."""

    def __init__(self, writer: Writer) -> None:
        assert writer.path is not None
        self.writer = writer
        self._urgent = False
        self._dozing = False
        self._storing = False
        self._crowded = False
        """Whether several callers waited for the last transaction: then the next ones share one
        too, which makes one commit of five where 100 runs take a step."""
        self._gathering = False
        super().__init__(writer.path, "writes")

    def put(self, item: Work) -> None:
        """Queue work that a caller waits for."""
        self.queue.append(item)
        if self._crowded and item.future is not None and not self._dozing:
            if not self._gathering:  # all callers of this turn of the event loop share a commit
                self._gathering = True
                item.future.get_loop().call_soon(self._hurry)
        else:
            self._hurry()
        if self.over:
            self.refuse_rest()

    def _hurry(self) -> None:
        self._urgent = True
        self.awaken()

    def note(self, item: Work) -> None:
        """Queue work that no caller waits for: it may wait for the next that one does."""
        self.queue.append(item)
        if self._dozing:
            self.awaken()
        if self.over:
            self.refuse_rest()

    def is_behind(self) -> bool:
        """Whether there may be lines that were taken in and are not stored yet."""
        return bool(self.queue or self._storing)

    def refuse(self, item: Work, error: JournalError) -> None:
        if item.claim is not None:
            error.run_id = item.claim.run_id
            if error.code == "bae-journal-closed":
                error = closed(self.path, item.claim.run_id, in_progress=True)
        item.error = error
        self._tell([item])

    def work(self) -> None:
        try:
            while self.queue or not self.stopping:
                self._wait()
                self._storing = True
                self._store_queued()
                self._storing = False
        finally:
            self.writer.close()

    def _wait(self) -> None:
        """Wait for work, or until the lease must be renewed. Noted lines alone do not wake the
        thread soon after the last work, and wait for company."""
        renewal = self.writer.lease.wait()
        if self._urgent or self.stopping or not renewal:
            return
        if self.wake.acquire(timeout=NOTED if renewal < 0 else min(NOTED, renewal)) or self.queue:
            return
        self._dozing = True
        if not self.queue and not self.stopping:
            self.wake.acquire(timeout=self.writer.lease.wait())
        self._dozing = False
        if self.queue and not self._urgent and not self.stopping:
            self.wake.acquire(timeout=NOTED)

    def _store_queued(self) -> None:
        self._urgent = self._gathering = False
        batch: list[Work] = []
        while self.queue:
            batch.append(self.queue.popleft())
        if batch or not self.writer.lease.wait():
            self.writer.store(batch)
            self._tell(batch)

    def _tell(self, batch: list[Work]) -> None:
        by_loop: dict[AbstractEventLoop, list[Work]] = {}
        for work in batch:
            if work.future is not None:
                by_loop.setdefault(work.future.get_loop(), []).append(work)
        self._crowded = any(len(works) > 1 for works in by_loop.values())
        for loop, works in by_loop.items():
            try:  # noqa: SIM105 - the plain form is the faster one
                loop.call_soon_threadsafe(settle, works, self.writer.lease, self.put)
            except RuntimeError:  # a closed loop has no callers
                pass


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


def _stop_all() -> None:
    workers = list(_alive)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.thread.join(AT_EXIT)


def _in_child() -> None:
    # SQLite thinks that this process has the locks of its parent: not even a new connection to the
    # same file is safe, nor is closing the old one, which the frames of the lost thread hold.
    for worker in list(_alive):
        if not worker.over:
            worker.forked = worker.over = True
            _inherited.add(worker.path)
        _alive.discard(worker)


_alive: WeakSet[Worker[Any]] = WeakSet()
_inherited: set[str] = set()
atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
