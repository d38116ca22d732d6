"""Lines that speak of what is gone from the classes since: a source of a field that was taken out,
the graph behind it, a class that was offered and not chosen. Nothing that goes on depends on them,
so `decoding.py` reads a run without them where it cannot read it with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from bae.journal.coding.routes import call_at
from bae.journal.shape import Json
from bae.place import Place

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Line


def without_gone(graph: Graph[Any, Any], lines: Iterable[Line]) -> list[Line]:
    """The lines of a run that say something about the classes of today. A class that is gone is no
    reason to leave a line out: a run that has been there cannot do without it."""
    reading = _Gone(graph)
    return [kept for line in lines if (kept := reading.kept(line)) is not None]


class _Gone:
    def __init__(self, graph: Graph[Any, Any]) -> None:
        self._graphs: dict[str, Graph[Any, Any] | None] = {"": graph}

    def kept(self, line: Line) -> Line | None:
        """A line as it is, or without what is gone; None where nothing is left of it."""
        around = self._graph_at(line.path)
        if around is None:
            return None
        try:
            data: Any = json.loads(line.data)
        except ValueError:
            return line
        if not isinstance(data, dict):
            return line
        said = cast(Json, data)
        if isinstance(said.get("node"), str) and isinstance(said.get("field"), str):
            field, route = said["field"], str(said.get("route", ""))
            return None if _is_gone(around, said["node"], field, route) else line
        if isinstance(said.get("offered"), list):
            known = {None, *(cls.__name__ for cls in around.plans)}
            return _with(line, said, "offered", [n for n in said["offered"] if n in known])
        if isinstance(said.get("gates"), list):
            return _with(line, said, "gates", [g for g in said["gates"] if self._is_there(g)])
        return line

    def _graph_at(self, path: str) -> Graph[Any, Any] | None:
        """The graph that runs at a path; None where the field that it ran for is gone, or has no
        graph behind it any more."""
        if path not in self._graphs:
            place = Place.parse(path)
            around = None if place is None else self._graph_at(place.path)
            found = None
            if around is not None and place is not None and not _is_gone_at(around, place):
                found = _inside(around, place)
            self._graphs[path] = found
        return self._graphs[path]

    def _is_there(self, gate: Any) -> bool:
        place = Place.parse(str(gate))
        around = None if place is None else self._graph_at(place.path)
        return around is not None and place is not None and not _is_gone_at(around, place)


def _with(line: Line, data: Json, key: str, left: list[Any]) -> Line:
    if len(left) == len(data[key]):
        return line
    return line._replace(data=json.dumps({**data, key: left}))


def _is_gone_at(graph: Graph[Any, Any], part: Place) -> bool:
    return _is_gone(graph, part.node, part.field, part.parameter)


def _is_gone(graph: Graph[Any, Any], node: str, field: str, route: str) -> bool:
    """Whether a class is there and its field, or a parameter behind that, is not."""
    fields = next((p.fields for cls, p in graph.plans.items() if cls.__name__ == node), None)
    if fields is None:
        return False
    return field not in fields or (bool(route) and call_at(fields[field], route) is None)


def _inside(graph: Graph[Any, Any], part: Place) -> Graph[Any, Any] | None:
    for cls, plan in graph.plans.items():
        if cls.__name__ == part.node:
            call = call_at(plan.fields[part.field], part.parameter)
            return None if call is None else call.graph
    return None
