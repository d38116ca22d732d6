"""How long an answer to a bounded schema can get, and has to be at least, in characters. The limit
on tokens of a local model is sized by it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from bae.lm.schema_parts import Schema, definitions_of, name_in


def longest_answer(schema: Mapping[str, Any]) -> int:
    """The characters of the longest answer that a schema made by `bounds.bounded` permits, where
    every character of a text is written as one."""
    return _Length(schema, most=True).of(dict(schema))


def shortest_answer(schema: Mapping[str, Any]) -> int:
    """The characters of the shortest answer that such a schema permits."""
    return _Length(schema, most=False).of(dict(schema))


class _Length:
    def __init__(self, schema: Mapping[str, Any], *, most: bool) -> None:
        self.most = most
        self.choose: Callable[[Iterable[int]], int] = max if most else min
        self.definitions = definitions_of(schema)
        self.known: dict[str, int] = {}

    def of(self, schema: Schema) -> int:
        if "$ref" in schema:
            name = name_in(schema["$ref"])
            if name not in self.known:
                self.known[name] = self.of(self.definitions[name])
            return self.known[name]
        if "anyOf" in schema:
            return self.choose(self.of(each) for each in schema["anyOf"])
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            return self.choose(len(_written(each)) for each in values)
        match schema.get("type"):
            case "string":
                return 2 + (schema["maxLength"] if self.most else schema.get("minLength", 0))
            case "integer":
                return self.digits(schema)
            case "number":
                places = len(f"{schema.get('multipleOf', 1e-15):.15f}".rstrip("0")) - 1
                return self.digits(schema) + (places if self.most else 0)
            case "boolean":
                return len("false") if self.most else len("true")
            case "null":
                return len("null")
            case "array":
                return self.array(schema)
            case _:
                return self.object(schema)

    def digits(self, schema: Schema) -> int:
        if not self.most:
            return 1
        ends = [v for k, v in schema.items() if k.lower().endswith(("minimum", "maximum"))]
        return max(len(str(math.floor(each))) for each in ends)

    def array(self, schema: Schema) -> int:
        size = schema["maxItems"] if self.most else schema["minItems"]
        lengths = [self.of(each) for each in schema.get("prefixItems", ())[:size]]
        if size > len(lengths):
            lengths += [self.of(schema["items"])] * (size - len(lengths))
        return 2 + sum(lengths) + 2 * max(0, size - 1)

    def object(self, schema: Schema) -> int:
        lengths = [
            len(_written(name)) + 2 + self.of(each)
            for name, each in cast(Schema, schema.get("properties", {})).items()
            if self.most or name in schema["required"]
        ]
        for each in cast(Schema, schema.get("patternProperties", {})).values():
            size = schema["maxProperties"] if self.most else schema["minProperties"]
            lengths += [_KEY[self.most] + 2 + self.of(each)] * size
        return 2 + sum(lengths) + 2 * max(0, len(lengths) - 1)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_KEY = {True: 42, False: 3}
"""A key of a dict with its quotes, at most and at least."""
