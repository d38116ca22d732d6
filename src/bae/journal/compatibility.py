"""Find out whether stored runs can be resumed with today's classes. The stored lines are read
through these classes: for one run when it is resumed, and for all unfinished runs before a
deployment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from bae.calls import find_call_at
from bae.draft import empty_draft, validate_values
from bae.exceptions import JournalError, describe, faults
from bae.files import visible
from bae.journal.decoder import LineReader, LineRefused, read_history
from bae.journal.node_codec import node_codec, read_gate_answer
from bae.journal.shape import Json, ShapeView, shape_of
from bae.journal.store import Journal
from bae.journal.stored_runs import RunInfo, RunStatus
from bae.plan import plan_of
from bae.records import LIVE, Record
from bae.sources import find_source_kind

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.lines import StoredNode
    from bae.journal.stored_runs import Line, StoredRun
    from bae.node import Node


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between today's classes and the classes that a run began with."""

    place: str
    """The class, field or route, as `AnticipateDay.mood`."""
    what: str
    """The difference, in words."""
    means: str = ""
    """Why the run cannot be resumed; empty if the change does not prevent it."""
    breaks: bool = False
    """Whether the change prevents resuming the run."""
    kind: Literal["new", "gone", "changed", "refused"] = "refused"
    """How the place has changed since the run began. "refused" if today's class refuses a stored
    value, but the stored shape of the class shows no difference."""
    graph: str = ""
    """The name of the graph, if it is a subgraph; otherwise empty."""
    fix: str = ""
    """What to do, if the change breaks the run."""

    def __str__(self) -> str:
        where = f"{self.place} (in the graph {self.graph})" if self.graph else self.place
        return f"{where} {self.what}: {self.means}" if self.means else f"{where} {self.what}"


@dataclass(frozen=True, slots=True)
class BrokenRun:
    """An unfinished run that cannot be resumed with today's classes."""

    info: RunInfo
    """The entry of the run in the journal."""
    changes: tuple[Change, ...]
    """The changes that prevent resuming the run."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.info.run_id

    def __str__(self) -> str:
        info = self.info
        since = datetime.fromtimestamp(info.updated, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        lines = [f"{info.run_id} ({info.graph}, {info.status} since {since}) cannot be resumed:"]
        for change in self.changes:
            lines.append(f"  {change}")
            if change.fix:
                lines.append(f"    fix: {change.fix}")
        return "\n".join(lines)


async def check(
    graph: Graph[Any, Any], journal: Journal, *, was: str | Iterable[str] = ()
) -> list[BrokenRun]:
    """Find the unfinished runs of a graph that cannot be resumed with today's classes:

    ```python
    broken = await bae.journal.check(graph, journal)
    assert not broken, "\\n".join(map(str, broken))
    ```

    Call it before you deploy, with the new code and the production journal. It changes nothing.

    Runs are found by the name of their graph. A graph without a name of its own has the name of its
    start class. If the name has changed, pass the old name as `was=`. The check covers runs that
    are queued, waiting, failed, cancelled, interrupted or in progress. A run whose classes are
    unchanged is not even read.
    """
    graph.prove()
    # A run can be listed twice: its status can change between two pages.
    unfinished = {
        info.run_id: info
        for name in (graph.name, *([was] if isinstance(was, str) else was))
        for status in _UNFINISHED
        async for info in journal.every_run(status=status, graph=name)
        if info.shape != shape_of(graph).hash
    }
    broken: list[BrokenRun] = []
    for info in unfinished.values():
        try:
            changes = changes_for(await journal.read(info.run_id), graph)
        except JournalError as error:
            if error.code == "bae-run-unknown":
                continue  # the run was deleted in the meantime
            changes = [_report_unreadable(error)]
        breaking = tuple(change for change in changes if change.breaks)
        if breaking:
            broken.append(BrokenRun(info, breaking))
    return broken


def refuse_changes(stored: StoredRun, graph: Graph[Any, Any]) -> list[Change]:
    """Return the changes since a run began, if the run can be resumed. Otherwise raise
    `bae-run-changed`, which lists every change that prevents resuming it."""
    changes = changes_for(stored, graph)
    breaking = [change for change in changes if change.breaks]
    if not breaking:
        return changes
    listed = "\n".join(f"  {change}" for change in breaking)
    harmless_count = len(changes) - len(breaking)
    rest = f"\n  (changes that do not prevent it: {harmless_count})" if harmless_count else ""
    fixes = dict.fromkeys(change.fix for change in breaking if change.fix)
    remedies = [
        *fixes,
        "finish the run with the code it began with",
        "fork it at an earlier step",
    ]
    raise JournalError(
        f"the classes of {stored.info.graph} have changed since the run {stored.info.run_id} "
        f"began, and it cannot be resumed:\n{listed}{rest}",
        run_id=stored.info.run_id,
        code="bae-run-changed",
        fix="; or ".join(remedies),
    )


def changes_for(stored: StoredRun, graph: Graph[Any, Any]) -> list[Change]:
    """Return all changes since a run began. A change that prevents resuming the run has `breaks`
    set."""
    shape = shape_of(graph)
    if stored.info.shape == shape.hash:
        return []
    old = ShapeView(stored.shape, stored.info.shape)
    reader = _Checker(graph, old)
    with visible(stored.files):
        for line in stored.lines:
            reader.read(line)
        reader.check_answers(stored.answers)
    changes = list(
        _find_differences(_describe_parts(old), _describe_parts(ShapeView(shape.json, shape.hash)))
    )
    removed = {(change.graph, change.place) for change in changes if change.kind == "gone"}
    refused = dict.fromkeys(_find_chosen_routes(stored, old) & removed, _DECIDED) | reader.refused
    results: list[Change] = []
    for change in changes:
        why = refused.pop((change.graph, change.place), "")
        fix = _FIXES[change.kind].format(change.place) if why else ""
        results.append(replace(change, breaks=bool(why), means=why, fix=fix))
    for (name, place), why in refused.items():
        fix = _FIXES["refused"].format(place)
        results.append(Change(place, "cannot be read", why, True, graph=name, fix=fix))
    if reader.failure is not None and not any(change.breaks for change in results):
        results.append(_report_unreadable(reader.failure))
    return results


_UNFINISHED: Final[tuple[RunStatus, ...]] = ("queued", "running", "waiting", "failed", "cancelled")
_Key = tuple[str, str]
"""The name of a graph, and a place in the graph. The name is empty for the run's own graph."""
_GONE: Final = "the run has a node of this class, or goes to this class next"
_DECIDED: Final = "the run has chosen this route, and has not taken it yet"
_TAKE: Final = "let {} accept the stored value: widen its type, or convert the value in a validator"
_FIXES: Final = {
    "new": "give {} a default, or a source",
    "gone": "keep {}, under this name, until these runs are done",
    "changed": _TAKE,
    "refused": _TAKE,
}


class _Checker(LineReader):
    """Reads the lines of a run through today's classes. If a class refuses a stored value, the
    checker notes it and continues."""

    def __init__(self, graph: Graph[Any, Any], shape: ShapeView) -> None:
        super().__init__(graph, {}, partial=True)
        self.refused: dict[_Key, str] = {}
        """Why a stored value is refused, by graph and place."""
        self.failure: JournalError | None = None
        """The error of the first line that cannot be read. The cause may be a refused value in an
        earlier line."""
        self._shape = shape
        self._path = ""
        self._unknown = ""
        """A class that the current line names, but that today's graph does not have."""

    def check_answers(self, answers: Mapping[str, str]) -> None:
        """Check the answers that the run has not used yet."""
        for address, answer in answers.items():
            source = self.history.gates.get(address)
            if source is None or source.gate is None or source.state == "done":
                continue
            gate, self._path = source.gate, source.place.path
            try:
                if gate.parameter:
                    read_gate_answer(gate, answer)
                else:
                    node_codec(gate.node_type).load_field(gate.field_name, from_json(answer))
            except JournalError as error:
                self._refuse(gate.place, error)

    def read(self, line: Line) -> Record | None:
        self._path, self._unknown = line.path, ""
        try:
            return super().read(line)
        except JournalError as error:
            if error.code != "bae-journal-unreadable":
                raise
            if self._unknown:
                self.refused[_graph_name(self._shape, line.path), self._unknown] = _GONE
            self.failure = self.failure or error
            return None

    def _class(self, path: str, name: str) -> type[Node]:
        try:
            return super()._class(path, name)
        except LineRefused:
            self._unknown = name
            raise

    def _node(self, line: Line, data: StoredNode) -> Node:
        try:
            return super()._node(line, data)
        except JournalError as error:
            cls = self._class(line.path, data.type)
            self._refuse(cls.__name__, error)
            return empty_draft(cls)

    def _load_value(
        self, line: Line, cls: type[Node], field: str, parameter: str, data: Any
    ) -> Any:
        call = find_call_at(plan_of(cls).fields[field], parameter)
        try:
            value = super()._load_value(line, cls, field, parameter, data)
            if value is not LIVE and not parameter and line.kind == "SourceEnded":
                validate_values(cls, {field: value})
            return value
        except Exception as error:  # a type, or a validator, may raise anything
            if call is None or call.graph is None:  # a subgraph's own lines show what is refused
                self._refuse(f"{cls.__name__}.{field}{parameter}", error)
            return LIVE

    def _join_values(self, draft: Node, values: dict[str, Any], whole: bool) -> Node:
        try:
            return super()._join_values(draft, values, whole)
        except JournalError as error:
            self._refuse(type(draft).__name__, error)
            return draft

    def _refuse(self, place: str, error: Exception) -> None:
        """Note why a value is refused. For a node, note it at the field that pydantic names."""
        graph = _graph_name(self._shape, self._path)
        cause = error.cause if isinstance(error, JournalError) and error.cause else error
        if not isinstance(cause, ValidationError):
            self.refused[graph, place] = f"a stored value is refused: {describe(cause)}"
            return
        for details, fault in zip(cause.errors(include_url=False), faults(cause), strict=True):
            is_field = bool(details["loc"]) and "." not in place
            fault_place = f"{place}.{details['loc'][0]}" if is_field else place
            if is_field and details["type"] == "missing" and len(details["loc"]) == 1:
                fault = "a node that was stored without it cannot be built"
            self.refused.setdefault((graph, fault_place), fault)


def _find_chosen_routes(stored: StoredRun, shape: ShapeView) -> set[_Key]:
    """Return the routes that a run has chosen and not taken yet."""
    routes: set[_Key] = set()
    for path, graph in read_history(stored).graphs.items():
        complete_steps = [number for number, step in graph.steps.items() if step.is_complete]
        if not complete_steps or graph.outcome == "ended":
            continue
        last, after = graph.steps[max(complete_steps)], graph.steps.get(max(complete_steps) + 1)
        target = ""
        if last.choice is not None and last.choice.chosen is not None:
            chosen = last.choice.chosen
            target = "None" if chosen is NoneType else chosen.__name__
        elif after is not None and (after.filled is not None or after.given is not None):
            target = after.name
        routes.add((_graph_name(shape, path), f"{last.name} -> {target}"))
    return routes


def _graph_name(shape: ShapeView, path: str) -> str:
    graph = shape.graph_at(path) if path else None
    return "" if graph is None else graph["name"]


_Part = tuple[str, str, str]
"""The name of a graph, one of its classes, and a field or route of the class, as `.mood` or ` ->
Outfit`. For a class, the field is empty. For a graph, the class is empty too."""


class _Described(NamedTuple):
    """The properties of a part of a graph."""

    words: list[str]
    """The properties in words. The hash of a type begins with `#`."""
    is_needed: bool = False
    """Whether the part is a field that the caller or an LM must supply."""


def _describe_parts(shape: ShapeView) -> dict[_Part, _Described]:
    """Describe each part of the graphs in a shape."""
    parts: dict[_Part, _Described] = {}
    for number, graph in enumerate(shape.graphs):
        name = graph["name"] if number else ""
        parts[name, "", ""] = _Described([*_words(graph, "system", "context")])
        for cls, drawn in graph["classes"].items():
            body = "a written body" if drawn["written"] else "an empty body"
            rules = (f"the rule {rule}" for rule in drawn.get("rules", ()))
            words = _words(drawn, "instruction", "description", "context")
            parts[name, cls, ""] = _Described([body, *rules, *words])
            for target in [*drawn["next"], *(["None"] if drawn["ends"] else [])]:
                parts[name, cls, f" -> {target}"] = _Described([])
            for field, use in drawn["fields"].items():
                kind = find_source_kind(use["kind"])
                properties = [kind.noun, f"the type {use['type']}", f"#{use.get('schema')}"]
                properties.append("no default" if use["required"] else "a default")
                is_needed = use["required"] and kind.fills != "source"
                parts[name, cls, f".{field}"] = _Described(properties, is_needed)
                for parameter, call in shape.walk_calls(use):
                    part = name, cls, f".{field}{parameter}"
                    properties = parts.setdefault(part, _Described([])).words
                    properties += [f"the function {call['by']}", f"#{call.get('schema')}"]
                    properties += [
                        f"the argument {argument}"
                        for argument in shape.arguments_of(call["inputs"])
                    ]
                properties = parts[name, cls, f".{field}"].words
                properties += [
                    f"the argument {argument}"
                    for argument in shape.arguments_of(use.get("bound", {}))
                ]
    return parts


def _words(drawn: Json, *kinds: str) -> Iterator[str]:
    return (f"the {kind} {drawn[kind]!r}" for kind in kinds if kind in drawn)


def _find_differences(
    before: dict[_Part, _Described], now: dict[_Part, _Described]
) -> Iterator[Change]:
    for part in {**before, **now}:
        graph, cls, rest = part
        outer = graph, cls if rest else "", ""
        old, new = before.get(part), now.get(part)
        if old == new or outer not in before or outer not in now:
            continue  # the class or graph of the part is new or gone itself
        place = f"{cls}{rest}" or "the graph"
        if new is None:
            yield Change(place, "is gone", kind="gone", graph=graph)
        elif old is None:
            what = "is new and has no default" if new.is_needed else "is new"
            yield Change(place, what, kind="new", graph=graph)
        else:
            lost = ", ".join(word for word in old.words if word not in new.words and word[0] != "#")
            gained = ", ".join(
                word for word in new.words if word not in old.words and word[0] != "#"
            )
            facts = [f"had {lost}"] * bool(lost) + [f"has {gained} now"] * bool(gained)
            what = " and ".join(facts) or "has a type that has changed"
            yield Change(place, what, kind="changed", graph=graph)


def _report_unreadable(error: JournalError) -> Change:
    means = "today's classes refuse what is stored, or the stored run is damaged"
    return Change("the run", f"cannot be read: {error.message}", means, True, fix=error.fix or "")
