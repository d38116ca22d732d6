"""The thread of a `SQLiteJournal` that writes: it takes everything that is queued, stores it in one
transaction, and then tells everybody at once. `statements.py` has what it is asked to do besides
adding lines, `owner.py` the word of this process that it keeps."""

from __future__ import annotations

import asyncio
import sqlite3
from asyncio import AbstractEventLoop, Future
from time import monotonic
from typing import Any

from bae.exceptions import JournalError
from bae.journal.sqlite import statements
from bae.journal.sqlite.claims import Item, SQLiteClaim, Task
from bae.journal.sqlite.errors import (
    closed,
    gone,
    is_busy,
    is_writable,
    taken,
    told,
    wants_new_connection,
)
from bae.journal.sqlite.file import connected, identity
from bae.journal.sqlite.log import Log
from bae.journal.sqlite.owner import Owner
from bae.journal.sqlite.statements import ADD_LINE
from bae.journal.sqlite.threads import Told, Worker, tell
from bae.journal.store import Line

NOTED = 0.05
"""Seconds that a noted line waits at most for one that somebody waits for."""

Errors = list[BaseException | None]


class Writer(Worker[Item]):
    """Stores lines and does tasks, everything that is queued in one transaction."""

    def __init__(self, path: str, owner: Owner, synchronous: str, busy_timeout: float) -> None:
        self.owner = owner
        self.dozing = False
        """Whether the thread must be woken for a noted line too."""
        self._noted: list[Item] = []
        self._storing = False
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._log: Log | None = None
        self._log_is_full = False
        self._can_only_read = False
        super().__init__(path, "writes")

    # For any thread

    def ask(
        self, task: Task, claim: SQLiteClaim | None = None, lines: tuple[Line, ...] = ()
    ) -> Future[Any]:
        """Have lines stored under a claim and a task done, both or neither."""
        loop = asyncio.get_running_loop()
        future: Future[Any] = loop.create_future()
        self.put(Item(claim, lines, task, future, loop))
        return future

    def made(self, claim: SQLiteClaim) -> bool:
        """Whether a claim was handed out by this."""
        return claim.owner == self.owner.name

    def is_behind(self) -> bool:
        """Whether there may be lines that were taken in and are not stored yet."""
        return bool(self.queue or self._noted or self._storing)

    def refuse(self, item: Item, error: JournalError) -> None:
        """Tell whoever waits for an item that it failed."""
        if item.future is not None and item.loop is not None:
            error.run_id = item.run_id
            if item.claim is not None and error.code == "bae-journal-closed":
                error = closed(self.path, item.run_id, begun=True)
            tell(item.loop, [(item.future, None, error)])

    # For the thread itself, from here on

    def work(self) -> None:
        """Store what is queued until told to stop, then give up what this process owns."""
        dozing = False
        try:
            while self.queue or self._noted or not self.stopping:
                woken = True
                if not self.queue and not self.stopping:
                    patience = self._patience(dozing)
                    self.dozing = dozing
                    if (
                        not self.queue
                    ):  # whoever puts something in from now on wakes a dozing thread
                        woken = self.wake.acquire(timeout=patience)
                    self.dozing = False
                self._storing = True
                if not self._drain() and dozing and not self.stopping and self._noted:
                    dozing = False  # noted lines are given time to find company
                    continue
                batch, self._noted = self._noted, []
                dozing = not batch and (dozing or not woken)
                if batch or self.owner.is_due():
                    self._store(batch)
                self._storing = False
                del batch  # what is in it may be all that keeps a journal alive
        finally:
            self._end()

    def _drain(self) -> bool:
        """Take everything from the queue; the answer is whether somebody waits for it."""
        queue, batch = self.queue, self._noted
        waited_for = False
        while queue:
            item = queue.popleft()
            waited_for = waited_for or item.future is not None
            batch.append(item)
        return waited_for

    def _patience(self, dozing: bool) -> float:
        """How long to wait to be woken; -1 is for ever."""
        renewal = self.owner.patience()
        if dozing:
            return renewal
        return NOTED if renewal < 0 else min(NOTED, renewal)

    def _store(self, batch: list[Item]) -> None:
        """Store a batch, tell everybody what came of it, and make room for the next one."""
        try:
            connection = self._connected()
            if not self._store_one_line(connection, batch):
                self._store_batch(connection, batch)
        except Exception as error:
            self._fail(batch, self._take(batch), error)
        if self._log_is_full and self._connection is not None and self._log is not None:
            self._log.lengthen(self._connection)
        self._log_is_full = False
        if self._can_only_read:  # it would still be so when the file has become writable
            self._disconnect()

    def _store_one_line(self, connection: sqlite3.Connection, batch: list[Item]) -> bool:
        """What a chain of steps consists of: one line that somebody waits for. The statement is the
        transaction then. False where this is something else, or the line was refused."""
        if len(batch) != 1 or self.owner.owing or monotonic() >= self.owner.renew_at:
            return False
        claim, lines, task, future, loop = batch[0]
        if claim is None or claim.held or claim.lost or task is not None or len(lines) != 1:
            return False
        line = lines[0]
        if line.n != claim.due or not connection.execute(ADD_LINE, line + claim.fence).rowcount:
            return False
        self._check_files()
        claim.due += 1
        if future is not None and loop is not None:
            tell(loop, ((future, None, None),))
        return True

    def _store_batch(self, connection: sqlite3.Connection, batch: list[Item]) -> None:
        errors = self._take(batch)
        try:
            values = self._store_together(connection, batch, errors)
        except _Refused:
            self._store_singly(connection, batch, errors)
        except Exception as error:
            self._back_out(connection)
            if len(batch) > 1 and not is_busy(error) and not isinstance(error, _Gone):
                self._store_singly(connection, batch, errors)
            else:
                self._fail(batch, errors, error)
        else:
            self._finish(batch, values, errors)

    def _take(self, batch: list[Item]) -> Errors:
        """Let the claims take their lines in; the answer has an error for each that does not."""
        errors: Errors = []
        for item in batch:
            error = None
            if item.claim is not None:
                try:
                    item.claim.take(item.lines)
                except (JournalError, ValueError) as refused:
                    error = refused
            errors.append(error)
        return errors

    def _store_together(
        self, connection: sqlite3.Connection, batch: list[Item], errors: Errors
    ) -> list[Any]:
        """One transaction for all lines that the claims hold, and all tasks. Tasks that are refused
        are marked in `errors`; a claim that is no longer good stops everything."""
        claims = list(dict.fromkeys([i.claim for i in batch if i.claim is not None]))
        rows = [line + claim.fence for claim in claims for line in claim.held]
        values: list[Any] = [None] * len(batch)
        connection.execute("begin immediate")
        if self.owner.is_due():
            self.owner.vouch(connection)
        if self.owner.owing:
            statements.give_up(connection, self.owner.owing.values())
        if rows and connection.executemany(ADD_LINE, rows).rowcount != len(rows):
            self._back_out(connection)
            raise _Refused
        for index, item in enumerate(batch):
            if item.task is not None and errors[index] is None:
                try:
                    values[index] = item.task.do(connection)
                except UnicodeError:
                    raise  # it is no refusal: SQLite was given what it cannot store
                except (JournalError, ValueError) as refused:
                    errors[index] = refused
        connection.execute("commit")
        self._check_files()
        self.owner.stored()
        for claim in claims:
            claim.held = []
        for index, item in enumerate(batch):
            if item.task is not None and item.task.then is not None and errors[index] is None:
                try:
                    values[index] = item.task.then(connection, values[index])
                except (JournalError, sqlite3.Error) as error:
                    errors[index] = told(error, self.path, item.run_id)
        return values

    def _store_singly(
        self, connection: sqlite3.Connection, batch: list[Item], errors: Errors
    ) -> None:
        """A transaction for each item, so that the trouble of one is nobody else's."""
        for index, item in enumerate(batch):
            one, its_error = [item], errors[index : index + 1]
            try:
                values = self._store_together(connection, one, its_error)
            except _Refused:
                assert item.claim is not None
                self._finish(one, [None], [self.lose(connection, item.claim)])
            except Exception as error:
                self._back_out(connection)
                if is_busy(error) or isinstance(error, _Gone):  # nobody would fare better
                    self._fail(batch[index:], errors[index:], error)
                    return
                self._fail(one, its_error, error)
                connection = self._connected()
            else:
                self._finish(one, values, its_error)

    def _fail(self, batch: list[Item], errors: Errors, why: Exception) -> None:
        """Tell everybody that nothing was stored. The claims keep their lines for the next time,
        unless the file itself is gone."""
        self.owner.failed()
        if isinstance(why, _Gone):
            for claim in self.owner.active.values():
                claim.lost = gone(self.path, claim.run_id)
            self.owner.forget()
            errors = [gone(self.path, item.run_id) for item in batch]
        errors = [
            error or told(why, self.path, item.run_id)
            for item, error in zip(batch, errors, strict=True)
        ]
        if isinstance(why, _Gone) or wants_new_connection(why):
            self._disconnect()
        self._finish(batch, [None] * len(batch), errors)

    def _finish(self, batch: list[Item], values: list[Any], errors: Errors) -> None:
        """Tell everybody who waits, each event loop in one call."""
        by_loop: dict[AbstractEventLoop, list[Told]] = {}
        for item, value, error in zip(batch, values, errors, strict=True):
            if error is not None and item.task is not None and item.task.failed is not None:
                item.task.failed()
            if item.future is not None and item.loop is not None:
                by_loop.setdefault(item.loop, []).append((item.future, value, error))
        for loop, waiting in by_loop.items():
            tell(loop, waiting)

    def lose(self, connection: sqlite3.Connection, claim: SQLiteClaim) -> JournalError:
        """Be told that somebody else has a run now, or nobody."""
        try:
            by = statements.owner_of(connection, claim.run_id)
        except sqlite3.Error:
            by = None
        claim.lost = taken(self.path, claim.run_id, by)
        self.owner.let_go(claim, released=True)
        return claim.lost

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connected(self.path, self._busy_timeout, self._synchronous)
            self._identity = identity(self.path)
            self._log = Log(self.path)
            self._can_only_read = not is_writable(self.path)
        assert self._connection is not None
        return self._connection

    def _check_files(self) -> None:
        """What was written to files that nobody can open any more was not stored."""
        assert self._log is not None
        log_is_gone, self._log_is_full = self._log.look()
        if log_is_gone or identity(self.path) != self._identity:
            raise _Gone

    def _back_out(self, connection: sqlite3.Connection) -> None:
        self.owner.undone()
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except sqlite3.Error:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        log, self._log = self._log, None
        if log is not None:
            log.close()
        if connection is not None:
            connection.close()

    def _end(self) -> None:
        """Give up all runs, so that others need not wait until the lease is over."""
        claims = list(self.owner.active.values())
        fences = [*(claim.fence for claim in claims), *self.owner.owing.values()]
        late = [line + claim.fence for claim in claims for line in claim.held]
        try:
            if fences:
                self._connected()
            if self._connection is not None:
                self._connection.execute("begin immediate")
                self._connection.executemany(ADD_LINE, late)
                statements.give_up(self._connection, fences)
                statements.forget_owner(self._connection, self.owner.name)
                self._connection.execute("commit")
        except (sqlite3.Error, JournalError):
            pass  # whoever wants one of the runs must wait then
        self._disconnect()
        for claim in claims:
            claim.lost = closed(self.path, claim.run_id, begun=True)


class _Refused(Exception):
    """Some claim of the batch is no longer good."""


class _Gone(Exception):
    """The file was taken away."""
