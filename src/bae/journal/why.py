"""Finds the origins of the values of a stored run, without the code of its graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from types import NoneType
from typing import Any, Final, cast

from bae.calls import DEEPEST
from bae.exceptions import JournalError
from bae.journal.decoder import StoredHistory, read_history
from bae.journal.lines import StoredNode
from bae.journal.provenance import (
    CallState,
    JudgedAnswer,
    MadeCall,
    Provenance,
    ToolRound,
    ValueSource,
)
from bae.journal.shape import Json
from bae.journal.stored_runs import StoredRun
from bae.place import ANY_STEP, Place
from bae.records import (
    LIVE,
    WITHHELD,
    Asker,
    CallEnded,
    FillEnded,
    Returned,
    RunForked,
    RunStarted,
    StepStarted,
    TurnsShown,
    error_text,
)
from bae.sources import find_source_kind
from bae.usage import Usage
from bae.work import GraphRun, LMQuestion, Source, Step, ToolLoop, ToolRun

_DEEPEST: Final = DEEPEST + 50
"""The longest chain of inputs that is followed, through functions and inner graphs."""

NodeRecord = RunStarted | Returned | StepStarted | FillEnded | RunForked
"""A record that has a node."""


def why(stored: StoredRun, place: str, step: int | None = None) -> Provenance:
    """Return the origin of the value of a field.

    `place` is the field, as `Outfit.mood`, or `2:Outfit.mood` for the field at step 2. If the run
    has several nodes of the class, `step` selects a node. The default is the newest node.

    - `2:Report.summaries[3]/1:Summary.text` is a field in an inner graph. The place of the inner
      graph comes first.
    - `Outfit` is a complete node.
    - `Report.summaries[3]` is one item of a map.
    - `Day.weather(city)` is a parameter of the function that computes the field.
    """
    search = Search(stored, read_history(stored))
    where = search.find(place, step)
    provenance = search.at(where)
    if not _is_known(provenance):
        raise search.pending(where)
    return provenance


class Search:
    """Finds the origins of the values of one run. Each origin is computed once."""

    def __init__(self, stored: StoredRun, history: StoredHistory) -> None:
        self._run_id = stored.info.run_id
        self._history = history
        self._shape = history.shape
        self._answers = stored.answers
        self._people = stored.answered_by
        self._origins: dict[Place, Provenance] = {}
        self._depth = 0

    def at(self, place: Place) -> Provenance:
        """Return where the value at `place` comes from. If there is no value, the `state` of the
        returned `Provenance` says why."""
        if place not in self._origins:
            # This entry remains if the lines form a cycle or too long a chain. bae writes no such
            # lines.
            self._origins[place] = self._absent(place)
            if self._depth < _DEEPEST:
                self._depth += 1
                self._origins[place] = self._find_origin(place)
                self._depth -= 1
        return self._origins[place]

    def _find_origin(self, place: Place) -> Provenance:
        step = self._history.step(place.path, place.step)
        if step is None:
            return self._absent(place)
        if not place.field:
            return self._node_origin(place, step)
        source = self._history.source(place._replace(item=None))
        if place.item is not None:
            return self._absent(place) if source is None else self._item(place, source)
        fork, field = step.forked, "" if place.parameter else place.field
        if fork is not None and field in fork.changed:
            value = _field_value(fork, field) or {"kept": "missing"}
            return self._provenance_of(place, "fork", fork.at, by=fork.parent, **value)
        if source is not None and source.origin is not None:
            return self._recalled_value(place, source)
        if source is not None and source.turns is not None:
            return self._turns(place, source.turns)
        if source is not None and source.state == "done":
            return self._sourced_value(place, source)
        for record in (step.given, step.filled):
            if record is not None and (value := _field_value(record, field)) is not None:
                return self._from_record(place, step, record, value)
        provenance = (
            self._shared_call(place)
            or self._answered_gate(place)
            or self._failed_source(place, step)
        )
        if provenance is None and step.is_complete and field:
            provenance = self._unrecorded_field(place, step)
        return provenance or self._unfinished_field(place, source)

    def _node_origin(self, place: Place, step: Step) -> Provenance:
        """Return the origin of a complete node."""
        fork, record = step.forked, step.filled or step.given
        if fork is not None:
            return self._provenance_of(
                place, "fork", fork.at, by=fork.parent, value=_node(fork).fields
            )
        if record is None:
            return self._absent(place)
        provenance = self._from_record(place, step, record, {"value": _node(record).fields})
        choice = None if step.before is None else step.before.choice
        if step.filled is None or choice is None or not choice.offered:
            return provenance
        names = ("the end" if cls is NoneType else cls.__name__ for cls in choice.offered)
        return replace(provenance, note=f"the LM chose it among {', '.join(names)}")

    def _from_record(
        self, place: Place, step: Step, record: NodeRecord, value: dict[str, Any]
    ) -> Provenance:
        """Return the origin of a value in a recorded node: the LM, the caller, the previous
        node's body, or a default."""
        at, before = record.at, step.before
        if place.field in _node(record).unset:
            return self._provenance_of(place, "default", at, **value)
        if isinstance(record, FillEnded):
            loop = step.fill_loop
            calls = () if loop is None else loop.calls.values()
            used = _usage_data(
                [step.filled_by], [call.graph for call in calls if call.graph is not None]
            )
            by = ", ".join(used["models"])
            provenance = self._provenance_of(
                place, "lm", at, by=by, seconds=record.seconds, **used, **value
            )
            return self._with_calls(replace(provenance, source=self._kind(place)), place, loop)
        if place.step == 0:
            return self._provenance_of(place, "caller", at, by=place.path, **value)
        by = f"{before.name}.__call__" if before is not None and before.name else "a body"
        used = _usage_data([] if before is None else before.asked)
        provenance = self._provenance_of(place, "body", at, by=by, **used, **value)
        return self._with_calls(
            provenance, place, None if before is None else _find_body_loop(before, record)
        )

    def _with_calls(
        self, provenance: Provenance, place: Place, loop: ToolLoop | None
    ) -> Provenance:
        """Add the conversation in which the LM called tools to a provenance."""
        if loop is None:
            return provenance
        is_calls = place.field == loop.field_name
        provenance = replace(provenance, rounds=(*tool_rounds(loop),), is_calls=is_calls)
        if not is_calls:
            return provenance
        tools = self._shape.arguments(place)
        inputs = {
            f"{tool}({name})": self.at(argument)
            for tool, at in tools.items()
            for name, argument in self._shape.arguments(at).items()
        }
        known_inputs = {name: origin for name, origin in inputs.items() if _is_known(origin)}
        return replace(provenance, inputs=known_inputs)

    def _kind(self, place: Place) -> str:
        """Return the source of a field that an LM fills: "tools" for the list of tool calls, "lm"
        for every other field."""
        field = self._shape.field_at(place)
        is_calls = field is not None and find_source_kind(field["kind"]).fills == "calls"
        return field["kind"] if field is not None and is_calls else "lm"

    def _recalled_value(self, place: Place, source: Source) -> Provenance:
        """Return the origin of a recalled value. The origin names the recalled place even if the
        lines about the original value are gone."""
        path, number, field = source.origin or ("", ANY_STEP, "")
        step = self._history.step(path, number)
        where = Place(path, number, "?" if step is None else step.name or "?", field)
        origin = self.at(where)
        provenance = self._provenance_of(
            place, source.kind, source.started, by=str(where), kept=origin.kept
        )
        return replace(provenance, value=origin.value, origin=origin if _is_known(origin) else None)

    def _turns(self, place: Place, shown: TurnsShown) -> Provenance:
        """Return the origin of the earlier turns of a thread. The origin names the first and the
        last run."""
        count = shown.count
        by = f"{count} earlier turn{'' if count == 1 else 's'}" if count else "no earlier turns"
        if count:
            by += f", {shown.first}" if count == 1 else f", {shown.first} to {shown.last}"
        note = f"{shown.omitted} older left out" if shown.omitted else ""
        return self._provenance_of(place, "thread", shown.at, by=by, kept="turns", note=note)

    def _sourced_value(self, place: Place, source: Source) -> Provenance:
        at, value = source.ended or source.started, _source_value(source.value)
        deadline = None if source.gate is None else source.gate.deadline
        if deadline is not None and at >= deadline and str(place) not in self._answers:
            provenance = self._provenance_of(
                place, "default", at, by=source.by, seconds=source.took, **value
            )
            return replace(provenance, note=f"nobody answered {source.by!r} in time")
        if source.items:
            value = self._items(place, source)
        elif source.graph is not None and source.graph.steps:
            value["inside"] = str(place)
        took, outside = source.took, self._called_outside(place)
        if source.gate is None and not (source.items or source.spans or took):
            value["note"] = "the value was given in dep_cache"
            if outside is not None:
                took, cls = outside.seconds, outside.node_type.__name__
                value["note"] = f"called once for the run, first for {cls}.{outside.field}"
        if str(place) in self._people:
            value["note"] = f"answered by {self._people[str(place)]}"
        if source.called_at and (first := Place.parse(source.called_at)) is not None:
            provenance = self._called_before(place, first, "once for equal arguments")
            return replace(provenance, inputs=self._inputs(place))
        provenance = self._provenance_of(
            place, source.kind, at, by=source.by, seconds=took, **value
        )
        return replace(
            provenance, inputs=self._inputs(place), **_usage_data(source.asked, source.graphs)
        )

    def _called_outside(self, place: Place) -> CallEnded | None:
        """Return the call that computed a shared dependency, if a class outside the graph needed
        the dependency first."""
        return self._history.called_outside.get(self._history.shared_key(place))

    def _items(self, place: Place, source: Source) -> dict[str, Any]:
        finished = {index for index, item in source.items.items() if item.state == "done"}
        items = tuple(
            self.at(place._replace(item=index)) if index in finished else None
            for index in range(max(finished, default=-1) + 1)
        )
        others = [item.kept for item in items if item is not None and item.kept != "value"]
        if others or None in items:
            return {"items": items, "kept": others[0] if others else "missing"}
        return {"items": items, "value": [item.value for item in items if item is not None]}

    def _item(self, place: Place, source: Source) -> Provenance:
        item = source.items.get(cast(int, place.item))
        if item is None or item.state != "done":
            return self._absent(place)
        at, by = item.ended or 0.0, source.by or self._source_name(place._replace(item=None))
        provenance = self._provenance_of(place, source.kind, at, by=by, **_source_value(item.value))
        if item.graph is None or not item.graph.steps:
            return provenance
        used = _usage_data([], [item.graph])
        return replace(provenance, inside=str(place), seconds=at - item.started, **used)

    def _inputs(self, place: Place) -> dict[str, Provenance]:
        """Return the origins of a function's arguments. Live values are left out, since no line
        stores them."""
        places = self._shape.arguments(place)
        field = self._shape.field_at(place)
        if field is not None and field.get("over") and not place.parameter:
            places = {field["over"]: place._replace(field=field["over"]), **places}
        inputs = {name: self.at(argument) for name, argument in places.items()}
        return {name: origin for name, origin in inputs.items() if _is_known(origin)}

    def _shared_call(self, place: Place) -> Provenance | None:
        """Return the origin of a dependency's value if the dependency was called for another field
        before."""
        source = self._history.shared.get(self._history.shared_key(place))
        return source and self._called_before(place, source.place, "once for the run")

    def _called_before(self, place: Place, first: Place, how: str) -> Provenance:
        provenance = self.at(first)
        path, step, node, field = place[:4]
        here = replace(provenance, place=str(place), path=path, step=step, node=node, field=field)
        return replace(here, origin=provenance, note=f"called {how}, first for {provenance.place}")

    def _answered_gate(self, place: Place) -> Provenance | None:
        """Return the origin of a gate's answer that the run has not read yet, because it was not
        resumed since."""
        source = self._history.gates.get(str(place))
        answer = self._answers.get(str(place))
        if source is None or answer is None:
            return None
        at, note = source.ended or source.started, "the run has not been resumed since"
        return self._provenance_of(
            place, source.kind, at, by=source.by, value=json.loads(answer), note=note
        )

    def _failed_source(self, place: Place, step: Step) -> Provenance | None:
        """Return the origin of a value whose source failed, or waited for a source that failed. The
        field has its default, or the run failed with the error."""
        failed = [
            source
            for source in step.sources.values()
            if source.state == "failed"
            and source.place[:4] == place[:4]
            and source.place.parameter.startswith(place.parameter)
        ]
        source = min(failed, key=lambda source: len(source.place.parameter), default=None)
        if source is None or source.error is None:
            return None
        field = self._shape.field_at(place)
        kind = source.kind if field is None or place.parameter else field["kind"]
        by = "" if source.place == place else f"{source.by} raised "
        provenance = self._provenance_of(
            place, "default" if step.is_complete else kind, source.ended or source.started
        )
        provenance = replace(
            provenance, by=source.by, kept="missing", state="failed", seconds=source.took
        )
        return replace(provenance, error=f"{by}{error_text(source.error)}")

    def _unrecorded_field(self, place: Place, step: Step) -> Provenance:
        """Return the origin of a field of a complete node, if no line is about this field alone. In
        a fork, the line of the fork may have the value, because the original line belongs only to
        the other run."""
        field, fork = self._shape.field_at(place), step.forked
        has_source = field is not None and find_source_kind(field["kind"]).fills == "source"
        value = None if fork is None else _field_value(fork, place.field)
        if fork is not None and value is not None:
            value["note"] = f"in the run {fork.parent}, which this was forked from"
            if not has_source:
                return self._from_record(place, step, fork, value)
        elif field is None or not field["required"]:
            note = "no line says more about it" if field is None else ""
            return self._provenance_of(
                place, "default", step.completed_at, kept="missing", note=note
            )
        else:
            value = {"kept": "live", "note": "nothing more is recorded of it"}
        kind = field["kind"] if field is not None and has_source else "body"
        return self._provenance_of(
            place, kind, step.completed_at, by=self._source_name(place), **value
        )

    def _unfinished_field(self, place: Place, source: Source | None) -> Provenance:
        provenance, step = self._absent(place), self._history.step(place.path, place.step)
        loop = None if step is None or step.is_complete else step.fill_loop
        if loop is not None and place.field == loop.field_name and not place.parameter:
            provenance = replace(provenance, rounds=(*tool_rounds(loop),), is_calls=True)
            by = "a conversation with tools"
            return replace(provenance, source=self._kind(place), by=by, state="begun")
        if source is None or not (source.gate or source.spans or source.is_open):
            return provenance
        state = "begun" if source.gate is None else "waiting"
        return replace(provenance, source=source.kind, by=source.by, state=state)

    def _absent(self, place: Place) -> Provenance:
        return self._provenance_of(place, "default", 0.0, kept="missing", state="absent")

    def _provenance_of(
        self, place: Place, source: ValueSource, at: float, **more: Any
    ) -> Provenance:
        return Provenance(self._run_id, str(place), *place[:4], source, at=at, **more)

    def _source_name(self, place: Place) -> str:
        """Return the name of the function, the graph or the question that a field's value is
        from."""
        source = self._history.source(place)
        if source is not None and source.by:
            return source.by
        call = self._shape.call_at(place)
        return "" if call is None else self._shape.calls[call]["by"]

    # Finding a place, and the errors for a place that does not exist or has no value.

    def find(self, text: str, step: int | None) -> Place:
        """Return the place that a person wrote as `text`. If the text has no step, `step` may
        select the node."""
        place = Place.parse(text) or Place()
        if step is not None:
            if place.step not in (ANY_STEP, step):
                what = f"{text!r} is at step {place.step}, but step={step} was passed"
                raise self._unknown(what, "name one step")
            place = place._replace(step=step)
        matches = [step for step in self._history.steps() if step.name and _fits(place, step.place)]
        paths = list(dict.fromkeys(match.place.path for match in matches))
        if len(paths) > 1 and not place.path and "" not in paths:
            raise self._unknown(
                f"{place.node} is a node of {len(paths)} graphs",
                f"name one: {paths[-1]}/{place.node}.{place.field}; they are {_join_names(paths)}",
            )
        path = paths[-1] if place.path and paths else next(iter(paths), "")
        nodes = [match for match in matches if match.place.path == path]
        newest = max(nodes, key=lambda node: node.number, default=None)
        if newest is None or place.field not in ("", *self.field_names(newest)):
            places = {
                (step.name, name): str(step.place._replace(field=name))
                for step in (self._history.steps() if newest is None else [newest])
                for name in self.field_names(step)
            }
            known_places, wanted = list(places.values()), str(place) if place.node else text
            close = get_close_matches(wanted, known_places, 1)
            hint = f": did you mean {close[0]}?" if close else ""
            fix = f"write Node.field; there is {_join_names(known_places) or 'no node yet'}"
            raise self._unknown(f"nothing is recorded at {wanted!r}", fix, hint)
        return place._replace(path=newest.place.path, step=newest.number)

    def field_names(self, step: Step) -> list[str]:
        """Return the fields of a node that the shape or the lines name."""
        cls = self._shape.class_at(step.place.path, step.name) or {"fields": {}}
        records = [
            record for record in (step.forked, step.given, step.filled) if record is not None
        ]
        recorded = [name for record in records for name in _node(record).fields]
        sourced = [source.place.field for source in step.sources.values()]
        return list(dict.fromkeys([*cls["fields"], *recorded, *sourced]))

    def text_fields(self, step: Step) -> tuple[list[str], str]:
        """Return the fields that make up the text of a node in a thread, and the name of its text
        field. The text field is the only `str` field without a source. If every `str` field has a
        source, the text field is the only `str` field. The name is empty if there is no such field,
        or more than one."""
        cls = self._shape.class_at(step.place.path, step.name) or {"fields": {}}
        uses: Json = cls["fields"]
        kinds = {name: find_source_kind(use["kind"]) for name, use in uses.items()}
        names = [
            name
            for name in self.field_names(step)
            if name not in kinds or not (kinds[name].is_turns or kinds[name].fills == "calls")
        ]
        texts = [name for name in names if name in uses and uses[name]["type"] == "str"]
        candidates = [name for name in texts if kinds[name].fills != "source"] or texts
        return names, candidates[0] if len(candidates) == 1 else ""

    def _unknown(self, what: str, fix: str, hint: str = "") -> JournalError:
        what = f"{what} in the run {self._run_id}{hint}"
        return JournalError(what, run_id=self._run_id, code="bae-why-unknown", fix=fix)

    def pending(self, place: Place) -> JournalError:
        """Return the error for a place that has no value yet, or whose records are gone."""
        source = self._history.source(place._replace(item=None))
        step = self._history.step(place.path, place.step)
        fill = None if step is None else step.fill
        answers, loop = ([], None) if fill is None else (fill.answers, fill.loop)
        if place.parameter and source is None and step is not None and step.is_complete:
            field = place._replace(parameter="", item=None)
            fix = f"look at the field: {field}"
            return self._unknown(f"nothing is recorded at {str(place)!r}", fix)
        if source is not None and source.items:
            how = f"{source.items_done} of its items are done"
        elif source is not None and source.gate is not None:
            how = f"it waits for a person, who is asked {source.by!r}"
        elif source is not None and (source.is_open or source.spans):
            how = f"{source.by} had begun, and no line says that it has ended"
        elif loop is not None and loop.rounds:
            last = (*tool_rounds(loop),)[-1]
            state = "; ".join([*map(str, last.calls), *last.told])
            how = f"the LM was filling {place.node}, in round {last.number}: {state or last.text}"
        elif answers:
            attempt = answers[-1].attempt
            verdict = f"its answer {attempt.number} was {attempt.verdict}"
            how = f"the LM was filling {place.node}, and {verdict}"
        elif step is None or not step.is_complete:
            how = f"the run has not reached a complete {place.node}"
        else:
            how = "no line says where it came from"
        return JournalError(
            f"{place} has no value in the run {self._run_id}: {how}",
            run_id=self._run_id,
            code="bae-why-pending",
            fix="look again when the run has continued: graph.resume(…), graph.answer(…), or "
            f"`bae runs resume {self._run_id}`",
        )


def judged_answers(question: LMQuestion) -> Iterator[JudgedAnswer]:
    """Yield the answers to a question, with their verdicts. If `Tools(accept=…)` refused a valid
    answer, its verdict is "refused"."""
    by = str(question.asker)
    replies = () if question.loop is None else question.loop.replies
    refused = {reply.number: reply.text for reply in replies if reply.kind == "refused"}
    for judged in question.answers:
        attempt = judged.attempt
        verdict, errors = attempt.verdict, attempt.errors
        if verdict == "valid" and attempt.number in refused:
            verdict, errors = "refused", (refused[attempt.number],)
        about = attempt.number, verdict, errors, attempt.prompt, judged.at, attempt.usage
        texts = attempt.asked or None, attempt.answer or None
        yield JudgedAnswer(*about, *texts, by, ", ".join(attempt.usage.models), attempt.thinking)


def tool_rounds(loop: ToolLoop, asker: Asker | None = None) -> Iterator[ToolRound]:
    """Yield the rounds of a conversation with tools, with the outcome of each call."""
    by = "" if asker is None else str(asker)
    for round_ in loop.rounds:
        messages = [
            reply.text
            for reply in loop.replies
            if max(reply.number, 1) == round_.number and reply.text
        ]
        calls = [_describe_call(loop.calls[call["id"]]) for call in (*round_.ran, *round_.calls)]
        about = round_.number, round_.at, round_.text, tuple(calls), tuple(messages), round_.usage
        yield ToolRound(*about, by)


def _find_body_loop(before: Step, record: NodeRecord) -> ToolLoop | None:
    """Return the conversation in which an LM filled the node that a body returned, or None."""
    node = _node(record)
    for (asker, _), loop in before.loops.items():
        calls = [(call.id, call.result) for call in loop.calls.values() if call.state == "done"]
        recorded_calls: list[Any] = node.fields.get(loop.field_name) or []
        is_same = (asker.kind, loop.target) == ("body", node.type)
        if calls and is_same and [(call["id"], call["result"]) for call in recorded_calls] == calls:
            return loop
    return None


def _describe_call(call: ToolRun) -> MadeCall:
    error = call.tool_error if call.error is None else error_text(call.error)
    state: CallState = "begun" if call.was_called else "asked"
    if any(work.state == "waiting" for work in (call, *call.gates)):
        state = "waiting"
    elif error is not None:
        state = "failed"
    elif call.ended is not None and call.state == "done":
        state = "done"
    took = call.took or sum(span.seconds for span in call.spans)
    # The place of an approval has three names, `(tool)(id)(key)`. The place of a question about an
    # interrupted call has four.
    is_approved = any(len(gate.place.parameters) == 3 for gate in call.gates)
    person = "approved" if is_approved and call.was_called else ""
    if call.gates and state == "done" and not call.was_called:
        person = "answered"
    about = call.result, error, took, call.reused, str(call.place), call.is_native, person
    return MadeCall(call.id, call.name, call.arguments, state, *about)


def _usage_data(
    questions: Sequence[LMQuestion | None], graphs: Iterable[GraphRun] = ()
) -> dict[str, Any]:
    """Return the usage of LM calls as arguments of `Provenance`. The usage includes calls in inner
    graphs, whereas `attempts` has only the answers to `questions`."""
    own_questions = [question for question in questions if question is not None]
    steps = (step for root in graphs for graph in root.tree() for step in graph.steps.values())
    all_questions = [*own_questions, *(question for step in steps for question in step.questions)]
    usage = Usage.total(question.usage for question in all_questions)
    judged = [answer for question in all_questions for answer in judged_answers(question)]
    rounds = [
        round_ for question in all_questions if question.loop for round_ in question.loop.rounds
    ]
    # If a model failed and a Fallback asked the next model, only the usage names the first model.
    answered = [model for answer in (*rounds, *judged) for model in answer.usage.models]
    return {
        "usage": usage,
        "models": tuple(dict.fromkeys(answered or usage.models)),
        "prompts": tuple(dict.fromkeys(answer.prompt for answer in judged if answer.prompt)),
        "attempts": tuple(
            answer for question in own_questions for answer in judged_answers(question)
        ),
    }


def _is_known(provenance: Provenance) -> bool:
    return provenance.state in ("there", "failed")


def _node(record: NodeRecord) -> StoredNode:
    return cast(StoredNode, record.node)


def _field_value(record: NodeRecord, name: str) -> dict[str, Any] | None:
    """Return the value of a field in a recorded node as arguments of `Provenance`. Return None if
    the node has no such field."""
    node = _node(record)
    if name in node.fields:
        return {"value": node.fields[name]}
    return {"kept": "withheld"} if name in node.withheld else None


def _source_value(value: Any) -> dict[str, Any]:
    """Return the stored value of a source, or the reason why the journal has no value, as arguments
    of `Provenance`."""
    if value is LIVE or value is WITHHELD:
        return {"kept": "live" if value is LIVE else "withheld"}
    return {"value": value}


def _fits(wanted: Place, node: Place) -> bool:
    """Whether the place of a node fits the wanted place. Parts that the wanted place leaves out may
    be anything."""
    if wanted.node != node.node or wanted.step not in (ANY_STEP, node.step):
        return False
    one, two = wanted.outer, node.outer
    while one is not None and two is not None:
        fits = one.step in (ANY_STEP, two.step) and one.item in (None, two.item)
        if not fits or one[2:5] != two[2:5]:
            return False
        one, two = one.outer, two.outer
    return not wanted.path or (bool(node.path) and one is two)


def _join_names(names: Sequence[str]) -> str:
    first_names = ", ".join(names[:9])
    return f"{first_names} and {len(names) - 9} more" if len(names) > 9 else first_names
