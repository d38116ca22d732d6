"""Models that DSPy asks through LiteLLM: what a failure says there, and what it leaves open."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bae import BaeLMError, Node
from bae.lm import metered
from bae.lm.extras import is_there
from bae.lm.prompts import fill_prompt
from bae.testing import Cut, Malformed, Provider, Refusal, Status
from bounded import BOUND

pytest.importorskip("dspy")
if not is_there("litellm"):  # importing it here would have it fetch its list of prices
    pytest.skip("could not find 'litellm'", allow_module_level=True)

from bae.lm.dspy_backend import DSPyBackend


class Waking(Node):
    message: str

    async def __call__(self) -> AskBack: ...


class AskBack(Node):
    question: str

    async def __call__(self) -> None: ...


PROMPT = fill_prompt(AskBack, ("question",), {}, "AskBack", Waking(message="up"))


def ask(provider: Any, **options: Any) -> DSPyBackend:
    url = f"{provider.url}/v1"
    given = {"engine": "litellm", "api_base": url, "api_key": "a key", **options}
    return DSPyBackend("openai/gpt-4o-mini", **given)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider() as made:
        yield made


@pytest.fixture
async def backend(provider: Provider) -> AsyncIterator[DSPyBackend]:
    async with ask(provider) as made, asyncio.timeout(BOUND):
        yield made


async def test_a_fill_asks_the_same_and_reports_what_it_used(
    provider: Provider, backend: DSPyBackend
) -> None:
    with metered() as reported:
        assert (await backend.fill(AskBack, {}, "AskBack", Waking(message="up"))).question
    (request,) = provider.requests
    assert request.schema == PROMPT.schema
    assert [each["content"] for each in request.body["messages"]] == [PROMPT.system, PROMPT.text]
    assert reported[0].input_tokens > 0
    assert reported[0].cost is not None


@pytest.mark.parametrize(
    ("fault", "code", "retryable"),
    [
        (Status(400), "bae-lm-request-refused", False),
        (Status(401), "bae-lm-unauthorised", False),
        (Status(404), "bae-lm-not-found", False),
        (Status(429, retry_after=7), "bae-lm-rate-limited", True),
        (Status(500), "bae-lm-unavailable", True),
        (Status(529), "bae-lm-unavailable", True),
        (Cut(), "bae-lm-unparsable", True),  # LiteLLM reads what came as if it were all
        (Malformed(), "bae-lm-unparsable", True),
    ],
    ids=repr,
)
async def test_a_failure_means_the_same_as_anywhere(
    provider: Provider, backend: DSPyBackend, fault: Any, code: str, retryable: bool
) -> None:
    provider.script(fault)
    with pytest.raises(BaeLMError) as raised:
        await backend.answer(PROMPT)
    assert (raised.value.code, raised.value.retryable) == (code, retryable)
    assert raised.value.retry_after == getattr(fault, "retry_after", None)
    assert len(provider.requests) == 1


async def test_nobody_listening_is_told_as_such() -> None:
    async with Provider() as provider:
        backend = ask(provider)
    with pytest.raises(BaeLMError) as raised:
        await backend.answer(PROMPT)
    assert (raised.value.code, raised.value.retryable) == ("bae-lm-unreachable", True)


async def test_a_refusal_is_found_where_litellm_puts_it(
    provider: Provider, backend: DSPyBackend
) -> None:
    provider.script(Refusal("I will not."))
    answer = await backend.answer(PROMPT)
    assert (answer.stop, answer.text) == ("refused", "I will not.")


async def test_of_many_fills_at_once_those_cancelled_leave_no_connection_open(
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


def test_what_litellm_leaves_open_is_closed_when_the_loop_ends() -> None:
    with Provider.in_thread() as provider:
        backend = ask(provider)
        for _ in range(2):
            assert asyncio.run(backend.fill(AskBack, {}, "AskBack")).question
            provider.disconnected()
        gc.collect()  # what was left open would warn here
    assert provider.received == 2
