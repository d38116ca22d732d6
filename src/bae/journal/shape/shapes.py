"""What the classes of a graph look like, as JSON and as a hash of it. A run is stored with the
shape of its graph; `comparing.py` says what is different about the classes of today, and `why.py`
finds in it which function stands behind a field."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter

from bae.assignable import type_name
from bae.calls import MISSING, CallPlan
from bae.draft import field_schema
from bae.journal.shape.types_shape import schemas_of, validators_of
from bae.markers import Dep, Gate, Map, Recall
from bae.plan import FieldPlan, NodePlan

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

FORMAT: Final = 1
"""The version of the notation; a shape of a newer one is not looked into."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a graph: `json` says all of it, `hash` tells one from another.

    The hash leaves out what the graph is called: one that was only renamed has the same.
    """

    json: str
    hash: str


def shape_of(graph: Graph[Any, Any]) -> Shape:
    """The shape of a graph and of the graphs inside it, worked out once.

    It is the same in every process, on every Python, and wherever the classes are defined.
    """
    found = _SHAPES.get(graph)
    if found is None:
        found = _drawn(graph)
        if not any(plan.provisional for plan in graph.plans.values()):
            _SHAPES[graph] = found
    return found


_SHAPES: WeakKeyDictionary[Graph[Any, Any], Shape] = WeakKeyDictionary()


class Segment(NamedTuple):
    """One part of a path, as `2:Report.summaries(by)[3]`: the step, the class and the field, the
    route to a parameter behind it and the item of a map. What is not said is None or empty."""

    step: int | None
    node: str
    field: str
    route: str
    item: int | None


_SEGMENT = re.compile(r"(?:(\d+):)?(.+?)(?:\.([^.()\[\]:/]+)((?:\([^()]*\))*)(?:\[(\d+)\])?)?")


def segments(path: str) -> list[Segment] | None:
    """A path taken apart; None where it is not one."""
    found: list[Segment] = []
    for part in path.split("/") if path else ():
        match = _SEGMENT.fullmatch(part)
        if match is None:
            return None
        step, node, name, route, item = match.groups()
        found.append(
            Segment(
                None if step is None else int(step),
                node,
                name or "",
                route or "",
                None if item is None else int(item),
            )
        )
    return found


class ShapeView:
    """A stored shape as it is looked into: by path, class, field and route. Whatever it does not
    know it answers with None or nothing."""

    def __init__(self, text: str) -> None:
        try:
            read: Any = json.loads(text) if text else {}
        except ValueError:
            read = {}
        known = isinstance(read, dict) and cast(Json, read).get("format") == FORMAT
        data = cast(Json, read) if known else {}
        self.known = known
        self.graphs = cast(list[Json], data.get("graphs", []))
        self.calls = cast(list[Json], data.get("calls", []))
        self.types = cast(dict[str, Json], data.get("types", {}))
        self._at: dict[str, Json | None] = {"": self.graphs[0] if self.graphs else None}

    def graph_at(self, path: str) -> Json | None:
        """The graph that runs at a path: the run's own at the empty one."""
        if path not in self._at:
            outer, _, last = path.rpartition("/")
            graph = self.graph_at(outer)
            parts = segments(last)
            call = self._follow(graph, *parts[0][1:4]) if graph is not None and parts else None
            index: int | None = None if call is None else self.calls[call].get("graph")
            self._at[path] = None if index is None else self.graphs[index]
        return self._at[path]

    def class_at(self, path: str, node: str) -> Json | None:
        """What a class of the graph at a path looked like."""
        graph = self.graph_at(path)
        return None if graph is None else graph["classes"].get(node)

    def field_at(self, path: str, node: str, name: str) -> Json | None:
        """What a field of such a class looked like."""
        cls = self.class_at(path, node)
        return None if cls is None else cls["fields"].get(name)

    def call_at(self, path: str, node: str, name: str, route: str = "") -> int | None:
        """The number of the call behind a field, or behind a parameter further down."""
        graph = self.graph_at(path)
        return None if graph is None else self._follow(graph, node, name, route)

    def is_shared(self, path: str, node: str, name: str, route: str = "") -> bool:
        """Whether the value is made once for the whole run, whoever asks for it."""
        found = self.field_at(path, node, name)
        if found is None or (found["kind"] != "dep" and not route):
            return False
        use: Json = found
        for parameter in parameters(route):
            call: int | None = use.get("call")
            use = {} if call is None else self.calls[call]["inputs"].get(parameter, {})
        return "call" in use and bool(use.get("cache", True))

    def _follow(self, graph: Json, node: str, name: str, route: str) -> int | None:
        use: Json | None = graph["classes"].get(node, {}).get("fields", {}).get(name)
        for parameter in parameters(route):
            call: int | None = None if use is None else use.get("call")
            use = None if call is None else self.calls[call]["inputs"].get(parameter)
        return None if use is None else use.get("call")


def parameters(route: str) -> list[str]:
    """The names in a route, from the field's function down: `(place)(client)` has two."""
    return route[1:-1].split(")(") if route else []


def _drawn(graph: Graph[Any, Any]) -> Shape:
    drawing = _Drawing()
    drawing.graph(graph)
    data = drawing.finished()
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    nameless = {**data, "graphs": [{**g, "name": ""} for g in data["graphs"]]}
    said = json.dumps(nameless, separators=(",", ":"), sort_keys=True)
    return Shape(text, hashlib.sha256(said.encode()).hexdigest()[:32])


@dataclass(slots=True)
class _Drawing:
    """A shape while it is drawn. Graphs and calls stand in lists and are referred to by number, so
    that what is used in many places is said once, and what leads to itself comes to an end."""

    graphs: list[Json] = field(default_factory=list[Json])
    calls: list[Json] = field(default_factory=list[Json])
    graph_numbers: dict[tuple[type[Node], str], int] = field(
        default_factory=dict["tuple[type[Node], str]", int]
    )
    call_numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    types: dict[str, Any] = field(default_factory=dict[str, Any])
    typed: dict[str, Json] = field(default_factory=dict[str, Json])
    """What each of `types` is the type of."""

    def finished(self) -> Json:
        schemas, shared = schemas_of(self.types)
        for key, schema in schemas.items():
            self.typed[key]["schema"] = schema
        return {"format": FORMAT, "graphs": self.graphs, "calls": self.calls, "types": shared}

    def graph(self, graph: Graph[Any, Any]) -> int:
        key = graph.start, graph.name
        if key in self.graph_numbers:
            return self.graph_numbers[key]
        number = self.graph_numbers[key] = len(self.graphs)
        classes: dict[str, Json] = {}
        self.graphs.append(
            {"name": graph.name, "start": graph.start.__name__, "classes": classes},
        )
        for plan in graph.plans.values():
            name, count = plan.name, 1
            while name in classes:  # two classes of one name; only the first can be found by it
                count += 1
                name = f"{plan.name}-{count}"
            classes[name] = self._class(plan, f"{number}:{name}")
        return number

    def _class(self, plan: NodePlan, place: str) -> Json:
        drawn: Json = {"fields": {}, "next": [cls.__name__ for cls in plan.successors]}
        drawn |= {"ends": plan.may_end, "written": plan.written}
        if validators := validators_of(plan.node):
            drawn["validators"] = validators
        if plan.node.model_config.get("extra") == "forbid":
            drawn["closed"] = True
        for each in plan.fields.values():
            drawn["fields"][each.name] = self._field(plan, each, f"{place}.{each.name}")
        return drawn

    def _field(self, plan: NodePlan, each: FieldPlan, key: str) -> Json:
        drawn: Json = {"kind": each.kind, "type": type_name(each.annotation)}
        drawn["required"] = each.required
        if each.info.description:
            drawn["description"] = each.info.description
        if validators := [_name(m) for m in each.info.metadata if callable(_function(m))]:
            drawn["validators"] = validators
        match each.marker:
            case Map() as mapping:
                drawn |= {"over": mapping.over, "call": self._call(cast(CallPlan, each.call))}
            case Dep() as dep:
                drawn["call"] = self._call(cast(CallPlan, each.call))
                if not dep.cache:
                    drawn["cache"] = False
            case Gate() as gate:
                drawn["question"] = gate.question
            case Recall() as recall:
                if recall.node_type is not None:
                    drawn["from"] = recall.node_type.__name__
            case None:
                pass
        self._note(key, drawn, lambda: field_schema(plan.node, each.name))
        return drawn

    def _call(self, call: CallPlan) -> int:
        if call.key in self.call_numbers:
            return self.call_numbers[call.key]
        number = self.call_numbers[call.key] = len(self.calls)
        inputs: Json = {}
        drawn: Json = {"by": call.name, "kind": call.kind, "inputs": inputs}
        self.calls.append(drawn)
        for name, below in call.inputs:
            inputs[name] = {"call": self._call(below.call)}
            if not below.marker.cache:
                inputs[name]["cache"] = False
        if call.graph is not None:
            drawn["graph"] = self.graph(call.graph)
        elif call.declared is not MISSING:
            drawn["returns"] = type_name(call.declared)
            self._note(f"call {number}", drawn, lambda: TypeAdapter(call.declared).core_schema)
        return number

    def _note(self, key: str, drawn: Json, core_schema: Any) -> None:
        try:
            core = core_schema()
        except Exception:
            return  # arbitrary classes have none, and what a class says of itself may raise
        self.types[key] = core
        self.typed[key] = drawn


def _function(validator: Any) -> Any:
    """The function of an `AfterValidator` and its like; None for other metadata."""
    return getattr(validator, "func", None)


def _name(validator: Any) -> str:
    function = _function(validator)
    return str(getattr(function, "__name__", type(function).__name__))
