"""`History`: reads the records of a run in order and builds a tree of the run's work. The tree has
graphs, steps, sources and questions to LMs, with their places and times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from bae import records as kinds
from bae.place import Place
from bae.records import NOTHING, Asker, Record, RecordedError, Unstored
from bae.result import UsageCount
from bae.run_tree import MAX_ITEM_GRAPHS, RunTree, WorkChange
from bae.sources import find_source_kind
from bae.tools import call_key
from bae.work import (
    NOTHING_USED,
    BodyCall,
    GraphRun,
    LMQuestion,
    Source,
    Span,
    State,
    Step,
    ToolLoop,
    ToolRun,
    Work,
    call_number,
)

if TYPE_CHECKING:
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.usage import Usage

_Handler = Callable[[Any, Any], None]
_HANDLERS: Final[dict[type[Record], _Handler]] = {}
"""The method of `History` for each kind of record."""


def _handles(*of: type[Record]) -> Callable[[_Handler], _Handler]:
    def register(handler: _Handler) -> _Handler:
        _HANDLERS.update(dict.fromkeys(of, handler))
        return handler

    return register


class History(RunTree):
    """The work of a run, according to the records that were added so far."""

    def __init__(
        self,
        records: Iterable[Record] = (),
        *,
        keep: int = 0,
        keep_texts: bool = False,
        on_change: Callable[[WorkChange, Work], None] | None = None,
    ) -> None:
        super().__init__(keep, on_change)
        self.texts: dict[Place, str] = {}
        """The text that has streamed in at each place, without void text. Empty unless `keep_texts`
        is set."""
        self._keeps_texts = keep_texts
        self.run_id = ""
        self.shared: dict[Hashable, Source] = {}
        """The newest source with a value for each dependency that is called once for the whole run,
        by the key of the dependency."""
        self.shared_graphs: dict[Hashable, str] = {}
        """The path of each graph that runs once for the whole run, by the key of the graph."""
        self.shared_askers: dict[Hashable, Source] = {}
        """The newest started source for each dependency that is called once for the whole run. Its
        function may have asked an LM."""
        self.shared_calls: dict[Hashable, list[tuple[int, BaseException | None]]] = {}
        """The ended calls of each dependency that is called once for the whole run: the number of
        the record, and the error if the call failed. A failed dependency is called again."""
        self.failed_keys: set[Hashable] = set()
        """The keys of dependencies whose newest call failed."""
        self.live_keys: set[Hashable] = set()
        """The keys of dependencies with a value that no journal stores."""
        self.called_outside: dict[Hashable, kinds.CallEnded] = {}
        """The newest call of each dependency for a field of a class outside the graph, by the key
        of the dependency. Calls with arguments from the run are in `calls_outside`."""
        self.calls_outside: dict[tuple[str, ...], kinds.CallEnded] = {}
        """All other calls for fields of classes outside the graph, by graph, place, function and
        arguments. The values are in stored form, because only the field or parameter that uses a
        value knows its type."""
        self.gates: dict[str, Source] = {}
        """The source of each gate that was opened, by the gate's address."""
        self.opened: dict[str, float] = {}
        """The time when each gate was first opened, by the gate's address."""
        self.turn: kinds.TurnStarted | None = None
        """The start of the run as a turn of a thread. None if the run belongs to no thread."""
        self.message_count = 0
        """How many messages people have sent to LMs."""
        self.count = 0
        """How many records were added."""
        self.forks: list[kinds.RunForked] = []
        """The forks that led to this run, the oldest first."""
        self.changes: list[kinds.RunResumed] = []
        """The records of each time that the run was resumed."""
        self.lives: list[Span] = []
        """The periods in which a process worked on the run."""
        self.alive = False
        """Whether a process works on the run, according to the records."""
        self.complete_steps = 0
        """How many nodes are complete, including the nodes of graphs inside the run."""
        self._shared_paths: dict[str, Hashable] = {}
        self._usage = UsageCount()
        for record in records:
            self.add(record)
        self.replaying = False

    @property
    def usage(self) -> Usage:
        """The usage of all LM calls, including calls of interrupted questions."""
        return self._usage.total()

    @property
    def seconds(self) -> float:
        """How many seconds processes have worked on the run."""
        return sum(life.seconds for life in self.lives)

    def add(self, record: Record) -> None:
        """Add the next record to the tree."""
        self._usage.take(record)
        if not self.alive and not isinstance(record, kinds.RunForked | kinds.RunResumed):
            self._begin_life(record.at)
        _HANDLERS[type(record)](self, record)
        self.count += 1
        self.last = record.at
        if not isinstance(record, kinds.RunForked):
            self._extend_life(record.at)

    def stop(self, at: float | None = None, state: State = "interrupted") -> None:
        """End all open work with `state`, at the time `at` or by default at the last record."""
        at = self.last if at is None else at
        if self.alive:
            self._extend_life(at)
        for work in [*self._begun]:
            self._close(work, at, state)
        self._begun.clear()

    def forget_graph(self, path: str) -> None:
        """Remove the earlier work of the graph at `path`, because the graph starts again. Graphs
        inside this graph are removed too, except graphs that run once for the whole run: other
        fields use their results."""
        graph = self.graphs.get(path)
        forgotten = [] if graph is None else [graph]
        for graph_run in forgotten:
            inner_runs = graph_run.inner.values()
            forgotten += [inner for inner in inner_runs if inner.path not in self._shared_paths]
            self._leave_outer(graph_run)
            self.graphs.pop(graph_run.path, None)
            self._close(graph_run, self.last, "interrupted")

    def _begin_life(self, at: float) -> None:
        if self.alive:
            self.stop()
        self.alive = True
        self.lives.append(Span(at, at))

    def _extend_life(self, at: float) -> None:
        if self.lives:
            start = self.lives[-1].start
            self.lives[-1] = Span(start, max(start, at))

    # One method for each kind of record.

    @_handles(kinds.RunStarted)
    def _add_run_started(self, record: kinds.RunStarted) -> None:
        if record.path:
            earlier = self.graphs.get(record.path)
            if earlier is not None and (earlier.steps or earlier.outcome):
                self.forget_graph(record.path)
            if record.path in self._shared_paths:
                self.shared_graphs[self._shared_paths[record.path]] = record.path
        else:
            self.run_id = record.run_id
        graph = self.graphs.get(record.path) or self._new_graph(record.path, record.at)
        graph.name, graph.start, graph.max_iters = record.graph, record.node, record.max_iters
        graph.started = record.at
        self._begin(graph, record.at)
        step = self._find_or_make_step(record, 0, type(record.node))
        step.node, step.given = record.node, record

    @_handles(kinds.StepStarted)
    def _add_step_started(self, record: kinds.StepStarted) -> None:
        node = cast("Node | None", record.node)  # None if the run is read without its code
        step = self._find_or_make_step(
            record, record.step, None if node is None else type(node), leads=True
        )
        self.complete_steps += not step.is_complete
        step.is_complete, step.completed_at, step.factory_fields = True, record.at, record.made
        step.completing_record = self.count
        if node is not None:
            if step.node is None:
                step.given = record
            step.node = node
        self._change("complete", step)
        for source in step.sources.values():
            if source.is_open:  # a default was used; another node may still wait for the value
                self._end(source, record.at, "cancelled")
        leads_on = self._exit(step)
        if leads_on == "body":
            step.called = step.called or BodyCall(record.at, step=step)
            self._begin(step.called, record.at)
        elif leads_on != "choice":
            self._end(step, record.at)
        self._drop_old_steps(step.graph)

    @_handles(kinds.Returned)
    def _add_returned(self, record: kinds.Returned) -> None:
        step = self._find_or_make_step(record, record.step, type(record.node), leads=True)
        step.node, step.given = record.node, record

    @_handles(kinds.RunForked)
    def _add_run_forked(self, record: kinds.RunForked) -> None:
        """Start a fork: the earlier records belong to the parent run. The fork's own work begins
        when it is resumed."""
        self.forks.append(record)
        self.stop()
        self.alive = False
        step = self._find_or_make_step(record, record.step, type(record.node), begins=False)
        graph, number = step.graph, record.step + 1
        while (dropped := graph.steps.get(number)) is not None:
            self.complete_steps -= sum(part.is_complete for part in dropped.tree())
            self._drop_step(graph, number)
            number += 1
        graph.outcome, graph.end_step = "", -1
        self.complete_steps += not step.is_complete
        self._changed[step] = None
        step.replaced, step.forked = step.replaced or step.node, record
        step.node, step.is_complete, step.completed_at = record.node, True, record.at
        step.completing_record = self.count
        step.choice, step.asked, step.loops = None, [], {}

    @_handles(kinds.RunResumed)
    def _add_run_resumed(self, record: kinds.RunResumed) -> None:
        self._begin_life(record.at)
        self.changes.append(record)
        for work in self._every_part() if self._keep else self._changed:
            if isinstance(work, Step):
                work.resumed, work.error = work.is_complete, None
                if self.following(work.place.path, work.number + 1) is NOTHING:
                    work.failed.clear()  # the body of the step is called again
            elif isinstance(work, Source):
                work.resumed = work.state == "done"
            elif isinstance(work, GraphRun) and work.outcome != "ended":
                work.outcome, work.error, work.end_error = "", None, None
        self._changed = {}
        self._resume(self.run, record.at)

    @_handles(kinds.RunEnded)
    def _add_run_ended(self, record: kinds.RunEnded) -> None:
        graph, at = self._find_or_make_graph(record), record.at
        graph.outcome, graph.end_step, graph.end_error = record.outcome, record.step, record.error
        graph.gates = record.gates
        state: State = "done" if record.outcome == "ended" else record.outcome
        steps: State = "cancelled" if record.outcome == "failed" else state
        failure = record.error if record.outcome == "failed" else None
        failed_step = _find_failed_step(graph, record.step) if record.outcome == "failed" else None
        if failed_step is not None:
            for work in (failed_step.choice, failed_step.fill, failed_step.called):
                if work is not None and work.is_open:
                    self._end_calls(failed_step, at, failure)
                    self._end(work, at, "failed", failure)
            failed_step.begin(at)  # reopen a closed step, so that this failure ends it
            self._end(failed_step, at, "failed", failure)
        for step in cast("list[Step]", [*(graph.begun or ())]):
            if step.called is not None and step.called.is_open:
                self._end(step.called, at, steps)
            for part in [*(step.begun or ())]:
                waits = isinstance(part, LMQuestion) and part.waits
                self._close(part, at, "waiting" if waits else "cancelled")
            step.begun = None
            # The dependencies of the step were started early, but the run ended before the step.
            is_unused = record.outcome == "ended" and step.node is None
            if step.is_open:
                self._end(step, at, "cancelled" if is_unused else steps)
                if is_unused:
                    self._drop_step(graph, step.number)
        graph.begun = None
        self._end(graph, at, state, failure)
        if graph.item is not None and record.outcome != "ended":
            self._end(graph.item, at, state, failure)
        if graph.call is not None and record.outcome == "waiting":
            self._end(graph.call, at, state)
        if not record.path:
            self.alive = False

    def _end_calls(self, step: Step, at: float, error: BaseException | None) -> None:
        """End the tool calls in progress of a step that has failed. If there are several, the
        `call_id` of the error names the failed call, and the other calls are cancelled."""
        calls = [call for question in step.questions for call in question.open_calls]
        failed_id = getattr(error, "call_id", "") or (calls[0].id if len(calls) == 1 else "")
        for call in calls:
            for part in [*(call.begun or ())]:
                self._close(part, at, "cancelled")
            if call.id == failed_id:
                self._end(call, at, "failed", error)
            else:
                self._end(call, at, "cancelled")

    @_handles(kinds.SourceStarted)
    def _add_source_started(self, record: kinds.SourceStarted) -> None:
        previous = self._find_or_make_graph(record).steps.get(record.step - 1)
        # While the LM fills a node, the dependencies of its only successor start early.
        may_be_early = find_source_kind(record.source).starts_early
        is_early = may_be_early and previous is not None and previous.fill is not None
        step = self._find_or_make_step(record, record.step, record.node_type, leads=not is_early)
        key = record.field, record.parameter
        source = self._find_or_make_source(step, key, record.node_type, record.source, record.at)
        source.started = record.at
        if source.kind != record.source:  # changed code gave the field another source
            source.gate = source.origin = None
        if source.state == "done":
            source.items, source.items_done = {}, 0
        opened = self.gates.get(str(source.place)) if self.gates else None
        if opened is not None:  # opened before a resume, perhaps in a graph that starts again
            source.gate = opened.gate
        source.kind, source.by, source.value = record.source, record.by, None
        source.is_used = False
        self._begin(source, record.at)
        shared = self.shared_key(source.place, record.node_type)
        if shared is not None:
            self._shared_paths[str(source.place)] = shared
            # No journal stores the old value, so the source computes the value again.
            if self.shared.get(shared) is source:
                del self.shared[shared]
            self.shared_askers[shared] = source

    @_handles(kinds.SourceEnded)
    def _add_source_ended(self, record: kinds.SourceEnded) -> None:
        step = self._find_or_make_step(record, record.step, record.node_type)
        key, error = (record.field, record.parameter), record.error
        source = self._find_or_make_source(step, key, record.node_type, record.source, record.at)
        source.by, source.took, source.called_at = record.by, record.seconds, record.called_at
        shared = self.shared_key(source.place, record.node_type)
        if shared is not None:
            self.shared_calls.setdefault(shared, []).append((self.count, error))
        if error is None:
            source.value = record.value
            source.started = source.started if source.since is not None else record.at
            self._end(source, record.at)
            if shared is not None:
                self.shared[shared] = source
                self.failed_keys.discard(shared)
                is_live = isinstance(record.value, Unstored)
                (self.live_keys.add if is_live else self.live_keys.discard)(shared)
        elif is_waiting(error):
            self._end(source, record.at, "waiting")
        else:
            self._end(source, record.at, "failed", error)
            if shared is not None:
                self.failed_keys.add(shared)

    @_handles(kinds.CallEnded)
    def _add_call_ended(self, record: kinds.CallEnded) -> None:
        shared, at, by = record.key, record.at, record.by
        if isinstance(record.value, Unstored):
            return
        if shared is None or record.arguments:
            name = record.graph, record.place, record.function, record.arguments
            self.calls_outside[name] = record
            return
        # The asker is a function for a field of this step, or the body of the step before.
        asked_by = self.step(record.path, record.step) or self.step(record.path, record.step - 1)
        step = asked_by or self._find_or_make_step(record, record.step, None, begins=False)
        cls, field = record.node_type, record.field
        place = Place(record.path, record.step, cls.__name__, field, record.parameter)
        source = Source(at, place=place, node_type=cls, step=step, kind="dep", by=by)
        source.value, source.took = record.value, record.seconds
        source.end(at)
        self.shared_calls.setdefault(shared, []).append((self.count, None))
        self.shared[shared], self.called_outside[shared] = source, record
        self.failed_keys.discard(shared)
        self.live_keys.discard(shared)

    @_handles(kinds.ClassMet)
    def _add_class_met(self, record: kinds.ClassMet) -> None:
        self.node_types.setdefault(record.node_type)

    @_handles(kinds.ItemEnded)
    def _add_item_ended(self, record: kinds.ItemEnded) -> None:
        step = self._find_or_make_step(record, record.step, record.node_type)
        source = self._find_or_make_source(
            step, (record.field, ""), record.node_type, "map", record.at
        )
        item = self._find_or_make_item(source, record.index, record.at)
        item.value = record.value
        source.items_done += item.state != "done"
        self._end(item, record.at)
        if self._keep and record.index >= MAX_ITEM_GRAPHS and item.graph is not None:
            self._drop_graph(item.graph)
            item.graph = item.begun = None

    @_handles(kinds.Recalled)
    def _add_recalled(self, record: kinds.Recalled) -> None:
        step = self._find_or_make_step(record, record.step, record.node_type, leads=True)
        key = record.field, record.parameter
        source = self._find_or_make_source(step, key, record.node_type, "recall", record.at)
        source.value, source.origin = record.value, record.origin
        self._end(source, record.at)

    @_handles(kinds.TurnStarted)
    def _add_turn_started(self, record: kinds.TurnStarted) -> None:
        self.turn = record

    @_handles(kinds.TurnsShown)
    def _add_turns_shown(self, record: kinds.TurnsShown) -> None:
        step = self._find_or_make_step(record, record.step, record.node_type, leads=True)
        key = record.field, ""
        source = self._find_or_make_source(step, key, record.node_type, "thread", record.at)
        source.value, source.turns = record.value, record
        self._end(source, record.at)

    @_handles(kinds.GateOpened)
    def _add_gate_opened(self, record: kinds.GateOpened) -> None:
        gate = record.gate
        if gate.parameter:
            source = self._make_call_gate(record, gate)
        else:
            step = self._find_or_make_step(record, record.step, gate.node_type)
            source = self._find_or_make_source(
                step, (gate.field_name, ""), gate.node_type, "gate", record.at
            )
        self._begin(source, record.at)
        source.by, source.gate, source.state = gate.question, gate, "waiting"
        self.gates[gate.address] = source
        self.opened.setdefault(gate.address, record.at)
        self._change("waiting", source)

    def _make_call_gate(self, record: Record, gate: OpenGate) -> Source:
        """Return a source for the gate of a tool call. The source is not among the sources of the
        step, because the LM fills the field."""
        gate_call = self.find_gate_call(Place.parse(gate.address))
        step = self._find_or_make_graph(record).steps.get(
            record.step if gate_call is None else gate_call[0]
        )
        if step is None:
            step = self._find_or_make_step(record, record.step, gate.node_type)
        place = Place(record.path, record.step, gate.node_type.__name__, gate.field_name)
        place = place._replace(parameter=f"{gate.parameter}({gate.key})")
        source = Source(record.at, place=place, node_type=gate.node_type, step=step, kind="gate")
        if gate_call is not None:
            _, loop, call = gate_call
            loop.gates.setdefault(call["id"], []).append(source)
            if call["id"] in loop.calls:
                loop.calls[call["id"]].state = "waiting"
        return source

    def find_gate_call(self, place: Place | None) -> tuple[int, ToolLoop, Mapping[str, Any]] | None:
        """Return the tool call that the gate at a place asks about: the step of the conversation,
        the conversation, and the call. None if there is no such call."""
        if place is None or len(place.parameters) < 3:
            return None
        _, id, *_, key = place.parameters
        # If a body asks the LM to make the next node, the step of the body has the conversation.
        for number in (place.step, place.step - 1):
            step = self.step(place.path, number)
            for (asker, question), loop in () if step is None else step.loops.items():
                call = loop.call(id) or {"name": "", "arguments": None}
                if call_key(asker, question, call["name"], call["arguments"]) == key:
                    return number, loop, call
        return None

    @_handles(kinds.ChoiceStarted)
    def _add_choice_started(self, record: kinds.ChoiceStarted) -> None:
        step = self._find_or_make_step(record, record.step - 1, type(record.node))
        step.choice = None
        self._find_or_make_question(record, Asker("choice", type(record.node)), record.offered)

    @_handles(kinds.ChoiceMade)
    def _add_choice_made(self, record: kinds.ChoiceMade) -> None:
        step = self._find_or_make_step(record, record.step - 1, type(record.node))
        choice = self._find_or_make_question(record, Asker("choice", type(record.node)))
        if choice is not None:
            choice.chosen, choice.took = record.chosen, record.seconds
            choice.with_fields = not record.seconds and record.usage == NOTHING_USED
            choice.usage += record.usage
            self._end(choice, record.at)
        self._end(step, record.at)

    @_handles(kinds.FillStarted)
    def _add_fill_started(self, record: kinds.FillStarted) -> None:
        step = self._find_or_make_step(record, record.step, record.target, leads=True)
        step.fill = None
        self._find_or_make_question(record, Asker("fill", record.target))

    @_handles(kinds.FillEnded)
    def _add_fill_ended(self, record: kinds.FillEnded) -> None:
        step = self._find_or_make_step(record, record.step, type(record.node))
        fill = self._find_or_make_question(record, Asker("fill", type(record.node)))
        step.node, step.filled = record.node, record
        question = step.filled_by
        if fill is not None and question is not None:
            fill.took = question.took = record.seconds
            question.usage += record.usage
            self._end(fill, record.at)

    @_handles(kinds.AnswerBegan)
    def _add_answer_began(self, record: kinds.AnswerBegan) -> None:
        question = self._find_or_make_question(record, record.asker)
        if question is not None:
            question.retry, question.text_since = None, question.text_since or record.at

    @_handles(kinds.FieldText)
    def _add_field_text(self, record: kinds.FieldText) -> None:
        if self._keeps_texts:
            self.texts[record.place] = self.texts.get(record.place, "") + record.delta
        question = self._find_or_make_question(record, record.asker)
        if question is not None:
            place, texts = record.place, question.texts
            texts[place] = texts.get(place, "") + record.delta
            question.text_place = place

    @_handles(kinds.Thinking)
    def _add_thinking(self, record: kinds.Thinking) -> None:
        question = self._find_or_make_question(record, record.asker)
        if question is not None:
            question.thoughts += record.delta

    @_handles(kinds.TextVoided)
    def _add_text_voided(self, record: kinds.TextVoided) -> None:
        for place in record.places:
            self.texts.pop(place, None)
        question = self._find_or_make_question(record, record.asker)
        if question is not None:
            for place in record.places:
                if question.texts.pop(place, None) is None:  # the text is the model's thinking
                    question.thoughts = ""
            if question.text_place not in question.texts:
                question.text_place = None

    @_handles(kinds.AnswerJudged, kinds.AnswerRestarted, kinds.LMUsed)
    def _add_to_question(
        self, record: kinds.AnswerJudged | kinds.AnswerRestarted | kinds.LMUsed
    ) -> None:
        """Add a record about a question in progress."""
        question = self._find_or_make_question(record, record.asker)
        if question is None:
            return
        match record:
            case kinds.AnswerJudged():
                question.answers.append(record)
                self._change("answered", question)
                question.end_answer()
            case kinds.AnswerRestarted():
                question.restarts.append(record)
                question.end_answer()
                question.retry = record
                self._change("restarted", question)
            case kinds.LMUsed():
                question.usage += record.usage
                if record.asker.kind in ("body", "source"):
                    self._end(question, record.at)

    @_handles(kinds.ToolsOffered)
    def _add_tools_offered(self, record: kinds.ToolsOffered) -> None:
        loop = self._find_or_make_loop(record)
        if loop is not None:
            loop.target, loop.field_name, loop.tools = record.target, record.field, record.tools
            loop.asked = loop.asked or record.asked

    @_handles(kinds.RoundMade)
    def _add_round_made(self, record: kinds.RoundMade) -> None:
        loop, question = (
            self._find_or_make_loop(record),
            self._find_or_make_question(record, record.asker),
        )
        if loop is None or question is None:
            return
        loop.rounds.append(record)
        for call in (*record.ran, *record.calls):
            tool_run = self._find_or_make_call(record, loop, question, call["id"], call["name"])
            tool_run.round = record.number
            if isinstance(call["arguments"], dict):
                tool_run.arguments = cast("dict[str, Any]", call["arguments"])
        for call in record.ran:
            tool_run = loop.calls[call["id"]]
            tool_run.result, tool_run.tool_error, tool_run.is_native = (
                call.get("result"),
                call.get("error"),
                True,
            )
            tool_run.state, tool_run.ended = "done", record.at
        self._change("round", question)
        question.end_answer()

    @_handles(kinds.RoundReplied)
    def _add_round_replied(self, record: kinds.RoundReplied) -> None:
        loop, question = (
            self._find_or_make_loop(record),
            self._find_or_make_question(record, record.asker),
        )
        self.message_count += record.kind == "told"
        if loop is not None:
            loop.replies.append(record)
        if record.kind == "refused" and question is not None and question.loop is loop:
            self._change("refused", question)

    @_handles(kinds.ToolStarted)
    def _add_tool_started(self, record: kinds.ToolStarted) -> None:
        call = self._store_call_record(record, record.name)
        if call is not None:
            call.arguments, call.was_called, call.started = record.arguments, True, record.at
            call.loop.starts[record.id] = call.loop.starts.get(record.id, 0) + 1
            self._begin(call, record.at)

    @_handles(kinds.ToolReported)
    def _add_tool_reported(self, record: kinds.ToolReported) -> None:
        call = self._store_call_record(record)
        if call is not None:
            call.report = record
            self._change("reported", call)

    @_handles(kinds.ToolEnded)
    def _add_tool_ended(self, record: kinds.ToolEnded) -> None:
        call = self._store_call_record(record, record.name)
        if call is not None:
            call.arguments, call.result, call.tool_error = (
                record.arguments,
                record.result,
                record.error,
            )
            call.took, call.reused, call.report = record.seconds, record.reused, None
            self._end(call, record.at)

    def _store_call_record(
        self, record: kinds.ToolStarted | kinds.ToolEnded | kinds.ToolReported, name: str = ""
    ) -> ToolRun | None:
        """Store the record of a tool call in its conversation and return the call. End the gates at
        which the call waits for a person."""
        loop, question = (
            self._find_or_make_loop(record),
            self._find_or_make_question(record, record.asker),
        )
        if loop is None or question is None:
            return None
        calls: dict[str, Any] = getattr(loop, record.loop_part)
        calls[record.id] = record
        for gate in loop.gates.get(record.id, ()):
            if gate.state == "waiting":
                self._end(gate, record.at)
        call = self._find_or_make_call(record, loop, question, record.id, name)
        if call not in question.calls:
            question.calls.append(call)
        return call

    def _find_or_make_call(
        self, record: Record, loop: ToolLoop, question: LMQuestion, id: str, name: str
    ) -> ToolRun:
        """Return the tool call with an id, and create it if it is new. From now on, the call
        belongs to `question`."""
        call = loop.calls.get(id)
        if call is None:
            number = call_number(loop.question, id)
            call = ToolRun(record.at, question=question, loop=loop, id=id, name=name, number=number)
            loop.calls[id] = call
        call.name, call.question = name or call.name, question
        return call

    def _find_or_make_loop(self, record: kinds.ConversationRecord) -> ToolLoop | None:
        """Return the conversation with tools that a record is about, and create it if it is new."""
        question = self._find_or_make_question(record, record.asker)
        if question is None:
            return None
        asking_work = question.asked_by
        step = asking_work if isinstance(asking_work, Step) else asking_work.step
        key = record.asker, record.question
        loop = step.loops.get(key)
        if loop is None:
            loop = step.loops[key] = ToolLoop("", "", question=record.question)
        question.loop = loop
        return loop

    @_handles(kinds.LMFailed)
    def _add_lm_failed(self, record: kinds.LMFailed) -> None:
        step = self.step(record.path, record.step - 1)
        if step is not None:
            step.failed.append(record)

    @_handles(kinds.LMAnswered)
    def _add_lm_answered(self, record: kinds.LMAnswered) -> None:
        asker, is_body = record.asker, record.asker.kind == "body"
        asking_work = step = self.step(record.path, record.step - is_body)
        if step is not None and not is_body:
            asking_work = step.sources.get((asker.field, asker.parameter))
        if asking_work is not None:
            asking_work.answered.append(record)
        made_step = None if record.value is None else self.step(record.path, record.step)
        for source in () if made_step is None else made_step.sources.values():
            if source.state == "done" and source.place.node in (
                record.target,
                _name_of(record.value),
            ):
                source.is_used = True


def _name_of(value: Any) -> str:
    return "" if isinstance(value, type | dict) else type(value).__name__


def is_waiting(error: BaseException) -> bool:
    """Whether an error only says that a source waits for a person."""
    from bae.run import Waiting

    if isinstance(error, RecordedError):
        return error.code == Waiting.code
    return isinstance(error, Waiting)


def _find_failed_step(graph: GraphRun, reached: int) -> Step | None:
    """Return the failed step of a graph with `reached` nodes. If a source or the fill of the next
    node has failed, this is the step of that node, otherwise the step of the newest node."""
    previous, next_step = graph.steps.get(reached - 1), graph.steps.get(reached)
    if next_step is not None and not next_step.is_complete:
        source_failed = any(source.state == "failed" for source in next_step.sources.values())
        body_is_open = (
            previous is not None and previous.called is not None and previous.called.is_open
        )
        if source_failed or not body_is_open:
            return next_step
    return previous
