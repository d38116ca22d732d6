"""Reads pydantic's core schemas of node classes, types and dependency results. Makes the schemas of
drafts: nodes that are not complete yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from bae.assignable import union_members

if TYPE_CHECKING:
    from bae.calls import CallPlan
    from bae.node import Node

CoreSchemaDict = dict[str, Any]
ValidatorKind = Literal["draft", "some", "rest", "whole"]
"""What a validator validates:

- "draft": a node whose fields `names` may be absent.
- "some": only the fields `names`.
- "rest": a node whose fields `names` are valid already.
- "whole": a complete node.
"""
ABSENT: Final = object()
"""The value of a field that a draft does not have yet."""


def field_schema(cls: type[Node], name: str, *, alone: bool = False) -> Any:
    """Return the core schema of one field, with the definitions that the schema refers to. With
    `alone`, leave out validators that may look at other fields."""
    model, definitions = _model_fields(cls)
    schema = model["fields"][name]["schema"]
    return _with_definitions(_without_onlookers(schema) if alone else schema, definitions)


def field_schemas(cls: type[Node], *, alone: bool = False) -> dict[str, Any]:
    """Return the core schemas of all fields, by name, as `field_schema` does for one field."""
    model, definitions = _model_fields(cls)
    schemas: dict[str, Any] = {}
    for name, field in model["fields"].items():
        schema = field["schema"]
        schemas[name] = _with_definitions(
            _without_onlookers(schema) if alone else schema, definitions
        )
    return schemas


def fields_schema(cls: type[Node], names: Iterable[str]) -> Any:
    """Return a core schema that validates the fields `names`. Its input has the names of fields,
    not their aliases."""
    model, definitions = _model_fields(cls)
    chosen = {n: without_aliases(model["fields"][n]) for n in names}
    return _with_definitions({"type": "model-fields", "fields": chosen}, definitions)


def computed_schemas(cls: type[Node]) -> dict[str, Any]:
    """Return the core schema of each computed field's result, by the name of the field."""
    model, definitions = _model_fields(cls)
    computed = cast(list[CoreSchemaDict], model.get("computed_fields", []))
    return {
        c["property_name"]: _with_definitions(c["return_schema"], definitions) for c in computed
    }


def model_config_of(cls: type[Node]) -> CoreSchemaDict:
    """Return pydantic's settings of a node class, in the form that a validator takes."""
    schema = cast(CoreSchemaDict, cls.__pydantic_core_schema__)
    while schema["type"] != "model":
        schema = inner_schema(schema)
    return dict(schema.get("config") or {})


def converts(cls: type[Node], name: str) -> bool:
    """Return whether a field converts its value: by a validator that runs before the validation of
    the type, or by one of pydantic's own types, such as `AwareDatetime` or `Json`."""
    members = union_members(cls.__pydantic_fields__[name].annotation)
    if any(getattr(member, "__module__", "").startswith("pydantic") for member in members):
        return True
    converting = ("function-before", "function-wrap", "function-plain", "json")
    return any(layer["type"] in converting for layer in _layers(field_schema(cls, name)))


def looks_around(field: CoreSchemaDict) -> bool:
    """Return whether a validator of the field may look at other fields, so that the field can only
    be validated together with them."""
    return any(_is_onlooker(layer) for layer in _layers(field["schema"]))


def type_schema(declared: Any) -> Any:
    """Return the core schema of a type. For a class that pydantic does not know, the schema accepts
    the instances of the class. Raises pydantic's error if there can be no schema."""
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

    adapter: Any
    try:
        adapter = TypeAdapter(declared, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        raise
    except PydanticUserError:  # a type with its own settings takes no others
        adapter = TypeAdapter(declared)
    return adapter.core_schema


def returned_schema(call: CallPlan) -> Any:
    """Return the core schema of a dependency's declared result. The schema is made once."""
    schema = _RETURNED.get(call)
    if schema is None:
        schema = _RETURNED[call] = type_schema(call.returns)
    return schema


_RETURNED: Final[WeakKeyDictionary[CallPlan, Any]] = WeakKeyDictionary()


def parts(schema: Any, *, written: bool = False) -> list[CoreSchemaDict]:
    """Return a core schema and all schemas inside it that apply to JSON. With `written`, leave out
    the schemas inside a schema with its own serializer, because they do not write the JSON."""
    inside: list[CoreSchemaDict] = []
    ahead = [schema]
    while ahead:
        current = ahead.pop()
        if isinstance(current, list | tuple):
            ahead.extend(cast(list[Any], current))
        elif isinstance(current, dict):
            part = cast(CoreSchemaDict, current)
            if not isinstance(part.get("type"), str):
                ahead.extend(part.values())
                continue
            inside.append(part)
            writer: CoreSchemaDict = part.get("serialization") or {}
            if written and writer.get("type") in ("function-plain", "to-string", "format"):
                continue
            match part["type"]:
                case "json-or-python":
                    ahead.append(part["json_schema"])
                case "lax-or-strict":
                    ahead.append(part["lax_schema"])
                case _:
                    ahead.extend(value for key, value in part.items() if key not in _NO_SCHEMAS)
    return inside


_NO_SCHEMAS = frozenset(
    {"metadata", "serialization", "default", "members", "config", "expected", "function"}
)
"""Keys of a core schema whose values are not schemas, even if they look like schemas."""


def unreadable_enum(schema: Any) -> str:
    """Return the name of an enum in a core schema whose members cannot be read from JSON, or an
    empty text. Such an enum has values that JSON cannot express, or a `Literal` names its members
    and they are neither texts nor ints."""
    for part in parts(schema):
        for member in part.get("expected", ()) if part["type"] == "literal" else ():
            if isinstance(member, Enum) and not isinstance(member, str | int):
                return type(member).__name__
        for member in part["members"] if part["type"] == "enum" else ():
            if not isinstance(member.value, str | int | float | None):
                return type(member).__name__
    return ""


def inner_schema(schema: CoreSchemaDict) -> CoreSchemaDict:
    """Return the schema inside one layer of a model's schema."""
    inner = cast(CoreSchemaDict, schema["schema"])
    if inner["type"] == "definition-ref":  # a model that refers to itself
        wanted = inner["schema_ref"]
        return next(d for d in schema["definitions"] if d.get("ref") == wanted)
    return inner


def without_aliases(field: CoreSchemaDict) -> CoreSchemaDict:
    """Return the schema of a field without the field's aliases."""
    return {k: v for k, v in field.items() if not k.endswith("_alias")}


def _model_fields(cls: type[Node]) -> tuple[CoreSchemaDict, list[Any] | None]:
    schema = cast(CoreSchemaDict, cls.__pydantic_core_schema__)
    definitions = schema.get("definitions") if schema["type"] == "definitions" else None
    while schema["type"] != "model-fields":
        schema = inner_schema(schema)
    return schema, definitions


def _with_definitions(schema: CoreSchemaDict, definitions: list[Any] | None) -> CoreSchemaDict:
    if not definitions:
        return schema
    return {"type": "definitions", "schema": schema, "definitions": definitions}


def _layers(schema: CoreSchemaDict) -> Iterator[CoreSchemaDict]:
    """Yield the layers of a field's schema, from the outside in."""
    current: Any = schema
    while isinstance(current, dict) and "type" in current:
        yield cast(CoreSchemaDict, current)
        current = cast(Any, current).get("schema")


def _is_onlooker(layer: CoreSchemaDict) -> bool:
    function = layer.get("function")
    return isinstance(function, dict) and cast(Any, function).get("type") == "with-info"


def _without_onlookers(schema: CoreSchemaDict) -> CoreSchemaDict:
    if _is_onlooker(schema):
        return _without_onlookers(schema["schema"]) if "schema" in schema else {"type": "any"}
    if schema["type"] in ("default", "function-before", "function-after", "function-wrap"):
        return {**schema, "schema": _without_onlookers(schema["schema"])}
    return schema


def reshape_schema(
    cls: type[Node],
    kind: ValidatorKind,
    names: frozenset[str],
    json_fields: frozenset[str] | None,
    config: CoreSchemaDict,
    post_init: Callable[[Any], Any],
) -> Any:
    """Make the schema of a node class for one kind of validator.

    A class may have validators around the model. A validator that runs before the model belongs to
    the kind "draft", which gets the input. The model, and a validator that runs after or around it,
    belong to the kind "rest". The kind "whole" has all of them, and "some" has none. The fields in
    `json_fields` read JSON. If the class has private attributes, `post_init` runs after the
    validation of the kind "rest", in place of pydantic's own function.
    """

    def reshape(schema: CoreSchemaDict) -> CoreSchemaDict:
        layer = schema["type"]
        if layer == "model-fields":
            fields = schema["fields"]
            if kind != "draft" or json_fields is not None:
                # The run and an LLM use the names of fields; aliases are for callers. The parameter
                # `by_alias=False` would turn off aliases in models inside the fields as well.
                fields = {n: without_aliases(f) for n, f in fields.items()}
            fields = {
                n: _read_json(f) if n in (json_fields or ()) else f for n, f in fields.items()
            }
            return {**schema, "fields": _reshape_fields(fields, kind, names)}
        inner = reshape(inner_schema(schema))
        before = layer == "function-before"
        belongs = {"draft": before, "some": False, "rest": not before, "whole": True}
        if layer != "definitions" and not belongs[kind]:
            return inner
        reshaped = {**{k: v for k, v in schema.items() if k != "ref"}, "schema": inner}
        if layer != "model":
            return reshaped
        reshaped |= {"cls": _Whole, "config": config}
        if kind == "whole" or not schema["cls"].__private_attributes__:
            return reshaped
        del reshaped["post_init"]
        after = {"type": "no-info", "function": post_init}
        return {"type": "function-after", "function": after, "schema": reshaped}

    return reshape(cast(CoreSchemaDict, cls.__pydantic_core_schema__))


def _reshape_fields(
    fields: CoreSchemaDict, kind: ValidatorKind, names: frozenset[str]
) -> CoreSchemaDict:
    match kind:
        case "draft":
            # A field that may be absent goes last, so that no validator of another field sees it.
            absent = {n: _make_optional(f) for n, f in fields.items() if n in names}
            return {n: f for n, f in fields.items() if n not in names} | absent
        case "some":
            chosen = {n: f for n, f in fields.items() if n in names}
            any_ = {"type": "any"}
            return {n: {**f, "schema": any_} if looks_around(f) else f for n, f in chosen.items()}
        case "rest":
            any_ = {"type": "any"}
            return {n: {**f, "schema": any_} if n in names else f for n, f in fields.items()}
        case "whole":
            return fields


def _read_json(field: CoreSchemaDict) -> CoreSchemaDict:
    """Return the schema of a field that reads JSON, even if the other fields do not."""
    inner = field["schema"]
    if inner["type"] == "default":
        return {**field, "schema": {**inner, "schema": _read_json(inner)["schema"]}}
    if inner["type"] in _SAME_IN_JSON:
        return field
    text = {"type": "no-info", "function": to_json}
    read = {"type": "json", "schema": inner}
    return {**field, "schema": {"type": "function-before", "function": text, "schema": read}}


_SAME_IN_JSON = ("bool", "int", "str")
"""Types that validate a parsed JSON value in the same way as the JSON text."""


class _Whole:
    """Stands for the node class in a schema. If the schema named the node class, pydantic would use
    the class's own validator."""


def _make_optional(field: CoreSchemaDict) -> CoreSchemaDict:
    inner = field["schema"]
    if inner["type"] == "default":
        inner = inner["schema"]
    absent = {"type": "default", "schema": inner, "default": ABSENT, "validate_default": False}
    return {**field, "schema": absent}
