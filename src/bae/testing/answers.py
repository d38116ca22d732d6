"""From what a test told `Provider` to answer to what the model says."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import BaseModel

from bae.testing.faults import Empty, Fault, Overlong, Refusal, WrongSchema
from bae.testing.misfits import misfit
from bae.testing.received import Received
from bae.testing.samples import sample
from bae.testing.scripted import ScriptError

Answer = Mapping[str, Any] | Sequence[Any] | str | int | float | BaseModel | Fault
"""JSON that the model answers with, text that it answers with as it is, or a fault."""

Answering = Callable[[Received], Answer | Awaitable[Answer]]
"""A function that answers by what was asked."""

Prepared = str | Fault | Answering
"""An answer that can be sent: text, whether it was given as JSON or not."""

PLAIN = "This is an answer."
"""What is said where neither a script nor a schema says what."""


def prepared(answer: Any) -> Prepared:
    """Check an answer when it is given, so that the test fails where it is wrong."""
    if isinstance(answer, str | Fault):
        return answer
    if isinstance(answer, BaseModel):
        return answer.model_dump_json()
    if callable(answer) and not isinstance(answer, type):
        return cast(Answering, answer)
    try:
        if answer is None or isinstance(answer, type):
            raise TypeError("it is no value")
        return json.dumps(answer, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ScriptError(
            f"{_short(answer)} cannot be sent as the answer of a model: {error}",
            code="bae-script-invalid",
            cause=error,
            fix="give a dict, a list or a text, a Pydantic model, a fault such as Status(429), "
            "or a function that returns one of these",
        ) from error


def spoken(
    answer: str | Fault | None, received: Received, seed: int
) -> tuple[str, str | None, Literal["end", "cut-off", "refused"]]:
    """What the model says, the tool it calls to say it, and why it stops.

    Without an answer it is made from the schema; so it is where the fault is not in what is said
    but in how it is sent.
    """
    if isinstance(answer, str):
        return answer, received.tool, "end"
    match answer:
        case Refusal(text=text):
            return text, None, "refused"
        case Empty():
            return "", None, "end"
        case WrongSchema():
            return json.dumps(misfit(received.schema)), received.tool, "end"
        case _:
            pass
    text = PLAIN
    if received.schema is not None:
        text = json.dumps(sample(received.schema, seed), ensure_ascii=False)
    if isinstance(answer, Overlong):
        return text[: max(1, len(text) // 2)], received.tool, "cut-off"
    return text, received.tool, "end"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
