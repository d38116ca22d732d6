"""Validates answers: parses the JSON and builds the node. For an invalid answer, writes the
correction that the model gets, or the error to raise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pydantic_core import ValidationError, from_json

from bae.draft import from_answer, from_text
from bae.exceptions import (
    FillError,
    NodeError,
    RouteError,
    UnparsableFillError,
    UnparsableRouteError,
    faults,
)
from bae.language_model import PLAIN_SCENE
from bae.lm.requests import UNPARSED
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.messages import Correction
from bae.prompts.questions import names_of
from bae.prompts.values import list_fields_to_fill, once
from bae.unicode import join_json_surrogates, join_surrogates, readable
from bae.usage import Attempt

if TYPE_CHECKING:
    from bae.language_model import Scene
    from bae.lm.requests import Answer
    from bae.prompts.messages import Prompt
    from bae.prompts.questions import Choice
    from bae.usage import AnswerVerdict

N = TypeVar("N", bound="Node")

_JSON: Final = "Answer with one JSON object that fits the schema."
LONGEST_QUOTE = 4000
"""The most characters of a wrong answer that a correction quotes."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """The reasons why an answer is invalid."""

    verdict: AnswerVerdict
    errors: tuple[str, ...]
    fields: tuple[str, ...] = ()
    """The fields to ask for again."""
    cause: ValidationError | None = None
    """The error that pydantic raised, if validation failed."""


def read_json(answer: Answer) -> dict[str, Any] | Wrong:
    """Return the JSON object of an answer, or why the answer is wrong. An answer with text around
    the object is unparsable."""
    value: Any = answer.value
    if answer.stop == "refused" or (value is UNPARSED and not answer.text.strip()):
        return no_text(answer)
    try:
        if value is UNPARSED:
            text = answer.text
            value = from_json(text if text.isascii() else join_surrogates(text))
        else:
            value = join_json_surrogates(value)
    except ValueError as error:
        if answer.stop == "cut-off":
            return no_text(answer)
        return Wrong("unparsable", (f"not JSON: {error}",))
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    if value is None or value == "":
        return Wrong("empty", ("no value",))
    return Wrong("unparsable", (f"not an object but {type(value).__name__}",))


def no_text(answer: Answer) -> Wrong:
    """Return why an answer has no usable text: the model refused, was cut off, or sent nothing."""
    text = answer.text.strip()
    if answer.stop == "refused":
        return Wrong("refused", (readable(text) or "no reason was given",))
    reason = "the limit on its length was reached" if text else "no text"
    return Wrong("cut-off" if answer.stop == "cut-off" else "empty", (reason,))


def read_fill(prompt: Prompt, answer: Answer) -> dict[str, Any] | Wrong:
    """Return the field values of an answer that fills a node, or why the answer is wrong. The
    answer is a JSON object, or the text of the node's single field."""
    if prompt.schema is not None:
        return read_json(answer)
    if answer.stop != "end" or not answer.text.strip():
        return no_text(answer)
    fields = prompt.question.fields
    try:
        return from_text(cast("type[Node]", prompt.question.target), join_surrogates(answer.text))
    except ValidationError as error:
        return Wrong("invalid", tuple(faults(error)), fields, error)
    except ValueError as error:
        return Wrong("invalid", (f"{fields[0]}: {error}",), fields)


def read_choice(
    choice: Choice, data: dict[str, Any]
) -> tuple[type[Node] | type[None], dict[str, Any] | Wrong | None] | Wrong:
    """Return the chosen type and its field values, or why the choice is wrong. The values are None
    if the schema of the choice has no fields for the type."""
    # If the schema also has fields to fill, `choice_schema` puts the choice into the property
    # `answer`.
    inner: Any = data.get("answer") if choice.fillable else data
    if not isinstance(inner, dict):
        return Wrong(
            "invalid", ("answer: there is no such object, and the choice belongs into it",)
        )
    name: Any = cast(Any, inner).get("choice")
    chosen = choice.names.get(name) if isinstance(name, str) else None
    if chosen is None:
        offered = ", ".join(choice.names)
        return Wrong("invalid", (f"choice: {repr(name)[:200]} is not one of {offered}",))
    if chosen not in choice.fillable:
        return chosen, None
    fields: Any = cast(Any, inner).get("fields", {})
    if not isinstance(fields, dict):
        return chosen, Wrong("invalid", ("fields: they are no object",))
    return chosen, cast(dict[str, Any], fields)


def build(
    target: type[N],
    asked: tuple[str, ...],
    answered: Mapping[str, Any],
    resolved: Mapping[str, Any],
    scene: Scene = PLAIN_SCENE,
) -> N | Wrong:
    """Build and validate a node, or return a `Wrong` with the fields to ask for again.

    `asked` are the fields that the model fills, and `answered` has its values. If a validation
    error belongs to no `asked` field, the `Wrong` has all `asked` fields.
    """
    data = {**answered, **resolved}
    from_json = _fields_from_json(target)
    try:
        node = target(**data) if from_json is None else from_answer(target, data, from_json)
    except ValidationError as error:
        places = [e["loc"][0] if e["loc"] else None for e in error.errors(include_url=False)]
        wrong_fields = asked
        if all(place in asked for place in places):
            wrong_fields = tuple(name for name in asked if name in places)
        return Wrong("invalid", tuple(faults(error)), wrong_fields, error)
    except Exception as error:
        raise NodeError(
            f"{target.__name__}: a validator raised {type(error).__name__}",
            node_type=target,
            cause=error,
            code="bae-node-invalid",
            fix=f"fix the validators of {target.__name__}: to refuse a value, raise ValueError",
        ) from error
    find_unstorable = scene.unstorable
    unstorable = (
        {}
        if find_unstorable is None
        else {n: reason for n, reason in find_unstorable(node).items() if n in asked}
    )
    if unstorable:
        errors = (f"{name}: it cannot be stored: {why}" for name, why in unstorable.items())
        return Wrong("invalid", tuple(errors), tuple(unstorable))
    return node


def _fields_from_json(target: type[Node]) -> frozenset[str] | None:
    """Return the fields to validate in pydantic's JSON mode. None for a class with its own
    constructor, because bae calls the constructor directly.

    The fields that a model fills need JSON mode. In Python mode, a union with `date` would keep a
    date as text, and a strict field would refuse the text. If a function has parsed the model's
    text, no field needs JSON mode.
    """

    def find() -> frozenset[str] | None:
        if target.__init__ is not Node.__init__:
            return None
        parsed = any(field.is_parsed for field in plan_of(target).plain)
        return frozenset(() if parsed else list_fields_to_fill(target))

    return once(target, "from JSON", find)


def attempt(number: int, prompt: Prompt, answer: Answer, wrong: Wrong | None = None) -> Attempt:
    """Return the record of an answer. `wrong` says why the answer is invalid; None means valid."""
    text = answer.text
    if not text and answer.value is not UNPARSED:
        try:
            text = json.dumps(answer.value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            text = "(it cannot be written as JSON)"
    text = text if text.isascii() else readable(text, 0)
    question, filled = prompt.question, ()
    if question.fillable:
        named_types = names_of(question.types).items()
        filled = tuple(name for name, cls in named_types if cls in question.fillable)
    prompt_text = (prompt if question.turns is None else prompt.without_turns()).flat()
    thinking = answer.thinking and readable(answer.thinking, 0)
    details = answer.usage, prompt_text, "", filled, thinking
    if wrong is None:
        return Attempt(number, text, "valid", (), *details)
    is_cut = wrong.verdict == "invalid" and answer.stop == "cut-off"
    verdict = "cut-off" if is_cut else wrong.verdict
    return Attempt(number, text, verdict, wrong.errors, *details)


def correction(tried: Attempt, fields: Sequence[str], form: str = _JSON) -> Correction:
    """Return an invalid answer with the message to the model about it. `fields` are the fields to
    answer again. `form` describes the form of a complete answer."""
    quoted = tried.answer
    if len(quoted) > LONGEST_QUOTE:
        quoted = f"{quoted[:LONGEST_QUOTE]}…"
    match tried.verdict:
        case "empty":
            text = f"That was no answer. {form}"
        case "cut-off":
            text = "That was cut off for its length. Answer again, and shorter."
        case "unparsable":
            text = f"That was {tried.errors[0]}. {form}"
        case _:
            text = "\n".join(["That was not valid:", *(f"- {error}" for error in tried.errors)])
            field_names = f" with these fields alone: {', '.join(fields)}" if fields else ""
            text += f"\nAnswer again{field_names}."
    return Correction(quoted, text)


def fill_error(
    target: type[Node], tried: Sequence[Attempt], cause: ValidationError | None
) -> FillError:
    """Return the error to raise after the last attempt to fill a node."""
    last = tried[-1]
    none_valid = ", none valid" if last.verdict == "invalid" else ""
    return (UnparsableFillError if last.verdict == "unparsable" else FillError)(
        f"{target.__name__}: {_describe_failure(tried, 'fill it', none_valid)}",
        node_type=target,
        validation_errors=() if cause is None else cause.errors(include_url=False),
        attempts=len(tried),
        tried=tried,
        cause=cause,
        code=_CODES[last.verdict][0],
        fix=_FIXES.get(last.verdict)
        or "loosen the fields or describe them with Field(description=…); every answer is in "
        ".tried",
    )


def choice_error(
    names: Iterable[str], previous: Node | None, tried: Sequence[Attempt]
) -> RouteError:
    """Return the error to raise after the last attempt at a choice."""
    last = tried[-1]
    among = f"among {', '.join(names)}"
    failure = _describe_failure(tried, f"choose {among}", f", none a choice {among}")
    place = f"{type(previous).__name__}: " if previous is not None else ""
    return (UnparsableRouteError if last.verdict == "unparsable" else RouteError)(
        f"{place}{failure}",
        node_type=type(previous) if previous is not None else None,
        tried=tried,
        code=_CODES[last.verdict][1],
        fix=_FIXES.get(last.verdict)
        or "give the classes names that tell them apart, or use another model; every answer is in "
        ".tried",
    )


def _describe_failure(tried: Sequence[Attempt], request: str, none_valid: str) -> str:
    errors = "; ".join(tried[-1].errors)
    answers = "1 answer" if len(tried) == 1 else f"{len(tried)} answers"
    match tried[-1].verdict:
        case "refused":
            return f"the LM refused to {request}: {errors}"
        case "empty":
            return f"{answers}{none_valid}, and the last was empty"
        case "cut-off":
            return f"{answers}{none_valid}, and the last was cut off before its end"
        case "unparsable":
            return f"{answers}{none_valid}, and the last was {errors}"
        case _:
            return f"{answers}{none_valid}: {errors}"


_CODES: Final[Mapping[str, tuple[str, str]]] = {
    "invalid": ("bae-fill-invalid", "bae-choice-outside"),
    "refused": ("bae-fill-refused", "bae-choice-refused"),
    "empty": ("bae-fill-empty", "bae-choice-empty"),
    "unparsable": ("bae-fill-unparsable", "bae-choice-unparsable"),
    "cut-off": ("bae-fill-cut-off", "bae-choice-cut-off"),
}
"""For each verdict on the last answer, the error code of a fill and the error code of a choice."""

_STRUCTURED = "check that the model can give structured answers, or raise attempts=…"
_FIXES: Final[Mapping[str, str]] = {
    "refused": "look at the prompt, in .tried and the journal, or use another model",
    "empty": _STRUCTURED,
    "unparsable": _STRUCTURED,
    "cut-off": "raise the backend's max_tokens=…, or bound the fields with max_length",
}
