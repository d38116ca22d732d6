"""The shape of a graph: what its classes look like, as JSON and as a hash. It is stored with each
run, so that changed classes are noticed when the run is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from bae.assignable import type_name
from bae.calls import MISSING, CallPlan
from bae.core_schemas import field_schema
from bae.markers import Dep, Gate, Map, Recall
from bae.place import Place
from bae.plan import FieldPlan, NodePlan

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

FORMAT: Final = 2
"""The version of the notation. Version 1 had whole JSON schemas; a newer version is ignored."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a graph: `json` is all of it, `hash` tells one from another.

    The hash leaves out the name of the graph: a graph that was only renamed has the same one.
    """

    json: str
    hash: str


def shape_of(graph: Graph[Any, Any]) -> Shape:
    """The shape of a graph and of the graphs inside it, worked out once.

    It is the same in every process, on every Python, and wherever the classes are defined.
    """
    found = _SHAPES.get(graph)
    if found is None:
        drawing = _Drawing()
        drawing.graph(graph)
        data = drawing.finished()
        text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
        nameless = {**data, "graphs": [{**g, "name": ""} for g in data["graphs"]]}
        found = Shape(text, _hash(nameless, 32))
        if not any(plan.provisional for plan in graph.plans.values()):
            _SHAPES[graph] = found
    return found


_SHAPES: WeakKeyDictionary[Graph[Any, Any], Shape] = WeakKeyDictionary()


class ShapeView:
    """A stored shape, looked up by path, class, field and parameter. What it does not know is None
    or empty."""

    def __init__(self, text: str) -> None:
        try:
            read: Any = json.loads(text) if text else {}
        except ValueError:
            read = {}
        is_known = isinstance(read, dict) and cast(Json, read).get("format") in (1, FORMAT)
        data = cast(Json, read) if is_known else {}
        self.graphs = cast(list[Json], data.get("graphs", []))
        self.calls = cast(list[Json], data.get("calls", []))
        self._at: dict[str, Json | None] = {"": self.graphs[0] if self.graphs else None}

    def graph_at(self, path: str) -> Json | None:
        """The graph that runs at a path: the run's own at the empty one."""
        if path not in self._at:
            place = Place.parse(path)
            call: int | None = None if place is None else self._use(place).get("call")
            graph: int | None = None if call is None else self.calls[call].get("graph")
            self._at[path] = None if graph is None else self.graphs[graph]
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
        return self._use(Place(path, node=node, field=name, parameter=route)).get("call")

    def is_shared(self, path: str, node: str, name: str, route: str = "") -> bool:
        """Whether the value is made once for the whole run, for all fields that need it."""
        use = self._use(Place(path, node=node, field=name, parameter=route))
        is_dep = bool(route) or use.get("kind") == "dep"
        return is_dep and "call" in use and bool(use.get("cache", True))

    def _use(self, place: Place) -> Json:
        """What is known of a field, or of a parameter behind it."""
        use: Json = self.field_at(place.path, place.node, place.field) or {}
        for parameter in place.parameters:
            call: int | None = use.get("call")
            use = {} if call is None else self.calls[call]["inputs"].get(parameter, {})
        return use


@dataclass(slots=True)
class _Drawing:
    """A shape in the making. Graphs and calls are in lists and referred to by number: what is used
    in many places is there once, and recursion ends."""

    graphs: list[Json] = field(default_factory=list[Json])
    calls: list[Json] = field(default_factory=list[Json])
    graph_numbers: dict[tuple[type[Node], str], int] = field(
        default_factory=dict["tuple[type[Node], str]", int]
    )
    call_numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    nodes: set[type[Node]] = field(default_factory=set["type[Node]"])
    types: list[tuple[Json, Any]] = field(default_factory=list[tuple[Json, Any]])
    """What has a type, with the core schema of the type."""

    def finished(self) -> Json:
        hashes = _schema_hashes([core for _, core in self.types], self.nodes)
        for (drawn, _), schema in zip(self.types, hashes, strict=True):
            if schema is not None:
                drawn["schema"] = schema
        return {"format": FORMAT, "graphs": self.graphs, "calls": self.calls}

    def graph(self, graph: Graph[Any, Any]) -> int:
        key = graph.start, graph.name
        if key in self.graph_numbers:
            return self.graph_numbers[key]
        number = self.graph_numbers[key] = len(self.graphs)
        classes: dict[str, Json] = {}
        drawn = {"name": graph.name, "start": graph.start.__name__, "classes": classes}
        self.graphs.append(drawn)
        self.nodes.update(graph.plans)
        for plan in graph.plans.values():
            # No graph with two classes of one name can have a journal.
            classes[plan.name] = self._class(plan)
        return number

    def _class(self, plan: NodePlan) -> Json:
        drawn: Json = {"fields": {}, "next": [cls.__name__ for cls in plan.successors]}
        drawn |= {"ends": plan.may_end, "written": plan.written}
        if validators := _validators(plan.node):
            drawn["validators"] = validators
        if plan.node.model_config.get("extra") == "forbid":
            drawn["closed"] = True
        for each in plan.fields.values():
            drawn["fields"][each.name] = self._field(plan, each)
        return drawn

    def _field(self, plan: NodePlan, each: FieldPlan) -> Json:
        drawn: Json = {"kind": each.kind, "type": type_name(each.annotation)}
        drawn["required"] = each.required
        if each.info.description:
            drawn["description"] = each.info.description
        functions = [getattr(marker, "func", None) for marker in each.info.metadata]
        named = [getattr(f, "__name__", type(f).__name__) for f in functions if callable(f)]
        if named:
            drawn["validators"] = named
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
        self._note(drawn, lambda: field_schema(plan.node, each.name))
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
            drawn["type"] = type_name(call.declared)
            self._note(drawn, lambda: TypeAdapter(call.declared).core_schema)
        return number

    def _note(self, drawn: Json, core_schema: Callable[[], Any]) -> None:
        try:
            self.types.append((drawn, core_schema()))
        except Exception:
            return  # arbitrary classes have none, and code of a class may raise anything


def _schema_hashes(cores: list[Any], nodes: set[type[Node]]) -> list[str | None]:
    """A hash of the JSON schema of each type, with those of the classes it refers to; None where a
    type has none."""
    inputs = [(number, "validation", core) for number, core in enumerate(cores)]
    try:
        made, shared = cast(Any, _Schemas(nodes)).generate_definitions(inputs)
        schemas = [made[number, "validation"] for number in range(len(cores))]
        keys = [json.dumps(schema, sort_keys=True, default=str) for schema in schemas]
        known = dict(zip(keys, schemas, strict=True))  # many fields have the same type
        hashes = {key: _schema_hash(schema, shared) for key, schema in known.items()}
        return [hashes[key] for key in keys]
    except Exception:  # a type may bring code of its own for this, which may raise anything
        if len(cores) == 1:
            return [None]
    return [found for core in cores for found in _schema_hashes([core], nodes)]


class _Schemas(GenerateJsonSchema):
    """Schemas without defaults, with the validators of classes by name, and with the name of what
    has no JSON schema. The nodes of the graph are compared as its classes, and only named here."""

    def __init__(self, nodes: set[type[Node]]) -> None:
        super().__init__(ref_template="{model}")
        self._nodes = nodes

    def default_schema(self, schema: Any) -> Json:
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: Any) -> Json:
        cls: type[BaseModel] = schema["cls"]
        if cls in self._nodes:
            return {"node": cls.__name__}
        made = super().model_schema(schema)
        return {**made, "validators": found} if (found := _validators(cls)) else made

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Json:
        cls = schema.get("cls")
        return {"python": cls.__name__ if isinstance(cls, type) else schema["type"]}

    def emit_warning(self, kind: Any, detail: str) -> None:
        pass


_IGNORED: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
"""What does not decide which values are valid."""
_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})


def _schema_hash(schema: Json, shared: dict[str, Json]) -> str:
    """A hash of a schema and of those it refers to, which are numbered in the order they are met:
    their names may contain modules."""
    numbers: dict[str, int] = {}
    refs: list[str] = []

    def plain(part: Any) -> Any:
        if isinstance(part, list):
            return [plain(each) for each in cast(list[Any], part)]
        if not isinstance(part, dict):
            # What a class adds by itself need not be JSON.
            is_json = isinstance(part, str | int | float | NoneType)
            return part if is_json else f"<{type(part).__name__}>"
        found: Json = {}
        for key, each in cast(Json, part).items():
            if key == "$ref" and each in shared:
                if each not in numbers:
                    numbers[each] = len(refs)
                    refs.append(each)
                found[key] = numbers[each]
            elif key == "discriminator":
                found[key] = each.get("propertyName")
            elif key in _BY_NAME and isinstance(each, dict):
                found[key] = {n: plain(inner) for n, inner in cast(Json, each).items()}
            elif key not in _IGNORED:
                found[key] = plain(each)
        return found

    parts = [plain(schema)]
    for ref in refs:  # which grows meanwhile
        parts.append(plain(shared[ref]))
    return _hash(parts, 16)


def _hash(value: Any, length: int) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _validators(cls: type[BaseModel]) -> list[str]:
    """The names of the validators of a class. What they do is not known, and a new one may refuse
    what was stored before."""
    known = cls.__pydantic_decorators__
    every = (
        known.validators,
        known.field_validators,
        known.root_validators,
        known.model_validators,
    )
    return sorted(name for each in every for name in each)
