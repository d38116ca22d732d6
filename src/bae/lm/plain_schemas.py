"""JSON schemas in plain words: those that the Claude program and the API behind it both take. The
program drops the whole schema, and says nothing, over a single word that it does not know, a
`format` or a regular expression of Python's; so what is not plain is told in descriptions.
`claude_cli.py` sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, cast

Schema = dict[str, Any]


def plain(schema: Mapping[str, Any]) -> Schema:
    """The schema in words that both drafts of JSON schema have which are in use there, 7 and
    2020-12. It allows what the given one allows, or more; the rest is in the descriptions."""
    made: Schema = {}
    told: list[str] = []
    for word, value in schema.items():
        if word in _MAPS:
            made[word] = {name: _inner(each) for name, each in value.items()}
        elif word in _LISTS and value:
            made[word] = [_inner(each) for each in value]
        elif word in _SCHEMAS and not isinstance(value, list):
            made[word] = _inner(value)
        elif word == "enum" and value and _is_finite(value):
            made[word] = _different(cast(list[Any], value))
        elif word in _PLAIN and _fits(value, _PLAIN[word]):
            made[word] = value
        elif word in _TOLD_OTHERWISE:
            continue
        else:
            told.append(f"{word}: {_said(value)}")
    _add_tuple(schema, made)
    _add_patterns(schema, made)
    if told:
        before = made.get("description")
        made["description"] = " ".join([*([before] if before else []), f"({'; '.join(told)})"])
    return made


def _inner(schema: Any) -> Any:
    return plain(cast(Schema, schema)) if isinstance(schema, dict) else schema


def _add_tuple(schema: Mapping[str, Any], made: Schema) -> None:
    """The drafts have no way in common to say what each place of a list holds: that any place may
    hold any of them is what is left."""
    places: Any = schema.get("prefixItems")
    rest = schema.get("items")
    if isinstance(rest, list):
        places, rest = cast(list[Any], rest), schema.get("additionalItems")
    if not places:
        return
    kinds = [_inner(each) for each in places]
    if isinstance(rest, dict):
        kinds.append(_inner(rest))
    made["items"] = {"anyOf": _different(kinds)}


def _add_patterns(schema: Mapping[str, Any], made: Schema) -> None:
    patterns: Any = schema.get("patternProperties")
    if patterns:
        kinds = [_inner(each) for each in patterns.values()]
        others = made.get("additionalProperties")
        if isinstance(others, dict):
            kinds.append(others)
        made["additionalProperties"] = {"anyOf": _different(kinds)}


def _different(values: list[Any]) -> list[Any]:
    """Each value once, as a list of alternatives must have it."""
    return list({json.dumps(_rounded(value), sort_keys=True): value for value in values}.values())


def _rounded(value: Any) -> Any:
    """1.0 as 1, which it is in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a word has a value of a kind that it may have: in what a model's config adds to its
    schema it can have any."""
    return (not kinds or type(value) in kinds) and _is_finite(value)


def _is_finite(value: Any) -> bool:
    return all(isfinite(number) for number in _floats(value))


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        found = cast(dict[str, Any] | list[Any], value)
        for each in found.values() if isinstance(found, dict) else found:
            yield from _floats(each)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_MAPS = frozenset({"properties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf"})
_SCHEMAS = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not"})
_PLAIN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("const", "default"), ()),
    **dict.fromkeys(("$ref", "title", "description"), (str,)),
    **dict.fromkeys(("required", "examples"), (list,)),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), (bool,)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (int,)),
    **dict.fromkeys(("minProperties", "maxProperties"), (int,)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    "type": (str, list),
}
# Where a schema is from says nothing of its values, and which of the alternatives a value is shows
# in their constants.
_TOLD_OTHERWISE = frozenset({"$schema", "$id", "$anchor", "$comment", "discriminator"})
