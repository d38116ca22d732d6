"""How many tokens a prompt will be, before anybody has counted: budgets and rate limits need a
number then, and put it right by what the answer says it used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bae.lm.backend import Prompt

BYTES_PER_TOKEN = 4
"""What English text comes to with the usual tokenisers. Bytes, since other scripts take more bytes
a letter and more tokens too."""


def estimated_tokens(prompt: Prompt) -> int:
    """About how many tokens the prompt is, schema and all, and at least one."""
    size = _size(prompt.system) + _size(prompt.text) + _schema_size(prompt.schema)
    for turn in prompt.turns:
        size += _size(turn.answer) + _size(turn.correction)
    for example in prompt.examples:
        size += _size(example.asked) + _size(example.answer)
    return max(1, size // BYTES_PER_TOKEN)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _schema_size(schema: Mapping[str, Any]) -> int:
    # Schemas are made once per class: the same object comes again and again.
    known = _sizes.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_sizes) >= MOST_SCHEMAS:
            _sizes.clear()
        known = _sizes[id(schema)] = schema, len(json.dumps(schema, default=str))
    return known[1]


MOST_SCHEMAS = 1000
_sizes: dict[int, tuple[Mapping[str, Any], int]] = {}
