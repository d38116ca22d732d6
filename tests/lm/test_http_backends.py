"""What every backend that speaks HTTP promises, over real HTTP against a provider on loopback."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator

import pytest

from bae import BaeLMError
from bae.exceptions import BaeParseError, FillError
from bae.lm.backend import Backend, Correction
from bae.testing import (
    Cut,
    Empty,
    Malformed,
    Overlong,
    Provider,
    Refusal,
    Stall,
    Status,
    ThreadedProvider,
)
from bae.usage import metered
from bounded import BOUND, run, some_turns
from http_backends import (
    BACKENDS,
    LINEN,
    SHIRT,
    WIRES,
    WRONG,
    AskBack,
    Letter,
    Machine,
    Make,
    Outfit,
    Prices,
    Wardrobe,
    Weather,
    letter_after_a_wrong_one,
    own_threads,
    prompt,
    report_wrong_answer,
    tasks_besides_this,
)

MILD = Weather(sky="clear", degrees=21.5)


@pytest.fixture(params=list(WIRES))
def make(request: pytest.FixtureRequest) -> Make:
    return WIRES[request.param]


not_dspy = pytest.mark.parametrize("make", list(BACKENDS), indirect=True)
"""DSPy asks for a choice first: test_dspy.py."""


@pytest.fixture
async def backend(provider: Provider, make: Make) -> AsyncIterator[Backend]:
    async with make(provider) as made, asyncio.timeout(BOUND):
        yield made


async def test_a_plain_text_request_has_no_schema(provider: Provider, backend: Backend) -> None:
    await letter_after_a_wrong_one(provider, backend)


async def test_an_incomplete_text_is_an_error(provider: Provider, backend: Backend) -> None:
    for answer, said in ((Overlong(), "cut-off"), (Empty(), "empty"), (Refusal("no"), "refused")):
        provider.always(answer)
        with pytest.raises(FillError) as caught:
            await backend.fill(Letter, {}, "Letter")
        assert caught.value.code == f"bae-fill-{said}"


async def test_an_answer_that_just_fits_the_schema_is_valid(
    provider: Provider, backend: Backend
) -> None:
    for node in (Weather, AskBack, Machine, Prices):
        assert isinstance(await backend.fill(node, {}, node.__name__), node)


async def test_a_choice_is_one_of_the_offered_classes(provider: Provider, backend: Backend) -> None:
    provider.script({"choice": "AskBack"})
    chosen = await backend.choose_type([Outfit, AskBack, type(None)], {"sky": "clear"})
    assert chosen is AskBack
    schema = provider.requests[0].schema or {}
    assert schema["properties"]["choice"]["enum"] == ["Outfit", "AskBack", "None"]


@not_dspy
async def test_a_run_chooses_and_fills_in_one_call(provider: Provider, backend: Backend) -> None:
    provider.script({"answer": {"choice": "Outfit", "fields": SHIRT}})
    result = await run(MILD, backend)
    assert result.trace[-1] == Outfit(top="a blue shirt", layers=2)
    assert len(provider.requests) == 1
    assert result.usage.calls == 1


async def test_the_conversation_is_sent_as_messages(provider: Provider, backend: Backend) -> None:
    await backend.answer(prompt(corrections=[Correction('{"top": 1}', "That was not valid.")]))
    (request,) = provider.requests
    spoken = [m["role"] for m in request.body["messages"] if m["role"] != "system"]
    assert spoken == ["user", "assistant", "user"]


async def test_a_fill_sends_its_instruction_data_and_schema_once(
    provider: Provider, backend: Backend
) -> None:
    provider.script(LINEN)
    with metered() as reported:
        await backend.fill(Wardrobe, {}, "Wardrobe", MILD)
    (request,) = provider.requests
    assert "You carry out one step of a program." in request.text
    assert 'Wardrobe\n\n{"Weather":{"sky":"clear","degrees":21.5}}' in request.text
    assert set((request.schema or {})["properties"]) == set(Wardrobe.model_fields)
    assert "fabric" not in request.text  # the schema has a channel of its own
    assert "what most of it is made of" in json.dumps(request.schema)
    assert "who made it" in json.dumps(request.schema)
    assert "docstring" not in json.dumps(request.body)
    (used,) = reported
    assert (used.calls, used.attempts) == (1, 1)
    assert used.input_tokens > 0
    assert used.output_tokens > 0
    assert used.seconds > 0
    assert used.models == (provider.requests[0].body["model"],)
    assert used.cost is not None
    assert used.cost > 0


@pytest.mark.parametrize(
    "kind", ["anthropic", "anthropic-unstreamed", "pydantic-ai-openai", "dspy"]
)
async def test_tokens_cached_by_the_provider_cost_less(provider: Provider, kind: str) -> None:
    long = prompt(system="Be brief. " * 1000)
    async with WIRES[kind](provider) as backend:
        first = (await backend.answer(long)).usage
        second = (await backend.answer(long)).usage
    assert first.input_tokens == second.input_tokens
    assert first.cached_tokens == 0
    assert 0 < second.cached_tokens < second.input_tokens
    assert first.cost is not None
    assert second.cost is not None
    assert second.cost < first.cost


STATUSES = {
    401: ("bae-lm-unauthorized", False),
    404: ("bae-lm-not-found", False),
    429: ("bae-lm-rate-limited", True),
    529: ("bae-lm-unavailable", True),
}


async def test_an_error_status_reports_whether_and_when_to_retry(
    provider: Provider, make: Make
) -> None:
    async with make(provider, retries=0) as backend:
        for number, (status, (code, retryable)) in enumerate(STATUSES.items(), 1):
            wait = 7 if status == 429 else None
            provider.always(Status(status, retry_after=wait, message="not now"))
            with pytest.raises(BaeLMError, match="not now") as raised:
                await backend.answer(prompt())
            found = raised.value
            assert (found.status, found.code, found.retryable) == (status, code, retryable)
            assert found.retry_after == wait
            assert len(provider.requests) == number  # the SDK does not ask again by itself


async def test_a_failed_request_is_sent_again(provider: Provider, backend: Backend) -> None:
    provider.script(Status(429, retry_after=0), SHIRT)
    with metered() as reported:
        outfit = await backend.fill(Outfit, {}, "Outfit")
    assert outfit.top == "a blue shirt"
    assert len(provider.requests) == 2
    assert sum(used.calls for used in reported) == 2


async def test_a_truncated_or_unparsable_answer_has_its_own_error(
    provider: Provider, make: Make
) -> None:
    faults = {Cut(after=0): "unreachable", Cut(after=2): "unreachable", Malformed(): "unparsable"}
    async with make(provider) as backend:
        for fault, code in faults.items():
            provider.always(fault)
            with pytest.raises(BaeLMError) as raised:
                await backend.answer(prompt())
            assert raised.value.code == f"bae-lm-{code}"
            assert isinstance(raised.value, BaeParseError) == (code == "unparsable")
            assert raised.value.retryable


async def test_a_stalled_answer_raises_a_timeout_error(provider: Provider, make: Make) -> None:
    async with make(provider, timeout=0.2) as backend:
        for after in (0, 2):
            provider.always(Stall(after=after))
            with pytest.raises(BaeLMError, match=r"within 0\.2 s") as raised:
                await backend.answer(prompt())
            assert raised.value.code == "bae-lm-timeout"
            assert raised.value.retryable
    await provider.disconnected()


async def test_a_stalled_answer_is_not_asked_for_again(provider: Provider, make: Make) -> None:
    provider.always(Stall())
    async with make(provider, timeout=0.2, retries=2) as backend:
        with pytest.raises(BaeLMError) as raised:
            await backend.fill(Outfit, {"weather": MILD}, "Outfit")
    assert raised.value.code == "bae-lm-timeout"
    assert len(provider.requests) == 1


async def test_an_unreachable_server_is_reported_as_unreachable(make: Make) -> None:
    async with Provider() as provider:
        backend = make(provider)
    backend.retries = 0
    async with backend:
        with metered() as reported, pytest.raises(BaeLMError) as raised:
            await backend.fill(Outfit, {}, "Outfit")
    assert raised.value.code == "bae-lm-unreachable"
    assert raised.value.retryable
    assert not raised.value.sent
    assert reported == []


async def test_a_wrong_answer_is_asked_for_again_with_the_error(
    provider: Provider, backend: Backend
) -> None:
    for wrong, verdict in WRONG:
        assert await report_wrong_answer(provider, backend, wrong) == [verdict, "valid"]


async def test_cancelling_some_concurrent_fills_does_not_disturb_the_rest(
    provider: Provider, make: Make
) -> None:
    provider.always(lambda request: {"top": _sky_in(request.text), "layers": 1})
    before = tasks_besides_this()
    skies = [Weather(sky=f"sky {number}", degrees=1) for number in range(40)]
    async with make(provider) as backend, asyncio.timeout(BOUND):
        fills = [asyncio.create_task(backend.fill(Outfit, {}, "Outfit", sky)) for sky in skies]
        with provider.held():
            await provider.arrived(40, timeout=BOUND)
            for fill in fills[::2]:
                fill.cancel()
            response = await asyncio.gather(*fills[::2], return_exceptions=True)
        done = await asyncio.gather(*fills[1::2])
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in response)
    assert [outfit.top for outfit in done] == [sky.sky for sky in skies[1::2]]
    await provider.disconnected()
    assert tasks_besides_this() == before


async def test_a_fill_can_be_cancelled_at_any_moment(provider: Provider, make: Make) -> None:
    provider.always(SHIRT)
    async with make(provider) as backend, asyncio.timeout(BOUND):
        for turns in range(8):
            fill = asyncio.create_task(backend.fill(Outfit, {}, "Outfit"))
            for _ in range(turns):
                await some_turns()
            fill.cancel()
            await asyncio.wait([fill])
        assert await backend.fill(Outfit, {}, "Outfit") == Outfit(**SHIRT)
        await provider.idle()
        provider.always(Stall(after=2))  # in the middle of its answer
        fill = asyncio.create_task(backend.fill(Outfit, {}, "Outfit"))
        await provider.arrived()
        fill.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fill
    await provider.disconnected()


def test_one_backend_serves_two_event_loops(make: Make) -> None:
    with ThreadedProvider() as provider:
        provider.always(SHIRT)
        backend = make(provider)
        before = own_threads()
        for _ in range(2):
            assert asyncio.run(backend.fill(Outfit, {}, "Outfit")) == Outfit(**SHIRT)
            provider.disconnected()
        assert own_threads() == before
        gc.collect()  # what was left open would warn here
    assert provider.received == 2


async def test_a_backend_can_be_used_again_after_it_is_closed(
    provider: Provider, backend: Backend
) -> None:
    provider.always(SHIRT)
    await backend.fill(Outfit, {}, "Outfit")
    await backend.aclose()
    await provider.disconnected()
    await backend.fill(Outfit, {}, "Outfit")
    assert len(provider.requests) == 2


def _sky_in(text: str) -> str:
    found = json.loads(text[text.index('{"Weather"') : text.rindex("}") + 1])
    return found["Weather"]["sky"]
