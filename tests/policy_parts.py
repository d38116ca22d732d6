"""For tests of policies: a graph to run, prompts, a backend that answers on a signal, and a clock
that jumps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from bae import BaeLMError, Graph, Node, Usage
from bae.lm import Answer, Backend, Prompt, Question
from bae.prompts.messages import ask_in_text
from bounded import BOUND

T = TypeVar("T")


class Ask(Node):
    text: str = "what?"

    async def __call__(self) -> Reply: ...


class Reply(Node):
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Ask, end=Reply)
REPLY = json.dumps({"text": "this"})


def prompt(text: str = "Reply", **parts: Any) -> Prompt:
    """A prompt that asks for a `Reply`."""
    given: dict[str, Any] = {
        "system": "",
        "conversation": ask_in_text(text, parts.pop("corrections", ())),
        "schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "name": "Reply",
        "question": Question(target=Reply, fields=("text",), instruction="Reply"),
    }
    return Prompt(**{**given, **parts})


def busy(**options: Any) -> BaeLMError:
    """The answer of an overloaded provider."""
    return BaeLMError("the provider is busy", retryable=True, **options)


class Held(Backend):
    """Answers none of its questions before `release` is called; knows who is asking."""

    model = "held"

    def __init__(self, usage: Usage | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.usage = usage or Usage(calls=1)
        self.running = 0
        self.most = 0
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.free = asyncio.Event()

    async def answer(self, prompt: Prompt) -> Answer:
        self.asked.append(prompt.text)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled.append(prompt.text)
            raise
        finally:
            self.running -= 1
        return Answer(REPLY, self.usage)

    def least_cost(self, usage: Usage) -> float | None:
        return 0.0

    def release(self) -> None:
        self.free.set()


class Gated(Backend):
    """Answers each question when the gate that it made for it is done."""

    def __init__(self, given: Answer) -> None:
        super().__init__()
        self.given = given
        self.gates: list[asyncio.Future[None]] = []
        self.running = self.most = 0

    async def answer(self, prompt: Prompt) -> Answer:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await gate
        finally:
            self.running -= 1
        return self.given

    def open(self, number: int, error: Exception | None = None) -> None:
        """Release an answer, or raise an error in its place; a cancelled answer stays cancelled."""
        gate = self.gates[number]
        if not gate.done():
            gate.set_exception(error) if error else gate.set_result(None)


async def settle() -> None:
    """Run everything that can continue without the clock."""
    for _ in range(30):
        await asyncio.sleep(0)


class Clock:
    """A stopped clock. `until_idle` lets it jump to the next waiting task."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self.now + seconds, next(self._numbers), woken))
        await woken

    async def until_idle(self) -> None:
        await settle()
        while self._sleepers:
            at, _, woken = heappop(self._sleepers)
            self.now = max(self.now, at)
            if not woken.done():
                woken.set_result(None)
                await settle()


async def at_once(seconds: float) -> None:
    """A sleep that takes no time."""


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run async work from a test that is not, such as one with many examples."""

    async def bounded() -> T:
        async with asyncio.timeout(BOUND):
            return await work()

    return asyncio.run(bounded())
