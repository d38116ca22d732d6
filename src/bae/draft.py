"""Nodes that are not whole yet. A written body builds the next node from the fields it knows; the
fields that have a source are missing until the run resolves them. Such a draft has its given
fields validated and the others absent; `complete` validates the whole, model validators included,
on the same object. `node.py` builds drafts, `runner.py` completes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import SchemaValidator

if TYPE_CHECKING:
    from bae.node import Node

_DRAFT = "__bae_draft_validator__"
_SOME = "__bae_some_validator__"


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


_ABSENT = _Absent()


def start_draft(node: Node, data: dict[str, Any], sourced: frozenset[str]) -> bool:
    """Validate what was given and leave the missing sourced fields out.

    Answers False when nothing was missing after all (aliases), so that the caller validates the
    node as any other model.
    """
    values, extra, given = _draft_validator(type(node), sourced).validate_python(data)
    missing = [name for name in sourced if values.get(name) is _ABSENT]
    if not missing:
        return False
    for name in missing:
        del values[name]
    put = object.__setattr__
    put(node, "__dict__", values)
    put(node, "__pydantic_extra__", extra)
    put(node, "__pydantic_fields_set__", given.difference(missing))
    put(node, "__pydantic_private__", None)
    return True


def complete(node: Node, values: Mapping[str, Any]) -> None:
    """Add the resolved values to a draft and validate it whole, in place."""
    data: dict[str, Any] = {**node.__dict__, **(node.__pydantic_extra__ or {}), **values}
    type(node).__pydantic_validator__.validate_python(
        data, self_instance=node, by_alias=False, by_name=True
    )


def validated(cls: type[Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """Some values of a node as its fields take them, without the rest of the node.

    Raises pydantic's ValidationError.
    """
    found = cls.__dict__.get(_SOME)
    if found is None:
        found = _validator(cls, frozenset(cls.__pydantic_fields__), whole_input=False)
        setattr(cls, _SOME, found)
    checked, _, _ = cast(SchemaValidator, found).validate_python(
        dict(values), by_alias=False, by_name=True
    )
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


def _draft_validator(cls: type[Node], sourced: frozenset[str]) -> SchemaValidator:
    found = cls.__dict__.get(_DRAFT)
    if found is None:
        found = _validator(cls, sourced, whole_input=True)
        setattr(cls, _DRAFT, found)
    return cast(SchemaValidator, found)


def _validator(cls: type[Node], optional: frozenset[str], whole_input: bool) -> SchemaValidator:
    schema = cast(dict[str, Any], cls.__pydantic_core_schema__)
    config = _model_config(schema)
    return SchemaValidator(cast(Any, _fields_alone(schema, optional, whole_input)), config)


def _model_config(schema: dict[str, Any]) -> Any:
    while schema["type"] != "model":
        schema = _inside(schema)
    return schema.get("config")


def _fields_alone(
    schema: dict[str, Any], optional: frozenset[str], whole_input: bool
) -> dict[str, Any]:
    """The schema of the fields, `optional` ones allowed to be absent, without the model around
    them and what runs after it; what runs before it stays where it gets the whole input."""
    kind = schema["type"]
    if kind == "model-fields":
        fields = {
            name: _may_be_absent(field) if name in optional else field
            for name, field in schema["fields"].items()
        }
        return {**schema, "fields": fields}
    inner = _fields_alone(_inside(schema), optional, whole_input)
    if kind == "definitions" or (kind == "function-before" and whole_input):
        return {**{k: v for k, v in schema.items() if k != "ref"}, "schema": inner}
    return inner


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
    return {**field, "schema": {"type": "default", "schema": inner, "default": _ABSENT}}
