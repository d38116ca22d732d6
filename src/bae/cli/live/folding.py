"""`RunPicture` takes in the records of a run, one by one, and keeps the picture of it up to date.
Each record costs the same however long the run is: what is over is let go of in bulk, and no value
is written out here. `source_records.py` and `lm_records.py` take in the records of sources and of
LMs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from bae.cli.live import lm_records, source_records
from bae.cli.live.errors import said_of
from bae.cli.live.picture import GraphPicture, Spot, State, Step
from bae.place import Place
from bae.plan import plan_of
from bae.recorder import UsageCount
from bae.records import (
    AnswerJudged,
    AnswerRestarted,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    GateOpened,
    ItemEnded,
    LMUsed,
    Recalled,
    Record,
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

if TYPE_CHECKING:
    from bae.node import Node
    from bae.usage import Usage

MOST_STEPS: Final = 600
"""Steps of one graph that are kept; those between the first and the last of them are let go of."""
FIRST_STEPS: Final = 100


class RunPicture:
    """One run as far as it is known: `whole` is the graph that was run, with what is inside it.
    Give it the records in their order; `past` are those of a run that is resumed."""

    def __init__(self, past: Iterable[Record] = ()) -> None:
        self.whole = GraphPicture("", 0.0)
        self.nodes = 0
        """How many nodes were whole, in graphs inside the run too."""
        self.met: set[type[Node]] = set()
        """The node classes that were met, or that the LM could choose."""
        self.resumed_at = 0.0
        """When it was taken up again."""
        self.in_past = True
        """Whether what is taken in was recorded before the run was resumed."""
        self._graphs: dict[str, GraphPicture] = {"": self.whole}
        self._paid = UsageCount()
        for record in past:
            self.take(record)
        self.in_past = False

    @property
    def usage(self) -> Usage:
        """What the LM calls of the run used until now."""
        return self._paid.total()

    def step_at(self, path: str, number: int) -> Step | None:
        """A step of a graph, as far as it is kept."""
        graph = self._graphs.get(path)
        return None if graph is None else graph.steps.get(number)

    def take(self, record: Record) -> None:
        """Take in the next record."""
        match record:
            case StepStarted():
                self._step_started(record)
            case TextArrived():
                lm_records.text_arrived(self, record)
            case ItemEnded():
                source_records.item_ended(self, record)
            case SourceStarted():
                source_records.started(self, record)
            case SourceEnded():
                source_records.ended(self, record)
            case Recalled():
                source_records.recalled(self, record)
            case GateOpened():
                source_records.gate_opened(self, record)
            case RunStarted():
                self._run_started(record)
            case RunEnded():
                self._run_ended(record)
            case Returned():
                self._returned(record)
            case RunResumed():
                self._paid.take(record)
                self._run_resumed(record)
            case RunForked():
                self._run_forked(record)
            case AnswerRestarted():
                lm_records.restarted(self, record)
            case ChoiceStarted():
                lm_records.choice_started(self, record)
            case FillStarted():
                lm_records.fill_started(self, record)
            case AnswerJudged():
                self._paid.take(record)
                lm_records.judged(self, record)
            case ChoiceMade():
                self._paid.take(record)
                lm_records.choice_made(self, record)
            case FillEnded():
                self._paid.take(record)
                lm_records.fill_ended(self, record)
            case LMUsed():
                self._paid.take(record)
                lm_records.used(self, record)
            case _:
                pass

    # What `source_records.py` and `lm_records.py` use.

    def graph(self, record: Record) -> GraphPicture:
        """The graph that a record is of."""
        return self._graphs.get(record.path) or self._graph_at(record.path, record.at)

    def step(self, graph: GraphPicture, number: int, at: float, cls: type[Node] | None) -> Step:
        """A step of a graph, begun now where it is not there."""
        step = graph.steps.get(number)
        if step is None:
            step = graph.steps[number] = Step(number, at)
        if cls is not None and step.cls is not cls:
            step.cls = cls
            self.met.add(cls)
        return step

    def leave(self, graph: GraphPicture, number: int, at: float) -> Step | None:
        """The node of a step has led on, so that it is done."""
        step = graph.steps.get(number)
        if step is not None and step.state == "going":
            step.state, step.ended, step.asking = "done", at, None
        return step

    def let_go(self, graph: GraphPicture) -> None:
        """Keep a graph that is inside the run no more."""
        for each in graph.everything():
            self._graphs.pop(each.path, None)

    def _graph_at(self, path: str, at: float) -> GraphPicture:
        found = self._graphs.get(path)
        if found is None:
            found = self._graphs[path] = GraphPicture(path, at)
            self._put(found)
        return found

    def _put(self, graph: GraphPicture) -> None:
        """Have a graph stand in the step that it is inside of."""
        place = Place.parse(graph.path) or Place(node=graph.path)
        around = self._graph_at(place.path, graph.began)
        step = self.step(around, max(place.step, 0), graph.began, None)
        step.named = step.named or place.node
        step.graphs[Spot(place.field, place.parameter, place.item)] = graph

    def _run_started(self, record: RunStarted) -> None:
        graph = self.graph(record)
        if record.path and (graph.steps or graph.outcome):  # begun anew, after a failure
            self.let_go(graph)
            graph = self._graph_at(record.path, record.at)
        graph.began = record.at
        graph.name = record.graph
        self.step(graph, 0, record.at, type(record.node)).node = record.node

    def _step_started(self, record: StepStarted) -> None:
        graph, cls = self.graph(record), type(record.node)
        before = self.leave(graph, record.step - 1, record.at)
        step = self.step(graph, record.step, record.at, cls)
        if not step.whole:
            self.nodes += 1
        step.node, step.whole, step.asking = record.node, True, None
        if plan_of(cls).written:
            step.state = "going"
        else:
            step.state, step.ended = "done", record.at
        if not (step.filled or step.given_by) and before is not None:
            step.given_by = before.name
        if step.shown:  # it was a draft then
            step.shown = {}
        if len(graph.steps) > MOST_STEPS:
            self._thin_out(graph)

    def _returned(self, record: Returned) -> None:
        graph = self.graph(record)
        before = self.leave(graph, record.step - 1, record.at)
        step = self.step(graph, record.step, record.at, type(record.node))
        step.node = record.node
        step.given_by = "" if before is None else before.name

    def _run_ended(self, record: RunEnded) -> None:
        graph = self.graph(record)
        graph.outcome, graph.ended = record.outcome, record.at
        guilty: Step | None = None
        if record.outcome == "failed":
            graph.error = "" if record.error is None else said_of(record.error)
            guilty = _guilty(graph, record.step)
        _close(graph, record)
        if guilty is not None:
            guilty.state, guilty.error, guilty.ended = "failed", graph.error, record.at

    def _run_resumed(self, record: RunResumed) -> None:
        """What was under way then is not any more; what had failed may come out otherwise now."""
        self.resumed_at = record.at
        for graph in self.whole.everything():
            if graph.outcome != "ended":
                graph.outcome, graph.error, graph.ended = "", "", 0.0
            for step in graph.steps.values():
                _take_up(graph, step)
                step.began = step.began if step.before else record.at

    def _run_forked(self, record: RunForked) -> None:
        graph = self.whole
        for number in [each for each in graph.steps if each >= record.step]:
            del graph.steps[number]
        self.nodes = sum(step.whole for each in graph.everything() for step in each.steps.values())
        self.step(graph, record.step, record.at, type(record.node)).node = record.node

    def _thin_out(self, graph: GraphPicture) -> None:
        """Let go of steps that are long over, half of those that are kept at once."""
        numbers = sorted(graph.steps)
        for number in numbers[FIRST_STEPS : -(MOST_STEPS // 2)]:
            for inner in graph.steps.pop(number).graphs.values():
                self.let_go(inner)
            graph.left_out += 1


def _guilty(graph: GraphPicture, reached: int) -> Step | None:
    """The step that a failure belongs to, in a graph that has been through so many nodes: the body
    of the newest one may have failed, or the making of the one after it."""
    before, making = graph.steps.get(reached - 1), graph.steps.get(reached)
    if making is not None:
        failed = any(source.state == "failed" for source in making.sources.values())
        if failed or before is None or before.state != "going":
            return making
    return before


def _close(graph: GraphPicture, ended: RunEnded) -> None:
    """Nothing of a graph is under way any more."""
    left: State = "waiting" if ended.outcome == "waiting" else "cancelled"
    for number, step in [*graph.steps.items()]:
        step.asking = None
        for source in step.sources.values():
            if source.state in ("going", "coming"):
                source.state, source.seconds = "cancelled", max(0.0, ended.at - source.began)
                source.asking = None
        if ended.outcome == "ended" and step.node is None:
            del graph.steps[number]  # what was begun early for it was in vain
        elif step.state == "going" and ended.outcome == "ended":
            step.state, step.ended = "done", ended.at
        elif step.state in ("coming", "going"):
            step.state, step.ended = left, ended.at
        for inner in step.graphs.values():
            if not inner.outcome:
                inner.outcome, inner.ended = "cancelled", ended.at
                _close(inner, RunEnded(ended.at, inner.path, 0, "cancelled"))


def _take_up(graph: GraphPicture, step: Step) -> None:
    """Have a step stand as it does when its run goes on."""
    step.error, step.asking = "", None
    step.before = step.whole
    if step.state != "done" or not step.whole:
        step.state = "coming"
        if step.whole:
            left = step.number + 1 in graph.steps or step.cls is None
            is_going = not left and step.cls is not None and plan_of(step.cls).written
            step.state = "going" if is_going else "done"
            step.before = not is_going
    for key, source in [*step.sources.items()]:
        if source.state == "done":
            source.before = True
        elif source.done:
            source.state = "coming"
        else:
            del step.sources[key]
