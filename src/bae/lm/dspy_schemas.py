"""Schemas in the shape in which providers take them for structured output, for requests that go
through DSPy, which sends a schema as it is. `dspy_adapter.py` puts them into requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bae.lm.extras import is_there
from bae.lm.provider_schemas import closed, for_claude, is_strict, unfit

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
        return _format({"name": name, "schema": for_claude(schema)})
    sent = closed(schema)
    strict = {"strict": True} if is_strict(sent) else {}
    return _format({"name": name, "schema": sent, **strict})


def _format(sent: Schema) -> Schema:
    return {"response_format": {"type": "json_schema", "json_schema": sent}}


_TOLD = "Give your answer, the whole of it, to this function."
