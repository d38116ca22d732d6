"""JSON schemas for Claude's structured output, OpenAI's strict mode and the program `claude`. If a
provider cannot enforce a constraint, the constraint goes into a description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any, cast

from bae.prompts.schemas import Schema, changed, inner, is_recursive, parts

if TYPE_CHECKING:
    from bae.prompts.messages import Prompt

MOST_OPTIONAL = 24
"""The most optional properties in a schema for Claude's structured output."""

MOST_UNIONS = 16
"""The most properties with alternatives in a schema for Claude's structured output."""


def unfit(schema: Mapping[str, Any]) -> str | None:
    """Return why Claude's structured output cannot enforce this schema, or None if it can.

    Claude compiles the schema to a grammar. It refuses a schema that

    - refers to itself;
    - has an object whose keys are not all named (`dict[str, int]`, `extra="allow"`);
    - has a value of any type, or a tuple;
    - has more than `MOST_OPTIONAL` optional properties, or more than `MOST_UNIONS` properties with
      alternatives.
    """
    if is_recursive(schema):
        return "it refers to itself"
    subschemas = list(parts(schema))
    if fault := next(filter(None, map(_find_fault, subschemas)), None):
        return fault
    optional = unions = 0
    for subschema in subschemas:
        properties: Mapping[str, Any] = subschema.get("properties", {})
        required = set(subschema.get("required", ()))
        optional += sum(name not in required for name in properties)
        unions += sum("anyOf" in value or "oneOf" in value for value in properties.values())
    if optional > MOST_OPTIONAL:
        return f"{optional} of its properties may be left out, and {MOST_OPTIONAL} is the most"
    if unions > MOST_UNIONS:
        return f"{unions} of its properties have alternatives, and {MOST_UNIONS} is the most"
    return None


def for_claude(schema: Mapping[str, Any]) -> Schema:
    """Return the schema for Claude's structured output. Constraints that a grammar cannot express
    become part of the descriptions. bae still validates the answer against the constraints."""
    from anthropic import transform_schema

    return transform_schema(with_descriptions(schema))


def with_descriptions(schema: Mapping[str, Any]) -> Schema:
    """Return the schema with the definition in place of each reference that has a description.
    Anthropic's SDK would drop a description next to a reference. A schema that refers to itself is
    returned unchanged."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})

    def change(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        result = changed(cast(Schema, part), change)
        result.pop("discriminator", None)  # the alternatives have constants to tell them apart
        if "$ref" in result and len(result) > 1:
            definition = definitions.get(str(result["$ref"]).removeprefix("#/$defs/"))
            if definition is not None:
                del result["$ref"]
                result = {**change(definition), **result}
        return result

    return dict(schema) if is_recursive(schema) else change(schema)


def answer_tool_name(prompt: Prompt) -> str:
    """Return a name for the tool that takes the answer: the schema's name, with a prefix if another
    tool has that name."""
    name = prompt.name
    while any(name == tool.name for tool in prompt.tools):
        name = f"final_{name}"
    return name


def is_untyped(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema has a value that may be of any type."""
    return any(_is_any(part) for part in parts(schema))


def close_objects(schema: Any) -> Any:
    """Return the schema with additional properties forbidden in every object, so that a model
    cannot invent keys."""
    if not isinstance(schema, Mapping):
        return schema
    closed = changed(cast(Schema, schema), close_objects)
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def is_strict(schema: Any) -> bool:
    """Return whether OpenAI accepts the schema as strict. In a strict schema, every property is
    required, no object has additional properties, and only the keywords in `_STRICT` are used."""
    if not isinstance(schema, dict):
        return False
    part = cast(Schema, schema)
    if not part.keys() <= _STRICT or _KINDS.isdisjoint(part):
        return False
    if part.get("type") == "object":
        properties = part.get("properties")
        if properties is None or part.get("additionalProperties") is not False:
            return False
        if list(properties) != part.get("required", []):
            return False
    return all(is_strict(subschema) for subschema in inner(part))


def for_claude_program(schema: Any) -> Any:
    """Return the schema for the program `claude`, with only the keywords that JSON Schema drafts 7
    and 2020-12 share.

    The result accepts every value that `schema` accepts, and may accept more. The constraints that
    it lacks become part of the descriptions. If the schema had a keyword or value that the program
    does not know, such as a `format` or a Python regular expression, the program would silently
    ignore the whole schema.
    """
    if not isinstance(schema, dict):
        return schema
    part = cast(Schema, schema)
    simple = changed(part, for_claude_program)
    result = {k: v for k, v in simple.items() if k in _SHARED and v not in (inf, -inf)}
    # The drafts share no keyword for a type per list position, or a type per kind of key. So every
    # position and every key may have any of the types.
    for kinds, keyword in (
        ([*simple.get("prefixItems", ())], "items"),
        ([*simple.get("patternProperties", {}).values()], "additionalProperties"),
    ):
        if kinds:
            kinds += [result[keyword]] if isinstance(result.get(keyword), dict) else []
            result[keyword] = {"anyOf": [k for n, k in enumerate(kinds) if k not in kinds[:n]]}
    described = [
        f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in part.items()
        if not (key in result or key in _IGNORED)
    ]
    if described:
        result["description"] = f"{result.get('description', '')} ({'; '.join(described)})".strip()
    return result


def _find_fault(part: Schema) -> str | None:
    """Return why Claude's structured output cannot enforce this part of a schema, or None."""
    kind = part.get("type")
    if not _UNFIT.isdisjoint(part):
        return f"it has {', '.join(sorted(_UNFIT & part.keys()))}"
    if isinstance(kind, list):
        return "it has a value of several types without alternatives"
    if _is_any(part):
        return "it has a value of any type"
    is_named = "properties" in part or part.get("additionalProperties") is False
    if kind == "object" and (part.get("additionalProperties", False) is not False or not is_named):
        return "it has an object whose keys are not all named"
    if any("$ref" in branch for branch in part.get("allOf", ())):
        return "it has a reference in allOf"
    choices = [*part.get("enum", ()), *([part["const"]] if "const" in part else ())]
    if not all(value is None or isinstance(value, str | int | float) for value in choices):
        return "it has a choice among values that are not plain"
    return None


def _is_any(part: Schema) -> bool:
    if part.get("type") == "array":
        return "items" not in part and "prefixItems" not in part
    return _KINDS.isdisjoint(part)


_KINDS = frozenset({"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "type"})
_UNFIT = frozenset({"prefixItems", "patternProperties", "propertyNames", "not", "if", "contains"})
_STRICT = frozenset(
    {
        *("$ref", "$defs", "anyOf", "const", "enum", "type", "title", "description"),
        *("items", "properties", "required", "additionalProperties"),
    }
)
_SHARED = _STRICT | {
    *("oneOf", "allOf", "not", "propertyNames", "contains", "deprecated", "readOnly"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties"),
    *("maxProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
# These keywords do not constrain values. A discriminator is not needed, because the alternatives of
# a union have constants to tell them apart.
_IGNORED = frozenset({"$schema", "$id", "$anchor", "$comment", "discriminator"})
