"""JSON schemas: of the answers that a model is asked for, and how to read a schema. An outline has
the few words of a schema that a model needs to see: a grammar holds a local model to the schema,
but does not say what the fields are for."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticOmit

from bae.core_schemas import fields_schema
from bae.secrets import MASK, hidden_fields, without_hidden_parts

if TYPE_CHECKING:
    from bae.node import Node

Schema = dict[str, Any]


def fill_schema(cls: type[Node], names: tuple[str, ...]) -> Schema:
    """The schema of an answer that fills these fields of a node."""
    schema = without_hidden_defaults(_Asked().generate(fields_schema(cls, names)), cls)
    return {**schema, "title": cls.__name__, "additionalProperties": False}


def choice_schema(options: Mapping[str, tuple[type[Node], tuple[str, ...]] | None]) -> Schema:
    """The schema of a choice among names. A name with a class is answered together with these
    fields of the class."""
    filled = {name: asked for name, asked in options.items() if asked is not None}
    if not filled:
        return {**_object({"choice": {"type": "string", "enum": list(options)}}), "title": "Choice"}
    generator = _Asked()
    inputs = [(name, "validation", fields_schema(*asked)) for name, asked in filled.items()]
    made, shared = generator.generate_definitions(cast(Any, inputs))
    branches: list[Schema] = []
    for name in options:
        branch: Schema = {"choice": {"type": "string", "const": name}}
        if name in filled:
            fields = made[cast(Any, (name, "validation"))]
            fields = without_hidden_defaults(fields, filled[name][0])
            branch["fields"] = {**fields, "title": name, "additionalProperties": False}
        branches.append(_object(branch))
    schema = {**_object({"answer": {"anyOf": branches}}), "title": "Choice"}
    return generator.undocumented({**schema, "$defs": shared} if shared else schema)


def argument_schema(schema: Any, *, titles: bool = False) -> Schema:
    """The JSON schema of the arguments of a tool, from a core schema: with definitions in the
    places that use them, and with the names of classes as titles if `titles`."""
    return write_out(_Asked().generate(schema), titles=titles)


def write_out(schema: Schema, most: int = 1_000_000, *, titles: bool = False) -> Schema:
    """A schema without titles unless `titles`, and with definitions inlined, except recursive
    definitions: not every provider follows references. Raises `ValueError` if more than `most`
    schemas would be written."""
    definitions = definitions_of(schema)
    below = reachable(definitions)
    recursive = {name for name in definitions if name in below[name]}
    written = 0

    def write(part: Any) -> Any:
        nonlocal written
        written += 1
        if written > most:
            raise ValueError(f"it has more than {most:,} schemas when it is written out")
        if not isinstance(part, dict):
            return part
        made = changed(cast(Schema, part), write)
        if not titles:
            made.pop("title", None)
        made.pop("discriminator", None)  # it would name definitions that are written out
        name = name_in(str(made["$ref"])) if "$ref" in made else ""
        if not name or name in recursive or name not in definitions:
            return made
        own = {key: each for key, each in made.items() if key != "$ref"}
        return {**write(definitions[name]), **own}

    whole = write(definitions[""])
    left = {name: write(definitions[name]) for name in recursive if name}
    return {**whole, "$defs": left} if left else whole


def has_schema(schema: Any, mode: JsonSchemaMode) -> bool:
    """Whether JSON can express the values of a core schema."""
    try:
        _Asked().generate(schema, mode)
    except (PydanticInvalidForJsonSchema, PydanticOmit):
        return False
    return True


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def without_hidden_defaults(schema: Schema, cls: type) -> Schema:
    """The schema of a class without the defaults of fields with `repr=False`."""
    hidden = hidden_fields(cls)
    if not hidden or "properties" not in schema:
        return schema
    declared = getattr(cls, "__pydantic_fields__", {})
    aliases = {getattr(declared.get(name), "validation_alias", None) for name in hidden}
    properties: Schema = {
        name: {key: each for key, each in part.items() if key != "default"}
        if name in hidden or name in aliases
        else part
        for name, part in schema["properties"].items()
    }
    return {**schema, "properties": properties}


class _Asked(GenerateJsonSchema):
    """Without docstrings, which are for people, and without the titles that pydantic derives from
    field names."""

    # A default that JSON cannot express needs no warning: the field has a schema all the same.
    ignored_warning_kinds = {*GenerateJsonSchema.ignored_warning_kinds, "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self._documented: set[str] = set()

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> Schema:
        return self.undocumented(super().generate(schema, mode))

    def model_schema(self, schema: Any) -> Schema:
        return self._noted(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> Schema:
        return self._noted(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> Schema:
        return self._noted(super().typed_dict_schema(schema), schema.get("cls"))

    def enum_schema(self, schema: Any) -> Schema:
        return self._noted(super().enum_schema(schema), schema["cls"])

    def handle_ref_overrides(self, json_schema: Schema) -> Schema:
        # Pydantic leaves out a description that equals the docstring, which is not sent.
        return json_schema

    def generator_schema(self, schema: Any) -> Schema:
        if self.mode == "serialization":  # a value that can be read only once is not shown
            return self.handle_invalid_for_json_schema(schema, "core_schema.GeneratorSchema")
        return super().generator_schema(schema)

    def is_subclass_schema(self, schema: Any) -> Schema:
        # Pydantic accepts any JSON for a class, but no JSON can be a class.
        return self.handle_invalid_for_json_schema(schema, "core_schema.IsSubclassSchema")

    def _noted(self, schema: Schema, cls: type | None) -> Schema:
        if cls is not None and cls.__doc__:
            self._documented.add(inspect.cleandoc(cls.__doc__))
        return schema if cls is None else without_hidden_defaults(schema, cls)

    def encode_default(self, dft: Any) -> Any:
        return super().encode_default(without_hidden_parts(dft, MASK))

    def undocumented(self, schema: Any) -> Any:
        """The schema without the docstrings that pydantic used as descriptions of classes.

        Pydantic adds the docstring of an enum last, so all are removed at the end. A class has a
        title, which tells its description from that of a field.
        """
        if not isinstance(schema, dict):
            return schema
        schema_copy = changed(cast(Schema, schema), self.undocumented)
        description = schema_copy.get("description")
        if (
            isinstance(description, str)
            and "title" in schema_copy
            and description in self._documented
        ):
            del schema_copy["description"]
        return schema_copy


# --- an outline -------------------------------------------------------------------------------


def outline(schema: Mapping[str, Any]) -> str:
    """The form of an answer: `{"top": string (a specific garment), "size": "S" | "M"}`, one field
    to a line. Recursive types, and long types that occur several times, get a name and follow after
    it; written in place, they would multiply. Of very many values, the first are shown.
    """
    definitions = definitions_of(schema)
    below = reachable(definitions)
    uses = Counter(name_in(str(part["$ref"])) for part in parts(schema) if "$ref" in part)
    named = {
        name
        for name, each in definitions.items()
        if name in below[name] or (uses[name] > 1 and len(str(each)) > _SHORT)
    }
    writer = _Outline(definitions, named)
    fields = writer.fields(definitions[""])
    lines = ["{", ",\n".join(f"  {field}" for field in fields), "}"] if fields else ["{}"]
    for name in writer.used:  # grows meanwhile
        lines.append(f"{name}: {writer.text(definitions[name])}")
    return "\n".join(lines)


def notes_on(schema: Schema) -> str:
    """The bounds of a value and its description, in words; empty if there are none."""
    notes: list[str] = []
    # The size of a tuple is visible.
    for low, high, unit in () if "prefixItems" in schema else _RANGES:
        match schema.get(low), schema.get(high):
            case None, None:
                pass
            case None, most:
                notes.append(f"at most {most}{unit}")
            case least, None:
                notes.append(f"at least {least}{unit}")
            case least, most:
                notes.append(f"{least} to {most}{unit}")
    notes += [note.format(schema[key]) for key, note in _NOTES.items() if key in schema]
    if schema.get("description"):
        notes.append(" ".join(schema["description"].split()))
    return "; ".join(notes)


@dataclass(frozen=True, slots=True)
class _Outline:
    """Writes types. `used` are the named types that were used so far."""

    definitions: dict[str, Schema]
    named: set[str]
    used: list[str] = field(default_factory=list[str])

    def fields(self, schema: Schema) -> list[str]:
        required = schema.get("required", ())
        return [
            f"{json.dumps(name, ensure_ascii=False)}{'' if name in required else '?'}: "
            f"{self.text(as_schema(each))}"
            for name, each in as_schema(schema.get("properties")).items()
        ]

    def text(self, schema: Schema) -> str:
        """The type of a value and, in brackets, its bounds and description."""
        notes = notes_on(schema)
        kind = self.type_of(schema)
        return f"{kind} ({notes})" if notes else kind

    def type_of(self, schema: Schema) -> str:
        if "$ref" in schema:
            name = name_in(schema["$ref"])
            if name not in self.named:
                return self.text(self.definitions.get(name, {}))
            if name not in self.used:
                self.used.append(name)
            return name
        options = alternatives(schema)
        if options is not None:
            return " | ".join(dict.fromkeys(self.text(option) for option in options))
        if "allOf" in schema:
            return " & ".join(self.text(as_schema(each)) for each in schema["allOf"])
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            told = " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
            return told if len(told) <= _MOST_LISTED else f"{told[:_MOST_LISTED]} …"
        match schema.get("type", "any"):
            case "array":
                first = [self.text(as_schema(each)) for each in schema.get("prefixItems", ())]
                items = first or [self.text(as_schema(schema.get("items"))), "..."]
                return f"[{', '.join(items)}]"
            case "object" if "properties" in schema:
                return f"{{{', '.join(self.fields(schema))}}}"
            case "object":
                keys = {"type": "string", **as_schema(schema.get("propertyNames"))}
                values = as_schema(schema.get("additionalProperties"))
                for pattern, each in as_schema(schema.get("patternProperties")).items():
                    keys, values = {"type": "string", "pattern": pattern}, as_schema(each)
                return f"{{{self.text(keys)}: {self.text(values)}, ...}}"
            case "string":
                return schema.get("format", "string")
            case "boolean":
                return "true | false"
            case kind:
                return kind


# --- reading a schema -------------------------------------------------------------------------


def as_schema(given: Any) -> Schema:
    """A schema as a dict; `true`, which allows everything, as an empty dict."""
    return cast(Schema, given) if isinstance(given, dict) else {}


def definitions_of(schema: Mapping[str, Any]) -> dict[str, Schema]:
    """The targets of references, by name: the definitions, and the whole schema, which has the
    empty name."""
    named = {name: as_schema(each) for name, each in schema.get("$defs", {}).items()}
    return {**named, "": {key: value for key, value in schema.items() if key != "$defs"}}


def name_in(reference: str) -> str:
    """The name that a reference points to."""
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~").removeprefix("#")


def reachable(definitions: Mapping[str, Schema]) -> dict[str, set[str]]:
    """For each definition, the names of the definitions that its values may have inside."""
    direct = {
        name: {name_in(str(part["$ref"])) for part in parts(schema) if "$ref" in part}
        for name, schema in definitions.items()
    }
    references: dict[str, set[str]] = {}
    for name in definitions:
        reached: set[str] = set()
        ahead = list(direct[name])
        while ahead:
            each = ahead.pop()
            if each not in reached:
                reached.add(each)
                ahead += direct.get(each, ())
        references[name] = reached
    return references


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether a value of the schema may have another value of the same kind inside."""
    return any(name in below for name, below in reachable(definitions_of(schema)).items())


def parts(schema: Any) -> Iterator[Schema]:
    """The schema and every schema in it, at any depth."""
    part = as_schema(schema)
    yield part
    for each in inner(part):
        yield from parts(each)


def inner(part: Schema) -> list[Any]:
    """The schemas in a schema, without examples, defaults and constants."""
    schemas: list[Any] = []
    changed(part, schemas.append)
    return schemas


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


def alternatives(schema: Schema) -> list[Schema] | None:
    """The schemas of which a value must fit one; None if the schema has no alternatives."""
    kind = schema.get("type")
    if isinstance(kind, list):
        return [{**schema, "type": each} for each in cast(list[str], kind)]
    members = schema.get("anyOf", schema.get("oneOf"))
    return None if members is None else [as_schema(member) for member in members]


_SHORT: Final = 100
"""How many characters the schema of a type may have to be written wherever it occurs."""

_MOST_LISTED: Final = 1000
"""How many characters of the listed values of a field are shown. The grammar knows all of them."""

_RANGES: Final = (
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minProperties", "maxProperties", " items"),
    ("minimum", "maximum", ""),
)
_NOTES: Final = {
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "pattern": "like {}",
}

# The keywords that contain further schemas: by name, in a list, or a single schema.
MAPS: Final = frozenset({"properties", "$defs", "patternProperties"})
LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SINGLE: Final = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not"})
