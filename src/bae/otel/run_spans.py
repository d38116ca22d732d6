"""The spans of one run, opened and ended as its records come in, whether it is under way or long
over. Spans of a run under way are made current where its own code runs, so that what other
libraries trace stands under them. `graph_spans.py` knows one graph of the run, this all of them;
`source_spans.py` and `lm_spans.py` take in the records of sources and of LMs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from threading import RLock
from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, Tracer

from bae.otel import lm_spans, source_spans
from bae.otel.attributes import Attributes
from bae.otel.graph_spans import GraphSpans, Spot
from bae.otel.open_spans import OpenSource, OpenSpan
from bae.plan import plan_of
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
from bae.secrets import may_show

if TYPE_CHECKING:
    from bae.node import Node

MOST_ADRIFT: Final = 1000
"""Sources that nobody seems to wait for any more and that may end all the same: so many are kept
in mind."""


class RunSpans:
    """Give it the records of a run in their order. A run that is interrupted and resumed has
    several lives, each with a span of its own that links to the one before."""

    def __init__(
        self,
        tracer: Tracer,
        *,
        content: bool = False,
        run_id: str = "",
        name: str = "",
        past: Iterable[Record] = (),
        around: Context | None = None,
        current: bool = False,
    ) -> None:
        self.tracer = tracer
        self.content = content
        self.graphs: dict[str, GraphSpans] = {}
        self._run_id = run_id
        self._name = name
        self._around = around
        self._current = current
        self._before: SpanContext | None = None
        self._forked = ""
        self._adrift: dict[tuple[str, Spot, str], tuple[OpenSource, float]] = {}
        self._last = 0.0
        self._met: set[type[Node]] = set()
        """The classes that bodies, dependencies and exceptions may know of."""
        self._all_known = False
        for record in past:
            self._met.update(_classes_in(record))
            self._all_known = self._all_known or isinstance(record, RunStarted)
        # Sync dependencies that ask an LM tell of it from their thread.
        self._lock = RLock()

    def write(self, record: Record) -> None:
        """Take in the next record."""
        with self._lock:
            self._take(record)
            self._last = max(self._last, record.at)

    def close(self) -> None:
        """End what is open of a run of which no more is heard: its process, or its event loop, was
        stopped in the middle of it."""
        with self._lock:
            self._end_life()

    def graph(self, record: Record) -> GraphSpans:
        """The graph a record is of. One that was begun before anybody looked, as when a run is
        resumed in the middle of it, begins with the source that runs it."""
        return self.graphs.get(record.path) or self._open(record.path, record.at)

    def doing(self, record: AnswerJudged | AnswerRestarted | LMUsed | TextArrived) -> OpenSpan:
        """What an LM was asked in the course of."""
        if record.path not in self.graphs:
            for (path, _, by), (source, _) in self._adrift.items():
                if (path, by) == (record.path, str(record.asker)):
                    return source
        return self.graph(record).doing(record.step, str(record.asker))

    def make_current(self, context: Context) -> None:
        """Have the code that a run goes on to see a context as the current one."""
        # A record is written by the task whose doings it tells of, so that setting it here does.
        # What was current before a graph began is set again when it ends.
        if self._current:
            contexts.attach(context)

    def may_quote(self) -> bool:
        """Whether content is wanted, and nothing in the run so far can hold a secret. Bodies,
        dependencies and exceptions say what they like, about whatever they have met; of a run whose
        beginning is not known, nobody knows what that was."""
        return self.content and self._all_known and may_show(self._met, following=True)

    def cast_off(self, path: str, spot: Spot, source: OpenSource, at: float) -> None:
        """Nobody waits for a source any more, so that it was cancelled; unless somebody elsewhere
        in the run has asked for the same value, and it ends as if nothing had happened."""
        self._adrift[path, spot, source.by] = source, at
        if len(self._adrift) > MOST_ADRIFT:
            oldest, since = self._adrift.pop(next(iter(self._adrift)))
            oldest.end(since, "cancelled")

    def found_adrift(self, path: str, spot: Spot, by: str) -> OpenSource | None:
        """A source that was cast off, and has ended after all."""
        return self._adrift.pop((path, spot, by), (None, 0.0))[0]

    def _take(self, record: Record) -> None:
        match record:
            case RunStarted():
                self._run_started(record)
            case RunEnded():
                self._run_ended(record)
            case RunForked():
                # What comes before is the other run's; this one begins when it is taken up.
                self._end_life()
                self._forked = record.parent
            case RunResumed():
                self._run_resumed(record)
            case StepStarted():
                self._step_started(record)
            case Returned():
                self.graph(record).end_step(record.step - 1, record.at)
            case Recalled():
                source_spans.recalled(self, record)
            case SourceStarted():
                source_spans.started(self, record)
            case SourceEnded():
                source_spans.ended(self, record)
            case ItemEnded():
                source_spans.item_ended(self, record)
            case GateOpened():
                source_spans.gate_opened(self, record)
            case ChoiceStarted():
                lm_spans.choice_started(self, record)
            case ChoiceMade():
                lm_spans.choice_made(self, record)
            case FillStarted():
                lm_spans.fill_started(self, record)
            case FillEnded():
                lm_spans.fill_ended(self, record)
            case AnswerJudged():
                lm_spans.answer_judged(self, record)
            case AnswerRestarted():
                lm_spans.answer_restarted(self, record)
            case TextArrived():
                lm_spans.text_arrived(self, record)
            case LMUsed():
                lm_spans.used(self, record)
            case _:
                pass

    def _run_started(self, record: RunStarted) -> None:
        self._met.add(type(record.node))
        if not record.path:
            self._run_id = self._run_id or record.run_id
            self._name = record.graph
            self._all_known = True
            self._begin_life(record.at, {})
            return
        again = self.graphs.pop(record.path, None)
        if again is not None:
            again.interrupt(record.at)
        self._open(record.path, record.at, record.graph)

    def _run_resumed(self, record: RunResumed) -> None:
        said: Attributes = {"bae.run.resumed": True}
        if record.changes:
            said["bae.run.changes"] = list(record.changes)
        self._begin_life(record.at, said)

    def _begin_life(self, at: float, attributes: Attributes) -> None:
        self._end_life()
        if self._current:
            self._around = contexts.get_current()
        self._open("", at).whole.span.set_attributes(attributes)

    def _end_life(self) -> None:
        self._flush_adrift()
        for graph in reversed(self.graphs.values()):
            graph.interrupt(self._last)
        self.graphs.clear()

    def _open(self, path: str, at: float, name: str = "") -> GraphSpans:
        said: Attributes = {"gen_ai.operation.name": "invoke_agent"}
        links: list[Link] = []
        if path:
            outer = self._place_of(path, at)
            around = outer.context
            if not name:
                name, at = outer.by, min(at, outer.at)
            said["bae.path"] = path
        else:
            name = self._name
            around = contexts.get_current() if self._around is None else self._around
            if self._before is not None:
                links.append(Link(self._before))
            if self._forked:
                said["bae.run.parent"] = self._forked
        if name:
            said["gen_ai.agent.name"] = name
        if self._run_id:
            said["bae.run.id"] = self._run_id
        title = f"invoke_agent {name}".strip()
        whole = OpenSpan(self.tracer, title, around, at, said, links=links)
        if not path:
            self._before = whole.span.get_span_context()
        graph = self.graphs[path] = GraphSpans(self.tracer, path, whole, self._met)
        return graph

    def _place_of(self, path: str, at: float) -> OpenSpan:
        """What a graph inside the run is inside of: the source that runs it."""
        before, _, last = path.rpartition("/")
        graph = self.graphs.get(before) or self._open(before, at)
        found = _PLACE.fullmatch(last)
        if found is None:
            return graph.whole
        number, node, field, route = int(found[1]), found[2], found[3], found[4]
        there = graph.sources.get((number, node, field, route))
        return there[-1] if there else graph.step_of(number) or graph.whole

    def _run_ended(self, record: RunEnded) -> None:
        path, graph = record.path, self.graph(record)
        for inside in [each for each in self.graphs if each != path and _is_in(each, path)]:
            self.graphs.pop(inside).interrupt(record.at)
        for spot, source in graph.let_go():
            self.cast_off(path, spot, source, record.at)
        if not path:
            self._flush_adrift()
        if record.gates:
            places = [f"{gate.node_type.__name__}.{gate.field_name}" for gate in record.gates]
            graph.whole.span.set_attribute("bae.gates", places)
        graph.end(record, content=self.may_quote())
        del self.graphs[path]
        self.make_current(graph.whole.around)

    def _step_started(self, record: StepStarted) -> None:
        graph, cls = self.graph(record), type(record.node)
        graph.end_step(record.step - 1, record.at)
        step = graph.step(record.step, cls, record.at)
        step.called = True
        graph.newest = cls
        for spot, source in graph.retire(record.step):
            self.cast_off(record.path, spot, source, record.at)
        plan = plan_of(cls)
        if plan.written:
            self.make_current(step.context)
            return
        self.make_current(graph.whole.around)
        if len(plan.offered) < 2:  # there is nothing to do or to choose
            graph.end_step(record.step, record.at)

    def _flush_adrift(self) -> None:
        for source, since in self._adrift.values():
            source.end(since, "cancelled")
        self._adrift.clear()


def _classes_in(record: Record) -> Iterator[type[Node]]:
    if isinstance(record, StepStarted | RunStarted | RunForked | Returned | ChoiceStarted):
        yield type(record.node)
    elif isinstance(record, SourceStarted | SourceEnded | Recalled):
        yield record.node_type
    elif isinstance(record, FillStarted):
        yield record.target


def _is_in(path: str, outer: str) -> bool:
    return not outer or path.startswith(f"{outer}/")


_PLACE: Final = re.compile(r"(\d+):(.+)\.([^.()\[\]]+)((?:\([^()]*\))*)(?:\[\d+\])?")
"""The last part of a path: step, node class, field, route, and the item of a map."""
