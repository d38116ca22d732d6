"""The parts of a JSON schema that `samples` and `misfits` look at: what a reference points to, of
which type a value is, and how many levels the smallest value has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from typing import Any, cast
from urllib.parse import unquote

from bae.testing.scripted import ScriptError

Schema = Mapping[str, Any]


class References:
    """What the references within one schema point to."""

    def __init__(self, root: Schema | bool) -> None:
        self._root = root
        self._heights: dict[str, float] = {}
        self._measure()

    def target(self, reference: str) -> Schema | bool:
        """What a reference within the schema points to."""
        found = cast(Any, self._root)
        try:
            if not reference.startswith("#"):
                raise KeyError(reference)
            for part in reference[1:].split("/")[1:]:
                key = unquote(part).replace("~1", "/").replace("~0", "~")
                found = cast(Any, found[int(key)] if isinstance(found, list) else found[key])
        except (LookupError, TypeError, ValueError):
            raise impossible({"$ref": reference}, "it points to nothing in the schema") from None
        return found

    def height(self, schema: Any) -> float:
        """How many levels the smallest value that fits has; infinite where there is none."""
        if not isinstance(schema, Mapping):
            return inf if schema is False else 0
        rules = cast(Schema, schema)
        if "const" in rules or "enum" in rules:
            return 0
        heights = [0.0]
        if "$ref" in rules:
            heights.append(self._heights[rules["$ref"]])
        heights += map(self.height, rules.get("allOf", ()))
        for combination in ("anyOf", "oneOf"):
            if combination in rules:
                heights.append(min(map(self.height, rules[combination]), default=inf))
        match kind_of(rules):
            case "object":
                properties, others = rules.get("properties", {}), rules.get("additionalProperties")
                required = [properties.get(name, others) for name in rules.get("required", ())]
                if rules.get("minProperties", 0) > len(required):
                    required += [others, *properties.values()]
                heights.append(1 + max(map(self.height, required), default=0))
            case "array":
                least = rules.get("minItems", 0)
                items = list(rules.get("prefixItems", ()))
                if least > len(items):
                    items.append(rules.get("items", True))
                heights.append(1 + max(map(self.height, items), default=0))
            case _:
                pass
        return max(heights)

    def _measure(self) -> None:
        """How many levels the smallest value behind each reference has; infinite for one that
        always holds itself."""
        self._heights = dict.fromkeys(_references(self._root), inf)
        changed = True
        while changed:
            now = {name: self.height(self.target(name)) for name in self._heights}
            changed = now != self._heights
            self._heights = now


_TELLING = {
    "object": ("properties", "additionalProperties", "patternProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("pattern", "format", "minLength", "maxLength", "contentSchema"),
}


def kind_of(schema: Schema, default: str = "string") -> str:
    """The type of the values that fit, told from the keywords where it is not given."""
    given = schema.get("type")
    if isinstance(given, str):
        return given
    for kind, keywords in _TELLING.items():
        if any(keyword in schema for keyword in keywords):
            return kind
    return default


def impossible(schema: Any, why: str) -> ScriptError:
    """The error for a schema that no value can be made for."""
    shown = json.dumps(schema, default=str)
    shown = shown if len(shown) <= 300 else f"{shown[:300]}…"
    return ScriptError(
        f"no sample can be made of the schema {shown}: {why}",
        code="bae-sample-impossible",
        fix="script an answer for it, or make the schema one that values fit",
    )


def _references(schema: Any) -> set[str]:
    if isinstance(schema, Mapping):
        rules = cast(Schema, schema)
        found = {rules["$ref"]} if isinstance(rules.get("$ref"), str) else set[str]()
        return found.union(*map(_references, rules.values()))
    if isinstance(schema, list):
        return set[str]().union(*map(_references, cast(list[Any], schema)))
    return set()
