"""JSON schemas of the answers that a model gives, and outlines of these schemas. An outline has the
few words that a model needs to see. A grammar makes a local model follow the schema, but does not
tell the model what the fields are for."""

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
    """Return the schema of an answer that fills these fields of a node."""
    schema = without_hidden_defaults(
        _AnswerSchemaGenerator().generate(fields_schema(cls, names)), cls
    )
    return {**schema, "title": cls.__name__, "additionalProperties": False}


def choice_schema(options: Mapping[str, tuple[type[Node], tuple[str, ...]] | None]) -> Schema:
    """Return the schema of a choice among names. If a name has a class with fields, the answer
    fills these fields too."""
    filled = {
        name: target_fields for name, target_fields in options.items() if target_fields is not None
    }
    if not filled:
        return {
            **_object_schema({"choice": {"type": "string", "enum": list(options)}}),
            "title": "Choice",
        }
    generator = _AnswerSchemaGenerator()
    inputs = [
        (name, "validation", fields_schema(*target_fields))
        for name, target_fields in filled.items()
    ]
    field_schemas, shared = generator.generate_definitions(cast(Any, inputs))
    branches: list[Schema] = []
    for name in options:
        branch: Schema = {"choice": {"type": "string", "const": name}}
        if name in filled:
            fields = field_schemas[cast(Any, (name, "validation"))]
            fields = without_hidden_defaults(fields, filled[name][0])
            branch["fields"] = {**fields, "title": name, "additionalProperties": False}
        branches.append(_object_schema(branch))
    schema = {**_object_schema({"answer": {"anyOf": branches}}), "title": "Choice"}
    return generator.undocumented({**schema, "$defs": shared} if shared else schema)


def argument_schema(schema: Any, *, titles: bool = False) -> Schema:
    """Return the JSON schema of a tool's arguments for a core schema. Definitions are inlined, as
    in `write_out`. With `titles`, the titles are the names of classes."""
    return write_out(_AnswerSchemaGenerator().generate(schema), titles=titles)


def write_out(schema: Schema, most: int = 1_000_000, *, titles: bool = False) -> Schema:
    """Return the schema with definitions inlined, because not every provider follows references.
    Recursive definitions stay. Titles are removed unless `titles`. Raise `ValueError` if the result
    would have more than `most` schemas."""
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
        written_part = changed(cast(Schema, part), write)
        if not titles:
            written_part.pop("title", None)
        written_part.pop("discriminator", None)  # it would name definitions that are now inlined
        name = name_in(str(written_part["$ref"])) if "$ref" in written_part else ""
        if not name or name in recursive or name not in definitions:
            return written_part
        other_rules = {key: rule for key, rule in written_part.items() if key != "$ref"}
        return {**write(definitions[name]), **other_rules}

    written_schema = write(definitions[""])
    recursive_schemas = {name: write(definitions[name]) for name in recursive if name}
    return {**written_schema, "$defs": recursive_schemas} if recursive_schemas else written_schema


def has_schema(schema: Any, mode: JsonSchemaMode) -> bool:
    """Return whether JSON can express the values of a core schema."""
    try:
        _AnswerSchemaGenerator().generate(schema, mode)
    except (PydanticInvalidForJsonSchema, PydanticOmit):
        return False
    return True


def _object_schema(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def without_hidden_defaults(schema: Schema, cls: type) -> Schema:
    """Return the schema of a class without the defaults of fields with `repr=False`."""
    hidden = hidden_fields(cls)
    if not hidden or "properties" not in schema:
        return schema
    declared = getattr(cls, "__pydantic_fields__", {})
    aliases = {getattr(declared.get(name), "validation_alias", None) for name in hidden}
    properties: Schema = {
        name: {key: rule for key, rule in part.items() if key != "default"}
        if name in hidden or name in aliases
        else part
        for name, part in schema["properties"].items()
    }
    return {**schema, "properties": properties}


class _AnswerSchemaGenerator(GenerateJsonSchema):
    """A generator of schemas for answers. It omits docstrings, which are for people, and the titles
    that pydantic derives from field names."""

    # A default that JSON cannot express needs no warning, because the field still has a schema.
    ignored_warning_kinds = {*GenerateJsonSchema.ignored_warning_kinds, "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self._documented: set[str] = set()

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> Schema:
        return self.undocumented(super().generate(schema, mode))

    def model_schema(self, schema: Any) -> Schema:
        return self._note_docstring(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> Schema:
        return self._note_docstring(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> Schema:
        return self._note_docstring(super().typed_dict_schema(schema), schema.get("cls"))

    def enum_schema(self, schema: Any) -> Schema:
        return self._note_docstring(super().enum_schema(schema), schema["cls"])

    def handle_ref_overrides(self, json_schema: Schema) -> Schema:
        # Pydantic would drop a field's description that equals the docstring of its class. The
        # model would then see neither, because docstrings are not sent.
        return json_schema

    def generator_schema(self, schema: Any) -> Schema:
        if self.mode == "serialization":  # a generator can be read only once, so it is not shown
            return self.handle_invalid_for_json_schema(schema, "core_schema.GeneratorSchema")
        return super().generator_schema(schema)

    def is_subclass_schema(self, schema: Any) -> Schema:
        # Pydantic accepts any JSON here, but JSON cannot express a class.
        return self.handle_invalid_for_json_schema(schema, "core_schema.IsSubclassSchema")

    def _note_docstring(self, schema: Schema, cls: type | None) -> Schema:
        if cls is not None and cls.__doc__:
            self._documented.add(inspect.cleandoc(cls.__doc__))
        return schema if cls is None else without_hidden_defaults(schema, cls)

    def encode_default(self, dft: Any) -> Any:
        return super().encode_default(without_hidden_parts(dft, MASK))

    def undocumented(self, schema: Any) -> Any:
        """Return the schema without the docstrings that pydantic used as descriptions of classes.

        Pydantic adds the docstring of an enum last, so all docstrings are removed at the end. The
        title distinguishes the schema of a class from the schema of a field, whose description
        stays.
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
    """Return the form of an answer as text: `{"top": string (a specific garment), "size": "S" |
    "M"}`, one field to a line.

    A recursive type, or a long type that occurs several times, gets a name. Its form follows at the
    end, because repeating it would make the text too long. Of many allowed values, only the first
    are shown.
    """
    definitions = definitions_of(schema)
    below = reachable(definitions)
    uses = Counter(name_in(str(part["$ref"])) for part in parts(schema) if "$ref" in part)
    named = {
        name
        for name, definition in definitions.items()
        if name in below[name] or (uses[name] > 1 and len(str(definition)) > _SHORT)
    }
    writer = _Outline(definitions, named)
    fields = writer.fields(definitions[""])
    lines = ["{", ",\n".join(f"  {field}" for field in fields), "}"] if fields else ["{}"]
    for name in writer.used:  # the loop adds names
        lines.append(f"{name}: {writer.text(definitions[name])}")
    return "\n".join(lines)


def notes_on(schema: Schema) -> str:
    """Return the bounds of a value and its description, in words. Return an empty text if there are
    none."""
    notes: list[str] = []
    # The outline of a tuple shows its size.
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
    """A writer of outlines."""

    definitions: dict[str, Schema]
    """The schemas that references lead to, by name."""
    named: set[str]
    """The definitions that are written by name."""
    used: list[str] = field(default_factory=list[str])
    """The names that were written so far."""

    def fields(self, schema: Schema) -> list[str]:
        """Return the fields of an object, each with its type."""
        required = schema.get("required", ())
        return [
            f"{json.dumps(name, ensure_ascii=False)}{'' if name in required else '?'}: "
            f"{self.text(as_schema(part))}"
            for name, part in as_schema(schema.get("properties")).items()
        ]

    def text(self, schema: Schema) -> str:
        """Return the type of a value, with its bounds and description in parentheses."""
        notes = notes_on(schema)
        kind = self.type_of(schema)
        return f"{kind} ({notes})" if notes else kind

    def type_of(self, schema: Schema) -> str:
        """Return the type of a value."""
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
            return " & ".join(self.text(as_schema(part)) for part in schema["allOf"])
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            listed = " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
            return listed if len(listed) <= _MOST_LISTED else f"{listed[:_MOST_LISTED]} …"
        match schema.get("type", "any"):
            case "array":
                first = [self.text(as_schema(item)) for item in schema.get("prefixItems", ())]
                items = first or [self.text(as_schema(schema.get("items"))), "..."]
                return f"[{', '.join(items)}]"
            case "object" if "properties" in schema:
                return f"{{{', '.join(self.fields(schema))}}}"
            case "object":
                keys = {"type": "string", **as_schema(schema.get("propertyNames"))}
                values = as_schema(schema.get("additionalProperties"))
                for pattern, value_schema in as_schema(schema.get("patternProperties")).items():
                    keys, values = {"type": "string", "pattern": pattern}, as_schema(value_schema)
                return f"{{{self.text(keys)}: {self.text(values)}, ...}}"
            case "string":
                return schema.get("format", "string")
            case "boolean":
                return "true | false"
            case kind:
                return kind


# --- reading a schema -------------------------------------------------------------------------


def as_schema(given: Any) -> Schema:
    """Return a schema as a dict. For `true`, which allows every value, return an empty dict."""
    return cast(Schema, given) if isinstance(given, dict) else {}


def definitions_of(schema: Mapping[str, Any]) -> dict[str, Schema]:
    """Return the schemas that references can lead to, by name. The complete schema has the empty
    name."""
    definitions = {name: as_schema(part) for name, part in schema.get("$defs", {}).items()}
    return {**definitions, "": {key: value for key, value in schema.items() if key != "$defs"}}


def name_in(reference: str) -> str:
    """Return the name that a reference points to."""
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~").removeprefix("#")


def reachable(definitions: Mapping[str, Schema]) -> dict[str, set[str]]:
    """Return, for each definition, the names of the definitions that occur in it at any depth."""
    direct = {
        name: {name_in(str(part["$ref"])) for part in parts(schema) if "$ref" in part}
        for name, schema in definitions.items()
    }
    references: dict[str, set[str]] = {}
    for name in definitions:
        reached: set[str] = set()
        to_visit = list(direct[name])
        while to_visit:
            target = to_visit.pop()
            if target not in reached:
                reached.add(target)
                to_visit += direct.get(target, ())
        references[name] = reached
    return references


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether a value of the schema may contain another value of the same definition."""
    return any(name in below for name, below in reachable(definitions_of(schema)).items())


def parts(schema: Any) -> Iterator[Schema]:
    """Yield the schema and all schemas inside it, at any depth."""
    part = as_schema(schema)
    yield part
    for subschema in inner(part):
        yield from parts(subschema)


def inner(part: Schema) -> list[Any]:
    """Return the schemas directly inside a schema. Examples, defaults and constants are not
    schemas."""
    schemas: list[Any] = []
    changed(part, schemas.append)
    return schemas


def changed(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> Schema:
    """Return a copy of a schema, with `change` applied to each schema directly inside it."""
    schema_copy: Schema = {}
    for key, value in schema.items():
        if key in MAPS and isinstance(value, dict):
            schema_copy[key] = {
                name: change(subschema) for name, subschema in cast(Schema, value).items()
            }
        elif key in LISTS and isinstance(value, list):
            schema_copy[key] = [change(item) for item in cast(list[Any], value)]
        else:
            schema_copy[key] = change(value) if key in SINGLE and isinstance(value, dict) else value
    return schema_copy


def alternatives(schema: Schema) -> list[Schema] | None:
    """Return the alternatives of a schema, of which a value must fit one. Return None if it has no
    alternatives."""
    kind = schema.get("type")
    if isinstance(kind, list):
        return [{**schema, "type": type_} for type_ in cast(list[str], kind)]
    members = schema.get("anyOf", schema.get("oneOf"))
    return None if members is None else [as_schema(member) for member in members]


_SHORT: Final = 100
"""The length up to which a repeated type is written out each time, in characters of its schema."""

_MOST_LISTED: Final = 1000
"""The number of characters of a field's allowed values that are shown. The grammar still allows all
values."""

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

# The keywords whose values are schemas by name, a list of schemas, or a single schema.
MAPS: Final = frozenset({"properties", "$defs", "patternProperties"})
LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SINGLE: Final = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not"})
