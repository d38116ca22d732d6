"""Drafts: nodes that are not complete yet. A written body builds the next node from the fields it
knows; the fields with a source are missing until the run resolves them. A draft has its given
fields validated and the others absent. `complete` validates the whole node, model validators
included, on the same object. `node.py` builds drafts, `runner.py` completes them."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_core import InitErrorDetails, PydanticCustomError, SchemaValidator, ValidationError

from bae.core_schemas import ABSENT, ValidatorKind, model_config_of, reshaped_schema
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
    """Validate the given fields and leave the missing sourced fields out.

    Returns False if nothing was missing after all (aliases), so that the caller validates the node
    like any other model.
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
    values, extra, given = validator.validate_python(data.copy())
    missing = [name for name in absent if values[name] is ABSENT]
    if not missing:
        return False
    for name in missing:
        del values[name]
    if len(missing) < len(absent):
        values = {name: values[name] for name in node.__pydantic_fields__ if name in values}
    hold(node, values, extra, given.difference(missing))
    return True


def hold(node: Node, values: dict[str, Any], extra: dict[str, Any] | None, given: set[str]) -> None:
    """Set the values of a new node, which are valid already, and nothing else."""
    _put(node, "__dict__", values)
    _put(node, "__pydantic_extra__", extra)
    _put(node, "__pydantic_fields_set__", given)
    _put(node, "__pydantic_private__", None)
    if node.__private_attributes__:
        # Only pydantic knows how its versions make these; imported only for classes that have some.
        from pydantic._internal._model_construction import init_private_attributes

        init_private_attributes(node, None)


def empty_draft(cls: type[N]) -> N:
    """A node without any values yet."""
    node = cls.__new__(cls)
    hold(node, {}, None, set())
    return node


def from_answer(cls: type[N], data: dict[str, Any], json_fields: frozenset[str]) -> N:
    """A node, or its draft, from values by the names of its fields, never by an alias.

    The fields in `json_fields` are read as JSON: a strict field accepts a text for a date only in
    JSON. Not for a class with its own constructor.
    """
    node = cls.__new__(cls)
    absent = (cls.__bae_sourced__ or _NOTHING).difference(data)
    if not absent or not _start(node, data, absent, json_fields):
        validator = _validator(cls, "whole", _NOTHING, json_fields)
        validator.validate_python(data.copy(), self_instance=node)
    return node


def from_resolved(cls: type[N], resolved: Mapping[str, Any]) -> N:
    """A node, or its draft, in which an LM has nothing to fill."""
    from bae.failures import invalid
    from bae.node import Node
    from bae.plan import plan_of

    try:
        if cls.__init__ is not Node.__init__:
            return cls(**resolved)
        return from_answer(cls, dict(resolved), _NOTHING)
    except Exception as error:
        raise invalid(plan_of(cls), error) from error


def from_text(cls: type[Node], text: str) -> dict[str, Any]:
    """The value of the `Text` field of a class for an answer in plain text, by its name. An error
    of its `parse` becomes pydantic's ValidationError: it is about the answer."""
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


def with_resolved(node: N, resolved: Mapping[str, Any]) -> N:
    """The node that an LM built, with the values that the run resolved for it, which replace the
    LM's own. Fields whose source is still to be resolved are left out.

    Returns the node itself if nothing differs. Raises pydantic's ValidationError, and any other
    error of a validator.
    """
    cls = type(node)
    held, sourced = node.__dict__, cls.__bae_sourced__ or _NOTHING
    early = held.keys() & sourced - resolved.keys()
    if not early and _are_same(held, resolved):
        return node
    values = validate_values(cls, resolved)
    if not early and _are_same(held, values):
        return node
    draft = copy(node)
    replaced = early | resolved.keys()
    kept = {name: value for name, value in held.items() if name not in replaced}
    given = node.__pydantic_fields_set__ - replaced
    if sourced <= resolved.keys():
        _put(draft, "__dict__", kept)
        _put(draft, "__pydantic_fields_set__", given)
        complete(draft, resolved)
        return draft
    kept.update(values)
    _put(draft, "__dict__", {n: kept[n] for n in cls.__pydantic_fields__ if n in kept})
    _put(draft, "__pydantic_fields_set__", given | values.keys())
    return draft


def _are_same(held: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(name in held and _is_same(held[name], values[name]) for name in values)


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # the value has its own comparison
        return False


def _is_given(node: Node, name: str, data: dict[str, Any]) -> bool:
    if name in data:
        return True
    alias = type(node).__pydantic_fields__[name].validation_alias
    return isinstance(alias, str) and alias in data


def complete(node: Node, values: Mapping[str, Any]) -> None:
    """Add the resolved values to a draft and complete it, in place.

    The values of the draft are validated already and stay unchanged. The resolved values, and the
    node as a whole, are validated now.
    """
    cls = type(node)
    held = node.__dict__.keys() & cls.__pydantic_fields__.keys()  # no cached properties
    given = node.__pydantic_fields_set__ | values.keys()
    data = {name: node.__dict__[name] for name in held}
    data.update(node.__pydantic_extra__ or (), **values)
    validator = _validator(cls, "rest", frozenset(held))
    token = _private.set(node.__pydantic_private__)
    try:
        validator.validate_python(data, self_instance=node)
    finally:
        _private.reset(token)
    _put(node, "__pydantic_fields_set__", given)


def validate_values(
    cls: type[Node], values: Mapping[str, Any], json_fields: frozenset[str] | None = None
) -> dict[str, Any]:
    """Some values of a node, validated by its fields, without the rest of the node. The fields in
    `json_fields` are JSON and are read as such.

    A field whose validator may look at other fields is left to the whole node. Raises pydantic's
    ValidationError, and any other error of a validator.
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
    made = cast(dict[Any, SchemaValidator] | None, cls.__dict__.get(_VALIDATORS))
    if made is None:
        made = {}
        setattr(cls, _VALIDATORS, made)
    validator = made.get((kind, names, json_fields))
    if validator is None:
        config = model_config_of(cls)
        schema = reshaped_schema(cls, kind, names, json_fields, config, _post_init)
        validator = made[kind, names, json_fields] = SchemaValidator(schema, cast(Any, config))
    return validator


def _post_init(node: Node) -> Node:
    # Pydantic resets private attributes; those of the draft may have been set or changed.
    _put(node, "__pydantic_private__", _private.get())
    node.model_post_init(None)
    return node
