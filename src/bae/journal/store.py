"""`Journal`, the interface of a store of runs: it keeps the lines of each run in order, gives a run
to one owner at a time, and takes one answer for a gate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from time import time
from typing import (
    TYPE_CHECKING,
    Annotated,
    Final,
    Literal,
    NamedTuple,
    Self,
    get_args,
)

from pydantic import Field

from bae.exceptions import JournalError

if TYPE_CHECKING:
    from datetime import timedelta

    from bae.journal.export import Existing, PathOrFile, Unfinished
    from bae.journal.provenance import Provenance
    from bae.journal.redaction import Redaction

Status = Literal["running", "waiting", "ended", "failed", "cancelled"]
"""The status of a run. One that is "running" and has no living owner was interrupted."""
Listed = Literal["running", "waiting", "ended", "failed", "cancelled", "interrupted"]
"""What runs can be listed by: their status, or that they were interrupted."""

FORMAT: Final = 3
"""The version of the stored format, in SQLite files and exports: the one that is written, and the
newest that is read. All versions from 1 on are read.

Raise it when the fields of lines, of headers or of tables change: `tests/journal/test_formats.py`
fails until then. A field that is added to a line has a default, which is what older lines mean;
`UPGRADES` of `bae.journal.sqlite.schema` has what changes in the tables."""
READS: Final = f"this bae reads versions up to {FORMAT}"
"""Which versions of the stored format can be read, for errors."""

LATEST: Final = 253_402_214_400.0
"""A time, in seconds since 1970, that is later than all that a calendar has."""
Time = Annotated[float, Field(ge=0, lt=LATEST)]

_PAGE: Final = 200
"""How many runs `every_run` lists at a time."""


class Line(NamedTuple):
    """One record as it is stored: `n` counts the lines of a run from 0, `kind` is the name of the
    record's class, `data` a JSON object with the fields of that class, `version` the version of
    this format (docs/journal-format.md)."""

    n: int
    kind: str
    at: float
    path: str
    step: int
    data: str
    version: int = FORMAT


@dataclass(frozen=True, slots=True)
class ParkedGate:
    """A question that a run waits for: `address` names it, as `2:Refund.approved`, `place` is the
    field as `Refund.approved`, `deadline` the time after which the field's default is used. With
    `answered` the answer is stored, and the run uses it when it is resumed."""

    address: str
    place: str
    question: str
    deadline: Time | None = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of a journal, as `Journal.runs` lists it.

    `owner` is the process that works on it and `lease_until` the end of its lease; None where there
    is none. `waiting` are the gates that a parked run waits for, `error` is one line about why it
    failed, `parent` the run it was forked from.
    """

    run_id: str
    graph: str
    status: Status
    started: Time
    updated: Time
    shape: str
    owner: str | None = None
    lease_until: float | None = None
    waiting: tuple[ParkedGate, ...] = ()
    error: str = ""
    parent: str | None = None

    def is_interrupted(self, now: float | None = None) -> bool:
        """Whether the run is in progress and its owner is gone, at the time `now`."""
        if self.status != "running":
            return False
        return self.lease_until is None or self.lease_until < (time() if now is None else now)

    def standing(self, now: float | None = None) -> Listed:
        """The status, or "interrupted", at the time `now`."""
        return "interrupted" if self.is_interrupted(now) else self.status

    def lasted(self, now: float | None = None) -> float:
        """Seconds from the start of the run, interruptions included: until `now` while it is in
        progress or waits, until it was last written otherwise."""
        at = time() if now is None else now
        end = at if self.standing(at) in ("running", "waiting") else self.updated
        return max(0.0, end - self.started)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it is read back: its entry in the list, the shape of its node classes as JSON, all
    its lines, including those shared with the run it was forked from, and the answers to its gates
    as JSON, by address."""

    info: RunInfo
    shape: str
    lines: tuple[Line, ...]
    answers: dict[str, str]


class Rewrite(NamedTuple):
    """Lines of a run that replace those with the same numbers, and the gates whose answers are to
    be deleted."""

    run_id: str
    lines: Sequence[Line]
    forget: Sequence[str] = ()


class Claim:
    """The right to write a run, held by one owner at a time. A store may subclass it, and refuses
    lines under a claim that was lost."""

    __slots__ = ("owner", "run_id")

    def __init__(self, run_id: str, owner: str) -> None:
        self.run_id = run_id
        self.owner = owner

    def is_in_doubt(self) -> bool:
        """Whether the run may have been taken over: this process was suspended for longer than its
        lease, say. Then a run appends no lines, which is refused where it was, before it does
        anything more. Ask a clock that counts the time in which the process is suspended."""
        return False


class Journal(ABC):
    """A store of runs: pass one to `graph.arun(…, journal=…)` and the run survives.

    bae has two: `SQLiteJournal` for a file and `MemoryJournal` for tests. For your own, subclass
    this and write the abstract methods. What they raise on purpose is a `JournalError`. What was
    acknowledged, by an awaited call that returned, must survive whatever the store promises to
    survive; the lines of a run are stored in order, without gaps, or not at all.
    """

    secrets: bool = False
    """Whether secrets (`SecretStr`, `Field(repr=False)`) are stored in clear."""
    prompts: bool = True
    """Whether the text of prompts and raw answers is stored, or only a hash of each prompt."""

    @abstractmethod
    def create(
        self, run_id: str, graph: str, shape: str, shape_hash: str, lines: Sequence[Line]
    ) -> Awaitable[Claim]:
        """Store a new run with its first lines, and claim it. A `run_id` that exists already is
        refused with `bae-run-exists`."""

    @abstractmethod
    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        """Store lines; they are durable when what is returned has been awaited.

        The lines are taken in at the call, in order, whether or not the caller awaits: this is not
        a coroutine function. Fails with `bae-run-taken` if another owner has claimed the run.
        """

    @abstractmethod
    def note(self, claim: Claim, line: Line) -> None:
        """Store a line soon: with the next one that is awaited, or shortly after. Never fails: the
        next `append` raises what went wrong."""

    @abstractmethod
    def release(
        self,
        claim: Claim,
        status: Status,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
    ) -> Awaitable[None]:
        """Store the last lines of a run and how it ended, and give up the claim. If that fails, the
        claim is given up as soon as the store can be written again."""

    @abstractmethod
    async def claim(self, run_id: str) -> Claim:
        """Claim a run that has no owner, or whose owner is gone, and renew the lease from here on;
        its status becomes "running". Refused with `bae-run-unknown`, with `bae-run-owned`, which
        names the owner and the rest of its lease, or with `bae-run-ended`: another process may have
        ended the run since it was read."""

    @abstractmethod
    async def read(self, run_id: str) -> StoredRun:
        """All there is of a run, by whichever process; `bae-run-unknown` if there is none."""

    @abstractmethod
    async def runs(
        self,
        *,
        status: Listed | None = None,
        graph: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunInfo]:
        """The newest runs, the newest first; `before` continues after the run of that id.

        The "running" ones include those that were interrupted, which can also be listed alone. An
        unknown `status` is a ValueError (`check_listed`).
        """

    @abstractmethod
    async def answer(self, run_id: str, gate: str, value: str) -> bool:
        """Store the answer to a gate, as JSON; False if there is one already."""

    @abstractmethod
    async def fork(self, run_id: str, new_id: str, upto: int, lines: Sequence[Line]) -> None:
        """A new run that shares the lines of `run_id` whose number is below `upto`, with `lines`
        (numbered from `upto`) after them. It is "running" and has no owner, so that it can be
        claimed; it has the shape and the graph of the other, and none of its answers that were not
        used yet: people are asked again."""

    @abstractmethod
    async def rewrite(self, changes: Sequence[Rewrite]) -> None:
        """Replace lines by those with the same numbers, including lines that are shared with the
        run it was forked from, and delete answers, all of it or nothing. Redaction uses this:
        nothing of the old lines may be left in the store's file."""

    @abstractmethod
    async def put(self, run: StoredRun, *, replace: bool = False) -> None:
        """Store a run that was read elsewhere, with how it ended: all of it, or nothing. If there
        is a run of its id, this is refused with `bae-run-exists`, unless it is to be replaced: then
        the old run is kept if this fails."""

    @abstractmethod
    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and return how many. A run whose lines a fork shares stays, unless the fork
        is deleted too, and so does one that a process works on."""

    @abstractmethod
    async def older(self, than: float, statuses: Sequence[Status]) -> list[str]:
        """The ids of the runs that were last written before the time `than`, by status."""

    @abstractmethod
    async def close(self) -> None:
        """Store what is still to be stored and close everything. Runs of this journal that are in
        progress fail with `bae-journal-closed` at their next record."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def replace(self, run_id: str, lines: Sequence[Line], forget: Sequence[str] = ()) -> None:
        """Replace lines of one run, as `rewrite` does for several."""
        await self.rewrite([Rewrite(run_id, lines, forget)])

    async def every_run(
        self, *, status: Listed | None = None, graph: str | None = None
    ) -> AsyncIterator[RunInfo]:
        """All runs, the newest first, a page at a time: `async for info in journal.every_run():`.

        Runs that start meanwhile are left out; one that is deleted, or whose status changes,
        meanwhile may be listed or not.
        """
        known: list[str | None] = [None]
        while True:
            try:
                page = await self.runs(status=status, graph=graph, limit=_PAGE, before=known[-1])
            except JournalError as error:
                known.pop()  # it was deleted since
                if error.code != "bae-run-unknown" or not known:
                    raise
                continue
            for info in page:
                yield info
            if len(page) < _PAGE:
                return
            known = [info.run_id for info in page]

    async def why(self, run_id: str, place: str, *, step: int | None = None) -> Provenance:
        """Where the value of a field came from: `await journal.why(run_id, "Outfit.mood")`.

        With several nodes of the class in the run this is about the newest, or the one at `step`.
        """
        from bae.journal.decoder import off_loop
        from bae.journal.why import why

        run = await self.read(run_id)
        return await off_loop(len(run.lines), why, run, place, step)

    async def prune(
        self,
        *,
        older_than: float | timedelta,
        statuses: Sequence[Status] = ("ended", "failed", "cancelled"),
    ) -> int:
        """Delete the runs that were last written longer ago than `older_than`, in seconds or as a
        timedelta, and return how many. Runs that wait or are in progress stay unless `statuses`
        names them."""
        age = older_than if isinstance(older_than, int | float) else older_than.total_seconds()
        for status in statuses:
            check_listed(status, get_args(Status))
        return await self.delete(await self.older(time() - age, statuses))

    async def export(
        self,
        to: PathOrFile,
        run_ids: Sequence[str] | None = None,
        *,
        status: Listed | None = None,
        graph: str | None = None,
    ) -> int:
        """Write runs as JSON lines to a path or an open file, and return how many.

        Without `run_ids` these are all of them, or those of a `status` or a `graph`. A run that was
        forked is written whole, with the lines that it shares. A file at the path is replaced when
        everything is written, and not before.
        """
        from bae.journal.export import export

        return await export(self, to, run_ids, status=status, graph=graph)

    async def load(
        self,
        source: PathOrFile,
        *,
        existing: Existing = "refuse",
        unfinished: Unfinished = "cancel",
    ) -> list[str]:
        """Read runs that `export` wrote, from a path or an open file, and return their ids.

        The whole file is checked before anything is stored: its lines are read in order, as they
        are read from a journal later. Errors name the file and the line. A run that exists already
        is an error, unless `existing` is "keep", to skip it, or "replace".

        A run that was in progress or waiting where it was exported is "cancelled" here, so that it
        is not continued by accident in two places: `graph.recover` leaves it alone, `graph.resume`
        continues it. With `unfinished="keep"` its status stays, for a journal that replaces the
        other.
        """
        from bae.journal.export import load

        return await load(self, source, existing=existing, unfinished=unfinished)

    async def redact(self, run_id: str, *places: str) -> Redaction:
        """Remove the values of fields from a run for good:
        `await journal.redact(run_id, "Person.email")`.

        They are gone from wherever the run stores them, and so are the prompts and answers of all
        its LM calls, and the messages of errors; runs that share its lines, by a fork, are redacted
        with it. What a body copied into another field is not followed: name
        that field too. A run that is resumed afterwards asks for the values:
        `graph.resume(…, given={"Person.email": …})`.
        """
        from bae.journal.redaction import redact

        return await redact(self, run_id, places)


def check_listed(status: str | None, known: Sequence[str] = get_args(Listed)) -> None:
    """Raise a ValueError for a status that runs cannot be listed by, or is none of the `known`."""
    if status is not None and status not in known:
        raise ValueError(f"status={status!r}: give one of {', '.join(known)}")


def is_listed(info: RunInfo, status: Listed | None) -> bool:
    """Whether a run is one of those to list."""
    if status == "interrupted":
        return info.is_interrupted()
    return status in (None, info.status)


def check_names(run_id: object, graph: str) -> None:
    """Raise `bae-run-name` for names that a run cannot have: people type them, and commands, files
    and lines of output are made of them."""
    why = None
    if not isinstance(run_id, str):
        why = "it is no text"
    elif run_id == "last":
        why = "`last` means the newest run"
    elif not (run_id.strip() and run_id.isprintable()):
        why = "it is no name that can be typed"
    named = f"a run cannot be called {run_id!r}"
    if why is None and not (graph.strip() and graph.isprintable()):
        named, why = f"the graph of a run cannot be called {graph!r}", "it cannot be typed"
    if why is not None:
        raise JournalError(
            f"{named}: {why}",
            code="bae-run-name",
            fix="choose another name, in plain characters; left out, a run gets a random id",
        )


def check_run(run: StoredRun) -> None:
    """Refuse a run of another journal, or of a file, that has a name which no run can have, or a
    shape which is not the one of its hash: runs of the same hash share the shape."""
    from bae.journal.shape import is_forged

    check_names(run.info.run_id, run.info.graph)
    if run.info.parent is not None:
        check_names(run.info.parent, run.info.graph)
    if is_forged(run.shape, run.info.shape):
        raise JournalError(
            f"the shape of the run {run.info.run_id} is not the one that its hash stands for",
            code="bae-journal-damaged",
            run_id=run.info.run_id,
            fix="export the run again: something has changed it since",
        )


def check_version(line: Line, run_id: str) -> None:
    """Raise `bae-journal-version` for a line that a newer bae has written."""
    if not 1 <= line.version <= FORMAT:
        raise JournalError(
            f"line {line.n} of run {run_id!r} has version {line.version}, and {READS}",
            code="bae-journal-version",
            run_id=run_id,
            fix="update bae (the package bae-graphs)",
        )
