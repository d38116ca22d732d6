"""Nodes as a journal stores them, `{"type": …, "fields": {…}}`, and what their dependencies return.
What is known of a class is worked out once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from pydantic import ValidationError
from pydantic_core import SchemaSerializer, SchemaValidator, from_json, to_json

from bae.calls import MISSING, CallPlan, asked_at
from bae.core_schemas import field_schema, fields_schema, model_config_of, returned_schema
from bae.draft import complete, from_answer, hold, validated
from bae.exceptions import JournalError, describe, faults
from bae.journal.codec import (
    ANYTHING,
    STORED_CONFIG,
    Unkeepable,
    ValueCodec,
    Verdict,
    same,
    value_codec,
)
from bae.node import Node
from bae.plan import plan_of
from bae.secrets import secret_fields

if TYPE_CHECKING:
    from bae.graph import Graph

_CODEC: Final = "__bae_codec__"


def node_codec(cls: type[Node]) -> NodeCodec:
    """How nodes of a class are stored."""
    found = cast("NodeCodec | None", cls.__dict__.get(_CODEC))
    if found is None:
        found = NodeCodec(cls)
        type.__setattr__(cls, _CODEC, found)
    return found


class NodeCodec:
    """How the nodes of one class are stored: `fields` says it of each field, `live` names those
    that no journal can hold, `secret` those that are withheld from it."""

    def __init__(self, cls: type[Node]) -> None:
        self.cls = cls
        self.plan = plan_of(cls, strict=True)
        self._config = model_config_of(cls)
        self.fields = {
            name: ValueCodec(field_schema(cls, name, alone=True), self._config, validated=True)
            for name in self.plan.fields
        }
        self.live = frozenset(n for n, codec in self.fields.items() if codec.verdict == "live")
        self.secret = frozenset(secret_fields(cls))
        self._calls: dict[tuple[str, str], ValueCodec | EndCodec] = {}
        self._writers: dict[tuple[bool, bool], _Writer] = {}
        self._bare: dict[str, ValueCodec] = {}
        self._readers: dict[tuple[frozenset[str], frozenset[str]], SchemaValidator] = {}
        self._joiners: dict[tuple[frozenset[str], frozenset[str]], SchemaValidator] = {}

    def call(self, field: str, route: str = "") -> ValueCodec | EndCodec:
        """How the values of the dependency behind a field are stored, or of a parameter further
        down; of a gate, those of the field."""
        found = self._calls.get((field, route))
        if found is None:
            asked = asked_at(self.plan.fields[field], route)
            if asked is None:
                raise KeyError(f"{field}{route}")
            found = self.fields[field] if asked.call is None else call_codec(asked.call)
            self._calls[field, route] = found
        return found

    def dump(self, node: Node, *, secrets: bool = False, plain: bool = False) -> str:
        """A node as JSON: all that it holds, or only its `plain` fields. Dependencies that no
        journal can hold are left out, and so are secrets unless they are asked for. Raises
        `JournalError` where a plain field has a value that no journal can hold."""
        return self._writer(secrets, plain).dump(node)

    def dump_whole(self, node: Node) -> str:
        """A node as JSON with all its fields, secrets too. Raises `Unkeepable` where one of them
        cannot be stored."""
        if self.live:
            name = min(self.live)
            raise Unkeepable(f"{self.cls.__name__}.{name}: {self.fields[name].why}")
        return self._writer(secrets=True, plain=False).dump(node, whole=True)

    def _writer(self, secrets: bool, plain: bool) -> _Writer:
        found = self._writers.get((secrets, plain))
        if found is None:
            found = self._writers[secrets, plain] = _Writer(self, secrets, plain)
        return found

    def load(
        self,
        said: Mapping[str, Any],
        given: Mapping[str, Any] | None = None,
        partial: bool = False,
    ) -> Node:
        """A node, or the draft of one, from what `dump` has written.

        A plain field that was withheld is taken from `given`, by `Class.field`; with `partial` it
        is left out. Raises `JournalError` where today's class refuses it.
        """
        cls, given = self.cls, given or {}
        data = cast("dict[str, Any]", said["fields"])
        absent = frozenset(cast("list[str]", said.get("withheld", ())))
        again = {n: given[place] for n in absent if (place := f"{cls.__name__}.{n}") in given}
        needed = [f.name for f in self.plan.plain if f.name in absent and f.name not in again]
        if needed and not partial:
            raise secret_needed(f"{cls.__name__}.{name}" for name in needed)
        try:
            again = validated(cls, again) if again else {}
            return self._as_it_was(data, absent, again, said)
        except Exception as error:
            refused = error
        # A "before" validator of the class may know how to read what an older class has written.
        known = frozenset(name for name in data if name in self.fields)
        try:
            return from_answer(cls, {**data, **again}, known)
        except Exception as error:
            better = error if isinstance(error, ValidationError) else refused
            raise unreadable(cls.__name__, better) from better

    def _as_it_was(
        self,
        data: dict[str, Any],
        absent: frozenset[str],
        again: dict[str, Any],
        said: Mapping[str, Any],
    ) -> Node:
        cls = self.cls
        known = {name: value for name, value in data.items() if name in self.fields}
        plain = (field.name for field in self.plan.plain if field.name not in absent)
        names = frozenset(known).union(plain).difference(again)
        bare = names.intersection(said.get("bare", ()))
        held = {**self._read(names, bare, known), **again}
        values = {name: held[name] for name in self.fields if name in held}
        extra = self._extra(data)
        node = cls.__new__(cls)
        hold(
            node, values, extra, {*known, *again, *(extra or ())}.difference(said.get("unset", ()))
        )
        if len(values) == len(self.fields):
            complete(node, {})
            # Model validators have seen these values before, and may have changed them since.
            cast("dict[str, Any]", node.__dict__).update(values)
        return node

    def _read(
        self, names: frozenset[str], bare: frozenset[str], data: dict[str, Any]
    ) -> dict[str, Any]:
        """Some fields from JSON, those in `bare` by their types alone; the defaults of those that
        it does not have."""
        reader = self._readers.get((names, bare))
        if reader is None:
            listed = [name for name in self.fields if name in names]
            # What a validator looked at when the value was made need not be there yet.
            schema = fields_schema(self.cls, listed, alone=True)
            inner = schema["schema"] if schema["type"] == "definitions" else schema
            for name in bare:
                field = inner["fields"][name]
                inner["fields"][name] = {**field, "schema": _by_type_alone(field["schema"])}
            config = cast(Any, {**self._config, **STORED_CONFIG})
            reader = self._readers[names, bare] = SchemaValidator(schema, config)
        values, _, _ = reader.validate_json(to_json(data, inf_nan_mode="constants"), by_name=True)
        return values

    def _extra(self, data: dict[str, Any]) -> dict[str, Any] | None:
        others = {name: value for name, value in data.items() if name not in self.fields}
        match self.cls.model_config.get("extra"):
            case "allow":
                return others
            case "forbid" if others:
                raise ValueError(f"it has {', '.join(others)}, which the class does not take")
            case _:
                return None

    def joined(self, draft: Node, values: Mapping[str, Any], whole: bool) -> Node:
        """A copy of a draft with values of its sources added, made whole or left a draft."""
        node = copy(draft)
        if whole:
            complete(node, values)
        elif values:
            held = {n: v for n, v in draft.__dict__.items() if n in self.fields}
            checked = self._checked(held, values)
            in_order = {name: checked[name] for name in self.fields if name in checked}
            given = draft.__pydantic_fields_set__ | values.keys()
            hold(node, in_order, draft.__pydantic_extra__, given)
        return node

    def _checked(self, held: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of sources as the fields take them, beside those that are valid already."""
        key = frozenset(held), frozenset(values)
        found = self._joiners.get(key)
        if found is None:
            names = [name for name in self.fields if name in held or name in values]
            schema = fields_schema(self.cls, names)
            inner = schema["schema"] if schema["type"] == "definitions" else schema
            for name in held:
                inner["fields"][name] = {**inner["fields"][name], "schema": {"type": "any"}}
            found = self._joiners[key] = SchemaValidator(schema, cast(Any, self._config))
        checked, _, _ = found.validate_python({**held, **values})
        return checked

    def dump_field(self, name: str, value: Any) -> tuple[str, bool]:
        """The value of one field as JSON, and whether it is to be read by its type alone, since
        validators or a serializer of the field would make something else of it."""
        try:
            return self.fields[name].dump(value), False
        except Unkeepable as error:
            refused = error
        bare = self._bare.get(name)
        if bare is None:
            schema = field_schema(self.cls, name, alone=True)
            bare = self._bare[name] = ValueCodec(_by_type_alone(schema), self._config)
        try:
            return bare.dump(value), True
        except Unkeepable:
            raise refused from None

    def read_field(self, name: str, text: str) -> Any:
        """The value of one field from its JSON; a `JournalError` where today's class refuses it."""
        try:
            return self.fields[name].load(from_json(text))
        except Exception as error:
            raise unreadable(f"{self.cls.__name__}.{name}", error) from error

    def dump_answer(self, name: str, value: Any) -> str:
        """The answer at a gate as JSON: as the field has it, or as it was given, since the node is
        still to make its value of it, or at least as the field makes it. A `JournalError` where
        JSON can hold none of these."""
        for codec in (self.fields[name], ANYTHING):
            try:
                return codec.dump(value)
            except Unkeepable:
                continue
        try:
            return self.fields[name].dump(validated(self.cls, {name: value})[name])
        except Unkeepable as error:
            raise self.unfit(name, str(error)) from error

    def read_answer(self, name: str, text: str) -> Any:
        """What `dump_answer` has written, as it was given."""
        return self.load_answer(name, from_json(text))

    def load_answer(self, name: str, data: Any) -> Any:
        """The same from JSON that was parsed. The node validates it once more, so an answer that
        the field would change twice is left as it was given."""
        try:
            value = self.fields[name].load(data)
            return value if same(validated(self.cls, {name: value})[name], value) else data
        except Exception:
            return data

    def unfit(self, name: str, why: str) -> JournalError:
        """What is raised where a field has a value that no journal can hold."""
        return JournalError(
            f"{self.cls.__name__}.{name}: a journal cannot keep the value it has here: {why}",
            code="bae-journal-field",
            fix="give it a value that reads back from JSON as it is, of exactly the type that is "
            "declared, or make it a Dep, which is made again on resume",
        )


class _Writer:
    """How nodes of a class are written, with `secrets` or without, all they hold or only what is
    `plain`: fields of the simplest types with one call of pydantic's serializer, the others one by
    one, each read back."""

    def __init__(self, codec: NodeCodec, secrets: bool, plain: bool) -> None:
        self._codec = codec
        fields = codec.plan.plain if plain else codec.plan.fields.values()
        wanted = [field.name for field in fields if field.name not in codec.live]
        self._withheld = [] if secrets else [n for n in wanted if n in codec.secret]
        self._stored = frozenset(wanted).difference(self._withheld)
        sure = [n for n in wanted if n in self._stored and codec.fields[n].sure]
        self._tried = [n for n in wanted if n in self._stored and n not in sure]
        self._serializer = _some_fields(codec.cls, sure)
        self._head = f'{{"type":{quoted(codec.cls.__name__)},"fields":'
        self._keys = {name: f"{quoted(name)}:" for name in wanted}

    def dump(self, node: Node, whole: bool = False) -> str:
        """The node as JSON. With `whole`, `Unkeepable` is raised where a source would be left
        out."""
        held = node.__dict__
        tried = self._tried
        try:
            text = self._serializer.to_json(held, by_alias=False, warnings="error")
            fields = text.decode()
        except Exception:  # one of the fields: which one, and can it be left out?
            fields, tried = "{}", [name for name in held if name in self._stored]
        bare: list[str] = []
        if tried or node.__pydantic_extra__:
            fields = self._with_more(fields, node, tried, bare, whole)
        if not self._withheld and not bare and node.__pydantic_fields_set__ >= held.keys():
            return f"{self._head}{fields}}}"
        return f"{self._head}{fields}{self._tail(node, bare)}"

    def _with_more(
        self, fields: str, node: Node, tried: list[str], bare: list[str], whole: bool
    ) -> str:
        parts = [fields[1:-1]] if len(fields) > 2 else []
        for name in tried:
            if name in node.__dict__:
                parts.append(self._field(name, node.__dict__[name], bare, whole))
        for name, value in (node.__pydantic_extra__ or {}).items():
            try:
                parts.append(f"{quoted(name)}:{ANYTHING.dump(value)}")
            except Unkeepable as error:
                why = "it is no declared field, and not made of plain values"
                raise self._codec.unfit(name, why) from error
        return f"{{{','.join(filter(None, parts))}}}"

    def _field(self, name: str, value: Any, bare: list[str], whole: bool) -> str:
        codec = self._codec
        try:
            text, is_bare = codec.dump_field(name, value)
            if is_bare:
                bare.append(name)
            return f"{self._keys[name]}{text}"
        except Unkeepable as error:
            if codec.plan.fields[name].kind in ("plain", "gate"):
                raise codec.unfit(name, str(error)) from error
            if whole:
                raise
            return ""  # it is made again, or found again

    def _tail(self, node: Node, bare: list[str]) -> str:
        """The names of fields that are withheld, were not given, or are read by their types."""
        held, given = node.__dict__, node.__pydantic_fields_set__
        listed = {
            "withheld": [name for name in self._withheld if name in held],
            "unset": [name for name in held if name in self._stored and name not in given],
            "bare": bare,
        }
        said = [f',"{key}":{quoted(names)}' for key, names in listed.items() if names]
        return f"{''.join(said)}}}"


def _some_fields(cls: type[Node], names: list[str]) -> SchemaSerializer:
    """Writes some fields of a class, those that a dict has of them."""
    schema = fields_schema(cls, names)
    inner = schema["schema"] if schema["type"] == "definitions" else schema
    fields = {
        name: {"type": "typed-dict-field", "schema": field["schema"], "required": False}
        for name, field in inner["fields"].items()
    }
    shape: Any = {"type": "typed-dict", "fields": fields}
    if inner is not schema:
        shape = {**schema, "schema": shape}
    return SchemaSerializer(shape, cast(Any, {**model_config_of(cls), **STORED_CONFIG}))


def _by_type_alone(schema: Any) -> Any:
    """The core schema of a field without its validators and its serializer."""
    if schema["type"] in ("function-before", "function-after", "function-wrap"):
        return _by_type_alone(schema["schema"])
    found = {key: each for key, each in schema.items() if key != "serialization"}
    if schema["type"] in ("default", "nullable", "definitions"):
        found["schema"] = _by_type_alone(schema["schema"])
    return found


class EndCodec:
    """How the nodes that a graph inside a run ends at are stored: as any node, where all of its
    fields can be."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self._ends = {cls.__name__: cls for cls in graph.terminal_nodes}
        self.verdict: Verdict = "keep"
        self.why = ""
        for cls in self._ends.values():
            codec = node_codec(cls)
            for name in codec.live:
                self.verdict = "live"
                self.why = f"{cls.__name__}.{name}: {codec.fields[name].why}"
            if codec.secret and self.verdict == "keep":
                self.verdict, self.why = "secret", f"{cls.__name__}.{min(codec.secret)} is one"

    def dump(self, value: Node) -> str:
        """The node as JSON. Raises `Unkeepable` where it is none that the graph ends at."""
        cls = type(value)
        if self._ends.get(cls.__name__) is not cls:
            raise Unkeepable(f"the graph does not end at {cls.__name__}")
        return node_codec(cls).dump_whole(value)

    def load(self, data: Any) -> Node:
        """The node from its JSON."""
        return node_codec(self._ends[data["type"]]).load(data)


def call_codec(call: CallPlan) -> ValueCodec | EndCodec:
    """How what a dependency returns is stored: by its declared return type, or, for a graph, as the
    node it ends at."""
    if call.opens:
        why = f"{call.name} opens it, and it is closed after the run"
        return ValueCodec({"type": "any"}, live=why)
    if call.graph is not None:
        return EndCodec(call.graph)
    if call.returns is MISSING:
        return ANYTHING
    try:
        return value_codec(call.returns, partial(returned_schema, call))
    except Exception as error:  # whatever a type does when it is asked for its schema
        why = f"what {call.name} returns has no schema: {describe(error)}"
        return ValueCodec({"type": "any"}, live=why)


def unreadable(place: str, error: BaseException) -> JournalError:
    """What is raised where today's classes refuse what was recorded."""
    said = "; ".join(faults(error)) if isinstance(error, ValidationError) else describe(error)
    return JournalError(
        f"{place} is recorded with what its class refuses today: {said}",
        code="bae-journal-unreadable",
        cause=error,
        fix="continue with the classes that the run was started with, or let today's read what "
        "they wrote: a default for a new field, a validator for an old form",
    )


def secret_needed(names: Iterable[str]) -> JournalError:
    """What is raised where plain fields that were withheld are not given again."""
    listed = list(names)
    example = ", ".join(f'"{name}": …' for name in listed)
    return JournalError(
        f"the run needs {', '.join(listed)}, which the journal does not have: it was withheld as a "
        "secret, or redacted",
        places=listed,
        code="bae-journal-secret",
        fix=f"give it again: given={{{example}}}; a journal with secrets=True keeps the secrets of "
        "new runs",
    )


def is_node(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a stored value is a node."""
    if not isinstance(value, dict):
        return False
    held = cast("dict[str, Any]", value)
    return isinstance(held.get("type"), str) and isinstance(held.get("fields"), dict)


def quoted(value: Any) -> str:
    """A plain value as JSON."""
    return to_json(value, inf_nan_mode="constants").decode()
