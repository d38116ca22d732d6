"""The past of a run, read from the run's history. `RecordedPast` finds recorded values, and
`ResumedPast` is the past of a resumed run."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Mapping, Sequence
from operator import attrgetter
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

from bae.arguments import Arguments
from bae.calls import find_input, is_by_value, siblings_of, walk_recalls
from bae.draft import validate_values
from bae.history import History
from bae.journal.node_codec import call_codec, node_codec, read_gate_answer, unreadable
from bae.journal.outside_nodes import call_name
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
    """Finds the values that are recorded in the `history` of a run."""

    def __init__(self, graph: Graph[Any, Any], history: History) -> None:
        self._graph = graph
        self._history = history
        self.graph_paths, self.opened = history.shared_graphs, history.opened
        self._inputs = {
            shared: source
            for step in history.steps()
            for source in step.sources.values()
            if source.place.parameter and is_done(source)
            if (shared := _find_shared(source.place, source.node_type)) is not None
        }
        """For dependencies that the run calls once: the finished sources of their parameters. The
        key is the dependency's key, and the path from the dependency to the parameter. The place is
        not in the key, because another field may be the first to need the dependency now."""
        self._remapped: set[str] = set()
        """The places, as text, where values are now computed from other arguments or items. The
        recorded subgraphs at these places may belong to other values."""

    def choice(self, run: Run, plan: NodePlan, about: Scene) -> Any:
        """Return the class that the LM chose after a node, or `NOTHING`."""
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
        """Return the recorded value of a source that is about to start, or `NOTHING`."""
        shared = _find_shared(place, node_type)
        source = self._history.source(place) if shared is None else self._inputs.get(shared)
        if source is not None and asked is not None and not self._arguments(source).fits(asked):
            self._remapped.add(str(place))
            return NOTHING
        if source is not None and source.is_used and shared is None:
            self._history.forget_graph(str(place))
            return NOTHING
        if source is None or not is_done(source):
            return NOTHING
        # A body may make another node at the same place, which needs another value.
        source.is_used = shared is None
        return source.value

    def items(self, place: Place, node_type: type[Node]) -> Mapping[int, Any]:
        """Return the values of a map's finished items, by number. The result is empty if the field
        with the items is computed again, because the items may differ."""
        names = plan_of(node_type).fields[place.field].waits_for
        places = [place._replace(field=name, parameter="") for name in names]
        if any(self._is_made_again(place, node_type) for place in places):
            self._remapped.add(str(place))
            return {}
        source = self._history.source(place)
        items = {} if source is None or source.is_used else source.items
        return {index: item.value for index, item in items.items() if is_done(item)}

    def value_outside(
        self, place: Place, asked: FieldPlan | Input, arguments: Arguments | None
    ) -> Any:
        """Return the recorded result of a function for a class outside the graph, or `NOTHING`."""
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
        """Return the recorded answer of an LM to the same question of the same asker, or `NOTHING`.
        Each answer is returned once."""
        question = asked.record()
        answers = self._answers_to(question)
        for index, answer in enumerate(answers):
            if is_answer_to(answer, question) and not isinstance(answer.value, Unstored):
                return _read_answer(answers.pop(index).value, asked.types)
        return NOTHING

    def tool_loop(self, path: str, step: int, asker: Asker, question: str) -> ToolLoop | None:
        """Return the recorded conversation with tools for a question of the asker. None if there is
        none."""
        recorded = self._history.step(path, step - (asker.kind == "body"))
        return None if recorded is None else recorded.loops.get((asker, question))

    def asks_person(self, path: str, step: int, asker: Asker) -> bool:
        """Return whether a recorded conversation of the asker waits for a person to answer about a
        tool call."""
        recorded = self._history.step(path, step - (asker.kind == "body"))
        loops = {} if recorded is None else recorded.loops
        begun = [loop for (by, _), loop in loops.items() if by == asker]
        return any(loop.gates.keys() - loop.ended.keys() for loop in begun)

    def outside(self) -> Past:
        """Return the past of classes outside the graph."""
        return OutsidePast(self)

    def _answers_to(self, asked: LMAnswered) -> list[LMAnswered]:
        """Return the unused answers of an LM to the asker. A dependency that the run calls once may
        have asked at another place."""
        asking_work: Step | Source | None
        if asked.asker.kind == "body":
            asking_work = self._history.step(asked.path, asked.step - 1)
        else:
            _, node_type, field, parameter, _ = asked.asker
            place = Place(asked.path, asked.step, node_type.__name__, field, parameter)
            key, route = _find_shared(place, node_type) or (None, "")
            is_shared = key is not None and not route
            asking_work = (
                self._history.shared_askers.get(key) if is_shared else self._history.source(place)
            )
        return [] if asking_work is None else asking_work.answered

    def find_recorded_node(self, path: str, step: int) -> Node | None:
        """Return the recorded complete node at a step. None if there is none."""
        recorded = self._history.step(path, step)
        return recorded.node if recorded is not None and recorded.is_complete else None

    def find_shared_sources(self) -> dict[Hashable, Source]:
        """Return the finished sources of dependencies that the run calls once, or once for equal
        arguments. A key is the key of the dependency, or the `Arguments` of the call."""
        finished = {key: source for key, source in self._history.shared.items() if is_done(source)}
        for asked, sources in self.find_look_ups().items():
            finished.update((asked, source) for source in sources if is_done(source))
        return finished

    def find_look_ups(self) -> dict[Arguments, list[Source]]:
        """Return the recorded calls of dependencies that take arguments from the run, by these
        arguments."""
        look_ups: dict[Arguments, list[Source]] = {}
        steps = self._history.steps()
        for source in (source for step in steps for source in step.sources.values()):
            if not source.called_at and source.ended is not None:
                target = _find_input(source)
                if target.is_shared and is_by_value(target):
                    arguments = self._arguments(source)
                    if arguments.is_known:
                        look_ups.setdefault(arguments, []).append(source)
        return look_ups

    def _arguments(self, source: Source) -> Arguments:
        """Return the arguments of a function that came from the run. A value that no journal stores
        is `Unstored`."""
        own: dict[str, Any] = {}
        below: dict[Hashable, Any] = {}
        first = self._first(source)
        place, target = first.place, _find_input(first)
        for name, field in siblings_of(target):
            own[name] = self._field_value(place._replace(field=field, parameter=""), first)
        for route, key, field in walk_recalls(target):
            argument = self._argument(first, Place(parameter=route).parameters)
            if argument is None and not field.required:
                continue  # the default of the parameter was used
            value = LIVE if argument is None else argument.value
            if route.count("(") == 1:
                own[field.name] = value
            else:
                below[key] = value
        return Arguments(cast("CallPlan", target.call).key, own, below)

    def _argument(self, source: Source | None, parameters: Sequence[str]) -> Source | None:
        """Return the source of an argument. `parameters` are the names of the parameters that lead
        to the argument, from the outermost function."""
        for name in parameters:
            if source is None:
                return None
            source = self._history.source(self._first(source).place.below(name))
        return source

    def _first(self, source: Source) -> Source:
        """Return the source for which the function was called: this source, or an earlier source
        with equal arguments."""
        place = Place.parse(source.called_at) if source.called_at else None
        return source if place is None else self._history.source(place) or source

    def _field_value(self, place: Place, needed_by: Source) -> Any:
        """Return the value that a field had when another field needed it."""
        node_type = needed_by.node_type
        name, step = place.field, self._history.step(place.path, place.step)
        node = None if step is None else step.replaced or step.node  # the node before a fork
        if type(node) is node_type and name in node.__dict__:
            return node.__dict__[name]
        shared = _find_shared(place, node_type)
        source = (
            self._history.source(place) if shared is None else self._history.shared.get(shared[0])
        )
        if source is not None and is_done(source):
            return validate_values(node_type, {name: source.value})[name]
        info = plan_of(node_type).fields[name].info
        if source is not None or info.is_required():
            return LIVE
        return info.get_default(call_default_factory=True, validated_data={})

    def use_recorded_sources(self, flow: Dataflow, sources: Mapping[Hashable, Source]) -> None:
        """Have a run use the recorded values of these sources."""
        called_at = {k: str(s.place) for k, s in sources.items() if isinstance(k, Arguments)}
        values = {key: source.value for key, source in sources.items()}
        flow.add_recorded_values(
            values, called_at, self._history.called_outside.keys() & values.keys()
        )

    def _is_made_again(self, place: Place, node_type: type[Node]) -> bool:
        """Return whether a value is computed again because no journal stores it. The new value may
        differ."""
        shared = _find_shared(place, node_type)
        if shared is not None:
            return shared[0] in self._history.live_keys
        source = self._history.source(place)
        return source is not None and source.state == "done" and not is_done(source)


class OutsidePast(Past):
    """Finds the recorded results of functions for classes outside the graph."""

    def __init__(self, owner: RecordedPast) -> None:
        self._owner = owner

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """Return the recorded result of a function, or `NOTHING`."""
        target = find_input(plan_of(node_type).fields[place.field], place.parameter)
        return NOTHING if target is None else self._owner.value_outside(place, target, asked)


class ResumedPast(RecordedPast):
    """The past of a resumed run.

    `answers` has the answers of people at gates, as JSON, by the address of the gate. `new_fields`
    names the fields, as `Class.field`, that classes did not have when the run began.
    """

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
        """The paths of the subgraphs that have begun in this process. If one of these subgraphs
        begins again, it starts at its first node."""

    def begin(
        self, run: Run, graph: Graph[Any, Any], start: Node
    ) -> tuple[Node, bool, FindNext | None]:
        """Return the first node of the run or of a subgraph, whether the start is recorded, and the
        function that finds the following nodes. The start of the run itself is always recorded."""
        if run.path:
            if run.path in self._begun or self._is_other_item(run.path, start):
                self._history.forget_graph(run.path)
            self._begun.add(run.path)
            recorded = self._history.graphs.get(run.path)
            if recorded is None or recorded.start is None:
                return start, False, self._next_node
        elif run.flow is not None:
            self.use_recorded_sources(run.flow, self.find_shared_sources())
        first, step = self.find_recorded_node(run.path, 0), self._history.step(run.path, 0)
        if first is None and step is not None and step.filled is not None:
            first = step.filled.node
        if first is None or not start.__dict__.keys() <= first.__dict__.keys():
            # `start` has a secret that the journal does not store.
            return start, True, self._next_node
        return first, True, self._next_node

    def step_starter(self, run: Run, start_step: StartStep) -> StartStep:
        """Return a function that calls `start_step` for each step that is not recorded."""

        def start_new_step(now: float) -> Awaitable[None] | None:
            if self.find_recorded_node(run.path, run.step) is not None:
                return None
            return start_step(now)

        return start_new_step

    def _next_node(self, run: Run) -> Any:
        """Return the node at the step that the run has reached, as a body returned it or as an LM
        filled it. None if the run ended there, or `NOTHING` if nothing is recorded."""
        following = self._history.following(run.path, run.step)
        if following is not NOTHING or plan_of(type(run.trace[-1])).written:
            return following
        step = self._history.step(run.path, run.step)
        return NOTHING if step is None or step.filled is None else step.filled.node

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """Return the recorded value of a source that is about to start, or `NOTHING`. The value may
        come from an equal call for a class outside the graph."""
        value = super().value(place, node_type, early, asked)
        if value is not NOTHING or asked is None or not self._history.calls_outside:
            return value
        target = find_input(plan_of(node_type).fields[place.field], place.parameter)
        if target is None or target.call is None:
            return NOTHING
        value = self.value_outside(place, target, asked)
        if value is not NOTHING:
            where = time(), place.path, place.step, node_type, place.field
            what = "dep", target.call.name, 0.0, value, None, place.parameter
            self._writer.write(SourceEnded(*where, *what))
        return value

    def gate_answer(self, gate: OpenGate) -> Any:
        """Return the answer that a person has given to a gate since the run stopped, or
        `NOTHING`."""
        answer = self._answers.get(gate.address)
        if answer is None:
            return NOTHING
        return read_gate_answer(gate, answer)

    def find_unrecorded_fields(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """Return the fields of `absent` that had no value in the recorded node either. Their
        defaults were used, or their class did not have the fields yet."""
        path, step = run.path, len(run.trace)
        recorded = self._history.step(path, step)
        if recorded is None or not (recorded.is_complete or recorded.filled):
            return ()
        return [
            field
            for field in absent
            if recorded.is_complete or field in plan.context
            if self._stays_absent(Place(path, step, plan.name, field.name), plan.node, field)
        ]

    def complete_node(self, run: Run, node: Node, values: Mapping[str, Any]) -> Node:
        """Return a copy of a node with the values of its sources. If the recorded node lacks a
        field that its class requires now, the copy remains a draft."""
        names = node.__dict__.keys() | values.keys()
        if any(f.required and f.name not in names for f in plan_of(type(node)).sourced):
            return node_codec(type(node)).join_values(node, values, False)
        return super().complete_node(run, node, values)

    def _stays_absent(self, place: Place, node_type: type[Node], field: FieldPlan) -> bool:
        """Return whether a field without a value in a recorded node is left out again."""
        if f"{place.node}.{place.field}" not in self._new_fields:
            return not field.required and not self._is_made_again(place, node_type)
        following = self._history.following(place.path, place.step + 1)
        if following is None or following is NOTHING:
            return False  # the next node is not recorded, so the field is resolved now
        source, shared = self._history.source(place), _find_shared(place, node_type)
        if source is not None and source.state == "done":
            return False
        return shared is None or shared[0] not in self._history.shared

    def _is_other_item(self, path: str, start: Node) -> bool:
        """Return whether the records at a path belong to other arguments, or to another item of a
        map. If the items of a map are computed again, an item may have another number."""
        graph = self._history.graphs.get(path)
        changed_places = self._remapped.intersection((path, path.rpartition("[")[0]))
        if graph is None or graph.start is None or not changed_places:
            return False
        recorded_values, given = (
            graph.start.__dict__,
            start.__pydantic_fields_set__ & start.__dict__.keys(),
        )
        return not all(
            name in recorded_values and recorded_values[name] == start.__dict__[name]
            for name in given
        )


_question = attrgetter("method", "asked", "target")


def is_answer_to(answer: LMAnswered | LMFailed, asked: LMAnswered) -> bool:
    """Return whether a recorded answer is the answer to a question. If the journal does not number
    equal questions, all their answers match, and the caller takes the first."""
    if _question(answer) != _question(asked):
        return False
    is_same = answer.number == asked.number and answer.asker.item == asked.asker.item
    return is_same or answer.number is None


def _read_answer(value: Any, types: Sequence[type[Node] | type[None]]) -> Any:
    """Return the answer of an LM. An answer of a class outside the graph is read from its stored
    form."""
    if not isinstance(value, dict):
        return value
    stored = cast(dict[str, Any], value)
    name = stored["class"] if "class" in stored else stored["type"]
    cls = next(cls for cls in types if name == (None if cls is NoneType else cls.__name__))
    return cls if "class" in stored else node_codec(cast("type[Node]", cls)).load(stored)


def is_done(work: Source | Item) -> bool:
    """Return whether a value is recorded, and stored in the journal."""
    return work.state == "done" and not isinstance(work.value, Unstored)


def _find_input(source: Source) -> FieldPlan | Input:
    """Return the field or input that a source was started for."""
    field = plan_of(source.node_type).fields[source.place.field]
    return cast("FieldPlan | Input", find_input(field, source.place.parameter))


def _find_shared(place: Place, node_type: type[Node]) -> tuple[Hashable, str] | None:
    """Find the dependency that returned a value, or that took the value as an argument at any
    depth, if the run calls this dependency once. Returns the dependency's key, and the parameters
    that lead from the dependency to the value. None if there is no such dependency."""
    parameters = place.parameters
    for depth in range(len(parameters), -1, -1):
        around = "".join(f"({name})" for name in parameters[:depth])
        key = shared_key(place._replace(parameter=around), node_type)
        if key is not None:
            return key, "".join(f"({name})" for name in parameters[depth:])
    return None
