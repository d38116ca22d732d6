"""The behavior of Claude over Anthropic's SDK; test_http_backends.py has the behavior that all
backends share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bae import BaeLMError, Node
from bae.lm import Budget
from bae.testing import Cut, Provider, Stall
from bae.usage import Attempt, metered
from http_backends import SHIRT, Machine, Outfit, Prices, prompt
from raw_provider import EVENTS, Raw, raw_provider

pytest.importorskip("anthropic")

from bae.lm.anthropic_backend import AnthropicBackend


def claude(
    provider: Provider, model: str = "claude-sonnet-4-6", **options: Any
) -> AnthropicBackend:
    return AnthropicBackend(model, **{"base_url": provider.url, "api_key": "a key", **options})


@asynccontextmanager
async def streaming(*events: dict[str, Any]) -> AsyncIterator[AnthropicBackend]:
    """Claude at a server that answers anything with a stream of these events."""
    sent = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
    async with (
        raw_provider(lambda _: Raw(sent, kind=EVENTS)) as server,
        AnthropicBackend("claude-sonnet-4-6", base_url=server.url, api_key="a key") as backend,
    ):
        yield backend


@pytest.mark.parametrize("channel", ["schema", "tool"])
async def test_anthropic_answers_are_streamed_with_a_cached_prompt_prefix(
    provider: Provider, channel: str
) -> None:
    provider.script(SHIRT)
    events: list[Any] = []
    async with claude(provider, channel=channel) as backend:
        with metered(events.append):
            await backend.fill(Outfit, {}, "Outfit")
    pieces = [event for event in events if isinstance(event, str)]
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == SHIRT
    assert isinstance(events[-1], Attempt)
    assert provider.requests[0].stream
    body = provider.requests[0].body
    assert ("tools" in body) == (channel == "tool")
    for part in (body["system"], body.get("tools", body["system"])):
        assert part[-1]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize("node", [Machine, Prices])
async def test_an_unsupported_schema_is_sent_as_a_forced_tool(
    provider: Provider, node: type[Node]
) -> None:
    async with claude(provider) as backend:
        assert isinstance(await backend.fill(node, {}, node.__name__), node)
    (request,) = provider.requests
    (tool,) = request.body["tools"]
    assert tool["name"] == node.__name__
    assert set(tool["input_schema"]["properties"]) == set(node.model_fields)
    assert request.body["tool_choice"] == {
        "type": "tool",
        "name": node.__name__,
        "disable_parallel_tool_use": True,
    }
    assert "output_config" not in request.body


@pytest.mark.parametrize(
    "options",
    [{"model": "claude-sonnet-5-5"}, {"extra": {"thinking": {"type": "adaptive"}}}],
    ids=["by-model", "by-thinking"],
)
async def test_a_model_without_forced_tools_is_asked_again_after_plain_text(
    provider: Provider, options: dict[str, Any]
) -> None:
    provider.script("Here it is!", {"whole": {"name": "a"}})
    async with claude(provider, **options) as backend:
        machine = await backend.fill(Machine, {}, "Machine")
    assert machine.whole.name == "a"
    assert provider.requests[0].body["tool_choice"]["type"] == "auto"
    assert "Here it is!" in provider.requests[1].text


async def test_only_given_settings_are_sent(provider: Provider) -> None:
    extra = {"top_p": 0.5, "output_config": {"effort": "low"}}
    headers = {"anthropic-beta": "a-feature"}
    given = {"temperature": 0.25, "max_tokens": 77, "extra": extra, "headers": headers}
    async with claude(provider, **given) as backend, claude(provider) as plain:
        await backend.answer(prompt())
        await plain.answer(prompt())
    first, second = provider.requests
    assert first.body["temperature"] == 0.25
    assert first.body["max_tokens"] == 77
    assert first.body["top_p"] == 0.5
    assert first.body["output_config"]["effort"] == "low"
    assert first.body["output_config"]["format"]["type"] == "json_schema"
    assert first.headers["anthropic-beta"] == "a-feature"
    assert "temperature" not in second.body
    assert backend.settings["temperature"] == 0.25
    assert json.loads(json.dumps(backend.settings)) == backend.settings
    assert "a key" not in json.dumps(backend.settings)


START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}


@pytest.mark.parametrize(
    ("kind", "status", "code", "retryable"),
    [
        ("overloaded_error", 529, "bae-lm-unavailable", True),
        ("rate_limit_error", 429, "bae-lm-rate-limited", True),
        ("api_error", 500, "bae-lm-unavailable", True),
        ("invalid_request_error", 400, "bae-lm-request-refused", False),
        ("a_kind_not_known_yet", 500, "bae-lm-unavailable", True),
    ],
)
async def test_an_error_event_in_a_stream_is_treated_like_an_error_status(
    kind: str, status: int, code: str, retryable: bool
) -> None:
    failed = {"type": "error", "error": {"type": kind, "message": "no more today"}}
    async with streaming(START, failed) as backend:
        with pytest.raises(BaeLMError, match="no more today") as raised:
            await backend.answer(prompt())
    error = raised.value
    assert (error.status, error.code, error.retryable) == (status, code, retryable)


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "cut-off"),
        ("model_context_window_exceeded", "cut-off"),
        ("refusal", "refused"),
    ],
)
async def test_the_stop_reason_of_an_answer_is_reported(reason: str, stop: str) -> None:
    said = [{"type": "thinking", "thinking": ""}, {"type": "text", "text": ""}]
    deltas = [{"type": "thinking_delta", "thinking": "hmm"}, {"type": "text_delta", "text": "said"}]
    events: list[dict[str, Any]] = [START]
    for index, (block, delta) in enumerate(zip(said, deltas, strict=True)):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
    ended = {"stop_reason": reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}})
    events.append({"type": "message_stop"})
    async with streaming(*events) as backend:
        answer = await backend.answer(prompt())
    assert (answer.stop, answer.text) == (stop, "said")  # and nothing of what it thought
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (1, 5)


async def test_a_stream_that_ends_before_its_answer_is_a_broken_connection() -> None:
    async with streaming(START) as backend:
        with pytest.raises(BaeLMError) as raised:
            await backend.answer(prompt())
    assert raised.value.code == "bae-lm-unreachable"
    assert raised.value.retryable


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Cut(after=3), "bae-lm-unreachable"), (Stall(after=3), "bae-lm-timeout")],
    ids=["cut", "idle"],
)
async def test_the_reported_usage_of_a_broken_stream_is_charged_and_the_rest_is_unknown(
    provider: Provider, fault: Any, code: str
) -> None:
    provider.always(fault)
    async with claude(provider, retries=0, idle_timeout=0.2) as backend:
        with Budget(cost=1) as budget, metered() as reported, pytest.raises(BaeLMError) as raised:
            await backend.fill(Outfit, {}, "Outfit")
    assert raised.value.code == code
    assert ("within 0.2 s" in str(raised.value)) == (code == "bae-lm-timeout")
    (used,) = reported
    assert raised.value.usage is not None
    assert used.input_tokens == raised.value.usage.input_tokens > 0
    assert (used.calls, used.cost, used.models) == (1, None, ("claude-sonnet-4-6",))
    assert budget.usage.input_tokens == used.input_tokens
    assert budget.usage.cost is not None
    assert budget.usage.cost > 0
    assert budget.usage.cost == backend.least_cost(used)


@pytest.mark.parametrize(
    ("below", "code"),
    [
        (TimeoutError(110, "the socket"), "bae-lm-timeout"),
        (BrokenPipeError(), "bae-lm-unreachable"),
    ],
    ids=repr,
)
async def test_a_socket_timeout_is_not_confused_with_the_timeout_of_the_call(
    below: Exception, code: str
) -> None:
    import httpx2

    class Broken(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield f"event: message_start\ndata: {json.dumps(START)}\n\n".encode()
            raise below

    class Transport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            return httpx2.Response(
                200, headers={"content-type": "text/event-stream"}, stream=Broken()
            )

    async with httpx2.AsyncClient(transport=Transport()) as client:
        backend = AnthropicBackend(api_key="k", http_client=client)
        with pytest.raises(BaeLMError) as raised:
            await backend.answer(prompt())
    assert raised.value.code == code
    assert raised.value.retryable
    assert "within" not in str(raised.value)


async def test_settings_contain_everything_that_changes_the_request(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"headers": {"Anthropic-Beta": "a-feature"}, "api_key": "k"}
    settings = AnthropicBackend(**given).settings
    assert settings["base_url"].startswith("https://api.anthropic.com")
    for other in (
        {"headers": {"anthropic-beta": "another-feature"}},
        {"headers": {}},
        {"base_url": "http://127.0.0.1:1/proxy"},
    ):
        assert settings != AnthropicBackend(**{**given, **other}).settings
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from the environment")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
    async with AnthropicBackend() as backend:
        assert backend.settings["base_url"].startswith(provider.url)
        await backend.answer(prompt())
    assert "from the environment" in json.dumps(dict(provider.requests[0].headers))


def test_keys_are_not_in_the_settings() -> None:
    headers = {"Authorization": "Bearer s3cret", "X-Api-Key": "s3cret", "Cookie": "s3cret"}
    settings = AnthropicBackend(api_key="s3cret", headers=headers).settings
    assert "s3cret" not in json.dumps(settings)
    assert settings["headers"] == {"authorization": None, "cookie": None, "x-api-key": None}
    extra = {
        "mcp_servers": [{"url": "https://me:s3cret@tools.test", "authorization_token": "s3cret"}],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
    }
    settings = AnthropicBackend(
        api_key="k", extra=extra, base_url="https://me:s3cret@x.test"
    ).settings
    assert "s3cret" not in json.dumps(settings)
    assert settings["extra"]["thinking"] == extra["thinking"]
    assert settings["base_url"].startswith("https://x.test")


async def test_without_a_key_the_error_names_the_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    named = pytest.raises(BaeLMError, match="ANTHROPIC_API_KEY")
    with named as raised:
        AnthropicBackend()
    assert not raised.value.sent
    for options in ({"headers": {"Authorization": "Bearer mine"}}, {"api_key": "mine"}):
        AnthropicBackend(**options)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "mine")
    backend = AnthropicBackend()
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN")  # it was there when it was made, and is gone
    with Budget(calls=5) as budget, metered() as reported, named as raised:
        await backend.fill(Outfit, {}, "Outfit")
    assert raised.value.code == "bae-lm-unauthorized"
    assert not raised.value.retryable
    assert reported == []  # nothing was sent
    assert budget.usage.calls == 0


async def test_a_client_of_the_caller_stays_open(provider: Provider) -> None:
    import httpx2

    async with httpx2.AsyncClient() as client:
        async with claude(provider, http_client=client) as backend:
            await backend.answer(prompt())
        assert not client.is_closed


async def test_an_unsupported_schema_on_a_forced_channel_is_an_error(
    provider: Provider,
) -> None:
    schema = {"type": "object", "properties": {"x": {}}, "required": ["x"]}
    async with claude(provider, channel="schema") as backend:
        with pytest.raises(BaeLMError, match="a value of any type") as raised:
            await backend.answer(prompt(schema))
    assert raised.value.code == "bae-lm-request-refused"
    assert not provider.requests
