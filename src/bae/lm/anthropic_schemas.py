"""Which schemas Claude can be held to, and the shape in which its channel for structured output
takes them. The channel compiles a schema to a grammar and refuses, or quietly changes, what a
grammar of its kind cannot say; `anthropic_backend.py` asks for those by a tool instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

Schema = dict[str, Any]

MOST_OPTIONAL = 24
"""Properties that may be left out, in one schema."""

MOST_UNIONS = 16
"""Properties with alternatives, in one schema."""


def unfit(schema: Mapping[str, Any]) -> str | None:
    """Why the channel cannot hold an answer to this schema, or None where it can.

    It takes no schema that

    - refers to itself;
    - has an object whose keys are not all named (`dict[str, int]`, `extra="allow"`);
    - has a value of any type, or a tuple;
    - has more than `MOST_OPTIONAL` properties that may be left out, or more than `MOST_UNIONS`
      with alternatives.
    """
    if _is_recursive(schema):
        return "it refers to itself"
    parts = list(_parts(schema))
    if fault := next(filter(None, map(_fault, parts)), None):
        return fault
    optional = unions = 0
    for each in parts:
        properties: Mapping[str, Any] = each.get("properties", {})
        required = set(each.get("required", ()))
        optional += sum(name not in required for name in properties)
        unions += sum("anyOf" in found or "oneOf" in found for found in properties.values())
    if optional > MOST_OPTIONAL:
        return f"{optional} of its properties may be left out, and {MOST_OPTIONAL} is the most"
    if unions > MOST_UNIONS:
        return f"{unions} of its properties have alternatives, and {MOST_UNIONS} is the most"
    return None


def adapted(schema: Mapping[str, Any]) -> Schema:
    """The schema as the channel takes it: limits that a grammar cannot say are told in the
    descriptions. The answer is validated against all of them anyway."""
    from anthropic import transform_schema

    return transform_schema(described(schema))


def described(schema: Mapping[str, Any]) -> Schema:
    """The schema with what it refers to put in where a description stands beside the reference:
    there the SDK drops the description."""
    whole = dict(schema)
    return whole if _is_recursive(schema) else _described(whole, schema.get("$defs", {}))


def untyped(schema: Mapping[str, Any]) -> bool:
    """Whether some value in it may be of any type."""
    return any(_is_untyped(part) for part in _parts(schema))


def _fault(part: Schema) -> str | None:
    kind = part.get("type")
    if not _UNSAID.isdisjoint(part):
        return f"it has {', '.join(sorted(_UNSAID & part.keys()))}"
    if isinstance(kind, list):
        return "it has a value of several types without alternatives"
    if _is_untyped(part):
        return "it has a value of any type"
    named = "properties" in part or part.get("additionalProperties") is False
    if kind == "object" and (part.get("additionalProperties", False) is not False or not named):
        return "it has an object whose keys are not all named"
    if any("$ref" in branch for branch in part.get("allOf", ())):
        return "it has a reference in allOf"
    if not all(value is None or isinstance(value, str | int | float) for value in _choices(part)):
        return "it has a choice among values that are not plain"
    return None


def _is_untyped(part: Schema) -> bool:
    if part.get("type") == "array":
        return "items" not in part and "prefixItems" not in part
    return "type" not in part and _KINDS.isdisjoint(part)


def _choices(part: Schema) -> list[Any]:
    found = list(part.get("enum", ()))
    return [*found, part["const"]] if "const" in part else found


def _described(schema: Any, definitions: Mapping[str, Any]) -> Schema:
    made: Schema = {}
    for key, value in cast(Schema, schema).items():
        if key in _MAPPINGS:
            made[key] = {name: _described(each, definitions) for name, each in value.items()}
        elif key in _LISTS:
            made[key] = [_described(each, definitions) for each in value]
        elif key == "items":
            made[key] = _described(value, definitions)
        elif key != "discriminator":  # which of the alternatives it is shows in their constants
            made[key] = value
    if "$ref" in made and len(made) > 1:
        named = definitions.get(str(made["$ref"]).removeprefix("#/$defs/"))
        if named is not None:
            del made["$ref"]
            made = {**_described(named, definitions), **made}
    return made


def _parts(schema: Any) -> Iterator[Schema]:
    """The schema and every schema in it; examples, defaults and constants are none."""
    part = cast(Schema, schema) if isinstance(schema, dict) else {}  # True stands for anything
    yield part
    for key, value in part.items():
        if key in _MAPPINGS:
            for each in cast(Schema, value).values():
                yield from _parts(each)
        elif key in _LISTS:
            for each in cast(list[Any], value):
                yield from _parts(each)
        elif key == "items" or (key == "additionalProperties" and isinstance(value, dict)):
            yield from _parts(value)


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    whole = {key: value for key, value in schema.items() if key != "$defs"}
    refers = {
        name: {str(part["$ref"]) for part in _parts(found) if "$ref" in part}
        for name, found in {
            "#": whole,
            **{f"#/$defs/{k}": v for k, v in definitions.items()},
        }.items()
    }
    # Take away what refers to nothing that is left; what cannot be taken away goes in circles.
    while leaves := [name for name, to in refers.items() if to.isdisjoint(refers)]:
        for name in leaves:
            del refers[name]
    return bool(refers)


_MAPPINGS = frozenset({"properties", "$defs", "patternProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_KINDS = frozenset({"$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_UNSAID = frozenset({"prefixItems", "patternProperties", "propertyNames", "not", "if", "contains"})
