"""One way to ask for every way there is: an API, streaming or not, for JSON by its own channel for
it or by a tool, through the clients that its makers ship."""

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import anthropic
import openai

from bae.testing import Provider

Schema = Mapping[str, Any]
NAME = "answer"
TLS = ssl.create_default_context()
"""Made once: every client would otherwise read the certificates of the machine, for nothing."""


@dataclass(frozen=True)
class Way:
    """How to ask."""

    api: str
    stream: bool
    tool: bool

    def __str__(self) -> str:
        by = "by a tool" if self.tool else "by its format"
        return f"{self.api} {by}{', streaming' if self.stream else ''}"


WAYS = [
    Way(*how) for how in product(("chat", "responses", "messages"), (False, True), (False, True))
]


@dataclass
class Got:
    """An answer as a client reads it: `text` is the text of the model, or the arguments of its tool
    call."""

    text: str
    stop: str | None
    refusal: str | None
    input: int
    output: int
    cached: int
    called: str | None = None


Ask = Callable[[str, Schema | None], Awaitable[Got]]


@asynccontextmanager
async def asking(way: Way, provider: Provider, timeout: float = 20) -> AsyncIterator[Ask]:
    """Ask in a way, without retries."""
    if way.api == "messages":
        async with anthropic.AsyncAnthropic(
            base_url=provider.url,
            api_key="key",
            max_retries=0,
            timeout=timeout,
            http_client=anthropic.DefaultAsyncHttpxClient(verify=TLS),
        ) as client:
            yield lambda text, schema: _messages(client, way, text, schema)
        return
    ask = _chat if way.api == "chat" else _responses
    async with openai.AsyncOpenAI(
        base_url=f"{provider.url}/v1",
        api_key="key",
        max_retries=0,
        timeout=timeout,
        http_client=openai.DefaultAsyncHttpxClient(verify=TLS),
    ) as client:
        yield lambda text, schema: ask(client, way, text, schema)


async def _chat(client: openai.AsyncOpenAI, way: Way, text: str, schema: Schema | None) -> Got:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text}]}
    if schema is not None and way.tool:
        function = {"name": NAME, "parameters": schema}
        asked["tools"] = [{"type": "function", "function": function}]
        asked["tool_choice"] = {"type": "function", "function": {"name": NAME}}
    elif schema is not None:
        told = {"name": NAME, "schema": schema, "strict": True}
        asked["response_format"] = {"type": "json_schema", "json_schema": told}
    if way.stream:
        async with client.chat.completions.stream(
            **asked, stream_options={"include_usage": True}
        ) as stream:
            done = await stream.get_final_completion()
    else:
        done = await client.chat.completions.create(**asked)
    said = done.choices[0].message
    calls = said.tool_calls or []
    usage = done.usage
    assert usage is not None
    return Got(
        text=calls[0].function.arguments if calls else said.content or "",
        stop=done.choices[0].finish_reason,
        refusal=said.refusal,
        input=usage.prompt_tokens,
        output=usage.completion_tokens,
        cached=usage.prompt_tokens_details.cached_tokens,
        called=calls[0].function.name if calls else None,
    )


async def _responses(client: openai.AsyncOpenAI, way: Way, text: str, schema: Schema | None) -> Got:
    asked: dict[str, Any] = {"model": "m", "input": [{"role": "user", "content": text}]}
    if schema is not None and way.tool:
        asked["tools"] = [{"type": "function", "name": NAME, "parameters": schema, "strict": True}]
        asked["tool_choice"] = {"type": "function", "name": NAME}
    elif schema is not None:
        told = {"type": "json_schema", "name": NAME, "schema": schema, "strict": True}
        asked["text"] = {"format": told}
    if way.stream:
        async with client.responses.stream(**asked) as stream:
            done: Any = None
            async for event in stream:
                if event.type in ("response.completed", "response.incomplete"):
                    done = event.response
            assert done is not None
    else:
        done = await client.responses.create(**asked)
    calls = [item for item in done.output if item.type == "function_call"]
    refusals = [
        part.refusal
        for item in done.output
        if item.type == "message"
        for part in item.content
        if part.type == "refusal"
    ]
    return Got(
        text=calls[0].arguments if calls else done.output_text,
        stop=done.incomplete_details.reason if done.incomplete_details else done.status,
        refusal=refusals[0] if refusals else None,
        input=done.usage.input_tokens,
        output=done.usage.output_tokens,
        cached=done.usage.input_tokens_details.cached_tokens,
        called=calls[0].name if calls else None,
    )


async def _messages(
    client: anthropic.AsyncAnthropic, way: Way, text: str, schema: Schema | None
) -> Got:
    asked: dict[str, Any] = {
        "model": "m",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": text}],
    }
    if schema is not None and way.tool:
        asked["tools"] = [{"name": NAME, "input_schema": schema}]
        asked["tool_choice"] = {"type": "tool", "name": NAME}
    elif schema is not None:
        asked["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if way.stream:
        async with client.messages.stream(**asked) as stream:
            done = await stream.get_final_message()
    else:
        done = await client.messages.create(**asked)
    calls = [block for block in done.content if block.type == "tool_use"]
    texts = [block.text for block in done.content if block.type == "text"]
    usage = done.usage
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return Got(
        text=json.dumps(calls[0].input) if calls else "".join(texts),
        stop=done.stop_reason,
        refusal="".join(texts) if done.stop_reason == "refusal" else None,
        input=usage.input_tokens + read + written,
        output=usage.output_tokens,
        cached=read,
        called=calls[0].name if calls else None,
    )
