"""Servers of others with OpenAI's API, which leave out, add or refuse parts of it. A run has the
same result with and without a follower of its text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import pytest

from bae import BaeLMError, Graph, Node, Text
from bounded import BOUND
from end_node import EndNode
from field_texts import Seen
from raw_provider import EVENTS, Raw, raw_provider

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")

Respond = Callable[[dict[str, Any]], Raw]


class Ask(Node):
    async def __call__(self) -> Weather: ...


class Weather(EndNode):
    sky: str
    wind: str


class Write(Node):
    async def __call__(self) -> Letter: ...


class Letter(EndNode):
    text: Annotated[str, Text()]


ASK, WRITE = Graph(start=Ask), Graph(start=Write)
JSON = '{"sky": "gray é", "wind": "none"}'
TEXTS = {"1:Weather.sky": "gray é", "1:Weather.wind": "none"}
USED = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
SAID: dict[str, Any] = {"id": "x", "created": 1, "model": "q"}


def complete_answer(text: str, usage: Any = USED, **message: Any) -> Raw:
    """An answer that is not streamed."""
    said = {"role": "assistant", "content": text, **message}
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    body = {**SAID, "object": "chat.completion", "choices": [choice], "usage": usage}
    return Raw([json.dumps(body).encode()])


def event(delta: dict[str, Any] | None, reason: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    body = {**SAID, "object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def events(*pieces: str | dict[str, Any]) -> list[bytes]:
    return [event({"content": piece} if isinstance(piece, str) else piece) for piece in pieces]


def split_events(text: str) -> list[bytes]:
    return events(*(text[at : at + 5] for at in range(0, len(text), 5)))


END = event({}, "stop")
COUNTED = event(None, usage=USED)
DONE = b"data: [DONE]\n\n"


def streaming(answer: Raw, *stream: bytes | Iterable[bytes]) -> Respond:
    """A server that answers so, and streams so where it is asked to."""
    lines = [line for event in stream for line in ([event] if isinstance(event, bytes) else event)]
    return lambda body: Raw(lines, kind=EVENTS) if body.get("stream") else answer


def refusing(option: str, status: int = 400) -> Respond:
    """A server that refuses requests with this option."""
    said = json.dumps({"error": {"message": f"unknown option {option}"}}).encode()
    answers = streaming(complete_answer(JSON), split_events(JSON), END, COUNTED, DONE)

    def respond(body: dict[str, Any]) -> Raw:
        return Raw([said], status=status) if option in json.dumps(body) else answers(body)

    return respond


SERVERS: dict[str, Respond] = {
    "all": streaming(complete_answer(JSON), split_events(JSON), END, COUNTED, DONE),
    "no-usage": streaming(complete_answer(JSON, usage=None), split_events(JSON), END, DONE),
    "empty-usage": streaming(
        complete_answer(JSON), split_events(JSON), END, event(None, usage=None), DONE
    ),
    "no-done": streaming(complete_answer(JSON), split_events(JSON), END, COUNTED),
    "no-reason": streaming(complete_answer(JSON), split_events(JSON)),
    "comments": streaming(
        complete_answer(JSON), b": keep-alive\n\n", split_events(JSON), END, DONE
    ),
    "empty-first": streaming(
        complete_answer(JSON),
        events({"role": "assistant", "content": None}, ""),
        split_events(JSON),
        END,
        DONE,
    ),
    "no-choices-first": streaming(
        complete_answer(JSON), event(None), split_events(JSON), END, DONE
    ),
    "no-stream": lambda body: complete_answer(JSON),
    "no-stream-options": refusing("stream_options"),
    "may-not-stream": refusing('"stream": true', 422),
}


async def run_with_follower(
    graph: Graph[Any, Any], start: Node, url: str, options: str = ""
) -> Any:
    """The result of a run, equal with and without a follower of its text, and the text."""
    async with asyncio.timeout(BOUND):
        name = f"openai:q@{url}/v1?attempts=0&retries=0{options}"
        plain = await graph.arun(start, name)
        seen = Seen()
        async with graph.stream(start, name) as records:
            async for record in records:
                seen.add(record)
    assert records.result.trace == plain.trace
    return plain, records.result, seen.now


@pytest.mark.parametrize("server", SERVERS)
async def test_incomplete_streaming_of_a_server_does_not_fail_a_run(
    server: str,
) -> None:
    async with raw_provider(SERVERS[server]) as provider:
        plain, streamed, texts = await run_with_follower(ASK, Ask(), provider.url)
    assert plain.result == Weather(sky="gray é", wind="none")
    assert texts == TEXTS
    assert {plain.usage.tokens, streamed.usage.tokens} <= {0, 12}


async def test_a_server_without_streaming_is_asked_to_stream_only_once() -> None:
    async with raw_provider(refusing("stream_options")) as provider:
        _, first, _ = await run_with_follower(ASK, Ask(), provider.url)
        _, second, _ = await run_with_follower(ASK, Ask(), provider.url)
    assert first.usage.calls == 2
    assert second.usage.calls == 1
    assert [bool(body.get("stream")) for body in provider.bodies] == [
        *(False, True, False),
        *(False, False),
    ]


async def test_streaming_requested_in_the_name_of_an_lm_has_no_fallback() -> None:
    async with raw_provider(refusing("stream_options")) as provider:
        with pytest.raises(BaeLMError) as caught:
            await ASK.arun(Ask(), f"openai:q@{provider.url}/v1?stream=true&retries=0")
    assert caught.value.status == 400
    assert len(provider.bodies) == 1


async def test_a_server_error_shows_the_option_to_add_to_the_name() -> None:
    def missing(body: dict[str, Any]) -> Raw:
        return Raw([b'{"detail": "Not Found"}'], status=404)

    async with raw_provider(missing) as provider:
        with pytest.raises(BaeLMError) as caught:
            await ASK.arun(Ask(), f"openai:q@{provider.url}?retries=0")
    assert f"{provider.url}/v1" in (caught.value.fix or "")

    async with raw_provider(refusing('"json_schema"', 422)) as provider:
        with pytest.raises(BaeLMError) as caught:
            await ASK.arun(Ask(), f"openai:q@{provider.url}/v1?retries=0")
        assert "?output=prompted" in (caught.value.fix or "")
        plain, *_ = await run_with_follower(ASK, Ask(), provider.url, "&output=prompted")
    assert plain.result == Weather(sky="gray é", wind="none")


THOUGHTS = {
    "pieces": events("<think>", "\nHm, ", "rain", "</think>", "\n\n"),
    "cut": split_events("<think>\nHm, rain</think>\n\n"),
    "joined": events("<think>", "\nHm, rain</think>\n\n"),
    "late": events("\n", "<thi", "nk>\nHm, r", "ain", "</think>", "\n\n"),
    "field": events({"reasoning_content": "\nHm, "}, {"reasoning_content": "rain"}),
}


@pytest.mark.parametrize("how", THOUGHTS)
async def test_thinking_inside_a_text_is_recognized_however_it_is_split(how: str) -> None:
    def server(answer: str) -> Respond:
        text = f"<think>\nHm, rain</think>\n\n{answer}"
        given = (
            complete_answer(answer, reasoning_content="\nHm, rain")
            if how == "field"
            else complete_answer(text)
        )
        return streaming(given, THOUGHTS[how], split_events(answer), END, COUNTED, DONE)

    async with raw_provider(server(JSON)) as provider:
        *_, texts = await run_with_follower(ASK, Ask(), provider.url)
    assert texts == {"1:Weather": "\nHm, rain", **TEXTS}
    async with raw_provider(server("Dear Ana, <b>no</b>")) as provider:
        plain, _, texts = await run_with_follower(WRITE, Write(), provider.url)
    assert plain.result.text.strip() == "Dear Ana, <b>no</b>"
    assert texts == {"1:Letter": "\nHm, rain", "1:Letter.text": plain.result.text}


@pytest.mark.parametrize("text", ["<thinner> paint", "<th", "<", "a <think> of </think> tags"])
async def test_text_that_only_begins_like_thinking_is_kept(text: str) -> None:
    seen = Seen()
    async with raw_provider(
        lambda body: Raw([*split_events(text), END, DONE], kind=EVENTS)
    ) as provider:
        name = f"openai:q@{provider.url}/v1?attempts=0&retries=0"
        async with asyncio.timeout(BOUND), WRITE.stream(Write(), name) as records:
            async for record in records:
                seen.add(record)
    assert seen.now == {"1:Letter.text": text}
