"""Reading JSON schemas: references, definitions, what two schemas require together, and an outline
of a schema in the few words that a model needs to see of it. A grammar holds a local model to the
schema, but does not tell it what the fields are for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

Schema = dict[str, Any]


def outline(schema: Mapping[str, Any]) -> str:
    """The form of an answer: `{"top": string (a specific garment), "size": "S" | "M"}`, one field
    to a line. Recursive types, and long ones that occur several times, are named, and follow after
    it. Of very many values only the first are shown."""
    writer = _Outline(schema)
    fields = writer.fields(definitions_of(schema)[""])
    lines = ["{", ",\n".join(f"  {field}" for field in fields), "}"] if fields else ["{}"]
    lines += [f"{writer.title(name)}: {text}" for name, text in writer.named().items()]
    return "\n".join(lines)


class _Outline:
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
        """The types that were named so far, also inside those, by name."""
        found: dict[str, str] = {}
        while ahead := [name for name in self.used if name not in found]:
            for name in ahead:
                found[name] = self.definition(name)
        return found

    def definition(self, name: str) -> str:
        if name not in self.known:
            schema = self.definitions[name]
            recursive = name in self.recursive
            self.known[name] = self.type_of(schema) if recursive else self.text(schema)
        return self.known[name]

    def fields(self, schema: Schema) -> list[str]:
        if "$ref" in schema:
            schema = self.definitions.get(name_in(schema["$ref"]), {})
        required = schema.get("required", ())
        return [
            f"{json.dumps(name, ensure_ascii=False)}{'' if name in required else '?'}: "
            f"{self.text(as_schema(each))}"
            for name, each in as_schema(schema.get("properties")).items()
        ]

    def title(self, name: str) -> str:
        return self.definitions[name].get("title") or name or "the answer"

    def text(self, schema: Schema) -> str:
        """The type of a value and, in brackets, its bounds and description."""
        notes = [*_notes(schema), " ".join(schema.get("description", "").split())]
        more = "; ".join(note for note in notes if note)
        return f"{self.type_of(schema)} ({more})" if more else self.type_of(schema)

    def type_of(self, schema: Schema) -> str:
        if "$ref" in schema:
            name = name_in(schema["$ref"])
            if not name or name not in self.definitions:
                return self.title(name) if name in self.definitions else "any"
            by_name = name in self.recursive
            if not by_name and name in self.shared:
                by_name = len(self.definition(name)) > _SHORT
            if not by_name:
                return self.definition(name)
            self.used[name] = None
            return self.title(name)
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                between = " & " if key == "allOf" else " | "
                told = [self.text(as_schema(each)) for each in schema[key]]
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
        first = [self.text(as_schema(each)) for each in schema.get("prefixItems", ())]
        items = [] if first else [self.text(as_schema(schema.get("items"))), "..."]
        return f"[{', '.join([*first, *items])}]"

    def object(self, schema: Schema) -> str:
        if "properties" in schema:
            return f"{{{', '.join(self.fields(schema))}}}"
        keys = {"type": "string", **as_schema(schema.get("propertyNames"))}
        values = as_schema(schema.get("additionalProperties"))
        for pattern, each in as_schema(schema.get("patternProperties")).items():
            keys, values = {"type": "string", "pattern": pattern}, as_schema(each)
        return f"{{{self.text(keys)}: {self.text(values)}, ...}}"


def _listed(values: list[Any]) -> str:
    """The values that a field can have, as many as fit."""
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


def as_schema(given: Any) -> Schema:
    """A schema as a dict; `true`, which allows everything, as an empty one."""
    return cast(Schema, given) if isinstance(given, dict) else {}


def definitions_of(schema: Mapping[str, Any]) -> dict[str, Schema]:
    """The targets of references, by name: the definitions, and the schema as a whole, which has
    the empty name."""
    found = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    named = {name: as_schema(each) for name, each in found.items()}
    return {**named, "": {k: v for k, v in schema.items() if k not in ("definitions", "$defs")}}


def name_in(reference: str) -> str:
    """The name that a reference points to."""
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~").removeprefix("#")


def reachable(definitions: Mapping[str, Schema]) -> dict[str, set[str]]:
    """For each definition, the names of those that a value of it can have inside."""
    direct = {name: set(referred_to(schema)) for name, schema in definitions.items()}
    found: dict[str, set[str]] = {}
    for name in definitions:
        reached: set[str] = set()
        ahead = list(direct[name])
        while ahead:
            each = ahead.pop()
            if each not in reached:
                reached.add(each)
                ahead += direct.get(each, ())
        found[name] = reached
    return found


def referred_to(schema: Any) -> Iterable[str]:
    """The names that a schema refers to, each as often as it does."""
    return (name_in(str(part["$ref"])) for part in parts(schema) if "$ref" in part)


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether a value of the schema can have another of the same kind inside."""
    return any(name in below for name, below in reachable(definitions_of(schema)).items())


def parts(schema: Any) -> Iterator[Schema]:
    """The schema and every schema in it, at any depth."""
    part = as_schema(schema)
    yield part
    for _, each in inner(part):
        yield from parts(each)


def inner(part: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, with their keyword; examples, defaults and constants are none."""
    for key, value in part.items():
        if key in MAPS and isinstance(value, dict):
            for each in cast(Schema, value).values():
                yield key, each
        elif key in LISTS and isinstance(value, list):
            for each in cast(list[Any], value):
                yield key, each
        elif key in SINGLE and isinstance(value, dict):
            yield key, value


def changed(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> Schema:
    """A copy of a schema in which the schemas inside are changed."""
    made: Schema = {}
    for key, value in schema.items():
        if key in MAPS and isinstance(value, dict):
            made[key] = {name: change(each) for name, each in cast(Schema, value).items()}
        elif key in LISTS and isinstance(value, list):
            made[key] = [change(each) for each in cast(list[Any], value)]
        else:
            made[key] = change(value) if key in SINGLE and isinstance(value, dict) else value
    return made


def kind_of(schema: Schema) -> str | list[str] | None:
    """The type of a value: as declared, or as implied by the other keywords."""
    if "type" in schema:
        return schema["type"]
    for kind, words in _WORDS.items():
        if any(word in schema for word in words):
            return kind
    return None


def tighter(one: Schema, other: Schema) -> Schema:
    """What two schemas require together, as far as one schema can express it."""
    both = {**one, **other}
    for key, choose in _TIGHTER.items():
        if key in one and key in other:
            both[key] = choose(one[key], other[key])
    if "properties" in one and "properties" in other:
        both["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        both["required"] = list(dict.fromkeys([*one["required"], *other["required"]]))
    return both


def constrains(schema: Schema) -> bool:
    """Whether a schema constrains its value at all."""
    return any(key in _CONSTRAINING for key in schema)


def _common(one: list[Any], other: list[Any]) -> list[Any]:
    return [each for each in one if each in other]


_SHORT: Final = 80
"""Characters of a type that is written out wherever it occurs."""

_MOST_LISTED: Final = 1000
"""Characters of the listed values of a field. The grammar knows all of them."""

# The keywords whose value is, or has inside, further schemas: by name, in a list, or one.
MAPS: Final = frozenset({"properties", "$defs", "definitions", "patternProperties"})
LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SINGLE: Final = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not"})
_WORDS: Final = {
    "object": ("properties", "additionalProperties", "patternProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_TIGHTER: Final[dict[str, Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "enum": _common,
}
_CONSTRAINING: Final = {
    *_TIGHTER,
    *(word for words in _WORDS.values() for word in words),
    *("type", "anyOf", "oneOf", "allOf", "required"),
}
