"""Schemas in which everything is bounded: texts, lists, dicts, digits and recursion. A small model
that is held to one always comes to an end of its answer. Only words that grammar engines know are
left; what they cannot hold a model to is for validation. `answer_length.py` says how long an answer
can get, and `local.py` uses both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from bae.exceptions import BaeLMError
from bae.lm.formats import FORMS
from bae.lm.number_bounds import bounded_integer, bounded_number
from bae.lm.patterns import can_be_held, is_finite, shortest_match
from bae.lm.schema_parts import (
    Schema,
    as_schema,
    constrains,
    definitions_of,
    kind_of,
    name_in,
    reachable,
    tighter,
)

Patterns = Literal["all", "ours", "none"]

LONGEST_TEXT: Final = 200
"""Characters of a text, unless the schema wants a shorter one, or needs a longer one."""

LONGEST_LIST: Final = 5
"""Items of a list or a dict, in the same way."""

DEEPEST: Final = 3
"""How often a type may stand inside itself."""

LONGEST_KEY: Final = 40
"""Characters of a key of a dict."""


def bounded(
    schema: Mapping[str, Any],
    *,
    longest_text: int = LONGEST_TEXT,
    longest_list: int = LONGEST_LIST,
    deepest: int = DEEPEST,
    patterns: Patterns = "all",
) -> Schema:
    """The schema with a bound on everything in it.

    Every text gets a `maxLength`, every list a `maxItems`, every dict a `maxProperties`, and every
    number a least and a greatest value; objects are closed, and a type that stands in itself does
    so `deepest` times. Tighter bounds of the schema's own win, and so do the least sizes it asks
    for. A value of the result is one of the schema, but for what no grammar can hold:
    `uniqueItems`, `not` and the like.

    An engine may not know all that is in a pattern. With `patterns="ours"` those of the schema
    itself are left out, and the ones for dates and the like stay; with `"none"` all are left out.

    Raises `BaeLMError` where no bounded answer exists, as for a type that always needs another one
    of itself.
    """
    return _Bounding(schema, longest_text, longest_list, deepest, patterns).done()


class _Bounding:
    """One schema on its way. Methods answer None where no value fits; `inside` is the type in
    itself that something is a part of, and `depth` how often that was entered."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        longest_text: int,
        longest_list: int,
        deepest: int,
        patterns: Patterns,
    ) -> None:
        self.title = schema.get("title", "")
        self.definitions = definitions_of(schema)
        self.reachable = reachable(self.definitions)
        self.longest_text = longest_text
        self.longest_list = longest_list
        self.deepest = deepest
        self.patterns = patterns
        self.labels: dict[tuple[str, int], str | None] = {}
        self.made: dict[str, Schema] = {}

    def done(self) -> Schema:
        root = self.definitions[""]
        made = self.one(root, None, 0)
        if made is None:
            properties = as_schema(root.get("properties"))
            bad = [name for name, each in properties.items() if self.one(each, None, 0) is None]
            raise BaeLMError(
                f"no answer of bounded length fits the schema of {self.title or 'the answer'}"
                + (f": there is no value for {', '.join(bad)}" if bad else ""),
                code="bae-lm-schema-unbounded",
                sent=False,
                fix="let a type that stands in itself do without, by a None or an empty list, and "
                "check that every least size or value is under its greatest",
            )
        return {**made, "$defs": self.made} if self.made else made

    def one(self, given: Any, inside: str | None, depth: int) -> Schema | None:
        if given is False:
            return None
        schema = as_schema(given)
        if "$ref" in schema or "allOf" in schema:
            return self.referred(schema, inside, depth)
        if "const" in schema:
            return {"const": schema["const"]}
        if "enum" in schema:
            return {"enum": list(schema["enum"])} if schema["enum"] else None
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
                return bounded_integer(schema)
            case "number":
                return bounded_number(schema)
            case "boolean" | "null":
                return {"type": kind}
            case "array":
                return self.array(schema, inside, depth)
            case "object":
                return self.object(schema, inside, depth)
            case _:
                return self.any_of([{"type": each} for each in _PLAIN], inside, depth)

    def referred(self, schema: Schema, inside: str | None, depth: int) -> Schema | None:
        """What a schema refers to, put together with what it says besides."""
        parts = [as_schema(each) for each in schema.get("allOf", ())]
        parts.append({k: v for k, v in schema.items() if k != "allOf"})
        parts = [each for each in parts if "$ref" in each or constrains(each)]
        if len(parts) == 1 and not constrains(parts[0]):
            return self.definition(name_in(parts[0]["$ref"]), inside, depth)
        whole: Schema = {}
        for part in parts:
            if "$ref" in part:
                name = name_in(part["$ref"])
                inside, depth = self.entered(name, inside, depth)
                if depth > self.deepest:
                    return None
                whole = tighter(whole, self.definitions[name])
            whole = tighter(whole, {k: v for k, v in part.items() if k != "$ref"})
        return self.one(whole, inside, depth)

    def definition(self, name: str, inside: str | None, depth: int) -> Schema | None:
        inside, depth = self.entered(name, inside, depth)
        if depth > self.deepest:
            return None
        key = name, depth
        if key not in self.labels:
            made = self.one(self.definitions[name], inside, depth)
            self.labels[key] = None if made is None else f"d{len(self.made)}"
            if made is not None:
                self.made[f"d{len(self.made)}"] = made
        label = self.labels[key]
        return None if label is None else {"$ref": f"#/$defs/{label}"}

    def entered(self, name: str, inside: str | None, depth: int) -> tuple[str | None, int]:
        if name not in self.definitions:
            raise BaeLMError(
                f"the schema of {self.title or 'the answer'} refers to {name!r}, which is not in "
                "it",
                code="bae-lm-schema-unbounded",
                sent=False,
                fix="put what it refers to under $defs",
            )
        below = self.reachable[name]
        if name not in below:
            return None, 0
        same = inside in below and name in self.reachable[inside or ""]
        return name, depth + 1 if same else 1

    def any_of(self, options: list[Schema], inside: str | None, depth: int) -> Schema | None:
        if any(each.get("type") in ("number", "integer") for each in options):
            # A number that may be written as a text too: one that cannot be held to the form of a
            # number is better left out.
            options = [each for each in options if "pattern" not in each or self.holds(each)]
        made: list[Schema] = []
        for each in options:
            option = self.one(each, inside, depth)
            if option is not None and option not in made:
                made.append(option)
        if len(made) < 2:
            return made[0] if made else None
        return {"anyOf": made}

    def holds(self, schema: Schema) -> bool:
        """Whether the answer can be held to the pattern of a text or a key."""
        return self.patterns == "all" and can_be_held(schema["pattern"])

    def text(self, schema: Schema) -> Schema | None:
        least = int(schema.get("minLength", 0))
        own = schema.get("maxLength", math.inf)
        needed = shortest_match(schema["pattern"]) if "pattern" in schema else 0
        most = int(min(own, max(self.longest_text, least, needed)))
        if least > most:
            return None
        made: Schema = {"type": "string"}
        form = FORMS.get(schema.get("format", "")) if self.patterns != "none" else None
        if "pattern" in schema:
            if self.holds(schema):
                made["pattern"] = schema["pattern"]
        elif form is not None:
            # A text with a form needs some room, whatever is usual for texts.
            room = form.longest or int(min(own, max(most, _ROOM_FOR_A_FORM)))
            if least <= room <= own:
                return {**made, "pattern": form.pattern, "maxLength": room}
        if least:
            made["minLength"] = least
        return {**made, "maxLength": most}

    def array(self, schema: Schema, inside: str | None, depth: int) -> Schema | None:
        least = int(schema.get("minItems", 0))
        given = schema.get("prefixItems", ())
        first: list[Schema] = []
        for each in given:
            made = self.one(each, inside, depth)
            if made is None:
                break
            first.append(made)
        whole = len(first) == len(given)
        rest = self.one(schema.get("items", {}), inside, depth) if whole else None
        most = min(schema.get("maxItems", math.inf), max(self.longest_list, least, len(first)))
        if rest is None:
            most = min(most, len(first))
        elif schema.get("uniqueItems") and "enum" in rest:
            most = min(most, len(rest["enum"]))
        if least > most:
            return None
        sizes = {"type": "array", "minItems": least, "maxItems": int(most)}
        if most == 0:
            return {**sizes, "items": {"type": "null"}}  # of something there has to be none
        items = rest if rest is not None and most > len(first) else False
        return {**sizes, "items": items, **({"prefixItems": first} if first else {})}

    def object(self, schema: Schema, inside: str | None, depth: int) -> Schema | None:
        if "properties" not in schema and schema.get("additionalProperties") is not False:
            return self.dictionary(schema, inside, depth)
        required = schema.get("required", ())
        made: Schema = {}
        for name, each in schema.get("properties", {}).items():
            value = self.one(each, inside, depth)
            if value is not None:
                made[name] = value
            elif name in required:
                return None
        return _closed(made, [name for name in required if name in made])

    def dictionary(self, schema: Schema, inside: str | None, depth: int) -> Schema | None:
        least = int(schema.get("minProperties", 0))
        most = int(min(schema.get("maxProperties", math.inf), max(self.longest_list, least)))
        if least > most:
            return None
        nothing = _closed({}, []) if least == 0 else None
        keys = as_schema(schema.get("propertyNames"))
        if "$ref" in keys:
            keys = self.definitions.get(name_in(keys["$ref"]), {})
        values = schema.get("additionalProperties", {})
        for pattern, each in as_schema(schema.get("patternProperties")).items():
            keys, values = {"pattern": pattern}, each
        value = self.one(values, inside, depth)
        if value is None or most == 0:
            return nothing
        names = [keys["const"]] if "const" in keys else keys.get("enum")
        if keys.get("maxLength") == 0 and not keys.get("minLength"):
            names = [""]
        if names is not None:
            texts = list(dict.fromkeys(name for name in names if isinstance(name, str)))
            if least > len(texts):
                return None
            return _closed(dict.fromkeys(texts, value), texts[:least])
        key = self.key(keys)
        if key is None:
            return nothing
        return {
            **_closed({}, []),
            "patternProperties": {key: value},
            "minProperties": least,
            "maxProperties": most,
        }

    def key(self, schema: Schema) -> str | None:
        """The pattern of a key. There is no other way to bound one."""
        if "pattern" in schema and self.holds(schema) and is_finite(schema["pattern"]):
            return schema["pattern"]
        form = FORMS.get(schema.get("format", ""))
        if form is not None and form.longest is not None:
            return form.pattern
        least = int(schema.get("minLength", 1))
        most = int(min(schema.get("maxLength", math.inf), max(LONGEST_KEY, least)))
        if least > most:
            return None
        return rf'^[^"\\\x00-\x1f]{{{least},{most}}}$'


def _closed(properties: Schema, required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_PLAIN: Final = ("string", "number", "boolean", "null")
_ROOM_FOR_A_FORM: Final = 40
