"""The behavior of models of PydanticAI; test_http_backends.py has the behavior that all backends
share."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import pytest

from bae import BaeLMError
from bae.lm import Cached
from bae.testing import Provider, Status, ThreadedProvider
from bae.usage import metered
from bounded import run
from http_backends import SHIRT, Machine, Outfit, Prices, Wardrobe, Weather, prompt

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelServerError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from bae.lm.pydantic_ai_backend import PydanticAIBackend


def gpt(provider: Provider, **profile: Any) -> OpenAIChatModel:
    service = OpenAIProvider(base_url=f"{provider.url}/v1", api_key="a key")
    return OpenAIChatModel(
        "gpt-4o-mini", provider=service, profile=ModelProfile(**profile) if profile else None
    )


def _http(category: Any, status: int) -> ModelHTTPError:
    return ModelHTTPError.for_category(category, status_code=status, model_name="m")


NAMES = {
    "openai:gpt-5-mini": "/v1/responses",
    "openai-chat:gpt-4o-mini": "/v1/chat/completions",
    "anthropic:claude-sonnet-4-6": "/v1/messages",
}


def _environment(patch: pytest.MonkeyPatch, url: str) -> None:
    patch.setenv("OPENAI_API_KEY", "a key")
    patch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    patch.setenv("ANTHROPIC_API_KEY", "a key")
    patch.setenv("ANTHROPIC_BASE_URL", url)


@pytest.mark.parametrize("name", NAMES)
async def test_a_model_is_found_by_its_name(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _environment(monkeypatch, provider.url)
    provider.always(SHIRT)
    async with PydanticAIBackend(name) as backend:
        assert backend.model == name
        with metered() as reported:
            assert await backend.fill(Outfit, {}, "Outfit") == Outfit(**SHIRT)
    assert provider.requests[0].path == NAMES[name]
    assert reported[0].models == (name.partition(":")[2],)
    assert reported[0].cost is not None


def test_a_model_by_name_serves_two_loops_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ThreadedProvider() as provider:
        _environment(monkeypatch, provider.url)
        provider.always(SHIRT)
        backend = PydanticAIBackend("openai-chat:gpt-4o-mini")
        both_started = threading.Barrier(2, timeout=30)
        filled: list[Outfit] = []

        async def fill() -> None:
            both_started.wait()
            for _ in range(5):
                filled.append(await backend.fill(Outfit, {}, "Outfit"))

        threads = [threading.Thread(target=asyncio.run, args=(fill(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(filled) == 10


def test_an_invalid_name_is_reported_when_the_backend_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BaeLMError, match="Unknown model") as raised:
        PydanticAIBackend("no-such-provider:model")
    assert raised.value.code == "bae-lm-not-found"
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BaeLMError) as raised:
        PydanticAIBackend("openai:gpt-5-mini")
    assert raised.value.code == "bae-lm-unauthorized"
    assert raised.value.fix == "set the environment variable OPENAI_API_KEY"
    assert str(raised.value).count("to use the OpenAI provider") == 1


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_client_passed_as_a_model_is_refused_with_its_correct_place(kind: str) -> None:
    sdk = pytest.importorskip(kind)
    client = {"openai": "AsyncOpenAI", "anthropic": "AsyncAnthropic"}[kind]
    with pytest.raises(TypeError, match=rf"\({client}\): .*_client=client") as raised:
        PydanticAIBackend(getattr(sdk, client)(api_key="hidden"))
    assert "hidden" not in str(raised.value)
    with pytest.raises(TypeError, match="give the name of a model"):
        PydanticAIBackend(3)  # pyright: ignore[reportArgumentType]


def test_settings_contain_no_secrets() -> None:
    settings = {
        "max_tokens": 77,
        "extra_headers": {"Authorization": "hidden", "x-team": "blue"},
        "extra_body": {"client_secret": "hidden", "callback": "https://me:hidden@here.test"},
    }
    service = OpenAIProvider(base_url="https://me:hidden@gateway.test/v1", api_key="hidden")
    model = OpenAIChatModel("gpt-4o-mini", provider=service)
    found = PydanticAIBackend(model, model_settings=settings).settings
    assert "hidden" not in json.dumps(found)
    assert found["base_url"] == "https://gateway.test/v1/"
    assert found["model_settings"] == {
        "max_tokens": 77,
        "extra_headers": {"x-team": "blue"},
        "extra_body": {"callback": "https://here.test"},
    }


def test_a_missing_provider_package_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "groq", None)
    for name in [
        module for module in sys.modules if module.startswith("pydantic_ai.providers.groq")
    ]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(BaeLMError, match=r"pydantic-ai-slim\[groq\]") as raised:
        PydanticAIBackend("groq:llama-3.3-70b-versatile")
    assert raised.value.code == "bae-lm-extra-missing"


async def test_model_settings_are_sent(provider: Provider) -> None:
    settings = {"temperature": 0.25, "max_tokens": 77}
    async with PydanticAIBackend(gpt(provider), model_settings=settings) as backend:
        await backend.answer(prompt())
    body = provider.requests[0].body
    assert body["temperature"] == 0.25
    assert 77 in body.values()
    assert backend.settings["model_settings"] == settings
    assert json.loads(json.dumps(backend.settings)) == backend.settings


async def test_settings_that_are_not_json_cannot_be_cached(
    provider: Provider,
) -> None:
    for value in (object(), lambda: None):
        settings = {"extra_body": {"client": value}}
        async with PydanticAIBackend(gpt(provider), model_settings=settings) as backend:
            with pytest.raises(BaeLMError) as raised:
                await Cached(backend).answer(prompt())
        assert raised.value.code == "bae-lm-cache-key"
        assert not raised.value.sent
    timed = PydanticAIBackend(gpt(provider), model_settings={"timeout": object(), "seed": 1})
    assert timed.settings["model_settings"] == {"seed": 1}


async def test_claude_uses_prompt_caching_if_the_settings_request_it(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    _environment(monkeypatch, provider.url)
    asked = prompt(system="Be brief. " * 1000)
    name, settings = "anthropic:claude-sonnet-4-6", {"cache": True}
    async with PydanticAIBackend(name, model_settings=settings) as backend:
        first = (await backend.answer(asked)).usage
        second = (await backend.answer(asked)).usage
        for node in (Machine, Prices):
            await backend.fill(node, {}, node.__name__)
            assert provider.requests[-1].body["tools"][0]["name"] == node.__name__
    assert first.cached_tokens == 0
    assert 0 < second.cached_tokens <= second.input_tokens == first.input_tokens
    assert (second.cost or 0) < (first.cost or 0)


async def test_only_a_closed_schema_is_enforced_strictly(
    provider: Provider,
) -> None:
    async with PydanticAIBackend(gpt(provider)) as backend:
        for node in (Outfit, Wardrobe, Prices, Machine):
            await backend.fill(node, {}, node.__name__)
    sent = [r.body["response_format"]["json_schema"] for r in provider.requests]
    assert [tool["name"] for tool in sent] == ["Outfit", "Wardrobe", "Prices", "Machine"]
    assert [sent_tool.get("strict") for sent_tool in sent] == [True, False, False, False]


async def test_a_model_without_structured_output_gets_a_tool_or_the_schema_in_the_prompt(
    provider: Provider,
) -> None:
    provider.script({"whole": {"name": "a", "parts": [{"name": "b"}]}}, json.dumps(SHIRT))
    async with PydanticAIBackend(gpt(provider, supports_json_schema_output=False)) as backend:
        machine = await backend.fill(Machine, {}, "Machine")
    assert machine.whole.parts[0].name == "b"
    neither = gpt(provider, supports_json_schema_output=False, supports_tools=False)
    async with PydanticAIBackend(neither) as backend:
        assert await backend.fill(Outfit, {}, "Outfit") == Outfit(**SHIRT)
    tool, told = provider.requests
    assert tool.body["tools"][0]["function"]["name"] == "Machine"
    assert "response_format" not in tool.body
    assert "a specific garment" in told.text


async def test_the_next_model_of_a_fallback_replaces_a_failing_model(provider: Provider) -> None:
    provider.script(Status(500), SHIRT)
    both = FallbackModel(gpt(provider), gpt(provider))
    async with PydanticAIBackend(both) as backend:
        assert await backend.fill(Outfit, {}, "Outfit") == Outfit(**SHIRT)
        provider.always(Status(529))
        with pytest.raises(BaeLMError) as raised:
            await backend.answer(prompt())
    assert raised.value.status == 529


@pytest.mark.parametrize(
    ("failure", "code", "retryable"),
    [
        (_http(ModelQuotaExceededError, 429), "bae-lm-rate-limited", False),
        (ModelQuotaExceededError("m", "no money"), "bae-lm-request-refused", False),
        (ModelRateLimitError("m", "slow", retry_after=4), "bae-lm-rate-limited", True),
        (ModelOverloadedError("m", "busy"), "bae-lm-unavailable", True),
        (ModelServerError("m", "broken"), "bae-lm-unavailable", True),
        (ModelAuthenticationError("m", "who?"), "bae-lm-unauthorized", False),
        (ModelNotFoundError("m", "what?"), "bae-lm-not-found", False),
        (ModelContextWindowExceededError("m", "too long"), "bae-lm-context-exceeded", False),
        (ModelTimeoutError("m", "too late"), "bae-lm-timeout", True),
        (ModelConnectionError("m", "gone"), "bae-lm-unreachable", True),
        (ModelAPIError("m", "Failed to decode"), "bae-lm-unparsable", True),
        (UnexpectedModelBehavior("no such thing"), "bae-lm-unparsable", True),
        (UserError("not like that"), "bae-lm-request-refused", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_every_error_reports_whether_a_retry_can_help(
    failure: Exception, code: str, retryable: bool
) -> None:
    async def fail(messages: Any, info: Any) -> ModelResponse:
        raise failure

    with pytest.raises(BaeLMError) as raised:
        await PydanticAIBackend(FunctionModel(fail)).answer(prompt())
    assert (raised.value.code, raised.value.retryable) == (code, retryable)
    assert raised.value.cause is failure
    assert raised.value.retry_after == getattr(failure, "retry_after", None)


async def test_an_answer_that_ends_in_an_error_raises_a_retryable_error() -> None:
    async def fail(messages: Any, info: Any) -> ModelResponse:
        return ModelResponse(parts=[TextPart('{"top"')], finish_reason="error")

    async def divide(messages: Any, info: Any) -> ModelResponse:
        raise ZeroDivisionError

    with pytest.raises(BaeLMError, match="ended its answer with an error") as raised:
        await PydanticAIBackend(FunctionModel(fail)).answer(prompt())
    assert raised.value.retryable
    with pytest.raises(ZeroDivisionError):
        await PydanticAIBackend(FunctionModel(divide)).answer(prompt())


async def test_asking_a_question_starts_no_thread() -> None:
    ran: list[int] = []

    async def say(messages: Any, info: Any) -> ModelResponse:
        ran.append(threading.get_ident())
        chosen = {"answer": {"choice": "Outfit", "fields": SHIRT}}
        return ModelResponse(parts=[TextPart(json.dumps(chosen))])

    before = threading.active_count()
    result = await run(Weather(sky="grey", degrees=1), PydanticAIBackend(FunctionModel(say)))
    assert isinstance(result.trace[-1], Outfit)
    assert ran == [threading.get_ident()]
    assert threading.active_count() == before
