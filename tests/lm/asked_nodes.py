"""What tests of asking ask for, and get: nodes to fill and to choose, answers with a price, and a
request that fails."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field

from bae import BaeLMError, Node, Usage
from bae.journal import AnswerJudged
from bae.lm import Answer
from end_node import EndNode


class Person(BaseModel):
    name: str = Field(min_length=2)
    age: int = Field(ge=0)


class Ask(Node):
    async def __call__(self) -> Found: ...


class Found(EndNode):
    person: Person
    score: int = Field(le=10)
    note: str


GOOD = {"person": {"name": "Ada", "age": 36}, "score": 7, "note": "fine"}


class Left(Node):
    async def __call__(self) -> None: ...


class Right(Node):
    async def __call__(self) -> None: ...


class Fork(Node):
    async def __call__(self) -> Left | Right: ...


def priced_answer(answer: Any, cost: float | None = 0.5, model: str = "m") -> Answer:
    usage = Usage(1, 100, 20, 30, cost, models=(model,))
    return Answer(json.dumps(answer), usage)


def failure(**more: Any) -> BaeLMError:
    return BaeLMError("no answer", **{"code": "bae-lm-unavailable", **more})


def attempts_of(result: Any) -> list[tuple[int, str, tuple[str, ...]]]:
    judged = [record.attempt for record in result.journal.of(AnswerJudged)]
    return [(each.number, each.verdict, each.errors) for each in judged]
