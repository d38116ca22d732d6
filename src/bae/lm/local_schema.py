"""Schemas for the local model in which everything is bounded, so that an answer always ends,
and how long an answer can get. What a grammar cannot enforce is left to validation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from bae.exceptions import BaeLMError
from bae.lm.json_schemas import (
    Schema,
    alternatives,
    as_schema,
    definitions_of,
    name_in,
    reachable,
)

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
    while True:
        bounds: Schema = {"longest_text": text, "longest_list": items, "deepest": deepest}
        strict = bounded(given, **bounds)
        if strict.longest <= room or (items == 1 and text <= _SHORTEST_TEXT):
            break
        # Lists multiply, so they are reduced first; but a list of one is hardly a list.
        if items > 2 or text <= _SHORTEST_TEXT:
            items -= max(1, items // 4)
        else:
            text = max(_SHORTEST_TEXT, text // 2)
    loose = bounded(given, **bounds, own_patterns=False)
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
    made = _Pass(definitions_of(schema), longest_text, longest_list, deepest, own_patterns)
    root = made.definitions[""]
    found = made.one(root, _TOP)
    if found is None:
        properties = as_schema(root.get("properties"))
        bad = [name for name, each in properties.items() if made.one(each, _TOP) is None]
        raise BaeLMError(
            f"no answer of bounded length fits the schema of {schema.get('title', 'the answer')}"
            + (f": there is no value for {', '.join(bad)}" if bad else ""),
            code="bae-lm-schema-unbounded",
            sent=False,
            fix="let a recursive type end, with a None or an empty list, and check that every "
            "least size or value is below its greatest",
        )
    return found._replace(schema={**found.schema, "$defs": made.named}) if made.named else found


class _Nesting(NamedTuple):
    """The recursive type that a part of a schema is in, and how often that was entered."""

    inside: str
    depth: int


_TOP: Final = _Nesting("", 0)


@dataclass
class _Pass:
    """The pass over one schema. Methods return None where no value fits."""

    definitions: dict[str, Schema]
    longest_text: int
    longest_list: int
    deepest: int
    own_patterns: bool
    done: dict[tuple[str, int], Bounded | None] = field(default_factory=dict[Any, Any])
    named: dict[str, Schema] = field(default_factory=dict[str, Schema])

    def __post_init__(self) -> None:
        self.reachable = reachable(self.definitions)

    def one(self, given: Any, at: _Nesting) -> Bounded | None:
        if given is False:
            return None
        schema = as_schema(given)
        for part in schema.get("allOf", ()):
            schema = {**as_schema(part), **schema}
        if "$ref" in schema:
            return self.referred(schema, at)
        if "const" in schema:
            return _one_of({"const": schema["const"]}, [schema["const"]])
        if "enum" in schema:
            return _one_of({"enum": list(schema["enum"])}, schema["enum"])
        options = alternatives(schema)
        if options is not None:
            return self.any_of(options, at)
        match schema.get("type"):
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
                return self.array(schema, at)
            case "object":
                return self.object(schema, at)
            case _:
                return self.any_of([{"type": each} for each in _PLAIN], at)

    def referred(self, schema: Schema, at: _Nesting) -> Bounded | None:
        name = name_in(schema["$ref"])
        below = self.reachable.get(name, set[str]())
        if name not in below:
            at = _TOP
        elif at.inside in below and name in self.reachable[at.inside]:
            at = _Nesting(name, at.depth + 1)
        else:
            at = _Nesting(name, 1)
        if at.depth > self.deepest:
            return None
        own = {key: value for key, value in schema.items() if key not in _BESIDE_A_REFERENCE}
        if own:
            return self.one({**self.definitions.get(name, {}), **own}, at)
        key = name, at.depth
        if key not in self.done:
            found = self.one(self.definitions.get(name), at)
            if found is not None:
                label = f"d{len(self.named)}"
                self.named[label] = found.schema
                found = found._replace(schema={"$ref": f"#/$defs/{label}"})
            self.done[key] = found
        return self.done[key]

    def any_of(self, options: list[Schema], at: _Nesting) -> Bounded | None:
        if any(each.get("type") in ("number", "integer") for each in options):
            # A number that may also be a text, such as a Decimal: a text that cannot be kept to
            # the form of a number is better left out.
            options = [each for each in options if "pattern" not in each or self.keeps(each)]
        made: list[Bounded] = []
        for each in options:
            found = self.one(each, at)
            if found is not None and found not in made:
                made.append(found)
        if len(made) < 2:
            return made[0] if made else None
        return Bounded(
            {"anyOf": [each.schema for each in made]},
            min(each.shortest for each in made),
            max(each.longest for each in made),
        )

    def keeps(self, schema: Schema) -> bool:
        """Whether the answer can be kept to the pattern of a text or a key."""
        return self.own_patterns and _BEYOND_GRAMMARS.search(schema["pattern"]) is None

    def text(self, schema: Schema) -> Bounded | None:
        least = int(schema.get("minLength", 0))
        own = schema.get("maxLength", math.inf)
        needed = _width(schema["pattern"])[0] if "pattern" in schema else 0
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
            room = _width(form)[1]
            if room > LONGEST_TEXT:
                room = int(min(own, max(most, _ROOM_FOR_A_FORM)))
            if least <= room <= own:
                return Bounded({**made, "pattern": form, "maxLength": room}, 2, 2 + room)
        if least:
            made["minLength"] = least
        return Bounded({**made, "maxLength": most}, 2 + least, 2 + most)

    def array(self, schema: Schema, at: _Nesting) -> Bounded | None:
        least = int(schema.get("minItems", 0))
        first = [self.one(each, at) for each in schema.get("prefixItems", ())]
        rest = self.one(schema.get("items", {}), at)
        most = len(first) if rest is None else max(self.longest_list, least, len(first))
        most = int(min(schema.get("maxItems", math.inf), most))
        items = [each for each in [*first, *[rest] * (most - len(first))][:most] if each]
        if least > most or len(items) < most:
            return None
        made: Schema = {"type": "array", "minItems": least, "maxItems": most}
        if most == 0:
            made["items"] = {"type": "null"}  # the engine wants some
        else:
            made["items"] = rest.schema if rest and most > len(first) else False
        if first and most:
            made["prefixItems"] = [each.schema for each in items[: len(first)]]
        return Bounded(
            made,
            _joined(each.shortest for each in items[:least]),
            _joined(each.longest for each in items),
        )

    def object(self, schema: Schema, at: _Nesting) -> Bounded | None:
        if "properties" not in schema and schema.get("additionalProperties") is not False:
            return self.dictionary(schema, at)
        required = schema.get("required", ())
        found: dict[str, Bounded] = {}
        for name, each in schema.get("properties", {}).items():
            value = self.one(each, at)
            if value is not None:
                found[name] = value
            elif name in required:
                return None
        return _closed(found, [name for name in required if name in found])

    def dictionary(self, schema: Schema, at: _Nesting) -> Bounded | None:
        least = int(schema.get("minProperties", 0))
        most = int(min(schema.get("maxProperties", math.inf), max(self.longest_list, least)))
        if least > most:
            return None
        keys = as_schema(schema.get("propertyNames"))
        if "$ref" in keys:
            keys = self.definitions.get(name_in(keys["$ref"]), {})
        values = schema.get("additionalProperties", {})
        for pattern, each in as_schema(schema.get("patternProperties")).items():
            keys, values = {"pattern": pattern}, each
        value = self.one(values, at)
        names = [keys["const"]] if "const" in keys else keys.get("enum")
        if value is not None and names is not None:
            texts = list(dict.fromkeys(name for name in names if isinstance(name, str)))
            fits = least <= len(texts)
            return _closed(dict.fromkeys(texts, value), texts[:least]) if fits else None
        key = self.key(keys)
        if value is None or key is None or most == 0:
            return _closed({}, []) if least == 0 else None
        made = {"patternProperties": {key: value.schema}, "minProperties": least}
        return Bounded(
            {**_closed({}, []).schema, **made, "maxProperties": most},
            _joined([3 + 2 + value.shortest] * least),
            _joined([LONGEST_KEY + 2 + 2 + value.longest] * most),
        )

    def key(self, schema: Schema) -> str | None:
        """The pattern of a key: a grammar has no other way to bound one."""
        own = schema["pattern"] if "pattern" in schema and self.keeps(schema) else ""
        pattern = own or FORMS.get(schema.get("format", ""), "")
        whole = pattern.startswith("^") and pattern.endswith("$")
        if whole and _width(pattern)[1] <= LONGEST_TEXT:
            return pattern
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


# --- patterns ---------------------------------------------------------------------------------


def _width(pattern: str) -> tuple[int, int]:
    """The characters of the shortest and the longest text that matches, as far as Python can read
    the pattern."""
    parser: Any = import_module("re._parser")
    try:
        return parser.parse(pattern).getwidth()
    except (re.error, OverflowError, RecursionError):
        return 0, LARGEST


_DAY: Final = (
    "([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
    "|[12][0-9](0[48]|[2468][048]|[13579][26])-02-29)"
)
_CLOCK: Final = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_HOURS: Final = "[0-9]{1,2}H([0-5]?[0-9]M)?"
_HEX: Final = "[0-9a-f]"
_HOST: Final = r"([a-z0-9]+(-[a-z0-9]+)*\.)+[a-z]{2,6}"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"^({_BYTE}\.){{3}}{_BYTE}$"


def _uuid(version: str) -> str:
    return f"^{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}$"


FORMS: Final = {
    "date": f"^{_DAY}$",
    "date-time": f"^{_DAY}T{_CLOCK}(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])?$",
    "time": f"^{_CLOCK}$",
    "duration": f"^P([0-9]{{1,3}}D(T{_HOURS})?|T({_HOURS}|[0-9]{{1,3}}M|[0-9]{{1,4}}S))$",
    "uuid": _uuid("[1-5]"),
    **{f"uuid{version}": _uuid(str(version)) for version in (1, 3, 4, 5, 6, 7, 8)},
    "ipv4": _IPV4,
    "ipv6": f"^({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}$",
    "ipvanyaddress": _IPV4,
    "hostname": f"^{_HOST}$",
    "email": rf"^[a-z0-9]+([._-][a-z0-9]+)*@{_HOST}$",
    "uri": rf"^https?://{_HOST}(/[A-Za-z0-9._~-]*)*$",
}
"""By the word of JSON schemas. A grammar gets a pattern and not the word, because engines know few
of those words and read some more loosely than pydantic."""

_BEYOND_GRAMMARS: Final = re.compile(
    r"\(\?(=|!|<=|<!|>|\(|P=|P>|R|&)"  # lookaround, atomic groups, conditions, references
    r"|\\[bBAZzGK1-9]|\\k"  # word and text boundaries, back-references
    r"|[*+?}]\+"  # possessive repeats
)
_PLAIN: Final = ("string", "number", "boolean", "null")
_BESIDE_A_REFERENCE: Final = ("$ref", "allOf", "title", "description", "default", "examples")
_ROOM_FOR_A_FORM: Final = 40
_SHORTEST_TEXT: Final = 32
