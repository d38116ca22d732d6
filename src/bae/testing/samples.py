"""Values for JSON schemas: `sample` makes one that fits, and `misfit` one that does not."""

from __future__ import annotations

import json
import re
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from fractions import Fraction
from importlib import import_module
from math import ceil, floor, inf
from random import Random
from typing import Any, Final, cast
from urllib.parse import unquote
from uuid import UUID

from bae.testing.scripted import ScriptError

Schema = Mapping[str, Any]


def sample(schema: Schema | bool, seed: int = 0) -> Any:
    """A JSON value that fits `schema`; another one for another `seed`.

    Meant for the schemas pydantic makes: references and recursion (gone into once), unions,
    enums, bounds, formats, simple patterns. What a schema does not say a sample cannot know: a
    validator of your own, a date in the past. Raises `ScriptError` where nothing fits, or nothing
    was found that matches a pattern.
    """
    return _Sampler(schema, seed).value(schema)


def misfit(schema: Schema | None) -> Any:
    """Valid JSON that does not fit `schema`: a sample of it with one property of a wrong type, as
    a model gets it wrong, or something else altogether where every property takes anything."""
    sampler = _Sampler(schema or {}, 0)
    right = sampler.value(schema or {})
    if not isinstance(right, dict):
        return _UNEXPECTED
    values = cast(dict[str, Any], right)
    for name, rule in sampler.resolved(schema or {}).get("properties", {}).items():
        kinds = sampler.kinds(rule)
        wrong = _UNEXPECTED if "object" not in kinds else "unexpected"
        if name in values and not {"object", "string"} <= kinds:
            return {**values, name: wrong}
    return ["unexpected"]


_UNEXPECTED: Final = {"unexpected": [None]}
"""An object that nothing makes a value of; true would do as a number, and so as an address."""
_MOST_VALUES: Final = 5_000
"""How many values are tried for one schema."""


class _Sampler:
    def __init__(self, root: Schema | bool, seed: int) -> None:
        self._root = root
        self._random = Random(seed)
        self._left = _MOST_VALUES

    def value(self, schema: Schema | bool, inside: tuple[str, ...] = ()) -> Any:
        """A value, the smallest one where `inside` has a reference twice."""
        self._left -= 1
        if isinstance(schema, bool):
            if not schema:
                raise impossible(schema, "it allows no value")
            return self._word()
        if inside.count(inside[-1] if inside else "") > 3 or self._left < 0:
            raise impossible(schema, "its values hold another one, without end")
        if "$ref" in schema:
            return self.value(self.resolved(schema), (*inside, schema["$ref"]))
        if "allOf" in schema:
            return self.value(self.resolved(schema), inside)
        options = self._options(schema)
        if options is not None:
            return self._first_of(options, inside)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            if not schema["enum"]:
                raise impossible(schema, "its enum allows no value")
            return self._random.choice(schema["enum"])
        match _kind_of(schema):
            case "null":
                return None
            case "boolean":
                return self._random.random() < 0.5
            case "integer" | "number" as kind:
                return self._number(schema, whole=kind == "integer")
            case "object":
                return self._object(schema, inside)
            case "array":
                return self._array(schema, inside)
            case _:
                return self._text(schema, inside)

    def resolved(self, schema: Any) -> Schema:
        """A schema with what its references and all of its `allOf` say."""
        if isinstance(schema, bool):
            return {}
        found = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        parts: list[Any] = [self._target(schema["$ref"])] if "$ref" in schema else []
        for part in (*parts, *schema.get("allOf", ())):
            rules = self.resolved(part)
            properties = {**rules.get("properties", {}), **found.get("properties", {})}
            required = [*rules.get("required", ()), *found.get("required", ())]
            found = {**rules, **found}
            found |= {"properties": properties} if properties else {}
            found |= {"required": required} if required else {}
        return found

    def kinds(self, schema: Any) -> set[str]:
        """Which of the types of JSON a value may have; every one where nothing is said."""
        rules = self.resolved(schema)
        options = self._options(rules)
        if options is not None:
            return set[str]().union(*map(self.kinds, options))
        if "enum" in rules or "const" in rules:
            return {"one of some"}
        kind = _kind_of(rules, "")
        return {kind} if kind else {"object", "string"}

    def _target(self, reference: str) -> Any:
        found: Any = self._root
        try:
            if not reference.startswith("#"):
                raise KeyError(reference)
            for part in reference[1:].split("/")[1:]:
                found = found[unquote(part).replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError):
            raise impossible({"$ref": reference}, "it points to nothing in the schema") from None
        return found

    def _options(self, schema: Schema) -> list[Any] | None:
        for key in ("anyOf", "oneOf"):
            if key in schema:
                rest = {name: rule for name, rule in schema.items() if name != key}
                return [{**rest, **o} if isinstance(o, Mapping) else o for o in schema[key]]
        kinds = schema.get("type")
        if not isinstance(kinds, list):
            return None
        return [{**schema, "type": kind} for kind in cast(list[str], kinds)]

    def _first_of(self, options: list[Any], inside: tuple[str, ...]) -> Any:
        self._random.shuffle(options)
        numbers = any(self.kinds(option) & {"integer", "number"} for option in options)

        def rank(option: Any) -> tuple[bool, bool, bool]:
            recursive = _is_small(inside) and "$ref" in json.dumps(self.resolved(option))
            # A decimal is a number or any text; the text has to be a number, too.
            free = numbers and self.kinds(option) == {"string"}
            null = self.kinds(option) == {"null"} and not _is_small(inside)
            return recursive, null, free

        error: ScriptError | None = None
        for option in sorted(options, key=rank):
            try:
                return self.value(option, inside)
            except ScriptError as raised:
                error = raised
        raise error or impossible({"anyOf": options}, "it allows no value")

    def _object(self, schema: Schema, inside: tuple[str, ...]) -> dict[str, Any]:
        properties = cast(Mapping[str, Any], schema.get("properties", {}))
        required = cast(list[str], schema.get("required", []))
        others = schema.get("additionalProperties", True)
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", inf)
        found: dict[str, Any] = {}
        for name in dict.fromkeys([*required, *properties]):
            if name in required:
                found[name] = self.value(properties.get(name, others), inside)
            elif len(found) < (least if _is_small(inside) else most):
                try:
                    found[name] = self.value(properties[name], inside)
                except ScriptError:
                    continue
        found = {name: found[name] for name in (*properties, *found) if name in found}
        patterned = cast(Mapping[str, Any], schema.get("patternProperties", {}))
        names, rule = schema.get("propertyNames"), others
        if patterned:
            pattern, rule = next(iter(patterned.items()))
            names = {"pattern": pattern}
        wanted = least
        if not properties and not _is_small(inside) and rule not in (True, False, {}):
            wanted = max(least, min(most, self._random.randint(1, 2)))
        for attempt in range(100):
            if len(found) >= wanted:
                break
            # A name, and a number where the keys of a dict are numbers.
            key = str(attempt)
            if names is not None:
                key = str(self.value({"type": "string", **self.resolved(names)}, inside))
            if key not in found:
                found[key] = self.value(rule, inside)
        if len(found) < least:
            raise impossible(schema, f"fewer than {least} names for its properties were found")
        return found

    def _array(self, schema: Schema, inside: tuple[str, ...]) -> list[Any]:
        first = cast(list[Any], schema.get("prefixItems", []))
        rest = schema.get("items", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems", inf)
        most = min(most, len(first)) if rest is False else most
        wanted = max(least, min(len(first), most))
        if "items" in schema and not _is_small(inside):
            wanted = max(wanted, min(most, self._random.randint(1, 2)))
        found: list[Any] = []
        for _ in range(100 + 10 * wanted):
            if len(found) >= wanted:
                break
            try:
                item = self.value(first[len(found)] if len(found) < len(first) else rest, inside)
            except ScriptError:
                if len(found) >= least:
                    break
                raise
            # Compared as Python does it, since 1, 1.0 and true are one item of a Python set.
            if not schema.get("uniqueItems") or item not in found:
                found.append(item)
        if not least <= len(found) <= most:
            raise impossible(schema, f"{len(found)} items were found that fit")
        return found

    def _number(self, schema: Schema, *, whole: bool) -> int | float:
        """A whole number wherever one fits: it is valid as a float, and as a decimal."""
        lows = [Fraction(str(schema[k])) for k in ("minimum", "exclusiveMinimum") if k in schema]
        highs = [Fraction(str(schema[k])) for k in ("maximum", "exclusiveMaximum") if k in schema]
        step = Fraction(str(schema.get("multipleOf", 1)))
        step = Fraction(step.numerator) if whole else step
        last = floor(min(highs) / step) if highs else None
        first = ceil(max(lows) / step) if lows else 0 if last is None or last >= 0 else last - 100
        last = first + 100 if last is None else min(last, first + 100)
        # Small ones mostly come first: some providers are given bounds in words alone.
        places = range(first, last + 1)
        order = sorted(places, key=lambda each: self._random.random() * (each - first + 1) ** 2)
        candidates = [place * step for place in order]
        if lows and highs and not whole and "multipleOf" not in schema:
            candidates.append((max(lows) + min(highs)) / 2)
        for each in candidates:
            low, high = schema.get("exclusiveMinimum", -inf), schema.get("exclusiveMaximum", inf)
            if low < each < high:
                return int(each) if each.denominator == 1 else float(each)
        raise impossible(schema, "no number is within its bounds")

    def _text(self, schema: Schema, inside: tuple[str, ...]) -> str:
        if schema.get("contentMediaType") == "application/json" and "contentSchema" in schema:
            return json.dumps(self.value(schema["contentSchema"], inside))
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", inf)
        pattern, make = schema.get("pattern"), _FORMATS.get(schema.get("format", ""))
        for attempt in range(200):
            if pattern is not None:
                text = _written(pattern, self._random, attempt)
                if text is None:
                    continue
            elif make is not None:
                text = make(self._random)
                text += "x" * (shortest - len(text)) if schema["format"] in _EXTENSIBLE else ""
            else:
                text = " ".join(self._word() for _ in range(self._random.randint(1, 2)))
                while len(text) < shortest:
                    text += f" {self._word()}"
                text = text if len(text) <= longest else text[: int(longest)]
                # A space at the end would be lost to a field that strips its text.
                text = f"{text[:-1]}x" if text.endswith(" ") else text
            if shortest <= len(text) <= longest:
                return text
        raise impossible(schema, "no text that fits was found")

    def _word(self) -> str:
        return self._random.choice(_WORDS)


def _is_small(inside: tuple[str, ...]) -> bool:
    return len(set(inside)) < len(inside) or len(inside) > 6


_TELLING: Final = {
    "object": ("properties", "additionalProperties", "patternProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("pattern", "format", "minLength", "maxLength", "contentSchema"),
}


def _kind_of(schema: Schema, default: str = "string") -> str:
    """The type of the values that fit, told from the keywords where it is not given."""
    told = (kind for kind, keywords in _TELLING.items() if not schema.keys().isdisjoint(keywords))
    return schema.get("type") or next(told, default)


def impossible(schema: Any, why: str) -> ScriptError:
    """The error for a schema that no value can be made for."""
    shown = json.dumps(schema, default=str)
    shown = shown if len(shown) <= 300 else f"{shown[:300]}…"
    return ScriptError(
        f"no sample can be made of the schema {shown}: {why}",
        code="bae-sample-impossible",
        fix="script an answer for it, or make the schema one that values fit",
    )


# Formats

_WORDS: Final = (
    *("amber", "birch", "cedar", "delta", "ember", "fable", "glade"),
    *("iris", "linen", "maple", "olive", "river"),
)


def _word(random: Random) -> str:
    return random.choice(_WORDS)


def _day(random: Random) -> str:
    return (date(2020, 1, 1) + timedelta(days=random.randrange(2000))).isoformat()


def _time(random: Random) -> str:
    return f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}Z"


def _url(random: Random) -> str:
    return f"https://example.com/{_word(random)}/{random.randrange(1000)}"


def _ipv4(random: Random) -> str:
    return f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(1, 255)}"


def _uuid(version: int) -> Callable[[Random], str]:
    def make(random: Random) -> str:
        bits = random.getrandbits(128)
        bits = bits & ~(0xF << 76) | version << 76  # `UUID(version=…)` knows 6 to 8 from 3.14 on
        return str(UUID(int=bits & ~(0x3 << 62) | 0x2 << 62))  # the variant

    return make


_FORMATS: Final[dict[str, Callable[[Random], str]]] = {
    "date": _day,
    "time": _time,
    "date-time": lambda r: f"{_day(r)}T{_time(r)}",
    "duration": lambda r: f"PT{r.randrange(1, 600)}M",
    "email": lambda r: f"{_word(r)}{r.randrange(100)}@example.com",
    "name-email": lambda r: f"{_word(r).title()} <{_word(r)}@example.com>",
    "uri": _url,
    "url": _url,
    "uri-reference": lambda r: f"/{_word(r)}/{r.randrange(1000)}",
    "multi-host-uri": lambda r: f"postgres://{_word(r)}@localhost:5432/{_word(r)}",
    "hostname": lambda r: f"{_word(r)}.example.com",
    "ipv4": _ipv4,
    "ipv6": lambda r: f"2001:db8::{r.randrange(1, 65536):x}",
    "ipvanyaddress": _ipv4,
    "ipv4interface": lambda r: f"{_ipv4(r)}/24",
    "ipv6interface": lambda r: f"2001:db8::{r.randrange(1, 65536):x}/64",
    "ipvanyinterface": lambda r: f"{_ipv4(r)}/24",
    "ipv4network": lambda r: f"10.{r.randrange(256)}.{r.randrange(256)}.0/24",
    "ipv6network": lambda r: f"2001:db8:{r.randrange(1, 65536):x}::/64",
    "ipvanynetwork": lambda r: f"10.{r.randrange(256)}.{r.randrange(256)}.0/24",
    "uuid": _uuid(4),
    **{f"uuid{version}": _uuid(version) for version in range(1, 9)},
    "path": lambda r: f"{_word(r)}/{_word(r)}.txt",
    "file-path": lambda r: f"{_word(r)}/{_word(r)}.txt",
    "directory-path": lambda _: ".",
    "json-string": lambda r: json.dumps(_word(r)),
    "base64": lambda r: b64encode(_word(r).encode()).decode(),
    "base64url": lambda r: urlsafe_b64encode(_word(r).encode()).decode(),
}
_EXTENSIBLE: Final = {"uri", "url", "uri-reference", "path", "file-path"}
"""Formats that stay right when the text goes on."""


# Patterns

_PRINTABLE: Final = string.ascii_letters + string.digits + " !#%&*+,-./:;<=>@_~^|"
_CLASSES: Final = {
    "DIGIT": string.digits,
    "WORD": string.ascii_lowercase + string.digits + "_",
    "SPACE": " ",
}


def _written(pattern: str, random: Random, spread: int) -> str | None:
    """A text to try for a pattern, repeating its parts up to `spread` times more than they must
    be; None where the text does not match, or the pattern is of another dialect."""
    try:
        # How `re` reads a pattern is stable, though it is not documented.
        parsed: Any = import_module("re._parser").parse(pattern)
    except re.error:
        return None
    groups: dict[int, str] = {}

    def write(parts: Iterable[tuple[Any, Any]]) -> str:
        return "".join(write_part(str(kind), argument) for kind, argument in parts)

    def write_part(kind: str, argument: Any) -> str:
        match kind:
            case "LITERAL":
                return chr(argument)
            case "ANY":
                return random.choice(_CLASSES["WORD"])
            case "NOT_LITERAL":
                return random.choice(_without(chr(argument)))
            case "IN":
                return random.choice(_chars_of(argument) or " ")
            case "BRANCH":
                return write(random.choice(argument[1]))
            case "SUBPATTERN":
                groups[argument[0]] = write(argument[3])
                return groups[argument[0]]
            case "GROUPREF":
                return groups.get(argument, "")
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, inner = argument
                times = random.randint(least, min(int(most), least + min(spread, 40)))
                return "".join(write(inner) for _ in range(times))
            case "ATOMIC_GROUP":
                return write(argument)
            case _:  # an anchor or a look-around, which is checked at the end
                return ""

    text = write(parsed)
    return text if re.search(pattern, text) else None


def _chars_of(items: Iterable[tuple[Any, Any]]) -> str:
    chars, negated = "", False
    for kind, argument in items:
        match str(kind):
            case "NEGATE":
                negated = True
            case "LITERAL":
                chars += chr(argument)
            case "RANGE":  # some of a wide one will do
                first, last = argument
                chars += "".join(map(chr, range(first, min(last, first + 127) + 1)))
            case _:
                name = str(argument).removeprefix("CATEGORY_")
                known = _CLASSES.get(name.removeprefix("NOT_"), "")
                chars += _without(known) if name.startswith("NOT_") else known
    return _without(chars) if negated else chars


def _without(chars: str) -> str:
    return "".join(char for char in _PRINTABLE if char not in chars)
