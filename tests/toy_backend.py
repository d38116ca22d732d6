"""A backend for tests of the asking layer: it gives the answers it was made with, one for each
request, and remembers every prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bae.lm import Answer, Backend, Prompt

Given = Answer | str | dict[str, Any] | list[Any] | BaseException
"""An answer, its text, its JSON, or what is raised in its place."""


class ToyBackend(Backend):
    """Give it answers in order, or one function of the prompt that is called for each request."""

    model = "toy"
    first_wait = 0.0

    def __init__(self, *answers: Given | Callable[[Prompt], Given], **options: Any) -> None:
        super().__init__(**options)
        self.answers = list(answers)
        self.prompts: list[Prompt] = []
        self.rejected: list[Prompt] = []

    async def answer(self, prompt: Prompt) -> Answer:
        self.prompts.append(prompt)
        if len(self.answers) == 1 and callable(self.answers[0]):
            given = self.answers[0](prompt)
        else:
            assert self.answers, f"asked once too often:\n{prompt.flat()}"
            given = self.answers.pop(0)
        if isinstance(given, BaseException):
            raise given
        if isinstance(given, Answer):
            return given
        return Answer(given if isinstance(given, str) else json.dumps(given))

    async def reject(self, prompt: Prompt) -> None:
        self.rejected.append(prompt)

    @property
    def calls(self) -> int:
        """How many requests there were."""
        return len(self.prompts)

    @property
    def said(self) -> list[list[str]]:
        """The texts of every conversation."""
        return [[message["content"] for message in prompt.messages()] for prompt in self.prompts]


def choose(name: Any) -> dict[str, Any]:
    """The answer that chooses, where nothing can be filled with it."""
    return {"choice": name}


def route(name: Any, **fields: Any) -> dict[str, Any]:
    """The answer that chooses where a candidate can be filled at once, with fields or without."""
    return {"answer": {"choice": name, **({"fields": fields} if fields else {})}}


class FourMethods:
    """An LM that is not a backend: a test overrides the methods that it is about."""

    async def make(self, node: Any, target: Any) -> Any:
        return await self.fill(target, {}, target.__name__, node)

    async def decide(self, node: Any) -> Any:
        raise AssertionError("not asked")

    async def choose_type(self, types: Any, context: Any) -> Any:
        return types[0]

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        raise AssertionError("not asked")
