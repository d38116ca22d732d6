"""What the log of calls keeps of a call, as a text: the answer, what it used, and when it was under
way in which life of the optimisation. `calls.py` writes these to its file and reads them back."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from pydantic_core import to_json

from bae.lm.adapter import is_lossless
from bae.lm.backend import UNPARSED, Answer
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.lm.backend import Prompt

FORMAT: Final = "bae-call-1"
"""What marks an answer in the log as one."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call of the log. `life` is the one that made it, and `began` and `ended` are its seconds.
    `given_up` is the life, if any, in which no answer to the question was valid."""

    text: str
    stop: Any
    usage: Usage
    life: str
    began: float
    ended: float
    given_up: str = ""

    def written(self) -> str:
        """The text to keep."""
        return json.dumps({"format": FORMAT, **asdict(self)})


def record_of(
    prompt: Prompt, answer: Answer, life: str, began: float, ended: float
) -> CallRecord | None:
    """What is kept of an answer, or None where JSON cannot say it."""
    if not is_lossless(prompt, answer):
        return None
    text = answer.text
    if not text and answer.value is not UNPARSED:
        try:
            text = to_json(answer.value).decode()
        except (ValueError, TypeError):
            return None
    return CallRecord(text, answer.stop, answer.usage, life, began, ended)


def record_in(text: str) -> CallRecord | None:
    """The call that a text was kept of, or None where it is something else."""
    try:
        if json.loads(text)["format"] == FORMAT:
            return _form().validate_json(text)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return None


@cache
def _form() -> TypeAdapter[CallRecord]:
    return TypeAdapter(CallRecord)


class Spans:
    """Stretches of time, in several lives, each moment counted once: calls that were under way at
    once took no longer than one, and what was between calls took nothing."""

    def __init__(self) -> None:
        self._lives: dict[str, list[tuple[float, float]]] = {}

    def add(self, life: str, began: float, ended: float) -> float:
        """Count a stretch too, and answer how many seconds of it are new."""
        spans = self._lives.setdefault(life, [])  # in order, and none touches another
        first = bisect_right(spans, began, key=lambda span: span[1])
        last = first
        new = max(0.0, ended - began)
        low, high = began, max(began, ended)
        while last < len(spans) and spans[last][0] <= high:
            start, end = spans[last]
            new -= max(0.0, min(end, ended) - max(start, began))
            low, high = min(low, start), max(high, end)
            last += 1
        spans[first:last] = [(low, high)]
        return max(0.0, new)
