"""`SQLiteJournal`: runs that are kept in a file, by many runs and several processes at once. Its
writer and its reader are threads of their own, so that nothing here waits for a disk; this is the
face they have for the rest of bae."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

from bae.exceptions import JournalError
from bae.journal.sqlite import queries, statements
from bae.journal.sqlite.claims import Item, SQLiteClaim, Task
from bae.journal.sqlite.errors import closed, unknown
from bae.journal.sqlite.owner import Owner
from bae.journal.sqlite.reader import Reader
from bae.journal.sqlite.tasks import claimed, created, releasing, rewriting
from bae.journal.sqlite.writer import Writer
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

RUNS_AT_ONCE = 200
"""How many runs are deleted in one transaction: others need not wait long for theirs."""
LINES_AT_ONCE = 1_000
"""How many of their lines."""


class SQLiteJournal(Journal):
    """Runs in an SQLite file: `journal = SQLiteJournal("runs.db")`, then
    `await graph.arun(start, journal=journal)`.

    A step that was acknowledged survives a power cut. With `durability="normal"` it survives a
    crash of the process, but perhaps not one of the machine, and takes a fraction of the time.
    Whatever runs at once shares a commit. Several journals, of this process and others on the same
    machine, may use one file; keep it on a local disk.

    While this process is at work on a run nobody else gets it. Its word for that is good for
    `lease` seconds and renewed three times in them; when it has died the run can be taken over as
    soon as that time is over. `busy_timeout` is how long to wait for others that hold the file.
    `secrets=True` stores secrets in clear; `prompts=False` leaves prompts and raw answers out.

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
        self.path = _checked(path)
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
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"SQLiteJournal({self.path!r})"

    # Writing

    async def create(
        self, run_id: str, graph: str, shape: str, shape_hash: str, lines: Sequence[Line]
    ) -> Claim:
        """Store a new run with its first lines, and claim it."""
        given = tuple(lines)
        _check_numbers(given)
        return await created(self._writing(run_id), run_id, graph, shape, shape_hash, given)

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        """Store lines; they are durable when what is returned has been awaited."""
        loop = get_running_loop()
        future: Future[None] = loop.create_future()
        writer = self._writer
        if writer is None or not isinstance(claim, SQLiteClaim) or not writer.made(claim):
            future.set_exception(self._not_ours(claim))
            future.exception()
        else:
            writer.put(Item(claim, tuple(lines), None, future, loop))
        return future

    def note(self, claim: Claim, line: Line) -> None:
        """Store a line soon: with the next one that is awaited, or shortly after."""
        writer = self._writer
        if writer is None or not isinstance(claim, SQLiteClaim) or not writer.made(claim):
            return
        writer.queue.append(Item(claim, (line,), None, None, None))
        if writer.dozing:
            writer.awaken()
        if writer.over:
            writer.refuse_rest()

    async def release(
        self,
        claim: Claim,
        status: Status,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
    ) -> None:
        """Store the last lines of a run and how it came out, and give up the claim."""
        writer = self._writer
        if writer is None or not isinstance(claim, SQLiteClaim) or not writer.made(claim):
            raise self._not_ours(claim)
        task = releasing(writer, claim, status, tuple(waiting), error)
        await writer.ask(task, claim, tuple(lines))

    async def claim(self, run_id: str) -> Claim:
        """Claim a run that nobody has, or whose owner is gone."""
        return await claimed(self._writing(run_id), run_id)

    async def answer(self, run_id: str, gate: str, value: str) -> bool:
        """Store the answer to a gate, as JSON; False where there is one already."""
        do = partial(statements.answer, path=self.path, run_id=run_id, gate=gate, value=value)
        return await self._writing(run_id).ask(Task(do))

    async def fork(self, run_id: str, new_id: str, upto: int, lines: Sequence[Line]) -> None:
        """A new run that shares the lines of `run_id` below `upto`."""
        given = tuple(lines)
        do = partial(
            statements.fork,
            path=self.path,
            run_id=run_id,
            new_id=new_id,
            upto=upto,
            lines=given,
        )
        await self._writing(run_id).ask(Task(do))

    async def rewrite(self, changes: Sequence[Rewrite]) -> None:
        """Put other lines in the place of those with the same numbers, and leave nothing of these
        in the file or its log. The file is written anew for that, once and if anything changed,
        which takes as long as copying it and as much room; nobody else can write meanwhile."""
        writer = self._writing()
        given = [Rewrite(run_id, tuple(lines), tuple(gates)) for run_id, lines, gates in changes]
        await writer.ask(rewriting(writer, given))

    async def put(self, run: StoredRun, *, replace: bool = False) -> None:
        """Store a run that was read elsewhere, in one transaction, that which it replaces taken out
        in the same."""
        _check_numbers(run.lines)
        writer = self._writing(run.info.run_id)
        await writer.ask(Task(partial(statements.put, run=run, replace=replace)))
        if replace:
            await self._sweep(writer)

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and answer how many. One whose lines another run shares stays, and so does
        one that somebody is at work on. The file keeps its size, and its room is used again."""
        writer = self._writing()

        def find(connection: sqlite3.Connection | None) -> list[tuple[int, str]] | None:
            return None if connection is None else queries.newest_first(connection, given)

        given = tuple(run_ids)
        found = await self._read(find)
        if found is None:
            return 0
        count = 0
        for first in range(0, len(found), RUNS_AT_ONCE):
            some = found[first : first + RUNS_AT_ONCE]
            count += await writer.ask(Task(partial(statements.delete, runs=some)))
        await self._sweep(writer)
        return count

    async def _sweep(self, writer: Writer) -> None:
        while await writer.ask(Task(partial(statements.sweep, at_once=LINES_AT_ONCE))):
            pass

    # Reading

    async def read(self, run_id: str) -> StoredRun:
        """All there is of a run."""

        def read(connection: sqlite3.Connection | None) -> StoredRun:
            if connection is None:
                raise unknown(self.path, run_id)
            return queries.read(connection, self.path, run_id)

        return await self._read(read)

    async def runs(
        self,
        *,
        status: Listed | None = None,
        graph: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunInfo]:
        """The newest runs, the newest first; `before` goes on after the run of that id."""
        if limit < 0:
            raise ValueError(f"runs(limit={limit}): give 0 or more")
        check_listed(status)

        def read(connection: sqlite3.Connection | None) -> list[RunInfo]:
            if connection is None:
                if before is not None:
                    raise unknown(self.path, before)
                return []
            return queries.runs(connection, self.path, status, graph, limit, before)

        return await self._read(read)

    async def older(self, than: float, statuses: Sequence[Status]) -> list[str]:
        """The ids of the runs that were last written before the time `than`, by status."""

        def read(connection: sqlite3.Connection | None) -> list[str]:
            return [] if connection is None else queries.older(connection, than, statuses)

        return await self._read(read)

    # Opening and closing

    async def close(self) -> None:
        """Store what is still to be stored, give up the runs that are under way, so that they can
        be resumed elsewhere at once, and let go of the file."""
        with self._starting:
            self._closed = True
            workers = [one for one in (self._reader, self._writer) if one is not None]
        for worker in workers:
            worker.stop()
        await in_thread_to_the_end(_join, workers)

    def _writing(self, run_id: str | None = None) -> Writer:
        if self._writer is None or self._writer.forked:
            with self._starting:
                if self._closed:
                    raise closed(self.path, run_id)
                if self._writer is None or self._writer.forked:
                    self._writer = Writer(
                        self.path, Owner(self.lease), self.durability, self.busy_timeout
                    )
                    weakref.finalize(self, Writer.stop, self._writer).atexit = False
        return self._writer

    def _reading(self) -> Reader:
        if self._reader is None or self._reader.forked:
            with self._starting:
                if self._closed:
                    raise closed(self.path)
                if self._reader is None or self._reader.forked:
                    self._reader = Reader(self.path, self.busy_timeout)
                    weakref.finalize(self, Reader.stop, self._reader).atexit = False
        return self._reader

    async def _read(self, question: Callable[[sqlite3.Connection | None], T]) -> T:
        writer = self._writer
        if writer is not None and writer.is_behind() and not writer.over:
            with contextlib.suppress(JournalError):  # then it can be read all the same
                await writer.ask(Task(_nothing))  # what was noted here before is there afterwards
        return await self._reading().ask(question)

    def _not_ours(self, claim: Claim) -> JournalError:
        if self._closed:
            return closed(self.path, claim.run_id, begun=True)
        if self._writer is not None and self._writer.forked:
            error = self._writer.refusal()
            error.run_id = claim.run_id
            return error
        return JournalError(
            f"run {claim.run_id!r} was claimed through another journal than {self.path}",
            code="bae-journal-failed",
            run_id=claim.run_id,
            fix="use the journal that handed the claim out",
        )


def _nothing(_: sqlite3.Connection) -> None: ...


def _join(workers: Sequence[Reader | Writer]) -> None:
    for worker in workers:
        worker.thread.join()


def _check_numbers(lines: Sequence[Line]) -> None:
    for n, line in enumerate(lines):
        if line.n != n:
            raise ValueError(f"the lines of a new run are numbered from 0, here is {line.n}")


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
