"""What a run returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from bae.exceptions import BaeError, GateError, JournalError

if TYPE_CHECKING:
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.recorder import RunJournal
    from bae.usage import Usage

T = TypeVar("T", bound="Node", covariant=True)


@dataclass(frozen=True, slots=True)
class Recovered(Generic[T]):
    """What `Graph.recover` did with one run: its `result`, or the `error` it failed with."""

    run_id: str
    result: GraphResult[T] | None = None
    error: BaeError | None = None


class GraphResult(Generic[T]):
    """How a run came out. Read `.result` for the node it ended at.

    - `.trace`: every node in order, the terminal one last.
    - `.node`: None after a normal end; the node a run stopped at when it waits for a person.
    - `.waiting`: the gates such a run waits for.
    - `.nested`: the nodes of graphs that ran inside this one, by place.
    - `.usage`: what the LM calls used; `.journal`: everything that happened; `.run_id`.

    Two results are equal if `.node` and `.trace` are.
    """

    __slots__ = ("journal", "node", "run_id", "trace", "unfinished", "waiting")
    __match_args__ = ("node", "trace")
    __hash__ = None  # type: ignore[assignment]  # it can be changed, as can its nodes

    def __init__(
        self,
        node: Node | None,
        trace: list[Node],
        journal: RunJournal | None = None,
        run_id: str = "",
        waiting: tuple[OpenGate, ...] = (),
    ) -> None:
        self.trace = trace
        if journal is None:
            from bae.recorder import RunJournal

            journal = RunJournal(trace=trace)
        self.journal = journal
        self.run_id = run_id
        self.node = node
        self.waiting = waiting
        self.unfinished = ""
        """Why a run that is only looked at has no result, where it waits for no answer."""

    @property
    def result(self) -> T:
        """The terminal node, or None where the trace is empty. Raises `GateError` when the run
        waits for a person instead."""
        if self.waiting:
            asked = "; ".join(f"{gate.place}: {gate.question}" for gate in self.waiting)
            error = GateError(
                f"the run has no result yet, it waits for an answer to {asked}",
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
        """Calls, tokens and cost of the run, graphs and maps inside it included."""
        return self.journal.usage()

    @property
    def nested(self) -> dict[str, list[Node]]:
        """The nodes of every graph that ran as a `Dep` or `Map`, by its place in the run."""
        return self.journal.nested()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphResult):
            return NotImplemented
        return self.node == other.node and self.trace == other.trace

    def __repr__(self) -> str:
        way = " -> ".join(type(node).__name__ for node in self.trace)
        gates = ", ".join(gate.place for gate in self.waiting)
        state = f" waiting for {gates}" if gates else ""
        state += f" unfinished: {self.unfinished}" if self.unfinished else ""
        return f"<GraphResult {way}{state}>"
