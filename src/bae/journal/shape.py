"""The shape of a graph: its classes, as JSON and as a hash. It is stored with each run, so that
changed classes are noticed when the run is resumed."""

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
from bae.sources import kind_named

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.language_model import Shown
    from bae.node import Node
    from bae.sources.recall import RecallField

FORMAT: Final = 2
"""The version of the notation; a shape of any other version is ignored."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a graph: `json` is the whole shape, and `hash` tells shapes apart.

    The hash leaves out the name of the graph, so that a graph that was only renamed has the same
    hash.
    """

    json: str
    hash: str


def shape_of(graph: Graph[Any, Any]) -> Shape:
    """The shape of a graph and of the graphs inside it, computed once.

    It is the same in every process, on every Python, and wherever the classes are defined.
    """
    shape = _SHAPES.get(graph)
    if shape is None:
        drawing = _Drawing()
        drawing.graph(graph)
        data: Json = {"format": FORMAT, "graphs": drawing.graphs, "calls": drawing.calls}
        text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
        shape = Shape(text, hash_of(data))
        if not any(plan.provisional for plan in plan_of_graph(graph).plans.values()):
            _SHAPES[graph] = shape
    return shape


_SHAPES: WeakKeyDictionary[Graph[Any, Any], Shape] = WeakKeyDictionary()


def is_forged(text: str, shape_hash: str) -> bool:
    """Whether a shape from elsewhere has a hash that could be one of a graph's, but is not the hash
    of its text."""
    return bool(re.fullmatch("[0-9a-f]{32}", shape_hash)) and not _has_hash(text, shape_hash)


@lru_cache(maxsize=8)
def _has_hash(text: str, shape_hash: str) -> bool:
    try:
        return hash_of(json.loads(text)) == shape_hash
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def hash_of(shape: Json) -> str:
    """The hash of a shape, without the names of its graphs."""
    return _hash({**shape, "graphs": [{**g, "name": ""} for g in shape["graphs"]]}, 32)


class ShapeView:
    """A stored shape, looked up by path, class, field and parameter. An unknown part is None or
    empty. A shape that does not fit its hash, or that is incomplete, is refused
    (`bae-journal-damaged`): a hash is no signature. A shape of another format is ignored."""

    def __init__(self, text: str, shape_hash: str) -> None:
        try:
            read: Any = from_json(text) if text else {}
        except ValueError:
            read = {}
        is_known = isinstance(read, dict) and cast(Json, read).get("format") == FORMAT
        data = cast(Json, read) if is_known else {}
        self.graphs = cast(list[Json], data.get("graphs", []))
        self.calls = cast(list[Json], data.get("calls", []))
        if data and not (_has_hash(text, shape_hash) and self._is_whole(data)):
            raise JournalError(
                "the shape of the classes that the run began with is damaged",
                code="bae-journal-damaged",
                fix="take the journal from a backup; classes that are still the same resume it",
            )
        self._at: dict[str, Json | None] = {"": self.graphs[0] if self.graphs else None}

    def _is_whole(self, data: Json) -> bool:
        try:
            _form().model_validate(data, strict=True)
        except ValidationError:
            return False
        fields = [use for *_, use in self.fields()]
        uses = [*fields, *(use for call in self.calls for use in call["inputs"].values())]
        calls: list[int] = [use["call"] for use in uses if "call" in use]
        graphs: list[int] = [call["graph"] for call in self.calls if "graph" in call]
        return (
            max(calls, default=-1) < len(self.calls)
            and max(graphs, default=-1) < len(self.graphs)
            and all("call" in use for use in fields if kind_named(use["kind"]).is_called)
        )

    def graph_at(self, path: str) -> Json | None:
        """The graph that runs at a path; the run's own graph at the empty path."""
        if path not in self._at:
            place = Place.parse(path)
            call: int | None = None if place is None else self._use(place).get("call")
            graph: int | None = None if call is None else self.calls[call].get("graph")
            self._at[path] = None if graph is None else self.graphs[graph]
        return self._at[path]

    def class_at(self, path: str, node: str) -> Json | None:
        """A class of the graph at a path, as it was."""
        graph = self.graph_at(path)
        return None if graph is None else graph["classes"].get(node)

    def field_at(self, place: Place) -> Json | None:
        """A field of such a class, as it was."""
        cls = self.class_at(place.path, place.node)
        return None if cls is None else cls["fields"].get(place.field)

    def call_at(self, place: Place) -> int | None:
        """The number of the call behind a field, or behind a parameter further down."""
        return self._use(place).get("call")

    def call_named(self, graph: str, place: str) -> int | None:
        """The number of the call at a place, as `Reply.policy(shop)`, of the graph of a name."""
        parsed = Place.parse(place) or Place()
        for each in self.graphs:
            cls = cast(Json, each["classes"]).get(parsed.node) if each["name"] == graph else None
            if cls is not None:
                return self._behind(cls["fields"].get(parsed.field) or {}, parsed).get("call")
        return None

    def classes_behind(self, call: int) -> Json | None:
        """The classes of the graph that runs for a call; None for a function."""
        graph: int | None = self.calls[call].get("graph")
        return None if graph is None else self.graphs[graph]["classes"]

    def is_shared(self, place: Place) -> bool:
        """Whether the value is computed once for the whole run, for all fields that need it."""
        use = self._use(place)
        is_one = "kind" not in use or kind_named(use["kind"]).stored == "call"
        return is_one and "call" in use and bool(use.get("cache", True))

    def is_by_value(self, place: Place) -> bool:
        """Whether the value is computed once for equal arguments, which come from the run."""
        use = self._use(place)
        call = cast(Json, self.calls[use["call"]] if "call" in use else {})
        return bool(use.get("bound") or call.get("by_value"))

    def arguments(self, place: Place) -> dict[str, Place]:
        """The places of the arguments of the function behind a place, by parameter."""
        use = self._use(place)
        inputs = cast(Json, self.calls[use["call"]]["inputs"] if "call" in use else {})
        bound = cast(Json, use.get("bound", {}))
        places = {name: place.below(name) for name in {**inputs, **bound}}
        for name, each in bound.items():
            if "field" in each:
                places[name] = place._replace(field=each["field"], parameter="")
        return places

    @staticmethod
    def arguments_of(uses: Json) -> list[str]:
        """Arguments that come from the run, in words: `query from the field question`."""
        inputs_text: list[str] = []
        for name, use in uses.items():
            if "field" in use:
                inputs_text.append(f"{name} from the field {use['field']}")
            elif "recall" in use:
                inputs_text.append(f"{name} from Recall({use['recall']})")
        return inputs_text

    def fields(self) -> Iterator[tuple[str, str, Json]]:
        """All fields: the name of the class, the name of the field, and the field as it was."""
        for graph in self.graphs:
            for name, cls in graph["classes"].items():
                for each, drawn in cls["fields"].items():
                    yield name, each, drawn

    def start_behind(self, use: Json) -> str:
        """The name of the class where the graph behind a field starts; empty for a function."""
        call: int = use["call"]
        graph: int | None = self.calls[call].get("graph")
        return "" if graph is None else self.graphs[graph]["start"]

    def ends_behind(self, use: Json) -> set[str]:
        """The names of the classes where the graph behind a field may end; none for a function."""
        call: int = use["call"]
        graph: int | None = self.calls[call].get("graph")
        classes: Json = {} if graph is None else self.graphs[graph]["classes"]
        return {name for name, cls in classes.items() if cls["ends"]}

    def calls_behind(self, use: Json) -> Iterator[tuple[str, Json]]:
        """The calls behind a field, each once, with the parameter that it is for, as `(city)`."""
        ahead, seen = [("", use)], set[int]()
        while ahead:
            parameter, use = ahead.pop()
            number: int | None = use.get("call")
            if number is not None and number not in seen:
                seen.add(number)
                yield parameter, self.calls[number]
                inputs: Json = self.calls[number]["inputs"]
                ahead += [(f"{parameter}({name})", below) for name, below in inputs.items()]

    def _use(self, place: Place) -> Json:
        """The entry of a field, or of a parameter behind it."""
        return self._behind(self.field_at(place) or {}, place)

    def _behind(self, use: Json, place: Place) -> Json:
        for parameter in place.parameters:
            call: int | None = use.get("call")
            use = {} if call is None else self.calls[call]["inputs"].get(parameter, {})
        return use


@cache
def _form() -> type[BaseModel]:
    """The form that a shape must have for look-ups."""
    number: Any = Annotated[int, Field(ge=0)]
    bound: Any = create_model("Bound", field=(str, ""), recall=(str, ""))
    options: Json = {"call": (number, 0), "bound": (dict[str, bound], {})}
    use: Any = create_model("Use", **options)
    call: Any = create_model("Call", by=str, inputs=dict[str, use], graph=(number, 0))
    more: Any = {"kind": str, "type": str, "required": bool, "over": (str, "")}
    each: Any = create_model("Field", __base__=use, **more)
    listed: Json = {"fields": dict[str, each], "next": list[str], "rules": (list[str], [])}
    cls: Any = create_model("Class", **listed, ends=bool, written=bool)
    graph: Any = create_model("Graph", name=str, start=str, classes=dict[str, cls])
    return create_model("Shape", graphs=list[graph], calls=list[call])


@dataclass(slots=True)
class _Drawing:
    """A shape that is being drawn. Graphs and calls are in lists and referred to by number, so that
    a part with many users appears once, and recursion ends."""

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
        drawn: Json = {"name": graph.name, "start": graph.start.__name__, "classes": classes}
        if graph.system is not None:
            drawn["system"] = graph.system
        if shown := _describe_context(graph.context, graph.context_limit):
            drawn["context"] = shown
        self.graphs.append(drawn)
        for plan in plan_of_graph(graph).plans.values():
            # No graph with two classes of one name can have a journal.
            classes[plan.name] = self._class(plan)
        return number

    def _class(self, plan: NodePlan) -> Json:
        schemas = field_schemas(plan.node)
        drawn: Json = {
            "fields": {n: self._field(each, schemas[n]) for n, each in plan.fields.items()},
            "next": [cls.__name__ for cls in plan.successors],
            "ends": plan.may_end,
            "written": plan.written,
        }
        if plan.instruction != plan.name:
            drawn["instruction"] = plan.instruction
        if plan.description:
            drawn["description"] = plan.description
        if shown := _describe_context(plan.shows, plan.shows_limit):
            drawn["context"] = shown
        rules = sorted(plan.node.__pydantic_decorators__.model_validators)
        if plan.node.model_config.get("extra") == "forbid":
            rules.append("extra='forbid'")
        return {**drawn, "rules": rules} if rules else drawn

    def _field(self, each: FieldPlan, schema: Any) -> Json:
        drawn: Json = {"kind": each.kind, "type": type_name(each.annotation)}
        drawn["required"] = each.required
        drawn |= each.draw()
        if each.call is not None:
            drawn["call"] = self._call(each.call)
        if each.bound:
            drawn["bound"] = _bindings_of(each)
        return drawn | self._schema(lambda: schema)

    def _call(self, call: CallPlan) -> int:
        if call.key in self.call_numbers:
            return self.call_numbers[call.key]
        number = self.call_numbers[call.key] = len(self.calls)
        inputs: Json = {}
        drawn: Json = {"by": call.name, "inputs": inputs}
        self.calls.append(drawn)
        for name, below in call.inputs:
            inputs[name] = {"call": self._call(below.call)}
            if not below.marker.cache:
                inputs[name]["cache"] = False
            if below.bound:
                inputs[name]["bound"] = _bindings_of(below)
        for name, recall in call.recalls:
            inputs[name] = _recall(recall)
        if call.by_value:
            drawn["by_value"] = True
        if call.graph is not None:
            drawn["graph"] = self.graph(call.graph)
        elif call.declared is not MISSING:
            drawn["type"] = type_name(call.declared)
            drawn |= self._schema(lambda: returned_schema(call))
        return number

    def _schema(self, core_schema: Callable[[], Any]) -> Json:
        """The hash of a type, as an entry; empty for a type that has no JSON schema."""
        try:
            core = core_schema()
            key = repr(core)  # many fields have the same type
            if key not in self.schemas:
                self.schemas[key] = _schema_hash(core)
            return {"schema": self.schemas[key]}
        except Exception:  # a type may have its own code for this, which may raise anything
            return {}


def _bindings_of(asked: FieldPlan | Input) -> Json:
    """The bindings of a marker."""
    fields: Json = {name: {"field": field} for name, field in siblings_of(asked)}
    own = dict(() if asked.call is None else asked.call.recalls)
    return fields | {n: _recall(recall) for n, recall in recalls_of(asked) if n not in own}


def _recall(recall: RecallField) -> Json:
    node_type = recall.marker.node_type
    return {"recall": "" if node_type is None else node_type.__name__}


def _describe_context(context: Shown | None, limit: int | None) -> str:
    """The setting `context`, in words; empty if there is none."""
    named = context if isinstance(context, tuple) else () if context is None else (context,)
    inputs_text = ", ".join(each if isinstance(each, str) else each.__name__ for each in named)
    return inputs_text if limit is None else f"{inputs_text} in {limit} characters".strip()


def _schema_hash(core: Any) -> str:
    """A hash of the JSON schema of a type and of the names of its validators."""
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


def _plain(schema: Any, by_name: bool = False) -> Any:
    """A JSON schema without ignored keywords. With `by_name`, an object of schemas by any name."""
    if isinstance(schema, list):
        return [_plain(each) for each in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _plain(each, key in _BY_NAME and not by_name)
        for key, each in cast(Json, schema).items()
        if by_name or key not in _IGNORED
    }


def _hash(value: Any, length: int) -> str:
    # A class may add values to its schema that are not JSON.
    text = json.dumps(
        value, separators=(",", ":"), sort_keys=True, default=lambda each: type(each).__name__
    )
    return hashlib.sha256(text.encode()).hexdigest()[:length]
