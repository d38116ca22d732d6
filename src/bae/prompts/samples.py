"""Values for JSON schemas: `sample` makes one that fits, and `misfit` one that does not."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from importlib import import_module
from math import ceil, floor, inf
from random import Random
from typing import Any, Final, cast
from uuid import UUID

from bae.exceptions import ScriptError

SampledSchema = Mapping[str, Any]


def sample(schema: SampledSchema | bool, seed: int = 0) -> Any:
    """A JSON value that fits `schema`; another value for another `seed`.

    It handles the schemas that pydantic makes: references and recursion (followed once), unions,
    enums, bounds, common formats, simple patterns. It cannot know rules outside the schema: a
    validator of your own, a date in the past. Raises `ScriptError` if nothing fits, if no match of
    a pattern was found, or if a fitting value has more than 5,000 values or 100,000 characters.
    """
    return _Sampler(schema, seed).value(schema)


def misfit(schema: SampledSchema | None) -> Any:
    """Valid JSON that does not fit `schema`: a sample with one property of a wrong type, the usual
    mistake of a model. If every property takes anything, a completely different value."""
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


_FILES: Final = {
    "image": {
        "name": "sample.gif",
        "data": "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAAAAAAALAAAAAABAAEAAAIBRAA7",
    },
    "document": {"name": "sample.txt", "data": "data:text/plain;base64,c2FtcGxlCg=="},
}
"""Samples of the files of `bae.files`, by the format in their schemas."""
_UNEXPECTED: Final = {"unexpected": [None]}
"""An object that no sample equals; true would also be a number, and so an address."""
_MOST_VALUES: Final = 5_000
"""How many values are tried for one schema."""
_DEEPEST: Final = 20
"""How many arrays inside each other are examined before any item is made."""
_MOST_CHARACTERS: Final = 100_000
"""How many characters are written for one schema, including texts that do not fit."""


class _Sampler:
    def __init__(self, root: SampledSchema | bool, seed: int) -> None:
        self._root = root
        self._random = Random(seed)
        self._left = _MOST_VALUES
        self._characters = _MOST_CHARACTERS

    def value(self, schema: SampledSchema | bool, inside: tuple[str, ...] = ()) -> Any:
        """A value; the smallest value if `inside` has a reference twice."""
        self._left -= 1
        if self._left < 0:
            raise impossible(schema, f"it takes more than {_MOST_VALUES:,} values")
        if isinstance(schema, bool):
            if not schema:
                raise impossible(schema, "it allows no value")
            return _word(self._random)
        if inside.count(inside[-1] if inside else "") > 3:
            raise impossible(schema, "its values hold another one, without end")
        if "$ref" in schema:
            return self.value(self.resolved(schema), (*inside, schema["$ref"]))
        if schema.get("format") in _FILES:
            return _FILES[schema["format"]]
        options = _options(schema)
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
                return self._text(schema)

    def resolved(self, schema: Any) -> SampledSchema:
        """A schema merged with the target of its reference."""
        if isinstance(schema, bool):
            return {}
        if "$ref" not in schema:
            return schema
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return {**self.resolved(self._target(schema["$ref"])), **own}

    def kinds(self, schema: Any) -> set[str]:
        """The types of JSON that a value may have; all of them if the schema names none."""
        rules = self.resolved(schema)
        options = _options(rules)
        if options is not None:
            return set[str]().union(*map(self.kinds, options))
        if "enum" in rules or "const" in rules:
            return {"one of some"}
        kind = _kind_of(rules, "")
        return {kind} if kind else {"object", "string"}

    def _target(self, reference: str) -> Any:
        target: Any = self._root
        try:
            if not reference.startswith("#"):
                raise KeyError(reference)
            for part in reference[1:].split("/")[1:]:
                target = target[part.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError):
            raise impossible({"$ref": reference}, "it points to nothing in the schema") from None
        return target

    def _first_of(self, options: list[Any], inside: tuple[str, ...]) -> Any:
        self._random.shuffle(options)
        numbers = any(self.kinds(option) & {"integer", "number"} for option in options)

        def rank(option: Any) -> tuple[bool, bool, bool]:
            recursive = _is_small(inside) and "$ref" in json.dumps(self.resolved(option))
            # A decimal is a number or any text, but the text must be a number too.
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

    def _object(self, schema: SampledSchema, inside: tuple[str, ...]) -> dict[str, Any]:
        properties = cast(Mapping[str, Any], schema.get("properties", {}))
        required = cast(list[str], schema.get("required", []))
        others, names = schema.get("additionalProperties", True), schema.get("propertyNames")
        least = wanted = schema.get("minProperties", 0)
        self._refuse_more_than_left(schema, least)
        sample: dict[str, Any] = {}
        for name in dict.fromkeys([*properties, *required]):
            if name in required:
                sample[name] = self.value(properties.get(name, others), inside)
            elif not _is_small(inside):
                try:
                    sample[name] = self.value(properties[name], inside)
                except ScriptError:
                    continue
        if not properties and not _is_small(inside) and others not in (True, False, {}):
            wanted = max(least, min(schema.get("maxProperties", 2), self._random.randint(1, 2)))
        for attempt in range(100):
            if len(sample) >= wanted:
                break
            # A name; a number if the keys of a dict are numbers.
            key = str(attempt)
            if names is not None:
                key = str(self.value({"type": "string", **self.resolved(names)}, inside))
            if key not in sample:
                sample[key] = self.value(others, inside)
        if len(sample) < least:
            raise impossible(schema, f"fewer than {least} names for its properties were found")
        return sample

    def _array(self, schema: SampledSchema, inside: tuple[str, ...]) -> list[Any]:
        first = cast(list[Any], schema.get("prefixItems", []))
        rest = schema.get("items", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems", inf)
        most = min(most, len(first)) if rest is False else most
        self._refuse_more_than_left(schema, self._least_items(schema))
        wanted = max(least, min(len(first), most))
        if "items" in schema and not _is_small(inside):
            wanted = max(wanted, min(most, self._random.randint(1, 2)))
        sample: list[Any] = []
        for _ in range(100 + 10 * wanted):
            if len(sample) >= wanted:
                break
            try:
                item = self.value(first[len(sample)] if len(sample) < len(first) else rest, inside)
            except ScriptError:
                if len(sample) >= least:
                    break
                raise
            # Compared as Python does it, since 1, 1.0 and true are one item of a Python set.
            if not schema.get("uniqueItems") or item not in sample:
                sample.append(item)
        if not least <= len(sample) <= most:
            raise impossible(schema, f"{len(sample)} items were found that fit")
        return sample

    def _least_items(self, schema: SampledSchema) -> int:
        """How many items an array has at least, including arrays inside it."""
        count = 1
        for _ in range(_DEEPEST):
            least: int = schema.get("minItems", 0)
            if not least or schema.get("prefixItems"):
                return max(count, least)
            count *= least
            schema = self.resolved(schema.get("items", True))
        return count

    def _refuse_more_than_left(self, schema: SampledSchema, least: int) -> None:
        if least > self._left:
            raise impossible(schema, f"it takes more than {_MOST_VALUES:,} values")

    def _number(self, schema: SampledSchema, *, whole: bool) -> int | float:
        """A whole number if one fits: it is valid as a float, and as a decimal."""
        try:
            return self._find_number(schema, whole)
        except OverflowError:
            raise impossible(schema, "its bounds are too large, or too close") from None

    def _find_number(self, schema: SampledSchema, whole: bool) -> int | float:
        above, below = schema.get("exclusiveMinimum", -inf), schema.get("exclusiveMaximum", inf)
        low, high = max(schema.get("minimum", -inf), above), min(schema.get("maximum", inf), below)
        step = schema.get("multipleOf", 1)
        first = ceil(low / step) if low > -inf else 0 if high >= 0 else floor(high / step) - 100
        # Mostly small numbers first: for some providers the bounds are only in words.
        order = sorted(range(101), key=lambda each: self._random.random() * (each + 1) ** 2)
        candidates = [(first + each) * step for each in order]
        if not whole and "multipleOf" not in schema and -inf < low <= high < inf:
            candidates.append((low + high) / 2)
        for candidate in candidates:
            if low <= candidate <= high and above < candidate < below:
                return candidate
        raise impossible(schema, "no number is within its bounds")

    def _text(self, schema: SampledSchema) -> str:
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", inf)
        pattern, make = schema.get("pattern"), _FORMATS.get(schema.get("format", ""))
        for attempt in range(200 if shortest <= longest else 0):
            if shortest > self._characters or self._characters <= 0:
                raise impossible(schema, f"it takes more than {_MOST_CHARACTERS:,} characters")
            if pattern is not None:
                text, written = _make_text(pattern, self._random, attempt, self._characters)
                self._characters -= written
            elif make is not None:
                text = make(self._random)
            else:
                text = _word(self._random)
                while len(text) < shortest:
                    text += f" {_word(self._random)}"
                text = text if len(text) <= longest else text[: int(longest)]
                # A field that strips its text would lose a space at the end.
                text = f"{text[:-1]}x" if text.endswith(" ") else text
            if text is not None and shortest <= len(text) <= longest:
                self._characters -= len(text) if pattern is None else 0
                return text
        raise impossible(schema, "no text that fits was found")


def _options(schema: SampledSchema) -> list[Any] | None:
    for key in ("anyOf", "oneOf"):
        if key in schema:
            rest = {name: rule for name, rule in schema.items() if name != key}
            return [{**rest, **o} if isinstance(o, Mapping) else o for o in schema[key]]
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return None
    return [{**schema, "type": kind} for kind in cast(list[str], kinds)]


def _is_small(inside: tuple[str, ...]) -> bool:
    return len(set(inside)) < len(inside) or len(inside) > 6


_KEYWORDS: Final = {
    "object": ("properties", "additionalProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("pattern", "format", "minLength", "maxLength"),
}


def _kind_of(schema: SampledSchema, default: str = "string") -> str:
    """The type of the values that fit, derived from the keywords if the schema has none."""
    kinds = (kind for kind, words in _KEYWORDS.items() if not schema.keys().isdisjoint(words))
    return schema.get("type") or next(kinds, default)


def impossible(schema: Any, why: str) -> ScriptError:
    """The error for a schema that no value can be made for."""
    shown = json.dumps(schema, default=str)
    shown = shown if len(shown) <= 300 else f"{shown[:300]}…"
    return ScriptError(
        f"no sample can be made of the schema {shown}: {why}",
        code="bae-sample-impossible",
        fix="script an answer for it, or make the schema one that values fit",
    )


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


_FORMATS: Final[dict[str, Callable[[Random], str]]] = {
    "date": _day,
    "time": _time,
    "date-time": lambda r: f"{_day(r)}T{_time(r)}",
    "duration": lambda r: f"PT{r.randrange(1, 600)}M",
    "email": lambda r: f"{_word(r)}{r.randrange(100)}@example.com",
    "hostname": lambda r: f"{_word(r)}.example.com",
    "ipv4": lambda r: f"10.{r.randrange(256)}.{r.randrange(256)}.{r.randrange(1, 255)}",
    "ipv6": lambda r: f"2001:db8::{r.randrange(1, 65536):x}",
    **dict.fromkeys(("uri", "url"), lambda r: f"https://example.com/{_word(r)}"),
    **dict.fromkeys(("uuid", "uuid4"), lambda r: str(UUID(int=r.getrandbits(128), version=4))),
    **dict.fromkeys(("path", "file-path"), lambda r: f"{_word(r)}/{_word(r)}.txt"),
}


def _make_text(pattern: str, random: Random, spread: int, most: int) -> tuple[str | None, int]:
    """A text to try for a pattern, with its parts repeated up to `spread` times more than the
    minimum. None if the text does not match, has more than `most` characters, or the pattern is of
    another dialect. Also how many characters were written for it."""
    # How `re` reads a pattern is stable, though it is not documented.
    parser, compiler = import_module("re._parser"), import_module("re._compiler")
    try:
        parsed: Any = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError):
        return None, 0
    written = 0
    choices: dict[int, list[str]] = {}

    def count(more: int) -> None:
        nonlocal written
        written += more
        if written > most:
            raise OverflowError

    def write(parts: Iterable[tuple[Any, Any]]) -> str:
        return "".join(write_part(str(part[0]), part) for part in parts)

    def write_part(kind: str, part: tuple[Any, Any]) -> str:
        argument: Any = part[1]
        match kind:
            case "LITERAL":
                count(1)
                return chr(argument)
            case "ANY" | "IN" | "NOT_LITERAL":
                count(1)
                if id(part) not in choices:
                    one = compiler.compile(parser.SubPattern(parsed.state, [part]))
                    fits = [*filter(one.fullmatch, string.printable[:95])]
                    choices[id(part)] = fits or [""]
                return random.choice(choices[id(part)])
            case "BRANCH":
                return write(random.choice(argument[1]))
            case "SUBPATTERN":
                return write(argument[3])
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = argument
                times = random.randint(least, min(int(most), least + min(spread, 40)))
                count(times)  # the part may be empty
                return "".join(write(inner) for _ in range(times))
            case _:  # an anchor, or a part that is checked at the end
                return ""

    try:
        text = write(parsed)
    except OverflowError:
        return None, most
    return (text if re.search(pattern, text) else None), written
