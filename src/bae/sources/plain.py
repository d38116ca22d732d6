"""A field without a source. On the start node, the caller passes the value. On any other node, the
LLM fills the field, unless a body passes the value."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from bae.assignable import type_name
from bae.core_schemas import field_schema, unreadable_enum
from bae.exceptions import Problem, an_error
from bae.sources import FieldPlan
from bae.turns import Messages

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema

    from bae.node import Node
    from bae.plan import NodePlan


class PlainField(FieldPlan):
    """The plan of a field without a source."""

    __slots__ = ()
    kind = "plain"
    noun = "no source"
    style = "llm"
    fills = "json"
    stored = "node"
    is_remade = False

    def describe_in_schema(self) -> str:
        """Return nothing, because the type says enough."""
        return ""

    def fill_problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Yield a problem if an LLM cannot fill a field of this type, or should not."""
        if self.annotation is Messages:
            yield an_error(
                "bae-thread-missing",
                "is Messages without a source, so that the LM would invent earlier turns",
                "write Annotated[Messages, Thread()]",
                f"{plan.name}.{self.name}",
            )
            return
        reason = None if self.is_parsed else _find_schema_fault(plan.node, self)
        if reason is not None:
            yield an_error(
                "bae-field-no-schema",
                f"the LM is to fill it, but {type_name(self.annotation)} has no JSON schema"
                + (f" ({reason})" if reason else ""),
                "use what JSON can say (str, int, list, a BaseModel, …), or give the field a "
                "source, as Annotated[…, Dep(…)]",
                f"{plan.name}.{self.name}",
            )


def _find_schema_fault(cls: type[Node], field: PlainField) -> str | None:
    """Return why an LLM cannot answer with JSON for a field. The reason is empty if the name of the
    type says enough. Return None if there is no such reason."""
    if field.annotation in (str, int, float, bool) and not field.info.metadata:
        return None
    from pydantic.errors import PydanticInvalidForJsonSchema
    from pydantic_core import PydanticOmit

    schema = field_schema(cls, field.name)
    if enum := unreadable_enum(schema):
        return f"JSON cannot name the members of {enum}: make it a StrEnum"
    if not field.required:  # if JSON cannot express the type, the LLM is not asked for the field
        return None
    try:
        _schema_generator()().generate(schema)
    except PydanticOmit:
        return "SkipJsonSchema leaves it out"
    except PydanticInvalidForJsonSchema as error:
        message = str(error).splitlines()[0]
        return "" if "IsInstanceSchema" in message else message
    return None


@cache
def _schema_generator() -> type[GenerateJsonSchema]:
    from pydantic.json_schema import GenerateJsonSchema

    class QuietGenerator(GenerateJsonSchema):
        """A generator that does not warn about a default that JSON cannot express, because the
        field still has a schema."""

        def emit_warning(self, kind: Any, detail: str) -> None: ...

        def is_subclass_schema(self, schema: Any) -> dict[str, Any]:
            # Pydantic accepts any JSON here, but JSON cannot express a class.
            return self.handle_invalid_for_json_schema(schema, "core_schema.IsSubclassSchema")

    return QuietGenerator
