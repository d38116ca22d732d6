"""`History`: the one reader of records. It folds the records of a run, in order, into a tree of
what happened, found by place: graphs, steps, sources and questions to LMs, with their times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from types import NoneType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, cast

from bae.place import Place, is_inside
from bae.recorder import UsageCount
from bae.records import (
    LIVE,
    NOTHING,
    WITHHELD,
    AnswerJudged,
    AnswerRestarted,
    Asker,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    GateOpened,
    ItemEnded,
    LMAnswered,
    LMUsed,
    Nothing,
    Recalled,
    Record,
    RecordedError,
    Returned,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
    TextArrived,
)
from bae.work import (
    NOTHING_USED,
    BodyCall,
    GraphRun,
    Item,
    Question,
    Source,
    Span,
    State,
    Step,
    Work,
)

if TYPE_CHECKING:
    from bae.calls import CallPlan, Input
    from bae.node import Node
    from bae.plan import FieldPlan
    from bae.usage import Usage

TEXT_KEPT: Final = 600
"""How many characters of a streaming answer are kept: the last ones."""
ITEMS_KEPT: Final = 4

Exit = Literal["body", "choice", "fill", "end"]
"""What leads on from a node: its own body, a choice or a fill by the LM, or nothing."""
Change = Literal["started", "whole", "waiting", "answered", "restarted", "ended"]
"""What can happen to work: it starts and ends, a node is whole, a gate waits for a person, a
question is answered or its request is sent again."""


class Catalog(Protocol):
    """What a history must know about the classes of a run. `PlanCatalog` takes it from the classes
    themselves; a journal that is read without its code takes it from what is stored about them."""

    def shared_key(self, place: Place, node_type: type[Node]) -> Hashable | None:
        """What identifies the dependency behind a place, if it is called once for the whole run."""
        ...

    def exit_of(self, path: str, node_type: type[Node]) -> Exit:
        """What leads on from a node of a class."""
        ...


class History:
    """What happened in a run, as far as its records were added.

    `graphs` are the run itself, at the empty path, and the graphs inside it. `on_change` is called
    with work that changes; parts end before the whole. With `keep`, at most so many steps are
    kept of each graph, and the graphs of the first items of a map: for a display of long runs.
    """

    def __init__(
        self,
        records: Iterable[Record] = (),
        *,
        catalog: Catalog | None = None,
        keep: int = 0,
        on_change: Callable[[Change, Work], None] | None = None,
    ) -> None:
        self.graphs: dict[str, GraphRun] = {}
        self.run_id = ""
        self.shared: dict[Hashable, Source] = {}
        """The sources of dependencies that are called once for the whole run, by key: the newest
        that has a value."""
        self.shared_graphs: dict[Hashable, str] = {}
        """The paths of graphs that run once for the whole run."""
        self.shared_askers: dict[Hashable, tuple[str, int, Asker]] = {}
        """From where a dependency that is called once for the whole run asks an LM."""
        self.failed_keys: set[Hashable] = set()
        self.live_keys: set[Hashable] = set()
        """Dependencies called once for the whole run whose value no journal holds."""
        self.gates: dict[str, Source] = {}
        """The gates that were opened, by address."""
        self.opened: dict[str, float] = {}
        """When each gate was opened first, by address."""
        self.shared_calls: dict[Hashable, list[SharedCall]] = {}
        """Each call of a dependency that is called once for the whole run, by key: it is called
        again where it failed."""
        self.count = 0
        """How many records were added."""
        self.forks: list[RunForked] = []
        """Where the run was forked from another, and that from another, the first one first."""
        self.changes: list[RunResumed] = []
        """Each time the run was resumed."""
        self.lives: list[Span] = []
        """The times in which a process worked on the run."""
        self.whole_steps = 0
        """How many nodes were whole, in graphs inside the run too."""
        self.met: dict[type[Node], None] = {}
        """The node classes that were met, in order."""
        self.replaying = True
        """Whether the records were written by an earlier process; the owner sets it."""
        self._catalog: Catalog = PlanCatalog() if catalog is None else catalog
        self._keep = keep
        self.on_change = on_change
        self._shared_paths: dict[str, Hashable] = {}
        self.alive = False
        """Whether a process works on the run, as far as the records tell."""
        self.last = 0.0
        """The time of the newest record."""
        self._usage = UsageCount()
        for record in records:
            self.add(record)
        self.replaying = False

    # What there is to ask.

    @property
    def run(self) -> GraphRun:
        """The run itself."""
        found = self.graphs.get("")
        return found if found is not None else self._new_graph("", self.last)

    @property
    def usage(self) -> Usage:
        """What LM calls used, also for questions that were cut off."""
        return self._usage.total()

    @property
    def seconds(self) -> float:
        """How long processes worked on the run."""
        return sum(life.seconds for life in self.lives)

    def step(self, path: str, number: int) -> Step | None:
        """A step of the run or of a graph inside it."""
        graph = self.graphs.get(path)
        return None if graph is None else graph.steps.get(number)

    def source(self, place: Place) -> Source | None:
        """The work on the value of a field, or of a parameter behind it."""
        step = self.step(place.path, place.step)
        if step is None:
            return None
        found = step.sources.get((place.field, place.parameter))
        return found if found is not None and found.place.node == place.node else None

    def following(self, path: str, number: int) -> Node | Nothing | None:
        """What the node before step `number` led to: the node there, whole or a draft that a body
        returned, None where the run ended, or `NOTHING`."""
        graph = self.graphs.get(path)
        if graph is None:
            return NOTHING
        step = graph.steps.get(number)
        if step is not None and (step.whole or isinstance(step.given, Returned)):
            return step.node
        if graph.outcome == "ended" and graph.end_step == number:
            return None
        return NOTHING

    def steps(self) -> Iterator[Step]:
        """All steps, those of graphs inside the run too."""
        for graph in self.graphs.values():
            yield from graph.steps.values()

    # What happened next.

    def add(self, record: Record) -> None:
        """Take in the next record."""
        handler = _HANDLERS.get(type(record))
        forks = isinstance(record, RunForked)
        self._usage.take(record)
        if handler is not None:
            if not self.alive and not isinstance(record, RunForked | RunResumed):
                self._begin_life(record.at)
            handler(self, record)
        self.count += 1
        self.last = record.at
        if self.lives and not forks:
            start = self.lives[-1].start
            self.lives[-1] = Span(start, max(start, record.at))

    def stop(self, at: float | None = None, state: State = "interrupted") -> None:
        """No more records come: what is open ends, at the last record or at a given time."""
        at = self.last if at is None else at
        if self.alive:
            self.lives[-1] = Span(self.lives[-1].start, max(self.lives[-1].start, at))
        for graph in [*self.graphs.values()]:
            self._close(graph, at, state, state)
            if graph.is_open:
                self._end(graph, at, state)

    def forget_graph(self, path: str, at: float | None = None) -> None:
        """A graph inside the run begins again. One that runs once for the whole run may have been
        asked for in there, and stays for others."""
        at = self.last if at is None else at
        kept = [each for each in self._shared_paths if each.startswith(f"{path}/")]
        for inner in [each for each in self.graphs if is_inside(each, path)]:
            if not any(is_inside(inner, each) for each in kept):
                graph = self.graphs.pop(inner)
                self._close(graph, at, "interrupted", "interrupted")
                if graph.is_open:
                    self._end(graph, at, "interrupted")

    def _begin_life(self, at: float) -> None:
        if self.alive:
            self.stop()
        self.alive = True
        self.lives.append(Span(at, at))

    def _run_started(self, record: RunStarted) -> None:
        if record.path:
            old = self.graphs.get(record.path)
            if old is not None and (old.steps or old.outcome):
                self.forget_graph(record.path, record.at)
            if record.path in self._shared_paths:
                self.shared_graphs[self._shared_paths[record.path]] = record.path
        else:
            self.run_id = record.run_id
        graph = self.graphs.get(record.path) or self._new_graph(record.path, record.at)
        graph.name, graph.start, graph.max_iters = record.graph, record.node, record.max_iters
        graph.started = record.at
        self._begin(graph, record.at)
        step = self._step(graph, 0, record, type(record.node))
        step.node, step.given = record.node, record

    def _step_started(self, record: StepStarted) -> None:
        graph = self._graph(record)
        self._lead_on(graph, record.step - 1, record)
        node = cast("Node | None", record.node)  # of a run that is read without its code
        step = self._step(graph, record.step, record, None if node is None else type(node))
        self.whole_steps += not step.whole
        step.whole, step.whole_at, step.made = True, record.at, record.made
        step.whole_count = self.count
        if node is not None:
            if step.node is None:
                step.given = record
            step.node = node
        self._change("whole", step)
        self._cancel_unneeded(step, record.at)
        match self._exit_of(step):
            case "body":
                step.called = step.called or BodyCall(record.at, step=step)
                self._begin(step.called, record.at)
            case "choice":
                pass
            case _:
                self._end(step, record.at)
        if self._keep and len(graph.steps) > self._keep:
            self._drop_old_steps(graph)

    def _returned(self, record: Returned) -> None:
        graph = self._graph(record)
        self._lead_on(graph, record.step - 1, record)
        step = self._step(graph, record.step, record, type(record.node))
        step.node, step.given = record.node, record

    def _run_forked(self, record: RunForked) -> None:
        """What was before belongs to the other run; this one begins when it is resumed."""
        self.forks.append(record)
        self.stop()
        self.alive = False
        graph = self._graph(record)
        for number in [each for each in graph.steps if each > record.step]:
            self._drop_step(graph, number)
        graph.outcome, graph.end_step = "", -1
        step = self._step(graph, record.step, record, type(record.node), begins=False)
        step.replaced = step.replaced or step.node
        step.node, step.whole, step.forked = record.node, True, record
        step.whole_at = record.at
        step.choice, step.asked = None, []
        self.whole_steps = sum(each.whole for each in self.steps())

    def _run_resumed(self, record: RunResumed) -> None:
        self._begin_life(record.at)
        self.changes.append(record)
        for graph in self.graphs.values():
            if graph.outcome != "ended":
                graph.outcome, graph.error, graph.end_error = "", None, None
            for step in graph.steps.values():
                step.resumed = step.whole
                step.error = None
                for source in step.sources.values():
                    source.resumed = source.state == "done"
        self._resume(self.run, record.at)

    def _run_ended(self, record: RunEnded) -> None:
        graph = self._graph(record)
        graph.outcome, graph.end_step, graph.end_error = record.outcome, record.step, record.error
        graph.gates = record.gates
        state: State = "done" if record.outcome == "ended" else record.outcome
        failed = record.error if record.outcome == "failed" else None
        if record.outcome == "failed":
            guilty = _guilty_step(graph, record.step)
            if guilty is not None:
                for question in (guilty.choice, guilty.fill):
                    if question is not None and question.is_open:
                        self._end(question, record.at, "failed", failed)
                if guilty.called is not None and guilty.called.is_open:
                    self._end(guilty.called, record.at, "failed", failed)
                guilty.begin(record.at)  # so that it ends here, whatever it was before
                self._end(guilty, record.at, "failed", failed)
        steps: State = "cancelled" if record.outcome in ("failed", "cancelled") else state
        self._close(graph, record.at, steps, "cancelled")
        self._end(graph, record.at, state, failed)
        if graph.item is not None and record.outcome != "ended":
            self._end(graph.item, record.at, state, failed)
        if not record.path:
            self.alive = False

    def _source_started(self, record: SourceStarted) -> None:
        graph = self._graph(record)
        before = graph.steps.get(record.step - 1)
        # Dependencies of a node that is sure to come start while the one before it is filled.
        if before is not None and not (record.source == "dep" and before.fill is not None):
            self._lead_on(graph, record.step - 1, record)
        step = self._step(graph, record.step, record, record.node_type)
        source = self._source(step, record, record.source, record.by)
        source.started = record.at
        if source.kind == "map" and source.state == "done":
            source.items, source.items_done = {}, 0
        source.kind, source.by, source.value = record.source, record.by, None
        self._begin(source, record.at)
        key = self._catalog.shared_key(source.place, record.node_type)
        if key is not None:
            self._shared_paths[str(source.place)] = key
            if self.shared.get(key) is source:  # it is made again, as no journal holds its value
                del self.shared[key]
            asker = Asker("source", record.node_type, record.field, record.parameter)
            self.shared_askers[key] = record.path, record.step, asker

    def _source_ended(self, record: SourceEnded) -> None:
        graph = self._graph(record)
        step = self._step(graph, record.step, record, record.node_type)
        source = self._source(step, record, record.source, record.by)
        source.took = record.seconds
        key = self._catalog.shared_key(source.place, record.node_type)
        if key is not None:
            call = SharedCall(self.count, source, record.error)
            self.shared_calls.setdefault(key, []).append(call)
        if record.error is None:
            source.value = record.value
            source.started = source.started if source.since is not None else record.at
            self._end(source, record.at)
            if key is not None:
                self.shared[key] = source
                self.failed_keys.discard(key)
                is_live = record.value is LIVE or record.value is WITHHELD
                (self.live_keys.add if is_live else self.live_keys.discard)(key)
        elif is_waiting(record.error):
            self._end(source, record.at, "waiting")
        else:
            self._end(source, record.at, "failed", record.error)
            if key is not None:
                self.failed_keys.add(key)

    def _item_ended(self, record: ItemEnded) -> None:
        step = self._step(self._graph(record), record.step, record, record.node_type)
        source = self._source(step, record, "map", "")
        item = source.items.get(record.index)
        if item is None:
            item = source.items[record.index] = Item(record.at, source=source, index=record.index)
        item.value = record.value
        source.items_done += item.state != "done"
        self._end(item, record.at)
        if self._keep and record.index >= ITEMS_KEPT and item.graph is not None:
            self._drop_graph(item.graph)
            item.graph = None

    def _recalled(self, record: Recalled) -> None:
        graph = self._graph(record)
        self._lead_on(graph, record.step - 1, record)
        step = self._step(graph, record.step, record, record.node_type)
        source = self._source(step, record, "recall", "")
        source.value, source.origin = record.value, record.origin
        self._end(source, record.at)

    def _gate_opened(self, record: GateOpened) -> None:
        gate = record.gate
        step = self._step(self._graph(record), record.step, record, gate.node_type)
        key = gate.field_name, ""
        source = step.sources.get(key)
        if source is None:
            place = step.place._replace(field=gate.field_name)
            source = step.sources[key] = Source(
                record.at, place=place, node_type=gate.node_type, step=step, kind="gate"
            )
            self._begin(source, record.at)
        source.by, source.gate, source.state = gate.question, gate, "waiting"
        source.waiting_since = record.at
        self.gates[gate.address] = source
        self.opened.setdefault(gate.address, record.at)
        self._change("waiting", source)

    def _choice_started(self, record: ChoiceStarted) -> None:
        step = self._step(self._graph(record), record.step - 1, record, type(record.node))
        asker = Asker("choice", type(record.node))
        step.choice = Question(record.at, asker=asker, asked_by=step, offered=record.offered)
        self._begin(step.choice, record.at)

    def _choice_made(self, record: ChoiceMade) -> None:
        step = self._step(self._graph(record), record.step - 1, record, type(record.node))
        if step.choice is None:
            asker = Asker("choice", type(record.node))
            step.choice = Question(record.at, asker=asker, asked_by=step)
        choice = step.choice
        choice.chosen, choice.took = record.chosen, record.seconds
        choice.with_fields = not record.seconds and record.usage == NOTHING_USED
        choice.usage += record.usage
        self._end(choice, record.at)
        self._end(step, record.at)

    def _fill_started(self, record: FillStarted) -> None:
        graph = self._graph(record)
        self._lead_on(graph, record.step - 1, record)
        step = self._step(graph, record.step, record, record.target)
        step.fill = Question(record.at, asker=Asker("fill", record.target), asked_by=step)
        choice = None if step.before is None else step.before.choice
        step.fill.with_fields = choice is not None and choice.with_fields
        self._begin(step.fill, record.at)

    def _fill_ended(self, record: FillEnded) -> None:
        graph = self._graph(record)
        step = self._step(graph, record.step, record, type(record.node))
        if step.fill is None:
            asker = Asker("fill", type(record.node))
            step.fill = Question(record.at, asker=asker, asked_by=step)
            choice = None if step.before is None else step.before.choice
            step.fill.with_fields = choice is not None and choice.with_fields
        fill = step.fill
        step.node, step.filled, fill.took = record.node, record, record.seconds
        asked = step.filled_by or fill
        asked.took = record.seconds
        asked.usage += record.usage
        self._end(fill, record.at)

    def _answer_judged(self, record: AnswerJudged) -> None:
        question = self._question(record)
        if question is not None:
            question.answers.append(record)
            self._change("answered", question)
            question.text, question.text_since, question.retry = "", 0.0, None

    def _answer_restarted(self, record: AnswerRestarted) -> None:
        question = self._question(record)
        if question is not None:
            question.restarts.append(record)
            question.text, question.text_since, question.retry = "", 0.0, record
            self._change("restarted", question)

    def _text_arrived(self, record: TextArrived) -> None:
        question = self._question(record)
        if question is not None:
            question.retry = None
            question.text_since = question.text_since or record.at
            question.text = (question.text + record.text[-TEXT_KEPT:])[-TEXT_KEPT:]

    def _lm_answered(self, record: LMAnswered) -> None:
        step = self.step(record.path, record.step - (record.asker.kind == "body"))
        if step is None:
            return
        if record.asker.kind == "body":
            step.answered.append(record)
        else:
            source = step.sources.get((record.asker.field, record.asker.parameter))
            if source is not None:
                source.answered.append(record)

    def _lm_used(self, record: LMUsed) -> None:
        question = self._question(record)
        if question is not None:
            question.usage += record.usage
            if record.asker.kind in ("body", "source"):
                self._end(question, record.at)

    # The parts of it.

    def _graph(self, record: Record) -> GraphRun:
        graph = self.graphs.get(record.path)
        if graph is None:
            graph = self._new_graph(record.path, record.at)
            self._begin(graph, record.at)
        elif not graph.is_open and not graph.outcome and record.path:
            # It was cut off, and nothing records that it is resumed: it begins with its source.
            since = None if graph.source is None else graph.source.since
            self._resume(graph, record.at if since is None else since)
        return graph

    def _new_graph(self, path: str, at: float) -> GraphRun:
        """A graph that begins, or that began before anything was recorded of it here."""
        graph = self.graphs[path] = GraphRun(at, path=path)
        place = Place.parse(path) if path else None
        if place is None:
            return graph
        outer = self.graphs.get(place.path)
        if outer is None:
            outer = self._new_graph(place.path, at)
            self._begin(outer, at)
        step = outer.steps.get(place.step)
        if step is None:
            step = outer.steps[place.step] = Step(
                at, place=Place(place.path, place.step, place.node), graph=outer
            )
            self._begin(step, at)
        key = place.field, place.parameter
        source = step.sources.get(key)
        if source is None:
            source = step.sources[key] = Source(
                at,
                place=place._replace(item=None),
                node_type=cast("type[Node]", step.node_type or NoneType),
                step=step,
                kind="dep" if place.item is None else "map",
            )
            self._begin(source, at)
        graph.source = source
        if place.item is None:
            source.graph = graph
        else:
            item = source.items.get(place.item)
            if item is None:
                item = source.items[place.item] = Item(at, source=source, index=place.item)
            item.graph, graph.item = graph, item
            item.begin(at)
        return graph

    def _resume(self, graph: GraphRun, at: float) -> None:
        self._begin(graph, at)
        newest = graph.newest
        if newest is not None and newest.whole and self._exit_of(newest) == "body":
            # Its body is called again, or what follows it is known.
            self._begin(newest, at)
            if newest.called is not None:
                self._begin(newest.called, at)

    def _step(
        self,
        graph: GraphRun,
        number: int,
        record: Record,
        node_type: type[Node] | None,
        begins: bool = True,
    ) -> Step:
        step = graph.steps.get(number)
        is_new = step is None
        if step is None:
            name = "" if node_type is None else node_type.__name__
            step = graph.steps[number] = Step(
                record.at, place=Place(graph.path, number, name), graph=graph
            )
        if node_type is not None and step.node_type is not node_type:
            step.node_type = node_type
            step.place = step.place._replace(node=node_type.__name__)
            self.met.setdefault(node_type)
        if begins and (is_new or (not step.is_open and not step.whole)):
            self._begin(step, record.at)
        return step

    def _source(
        self,
        step: Step,
        record: SourceStarted | SourceEnded | ItemEnded | Recalled,
        kind: Literal["dep", "map", "gate", "recall"],
        by: str,
    ) -> Source:
        parameter = getattr(record, "parameter", "")
        source = step.sources.get((record.field, parameter))
        place = step.place._replace(
            node=record.node_type.__name__, field=record.field, parameter=parameter
        )
        if source is not None and cast("type", source.node_type) is NoneType:
            # Known until now by the path of the graph that runs for it.
            source.node_type, source.kind, source.by, source.place = (
                record.node_type,
                kind,
                by,
                place,
            )
        elif source is None or source.node_type is not record.node_type:
            if source is not None and source.is_open:
                self._end(source, record.at, "cancelled")
            source = step.sources[record.field, parameter] = Source(
                record.at, place=place, node_type=record.node_type, step=step, kind=kind, by=by
            )
        return source

    def _question(
        self, record: AnswerJudged | AnswerRestarted | TextArrived | LMUsed
    ) -> Question | None:
        """What the LM was asked by the asker of a record."""
        asker, graph = record.asker, self._graph(record)
        if asker.kind in ("choice", "body"):
            step = graph.steps.get(record.step - 1)
            if step is None:
                return None
            if asker.kind == "choice":
                if step.choice is None:
                    step.choice = Question(record.at, asker=asker, asked_by=step)
                    self._begin(step.choice, record.at)
                return step.choice
            return self._open_question(step, asker, record.at)
        step = graph.steps.get(record.step)
        if step is None:
            return None
        if asker.kind == "fill":
            if step.fill is None:
                step.fill = Question(record.at, asker=asker, asked_by=step)
                self._begin(step.fill, record.at)
            return step.fill
        source = step.sources.get((asker.field, asker.parameter))
        return None if source is None else self._open_question(source, asker, record.at)

    def _open_question(self, by: Step | Source, asker: Asker, at: float) -> Question:
        """What a body or a function asks: the last of it, until that is answered."""
        if not by.asked or not by.asked[-1].is_open:
            by.asked.append(Question(at, asker=asker, asked_by=by))
            self._begin(by.asked[-1], at)
        return by.asked[-1]

    def _lead_on(self, graph: GraphRun, number: int, record: Record) -> None:
        """The node of a step has led on, so its step is done."""
        step = graph.steps.get(number)
        if step is None or not step.whole:
            return
        if step.called is not None and step.called.is_open:
            self._end(step.called, record.at)
        if step.is_open:
            self._end(step, record.at)

    def _cancel_unneeded(self, step: Step, at: float) -> None:
        """Sources in progress that a whole node did without; another node may still wait for one,
        and then its end is recorded."""
        for source in step.sources.values():
            if source.is_open:
                self._end(source, at, "cancelled")

    def _close(self, graph: GraphRun, at: float, steps: State, sources: State) -> None:
        """Nothing of a graph is in progress any more: its steps and sources end like this."""
        ended = graph.outcome == "ended"
        for number, step in [*graph.steps.items()]:
            for source in step.sources.values():
                self._close_source(source, at, sources)
            for question in step.questions:
                if question.is_open:
                    self._end(question, at, "cancelled" if ended else steps)
            if step.called is not None and step.called.is_open:
                self._end(step.called, at, steps)
            in_vain = ended and step.node is None  # its dependencies were started early
            if step.is_open:
                self._end(step, at, "cancelled" if in_vain else steps)
                if in_vain:
                    self._drop_step(graph, number)

    def _close_source(self, source: Source, at: float, state: State) -> None:
        for item in source.items.values():
            if item.is_open:
                self._end(item, at, state)
        for inner in source.graphs:
            if inner.is_open:
                self._close(inner, at, state, state)
                self._end(inner, at, state)
        if source.is_open:
            self._end(source, at, "waiting" if source.state == "waiting" else state)

    def _exit_of(self, step: Step) -> Exit:
        if step.node_type is None:
            return "end"
        return self._catalog.exit_of(step.place.path, step.node_type)

    def _begin(self, work: Work, at: float) -> None:
        if work.since is None:
            work.begin(at)
            work.resumed = False
            self._change("started", work)
        else:
            work.begin(at)

    def _end(
        self, work: Work, at: float, state: State = "done", error: BaseException | None = None
    ) -> None:
        work.end(at, state, error)
        work.resumed = work.resumed or self.replaying
        self._change("ended", work)

    def _change(self, change: Change, work: Work) -> None:
        if self.on_change is not None:
            self.on_change(change, work)

    # What is forgotten.

    def _drop_graph(self, graph: GraphRun) -> None:
        for each in [*graph.tree()]:
            self.graphs.pop(each.path, None)

    def _drop_step(self, graph: GraphRun, number: int) -> None:
        for source in graph.steps.pop(number).sources.values():
            for inner in source.graphs:
                self._drop_graph(inner)

    def _drop_old_steps(self, graph: GraphRun) -> None:
        """Keep the first and the last steps. Many are dropped at once, so that is rarely done."""
        for number in sorted(graph.steps)[self._keep // 6 : -(self._keep // 2)]:
            self._drop_step(graph, number)
            graph.dropped += 1


class SharedCall(NamedTuple):
    """One call of a dependency that is called once for the whole run, and the error it ended with.
    `number` is that of its record."""

    number: int
    source: Source
    error: BaseException | None


class PlanCatalog:
    """What the node classes themselves say."""

    def __init__(self) -> None:
        self._exits: dict[type[Node], Exit] = {}

    def shared_key(self, place: Place, node_type: type[Node]) -> Hashable | None:
        """The key of the call behind a place, if it is called once for the whole run."""
        call, is_shared = call_behind(node_type, place)
        return call.key if call is not None and is_shared else None

    def exit_of(self, path: str, node_type: type[Node]) -> Exit:
        """What leads on from a node of a class."""
        found = self._exits.get(node_type)
        if found is None:
            from bae.plan import plan_of

            plan = plan_of(node_type)
            led = "fill" if plan.successors else "end"
            found = "body" if plan.written else "choice" if len(plan.offered) > 1 else led
            self._exits[node_type] = found
        return found


def call_behind(node_type: type[Node], place: Place) -> tuple[CallPlan | None, bool]:
    """What is called for the value at a place, and whether that happens once for the whole run. A
    gate and a recall call nothing; an unknown field or parameter is a KeyError."""
    from bae.markers import Dep
    from bae.plan import plan_of

    asked: FieldPlan | Input = plan_of(node_type).fields[place.field]
    for parameter in place.parameters:
        if asked.call is None:
            raise KeyError(place.parameter)
        asked = dict(asked.call.inputs)[parameter]
    return asked.call, isinstance(asked.marker, Dep) and asked.marker.cache


def is_waiting(error: BaseException) -> bool:
    """Whether a source ended because it waits for a person, which is no failure."""
    from bae.run import Waiting

    if isinstance(error, RecordedError):  # a journal has the name and the words
        words = error.message.startswith("waiting for ") or error.message in ("", "withheld")
        return words and error.type_name == Waiting.__name__
    return isinstance(error, Waiting)


def _guilty_step(graph: GraphRun, reached: int) -> Step | None:
    """The step that a failure belongs to, in a graph that went through so many nodes: the body of
    the newest one may have failed, or the making of the one after it."""
    before, making = graph.steps.get(reached - 1), graph.steps.get(reached)
    if making is not None and not making.whole:
        failed = any(source.state == "failed" for source in making.sources.values())
        calling = before is not None and before.called is not None and before.called.is_open
        if failed or not calling:
            return making
    return before


_HANDLERS: Final = cast(
    "dict[type[Record], Callable[[History, Record], None]]",
    {
        kind: getattr(History, name)
        for kind, name in (
            (RunStarted, "_run_started"),
            (StepStarted, "_step_started"),
            (Returned, "_returned"),
            (RunForked, "_run_forked"),
            (RunResumed, "_run_resumed"),
            (RunEnded, "_run_ended"),
            (SourceStarted, "_source_started"),
            (SourceEnded, "_source_ended"),
            (ItemEnded, "_item_ended"),
            (Recalled, "_recalled"),
            (GateOpened, "_gate_opened"),
            (ChoiceStarted, "_choice_started"),
            (ChoiceMade, "_choice_made"),
            (FillStarted, "_fill_started"),
            (FillEnded, "_fill_ended"),
            (AnswerJudged, "_answer_judged"),
            (AnswerRestarted, "_answer_restarted"),
            (TextArrived, "_text_arrived"),
            (LMAnswered, "_lm_answered"),
            (LMUsed, "_lm_used"),
        )
    },
)
