"""JSON schemas of the answers that a model is asked for, and which fields of a node it may see.
Worked out once per class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticOmit

from bae.core_schemas import computed_schemas, field_schema, fields_schema
from bae.plan import plan_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from bae.node import Node

T = TypeVar("T")
Schema = dict[str, Any]


def once(cls: type[BaseModel], key: object, make: Callable[[], T]) -> T:
    """What `make` returns for a class, worked out on first use and stored on the class."""
    try:
        return cls.__dict__[_KNOWN][key]
    except KeyError:
        pass
    if _KNOWN not in cls.__dict__:
        type.__setattr__(cls, _KNOWN, {})
    value = cls.__dict__[_KNOWN][key] = make()
    return value


def asked_fields(cls: type[Node]) -> tuple[str, ...]:
    """The fields a model is asked for: the plain ones, without those that have a default and a
    type that JSON cannot express."""

    def find() -> tuple[str, ...]:
        plain = plan_of(cls, strict=True).plain
        return tuple(
            f.name
            for f in plain
            if f.required or _has_schema(field_schema(cls, f.name), "validation")
        )

    return once(cls, "asked", find)


def shown_fields(cls: type[Node]) -> frozenset[str]:
    """The fields a model may see: those that JSON can express, which a client or a connection is
    not. Computed fields are among them."""

    def find() -> frozenset[str]:
        plan_of(cls, strict=True)
        schemas = {name: field_schema(cls, name) for name in cls.__pydantic_fields__}
        schemas |= computed_schemas(cls)
        return frozenset(n for n, schema in schemas.items() if _has_schema(schema, "serialization"))

    return once(cls, "shown", find)


def fill_schema(cls: type[Node], names: tuple[str, ...]) -> Schema:
    """The schema of an answer that fills these fields of a node."""

    def make() -> Schema:
        schema = _Asked().generate(fields_schema(cls, names), "validation")
        return {**schema, "title": cls.__name__, "additionalProperties": False}

    return once(cls, names, make)


def route_schema(options: Mapping[str, type[Node] | None]) -> Schema:
    """The schema of a choice among names. A name with a class is answered together with the fields
    of that class."""
    filled = {name: cls for name, cls in options.items() if cls is not None}
    if not filled:
        return {**_object({"choice": {"type": "string", "enum": list(options)}}), "title": "Choice"}

    def make() -> Schema:
        generator = _Asked()
        inputs = [
            (name, "validation", fields_schema(cls, asked_fields(cls)))
            for name, cls in filled.items()
        ]
        made, shared = generator.generate_definitions(cast(Any, inputs))
        branches: list[Schema] = []
        for name in options:
            branch: Schema = {"choice": {"type": "string", "const": name}}
            if name in filled:
                fields = generator.undocumented(made[cast(Any, (name, "validation"))])
                branch["fields"] = {**fields, "title": name, "additionalProperties": False}
            branches.append(_object(branch))
        schema = {**_object({"answer": {"anyOf": branches}}), "title": "Choice"}
        return {**schema, "$defs": generator.undocumented(shared)} if shared else schema

    return once(next(iter(filled.values())), tuple(options.items()), make)


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


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
        if self.mode == "serialization":  # what can be read only once is not for showing
            return self.handle_invalid_for_json_schema(schema, "core_schema.GeneratorSchema")
        return super().generator_schema(schema)

    def is_subclass_schema(self, schema: Any) -> Schema:
        # Pydantic lets a class be anything in JSON, which it cannot be.
        return self.handle_invalid_for_json_schema(schema, "core_schema.IsSubclassSchema")

    def _noted(self, schema: Schema, cls: type | None) -> Schema:
        if cls is not None and cls.__doc__:
            self._documented.add(inspect.cleandoc(cls.__doc__))
        return schema

    def undocumented(self, schema: Any) -> Any:
        """The schema without the docstrings that pydantic took for descriptions of classes.

        That of an enum is put in last, so all are taken out at the end. A class has a title, which
        tells its description from a field's.
        """
        if isinstance(schema, list):
            return [self.undocumented(each) for each in cast(list[Any], schema)]
        if not isinstance(schema, dict):
            return schema
        found = {key: self.undocumented(each) for key, each in cast(Schema, schema).items()}
        said = found.get("description")
        if isinstance(said, str) and "title" in found and said in self._documented:
            del found["description"]
        return found


def _has_schema(schema: Any, mode: JsonSchemaMode) -> bool:
    try:
        _Asked().generate(schema, mode)
    except (PydanticInvalidForJsonSchema, PydanticOmit):
        return False
    return True


_KNOWN = "__bae_schemas__"
