"""Pydantic's core schemas: of a type, of what a dependency returns, and what is inside one."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from bae.calls import CallPlan

Schema = dict[str, Any]

_NO_SCHEMAS = frozenset(
    {"metadata", "serialization", "default", "members", "config", "expected", "function"}
)
"""What may look like a schema and is none: defaults are values, and metadata is anybody's."""


def parts(schema: Any, *, written: bool = False) -> list[Schema]:
    """A core schema and those inside it, as they apply to JSON. With `written`, not those inside a
    schema that says itself how its values are written."""
    inside: list[Schema] = []
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
            inside.append(found)
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
    return inside


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


def unreadable_enum(schema: Any) -> str:
    """An enum in a core schema of which pydantic takes the members alone, and JSON has none: one
    that a `Literal` names, or that has values which JSON has not; empty where there is none."""
    for part in parts(schema):
        for member in part.get("expected", ()) if part["type"] == "literal" else ():
            if isinstance(member, Enum) and not isinstance(member, str | int):
                return type(member).__name__
        for member in part["members"] if part["type"] == "enum" else ():
            if not isinstance(member.value, str | int | float | None):
                return type(member).__name__
    return ""
