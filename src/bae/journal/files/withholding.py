"""A stored run with some of its values taken out: where the lines hold a field, which LM calls saw
it, and what else holds the same text. It works on the lines alone, without the classes.
`redaction.py` reads the runs and stores what is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json, to_json

from bae.journal.files.line_data import (
    SAID,
    TELL_OF_CALLS,
    WITHHELD,
    Data,
    Place,
    hush,
    hush_errors,
    is_node,
    is_of,
    nodes_in,
    parsed,
    parts_of,
    said_in,
    stands_at,
    withhold_fields,
)
from bae.journal.files.same_text import SameText
from bae.journal.shape.shapes import ShapeView
from bae.journal.store import Line, StoredRun


class Opened:
    """A stored run whose lines are being changed. `values` and `texts` count what was taken out of
    them, but for the lines below `own`: these are another run's, which counts them itself."""

    def __init__(self, run: StoredRun, own: int = 0) -> None:
        self.run = run
        self.own = own
        self.values = 0
        self.texts = 0
        self._lines = list(run.lines)
        self._data = [parsed(run, line) for line in run.lines]
        self._changed: set[int] = set()
        self._view = ShapeView(run.shape)
        self._classes: dict[tuple[str, int], set[str]] = {}
        for line, data in self._entries():
            for name in stands_at(line, data):
                self._classes.setdefault((line.path, line.step), set()).add(name)

    def fields(self) -> dict[str, set[str]]:
        """The fields of every class that the run has met or may meet."""
        found: dict[str, set[str]] = {}
        for graph in self._view.graphs:
            for name, cls in graph["classes"].items():
                found.setdefault(name, set()).update(cls["fields"])
        for line, data in self._entries():
            for node in nodes_in(line, data):
                names = found.setdefault(node["type"], set())
                names.update(node["fields"], node.get(WITHHELD, ()))
            if isinstance(data.get("node"), str) and isinstance(data.get("field"), str):
                found.setdefault(data["node"], set()).add(data["field"])
        return found

    def related(self, wanted: set[Place]) -> set[Place]:
        """The places that hold the same values: what a field is recalled from, what recalls it,
        and what the same call makes, once for the whole run."""
        fields = self.fields()
        found: set[Place] = set()
        for line, data in self._entries():
            if line.kind != "Recalled":
                continue
            path, step, field = data["origin"]
            names = self._classes.get((path, step), set[str]())
            origin = {(n, f) for n in names for f in ([field] if field else fields.get(n, ()))}
            if (data["node"], data["field"]) in wanted:
                found |= origin
            elif origin & wanted:
                found.add((data["node"], data["field"]))
        shared = self._calls(wanted)
        found.update(place for place, call in self._shared() if call in shared)
        return found

    def withhold(self, wanted: set[Place]) -> list[Any]:
        """Take the values of fields out of the lines, and answer what they were; None for what only
        a graph that made such a value knew."""
        shared = self._calls(wanted)
        taken: list[Any] = []
        for line, data in self._entries():
            inside = self._is_inside(line, wanted)
            found: list[Any] = []
            for node in nodes_in(line, data):
                every = inside or self._is_item(line, wanted)
                found += withhold_fields(node, None if every else wanted)
            if line.kind in ("SourceEnded", "ItemEnded") and (
                inside or self._is_source(line, data, wanted, shared)
            ):
                found += self._withhold_value(line, data, wanted)
            if inside:
                self._forget(line, data)
            if found:
                self._changed.add(line.n)
                self.values += len(found) if line.n >= self.own else 0
                taken += [None] * len(found) if inside else found
        return taken

    def silence(self, wanted: set[Place], same: SameText) -> None:
        """Take out the prompts and answers of LM calls that saw the fields, and whatever else of
        texts, messages of errors among them, has the same text."""
        classes = {name for name, _ in wanted}
        holders = {spot for spot, names in self._classes.items() if names & classes}
        names = {field for _, field in wanted}
        for line, data in self._entries():
            texts = 0
            if line.kind == "AnswerJudged":
                saw = self._is_inside(line, wanted) or self._saw(line, data, holders, classes)
                for key in ("asked", "answer"):
                    if key in data and (saw or any(same.is_in(data.get(k)) for k in SAID)):
                        del data[key]
                        texts += 1
                texts += hush_errors(data, same, names if saw else set())
            error = data.get("error")
            if isinstance(error, dict) and same.is_in(error) and hush(data):
                texts += 1
            if texts:
                self._changed.add(line.n)
                self.texts += texts if line.n >= self.own else 0

    def left(self, same: SameText, wanted: set[Place]) -> Iterator[Place | str]:
        """Where the same text is still: fields, or a line by its number where it is none. Answers
        to gates that are `wanted` are forgotten in the end."""
        forgotten = self.answered(wanted)
        for line, data in self._entries():
            if not same.is_in(data):
                continue
            found = False
            for node in nodes_in(line, data):
                for name, value in node["fields"].items():
                    if same.is_in(value):
                        found = True
                        yield node["type"], name
            if line.kind in ("SourceEnded", "ItemEnded") and same.is_in(data.get("value")):
                found = True
                yield data["node"], f"{data['field']}{data.get('route', '')}"
            if not found:
                yield f"line {line.n} ({line.kind})"
        for address, answer in self.run.answers.items():
            parts = parts_of(address)
            if parts and address not in forgotten and same.is_in(from_json(answer)):
                yield parts[-1].node, parts[-1].field

    def answered(self, wanted: set[Place]) -> list[str]:
        """The gates among the fields that a person has answered, by their addresses."""
        found: list[str] = []
        for address in self.run.answers:
            parts = parts_of(address)
            if any((part.node, part.field) in wanted for part in parts):
                found.append(address)
        return found

    def changed(self) -> list[Line]:
        """The lines that are others now."""
        return [
            line._replace(data=to_json(data, inf_nan_mode="constants").decode())
            for line, data in self._entries()
            if line.n in self._changed
        ]

    def _entries(self) -> Iterator[tuple[Line, Data]]:
        return zip(self._lines, self._data, strict=True)

    def _shared(self) -> Iterator[tuple[Place, int]]:
        """The fields whose values are made once for the whole run, and the calls that do."""
        for graph in self._view.graphs:
            for name, cls in graph["classes"].items():
                for field, said in cls["fields"].items():
                    if said["kind"] == "dep" and said.get("cache", True):
                        yield (name, field), said["call"]

    def _calls(self, wanted: set[Place]) -> set[int]:
        """The calls that make such fields: what they returned stands under whichever field, or
        parameter, asked first."""
        return {call for place, call in self._shared() if place in wanted}

    def _saw(
        self, line: Line, data: Data, holders: set[tuple[str, int]], classes: set[str]
    ) -> bool:
        """Whether an LM call was shown such a field, or answered with one."""
        path, step, by = line.path, line.step, data["asker"]
        if (path, step - 1) in holders:
            return True
        if by["kind"] != "body":
            return (path, step) in holders
        # What a body asks for by itself is not the node that it returns.
        return any(
            node["type"] in classes
            for other, said in self._entries()
            if (other.kind, other.path, other.step) == ("LMAnswered", path, step)
            and said["asker"] == by
            for node in nodes_in(other, said)
        )

    def _withhold_value(self, line: Line, data: Data, wanted: set[Place]) -> list[Any]:
        """Take out what a source came to, or what it says of its failure."""
        found: list[Any] = []
        if "value" in data:
            found.append(said_in(data.pop("value"), wanted))
            data[WITHHELD] = True
        elif data.pop("items", None):
            data[WITHHELD] = True
            self._changed.add(line.n)
        elif hush(data):
            self._changed.add(line.n)
        return found

    def _forget(self, line: Line, data: Data) -> None:
        """Leave of a line what it used: whoever goes on with the run begins that graph anew, since
        nothing of it can be taken up again."""
        if line.kind in TELL_OF_CALLS:
            return
        self._lines[line.n] = line._replace(kind="LMUsed")
        by = data.get("asker") or (self._asked_by(line) if data.get("usage") else None)
        graph = self._view.graph_at(line.path) or {}
        nobody = {"kind": "body", "node": graph.get("start", "")}
        self._data[line.n] = {"asker": by or nobody, "usage": data.get("usage", {})}
        self._changed.add(line.n)

    def _asked_by(self, line: Line) -> Any:
        """Who asked the question whose last answer the line has: its answers are counted there."""
        for other, said in zip(self._lines[line.n :: -1], self._data[line.n :: -1], strict=True):
            here = (other.path, other.step) == (line.path, line.step)
            if here and other.kind == "AnswerJudged":
                return said["asker"]
        return None

    def _is_inside(self, line: Line, wanted: set[Place]) -> bool:
        """Whether the line belongs to a graph that made the value of such a field."""
        return any(is_of(part.node, part.field, part.route, wanted) for part in parts_of(line.path))

    def _is_item(self, line: Line, wanted: set[Place]) -> bool:
        """Whether a graph begins with what such a field holds: one that a map has for each item."""
        parts = parts_of(line.path)
        if line.kind != "RunStarted" or not parts or parts[-1].item is None:
            return False
        around = line.path.rpartition("/")[0]
        field = self._view.field_at(around, parts[-1].node, parts[-1].field) or {}
        return (parts[-1].node, field.get("over")) in wanted

    def _is_source(self, line: Line, data: Data, wanted: set[Place], shared: set[int]) -> bool:
        node, field, route = data["node"], data["field"], data.get("route", "")
        if is_of(node, field, route, wanted):
            return True
        if data.get("source") == "dep":
            call = self._view.call_at(line.path, node, field, route)
            if call in shared and self._view.is_shared(line.path, node, field, route):
                return True
        # The value of a graph is the node it ended at.
        value = data.get("value")
        return is_node(value) and any((value["type"], name) in wanted for name in value["fields"])
