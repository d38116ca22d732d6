"""The two threads of a `SQLiteJournal`: one writes and one reads, so that no event loop waits for
a disk. They stop when the program ends, and are not used in forked children."""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from time import time
from weakref import WeakSet

from bae.journal.sqlite.lease import Lease, SQLiteClaim
from bae.journal.sqlite.schema import (
    as_journal_error,
    closed,
    forked,
    is_writable,
    open_in_memory,
    open_to_read,
)
from bae.journal.sqlite.writer import Call, Confirm, Release, Take, Work, Writer, identity

AT_EXIT = 5.0
"""Seconds that a program which ends waits for lines that are still to be stored."""
NOTED = 0.05
"""Seconds that a noted line waits at most for one that a caller waits for."""


class Worker(ABC):
    """A thread that does the work in `queue`, in its order, until it is told to stop."""

    def __init__(self, path: str, name: str, lease: Lease | None = None) -> None:
        if path in _inherited:
            raise forked(path)
        self.path = path
        self.lease = lease
        self.queue: deque[Work] = deque()
        self.over = False
        """Whether nothing that is queued from now on will be looked at."""
        self.stopping = False
        self.forked = False
        self.crowded = False
        """Whether several callers waited for the last work: then the next ones share a transaction
        too, which makes one commit of five where 100 runs take a step."""
        # A lock that is released to wake the thread: by far the cheapest way.
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread = threading.Thread(target=self._run, name=f"bae {name} {path}", daemon=True)
        _alive.add(self)
        self.thread.start()

    def put(self, item: Work) -> None:
        """Queue work and wake the thread. After the thread's end it is refused."""
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

    def tell(self, batch: Sequence[Work]) -> None:
        """Tell the callers what came of their work."""
        by_loop: dict[AbstractEventLoop, list[Work]] = {}
        for work in batch:
            if work.future is not None:
                by_loop.setdefault(work.future.get_loop(), []).append(work)
        self.crowded = any(len(works) > 1 for works in by_loop.values())
        for loop, works in by_loop.items():
            try:  # noqa: SIM105 - the plain form is the faster one
                loop.call_soon_threadsafe(settle, works, self.lease, self.put)
            except RuntimeError:  # a closed loop has no callers
                pass

    def refuse_rest(self) -> None:
        """Refuse everything that is queued."""
        while self.queue:
            try:
                item = self.queue.popleft()
            except IndexError:
                return
            run_id = None if item.claim is None else item.claim.run_id
            if self.forked:
                item.error = forked(self.path, run_id)
            else:
                item.error = closed(self.path, run_id, in_progress=run_id is not None)
            self.tell([item])

    @abstractmethod
    def work(self) -> None:
        """Take from the queue until `stopping`, then close what is open."""

    def _run(self) -> None:
        try:
            self.work()
        finally:
            self.over = True
            self.refuse_rest()


class WriterThread(Worker):
    """Stores all work that is queued in one transaction, then tells all callers."""

    def __init__(self, writer: Writer) -> None:
        assert writer.path is not None
        self.writer = writer
        self._urgent = False
        self._dozing = False
        self._storing = False
        self._gathering = False
        super().__init__(writer.path, "writes", writer.lease)

    def put(self, item: Work) -> None:
        """Queue work that a caller waits for."""
        self.queue.append(item)
        if self.crowded and item.future is not None and not self._dozing:
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
            self.tell(batch)


class ReaderThread(Worker):
    """Answers one question after another, beside the writer: with the write-ahead log neither waits
    for the other. Where there is no file yet, it asks an empty journal."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        super().__init__(path, "reads")

    def work(self) -> None:
        try:
            while True:
                while self.queue:
                    self._answer(self.queue.popleft())
                if self.stopping:
                    return
                self.wake.acquire()
        finally:
            self._disconnect()

    def _answer(self, question: Work) -> None:
        assert isinstance(question, Call)
        assert question.future is not None
        if question.future.cancelled():
            return
        try:
            now = identity(self.path)
            if self._connection is not None and now != self._identity:
                self._disconnect()
            if self._connection is None:
                self._connection = open_to_read(self.path, self._busy_timeout)
                self._identity = now
            if self._connection is not None:
                question.value = question.do(self._connection)
            else:
                with closing(open_in_memory()) as empty:
                    question.value = question.do(empty)
            if not is_writable(self.path):
                self._disconnect()  # it would not notice when the file becomes writable
        except sqlite3.Error as error:
            self._disconnect()  # the next question finds what is there then
            question.error = as_journal_error(error, self.path)
        except Exception as error:
            question.error = error
        self.tell([question])

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def settle(works: Sequence[Work], lease: Lease | None, put: Callable[[Work], None]) -> None:
    """Tell the callers, in the thread of their event loop, what came of their work. A process that
    was stopped for longer than its lease asks first whether it still owns the run: the caller would
    start an effect that another process may have done."""
    now = time()
    for work in works:
        future = work.future
        assert future is not None
        claim: SQLiteClaim | None = None  # what must still be good if the caller is told of success
        if work.error is None and not isinstance(work, Release):
            claim = work.value if isinstance(work, Take) else work.claim
        if future.done():  # it was cancelled
            if claim is not None and isinstance(work, Take):
                put(Release(claim, status="running"))
        elif claim is not None and claim.lost is None and lease is not None and now >= lease.until:
            put(Confirm(claim, (), future, work.value))
        elif (error := work.error or (claim and claim.lost)) is not None:
            future.set_exception(error)
            future.exception()  # a caller that does not wait is told at the next line
        else:
            future.set_result(work.value)


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


_alive: WeakSet[Worker] = WeakSet()
_inherited: set[str] = set()
atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
