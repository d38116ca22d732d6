"""The tasks that a `SQLiteJournal` gives its writer where there is more to do than to write: what
is done in the transaction, and what once that is stored, or has failed."""

from __future__ import annotations

import asyncio
import sqlite3
from asyncio import Future
from collections.abc import Callable, Sequence

from bae.exceptions import JournalError
from bae.journal import sqlite_runs
from bae.journal.sqlite_claims import Item, SQLiteClaim, Task
from bae.journal.sqlite_errors import is_busy, told
from bae.journal.sqlite_runs import Fence
from bae.journal.sqlite_writer import Writer
from bae.journal.store import Claim, Line, ParkedGate, Status


async def created(
    writer: Writer, run_id: str, graph: str, shape: str, shape_hash: str, lines: tuple[Line, ...]
) -> Claim:
    """Add a run, and claim it."""
    owner = writer.owner

    def do(connection: sqlite3.Connection) -> tuple[Fence, int]:
        owner.vouch(connection)
        fence = sqlite_runs.create(connection, owner.name, run_id, graph, shape, shape_hash, lines)
        owner.claiming.add(fence[0])
        return fence, len(lines)

    return await _claimed(writer, run_id, do)


async def claimed(writer: Writer, run_id: str) -> Claim:
    """Claim a run."""
    owner = writer.owner

    def do(connection: sqlite3.Connection) -> tuple[Fence, int]:
        owner.vouch(connection)
        found = sqlite_runs.claim(connection, writer.path, run_id, owner.name, owner.has)
        owner.claiming.add(found[0][0])
        return found

    return await _claimed(writer, run_id, do)


def releasing(
    writer: Writer,
    claim: SQLiteClaim,
    status: Status,
    waiting: Sequence[ParkedGate],
    error: str,
) -> Task:
    """Say how a run came out and give up the claim on it."""

    def do(connection: sqlite3.Connection) -> bool:
        return sqlite_runs.release(connection, claim.fence, status, waiting, error)

    def then(connection: sqlite3.Connection, done: bool) -> None:
        if not done:
            raise writer.lose(connection, claim)
        writer.owner.let_go(claim, released=True)

    return Task(do, then, lambda: writer.owner.let_go(claim, released=False))


def rewriting(path: str, run_id: str, lines: Sequence[Line], forget: Sequence[str]) -> Task:
    """Put lines in the place of others, and leave nothing of these: pages have copies of lines that
    were moved, and so has the log."""

    def do(connection: sqlite3.Connection) -> None:
        sqlite_runs.replace(connection, path, run_id, lines, forget)

    def then(connection: sqlite3.Connection, _: None) -> None:
        try:
            connection.execute("vacuum")
            busy = connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
        except sqlite3.Error as error:
            if not is_busy(error):
                said = told(error, path, run_id)
                said.message += f"; run {run_id!r} is changed, but the file has old lines still"
                raise said from error
            busy = True
        if busy:
            raise JournalError(
                f"run {run_id!r} is changed, but {path} has old lines of it still: somebody else "
                "was at work on the file",
                code="bae-journal-locked",
                run_id=run_id,
                fix="do it again when nobody else uses the file",
            )

    return Task(do, then)


async def _claimed(
    writer: Writer, run_id: str, do: Callable[[sqlite3.Connection], tuple[Fence, int]]
) -> Claim:
    """Wait for a claim. One that nobody waits for any more is given up."""
    owner = writer.owner

    def then(_: sqlite3.Connection, found: tuple[Fence, int]) -> SQLiteClaim:
        return owner.hold(SQLiteClaim(run_id, owner.name, *found))

    asked: Future[SQLiteClaim] = writer.ask(Task(do, then))
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        asked.add_done_callback(lambda done: _give_up(writer, done))
        raise


def _give_up(writer: Writer, asked: Future[SQLiteClaim]) -> None:
    if asked.cancelled() or asked.exception() is not None:
        return
    claim = asked.result()

    def do(connection: sqlite3.Connection) -> None:
        sqlite_runs.give_up(connection, [claim.fence])

    def then(_: sqlite3.Connection, __: None) -> None:
        writer.owner.let_go(claim, released=True)

    task = Task(do, then, lambda: writer.owner.let_go(claim, released=False))
    writer.put(Item(claim, (), task, None, None))
