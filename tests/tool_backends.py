"""A backend for tests of conversations with tools: it plays its given rounds, as a model with
native tool calls or with a schema, and remembers every prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bae.lm import Answer, CallPart, Prompt
from toy_backend import ToyBackend

Called = tuple[str, dict[str, Any]]
"""A call: the name of the tool, and the arguments."""
Rounds = str | dict[str, Any] | list[Called] | Answer | BaseException
"""What a model does in a round: a text, the answer as JSON, calls, or an answer in full."""


def call(name: str, **arguments: Any) -> Called:
    """A call of a tool."""
    return name, arguments


class ToolBackend(ToyBackend):
    """Give it rounds in order, or one function of the prompt. A model without native tool calls
    makes one call a round, and wraps its answer unless it is offered the answer alone."""

    def __init__(
        self, *rounds: Rounds | Callable[[Prompt], Rounds], native: bool = True, **options: Any
    ) -> None:
        super().__init__(**options)
        self.calls_tools, self.rounds = native, list(rounds)

    async def answer(self, prompt: Prompt) -> Answer:
        self.prompts.append(prompt)
        if len(self.rounds) == 1 and callable(self.rounds[0]):
            given: Any = self.rounds[0](prompt)
        else:
            assert self.rounds, f"asked once too often:\n{prompt.flat()}"
            given = self.rounds.pop(0)
        if isinstance(given, BaseException):
            raise given
        if isinstance(given, Answer):
            return given
        if isinstance(given, list):
            return self._calling(given)
        if self.calls_tools or not offers_calls(prompt):
            return Answer(given if isinstance(given, str) else json.dumps(given))
        fields = {"text": given} if isinstance(given, str) else given
        return Answer(json.dumps({"next_step": {"action": "answer", **fields}}))

    def _calling(self, calls: Sequence[Called]) -> Answer:
        if self.calls_tools:
            # As some providers do, it numbers its calls from 1 in each round.
            parts = [CallPart(f"call_{n}", *each) for n, each in enumerate(calls, 1)]
            return Answer("", calls=tuple(parts))
        ((name, arguments),) = calls
        return Answer(json.dumps({"next_step": {"action": name, **arguments}}))


def offers_calls(prompt: Prompt) -> bool:
    """Whether a model without native tool calls may call a tool."""
    return "next_step" in (prompt.schema or {}).get("properties", {})


def head(prompt: Prompt, messages: int) -> tuple[Any, ...]:
    """The beginning of a request: everything up to its first messages."""
    shown = [replace(each, echo=None) for each in prompt.conversation[:messages]]
    return prompt.system, prompt.tools, shown
