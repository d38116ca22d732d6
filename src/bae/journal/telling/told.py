"""A run told from its lines alone, as data: its nodes in order, the graphs inside it, where the
value of each field came from, what LM calls used, and how it came out. The code that the run was
made with need not be there. `story.py` has the lines by place; commands and pages draw this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import Any, Final, Literal, cast

from bae.journal.store import Listed, ParkedGate, StoredRun
from bae.journal.telling.pieces import address
from bae.journal.telling.provenance import Kept, ValueSource
from bae.journal.telling.spent import SUMS, usage_of
from bae.journal.telling.story import (
    Entry,
    NodeStory,
    Place,
    Story,
    asker_said,
    error_said,
    field_in,
    is_unset,
    value_in,
)
from bae.journal.telling.timeline import Timeline, timeline
from bae.usage import Usage

_NOTHING_USED: Final = Usage()


@dataclass(frozen=True, slots=True)
class ToldField:
    """A field of a node: its value, and where that came from.

    - `source` and `by`: as for a `Provenance`; the source is empty where no line tells.
    - `state`: "there", or why it is not: its source has "failed", has "begun", or is "waiting" for
      a person; "absent" where the lines say nothing of it.
    - `kept`: whether `value` is the value, as JSON, or why the journal has none.
    - `origin`: where a recalled value stands; `items`: how many a map came to; `seconds`: how long
      it took, as the timeline has it; `before`: whether a function was called once for the run,
      before this field asked.
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
class ToldCall:
    """Something there is to say of an LM call: an answer that was judged, with what was wrong with
    it and the texts where the journal has them; a request that was sent again (`verdict` is
    "restarted"); or what a body or a dependency used by itself (`verdict` is "used")."""

    by: str
    verdict: str
    number: int = 0
    errors: tuple[str, ...] = ()
    usage: Usage = _NOTHING_USED
    asked: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class ToldNode:
    """A node of a run. `chosen_among` are the classes it was chosen among, "" for the end;
    `filled_in` the seconds in which an LM filled it; `forked_from` and `changed` say that a fork
    has put it there."""

    step: int
    name: str
    whole: bool
    chosen_among: tuple[str, ...] = ()
    filled_in: float | None = None
    usage: Usage = _NOTHING_USED
    forked_from: str = ""
    changed: tuple[str, ...] = ()
    calls: tuple[ToldCall, ...] = ()
    fields: tuple[ToldField, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldGraph:
    """The nodes of the run itself, at the empty path, or of a graph that ran inside it."""

    path: str
    nodes: tuple[ToldNode, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """When a run was taken up again, and what was different about its classes then."""

    at: float
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldRun:
    """A run as `tell` tells it. `status` is "interrupted" where it was under way and whoever ran
    it is gone; `seconds` is how long the run lasted, times in which nobody was at it among them:
    until now, where it is under way or waits."""

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
    graphs: tuple[ToldGraph, ...]
    waiting: tuple[ParkedGate, ...]
    error: str

    @property
    def ended_at(self) -> str:
        """The class of the last node, where the run has ended."""
        nodes = self.graphs[0].nodes if self.graphs else ()
        return nodes[-1].name if nodes and self.status == "ended" else ""


def tell(stored: StoredRun, *, now: float | None = None, ran: Timeline | None = None) -> ToldRun:
    """Tell a run. `now` is the time at which it is looked at, `ran` its timeline, where that is
    there already; a damaged line is raised as `bae-journal-damaged`."""
    now = time() if now is None else now
    ran = timeline(stored, now=now) if ran is None else ran
    story, info = Story.of(stored), stored.info
    telling = _Telling(story, ran)
    # A fork has the times of the other run in its lines, in which it was not there yet.
    lasted = info.lasted(now) if info.parent else ran.end - ran.start
    return ToldRun(
        info.run_id,
        info.graph,
        ran.status,
        info.started,
        info.updated,
        lasted,
        info.parent,
        info.owner,
        Usage.total(usage_of(e.data) for e in story.entries if e.line.kind in SUMS),
        tuple(
            Resumed(entry.line.at, tuple(entry.data.get("changes") or ()))
            for entry in story.entries
            if entry.line.kind == "RunResumed"
        ),
        tuple(
            ToldGraph(path, tuple(telling.node(path, node) for node in nodes))
            for path in story.paths()
            if (nodes := story.trace(path)) or not path
        ),
        info.waiting,
        info.error,
    )


class _Telling:
    """One run while it is told."""

    def __init__(self, story: Story, ran: Timeline) -> None:
        self._story = story
        self._took = {
            (each.kind, each.place): each.seconds
            for each in ran.every()
            if each.kind not in ("node", "item", "body")
        }
        """How long sources and LM calls took, in all lives of the run."""
        self._fields: dict[tuple[str, str], list[str]] = {}
        """The fields of each class; a loop has many nodes of one."""

    def node(self, path: str, node: NodeStory) -> ToldNode:
        here = self._story.at(path, node.step)
        offered = [e.data["offered"] for e in here if e.line.kind == "ChoiceStarted"]
        hand = [each for each in (node.chosen, node.filled) if each is not None]
        told = ToldNode(
            node.step,
            node.name,
            node.whole,
            tuple(name or "" for name in offered[-1]) if offered else (),
            self._filled_in(path, node),
            Usage.total(usage_of(entry.data) for entry in hand),
            calls=tuple(_calls(here)),
            fields=tuple(self.field(path, node, name) for name in self._names(path, node.name)),
        )
        if node.forked is None:
            return told
        data = node.forked.data
        return replace(told, forked_from=data["parent"], changed=tuple(data.get("changed", ())))

    def _filled_in(self, path: str, node: NodeStory) -> float | None:
        if node.filled is None:
            return None
        seconds, place = float(node.filled.data["seconds"]), address(path, node.step, node.name)
        return self._took.get(("fill", place), seconds)

    def _names(self, path: str, cls: str) -> list[str]:
        if (path, cls) not in self._fields:
            self._fields[path, cls] = self._story.fields(path, cls)
        return self._fields[path, cls]

    def field(self, path: str, node: NodeStory, name: str) -> ToldField:
        story, place = self._story, (path, node.step, node.name, name, "")
        if place in story.recalled:
            return self._recalled(name, place)
        if place in story.ended:
            return self._sourced(name, place, story.ended[place])
        if place in story.failed:
            data = story.failed[place].data
            source = cast(ValueSource, data["source"])
            said = error_said(data["error"])
            return ToldField(name, source, data["by"], "failed", "missing", error=said)
        return self._plain(name, node) or self._unfinished(name, place)

    def _recalled(self, name: str, place: Place) -> ToldField:
        """What the trace had, from wherever it came there."""
        story, met = self._story, set[Place]()
        found = ToldField(name, "recall", kept="missing")
        while place in story.recalled and place not in met:
            met.add(place)
            path, step, field = story.recalled[place].data["origin"]
            node = story.nodes.get((path, step))
            named = node.name if node is not None and node.name else "?"
            where = f"{path}/{step}:{named}" if path else f"{step}:{named}"
            if not found.origin:
                found = replace(found, origin=f"{where}.{field}" if field else where)
            if node is None or not field:
                return found
            place = (path, step, node.name, field, "")
            if place not in story.recalled:
                there = self.field(path, node, field)
                return replace(found, kept=there.kept, value=there.value, items=there.items)
        return found

    def _sourced(self, name: str, place: Place, entry: Entry) -> ToldField:
        data = entry.data
        source, seconds = cast(ValueSource, data["source"]), float(data["seconds"] or 0.0)
        path, step, node, field, _ = place
        seconds = self._took.get((source, f"{address(path, step, node)}.{field}"), seconds)
        if not data.get("items"):
            return ToldField(name, source, data["by"], "there", *value_in(data), seconds=seconds)
        items = self._story.items.get(place, {})
        values = [value_in(items[index].data) for index in sorted(items)]
        other = next((kept for kept, _ in values if kept != "value"), None)
        told = ToldField(name, source, data["by"], items=len(items), seconds=seconds)
        if other is not None:
            return replace(told, kept=other)
        return replace(told, value=[value for _, value in values])

    def _plain(self, name: str, node: NodeStory) -> ToldField | None:
        held = [e for e in node.entries() if field_in(e.data["node"], name) is not None]
        if not held:
            return None
        first = held[0]
        # A fork has the whole node; who gave it what was left as it is, another line may tell.
        kept = field_in(first.data["node"], name) or ("missing", None)
        teller: Entry | None = first
        if first is node.forked and name not in first.data.get("changed", ()):
            teller = held[1] if len(held) > 1 else None
        source, by = ("", "") if teller is None else _giver(teller, name)
        if source == "body":
            before = self._story.nodes.get((first.line.path, node.step - 1))
            by = before.name if before is not None else ""
        return ToldField(name, source, by, "there", *kept)

    def _unfinished(self, name: str, place: Place) -> ToldField:
        story = self._story
        if place in story.gates:
            asked = story.gates[place].data["question"]
            return ToldField(name, "gate", asked, "waiting", "missing")
        if place in story.begun:
            data = story.begun[place].data
            source = cast(ValueSource, data["source"])
            return ToldField(name, source, data["by"], "begun", "missing")
        where = place[0], place[2], place[3]
        call = story.shape.call_at(*where)
        if call is not None and call in story.shared and story.shape.is_shared(*where):
            data = story.shared[call].data
            told = ToldField(name, "dep", data["by"], "there", *value_in(data))
            return replace(told, before=True)
        return ToldField(name, state="absent", kept="missing")


def _giver(entry: Entry, name: str) -> tuple[ValueSource | Literal[""], str]:
    """Who gave a plain field the value that a line has."""
    data = entry.data
    if is_unset(entry, name):
        return "default", ""
    if entry.line.kind == "RunForked" and name in data.get("changed", ()):
        return "fork", data["parent"]
    if entry.line.kind == "FillEnded":
        return "lm", ", ".join(usage_of(data).models)
    return ("caller", "") if entry.line.step == 0 else ("body", "")


def _calls(here: Sequence[Entry]) -> Iterator[ToldCall]:
    for line, data in here:
        match line.kind:
            case "AnswerJudged":
                errors = tuple(data.get("errors") or ())
                texts = data.get("asked"), data.get("answer")
                said = asker_said(data), data["verdict"], data["number"], errors
                yield ToldCall(*said, usage_of(data), *texts)
            case "AnswerRestarted":
                yield ToldCall(asker_said(data), "restarted", errors=(error_said(data["error"]),))
            case "LMUsed":
                yield ToldCall(asker_said(data), "used", usage=usage_of(data))
            case _:
                pass
