"""A stored run as data, read without its code: its nodes in order, the graphs inside it, where the
value of each field came from, what LM calls used, and how it came out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import time
from typing import Any, Literal, cast

from bae.history import History
from bae.journal.lines import StoredNode, read_history
from bae.journal.provenance import Kept, ValueSource, kept_value, stored_value
from bae.journal.shape import ShapeView
from bae.journal.store import Listed, ParkedGate, StoredRun
from bae.journal.timeline import Timeline, timeline
from bae.place import Place
from bae.records import FillEnded, RunForked, error_text
from bae.usage import Usage
from bae.work import NOTHING_USED, Question, Source, Step


@dataclass(frozen=True, slots=True)
class FieldReport:
    """A field of a node: its value, and where that came from.

    - `source` and `by`: as for a `Provenance`; the source is empty if no line tells.
    - `state`: "there", or why it is not: its source has "failed", has "begun", or is "waiting" for
      a person; "absent" if the lines say nothing of it.
    - `kept`: whether `value` is the value, as JSON, or why the journal has none.
    - `origin`: where a recalled value was found; `items`: how many a map has; `seconds`: how long
      it took, as the timeline has it; `before`: whether a function was called once for the run,
      before this field asked for it.
    """

    name: str
    source: ValueSource | Literal[""] = ""
    by: str = ""
    state: Literal["there", "failed", "begun", "waiting", "absent"] = "there"
    kept: Kept = "value"
    value: Any = None
    origin: str = ""
    items: int | None = None
    seconds: float | None = None
    before: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class CallReport:
    """Something about an LM call: an answer with its verdict, and the texts if the journal has
    them; a request that was sent again (`verdict` is "restarted"); or what a body or a dependency
    used by itself (`verdict` is "used")."""

    by: str
    verdict: str
    number: int = 0
    errors: tuple[str, ...] = ()
    usage: Usage = NOTHING_USED
    asked: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node of a run. `chosen_among` are the classes it was chosen among, "" for the end;
    `filled_in` the seconds in which an LM filled it; `forked_from` and `changed` say that a fork
    put it there."""

    step: int
    name: str
    whole: bool
    chosen_among: tuple[str, ...] = ()
    filled_in: float | None = None
    usage: Usage = NOTHING_USED
    forked_from: str = ""
    changed: tuple[str, ...] = ()
    calls: tuple[CallReport, ...] = ()
    fields: tuple[FieldReport, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The nodes of the run itself, at the empty path, or of a graph that ran inside it."""

    path: str
    nodes: tuple[NodeReport, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """When a run was resumed, and what was different about its classes then."""

    at: float
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run as `report_run` reports it. `status` is "interrupted" if it was running and its process
    is gone; `seconds` is how long the run lasted, pauses included: until now, while it runs or
    waits."""

    run_id: str
    graph: str
    status: Listed
    started: float
    updated: float
    seconds: float
    parent: str | None
    owner: str | None
    usage: Usage
    resumed: tuple[Resumed, ...]
    graphs: tuple[GraphReport, ...]
    waiting: tuple[ParkedGate, ...]
    error: str

    @property
    def ended_at(self) -> str:
        """The class of the last node, if the run has ended."""
        nodes = self.graphs[0].nodes if self.graphs else ()
        return nodes[-1].name if nodes and self.status == "ended" else ""


def report_run(
    stored: StoredRun, *, now: float | None = None, ran: Timeline | None = None
) -> RunReport:
    """Report a run. `now` is the time of looking, `ran` its timeline, if that is known already. A
    damaged line is raised as `bae-journal-damaged`."""
    now = time() if now is None else now
    ran = timeline(stored, now=now) if ran is None else ran
    history, info = read_history(stored), stored.info
    reporting = _Reporting(history, ShapeView(stored.shape), ran)
    # A fork shares the lines of the other run, and with them its times.
    lasted = info.lasted(now) if info.parent else ran.end - ran.start
    graphs = [history.run, *(g for path, g in history.graphs.items() if path)]
    return RunReport(
        info.run_id,
        info.graph,
        ran.status,
        info.started,
        info.updated,
        lasted,
        info.parent,
        info.owner,
        history.usage,
        tuple(Resumed(each.at, each.changes) for each in history.changes),
        tuple(
            GraphReport(graph.path, tuple(reporting.node(step) for step in steps))
            for graph in graphs
            if (steps := [step for step in graph.trace if step.name]) or not graph.path
        ),
        info.waiting,
        info.error,
    )


def field_names(history: History, shape: ShapeView, path: str, name: str) -> list[str]:
    """The fields of a class, as far as the shape and the lines tell."""
    cls = shape.class_at(path, name) or {"fields": {}}
    known: dict[str, None] = dict.fromkeys(cls["fields"])
    graph = history.graphs.get(path)
    for step in () if graph is None else graph.steps.values():
        if step.name == name:
            for record in (step.forked, step.given, step.filled):
                if record is not None:
                    known.update(dict.fromkeys(cast(StoredNode, record.node).fields))
            known.update(dict.fromkeys(s.place.field for s in step.sources.values()))
    return list(known)


class _Reporting:
    """One run while it is reported."""

    def __init__(self, history: History, shape: ShapeView, ran: Timeline) -> None:
        self._history = history
        self._shape = shape
        self._took = {
            (each.kind, each.place): each.seconds
            for each in ran.every()
            if each.kind not in ("node", "item", "body")
        }
        """How long sources and LM calls took, in all lives of the run."""
        self._names: dict[tuple[str, str], list[str]] = {}

    def node(self, step: Step) -> NodeReport:
        before = step.before
        choice = None if before is None else before.choice
        offered = () if choice is None else choice.offered
        used = [q.usage for q in (choice, step.fill) if q is not None]
        report = NodeReport(
            step.number,
            step.name,
            step.whole,
            tuple("" if each is type(None) else each.__name__ for each in offered),
            self._filled_in(step),
            Usage.total(used),
            calls=tuple(_calls(step, before)),
            fields=tuple(self.field(step, name) for name in self._fields_of(step)),
        )
        if step.forked is None:
            return report
        return replace(report, forked_from=step.forked.parent, changed=step.forked.changed)

    def _filled_in(self, step: Step) -> float | None:
        if step.filled is None:
            return None
        return self._took.get(("fill", str(step.place)), step.filled.seconds)

    def _fields_of(self, step: Step) -> list[str]:
        key = step.place.path, step.name
        if key not in self._names:
            self._names[key] = field_names(self._history, self._shape, *key)
        return self._names[key]

    def field(self, step: Step, name: str) -> FieldReport:
        source = step.field(name)
        if source is not None:
            if source.kind == "recall":
                return self._recalled(name, source)
            if source.state == "done":
                return self._sourced(name, source)
            if source.state == "failed" and source.error is not None:
                about = cast(ValueSource, source.kind), source.by, "failed"
                return FieldReport(name, *about, "missing", error=error_text(source.error))
        return self._plain(name, step) or self._unfinished(name, step, source)

    def _recalled(self, name: str, source: Source) -> FieldReport:
        """The value that was found in the trace, wherever it came from."""
        found = FieldReport(name, "recall", kept="missing")
        seen: set[Place] = set()
        while source.origin is not None and source.place not in seen:
            seen.add(source.place)
            path, number, field = source.origin
            there = self._history.step(path, number)
            where = Place(path, number, "?" if there is None else there.name or "?", field)
            if not found.origin:
                found = replace(found, origin=str(where))
            if there is None or not field:
                return found
            behind = there.field(field)
            if behind is None or behind.kind != "recall":
                report = self.field(there, field)
                return replace(found, kept=report.kept, value=report.value, items=report.items)
            source = behind
        return found

    def _sourced(self, name: str, source: Source) -> FieldReport:
        kind = cast(ValueSource, source.kind)
        seconds = self._took.get((source.kind, str(source.place)), source.took)
        report = FieldReport(name, kind, source.by, seconds=seconds)
        if source.kind != "map":
            kept, value = kept_value(source.value)
            return replace(report, kept=kept, value=value)
        done = [source.items[i] for i in sorted(source.items) if source.items[i].state == "done"]
        values = [kept_value(item.value) for item in done]
        other = next((kept for kept, _ in values if kept != "value"), None)
        if other is not None:
            return replace(report, items=len(done), kept=other)
        return replace(report, items=len(done), value=[value for _, value in values])

    def _plain(self, name: str, step: Step) -> FieldReport | None:
        records = [each for each in (step.forked, step.given, step.filled) if each is not None]
        held = [r for r in records if stored_value(r.node, name) is not None]
        if not held:
            return None
        first = held[0]
        kept, value = stored_value(first.node, name) or ("missing", None)
        giver: Any = first
        # A fork has the whole node; what gave it the fields it kept, another record may tell.
        if isinstance(first, RunForked) and name not in first.changed:
            giver = held[1] if len(held) > 1 else None
        source, by = ("", "") if giver is None else _giver(giver, name)
        if source == "body":
            before = step.before
            by = "" if before is None else before.name
        return FieldReport(name, source, by, "there", kept, value)

    def _unfinished(self, name: str, step: Step, source: Source | None) -> FieldReport:
        if source is not None and source.gate is not None:
            return FieldReport(name, "gate", source.by, "waiting", "missing")
        if (source is not None and source.spans) or (source is not None and source.is_open):
            return FieldReport(name, cast(ValueSource, source.kind), source.by, "begun", "missing")
        where = step.place.path, step.name, name
        call = self._shape.call_at(*where)
        shared = self._history.shared.get(call) if self._shape.is_shared(*where) else None
        if shared is not None:
            kept, value = kept_value(shared.value)
            return FieldReport(name, "dep", shared.by, "there", kept, value, before=True)
        return FieldReport(name, state="absent", kept="missing")


def _giver(record: Any, name: str) -> tuple[ValueSource | Literal[""], str]:
    """What gave a plain field the value that a record has."""
    if name in cast(StoredNode, record.node).unset:
        return "default", ""
    if isinstance(record, RunForked) and name in record.changed:
        return "fork", record.parent
    if isinstance(record, FillEnded):
        return "lm", ", ".join(record.usage.models)
    return ("caller", "") if record.step == 0 else ("body", "")


def _calls(step: Step, before: Step | None) -> Iterator[CallReport]:
    """The LM calls behind a node: its choice, what the body before it asked, its sources, its
    fill."""
    asked: list[Question | None] = [] if before is None else [before.choice, *before.asked]
    asked += [question for source in step.sources.values() for question in source.asked]
    for question in (*asked, step.fill):
        if question is None:
            continue
        by = str(question.asker)
        for judged in question.answers:
            attempt = judged.attempt
            about = by, attempt.verdict, attempt.number, attempt.errors, attempt.usage
            yield CallReport(*about, attempt.asked or None, attempt.answer or None)
        for restart in question.restarts:
            yield CallReport(by, "restarted", errors=(error_text(restart.error),))
        if question.asker.kind in ("body", "source") and question.usage != NOTHING_USED:
            yield CallReport(by, "used", usage=question.usage)
