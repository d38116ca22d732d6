"""What comes of a wrong answer: what the model is told about it, and the error when there is no
further attempt. `asking.py` decides which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bae.exceptions import FillError, RouteError
from bae.lm.backend import Answer, Turn
from bae.lm.reading import text_of
from bae.usage import Attempt, Verdict

if TYPE_CHECKING:
    from bae.node import Node

LONGEST_QUOTE = 4000
"""Characters of a wrong answer that the model is shown again."""


def turn(answer: Answer, verdict: Verdict, errors: Sequence[str], wanted: Sequence[str]) -> Turn:
    """The answer, and what the model is told about it. `wanted` are the fields to answer again."""
    said = text_of(answer)
    if len(said) > LONGEST_QUOTE:
        said = f"{said[:LONGEST_QUOTE]}…"
    match verdict:
        case "empty":
            told = "That was no answer. Answer with one JSON object that fits the schema."
        case "cut-off":
            told = "That was cut off for its length. Answer again, and shorter."
        case "unparsable":
            told = f"That was {errors[0]}. Answer with one JSON object that fits the schema."
        case _:
            told = "\n".join(["That was not valid:", *(f"- {error}" for error in errors)])
            if wanted:
                told += f"\nAnswer again with these fields alone: {', '.join(wanted)}."
            else:
                told += "\nAnswer again."
    return Turn(said, told)


def fill_failed(
    target: type[Node], tried: Sequence[Attempt], details: Sequence[Any], cause: Exception | None
) -> FillError:
    """The error when there is no further attempt at filling a node."""
    last = tried[-1]
    said = "; ".join(last.errors)
    match last.verdict:
        case "refused":
            code, what = "bae-fill-refused", f"the LM refused to fill it: {said}"
        case "empty":
            code, what = "bae-fill-empty", f"{_answers(tried)}, and the last was empty"
        case "cut-off":
            code = "bae-fill-cut-off"
            what = f"{_answers(tried)}, and the last was cut off before its end"
        case "unparsable":
            code, what = "bae-fill-unparsable", f"{_answers(tried)}, and the last was {said}"
        case _:
            code, what = "bae-fill-invalid", f"{_answers(tried)}, none valid: {said}"
    fix = "loosen the fields or describe them with Field(description=…); every answer is in .tried"
    return FillError(
        f"{target.__name__}: {what}",
        node_type=target,
        validation_errors=details,
        attempts=len(tried),
        tried=tried,
        cause=cause,
        code=code,
        fix=_fix(last.verdict) or fix,
    )


def choice_failed(
    names: Iterable[str], source: Node | None, tried: Sequence[Attempt]
) -> RouteError:
    """The error when there is no further attempt at a choice."""
    last = tried[-1]
    said = "; ".join(last.errors)
    among = ", ".join(names)
    match last.verdict:
        case "refused":
            code, what = "bae-choice-refused", f"the LM refused to choose among {among}: {said}"
        case "empty":
            code = "bae-choice-empty"
            what = f"{_answers(tried)}, none a choice among {among}, and the last was empty"
        case "cut-off":
            code = "bae-choice-cut-off"
            what = f"{_answers(tried)}, none a choice among {among}, and the last was cut off"
        case "unparsable":
            code = "bae-choice-unparsable"
            what = f"{_answers(tried)}, none a choice among {among}, and the last was {said}"
        case _:
            code = "bae-choice-outside"
            what = f"{_answers(tried)}, none a choice among {among}: {said}"
    place = f"{type(source).__name__}: " if source is not None else ""
    fix = "name the classes for what they are for, or use another model; every answer is in .tried"
    return RouteError(
        f"{place}{what}",
        node_type=type(source) if source is not None else None,
        tried=tried,
        code=code,
        fix=_fix(last.verdict) or fix,
    )


def _fix(verdict: Verdict) -> str:
    match verdict:
        case "refused":
            return "look at what it was asked, in .tried and the journal, or use another model"
        case "empty" | "unparsable":
            return "check that the model can give structured answers, or raise attempts=…"
        case "cut-off":
            return "raise the backend's max_tokens=…, or bound the fields with max_length"
        case _:
            return ""


def _answers(tried: Sequence[Attempt]) -> str:
    return "1 answer" if len(tried) == 1 else f"{len(tried)} answers"
