"""`RunTree`: the work of a run while it grows. It finds or makes graphs, steps, sources and
questions, begins and ends them, and drops those that are no longer needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from types import NoneType
from typing import TYPE_CHECKING, Final, Literal, cast

from bae.place import Place
from bae.records import NOTHING, Asker, Nothing, Recalled, Record, Returned, SourceStarted
from bae.work import GraphRun, Item, LMQuestion, Source, State, Step, ToolRun, Work

if TYPE_CHECKING:
    from bae.calls import CallPlan
    from bae.node import Node

ITEMS_KEPT: Final = 4
"""For how many items of a map the graphs are kept, if `keep` is a bound."""

Exit = Literal["body", "choice", "other"]
"""How a node leads to the next: its own body, a choice by the LM, or a way that takes no time."""
WorkChange = Literal[
    "started",
    "whole",
    "waiting",
    "answered",
    "restarted",
    "round",
    "refused",
    "reported",
    "ended",
]
"""The changes of work: it starts and ends, a node is complete, a gate waits for a person, a
question is answered or its request is sent again, a round of a conversation with tools is answered,
`Tools(accept=…)` refuses its answer, a tool reports its progress."""


class RunTree:
    """The graphs of a run by path, with their work. The run itself is at the empty path.

    `on_change` is called with work that changes; parts end before the whole. `keep` bounds the
    number of steps that are kept of each graph, and the number of items of a map whose graphs are
    kept: for a display of long runs.
    """

    def __init__(
        self, keep: int = 0, on_change: Callable[[WorkChange, Work], None] | None = None
    ) -> None:
        self.graphs: dict[str, GraphRun] = {}
        self.met: dict[type[Node], None] = {}
        """The node classes of the run so far, in order."""
        self.on_change = on_change
        self.replaying = True
        """Whether the records were written by an earlier process; the owner sets it."""
        self.last = 0.0
        """The time of the newest record."""
        self._keep = keep
        self._begun: dict[Work, None] = {}
        """Work that has begun since everything was closed, and is part of nothing."""
        self._changed: dict[Work, None] = {}
        """Work that has begun or ended since the run was resumed; not used with `keep`."""

    @property
    def run(self) -> GraphRun:
        """The run itself."""
        return self.graphs.get("") or self._new_graph("", self.last)

    def step(self, path: str, number: int) -> Step | None:
        """A step of the run or of a graph inside it."""
        graph = self.graphs.get(path)
        return None if graph is None else graph.steps.get(number)

    def source(self, place: Place) -> Source | None:
        """The work on the value of a field, or of a parameter behind it."""
        step = self.step(place.path, place.step)
        source = None if step is None else step.sources.get((place.field, place.parameter))
        return source if source is not None and source.place.node == place.node else None

    def following(self, path: str, number: int) -> Node | Nothing | None:
        """The node that the node before step `number` led to: complete, or a draft that a body
        returned. None if the run ended there, or `NOTHING`."""
        graph, step = self.graphs.get(path), self.step(path, number)
        if step is not None and (step.whole or isinstance(step.given, Returned)):
            return step.node
        has_ended = graph is not None and graph.outcome == "ended" and graph.end_step == number
        return None if has_ended else NOTHING

    def steps(self) -> Iterator[Step]:
        """All steps, including those of graphs inside the run."""
        for graph in self.graphs.values():
            yield from graph.steps.values()

    def _every_part(self) -> Iterator[Work]:
        for graph in self.graphs.values():
            yield graph
            for step in graph.steps.values():
                yield from (step, *step.sources.values())

    def exit_of(self, path: str, node_type: type[Node]) -> Exit:
        """How a node of a class leads to the next. A run that is read without its code takes it
        from the stored shape of its classes."""
        from bae.plan import plan_of

        plan = plan_of(node_type)
        return "body" if plan.written else "choice" if len(plan.offered) > 1 else "other"

    def may_resolve(self, path: str, node_type: type[Node]) -> bool:
        """Whether the body of a node may have an LM make the next node, whose fields are then
        resolved before the body returns."""
        from bae.plan import plan_of

        return plan_of(node_type).lm_parameter is not None

    def shared_key(self, place: Place, node_type: type[Node]) -> Hashable | None:
        """The key of the dependency behind a place, if it is called once for the whole run. A run
        that is read without its code takes it from the stored shape of its classes."""
        try:
            return shared_key(place, node_type)
        except KeyError:
            return None  # behind `accept=`, or a tool that was picked: only the run knows the place

    # Finding or making the parts.

    def _graph(self, record: Record) -> GraphRun:
        graph = self.graphs.get(record.path)
        if graph is None:
            graph = self._new_graph(record.path, record.at)
            self._begin(graph, record.at)
        elif not graph.is_open and not graph.outcome and record.path:
            # It was cut off, and no record resumes it: it begins with its source.
            around = graph.call or graph.source
            since = None if around is None else around.since
            self._resume(graph, record.at if since is None else since)
        return graph

    def _new_graph(self, path: str, at: float) -> GraphRun:
        """A graph that begins, or that began before the first record of it here."""
        graph = self.graphs[path] = GraphRun(at, path=path)
        place = Place.parse(path) if path else None
        if place is None:
            return graph
        outer = self.graphs.get(place.path)
        if outer is None:
            outer = self._new_graph(place.path, at)
            self._begin(outer, at)
        call = self._tool_call(outer, place)
        if call is not None:
            graph.call, call.graph, outer.inner[path] = call, graph, graph
            return graph
        step = outer.steps.get(place.step)
        if step is None:
            where = Place(place.path, place.step, place.node)
            step = outer.steps[place.step] = Step(at, place=where, graph=outer)
            self._begin(step, at)
        kind = "dep" if place.item is None else "map"
        key = place.field, place.parameter
        source = step.sources.get(key)
        if source is None:
            source = self._source(step, key, step.node_type, kind, at)
            self._begin(source, at)
        graph.source = source
        outer.inner[path] = graph
        if place.item is None:
            source.graph = graph
        else:
            graph.item = self._item(source, place.item, at)
            graph.item.graph = graph
            graph.item.begin(at)
            self._note_begun(graph.item)
        return graph

    def _resume(self, graph: GraphRun, at: float) -> None:
        self._begin(graph, at)
        newest = graph.newest
        if newest is not None and newest.node is None:
            # Sources for the node of a body were begun, and the body has not returned.
            newest = graph.steps.get(newest.number - 1)
        if newest is not None and newest.whole and self._exit(newest) == "body":
            # Its body is called again, or its successor is known.
            self._begin(newest, at)
            if newest.called is not None:
                self._begin(newest.called, at)

    def _exit(self, step: Step) -> Exit:
        # A graph with only one node has it filled: its body is not run.
        is_filled = step.number == 0 and step.fill is not None
        if step.node_type is None or is_filled:
            return "other"
        return self.exit_of(step.place.path, step.node_type)

    def _step(
        self,
        record: Record,
        number: int,
        node_type: type[Node] | None,
        *,
        leads: bool = False,
        begins: bool = True,
    ) -> Step:
        """A step of the graph of a record. If it `leads` on, the step before it is done."""
        graph = self._graph(record)
        if leads:
            self._lead_on(record, graph.steps.get(number - 1))
        step = graph.steps.get(number)
        is_new = step is None
        if step is None:
            place = Place(graph.path, number)
            step = graph.steps[number] = Step(record.at, place=place, graph=graph)
        if node_type is not None and step.node_type is not node_type:
            step.node_type = node_type
            step.place = step.place._replace(node=node_type.__name__)
            self.met.setdefault(node_type)
        if begins and (is_new or not (step.is_open or step.whole)):
            self._begin(step, record.at)
        return step

    def _source(
        self,
        step: Step,
        key: tuple[str, str],
        node_type: type[Node] | None,
        kind: str,
        at: float,
    ) -> Source:
        """The source of a field and parameter. Its class is `NoneType` if only the path of a graph
        that runs for it is known."""
        source, cls = step.sources.get(key), cast("type[Node]", node_type or NoneType)
        if source is None or source.node_type not in (cls, NoneType):
            if source is not None and source.is_open:
                self._end(source, at, "cancelled")
            place = step.place._replace(field=key[0], parameter=key[1])
            source = step.sources[key] = Source(
                at, place=place, node_type=cls, step=step, kind=kind
            )
        source.node_type = cls
        return source

    def _item(self, source: Source, index: int, at: float) -> Item:
        item = source.items.get(index)
        if item is None:
            item = source.items[index] = Item(at, source=source, index=index)
        return item

    def _tool_call(self, graph: GraphRun, place: Place) -> ToolRun | None:
        """The tool call that work at a place belongs to: in the conversation that fills the node
        there, or in a conversation of the body before it."""
        if place.item is None or not place.parameter:
            return None
        for number, is_before in ((place.step, False), (place.step - 1, True)):
            step = graph.steps.get(number)
            for (asker, _), loop in () if step is None else step.loops.items():
                if (asker.kind == "body") is is_before and loop.field_name == place.field:
                    for call in loop.calls.values():
                        if call.number == place.item:
                            return call
        return None

    def _question(
        self,
        record: Record,
        asker: Asker,
        offered: tuple[type[Node] | type[None], ...] = (),
    ) -> LMQuestion | None:
        """The question of the asker of a record; for a body or a function, its last question, until
        that is answered."""
        after, graph = asker.kind in ("choice", "body"), self._graph(record)
        step = graph.steps.get(record.step - 1 if after else record.step)
        by: Step | Source | ToolRun | None = step
        if asker.kind == "source":
            where = Place(record.path, record.step, "", asker.field, asker.parameter, asker.item)
            by = self._tool_call(graph, where)
            if by is None and step is not None:
                by = step.sources.get((asker.field, asker.parameter))
        if by is None:
            return None
        question: LMQuestion | None
        if asker.kind == "choice" and isinstance(by, Step):
            question = by.choice
        elif asker.kind == "fill" and isinstance(by, Step):
            question = by.fill
        else:
            question = by.asked[-1] if by.asked and by.asked[-1].is_open else None
        if question is None:
            question = LMQuestion(record.at, asker=asker, asked_by=by, offered=offered)
            if asker.kind == "choice" and isinstance(by, Step):
                by.choice = question
            elif asker.kind == "fill" and isinstance(by, Step):
                by.fill, question.loop = question, by.loops.get((asker, ""))
            else:
                by.asked.append(question)
            self._begin(question, record.at)
        return question

    # Beginning and ending.

    def _begin(self, work: Work, at: float) -> None:
        started = work.since is None
        work.begin(at)
        self._note_begun(work)
        if started:
            work.resumed = False
            self._change("started", work)

    def _note_begun(self, work: Work | None) -> None:
        if not self._keep:
            self._changed[cast(Work, work)] = None
        while work is not None:
            outer = work.inside
            if isinstance(work, GraphRun) and work.item is not None:
                outer = work.item
            begun = self._begun if outer is None else outer.begun
            if begun is None:
                begun = cast(Work, outer).begun = {}
            elif work in begun:
                return
            begun[work] = None
            work = outer

    def _end(
        self, work: Work, at: float, state: State = "done", error: BaseException | None = None
    ) -> None:
        if not self._keep:
            self._changed[work] = None
        work.end(at, state, error)
        work.resumed = work.resumed or self.replaying
        self._change("ended", work)

    def _change(self, change: WorkChange, work: Work) -> None:
        if self.on_change is not None:
            self.on_change(change, work)

    def _lead_on(self, record: Record, step: Step | None) -> None:
        """End a step whose node has led to the next."""
        if step is None or not step.whole:
            return
        if step.called is not None and step.node_type is not None:
            is_source = isinstance(record, SourceStarted | Recalled)
            if is_source and self.may_resolve(record.path, step.node_type):
                return  # its body may still be working
        for work in (step.called, step):
            if work is not None and work.is_open:
                self._end(work, record.at)

    def _close(self, work: Work, at: float, state: State) -> None:
        """Close work and its parts: nothing works on them any more."""
        every = [work]
        for each in every:
            every += each.begun or ()
            each.begun = None
        for each in reversed(every):
            if each.is_open:
                self._end(each, at, "waiting" if each.state == "waiting" else state)

    # What is dropped.

    def _drop_graph(self, graph: GraphRun) -> None:
        for each in [*graph.tree()]:
            self.graphs.pop(each.path, None)
        self._leave_outer(graph)

    def _leave_outer(self, graph: GraphRun) -> None:
        around = graph.call or graph.source
        if around is not None:
            around.step.graph.inner.pop(graph.path, None)

    def _drop_step(self, graph: GraphRun, number: int) -> None:
        step = graph.steps.pop(number)
        (graph.begun or {}).pop(step, None)
        for source in step.sources.values():
            for inner in source.graphs:
                self._drop_graph(inner)
        for call in step.tool_calls:
            if call.graph is not None:
                self._drop_graph(call.graph)

    def _drop_old_steps(self, graph: GraphRun) -> None:
        """Keep the first and the last steps. Many are dropped at once, so that is rarely done."""
        if self._keep and len(graph.steps) > self._keep:
            for number in sorted(graph.steps)[self._keep // 6 : -(self._keep // 2)]:
                self._drop_step(graph, number)
                graph.dropped += 1


def call_behind(node_type: type[Node], place: Place) -> tuple[CallPlan | None, bool]:
    """The call for the value at a place, and whether it is made once for the whole run, which it is
    not with arguments from the run. A gate and a recall call nothing. An unknown field or parameter
    is a KeyError."""
    from bae.calls import asked_at, is_by_value
    from bae.plan import plan_of

    asked = asked_at(plan_of(node_type).fields[place.field], place.parameter)
    if asked is None:
        raise KeyError(place.parameter)
    return asked.call, asked.is_shared and not is_by_value(asked)


def shared_key(place: Place, node_type: type[Node]) -> Hashable | None:
    """The key of the call behind a place, if it is called once for the whole run."""
    call, is_shared = call_behind(node_type, place)
    return call.key if call is not None and is_shared else None
