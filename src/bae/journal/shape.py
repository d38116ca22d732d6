"""The shape of a graph: its classes, as JSON and as a hash. A journal stores the shape with each
run, so bae notices changed classes when the run is resumed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import from_json

from bae.assignable import type_name
from bae.calls import MISSING, CallPlan, Input, recalls_of, siblings_of
from bae.core_schemas import field_schemas, parts, returned_schema
from bae.exceptions import JournalError
from bae.graph_plan import plan_of_graph
from bae.place import Place
from bae.plan import FieldPlan, NodePlan
from bae.sources import find_source_kind

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.language_model import Shown
    from bae.node import Node
    from bae.sources.recall import RecallField

FORMAT: Final = 2
"""The version of the JSON of shapes. bae ignores a shape of any other version."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a graph."""

    json: str
    """The complete shape."""
    hash: str
    """The hash of the shape without the names of graphs, so a renamed graph has the same hash."""


def shape_of(graph: Graph[Any, Any]) -> Shape:
    """Return the shape of a graph and of the graphs inside it, computed once.

    The shape is the same in every process, on every Python, and wherever the classes are defined.
    """
    shape = _SHAPES.get(graph)
    if shape is None:
        builder = _ShapeBuilder()
        builder.graph(graph)
        data: Json = {"format": FORMAT, "graphs": builder.graphs, "calls": builder.calls}
        text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
        shape = Shape(text, hash_of(data))
        if not any(plan.provisional for plan in plan_of_graph(graph).plans.values()):
            _SHAPES[graph] = shape
    return shape


_SHAPES: WeakKeyDictionary[Graph[Any, Any], Shape] = WeakKeyDictionary()


def is_forged(text: str, shape_hash: str) -> bool:
    """Whether `shape_hash` has the form of a hash of a shape, but is not the hash of the shape
    `text`."""
    return bool(re.fullmatch("[0-9a-f]{32}", shape_hash)) and not _has_hash(text, shape_hash)


@lru_cache(maxsize=8)
def _has_hash(text: str, shape_hash: str) -> bool:
    try:
        return hash_of(json.loads(text)) == shape_hash
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def hash_of(shape: Json) -> str:
    """Return the hash of a shape, without the names of its graphs."""
    return _hash({**shape, "graphs": [{**g, "name": ""} for g in shape["graphs"]]}, 32)


class ShapeView:
    """A stored shape, looked up by path, class, field and parameter. An unknown part is None or
    empty. A shape of another format is ignored.

    A shape that does not match its hash raises `bae-journal-damaged`. So does an incomplete shape,
    because a program that writes a wrong shape can also write the hash of that shape.
    """

    def __init__(self, text: str, shape_hash: str) -> None:
        try:
            parsed: Any = from_json(text) if text else {}
        except ValueError:
            parsed = {}
        is_current = isinstance(parsed, dict) and cast(Json, parsed).get("format") == FORMAT
        data = cast(Json, parsed) if is_current else {}
        self.graphs = cast(list[Json], data.get("graphs", []))
        self.calls = cast(list[Json], data.get("calls", []))
        if data and not (_has_hash(text, shape_hash) and self._is_complete(data)):
            raise JournalError(
                "the shape of the classes that the run began with is damaged",
                code="bae-journal-damaged",
                fix="take the journal from a backup; classes that are still the same resume it",
            )
        self._at: dict[str, Json | None] = {"": self.graphs[0] if self.graphs else None}

    def _is_complete(self, data: Json) -> bool:
        try:
            _shape_model().model_validate(data, strict=True)
        except ValidationError:
            return False
        fields = [use for *_, use in self.fields()]
        uses = [*fields, *(use for call in self.calls for use in call["inputs"].values())]
        calls: list[int] = [use["call"] for use in uses if "call" in use]
        graphs: list[int] = [call["graph"] for call in self.calls if "graph" in call]
        return (
            max(calls, default=-1) < len(self.calls)
            and max(graphs, default=-1) < len(self.graphs)
            and all("call" in use for use in fields if find_source_kind(use["kind"]).is_called)
        )

    def graph_at(self, path: str) -> Json | None:
        """Return the graph that runs at a path. At the empty path, this is the graph of the run."""
        if path not in self._at:
            place = Place.parse(path)
            call: int | None = None if place is None else self._find_use(place).get("call")
            graph: int | None = None if call is None else self.calls[call].get("graph")
            self._at[path] = None if graph is None else self.graphs[graph]
        return self._at[path]

    def class_at(self, path: str, node: str) -> Json | None:
        """Return the stored class `node` of the graph at a path."""
        graph = self.graph_at(path)
        return None if graph is None else graph["classes"].get(node)

    def field_at(self, place: Place) -> Json | None:
        """Return the stored field at a place."""
        cls = self.class_at(place.path, place.node)
        return None if cls is None else cls["fields"].get(place.field)

    def call_at(self, place: Place) -> int | None:
        """Return the number of the call that computes the field or parameter at a place."""
        return self._find_use(place).get("call")

    def find_call(self, graph: str, place: str) -> int | None:
        """Return the number of the call at a place, such as `Reply.policy(shop)`, in the graph with
        the name `graph`."""
        parsed = Place.parse(place) or Place()
        for entry in self.graphs:
            cls = cast(Json, entry["classes"]).get(parsed.node) if entry["name"] == graph else None
            if cls is not None:
                return self._find_inner_use(cls["fields"].get(parsed.field) or {}, parsed).get(
                    "call"
                )
        return None

    def find_classes(self, call: int) -> Json | None:
        """Return the classes of the graph that runs for a call, or None if a function is called."""
        graph: int | None = self.calls[call].get("graph")
        return None if graph is None else self.graphs[graph]["classes"]

    def is_shared(self, place: Place) -> bool:
        """Whether the value at a place is computed once for the whole run, for all fields that need
        it."""
        use = self._find_use(place)
        is_call = "kind" not in use or find_source_kind(use["kind"]).stored == "call"
        return is_call and "call" in use and bool(use.get("cache", True))

    def is_by_value(self, place: Place) -> bool:
        """Whether the value at a place is computed from values of the run, once for equal
        arguments."""
        use = self._find_use(place)
        call = cast(Json, self.calls[use["call"]] if "call" in use else {})
        return bool(use.get("bound") or call.get("by_value"))

    def arguments(self, place: Place) -> dict[str, Place]:
        """Return the places of the arguments of the function that computes a place, by
        parameter."""
        use = self._find_use(place)
        inputs = cast(Json, self.calls[use["call"]]["inputs"] if "call" in use else {})
        bound = cast(Json, use.get("bound", {}))
        places = {name: place.below(name) for name in {**inputs, **bound}}
        for name, binding in bound.items():
            if "field" in binding:
                places[name] = place._replace(field=binding["field"], parameter="")
        return places

    @staticmethod
    def arguments_of(uses: Json) -> list[str]:
        """Return, in words, the arguments that come from the run:
        `query from the field question`."""
        texts: list[str] = []
        for name, use in uses.items():
            if "field" in use:
                texts.append(f"{name} from the field {use['field']}")
            elif "recall" in use:
                texts.append(f"{name} from Recall({use['recall']})")
        return texts

    def fields(self) -> Iterator[tuple[str, str, Json]]:
        """Yield all fields: the name of the class, the name of the field, and the stored field."""
        for graph in self.graphs:
            for name, cls in graph["classes"].items():
                for field_name, stored_field in cls["fields"].items():
                    yield name, field_name, stored_field

    def find_start(self, use: Json) -> str:
        """Return the name of the class at which the graph that computes a field starts. Return an
        empty name if a function computes the field."""
        call: int = use["call"]
        graph: int | None = self.calls[call].get("graph")
        return "" if graph is None else self.graphs[graph]["start"]

    def find_ends(self, use: Json) -> set[str]:
        """Return the names of the classes at which the graph that computes a field may end. Return
        no names if a function computes the field."""
        call: int = use["call"]
        graph: int | None = self.calls[call].get("graph")
        classes: Json = {} if graph is None else self.graphs[graph]["classes"]
        return {name for name, cls in classes.items() if cls["ends"]}

    def walk_calls(self, use: Json) -> Iterator[tuple[str, Json]]:
        """Yield each call that computes a field or, at any depth, an argument of the field's
        function. With each call come the parameters that lead to it, as `(city)(client)`; they are
        empty for the field itself. A call that several parameters need comes once."""
        ahead, yielded = [("", use)], set[int]()
        while ahead:
            parameter, use = ahead.pop()
            number: int | None = use.get("call")
            if number is not None and number not in yielded:
                yielded.add(number)
                yield parameter, self.calls[number]
                inputs: Json = self.calls[number]["inputs"]
                ahead += [(f"{parameter}({name})", below) for name, below in inputs.items()]

    def _find_use(self, place: Place) -> Json:
        """Return the stored field or parameter at a place."""
        return self._find_inner_use(self.field_at(place) or {}, place)

    def _find_inner_use(self, use: Json, place: Place) -> Json:
        for parameter in place.parameters:
            call: int | None = use.get("call")
            use = {} if call is None else self.calls[call]["inputs"].get(parameter, {})
        return use


@cache
def _shape_model() -> type[BaseModel]:
    """Return a model that accepts a shape only if all look-ups can work."""
    number: Any = Annotated[int, Field(ge=0)]
    bound: Any = create_model("Bound", field=(str, ""), recall=(str, ""))
    options: Json = {"call": (number, 0), "bound": (dict[str, bound], {})}
    use: Any = create_model("Use", **options)
    call: Any = create_model("Call", by=str, inputs=dict[str, use], graph=(number, 0))
    more: Any = {"kind": str, "type": str, "required": bool, "over": (str, "")}
    stored_field: Any = create_model("Field", __base__=use, **more)
    parts: Json = {"fields": dict[str, stored_field], "next": list[str], "rules": (list[str], [])}
    cls: Any = create_model("Class", **parts, ends=bool, written=bool)
    graph: Any = create_model("Graph", name=str, start=str, classes=dict[str, cls])
    return create_model("Shape", graphs=list[graph], calls=list[call])


@dataclass(slots=True)
class _ShapeBuilder:
    """Builds a shape. Graphs and calls are in lists, and other parts refer to them by number. So a
    part with many users appears once, and a graph may contain itself."""

    graphs: list[Json] = field(default_factory=list[Json])
    calls: list[Json] = field(default_factory=list[Json])
    graph_numbers: dict[tuple[type[Node], str], int] = field(
        default_factory=dict["tuple[type[Node], str]", int]
    )
    call_numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    schemas: dict[str, str] = field(default_factory=dict[str, str])

    def graph(self, graph: Graph[Any, Any]) -> int:
        key = graph.start, graph.name
        if key in self.graph_numbers:
            return self.graph_numbers[key]
        number = self.graph_numbers[key] = len(self.graphs)
        classes: Json = {}
        entry: Json = {"name": graph.name, "start": graph.start.__name__, "classes": classes}
        if graph.system is not None:
            entry["system"] = graph.system
        if context_text := _describe_context(graph.context, graph.context_limit):
            entry["context"] = context_text
        self.graphs.append(entry)
        for plan in plan_of_graph(graph).plans.values():
            # No graph with two classes of one name can have a journal.
            classes[plan.name] = self._class(plan)
        return number

    def _class(self, plan: NodePlan) -> Json:
        schemas = field_schemas(plan.node)
        entry: Json = {
            "fields": {
                n: self._field(field_plan, schemas[n]) for n, field_plan in plan.fields.items()
            },
            "next": [cls.__name__ for cls in plan.successors],
            "ends": plan.may_end,
            "written": plan.written,
        }
        if plan.instruction != plan.name:
            entry["instruction"] = plan.instruction
        if plan.description:
            entry["description"] = plan.description
        if context_text := _describe_context(plan.shows, plan.shows_limit):
            entry["context"] = context_text
        rules = sorted(plan.node.__pydantic_decorators__.model_validators)
        if plan.node.model_config.get("extra") == "forbid":
            rules.append("extra='forbid'")
        return {**entry, "rules": rules} if rules else entry

    def _field(self, plan: FieldPlan, schema: Any) -> Json:
        entry: Json = {"kind": plan.kind, "type": type_name(plan.annotation)}
        entry["required"] = plan.required
        entry |= plan.draw()
        if plan.call is not None:
            entry["call"] = self._call(plan.call)
        if plan.bound:
            entry["bound"] = _bindings_of(plan)
        return entry | self._schema(lambda: schema)

    def _call(self, call: CallPlan) -> int:
        if call.key in self.call_numbers:
            return self.call_numbers[call.key]
        number = self.call_numbers[call.key] = len(self.calls)
        inputs: Json = {}
        entry: Json = {"by": call.name, "inputs": inputs}
        self.calls.append(entry)
        for name, below in call.inputs:
            inputs[name] = {"call": self._call(below.call)}
            if not below.marker.cache:
                inputs[name]["cache"] = False
            if below.bound:
                inputs[name]["bound"] = _bindings_of(below)
        for name, recall in call.recalls:
            inputs[name] = _recall(recall)
        if call.by_value:
            entry["by_value"] = True
        if call.graph is not None:
            entry["graph"] = self.graph(call.graph)
        elif call.declared is not MISSING:
            entry["type"] = type_name(call.declared)
            entry |= self._schema(lambda: returned_schema(call))
        return number

    def _schema(self, core_schema: Callable[[], Any]) -> Json:
        """Return the hash of a type as an entry of the shape. The entry is empty if the type has no
        JSON schema."""
        try:
            core = core_schema()
            key = repr(core)  # many fields have the same type
            if key not in self.schemas:
                self.schemas[key] = _schema_hash(core)
            return {"schema": self.schemas[key]}
        except Exception:  # a type's own code for its JSON schema may raise any error
            return {}


def _bindings_of(asked: FieldPlan | Input) -> Json:
    """Return the fields and recalls that a marker binds to parameters, by parameter."""
    fields: Json = {name: {"field": field} for name, field in siblings_of(asked)}
    of_call = dict(() if asked.call is None else asked.call.recalls)
    return fields | {n: _recall(recall) for n, recall in recalls_of(asked) if n not in of_call}


def _recall(recall: RecallField) -> Json:
    node_type = recall.marker.node_type
    return {"recall": "" if node_type is None else node_type.__name__}


def _describe_context(context: Shown | None, limit: int | None) -> str:
    """Return the setting `context` in words; empty without this setting."""
    selected = context if isinstance(context, tuple) else () if context is None else (context,)
    shown_text = ", ".join(part if isinstance(part, str) else part.__name__ for part in selected)
    return shown_text if limit is None else f"{shown_text} in {limit} characters".strip()


def _schema_hash(core: Any) -> str:
    """Return a hash of the JSON schema of a type and of the names of its validators."""
    schema = _plain(_Schemas(by_alias=False).generate(core))
    functions = [part["function"] for part in parts(core) if part["type"] in _VALIDATORS]
    names = [getattr(function["function"], "__name__", "") for function in functions]
    return _hash([schema, sorted(names)], 16)


class _Schemas(GenerateJsonSchema):
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


_VALIDATORS: Final = ("function-before", "function-after", "function-wrap", "function-plain")
_IGNORED: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords that do not decide which values are valid."""
_BY_NAME: Final = frozenset({"$defs", "properties", "patternProperties", "dependentSchemas"})
"""Keywords whose value is an object of schemas by name."""


def _plain(schema: Any, by_name: bool = False) -> Any:
    """Return a JSON schema without ignored keywords. With `by_name`, the keys of `schema` are
    names, such as the names of properties, and not keywords."""
    if isinstance(schema, list):
        return [_plain(part) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _plain(part, key in _BY_NAME and not by_name)
        for key, part in cast(Json, schema).items()
        if by_name or key not in _IGNORED
    }


def _hash(value: Any, length: int) -> str:
    # A class may add values to its schema that are not JSON.
    text = json.dumps(
        value, separators=(",", ":"), sort_keys=True, default=lambda part: type(part).__name__
    )
    return hashlib.sha256(text.encode()).hexdigest()[:length]
