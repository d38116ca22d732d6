"""`RunTree`: the work of a run as a tree of graphs, steps, sources and questions. The tree grows
with each record of the run. In a display of a long run, old parts are dropped."""

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

MAX_ITEM_GRAPHS: Final = 4
"""How many items of a map keep their graphs in a `RunTree` with `keep`: the first items."""

Exit = Literal["body", "choice", "other"]
"""What decides which node comes next: the node's own body, or a choice by the LLM. With "other",
nothing has to be decided, and the way to the next node takes no time."""
WorkChange = Literal[
    "started",
    "complete",
    "waiting",
    "answered",
    "restarted",
    "round",
    "refused",
    "reported",
    "ended",
]
"""A change of work, as `RunTree.on_change` gets it:

- "started", "ended": the work starts or ends.
- "complete": the node of a step is complete.
- "waiting": a gate waits for a person.
- "answered": a question has an answer, which may be invalid.
- "restarted": the request of a question is sent again.
- "round": the LLM has answered in a conversation with tools.
- "refused": `Tools(accept=…)` has refused an answer.
- "reported": a tool has reported its progress.
"""


class RunTree:
    """The work of a run: its graphs by path, each with its steps. The run itself is the graph at
    the empty path.

    The tree calls `on_change` for each change of work. When work ends, its parts end first.

    For a display of long runs, pass `keep`. A graph then keeps about that many steps, the first and
    the last, and only the first items of a map keep their graphs.
    """

    def __init__(
        self, keep: int = 0, on_change: Callable[[WorkChange, Work], None] | None = None
    ) -> None:
        self.graphs: dict[str, GraphRun] = {}
        self.node_types: dict[type[Node], None] = {}
        """The node classes of the run so far, in the order of their first steps."""
        self.on_change = on_change
        self.replaying = True
        """Whether the current record was written by an earlier process. The owner of the tree sets
        it."""
        self.last = 0.0
        """The time of the newest record."""
        self._keep = keep
        self._begun: dict[Work, None] = {}
        """Work without outer work, such as the run, that has begun since all open work was last
        ended."""
        self._changed: dict[Work, None] = {}
        """Work that has begun or ended since the run was resumed. Empty with `keep`."""

    @property
    def run(self) -> GraphRun:
        """The run itself."""
        return self.graphs.get("") or self._new_graph("", self.last)

    def step(self, path: str, number: int) -> Step | None:
        """Return the step with this number in the graph at `path`; None if there is no such
        step."""
        graph = self.graphs.get(path)
        return None if graph is None else graph.steps.get(number)

    def source(self, place: Place) -> Source | None:
        """Return the work on the value at a place, which is a field or a `Dep` parameter."""
        step = self.step(place.path, place.step)
        source = None if step is None else step.sources.get((place.field, place.parameter))
        return source if source is not None and source.place.node == place.node else None

    def following(self, path: str, number: int) -> Node | Nothing | None:
        """Return the node of step `number`: complete, or the draft that a body returned. None means
        that the graph ended before this step. `NOTHING` means that no record has the node yet."""
        graph, step = self.graphs.get(path), self.step(path, number)
        if step is not None and (step.is_complete or isinstance(step.given, Returned)):
            return step.node
        has_ended = graph is not None and graph.outcome == "ended" and graph.end_step == number
        return None if has_ended else NOTHING

    def steps(self) -> Iterator[Step]:
        """Yield all steps of the run, with the steps of graphs inside it."""
        for graph in self.graphs.values():
            yield from graph.steps.values()

    def _every_part(self) -> Iterator[Work]:
        for graph in self.graphs.values():
            yield graph
            for step in graph.steps.values():
                yield from (step, *step.sources.values())

    def exit_of(self, path: str, node_type: type[Node]) -> Exit:
        """Return what decides which node comes after a node of this class. A subclass that reads
        runs without their code uses the stored shape of the class."""
        from bae.plan import plan_of

        plan = plan_of(node_type)
        return "body" if plan.written else "choice" if len(plan.offered) > 1 else "other"

    def may_resolve(self, path: str, node_type: type[Node]) -> bool:
        """Return whether the body of this class may have an LLM make the next node. The fields of
        that node are then resolved before the body returns."""
        from bae.plan import plan_of

        return plan_of(node_type).lm_parameter is not None

    def shared_key(self, place: Place, node_type: type[Node]) -> Hashable | None:
        """Return the key of the dependency at a place, if one call serves the whole run; else None.
        A subclass that reads runs without their code uses the stored shape of the class."""
        try:
            return shared_key(place, node_type)
        except KeyError:
            # A parameter of the function in `accept=`, or of a tool that a function returned in
            # the run: the plan of the class does not have it.
            return None

    # Find or add parts.

    def _find_or_make_graph(self, record: Record) -> GraphRun:
        graph = self.graphs.get(record.path)
        if graph is None:
            graph = self._new_graph(record.path, record.at)
            self._begin(graph, record.at)
        elif not graph.is_open and not graph.outcome and record.path:
            # The graph was interrupted, and no record says that it resumes. It resumes with the
            # tool call or source that it runs for.
            outer = graph.call or graph.source
            since = None if outer is None else outer.since
            self._resume(graph, record.at if since is None else since)
        return graph

    def _new_graph(self, path: str, at: float) -> GraphRun:
        """Add a graph, and the outer work for which no record has arrived."""
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
            step_place = Place(place.path, place.step, place.node)
            step = outer.steps[place.step] = Step(at, place=step_place, graph=outer)
            self._begin(step, at)
        kind = "dep" if place.item is None else "map"
        key = place.field, place.parameter
        source = step.sources.get(key)
        if source is None:
            source = self._find_or_make_source(step, key, step.node_type, kind, at)
            self._begin(source, at)
        graph.source = source
        outer.inner[path] = graph
        if place.item is None:
            source.graph = graph
        else:
            graph.item = self._find_or_make_item(source, place.item, at)
            graph.item.graph = graph
            graph.item.begin(at)
            self._note_begun(graph.item)
        return graph

    def _resume(self, graph: GraphRun, at: float) -> None:
        self._begin(graph, at)
        newest = graph.newest
        if newest is not None and newest.node is None:
            # The step has sources but no node yet: the body of the step before has not returned.
            newest = graph.steps.get(newest.number - 1)
        if newest is not None and newest.is_complete and self._exit(newest) == "body":
            # Its body is called again, unless the returned node is recorded.
            self._begin(newest, at)
            if newest.called is not None:
                self._begin(newest.called, at)

    def _exit(self, step: Step) -> Exit:
        # If the LLM fills the first node, the graph has no other node and runs no body.
        is_filled = step.number == 0 and step.fill is not None
        if step.node_type is None or is_filled:
            return "other"
        return self.exit_of(step.place.path, step.node_type)

    def _find_or_make_step(
        self,
        record: Record,
        number: int,
        node_type: type[Node] | None,
        *,
        leads: bool = False,
        begins: bool = True,
    ) -> Step:
        """Find or add a step of the record's graph. With `leads`, end the step before it, which has
        led to this step. With `begins`, begin the step unless it is open or complete."""
        graph = self._find_or_make_graph(record)
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
            self.node_types.setdefault(node_type)
        if begins and (is_new or not (step.is_open or step.is_complete)):
            self._begin(step, record.at)
        return step

    def _find_or_make_source(
        self,
        step: Step,
        key: tuple[str, str],
        node_type: type[Node] | None,
        kind: str,
        at: float,
    ) -> Source:
        """Find or add the source of a field and parameter. `node_type` is None if only the path of
        the source's graph is known. The class of the source is then `NoneType`."""
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

    def _find_or_make_item(self, source: Source, index: int, at: float) -> Item:
        item = source.items.get(index)
        if item is None:
            item = source.items[index] = Item(at, source=source, index=index)
        return item

    def _tool_call(self, graph: GraphRun, place: Place) -> ToolRun | None:
        """Return the tool call that work at a place belongs to; None if the place is not inside a
        call. The call is in the conversation that fills the place's node, or in a conversation that
        the body of the step before had."""
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

    def _find_or_make_question(
        self,
        record: Record,
        asker: Asker,
        offered: tuple[type[Node] | type[None], ...] = (),
    ) -> LMQuestion | None:
        """Find or add the question that a record is about; None if its asker is not in the tree.
        For a body or a function, this is its open question, or a new question."""
        after, graph = asker.kind in ("choice", "body"), self._find_or_make_graph(record)
        step = graph.steps.get(record.step - 1 if after else record.step)
        by: Step | Source | ToolRun | None = step
        if asker.kind == "source":
            source_place = Place(
                record.path, record.step, "", asker.field, asker.parameter, asker.item
            )
            by = self._tool_call(graph, source_place)
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

    # Begin and end work.

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
        if step is None or not step.is_complete:
            return
        if step.called is not None and step.node_type is not None:
            is_source = isinstance(record, SourceStarted | Recalled)
            if is_source and self.may_resolve(record.path, step.node_type):
                return  # its body may still be working
        for work in (step.called, step):
            if work is not None and work.is_open:
                self._end(work, record.at)

    def _close(self, work: Work, at: float, state: State) -> None:
        """End work and its open parts, in the given state. A part that waits for a person keeps the
        state "waiting"."""
        parts = [work]
        for part in parts:
            parts += part.begun or ()
            part.begun = None
        for part in reversed(parts):
            if part.is_open:
                self._end(part, at, "waiting" if part.state == "waiting" else state)

    # Drop parts.

    def _drop_graph(self, graph: GraphRun) -> None:
        for inner in [*graph.tree()]:
            self.graphs.pop(inner.path, None)
        self._leave_outer(graph)

    def _leave_outer(self, graph: GraphRun) -> None:
        outer = graph.call or graph.source
        if outer is not None:
            outer.step.graph.inner.pop(graph.path, None)

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
        """If a graph has more steps than `keep`, drop all but its first and last steps. Each call
        drops many steps, so few calls have to sort them."""
        if self._keep and len(graph.steps) > self._keep:
            for number in sorted(graph.steps)[self._keep // 6 : -(self._keep // 2)]:
                self._drop_step(graph, number)
                graph.dropped += 1


def find_call(node_type: type[Node], place: Place) -> tuple[CallPlan | None, bool]:
    """Return the call that computes the value at a place, and whether one call serves the whole
    run. The call is None for a gate and a recall. A call with arguments from the run never serves
    the whole run. Raises `KeyError` for an unknown field or parameter."""
    from bae.calls import find_input, is_by_value
    from bae.plan import plan_of

    source = find_input(plan_of(node_type).fields[place.field], place.parameter)
    if source is None:
        raise KeyError(place.parameter)
    return source.call, source.is_shared and not is_by_value(source)


def shared_key(place: Place, node_type: type[Node]) -> Hashable | None:
    """Return the key of the call that computes the value at a place, if one call serves the whole
    run; else None."""
    call, is_shared = find_call(node_type, place)
    return call.key if call is not None and is_shared else None
