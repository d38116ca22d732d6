"""The journal of a run that lives as long as its result: an append-only list of records."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from typing import TypeVar

from bae.records import Record, StepStarted

if typing.TYPE_CHECKING:
    from bae.node import Node
    from bae.usage import Usage

R = TypeVar("R", bound=Record)


Log = list[Record | float]
"""The raw list a run appends to. A number stands for a step of the run itself: the time at which
the next node of the trace began. Most records are steps, and a number is all they need."""


class RunJournal(Sequence[Record]):
    """What happened in one run, in order. Iterate it, index it, or pick records by type."""

    __slots__ = ("_log", "_read", "_steps", "_trace")

    def __init__(self, log: Log | None = None, trace: list[Node] | None = None) -> None:
        self._log: Log = [] if log is None else log
        self._trace: list[Node] = [] if trace is None else trace
        self._read = 0
        self._steps = 0

    @typing.overload
    def __getitem__(self, index: int) -> Record: ...
    @typing.overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._records()[index]

    def __len__(self) -> int:
        return len(self._log)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records())

    def _records(self) -> list[Record]:
        """The log with the records of steps put in for their times, as far as it goes now."""
        log = self._log
        for index in range(self._read, len(log)):
            entry = log[index]
            if isinstance(entry, float):
                log[index] = StepStarted(entry, "", self._steps, self._trace[self._steps])
                self._steps += 1
            elif isinstance(entry, StepStarted) and not entry.path:
                self._steps += 1
        self._read = len(log)
        return typing.cast(list[Record], log)

    def of(self, kind: type[R]) -> list[R]:
        """The records of one type, in order."""
        return [record for record in self._records() if isinstance(record, kind)]

    def usage(self) -> Usage:
        """What all LM calls of the run used, those of graphs and maps inside it too, and those that
        a crash cut off after they were paid for."""
        from bae.journal.running.paid import Paid

        paid = Paid()
        for record in self._records():
            paid.take(record)
        return paid.total()

    def nested(self) -> dict[str, list[Node]]:
        """The nodes of every graph that ran inside this run, by its place."""
        found: dict[str, list[Node]] = {}
        for record in self._records():
            if record.path and isinstance(record, StepStarted):
                found.setdefault(record.path, []).append(record.node)
        return found

    def __repr__(self) -> str:
        return f"<RunJournal of {len(self)} records>"
