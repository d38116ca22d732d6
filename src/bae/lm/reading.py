"""From a model's answer to a node: what the answer is, which of its fields are valid, and the node
they make together with the resolved ones. `asking.py` asks again for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic_core import ValidationError, from_json

from bae.core_schemas import by_value, every
from bae.draft import field_schema, from_answer, model_config_of, validated
from bae.exceptions import NodeError, faults
from bae.lm.backend import UNPARSED, Answer
from bae.lm.schemas import asked_fields, once
from bae.node import Node

if TYPE_CHECKING:
    from bae.lm.usage import Verdict

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
    """The fields whose values only mean what they say when they are read as JSON. None where the
    class may be called as it is: no such fields, and no aliases that names could be taken for."""

    def find() -> frozenset[str] | None:
        if target.__init__ is not Node.__init__:
            return None
        config = model_config_of(target)
        everywhere = config.get("strict") or config.get("val_json_bytes", "utf8") != "utf8"
        said = frozenset(
            name
            for name in asked_fields(target)
            if everywhere or _means_json(field_schema(target, name))
        )
        fields = target.__pydantic_fields__.values()
        return said if said or any(field.validation_alias for field in fields) else None

    return once(target, "said", find)


def _means_json(schema: Any) -> bool:
    for inside in every(schema):
        config = cast(dict[str, Any], inside.get("config") or {})
        if inside.get("strict") is True or inside.get("type") == "json-or-python":
            return True
        if config.get("strict") or config.get("val_json_bytes", "utf8") != "utf8":
            return True
    return by_value(schema) is not schema
