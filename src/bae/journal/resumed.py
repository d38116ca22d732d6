"""`ResumedRecorder`: the recorder of a run that is resumed. It finds what was recorded before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any

from bae.journal.node_codec import node_codec
from bae.journal.recorder import JournalRecorder, encoder_for
from bae.journal.running.recording import Recording, shared_at
from bae.markers import Map
from bae.recorder import NOTHING, Log
from bae.records import Asker, LMAnswered, RunStarted

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Claim, Journal
    from bae.language_model import LM
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.place import Place
    from bae.plan import FieldPlan, NodePlan
    from bae.rooms import QuestionText
    from bae.run import Run


class ResumedRecorder(JournalRecorder):
    """Records a run that is resumed, and finds what `past` has of it."""

    looks_back = True

    def __init__(
        self,
        journal: Journal,
        graph: Graph[Any, Any],
        log: Log,
        past: Recording,
        claim: Claim | None = None,
        lines: int = 0,
    ) -> None:
        super().__init__(journal, log, claim, lines)
        self._encoder = encoder_for(graph, journal)
        self.past = past
        self._asking: dict[tuple[str, int, Asker], tuple[str, int, Asker]] = {}
        """The place under which the answers to a dependency are recorded that asks from another."""
        self._inside: set[str] = set()
        """The graphs inside that have started or continued in this process: if one of them starts
        again, it starts from its first node."""
        self._remapped: set[str] = set()
        """The maps, by place, whose items are made again and may be others."""

    async def begin(self, run: Run, graph: Graph[Any, Any], start: Node) -> None:
        """Record that a graph inside the run begins, unless it is recorded; the run is already."""
        if not run.path:
            return
        if run.path in self._inside or self._is_other_item(run.path, start):
            self.past.forget(run.path)
        self._inside.add(run.path)
        if run.path not in self.past.started:
            self.past.started[run.path] = start
            self.write(
                RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters)
            )

    def _start_step(
        self, run: Run, node: Node, plan: NodePlan, now: float
    ) -> Awaitable[None] | None:
        """Store that a node is complete, unless it is recorded."""
        if (run.path, run.step) in self.past.nodes:
            return None
        return super()._start_step(run, node, plan, now)

    def first_node(self, path: str, start: Node) -> Node:
        """The first node of a run: as complete as it was recorded, or as it is given."""
        recorded = self.past.nodes.get((path, 0))
        if recorded is None or not start.__dict__.keys() <= recorded.__dict__.keys():
            return start  # it has a secret that the journal does not store
        return recorded

    def recorded_next(self, run: Run, step: int, plan: NodePlan) -> Any:
        """The node that followed the one before `step`, None at the end, or `NOTHING`."""
        return self.past.after(run.path, step)

    def recorded_choice(self, run: Run, plan: NodePlan) -> type[Node] | type[None] | None:
        """The class that the LM chose after a node; None if it is not recorded."""
        return self.past.chosen.get((run.path, run.step))

    def recorded_fill(self, run: Run, plan: NodePlan) -> Node | None:
        """The node that the LM filled; None if it is not recorded."""
        node = self.past.filled.get((run.path, run.step))
        if node is not None:
            run.given_up = frozenset(
                field.name
                for field in plan.context
                if field.name not in node.__dict__
                and self._used_default(run.path, run.step, plan, field)
            )
        return node

    def recorded_dependencies(self) -> Mapping[Hashable, Any]:
        """The values of dependencies that are called once in the whole run, by key."""
        return self.past.deps

    def recorded_value(self, place: Place, node_type: type[Node]) -> Any:
        """The value of a source that is about to start, or `NOTHING`."""
        key = _key(place, node_type)
        known = self.past.sources.get(key, NOTHING)
        if known is NOTHING and place.parameter and self.past.inputs:
            shared = shared_at(key)
            return NOTHING if shared is None else self.past.inputs.get(shared, NOTHING)
        return known

    def known_value(self, place: Place, node_type: type[Node]) -> Any:
        """The same before its inputs are started."""
        return self.recorded_value(place, node_type)

    def recorded_items(self, place: Place, node_type: type[Node]) -> dict[int, Any]:
        """The values of the items of a map that are done. None are known where the items themselves
        are made again, as they may be others."""
        markers = node_type.__pydantic_fields__[place.field].metadata
        over = next(marker.over for marker in markers if isinstance(marker, Map))
        if self.past.is_anew((place.path, place.step, node_type, over, "")):
            self._remapped.add(str(place))
            return {}
        return self.past.items.get(_key(place, node_type), {})

    def graph_path(self, key: Hashable, path: str) -> str:
        """The path at which a graph began that runs once in the whole run."""
        return self.past.graphs.get(key, path)

    def forget_graph(self, path: str) -> None:
        """Drop what is recorded of a graph inside the run, which starts again from its start."""
        self.past.forget(path)

    def recorded_answer(self, gate: OpenGate, plan: NodePlan) -> Any:
        """The answer that a person has given to a gate in the meantime, or `NOTHING`."""
        answer = self.past.answers.get(gate.address)
        if answer is None:
            return NOTHING
        return node_codec(plan.node).read_answer(gate.field_name, answer)

    def opened_at(self, gate: OpenGate) -> float | None:
        """When a gate was reached first; None if it is reached now."""
        return self.past.opened.get(gate.address)

    def fields_left_out(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """The fields without a value that a recorded node was complete without: their defaults were
        used, or its class did not have them then."""
        path, step = run.path, len(run.trace)
        if (path, step) not in self.past.nodes:
            return ()
        return [
            field
            for field in absent
            if self._used_default(path, step, plan, field)
            or (
                self.past.new_fields and self.past.has_none((path, step, plan.node, field.name, ""))
            )
        ]

    def complete_node(
        self,
        run: Run,
        plan: NodePlan,
        node: Node,
        values: Mapping[str, Any],
        left_out: Sequence[FieldPlan],
    ) -> Node:
        """A copy of a node with the values of its sources; not validated as a whole where the
        recorded node lacks a field that its class requires now."""
        if any(field.required for field in left_out):
            return node_codec(type(node)).joined(node, values, False)
        return super().complete_node(run, plan, node, values, left_out)

    def record_answers(
        self,
        run: Run,
        step: int,
        asker: Asker,
        lm: Callable[[], LM | None],
        key: Hashable = None,
    ) -> LM | None:
        """The LM that a body or a dependency is given: one whose answers are recorded. A dependency
        that is called once in the whole run, which has a `key`, may have asked from elsewhere."""
        if key is not None and key in self.past.asking:
            self._asking[run.path, step, asker] = self.past.asking[key]
        return super().record_answers(run, step, asker, lm, key)

    def recorded_lm_answer(
        self,
        run: Run,
        step: int,
        asker: Asker,
        method: str,
        asked: str,
        target: str,
        question: QuestionText,
    ) -> LMAnswered | None:
        """What an LM has answered to the same question from the same place, each answer once; None
        if it has not."""
        spot = run.path, step, asker
        answers = self.past.asked.get(self._asking.get(spot, spot), [])
        for index, answer in enumerate(answers):
            if (answer.method, answer.asked, answer.target) == (method, asked, target):
                return answers.pop(index)
        return None

    def _is_other_item(self, path: str, start: Node) -> bool:
        """Whether what is recorded at a path is of another item of a map: where the items are made
        again, their numbers do not tell."""
        recorded = self.past.started.get(path)
        if recorded is None or path.rpartition("[")[0] not in self._remapped:
            return False
        held, given = recorded.__dict__, start.__pydantic_fields_set__ & start.__dict__.keys()
        return not all(name in held and held[name] == start.__dict__[name] for name in given)

    def _used_default(self, path: str, step: int, plan: NodePlan, field: FieldPlan) -> bool:
        """Whether a recorded node used the default of a field that it does not have: the class had
        the field then, and its value is not one that is made again."""
        is_new = f"{plan.name}.{field.name}" in self.past.new_fields
        place = path, step, plan.node, field.name, ""
        return not field.required and not is_new and not self.past.is_anew(place)


def _key(place: Place, node_type: type[Node]) -> tuple[str, int, type[Node], str, str]:
    return place.path, place.step, node_type, place.field, place.parameter
