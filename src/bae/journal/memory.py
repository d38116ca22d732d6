"""`MemoryJournal`: runs in memory, for tests and for runs that need not survive the process."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from asyncio import Future, get_running_loop
from collections.abc import Callable
from typing import Any, TypeVar

from bae.journal.sqlite.journal import SQLJournal, settle
from bae.journal.sqlite.lease import Lease
from bae.journal.sqlite.schema import failure
from bae.journal.sqlite.writer import SQLiteWriter, WriteJob

T = TypeVar("T")

_FOR_EVER = 1e9
"""The length of a lease in seconds. Leases are not renewed: claims last as long as the journal
object."""


class MemoryJournal(SQLJournal):
    """A journal in memory, for tests and for runs that need not survive the process:

        journal = MemoryJournal()
        await graph.arun(start, journal=journal)

    It behaves like a `SQLiteJournal`, but has no file and no threads. The runs last as long as the
    object. Several event loops and threads may use it at once.
    """

    def __init__(
        self, *, secrets: bool = False, prompts: bool = True, thinking: bool = False
    ) -> None:
        self.secrets = secrets
        self.prompts = prompts
        self.thinking = thinking
        self._writer = SQLiteWriter(None, Lease(_FOR_EVER))
        self.name = self._writer.name
        self._owner = self._writer.lease.owner
        self._lock = threading.RLock()
        self._closed = False
        weakref.finalize(self, SQLiteWriter.close, self._writer).atexit = False

    def __repr__(self) -> str:
        return "MemoryJournal()"

    async def version(self) -> int:
        """Return how many rows were changed since the journal was made."""
        return await self._read(lambda db: db.total_changes)

    async def close(self) -> None:
        """Forget all runs. The journal cannot be used afterwards."""
        with self._lock:
            self._closed = True
            self._writer.close()

    def _ask(self, work: WriteJob) -> Future[Any]:
        future = work.future = get_running_loop().create_future()
        self._note(work)
        return future

    def _note(self, work: WriteJob) -> None:
        with self._lock:
            if self._closed:
                work.error = failure("bae-journal-closed", self.name, work.run_id)
            else:
                self._writer.serve([work])
            if work.future is not None:
                settle([work], self._note)

    async def _read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._closed:
                raise failure("bae-journal-closed", self.name)
            return question(self._writer.connect())
