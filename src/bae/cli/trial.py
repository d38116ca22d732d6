"""One real question to a language model, through the same way as any run's: a graph of two nodes,
the second of which the LM fills. `lm.py` prints how it went."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from pydantic import Field

from bae.cli.exits import refused
from bae.graph import Graph
from bae.node import Node

if TYPE_CHECKING:
    from bae.lm import LM, Usage


class Question(Node):
    """What is asked."""

    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    """A structured answer: a text and a choice, which is what filling nodes is made of."""

    answer: str = Field(description="the answer, in one short sentence", max_length=400)
    sure: bool = Field(description="whether you are sure of it")

    async def __call__(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """What an LM answered, what it used, and how long all of it took."""

    reply: Reply
    usage: Usage
    seconds: float


async def ask(lm: LM, name: str, text: str, timeout: float) -> Trial:
    """Ask an LM one thing, for so many seconds at most."""
    began = perf_counter()
    try:
        async with asyncio.timeout(timeout):
            run = await Graph(start=Question, end=Reply).arun(Question(text=text), lm)
    except TimeoutError as error:
        raise refused(
            f"{name} gave no answer in {timeout:g} s",
            fix="give it more time with --timeout SECONDS",
            cause=error,
        ) from error
    return Trial(run.result, run.usage, perf_counter() - began)
