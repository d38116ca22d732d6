"""How many calls, and how much prompt, a graph takes that routes at each of ten steps, where every
option recalls what the caller gave: with a choice and what follows in one call, and in two.

    python -m benchmarks.routing_calls
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

from bae import Graph, Node, Recall
from bae.lm import Answer, Backend, Prompt, Usage

STEPS = 10


class Ticket(Node):
    message: str

    async def __call__(self) -> LookUp | Reply: ...


class LookUp(Node):
    message: Annotated[str, Recall(Ticket)]
    topic: str

    async def __call__(self) -> LookUp | Reply: ...


class Reply(Node):
    message: Annotated[str, Recall(Ticket)]
    text: str

    async def __call__(self) -> None: ...


class Counting(Backend):
    """Looks up until the last step, and counts its questions."""

    model = "counting"
    free = True

    def __init__(self, *, one_call: bool) -> None:
        super().__init__(one_call=one_call)
        self.calls = self.characters = self.chosen = 0

    async def answer(self, prompt: Prompt) -> Answer:
        self.calls += 1
        self.characters += len(prompt.system) + len(prompt.text) + len(json.dumps(prompt.schema))
        assert "It arrived wet." in prompt.text
        if prompt.question.target is not None:
            value: object = dict.fromkeys(prompt.question.fields, "a word")
        else:
            self.chosen += 1
            choice = "Reply" if self.chosen == STEPS else "LookUp"
            field = "text" if choice == "Reply" else "topic"
            value = {"choice": choice}
            if prompt.question.fillable:
                value = {"answer": {"choice": choice, "fields": {field: "a word"}}}
        return Answer(json.dumps(value), Usage(calls=1))


async def measure(*, one_call: bool) -> Counting:
    lm = Counting(one_call=one_call)
    graph = Graph(start=Ticket, end=Reply)
    await graph.arun(Ticket(message="It arrived wet."), lm, max_iters=STEPS + 1)
    return lm


def main() -> None:
    for one_call in (True, False):
        lm = asyncio.run(measure(one_call=one_call))
        how = "one call" if one_call else "two calls"
        print(f"{how:<10} {lm.calls:>3} calls, {lm.characters:>6} characters of prompts")


if __name__ == "__main__":
    main()
