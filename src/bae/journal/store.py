"""`Journal`, what a store of runs is to the rest of bae: lines in, lines out, one owner for a run
at a time, one answer for a gate. `sqlite.py` and `memory.py` are such stores; `encoding.py` makes
lines of records, and `keeper.py` hands them over while a run lasts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from bae.journal.lines import Existing, PathOrFile
    from bae.journal.provenance import Provenance
    from bae.journal.redaction import Redaction

Status = Literal["running", "waiting", "ended", "failed", "cancelled"]
"""How a run stands. One that is "running" and whose owner is gone was interrupted."""


class Line(NamedTuple):
    """One record as it is stored: `n` counts the lines of a run from 0, `kind` is the name of the
    record's class, `data` a JSON object with what only records of this kind have."""

    n: int
    kind: str
    at: float
    path: str
    step: int
    data: str


@dataclass(frozen=True, slots=True)
class ParkedGate:
    """A question that a run waits for: `gate` is its address, as `2:Refund.approved`, `place` the
    field as `Refund.approved`, `deadline` the time at which the field's default stands."""

    gate: str
    place: str
    question: str
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of a journal, as `Journal.runs` lists it.

    `owner` says which process has it and until when its word is good (`lease_until`); None when
    nobody does. `waiting` are the gates a parked run waits for, `error` one line about why a failed
    one failed, `parent` the run it was forked from.
    """

    run_id: str
    graph: str
    status: Status
    started: float
    updated: float
    shape: str
    owner: str | None = None
    lease_until: float | None = None
    waiting: tuple[ParkedGate, ...] = ()
    error: str = ""
    parent: str | None = None

    def is_interrupted(self, now: float) -> bool:
        """Whether the run was under way and whoever ran it is gone."""
        gone = self.lease_until is None or self.lease_until < now
        return self.status == "running" and gone


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it is read back: what is known about it, the shape its classes had as JSON (see
    `shapes.py`), all its lines, those shared with the run it was forked from first, and the answers
    given to its gates as JSON, by address."""

    info: RunInfo
    shape: str
    lines: tuple[Line, ...]
    answers: dict[str, str]


class Claim:
    """The right to write a run, held by one owner at a time. Stores make it, keep what they like
    in a subclass, and refuse lines under one that was lost."""

    __slots__ = ("owner", "run_id")

    def __init__(self, run_id: str, owner: str) -> None:
        self.run_id = run_id
        self.owner = owner


class Journal(ABC):
    """A store of runs: give one to `graph.arun(…, journal=…)` and the run survives.

    Two are there: `SQLiteJournal` for a file and `MemoryJournal` for tests. Another one is a
    subclass with the methods below. Everything it raises on purpose is a `JournalError`. What was
    acknowledged, by an awaited call that returned, must survive whatever the store promises to
    survive; lines of a run are stored in their order, without gaps, or not at all.
    """

    secrets: bool = False
    """Whether secrets (`SecretStr`, `Field(repr=False)`) are stored in clear."""
    prompts: bool = True
    """Whether the text of prompts and raw answers is stored, or only a hash of each prompt."""

    @abstractmethod
    async def create(
        self, run_id: str, graph: str, shape: str, shape_hash: str, lines: Sequence[Line]
    ) -> Claim:
        """Store a new run with its first lines, and claim it. A `run_id` that is there already is
        refused with `bae-run-exists`."""

    @abstractmethod
    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        """Store lines; they are durable when what is returned has been awaited.

        The lines are taken in at the call, in order, whether or not anybody awaits. Not a
        coroutine function: whoever calls it may go on before it awaits. Fails with `bae-run-taken`
        where somebody else has claimed the run meanwhile.
        """

    @abstractmethod
    def note(self, claim: Claim, line: Line) -> None:
        """Store a line soon: with the next one that is awaited, or shortly after. Never fails: what
        goes wrong is told to the next `append`."""

    @abstractmethod
    async def release(
        self,
        claim: Claim,
        status: Status,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
    ) -> None:
        """Store the last lines of a run and how it came out, and give up the claim. Where that
        fails the claim is given up as soon as the store can be written again."""

    @abstractmethod
    async def claim(self, run_id: str) -> Claim:
        """Claim a run that nobody has, or whose owner is gone, with a heartbeat from here on; its
        status is "running" then. Refused with `bae-run-unknown`, or with `bae-run-owned`, which
        says who has it and for how long."""

    @abstractmethod
    async def read(self, run_id: str) -> StoredRun:
        """All there is of a run, written by whomever; `bae-run-unknown` where there is none."""

    @abstractmethod
    async def runs(
        self,
        *,
        status: Status | None = None,
        graph: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunInfo]:
        """The newest runs, the newest first; `before` goes on after the run of that id."""

    @abstractmethod
    async def answer(self, run_id: str, gate: str, value: str) -> bool:
        """Store the answer to a gate, as JSON; False where there is one already."""

    @abstractmethod
    async def fork(self, run_id: str, new_id: str, upto: int, lines: Sequence[Line]) -> None:
        """A new run that shares the lines of `run_id` whose number is below `upto`, with `lines`
        (numbered from `upto`) after them. It is "running" and nobody's, so that it can be claimed;
        it has the shape and the graph of the other, and none of the answers that the other has
        not taken yet: people are asked anew."""

    @abstractmethod
    async def replace(
        self, run_id: str, lines: Sequence[Line], forget: Sequence[str] = ()
    ) -> None:
        """Put other lines in the place of those with the same numbers, those included that it
        shares with the run it was forked from, and forget the answers to the gates `forget`: what
        redacting does. Nothing of what was there may be left in the store's file."""

    @abstractmethod
    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and answer how many. One whose lines another run shares stays, unless that
        is deleted too, and so does one that somebody is at work on."""

    @abstractmethod
    async def older(self, than: float, statuses: Sequence[Status]) -> list[str]:
        """The ids of the runs that were last written before the time `than`, by status."""

    @abstractmethod
    async def close(self) -> None:
        """Store what is still to be stored and let go of everything. Runs of this journal that are
        under way fail with `bae-journal-closed` at their next record."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def why(self, run_id: str, place: str, *, step: int | None = None) -> Provenance:
        """Where the value of a field came from: `await journal.why(run_id, "Outfit.mood")`.

        With several nodes of the class in the run it is the newest one's, or the one at `step`.
        """
        from bae.journal.why import why

        return why(await self.read(run_id), place, step)

    async def prune(
        self,
        *,
        older_than: float,
        statuses: Sequence[Status] = ("ended", "failed", "cancelled"),
    ) -> int:
        """Delete the runs that were last written more than `older_than` seconds ago, and answer how
        many. Runs that wait or are under way stay unless `statuses` names them."""
        from time import time

        return await self.delete(await self.older(time() - older_than, statuses))

    async def put(self, run: StoredRun) -> None:
        """Store a run that was read elsewhere, with how it came out: all of it, or nothing. A run
        of its id that is there already is refused with `bae-run-exists`."""
        from bae.journal.lines import put

        await put(self, run)

    async def export(
        self,
        to: PathOrFile,
        run_ids: Sequence[str] | None = None,
        *,
        status: Status | None = None,
        graph: str | None = None,
    ) -> int:
        """Write runs as JSON lines to a path or an open file, and answer how many.

        Without `run_ids` it is all of them, or those of a `status` or a `graph`. A run that was
        forked is written whole, with the lines that it shares. A file at the path is replaced when
        everything is written, and not before.
        """
        from bae.journal.lines import export

        return await export(self, to, run_ids, status=status, graph=graph)

    async def load(self, source: PathOrFile, *, existing: Existing = "refuse") -> list[str]:
        """Read runs that `export` has written, from a path or an open file, and answer their ids.

        Each run is checked before anything of it is stored, and what is wrong is said with the
        file and the line. A run that is there already stops it, unless `existing` is "keep", to
        pass over it, or "replace".
        """
        from bae.journal.lines import load

        return await load(self, source, existing=existing)

    async def redact(self, run_id: str, *places: str, copies: bool = False) -> Redaction:
        """Take the values of fields out of a run for good:
        `await journal.redact(run_id, "Person.email")`.

        They are gone from wherever the run stores them, and so are the prompts and answers of the
        LM calls that saw them; runs that share its lines, by a fork, are redacted with it. What is
        returned says how many values there were, and which other fields still hold the same text:
        name those too, or give `copies=True` to follow it everywhere. A run that is resumed
        afterwards asks for the values: `graph.resume(…, given={"Person.email": …})`.
        """
        from bae.journal.redaction import redact

        return await redact(self, run_id, places, copies=copies)
