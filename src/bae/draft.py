"""Nodes that are not whole yet. A written body builds the next node from the fields it knows; the
fields that have a source are missing until the run resolves them. Such a draft has its given
fields validated and the others absent; `complete` validates the whole, model validators included,
on the same object. `node.py` builds drafts, `runner.py` completes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic_core import SchemaValidator

from bae.assignable import union_members

if TYPE_CHECKING:
    from bae.node import Node

_VALIDATORS = "__bae_validators__"

_Kind = Literal["draft", "some", "rest"]
"""What a validator is for: a node whose fields `names` may be absent, the fields `names` alone, or
a node whose fields `names` are there and valid."""

_put = object.__setattr__
_private: ContextVar[dict[str, Any] | None] = ContextVar("bae_private", default=None)
"""The private attributes of the draft that is being made whole."""


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


_ABSENT = _Absent()


def start_draft(node: Node, data: dict[str, Any], sourced: frozenset[str]) -> bool:
    """Validate what was given and leave the missing sourced fields out.

    Answers False when nothing was missing after all (aliases), so that the caller validates the
    node as any other model.
    """
    # A copy, since validators may take their input apart.
    absent = frozenset(name for name in sourced if not _is_given(node, name, data))
    if not absent:
        return False
    values, extra, given = _validator(type(node), "draft", absent).validate_python(data.copy())
    missing = [name for name in absent if values[name] is _ABSENT]
    if not missing:
        return False
    for name in missing:
        del values[name]
    if len(missing) < len(absent):
        values = {name: values[name] for name in node.__pydantic_fields__ if name in values}
    _put(node, "__dict__", values)
    _put(node, "__pydantic_extra__", extra)
    _put(node, "__pydantic_fields_set__", given.difference(missing))
    _put(node, "__pydantic_private__", None)
    if node.__private_attributes__:
        # Only pydantic itself knows how its versions make these; loaded by those who have some.
        from pydantic._internal._model_construction import init_private_attributes

        init_private_attributes(node, None)
    return True


def _is_given(node: Node, name: str, data: dict[str, Any]) -> bool:
    if name in data:
        return True
    alias = type(node).__pydantic_fields__[name].validation_alias
    return isinstance(alias, str) and alias in data


def complete(node: Node, values: Mapping[str, Any]) -> None:
    """Add the resolved values to a draft and make it whole, in place.

    What the draft holds is validated already and stays as it is; the resolved values and the node
    as a whole are validated now.
    """
    cls = type(node)
    held = node.__dict__.keys() & cls.__pydantic_fields__.keys()  # no cached properties
    given = node.__pydantic_fields_set__ | values.keys()
    data = {name: node.__dict__[name] for name in held}
    data.update(node.__pydantic_extra__ or (), **values)
    validator = _validator(cls, "rest", frozenset(held))
    token = _private.set(node.__pydantic_private__)
    try:
        validator.validate_python(data, self_instance=node, by_alias=False, by_name=True)
    finally:
        _private.reset(token)
    _put(node, "__pydantic_fields_set__", given)


def validated(cls: type[Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """Some values of a node as its fields take them, without the rest of the node.

    A field whose validator may look at other fields is left to the whole node. Raises pydantic's
    ValidationError, and whatever else a validator raises.
    """
    validator = _validator(cls, "some", frozenset(values))
    checked, _, _ = validator.validate_python(dict(values), by_alias=False, by_name=True)
    return {name: checked[name] for name in values}


def field_schema(cls: type[Node], name: str) -> Any:
    """The core schema of one field alone, with the definitions it refers to."""
    schema = cast(dict[str, Any], cls.__pydantic_core_schema__)
    definitions = schema.get("definitions") if schema["type"] == "definitions" else None
    while schema["type"] != "model-fields":
        schema = _inside(schema)
    field = schema["fields"][name]["schema"]
    if not definitions:
        return field
    return {"type": "definitions", "schema": field, "definitions": definitions}


def converts(cls: type[Node], name: str) -> bool:
    """Whether a field makes its value from something else: by a validator that comes before its
    type, or by a type of pydantic's own, such as `AwareDatetime` or `Json`."""
    members = union_members(cls.__pydantic_fields__[name].annotation)
    if any(getattr(member, "__module__", "").startswith("pydantic") for member in members):
        return True
    return any(layer["type"] in _CONVERTING for layer in _layers(field_schema(cls, name)))


def _layers(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema of a field from the outside in, as far as it is one around another."""
    current: Any = schema
    while isinstance(current, dict) and "type" in current:
        yield cast(dict[str, Any], current)
        current = cast(Any, current).get("schema")


_CONVERTING = ("function-before", "function-wrap", "function-plain", "json")


def _validator(cls: type[Node], kind: _Kind, names: frozenset[str]) -> SchemaValidator:
    made = cast(dict[Any, SchemaValidator] | None, cls.__dict__.get(_VALIDATORS))
    if made is None:
        made = {}
        setattr(cls, _VALIDATORS, made)
    found = made.get((kind, names))
    if found is None:
        schema = cast(dict[str, Any], cls.__pydantic_core_schema__)
        config = _model_config(schema)
        if kind != "draft":
            config["loc_by_alias"] = False  # errors of the run's own values name the field
        shape = _reshaped(schema, kind, names, config)
        found = made[kind, names] = SchemaValidator(cast(Any, shape), cast(Any, config))
    return found


def _model_config(schema: dict[str, Any]) -> dict[str, Any]:
    while schema["type"] != "model":
        schema = _inside(schema)
    return dict(schema.get("config") or {})


def _reshaped(
    schema: dict[str, Any], kind: _Kind, names: frozenset[str], config: dict[str, Any]
) -> dict[str, Any]:
    """The schema of a node class with other fields, and only some of the layers around them: what
    runs before the model belongs to the draft, which sees the input; the model and what runs
    after it to the rest."""
    layer = schema["type"]
    if layer == "model-fields":
        return {**schema, "fields": _fields(schema["fields"], kind, names)}
    inner = _reshaped(_inside(schema), kind, names, config)
    mine = {"draft": layer == "function-before", "some": False, "rest": layer != "function-before"}
    if layer != "definitions" and not mine[kind]:
        return inner
    reshaped = {**{k: v for k, v in schema.items() if k != "ref"}, "schema": inner}
    if layer != "model":
        return reshaped
    reshaped |= {"cls": _Whole, "config": config}
    if not schema["cls"].__private_attributes__:
        return reshaped
    del reshaped["post_init"]
    after = {"type": "no-info", "function": _post_init}
    return {"type": "function-after", "function": after, "schema": reshaped}


def _fields(fields: dict[str, Any], kind: _Kind, names: frozenset[str]) -> dict[str, Any]:
    match kind:
        case "draft":
            # What may be absent goes last: a validator of another field does not see it.
            absent = {n: _may_be_absent(f) for n, f in fields.items() if n in names}
            return {n: f for n, f in fields.items() if n not in names} | absent
        case "some":
            chosen = {n: f for n, f in fields.items() if n in names}
            held = {"type": "any"}
            return {n: {**f, "schema": held} if _looks_around(f) else f for n, f in chosen.items()}
        case "rest":
            held = {"type": "any"}
            return {n: {**f, "schema": held} if n in names else f for n, f in fields.items()}


def _looks_around(field: dict[str, Any]) -> bool:
    """Whether a validator of the field may look at other fields, and so needs the whole node."""
    functions = (layer.get("function") for layer in _layers(field["schema"]))
    return any(isinstance(f, dict) and cast(Any, f).get("type") == "with-info" for f in functions)


class _Whole:
    """Stands for the node class, whose own validator pydantic would take for its schema."""


def _post_init(node: Node) -> Node:
    # Pydantic makes private attributes anew; those of the draft may have been set or changed.
    _put(node, "__pydantic_private__", _private.get())
    node.model_post_init(None)
    return node


def _inside(schema: dict[str, Any]) -> dict[str, Any]:
    inner = cast(dict[str, Any], schema["schema"])
    if inner["type"] == "definition-ref":  # a model that refers to itself
        wanted = inner["schema_ref"]
        return next(d for d in schema["definitions"] if d.get("ref") == wanted)
    return inner


def _may_be_absent(field: dict[str, Any]) -> dict[str, Any]:
    inner = field["schema"]
    if inner["type"] == "default":
        inner = inner["schema"]
    absent = {"type": "default", "schema": inner, "default": _ABSENT, "validate_default": False}
    return {**field, "schema": absent}
