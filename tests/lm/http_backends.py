"""For tests of backends that speak HTTP: nodes to fill, and each backend pointed at a provider on
loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, HttpUrl

from bae import Node, Text
from bae.lm.backend import Backend, Prompt, Question
from bae.prompts.messages import ask_in_text
from bae.testing import Empty, Overlong, Provider, WrongSchema
from bae.usage import Attempt, metered
from end_node import EndNode

Make = Callable[..., Backend]


def anthropic(provider: Provider, **options: Any) -> Backend:
    pytest.importorskip("anthropic")
    from bae.lm.anthropic_backend import AnthropicBackend

    return AnthropicBackend(**{"base_url": provider.url, "api_key": "a key", **options})


def anthropic_unstreamed(provider: Provider, **options: Any) -> Backend:
    return anthropic(provider, stream=False, **options)


def pydantic_ai_openai(provider: Provider, **options: Any) -> Backend:
    pytest.importorskip("pydantic_ai")
    pytest.importorskip("openai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from bae.lm.pydantic_ai_backend import PydanticAIBackend

    service = OpenAIProvider(base_url=f"{provider.url}/v1", api_key="a key")
    return PydanticAIBackend(OpenAIChatModel("gpt-4o-mini", provider=service), **options)


def pydantic_ai_anthropic(provider: Provider, **options: Any) -> Backend:
    pytest.importorskip("pydantic_ai")
    pytest.importorskip("anthropic")
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    from bae.lm.pydantic_ai_backend import PydanticAIBackend

    service = AnthropicProvider(base_url=provider.url, api_key="a key")
    return PydanticAIBackend(AnthropicModel("claude-sonnet-4-6", provider=service), **options)


def dspy_backend(provider: Provider, **options: Any) -> Backend:
    pytest.importorskip("dspy")
    from bae.lm import DSPyBackend

    given = {"api_base": f"{provider.url}/v1", "api_key": "a key", **options}
    found = {name: value for name, value in given.items() if value is not None}
    return DSPyBackend("openai/gpt-4o-mini", **found)


BACKENDS: dict[str, Make] = {
    "anthropic": anthropic,
    "anthropic-unstreamed": anthropic_unstreamed,
    "pydantic-ai-openai": pydantic_ai_openai,
    "pydantic-ai-anthropic": pydantic_ai_anthropic,
}
WIRES: dict[str, Make] = {**BACKENDS, "dspy": dspy_backend}


class Fabric(Enum):
    WOOL = "wool"
    LINEN = "linen"


class Maker(BaseModel):
    """A docstring of Maker, for people alone."""

    name: str = Field(min_length=2, max_length=40)
    since: date
    site: HttpUrl


class Hanger(BaseModel):
    kind: Literal["hanger"]
    width: float = Field(gt=0, lt=100)


class Shelf(BaseModel):
    kind: Literal["shelf"]
    level: int = Field(ge=1, le=9)


class Part(BaseModel):
    name: str
    parts: list[Part] = []


class Outfit(EndNode):
    """A docstring of Outfit, for people alone."""

    top: str = Field(description="a specific garment")
    layers: int = Field(ge=0, le=5)


class Wardrobe(EndNode):
    """Most kinds of field there are."""

    fabric: Fabric = Field(description="what most of it is made of")
    maker: Maker = Field(description="who made it")
    place: Hanger | Shelf
    worn: datetime | None
    tags: list[str] = Field(max_length=3)
    spare: bool = True
    note: str | None = None


class Machine(EndNode):
    whole: Part


class Prices(EndNode):
    by_name: dict[str, float]
    pair: tuple[int, str]


class Weather(Node):
    """A docstring of Weather, for people alone."""

    sky: str
    degrees: float

    async def __call__(self) -> Outfit | AskBack: ...


class AskBack(EndNode):
    question: str


SHIRT = {"top": "a blue shirt", "layers": 2}
LINEN = {
    "fabric": "linen",
    "maker": {"name": "Ada", "since": "1843-07-10", "site": "https://ada.example/"},
    "place": {"kind": "shelf", "level": 3},
    "worn": "2024-05-01T08:30:00Z",
    "tags": ["warm"],
}


def prompt(schema: dict[str, Any] | None = None, **given: Any) -> Prompt:
    """A prompt made by hand, for questions to `answer` itself."""
    made: dict[str, Any] = {
        "type": "object",
        "properties": {"top": {"type": "string"}},
        "required": ["top"],
        "additionalProperties": False,
    }
    said = {"system": "Be brief.", "text": "Outfit", "corrections": (), "name": "Outfit", **given}
    conversation = ask_in_text(said.pop("text"), said.pop("corrections"))
    return Prompt(conversation=conversation, schema=schema or made, question=Question(), **said)


WRONG: list[tuple[Any, str]] = [
    (WrongSchema(), "invalid"),
    (Overlong(), "cut-off"),
    (Empty(), "empty"),
    ("I would wear a shirt.", "unparsable"),
    ([1, 2], "unparsable"),
]
"""Answers that are none, with what is found of them."""


async def report_wrong_answer(provider: Provider, backend: Backend, wrong: Any) -> list[str]:
    """The verdicts on a wrong answer and on the right answer after it."""
    provider.script(wrong)
    provider.always(SHIRT)
    told: list[Any] = []
    with metered(told.append):
        outfit = await backend.fill(Outfit, {}, "Outfit")
    assert outfit.top == "a blue shirt"
    return [event.verdict for event in told if isinstance(event, Attempt)]


def parse_lines(text: str) -> list[str]:
    if not text.startswith("Dear"):
        raise ValueError('begin with "Dear"')
    return text.splitlines()


class Letter(EndNode):
    lines: Annotated[list[str], Text(parse_lines)] = Field(description="three lines")


async def letter_after_a_wrong_one(provider: Provider, backend: Backend) -> None:
    """Have a letter written in plain text, which is asked for again once."""
    provider.script('{"lines": "Hi"}', 'Dear "Ada",\n\tof {1843}:\nyours\n')
    told: list[Any] = []
    with metered(told.append):
        letter = await backend.fill(Letter, {}, "Letter", AskBack(question="of \\ whom?"))
    assert letter.lines == ['Dear "Ada",', "\tof {1843}:", "yours"]
    first, second = provider.requests
    for request in first, second:
        assert request.schema is None
        assert request.tool is None
        assert not request.body.get("tools")
        assert "Answer in plain text, not in JSON: three lines" in request.text
    assert '- lines: begin with "Dear"' in second.text
    assert '{"lines": "Hi"}' in second.text
    judged = [event for event in told if isinstance(event, Attempt)]
    assert [each.verdict for each in judged] == ["invalid", "valid"]
    # What streams is the text, as it is.
    pieces = "".join(event for event in told if isinstance(event, str))
    assert pieces in ("", "".join(each.answer for each in judged))


def tasks_besides_this() -> set[asyncio.Task[Any]]:
    current = asyncio.current_task()
    return {task for task in asyncio.all_tasks() if task is not current}


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
