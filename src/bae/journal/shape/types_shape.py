"""The types of a graph as JSON schemas in a notation that stays the same: from process to process,
from one Python to the next, and wherever the classes are defined. `shapes.py` puts them into the
shape of a graph, `widening.py` compares two of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from bae.node import Node

Schema = dict[str, Any]
Schemas = dict[str, Schema]

_SILENT = frozenset({"title", "default", "examples", "deprecated", "readOnly", "writeOnly"})
"""What says nothing about which values are taken, or may be said in another order each time."""
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas"})
_SAYABLE = (str, int, float, NoneType)


def schemas_of(types: Mapping[str, Any]) -> tuple[Schemas, Schemas]:
    """JSON schemas of core schemas by their keys, and the schemas of the classes they refer to by
    name. What has no JSON schema, and cannot be given one, is left out."""
    made, shared = _generated(types)
    names = _Names(shared)
    plain = {key: names.plain(schema) for key, schema in made.items()}
    return plain, names.found


def validators_of(cls: type[BaseModel]) -> list[str]:
    """The names of the validators that a class has of its own. What they do cannot be told apart
    from here, and one that was added may refuse what was stored before."""
    known = cls.__pydantic_decorators__
    every = (
        known.validators,
        known.field_validators,
        known.root_validators,
        known.model_validators,
    )
    return sorted(name for each in every for name in each)


def _generated(types: Mapping[str, Any]) -> tuple[Schemas, Schemas]:
    try:
        return _generate(types.items())
    except Exception:
        pass  # a type may come with code of its own for this, which may raise anything
    sayable: list[tuple[str, Any]] = []
    for key, core in types.items():
        try:
            _generate([(key, core)])
        except Exception:  # the same code
            continue
        sayable.append((key, core))
    return _generate(sayable)


def _generate(types: Iterable[tuple[str, Any]]) -> tuple[Schemas, Schemas]:
    inputs = [(key, "validation", core) for key, core in types]
    made, shared = cast(Any, _Noting()).generate_definitions(inputs)
    schemas = {str(key): schema for (key, _), schema in cast(dict[Any, Schema], made).items()}
    json.dumps([schemas, shared], default=str)  # what a class adds by itself may go in circles
    return schemas, cast(Schemas, shared)


class _Noting(GenerateJsonSchema):
    """Defaults are left out, and what JSON cannot say is named instead of refused."""

    def __init__(self) -> None:
        super().__init__(ref_template="{model}")

    def default_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: Any) -> Schema:
        cls: type[BaseModel] = schema["cls"]
        made = super().model_schema(schema)
        if validators := validators_of(cls):
            made = {**made, "validators": validators}
        # A node is compared as a class of its graph, where it is in one.
        return {**made, "node": cls.__name__} if issubclass(cls, Node) else made

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        cls = schema.get("cls")
        return {"python": cls.__name__ if isinstance(cls, type) else schema["type"]}

    def emit_warning(self, kind: Any, detail: str) -> None:
        pass


class _Names:
    """Gives the classes names that do not tell their module: pydantic's do where two are called
    the same. Those are numbered instead, in the order they are met."""

    def __init__(self, shared: Schemas) -> None:
        self.found: Schemas = {}
        self._shared = shared
        self._known: dict[str, str] = {}

    def plain(self, schema: Any) -> Any:
        """A schema without what `_SILENT` names, and with these names for classes."""
        if isinstance(schema, list):
            return [self.plain(each) for each in cast(list[Any], schema)]
        if not isinstance(schema, dict):
            # What a class adds by itself need not be JSON.
            return schema if isinstance(schema, _SAYABLE) else f"<{type(schema).__name__}>"
        plain: Schema = {}
        for key, each in cast(Schema, schema).items():
            if key == "$ref":
                plain[key] = self._name(each)
            elif key == "discriminator":
                plain[key] = each.get("propertyName")
            elif key in _BY_NAME and isinstance(each, dict):
                plain[key] = {n: self.plain(inner) for n, inner in cast(Schema, each).items()}
            elif key not in _SILENT:
                plain[key] = self.plain(each)
        return plain

    def _name(self, ref: str) -> str:
        if ref in self._known:
            return self._known[ref]
        schema = self._shared.get(ref)
        if schema is None:
            return ref
        title = str(schema.get("title") or ref.rpartition("__")[2])
        name, number = title, 1
        while name in self.found:
            number += 1
            name = f"{title}-{number}"
        self._known[ref] = name
        self.found[name] = {}  # before it is looked into: it may lead to itself
        # The description of a class is its docstring, which is for people alone.
        body = {key: each for key, each in schema.items() if key != "description"}
        self.found[name] = self.plain(body)
        return name
