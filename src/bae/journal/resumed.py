"""`ResumedRecorder`: the recorder of a run that is resumed. It finds what was recorded before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any

from bae.history import History
from bae.journal.node_codec import node_codec
from bae.journal.recorder import JournalRecorder, encoder_for
from bae.markers import Map
from bae.place import Place, is_inside
from bae.recorder import Log
from bae.records import NOTHING, Asker, LMAnswered, RunStarted, Unstored
from bae.run_tree import shared_key

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Claim, Journal
    from bae.language_model import LM
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.plan import FieldPlan, NodePlan
    from bae.rooms import QuestionText
    from bae.run import Run
    from bae.work import Item


class ResumedRecorder(JournalRecorder):
    """Records a run that is resumed, and finds what `past` has of it."""

    looks_back = True

    def __init__(
        self,
        journal: Journal,
        graph: Graph[Any, Any],
        log: Log,
        past: History,
        claim: Claim | None = None,
        lines: int = 0,
        answers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(journal, log, claim, lines)
        self._encoder = encoder_for(graph, journal)
        self.past = past
        self.new_fields: frozenset[str] = frozenset()
        """The fields, as `Class.field`, that classes have now and did not have then."""
        self._answers = answers or {}
        """What people have answered at gates, as JSON, by the gate's address."""
        self._started = {p: g.start for p, g in past.graphs.items() if g.start is not None}
        """The first node of the run and of each graph inside it that has begun, by path."""
        self._asked = _lm_answers(past)
        """What an LM has answered to bodies and dependencies, and is not used yet."""
        self._inputs = _shared_inputs(past)
        """Values that were made for a dependency which is called once in the whole run, by its key
        and the way from there: another field may ask for it first now."""
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
            self.forget_graph(run.path)
        self._inside.add(run.path)
        if run.path not in self._started:
            self._started[run.path] = start
            self.write(
                RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters)
            )

    def _start_step(
        self, run: Run, node: Node, plan: NodePlan, now: float
    ) -> Awaitable[None] | None:
        """Store that a node is complete, unless it is recorded."""
        if self._recorded_node(run.path, run.step) is not None:
            return None
        return super()._start_step(run, node, plan, now)

    def first_node(self, path: str, start: Node) -> Node:
        """The first node of a run: as complete as it was recorded, or as it is given."""
        recorded = self._recorded_node(path, 0)
        if recorded is None or not start.__dict__.keys() <= recorded.__dict__.keys():
            return start  # it has a secret that the journal does not store
        return recorded

    def recorded_next(self, run: Run, step: int, plan: NodePlan) -> Any:
        """The node that followed the one before `step`, None at the end, or `NOTHING`."""
        return self.past.following(run.path, step)

    def recorded_choice(self, run: Run, plan: NodePlan) -> type[Node] | type[None] | None:
        """The class that the LM chose after a node; None if it is not recorded."""
        step = self.past.step(run.path, run.step - 1)
        return None if step is None or step.choice is None else step.choice.chosen

    def recorded_fill(self, run: Run, plan: NodePlan) -> Node | None:
        """The node that the LM filled; None if it is not recorded."""
        step = self.past.step(run.path, run.step)
        node = None if step is None or step.filled is None else step.filled.node
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
        return {
            key: source.value
            for key, source in self.past.shared.items()
            if not isinstance(source.value, Unstored)
        }

    def recorded_value(self, place: Place, node_type: type[Node]) -> Any:
        """The value of a source that is about to start, or `NOTHING`."""
        if shared_key(place, node_type) is None:
            source = self.past.source(place)
            if source is not None and source.state == "done" and _is_stored(source.value):
                return source.value
        if place.parameter and self._inputs:
            return self._inputs.get(_from_shared(place, node_type), NOTHING)
        return NOTHING

    def known_value(self, place: Place, node_type: type[Node]) -> Any:
        """The same before its inputs are started."""
        return self.recorded_value(place, node_type)

    def recorded_items(self, place: Place, node_type: type[Node]) -> dict[int, Any]:
        """The values of the items of a map that are done. None are known where the items themselves
        are made again, as they may be others."""
        markers = node_type.__pydantic_fields__[place.field].metadata
        over = next(marker.over for marker in markers if isinstance(marker, Map))
        if self._is_made_again(place._replace(field=over, parameter=""), node_type):
            self._remapped.add(str(place))
            return {}
        source = self.past.source(place)
        items = {} if source is None else source.items
        return {i: item.value for i, item in items.items() if _is_done(item)}

    def graph_path(self, key: Hashable, path: str) -> str:
        """The path at which a graph began that runs once in the whole run."""
        return self.past.shared_graphs.get(key, path)

    def forget_graph(self, path: str) -> None:
        """Drop what is recorded of a graph inside the run, which starts again from its start."""
        self.past.forget_graph(path)
        self._started = {
            each: node
            for each, node in self._started.items()
            if not is_inside(each, path) or each in self.past.graphs
        }
        for spot in [each for each in self._asked if is_inside(each[0], path)]:
            if spot[0] not in self.past.graphs:
                del self._asked[spot]

    def recorded_answer(self, gate: OpenGate, plan: NodePlan) -> Any:
        """The answer that a person has given to a gate in the meantime, or `NOTHING`."""
        answer = self._answers.get(gate.address)
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
        if self._recorded_node(path, step) is None:
            return ()
        return [
            field
            for field in absent
            if self._used_default(path, step, plan, field)
            or (self.new_fields and self._lacked_field(path, step, plan, field))
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
        if key is not None and key in self.past.shared_askers:
            self._asking[run.path, step, asker] = self.past.shared_askers[key]
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
        answers = self._asked.get(self._asking.get(spot, spot), [])
        for index, answer in enumerate(answers):
            if (answer.method, answer.asked, answer.target) == (method, asked, target):
                return answers.pop(index)
        return None

    def _is_other_item(self, path: str, start: Node) -> bool:
        """Whether what is recorded at a path is of another item of a map: where the items are made
        again, their numbers do not tell."""
        recorded = self._started.get(path)
        if recorded is None or path.rpartition("[")[0] not in self._remapped:
            return False
        held, given = recorded.__dict__, start.__pydantic_fields_set__ & start.__dict__.keys()
        return not all(name in held and held[name] == start.__dict__[name] for name in given)

    def _recorded_node(self, path: str, step: int) -> Node | None:
        """The complete node at a step; None if it is not recorded."""
        found = self.past.step(path, step)
        return found.node if found is not None and found.whole else None

    def _used_default(self, path: str, step: int, plan: NodePlan, field: FieldPlan) -> bool:
        """Whether a recorded node used the default of a field that it does not have: the class had
        the field then, and its value is not one that is made again."""
        is_new = f"{plan.name}.{field.name}" in self.new_fields
        place = Place(path, step, plan.name, field.name)
        return not field.required and not is_new and not self._is_made_again(place, plan.node)

    def _lacked_field(self, path: str, step: int, plan: NodePlan, field: FieldPlan) -> bool:
        """Whether the run is past a node that did not have a field, since its class had none."""
        if f"{plan.name}.{field.name}" not in self.new_fields:
            return False
        following = self.past.following(path, step + 1)
        if following is None or following is NOTHING:  # it is there, or the end of a graph inside
            return False
        place = Place(path, step, plan.name, field.name)
        source = self.past.source(place)
        if source is not None and source.state == "done":
            return False
        key = shared_key(place, plan.node)
        return key is None or key not in self.past.shared

    def _is_made_again(self, place: Place, node_type: type[Node]) -> bool:
        """Whether a value is made again, as no journal holds it, and may be another."""
        key = shared_key(place, node_type)
        if key is not None:
            return key in self.past.live_keys
        source = self.past.source(place)
        return source is not None and source.state == "done" and not _is_stored(source.value)


def _is_stored(value: Any) -> bool:
    return not isinstance(value, Unstored)


def _is_done(item: Item) -> bool:
    return item.state == "done" and _is_stored(item.value)


def _from_shared(place: Place, node_type: type[Node]) -> tuple[Hashable, str] | None:
    """The key of the dependency, called once in the whole run, that a parameter is for, and the way
    from there; None if there is none."""
    parameters = place.parameters
    for depth in range(len(parameters) - 1, -1, -1):
        around = "".join(f"({name})" for name in parameters[:depth])
        key = shared_key(place._replace(parameter=around), node_type)
        if key is not None:
            return key, "".join(f"({name})" for name in parameters[depth:])
    return None


def _shared_inputs(past: History) -> dict[tuple[Hashable, str] | None, Any]:
    return {
        shared: source.value
        for step in past.steps()
        for source in step.sources.values()
        if source.place.parameter and source.state == "done" and _is_stored(source.value)
        if shared_key(source.place, source.node_type) is None
        if (shared := _from_shared(source.place, source.node_type)) is not None
    }


def _lm_answers(past: History) -> dict[tuple[str, int, Asker], list[LMAnswered]]:
    found: dict[tuple[str, int, Asker], list[LMAnswered]] = {}
    for step in past.steps():
        for by in (step, *step.sources.values()):
            for record in by.answered:
                if _is_stored(record.value):
                    spot = record.path, record.step, record.asker
                    found.setdefault(spot, []).append(record)
    return found
