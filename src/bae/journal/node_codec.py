"""Write nodes in their stored form, `{"type": …, "fields": {…}}`, and the results of their
dependencies. Each class of nodes has one codec, which is computed once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from bae.approvals import dump_answer, load_answer
from bae.calls import MISSING, CallPlan, find_input, name_of
from bae.core_schemas import field_schema, field_schemas, model_config_of, returned_schema
from bae.draft import complete, from_answer, hold, validate_values
from bae.exceptions import JournalError, describe, faults
from bae.file_proof import holds_file
from bae.files import File, collect_files
from bae.journal.codec import (
    ANYTHING,
    SURELY_READ,
    Keeping,
    Unkeepable,
    ValueCodec,
    json_text,
    same,
    value_codec,
)
from bae.journal.shape import Json
from bae.node import Node
from bae.plan import plan_of
from bae.records import LIVE
from bae.secrets import secret_fields

if TYPE_CHECKING:
    from bae.calls import Input
    from bae.graph import Graph
    from bae.markers import OpenGate
    from bae.plan import FieldPlan

_CODEC: Final = "__bae_codec__"


def node_codec(cls: type[Node]) -> NodeCodec:
    """Return the codec of a node class."""
    codec = cast("NodeCodec | None", cls.__dict__.get(_CODEC))
    if codec is None:
        codec = NodeCodec(cls)
        type.__setattr__(cls, _CODEC, codec)
    return codec


class NodeCodec:
    """Writes and reads the nodes of one class."""

    def __init__(self, cls: type[Node]) -> None:
        self.cls = cls
        self.plan = plan_of(cls, strict=True)
        self._config = model_config_of(cls)
        schemas = field_schemas(cls, alone=True)
        self.fields = {
            name: ValueCodec(
                schemas[name], self._config, _find_app_reason(field) if field.is_of_app else ""
            )
            for name, field in self.plan.fields.items()
        }
        """The codec of each field."""
        self.live = frozenset(n for n, codec in self.fields.items() if codec.verdict == "live")
        """The fields that no journal can store."""
        self._names = tuple(self.fields)
        types = [codec.plain for codec in self.fields.values() if codec.verdict == "keep"]
        is_scalar = len(self.plan.plain) == len(self.fields) == len(types) and None not in types
        self.secret = frozenset(secret_fields(cls))
        """The fields that a journal withholds as secrets."""
        self._head = f'{{"type":{json_text(cls.__name__)},"fields":{{'
        self._scalars = tuple(types) if is_scalar and not self.secret else None
        """The types of the fields, if every field is a plain text or number and none is a secret.
        Otherwise None."""
        self._calls: dict[tuple[str, str], ValueCodec | EndCodec] = {}
        self._inputs: dict[tuple[str, str], FieldPlan | Input] = {}
        self._bare: dict[str, ValueCodec] = {}

    def call(self, field: str, route: str = "") -> ValueCodec | EndCodec:
        """Return the codec for the values of a field's dependency. `route` leads to a parameter of
        the dependency, or of another dependency below it, as `(city)(client)`. For a gate, return
        the codec of the field."""
        codec = self._calls.get((field, route))
        if codec is None:
            # Start from the parameter above, if it is cached. Do not walk a long chain each time.
            above, _, last = route.rpartition("(")
            outer = self._inputs.get((field, above)) if above else None
            target = find_input(outer, f"({last}") if outer else None
            target = target or find_input(self.plan.fields[field], route)
            if target is None:
                raise KeyError(f"{field}{route}")
            self._inputs[field, route] = target
            codec = self.fields[field] if target.call is None else call_codec(target.call, target)
            self._calls[field, route] = codec
        return codec

    def dump(
        self,
        node: Node,
        *,
        secrets: bool = False,
        plain: bool = False,
        whole: bool = False,
        copies: Collection[str] = (),
    ) -> str:
        """Return a node as JSON.

        - `secrets`: write secrets. By default, they are left out.
        - `plain`: write only plain fields.
        - `whole`: raise `Unkeepable` if the value of a field with a source cannot be stored. By
          default, such a value is left out.
        - `copies`: fields with copies of secrets. They are left out unless `secrets` is set.

        Raises `JournalError` if a plain field has a value that no journal can store.
        """
        values, set_fields = node.__dict__, node.__pydantic_fields_set__
        if self._scalars is not None and not copies and set_fields.issuperset(self._names):
            text = self._dump_scalars(node)
            if text:
                return text
        withheld: list[str] = []
        unset: list[str] = []
        bare: list[str] = []
        parts: list[str] = []
        for field in self.plan.plain if plain else self.plan.fields.values():
            name = field.name
            if name not in values or name in self.live:
                continue
            if not secrets and (name in self.secret or name in copies):
                withheld.append(name)
                continue
            if name not in set_fields:
                unset.append(name)
            value = values[name]
            if type(value) is str is self.fields[name].plain and value.isascii():  # common case
                parts.append(f'"{name}":{to_json(value).decode()}')
                continue
            try:
                text, is_bare = self.dump_field(name, value)
            except Unkeepable as error:
                if not field.is_remade:
                    raise self.unfit(name, str(error)) from error
                if whole:
                    raise
                continue  # the value is computed or recalled again on resume
            parts.append(f'"{name}":{text}')
            if is_bare:
                bare.append(name)
        for extra in (node.__pydantic_extra__ or {}).items():
            parts.append(self._dump_undeclared(*extra))
        text = f"{self._head}{','.join(parts)}}}"
        for key, names in (("withheld", withheld), ("unset", unset), ("bare", bare)):
            if names:
                text += f',"{key}":{json_text(names)}'
        return f"{text}}}"

    def _dump_scalars(self, node: Node) -> str:
        """Return a node of texts and numbers as JSON, in one step. The result is empty if the node
        has another value, or a value that may not read back unchanged."""
        values = cast(Json, node.__dict__)
        is_typed = self._scalars == tuple(map(type, values.values()))
        if not is_typed or tuple(values) != self._names or node.__pydantic_extra__:
            return ""
        try:
            fields = to_json(values, inf_nan_mode="constants")
        except ValueError:  # half of a surrogate pair
            return ""
        if len(fields) > SURELY_READ and any(
            type(v) is int and abs(v) > _LARGE for v in values.values()
        ):
            return ""
        return f"{self._head}{fields[1:].decode()}}}"

    def _dump_undeclared(self, name: str, value: Any) -> str:
        try:
            return f"{ANYTHING.dump(name)}:{ANYTHING.dump(value)}"
        except Unkeepable as error:
            why = "it is no declared field, and not made of plain values"
            raise self.unfit(name, why) from error

    def load(self, stored: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Node:
        """Return a node from the JSON of `dump`. If fields with a source are missing, return a
        draft: a node without these fields, not yet validated.

        `given` has the values of withheld fields, by `Class.field`. A withheld field without a
        value is left out. Raises `JournalError` if today's class refuses the node.
        """
        cls, data, given = self.cls, cast(Json, stored["fields"]), given or {}
        names = {name: f"{cls.__name__}.{name}" for name in stored.get("withheld", ())}
        given_values = {name: given[place] for name, place in names.items() if place in given}
        try:
            given_values = validate_values(cls, given_values) if given_values else given_values
            return self._load_unchanged(stored, given_values)
        except Exception as error:
            refused = error
        # A "before" validator of the class may know the stored form of an older class.
        stored_fields = frozenset(name for name in data if name in self.fields)
        try:
            turns = {
                n: self.fields[n].load(data[n]) for n in stored_fields if self.fields[n].has_turns
            }
            return from_answer(cls, {**data, **turns, **given_values}, stored_fields)
        except Exception as error:
            clearer = error if isinstance(error, ValidationError) else refused
            raise unreadable(cls.__name__, clearer) from clearer

    def _load_unchanged(self, stored: Mapping[str, Any], again: Mapping[str, Any]) -> Node:
        """Return a node with its values as they were stored. The node's validators cannot change
        these values again."""
        data = cast(Json, stored["fields"])
        values: dict[str, Any] = {}
        for name, field in self.plan.fields.items():
            if name in again:
                values[name] = again[name]
            elif name in data:
                is_bare = name in stored.get("bare", ())
                codec = self._bare_codec(name) if is_bare else self.fields[name]
                values[name] = codec.load(data[name])
            elif field.stored == "node" and name not in stored.get("withheld", ()):
                if field.required:
                    raise KeyError(name)
                info = field.info
                values[name] = info.get_default(call_default_factory=True, validated_data=values)
        extra = self._extra(data)
        given = {*again, *(name for name in data if name in self.fields), *(extra or ())}
        node = self.cls.__new__(self.cls)
        hold(node, values, extra, given.difference(stored.get("unset", ())))
        if len(values) == len(self.fields):
            complete(node, {})
            cast(Json, node.__dict__).update(values)
        return node

    def _extra(self, data: Json) -> Json | None:
        others = {name: value for name, value in data.items() if name not in self.fields}
        rule = self.cls.model_config.get("extra")
        if others and rule == "forbid":
            raise ValueError(f"it has {', '.join(others)}, which the class does not take")
        return others if rule == "allow" else None

    def join_values(self, draft: Node, values: Mapping[str, Any], whole: bool) -> Node:
        """Return a copy of a draft with values of its sources. If `whole`, the copy is completed,
        otherwise it remains a draft."""
        node = copy(draft)
        if whole:
            complete(node, values)
        elif values:
            all_values = {**draft.__dict__, **validate_values(self.cls, values)}
            in_order = {name: all_values[name] for name in self.fields if name in all_values}
            given = draft.__pydantic_fields_set__ | values.keys()
            hold(node, in_order, draft.__pydantic_extra__, given)
        return node

    def dump_field(self, name: str, value: Any) -> tuple[str, bool]:
        """Return the value of a field as JSON, and whether the value must be read without the
        validators and the serializer of the field, because they would change it."""
        try:
            return self.fields[name].dump(value), False
        except Unkeepable as error:
            refused = error
        try:
            return self._bare_codec(name).dump(value), True
        except Unkeepable:
            raise refused from None

    def _bare_codec(self, name: str) -> ValueCodec:
        if name not in self._bare:
            schema = _strip_validators(field_schema(self.cls, name, alone=True))
            self._bare[name] = ValueCodec(schema, self._config)
        return self._bare[name]

    def load_field(self, name: str, data: Any) -> Any:
        """Return the value of a field from parsed JSON. Raises `JournalError` if today's class
        refuses the value."""
        return self._load(self.fields[name], name, data)

    def load_source(self, field: str, parameter: str, data: Any) -> Any:
        """Return the value of a field's source, or of a `parameter` below it, from parsed JSON.
        Raises `JournalError` if today's class refuses the value."""
        if self.plan.fields[field].stored == "answer":
            return self.load_answer(field, data)
        source = self.call(field, parameter)
        if source.verdict == "live":  # even if the journal has a value of an earlier class
            return LIVE
        return self._load(source, f"{field}{parameter}", data)

    def _load(self, codec: ValueCodec | EndCodec, place: str, data: Any) -> Any:
        try:
            return codec.load(data)
        except JournalError:
            raise
        except Exception as error:
            raise unreadable(f"{self.cls.__name__}.{place}", error) from error

    def dump_answer(self, name: str, value: Any) -> str:
        """Return the answer at a gate as JSON.

        The first form that JSON can hold is stored: a value of the field's type, the answer as it
        was given (the node converts it later), or the answer as the field converts it. Raises
        `JournalError` if JSON can hold none of these forms.

        If the field may have files, the answer is converted first if possible, because the files to
        store are in the converted answer.
        """
        if holds_file(self.cls, name):
            converted = validate_values(self.cls, {name: value})[name]
            if same(validate_values(self.cls, {name: converted})[name], converted):
                value = converted
            else:
                to_json(converted, fallback=repr)  # this collects the answer's files
        for codec in (self.fields[name], ANYTHING):
            try:
                return codec.dump(value)
            except Unkeepable:
                continue
        try:
            return self.fields[name].dump(validate_values(self.cls, {name: value})[name])
        except Unkeepable as error:
            raise self.unfit(name, str(error)) from error

    def unstorable(self, node: Node, *, secrets: bool = False) -> dict[str, str]:
        """Return the plain fields of a node that no journal can store unchanged, with the
        reasons."""
        values = node.__dict__
        is_simple = all(
            _is_simple(self.fields[f.name], values.get(f.name)) for f in self.plan.plain
        )
        if is_simple and not node.__pydantic_extra__:
            return {}  # this is certain without encoding the node
        try:
            self.dump(node, secrets=secrets, plain=True)
        except JournalError:
            pass
        else:
            return {}
        reasons: dict[str, str] = {}
        for field in self.plan.plain:
            try:
                self.dump_field(field.name, node.__dict__[field.name])
            except Unkeepable as error:
                reasons[field.name] = str(error)
        return reasons

    def read_answer(self, name: str, text: str) -> Any:
        """Return an answer that `dump_answer` has written."""
        return self.load_answer(name, from_json(text))

    def load_answer(self, name: str, data: Any) -> Any:
        """Return an answer from parsed JSON. The node validates the answer again. If the field
        refuses the answer, or would change it a second time, return the parsed JSON instead."""
        try:
            value = self.fields[name].load(data)
            return value if same(validate_values(self.cls, {name: value})[name], value) else data
        except Exception:  # the node itself reports the errors of its validators
            return data

    def unfit(self, name: str, why: str) -> JournalError:
        """Return the error for a field with a value that no journal can store."""
        return JournalError(
            f"{self.cls.__name__}.{name}: a journal cannot keep the value it has here: {why}",
            code="bae-journal-field",
            fix="give it a value that reads back from JSON as it is, of exactly the type that is "
            "declared, or make it a Dep, which is made again on resume",
        )


def unstorable_fields(node: Node, *, secrets: bool = False) -> Mapping[str, str]:
    """Return the plain fields of a node that no journal can store unchanged, with the reasons."""
    return node_codec(type(node)).unstorable(node, secrets=secrets)


def _is_simple(codec: ValueCodec, value: Any) -> bool:
    """Return whether a value is sure to be stored unchanged."""
    if codec.plain is None or type(value) is not codec.plain:
        return False
    if codec.plain is str:
        return value.isascii()
    return codec.plain is not int or -_LARGE < value < _LARGE


_LARGE: Final = 2**63


def _strip_validators(schema: Any) -> Any:
    """Return the core schema of a field without the field's validators and serializer."""
    if schema["type"] in ("function-before", "function-after", "function-wrap"):
        return _strip_validators(schema["schema"])
    stripped = {key: value for key, value in schema.items() if key != "serialization"}
    if schema["type"] in ("default", "nullable", "definitions"):
        stripped["schema"] = _strip_validators(schema["schema"])
    return stripped


class EndCodec:
    """Writes and reads the nodes at which a subgraph may end. Values are stored if all fields of
    these nodes can be stored."""

    plain = None

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self._ends = {cls.__name__: cls for cls in graph.terminal_nodes}
        self.verdict: Keeping = "keep"
        self.why = ""
        for cls in self._ends.values():
            codec = node_codec(cls)
            for name in codec.live:
                self.verdict = "live"
                self.why = f"{cls.__name__}.{name}: {codec.fields[name].why}"
            if codec.secret and self.verdict == "keep":
                self.verdict, self.why = "secret", f"{cls.__name__}.{min(codec.secret)} is a secret"

    def dump(self, value: Node) -> str:
        """Return the node as JSON. Raises `Unkeepable` if the graph does not end at the node's
        class."""
        cls = type(value)
        if self._ends.get(cls.__name__) is not cls:
            raise Unkeepable(f"the graph does not end at {cls.__name__}")
        return node_codec(cls).dump(value, secrets=True, whole=True)

    def load(self, data: Any) -> Node:
        """Return the node from its JSON."""
        return node_codec(self._ends[data["type"]]).load(data)


def call_codec(call: CallPlan, asked: FieldPlan | Input) -> ValueCodec | EndCodec:
    """Return the codec for the result of a dependency, which follows from the declared return type.
    The result of a subgraph is the node at which the subgraph ends."""
    why = _find_app_reason(asked)
    if not why and call.opens:
        why = f"{call.name} opens it, and it is closed after the run"
    if why:
        return ValueCodec({"type": "any"}, live=why)
    if call.graph is not None:
        return EndCodec(call.graph)
    if call.returns is MISSING:
        return ANYTHING
    return value_codec(call.returns, partial(returned_schema, call))


def _find_app_reason(asked: FieldPlan | Input) -> str:
    """Return why a run cannot store a value that belongs to the app. Empty if the value belongs to
    the run."""
    if not asked.is_of_app:
        return ""
    return f"{name_of(asked.marker.fn)} makes it for all runs of the app"


def unreadable(place: str, error: BaseException) -> JournalError:
    """Return the error for recorded data that today's classes refuse."""
    message = "; ".join(faults(error)) if isinstance(error, ValidationError) else describe(error)
    return JournalError(
        f"today's class refuses the recorded value of {place}: {message}",
        code="bae-journal-unreadable",
        cause=error,
        fix="continue with the classes that the run was started with, or let today's classes read "
        "the old values: give a new field a default, and convert an old form in a validator",
    )


def missing_secrets_error(names: Iterable[str]) -> JournalError:
    """Return the error for plain fields that were withheld and need a value from the caller."""
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


def is_node(value: Any) -> TypeGuard[Json]:
    """Return whether a stored value is a node."""
    data = cast(Json, value) if isinstance(value, dict) else {}
    return isinstance(data.get("type"), str) and isinstance(data.get("fields"), dict)


def dump_gate_answer(gate: OpenGate, value: Any) -> tuple[str, dict[str, bytes]]:
    """Return the answer to a gate as JSON, and the files in the answer by hash."""
    with collect_files() as files:
        if gate.parameter:
            text = dump_answer(gate, value)
        else:
            text = node_codec(gate.node_type).dump_answer(gate.field_name, value)
    return text, {file.hash: file.data for file in files.values() if isinstance(file, File)}


def read_gate_answer(gate: OpenGate, text: str) -> Any:
    """Return a stored answer to a gate. Raises `JournalError` if the answer can no longer be
    read."""
    if not gate.parameter:
        return node_codec(gate.node_type).read_answer(gate.field_name, text)
    try:
        return load_answer(gate, text)
    except ValidationError as error:
        raise unreadable(gate.place, error) from error
