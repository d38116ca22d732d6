"""Answers: what a model returned, whether it is a JSON object, the node it makes, and what to do
about a wrong one: the correction that the model is sent, or the error that is raised."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

from pydantic_core import ValidationError, from_json

from bae.draft import from_answer, validated
from bae.exceptions import FillError, NodeError, RouteError, faults
from bae.lm.prompts import Turn
from bae.lm.schemas import asked_fields, once
from bae.node import Node
from bae.usage import Attempt, Usage

if TYPE_CHECKING:
    from bae.usage import Verdict

N = TypeVar("N", bound="Node")

LONGEST_QUOTE = 4000
"""Characters of a wrong answer that are sent back to the model."""


class _Unparsed:
    def __repr__(self) -> str:
        return "<unparsed>"


UNPARSED: Final = _Unparsed()
_ONE_CALL: Final = Usage(calls=1)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered: its `text`, or the JSON `value` where it is parsed already.

    `stop` is why it ended: by itself, cut off by a limit on its length, or refused (then `text` is
    the reason the model gave).
    """

    text: str = ""
    usage: Usage = _ONE_CALL
    stop: Literal["end", "cut-off", "refused"] = "end"
    value: Any = UNPARSED

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.text), str):
            raise TypeError(
                f"Answer({type(self.text).__name__}): give the text of the model, or parsed JSON "
                "with Answer(value=…)"
            )
        if self.stop not in ("end", "cut-off", "refused"):
            raise ValueError(f'Answer(stop={self.stop!r}): give "end", "cut-off" or "refused"')


class Read(NamedTuple):
    """The JSON object of an answer, or why there is none."""

    value: dict[str, Any] | None
    verdict: Verdict = "valid"
    errors: tuple[str, ...] = ()


class Built(NamedTuple, Generic[N]):
    """The node made of an answer, or the fields that were wrong."""

    node: N | None
    wrong: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    cause: ValidationError | None = None


def read(answer: Answer) -> Read:
    """The JSON object in an answer. Nothing is guessed: with text around it, it is not JSON."""
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
    if isinstance(value, dict):
        return Read(cast(dict[str, Any], value))
    if value is None or value == "":
        return Read(None, "empty", ("no value",))
    return Read(None, "unparsable", (f"not an object but {type(value).__name__}",))


def text_of(answer: Answer) -> str:
    """The answer as text."""
    if answer.text or answer.value is UNPARSED:
        return answer.text
    return json.dumps(answer.value, ensure_ascii=False, default=str)


def build(
    target: type[N],
    asked: tuple[str, ...],
    answered: Mapping[str, Any],
    resolved: Mapping[str, Any],
) -> Built[N]:
    """The node, validated as a whole; or which of the `asked` fields to ask for again, and why.
    Where the error lies between fields, that is all of them."""
    data = {**answered, **resolved}
    from_json = _fields_from_json(target)
    try:
        return Built(target(**data) if from_json is None else from_answer(target, data, from_json))
    except ValidationError as error:
        places = [e["loc"][0] if e["loc"] else None for e in error.errors(include_url=False)]
        if asked and any(place in resolved for place in places):
            _check_resolved(target, resolved)
        wrong = asked
        if all(place in asked for place in places):
            wrong = tuple(name for name in asked if name in places)
        return Built(None, wrong, tuple(faults(error)), error)
    except Exception as error:
        raise NodeError(
            f"{target.__name__}: a validator raised {type(error).__name__}",
            node_type=target,
            cause=error,
            code="bae-node-invalid",
            fix=f"fix the validators of {target.__name__}: to refuse a value, raise ValueError",
        ) from error


def _check_resolved(target: type[Node], resolved: Mapping[str, Any]) -> None:
    """Raise what no other answer can fix. A run checks this before it asks; other callers may
    not."""
    try:
        validated(target, {n: v for n, v in resolved.items() if n in target.__pydantic_fields__})
    except ValidationError as error:
        raise NodeError(
            f"{target.__name__}: a resolved value is not valid: {'; '.join(faults(error))}",
            node_type=target,
            cause=error,
            code="bae-node-invalid",
            fix="give fill values that the fields accept",
        ) from error


def _fields_from_json(target: type[Node]) -> frozenset[str] | None:
    """The fields that are read as JSON: those a model is asked for. As a Python value, text would
    stay text where a union accepts a date too, and a strict field would refuse it. None for a
    class with a constructor of its own, which is called as it is."""

    def find() -> frozenset[str] | None:
        return None if target.__init__ is not Node.__init__ else frozenset(asked_fields(target))

    return once(target, "from JSON", find)


def correction(
    answer: Answer, verdict: Verdict, errors: Sequence[str], wanted: Sequence[str]
) -> Turn:
    """A wrong answer, and what the model is told about it. `wanted` are the fields to answer
    again."""
    quoted = text_of(answer)
    if len(quoted) > LONGEST_QUOTE:
        quoted = f"{quoted[:LONGEST_QUOTE]}…"
    match verdict:
        case "empty":
            text = "That was no answer. Answer with one JSON object that fits the schema."
        case "cut-off":
            text = "That was cut off for its length. Answer again, and shorter."
        case "unparsable":
            text = f"That was {errors[0]}. Answer with one JSON object that fits the schema."
        case _:
            text = "\n".join(["That was not valid:", *(f"- {error}" for error in errors)])
            again = f" with these fields alone: {', '.join(wanted)}" if wanted else ""
            text += f"\nAnswer again{again}."
    return Turn(quoted, text)


def fill_failed(
    target: type[Node], tried: Sequence[Attempt], details: Sequence[Any], cause: Exception | None
) -> FillError:
    """The error when no attempt at filling a node is left."""
    last = tried[-1]
    none_valid = ", none valid" if last.verdict == "invalid" else ""
    return FillError(
        f"{target.__name__}: {_what_failed(tried, 'fill it', none_valid)}",
        node_type=target,
        validation_errors=details,
        attempts=len(tried),
        tried=tried,
        cause=cause,
        code=_FILL_CODES[last.verdict],
        fix=_FIXES.get(last.verdict)
        or "loosen the fields or describe them with Field(description=…); every answer is in "
        ".tried",
    )


def choice_failed(
    names: Iterable[str], source: Node | None, tried: Sequence[Attempt]
) -> RouteError:
    """The error when no attempt at a choice is left."""
    last = tried[-1]
    among = f"among {', '.join(names)}"
    what = _what_failed(tried, f"choose {among}", f", none a choice {among}")
    place = f"{type(source).__name__}: " if source is not None else ""
    return RouteError(
        f"{place}{what}",
        node_type=type(source) if source is not None else None,
        tried=tried,
        code=_CHOICE_CODES[last.verdict],
        fix=_FIXES.get(last.verdict)
        or "give the classes names that tell them apart, or use another model; every answer is in "
        ".tried",
    )


def _what_failed(tried: Sequence[Attempt], asked: str, none_valid: str) -> str:
    errors = "; ".join(tried[-1].errors)
    answers = "1 answer" if len(tried) == 1 else f"{len(tried)} answers"
    match tried[-1].verdict:
        case "refused":
            return f"the LM refused to {asked}: {errors}"
        case "empty":
            return f"{answers}{none_valid}, and the last was empty"
        case "cut-off":
            return f"{answers}{none_valid}, and the last was cut off before its end"
        case "unparsable":
            return f"{answers}{none_valid}, and the last was {errors}"
        case _:
            return f"{answers}{none_valid}: {errors}"


_FILL_CODES: Final[Mapping[str, str]] = {
    "invalid": "bae-fill-invalid",
    "refused": "bae-fill-refused",
    "empty": "bae-fill-empty",
    "unparsable": "bae-fill-unparsable",
    "cut-off": "bae-fill-cut-off",
}
_CHOICE_CODES: Final[Mapping[str, str]] = {
    "invalid": "bae-choice-outside",
    "refused": "bae-choice-refused",
    "empty": "bae-choice-empty",
    "unparsable": "bae-choice-unparsable",
    "cut-off": "bae-choice-cut-off",
}
_FIXES: Final[Mapping[str, str]] = {
    "refused": "look at the prompt, in .tried and the journal, or use another model",
    "empty": "check that the model can give structured answers, or raise attempts=…",
    "unparsable": "check that the model can give structured answers, or raise attempts=…",
    "cut-off": "raise the backend's max_tokens=…, or bound the fields with max_length",
}
