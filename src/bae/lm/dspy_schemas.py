"""Schemas in the shape in which providers take them for structured output, for requests that go
through DSPy, which sends a schema as it is. `dspy_adapter.py` puts them into requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from bae.lm.anthropic_schemas import adapted, unfit
from bae.lm.extras import is_there

Schema = dict[str, Any]


def channel(model: str, schema: Mapping[str, Any]) -> Schema:
    """What goes into a request, in OpenAI's words, to have the answer held to a schema.

    Objects are closed: local models then have no keys to make up. `strict`, by which OpenAI's
    models cannot but fit the schema, is said where the schema is one of those it is for. What
    Claude's channel for structured output refuses goes by a tool, which it is made to use.
    """
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title", "Answer")))[:64]
    if model.startswith("anthropic/"):
        if not is_there("anthropic") or unfit(schema) is not None:
            function = {"name": name, "description": _TOLD, "parameters": dict(schema)}
            return {
                "tools": [{"type": "function", "function": function}],
                "tool_choice": {"type": "function", "function": {"name": name}},
            }
        return _format({"name": name, "schema": adapted(schema)})
    closed = cast(Schema, _closed(schema))
    strict = {"strict": True} if _is_strict(closed) else {}
    return _format({"name": name, "schema": closed, **strict})


def _format(sent: Schema) -> Schema:
    return {"response_format": {"type": "json_schema", "json_schema": sent}}


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in cast(list[Any], schema)]
    if not isinstance(schema, Mapping):
        return schema
    found = cast(Mapping[str, Any], schema)
    made: Schema = {}
    for key, value in found.items():
        if key in ("properties", "$defs"):  # names in here are no keywords
            made[key] = {name: _closed(each) for name, each in value.items()}
        else:
            made[key] = value if key in _DATA else _closed(value)
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def _is_strict(schema: Any) -> bool:
    """Whether OpenAI takes the schema as strict: every property required, every object closed, and
    no keyword beyond the plain ones."""
    if not isinstance(schema, dict):
        return False
    found = cast(Schema, schema)
    if not found.keys() <= _STRICT:
        return False
    if found.get("type") == "object":
        properties = found.get("properties")
        if properties is None or found.get("additionalProperties") is not False:
            return False
        if list(properties) != found.get("required", []):
            return False
    inner = [*found.get("properties", {}).values(), *found.get("$defs", {}).values()]
    inner += found.get("anyOf", [])
    if "items" in found:
        inner.append(found["items"])
    said = not _KINDS.isdisjoint(found)
    return said and all(_is_strict(each) for each in inner)


_DATA = frozenset({"const", "default", "enum", "examples", "required"})
_KINDS = frozenset({"$ref", "anyOf", "const", "enum", "type"})
_STRICT = _KINDS | frozenset(
    {"$defs", "additionalProperties", "description", "items", "properties", "required", "title"}
)
_TOLD = "Give your answer, the whole of it, to this function."
