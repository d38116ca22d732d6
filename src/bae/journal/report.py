"""A stored run as data, read without its code. `timeline` has the work of the run by time, and
`report_run` its nodes in order, with the origins of their values and the usage of LM calls."""

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
"""How many characters of a tool call a timeline has."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One piece of work of a run.

    - `kind`: "node", from the first work for a node until it has led to the next; the kind of a
      field's source, as "dep", "map" or "gate"; "item", one item of a map; "choice" or "fill" by
      the LM; "tool", a tool call of the LM; or "body", the call of a written body.
    - `place` and `name`: its place, as `1:Day.weather`, and its worker: the class of a node, a
      function or graph, a question, or the node that the LM chose.
    - `spans`: when it was worked on; several if it was interrupted and resumed.
    - `outcome` and `error`: its outcome; `note`: any other remark.
    - `marks`: when the items of a map were finished, if no more is known about them. Items that
      graphs ran for are `inside`.
    - `waits`: whether it is a question to a person, who may take longer than any process runs.
    - `usage`: the usage of its LM calls, without the work inside it.
    - `inside`: the work that belongs to it, in the order in which it began. It lies between `start`
      and `end`, except for an open question, which lasts until now.
    """

    kind: str
    place: str
    name: str
    spans: tuple[Span, ...]
    outcome: State
    error: str = ""
    note: str = ""
    marks: tuple[float, ...] = ()
    usage: Usage = NOTHING_USED
    inside: tuple[TimelineEntry, ...] = ()
    waits: bool = False

    @property
    def start(self) -> float:
        """When it began."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """When it ended, or its last known time."""
        return self.spans[-1].end

    @property
    def seconds(self) -> float:
        """How long it was worked on, without pauses."""
        return sum(span.seconds for span in self.spans)

    def every(self) -> Iterator[TimelineEntry]:
        """This entry and all entries inside it, depth first."""
        yield self
        for each in self.inside:
            yield from each.every()


@dataclass(frozen=True, slots=True)
class Timeline:
    """The work of a run by time. `lives` are the times when a process worked on it; in between, it
    was parked, had failed, or was interrupted. All `work` lies between `start` and `end`."""

    run_id: str
    graph: str
    status: Listed
    lives: tuple[Span, ...]
    work: tuple[TimelineEntry, ...]

    @property
    def start(self) -> float:
        """When the run began."""
        return min(life.start for life in self.lives)

    @property
    def end(self) -> float:
        """When it ended, or its last known time: now, while it runs or waits for a person."""
        open_until = (work.end for work in self.every() if work.outcome == "waiting")
        return max(max(life.end for life in self.lives), max(open_until, default=self.start))

    @property
    def seconds(self) -> float:
        """How long processes worked on it."""
        return sum(life.seconds for life in self.lives)

    def worked_by(self, at: float) -> float:
        """For how many seconds, up to a time, processes had worked on it."""
        return sum(min(life.end, at) - life.start for life in self.lives if life.start < at)

    def every(self) -> Iterator[TimelineEntry]:
        """All work, depth first."""
        for each in self.work:
            yield from each.every()


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node of a run. `chosen_among` are the options of the choice that led to it, "" for the end.
    `filled_in` are the seconds in which an LM filled it. `forked_from` and `changed` are set if a
    fork put it there.

    `calls` are the answers of LMs. The verdict "restarted" is a request that was sent again; "used"
    is the usage of a body or a dependency. `rounds` are those of conversations with tools.
    """

    step: int
    name: str
    whole: bool
    chosen_among: tuple[str, ...]
    filled_in: float | None
    usage: Usage
    forked_from: str
    changed: tuple[str, ...]
    calls: tuple[JudgedAnswer, ...]
    fields: tuple[Provenance, ...]
    rounds: tuple[ToolRound, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An image or a document of a run. `name` is its first name in the run."""

    hash: str
    media_type: str
    size: int
    name: str

    @property
    def about(self) -> str:
        """The kind, name, type, size and the beginning of the hash."""
        kind = "image" if self.media_type.startswith("image/") else "document"
        parts = self.name, self.media_type, size_text(self.size), self.hash[:19]
        return f"{kind} {', '.join(part for part in parts if part)}"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The nodes of the run itself, at the empty path, or of a graph that ran inside it."""

    path: str
    nodes: tuple[NodeReport, ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """The content of a run. `seconds` is how long it lasted, including pauses: until now, while it
    runs or waits. `resumed` has a record for each time it was resumed. `files` are the images and
    documents that it refers to."""

    info: RunInfo
    timeline: Timeline
    seconds: float
    usage: Usage
    resumed: tuple[RunResumed, ...]
    graphs: tuple[GraphReport, ...]
    files: tuple[StoredFile, ...] = ()

    @property
    def ended_at(self) -> str:
        """The class of the last node, if the run has ended."""
        nodes = self.graphs[0].nodes if self.graphs else ()
        return nodes[-1].name if nodes and self.info.status == "ended" else ""


def timeline(stored: StoredRun, *, now: float | None = None) -> Timeline:
    """The timeline of a run. `now` is the current time: work of a run in progress lasts until then.
    Raises `bae-journal-damaged` for a damaged line."""
    return _timeline(stored, read_history(stored), time() if now is None else now)


def report_run(stored: StoredRun, *, now: float | None = None) -> RunReport:
    """The report of a run. The parameters and errors are those of `timeline`."""
    now = time() if now is None else now
    history, info = read_history(stored), stored.info
    ran = _timeline(stored, history, now)
    # How long sources and LM calls took, in all lives of the run.
    took = {(each.kind, each.place): each.seconds for each in ran.every()}
    search = Search(stored, history)
    graphs = tuple(
        GraphReport(
            graph.path,
            tuple(_report_node(step, search, took) for step in graph.trace if step.name),
        )
        for graph in [history.run, *(each for path, each in history.graphs.items() if path)]
    )
    # A fork shares the lines of the other run, and so their times.
    lasted = info.lasted(now) if info.parent else ran.end - ran.start
    changes = tuple(history.changes)
    return RunReport(info, ran, lasted, history.usage, changes, graphs, list_files(stored))


def list_files(stored: StoredRun) -> tuple[StoredFile, ...]:
    """The images and documents of a run, in the order in which its lines refer to them."""
    names: dict[str, str] = {}
    if stored.files:
        for line in stored.lines:
            for each in _REFERENCE.finditer(line.data):
                name = json.loads(each[2]) if each[2] else ""
                names[each[1]] = names.get(each[1]) or name
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
        step.whole,
        tuple("" if each is NoneType else each.__name__ for each in offered),
        filled if filled is None else took.get(("fill", str(step.place)), filled),
        _usage_of(step, choice),
        "" if step.forked is None else step.forked.parent,
        () if step.forked is None else step.forked.changed,
        tuple(_report_calls(step)),
        tuple(fields),
        tuple(_report_rounds(step)),
    )


def _usage_of(step: Step, choice: LMQuestion | None) -> Usage:
    """The usage of the choice and the fill of a node, including rounds before a resume."""
    asked = [question for question in (choice, step.fill) if question is not None]
    loop, fill = step.fill_loop, step.fill
    before = [] if loop is None or fill is None else loop.rounds_before(fill.started)
    return Usage.total(each.usage for each in (*before, *asked))


def _report_rounds(step: Step) -> Iterator[ToolRound]:
    """The rounds behind a node: of the body before it, of its sources, and of its fill. The rounds
    of a body that led to no node belong to the body's own node."""
    is_last = step.number + 1 not in step.graph.steps
    own = [
        (asker, loop) for (asker, _), loop in step.loops.items() if is_last or asker.kind != "body"
    ]
    before = {} if step.before is None else step.before.loops
    by_body = [(asker, loop) for (asker, _), loop in before.items() if asker.kind == "body"]
    for asker, loop in (*by_body, *own):
        yield from tool_rounds(loop, asker)


def _report_calls(step: Step) -> Iterator[JudgedAnswer]:
    """The LM calls behind a node: of its choice, of the body before it, of its sources, and of its
    fill. Questions after the last node belong to that node."""
    before = step.before
    asked: list[LMQuestion | None] = [] if before is None else [before.choice, *before.asked]
    asked += [question for source in step.sources.values() for question in source.asked]
    asked.append(step.fill)
    if step.number + 1 not in step.graph.steps:
        asked += [step.choice, *step.asked]
    for question in asked:
        if question is None:
            continue
        by = str(question.asker)
        restarts = (
            JudgedAnswer(0, "restarted", (error_text(r.error),), at=r.at, by=by, model=r.model)
            for r in question.restarts
        )
        yield from sorted((*judged_answers(question), *restarts), key=lambda each: each.at)
        if question.asker.kind in ("body", "source") and question.usage != NOTHING_USED:
            yield JudgedAnswer(0, "used", usage=question.usage, by=by)


def _timeline(stored: StoredRun, history: History, now: float) -> Timeline:
    info, status = stored.info, stored.info.standing(now)
    if history.alive and status == "running":
        history.stop(max(now, history.last), "running")
    elif history.alive:
        history.stop()
    lives = tuple(history.lives) or (Span(info.started, info.started),)
    builder = _Builder(lives, now if status == "waiting" else 0.0)
    work = builder.steps(history.run) if "" in history.graphs else []
    return Timeline(info.run_id, info.graph, status, lives, _in_order(work))


class _Builder:
    """Makes entries from the work in a history. A wait for a person lasts until `waits_until`."""

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
        if step.whole and step.called is None and step.state in ("cancelled", "interrupted"):
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
                entries += [replace(each, place=place) for each in self._source(gate)]
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
        done: Work,
        inside: Iterable[TimelineEntry] = (),
        **more: Any,
    ) -> list[TimelineEntry]:
        """An entry, if it was worked on at all."""
        inside, error = _in_order(inside), "" if done.error is None else error_text(done.error)
        spans = self._spans(done, inside)
        about: dict[str, Any] = {"error": error, "usage": done.usage, "inside": inside, **more}
        return [TimelineEntry(kind, place, name, spans, done.state, **about)] if spans else []

    def _spans(self, done: Work, inside: Iterable[TimelineEntry]) -> tuple[Span, ...]:
        """When it was worked on: in each life, at least while something inside it was."""
        every = [*done.spans]
        for work in inside:
            every += [Span(work.start, work.start)] if work.waits else work.spans
        spans: dict[int, Span] = {}
        for span in every:
            life = bisect_right(self._lives, span.start)
            known = spans.get(life, span)
            spans[life] = Span(min(known.start, span.start), max(known.end, span.end))
        return tuple(spans[life] for life in sorted(spans) if life)


def _in_order(work: Iterable[TimelineEntry]) -> tuple[TimelineEntry, ...]:
    return tuple(sorted(work, key=lambda each: each.start))


def _was_asked(fill: LMQuestion) -> bool:
    """Whether an LM was asked: a node without fields of its own is filled without an LM."""
    return bool(fill.took) or fill.usage != NOTHING_USED or fill.state != "done"


def _leads_to(choice: LMQuestion | None) -> bool:
    """Whether the LM chose a node, not the end."""
    return choice is not None and choice.chosen not in (None, NoneType)
