"""A journal that kills its own process at a given write, without cleanup. Every call that changes
the journal is one write, counted from 0 in each process."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bae.journal import (
    Claim,
    Journal,
    Line,
    ParkedGate,
    PostgresJournal,
    RunSummary,
    SQLiteJournal,
    StoredRun,
)
from bae.journal.stored_runs import RunStatus
from bae.postgres.address import is_address
from crash.effects import HERE

Moment = Literal["before", "handed", "after"]
"""Before the store has the write, while it has it, or when it has said that it is stored."""
MOMENTS: Final[tuple[Moment, ...]] = ("before", "handed", "after")


class Kill(NamedTuple):
    """When a process is to be killed: around its write number `write`."""

    write: int
    moment: Moment


class KillingJournal(Journal):
    """A journal with a planned kill. `writes` lists the requested writes."""

    def __init__(self, place: str | Path, kill: Kill | None, **options: Any) -> None:
        super().__init__(place, **options)  # type: ignore[call-arg]
        self._kill = kill
        self.writes: list[str] = []

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        number = self._reached("append", lines)
        stored = super().append(claim, lines)
        self._die(number, "handed")
        return self._told(number, stored, lines)

    async def _told(self, number: int, stored: Awaitable[None], lines: Sequence[Line]) -> None:
        await stored
        _say_kept(lines)
        self._die(number, "after")

    def note(self, claim: Claim, line: Line) -> None:
        number = self._reached("note", [line])
        super().note(claim, line)
        self._die(number, "handed")
        self._die(number, "after")

    async def create(self, run: StoredRun, *, claim: bool = True) -> Claim | None:
        number = self._reached("create", run.lines)
        made = await super().create(run, claim=claim)
        _say_kept(run.lines)
        self._die(number, "after")
        return made

    async def release(
        self,
        claim: Claim,
        status: RunStatus,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
        summary: RunSummary | None = None,
    ) -> None:
        number = self._reached("release", lines)
        await super().release(claim, status, lines, waiting, error, summary)
        _say_kept(lines)
        self._die(number, "after")

    async def claim(self, run_id: str) -> Claim:
        number = self._reached("claim", ())
        claim = await super().claim(run_id)
        self._die(number, "after")
        return claim

    async def answer(self, run_id: str, gate: str, value: str) -> bool:
        number = self._reached("answer", ())
        first = await super().answer(run_id, gate, value)
        self._die(number, "after")
        return first

    def _reached(self, what: str, lines: Sequence[Line]) -> int:
        number = len(self.writes)
        self.writes.append(" ".join([what, *map(_name, lines)]))
        self._die(number, "before")
        return number

    def _die(self, number: int, moment: Moment) -> None:
        if self._kill == (number, moment):
            os.kill(os.getpid(), signal.SIGKILL)


class KillingSQLiteJournal(KillingJournal, SQLiteJournal):
    """In a file."""


class KillingPostgresJournal(KillingJournal, PostgresJournal):
    """In a database."""


def killing_journal(place: str, kill: Kill | None, lease: float) -> KillingJournal:
    """The journal in a file or a database."""
    made = KillingPostgresJournal if is_address(place) else KillingSQLiteJournal
    return made(place, kill, lease=lease)


def open_journal(place: str | Path) -> Journal:
    """The same journal without a kill."""
    text = str(place)
    return PostgresJournal(text) if is_address(text) else SQLiteJournal(text)


def _name(line: Line) -> str:
    """The kind of a line, without numbers."""
    said = json.loads(line.data)
    about = [said.get(key) for key in ("node", "field", "parameter", "by", "asker", "target")]
    names = [
        each.get("type", str(each)) if isinstance(each, dict) else str(each)
        for each in about
        if each
    ]
    return re.sub(r"\d+", "", " ".join([line.kind, line.path, *names]))


def _say_kept(lines: Sequence[Line]) -> None:
    for line in lines:
        HERE.get().say("kept", str(line.n))
