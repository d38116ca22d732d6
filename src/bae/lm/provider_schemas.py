"""JSON schemas for Claude's structured output, OpenAI's strict mode and the program `claude`.
Constraints that a provider cannot enforce go into descriptions."""

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
    """Why Claude's structured output cannot enforce this schema, or None if it can.

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
    if fault := next(filter(None, map(_fault, subschemas)), None):
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
    """The schema for Claude's structured output. Constraints that a grammar cannot express go into
    the descriptions; bae validates the answer against them."""
    from anthropic import transform_schema

    return transform_schema(with_descriptions(schema))


def with_descriptions(schema: Mapping[str, Any]) -> Schema:
    """Replace each reference that has a description by its definition, since Anthropic's SDK drops
    a description next to a reference."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})

    def change(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = changed(cast(Schema, given), change)
        made.pop("discriminator", None)  # constants in the alternatives distinguish them
        if "$ref" in made and len(made) > 1:
            named = definitions.get(str(made["$ref"]).removeprefix("#/$defs/"))
            if named is not None:
                del made["$ref"]
                made = {**change(named), **made}
        return made

    return dict(schema) if is_recursive(schema) else change(schema)


def answer_tool_name(prompt: Prompt) -> str:
    """The name of the answer tool: the name of the schema, made different from other tools."""
    name = prompt.name
    while any(name == tool.name for tool in prompt.tools):
        name = f"final_{name}"
    return name


def is_untyped(schema: Mapping[str, Any]) -> bool:
    """Whether the schema has a value that may be of any type."""
    return any(_is_any(part) for part in parts(schema))


def close_objects(schema: Any) -> Any:
    """Forbid additional properties in every object, so that a local model cannot invent keys."""
    if not isinstance(schema, Mapping):
        return schema
    made = changed(cast(Schema, schema), close_objects)
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def is_strict(schema: Any) -> bool:
    """Whether OpenAI accepts the schema as strict: every property is required, every object is
    closed, and all keywords are plain."""
    if not isinstance(schema, dict):
        return False
    given = cast(Schema, schema)
    if not given.keys() <= _STRICT or _KINDS.isdisjoint(given):
        return False
    if given.get("type") == "object":
        properties = given.get("properties")
        if properties is None or given.get("additionalProperties") is not False:
            return False
        if list(properties) != given.get("required", []):
            return False
    return all(is_strict(each) for each in inner(given))


def for_claude_program(schema: Any) -> Any:
    """The schema in the keywords that JSON Schema drafts 7 and 2020-12 share. It allows at least as
    much as the given schema; the remaining constraints go into the descriptions.

    If the program does not know one keyword, such as a `format` or a Python regular expression, it
    silently ignores the whole schema.
    """
    if not isinstance(schema, dict):
        return schema
    given = cast(Schema, schema)
    simple = changed(given, for_claude_program)
    made = {k: v for k, v in simple.items() if k in _SHARED and v not in (inf, -inf)}
    # The drafts share no keyword for the type of each position in a list, or of each kind of key.
    # Here every position and key may have any of the types.
    for kinds, others in (
        ([*simple.get("prefixItems", ())], "items"),
        ([*simple.get("patternProperties", {}).values()], "additionalProperties"),
    ):
        if kinds:
            kinds += [made[others]] if isinstance(made.get(others), dict) else []
            made[others] = {"anyOf": [k for n, k in enumerate(kinds) if k not in kinds[:n]]}
    described = [
        f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in given.items()
        if not (key in made or key in _IGNORED)
    ]
    if described:
        made["description"] = f"{made.get('description', '')} ({'; '.join(described)})".strip()
    return made


def _fault(part: Schema) -> str | None:
    kind = part.get("type")
    if not _UNFIT.isdisjoint(part):
        return f"it has {', '.join(sorted(_UNFIT & part.keys()))}"
    if isinstance(kind, list):
        return "it has a value of several types without alternatives"
    if _is_any(part):
        return "it has a value of any type"
    named = "properties" in part or part.get("additionalProperties") is False
    if kind == "object" and (part.get("additionalProperties", False) is not False or not named):
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
# Identifiers and comments say nothing about values. Constants in the alternatives of a union show
# which alternative a value is, so a discriminator is not needed.
_IGNORED = frozenset({"$schema", "$id", "$anchor", "$comment", "discriminator"})
