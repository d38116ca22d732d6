"""Pydantic's core schemas, and the change that reading JSON needs in one: JSON has no enum members,
and pydantic takes nothing but the member itself where a `Literal` names it, or where its value is
no text and no number. `draft.py` reads answers with it, the journal what it has stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from pydantic_core import SchemaSerializer, SchemaValidator, to_json

if TYPE_CHECKING:
    from bae.calls import CallPlan

Schema = dict[str, Any]
Made = TypeVar("Made", SchemaValidator, SchemaSerializer)


def by_value(schema: Any) -> Any:
    """A core schema that takes the values of enum members, as JSON says them, for the members; the
    same object where it does so already."""
    if isinstance(schema, list):
        items = cast(list[Any], schema)
        read = [by_value(each) for each in items]
        return items if _same(items, read) else read
    if not isinstance(schema, dict):
        return schema
    found = cast(Schema, schema)
    match found.get("type"):
        case "literal":
            return _before(_members(found["expected"]), found)
        case "enum":  # members with a value that JSON has are known by it
            odd = [m for m in found["members"] if not isinstance(m.value, str | int | float | None)]
            return _before(_members(odd), found)
        case _:
            pass
    read = {key: _inside(key, each) for key, each in found.items()}
    if _same(found.values(), read.values()):
        read = found
    if found.get("type") == "tagged-union":
        choices: dict[Any, Any] = read["choices"]
        tags = {m.value: choices[m] for m in _members(choices).values() if m.value not in choices}
        return {**read, "choices": {**choices, **tags}} if tags else read
    return read


_BY_NAME = frozenset({"fields", "choices"})
"""What holds schemas by name, and any name may be one of these."""
_NO_SCHEMAS = frozenset(
    {"metadata", "serialization", "default", "members", "config", "expected", "function"}
)
"""What may look like a schema and is none: defaults are values, and metadata is anybody's."""


def parts(schema: Any, *, written: bool = False) -> Iterator[Schema]:
    """A core schema and those inside it, as they apply to JSON. With `written`, not those inside a
    schema that says itself how its values are written."""
    ahead = [schema]
    while ahead:
        current = ahead.pop()
        if isinstance(current, list | tuple):
            ahead.extend(cast(list[Any], current))
        elif isinstance(current, dict):
            found = cast(Schema, current)
            if not isinstance(found.get("type"), str):
                ahead.extend(found.values())
                continue
            yield found
            writer: Schema = found.get("serialization") or {}
            if written and writer.get("type") in _WRITERS:
                continue
            match found["type"]:
                case "json-or-python":
                    ahead.append(found["json_schema"])
                case "lax-or-strict":
                    ahead.append(found["lax_schema"])
                case _:
                    ahead.extend(each for key, each in found.items() if key not in _NO_SCHEMAS)


_WRITERS = ("function-plain", "to-string", "format")


def type_schema(declared: Any) -> Any:
    """The core schema of a type. Classes that pydantic knows nothing of are in it as they are.
    Raises what pydantic raises where there can be none."""
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

    adapter: Any
    try:
        adapter = TypeAdapter(declared, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        raise
    except PydanticUserError:  # a type with settings of its own
        adapter = TypeAdapter(declared)
    return adapter.core_schema


def returned_schema(call: CallPlan) -> Any:
    """The core schema of what a dependency is declared to return, made once."""
    found = _RETURNED.get(call)
    if found is None:
        found = _RETURNED[call] = type_schema(call.returns)
    return found


_RETURNED: Final[WeakKeyDictionary[CallPlan, Any]] = WeakKeyDictionary()


def json_validator(schema: Any, config: Any) -> SchemaValidator:
    """A validator that reads JSON, enum members by their values."""
    read = by_value(schema)
    if read is schema:
        return SchemaValidator(schema, config)
    return compiled(SchemaValidator, read, config)


def classes_in(schema: Any) -> set[type]:
    """The classes of the models and dataclasses in a core schema."""
    found: set[type] = set()
    ahead = [schema]
    while ahead:
        current = ahead.pop()
        if isinstance(current, dict):
            inside = cast(Schema, current)
            if inside.get("type") in ("model", "dataclass") and isinstance(inside["cls"], type):
                found.add(inside["cls"])
            ahead.extend(each for key, each in inside.items() if key not in _NO_SCHEMAS)
        elif isinstance(current, list):
            ahead.extend(cast(list[Any], current))
    return found


def compiled(make: type[Made], schema: Any, config: Any) -> Made:
    """The validator or serializer of a changed schema. What is inside models is as new as the rest,
    so those that pydantic has made for their classes will not do."""
    try:
        return cast(Any, make)(schema, config, _use_prebuilt=False)
    except TypeError:
        pass
    # Versions of pydantic without that parameter take what is there for classes that are complete,
    # so none is while this is compiled. Nothing else looks at that then.
    classes = [c for c in classes_in(schema) if c.__dict__.get("__pydantic_complete__") is True]
    with _COMPILING:
        for cls in classes:
            type.__setattr__(cls, "__pydantic_complete__", False)
        try:
            return make(schema, config)
        finally:
            for cls in classes:
                type.__setattr__(cls, "__pydantic_complete__", True)


_COMPILING: Final = Lock()


def _inside(key: str, schema: Any) -> Any:
    if key in _NO_SCHEMAS:
        return schema
    if key not in _BY_NAME or not isinstance(schema, dict):
        return by_value(schema)
    named = cast(dict[Any, Any], schema)
    read = {name: by_value(each) for name, each in named.items()}
    return named if _same(named.values(), read.values()) else read


def _same(one: Iterable[Any], two: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(one, two, strict=True))


def _members(expected: Collection[Any]) -> dict[bytes, Enum]:
    """The members that pydantic knows only by themselves, by what JSON makes of their values."""
    members = [m for m in expected if isinstance(m, Enum) and not isinstance(m, str | int)]
    plain = {_said(each) for each in expected if not isinstance(each, Enum)}
    found: dict[bytes, Enum] = {}
    for member in members:
        said = _said(member.value)
        if said is not None and said not in plain:
            found.setdefault(said, member)
    return found


def _said(value: Any) -> bytes | None:
    try:
        return to_json(value)
    except (ValueError, TypeError):
        return None


def _before(members: dict[bytes, Enum], schema: Schema) -> Schema:
    if not members:
        return schema

    def read(value: Any) -> Any:
        return members.get(_said(value) or b"", value)

    inner = {key: each for key, each in schema.items() if key != "ref"}
    outer = {"ref": schema["ref"]} if "ref" in schema else {}
    before = {"type": "no-info", "function": read}
    return {"type": "function-before", "function": before, "schema": inner, **outer}
