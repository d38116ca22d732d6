"""The cost of a step that an LLM chooses and fills, with an LLM that answers at once, against the
same work written by hand: the prompt as JSON, the answer parsed, the choice checked, the node
validated.

    python -m benchmarks.lm_steps

It prints both in µs a step, and the ratio. bae is to take at most 6 times as long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from time import process_time
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from bae import Graph, Node
from bae.lm import Answer, Backend, Prompt, Usage

STEPS = 300
ROUNDS = 40
TARGET = 6.0


class Left(Node):
    number: int
    label: str

    async def __call__(self) -> Left | Right | Done: ...


class Right(Node):
    number: int
    label: str

    async def __call__(self) -> Left | Right | Done: ...


class Done(Node):
    number: int

    async def __call__(self) -> None: ...


GRAPH = Graph(start=Left, end=Done)


def answer_for(number: int) -> str:
    """Return the LLM's answer at a step: right and left in turns, and then the end."""
    if number >= STEPS:
        return f'{{"answer":{{"choice":"Done","fields":{{"number":{number}}}}}}}'
    side = "Right" if number % 2 else "Left"
    fields = f'{{"number":{number},"label":"step {number}"}}'
    return f'{{"answer":{{"choice":"{side}","fields":{fields}}}}}'


ANSWERS = [answer_for(number) for number in range(STEPS + 1)]


class Instant(Backend):
    """Answers from a list, without waiting."""

    model = "instant"
    free = True

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def answer(self, prompt: Prompt) -> Answer:
        self.asked += 1
        return Answer(ANSWERS[self.asked], Usage(calls=1, input_tokens=10, output_tokens=5))


async def with_bae() -> int:
    result = await GRAPH.arun(Left(number=0, label="step 0"), lm=Instant(), max_iters=0)
    return len(result.trace)


class FloorLeft(BaseModel):
    number: int
    label: str


class FloorRight(BaseModel):
    number: int
    label: str


class FloorDone(BaseModel):
    number: int


CLASSES: dict[str, type[BaseModel]] = {"Left": FloorLeft, "Right": FloorRight, "Done": FloorDone}
NAMES = {cls: name for name, cls in CLASSES.items()}


@dataclass
class Spent:
    calls: int = 0
    tokens: int = 0


class InstantClient:
    """The same LM as a client that is called by hand."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, text: str, schema: dict[str, Any]) -> tuple[str, int]:
        self.asked += 1
        return ANSWERS[self.asked], 15


SCHEMA: dict[str, Any] = {name: cls.model_json_schema() for name, cls in CLASSES.items()}


async def by_hand() -> int:
    client, spent = InstantClient(), Spent()
    node: BaseModel = FloorLeft(number=0, label="step 0")
    trace = [node]
    while not isinstance(node, FloorDone):
        fields = {NAMES[type(node)]: node.model_dump(mode="json")}
        text = f"Choose what comes next, and make it.\n\n{json.dumps(fields)}"
        said, tokens = await client.ask(text, SCHEMA)
        spent.calls += 1
        spent.tokens += tokens
        answer = from_json(said)["answer"]
        node = CLASSES[answer["choice"]].model_validate(answer["fields"])
        trace.append(node)
    assert spent.calls == STEPS
    return len(trace)


async def measure(rounds: int) -> tuple[float, float]:
    """Return the seconds per step of both, measured in turns. The best round counts, because other
    load disturbs it least."""
    times: dict[Any, list[float]] = {by_hand: [], with_bae: []}
    for work in times:
        await work()
    for _ in range(rounds):
        for work, samples in times.items():
            since = process_time()
            assert await work() == STEPS + 1
            samples.append((process_time() - since) / STEPS)
    return min(times[by_hand]), min(times[with_bae])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lm_steps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    floor, bae = asyncio.run(measure(parser.parse_args().rounds))
    ratio = bae / floor
    print(f"by hand {floor * 1e6:.1f} µs a step, bae {bae * 1e6:.1f} µs: {ratio:.2f} times")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
