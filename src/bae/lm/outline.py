"""A JSON schema in the few words that a model needs to see of it. A grammar holds a local model to
the schema, but does not tell it what the fields are for; `local.py` puts this into the prompt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from bae.lm.schema_parts import (
    Schema,
    as_schema,
    definitions_of,
    kind_of,
    name_in,
    reachable,
    referred_to,
)


def outline(schema: Mapping[str, Any]) -> str:
    """The form of an answer: `{"top": string (a specific garment), "size": "S" | "M"}`, one field
    to a line. Types that stand in themselves, and long ones that stand in several places, are
    named, and follow after it. Of very many values only the first are shown."""
    telling = _Telling(schema)
    fields = telling.fields(definitions_of(schema)[""])
    lines = ["{", ",\n".join(f"  {field}" for field in fields), "}"] if fields else ["{}"]
    lines += [f"{telling.called(name)}: {told}" for name, told in telling.named().items()]
    return "\n".join(lines)


class _Telling:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.definitions = definitions_of(schema)
        below = reachable(self.definitions)
        self.recursive = {name for name in below if name and name in below[name]}
        reached = {"", *below[""]} & self.definitions.keys()
        uses = Counter(name for each in reached for name in referred_to(self.definitions[each]))
        self.shared = {name for name, times in uses.items() if times > 1}
        self.known: dict[str, str] = {}
        self.used: dict[str, None] = {}

    def named(self) -> dict[str, str]:
        """The types that were called by their names so far, and in those, and what they are."""
        found: dict[str, str] = {}
        while ahead := [name for name in self.used if name not in found]:
            for name in ahead:
                found[name] = self.definition(name)
        return found

    def definition(self, name: str) -> str:
        if name not in self.known:
            schema = self.definitions[name]
            recursive = name in self.recursive
            self.known[name] = self.type_of(schema) if recursive else self.told(schema)
        return self.known[name]

    def fields(self, schema: Schema) -> list[str]:
        if "$ref" in schema:
            schema = self.definitions.get(name_in(schema["$ref"]), {})
        required = schema.get("required", ())
        return [
            f"{json.dumps(name, ensure_ascii=False)}{'' if name in required else '?'}: "
            f"{self.told(as_schema(each))}"
            for name, each in as_schema(schema.get("properties")).items()
        ]

    def called(self, name: str) -> str:
        return self.definitions[name].get("title") or name or "the answer"

    def told(self, schema: Schema) -> str:
        """The type of a value and, in brackets, what else there is to know of it."""
        notes = [*_notes(schema), " ".join(schema.get("description", "").split())]
        more = "; ".join(note for note in notes if note)
        return f"{self.type_of(schema)} ({more})" if more else self.type_of(schema)

    def type_of(self, schema: Schema) -> str:
        if "$ref" in schema:
            name = name_in(schema["$ref"])
            if not name or name not in self.definitions:
                return self.called(name) if name in self.definitions else "any"
            by_name = name in self.recursive
            if not by_name and name in self.shared:
                by_name = len(self.definition(name)) > _SHORT
            if not by_name:
                return self.definition(name)
            self.used[name] = None
            return self.called(name)
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                between = " & " if key == "allOf" else " | "
                told = [self.told(as_schema(each)) for each in schema[key]]
                return between.join(dict.fromkeys(told))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            return _listed(values)
        kind = kind_of(schema)
        match kind:
            case list():
                return " | ".join(self.type_of({**schema, "type": each}) for each in kind)
            case "array":
                return self.array(schema)
            case "object":
                return self.object(schema)
            case "string":
                return schema.get("format", kind)
            case "boolean":
                return "true | false"
            case None:
                return "any"
            case _:
                return kind

    def array(self, schema: Schema) -> str:
        first = [self.told(as_schema(each)) for each in schema.get("prefixItems", ())]
        items = [] if first else [self.told(as_schema(schema.get("items"))), "..."]
        return f"[{', '.join([*first, *items])}]"

    def object(self, schema: Schema) -> str:
        if "properties" in schema:
            return f"{{{', '.join(self.fields(schema))}}}"
        keys = {"type": "string", **as_schema(schema.get("propertyNames"))}
        values = as_schema(schema.get("additionalProperties"))
        for pattern, each in as_schema(schema.get("patternProperties")).items():
            keys, values = {"type": "string", "pattern": pattern}, as_schema(each)
        return f"{{{self.told(keys)}: {self.told(values)}, ...}}"


def _listed(values: list[Any]) -> str:
    """The values that a field can have, as many as there is room for."""
    told: list[str] = []
    length = 0
    for each in values:
        told.append(json.dumps(each, ensure_ascii=False))
        length += len(told[-1])
        if length > _MOST_LISTED and len(told) < len(values):
            return " | ".join([*told, f"... ({len(values)} values)"])
    return " | ".join(told)


def _notes(schema: Schema) -> list[str]:
    """The bounds of a value, in words."""
    sizes = [
        _between(schema.get(f"min{what}") or None, schema.get(f"max{what}"), unit)
        for what, unit in (("Length", " characters"), ("Items", " items"), ("Properties", " items"))
        if "prefixItems" not in schema
    ]
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return [
        *sizes,
        _between(schema.get("minimum"), schema.get("maximum"), ""),
        f"above {above}" if above is not None else "",
        f"below {below}" if below is not None else "",
        f"a multiple of {schema['multipleOf']}" if "multipleOf" in schema else "",
        f"like {schema['pattern']}" if "pattern" in schema else "",
    ]


def _between(least: float | None, most: float | None, unit: str) -> str:
    if least is not None and most is not None:
        return f"{least}{unit}" if least == most else f"{least} to {most}{unit}"
    if most is not None:
        return f"at most {most}{unit}"
    return f"at least {least}{unit}" if least is not None else ""


_SHORT: Final = 80
"""Characters of a type that is said again wherever it stands."""

_MOST_LISTED: Final = 1000
"""Characters of the values that a field can have, which a grammar knows all of."""
