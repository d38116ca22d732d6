"""Where a value of a stored run came from, found without its code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, cast

from bae.exceptions import JournalError
from bae.history import History
from bae.journal.lines import StoredNode, read_history
from bae.journal.provenance import (
    JudgedAnswer,
    Kept,
    Provenance,
    ValueSource,
    kept_value,
    stored_value,
)
from bae.journal.report import field_names
from bae.journal.shape import ShapeView
from bae.journal.store import StoredRun
from bae.place import ANY_STEP, Place
from bae.records import Record, error_text
from bae.usage import Usage
from bae.work import GraphRun, Question, Source, Step

__all__ = ["why"]


def why(stored: StoredRun, place: str, step: int | None = None) -> Provenance:
    """Where the value of a field came from.

    `place` is the field as `Outfit.mood`, or `2:Outfit.mood` for that of step 2, with the place of
    a graph inside the run in front: `2:Report.summaries[3]/1:Summary.text`. A class that the run
    met several times is taken at its newest node, or at `step`. `Outfit` alone is the whole node,
    `Report.summaries[3]` one item of a map, `Day.weather(city)` a parameter of the function behind
    a field.
    """
    search = _Why(stored)
    return search.at(search.find(place, step))


class _Why:
    def __init__(self, stored: StoredRun) -> None:
        self._run_id = stored.info.run_id
        self._history: History = read_history(stored)
        self._shape = ShapeView(stored.shape)
        self._answers = stored.answers
        self._found: dict[Place, Provenance | None] = {}

    def at(self, place: Place) -> Provenance:
        """Where the value at a place came from; each is worked out once."""
        if place not in self._found:
            self._found[place] = None
            self._found[place] = self._at(place)
        found = self._found[place]
        if found is None:  # lines that lead back to themselves are no lines of a run
            raise self._pending(place)
        return found

    def _at(self, place: Place) -> Provenance:
        step = self._step(place)
        if not place.field:
            return self._node(place, step)
        if place.item is not None:
            return self._item(place, place.item)
        if place.parameter:
            found = self._ended(place) or self._shared(place) or self._failed(place, step)
        else:
            found = (
                self._changed(place, step)
                or self._recalled(place)
                or self._ended(place)
                or self._given(place, step)
                or self._filled(place, step)
                or self._shared(place)
                or self._answered(place)
                or self._failed(place, step)
                or self._before_fork(place, step)
                or self._default(place, step)
            )
        if found is None:
            raise self._pending(place)
        return found

    # A node as a whole.

    def _node(self, place: Place, step: Step) -> Provenance:
        if step.forked is not None:
            return self._made(
                place, "fork", step.forked, step.forked.parent, *_node_in(step.forked)
            )
        if step.filled is not None:
            made = self._by_lm(place, step)
            before = step.before
            if before is None or before.choice is None or not before.choice.offered:
                return made
            names = ("the end" if c is type(None) else c.__name__ for c in before.choice.offered)
            return replace(made, note=f"the LM chose it among {', '.join(names)}")
        if step.given is not None:
            return self._by_giver(place, step, step.given, *_node_in(step.given))
        raise self._pending(place)

    # A field: the first of these that can tell does.

    def _changed(self, place: Place, step: Step) -> Provenance | None:
        forked = step.forked
        if forked is None or place.field not in forked.changed:
            return None
        kept = stored_value(forked.node, place.field) or ("missing", None)
        return self._made(place, "fork", forked, forked.parent, *kept)

    def _recalled(self, place: Place) -> Provenance | None:
        source = self._history.source(place)
        if source is None or source.origin is None:
            return None
        path, number, field = source.origin
        step = self._history.step(path, number)
        origin = None
        if step is not None:
            # The lines about it may be gone; that it was recalled still holds.
            with suppress(JournalError):
                origin = self.at(Place(path, number, step.name, field))
        if origin is None:
            return self._of_source(place, source, "recall", f"step {number}", "missing", None)
        made = self._of_source(place, source, "recall", origin.place, origin.kept, origin.value)
        return replace(made, origin=origin)

    def _ended(self, place: Place) -> Provenance | None:
        """A source that has a value for this very field."""
        source = self._history.source(place)
        if source is None or source.state != "done" or source.kind == "recall":
            return None
        return self._from_source(place, source)

    def _given(self, place: Place, step: Step) -> Provenance | None:
        record = step.given
        kept = None if record is None else stored_value(record.node, place.field)
        if record is None or kept is None:
            return None
        if place.field in cast(StoredNode, record.node).unset:
            return self._made(place, "default", record, "", *kept)
        return self._by_giver(place, step, record, *kept)

    def _filled(self, place: Place, step: Step) -> Provenance | None:
        record = step.filled
        kept = None if record is None else stored_value(record.node, place.field)
        if record is None or kept is None:
            return None
        if place.field in cast(StoredNode, record.node).unset:
            return self._made(place, "default", record, "", *kept)
        return replace(self._by_lm(place, step), kept=kept[0], value=kept[1])

    def _shared(self, place: Place) -> Provenance | None:
        """A dependency that was called before, for another field."""
        where = place.path, place.node, place.field, place.parameter
        call = self._shape.call_at(*where)
        source = self._history.shared.get(call) if self._shape.is_shared(*where) else None
        if source is None:
            return None
        made = self.at(source.place)
        return replace(
            made,
            place=str(place),
            path=place.path,
            step=place.step,
            node=place.node,
            field=place.field,
            note=f"called once for the run, first for {made.place}",
        )

    def _answered(self, place: Place) -> Provenance | None:
        """A gate that has its answer while the run has not been resumed yet."""
        source = self._history.gates.get(str(place))
        answer = self._answers.get(str(place))
        if source is None or answer is None:
            return None
        value = json.loads(answer)
        made = self._of_source(place, source, "gate", source.by, "value", value)
        return replace(made, note="the run has not been resumed since")

    def _failed(self, place: Place, step: Step) -> Provenance | None:
        """A source that failed, or that waited for one which did: the default is used, or the run
        failed with it."""
        failed = [
            source
            for (name, parameter), source in step.sources.items()
            if source.state == "failed"
            and name == place.field
            and source.place.node == place.node
            and parameter.startswith(place.parameter)
        ]
        exact = [source for source in failed if source.place.parameter == place.parameter]
        source = next(iter([*exact, *failed]), None)
        if source is None or source.error is None:
            return None
        kind: ValueSource = "default"
        if not step.whole:
            kind = cast(ValueSource, self._kind(place) or source.kind)
        made = self._of_source(place, source, kind, source.by, "missing", None)
        by = "" if source in exact else f"{source.by} raised "
        return replace(made, error=f"{by}{error_text(source.error)}", seconds=source.took)

    def _before_fork(self, place: Place, step: Step) -> Provenance | None:
        """A field that a fork left as it was, and whose line the two runs do not share: that of a
        node which a body had returned whole, for one."""
        record = step.forked
        kept = None if record is None else stored_value(record.node, place.field)
        if record is None or kept is None:
            return None
        kind = self._kind(place)
        if kind in ("", "plain"):
            made = self._by_giver(place, step, record, *kept)
        else:
            made = self._made(place, cast(ValueSource, kind), record, self._by(place), *kept)
        return replace(made, note=f"in the run {record.parent}, which this was forked from")

    def _default(self, place: Place, step: Step) -> Provenance | None:
        if not step.whole:
            return None
        field = self._shape.field_at(place.path, place.node, place.field)
        about = Provenance(self._run_id, str(place), *place[:4], "default", at=step.whole_at)
        if field is None or not field["required"]:
            made = replace(about, kept="missing")
            return made if field is not None else replace(made, note="no line says more about it")
        source: ValueSource = "body" if field["kind"] == "plain" else field["kind"]
        made = replace(about, source=source, by=self._by(place), kept="live")
        return replace(made, note="nothing more is recorded of it")

    # Sources.

    def _from_source(self, place: Place, source: Source) -> Provenance:
        kind, by = cast(ValueSource, source.kind), source.by
        kept, value = kept_value(source.value)
        if source.kind == "gate" and self._is_late(source):
            made = self._of_source(place, source, "default", by, kept, value)
            return replace(made, seconds=source.took, note=f"nobody answered {by!r} in time")
        made = self._of_source(place, source, kind, by, kept, value)
        made = replace(made, seconds=source.took, inputs=self._inputs(place))
        graphs: list[GraphRun] = []
        if source.kind == "map":
            made = self._of_items(place, source, made)
            graphs = list(source.graphs)
        elif source.graph is not None and source.graph.steps:
            made = replace(made, inside=str(place))
            graphs = [source.graph]
        if not source.spans and source.kind == "dep" and not source.took:
            made = replace(made, note="the value was given in dep_cache")
        return _with_usage(made, source.asked, graphs)

    def _of_items(self, place: Place, source: Source, made: Provenance) -> Provenance:
        done = {index for index, item in source.items.items() if item.state == "done"}
        items = tuple(
            self.at(place._replace(item=index)) if index in done else None
            for index in range(max(done, default=-1) + 1)
        )
        if all(item is not None and item.kept == "value" for item in items):
            value = [item.value for item in items if item is not None]
            return replace(made, items=items, kept="value", value=value)
        others: list[Kept] = [i.kept for i in items if i is not None and i.kept != "value"]
        return replace(made, items=items, kept=others[0] if others else "missing", value=None)

    def _item(self, place: Place, index: int) -> Provenance:
        source = self._history.source(place._replace(item=None))
        item = None if source is None else source.items.get(index)
        if source is None or item is None or item.state != "done":
            raise self._pending(place)
        by = source.by or self._by(place._replace(item=None))
        kept, value = kept_value(item.value)
        made = Provenance(self._run_id, str(place), *place[:4], "map", by, item.ended or 0.0)
        made = replace(made, kept=kept, value=value)
        if item.graph is None or not item.graph.steps:
            return made
        seconds = (item.ended or 0.0) - item.started
        made = replace(made, inside=str(place), seconds=seconds)
        return _with_usage(made, [], [item.graph])

    def _inputs(self, place: Place) -> dict[str, Provenance]:
        places = {name: place.below(name) for name in self._parameters(place)}
        field = self._shape.field_at(place.path, place.node, place.field)
        if field is not None and field.get("over") and not place.parameter:
            places = {field["over"]: place._replace(field=field["over"]), **places}
        found: dict[str, Provenance] = {}
        for name, each in places.items():
            with suppress(JournalError):  # not among the lines: a live value that was made again
                found[name] = self.at(each)
        return found

    def _parameters(self, place: Place) -> list[str]:
        call = self._shape.call_at(place.path, place.node, place.field, place.parameter)
        if call is not None:
            return list(self._shape.calls[call]["inputs"])
        depth = len(place.parameters) + 1
        return [
            source.place.parameters[-1]
            for (name, parameter), source in self._step(place).sources.items()
            if name == place.field
            and parameter.startswith(f"{place.parameter}(")
            and len(source.place.parameters) == depth
        ]

    def _is_late(self, source: Source) -> bool:
        deadline = None if source.gate is None else source.gate.deadline
        is_late = deadline is not None and (source.ended or 0.0) >= deadline
        return is_late and str(source.place) not in self._answers

    # Who made a value.

    def _by_giver(
        self, place: Place, step: Step, record: Record, kept: Kept, value: Any
    ) -> Provenance:
        """The caller, or the body of the node before."""
        if place.step == 0:
            return self._made(place, "caller", record, place.path, kept, value)
        before = step.before
        by = f"{before.name}.__call__" if before is not None and before.name else "a body"
        made = self._made(place, "body", record, by, kept, value)
        return _with_usage(made, [] if before is None else before.asked)

    def _by_lm(self, place: Place, step: Step) -> Provenance:
        filled = step.filled
        assert filled is not None
        before = step.before
        question = step.fill
        # One call may choose and fill: its answers are then those of the choice.
        if question is None or not question.answers:
            question = None if before is None else before.choice
        made = self._made(place, "lm", filled, "", *_node_in(filled))
        made = replace(_with_usage(made, [question]), usage=filled.usage)
        models = tuple(dict.fromkeys([*filled.usage.models, *made.models]))
        return replace(made, models=models, by=", ".join(models), seconds=filled.seconds)

    def _made(
        self, place: Place, source: ValueSource, record: Record, by: str, kept: Kept, value: Any
    ) -> Provenance:
        of = self._run_id, str(place), *place[:4]
        return Provenance(*of, source, by, record.at, kept, value)

    def _of_source(
        self, place: Place, source: Source, kind: ValueSource, by: str, kept: Kept, value: Any
    ) -> Provenance:
        of = self._run_id, str(place), *place[:4]
        return Provenance(*of, kind, by, source.ended or source.started, kept, value)

    def _kind(self, place: Place) -> str:
        """What kind of source a field had; empty if the shape does not tell."""
        field = self._shape.field_at(place.path, place.node, place.field)
        return "" if field is None else ("dep" if place.parameter else field["kind"])

    def _by(self, place: Place) -> str:
        """The name of the function, graph or question behind a field."""
        source = self._history.source(place)
        if source is not None and source.by:
            return source.by
        call = self._shape.call_at(place.path, place.node, place.field, place.parameter)
        return "" if call is None else self._shape.calls[call]["by"]

    def _step(self, place: Place) -> Step:
        step = self._history.step(place.path, place.step)
        if step is None:
            raise self._unknown(f"nothing is recorded at {place}")
        return step

    # Finding a place, and saying what is there if it is not.

    def find(self, text: str, step: int | None) -> Place:
        """The place that a person means; `step` is that of the node if the text has none."""
        place = Place.parse(text)
        outer = None if place is None else place.path
        while outer:
            around = Place.parse(outer)
            if around is None or not around.field:
                place = None
                break
            outer = around.path
        if place is None:
            example = self._example()
            raise self._unknown(f"{text!r} is no place", f"write Node.field, as in {example}")
        if step is not None:
            if place.step not in (ANY_STEP, step):
                raise self._unknown(f"{text!r} is at step {place.step}, and step={step} is another")
            place = place._replace(step=step)
        place = place._replace(path=self._path(place))
        place = place._replace(step=self._node_at(place).number)
        fields = field_names(self._history, self._shape, place.path, place.node)
        if place.field and place.field not in fields:
            close = get_close_matches(place.field, fields, 1)
            hint = f"; did you mean {place.node}.{close[0]}?" if close else ""
            raise self._unknown(
                f"{place.node} has no field {place.field}{hint}",
                f"it has {', '.join(fields) or 'none'}",
            )
        return place

    def _path(self, place: Place) -> str:
        """The newest path that fits the graphs around a place."""
        graphs = [path for path in self._history.graphs if path]
        if place.path:
            for path in reversed(graphs):
                if _fits(place.path, path):
                    return path
            close = get_close_matches(place.path, graphs, 3, 0.3)
            raise self._unknown(
                f"no graph ran at {place.path}",
                f"graphs ran at {_some(close or graphs)}" if graphs else "no graph ran inside it",
            )
        if any(step.name == place.node for step in self._history.run.steps.values()):
            return ""
        inner = [
            path
            for path in graphs
            if any(s.name == place.node for s in self._history.graphs[path].steps.values())
        ]
        if len(inner) > 1:
            raise self._unknown(
                f"{place.node} was met in {len(inner)} graphs inside the run",
                f"name one: {inner[-1]}/{place.node}.{place.field}; they are {_some(inner)}",
            )
        return inner[0] if inner else ""

    def _node_at(self, place: Place) -> Step:
        graph = self._history.graphs.get(place.path)
        trace = [] if graph is None else [step for step in graph.trace if step.name]
        met = [step for step in trace if step.name == place.node]
        found = [step for step in met if place.step in (ANY_STEP, step.number)]
        if found:
            return found[-1]
        if met:
            steps = ", ".join(str(step.number) for step in met)
            raise self._unknown(
                f"{place.node} is not at step {place.step}", f"it is at step {steps}"
            )
        close = get_close_matches(place.node, list({step.name: None for step in trace}), 1)
        is_known = self._shape.class_at(place.path, place.node) is not None
        what = f"the run has not been at {place.node}" if is_known else f"there is no {place.node}"
        hint = f"; did you mean {close[0]}?" if close else ""
        listed = "; ".join(self._with_fields(step) for step in trace[-12:])
        raise self._unknown(
            f"{what}{hint}", f"its nodes are {listed}" if listed else "it has no node yet"
        )

    def _with_fields(self, step: Step) -> str:
        names = field_names(self._history, self._shape, step.place.path, step.name)
        return f"{step.number}:{step.name}({', '.join(names)})"

    def _example(self) -> str:
        for step in self._history.run.trace:
            fields = field_names(self._history, self._shape, "", step.name)
            if step.name and fields:
                return f"{step.name}.{fields[0]}"
        return "Outfit.mood"

    def _unknown(self, what: str, fix: str = "") -> JournalError:
        return JournalError(
            f"{what}, in the run {self._run_id}",
            run_id=self._run_id,
            code="bae-why-unknown",
            fix=fix or None,
        )

    def _pending(self, place: Place) -> JournalError:
        """The error of a value that is not there, or not there any more."""
        whole = place._replace(item=None)
        source, step = self._history.source(whole), self._step(place)
        done = 0
        if source is not None:
            done = sum(item.state == "done" for item in source.items.values())
        is_begun = source is not None and (source.is_open or bool(source.spans))
        if place.item is not None and (done or is_begun):
            how = f"{done} of its items are done" if done else "none of its items is done"
            how = f"item {place.item} is not done; {how}"
        elif source is not None and source.gate is not None:
            how = f"it waits for a person, who is asked {source.by!r}"
        elif done:
            how = f"{done} of its items are done, and not all"
        elif source is not None and is_begun:
            how = f"{source.by} had begun and has not ended as far as the lines go"
        elif step.fill is not None and step.fill.answers:
            attempt = step.fill.answers[-1].attempt
            verdict = f"its answer {attempt.number} was {attempt.verdict}"
            how = f"the LM was filling {place.node}, and {verdict}"
        elif not step.whole:
            how = f"the run has not come as far as a whole {place.node}"
        else:
            how = "no line says where it came from"
        return JournalError(
            f"{whole} has no value in the run {self._run_id}: {how}",
            run_id=self._run_id,
            code="bae-why-pending",
            fix="look again when the run has continued: graph.resume(…), or graph.answer(…)",
        )


def _with_usage(
    made: Provenance, questions: Sequence[Question | None], graphs: Sequence[GraphRun] = ()
) -> Provenance:
    """The same with what the LM calls behind it used, those in graphs inside it included; the
    answers are those of the questions alone."""
    own = [question for question in questions if question is not None]
    every = [*own, *(question for graph in graphs for question in _questions(graph))]
    usage = Usage.total(question.usage for question in every)
    judged = [answer for question in every for answer in question.answers]
    models = dict.fromkeys(usage.models)
    models |= dict.fromkeys(model for each in judged for model in each.attempt.usage.models)
    prompts = dict.fromkeys(each.attempt.prompt for each in judged if each.attempt.prompt)
    attempts = tuple(
        JudgedAnswer(
            answer.attempt.number,
            answer.attempt.verdict,
            answer.attempt.errors,
            answer.attempt.prompt,
            answer.at,
            answer.attempt.usage,
            answer.attempt.asked or None,
            answer.attempt.answer or None,
        )
        for question in own
        for answer in question.answers
    )
    return replace(
        made, usage=usage, models=tuple(models), prompts=tuple(prompts), attempts=attempts
    )


def _questions(graph: GraphRun) -> Iterator[Question]:
    for each in graph.tree():
        for step in each.steps.values():
            yield from step.questions


def _node_in(record: Any) -> tuple[Kept, Any]:
    """The fields of the node that a record has."""
    return "value", cast(StoredNode, record.node).fields


def _fits(wanted: str, path: str) -> bool:
    """Whether a path is the one that is wanted; what the wanted one leaves out may be anything."""
    while wanted or path:
        one, two = Place.parse(wanted), Place.parse(path)
        if one is None or two is None:
            return False
        step_fits = one.step in (ANY_STEP, two.step)
        item_fits = one.item in (None, two.item)
        if not step_fits or not item_fits or one[2:5] != two[2:5]:
            return False
        wanted, path = one.path, two.path
    return True


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
