"""Whether stored runs can be resumed under the classes of today, which is decided by decoding what
they have stored: for one run when it is resumed, and for all of a journal before a deployment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError

from bae.calls import call_at
from bae.exceptions import JournalError, describe, faults
from bae.journal.changes import Change, Key, changes
from bae.journal.shape import Json, ShapeView, shape_of
from bae.journal.store import Journal, RunInfo, Status
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Line, StoredRun
    from bae.node import Node


@dataclass(frozen=True, slots=True)
class BrokenRun:
    """An unfinished run that cannot be resumed under the classes of today: `info` is what the
    journal says of it, `changes` what prevents it."""

    info: RunInfo
    changes: tuple[Change, ...]

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
    """The unfinished runs of a graph that cannot be resumed under its classes of today:

    ```python
    broken = await bae.journal.check(graph, journal)
    assert not broken, "\\n".join(map(str, broken))
    ```

    Call it with the new code and the journal that is in use, before you deploy; it changes nothing.
    Runs belong to a graph by its name, which is that of its start class unless you gave it one: if
    either was renamed, give the old name with `was=`. Runs that wait, failed, were cancelled or
    interrupted, or are in progress right now are looked at; those whose classes are the same are
    not even read.
    """
    graph.prove()
    names = [graph.name, *([was] if isinstance(was, str) else was)]
    shape = shape_of(graph)
    harmless = {shape.hash}
    broken: list[BrokenRun] = []
    for info in await _unfinished(journal, list(dict.fromkeys(names))):
        if info.shape in harmless:
            continue
        try:
            stored = await journal.read(info.run_id)
            is_known = bool(ShapeView(stored.shape).graphs)
            if is_known and not any(c.breaks for c in changes(stored.shape, shape)):
                harmless.add(info.shape)
                continue
            found = breaking(stored, graph)
        except JournalError as error:
            if error.code == "bae-run-unknown":
                continue  # it was deleted meanwhile
            found = [_unreadable(error, "it cannot be resumed under any classes")]
        if found:
            broken.append(BrokenRun(info, tuple(found)))
    return broken


def refuse_changes(stored: StoredRun, graph: Graph[Any, Any]) -> list[Change]:
    """What has changed since a run began, none of which prevents that it is resumed; else
    `bae-run-changed` is raised, with every change that does."""
    found = changes_for(stored, graph)
    bad = [change for change in found if change.breaks]
    if not bad:
        return found
    listed = "\n".join(f"  {change}" for change in bad)
    fine = len(found) - len(bad)
    rest = f"\n  (and {fine} that do not prevent it)" if fine else ""
    fixes = dict.fromkeys(change.fix for change in bad if change.fix)
    ways = [*fixes, "finish the run with the code it began with", "fork it at a step before that"]
    raise JournalError(
        f"the classes of {stored.info.graph} have changed since the run {stored.info.run_id} "
        f"began, and it cannot be resumed:\n{listed}{rest}",
        run_id=stored.info.run_id,
        code="bae-run-changed",
        fix="; or ".join(ways),
    )


def breaking(stored: StoredRun, graph: Graph[Any, Any]) -> list[Change]:
    """The changes since a run began that prevent that it is resumed."""
    return [change for change in changes_for(stored, graph) if change.breaks]


def changes_for(stored: StoredRun, graph: Graph[Any, Any]) -> list[Change]:
    """All changes since a run began; `breaks` is true for those that prevent that it is resumed."""
    shape = shape_of(graph)
    if stored.info.shape == shape.hash:
        return []
    run = _StoredValues(stored, graph)
    refused = run.refused_answers()
    failure = _decoding_error(stored, graph)
    different = changes(stored.shape, shape)
    if failure is not None:
        refused |= run.refused_values()
        if not refused:  # no single value is, but a node as a whole
            met = [(c.graph, c.place) for c in different if c.breaks]
            refused = dict.fromkeys((key for key in met if key in run.met), _why(failure))
    decided = run.decided_routes()
    found: list[Change] = []
    named: set[Key] = set()
    for change in different:
        key = change.graph, change.place
        if change.kind == "route-gone":
            breaks = key in decided
        else:
            breaks = change.breaks and key in refused
        if breaks:
            named.add(key)
            change = replace(change, means=refused.get(key, change.means))
        elif change.breaks:
            means = "nothing that the run has stored is refused"
            change = replace(change, breaks=False, means=means)
        found.append(change)
    for (name, place), why in refused.items():
        if (name, place) not in named:
            found.append(_refused_now(place, name, why))
    if failure is not None and not any(change.breaks for change in found):
        found.append(_unreadable(failure, "the classes do not take what was stored"))
    return found


class _StoredValues:
    """What a run has stored, read through the classes of today one value at a time, to name all
    that are refused."""

    def __init__(self, stored: StoredRun, graph: Graph[Any, Any]) -> None:
        self._stored = stored
        self._shape = ShapeView(stored.shape)
        self._graph = graph
        self._graphs: dict[str, Graph[Any, Any] | None] = {}
        self.met: set[Key] = set()
        """The classes and fields that `refused_values` has read values of."""

    def refused_values(self) -> dict[Key, str]:
        """Why classes and fields refuse what was stored."""
        found: dict[Key, str] = {}
        for line, data in _parsed(self._stored.lines):
            graph = self._graph_at(line.path)
            if graph is None:
                continue  # the field that it ran for is gone, or has another source
            name, node = self._name(line.path), data.get("node")
            if isinstance(node, dict) and "made" not in data:  # which has a few defaults alone
                held = cast(Json, node)
                self.met.add((name, str(held.get("type"))))
                fields = cast(Json, held.get("fields") or {})
                self.met |= {(name, f"{held.get('type')}.{field}") for field in fields}
                found |= {(name, place): why for place, why in _refused_parts(graph, held)}
            names = [data.get(key) for key in ("target", "chosen", "node")]
            for each in [each for each in names if isinstance(each, str)]:
                self.met.add((name, each))
                if _class(graph, each) is None:
                    found[name, each] = _GONE
            cls = _class(graph, node) if isinstance(node, str) else None
            if cls is not None and "value" in data and "field" in data:
                place = f"{node}.{data['field']}{data.get('parameter', '')}"
                self.met.add((name, place))
                why = _refused_source(cls, data)
                if why is not None:
                    found[name, place] = why
        return found

    def refused_answers(self) -> dict[Key, str]:
        """Why gates refuse answers that the run has not taken yet."""
        from bae.journal.gates import open_gates
        from bae.journal.node_codec import node_codec

        found: dict[Key, str] = {}
        for gate in open_gates(self._stored):
            graph = self._graph_at(gate.path)
            cls = None if graph is None else _class(graph, gate.node)
            answer = self._stored.answers.get(gate.address)
            if cls is None or answer is None or gate.field not in plan_of(cls).fields:
                continue
            try:
                node_codec(cls).read_field(gate.field, answer)
            except JournalError as error:
                found[self._name(gate.path), gate.place] = f"an answer is refused: {_why(error)}"
        return found

    def decided_routes(self) -> set[Key]:
        """The routes that the run has decided on and not taken yet, with the name of the graph."""
        at: dict[str, tuple[int, str]] = {}
        decided: dict[str, tuple[int, str]] = {}
        for line, data in _parsed(self._stored.lines):
            node: Any = data.get("node")
            name = str(cast(Json, node).get("type")) if isinstance(node, dict) else ""
            match line.kind:
                case "RunStarted":
                    at.pop(line.path, None)
                    decided[line.path] = 0, name
                case "ChoiceMade":
                    decided[line.path] = line.step, data.get("chosen") or "None"
                case "FillEnded" | "Returned":
                    decided[line.path] = line.step, name
                case "StepStarted" | "RunForked":
                    at[line.path] = line.step, name or decided.get(line.path, (0, ""))[1]
                case "RunEnded" if data.get("outcome") == "ended":
                    decided.pop(line.path, None)
                case _:
                    pass
        found: set[Key] = set()
        for path, (step, target) in decided.items():
            reached, node = at.get(path, (step, ""))
            if step > reached:
                found.add((self._name(path), f"{node} -> {target}"))
        return found

    def _name(self, path: str) -> str:
        """The name that changes give the graph at a path."""
        graph = self._shape.graph_at(path) if path else None
        return "" if graph is None else graph["name"]

    def _graph_at(self, path: str) -> Graph[Any, Any] | None:
        """The graph that runs at a path today."""
        from bae.journal.decoder import graph_at

        if path not in self._graphs:
            try:
                self._graphs[path] = graph_at(self._graph, path)
            except JournalError:
                self._graphs[path] = None
        return self._graphs[path]


_GONE: Final = "the run has such a node, or is to go there"


def _class(graph: Graph[Any, Any], name: str) -> type[Node] | None:
    return next((cls for cls in graph.plans if cls.__name__ == name), None)


def _refused_parts(graph: Graph[Any, Any], node: Json) -> Iterator[tuple[str, str]]:
    """The fields of a stored node that its class refuses today, and why; the class where it is not
    a single field."""
    from bae.journal.node_codec import node_codec

    name, stored = str(node.get("type")), cast(Json, node.get("fields") or {})
    cls = _class(graph, name)
    if cls is None:
        yield name, _GONE
        return
    kept, withheld = node_codec(cls), node.get("withheld", ())
    is_refused = False
    for field in plan_of(cls).plain:
        if field.required and field.name not in stored and field.name not in withheld:
            is_refused = True
            yield f"{name}.{field.name}", "a node that was stored without it cannot be built"
    for field, value in stored.items():
        try:
            if field in kept.fields:
                kept.fields[field].load(value)
                continue
            if cls.model_config.get("extra") != "forbid":
                continue
            why = "a node was stored with it"
        except Exception as error:  # a type, or a validator, may raise anything
            why = f"a stored value is refused: {_why(error)}"
        is_refused = True
        yield f"{name}.{field}", why
    if not is_refused:
        try:
            kept.load(node, partial=True)
        except JournalError as error:
            yield name, f"a stored node is refused: {_why(error)}"


def _refused_source(cls: type[Node], data: Json) -> str | None:
    """Why the value of a source is refused today; None where it is taken. What a graph returned is
    seen by the lines of that graph."""
    from bae.draft import validated
    from bae.journal.node_codec import node_codec

    kept, field, route = node_codec(cls), data["field"], data.get("parameter", "")
    planned = plan_of(cls).fields.get(field)
    call = None if planned is None else call_at(planned, route)
    if planned is None or (call is not None and call.graph is not None):
        return None
    try:
        loaded = kept.call(field, route).load(data["value"])
        if not route and "index" not in data:
            validated(cls, {field: loaded})
    except Exception as error:  # a type, or a validator, may raise anything
        return f"a stored value is refused: {_why(error)}"
    return None


def _decoding_error(stored: StoredRun, graph: Graph[Any, Any]) -> JournalError | None:
    """Why the lines of a run cannot be read through the classes of today; None where they can."""
    from bae.journal.decoder import decode

    try:
        decode(graph, stored.lines, partial=True)
    except JournalError as error:
        if error.code != "bae-journal-unreadable":
            raise
        return error
    return None


def _parsed(lines: Sequence[Line]) -> Iterator[tuple[Line, Json]]:
    for line in lines:
        try:
            data: Any = json.loads(line.data)
        except ValueError:  # decoding reports it
            continue
        if isinstance(data, dict):
            yield line, cast(Json, data)


def _why(error: BaseException) -> str:
    cause = error.cause if isinstance(error, JournalError) and error.cause else error
    return "; ".join(faults(cause)) if isinstance(cause, ValidationError) else describe(cause)


def _refused_now(place: str, graph: str, why: str) -> Change:
    fix = f"let {place} take what was stored: widen its type, or convert it in a validator"
    return Change(place, "cannot be read", why, True, "stored", graph, fix)


def _unreadable(error: JournalError, means: str) -> Change:
    return Change("the run", f"cannot be read: {error.message}", means, True, fix=error.fix or "")


_UNFINISHED: Final[tuple[Status, ...]] = ("running", "waiting", "failed", "cancelled")


async def _unfinished(journal: Journal, names: Sequence[str]) -> list[RunInfo]:
    found: dict[str, RunInfo] = {}
    for name in names:
        for status in _UNFINISHED:
            # A run can be listed twice: its status can change between two pages.
            async for info in journal.every_run(status=status, graph=name):
                found[info.run_id] = info
    return list(found.values())
