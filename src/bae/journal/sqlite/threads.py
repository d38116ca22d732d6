"""The threads of a `SQLiteJournal`: one that writes and one that reads, each with a queue, a
wake-up and a connection of its own. This is what they share: how they are woken, told to stop,
stopped when the program ends, and kept out of forked children. `writer.py` and
`reader.py` say what they do."""

from __future__ import annotations

import atexit
import os
import threading
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from bae.exceptions import JournalError
from bae.journal.sqlite.errors import closed

AT_EXIT = 5.0
"""Seconds that a program which ends waits for lines that are still to be stored."""

I = TypeVar("I")  # noqa: E741 - an item of the queue

Told = tuple["Future[Any]", Any, BaseException | None]
"""Somebody who waits, and what came of it: a value, or an error."""


class Worker(ABC, Generic[I]):
    """A thread that takes items from `queue`, in their order, until it is told to stop."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.queue: deque[I] = deque()
        self.over = False
        """Whether nothing that is queued now will be looked at."""
        self.stopping = False
        self.forked = False
        # A lock that is let go of to wake the thread: the cheapest wake-up there is, by far.
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread = threading.Thread(target=self._run, name=f"bae {name} {path}", daemon=True)
        _refuse_inherited(path)
        _alive.add(self)
        self.thread.start()

    def put(self, item: I) -> None:
        """Queue an item and wake the thread. Where it is over, the item is refused at once."""
        self.queue.append(item)
        self.awaken()
        if self.over:
            self.refuse_rest()

    def awaken(self) -> None:
        """Let the thread look at its queue."""
        if self.wake.locked():
            try:  # noqa: SIM105 - the plain form is the faster one
                self.wake.release()
            except RuntimeError:  # somebody else was first
                pass

    def stop(self) -> None:
        """Let the thread do what is queued, let go of everything and end."""
        self.stopping = True
        self.awaken()

    def refuse_rest(self) -> None:
        """Tell everybody in the queue that nothing will come of it."""
        while self.queue:
            try:
                item = self.queue.popleft()
            except IndexError:
                return
            self.refuse(item, self.refusal())

    def refusal(self) -> JournalError:
        """Why nothing more is done here."""
        return forked(self.path) if self.forked else closed(self.path)

    @abstractmethod
    def refuse(self, item: I, error: JournalError) -> None:
        """Tell whoever waits for an item that it failed."""

    @abstractmethod
    def work(self) -> None:
        """Take from the queue until `stopping`, then close what is open."""

    def _run(self) -> None:
        try:
            self.work()
        finally:
            self.over = True
            self.refuse_rest()


def tell(loop: AbstractEventLoop, told: Iterable[Told]) -> None:
    """Wake everybody who waits on one event loop, with one call."""
    try:  # noqa: SIM105 - the plain form is the faster one
        loop.call_soon_threadsafe(_tell, told)
    except RuntimeError:  # a loop that is closed has nobody waiting
        pass


def _tell(told: Iterable[Told]) -> None:
    for future, value, error in told:
        if future.done():
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
            future.exception()  # whoever does not wait is told at the next line


def forked(path: str) -> JournalError:
    """The error for a child of a process that had the file open."""
    return JournalError(
        f"{path} was opened before this process was forked from another one, which has it still",
        code="bae-journal-forked",
        fix="use the journal after the fork only, start processes with "
        "multiprocessing.get_context('spawn'), or give each process a file of its own",
    )


def _refuse_inherited(path: str) -> None:
    if path in _inherited:
        raise forked(path)


def _stop_all() -> None:
    workers = list(_alive)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.thread.join(AT_EXIT)


def _in_child() -> None:
    # SQLite itself thinks that this process has the locks its parent has: not even a new connection
    # to the same file is safe, nor is closing the old one. The frames of the thread that was lost
    # hold that for ever.
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
