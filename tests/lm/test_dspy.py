"""Models asked through DSPy, over real HTTP against a provider on loopback."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from bae import BaeLMError
from bae.lm import Usage, metered
from bae.prompts.questions import fill_prompt
from bae.testing import Provider, Received, Status
from bounded import BOUND
from http_backends import SHIRT, AskBack, Outfit, Prices, Weather

dspy = pytest.importorskip("dspy")
httpx = pytest.importorskip("httpx")

from bae.lm.dspy_backend import DSPyBackend  # noqa: E402

GREY = Weather(sky="grey", degrees=12)
PROMPT = fill_prompt(Outfit, ("top", "layers"), {}, "Outfit", GREY)


def ask(provider: Any, model: str = "openai/gpt-4o-mini", **options: Any) -> DSPyBackend:
    return DSPyBackend(model, **{"api_base": f"{provider.url}/v1", "api_key": "a key", **options})


@pytest.fixture
async def backend(provider: Provider) -> AsyncIterator[DSPyBackend]:
    async with ask(provider) as made, asyncio.timeout(BOUND):
        yield made


def schema_of(request: Received) -> dict[str, Any]:
    assert request.schema is not None
    return dict(request.schema)


# --- what is asked and answered ---------------------------------------------------------------


async def test_dspy_chooses_and_fills_with_the_prompts_of_any_backend(
    provider: Provider, backend: DSPyBackend
) -> None:
    provider.script({"choice": "Outfit"}, SHIRT)
    assert await backend.decide(GREY) == Outfit(**SHIRT)
    choice, fill = provider.requests
    assert schema_of(choice)["properties"]["choice"]["enum"] == ["Outfit", "AskBack"]
    assert '{"Weather":{"sky":"grey","degrees":12.0}}' in choice.text
    messages = [(message["role"], message["content"]) for message in fill.body["messages"]]
    assert messages == [("system", PROMPT.system), ("user", PROMPT.text)]
    assert schema_of(fill) == PROMPT.schema


async def test_settings_are_sent_and_only_simple_schemas_are_strict(
    provider: Provider,
) -> None:
    async with ask(provider, temperature=0.5, max_tokens=77, seed=3) as backend:
        await backend.fill(AskBack, {}, "AskBack")
        await backend.fill(Outfit, {}, "Outfit")
        assert backend.settings["temperature"] == 0.5
        assert "a key" not in json.dumps(backend.settings)
    for request in provider.requests:
        body = request.body
        assert (body["temperature"], body["seed"]) == (0.5, 3)
        assert 77 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    plain, limited = (
        request.body["response_format"]["json_schema"] for request in provider.requests
    )
    assert plain["strict"] is True
    assert "strict" not in limited


async def test_dspy_sends_unsupported_schemas_to_claude_as_a_tool(
    provider: Provider,
) -> None:
    provider.script(SHIRT)
    async with ask(provider, "anthropic/claude-sonnet-4-5", max_tokens=500) as claude:
        assert await claude.fill(Outfit, {}, "Outfit", GREY) == Outfit(**SHIRT)
        assert isinstance((await claude.fill(Prices, {}, "Prices")).by_name, dict)
    plain, tool = provider.requests
    assert plain.api == "anthropic"
    assert set(schema_of(plain)["properties"]) == {"top", "layers"}
    assert tool.body["tools"][0]["name"] == "Prices"


async def test_max_retries_bounds_the_retries_of_a_failed_request(
    provider: Provider, backend: DSPyBackend
) -> None:
    provider.script(Status(500), Status(500))
    with pytest.raises(BaeLMError) as raised:
        await backend.fill(Outfit, {}, "Outfit")
    assert raised.value.code == "bae-lm-unavailable"
    provider.assert_complete()
    assert len(provider.requests) == 2


async def test_a_missing_key_is_reported_as_missing(
    monkeypatch: pytest.MonkeyPatch, provider: Provider
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with ask(provider, api_key=None) as backend:
        with pytest.raises(BaeLMError) as raised:
            await backend.answer(PROMPT)
    assert (raised.value.code, raised.value.retryable) == ("bae-lm-unauthorized", False)
    assert not provider.requests


# --- what it used -----------------------------------------------------------------------------


async def test_concurrent_calls_report_their_own_usage(
    provider: Provider, backend: DSPyBackend
) -> None:
    async def used_for(length: int) -> Usage:
        with metered() as reported:
            await backend.fill(AskBack, {}, "AskBack", AskBack(question="x" * 40 * length))
        (used,) = reported
        return used

    together = await asyncio.gather(*(used_for(length) for length in range(20)))
    # One token is four characters: each is ten more than the one before.
    first = together[0].input_tokens
    assert [used.input_tokens for used in together] == [first + 10 * n for n in range(20)]
    assert {used.calls for used in together} == {1}
    assert {used.models for used in together} == {("gpt-4o-mini",)}


async def test_a_model_without_a_known_price_has_an_unknown_cost(provider: Provider) -> None:
    async with ask(provider, "openai/of-my-own") as backend:
        assert (await backend.answer(PROMPT)).usage.cost is None
        assert backend.least_cost(Usage(calls=1)) is None


async def test_an_answer_from_the_dspy_cache_is_not_charged(
    provider: Provider,
) -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    async with ask(provider, cache=True) as backend:
        first, second = await backend.answer(PROMPT), await backend.answer(PROMPT)
    assert second.text == first.text
    assert first.usage.calls == 1
    assert second.usage == Usage(calls=0, cost=0.0, models=("gpt-4o-mini",))
    assert len(provider.requests) == 1


async def test_a_call_leaves_no_history_in_dspy(provider: Provider, backend: DSPyBackend) -> None:
    traced = len(dspy.settings.trace)
    await backend.fill(AskBack, {}, "AskBack")
    assert len(dspy.settings.trace) == traced
    assert backend.lm.history == []


# --- which LM ---------------------------------------------------------------------------------


def of_ones_own(provider: Provider, **options: Any) -> Any:
    given = {"cache": False, "api_base": f"{provider.url}/v1", "api_key": "a key", **options}
    return dspy.LM("openai/gpt-4o-mini", **given)


async def test_a_dspy_lm_of_the_caller_stays_open_and_keeps_its_history(
    provider: Provider,
) -> None:
    lm = of_ones_own(provider, num_retries=0)
    async with DSPyBackend(lm) as backend:
        await backend.fill(AskBack, {}, "AskBack")
    assert provider.open_connections == 1
    assert len(lm.history) == 1
    with dspy.context(lm=lm):
        backend = DSPyBackend()
        assert backend.model == "openai/gpt-4o-mini"
        assert (await backend.fill(AskBack, {}, "AskBack")).question
    await lm.aclose()
    await provider.disconnected()


async def test_an_lm_with_built_in_retries_is_not_retried_again(provider: Provider) -> None:
    lm = of_ones_own(provider, num_retries=1)
    backend = DSPyBackend(lm, max_retries=3)
    assert (backend.retries, backend.attempts) == (0, 3)
    provider.always(Status(429, retry_after=0))
    with pytest.raises(BaeLMError):
        await backend.fill(AskBack, {}, "AskBack")
    assert len(provider.requests) == 2
    assert DSPyBackend(lm, max_retries=3, retries=2).retries == 2
    await lm.aclose()


async def test_a_missing_dspy_lm_is_reported_with_ways_to_set_it() -> None:
    with dspy.context(lm=None), pytest.raises(BaeLMError, match=r"dspy\.configure") as raised:
        await DSPyBackend().fill(AskBack, {}, "AskBack")
    assert raised.value.code == "bae-lm-missing"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"lm": 3}, "give a dspy.LM"),
        ({"lm": None, "temperature": 1}, "only with the name of a model"),
    ],
)
def test_a_dspy_backend_refuses_an_object_that_is_not_an_lm(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        DSPyBackend(**arguments)


def test_settings_of_a_dspy_backend_contain_no_secrets() -> None:
    secrets = {
        "api_base": "https://me:hidden@gateway.test/v1",
        **dict.fromkeys(("api_key", "aws_secret_access_key", "client_secret"), "hidden"),
        "default_headers": {"Authorization": "hidden", "x-team": "blue"},
    }
    given = {"max_tokens": 500, "aws_region_name": "eu", **secrets}
    settings = DSPyBackend("openai/gpt-4o-mini", **given).settings
    assert "hidden" not in json.dumps(settings)
    assert settings["api_base"] == "https://gateway.test/v1"
    assert settings["default_headers"] == {"x-team": "blue"}
    assert (settings["max_tokens"], settings["aws_region_name"]) == (500, "eu")


class Wordy:
    """An engine without a channel for schemas."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def complete(self, request: Any) -> Any:
        lm15 = dspy.lm15
        if request.config.response_format is not None:
            raise lm15.UnsupportedFeatureError("no schemas here")
        self.asked.append(request)
        return lm15.Response(
            id=None,
            model="wordy",
            message=lm15.Message.assistant('{"question": "why?"}'),
            finish_reason="stop",
            usage=lm15.Usage(),
        )


async def test_a_model_without_structured_output_gets_the_schema_in_the_prompt() -> None:
    engine = Wordy()
    lm = dspy.LM(
        "my/wordy", engine=SimpleNamespace(complete=print), async_engine=engine, cache=False
    )
    with metered() as reported:
        assert await DSPyBackend(lm).fill(AskBack, {}, "AskBack") == AskBack(question="why?")
    (request,) = engine.asked
    assert 'The schema: {"properties":{"question"' in request.system
    assert reported[0].cost is None  # nothing was reported, and that is not nothing


class Busy(Exception):
    """What an LM of a user's own raises: with a status, or with a response that has one."""

    def __init__(self, status: int, *, in_response: bool = False) -> None:
        super().__init__("busy")
        if in_response:
            self.response = httpx.Response(status, headers={"retry-after": "0"})
        else:
            self.status_code = status


@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
@pytest.mark.parametrize(
    ("error", "code", "calls"),
    [
        (Busy(503), "bae-lm-unavailable", 2),
        (Busy(429, in_response=True), "bae-lm-rate-limited", 2),
        (Busy(400), "bae-lm-request-refused", 1),
        (Busy(0), "bae-lm-failed", 1),
        (ConnectionError("cut"), "bae-lm-unreachable", 2),
    ],
)
async def test_a_custom_dspy_lm_is_retried_after_a_retryable_error(
    error: Exception, code: str, calls: int
) -> None:
    asked: list[None] = []

    class Own(dspy.BaseLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            asked.append(None)
            raise error

        async def aforward(self, *args: Any, **kwargs: Any) -> Any:
            self.forward()

    with pytest.raises(BaeLMError) as raised:
        await DSPyBackend(Own("my/own"), max_retries=1).fill(AskBack, {}, "AskBack")
    assert (raised.value.code, len(asked)) == (code, calls)


@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
async def test_a_custom_dspy_lm_with_state_is_called_itself() -> None:
    class Counting(dspy.BaseLM):
        asked = 0

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            said = {"role": "assistant", "content": f'{{"question": "{self.asked}?"}}'}
            choice = {"index": 0, "finish_reason": "stop", "message": said}
            return {"id": "1", "model": "own", "choices": [choice], "usage": {}}

        async def aforward(self, *args: Any, **kwargs: Any) -> Any:
            return self.forward()

    lm = Counting("my/own")
    backend = DSPyBackend(lm)
    nodes = [await backend.fill(AskBack, {}, "AskBack") for _ in range(3)]
    assert [node.question for node in nodes] == ["1?", "2?", "3?"]
    assert lm.asked == len(lm.history) == 3


# --- importing --------------------------------------------------------------------------------

WATCHED = """
import sys
seen = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        seen.append((event, arguments))
sys.addaudithook(watch)
import bae.lm
from bae.lm import DSPyBackend, OptimizedLM, node_to_signature
assert "dspy" not in sys.modules, "dspy was imported before it was needed"
backend = DSPyBackend("openai/gpt-4o-mini", api_key="a key")
import bae.lm.dspy_request
import litellm
litellm.completion
assert not seen, seen
"""


@pytest.mark.slow
def test_importing_dspy_through_bae_makes_no_network_requests() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
