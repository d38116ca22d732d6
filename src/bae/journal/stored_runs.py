"""The data that a store of runs reads and writes: lines, list entries, complete runs, and
claims."""

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
"""A filter for a list of runs: a status, or "interrupted"."""

FORMAT: Final = 7
"""The version of the stored format, in SQLite files and exports. bae writes this version, and reads
all versions from 1 to this version.

Raise the version when the fields of lines, of headers or of tables change:
`tests/journal/test_formats.py` fails until then. A new field of a line has a default, which
older lines get. `UPGRADES` of `bae.journal.sqlite.schema` has the changes in the tables."""

READS: Final = f"this bae reads versions up to {FORMAT}"
"""The part of an error message about the versions that can be read."""

NO_FILES: Final[Mapping[str, bytes]] = MappingProxyType({})

Scalar = str | int | float | bool | None
"""A metadata value that can be searched for."""

LATEST: Final = 253_402_214_400.0
"""The end of all stored times, in seconds since 1970: the last day of the year 9999."""

Time = Annotated[float, Field(ge=0, lt=LATEST)]
"""A time in seconds since 1970."""

MESSAGE: Final = "tell:"
"""The prefix of the address of a person's message to a run. The number of the message follows.
Messages are stored with the answers to gates, since another process may own the run."""

CANCEL: Final = "cancel:"
"""The prefix of the address of a request to cancel a run. The number of times that the run was
resumed follows. The request is stored with the answers to gates, where the run's owner finds it."""

DEATH: Final = "died:"
"""The prefix of the address of a note that a process died while it worked on a run. The number of
times that the run was resumed follows. Workers store the notes with the answers to gates, and count
them."""

OPEN: Final = ("running", "waiting")
"""The statuses of a run that occupies its thread."""


class Line(NamedTuple):
    """One record in stored form."""

    n: int
    """The number of the line in its run, from 0."""
    kind: str
    """The name of the record's class."""
    at: float
    """The time of the record, in seconds since 1970."""
    path: str
    """The place of the inner graph that the record is about; empty for the graph of the run."""
    step: int
    """The number of the step in that graph."""
    data: str
    """The other fields of the record, as a JSON object."""
    version: int = FORMAT
    """The version of the stored format (docs/journal-format.md)."""


@dataclass(frozen=True, slots=True)
class ParkedGate:
    """A gate that a parked run waits for."""

    address: str
    """The gate with its step, as `2:Refund.approved`. An answer is stored under this address."""
    place: str
    """The field of the gate, as `Refund.approved`."""
    question: str
    """The question for a person."""
    deadline: Time | None = None
    """The time after which the field gets its default. None if the gate has no deadline."""
    answered: bool = False
    """Whether the answer is stored. The run uses the answer when it is resumed."""


class RunSummary(NamedTuple):
    """The state of a run when it last stopped."""

    steps: int = 0
    """The number of steps."""
    node: str = ""
    """The class of the last node."""
    calls: int = 0
    """The number of LLM calls."""
    tokens: int = 0
    """The tokens of all LLM calls."""
    cost: float | None = 0.0
    """The cost of all LLM calls in dollars. None if it is unknown."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of a journal, as `Journal.runs` lists it."""

    run_id: str
    graph: str
    """The name of the graph."""
    status: RunStatus
    started: Time
    """When the run started. For a queued run, when it may start."""
    updated: Time
    """When the run was last written."""
    shape: str
    """A hash of the node classes."""
    owner: str | None = None
    """The process that works on the run, or worked on it when the run was interrupted. None if no
    process owns the run."""
    lease_until: float | None = None
    """The end of the owner's lease. None if there is no owner, or the owner is known to have
    died."""
    waiting: tuple[ParkedGate, ...] = ()
    """The gates that a parked run waits for."""
    error: str = ""
    """The reason why the run failed, in one line."""
    parent: str | None = None
    """The run that this run was forked from."""
    thread: str | None = None
    """The id of the conversation that the run belongs to."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """The caller's metadata, a JSON object."""
    summary: RunSummary | None = None
    """The state of the run when it last stopped. None before the run stops for the first time."""
    change: int = field(default=0, compare=False)
    """A number that the journal assigns when the run is created, claimed, released, answered or
    replaced. It is greater than all earlier numbers of the journal, so `journal.runs(after=…)`
    finds the changed runs. A line of a run in progress changes `updated`, but not `change`."""

    def is_interrupted(self, now: float | None = None) -> bool:
        """Whether the run is in progress, but no living process owns it at the time `now`."""
        if self.status != "running":
            return False
        return self.lease_until is None or self.lease_until < (time() if now is None else now)

    def is_due(self, now: float | None = None) -> bool:
        """Whether the run may begin at the time `now`. A queued run may have a delay."""
        return self.status != "queued" or self.started <= (time() if now is None else now)

    def standing(self, now: float | None = None) -> Listed:
        """Return the status at the time `now`, or "interrupted" if the run was interrupted."""
        return "interrupted" if self.is_interrupted(now) else self.status

    def can_continue(self, now: float | None = None) -> bool:
        """Whether one gate of a parked run is answered, or past its deadline at the time `now`."""
        at = time() if now is None else now
        late = (gate.deadline is not None and gate.deadline <= at for gate in self.waiting)
        return any(gate.answered for gate in self.waiting) or any(late)

    def lasted(self, now: float | None = None) -> float:
        """Return the seconds from the start of the run to its end, including interruptions. While
        the run is queued, in progress or waiting, `now` is the end. Otherwise the end is when the
        run was last written."""
        at = time() if now is None else now
        end = at if self.standing(at) in ("queued", "running", "waiting") else self.updated
        return max(0.0, end - self.started)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A complete run, as a journal reads it."""

    info: RunInfo
    """The entry of the run in the list."""
    shape: str
    """The shape of the node classes, as JSON."""
    lines: tuple[Line, ...]
    """All lines, including lines shared with the run that this run was forked from."""
    answers: dict[str, str]
    """The answers to the gates of the run, as JSON, by address."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    """The bytes of the images and documents that the lines refer to, by hash, as `sha256:…`."""
    answered_by: Mapping[str, str] = field(default_factory=dict[str, str])
    """The person who gave each answer, by address, as far as the journal has a name."""


class RunLines(NamedTuple):
    """Some lines of a run, all read at one instant."""

    info: RunInfo
    """The entry of the run in the list."""
    lines: tuple[Line, ...]
    total: int
    """The number of all lines of the run."""


@dataclass(slots=True, eq=False, repr=False)
class Claim:
    """The right to write a run, which one owner has at a time. A store may subclass `Claim`, and
    must refuse lines under a lost claim."""

    run_id: str
    owner: str
    token: int = field(default=0, init=False)
    """The fencing token: a later claim on the run has a greater token. bae sets the token, and the
    store can ignore it."""

    def is_in_doubt(self) -> bool:
        """Whether another process may have taken over the run, for example because this process was
        suspended for longer than its lease. If so, the run calls `append` with an empty list before
        it continues, so that the store can refuse. Use a clock that also counts while the process
        is suspended."""
        return False


def messages_in(answers: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return the messages of people to a run with their numbers, in order."""
    messages: list[tuple[int, str]] = []
    for address, text in answers.items():
        number = address.removeprefix(MESSAGE)
        if number != address and number.isdecimal():
            messages.append((int(number), str(json.loads(text))))
    return sorted(messages)


def files_in(lines: Iterable[Line], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return those of `files` that lines refer to."""
    if not files:
        return {}
    texts = [line.data for line in lines]
    return {hash: data for hash, data in files.items() if any(hash in text for text in texts)}


def fork_info(parent: RunInfo, new_id: str, lines: Sequence[Line], thread: str | None) -> RunInfo:
    """Return the entry of a new fork. `lines` are its own lines, after the shared lines."""
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
