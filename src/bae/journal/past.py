"""The past of a run, read from its history: `RecordedPast` finds recorded values, and `ResumedPast`
is the past of a resumed run."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Mapping, Sequence
from operator import attrgetter
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

from bae.arguments import Arguments
from bae.calls import asked_at, is_by_value, recalled_behind, siblings_of
from bae.draft import validate_values
from bae.history import History
from bae.journal.node_codec import call_codec, node_codec, read_gate_answer, unreadable
from bae.journal.outside import call_name
from bae.past import FindNext, Past
from bae.place import Place
from bae.plan import plan_of
from bae.records import LIVE, NOTHING, LMAnswered, LMFailed, SourceEnded, Unstored
from bae.run_tree import shared_key

if TYPE_CHECKING:
    from bae.calls import CallPlan, Input
    from bae.given_lm import AskedLM
    from bae.graph import Graph
    from bae.journal.run_writer import JournalWriter
    from bae.language_model import Scene
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.plan import FieldPlan, NodePlan
    from bae.records import Asker
    from bae.run import Run
    from bae.sharing import Dataflow
    from bae.work import Item, Source, Step, ToolLoop
    from bae.writer import StartStep


class RecordedPast(Past):
    """Finds the values that the `history` of a run has."""

    def __init__(self, graph: Graph[Any, Any], history: History) -> None:
        self._graph = graph
        self._history = history
        self.graph_paths, self.opened = history.shared_graphs, history.opened
        self._inputs = {
            shared: source
            for step in history.steps()
            for source in step.sources.values()
            if source.place.parameter and is_done(source)
            if (shared := _shared_at(source.place, source.node_type)) is not None
        }
        """The sources of values for a dependency that is called once in the whole run, by its key
        and the path from there: another field may be the first to ask for it now."""
        self._remapped: set[str] = set()
        """The maps, by place, whose items are computed again and may differ."""

    def choice(self, run: Run, plan: NodePlan, about: Scene) -> Any:
        """The class that the LM chose after a node."""
        step = self._history.step(run.path, run.step - 1)
        chosen = None if step is None or step.choice is None else step.choice.chosen
        return NOTHING if chosen is None else chosen

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """The value of a source that is about to start, or `NOTHING`."""
        shared = _shared_at(place, node_type)
        source = self._history.source(place) if shared is None else self._inputs.get(shared)
        if source is not None and asked is not None and not self._arguments(source).fits(asked):
            self._remapped.add(str(place))
            return NOTHING
        if source is not None and source.taken and shared is None:
            self._history.forget_graph(str(place))
            return NOTHING
        if source is None or not is_done(source):
            return NOTHING
        # Another node of a body may be at the same place, and has a value of its own.
        source.taken = shared is None
        return source.value

    def items(self, place: Place, node_type: type[Node]) -> Mapping[int, Any]:
        """The values of the finished items of a map. Empty if the items themselves are computed
        again, since they may differ."""
        names = plan_of(node_type).fields[place.field].waits_for
        places = [place._replace(field=name, parameter="") for name in names]
        if any(self._is_made_again(place, node_type) for place in places):
            self._remapped.add(str(place))
            return {}
        source = self._history.source(place)
        items = {} if source is None or source.taken else source.items
        return {index: item.value for index, item in items.items() if is_done(item)}

    def value_outside(
        self, place: Place, asked: FieldPlan | Input, arguments: Arguments | None
    ) -> Any:
        """The result of a function for a class outside the graph, or `NOTHING`."""
        if not self._history.calls_outside:
            return NOTHING
        name = call_name(self._graph, asked, arguments)
        call = None if name is None else self._history.calls_outside.get(name)
        if call is None or isinstance(call.value, Unstored):
            return NOTHING
        try:
            return call_codec(cast("CallPlan", asked.call), asked).load(call.value)
        except Exception as error:
            raise unreadable(f"{place.node}.{place.field}{place.parameter}", error) from error

    def lm_answer(self, asked: AskedLM) -> Any:
        """The answer of an LM to the same question from the same place."""
        question = asked.record()
        answers = self._answers_to(question)
        for index, answer in enumerate(answers):
            if is_answer_to(answer, question) and not isinstance(answer.value, Unstored):
                return _read_answer(answers.pop(index).value, asked.types)
        return NOTHING

    def tool_loop(self, path: str, step: int, asker: Asker, question: str) -> ToolLoop | None:
        """The conversation with tools that the asker has begun."""
        recorded = self._history.step(path, step - (asker.kind == "body"))
        return None if recorded is None else recorded.loops.get((asker, question))

    def asks_person(self, path: str, step: int, asker: Asker) -> bool:
        """Whether a person is asked about a call in a conversation that the asker has begun."""
        recorded = self._history.step(path, step - (asker.kind == "body"))
        loops = {} if recorded is None else recorded.loops
        begun = [loop for (by, _), loop in loops.items() if by == asker]
        return any(loop.gates.keys() - loop.ended.keys() for loop in begun)

    def outside(self) -> Past:
        """The past of classes outside the graph."""
        return OutsidePast(self)

    def _answers_to(self, asked: LMAnswered) -> list[LMAnswered]:
        """The unused answers of an LM to the asker. A dependency that is called once in the whole
        run may have asked from elsewhere."""
        by: Step | Source | None
        if asked.asker.kind == "body":
            by = self._history.step(asked.path, asked.step - 1)
        else:
            _, node_type, field, parameter, _ = asked.asker
            place = Place(asked.path, asked.step, node_type.__name__, field, parameter)
            key, way = _shared_at(place, node_type) or (None, "")
            is_shared = key is not None and not way
            by = self._history.shared_askers.get(key) if is_shared else self._history.source(place)
        return [] if by is None else by.answered

    def _recorded_node(self, path: str, step: int) -> Node | None:
        """The complete node at a step; None if it is not recorded."""
        recorded = self._history.step(path, step)
        return recorded.node if recorded is not None and recorded.whole else None

    def _shared_sources(self) -> dict[Hashable, Source]:
        """The sources of dependencies that have a value and are called once in the whole run, or
        once for equal arguments, by key."""
        finished = {key: source for key, source in self._history.shared.items() if is_done(source)}
        for asked, sources in self._look_ups().items():
            finished.update((asked, source) for source in sources if is_done(source))
        return finished

    def _look_ups(self) -> dict[Arguments, list[Source]]:
        """The recorded calls of dependencies with arguments from the run."""
        look_ups: dict[Arguments, list[Source]] = {}
        steps = self._history.steps()
        for source in (source for step in steps for source in step.sources.values()):
            if not source.called_at and source.ended is not None:
                asked = _asked_for(source)
                if asked.is_shared and is_by_value(asked):
                    arguments = self._arguments(source)
                    if arguments.is_known:
                        look_ups.setdefault(arguments, []).append(source)
        return look_ups

    def _arguments(self, source: Source) -> Arguments:
        """The arguments of a function that came from the run; `Unstored` for a value that no
        journal stores."""
        own: dict[str, Any] = {}
        below: dict[Hashable, Any] = {}
        first = self._first(source)
        place, asked = first.place, _asked_for(first)
        for name, field in siblings_of(asked):
            own[name] = self._field_value(place._replace(field=field, parameter=""), first)
        for way, key, field in recalled_behind(asked):
            argument = self._argument(first, Place(parameter=way).parameters)
            if argument is None and not field.required:
                continue  # its default was used
            value = LIVE if argument is None else argument.value
            if way.count("(") == 1:
                own[field.name] = value
            else:
                below[key] = value
        return Arguments(cast("CallPlan", asked.call).key, own, below)

    def _argument(self, source: Source | None, way: Sequence[str]) -> Source | None:
        """The source of an argument of a function, or of a function below it."""
        for name in way:
            if source is None:
                return None
            source = self._history.source(self._first(source).place.below(name))
        return source

    def _first(self, source: Source) -> Source:
        """The source that a function was called for, if this source has equal arguments."""
        place = Place.parse(source.called_at) if source.called_at else None
        return source if place is None else self._history.source(place) or source

    def _field_value(self, place: Place, needed_by: Source) -> Any:
        """The value that a field had when another field needed it."""
        node_type = needed_by.node_type
        name, step = place.field, self._history.step(place.path, place.step)
        node = None if step is None else step.replaced or step.node  # as it was before a fork
        if type(node) is node_type and name in node.__dict__:
            return node.__dict__[name]
        shared = _shared_at(place, node_type)
        source = (
            self._history.source(place) if shared is None else self._history.shared.get(shared[0])
        )
        if source is not None and is_done(source):
            return validate_values(node_type, {name: source.value})[name]
        info = plan_of(node_type).fields[name].info
        if source is not None or info.is_required():
            return LIVE
        return info.get_default(call_default_factory=True, validated_data={})

    def _take_known(self, flow: Dataflow, sources: Mapping[Hashable, Source]) -> None:
        """Have a run use the recorded values."""
        called_at = {k: str(s.place) for k, s in sources.items() if isinstance(k, Arguments)}
        values = {key: source.value for key, source in sources.items()}
        flow.take_known(values, called_at, self._history.called_outside.keys() & values.keys())

    def _is_made_again(self, place: Place, node_type: type[Node]) -> bool:
        """Whether a value is computed again, since no journal stores it, and may differ."""
        shared = _shared_at(place, node_type)
        if shared is not None:
            return shared[0] in self._history.live_keys
        source = self._history.source(place)
        return source is not None and source.state == "done" and not is_done(source)


class OutsidePast(Past):
    """Finds the results of functions for classes outside the graph."""

    def __init__(self, owner: RecordedPast) -> None:
        self._owner = owner

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """The value of a function that was called before, or `NOTHING`."""
        wanted = asked_at(plan_of(node_type).fields[place.field], place.parameter)
        return NOTHING if wanted is None else self._owner.value_outside(place, wanted, asked)


class ResumedPast(RecordedPast):
    """The past of a resumed run. `answers` are the answers of people at gates, as JSON, by the
    gate's address. `new_fields` names the fields, as `Class.field`, that classes did not have
    then."""

    def __init__(
        self,
        graph: Graph[Any, Any],
        history: History,
        writer: JournalWriter,
        answers: Mapping[str, str],
        new_fields: frozenset[str],
    ) -> None:
        super().__init__(graph, history)
        self._writer = writer
        self._answers = answers
        self._new_fields = new_fields
        self._begun: set[str] = set()
        """The graphs inside that have begun in this process. If one of them begins again, it starts
        at its first node."""

    def begin(
        self, run: Run, graph: Graph[Any, Any], start: Node
    ) -> tuple[Node, bool, FindNext | None]:
        """The first node, and whether the start is recorded, which it is for the run itself."""
        if run.path:
            if run.path in self._begun or self._is_other_item(run.path, start):
                self._history.forget_graph(run.path)
            self._begun.add(run.path)
            recorded = self._history.graphs.get(run.path)
            if recorded is None or recorded.start is None:
                return start, False, self._next_node
        elif run.flow is not None:
            self._take_known(run.flow, self._shared_sources())
        first, step = self._recorded_node(run.path, 0), self._history.step(run.path, 0)
        if first is None and step is not None and step.filled is not None:
            first = step.filled.node
        if first is None or not start.__dict__.keys() <= first.__dict__.keys():
            return start, True, self._next_node  # it has a secret that the journal does not store
        return first, True, self._next_node

    def step_starter(self, run: Run, start_step: StartStep) -> StartStep:
        """The function that stores each step that is not recorded."""

        def start_new_step(now: float) -> Awaitable[None] | None:
            if self._recorded_node(run.path, run.step) is not None:
                return None
            return start_step(now)

        return start_new_step

    def _next_node(self, run: Run) -> Any:
        """The complete node at the step, as a body returned it or as an LM filled it."""
        known = self._history.following(run.path, run.step)
        if known is not NOTHING or plan_of(type(run.trace[-1])).written:
            return known
        step = self._history.step(run.path, run.step)
        return NOTHING if step is None or step.filled is None else step.filled.node

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """The value of a source that is about to start, or `NOTHING`. A call with equal arguments
        for a class outside the graph counts too."""
        known = super().value(place, node_type, early, asked)
        if known is not NOTHING or asked is None or not self._history.calls_outside:
            return known
        wanted = asked_at(plan_of(node_type).fields[place.field], place.parameter)
        if wanted is None or wanted.call is None:
            return NOTHING
        known = self.value_outside(place, wanted, asked)
        if known is not NOTHING:
            where = time(), place.path, place.step, node_type, place.field
            what = "dep", wanted.call.name, 0.0, known, None, place.parameter
            self._writer.write(SourceEnded(*where, *what))
        return known

    def gate_answer(self, gate: OpenGate) -> Any:
        """The answer that a person has given to a gate in the meantime, or `NOTHING`."""
        answer = self._answers.get(gate.address)
        if answer is None:
            return NOTHING
        return read_gate_answer(gate, answer)

    def fields_left_out(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """The fields that had no value in a recorded node either: their defaults were used, or its
        class did not have them then."""
        path, step = run.path, len(run.trace)
        recorded = self._history.step(path, step)
        if recorded is None or not (recorded.whole or recorded.filled):
            return ()
        return [
            field
            for field in absent
            if recorded.whole or field in plan.context
            if self._did_without(Place(path, step, plan.name, field.name), plan.node, field)
        ]

    def complete_node(self, run: Run, node: Node, values: Mapping[str, Any]) -> Node:
        """A copy of a node with the values of its sources. It is not validated as a whole if the
        recorded node lacks a field that its class requires now."""
        known = node.__dict__.keys() | values.keys()
        if any(f.required and f.name not in known for f in plan_of(type(node)).sourced):
            return node_codec(type(node)).join_values(node, values, False)
        return super().complete_node(run, node, values)

    def _did_without(self, place: Place, node_type: type[Node], field: FieldPlan) -> bool:
        if f"{place.node}.{place.field}" not in self._new_fields:
            return not field.required and not self._is_made_again(place, node_type)
        following = self._history.following(place.path, place.step + 1)
        if following is None or following is NOTHING:  # it is known, or the end of a graph inside
            return False
        source, shared = self._history.source(place), _shared_at(place, node_type)
        if source is not None and source.state == "done":
            return False
        return shared is None or shared[0] not in self._history.shared

    def _is_other_item(self, path: str, start: Node) -> bool:
        """Whether the records at a path are of another item of a map: if items are computed again,
        their numbers do not tell."""
        graph = self._history.graphs.get(path)
        others = self._remapped.intersection((path, path.rpartition("[")[0]))
        if graph is None or graph.start is None or not others:
            return False
        held, given = graph.start.__dict__, start.__pydantic_fields_set__ & start.__dict__.keys()
        return not all(name in held and held[name] == start.__dict__[name] for name in given)


_question = attrgetter("method", "asked", "target")


def is_answer_to(answer: LMAnswered | LMFailed, asked: LMAnswered) -> bool:
    """Whether a recorded answer is the answer to a question. In a journal that does not number
    equal questions, answers are taken in the order in which they arrived."""
    if _question(answer) != _question(asked):
        return False
    is_same = answer.number == asked.number and answer.asker.item == asked.asker.item
    return is_same or answer.number is None


def _read_answer(value: Any, types: Sequence[type[Node] | type[None]]) -> Any:
    """The answer of an LM. It is in stored form if its class is outside the graph."""
    if not isinstance(value, dict):
        return value
    stored = cast(dict[str, Any], value)
    name = stored["class"] if "class" in stored else stored["type"]
    cls = next(cls for cls in types if name == (None if cls is NoneType else cls.__name__))
    return cls if "class" in stored else node_codec(cast("type[Node]", cls)).load(stored)


def is_done(work: Source | Item) -> bool:
    """Whether a value is recorded, and stored in the journal."""
    return work.state == "done" and not isinstance(work.value, Unstored)


def _asked_for(source: Source) -> FieldPlan | Input:
    """The field or input that a source was started for."""
    field = plan_of(source.node_type).fields[source.place.field]
    return cast("FieldPlan | Input", asked_at(field, source.place.parameter))


def _shared_at(place: Place, node_type: type[Node]) -> tuple[Hashable, str] | None:
    """The key of the dependency, called once in the whole run, that a value belongs to or is
    computed for, and the path from there; None if there is none."""
    parameters = place.parameters
    for depth in range(len(parameters), -1, -1):
        around = "".join(f"({name})" for name in parameters[:depth])
        key = shared_key(place._replace(parameter=around), node_type)
        if key is not None:
            return key, "".join(f"({name})" for name in parameters[depth:])
    return None
