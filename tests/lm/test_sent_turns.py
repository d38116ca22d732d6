"""Earlier turns of a thread as they are sent: by every backend as messages of the user and of the
assistant, after few-shot examples and before the question."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from pydantic import Field

from bae import Graph, Messages, Node, Thread, ToolCall, Tools
from bae.lm import LearnedPrompt, NodePrompts, PromptExample, WithPrompts
from bae.testing import Call, Provider, Received
from bounded import BOUND
from end_node import EndNode
from http_backends import BACKENDS, WIRES

pytestmark = pytest.mark.once

PAST = Messages([("My name is Ana.", "Hello Ana!"), ("I sell lamps.", "Good to know.")])
SAID = [
    ("user", "My name is Ana."),
    ("assistant", "Hello Ana!"),
    ("user", "I sell lamps."),
    ("assistant", "Good to know."),
]


def stock(item: str) -> int:
    """How many there are."""
    return 7


class Say(Node):
    text: str
    history: Annotated[Messages, Thread()] = Messages()

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    text: str = Field(max_length=40)


class Ask(Node):
    text: str
    history: Annotated[Messages, Thread()] = Messages()

    async def __call__(self) -> Told: ...


class Told(EndNode):
    calls: Annotated[list[ToolCall], Tools(stock)]
    text: str


chat, shop = Graph(start=Say, end=Reply), Graph(start=Ask, end=Told)
QUESTION = 'Reply\n\n{"Say":{"text":"Who am I?"}}'


def messages_of(request: Received) -> list[tuple[str, str]]:
    """The roles and texts of a request, without the system part."""
    found: list[tuple[str, str]] = []
    for message in request.body["messages"]:
        content = message["content"] or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        text = "".join(part.get("text", "") for part in parts)
        if message["role"] != "system":
            found.append((message["role"], text))
    return found


@pytest.mark.parametrize("make", WIRES.values(), ids=list(WIRES))
async def test_every_backend_sends_the_turns_as_messages_before_the_question(
    provider: Provider, make: Any
):
    provider.script({"text": "x" * 99}, {"text": "You are Ana."})
    async with make(provider) as backend, asyncio.timeout(BOUND):
        result = await chat.arun(Say(text="Who am I?", history=PAST), backend)
    assert result.trace[-1].text == "You are Ana."
    first, again = provider.requests
    assert messages_of(first) == [*SAID, ("user", QUESTION)]
    assert messages_of(again)[:5] == messages_of(first)
    assert [role for role, _ in messages_of(again)[5:]] == ["assistant", "user"]


@pytest.mark.parametrize("make", BACKENDS.values(), ids=list(BACKENDS))
async def test_a_blank_turn_is_sent_as_words_since_providers_refuse_it(
    provider: Provider, make: Any
):
    provider.script({"text": "Yes?"})
    blank = Messages([(" ", "\n"), ("", "\u00a0")])
    async with make(provider) as backend, asyncio.timeout(BOUND):
        await chat.arun(Say(text="Who am I?", history=blank), backend)
    (request,) = provider.requests
    assert [text for _, text in messages_of(request)[:4]] == ["(no text)"] * 4


@pytest.mark.parametrize("make", WIRES.values(), ids=list(WIRES))
async def test_examples_come_before_the_turns(provider: Provider, make: Any):
    example = PromptExample({"Say": {"text": "hi"}}, {"text": "Hello."})
    learned = {Reply: NodePrompts(fill=LearnedPrompt("Answer in short.", (example,)))}
    provider.script({"text": "You are Ana."})
    async with make(provider) as backend, asyncio.timeout(BOUND):
        await chat.arun(Say(text="Who am I?", history=PAST), WithPrompts(backend, learned))
    (request,) = provider.requests
    messages = messages_of(request)
    assert messages[2:6] == SAID
    assert [role for role, _ in messages] == ["user", "assistant"] * 3 + ["user"]
    assert messages[0][1].startswith("Answer in short.")
    assert messages[6][1].startswith("Answer in short.")


@pytest.mark.parametrize("make", BACKENDS.values(), ids=list(BACKENDS))
async def test_a_tool_conversation_comes_after_the_turns(provider: Provider, make: Any):
    provider.script(Call("stock", item="lamp"), {"text": "Seven."})
    async with make(provider) as backend, asyncio.timeout(BOUND):
        result = await shop.arun(Ask(text="How many lamps?", history=PAST), backend)
    assert result.trace[-1].text == "Seven."
    for request in provider.requests:
        assert messages_of(request)[:4] == SAID


async def test_claude_caches_the_turns_for_the_next_turn(provider: Provider):
    pytest.importorskip("anthropic")
    from bae.lm import AnthropicBackend

    turns = [("s" * 6000, "Fine."), ("t" * 6000, "Fine.")]
    example = PromptExample({"Ask": {"text": "hi"}}, {"text": "Hello."})
    learned = {Told: NodePrompts(fill=LearnedPrompt("Answer.", (example,)))}
    used: list[int] = []
    provider.script(
        *(answer for _ in turns for answer in (Call("stock", item="lamp"), {"text": "Seven."}))
    )
    async with AnthropicBackend(base_url=provider.url, api_key="a key") as backend:
        for count in (1, 2):
            start = Ask(text="How many?", history=Messages(turns[:count]))
            result = await shop.arun(start, WithPrompts(backend, learned))
            used.append(result.usage.cached_tokens)
    assert used[1] - used[0] > 1000
    marks = [json.dumps(request.body).count("cache_control") for request in provider.requests]
    assert max(marks) <= 4  # or Anthropic refuses it
