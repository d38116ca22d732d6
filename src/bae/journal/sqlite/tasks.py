"""The tasks that a `SQLiteJournal` gives its writer where there is more to do than to write: what
is done in the transaction, and what once that is stored, or has failed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from asyncio import Future
from collections.abc import Callable, Sequence

from bae.exceptions import JournalError
from bae.journal.sqlite import statements
from bae.journal.sqlite.claims import Item, SQLiteClaim, Task
from bae.journal.sqlite.errors import is_busy, told
from bae.journal.sqlite.statements import Fence
from bae.journal.sqlite.writer import Writer
from bae.journal.store import Claim, Line, ParkedGate, Rewrite, Status

PATIENCE = 60.0
"""Seconds that writing a file anew may take, however small it is,"""
SLOWEST = 5e6
"""and bytes of it for which it may take one second more."""


async def created(
    writer: Writer, run_id: str, graph: str, shape: str, shape_hash: str, lines: tuple[Line, ...]
) -> Claim:
    """Add a run, and claim it."""
    owner = writer.owner

    def do(connection: sqlite3.Connection) -> tuple[Fence, int]:
        owner.vouch(connection)
        fence = statements.create(connection, owner.name, run_id, graph, shape, shape_hash, lines)
        owner.claiming.add(fence[0])
        return fence, len(lines)

    return await _claimed(writer, run_id, do)


async def claimed(writer: Writer, run_id: str) -> Claim:
    """Claim a run."""
    owner = writer.owner

    def do(connection: sqlite3.Connection) -> tuple[Fence, int]:
        owner.vouch(connection)
        found = statements.claim(connection, writer.path, run_id, owner.name, owner.has)
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
        return statements.release(connection, claim.fence, status, waiting, error)

    def then(connection: sqlite3.Connection, done: bool) -> None:
        if not done:
            raise writer.lose(connection, claim)
        writer.owner.let_go(claim, released=True)

    return Task(do, then, lambda: writer.owner.let_go(claim, released=False))


def rewriting(writer: Writer, changes: Sequence[Rewrite]) -> Task:
    """Put lines in the place of others, and leave nothing of these: pages have copies of lines that
    were moved, and so has the log. The word of this process holds for as long as that may take."""
    path, owner = writer.path, writer.owner
    run_id = changes[0].run_id if len(changes) == 1 else None
    who = ", ".join(repr(change.run_id) for change in changes)

    def do(connection: sqlite3.Connection) -> bool:
        owner.vouch_for(connection, PATIENCE + os.stat(path).st_size / SLOWEST)
        return statements.rewrite(connection, path, changes)

    def then(connection: sqlite3.Connection, unclean: bool) -> None:
        try:
            if unclean:
                _write_anew(connection)
        except sqlite3.Error as error:
            if not is_busy(error):
                said = told(error, path, run_id)
                said.message += f"; run {who} is changed, but the file has old lines still"
                raise said from error
            raise JournalError(
                f"run {who} is changed, but {path} has old lines of it still: somebody else "
                "was at work on the file",
                code="bae-journal-locked",
                run_id=run_id,
                fix="do it again when nobody else uses the file",
            ) from error
        finally:
            with contextlib.suppress(sqlite3.Error):  # the longer word stands then
                owner.vouch_for(connection, 0.0)

    return Task(do, then)


def _write_anew(connection: sqlite3.Connection) -> None:
    """Leave nothing in the file but what can be read in it. What is owed is noted in the file, for
    the next one where this fails."""
    connection.execute("vacuum")
    if connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
        busy = sqlite3.OperationalError("the log is in use")
        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise busy
    connection.execute("delete from unclean")


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
        statements.give_up(connection, [claim.fence])

    def then(_: sqlite3.Connection, __: None) -> None:
        writer.owner.let_go(claim, released=True)

    task = Task(do, then, lambda: writer.owner.let_go(claim, released=False))
    writer.put(Item(claim, (), task, None, None))
