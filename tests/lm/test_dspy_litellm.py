"""Models that DSPy asks through LiteLLM: the errors of failures, and leftover connections."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bae import BaeLMError
from bae.lm import metered
from bae.lm.extras import is_there
from bae.prompts.questions import fill_prompt
from bae.testing import Cut, Malformed, Overlong, Provider, Refusal, Status, ThreadedProvider
from bounded import BOUND, some_turns
from http_backends import AskBack, Weather

pytest.importorskip("dspy")
if not is_there("litellm"):  # importing it here would have it fetch its list of prices
    pytest.skip("could not find 'litellm'", allow_module_level=True)

import dspy

from bae.lm.dspy_backend import DSPyBackend

GREY = Weather(sky="grey", degrees=12)
PROMPT = fill_prompt(AskBack, ("question",), {}, "AskBack", GREY)


def ask(provider: Any, **options: Any) -> DSPyBackend:
    url = f"{provider.url}/v1"
    given = {"engine": "litellm", "api_base": url, "api_key": "a key", **options}
    return DSPyBackend("openai/gpt-4o-mini", **given)


@pytest.fixture
async def backend(provider: Provider) -> AsyncIterator[DSPyBackend]:
    async with ask(provider) as made, asyncio.timeout(BOUND):
        yield made


FAULTS: list[tuple[Any, str, bool]] = [
    (Status(401), "bae-lm-unauthorized", False),
    (Status(429, retry_after=7), "bae-lm-rate-limited", True),
    (Status(529), "bae-lm-unavailable", True),
    (Cut(), "bae-lm-unparsable", True),  # LiteLLM reads what came as if it were all
    (Malformed(), "bae-lm-unparsable", True),
]


async def test_failures_of_litellm_have_the_error_codes_of_any_backend(
    provider: Provider, backend: DSPyBackend
) -> None:
    for number, (fault, code, retryable) in enumerate(FAULTS, 1):
        provider.script(fault)
        with pytest.raises(BaeLMError) as raised:
            await backend.answer(PROMPT)
        assert (raised.value.code, raised.value.retryable) == (code, retryable)
        assert raised.value.retry_after == getattr(fault, "retry_after", None)
        assert len(provider.requests) == number


async def test_cancelled_fills_among_many_leave_no_connection_open(
    provider: Provider, backend: DSPyBackend
) -> None:
    with provider.held():
        fills = [asyncio.create_task(backend.fill(AskBack, {}, "AskBack")) for _ in range(20)]
        await provider.arrived(20, timeout=BOUND)
        for fill in fills[::2]:
            fill.cancel()
        await asyncio.wait(fills[::2])
        await provider.disconnected(left=10)
    assert len(await asyncio.gather(*fills[1::2])) == 10


def test_connections_that_litellm_leaves_open_are_closed_when_the_loop_ends() -> None:
    with ThreadedProvider() as provider:
        backend = ask(provider)
        for _ in range(2):
            assert asyncio.run(backend.fill(AskBack, {}, "AskBack")).question
            provider.disconnected()
        gc.collect()  # what was left open would warn here
    assert provider.received == 2


async def test_a_garbage_collected_backend_leaves_other_connections_open(
    provider: Provider,
) -> None:
    kept, dropped = ask(provider, retries=0), ask(provider, retries=0)
    await dropped.answer(PROMPT)
    with provider.held():
        asked = asyncio.create_task(kept.answer(PROMPT))
        await provider.arrived(1, timeout=BOUND)
        del dropped
        gc.collect()
        await some_turns()
    assert (await asked).text


# --- settings that only LiteLLM knows ---------------------------------------------------------


def ask_with(provider: Provider, **options: Any) -> DSPyBackend:
    return ask(provider, **{"engine": "auto", "retries": 0, **options})


@pytest.mark.parametrize(
    "setting",
    [
        {"engine": "litellm"},
        {"aws_region_name": "eu-west-1", "aws_secret_access_key": "hidden"},
        {"drop_params": True},
        {"extra_body": {"repetition_penalty": 1.1}},
    ],
    ids=lambda setting: next(iter(setting)),
)
async def test_a_dspy_lm_accepts_every_setting_of_dspy(
    provider: Provider, setting: dict[str, Any]
) -> None:
    with metered() as reported:
        async with ask_with(provider, **setting) as backend:
            made = await backend.fill(AskBack, {}, "AskBack", GREY)
    (request,) = provider.requests
    assert made.question
    assert request.schema == PROMPT.schema
    assert [message["content"] for message in request.body["messages"]] == [
        PROMPT.system,
        PROMPT.text,
    ]
    assert request.body.get("repetition_penalty") == (1.1 if "1.1" in str(setting) else None)
    assert "hidden" not in str(request.body)
    (usage,) = reported
    assert (usage.calls, usage.models) == (1, ("gpt-4o-mini",))
    assert usage.input_tokens > usage.output_tokens > 0
    assert usage.cost is not None


async def test_the_stop_reason_of_an_answer_through_litellm_is_reported(provider: Provider) -> None:
    provider.script(Overlong(), Refusal("I will not."))
    async with ask_with(provider, drop_params=True) as backend:
        assert (await backend.answer(PROMPT)).stop == "cut-off"
        refused = await backend.answer(PROMPT)
    assert (refused.stop, refused.text) == ("refused", "I will not.")


async def test_an_answer_through_litellm_from_the_dspy_cache_is_not_charged(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = type(dspy.cache)(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
    monkeypatch.setattr(dspy, "cache", cache)
    async with ask_with(provider, drop_params=True, cache=True) as backend:
        first = await backend.answer(PROMPT)
        second = await backend.answer(PROMPT)
    assert len(provider.requests) == 1
    assert second.text == first.text
    assert (first.usage.calls, second.usage.calls, second.usage.cost) == (1, 0, 0.0)


async def test_only_a_dspy_lm_of_the_caller_keeps_a_history(
    provider: Provider,
) -> None:
    given = {"api_base": f"{provider.url}/v1", "api_key": "k", "cache": False, "num_retries": 0}
    lm = dspy.LM("openai/gpt-4o-mini", drop_params=True, **given)
    await DSPyBackend(lm).fill(AskBack, {}, "AskBack")
    (entry,) = lm.history
    assert entry["usage"]["prompt_tokens"] > 0
    async with ask_with(provider, drop_params=True) as backend:
        await backend.fill(AskBack, {}, "AskBack")
        assert backend.lm.history == []
