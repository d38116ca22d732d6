"""Samples for JSON schemas: `sample` returns a value that fits a schema, and `misfit` a value that
does not."""

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
    """Return a JSON value that fits `schema`. Another `seed` gives another value.

    The function handles the schemas that pydantic makes: references, recursion (followed once),
    unions, enums, bounds, common formats, simple patterns. It cannot know rules outside the schema,
    such as a validator of your own, or a date that must be in the past.

    Raise `ScriptError` if nothing fits, if no match for a pattern was found, or if the search tries
    more than 5,000 values or writes more than 100,000 characters.
    """
    return _Sampler(schema, seed).value(schema)


def misfit(schema: SampledSchema | None) -> Any:
    """Return valid JSON that does not fit `schema`: a sample with one property of a wrong type,
    which is the usual mistake of a model. If every property accepts any type, return a completely
    different value."""
    sampler = _Sampler(schema or {}, 0)
    sample_value = sampler.value(schema or {})
    if not isinstance(sample_value, dict):
        return _UNEXPECTED
    values = cast(dict[str, Any], sample_value)
    for name, rule in sampler.resolved(schema or {}).get("properties", {}).items():
        kinds = sampler.kinds(rule)
        wrong_value = _UNEXPECTED if "object" not in kinds else "unexpected"
        if name in values and not {"object", "string"} <= kinds:
            return {**values, name: wrong_value}
    return ["unexpected"]


_FILES: Final = {
    "image": {
        "name": "sample.gif",
        "data": "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAAAAAAALAAAAAABAAEAAAIBRAA7",
    },
    "document": {"name": "sample.txt", "data": "data:text/plain;base64,c2FtcGxlCg=="},
}
"""Samples of image and document files, by the format in their schemas."""
_UNEXPECTED: Final = {"unexpected": [None]}
"""An object that equals no sample. The value true would not do: Python treats it as a number."""
_MOST_VALUES: Final = 5_000
"""The number of values to try for one schema."""
_DEEPEST: Final = 20
"""The depth to which nested arrays are examined before any item is made."""
_MOST_CHARACTERS: Final = 100_000
"""The number of characters to write for one schema, including texts that do not fit."""


class _Sampler:
    """The state of one sample: what is left of the limits, and the random numbers."""

    def __init__(self, root: SampledSchema | bool, seed: int) -> None:
        self._root = root
        self._random = Random(seed)
        self._values_left = _MOST_VALUES
        self._characters = _MOST_CHARACTERS

    def value(self, schema: SampledSchema | bool, references: tuple[str, ...] = ()) -> Any:
        """Return a value for a schema. `references` are the references that led to the schema. If
        one of them occurs twice, return the smallest value."""
        self._values_left -= 1
        if self._values_left < 0:
            raise impossible(schema, f"it takes more than {_MOST_VALUES:,} values")
        if isinstance(schema, bool):
            if not schema:
                raise impossible(schema, "it allows no value")
            return _make_word(self._random)
        if references.count(references[-1] if references else "") > 3:
            raise impossible(schema, "its values hold another one, without end")
        if "$ref" in schema:
            return self.value(self.resolved(schema), (*references, schema["$ref"]))
        if schema.get("format") in _FILES:
            return _FILES[schema["format"]]
        options = _list_options(schema)
        if options is not None:
            return self._sample_option(options, references)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            if not schema["enum"]:
                raise impossible(schema, "its enum allows no value")
            return self._random.choice(schema["enum"])
        match _infer_type(schema):
            case "null":
                return None
            case "boolean":
                return self._random.random() < 0.5
            case "integer" | "number" as kind:
                return self._make_number(schema, whole=kind == "integer")
            case "object":
                return self._make_object(schema, references)
            case "array":
                return self._make_array(schema, references)
            case _:
                return self._find_text(schema)

    def resolved(self, schema: Any) -> SampledSchema:
        """Return the schema, merged with the target of its reference."""
        if isinstance(schema, bool):
            return {}
        if "$ref" not in schema:
            return schema
        rules = {key: value for key, value in schema.items() if key != "$ref"}
        return {**self.resolved(self._find_target(schema["$ref"])), **rules}

    def kinds(self, schema: Any) -> set[str]:
        """Return the JSON types that a value may have. If the schema allows any type, return object
        and string. For an enum or a constant, return a word that is no JSON type."""
        rules = self.resolved(schema)
        options = _list_options(rules)
        if options is not None:
            return set[str]().union(*map(self.kinds, options))
        if "enum" in rules or "const" in rules:
            return {"one of some"}
        kind = _infer_type(rules, "")
        return {kind} if kind else {"object", "string"}

    def _find_target(self, reference: str) -> Any:
        target: Any = self._root
        try:
            if not reference.startswith("#"):
                raise KeyError(reference)
            for part in reference[1:].split("/")[1:]:
                target = target[part.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError):
            raise impossible({"$ref": reference}, "it points to nothing in the schema") from None
        return target

    def _sample_option(self, options: list[Any], references: tuple[str, ...]) -> Any:
        self._random.shuffle(options)
        numbers = any(self.kinds(option) & {"integer", "number"} for option in options)

        def rank(option: Any) -> tuple[bool, bool, bool]:
            recursive = _is_small(references) and "$ref" in json.dumps(self.resolved(option))
            # The schema of a decimal allows any text, but the validator allows only numbers.
            free = numbers and self.kinds(option) == {"string"}
            null = self.kinds(option) == {"null"} and not _is_small(references)
            return recursive, null, free

        error: ScriptError | None = None
        for option in sorted(options, key=rank):
            try:
                return self.value(option, references)
            except ScriptError as raised:
                error = raised
        raise error or impossible({"anyOf": options}, "it allows no value")

    def _make_object(self, schema: SampledSchema, references: tuple[str, ...]) -> dict[str, Any]:
        properties = cast(Mapping[str, Any], schema.get("properties", {}))
        required = cast(list[str], schema.get("required", []))
        others, names = schema.get("additionalProperties", True), schema.get("propertyNames")
        least = wanted = schema.get("minProperties", 0)
        self._check_values_left(schema, least)
        sample: dict[str, Any] = {}
        for name in dict.fromkeys([*properties, *required]):
            if name in required:
                sample[name] = self.value(properties.get(name, others), references)
            elif not _is_small(references):
                try:
                    sample[name] = self.value(properties[name], references)
                except ScriptError:
                    continue
        if not properties and not _is_small(references) and others not in (True, False, {}):
            wanted = max(least, min(schema.get("maxProperties", 2), self._random.randint(1, 2)))
        for attempt in range(100):
            if len(sample) >= wanted:
                break
            # Without rules for the names, use a number, which also fits a dict with numeric keys.
            key = str(attempt)
            if names is not None:
                key = str(self.value({"type": "string", **self.resolved(names)}, references))
            if key not in sample:
                sample[key] = self.value(others, references)
        if len(sample) < least:
            raise impossible(schema, f"fewer than {least} names for its properties were found")
        return sample

    def _make_array(self, schema: SampledSchema, references: tuple[str, ...]) -> list[Any]:
        first = cast(list[Any], schema.get("prefixItems", []))
        rest = schema.get("items", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems", inf)
        most = min(most, len(first)) if rest is False else most
        self._check_values_left(schema, self._count_least_items(schema))
        wanted = max(least, min(len(first), most))
        if "items" in schema and not _is_small(references):
            wanted = max(wanted, min(most, self._random.randint(1, 2)))
        sample: list[Any] = []
        for _ in range(100 + 10 * wanted):
            if len(sample) >= wanted:
                break
            try:
                item = self.value(
                    first[len(sample)] if len(sample) < len(first) else rest, references
                )
            except ScriptError:
                if len(sample) >= least:
                    break
                raise
            # Compare as Python does, because 1, 1.0 and true are the same item in a set.
            if not schema.get("uniqueItems") or item not in sample:
                sample.append(item)
        if not least <= len(sample) <= most:
            raise impossible(schema, f"{len(sample)} items were found that fit")
        return sample

    def _count_least_items(self, schema: SampledSchema) -> int:
        """Return the minimum number of items in an array, including items of arrays inside the
        array."""
        count = 1
        for _ in range(_DEEPEST):
            least: int = schema.get("minItems", 0)
            if not least or schema.get("prefixItems"):
                return max(count, least)
            count *= least
            schema = self.resolved(schema.get("items", True))
        return count

    def _check_values_left(self, schema: SampledSchema, least: int) -> None:
        if least > self._values_left:
            raise impossible(schema, f"it takes more than {_MOST_VALUES:,} values")

    def _make_number(self, schema: SampledSchema, *, whole: bool) -> int | float:
        """Return a whole number if one fits, because it is valid as a float and as a decimal
        too."""
        try:
            return self._find_number(schema, whole)
        except OverflowError:
            raise impossible(schema, "its bounds are too large, or too close") from None

    def _find_number(self, schema: SampledSchema, whole: bool) -> int | float:
        above, below = schema.get("exclusiveMinimum", -inf), schema.get("exclusiveMaximum", inf)
        low, high = max(schema.get("minimum", -inf), above), min(schema.get("maximum", inf), below)
        step = schema.get("multipleOf", 1)
        first = ceil(low / step) if low > -inf else 0 if high >= 0 else floor(high / step) - 100
        # Mostly try small numbers first. They are likely to fit even if the schema that a provider
        # gets has its bounds only in words.
        order = sorted(range(101), key=lambda index: self._random.random() * (index + 1) ** 2)
        candidates = [(first + offset) * step for offset in order]
        if not whole and "multipleOf" not in schema and -inf < low <= high < inf:
            candidates.append((low + high) / 2)
        for candidate in candidates:
            if low <= candidate <= high and above < candidate < below:
                return candidate
        raise impossible(schema, "no number is within its bounds")

    def _find_text(self, schema: SampledSchema) -> str:
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
                text = _make_word(self._random)
                while len(text) < shortest:
                    text += f" {_make_word(self._random)}"
                text = text if len(text) <= longest else text[: int(longest)]
                # A field that strips its text would remove a space at the end.
                text = f"{text[:-1]}x" if text.endswith(" ") else text
            if text is not None and shortest <= len(text) <= longest:
                self._characters -= len(text) if pattern is None else 0
                return text
        raise impossible(schema, "no text that fits was found")


def _list_options(schema: SampledSchema) -> list[Any] | None:
    for key in ("anyOf", "oneOf"):
        if key in schema:
            rest = {name: rule for name, rule in schema.items() if name != key}
            return [{**rest, **o} if isinstance(o, Mapping) else o for o in schema[key]]
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return None
    return [{**schema, "type": kind} for kind in cast(list[str], kinds)]


def _is_small(references: tuple[str, ...]) -> bool:
    """Return whether to make the smallest value, because a reference is repeated or too many are
    nested."""
    return len(set(references)) < len(references) or len(references) > 6


_KEYWORDS: Final = {
    "object": ("properties", "additionalProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("pattern", "format", "minLength", "maxLength"),
}


def _infer_type(schema: SampledSchema, default: str = "string") -> str:
    """Return the type of the values that fit. If the schema has no type, infer the type from its
    keywords."""
    kinds = (kind for kind, words in _KEYWORDS.items() if not schema.keys().isdisjoint(words))
    return schema.get("type") or next(kinds, default)


def impossible(schema: Any, why: str) -> ScriptError:
    """Return the error for a schema without a sample."""
    text = json.dumps(schema, default=str)
    text = text if len(text) <= 300 else f"{text[:300]}…"
    return ScriptError(
        f"no sample can be made of the schema {text}: {why}",
        code="bae-sample-impossible",
        fix="script an answer for it, or change the schema so that a value fits",
    )


_WORDS: Final = (
    *("amber", "birch", "cedar", "delta", "ember", "fable", "glade"),
    *("iris", "linen", "maple", "olive", "river"),
)


def _make_word(random: Random) -> str:
    return random.choice(_WORDS)


def _make_day(random: Random) -> str:
    return (date(2020, 1, 1) + timedelta(days=random.randrange(2000))).isoformat()


def _make_time(random: Random) -> str:
    return f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}Z"


_FORMATS: Final[dict[str, Callable[[Random], str]]] = {
    "date": _make_day,
    "time": _make_time,
    "date-time": lambda r: f"{_make_day(r)}T{_make_time(r)}",
    "duration": lambda r: f"PT{r.randrange(1, 600)}M",
    "email": lambda r: f"{_make_word(r)}{r.randrange(100)}@example.com",
    "hostname": lambda r: f"{_make_word(r)}.example.com",
    "ipv4": lambda r: f"10.{r.randrange(256)}.{r.randrange(256)}.{r.randrange(1, 255)}",
    "ipv6": lambda r: f"2001:db8::{r.randrange(1, 65536):x}",
    **dict.fromkeys(("uri", "url"), lambda r: f"https://example.com/{_make_word(r)}"),
    **dict.fromkeys(("uuid", "uuid4"), lambda r: str(UUID(int=r.getrandbits(128), version=4))),
    **dict.fromkeys(("path", "file-path"), lambda r: f"{_make_word(r)}/{_make_word(r)}.txt"),
}


def _make_text(pattern: str, random: Random, spread: int, most: int) -> tuple[str | None, int]:
    """Try to make a text that matches a pattern. Repeat its parts up to `spread` times more than
    the minimum. Return the text, and the number of characters that were written. The text is None
    if it does not match, if it would have more than `most` characters, or if the pattern is in
    another dialect."""
    # The parser of `re` is not documented, but its results are stable.
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
                count(times)  # an empty part writes no characters, but takes time
                return "".join(write(inner) for _ in range(times))
            case _:  # an anchor, or a part that the search at the end checks
                return ""

    try:
        text = write(parsed)
    except OverflowError:
        return None, most
    return (text if re.search(pattern, text) else None), written
