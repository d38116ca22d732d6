"""`Starts` validates and describes the start of runs over HTTP, with the classes of a graph. This
module also has the JSON schemas of ends and gates."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticUndefined, to_jsonable_python

from bae.hints import NOWHERE
from bae.prompts.schemas import without_hidden_defaults
from bae.prompts.values import find_visible_fields
from bae.secrets import MASK, secret_fields, without_hidden_parts
from bae.serve.problems import input_refusal, wrong_input
from bae.tool_plan import plan_tool
from bae.tools import Tool

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


class Starts:
    """The start of a served graph."""

    def __init__(self, name: str, graph: Graph[Any, Any]) -> None:
        self.name, self.graph = name, graph
        self._plan = plan_tool(Tool(graph), NOWHERE)

    def node(self, values: Any) -> Node:
        """Return the start node with these fields. Raises `Refused` for wrong fields."""
        if not isinstance(values, dict):
            start = self.graph.start.__name__
            fix = 'send an object with its fields: {"start": {…}}'
            raise wrong_input(["body", "start"], f"it is no object with the fields of {start}", fix)
        try:
            fields = self._plan.validate(cast("dict[str, Any]", values))
            return self.graph.start(**fields)
        except ValidationError as error:
            raise input_refusal(error, "body", "start") from error

    @cached_property
    def about(self) -> str:
        """The description of the graph."""
        return self._plan.spec.description

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the start node's fields, with their defaults. Defaults that are
        secrets are left out."""
        return self._with_defaults(self._plan.spec.schema)

    @cached_property
    def form_schema(self) -> dict[str, Any]:
        """The JSON schema for a form. This schema has the names of classes, by which a form
        distinguishes the options of a union."""
        return self._with_defaults(self._plan.form_schema)

    def _with_defaults(self, plain_schema: Mapping[str, Any]) -> dict[str, Any]:
        start = self.graph.start
        schema: dict[str, Any] = {**plain_schema, "title": start.__name__}
        hidden = secret_fields(start).keys()
        properties: dict[str, Any] = {
            name: {key: value for key, value in part.items() if key != "default"}
            if name in hidden
            else part
            for name, part in schema.get("properties", {}).items()
        }
        for name in (properties.keys() & find_visible_fields(start)) - hidden:
            default = start.model_fields[name].get_default()
            with suppress(ValueError):  # raised if JSON cannot express the default
                if default is not None and default is not PydanticUndefined:
                    plain = to_jsonable_python(default)
                    properties[name] = {"default": plain, **properties[name]}
        return {**schema, "properties": properties}

    @cached_property
    def ends(self) -> dict[str, dict[str, Any]]:
        """The JSON schema of each class where a run may end."""
        return {cls.__name__: end_schema(cls) for cls in self.graph.terminal_nodes}


class _LenientSchema(GenerateJsonSchema):
    """Makes JSON schemas. A type that JSON cannot express becomes any value, because responses do
    not have such values. Defaults show no secrets."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        return None

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return without_hidden_defaults(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return without_hidden_defaults(super().dataclass_schema(schema), schema["cls"])

    def encode_default(self, dft: Any) -> Any:
        return super().encode_default(without_hidden_parts(dft, MASK))


def end_schema(cls: type[Node]) -> dict[str, Any]:
    """Return the JSON schema of a node in responses."""
    schema = cls.model_json_schema(mode="serialization", schema_generator=_LenientSchema)
    shown_names = find_visible_fields(cls)
    schema["properties"] = {
        n: s for n, s in schema.get("properties", {}).items() if n in shown_names
    }
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name in shown_names]
    return schema


def answer_schema(of: Any) -> dict[str, Any] | None:
    """Return the JSON schema of the answer to a gate. Return None for a type without a schema."""
    try:
        return TypeAdapter(of).json_schema(schema_generator=_LenientSchema)
    except Exception:
        # A type of the user may raise any error. No schema is needed: bae validates each answer.
        return None
