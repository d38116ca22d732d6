"""Bounds everything in a schema for the local model, so that an answer always ends. Validation
checks the constraints that a grammar cannot express."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bae.exceptions import BaeLMError
from bae.prompts.schemas import (
    Schema,
    alternatives,
    as_schema,
    definitions_of,
    name_in,
    reachable,
)

LONGEST_TEXT: Final = 200
"""The most characters of a text, unless the schema has a tighter bound or requires more."""

LONGEST_LIST: Final = 5
"""The most items of a list or a dict, unless the schema has a tighter bound or requires more."""

DEEPEST: Final = 3
"""How often a type may be nested in itself."""

LONGEST_KEY: Final = 40
"""The most characters of a dict's key, unless the schema has a tighter bound or requires more."""

MOST_REQUIRED: Final = 1_000_000
"""The most characters, items or keys that a schema may require. A local model has no room for more,
and would write until its context is full."""

LARGEST: Final = 10**15 - 1
"""The largest number in an answer, unless the schema requires a larger number. Up to this number, a
float represents whole numbers exactly."""


def bound_schema(
    schema: Mapping[str, Any],
    *,
    longest_text: int = LONGEST_TEXT,
    longest_list: int = LONGEST_LIST,
    deepest: int = DEEPEST,
) -> Schema:
    """Return a schema with a bound on everything. Raises `BaeLMError` if no bounded answer exists.

    Every text gets a `maxLength` or a pattern, every list a `maxItems`, every dict a
    `maxProperties`, and every number a minimum and a maximum. Objects are closed. A recursive type
    is nested at most `deepest` times. A list inside a list has half as many items, because the
    sizes multiply. If the schema has a tighter bound, or requires a larger size, the schema wins.
    """
    bounding = _Pass(definitions_of(schema), longest_text, deepest)
    root, top = bounding.definitions[""], _Nesting("", 0, longest_list)
    result = bounding.bound(root, top)
    if result is None:
        properties = as_schema(root.get("properties"))
        unfillable = [
            name for name, value in properties.items() if bounding.bound(value, top) is None
        ]
        raise BaeLMError(
            f"no answer of bounded length fits the schema of {schema.get('title', 'the answer')}"
            + (f": there is no value for {', '.join(unfillable)}" if unfillable else ""),
            code="bae-lm-schema-unbounded",
            sent=False,
            fix="let a recursive type end, with a None or an empty list, and check that every "
            f"least size or value is below its greatest, and a size below {MOST_REQUIRED:,}",
        )
    return (
        {**result, "$defs": bounding.bounded_definitions}
        if bounding.bounded_definitions
        else result
    )


class _Nesting(NamedTuple):
    """The position of a part of a schema."""

    inside: str
    """The recursive type that contains the part, or empty."""
    depth: int
    """How often this recursive type is nested in itself."""
    items: int
    """The most items of a list in the part."""


@dataclass
class _Pass:
    """Bounds the parts of one schema. Each method returns None if no value fits the part."""

    definitions: dict[str, Schema]
    longest_text: int
    deepest: int
    references: dict[tuple[str, int, int], Schema | None] = field(default_factory=dict[Any, Any])
    """The bounded reference for each name, depth and number of items, or None if no value fits."""
    bounded_definitions: dict[str, Schema] = field(default_factory=dict[str, Schema])
    """The definitions of the bounded schema."""

    def __post_init__(self) -> None:
        self.reachable = reachable(self.definitions)

    def bound(self, unbounded: Any, at: _Nesting) -> Schema | None:
        if unbounded is False:
            return None
        schema = as_schema(unbounded)
        for part in schema.get("allOf", ()):
            schema = {**as_schema(part), **schema}
        if "$ref" in schema:
            return self.reference(schema, at)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            return {"enum": list(values)} if values else None
        options = alternatives(schema)
        if options is not None:
            return self.any_of(options, at)
        match schema.get("type"):
            case "string":
                return self.text(schema)
            case "integer" | "number" as kind:
                return _number(schema, kind)
            case "boolean" | "null" as kind:
                return {"type": kind}
            case "array":
                return self.array(schema, at)
            case "object":
                return self.object(schema, at)
            case _:
                return self.any_of([{"type": plain} for plain in _PLAIN], at)

    def reference(self, schema: Schema, at: _Nesting) -> Schema | None:
        name = name_in(schema["$ref"])
        below = self.reachable.get(name, set[str]())
        if name not in below:
            at = at._replace(inside="", depth=0)
        elif at.inside in below and name in self.reachable[at.inside]:
            at = at._replace(inside=name, depth=at.depth + 1)
        else:
            at = at._replace(inside=name, depth=1)
        if at.depth > self.deepest:
            return None
        siblings = {key: value for key, value in schema.items() if key not in _BESIDE_A_REFERENCE}
        if siblings:
            return self.bound({**self.definitions.get(name, {}), **siblings}, at)
        key = name, at.depth, at.items
        if key not in self.references:
            result = self.bound(self.definitions.get(name), at)
            if result is not None:
                label = f"d{len(self.bounded_definitions)}"
                self.bounded_definitions[label] = result
                result = {"$ref": f"#/$defs/{label}"}
            self.references[key] = result
        return self.references[key]

    def any_of(self, options: list[Schema], at: _Nesting) -> Schema | None:
        if any(option.get("type") in ("number", "integer") for option in options):
            # A Decimal, for example, may be a number or a text. If a grammar cannot restrict the
            # text to numbers, leave out the text.
            options = [option for option in options if "pattern" not in option or _pattern(option)]
        bounded: list[Schema] = []
        for unbounded in options:
            option = self.bound(unbounded, at)
            if option is not None and option not in bounded:
                bounded.append(option)
        return {"anyOf": bounded} if len(bounded) > 1 else next(iter(bounded), None)

    def text(self, schema: Schema) -> Schema | None:
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength", math.inf)
        if least > min(most, MOST_REQUIRED):
            return None
        if "pattern" not in schema and schema.get("format") in FORMS:
            return {"type": "string", "pattern": FORMS[schema["format"]]}
        bounded: Schema = {"type": "string"}
        if least:
            bounded["minLength"] = least
        longest = self.longest_text
        if pattern := _pattern(schema):
            bounded["pattern"] = pattern
            longest = max(longest, LONGEST_TEXT)  # a pattern may need more characters
        return {**bounded, "maxLength": int(min(most, max(longest, least)))}

    def array(self, schema: Schema, at: _Nesting) -> Schema | None:
        least = int(schema.get("minItems", 0))
        inside = at._replace(items=max(1, at.items // 2))
        first = [self.bound(item, inside) for item in schema.get("prefixItems", ())]
        rest = self.bound(schema.get("items", {}), inside)
        most = len(first) if rest is None else max(at.items, least, len(first))
        most = int(min(schema.get("maxItems", math.inf), most))
        if least > min(most, MOST_REQUIRED) or None in first[:most]:
            return None
        bounded: Schema = {"type": "array", "minItems": least, "maxItems": most}
        if most == 0:
            return {**bounded, "items": {"type": "null"}}  # the engine requires items
        bounded["items"] = rest if rest and most > len(first) else False
        return {**bounded, "prefixItems": first[:most]} if first else bounded

    def object(self, schema: Schema, at: _Nesting) -> Schema | None:
        if "properties" not in schema and schema.get("additionalProperties") is not False:
            return self.dictionary(schema, at)
        required = schema.get("required", ())
        properties: dict[str, Schema] = {}
        for name, unbounded in schema.get("properties", {}).items():
            value = self.bound(unbounded, at)
            if value is not None:
                properties[name] = value
            elif name in required:
                return None
        return _closed_object(properties, [name for name in required if name in properties])

    def dictionary(self, schema: Schema, at: _Nesting) -> Schema | None:
        least = int(schema.get("minProperties", 0))
        most = int(min(schema.get("maxProperties", math.inf), max(at.items, least)))
        if least > min(most, MOST_REQUIRED):
            return None
        keys = as_schema(schema.get("propertyNames"))
        if "$ref" in keys:
            keys = self.definitions.get(name_in(keys["$ref"]), {})
        if least and keys.get("minLength", 0) > MOST_REQUIRED:
            return None
        values = schema.get("additionalProperties", {})
        for pattern, values_of_pattern in as_schema(schema.get("patternProperties")).items():
            keys, values = {"pattern": pattern}, values_of_pattern
        value = self.bound(values, at._replace(items=max(1, at.items // 2)))
        names = [keys["const"]] if "const" in keys else keys.get("enum")
        if value is not None and names is not None:
            texts = list(dict.fromkeys(name for name in names if isinstance(name, str)))
            fits = least <= len(texts)
            return _closed_object(dict.fromkeys(texts, value), texts[:least]) if fits else None
        if value is None or most == 0:
            return _closed_object({}, []) if least == 0 else None
        return {
            **_closed_object({}, []),
            "patternProperties": {_key_pattern(keys): value},
            "minProperties": least,
            "maxProperties": most,
        }


def _number(schema: Schema, kind: str) -> Schema | None:
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    low, high = max(lows, default=-math.inf), min(highs, default=math.inf)
    if low < -LARGEST:
        low = -LARGEST if high > -LARGEST else max(low, high - LARGEST)
    if high > LARGEST:
        high = LARGEST if low < LARGEST else min(high, low + LARGEST)
    least = "exclusiveMinimum" if schema.get("exclusiveMinimum") == low else "minimum"
    most = "exclusiveMaximum" if schema.get("exclusiveMaximum") == high else "maximum"
    step = schema.get("multipleOf")
    if kind == "integer":
        low = math.ceil(low) if least == "minimum" else math.floor(low) + 1
        high = math.floor(high) if most == "maximum" else math.ceil(high) - 1
        least, most = "minimum", "maximum"
        step = step if step == int(step or 0) else None  # validation checks other steps
        if -(-low // (step or 1)) * (step or 1) > high:
            return None
    elif low > high or (low == high and (least, most) != ("minimum", "maximum")):
        return None
    elif low == high:
        return {"enum": [low]}
    elif step is None:
        # Allow enough digits for a thousand different values. Engines accept no step below 1e-9.
        places = max(4, 3 - math.floor(math.log10(high - low)))
        step = 10.0**-places if places <= 9 else None
    bounded: Schema = {"type": kind, least: low, most: high}
    return bounded if step is None else {**bounded, "multipleOf": step}


def _closed_object(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


# --- patterns ---------------------------------------------------------------------------------


def _pattern(schema: Schema) -> str:
    """Return the pattern of a text or a key. Empty if there is none, or if a grammar cannot express
    it."""
    pattern = schema.get("pattern", "")
    return "" if _BEYOND_GRAMMARS.search(pattern) else pattern


def _key_pattern(schema: Schema) -> str:
    """Return the pattern of a key. A grammar can bound the length of a key only by its pattern."""
    pattern = _pattern(schema) or FORMS.get(schema.get("format", ""), "")
    if pattern.startswith("^") and pattern.endswith("$") and not _ENDLESS.search(pattern):
        return pattern
    least = int(schema.get("minLength", 1))
    most = int(min(schema.get("maxLength", math.inf), max(LONGEST_KEY, least)))
    return rf'^[^"\\\x00-\x1f]{{{least},{most}}}$'


_DAY: Final = "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_CLOCK: Final = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"^({_BYTE}\.){{3}}{_BYTE}$"
_HOST: Final = r"[a-z]{2,12}(\.[a-z]{2,12}){1,2}"
_UUID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

FORMS: Final = {
    "date": f"^{_DAY}$",
    "date-time": f"^{_DAY}T{_CLOCK}Z?$",
    "time": f"^{_CLOCK}$",
    "duration": "^P([1-9][0-9]{0,2}D|T[1-9][0-9]?H([1-5]?[0-9]M)?|T[1-9][0-9]{0,2}M)$",
    "uuid": _UUID,
    "uuid4": _UUID,
    "ipv4": _IPV4,
    "ipvanyaddress": _IPV4,
    "ipv6": "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$",
    "email": rf"^[a-z0-9]{{1,12}}([._-][a-z0-9]{{1,12}})?@{_HOST}$",
    "uri": rf"^https?://{_HOST}(/[a-z0-9-]{{1,12}}){{0,2}}$",
}
"""Patterns for the `format` keywords of JSON Schema. A grammar gets the pattern instead of the
format, because engines know few formats and check them less strictly than pydantic. Texts that
match are short."""

_BEYOND_GRAMMARS: Final = re.compile(
    r"\(\?(=|!|<=|<!|>|\(|P=|P>|R|&)"  # lookaround, atomic groups, conditions, references
    r"|\\[bBAZzGK1-9]|\\k"  # word and text boundaries, back-references
    r"|[*+?}]\+"  # possessive repeats
)
_ENDLESS: Final = re.compile(r"[*+]|,\}")
_PLAIN: Final = ("string", "number", "boolean", "null")
_BESIDE_A_REFERENCE: Final = ("$ref", "allOf", "title", "description", "default", "examples")
