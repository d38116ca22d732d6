"""The LM of `newsroom.py`."""

from __future__ import annotations

from typing import Any

from bae import Node
from bae.lm import Answer, Backend, Prompt, Question, Usage
from crash.effects import effect
from crash.newsroom import Caption, Headline, Mood, Printed, Report, Review, Verdict, label, work


class Oracle(Backend):
    """An LM whose answer follows from the question, so that it does not matter how much of it was
    asked in which process. Each call is an effect."""

    model = "oracle"
    free = True

    async def answer(self, prompt: Prompt) -> Answer:
        question = prompt.question
        about = "" if question.source is None else label(question.source)
        if question.types:
            with effect(f"choose from {about}"):
                await work(2)
                return self._said(_choice(question))
        assert question.target is not None
        with effect(f"fill {question.target.__name__} from {about}"):
            await work(2)
            return self._said(_fields(question.target, question.source))

    def _said(self, value: dict[str, Any]) -> Answer:
        return Answer(value=value, usage=Usage(calls=1, input_tokens=10, output_tokens=5))


def _choice(question: Question) -> dict[str, Any]:
    chosen = Printed if isinstance(question.source, Review) else Report
    said: dict[str, Any] = {"choice": chosen.__name__}
    if chosen in question.fillable:
        said["fields"] = _fields(chosen, question.source)
    return {"answer": said} if question.fillable else said


def _fields(target: type[Node], source: Node | None) -> dict[str, Any]:
    match source:
        case Verdict():
            return {"holds": source.claim.endswith(("0", "2"))}
        case Review():
            return {"title": "Rain", "parts": ["front", "back"]}
    return {
        Mood: {"word": "grave"},
        Report: {"text": "It rained."},
        Headline: {"text": "Rain again"},
        Caption: {"text": "Above the town"},
    }[target]
