"""The journal of a run that lives as long as its result: an append-only list of records."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bae.journal.records import Record, StepStarted
from bae.lm.usage import Usage

if typing.TYPE_CHECKING:
    from bae.node import Node

R = TypeVar("R", bound=Record)


class MemoryJournal(Sequence[Record]):
    """What happened in one run, in order. Iterate it, index it, or pick records by type."""

    __slots__ = ("_records", "append")

    def __init__(self) -> None:
        self._records: list[Record] = []
        # The list's own method: a record costs no more than the list takes.
        self.append: Callable[[Record], None] = self._records.append

    @typing.overload
    def __getitem__(self, index: int) -> Record: ...
    @typing.overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def of(self, kind: type[R]) -> list[R]:
        """The records of one type, in order."""
        return [record for record in self._records if isinstance(record, kind)]

    def usage(self) -> Usage:
        """What all LM calls of the run used, those of graphs and maps inside it too."""
        parts = (getattr(record, "usage", None) for record in self._records)
        return Usage.total(part for part in parts if isinstance(part, Usage))

    def nested(self) -> dict[str, list[Node]]:
        """The nodes of every graph that ran inside this run, by its place."""
        found: dict[str, list[Node]] = {}
        for record in self._records:
            if record.path and isinstance(record, StepStarted):
                found.setdefault(record.path, []).append(record.node)
        return found

    def __repr__(self) -> str:
        return f"<MemoryJournal of {len(self)} records>"
