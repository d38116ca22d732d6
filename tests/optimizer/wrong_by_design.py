"""A model that is wrong by design, on loopback: it knows nothing of a made-up code book, unless the
prompt teaches it, by examples or by an instruction that names the book. What an optimizer of
prompts finds can be known beforehand, so tests can tell whether it has found it."""

from __future__ import annotations

import asyncio
import json
import sys
from random import Random
from typing import Any

from bae import Node
from bae.testing import Provider

COLOURS = ("amber", "blue", "coral", "dun")
CODES = dict(zip(COLOURS, Random(7).sample(("K1", "M7", "P3", "T9"), 4), strict=True))
"""The code book. A code that is not in it is wrong, and so is one of another colour."""

HINT = "by the book of 1871"
"""An instruction with these words makes the model look the codes up."""

ENOUGH = 3
"""How many examples of a choice it takes to be understood."""


class Parcel(Node):
    colour: str
    weight: int

    async def __call__(self) -> Coded: ...


class Coded(Node):
    code: str

    async def __call__(self) -> Lorry | Bicycle: ...


class Lorry(Node):
    reason: str = ""

    async def __call__(self) -> None: ...


class Bicycle(Node):
    reason: str = ""

    async def __call__(self) -> None: ...


def goes_by(code: str) -> type[Node]:
    """The transport of a parcel with this code."""
    return Lorry if code in (CODES["amber"], CODES["coral"]) else Bicycle


def right_traces(count: int = 24, seed: int = 0) -> list[list[Node]]:
    """Traces of runs in which everything was right."""
    random = Random(seed)
    colours = [COLOURS[number % len(COLOURS)] for number in range(count)]
    random.shuffle(colours)
    traces: list[list[Node]] = []
    for number, colour in enumerate(colours):
        code = CODES[colour]
        parcel = Parcel(colour=colour, weight=seed * 1000 + number)
        traces.append([parcel, Coded(code=code), goes_by(code)()])
    return traces


def right_examples(count: int = 24, seed: int = 0) -> list[Any]:
    """What there is to learn from these runs."""
    from bae.optimizer import trace_to_examples

    return [example for trace in right_traces(count, seed) for example in trace_to_examples(trace)]


def fills(count: int = 24, seed: int = 0) -> list[Any]:
    """Examples for the fill of Coded, and none for its choice."""
    return [example for example in right_examples(count, seed) if example.next_node_type == "Coded"]


def answer(received: Any) -> dict[str, Any]:
    """The answer of the model: the right answer as a `teacher`, otherwise the answer that its
    prompt allows."""
    fields = received.schema["properties"]
    asked, shown = conversation(received)
    if "choice" in fields or "answer" in fields:
        known = json.loads(asked.split("\n\n", 1)[1])["Coded"]
        right = goes_by(known["code"]).__name__
        if not knows_all(received, asked) and len(shown) < ENOUGH:
            right = "Bicycle" if right == "Lorry" else "Lorry"
        made = {"choice": right, "fields": {"reason": ""}}  # at once, where it is asked for so
        return {"choice": right} if "choice" in fields else {"answer": made}
    if "reason" in fields and len(fields) == 1:
        return {"reason": ""}
    if "code" in fields:
        known = json.loads(asked.split("\n\n", 1)[1])["Parcel"]
        taught = {question["Parcel"]["colour"]: said["code"] for question, said in shown}
        if knows_all(received, asked):
            taught = CODES
        return {"code": taught.get(known["colour"], "??")}
    # Whatever an optimizer wants to know for itself: each text that is asked for is the hint.
    return dict.fromkeys(fields, f"Write the code {HINT}")


def knows_all(received: Any, asked: str) -> bool:
    return received.model.startswith("teacher") or HINT in asked


def conversation(received: Any) -> tuple[str, list[tuple[Any, Any]]]:
    """The question, and the examples before it: inputs and answers."""
    said = [(each["role"], _text(each["content"])) for each in received.body["messages"]]
    said = [each for each in said if each[0] != "system"]
    pairs = [
        (json.loads(said[place][1].split("\n\n", 1)[1]), json.loads(said[place + 1][1]))
        for place in range(0, len(said) - 1, 2)
    ]
    return said[-1][1], pairs


def wrong_provider() -> Provider:
    """The model, as a provider on loopback: `async with wrong_provider() as provider`."""
    provider = Provider()
    provider.always(answer)
    return provider


def asks(provider: Any, model: str = "student", **options: Any) -> Any:
    """A backend that asks it; the model `teacher` is right about everything."""
    from bae.lm import AnthropicBackend

    given = {"base_url": provider.url, "api_key": "a key", **options}
    return AnthropicBackend(model, **given)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(each["text"] for each in content)


SMALL: dict[str, dict[str, Any]] = {
    "bootstrap": {},
    "miprov2": {"num_candidates": 3, "num_trials": 3},
    "gepa": {"max_metric_calls": 40},
}
"""Options that make an optimizer short."""


async def optimize_with(optimizer: str, url: str, calls: Any) -> Any:
    """What an optimizer finds for `Coded`, as JSON. The models say in their names who asks."""
    from bae.optimizer import aoptimize_node
    from bae.optimizer.predictors import artifact_of

    at = _At(url)
    async with asks(at, f"student-{optimizer}") as lm, asks(at, f"teacher-{optimizer}") as teacher:
        found = await aoptimize_node(
            Coded,
            fills(16),
            lm=lm,
            teacher=teacher,
            optimizer=optimizer,
            calls=calls,
            seed=5,
            **SMALL[optimizer],
        )
    return artifact_of(found).model_dump(mode="json")


class _At:
    def __init__(self, url: str) -> None:
        self.url = url


async def main(url: str, directory: str) -> None:
    """Have all optimizers at work at once, each with a log of its own."""
    async with asyncio.TaskGroup() as tasks:
        for name in SMALL:
            tasks.create_task(optimize_with(name, url, f"{directory}/{name}.sqlite"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
