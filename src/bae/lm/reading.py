"""From a model's answer to a node: what the answer is, which of its fields are valid, and the node
they make together with the resolved ones. `asking.py` asks again for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic_core import ValidationError, from_json

from bae.draft import from_answer, validated
from bae.exceptions import NodeError, faults
from bae.lm.backend import UNPARSED, Answer
from bae.lm.schemas import asked_fields, once
from bae.node import Node

if TYPE_CHECKING:
    from bae.usage import Verdict

N = TypeVar("N", bound="Node")


@dataclass(frozen=True, slots=True)
class Read:
    """An answer that was read: its JSON object, or why there is none."""

    value: dict[str, Any] | None
    verdict: Verdict = "valid"
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Built(Generic[N]):
    """A node made of an answer, or the fields that were wrong."""

    node: N | None
    wrong: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    cause: ValidationError | None = None


def read(answer: Answer) -> Read:
    """The JSON object in an answer. Nothing is guessed: text around it makes it no JSON."""
    if answer.stop == "refused":
        return Read(None, "refused", (answer.text.strip() or "no reason was given",))
    value: Any = answer.value
    if value is UNPARSED:
        if not answer.text.strip():
            return Read(None, "cut-off" if answer.stop == "cut-off" else "empty", ("no text",))
        try:
            value = from_json(answer.text)
        except ValueError as error:
            if answer.stop == "cut-off":
                return Read(None, "cut-off", ("the limit on its length was reached",))
            return Read(None, "unparsable", (f"not JSON: {error}",))
    if value is None or value == "":
        return Read(None, "empty", ("no value",))
    if not isinstance(value, dict):
        return Read(None, "unparsable", (f"not an object but {type(value).__name__}",))
    return Read(cast(dict[str, Any], value))


def text_of(answer: Answer) -> str:
    """What the model said, as text."""
    if answer.text or answer.value is UNPARSED:
        return answer.text
    return json.dumps(answer.value, ensure_ascii=False, default=str)


def build(
    target: type[N],
    asked: tuple[str, ...],
    answered: Mapping[str, Any],
    resolved: Mapping[str, Any],
) -> Built[N]:
    """The node, validated whole; or which of the `asked` fields to ask for again, and why. Where
    the fault lies between fields, that is all of them."""
    data = {**answered, **resolved}
    said = _said(target)
    try:
        return Built(target(**data) if said is None else from_answer(target, data, said))
    except ValidationError as error:
        if asked and any(place in resolved for place in _places(error)):
            _check(target, resolved)
        return Built(None, _wrong(asked, error), tuple(faults(error)), error)
    except Exception as error:
        raise NodeError(
            f"{target.__name__}: a validator raised {type(error).__name__}",
            node_type=target,
            cause=error,
            code="bae-node-invalid",
            fix=f"mend the validators of {target.__name__}: to refuse a value, raise ValueError",
        ) from error


def _check(target: type[Node], resolved: Mapping[str, Any]) -> None:
    """Raise what no other answer can mend: a run sees to it before it asks, others may not."""
    try:
        validated(target, {n: v for n, v in resolved.items() if n in target.__pydantic_fields__})
    except ValidationError as error:
        raise NodeError(
            f"{target.__name__}: what was resolved for it is not valid: {'; '.join(faults(error))}",
            node_type=target,
            cause=error,
            code="bae-node-invalid",
            fix="give fill values that the fields take",
        ) from error


def _wrong(asked: tuple[str, ...], error: ValidationError) -> tuple[str, ...]:
    places = _places(error)
    if not all(place in asked for place in places):
        return asked
    return tuple(name for name in asked if name in places)


def _places(error: ValidationError) -> list[int | str | None]:
    return [each["loc"][0] if each["loc"] else None for each in error.errors(include_url=False)]


def _said(target: type[Node]) -> frozenset[str] | None:
    """The fields that are read as JSON: those a model is asked for. As Python values, text would
    be text where a union takes a date too, and a strict field would take none of it. None for a
    class with a constructor of its own, which is called as it is."""

    def find() -> frozenset[str] | None:
        return None if target.__init__ is not Node.__init__ else frozenset(asked_fields(target))

    return once(target, "said", find)
