"""`SQLiteJournal`: runs in a file, written by many runs and several processes at once; and what it
shares with `MemoryJournal`."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from abc import abstractmethod
from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from bae.exceptions import JournalError
from bae.journal.sqlite import statements
from bae.journal.sqlite.lease import Lease, SQLiteClaim, claim_run
from bae.journal.sqlite.schema import closed, forked
from bae.journal.sqlite.worker import ReaderThread, WriterThread
from bae.journal.sqlite.writer import Call, Release, Replace, Take, Work, Writer
from bae.journal.store import (
    Claim,
    Journal,
    Line,
    Listed,
    ParkedGate,
    Rewrite,
    RunInfo,
    Status,
    StoredRun,
    check_listed,
)
from bae.threads import in_thread_to_the_end

T = TypeVar("T")

RUNS_AT_ONCE = 50
"""How many runs are deleted in one transaction: others need not wait long for theirs."""


class SQLJournal(Journal):
    """A journal in the tables of SQLite: what is asked becomes work for a writer, or a question
    that a connection answers."""

    name: str
    """What errors call the journal."""
    _owner: str = ""

    @abstractmethod
    def _ask(self, work: Work, run_id: str | None = None) -> Future[Any]:
        """Have work done; it is taken in at the call."""

    @abstractmethod
    def _note(self, work: Work) -> None:
        """Have work done soon that no caller waits for."""

    @abstractmethod
    async def _read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask a connection that sees all that was taken in before."""

    # Writing

    def create(
        self, run_id: str, graph: str, shape: str, shape_hash: str, lines: Sequence[Line]
    ) -> Awaitable[Claim]:
        make = partial(statements.create, run_id=run_id, graph=graph, shape=shape)
        make = partial(make, shape_hash=shape_hash, lines=tuple(lines))
        return self._ask(Take(run_id=run_id, do=make), run_id)

    async def claim(self, run_id: str) -> Claim:
        take = partial(claim_run, name=self.name, run_id=run_id)
        return await self._ask(Take(run_id=run_id, do=take), run_id)

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        if not isinstance(claim, SQLiteClaim) or claim.owner != self._owner:
            return _failed(self._not_ours(claim))
        return self._ask(Work(claim, tuple(lines)), claim.run_id)

    def note(self, claim: Claim, line: Line) -> None:
        if isinstance(claim, SQLiteClaim) and claim.owner == self._owner:
            self._note(Work(claim, (line,)))

    def release(
        self,
        claim: Claim,
        status: Status,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
    ) -> Awaitable[None]:
        if not isinstance(claim, SQLiteClaim) or claim.owner != self._owner:
            return _failed(self._not_ours(claim))
        work = Release(claim, tuple(lines), status=status, waiting=tuple(waiting), failure=error)
        return self._ask(work, claim.run_id)

    async def answer(self, run_id: str, gate: str, value: str) -> bool:
        do = partial(statements.answer, name=self.name, run_id=run_id, gate=gate, value=value)
        return await self._ask(Call(do=do), run_id)

    async def fork(self, run_id: str, new_id: str, upto: int, lines: Sequence[Line]) -> None:
        fork = partial(statements.fork, name=self.name, run_id=run_id, new_id=new_id)
        await self._ask(Call(do=partial(fork, upto=upto, lines=tuple(lines))), run_id)

    async def rewrite(self, changes: Sequence[Rewrite]) -> None:
        """Replace lines by others with the same numbers, and leave nothing of the old ones in the
        file or its log. If anything changed the file is vacuumed for that, which takes as long as
        copying it and as much room; nothing else can be written meanwhile."""
        given = [Rewrite(run_id, tuple(lines), tuple(gates)) for run_id, lines, gates in changes]
        await self._ask(Replace(changes=given))

    async def put(self, run: StoredRun, *, replace: bool = False) -> None:
        """Store a run that was read elsewhere, in one transaction, which also deletes the run that
        it replaces."""
        do = partial(statements.put, run=run, replace=replace)
        await self._ask(Call(do=do), run.info.run_id)

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and return how many. A run that has forks stays, and so does one that a
        process works on. The file keeps its size, and its room is used again."""
        given = tuple(run_ids)
        found = await self._read(lambda db: statements.newest_first(db, given))
        count = 0
        for first in range(0, len(found), RUNS_AT_ONCE):
            some = found[first : first + RUNS_AT_ONCE]
            count += await self._ask(Call(do=partial(statements.delete, runs=some)))
        return count

    # Reading

    async def read(self, run_id: str) -> StoredRun:
        name = self.name
        return await self._read(lambda db: statements.read(db, name, run_id))

    async def runs(
        self,
        *,
        status: Listed | None = None,
        graph: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunInfo]:
        if limit < 0:
            raise ValueError(f"runs(limit={limit}): give 0 or more")
        check_listed(status)
        name = self.name
        return await self._read(lambda db: statements.runs(db, name, status, graph, limit, before))

    async def older(self, than: float, statuses: Sequence[Status]) -> list[str]:
        return await self._read(lambda db: statements.older(db, than, statuses))

    def _not_ours(self, claim: Claim) -> JournalError:
        return JournalError(
            f"run {claim.run_id!r} was not claimed through the journal {self.name}",
            code="bae-journal-failed",
            run_id=claim.run_id,
            fix="use the journal that made the claim",
        )


class SQLiteJournal(SQLJournal):
    """Runs in an SQLite file: `journal = SQLiteJournal("runs.db")`, then
    `await graph.arun(start, journal=journal)`.

    A step that was acknowledged survives a power cut. With `durability="normal"` it survives a
    crash of the process, but perhaps not one of the machine, and takes a fraction of the time.
    Runs at the same time share commits. Several journals, of this process and others on the same
    machine, may use one file; keep it on a local disk.

    A run is leased to one process for `lease` seconds; the lease is renewed three times per period.
    When the process has died, another can take the run over as soon as the lease is over, or at
    once where it can be seen that the process is gone. `busy_timeout` is how long to wait for other
    programs that lock the file. `secrets=True` stores secrets in clear; `prompts=False` leaves out
    prompts and raw answers.

    The file is opened, and two threads are started, when it is first used. Close it with
    `await journal.close()`, or write `async with SQLiteJournal(…) as journal:`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["full", "normal"] = "full",
        secrets: bool = False,
        prompts: bool = True,
        lease: float = 30.0,
        busy_timeout: float = 10.0,
    ) -> None:
        self.path = self.name = _checked(path)
        if durability not in ("full", "normal"):
            raise ValueError(f'SQLiteJournal(durability={durability!r}): give "full" or "normal"')
        if not lease > 0 or not busy_timeout >= 0:
            raise ValueError(
                f"SQLiteJournal(lease={lease!r}, busy_timeout={busy_timeout!r}): the one must be"
                " positive, the other not negative"
            )
        self.durability = durability
        self.secrets = secrets
        self.prompts = prompts
        self.lease = lease
        self.busy_timeout = busy_timeout
        self._starting = threading.Lock()
        self._writer: WriterThread | None = None
        self._reader: ReaderThread | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"SQLiteJournal({self.path!r})"

    async def close(self) -> None:
        """Store what is still to be stored, give up the runs in progress, so that they can be
        resumed elsewhere at once, and close the file."""
        with self._starting:
            self._closed = True
            workers = [one for one in (self._reader, self._writer) if one is not None]
        await in_thread_to_the_end(_stop, workers)

    def _ask(self, work: Work, run_id: str | None = None) -> Future[Any]:
        work.future = get_running_loop().create_future()
        try:
            writer = self._writer
            if writer is None or writer.forked:
                writer = self._start_writer(run_id)
            writer.put(work)
        except JournalError as error:
            return _failed(error)
        return work.future

    def _note(self, work: Work) -> None:
        if self._writer is not None:
            self._writer.note(work)

    async def _read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        writer = self._writer
        if writer is not None and writer.is_behind() and not writer.over:
            with contextlib.suppress(JournalError):  # then it can be read all the same
                await self._ask(Work())  # what was noted before is stored afterwards
        reader = self._reader
        if reader is None or reader.forked:
            reader = self._start_reader()
        future: Future[T] = get_running_loop().create_future()
        reader.put(Call(future=future, do=question))
        return await future

    def _start_writer(self, run_id: str | None) -> WriterThread:
        with self._starting:
            if self._closed:
                raise closed(self.path, run_id)
            if self._writer is None or self._writer.forked:
                lease = Lease(self.lease)
                self._writer = WriterThread(
                    Writer(self.path, lease, self.durability, self.busy_timeout)
                )
                self._owner = lease.owner
                weakref.finalize(self, WriterThread.stop, self._writer).atexit = False
        return self._writer

    def _start_reader(self) -> ReaderThread:
        with self._starting:
            if self._closed:
                raise closed(self.path)
            if self._reader is None or self._reader.forked:
                self._reader = ReaderThread(self.path, self.busy_timeout)
                weakref.finalize(self, ReaderThread.stop, self._reader).atexit = False
        return self._reader

    def _not_ours(self, claim: Claim) -> JournalError:
        if self._closed:
            return closed(self.path, claim.run_id, in_progress=True)
        if self._writer is not None and self._writer.forked:
            return forked(self.path, claim.run_id)
        return super()._not_ours(claim)


def _failed(error: BaseException) -> Future[Any]:
    future: Future[Any] = get_running_loop().create_future()
    future.set_exception(error)
    future.exception()  # a caller that does not wait is told at the next line
    return future


def _stop(workers: Sequence[ReaderThread | WriterThread]) -> None:
    # One after the other: the last connection to close empties the log into the file, and two that
    # close at the same moment each take the other for the last.
    for worker in workers:
        worker.stop()
        worker.thread.join()


def _checked(path: str | os.PathLike[str]) -> str:
    given = os.fspath(path)
    if given in ("", ":memory:"):
        raise ValueError(f"SQLiteJournal({given!r}) has no file: use MemoryJournal() instead")
    found = os.path.realpath(given)
    folder = os.path.dirname(found)
    what = None
    if not os.path.isdir(folder):
        what = f"there is no folder {folder}"
    elif os.path.isdir(found):
        what = "it is a folder"
    if what:
        raise JournalError(
            f"a journal cannot be kept in {found}: {what}",
            code="bae-journal-failed",
            fix="give the path of a file in a folder that exists",
        )
    return found
