"""A value that fits a JSON schema, the same one each time: what `Provider` answers when it has no
script. Texts come from `texts`, numbers from `numbers`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any, cast

from bae.testing.numbers import number_for
from bae.testing.references import References, Schema, impossible, kind_of
from bae.testing.texts import text_for, word


def sample(schema: Mapping[str, Any] | bool, seed: int = 0) -> Any:
    """A JSON value that fits `schema`; another one for another `seed`.

    Meant for the schemas pydantic makes: references and recursion (gone into once), unions,
    enums, bounds, formats, simple patterns. What a schema does not say a sample cannot know: a
    validator of your own, a date in the past. Raises `ScriptError` where nothing fits, or nothing
    was found that matches a pattern.
    """
    return _Sampler(schema, seed).value(schema, _Place())


@dataclass(frozen=True, slots=True)
class _Place:
    """How far in a value is: `deep` asks for the smallest one that fits."""

    depth: int = 0
    inside: frozenset[str] = frozenset()
    deep: bool = False

    def below(self) -> _Place:
        return replace(self, depth=self.depth + 1, deep=self.deep or self.depth >= 6)

    def behind(self, reference: str) -> _Place:
        recursive = reference in self.inside
        return replace(self, inside=self.inside | {reference}, deep=self.deep or recursive)


class _Sampler:
    def __init__(self, root: Schema | bool, seed: int) -> None:
        self._references = References(root)
        self._random = Random(seed)

    def value(self, schema: Schema | bool, place: _Place) -> Any:
        if self._references.height(schema) == inf:
            raise impossible(
                schema, "it allows no value, or only such that hold another one, without end"
            )
        flat, place = self._settled(schema, place)
        if "const" in flat:
            return flat["const"]
        if "enum" in flat:
            if not flat["enum"]:
                raise impossible(schema, "its enum allows no value")
            return self._random.choice(flat["enum"])
        match kind_of(flat):
            case "null":
                return None
            case "boolean":
                return self._random.random() < 0.5
            case "integer" | "number" as kind:
                number = number_for(flat, self._random, whole=kind == "integer")
                if number is None:
                    raise impossible(schema, "no number is within its bounds")
                return number
            case "object":
                return self._object(flat, place.below())
            case "array":
                return self._array(flat, place.below())
            case _:
                return self._text(flat, place)

    def _settled(self, schema: Schema | bool, place: _Place) -> tuple[Schema, _Place]:
        """The schema without references and combinations: one of its alternatives, chosen."""
        if isinstance(schema, bool):
            if not schema:
                raise impossible(schema, "it allows no value")
            return {}, place
        flat = dict(schema)
        parts: list[Schema] = []
        if "$ref" in flat:
            reference: str = flat.pop("$ref")
            place = place.behind(reference)
            part, place = self._settled(self._references.target(reference), place)
            parts.append(part)
        for member in flat.pop("allOf", ()):
            part, place = self._settled(member, place)
            parts.append(part)
        for combination in ("anyOf", "oneOf"):
            if combination in flat:
                part, place = self._settled(self._chosen(flat.pop(combination), place), place)
                parts.append(part)
        for part in parts:
            flat = _merged(part, flat)
        kinds = flat.get("type")
        if isinstance(kinds, list):
            options = [{"type": kind} for kind in cast(list[str], kinds)]
            flat["type"] = cast(Schema, self._chosen(options, place))["type"]
        return flat, place

    def _chosen(self, options: list[Any], place: _Place) -> Any:
        able = [option for option in options if self._references.height(option) < inf]
        if not able:
            raise impossible({"anyOf": options}, "none of its alternatives can be had")
        if place.deep:
            return min(able, key=self._references.height)
        # Pydantic writes a decimal as a number or any text; the text has to be a number, too.
        if any(_is_number(option) for option in able):
            able = [option for option in able if not _is_free_text(option)]
        some = [option for option in able if option != {"type": "null"}]
        return self._random.choice(some or able)

    def _object(self, schema: Schema, place: _Place) -> dict[str, Any]:
        properties = cast(Mapping[str, Any], schema.get("properties", {}))
        required = cast(list[str], schema.get("required", []))
        others = schema.get("additionalProperties", True)
        most = schema.get("maxProperties", inf)
        least = schema.get("minProperties", 0)
        found: dict[str, Any] = {}
        for name in dict.fromkeys([*properties, *required]):
            rule = properties.get(name, others)
            optional = name not in required
            room = len(found) + sum(key not in found for key in required) < most
            if optional and (not room or self._references.height(rule) == inf):
                continue
            if optional and place.deep and len(found) >= least:
                continue
            found[name] = self.value(rule, place)
        patterned = cast(Mapping[str, Any], schema.get("patternProperties", {}))
        keyed = {
            pattern: rule
            for pattern, rule in patterned.items()
            if self._references.height(rule) < inf
        }
        typed = others not in (True, False, {}) and self._references.height(others) < inf
        wanted = least
        if not place.deep and not properties and (keyed or typed):
            wanted = max(least, min(most, self._random.randint(1, 2)))
        for attempt in range(100):
            if len(found) >= wanted:
                return found
            if keyed:
                pattern = self._random.choice(list(keyed))
                key, rule = self._text({"pattern": pattern}, place), keyed[pattern]
            else:
                key, rule = self._key(schema.get("propertyNames"), attempt, place), others
            if key not in found:
                found[key] = self.value(rule, place)
        if len(found) < least:
            raise impossible(schema, f"fewer than {least} names for its properties were found")
        return found

    def _key(self, rule: Schema | None, attempt: int, place: _Place) -> str:
        if rule is None:
            return str(attempt)  # a name, and a number where the keys of a dict are numbers
        flat, place = self._settled(rule, place)
        return str(self.value({"type": "string", **flat}, place))

    def _array(self, schema: Schema, place: _Place) -> list[Any]:
        first = cast(list[Any], schema.get("prefixItems", []))
        rest = schema.get("items", True)
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", inf)
        if rest is False:
            most = min(most, len(first))
        wanted = max(least, min(len(first), most))
        if not place.deep and "items" in schema and self._references.height(rest) < inf:
            wanted = max(wanted, min(most, self._random.randint(1, 2)))
        unique = schema.get("uniqueItems", False)
        found: list[Any] = []
        for _ in range(100 + 10 * wanted):
            if len(found) >= wanted:
                break
            rule = first[len(found)] if len(found) < len(first) else rest
            item = self.value(rule, place)
            # Compared as Python does it, since 1, 1.0 and true are one item of a Python set.
            if not unique or item not in found:
                found.append(item)
        if not least <= len(found) <= most:
            raise impossible(schema, f"{len(found)} items were found that fit")
        return found

    def _text(self, schema: Schema, place: _Place) -> str:
        if schema.get("contentMediaType") == "application/json" and "contentSchema" in schema:
            return json.dumps(self.value(schema["contentSchema"], place))
        if not schema:
            return word(self._random)
        text = text_for(schema, self._random)
        if text is None:
            raise impossible(schema, "no text that fits was found")
        return text


def _is_number(schema: Any) -> bool:
    return isinstance(schema, Mapping) and cast(Schema, schema).get("type") in ("integer", "number")


def _is_free_text(schema: Any) -> bool:
    return (
        isinstance(schema, Mapping)
        and cast(Schema, schema).get("type") == "string"
        and cast(Schema, schema).get("format") in (None, "fraction")
        and not {"enum", "const"} & set(cast(Schema, schema))
    )


def _merged(one: Schema, other: Schema) -> dict[str, Any]:
    """A schema for what fits both. Neither has references or combinations left."""
    merged = {**one, **other}
    for key in one.keys() & other.keys():
        a, b = one[key], other[key]
        if key in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"):
            merged[key] = max(a, b)
        elif key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"):
            merged[key] = min(a, b)
        elif key == "required":
            merged[key] = list(dict.fromkeys([*a, *b]))
        elif key == "enum":
            merged[key] = [value for value in a if value in b]
        elif key == "properties":
            shared = {name: {"allOf": [a[name], b[name]]} for name in a.keys() & b.keys()}
            merged[key] = {**a, **b, **shared}
        elif key == "type" and {a, b} == {"integer", "number"}:
            merged[key] = "integer"
    return merged
