"""Reading JSON schemas: what a reference is to, what a definition has inside, what two schemas say
together. `bounds.py` rewrites schemas with it, `outline.py` tells a model of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

Schema = dict[str, Any]


def as_schema(given: Any) -> Schema:
    """A schema as a dict; `true`, which allows everything, as an empty one."""
    return cast(Schema, given) if isinstance(given, dict) else {}


def definitions_of(schema: Mapping[str, Any]) -> dict[str, Schema]:
    """What references can be to, by name: the definitions, and the schema as a whole, which has
    the empty name."""
    found = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    named = {name: as_schema(each) for name, each in found.items()}
    return {**named, "": {k: v for k, v in schema.items() if k not in ("definitions", "$defs")}}


def name_in(reference: str) -> str:
    """The name that a reference is to."""
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~").removeprefix("#")


def reachable(definitions: Mapping[str, Schema]) -> dict[str, set[str]]:
    """For each definition, the names of those that a value of it can have inside."""
    direct = {name: set(referred_to(schema)) for name, schema in definitions.items()}
    found: dict[str, set[str]] = {}
    for name in definitions:
        reached: set[str] = set()
        ahead = list(direct[name])
        while ahead:
            each = ahead.pop()
            if each not in reached:
                reached.add(each)
                ahead += direct.get(each, ())
        found[name] = reached
    return found


def referred_to(schema: Any) -> Iterable[str]:
    """The names that a schema refers to, each as often as it does."""
    if isinstance(schema, dict):
        for key, each in cast(dict[str, Any], schema).items():
            if key == "$ref" and isinstance(each, str):
                yield name_in(each)
            elif key in _MAPS and isinstance(each, dict):  # names in here are no words of a schema
                for inner in cast(dict[str, Any], each).values():
                    yield from referred_to(inner)
            elif key not in _DATA:
                yield from referred_to(each)
    elif isinstance(schema, list):
        for each in cast(list[Any], schema):
            yield from referred_to(each)


def kind_of(schema: Schema) -> str | list[str] | None:
    """The type of a value: what the schema says, or what its other words are about."""
    if "type" in schema:
        return schema["type"]
    for kind, words in _WORDS.items():
        if any(word in schema for word in words):
            return kind
    return None


def tighter(one: Schema, other: Schema) -> Schema:
    """What two schemas say together, as far as one can say it."""
    both = {**one, **other}
    for key, choose in _TIGHTER.items():
        if key in one and key in other:
            both[key] = choose(one[key], other[key])
    if "properties" in one and "properties" in other:
        both["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        both["required"] = list(dict.fromkeys([*one["required"], *other["required"]]))
    return both


def constrains(schema: Schema) -> bool:
    """Whether a schema says more than what its value is for."""
    return any(key in _CONSTRAINING for key in schema)


def _common(one: list[Any], other: list[Any]) -> list[Any]:
    return [each for each in one if each in other]


_DATA: Final = ("const", "enum", "default", "examples")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")
_WORDS: Final = {
    "object": ("properties", "additionalProperties", "patternProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_TIGHTER: Final[dict[str, Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "enum": _common,
}
_CONSTRAINING: Final = {
    *_TIGHTER,
    *(word for words in _WORDS.values() for word in words),
    *("type", "anyOf", "oneOf", "allOf", "required"),
}
