"""Secrets: which fields, dependencies and LLM calls of a graph hold a secret, or may quote it.
Prompts, journals, telemetry, the terminal, evaluations and training data use this module.

A secret is a `SecretStr`, `SecretBytes` or `Secret[…]`, at any depth of a type. A field with
`repr=False` of a node, model or dataclass is a secret too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from bae.calls import MISSING, CallPlan, every_call, find_call_at, recalls_of, siblings_of
from bae.core_schemas import CoreSchemaDict, field_schema, parts, returned_schema, type_schema
from bae.graph_plan import plan_of_graph
from bae.plan import plan_of
from bae.records import Asker

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node
    from bae.plan import FieldPlan

MASK: Final = "**********"
"""The mask that a model reads in place of a hidden value. Pydantic writes a `SecretStr` like
this."""

Copies = Mapping["type[Node]", frozenset[str]]
"""The fields of each class that may hold a copy of a secret."""

_FIELDS: Final = "__bae_secret_fields__"
_VEIL: Final = "__bae_veil__"
_NO_FIELDS: Final[frozenset[str]] = frozenset()


def secret_fields(cls: type[Node]) -> Mapping[str, str]:
    """Return the fields of a node class that hold a secret, each with the reason as text."""
    fields = cast("Mapping[str, str] | None", cls.__dict__.get(_FIELDS))
    if fields is None:
        if not cls.__pydantic_complete__:
            plan_of(cls, strict=True)
        reasons = {name: _explain_secret(cls, name) for name in cls.__pydantic_fields__}
        fields = {name: reason for name, reason in reasons.items() if reason}
        type.__setattr__(cls, _FIELDS, fields)
    return fields


class Veil(NamedTuple):
    """How a model sees the fields of a class."""

    masked: frozenset[str]
    """The fields that the model sees as a mask."""
    revealed: frozenset[str]
    """The fields whose secrets the model sees."""
    looks: bool
    """Whether the values of fields must be examined, because their JSON is not enough. For example,
    the JSON of a `RootModel` may be a mere text."""


def veil_of(cls: type, copies: Copies | None = None) -> Veil | None:
    """Return how a model sees the fields of a node, model or dataclass; None if no field is masked,
    revealed or examined. Fields in `copies` may hold a copy of a secret, so they are masked too."""
    try:
        veil: Veil | None = cls.__dict__[_VEIL]
    except KeyError:
        veil = _make_veil(cls)
        type.__setattr__(cls, _VEIL, veil)
    if copies is None or cls not in copies:
        return veil
    class_veil = _PLAIN if veil is None else veil
    return class_veil._replace(masked=class_veil.masked | (copies[cls] - class_veil.revealed))


def _make_veil(cls: type) -> Veil | None:
    hidden, revealed = hidden_fields(cls), _revealed_fields(cls)
    try:
        schema: Any = getattr(cast(Any, cls), "__pydantic_core_schema__", None)
        looks = any(
            part["type"] in _ANYTHING or (part.get("root_model") and hidden_fields(part["cls"]))
            for part in parts(schema if isinstance(schema, dict) else type_schema(cls))
        )
    except Exception:  # without a schema, the fields may hold anything
        looks = True
    return Veil(hidden - revealed, revealed, looks) if hidden or revealed or looks else None


def _revealed_fields(cls: type) -> frozenset[str]:
    from bae.node import Node

    return plan_of(cls, strict=True).revealed if issubclass(cls, Node) else _NO_FIELDS


def mask_values(node: Node, copies: Copies | None = None) -> dict[str, Any]:
    """Return the values of a node's fields by name, with masks in place of hidden values. They are
    for an LM that writes its own prompts."""
    veil = veil_of(type(node), copies)
    hidden = () if veil is None else veil.masked
    return {n: MASK if n in hidden and value is not None else value for n, value in node}


def hidden_fields(cls: type) -> frozenset[str]:
    """Return the fields with `repr=False` of a model or dataclass, computed fields included."""
    declared: dict[str, Any] = {
        **_declared_settings(cls),
        **getattr(cls, "__pydantic_computed_fields__", {}),
    }
    return frozenset(name for name, field in declared.items() if not field.repr)


def hidden_copies(graph: Graph[Any, Any]) -> dict[type[Node], frozenset[str]]:
    """Return the fields to which bae may copy a secret, by class, in a graph and the graphs inside
    it. Fields that hold a secret of their own are left out."""
    plans = {cls: plan for part in graph.graphs for cls, plan in plan_of_graph(part).plans.items()}
    if all(field.info.repr for plan in plans.values() for field in plan.fields.values()):
        return {}
    secrets = Secrets.of(graph)
    copies = {cls: secrets.fields(cls).difference(secret_fields(cls)) for cls in plans}
    return {cls: names for cls, names in copies.items() if names}


def secret_in(schema: Any) -> str:
    """Return why a type holds a secret, from its core schema; empty if it holds none."""
    return _find_secret(parts(schema))


def _find_secret(schemas: Iterable[CoreSchemaDict]) -> str:
    for part in schemas:
        if is_masked(part):
            maker: Any = part.get("json_schema", part).get("function", {}).get("function")
            name: str = getattr(maker, "__name__", "")
            return f"it holds a {name if name.startswith('Secret') else 'Secret'}"
        if part["type"] in ("model", "dataclass"):
            hidden = _hidden_field(part["cls"])
            if hidden:
                return f"{part['cls'].__name__}.{hidden} has repr=False"
    return ""


def is_masked(schema: CoreSchemaDict) -> bool:
    """Return whether this is the schema of one of pydantic's secret types, such as `SecretStr`."""
    serialization = cast("CoreSchemaDict | None", schema.get("serialization"))
    function = None if serialization is None else serialization.get("function")
    name = getattr(function, "__name__", "")
    return "secret" in name and getattr(function, "__module__", "") == "pydantic.types"


def secret_call(call: CallPlan) -> str:
    """Return why the result of a dependency is a secret; empty if it is none."""
    if call.graph is not None:
        for cls in call.graph.terminal_nodes:
            for name in secret_fields(cls):
                return f"{cls.__name__}.{name} is a secret"
        return ""
    reason = _CALLS.get(call)
    if reason is None:
        try:
            reason = "" if call.declared is MISSING else secret_in(returned_schema(call))
        except Exception:  # values of a type without a schema are neither stored nor shown as data
            reason = ""
        _CALLS[call] = reason
    return reason


def depends_on_secret(cls: type[Node], field: str) -> bool:
    """Return whether a field's dependency returns a secret, or any dependency below it does."""
    return any(map(secret_call, every_call(plan_of(cls).fields[field].call)))


def is_near_secret(cls: type[Node]) -> bool:
    """Return whether a node of this class holds a secret, or a secret is used to compute its
    fields: a function takes a secret as a parameter, or a graph for a field holds a secret."""
    return not may_show((cls,)) or any(
        not may_show((node,)) or any(depends_on_secret(node, f.name) for f in plan_of(node).called)
        for node in _with_graphs(cls)
    )


def _with_graphs(cls: type[Node]) -> Iterator[type[Node]]:
    """Yield a class, and the classes of the graphs that run for its fields."""
    yield cls
    for field in plan_of(cls, strict=True).called:
        for call in every_call(field.call):
            if call.graph is not None:
                for graph in call.graph.graphs:
                    yield from graph.nodes


def may_show(classes: Iterable[type], *, following: bool = False) -> bool:
    """Return whether nodes of these classes may be shown, because they hold no secret. With
    `following`, the classes that may come next must hold none either."""
    for cls in [*classes]:
        if cls is not type(None) and _holds_secret(cls):
            return False
        if following and any(_holds_secret(option) for option in plan_of(cast(Any, cls)).offered):
            return False
    return True


_ANYTHING: Final = ("any", "is-instance", "function-plain")
"""The types of core schemas that do not say which type a value has. The value's own type then
serializes the value."""
_PLAIN: Final = Veil(_NO_FIELDS, _NO_FIELDS, False)


class Secrets:
    """The secrets of node classes that run together, such as the classes of a graph."""

    def __init__(self, classes: Iterable[type[Node]]) -> None:
        self._plans = {cls: plan_of(cls, strict=True) for cls in classes}
        self._secret = {cls: secret_fields(cls) for cls in self._plans}
        self._calls = {
            call.key
            for cls, names in self._secret.items()
            for name in names
            if (call := self._plans[cls].fields[name].call) is not None
        }
        self._passed_on = self._find_passed_on()
        self._holders = {
            cls
            for cls, plan in self._plans.items()
            if self._hidden_fields(cls)
            or any(map(self.recalls, plan.sourced))
            or any(field.has_secret_arguments for field in plan.called)
        }
        self.any = bool(self._holders) or any(
            secret_call(call)
            for plan in self._plans.values()
            for field in plan.called
            for call in every_call(field.call)
        )
        """Whether the classes have any secret."""
        self._asks: dict[Asker, bool] = {}
        self._wider: WeakKeyDictionary[type[Node], Secrets] = WeakKeyDictionary()
        self._ends: dict[CallPlan, bool] = {}
        self._fields: dict[type[Node], frozenset[str]] = {}

    @classmethod
    def of(cls, graph: Graph[Any, Any]) -> Secrets:
        """Return the secrets of a graph and of the graphs inside it."""
        secrets = _GRAPHS.get(graph)
        if secrets is None:
            graphs = graph.graphs
            secrets = cls(dict.fromkeys(node for graph in graphs for node in graph.nodes))
            settings = [g.context for g in graphs] + [p.shows for p in secrets._plans.values()]
            # If questions may show more than the previous node, nothing is noted. Then `asks`
            # assumes that each question may contain any secret.
            if all(context in (None, "previous") for context in settings):
                for part in graphs:
                    secrets._note_asks(part)
            _GRAPHS[graph] = secrets
        return secrets

    def including(self, cls: type[Node]) -> Secrets:
        """Return the secrets of these classes and of one more class, which is outside the graph.
        Only bodies and functions ask an LLM about such a class."""
        if cls in self._plans:
            return self
        wider = self._wider.get(cls)
        if wider is None:
            wider = self._wider[cls] = Secrets(dict.fromkeys((*self._plans, *_with_graphs(cls))))
            wider._asks = self._asks
        return wider

    def _note_asks(self, graph: Graph[Any, Any]) -> None:
        for cls, plan in plan_of_graph(graph).plans.items():
            self._note(Asker("choice", cls), {cls, *plan.successors})
            for successor in plan.successors:
                self._note(Asker("fill", successor), {cls, successor})

    def _note(self, asker: Asker, classes: set[type[Node]]) -> None:
        shows_secret = not classes.isdisjoint(self._holders)
        self._asks[asker] = self._asks.get(asker, False) or shows_secret

    def fields(self, cls: type[Node]) -> frozenset[str]:
        """Return the fields of a class that must not be shown. Such a field

        - holds a secret, or has the same dependency as a field that holds a secret,
        - may recall a secret, or
        - is in the start node of a graph, and gets a secret from the field that runs the graph.
        """
        names = self._fields.get(cls)
        if names is None:
            names = self._fields[cls] = self._find_fields(cls)
        return names

    def _find_fields(self, cls: type[Node]) -> frozenset[str]:
        return self._hidden_fields(cls).union(
            field.name
            for field in self._plans[cls].sourced
            if self.recalls(field) or self._is_secret(field.call)
        )

    def _hidden_fields(self, cls: type[Node]) -> frozenset[str]:
        return self._passed_on.get(cls, _NO_FIELDS).union(self._secret[cls])

    def _find_passed_on(self) -> dict[type[Node], frozenset[str]]:
        """Find the start fields of graphs that get a secret: a `Dep` binds a secret to the field,
        or a `Map` gets its items from a secret."""
        passed_on: dict[type[Node], frozenset[str]] = {}
        self._passed_on = passed_on
        while True:
            new: set[tuple[type[Node], str]] = set()
            for cls, plan in self._plans.items():
                hidden = self._find_fields(cls) if plan.sourced else ()
                for field in plan.sourced:
                    graph = None if field.call is None else field.call.graph
                    if graph is None or graph.start not in self._plans:
                        continue
                    bound = dict(siblings_of(field))
                    names = [name for name, sibling in bound.items() if sibling in hidden]
                    names += [name for name, recall in recalls_of(field) if self.recalls(recall)]
                    if (over := field.items_of) in hidden:
                        start = graph.start
                        is_node = any(
                            part["type"] in _ANYTHING or part.get("cls") is start
                            for part in parts(field_schema(cls, over))
                        )
                        plain = [f for f in plan_of(start).plain if f.name not in dict(field.bound)]
                        names += [f.name for f in plain if f.required or is_node]
                    new |= {(graph.start, name) for name in names}
            new = {(cls, name) for cls, name in new if name not in self._hidden_fields(cls)}
            if not new:
                return passed_on
            for cls, name in new:
                passed_on[cls] = passed_on.get(cls, _NO_FIELDS) | {name}

    def source(self, cls: type[Node], field: str, route: str = "") -> bool:
        """Return whether the value of a field's dependency is a secret. It is also a secret if any
        secret field has the same dependency. `route` is the path to a parameter at any depth, such
        as `(place)(client)`."""
        if not self.any and cls in self._plans:
            return False
        if not route and field in secret_fields(cls):
            return True
        call = find_call_at(plan_of(cls).fields[field], route)
        return self._is_secret(call) or self._ends_with_copy(call)

    def _ends_with_copy(self, call: CallPlan | None) -> bool:
        """Return whether a call runs a graph that may end at a node with a copy of a secret."""
        if call is None or call.graph is None:
            return False
        ends_with_copy = self._ends.get(call)
        if ends_with_copy is None:
            ends = [cls for cls in call.graph.terminal_nodes if cls in self._plans]
            ends_with_copy = self._ends[call] = any(map(self.fields, ends))
        return ends_with_copy

    def _is_secret(self, call: CallPlan | None) -> bool:
        return call is not None and (call.key in self._calls or bool(secret_call(call)))

    def asks(self, asker: Asker) -> bool:
        """Return whether an asker's questions to an LLM, or the answers, may contain a secret. The
        questions of bodies and functions are unknown, so they may contain any secret of the
        graph."""
        return self._asks.get(asker, self.any)

    def find_field_name(self, complaint: str) -> str:
        """Return the name of the field that a complaint about an answer begins with, or "withheld"
        if no field has the name. The rest of the complaint is left out, because it may quote a
        value."""
        name = complaint.partition(":")[0].partition(".")[0]
        return name if any(name in plan.fields for plan in self._plans.values()) else "withheld"

    def recalls(self, field: FieldPlan) -> bool:
        """Return whether a field or parameter may recall its value from a secret field."""
        return any(
            not names.isdisjoint(name for name, _ in recall.holders_in(cls))
            for route, _, recall in field.recalls()
            for cls in self._secret
            if not route and (names := self._hidden_fields(cls))
        )


def without_hidden_parts(value: Any, instead: Any, inside: tuple[int, ...] = ()) -> Any:
    """Return a value as dicts and lists, with `instead` in place of every part with `repr=False`.
    If the value has no such part, return the value itself. `inside` has the ids of the containers
    around the value, so that a cycle ends."""
    from pydantic import BaseModel

    if id(value) in inside or len(inside) > _DEEPEST:
        return "…"
    hidden: set[Any] = set()
    contents: dict[Any, Any]
    if isinstance(value, BaseModel):
        contents = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        hidden = {n for n, field in type(value).__pydantic_fields__.items() if not field.repr}
    elif is_dataclass(value) and not isinstance(value, type):
        contents = {field.name: getattr(value, field.name, None) for field in fields(value)}
        hidden = {field.name for field in fields(value) if not field.repr}
    elif isinstance(value, Mapping):
        contents = {**cast("Mapping[Any, Any]", value)}
    elif isinstance(value, list | tuple | set | frozenset):
        contents = dict(enumerate(cast("list[Any]", value)))
    else:
        return value
    inside = (*inside, id(cast(object, value)))
    replaced = {
        name: instead if name in hidden else without_hidden_parts(part, instead, inside)
        for name, part in contents.items()
    }
    if all(replaced[name] is part for name, part in contents.items()):
        return cast(Any, value)
    return [*replaced.values()] if isinstance(value, list | tuple | set | frozenset) else replaced


_DEEPEST: Final = 100
"""How many levels of containers are searched for hidden parts."""


def _explain_secret(cls: type[Node], name: str) -> str:
    info = cls.__pydantic_fields__[name]
    if not info.repr:
        return "the field has repr=False"
    if cast(Any, info.annotation) in (str, int, float, bool) and not info.metadata:
        return ""
    return _find_secret(parts(field_schema(cls, name)))


def _hidden_field(cls: type) -> str:
    return next((name for name, field in _declared_settings(cls).items() if not field.repr), "")


def _declared_settings(cls: type) -> dict[str, Any]:
    fields = "__dataclass_fields__", "__pydantic_fields__"
    return {name: field for key in fields for name, field in getattr(cls, key, {}).items()}


def _holds_secret(cls: type) -> bool:
    holds = _TYPES.get(cls)
    if holds is None:
        try:
            # A field that is revealed to models may hold a copy of a secret.
            holds = bool(secret_in(type_schema(cls)) or _revealed_fields(cls))
        except Exception:  # without a schema, the class may hold anything
            holds = True
        _TYPES[cls] = holds
    return holds


_TYPES: Final[WeakKeyDictionary[type, bool]] = WeakKeyDictionary()
_CALLS: Final[WeakKeyDictionary[CallPlan, str]] = WeakKeyDictionary()
_GRAPHS: Final[WeakKeyDictionary[Graph[Any, Any], Secrets]] = WeakKeyDictionary()
