"""`Recorder`: what a run writes its records through and looks back with; and `RunJournal`, the
records of a run as they are read."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from time import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bae import rooms
from bae.draft import complete
from bae.records import NOTHING, AnswerJudged, Record, RunEnded, RunResumed, RunStarted, StepStarted
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.arguments import Arguments
    from bae.graph import Graph
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.place import Place
    from bae.plan import FieldPlan, NodePlan
    from bae.records import Asker, LMAnswered, SourceEnded
    from bae.result import GraphResult
    from bae.rooms import Journal
    from bae.run import Run

R = TypeVar("R", bound=Record)
T = TypeVar("T", bound="Node")

Log = list[Record]
"""The list in memory that a run appends its records to."""
StartStep = Callable[[float], Awaitable[None] | None]
"""Called with the time when a node is complete and in the trace. What it returns is awaited."""


class Recorder:
    """Keeps the records of a run in memory, and knows of no past: the recorder of a run without a
    journal. A journal's recorder stores them too, and finds what was recorded before.

    The run, and the graphs inside it, share one recorder.
    """

    __slots__ = ("log",)

    looks_back = False
    """Whether something was recorded before this run started here, so that it must be looked up."""
    replays = False
    """Whether all that an LM answers is recorded, so that none is asked."""
    stores = False
    """Whether what a body returns is to be stored before the run continues."""
    stores_calls = False
    """Whether only values that count for the whole run are stored: those of a class outside."""
    is_in_doubt = False
    """Whether another process may have taken over the run: `confirm` before an effect begins."""
    graph_paths: Mapping[Hashable, str] = MappingProxyType({})
    """Where each graph began that runs once in the whole run, by key: for another field, maybe,
    than the one that asks for it first now."""
    opened: Mapping[str, float] = MappingProxyType({})
    """When each gate was reached first, by its address."""

    def __init__(self, log: Log | None = None) -> None:
        self.log: Log = [] if log is None else log

    # Writing

    async def begin(self, run: Run, graph: Graph[Any, Any], start: Node) -> Node:
        """Record that a run, or a graph inside it, begins at `start`; returns its first node: as it
        was recorded, or as it is given."""
        self.log.append(
            RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters)
        )
        return start

    def step_starter(self, run: Run, plans: Mapping[type[Node], NodePlan]) -> StartStep:
        """What records each step of a run: it is called when the node is in the trace."""
        log, trace, path = self.log, run.trace, run.path
        if type(log) is list and not path:
            # A step of a trivial body takes 2.0 µs, and making its record 0.38 µs of that. So
            # the list gets the time alone, and `RunJournal` makes the record when it is read.
            return cast("list[Any]", log).append

        def start_step(now: float) -> None:
            log.append(StepStarted(now, path, run.step, trace[-1]))

        return start_step

    def write(self, record: Record) -> None:
        """Record something; a journal stores it with the next record that is waited for."""
        self.log.append(record)

    async def store(self, *records: Record) -> None:
        """Record what has been done, and wait until a journal has stored it."""
        self.log.extend(records)

    async def store_value(self, ended: SourceEnded, asked: Arguments | None) -> None:
        """Record the value of a source, and wait until it is stored. `asked` are the arguments of
        the function that come from the run."""
        await self.store(ended)

    def write_value(self, ended: SourceEnded) -> None:
        """Record a value that the caller gave in place of a function's."""
        self.write(ended)

    def outside(self, path: str, step: int, asker: Asker) -> Recorder:
        """The recorder of what is resolved for a class outside the graph, which the asker has an LM
        make."""
        return Recorder(self.log)

    async def confirm(self) -> None:
        """Raise an error if another process has taken over the run."""

    def store_returned(self, run: Run, node: Node, plan: NodePlan) -> Awaitable[None] | None:
        """Record the node that a body has returned, where the next step does not do that. Called
        only where `stores` is true; what it returns is awaited."""
        return None

    async def finish(self, run: Run, ended: RunEnded) -> None:
        """Record how a run, or a graph inside it, ended."""
        self.log.append(ended)

    async def continue_if_answered(
        self, graph: Graph[Any, T], run: Run, result: GraphResult[T]
    ) -> GraphResult[T]:
        """Resume a run that stopped at gates if one of them was answered meanwhile."""
        return result

    async def settle_answer(self, run: Run, gate: OpenGate, value: Any) -> Any:
        """Record the answer to a gate; returns the answer that counts, the first one."""
        return value

    def unstorable(self, node: Node) -> Mapping[str, str]:
        """The fields that an LM has filled whose values cannot be stored, and why. Called only
        where `stores` is true."""
        return {}

    # Looking back

    def recorded_next(self, run: Run) -> Any:
        """The node at the step that a run is at, None where it ended, or `NOTHING`. Called only
        where `looks_back` is true."""
        return NOTHING

    def recorded_choice(self, run: Run, plan: NodePlan) -> type[Node] | type[None] | None:
        """The class that the LM chose after a node; None if it is not recorded."""
        return None

    def recorded_fill(
        self, run: Run, plan: NodePlan, source: Node, resolved: Mapping[str, Any] | None = None
    ) -> Node | None:
        """The node that the LM filled; None if it is not recorded. It is asked for before the
        context is resolved, and then with it: a replay compares what would be sent."""
        return None

    def recorded_value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """The value of a source that is about to start, or `NOTHING`; `early`, before its inputs
        are started, which are not needed where it is known. `asked` are its arguments that come
        from the run: with others, its value is another."""
        return NOTHING

    def recorded_items(self, place: Place, node_type: type[Node]) -> dict[int, Any]:
        """The values of the items of a map that are done, by number."""
        return {}

    def recorded_answer(self, gate: OpenGate) -> Any:
        """The answer that a person has given to a gate in the meantime, or `NOTHING`."""
        return NOTHING

    def recorded_lm_answer(
        self, asked: LMAnswered, text: str, types: Sequence[type[Node] | type[None]]
    ) -> LMAnswered | None:
        """What an LM has answered to the same question from the same place, each answer once; None
        if it has not. `asked` is the record of the answer, without a value, and `types` are the
        classes that it may be of."""
        return None

    def fields_left_out(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """The fields without a value that a recorded node did without."""
        return ()

    def complete_node(self, run: Run, node: Node, values: Mapping[str, Any]) -> Node:
        """A copy of a node with the values of its sources, validated as a whole."""
        whole = copy(node)
        complete(whole, values)
        return whole


def checked_store(journal: object) -> Journal:
    """The journal that was given, if it is one."""
    if isinstance(journal, rooms.Journal):
        return journal
    hint = ""
    if isinstance(journal, str) or hasattr(journal, "__fspath__"):
        hint = f": journal=SQLiteJournal({str(cast(Any, journal))!r})"
    raise TypeError(f"journal={journal!r} is no Journal; give one of bae.journal{hint}")


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

    def _records(self) -> Log:
        """The log, with a record for each time that `Recorder.step_starter` has left in it."""
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
        """The records of one type, in order."""
        return [record for record in self._records() if isinstance(record, kind)]

    def usage(self) -> Usage:
        """What all LM calls of the run used, including those of graphs and maps inside it, and
        those that a crash cut off after they were paid for."""
        count = UsageCount()
        for record in self._records():
            count.take(record)
        return count.total()

    def nested(self) -> dict[str, list[Node]]:
        """The nodes of every graph that ran inside this run, by its place."""
        found: dict[str, list[Node]] = {}
        for record in self._records():
            if record.path and isinstance(record, StepStarted):
                found.setdefault(record.path, []).append(record.node)
        return found

    def __repr__(self) -> str:
        return f"<RunJournal of {len(self)} records>"


_COUNTED: typing.Final = {
    *(AnswerJudged, RunResumed),
    *(kind for kind in Record.__subclasses__() if hasattr(kind, "usage")),
}
"""The kinds of records that say something about usage."""


class UsageCount:
    """Adds up what the records of a run say its LM calls used, each answer once.

    The record of a question's last answer has what all of its answers used. A question that was cut
    off has only the answers before that, and they were paid for too.
    """

    __slots__ = ("_judged", "_sum")

    def __init__(self) -> None:
        self._sum = Usage()
        self._judged: dict[tuple[str, int], dict[Asker, Usage]] = {}
        """Answers to questions that have not had their last one, by path and step, and by asker."""

    def take(self, record: Record) -> None:
        """Count a record; give them in order."""
        if type(record) not in _COUNTED:
            return
        if isinstance(record, AnswerJudged):
            asked = self._judged.setdefault((record.path, record.step), {})
            asked[record.asker] = asked.get(record.asker, Usage()) + record.attempt.usage
            return
        if isinstance(record, RunResumed):  # questions that were open then have been cut off
            self._sum = self.total()
            self._judged.clear()
        usage: Usage | None = getattr(record, "usage", None)
        if usage is not None:
            self._sum += usage
            asker, spot = getattr(record, "asker", None), (record.path, record.step)
            if asker is None:
                self._judged.pop(spot, None)
            else:
                self._judged.get(spot, {}).pop(asker, None)

    def total(self) -> Usage:
        """What was used until now."""
        asked = self._judged.values()
        return self._sum + Usage.total(usage for each in asked for usage in each.values())
