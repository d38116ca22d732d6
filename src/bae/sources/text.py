"""`Text`: a field without a source that the LLM answers in plain text, not in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pydantic.fields import FieldInfo

from bae.assignable import assignable, type_name
from bae.calls import MISSING, CallPlan, plan_call
from bae.core_schemas import converts
from bae.exceptions import Problem, an_error
from bae.hints import Names, signature_of
from bae.markers import Text
from bae.sources import lacks_name
from bae.sources.plain import PlainField

if TYPE_CHECKING:
    from bae.plan import NodePlan


class TextField(PlainField):
    """The plan of a field with a `Text`."""

    __slots__ = ("is_parsed", "parse")
    fills = "text"

    parse: CallPlan | None
    """The function that parses the text."""

    @classmethod
    def make(cls, name: str, info: FieldInfo, marker: Text, names: Names) -> Self:
        """Plan a field, and the function that parses its text."""
        field = cls(name, info)
        field.parse = None if marker.parse is None else plan_call(marker.parse, names)
        field.is_parsed = field.parse is not None
        return field

    def describe_in_schema(self) -> str:
        return " in plain text"

    @property
    def is_provisional(self) -> bool:
        """Whether the function that parses the text needs a name that is not defined yet."""
        return lacks_name(self.parse)

    def problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Yield the problems of the parsing function, and a type that does not fit the field."""
        call, declared = self.parse, type_name(self.annotation)
        if call is not None:
            yield from call.problems
            if not _takes_text(call):
                yield an_error(
                    "bae-text-parse",
                    f"{call.name} cannot parse the answer: it has to take one str, and not be "
                    "async",
                    f"write `def {call.name}(text: str) -> {declared}`",
                )
        returned = str if call is None else call.returns
        if returned is MISSING or converts(plan.node, self.name):
            return
        if assignable(returned, self.annotation) is False:
            subject = "the answer of the LM is a str" if call is None else f"{call.name} returns "
            yield an_error(
                "bae-text-type",
                f"is {declared}, but {subject}{'' if call is None else type_name(returned)}",
                f"declare the field {type_name(returned)}, or give Text a function that returns "
                f"{declared}",
            )

    def read_text(self, text: str) -> Any:
        """Return the parsed value of an answer, or the answer itself without a parsing function."""
        return text if self.parse is None else self.parse.fn(text)


def _takes_text(call: CallPlan) -> bool:
    if call.kind != "sync":
        return False
    try:
        signature_of(call.fn).bind("")
    except TypeError:
        return False
    except ValueError:  # some builtins have no signature
        return True
    return not call.free or assignable(str, call.free[0][1]) is not False
