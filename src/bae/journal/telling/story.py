"""The lines of a stored run, told by place: which nodes it met, what is known of each field. It
needs no classes; `why.py` asks it where values came from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from bae.exceptions import JournalError
from bae.journal.shape import Json, ShapeView
from bae.journal.store import Line, StoredRun
from bae.journal.telling.provenance import Kept


class Entry(NamedTuple):
    """A line with its data read."""

    line: Line
    data: Json


Spot = tuple[str, int]
"""A path and a step."""
Place = tuple[str, int, str, str, str]
"""A path, a step, a class, a field and a route."""


@dataclass(slots=True)
class NodeStory:
    """What is known of one node: how it was given, filled and called."""

    step: int
    name: str = ""
    given: Entry | None = None
    """The line that says the node, or the draft of it, as a caller or a body made it."""
    filled: Entry | None = None
    forked: Entry | None = None
    chosen: Entry | None = None
    whole: bool = False

    def entries(self) -> Iterator[Entry]:
        """The lines that hold values of the node, the one that counts first."""
        for entry in (self.forked, self.given, self.filled):
            if entry is not None:
                yield entry


@dataclass(slots=True)
class Story:
    """A run by place. What a graph inside the run did before it was begun anew is left out."""

    run_id: str
    shape: ShapeView
    answers: dict[str, str]
    entries: list[Entry]
    nodes: dict[Spot, NodeStory] = field(default_factory=dict[Spot, NodeStory])
    begun: dict[Place, Entry] = field(default_factory=dict[Place, Entry])
    ended: dict[Place, Entry] = field(default_factory=dict[Place, Entry])
    failed: dict[Place, Entry] = field(default_factory=dict[Place, Entry])
    recalled: dict[Place, Entry] = field(default_factory=dict[Place, Entry])
    gates: dict[Place, Entry] = field(default_factory=dict[Place, Entry])
    items: dict[Place, dict[int, Entry]] = field(default_factory=dict[Place, dict[int, Entry]])
    shared: dict[int, Entry] = field(default_factory=dict[int, Entry])
    """What dependencies came to that are called once for a whole run, by their number in the
    shape, whichever field asked first."""
    _on: dict[str, list[NodeStory]] = field(default_factory=dict[str, list[NodeStory]])
    """The nodes by path."""
    _sourced: dict[tuple[str, str], dict[str, None]] = field(
        default_factory=dict[tuple[str, str], dict[str, None]]
    )
    """The fields, by path and class, that sources came to values for."""
    _at: dict[Spot, list[Entry]] = field(default_factory=dict[Spot, list[Entry]])
    _inside: dict[str, list[Entry]] = field(default_factory=dict[str, list[Entry]])

    @classmethod
    def of(cls, stored: StoredRun) -> Story:
        """Read a run; lines that are no JSON are raised as damage."""
        told = cls(
            stored.info.run_id,
            ShapeView(stored.shape),
            stored.answers,
            _counting(read_lines(stored)),
        )
        for entry in told.entries:
            try:
                told._take(entry)
            except (KeyError, TypeError, AttributeError) as error:
                raise damaged(told.run_id, entry.line, error) from error
        return told

    def paths(self) -> list[str]:
        """The paths of the run and of the graphs inside it, in the order they began."""
        return list(dict.fromkeys(["", *(path for path, _ in self.nodes)]))

    def trace(self, path: str) -> list[NodeStory]:
        """The nodes at a path, in order."""
        found = [node for node in self._on.get(path, ()) if node.name]
        return sorted(found, key=lambda node: node.step)

    def fields(self, path: str, name: str) -> list[str]:
        """The fields of a class, as far as the shape and the lines tell."""
        cls = self.shape.class_at(path, name) or {"fields": {}}
        known: dict[str, None] = dict.fromkeys(cls["fields"])
        for node in self._on.get(path, ()):
            if node.name == name:
                for entry in node.entries():
                    known.update(dict.fromkeys(entry.data["node"].get("fields", ())))
        known.update(self._sourced.get((path, name), {}))
        return list(known)

    def at(self, path: str, step: int) -> list[Entry]:
        """The lines of one step."""
        return self._at.get((path, step), [])

    def inside(self, path: str) -> list[Entry]:
        """The lines of the graph that ran at a path, and of those inside it."""
        return self._inside.get(path, [])

    def between(self, start: Entry | None, end: Entry) -> list[Entry]:
        """The lines from one to another."""
        first = end.line.n if start is None else start.line.n
        return [entry for entry in self.entries if first <= entry.line.n <= end.line.n]

    def _take(self, entry: Entry) -> None:
        line, data = entry
        self._at.setdefault((line.path, line.step), []).append(entry)
        for path in _around(line.path):
            self._inside.setdefault(path, []).append(entry)
        node = self.nodes.get((line.path, line.step))
        if node is None:
            node = self.nodes[line.path, line.step] = NodeStory(line.step)
            self._on.setdefault(line.path, []).append(node)
        named: Any = data.get("node")
        match line.kind:
            case "RunStarted" | "Returned":
                node.given, node.name = entry, named["type"]
            case "StepStarted":
                node.whole = True
                if named is not None and "made" not in data:
                    node.given, node.name = entry, named["type"]
            case "RunForked":
                node.forked, node.name, node.whole = entry, named["type"], True
            case "ChoiceMade":
                node.chosen = entry
                node.name = node.name or data.get("chosen") or ""
            case "FillStarted":
                node.name = node.name or data["target"]
            case "FillEnded":
                node.filled, node.name = entry, named["type"]
            case "SourceStarted" | "SourceEnded":
                self._take_source(entry)
                node.name = node.name or named
            case "ItemEnded":
                place = (line.path, line.step, named, data["field"], "")
                self.items.setdefault(place, {})[data["index"]] = entry
            case "Recalled":
                self.recalled[line.path, line.step, named, data["field"], ""] = entry
                node.name = node.name or named
            case "GateOpened":
                self.gates[line.path, line.step, named, data["field"], ""] = entry
                node.name = node.name or named
            case _:
                pass

    def _take_source(self, entry: Entry) -> None:
        line, data = entry
        place = (line.path, line.step, data["node"], data["field"], data.get("route", ""))
        if line.kind == "SourceStarted":
            self.begun[place] = entry
        elif "error" in data:
            # To wait for a person is no failure, though whoever waits is let go of by an exception.
            if data["error"]["type"] != "Waiting":
                self.failed[place] = entry
        else:
            self.ended[place] = entry
            self._sourced.setdefault((line.path, data["node"]), {})[data["field"]] = None
            where = (line.path, data["node"], data["field"], data.get("route", ""))
            call = self.shape.call_at(*where)
            if call is not None and self.shape.is_shared(*where):
                self.shared[call] = entry


def value_in(data: Json) -> tuple[Kept, Any]:
    """The value that a line of a source or an item has, and what became of it."""
    for kept in ("live", "withheld"):
        if data.get(kept):
            return kept, None
    return ("value", data["value"]) if "value" in data else ("missing", None)


def field_in(node: Json, name: str) -> tuple[Kept, Any] | None:
    """The value of a field in a node as it is stored; None where it is not in it."""
    fields: Json = node.get("fields", {})
    if name in fields:
        return "value", fields[name]
    return ("withheld", None) if name in cast(Iterable[str], node.get("withheld", ())) else None


def is_unset(entry: Entry, name: str) -> bool:
    """Whether nobody gave the field a value, so that it has its default."""
    return name in entry.data["node"].get("unset", ())


def node_in(entry: Entry) -> tuple[Kept, Any]:
    """The fields of the node that a line has."""
    return "value", entry.data["node"].get("fields", {})


def asker_said(data: Json) -> str:
    """Who asked an LM, in words."""
    asker: Any = data.get("asker") or {}
    kind, name = asker.get("kind"), asker.get("node", "")
    words = {"fill": f"filling {name}", "choice": f"choosing after {name}"}
    words["body"] = f"{name}.__call__"
    return words.get(kind, f"{name}.{asker.get('field', '')}{asker.get('parameter', '')}")


def error_said(error: Json) -> str:
    """An error of a line in words."""
    name, message = str(error.get("type", "error")), error.get("message", "")
    return f"{name}: {message}" if message else name


_SOURCE = ("node", "field", "source", "by")
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "RunStarted": ("node",),
    "Returned": ("node",),
    "RunForked": ("node", "parent"),
    "SourceStarted": _SOURCE,
    "SourceEnded": (*_SOURCE, "seconds"),
    "ItemEnded": ("node", "field", "index"),
    "Recalled": ("node", "field", "origin"),
    "GateOpened": ("node", "field", "question"),
    "ChoiceStarted": ("offered",),
    "FillStarted": ("target",),
    "FillEnded": ("node", "seconds"),
    "AnswerJudged": ("asker", "number", "verdict"),
    "LMUsed": ("asker",),
}
"""What a line of each kind must have to be told."""


def read_lines(stored: StoredRun) -> Iterator[Entry]:
    """The lines of a run with their data; one that cannot be read is raised as damage."""
    for line in stored.lines:
        try:
            data: Any = json.loads(line.data)
            if not isinstance(data, dict):
                raise ValueError("it is no JSON object")
            lacking = [key for key in _NEEDED.get(line.kind, ()) if key not in data]
            if lacking:
                raise ValueError(f"it lacks {', '.join(lacking)}")
        except ValueError as error:
            raise damaged(stored.info.run_id, line, error) from error
        yield Entry(line, cast(Json, data))


def damaged(run_id: str, line: Line, error: Exception) -> JournalError:
    """The error of a line that cannot be read."""
    return JournalError(
        f"line {line.n} of the run {run_id} ({line.kind}) cannot be read",
        run_id=run_id,
        code="bae-journal-damaged",
        cause=error,
        fix="restore the journal from a copy; its other runs are not concerned",
    )


def _counting(entries: Iterator[Entry]) -> list[Entry]:
    """The lines that count: a graph inside the run that begins anew makes those of before void."""
    every = list(entries)
    began: dict[str, int] = {}
    for line, _ in every:
        if line.kind == "RunStarted" and line.path:
            began[line.path] = line.n
    return [e for e in every if all(e.line.n >= began.get(p, 0) for p in _around(e.line.path))]


def _around(path: str) -> Iterator[str]:
    """A path and those of the graphs around it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
