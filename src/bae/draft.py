"""Drafts: nodes that are not complete yet. A written body builds the next node without the fields
that have a source, and the run resolves these fields later. A draft has valid values for the fields
that the body gave. `complete` adds the other values to the same object, and validates the complete
node with its model validators."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_core import InitErrorDetails, PydanticCustomError, SchemaValidator, ValidationError

from bae.core_schemas import ABSENT, ValidatorKind, model_config_of, reshape_schema
from bae.exceptions import faults, text_of

if TYPE_CHECKING:
    from bae.node import Node

N = TypeVar("N", bound="Node")

_VALIDATORS = "__bae_validators__"

_NOTHING: frozenset[str] = frozenset()

_put = object.__setattr__
_private: ContextVar[dict[str, Any] | None] = ContextVar("bae_private", default=None)
"""The private attributes of the draft that is being completed."""


def start_draft(node: Node, data: dict[str, Any], sourced: frozenset[str]) -> bool:
    """Make a draft of a new node: validate the values in `data`, and leave out the fields of
    `sourced` that have no value.

    Return whether `node` is a draft now. If `data` has a value for every field, perhaps by alias,
    return False. The caller must then validate the node like any other model.
    """
    absent = frozenset(name for name in sourced if not _is_given(node, name, data))
    return bool(absent) and _start(node, data, absent)


def _start(
    node: Node,
    data: dict[str, Any],
    absent: frozenset[str],
    json_fields: frozenset[str] | None = None,
) -> bool:
    validator = _validator(type(node), "draft", absent, json_fields)
    # A copy, since validators may modify their input.
    values, extra, fields_set = validator.validate_python(data.copy())
    missing = [name for name in absent if values[name] is ABSENT]
    if not missing:
        return False
    for name in missing:
        del values[name]
    if len(missing) < len(absent):
        values = {name: values[name] for name in node.__pydantic_fields__ if name in values}
    hold(node, values, extra, fields_set.difference(missing))
    return True


def hold(node: Node, values: dict[str, Any], extra: dict[str, Any] | None, given: set[str]) -> None:
    """Set the values of a new node without validation. The values must be valid."""
    _put(node, "__dict__", values)
    _put(node, "__pydantic_extra__", extra)
    _put(node, "__pydantic_fields_set__", given)
    _put(node, "__pydantic_private__", None)
    if node.__private_attributes__:
        # How private attributes are made depends on pydantic's version, so pydantic makes them. The
        # import is here, because few classes need it.
        from pydantic._internal._model_construction import init_private_attributes

        init_private_attributes(node, None)


def empty_draft(cls: type[N]) -> N:
    """Make a node without any values."""
    node = cls.__new__(cls)
    hold(node, {}, None, set())
    return node


def from_answer(cls: type[N], data: dict[str, Any], json_fields: frozenset[str]) -> N:
    """Make a node, or a draft of it, from values by field name. Aliases are not accepted.

    The fields in `json_fields` are read as JSON, because a strict field accepts a text as a date
    only in JSON. Do not use this function for a class with its own constructor.
    """
    node = cls.__new__(cls)
    absent = (cls.__bae_sourced__ or _NOTHING).difference(data)
    if not absent or not _start(node, data, absent, json_fields):
        validator = _validator(cls, "whole", _NOTHING, json_fields)
        validator.validate_python(data.copy(), self_instance=node)
    return node


def from_resolved(cls: type[N], resolved: Mapping[str, Any]) -> N:
    """Make a node that has no field for the LLM to fill, or a draft of the node, from the resolved
    values. If a value is not valid, raise a `BaeError`."""
    from bae.failures import invalid_values_error
    from bae.node import Node
    from bae.plan import plan_of

    try:
        if cls.__init__ is not Node.__init__:
            return cls(**resolved)
        return from_answer(cls, dict(resolved), _NOTHING)
    except Exception as error:
        raise invalid_values_error(plan_of(cls), error) from error


def from_text(cls: type[Node], text: str) -> dict[str, Any]:
    """Return the value of a class's `Text` field for an answer in plain text, as a dict with the
    name of the field. If the field's `parse` raises, raise pydantic's ValidationError: the answer
    is invalid."""
    from bae.plan import plan_of

    field = next(field for field in plan_of(cls).plain if field.fills == "text")
    try:
        return {field.name: field.read_text(text)}
    except Exception as error:
        message = text_of(error).strip()
        if isinstance(error, ValidationError):
            message = "; ".join(faults(error))
        elif not message or not isinstance(error, ValueError):
            message = f"{type(error).__name__}: {message}"
        reason = PydanticCustomError("text_parsing", "{reason}", {"reason": message})
        details: InitErrorDetails = {"type": reason, "loc": (field.name,), "input": text}
        raise ValidationError.from_exception_data(cls.__name__, [details]) from error


def set_resolved_values(node: N, resolved: Mapping[str, Any]) -> N:
    """Put the values that the run resolved into a node that an LLM filled. They replace the LLM's
    values for these fields. Fields whose source is not resolved yet are left out.

    Return the node itself if nothing differs. Raises pydantic's ValidationError, or any other error
    of a validator.
    """
    cls = type(node)
    current, sourced = node.__dict__, cls.__bae_sourced__ or _NOTHING
    early = current.keys() & sourced - resolved.keys()
    if not early and _are_same(current, resolved):
        return node
    values = validate_values(cls, resolved)
    if not early and _are_same(current, values):
        return node
    draft = copy(node)
    replaced = early | resolved.keys()
    remaining = {name: value for name, value in current.items() if name not in replaced}
    fields_set = node.__pydantic_fields_set__ - replaced
    if sourced <= resolved.keys():
        _put(draft, "__dict__", remaining)
        _put(draft, "__pydantic_fields_set__", fields_set)
        complete(draft, resolved)
        return draft
    remaining.update(values)
    _put(draft, "__dict__", {n: remaining[n] for n in cls.__pydantic_fields__ if n in remaining})
    _put(draft, "__pydantic_fields_set__", fields_set | values.keys())
    return draft


def _are_same(current: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(name in current and _is_same(current[name], values[name]) for name in values)


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # the class of the value compares in its own way
        return False


def _is_given(node: Node, name: str, data: dict[str, Any]) -> bool:
    if name in data:
        return True
    alias = type(node).__pydantic_fields__[name].validation_alias
    return isinstance(alias, str) and alias in data


def complete(node: Node, values: Mapping[str, Any]) -> None:
    """Complete a draft in place with the resolved values.

    The draft's own values are valid already and stay unchanged. The resolved values and the
    complete node are validated now.
    """
    cls = type(node)
    present = node.__dict__.keys() & cls.__pydantic_fields__.keys()  # no cached properties
    fields_set = node.__pydantic_fields_set__ | values.keys()
    data = {name: node.__dict__[name] for name in present}
    data.update(node.__pydantic_extra__ or (), **values)
    validator = _validator(cls, "rest", frozenset(present))
    token = _private.set(node.__pydantic_private__)
    try:
        validator.validate_python(data, self_instance=node)
    finally:
        _private.reset(token)
    _put(node, "__pydantic_fields_set__", fields_set)


def validate_values(
    cls: type[Node], values: Mapping[str, Any], json_fields: frozenset[str] | None = None
) -> dict[str, Any]:
    """Validate the values of some fields of a node, and return the valid values. The fields in
    `json_fields` are read as JSON.

    A field whose validator may look at other fields is not validated here, only together with the
    complete node. Raises pydantic's ValidationError, or any other error of a validator.
    """
    validator = _validator(cls, "some", frozenset(values), json_fields)
    checked, _, _ = validator.validate_python(dict(values))
    return {name: checked[name] for name in values}


def _validator(
    cls: type[Node],
    kind: ValidatorKind,
    names: frozenset[str],
    json_fields: frozenset[str] | None = None,
) -> SchemaValidator:
    validators = cast(dict[Any, SchemaValidator] | None, cls.__dict__.get(_VALIDATORS))
    if validators is None:
        validators = {}
        setattr(cls, _VALIDATORS, validators)
    validator = validators.get((kind, names, json_fields))
    if validator is None:
        config = model_config_of(cls)
        schema = reshape_schema(cls, kind, names, json_fields, config, _post_init)
        validator = validators[kind, names, json_fields] = SchemaValidator(
            schema, cast(Any, config)
        )
    return validator


def _post_init(node: Node) -> Node:
    # Pydantic has reset the private attributes. Restore the draft's, which code may have changed.
    _put(node, "__pydantic_private__", _private.get())
    node.model_post_init(None)
    return node
