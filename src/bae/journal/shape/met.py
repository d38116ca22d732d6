"""What a stored run has met: the classes, nodes and values in its lines, as far as a change of
classes can matter to them. It needs no classes itself; `changes.py` asks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bae.journal.shape.shapes import Json, ShapeView

if TYPE_CHECKING:
    from bae.journal.store import Line, StoredRun


class Value(NamedTuple):
    """A value that was stored for a field, at the path of its graph: with the node where `route` is
    None, else by the source that the route leads to."""

    path: str
    route: str | None
    json: Any
    is_item: bool = False


@dataclass(slots=True)
class Met:
    """Classes and fields are told apart by the graph they belong to, whose name is empty for the
    run's own."""

    classes: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    offered: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Classes that were among those to choose from."""
    nodes: list[tuple[str, str, set[str]]] = field(default_factory=list[tuple[str, str, set[str]]])
    """Nodes that were stored, by the names of the fields they were stored with."""
    values: dict[tuple[str, str, str], list[Value]] = field(
        default_factory=dict[tuple[str, str, str], list[Value]]
    )
    going: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    """Routes that were decided on and not gone yet."""

    @classmethod
    def of(cls, stored: StoredRun) -> Met:
        """Read the lines of a run; those that cannot be read are passed over."""
        met = cls()
        view = ShapeView(stored.shape)
        standing: dict[str, tuple[int, str]] = {}
        decided: dict[str, tuple[int, str]] = {}
        for line, data in _read(stored.lines):
            named = met._take(_graph(view, line.path), line.path, data)
            match line.kind:
                case "RunStarted":
                    standing.pop(line.path, None)
                    decided[line.path] = 0, named
                case "ChoiceMade":
                    decided[line.path] = line.step, data.get("chosen") or "None"
                case "FillEnded" | "Returned":
                    decided[line.path] = line.step, named
                case "StepStarted" | "RunForked":
                    name = named or decided.get(line.path, (0, ""))[1]
                    standing[line.path] = line.step, name
                case "RunEnded" if data.get("outcome") == "ended":
                    decided.pop(line.path, None)
                case _:
                    pass
        for path, (step, target) in decided.items():
            at, name = standing.get(path, (step, ""))
            if step > at:
                met.going.add((_graph(view, path), name, target))
        return met

    def _take(self, graph: str, path: str, data: Json) -> str:
        """Note what a line names; answers the class of the node it is about."""
        node: Any = data.get("node")
        name = ""
        if isinstance(node, dict):
            stored = cast(Json, node)
            name = str(stored.get("type", ""))
            fields = cast(Json, stored.get("fields") or {})
            if "made" not in data:  # it has a few defaults and nothing else
                self.nodes.append((graph, name, {*fields, *stored.get("withheld", ())}))
            for each, value in fields.items():
                self._note(graph, name, each, Value(path, None, value))
        elif isinstance(node, str):
            name = node
            if "value" in data and "field" in data:
                found = Value(path, data.get("route", ""), data["value"], "index" in data)
                self._note(graph, name, data["field"], found)
        for each in data.get("offered", ()):
            self.offered.add((graph, str(each)))
        for each in (name, data.get("target"), data.get("chosen")):
            if isinstance(each, str) and each:
                self.classes.add((graph, each))
        return name

    def _note(self, graph: str, node: str, field: str, value: Value) -> None:
        self.values.setdefault((graph, node, field), []).append(value)


def _read(lines: Sequence[Line]) -> Iterator[tuple[Line, Json]]:
    for line in lines:
        try:
            data: Any = json.loads(line.data)
        except ValueError:  # whoever reads the run says so
            continue
        if isinstance(data, dict):
            yield line, cast(Json, data)


def _graph(view: ShapeView, path: str) -> str:
    found = view.graph_at(path) if path else None
    return "" if found is None else found["name"]
