"""What `Timeout` promises: a request that takes too long is cancelled with a clear, retryable
error; timeouts and cancellations of others pass unchanged."""

from __future__ import annotations

import asyncio

import pytest

from bae import BaeLMError
from bae.lm import Retry, Timeout
from bounded import BOUND
from policy_parts import Held, at_once, prompt
from toy_backend import ToyBackend


async def test_a_request_that_takes_too_long_is_cancelled_and_retryable():
    lm = Held()
    with pytest.raises(BaeLMError, match=r"held did not answer within 0\.01 s") as caught:
        await Timeout(lm, 0.01).answer(prompt())
    assert (caught.value.code, caught.value.retryable) == ("bae-lm-timeout", True)
    assert lm.cancelled == ["Reply"]
    assert lm.running == 0


async def test_a_timeout_inside_retry_applies_to_each_attempt():
    lm = Held()
    with pytest.raises(BaeLMError, match="did not answer"):
        await Retry(Timeout(lm, 0.01), retries=2, sleep=at_once).answer(prompt())
    assert len(lm.cancelled) == 3


async def test_a_timeout_raised_by_the_lm_is_passed_on_unchanged():
    error = TimeoutError("the model's own")
    with pytest.raises(TimeoutError) as caught:
        await Timeout(ToyBackend(error), BOUND).answer(prompt())
    assert caught.value is error


async def test_a_timeout_set_by_the_caller_is_raised_unchanged():
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            await Timeout(Held(), BOUND).answer(prompt())
    assert not isinstance(caught.value, BaeLMError)
