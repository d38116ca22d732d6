"""The data of a store of runs: lines, entries of the list, complete runs, and claims."""

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
"""The filters for a list of runs: a status, or "interrupted"."""

FORMAT: Final = 7
"""The version of the stored format, in SQLite files and exports: the version that is written, and
the newest version that is read. All versions from 1 on are read.

Raise it when the fields of lines, of headers or of tables change: `tests/journal/test_formats.py`
fails until then. A new field of a line has a default, which is its meaning in older lines.
`UPGRADES` of `bae.journal.sqlite.schema` has the changes in the tables."""

READS: Final = f"this bae reads versions up to {FORMAT}"
"""The versions of the stored format that can be read, for errors."""

NO_FILES: Final[Mapping[str, bytes]] = MappingProxyType({})

Scalar = str | int | float | bool | None
"""The metadata values that can be searched for."""

LATEST: Final = 253_402_214_400.0
"""A time, in seconds since 1970, after all times of any calendar."""

Time = Annotated[float, Field(ge=0, lt=LATEST)]

MESSAGE: Final = "tell:"
"""The beginning of the address of a person's message to a run; its number follows. It is stored
with the answers to gates, since another process may own the run."""

CANCEL: Final = "cancel:"
"""The beginning of the address of a request to cancel a run. The number of times that the run was
resumed follows. It is stored in the same way: the owner of the run finds it."""

DEATH: Final = "died:"
"""The beginning of the address of a note that a process died while it worked on a run. The number
of times that the run was resumed follows. A worker stores it in the same way, and counts the
notes."""

OPEN: Final = ("running", "waiting")
"""The statuses of a run that occupies its thread."""


class Line(NamedTuple):
    """One record in stored form. `n` counts the lines of a run from 0. `kind` is the name of the
    record's class, and `data` a JSON object with the fields of that class. `version` is the version
    of this format (docs/journal-format.md)."""

    n: int
    kind: str
    at: float
    path: str
    step: int
    data: str
    version: int = FORMAT


@dataclass(frozen=True, slots=True)
class ParkedGate:
    """A question that a run waits for. `address` names the gate, as `2:Refund.approved`, and
    `place` its field, as `Refund.approved`. `deadline` is the time after which the field's default
    is used. If it is `answered`, the answer is stored, and the run uses it when it is resumed."""

    address: str
    place: str
    question: str
    deadline: Time | None = None
    answered: bool = False


class RunSummary(NamedTuple):
    """The state of a run when it last stopped: the number of its steps, the class of its last node,
    and the usage of its LLM calls. A `cost` of None is unknown."""

    steps: int = 0
    node: str = ""
    calls: int = 0
    tokens: int = 0
    cost: float | None = 0.0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of a journal, as `Journal.runs` lists it.

    - `owner` is the process that works on the run, and `lease_until` the end of its lease. Both are
      None if no process does.
    - `waiting` has the gates that a parked run waits for. `error` is one line about why the run
      failed, and `parent` the run it was forked from.
    - `thread` is the id of the conversation that the run belongs to, and `metadata` a JSON object
      of the caller.
    - `summary` is the state of the run when it last stopped; None before that.
    - `change` is a number that the journal assigns when the run is created, claimed, released,
      answered or replaced. It is greater than all earlier numbers of the journal, so
      `journal.runs(after=…)` finds the changed runs. A line of a run in progress changes `updated`,
      but not `change`.
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
        """Whether the run is in progress and its owner has died, at the time `now`."""
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
        """Seconds from the start of the run, including interruptions: until `now` while it is
        queued, in progress or waiting, otherwise until it was last written."""
        at = time() if now is None else now
        end = at if self.standing(at) in ("queued", "running", "waiting") else self.updated
        return max(0.0, end - self.started)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as a journal reads it: its entry in the list, the shape of its node classes as JSON,
    all its lines, including lines shared with the run it was forked from, and the answers to its
    gates as JSON, by address. `files` are the bytes of the images and documents that its lines
    refer to, by hash, as `sha256:…`. `answered_by` is the person of each answer, by address, if
    known."""

    info: RunInfo
    shape: str
    lines: tuple[Line, ...]
    answers: dict[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    answered_by: Mapping[str, str] = field(default_factory=dict[str, str])


class RunLines(NamedTuple):
    """Some lines of a run, with its entry in the list and the number of all its lines, at one
    instant."""

    info: RunInfo
    lines: tuple[Line, ...]
    total: int


@dataclass(slots=True, eq=False, repr=False)
class Claim:
    """The right to write a run, held by one owner at a time. A store may subclass it, and refuses
    lines under a claim that was lost. `token` is its fencing token: a later claim on the run has a
    greater token. The run sets it; a store need not know it."""

    run_id: str
    owner: str
    token: int = field(default=0, init=False)

    def is_in_doubt(self) -> bool:
        """Whether another process may have taken over the run, for example because this process was
        suspended for longer than its lease. The run then appends no lines, so that the store
        refuses it before it does anything more. Use a clock that also counts while the process is
        suspended."""
        return False


def messages_in(answers: Mapping[str, str]) -> list[tuple[int, str]]:
    """The messages of people to a run, with their numbers, in order."""
    messages: list[tuple[int, str]] = []
    for address, text in answers.items():
        number = address.removeprefix(MESSAGE)
        if number != address and number.isdecimal():
            messages.append((int(number), str(json.loads(text))))
    return sorted(messages)


def files_in(lines: Iterable[Line], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files among these that lines refer to."""
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
