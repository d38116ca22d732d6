"""JSON schemas in the form each provider accepts: Claude's structured output, OpenAI's strict mode,
and the program `claude`. What a provider cannot enforce goes into descriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any, cast

from bae.prompts.schemas import Schema, changed, inner, is_recursive, parts

if TYPE_CHECKING:
    from bae.prompts.messages import Prompt

MOST_OPTIONAL = 24
"""Optional properties in one schema that Claude's structured output takes."""

MOST_UNIONS = 16
"""Properties with alternatives in one schema that it takes."""


def unfit(schema: Mapping[str, Any]) -> str | None:
    """Why Claude's structured output cannot enforce this schema, or None where it can.

    Claude compiles the schema to a grammar. It takes no schema that

    - refers to itself;
    - has an object whose keys are not all named (`dict[str, int]`, `extra="allow"`);
    - has a value of any type, or a tuple;
    - has more than `MOST_OPTIONAL` properties that may be left out, or more than `MOST_UNIONS`
      with alternatives.
    """
    if is_recursive(schema):
        return "it refers to itself"
    found = list(parts(schema))
    if fault := next(filter(None, map(_fault, found)), None):
        return fault
    optional = unions = 0
    for each in found:
        properties: Mapping[str, Any] = each.get("properties", {})
        required = set(each.get("required", ()))
        optional += sum(name not in required for name in properties)
        unions += sum("anyOf" in value or "oneOf" in value for value in properties.values())
    if optional > MOST_OPTIONAL:
        return f"{optional} of its properties may be left out, and {MOST_OPTIONAL} is the most"
    if unions > MOST_UNIONS:
        return f"{unions} of its properties have alternatives, and {MOST_UNIONS} is the most"
    return None


def for_claude(schema: Mapping[str, Any]) -> Schema:
    """The schema as Claude's structured output takes it: limits that a grammar cannot express are
    in the descriptions. The answer is validated against all of them anyway."""
    from anthropic import transform_schema

    return transform_schema(with_descriptions(schema))


def with_descriptions(schema: Mapping[str, Any]) -> Schema:
    """The schema with references replaced by their definitions where a description is beside the
    reference: there Anthropic's SDK drops the description."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})

    def change(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = changed(cast(Schema, given), change)
        made.pop("discriminator", None)  # the constants of the alternatives tell them apart
        if "$ref" in made and len(made) > 1:
            named = definitions.get(str(made["$ref"]).removeprefix("#/$defs/"))
            if named is not None:
                del made["$ref"]
                made = {**change(named), **made}
        return made

    return dict(schema) if is_recursive(schema) else change(schema)


def answer_tool_name(prompt: Prompt) -> str:
    """A name for the tool that takes the answer: the schema's name, unless another tool has it."""
    name = prompt.name
    while any(name == tool.name for tool in prompt.tools):
        name = f"final_{name}"
    return name


def is_untyped(schema: Mapping[str, Any]) -> bool:
    """Whether some value in it may be of any type."""
    return any(_is_any(part) for part in parts(schema))


def closed(schema: Any) -> Any:
    """The schema with every object closed: local models then have no keys to make up."""
    if not isinstance(schema, Mapping):
        return schema
    made = changed(cast(Schema, schema), closed)
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def is_strict(schema: Any) -> bool:
    """Whether OpenAI takes the schema as strict: every property required, every object closed, and
    only plain keywords."""
    if not isinstance(schema, dict):
        return False
    found = cast(Schema, schema)
    if not found.keys() <= _STRICT or _KINDS.isdisjoint(found):
        return False
    if found.get("type") == "object":
        properties = found.get("properties")
        if properties is None or found.get("additionalProperties") is not False:
            return False
        if list(properties) != found.get("required", []):
            return False
    return all(is_strict(each) for each in inner(found))


def for_claude_program(schema: Any) -> Any:
    """The schema in keywords that JSON schema drafts 7 and 2020-12 share. It allows what the given
    one allows, or more; the rest is in the descriptions.

    The program ignores the whole schema, without an error, because of one keyword that it does not
    know, such as a `format` or a regular expression of Python's.
    """
    if not isinstance(schema, dict):
        return schema
    given = cast(Schema, schema)
    simple = changed(given, for_claude_program)
    made = {k: v for k, v in simple.items() if k in _SHARED and v not in (inf, -inf)}
    # The drafts share no way to say what each place of a list, or each kind of key, holds: any of
    # them may hold any.
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
# Where a schema comes from says nothing about its values, and the constants of the alternatives
# show which of them a value is.
_IGNORED = frozenset({"$schema", "$id", "$anchor", "$comment", "discriminator"})
