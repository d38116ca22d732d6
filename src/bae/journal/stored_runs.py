"""What a store of runs keeps and gives back: lines, entries of the list, whole runs, and claims."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

RunStatus = Literal["queued", "running", "waiting", "ended", "failed", "cancelled"]
"""The status of a run. A "queued" run has not begun. A "running" run without a living owner was
interrupted."""

Listed = Literal["queued", "running", "waiting", "ended", "failed", "cancelled", "interrupted"]
"""What runs can be listed by: their status, or that they were interrupted."""

FORMAT: Final = 7
"""The version of the stored format, in SQLite files and exports: the one that is written, and the
newest that is read. All versions from 1 on are read.

Raise it when the fields of lines, of headers or of tables change: `tests/journal/test_formats.py`
fails until then. A field that is added to a line has a default, which is what older lines mean;
`UPGRADES` of `bae.journal.sqlite.schema` has what changes in the tables."""

READS: Final = f"this bae reads versions up to {FORMAT}"
"""Which versions of the stored format can be read, for errors."""

NO_FILES: Final[Mapping[str, bytes]] = MappingProxyType({})

Scalar = str | int | float | bool | None
"""What metadata can be searched for."""

LATEST: Final = 253_402_214_400.0
"""A time, in seconds since 1970, that is later than all that a calendar has."""

Time = Annotated[float, Field(ge=0, lt=LATEST)]

MESSAGE: Final = "tell:"
"""Begins the address of a message that a person tells a run; its number follows. It is stored with
the answers to gates: another process may own the run."""

CANCEL: Final = "cancel:"
"""Begins the address of a request to cancel a run; the number of times that the run was resumed
follows. It is stored in the same way: the owner of the run finds it."""

DEATH: Final = "died:"
"""Begins the address of a note that a process died while it worked on a run; the number of times
that the run was resumed follows. A worker stores it in the same way, and counts the notes."""

OPEN: Final = ("running", "waiting")
"""The statuses of a run that keeps its thread for itself."""


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


class RunSummary(NamedTuple):
    """How far a run had got when it last stopped: the number of its steps, the class of its last
    node, and what its LLM calls used. A `cost` of None is unknown."""

    steps: int = 0
    node: str = ""
    calls: int = 0
    tokens: int = 0
    cost: float | None = 0.0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of a journal, as `Journal.runs` lists it.

    - `owner` is the process that works on the run and `lease_until` the end of its lease. Both are
      None where no process does.
    - `waiting` are the gates that a parked run waits for, `error` is one line about why the run
      failed, `parent` the run it was forked from.
    - `thread` is the id of the conversation that the run belongs to, and `metadata` a JSON object
      of the caller's.
    - `summary` says how far the run had got when it last stopped; None before that.
    - `change` is a number that the journal gives this entry whenever the run is created, claimed,
      released, answered or replaced. Each number is greater than all before it in the journal, so
      `journal.runs(after=…)` finds what has changed. A line that a run stores while it is in
      progress moves `updated` and leaves `change` as it is.
    """

    run_id: str
    graph: str
    status: RunStatus
    started: Time
    updated: Time
    shape: str
    owner: str | None = None
    lease_until: float | None = None
    waiting: tuple[ParkedGate, ...] = ()
    error: str = ""
    parent: str | None = None
    thread: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    summary: RunSummary | None = None
    change: int = field(default=0, compare=False)

    def is_interrupted(self, now: float | None = None) -> bool:
        """Whether the run is in progress and its owner is gone, at the time `now`."""
        if self.status != "running":
            return False
        return self.lease_until is None or self.lease_until < (time() if now is None else now)

    def is_due(self, now: float | None = None) -> bool:
        """Whether the run may begin at the time `now`: a queued run may be delayed."""
        return self.status != "queued" or self.started <= (time() if now is None else now)

    def standing(self, now: float | None = None) -> Listed:
        """The status, or "interrupted", at the time `now`."""
        return "interrupted" if self.is_interrupted(now) else self.status

    def can_continue(self, now: float | None = None) -> bool:
        """Whether the run is parked and one of its gates is answered, or out of time at `now`."""
        at = time() if now is None else now
        late = (gate.deadline is not None and gate.deadline <= at for gate in self.waiting)
        return any(gate.answered for gate in self.waiting) or any(late)

    def lasted(self, now: float | None = None) -> float:
        """Seconds from the start of the run, interruptions included: until `now` while it is
        queued, in progress or waits, until it was last written otherwise."""
        at = time() if now is None else now
        end = at if self.standing(at) in ("queued", "running", "waiting") else self.updated
        return max(0.0, end - self.started)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it is read back: its entry in the list, the shape of its node classes as JSON, all
    its lines, including those shared with the run it was forked from, and the answers to its gates
    as JSON, by address. `files` are the bytes of the images and documents that its lines refer to,
    by hash, as `sha256:…`. `answered_by` has who answered, by address, where that is known."""

    info: RunInfo
    shape: str
    lines: tuple[Line, ...]
    answers: dict[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    answered_by: Mapping[str, str] = field(default_factory=dict[str, str])


class RunLines(NamedTuple):
    """Some lines of a run, with its entry in the list and the number of all its lines, as they were
    at one instant."""

    info: RunInfo
    lines: tuple[Line, ...]
    total: int


@dataclass(slots=True, eq=False, repr=False)
class Claim:
    """The right to write a run, held by one owner at a time. A store may subclass it, and refuses
    lines under a claim that was lost. `token` is its fencing token: a later claim on the run has a
    greater one. The run sets it; a store need not know it."""

    run_id: str
    owner: str
    token: int = field(default=0, init=False)

    def is_in_doubt(self) -> bool:
        """Whether the run may have been taken over: this process was suspended for longer than its
        lease, say. Then a run appends no lines, which is refused where it was, before it does
        anything more. Ask a clock that counts the time in which the process is suspended."""
        return False


def messages_in(answers: Mapping[str, str]) -> list[tuple[int, str]]:
    """What people have told a run, with the numbers of the messages, in order."""
    found: list[tuple[int, str]] = []
    for address, text in answers.items():
        number = address.removeprefix(MESSAGE)
        if number != address and number.isdecimal():
            found.append((int(number), str(json.loads(text))))
    return sorted(found)


def files_in(lines: Iterable[Line], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Those of some files that lines refer to."""
    if not files:
        return {}
    texts = [line.data for line in lines]
    return {hash: data for hash, data in files.items() if any(hash in text for text in texts)}


def fork_info(parent: RunInfo, new_id: str, lines: Sequence[Line], thread: str | None) -> RunInfo:
    """The entry of a new fork with these lines of its own."""
    first, last = (lines[0].at, lines[-1].at) if lines else (time(), time())
    return RunInfo(
        new_id,
        parent.graph,
        "running",
        first,
        last,
        parent.shape,
        parent=parent.run_id,
        thread=thread,
        metadata=parent.metadata,
    )
