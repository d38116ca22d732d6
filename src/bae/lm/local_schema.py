"""Schemas for the local model in which everything is bounded, so that an answer always ends,
and how long an answer can get. What a grammar cannot enforce is left to validation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from bae.exceptions import BaeLMError
from bae.lm.json_schemas import (
    Schema,
    as_schema,
    constrains,
    definitions_of,
    kind_of,
    name_in,
    reachable,
    tighter,
)
from bae.lm.local_patterns import FORMS, can_be_enforced, is_finite, shortest_match

LONGEST_TEXT: Final = 200
"""Characters of a text, unless the schema has a tighter bound, or asks for more."""

LONGEST_LIST: Final = 5
"""Items of a list or a dict, in the same way."""

DEEPEST: Final = 3
"""How often a type may be nested in itself."""

LONGEST_KEY: Final = 40
"""Characters of a key of a dict."""

LARGEST: Final = 10**15 - 1
"""The largest number that is asked for; a float still tells whole numbers apart there."""


class Bounded(NamedTuple):
    """A bounded schema, with the characters of its shortest and longest answer. Every character of
    a text counts as one."""

    schema: Schema
    shortest: int
    longest: int


@lru_cache(maxsize=256)
def fit(
    schema: str, longest_text: int, longest_list: int, deepest: int, room: int
) -> tuple[Bounded, ...]:
    """Bounded forms of a schema (as JSON), strictest first; the second is without the schema's own
    patterns, for an engine that cannot take them. Bounds are reduced until the longest answer fits
    into `room` characters, as far as that is possible."""
    given = json.loads(schema)
    text, items = longest_text, longest_list

    def bound(own_patterns: bool) -> Bounded:
        return bounded(
            given,
            longest_text=text,
            longest_list=items,
            deepest=deepest,
            own_patterns=own_patterns,
        )

    strict = bound(True)
    while strict.longest > room and (items > 1 or text > _SHORTEST_TEXT):
        # Lists multiply, so they are reduced first; but a list of one is hardly a list.
        if items > 2 or text <= _SHORTEST_TEXT:
            items -= max(1, items // 4)
        else:
            text = max(_SHORTEST_TEXT, text // 2)
        strict = bound(True)
    loose = bound(False)
    return (strict,) if loose == strict else (strict, loose)


def bounded(
    schema: Mapping[str, Any],
    *,
    longest_text: int = LONGEST_TEXT,
    longest_list: int = LONGEST_LIST,
    deepest: int = DEEPEST,
    own_patterns: bool = True,
) -> Bounded:
    """The schema with a bound on everything in it.

    Every text gets a `maxLength`, every list a `maxItems`, every dict a `maxProperties`, and every
    number a least and a greatest value; objects are closed, and a recursive type is nested
    `deepest` times. Tighter bounds of the schema win, and so do the least sizes it asks for. A
    value of the result is one of the schema, but for what no grammar can enforce, such as
    `uniqueItems` and `not`. Raises `BaeLMError` where no bounded answer exists.
    """
    return _Pass(schema, longest_text, longest_list, deepest, own_patterns).whole()


class _Pass:
    """The pass over one schema. Methods return None where no value fits. `inside` is the recursive
    type that a part is in, and `depth` how often that was entered."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        longest_text: int,
        longest_list: int,
        deepest: int,
        own_patterns: bool,
    ) -> None:
        self.title = schema.get("title") or "the answer"
        self.definitions = definitions_of(schema)
        self.reachable = reachable(self.definitions)
        self.longest_text = longest_text
        self.longest_list = longest_list
        self.deepest = deepest
        self.own_patterns = own_patterns
        self.done: dict[tuple[str, int], Bounded | None] = {}
        self.made: dict[str, Schema] = {}

    def whole(self) -> Bounded:
        root = self.definitions[""]
        found = self.one(root, None, 0)
        if found is None:
            properties = as_schema(root.get("properties"))
            bad = [name for name, each in properties.items() if self.one(each, None, 0) is None]
            raise BaeLMError(
                f"no answer of bounded length fits the schema of {self.title}"
                + (f": there is no value for {', '.join(bad)}" if bad else ""),
                code="bae-lm-schema-unbounded",
                sent=False,
                fix="let a recursive type end, with a None or an empty list, and check that every "
                "least size or value is below its greatest",
            )
        return found._replace(schema={**found.schema, "$defs": self.made}) if self.made else found

    def one(self, given: Any, inside: str | None, depth: int) -> Bounded | None:
        if given is False:
            return None
        schema = as_schema(given)
        if "$ref" in schema or "allOf" in schema:
            return self.referred(schema, inside, depth)
        if "const" in schema:
            return _one_of({"const": schema["const"]}, [schema["const"]])
        if "enum" in schema:
            return _one_of({"enum": list(schema["enum"])}, schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                around = {k: v for k, v in schema.items() if k != key}
                options = [tighter(around, as_schema(each)) for each in schema[key]]
                return self.any_of(options, inside, depth)
        kind = kind_of(schema)
        match kind:
            case list():
                return self.any_of([{**schema, "type": each} for each in kind], inside, depth)
            case "string":
                return self.text(schema)
            case "integer":
                return _integer(schema)
            case "number":
                return _number(schema)
            case "boolean":
                return Bounded({"type": "boolean"}, len("true"), len("false"))
            case "null":
                return Bounded({"type": "null"}, len("null"), len("null"))
            case "array":
                return self.array(schema, inside, depth)
            case "object":
                return self.object(schema, inside, depth)
            case _:
                return self.any_of([{"type": each} for each in _PLAIN], inside, depth)

    def referred(self, schema: Schema, inside: str | None, depth: int) -> Bounded | None:
        """What a schema refers to, combined with the rest of the schema."""
        parts = [as_schema(each) for each in schema.get("allOf", ())]
        parts.append({k: v for k, v in schema.items() if k != "allOf"})
        parts = [each for each in parts if "$ref" in each or constrains(each)]
        alone = len(parts) == 1 and not constrains(parts[0])
        whole: Schema = {}
        for part in parts:
            if "$ref" in part:
                name = name_in(part["$ref"])
                inside, depth = self.enter(name, inside, depth)
                if depth > self.deepest:
                    return None
                if alone:
                    return self.definition(name, inside, depth)
                whole = tighter(whole, self.definitions[name])
            whole = tighter(whole, {k: v for k, v in part.items() if k != "$ref"})
        return self.one(whole, inside, depth)

    def definition(self, name: str, inside: str | None, depth: int) -> Bounded | None:
        key = name, depth
        if key not in self.done:
            found = self.one(self.definitions[name], inside, depth)
            if found is not None:
                label = f"d{len(self.made)}"
                self.made[label] = found.schema
                found = found._replace(schema={"$ref": f"#/$defs/{label}"})
            self.done[key] = found
        return self.done[key]

    def enter(self, name: str, inside: str | None, depth: int) -> tuple[str | None, int]:
        if name not in self.definitions:
            raise BaeLMError(
                f"the schema of {self.title} refers to {name!r}, which is not in it",
                code="bae-lm-schema-unbounded",
                sent=False,
                fix="put what it refers to under $defs",
            )
        below = self.reachable[name]
        if name not in below:
            return None, 0
        same = inside in below and name in self.reachable[inside or ""]
        return name, depth + 1 if same else 1

    def any_of(self, options: list[Schema], inside: str | None, depth: int) -> Bounded | None:
        if any(each.get("type") in ("number", "integer") for each in options):
            # A number that may also be a text, such as a Decimal: a text that cannot be kept to
            # the form of a number is better left out.
            options = [each for each in options if "pattern" not in each or self.keeps(each)]
        found = [self.one(each, inside, depth) for each in options]
        made: list[Bounded] = []
        for each in found:
            if each is not None and each not in made:
                made.append(each)
        if len(made) < 2:
            return made[0] if made else None
        return Bounded(
            {"anyOf": [each.schema for each in made]},
            min(each.shortest for each in made),
            max(each.longest for each in made),
        )

    def keeps(self, schema: Schema) -> bool:
        """Whether the answer can be kept to the pattern of a text or a key."""
        return self.own_patterns and can_be_enforced(schema["pattern"])

    def text(self, schema: Schema) -> Bounded | None:
        least = int(schema.get("minLength", 0))
        own = schema.get("maxLength", math.inf)
        needed = shortest_match(schema["pattern"]) if "pattern" in schema else 0
        most = int(min(own, max(self.longest_text, least, needed)))
        if least > most:
            return None
        made: Schema = {"type": "string"}
        form = FORMS.get(schema.get("format", ""))
        if "pattern" in schema:
            if self.keeps(schema):
                made["pattern"] = schema["pattern"]
        elif form is not None:
            # A text with a form needs some room, whatever is usual for texts.
            room = form.longest or int(min(own, max(most, _ROOM_FOR_A_FORM)))
            if least <= room <= own:
                return Bounded({**made, "pattern": form.pattern, "maxLength": room}, 2, 2 + room)
        if least:
            made["minLength"] = least
        return Bounded({**made, "maxLength": most}, 2 + least, 2 + most)

    def array(self, schema: Schema, inside: str | None, depth: int) -> Bounded | None:
        least = int(schema.get("minItems", 0))
        first: list[Bounded] = []
        for each in schema.get("prefixItems", ()):
            found = self.one(each, inside, depth)
            if found is None:
                return None
            first.append(found)
        rest = self.one(schema.get("items", {}), inside, depth)
        most = len(first) if rest is None else max(self.longest_list, least, len(first))
        if rest is not None and schema.get("uniqueItems") and "enum" in rest.schema:
            most = min(most, len(rest.schema["enum"]))
        most = int(min(schema.get("maxItems", math.inf), most))
        if least > most:
            return None
        made: Schema = {"type": "array", "minItems": least, "maxItems": most}
        if most == 0:
            return Bounded({**made, "items": {"type": "null"}}, 2, 2)  # `items` has to be there
        made["items"] = rest.schema if rest is not None and most > len(first) else False
        if first:
            made["prefixItems"] = [each.schema for each in first]
        items = [*first, *([rest] * (most - len(first)) if rest is not None else ())][:most]
        return Bounded(
            made,
            _joined(each.shortest for each in items[:least]),
            _joined(each.longest for each in items),
        )

    def object(self, schema: Schema, inside: str | None, depth: int) -> Bounded | None:
        if "properties" not in schema and schema.get("additionalProperties") is not False:
            return self.dictionary(schema, inside, depth)
        required = schema.get("required", ())
        found: dict[str, Bounded] = {}
        for name, each in schema.get("properties", {}).items():
            value = self.one(each, inside, depth)
            if value is not None:
                found[name] = value
            elif name in required:
                return None
        return _closed(found, [name for name in required if name in found])

    def dictionary(self, schema: Schema, inside: str | None, depth: int) -> Bounded | None:
        least = int(schema.get("minProperties", 0))
        most = int(min(schema.get("maxProperties", math.inf), max(self.longest_list, least)))
        if least > most:
            return None
        empty = _closed({}, []) if least == 0 else None
        keys = as_schema(schema.get("propertyNames"))
        if "$ref" in keys:
            keys = self.definitions.get(name_in(keys["$ref"]), {})
        values = schema.get("additionalProperties", {})
        for pattern, each in as_schema(schema.get("patternProperties")).items():
            keys, values = {"pattern": pattern}, each
        value = self.one(values, inside, depth)
        if value is None or most == 0:
            return empty
        names = [keys["const"]] if "const" in keys else keys.get("enum")
        if names is not None:
            texts = list(dict.fromkeys(name for name in names if isinstance(name, str)))
            fits = least <= len(texts)
            return _closed(dict.fromkeys(texts, value), texts[:least]) if fits else None
        key = self.key(keys)
        if key is None:
            return empty
        made = {"patternProperties": {key: value.schema}, "minProperties": least}
        return Bounded(
            {**_closed({}, []).schema, **made, "maxProperties": most},
            _joined([3 + 2 + value.shortest] * least),
            _joined([LONGEST_KEY + 2 + 2 + value.longest] * most),
        )

    def key(self, schema: Schema) -> str | None:
        """The pattern of a key: a grammar has no other way to bound one."""
        if "pattern" in schema and self.keeps(schema) and is_finite(schema["pattern"]):
            return schema["pattern"]
        form = FORMS.get(schema.get("format", ""))
        if form is not None and form.longest is not None:
            return form.pattern
        least = int(schema.get("minLength", 1))
        most = int(min(schema.get("maxLength", math.inf), max(LONGEST_KEY, least)))
        return rf'^[^"\\\x00-\x1f]{{{least},{most}}}$' if least <= most else None


# --- numbers, objects and lengths -------------------------------------------------------------


def _integer(schema: Schema) -> Bounded | None:
    low, high, open_low, open_high = _range(schema)
    low = math.floor(low) + 1 if open_low else math.ceil(low)
    high = math.ceil(high) - 1 if open_high else math.floor(high)
    step = schema.get("multipleOf", 1)
    step = int(step) if step == int(step) and step > 0 else 1  # others are left to validation
    if -(-low // step) * step > high:
        return None
    made = {"type": "integer", "minimum": low, "maximum": high}
    longest = max(len(str(low)), len(str(high)))
    return Bounded(made if step == 1 else {**made, "multipleOf": step}, 1, longest)


def _number(schema: Schema) -> Bounded | None:
    low, high, open_low, open_high = _range(schema)
    if low > high or (low == high and (open_low or open_high)):
        return None
    if low == high:
        return _one_of({"enum": [low]}, [low])
    made: Schema = {
        "type": "number",
        "exclusiveMinimum" if open_low else "minimum": low,
        "exclusiveMaximum" if open_high else "maximum": high,
    }
    step = schema.get("multipleOf")
    if step is None:
        # As many digits as tell a thousand values apart; engines take no finer steps than these.
        places = max(4, 3 - math.floor(math.log10(high - low)))
        step = 10.0**-places if places <= 9 else None
    if step is not None:
        made["multipleOf"] = step
    digits = max(len(str(math.floor(low))), len(str(math.floor(high))))
    fraction = len(f"{step or 1e-15:.15f}".rstrip("0")) - 1
    return Bounded(made, 1, digits + fraction)


def _range(schema: Schema) -> tuple[Any, Any, bool, bool]:
    """Both ends of a number, reduced where they are missing or far out, and which are excluded."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    low, high = max(lows, default=-math.inf), min(highs, default=math.inf)
    if low < -LARGEST:
        low = -LARGEST if high > -LARGEST else max(low, high - LARGEST)
    if high > LARGEST:
        high = LARGEST if low < LARGEST else min(high, low + LARGEST)
    return low, high, schema.get("exclusiveMinimum") == low, schema.get("exclusiveMaximum") == high


def _one_of(schema: Schema, values: list[Any]) -> Bounded | None:
    lengths = [len(json.dumps(each, ensure_ascii=False)) for each in values]
    return Bounded(schema, min(lengths), max(lengths)) if lengths else None


def _closed(properties: Mapping[str, Bounded], required: list[str]) -> Bounded:
    keys = {name: len(json.dumps(name, ensure_ascii=False)) + 2 for name in properties}
    return Bounded(
        {
            "type": "object",
            "properties": {name: each.schema for name, each in properties.items()},
            "required": required,
            "additionalProperties": False,
        },
        _joined(keys[name] + properties[name].shortest for name in required),
        _joined(keys[name] + each.longest for name, each in properties.items()),
    )


def _joined(lengths: Iterable[int]) -> int:
    """Characters of a list or object with items of these lengths."""
    found = list(lengths)
    return 2 + sum(found) + 2 * max(0, len(found) - 1)


_PLAIN: Final = ("string", "number", "boolean", "null")
_ROOM_FOR_A_FORM: Final = 40
_SHORTEST_TEXT: Final = 32
