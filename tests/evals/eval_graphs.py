"""Small graphs, cases and ways to read an evaluation, for the tests of evaluations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from bae import Graph, Node
from bae.evals import Case, CaseResult, Evaluation, Row
from bae.testing import ScriptedLM
from bae.testing.scripted import Asked


class Ticket(Node):
    text: str

    async def __call__(self) -> Bug | Question: ...


class Bug(Node):
    severity: Literal["low", "high"]
    part: str = "all"

    async def __call__(self) -> None: ...


class Question(Node):
    topic: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    reply: str

    async def __call__(self) -> None: ...


tickets = Graph(start=Ticket, end=(Bug, Reply))


class Word(Node):
    text: str

    async def __call__(self) -> Length: ...


class Length(Node):
    count: int

    async def __call__(self) -> None: ...


words = Graph(start=Word, end=Length)


def counting(**wrong: int) -> ScriptedLM:
    """An LM that counts the letters of a word, but for those that it has another number for."""

    def count(asked: Asked) -> dict[str, Any]:
        assert isinstance(asked.source, Word)
        text = asked.source.text
        return {"count": wrong.get(text, len(text))}

    return ScriptedLM({Length: count})


class Hooked(ScriptedLM):
    """An LM that counts letters, after doing something with the word."""

    def __init__(self, before: Callable[[Word], Awaitable[object]]) -> None:
        super().__init__({Length: lambda asked: {"count": len(asked.source.text)}})  # type: ignore[union-attr]
        self.before = before

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        await self.before(source)
        return await super().fill(target, resolved, instruction, source)


def lengths(*texts: str) -> list[Case]:
    return [Case({"text": text}, text, {"count": len(text)}) for text in texts]


def always_bug(severity: str = "high") -> ScriptedLM:
    return ScriptedLM({Bug: lambda _: {"severity": severity}})


def total(found: Evaluation, at: int = 0) -> Row:
    return found.contenders[at].total


def rows(found: Evaluation, at: int = 0) -> dict[str, Row]:
    return {row.node: row for row in found.contenders[at].nodes}


def results(found: Evaluation, at: int = 0) -> dict[str, CaseResult]:
    return {result.case.name: result for result in found.contenders[at].cases}


def outcomes(found: Evaluation, at: int = 0) -> list[str]:
    return [result.outcome for result in found.contenders[at].cases]


def scores(found: Evaluation, at: int = 0) -> list[float | None]:
    return [result.score for result in found.contenders[at].cases]
