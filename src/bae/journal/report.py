"""A stored run as data, read without the run's code. `timeline` returns the work of the run by
time. `report_run` returns its nodes in order, with the origins of values and the usage of LM
calls."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from time import time
from types import NoneType
from typing import Any, Final

from bae.files import HASH, file_of, size_text
from bae.history import History
from bae.journal.decoder import read_history
from bae.journal.provenance import JudgedAnswer, Provenance, ToolRound, call_text
from bae.journal.stored_runs import Listed, RunInfo, StoredRun
from bae.journal.why import Search, judged_answers, tool_rounds
from bae.records import RunResumed, error_text
from bae.usage import Usage
from bae.work import NOTHING_USED, GraphRun, LMQuestion, Source, Span, State, Step, ToolRun, Work

_LONGEST_CALL: Final = 200
"""The most characters of a tool call that a timeline has."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One piece of work of a run."""

    kind: str
    """The kind of work:

    - "node": from the first work for a node until the node has led to the next node.
    - The kind of a field's source, such as "dep", "map" or "gate".
    - "item": one item of a map.
    - "choice" or "fill": a choice or a fill by the LM.
    - "tool": a tool call of the LM.
    - "body": the call of a written body.
    """
    place: str
    """The place of the work, as `1:Day.weather`."""
    name: str
    """The name of the node's class, the function, the graph, the tool, the question, or the node
    that the LM chose."""
    spans: tuple[Span, ...]
    """The times when a process did the work; several if the work was interrupted and resumed."""
    outcome: State
    error: str = ""
    """Why the work failed, in one line."""
    note: str = ""
    """Any other remark, such as the arguments of a tool call."""
    marks: tuple[float, ...] = ()
    """The times when items of a map were finished. An item that a graph computed is an entry in
    `inside` instead."""
    usage: Usage = NOTHING_USED
    """The usage of the LM calls in this work, without the usage of the entries in `inside`."""
    inside: tuple[TimelineEntry, ...] = ()
    """The parts of the work, in the order in which they began. A part lies between `start` and
    `end`, except an open question to a person: the question lasts until the current time."""
    waits: bool = False
    """Whether the work is a question to a person, which may be open while no process runs."""

    @property
    def start(self) -> float:
        """The time when the work began."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """The time when the work ended, or the last time when a process did the work."""
        return self.spans[-1].end

    @property
    def seconds(self) -> float:
        """The seconds that the work took, without pauses."""
        return sum(span.seconds for span in self.spans)

    def every(self) -> Iterator[TimelineEntry]:
        """Yield this entry and all entries inside it, depth first."""
        yield self
        for entry in self.inside:
            yield from entry.every()


@dataclass(frozen=True, slots=True)
class Timeline:
    """The work of a run by time. All work lies between `start` and `end`."""

    run_id: str
    graph: str
    status: Listed
    lives: tuple[Span, ...]
    """The times when a process worked on the run. Between them, the run was parked, had failed, or
    was interrupted."""
    work: tuple[TimelineEntry, ...]

    @property
    def start(self) -> float:
        """The time when the run began."""
        return min(life.start for life in self.lives)

    @property
    def end(self) -> float:
        """The time when the run ended, or the last time of its work. While the run is in progress
        or waits for a person, this is the current time."""
        open_until = (work.end for work in self.every() if work.outcome == "waiting")
        return max(max(life.end for life in self.lives), max(open_until, default=self.start))

    @property
    def seconds(self) -> float:
        """The seconds that processes worked on the run."""
        return sum(life.seconds for life in self.lives)

    def worked_by(self, at: float) -> float:
        """Return the seconds that processes had worked on the run at the time `at`."""
        return sum(min(life.end, at) - life.start for life in self.lives if life.start < at)

    def every(self) -> Iterator[TimelineEntry]:
        """Yield all work, depth first."""
        for entry in self.work:
            yield from entry.every()


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node of a run, with the origins of its values."""

    step: int
    name: str
    whole: bool
    """Whether the node is complete."""
    chosen_among: tuple[str, ...]
    """The names of the classes among which the LM chose the node; "" is the end of the run."""
    filled_in: float | None
    """The seconds in which an LM filled the node; None if no LM filled it."""
    usage: Usage
    """The usage of the node's choice and fill."""
    forked_from: str
    """The id of the run that was forked at this node; empty if no fork put the node here."""
    changed: tuple[str, ...]
    """The fields that the fork changed."""
    calls: tuple[JudgedAnswer, ...]
    """The answers of LMs. The verdict "restarted" marks a request that failed and was sent again.
    The verdict "used" marks the usage of a body or a dependency."""
    fields: tuple[Provenance, ...]
    rounds: tuple[ToolRound, ...] = ()
    """The rounds of conversations with tools."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An image or a document of a run."""

    hash: str
    media_type: str
    size: int
    name: str
    """The first name of the file in the run; empty if it has no name."""

    @property
    def about(self) -> str:
        """The file in one line: kind, name, type, size and the beginning of the hash."""
        kind = "image" if self.media_type.startswith("image/") else "document"
        parts = self.name, self.media_type, size_text(self.size), self.hash[:19]
        return f"{kind} {', '.join(part for part in parts if part)}"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The nodes of one graph: of the run itself, or of a graph that ran inside it."""

    path: str
    """The path of the graph; empty for the run itself."""
    nodes: tuple[NodeReport, ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """The content of a stored run."""

    info: RunInfo
    timeline: Timeline
    seconds: float
    """The seconds from the start of the run to its end, including pauses. While the run is in
    progress or waits, the seconds until the current time."""
    usage: Usage
    resumed: tuple[RunResumed, ...]
    """A record for each time when the run was resumed."""
    graphs: tuple[GraphReport, ...]
    """The run itself, followed by the graphs that ran inside it."""
    files: tuple[StoredFile, ...] = ()
    """The images and documents of the run."""

    @property
    def ended_at(self) -> str:
        """The class name of the last node if the run has ended; otherwise empty."""
        nodes = self.graphs[0].nodes if self.graphs else ()
        return nodes[-1].name if nodes and self.info.status == "ended" else ""


def timeline(stored: StoredRun, *, now: float | None = None) -> Timeline:
    """Return the timeline of a run. The work of a run in progress lasts until `now`, by default the
    current time. Raises `bae-journal-damaged` if a line is damaged."""
    return _timeline(stored, read_history(stored), time() if now is None else now)


def report_run(stored: StoredRun, *, now: float | None = None) -> RunReport:
    """Return the report of a run. `timeline` explains the parameters and errors."""
    now = time() if now is None else now
    history, info = read_history(stored), stored.info
    run_timeline = _timeline(stored, history, now)
    # How long sources and LM calls took, in all lives of the run.
    took = {(entry.kind, entry.place): entry.seconds for entry in run_timeline.every()}
    search = Search(stored, history)
    graphs = tuple(
        GraphReport(
            graph.path,
            tuple(_report_node(step, search, took) for step in graph.trace if step.name),
        )
        for graph in [history.run, *(inner for path, inner in history.graphs.items() if path)]
    )
    # A fork shares lines of its parent, so its timeline begins before the fork.
    seconds = info.lasted(now) if info.parent else run_timeline.end - run_timeline.start
    changes = tuple(history.changes)
    return RunReport(
        info, run_timeline, seconds, history.usage, changes, graphs, list_files(stored)
    )


def list_files(stored: StoredRun) -> tuple[StoredFile, ...]:
    """Return the images and documents of a run, in the order in which its lines refer to them."""
    names: dict[str, str] = {}
    if stored.files:
        for line in stored.lines:
            for match in _REFERENCE.finditer(line.data):
                name = json.loads(match[2]) if match[2] else ""
                names[match[1]] = names.get(match[1]) or name
    files: list[StoredFile] = []
    for hash in (*(name for name in names if name in stored.files), *stored.files):
        data = stored.files[hash]
        try:
            media_type = file_of(data).media_type
        except ValueError:  # another program has written the run
            media_type = "application/octet-stream"
        files.append(StoredFile(hash, media_type, len(data), names.get(hash, "")))
    return tuple(dict.fromkeys(files))


_REFERENCE: Final = re.compile(
    rf'"hash":"({HASH.pattern})","type":"[^"]*","size":[0-9]+(?:,"name":("(?:[^"\\]|\\.)*"))?'
)


def _report_node(step: Step, search: Search, took: dict[tuple[str, str], float]) -> NodeReport:
    choice = None if step.before is None else step.before.choice
    offered = () if choice is None else choice.offered
    filled = None if step.filled is None else step.filled.seconds
    fields: list[Provenance] = []
    for name in search.field_names(step):
        field = search.at(step.place._replace(field=name))
        if field.state == "there" and field.seconds is not None:
            key = ("fill", str(step.place)) if field.is_calls else (field.source, field.place)
            field = replace(field, seconds=took.get(key, field.seconds))
        fields.append(field)
    return NodeReport(
        step.number,
        step.name,
        step.is_complete,
        tuple("" if cls is NoneType else cls.__name__ for cls in offered),
        filled if filled is None else took.get(("fill", str(step.place)), filled),
        _usage_of(step, choice),
        "" if step.forked is None else step.forked.parent,
        () if step.forked is None else step.forked.changed,
        tuple(_report_calls(step)),
        tuple(fields),
        tuple(_report_rounds(step)),
    )


def _usage_of(step: Step, choice: LMQuestion | None) -> Usage:
    """Return the usage of the choice and the fill of a node, including rounds before a resume."""
    questions = [question for question in (choice, step.fill) if question is not None]
    loop, fill = step.fill_loop, step.fill
    before = [] if loop is None or fill is None else loop.rounds_before(fill.started)
    return Usage.total(paid.usage for paid in (*before, *questions))


def _report_rounds(step: Step) -> Iterator[ToolRound]:
    """Yield the rounds that led to a node: of the previous node's body, of the node's sources, and
    of its fill. For the last node, the rounds of its own body follow."""
    is_last = step.number + 1 not in step.graph.steps
    loops = [
        (asker, loop) for (asker, _), loop in step.loops.items() if is_last or asker.kind != "body"
    ]
    before = {} if step.before is None else step.before.loops
    by_body = [(asker, loop) for (asker, _), loop in before.items() if asker.kind == "body"]
    for asker, loop in (*by_body, *loops):
        yield from tool_rounds(loop, asker)


def _report_calls(step: Step) -> Iterator[JudgedAnswer]:
    """Yield the LM calls that led to a node: of its choice, of the previous node's body, of the
    node's sources, and of its fill. For the last node, the calls after it follow."""
    before = step.before
    questions: list[LMQuestion | None] = [] if before is None else [before.choice, *before.asked]
    questions += [question for source in step.sources.values() for question in source.asked]
    questions.append(step.fill)
    if step.number + 1 not in step.graph.steps:
        questions += [step.choice, *step.asked]
    for question in questions:
        if question is None:
            continue
        by = str(question.asker)
        restarts = (
            JudgedAnswer(0, "restarted", (error_text(r.error),), at=r.at, by=by, model=r.model)
            for r in question.restarts
        )
        yield from sorted((*judged_answers(question), *restarts), key=lambda answer: answer.at)
        if question.asker.kind in ("body", "source") and question.usage != NOTHING_USED:
            yield JudgedAnswer(0, "used", usage=question.usage, by=by)


def _timeline(stored: StoredRun, history: History, now: float) -> Timeline:
    info, status = stored.info, stored.info.standing(now)
    if history.alive and status == "running":
        history.stop(max(now, history.last), "running")
    elif history.alive:
        history.stop()
    lives = tuple(history.lives) or (Span(info.started, info.started),)
    builder = _TimelineBuilder(lives, now if status == "waiting" else 0.0)
    work = builder.steps(history.run) if "" in history.graphs else []
    return Timeline(info.run_id, info.graph, status, lives, _in_order(work))


class _TimelineBuilder:
    """Makes timeline entries from the work of a run. `lives` are the times when a process worked on
    the run. Open questions to people last until `waits_until`."""

    def __init__(self, lives: tuple[Span, ...], waits_until: float) -> None:
        self._lives = [life.start for life in lives]
        self._waits_until = waits_until

    def steps(self, graph: GraphRun) -> list[TimelineEntry]:
        every = (self._step(step) for step in graph.trace if step.name)
        return [entry for entries in every for entry in entries]

    def _step(self, step: Step) -> list[TimelineEntry]:
        place, before = str(step.place), step.before
        inside = [entry for source in step.sources.values() for entry in self._source(source)]
        if before is not None and _leads_to(before.choice):
            inside += self._choice(place, before.choice)
        fill = step.fill
        if fill is not None and step.filled_by is fill and _was_asked(fill):
            loop = step.fill_loop
            calls = [] if loop is None else self._calls(loop.calls.values())
            inside += self._entry("fill", place, step.name, fill, calls)
        if step.called is not None:
            usage = Usage.total(question.usage for question in step.asked)
            calls = self._calls(call for question in step.asked for call in question.calls)
            inside += self._entry("body", place, step.name, step.called, calls, usage=usage)
        if not _leads_to(step.choice) or step.number + 1 not in step.graph.steps:
            inside += self._choice(place, step.choice)
        entries = self._entry("node", place, step.name, step, inside)
        if step.is_complete and step.called is None and step.state in ("cancelled", "interrupted"):
            return [replace(entry, outcome="done", error="") for entry in entries]
        return entries

    def _calls(self, calls: Iterable[ToolRun]) -> list[TimelineEntry]:
        entries: list[TimelineEntry] = []
        for call in calls:
            inside = [] if call.graph is None else self.steps(call.graph)
            usage = Usage.total(question.usage for question in call.asked)
            note = call_text(call.name, call.arguments)[:_LONGEST_CALL]
            place = str(call.place)
            for gate in call.gates:
                entries += [replace(entry, place=place) for entry in self._source(gate)]
            entries += self._entry("tool", place, call.name, call, inside, note=note, usage=usage)
        return entries

    def _source(self, source: Source) -> list[TimelineEntry]:
        if source.origin is not None:
            return []
        inside = [] if source.graph is None else self.steps(source.graph)
        inside += self._calls(call for question in source.asked for call in question.calls)
        marks: list[float] = []
        for index in sorted(source.items):
            item = source.items[index]
            if item.graph is not None:
                place = str(source.place._replace(item=index))
                inside += self._entry("item", place, f"[{index}]", item, self.steps(item.graph))
            elif item.ended is not None:
                marks.append(item.ended)
        usage = Usage.total(question.usage for question in source.asked)
        name = source.by or source.place.field
        entries = self._entry(
            source.kind, str(source.place), name, source, inside, marks=tuple(marks), usage=usage
        )
        if source.gate is None:
            return entries
        # The wait for a person includes the times without a process.
        until = self._waits_until if source.state == "waiting" else 0.0
        return [
            replace(entry, waits=True, spans=(Span(entry.start, max(entry.end, until)),))
            for entry in entries
        ]

    def _choice(self, place: str, choice: LMQuestion | None) -> list[TimelineEntry]:
        if choice is None:
            return []
        chosen = choice.offered if choice.chosen is None else (choice.chosen,)
        name = " | ".join("the end" if cls is NoneType else cls.__name__ for cls in chosen)
        note = "and filled in the same call" if choice.with_fields else ""
        return self._entry("choice", place, name, choice, note=note)

    def _entry(
        self,
        kind: str,
        place: str,
        name: str,
        work: Work,
        inside: Iterable[TimelineEntry] = (),
        **more: Any,
    ) -> list[TimelineEntry]:
        """Return a list with the entry of `work`. The list is empty if no process did the work."""
        inside, error = _in_order(inside), "" if work.error is None else error_text(work.error)
        spans = self._spans(work, inside)
        about: dict[str, Any] = {"error": error, "usage": work.usage, "inside": inside, **more}
        return [TimelineEntry(kind, place, name, spans, work.state, **about)] if spans else []

    def _spans(self, work: Work, inside: Iterable[TimelineEntry]) -> tuple[Span, ...]:
        """Return the times when a process worked on `work` or its parts: one span per life."""
        every = [*work.spans]
        for part in inside:
            every += [Span(part.start, part.start)] if part.waits else part.spans
        spans: dict[int, Span] = {}
        for span in every:
            life = bisect_right(self._lives, span.start)
            earlier = spans.get(life, span)
            spans[life] = Span(min(earlier.start, span.start), max(earlier.end, span.end))
        return tuple(spans[life] for life in sorted(spans) if life)


def _in_order(work: Iterable[TimelineEntry]) -> tuple[TimelineEntry, ...]:
    return tuple(sorted(work, key=lambda entry: entry.start))


def _was_asked(fill: LMQuestion) -> bool:
    """Whether an LM was asked to fill a node. A node without fields for the LM is filled without an
    LM."""
    return bool(fill.took) or fill.usage != NOTHING_USED or fill.state != "done"


def _leads_to(choice: LMQuestion | None) -> bool:
    """Whether the LM chose a node, and not the end of the run."""
    return choice is not None and choice.chosen not in (None, NoneType)
