"""What `RateLimit` promises: no span of time holds more requests or tokens than allowed, waiting
calls go in the order of arrival, and no call waits longer than its limit."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae import BaeLMError, Usage
from bae.lm import Answer, Backend, Cached, Prompt, RateLimit, Retry, metered
from bae.lm.policies.budget import estimate_tokens
from growth import Lines, assert_linear
from policy_parts import REPLY, Ask, Clock, Reply, at_once, busy, prompt, run, settle
from toy_backend import ToyBackend


class Timed(Backend):
    """Writes down when each request was sent, and says it used so many tokens."""

    model = "timed"

    def __init__(self, clock: Clock, tokens: int = 0) -> None:
        super().__init__()
        self.clock = clock
        self.tokens = tokens
        self.sent: list[float] = []
        self.order: list[str] = []

    async def answer(self, prompt: Prompt) -> Answer:
        self.sent.append(self.clock.now - 1000)
        self.order.append(prompt.text)
        return Answer(REPLY, Usage(calls=1, output_tokens=self.tokens))


def limit_rate(clock: Clock, inner: Any, **limits: Any) -> RateLimit:
    return RateLimit(inner, clock=clock, sleep=clock.sleep, **limits)


def most_in_a_span(sent: list[float], per: float) -> int:
    """The most that any span of this length holds, its end left out, up to rounding."""
    return max((sum(at <= one < at + per - 1e-6 for one in sent) for at in sent), default=0)


@settings(max_examples=40)
@given(
    arrivals=st.lists(st.floats(0, 30), max_size=40),
    requests=st.integers(1, 5),
    per=st.floats(0.5, 20),
)
def test_no_time_span_has_more_requests_than_the_limit(
    arrivals: list[float], requests: int, per: float
):
    async def play() -> None:
        clock = Clock()
        inner = Timed(clock)
        lm = limit_rate(clock, inner, requests=requests, per=per)
        came: list[str] = []

        async def one(number: int, after: float) -> None:
            await clock.sleep(after)
            came.append(str(number))
            await lm.answer(prompt(str(number)))

        asking = [asyncio.create_task(one(n, after)) for n, after in enumerate(arrivals)]
        await clock.until_idle()
        await asyncio.gather(*asking)
        assert len(inner.sent) == len(arrivals)
        assert most_in_a_span(inner.sent, per) <= requests
        assert inner.order == came

    run(play)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=15), st.integers(100, 1000))
def test_no_time_span_has_more_estimated_tokens_than_the_limit(sizes: list[int], tokens: int):
    async def play() -> None:
        clock = Clock()
        sent: list[tuple[float, int]] = []

        class Weighed(Backend):
            async def answer(self, prompt: Prompt) -> Answer:
                sent.append((clock.now, estimate_tokens(prompt)))
                return Answer(REPLY, Usage(calls=1))  # and how many tokens, it does not say

        lm = limit_rate(clock, Weighed(), tokens=tokens, per=60)
        asking = [asyncio.create_task(lm.answer(prompt("x" * 4 * size))) for size in sizes]
        await clock.until_idle()
        await asyncio.gather(*asking)
        for start, _ in sent:
            weights = [weight for at, weight in sent if start <= at < start + 60 - 1e-6]
            # One that is too large by itself goes alone.
            assert sum(weights) <= tokens or len(weights) == 1

    run(play)


async def test_estimated_tokens_are_corrected_by_the_reported_usage():
    clock = Clock()
    inner = Timed(clock, tokens=900)
    lm = limit_rate(clock, inner, tokens=1000, per=60)
    for _ in range(2):
        await lm.answer(prompt())  # about 20 tokens each, before they are answered
        if inner.sent == [0]:
            assert lm.statistics().tokens == 900
    third = asyncio.create_task(lm.answer(prompt()))
    await clock.until_idle()
    await third
    assert inner.sent == [0, 0, 60]


async def test_a_request_larger_than_the_limit_is_sent_by_itself():
    clock = Clock()
    inner = Timed(clock, tokens=1)
    lm = limit_rate(clock, inner, tokens=10, per=60)
    await lm.answer(prompt("x" * 1000))
    late = asyncio.create_task(lm.answer(prompt("x" * 1000)))
    await clock.until_idle()
    await late
    assert inner.sent == [0, 60]


async def test_a_cached_answer_does_not_use_up_the_rate_limit():
    clock = Clock()
    lm = limit_rate(clock, Cached(Timed(clock)), requests=2, per=60)
    for _ in range(10):
        await lm.answer(prompt())
    assert lm.statistics().requests == 1


async def test_every_inner_retry_uses_up_the_rate_limit():
    clock = Clock()
    toy = ToyBackend(busy(), busy(), REPLY)
    lm = limit_rate(clock, Retry(toy, sleep=at_once), requests=5, per=60)
    await lm.answer(prompt())
    assert lm.statistics().requests == toy.calls == 3


async def test_calls_cancelled_while_waiting_do_not_use_up_the_rate_limit():
    clock = Clock()
    inner = Timed(clock)
    lm = limit_rate(clock, inner, requests=1, per=60)
    with metered() as used:
        making = [asyncio.create_task(lm.make(Ask(text=str(n)), Reply)) for n in range(5)]
    await settle()
    for task in making:
        task.cancel()
    await asyncio.wait(making)
    assert Usage.total(used).calls == len(inner.sent) == 1


# --- a bounded wait -----------------------------------------------------------------------------


async def test_a_request_that_would_wait_too_long_fails_at_once():
    clock = Clock()
    inner = Timed(clock)
    lm = limit_rate(clock, inner, requests=1, per=60, longest_wait=90)
    asking = [asyncio.create_task(lm.answer(prompt(n))) for n in "ab"]
    await settle()
    with pytest.raises(BaeLMError, match=r"would wait 120\.0 s, which is longer than 90 s") as c:
        await lm.answer(prompt("c"))
    assert (c.value.code, c.value.retryable) == ("bae-lm-rate-wait", False)
    await clock.until_idle()
    await asyncio.gather(*asking)
    assert inner.order == ["a", "b"]


async def test_the_work_for_a_request_does_not_grow_with_earlier_requests():
    async def send(number: int, **limits: Any) -> Lines:
        clock = Clock()
        lm = limit_rate(clock, Timed(clock, tokens=30), per=60, **limits)
        for _ in range(number):  # as many as the window holds, so that the next have to wait
            await lm.answer(prompt())
        assert lm.statistics().requests == number
        with Lines() as lines:
            asking = [asyncio.create_task(lm.answer(prompt())) for _ in range(number)]
            await settle()
            await clock.until_idle()
            await asyncio.gather(*asking)
            assert lm.statistics().sent == 2 * number
        return lines

    for limits in (
        lambda n: {"requests": n},
        lambda n: {"requests": n, "tokens": 40 * n, "longest_wait": 600},
    ):
        counts = [await send(n, **limits(n)) for n in (100, 200, 300)]
        assert_linear(counts, limits(1), allowed=0.02)


async def test_queueing_or_refusing_a_request_takes_constant_work():
    async def wait(number: int, longest: float) -> Lines:
        lm = RateLimit(ToyBackend(lambda _: REPLY), requests=number, longest_wait=longest)
        with Lines() as lines:
            asking = [asyncio.create_task(lm.answer(prompt())) for _ in range(4 * number)]
            await settle()
            for task in reversed(asking):
                task.cancel()
            await asyncio.wait(asking)
        assert lm.statistics().sent == number
        return lines

    for longest in (3600, 1):
        counts = [await wait(n, longest) for n in (100, 200, 300)]
        assert_linear(counts, longest, allowed=0.02)


async def test_a_request_without_reported_tokens_uses_its_estimate():
    clock = Clock()
    sent = estimate_tokens(prompt())
    for used in (
        Usage(calls=1),
        Usage(calls=1, input_tokens=-5, output_tokens=-5),
        Usage(calls=1, input_tokens=True, output_tokens=1),
        Usage(calls=1, input_tokens=cast(Any, None), output_tokens=cast(Any, float("nan"))),
    ):
        lm = limit_rate(clock, ToyBackend(Answer(REPLY, used)), tokens=1000, per=60)
        await lm.answer(prompt())
        assert lm.statistics().tokens == sent
    lm = limit_rate(clock, Retry(ToyBackend(busy(), REPLY), sleep=at_once), tokens=1000, per=60)
    await lm.answer(prompt())
    assert lm.statistics().tokens == 2 * sent


async def test_a_waiting_request_fails_once_its_wait_grows_too_long():
    clock = Clock()
    inner = Timed(clock, tokens=90)
    lm = limit_rate(clock, inner, tokens=100, per=60, longest_wait=70)
    await lm.answer(prompt("a"))
    inner.tokens = 1000
    second, third = (asyncio.create_task(lm.answer(prompt(text))) for text in "bc")
    await clock.until_idle()  # both were to go after 60 s, until the second used so much
    await second
    with pytest.raises(BaeLMError, match="longer than 70 s"):
        await third
    assert inner.sent == [0, 60]
