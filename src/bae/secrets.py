"""What must not be shown: the fields, dependencies and LM calls of a graph that hold a secret, or
may quote one. Prompts, journals, telemetry, the terminal, evaluations and training data all ask
this module.

A secret is a `SecretStr`, `SecretBytes` or `Secret[…]`, however deep inside a type, or a field with
`repr=False` of a node, model or dataclass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from bae.calls import MISSING, CallPlan, call_at, every_call, recalls_of, siblings_of
from bae.core_schemas import CoreSchemaDict, field_schema, parts, returned_schema, type_schema
from bae.graph_plan import plan_of_graph
from bae.plan import plan_of
from bae.records import Asker

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node
    from bae.plan import FieldPlan

MASK: Final = "**********"
"""The mask that a model sees in place of a hidden value, as pydantic writes a `SecretStr`."""

Copies = Mapping["type[Node]", frozenset[str]]
"""The fields of each class that may hold a copy of a secret."""

_FIELDS: Final = "__bae_secret_fields__"
_VEIL: Final = "__bae_veil__"
_NO_FIELDS: Final[frozenset[str]] = frozenset()


def secret_fields(cls: type[Node]) -> Mapping[str, str]:
    """The fields of a node class that hold a secret, each with the reason in words."""
    fields = cast("Mapping[str, str] | None", cls.__dict__.get(_FIELDS))
    if fields is None:
        if not cls.__pydantic_complete__:
            plan_of(cls, strict=True)
        whys = {name: _why_secret(cls, name) for name in cls.__pydantic_fields__}
        fields = {name: why for name, why in whys.items() if why}
        type.__setattr__(cls, _FIELDS, fields)
    return fields


class Veil(NamedTuple):
    """How a model sees the fields of a class: a mask in place of the `masked` fields, and the
    secrets in the `revealed` fields. `looks` means that the value of a field must be examined, not
    only its JSON: an object of a `RootModel` may be written as text."""

    masked: frozenset[str]
    revealed: frozenset[str]
    looks: bool


def veil_of(cls: type, copies: Copies | None = None) -> Veil | None:
    """How a model sees the fields of a node, model or dataclass, with `copies` of secrets in a
    graph; None if nothing is hidden. Computed once per class."""
    try:
        veil: Veil | None = cls.__dict__[_VEIL]
    except KeyError:
        veil = _make_veil(cls)
        type.__setattr__(cls, _VEIL, veil)
    if copies is None or cls not in copies:
        return veil
    own = _PLAIN if veil is None else veil
    return own._replace(masked=own.masked | (copies[cls] - own.revealed))


def _make_veil(cls: type) -> Veil | None:
    hidden, revealed = hidden_fields(cls), _revealed_fields(cls)
    try:
        schema: Any = getattr(cast(Any, cls), "__pydantic_core_schema__", None)
        looks = any(
            part["type"] in _ANYTHING or (part.get("root_model") and hidden_fields(part["cls"]))
            for part in parts(schema if isinstance(schema, dict) else type_schema(cls))
        )
    except Exception:  # its contents are unknown
        looks = True
    return Veil(hidden - revealed, revealed, looks) if hidden or revealed or looks else None


def _revealed_fields(cls: type) -> frozenset[str]:
    from bae.node import Node

    return plan_of(cls, strict=True).revealed if issubclass(cls, Node) else _NO_FIELDS


def shown_values(node: Node, copies: Copies | None = None) -> dict[str, Any]:
    """The fields of a node by name, with a mask in place of the hidden fields: for an LM that
    writes its own prompts."""
    veil = veil_of(type(node), copies)
    hidden = () if veil is None else veil.masked
    return {n: MASK if n in hidden and value is not None else value for n, value in node}


def hidden_fields(cls: type) -> frozenset[str]:
    """The fields of a model or dataclass with `repr=False`, including computed fields."""
    declared: dict[str, Any] = {
        **_declared_settings(cls),
        **getattr(cls, "__pydantic_computed_fields__", {}),
    }
    return frozenset(name for name, field in declared.items() if not field.repr)


def hidden_copies(graph: Graph[Any, Any]) -> dict[type[Node], frozenset[str]]:
    """The fields of a graph, and of the graphs inside it, that are not hidden themselves, but may
    get a copy of a hidden value from bae."""
    plans = {cls: plan for each in graph.graphs for cls, plan in plan_of_graph(each).plans.items()}
    if all(field.info.repr for plan in plans.values() for field in plan.fields.values()):
        return {}
    secrets = Secrets.of(graph)
    copies = {cls: secrets.fields(cls).difference(secret_fields(cls)) for cls in plans}
    return {cls: names for cls, names in copies.items() if names}


def secret_in(schema: Any) -> str:
    """The secret in a core schema, in words; empty if there is none."""
    return _secret_among(parts(schema))


def _secret_among(schemas: Iterable[CoreSchemaDict]) -> str:
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
    """Whether this is the schema of one of pydantic's secrets, which are written as stars."""
    serialization = cast("CoreSchemaDict | None", schema.get("serialization"))
    function = None if serialization is None else serialization.get("function")
    name = getattr(function, "__name__", "")
    return "secret" in name and getattr(function, "__module__", "") == "pydantic.types"


def secret_call(call: CallPlan) -> str:
    """Why the result of a dependency is a secret; empty if it is not."""
    if call.graph is not None:
        for cls in call.graph.terminal_nodes:
            for name in secret_fields(cls):
                return f"{cls.__name__}.{name} is one"
        return ""
    reason = _CALLS.get(call)
    if reason is None:
        try:
            reason = "" if call.declared is MISSING else secret_in(returned_schema(call))
        except Exception:  # a type without a schema, whose values are not stored or shown as data
            reason = ""
        _CALLS[call] = reason
    return reason


def secret_behind(cls: type[Node], field: str) -> bool:
    """Whether the dependency behind a field, or a dependency that it takes as a parameter, returns
    a secret."""
    return any(map(secret_call, every_call(plan_of(cls).fields[field].call)))


def is_near_secret(cls: type[Node]) -> bool:
    """Whether a node of this class holds a secret, or a secret is behind its fields: in a parameter
    of a function, or in a graph."""
    return not may_show((cls,)) or any(
        not may_show((graph,)) or any(secret_behind(graph, f.name) for f in plan_of(graph).called)
        for graph in _with_graphs(cls)
    )


def _with_graphs(cls: type[Node]) -> Iterator[type[Node]]:
    """A class, and the classes of the graphs behind its fields."""
    yield cls
    for field in plan_of(cls, strict=True).called:
        for call in every_call(field.call):
            if call.graph is not None:
                for graph in call.graph.graphs:
                    yield from graph.nodes


def may_show(classes: Iterable[type], *, following: bool = False) -> bool:
    """Whether no node of these classes holds a secret; with `following`, nor any node that their
    bodies may return next."""
    for cls in [*classes]:
        if cls is not type(None) and _holds_secret(cls):
            return False
        if following and any(_holds_secret(each) for each in plan_of(cast(Any, cls)).offered):
            return False
    return True


_ANYTHING: Final = ("any", "is-instance", "function-plain")
"""Core schemas whose values are serialized by their own type."""
_PLAIN: Final = Veil(_NO_FIELDS, _NO_FIELDS, False)


class Secrets:
    """The secrets among node classes that run together."""

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
        """Whether there is a secret at all."""
        self._asks: dict[Asker, bool] = {}
        self._wider: WeakKeyDictionary[type[Node], Secrets] = WeakKeyDictionary()
        self._ends: dict[CallPlan, bool] = {}
        self._fields: dict[type[Node], frozenset[str]] = {}

    @classmethod
    def of(cls, graph: Graph[Any, Any]) -> Secrets:
        """The secrets in a graph, and in the graphs inside it."""
        secrets = _GRAPHS.get(graph)
        if secrets is None:
            graphs = graph.graphs
            secrets = cls(dict.fromkeys(node for graph in graphs for node in graph.nodes))
            settings = [g.context for g in graphs] + [p.shows for p in secrets._plans.values()]
            # If a question may show any node, any secret counts.
            if all(context in (None, "previous") for context in settings):
                for each in graphs:
                    secrets._note_asks(each)
            _GRAPHS[graph] = secrets
        return secrets

    def including(self, cls: type[Node]) -> Secrets:
        """The secrets with one more class, which is outside the graph: only bodies and functions
        ask about it."""
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
        secret = not classes.isdisjoint(self._holders)
        self._asks[asker] = self._asks.get(asker, False) or secret

    def fields(self, cls: type[Node]) -> frozenset[str]:
        """The fields of a class that must not be shown. Such a field holds a secret, shares a
        dependency with a field that does, may recall a secret, or gets a secret where a graph
        starts."""
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
        """The fields at the start of graphs that a `Dep` binds a secret to, or a `Map` an item."""
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
                    names += [name for name, each in recalls_of(field) if self.recalls(each)]
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
        """Whether the value of the dependency behind a field is a secret, or is in a secret field,
        here or elsewhere. `route` leads to a parameter further down, such as `(place)(client)`."""
        if not self.any and cls in self._plans:
            return False
        if not route and field in secret_fields(cls):
            return True
        call = call_at(plan_of(cls).fields[field], route)
        return self._is_secret(call) or self._ends_with_copy(call)

    def _ends_with_copy(self, call: CallPlan | None) -> bool:
        """Whether a graph may end at a node that holds a copy of a secret."""
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
        """Whether the questions of an asker to an LM, or the answers, may contain a secret. The
        questions of bodies and functions are not known, so for them any secret of the graph
        counts."""
        return self._asks.get(asker, self.any)

    def field_named(self, complaint: str) -> str:
        """The field that a complaint about an answer begins with. The rest is left out, since it
        may quote a value."""
        name = complaint.partition(":")[0].partition(".")[0]
        return name if any(name in plan.fields for plan in self._plans.values()) else "withheld"

    def recalls(self, field: FieldPlan) -> bool:
        """Whether a field without a secret of its own may find its value in a secret field."""
        return any(
            not names.isdisjoint(name for name, _ in recall.holders_in(cls))
            for way, _, recall in field.recalls()
            for cls in self._secret
            if not way and (names := self._hidden_fields(cls))
        )


def without_hidden_parts(value: Any, instead: Any, inside: tuple[int, ...] = ()) -> Any:
    """A value as dicts and lists, with `instead` in place of every part with `repr=False`. Returns
    the value itself if it has no such part."""
    from pydantic import BaseModel

    if id(value) in inside or len(inside) > _DEEPEST:
        return "…"
    hidden: set[Any] = set()
    held: dict[Any, Any]
    if isinstance(value, BaseModel):
        held = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        hidden = {n for n, field in type(value).__pydantic_fields__.items() if not field.repr}
    elif is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name, None) for field in fields(value)}
        hidden = {field.name for field in fields(value) if not field.repr}
    elif isinstance(value, Mapping):
        held = {**cast("Mapping[Any, Any]", value)}
    elif isinstance(value, list | tuple | set | frozenset):
        held = dict(enumerate(cast("list[Any]", value)))
    else:
        return value
    inside = (*inside, id(cast(object, value)))
    shown = {
        name: instead if name in hidden else without_hidden_parts(part, instead, inside)
        for name, part in held.items()
    }
    if all(shown[name] is part for name, part in held.items()):
        return cast(Any, value)
    return [*shown.values()] if isinstance(value, list | tuple | set | frozenset) else shown


_DEEPEST: Final = 100


def _why_secret(cls: type[Node], name: str) -> str:
    info = cls.__pydantic_fields__[name]
    if not info.repr:
        return "the field has repr=False"
    if cast(Any, info.annotation) in (str, int, float, bool) and not info.metadata:
        return ""
    return _secret_among(parts(field_schema(cls, name)))


def _hidden_field(cls: type) -> str:
    return next((name for name, field in _declared_settings(cls).items() if not field.repr), "")


def _declared_settings(cls: type) -> dict[str, Any]:
    fields = "__dataclass_fields__", "__pydantic_fields__"
    return {name: each for key in fields for name, each in getattr(cls, key, {}).items()}


def _holds_secret(cls: type) -> bool:
    holds = _TYPES.get(cls)
    if holds is None:
        try:
            # The fields that a class shows to models may hold a copy of a secret.
            holds = bool(secret_in(type_schema(cls)) or _revealed_fields(cls))
        except Exception:  # its contents are unknown
            holds = True
        _TYPES[cls] = holds
    return holds


_TYPES: Final[WeakKeyDictionary[type, bool]] = WeakKeyDictionary()
_CALLS: Final[WeakKeyDictionary[CallPlan, str]] = WeakKeyDictionary()
_GRAPHS: Final[WeakKeyDictionary[Graph[Any, Any], Secrets]] = WeakKeyDictionary()
