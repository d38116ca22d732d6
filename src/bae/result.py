"""The result of a run, with its records and its usage."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from bae.exceptions import BaeError, GateError, JournalError
from bae.records import AnswerJudged, Record, RunResumed, StepStarted, kinds_with
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.records import Asker
    from bae.writer import Log

T = TypeVar("T", bound="Node", covariant=True)
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Recovered(Generic[T]):
    """The outcome of `Graph.recover` for one run: a `result` or an `error`."""

    run_id: str
    result: GraphResult[T] | None = None
    """The result of the run. None if the run failed."""
    error: BaeError | None = None
    """The error with which the run failed. None if it did not fail."""


class GraphResult(Generic[T]):
    """The outcome of a run. `.result` is the node at which the run ended.

    - `.trace`: all nodes of the run, in order. The last is the terminal node.
    - `.node`: None after a normal end. If the run waits for a person, the node at which it stopped.
    - `.waiting`: the gates without an answer, if the run waits for a person.
    - `.nested`: the nodes of graphs that ran inside this run, by place.
    - `.usage`: the calls, tokens and cost of LM calls.
    - `.journal`: the records of the run.
    - `.run_id`: the id of the run.

    Two results are equal if `.node` and `.trace` are equal.
    """

    __slots__ = ("journal", "node", "run_id", "trace", "unfinished", "waiting")
    __match_args__ = ("node", "trace")
    __hash__ = None  # type: ignore[assignment]  # a result and its nodes can be changed

    def __init__(
        self,
        node: Node | None,
        trace: list[Node],
        journal: RunJournal | None = None,
        run_id: str = "",
        waiting: tuple[OpenGate, ...] = (),
    ) -> None:
        self.trace = trace
        self.journal = RunJournal(trace=trace) if journal is None else journal
        self.run_id = run_id
        self.node = node
        self.waiting = waiting
        self.unfinished = ""
        """The reason why a stored run has no result yet, unless it waits for a person. Empty for
        any other run."""

    @property
    def result(self) -> T:
        """The terminal node. None if the trace is empty. Reading this raises a `GateError` if the
        run waits for a person, and a `JournalError` if a stored run is `unfinished`."""
        if self.waiting:
            questions = "; ".join(f"{gate.place}: {gate.question}" for gate in self.waiting)
            error = GateError(
                f"the run has no result yet, it waits for an answer to {questions}",
                gates=self.waiting,
                fix="run it with answer=…, or look at .waiting before .result",
            )
            error.trace, error.journal, error.run_id = self.trace, self.journal, self.run_id
            raise error
        if self.unfinished:
            failure = JournalError(
                f"the run has no result yet: {self.unfinished}",
                run_id=self.run_id,
                code="bae-run-unfinished",
                fix=f"resume it: await graph.resume({self.run_id!r}, …)",
            )
            failure.trace, failure.journal = self.trace, self.journal
            raise failure
        return self.trace[-1] if self.trace else None  # type: ignore[return-value]  # by the proof

    @property
    def usage(self) -> Usage:
        """The calls, tokens and cost of the run, including graphs and maps inside it."""
        return self.journal.usage()

    @property
    def nested(self) -> dict[str, list[Node]]:
        """The nodes of each graph that ran for a `Dep` or `Map`, by the place of the graph."""
        return self.journal.nested()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphResult):
            return NotImplemented
        return self.node == other.node and self.trace == other.trace

    def __repr__(self) -> str:
        path = " -> ".join(type(node).__name__ for node in self.trace)
        gates = ", ".join(gate.place for gate in self.waiting)
        state = f" waiting for {gates}" if gates else ""
        state += f" unfinished: {self.unfinished}" if self.unfinished else ""
        return f"<GraphResult {path}{state}>"


class RunJournal(Sequence[Record]):
    """The records of a run, in order: a sequence that can also select records by type."""

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
        return self._complete_log()[index]

    def __len__(self) -> int:
        return len(self._log)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._complete_log())

    def _complete_log(self) -> Log:
        """Replace each bare time in the log by the `StepStarted` of its step, and return the log.
        `Writer.step_starter` explains these times."""
        log = cast("list[Record | float]", self._log)
        for index in range(self._read, len(log)):
            entry = log[index]
            if isinstance(entry, float):
                log[index] = StepStarted(entry, "", self._steps, self._trace[self._steps])
                self._steps += 1
            elif isinstance(entry, StepStarted) and not entry.path:
                self._steps += 1
        self._read = len(log)
        return self._log

    def of(self, kind: type[R]) -> list[R]:
        """Return the records of a type, in order."""
        return [record for record in self._complete_log() if isinstance(record, kind)]

    def usage(self) -> Usage:
        """Return the usage of all LM calls of the run. It includes the calls of graphs and maps
        inside the run, and calls whose question was interrupted by a crash."""
        count = UsageCount()
        for record in self._complete_log():
            count.take(record)
        return count.total()

    def nested(self) -> dict[str, list[Node]]:
        """Return the nodes of each graph that ran inside this run, by the place of the graph."""
        nodes: dict[str, list[Node]] = {}
        for record in self._complete_log():
            if record.path and isinstance(record, StepStarted):
                nodes.setdefault(record.path, []).append(record.node)
        return nodes

    def __repr__(self) -> str:
        return f"<RunJournal of {len(self)} records>"


COUNTED: Final = frozenset({AnswerJudged, RunResumed, *kinds_with("usage")})
"""The kinds of records that `UsageCount` reads."""


class UsageCount:
    """Adds up the usage of a run's LM calls from the records of the run. Each answer counts once.

    When a question is answered, a final record has the usage of all answers to the question. If the
    question was interrupted, there is no final record, and the records of the single answers count.
    """

    __slots__ = ("_judged", "_used")

    def __init__(self) -> None:
        self._used: list[Usage] = []
        self._judged: dict[tuple[str, int], dict[Asker, list[Usage]]] = {}
        """The usage of single answers to questions without a final record, by path and step, then
        by asker."""

    def take(self, record: Record) -> None:
        """Add the usage of the next record."""
        if type(record) not in COUNTED:
            return
        read_usage = record.partial_usage
        if read_usage is not None:
            by, used = read_usage(record)
            by_asker = self._judged.setdefault((record.path, record.step), {})
            by_asker.setdefault(by, []).append(used)
            return
        if isinstance(record, RunResumed):  # open questions were interrupted
            self._used = [self.total()]
            self._judged.clear()
        usage: Usage | None = getattr(record, "usage", None)
        if usage is not None:
            self._used.append(usage)
            asker, step = getattr(record, "asker", None), (record.path, record.step)
            if asker is None:
                self._judged.pop(step, None)
            else:
                self._judged.get(step, {}).pop(asker, None)

    def total(self) -> Usage:
        """Return the usage so far."""
        if len(self._used) > 1:
            self._used = [Usage.total(self._used)]
        parts = [*self._used]
        for by_asker in self._judged.values():
            for usages in by_asker.values():
                parts += usages
        return Usage.total(parts)
