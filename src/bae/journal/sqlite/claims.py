"""What a `SQLiteJournal` hands out and takes in: the claim on a run, with the lines that are on
their way, and the things its writer is asked to do. `writer.py` works through them."""

from __future__ import annotations

import sqlite3
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bae.exceptions import JournalError
from bae.journal.sqlite.statements import Fence
from bae.journal.store import Claim, Line


class SQLiteClaim(Claim):
    """The right to write a run, as `Journal.create` and `Journal.claim` hand it out.

    Only the writer looks inside. `held` are lines that were taken in and are not stored yet: those
    that could not be stored go with the next ones. `due` is the number of the line that comes next,
    `lost` says why there can be none any more.
    """

    __slots__ = ("due", "fence", "held", "lost")

    def __init__(self, run_id: str, owner: str, fence: Fence, due: int) -> None:
        super().__init__(run_id, owner)
        self.fence = fence
        self.due = due
        self.held: list[Line] = []
        self.lost: JournalError | None = None

    def take(self, lines: Sequence[Line]) -> None:
        """Take lines in, all of them or none."""
        if self.lost is not None:
            raise self.lost
        due = self.due
        for line in lines:
            if line.n != due:
                raise ValueError(
                    f"run {self.run_id!r}: there is a line {line.n} where {due} is due"
                )
            due += 1
        self.due = due
        self.held += lines


class Task(NamedTuple):
    """Something to do in the transaction, once its lines are in.

    `do` may be done again where the transaction fails. `then` is told what it returned as soon as
    that is stored, and answers what to return; `failed` is called when nothing will come of it.
    """

    do: Callable[[sqlite3.Connection], Any]
    then: Callable[[sqlite3.Connection, Any], Any] | None = None
    failed: Callable[[], None] | None = None


class Item(NamedTuple):
    """What is queued: lines under a claim, a task, or both; and who waits for it, if anybody."""

    claim: SQLiteClaim | None
    lines: Sequence[Line]
    task: Task | None
    future: Future[Any] | None
    loop: AbstractEventLoop | None

    @property
    def run_id(self) -> str | None:
        """The run it is about, as far as that is known here."""
        return None if self.claim is None else self.claim.run_id
