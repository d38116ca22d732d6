"""Tool calls of the loopback provider, in each of its APIs: read by the clients of OpenAI and
Anthropic, with and without streaming, and the conversations that it refuses like the real APIs."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("h11")
httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

from bae.testing import Call, Calls, Provider  # noqa: E402
from provider_asks import TLS  # noqa: E402

BOUND = 20
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
FUNCTION = {"name": "search", "parameters": SCHEMA}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "chat": [{"type": "function", "function": FUNCTION}],
    "responses": [{"type": "function", **FUNCTION}],
    "messages": [{"name": "search", "input_schema": SCHEMA}],
}
NASTY = {"query": 'a "b" {\n\\ é 😀', "many": [1, {"deep": None}]}


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with asyncio.timeout(BOUND), Provider() as running:
        yield running


Said = tuple[str, list[tuple[str, str, Any]], str | None]
"""The text, the calls with their ids, names and arguments, and why it ended."""


async def next_message(provider: Provider, api: str, *, stream: bool) -> Said:
    """The next message as a client reads it."""
    if api == "messages":
        async with anthropic.AsyncAnthropic(
            base_url=provider.url,
            api_key="key",
            max_retries=0,
            http_client=anthropic.DefaultAsyncHttpxClient(verify=TLS),
        ) as client:
            asked = {"model": "m", "max_tokens": 9, "tools": TOOLS[api]}
            asked["messages"] = [{"role": "user", "content": "?"}]
            if stream:
                async with client.messages.stream(**asked) as streamed:
                    done = await streamed.get_final_message()
            else:
                done = await client.messages.create(**asked)
        texts = [part.text for part in done.content if part.type == "text"]
        calls = [(c.id, c.name, c.input) for c in done.content if c.type == "tool_use"]
        return "".join(texts), calls, done.stop_reason
    async with openai.AsyncOpenAI(
        base_url=f"{provider.url}/v1",
        api_key="key",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(verify=TLS),
    ) as client:
        if api == "chat":
            asked = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
            asked["tools"] = TOOLS[api]
            if stream:
                return await _put_together(
                    await client.chat.completions.create(**asked, stream=True)
                )
            done = await client.chat.completions.create(**asked)
            reply = done.choices[0].message
            calls = [
                (c.id, c.function.name, _read(c.function.arguments)) for c in reply.tool_calls or []
            ]
            return reply.content or "", calls, done.choices[0].finish_reason
        asked = {"model": "m", "input": "?", "tools": TOOLS[api]}
        done = None
        if stream:
            async with client.responses.stream(**asked) as streamed:
                async for event in streamed:
                    if event.type in ("response.completed", "response.incomplete"):
                        done = event.response
        else:
            done = await client.responses.create(**asked)
        assert done is not None
        calls = [
            (item.call_id, item.name, _read(item.arguments))
            for item in done.output
            if item.type == "function_call"
        ]
        return done.output_text, calls, done.status


async def _put_together(stream: Any) -> Said:
    """The message in the chunks of a chat completion. The client's own parser fails for a truncated
    message."""
    text, calls, ended = "", {}, None
    async for chunk in stream:
        for choice in chunk.choices:
            ended = choice.finish_reason or ended
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                id, name, given = calls.get(piece.index, ("", "", ""))
                given += piece.function.arguments or ""
                calls[piece.index] = id or piece.id, name or piece.function.name, given
    return text, [(id, name, _read(given)) for id, name, given in calls.values()], ended


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


every_way = pytest.mark.parametrize(
    ("api", "stream"), [(api, stream) for api in TOOLS for stream in (False, True)]
)
ENDS = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}
CUT = {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}


@every_way
async def test_tool_calls_arrive_as_scripted(provider: Provider, api: str, stream: bool) -> None:
    for size in (1, 7, 100):
        calls = Call("search", **NASTY), Call("search"), Call("search", query="b")
        provider.script(Calls(*calls, text="Well.", thinking="Hm.", ids=["a", "b", "c"], size=size))
        text, found, ended = await next_message(provider, api, stream=stream)
        assert found == [
            ("a", "search", NASTY),
            ("b", "search", {}),
            ("c", "search", {"query": "b"}),
        ]
        assert (text, ended) == ("Well.", ENDS[api])


@every_way
async def test_a_script_accepts_a_single_call_or_a_list_of_calls(
    provider: Provider, api: str, stream: bool
) -> None:
    provider.script(Call("search", query="a"), [Call("search"), Call("search")], "done")
    seen: set[str] = set()
    for many in (1, 2, 0):
        _, calls, _ = await next_message(provider, api, stream=stream)
        assert len(calls) == many
        seen.update(id for id, _, _ in calls)
    assert len(seen) == 3  # each has an id of its own
    assert provider.requests[0].tools == ("search",)


@every_way
async def test_a_cut_message_has_an_incomplete_call(
    provider: Provider, api: str, stream: bool
) -> None:
    provider.script(Calls(Call("search", query="whole"), Call("search", query="half"), cut=True))
    _, (whole, half), ended = await next_message(provider, api, stream=stream)
    assert ended == CUT[api]
    assert whole[2] == {"query": "whole"}
    assert half[2] != {"query": "half"}


async def test_scripted_arguments_may_be_invalid_json(provider: Provider) -> None:
    for api in ("chat", "responses"):
        provider.script(Calls(Call("search"), raw='{"query": '))
        _, calls, _ = await next_message(provider, api, stream=False)
        assert calls[0][2] == '{"query": '


async def test_impossible_scripted_calls_are_refused_at_construction() -> None:
    with pytest.raises(ValueError, match="one id for each of 2 calls"):
        Calls(Call("a"), Call("b"), ids=["1"])
    with pytest.raises(ValueError, match="size=0"):
        Calls(Call("a"), size=0)


# --- what is refused ---------------------------------------------------------------------------


ASKED = {"role": "user", "content": "?"}


def claude(*messages: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "m", "max_tokens": 9, "tools": TOOLS["messages"]}
    return "/v1/messages", {**body, "messages": [ASKED, *messages], **more}


def chat(*messages: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "m", "tools": TOOLS["chat"], "messages": [ASKED, *messages]}
    return "/v1/chat/completions", {**body, **more}


def responses(*items: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "m", "tools": TOOLS["responses"], "input": [ASKED, *items]}
    return "/v1/responses", {**body, **more}


def says(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def tells(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "search", "input": {}}


def result(id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "found"}


TEXT = {"type": "text", "text": "well"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "made up"}
SEARCHED = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]}
CALLED["tool_calls"][0]["function"] = {"name": "search", "arguments": "{}"}  # type: ignore[index]
RESULT = {"role": "tool", "tool_call_id": "a", "content": "found"}
ITEM = {"type": "function_call", "call_id": "a", "name": "search", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "found"}
REASON = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "made up"}

REFUSED = {
    "a call without a result": (claude(says(use("a"))), "without `tool_result`"),
    "a call whose result is late": (
        claude(says(use("a")), tells(TEXT), says(TEXT), tells(result("a"))),
        "without `tool_result`",
    ),
    "half of the results": (claude(says(use("a"), use("b")), tells(result("a"))), "after: b"),
    "text before results": (claude(says(use("a")), tells(TEXT, result("a"))), "immediately after"),
    "a result without a call": (claude(says(TEXT), tells(result("a"))), "unexpected `tool_use_id`"),
    "two results": (claude(says(use("a")), tells(result("a"), result("a"))), "a single result"),
    "equal ids": (claude(says(use("a"), use("a")), tells(result("a"))), "must be unique"),
    "thinking that was changed": (
        claude(says(THOUGHT, use("a")), tells(result("a"))),
        "Invalid `signature`",
    ),
    "thinking that was left out": (
        claude(says(use("a")), tells(result("a")), thinking={"type": "enabled"}),
        "Expected `thinking`",
    ),
    "a text of spaces": (claude(tells({"type": "text", "text": " "})), "non-whitespace"),
    "a search without its result": (claude(says(SEARCHED, TEXT), tells(TEXT)), "without a result"),
    "calls without tools": (claude(says(use("a")), tells(result("a")), tools=[]), "must define"),
    "a choice without tools": (claude(tools=[], tool_choice={"type": "none"}), "tool_choice"),
    "chat: a call without a result": (chat(CALLED), "did not have response messages: a"),
    "chat: a message between": (chat(CALLED, ASKED, RESULT), "did not have response messages"),
    "chat: a result without a call": (chat(RESULT), "must be a response to"),
    "chat: a choice without tools": (chat(tools=[], tool_choice="auto"), "tool_choice"),
    "responses: a call without a result": (responses(ITEM), "No tool output found"),
    "responses: a result without a call": (responses(OUTPUT), "No tool call found"),
    "responses: reasoning that was changed": (responses(REASON, ITEM, OUTPUT), "be verified"),
    "responses: reasoning alone": (
        responses({**REASON, "encrypted_content": None}, ASKED),
        "without its required following item",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_broken_conversation_is_refused_in_the_form_of_the_api(
    provider: Provider, name: str
) -> None:
    (path, body), why = REFUSED[name]
    async with httpx.AsyncClient(base_url=provider.url, verify=TLS) as client:
        got = await client.post(path, json=body)
    assert got.status_code == 400
    assert why in got.json()["error"]["message"]
    assert provider.received == 0


async def test_a_complete_conversation_is_accepted(provider: Provider) -> None:
    whole = [
        claude(says(TEXT, use("a"), use("b")), tells(result("b"), result("a"), TEXT)),
        claude(says(use("a")), tells(result("a")), says(use("a")), tells(result("a"))),
        claude(tools=TOOLS["messages"], tool_choice={"type": "none"}),
        chat(CALLED, RESULT, ASKED, CALLED, RESULT),
        responses(ITEM, OUTPUT, ASKED),
    ]
    async with httpx.AsyncClient(base_url=provider.url, verify=TLS) as client:
        for path, body in whole:
            assert (await client.post(path, json=body)).status_code == 200
    assert [request.results for request in provider.requests] == [
        ("found", "found"),
        ("found",),
        (),
        ("found",),
        ("found",),
    ]


@every_way
async def test_no_tool_is_called_if_the_client_forbids_calls(
    provider: Provider, api: str, stream: bool
) -> None:
    """Without a script, a model calls the only tool there is; not so where it may not."""
    path, body = {"chat": chat, "responses": responses, "messages": claude}[api]()
    for choice, called in ((None, True), ("none", False)):
        given = {} if choice is None else {"tool_choice": choice}
        if api == "messages" and choice is not None:
            given = {"tool_choice": {"type": choice}}
        async with httpx.AsyncClient(base_url=provider.url, verify=TLS) as client:
            got = await client.post(path, json={**body, **given, "stream": stream})
        assert ("search" in got.text) == called
