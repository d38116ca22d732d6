"""`SQLiteJournal`: runs that are kept in a file, by many runs and several processes at once. Its
writer and its reader are threads of their own, so that nothing here waits for a disk; this is the
face they have for the rest of bae."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import weakref
from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from bae.exceptions import JournalError
from bae.journal import sqlite_reading, sqlite_runs
from bae.journal.sqlite_claims import Item, SQLiteClaim, Task
from bae.journal.sqlite_errors import closed, is_busy, told, unknown
from bae.journal.sqlite_owner import Owner
from bae.journal.sqlite_reader import Reader
from bae.journal.sqlite_runs import Fence
from bae.journal.sqlite_writer import Writer
from bae.journal.store import Claim, Journal, Line, ParkedGate, RunInfo, Status, StoredRun
from bae.threads import in_thread_to_the_end

T = TypeVar("T")

AT_ONCE = 1_000
"""How many lines of deleted runs go in one transaction: others need not wait long for theirs."""


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
        writer = self._writing(run_id)
        owner = writer.owner
        lines = tuple(lines)
        _check_numbers(lines)

        def do(connection: sqlite3.Connection) -> Fence:
            owner.vouch(connection)
            fence = sqlite_runs.create(
                connection, owner.name, run_id, graph, shape, shape_hash, lines
            )
            owner.claiming.add(fence[0])
            return fence

        def then(_: sqlite3.Connection, fence: Fence) -> Claim:
            return owner.hold(SQLiteClaim(run_id, owner.name, fence, len(lines)))

        return await _claimed(writer, writer.ask(Task(do, then)))

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

        def do(connection: sqlite3.Connection) -> bool:
            return sqlite_runs.release(connection, claim.fence, status, waiting, error)

        def then(connection: sqlite3.Connection, done: bool) -> None:
            if not done:
                raise writer.lose(connection, claim)
            writer.owner.let_go(claim, released=True)

        def failed() -> None:
            writer.owner.let_go(claim, released=False)

        await writer.ask(Task(do, then, failed), claim, tuple(lines))

    async def claim(self, run_id: str) -> Claim:
        """Claim a run that nobody has, or whose owner is gone."""
        writer = self._writing(run_id)
        owner = writer.owner

        def do(connection: sqlite3.Connection) -> tuple[Fence, int]:
            owner.vouch(connection)
            found = sqlite_runs.claim(connection, self.path, run_id, owner.name, owner.has)
            owner.claiming.add(found[0][0])
            return found

        def then(_: sqlite3.Connection, found: tuple[Fence, int]) -> Claim:
            return owner.hold(SQLiteClaim(run_id, owner.name, *found))

        return await _claimed(writer, writer.ask(Task(do, then)))

    async def answer(self, run_id: str, gate: str, value: str) -> bool:
        """Store the answer to a gate, as JSON; False where there is one already."""
        return await self._do(
            run_id, lambda c: sqlite_runs.answer(c, self.path, run_id, gate, value)
        )

    async def fork(self, run_id: str, new_id: str, upto: int, lines: Sequence[Line]) -> None:
        """A new run that shares the lines of `run_id` below `upto`."""
        await self._do(
            run_id, lambda c: sqlite_runs.fork(c, self.path, run_id, new_id, upto, lines)
        )

    async def replace(self, run_id: str, lines: Sequence[Line], forget: Sequence[str] = ()) -> None:
        """Put other lines in the place of those with the same numbers, and leave nothing of these
        in the file or its log. The file is written anew for that, which takes as long as copying it
        and as much room; nobody else can write meanwhile."""
        await self._do(
            run_id,
            lambda c: sqlite_runs.replace(c, self.path, run_id, lines, forget),
            lambda c, _: _rewrite(c, self.path, run_id),
        )

    async def put(self, run: StoredRun) -> None:
        """Store a run that was read elsewhere, in one transaction."""
        _check_numbers(run.lines)
        await self._do(run.info.run_id, lambda c: sqlite_runs.put(c, run))

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and answer how many. One whose lines another run shares stays, and so does
        one that somebody is at work on. The file keeps its size, and its room is used again."""
        count: int = await self._do(None, lambda c: sqlite_runs.delete(c, run_ids))
        while await self._do(None, lambda c: sqlite_runs.sweep(c, AT_ONCE)):
            pass
        return count

    # Reading

    async def read(self, run_id: str) -> StoredRun:
        """All there is of a run."""

        def read(connection: sqlite3.Connection | None) -> StoredRun:
            if connection is None:
                raise unknown(self.path, run_id)
            return sqlite_reading.read(connection, self.path, run_id)

        return await self._read(read, run_id)

    async def runs(
        self,
        *,
        status: Status | None = None,
        graph: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunInfo]:
        """The newest runs, the newest first; `before` goes on after the run of that id."""
        if limit < 0:
            raise ValueError(f"runs(limit={limit}): give 0 or more")

        def read(connection: sqlite3.Connection | None) -> list[RunInfo]:
            if connection is None:
                if before is not None:
                    raise unknown(self.path, before)
                return []
            return sqlite_reading.runs(connection, self.path, status, graph, limit, before)

        return await self._read(read)

    async def older(self, than: float, statuses: Sequence[Status]) -> list[str]:
        """The ids of the runs that were last written before the time `than`, by status."""

        def read(connection: sqlite3.Connection | None) -> list[str]:
            return [] if connection is None else sqlite_reading.older(connection, than, statuses)

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
        for worker in workers:  # the last one to let go tidies the log away
            await in_thread_to_the_end(worker.thread.join)

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

    async def _do(
        self,
        run_id: str | None,
        do: Callable[[sqlite3.Connection], Any],
        then: Callable[[sqlite3.Connection, Any], Any] | None = None,
    ) -> Any:
        return await self._writing(run_id).ask(Task(do, then))

    async def _read(
        self, question: Callable[[sqlite3.Connection | None], T], run_id: str | None = None
    ) -> T:
        writer = self._writer
        if writer is not None and writer.is_behind() and not writer.over:
            with contextlib.suppress(JournalError):  # then it can be read all the same
                await writer.ask(Task(_nothing))  # what was noted here before is there afterwards
        return await self._reading().ask(question)

    def _not_ours(self, claim: Claim) -> JournalError:
        if self._closed:
            return closed(self.path, claim.run_id)
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


async def _claimed(writer: Writer, claimed: Future[Claim]) -> Claim:
    """Wait for a claim. One that nobody waits for any more is given up."""
    try:
        return await asyncio.shield(claimed)
    except asyncio.CancelledError:
        claimed.add_done_callback(lambda done: _give_up(writer, done))
        raise


def _give_up(writer: Writer, claimed: Future[Claim]) -> None:
    if claimed.cancelled() or claimed.exception() is not None:
        return
    claim = claimed.result()
    assert isinstance(claim, SQLiteClaim)

    def do(connection: sqlite3.Connection) -> None:
        sqlite_runs.give_up(connection, [claim.fence])

    def then(_: sqlite3.Connection, __: None) -> None:
        writer.owner.let_go(claim, released=True)

    def failed() -> None:
        writer.owner.let_go(claim, released=False)

    writer.put(Item(claim, (), Task(do, then, failed), None, None))


def _nothing(_: sqlite3.Connection) -> None: ...


def _rewrite(connection: sqlite3.Connection, path: str, run_id: str) -> None:
    """Leave nothing of old lines: pages have copies of those that were moved, and so has the log."""
    try:
        connection.execute("vacuum")
        busy = connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
    except sqlite3.Error as error:
        if not is_busy(error):
            said = told(error, path, run_id)
            said.message += f"; run {run_id!r} is changed, but the file has old lines of it still"
            raise said from error
        busy = True
    if busy:
        raise JournalError(
            f"run {run_id!r} is changed, but {path} has old lines of it still: somebody else was "
            "at work on the file",
            code="bae-journal-locked",
            run_id=run_id,
            fix="do it again when nobody else uses the file",
        )


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
