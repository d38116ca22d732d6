"""JSON schemas of the answers that a model is asked for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticOmit

from bae.core_schemas import fields_schema
from bae.lm.json_schemas import Schema, changed

if TYPE_CHECKING:
    from bae.node import Node


def fill_schema(cls: type[Node], names: tuple[str, ...]) -> Schema:
    """The schema of an answer that fills these fields of a node."""
    schema = _Asked().generate(fields_schema(cls, names), "validation")
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
            branch["fields"] = {**fields, "title": name, "additionalProperties": False}
        branches.append(_object(branch))
    schema = {**_object({"answer": {"anyOf": branches}}), "title": "Choice"}
    return generator.undocumented({**schema, "$defs": shared} if shared else schema)


def has_schema(schema: Any, mode: JsonSchemaMode) -> bool:
    """Whether JSON can express what a core schema is for."""
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
        if not isinstance(schema, dict):
            return schema
        found = changed(cast(Schema, schema), self.undocumented)
        said = found.get("description")
        if isinstance(said, str) and "title" in found and said in self._documented:
            del found["description"]
        return found
