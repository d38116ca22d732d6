"""What `Retry` promises: a failed request is sent again where that can help, with growing waits,
and the final error lists the attempts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae import BaeLMError, Usage
from bae.journal import AnswerBegan, AnswerJudged, AnswerRestarted, FieldText, TextVoided
from bae.lm import Answer, Backend, Cached, Prompt, Retry, metered, tell
from bae.observers import observing
from bae.testing import ScriptedLM
from bounded import BOUND
from field_texts import Seen
from policy_parts import REPLY, Ask, Reply, at_once, busy, graph, prompt, run
from toy_backend import ToyBackend


async def test_requests_are_limited_to_the_first_and_its_retries():
    toy = ToyBackend(lambda _: busy(), retries=7)
    with pytest.raises(BaeLMError, match="busy") as caught:
        await graph.arun(Ask(), Retry(toy, retries=3, sleep=at_once))
    assert toy.calls == 4
    [note] = caught.value.__notes__
    assert note.startswith("tried 4 times, with ")
    assert note.endswith(
        "the failure before this was BaeLMError: [bae-lm-failed] the provider is busy"
    )


@pytest.mark.parametrize(
    "error", [BaeLMError("no such model"), ValueError("a bug"), KeyError("x")], ids=repr
)
async def test_a_permanent_error_is_raised_at_once(error: Exception):
    toy = ToyBackend(error)
    with pytest.raises(type(error)) as caught:
        await Retry(toy, sleep=at_once).answer(prompt())
    assert caught.value is error
    assert toy.calls == 1
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("error", [ConnectionResetError("cut"), TimeoutError("slow")], ids=repr)
async def test_a_failed_connection_of_a_custom_lm_is_retried(error: Exception):
    lm = ScriptedLM([error, {"text": "this"}])
    result = await graph.arun(Ask(), Retry(lm, sleep=at_once))
    assert result.result.text == "this"
    lm.assert_complete()


async def test_a_final_error_notes_the_failure_before_it():
    toy = ToyBackend(busy(), BaeLMError("the key was refused"))
    with pytest.raises(BaeLMError, match="key was refused") as caught:
        await Retry(toy, sleep=at_once).answer(prompt())
    assert "the provider is busy" in caught.value.__notes__[0]


# --- waits --------------------------------------------------------------------------------------


async def waits(*errors: Exception, **options: Any) -> list[float]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    toy = ToyBackend(*errors, REPLY)
    await Retry(toy, len(errors), sleep=sleep, **options).answer(prompt())
    return slept


async def test_retry_waits_grow_up_to_the_limit():
    wait_times = await waits(*[busy()] * 6, first=1, factor=3, longest=20, jitter=0)
    assert wait_times == [1, 3, 9, 20, 20, 20]


@settings(max_examples=40)
@given(
    first=st.floats(0, 100),
    factor=st.floats(1, 10),
    longest=st.floats(0, 100),
    jitter=st.floats(0, 1),
    failures=st.integers(0, 8),
)
def test_jitter_shortens_a_wait_by_at_most_its_share(
    first: float, factor: float, longest: float, jitter: float, failures: int
):
    options = {"first": first, "factor": factor, "longest": longest, "jitter": jitter}
    wait_times = run(lambda: waits(*(busy() for _ in range(failures)), **options))
    assert len(wait_times) == failures
    for number, wait in enumerate(wait_times):
        most = min(longest, first * factor**number)
        assert most * (1 - jitter) * 0.999 - 1e-9 <= wait <= most * 1.001 + 1e-9


async def test_a_provider_that_asks_for_a_longer_wait_gets_it():
    wait_times = await waits(busy(retry_after=7), busy(retry_after=0.1), first=1, jitter=0)
    assert wait_times == [7, 2]


async def test_jitter_spreads_retries_that_share_a_retry_after_time():
    errors = [busy(retry_after=5) for _ in range(50)]
    wait_times = await waits(*errors, first=1, factor=1, jitter=0.5)
    assert all(5 <= wait <= 5.5 for wait in wait_times)
    assert len(set(wait_times)) > 40


async def test_a_wait_longer_than_the_limit_is_not_started():
    toy = ToyBackend(busy(retry_after=3600), REPLY)
    with pytest.raises(BaeLMError) as caught:
        await Retry(toy, longest=60, sleep=at_once).answer(prompt())
    assert caught.value.__notes__ == [
        "not tried again: the provider asks to wait 3600 s, and the longest allowed is 60 s"
    ]
    assert toy.calls == 1


# --- usage --------------------------------------------------------------------------------------


async def test_failed_requests_are_counted_in_the_usage_of_a_run():
    toy = ToyBackend(busy(), busy(), REPLY)
    result = await graph.arun(Ask(), Retry(toy, sleep=at_once))
    assert (result.usage.calls, result.usage.attempts) == (3, 1)


async def test_a_run_cancelled_during_a_wait_counts_its_sent_requests():
    waiting = asyncio.Event()

    async def for_ever(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    toy = ToyBackend(busy(), REPLY)
    with metered() as used:
        making = asyncio.create_task(Retry(toy, sleep=for_ever).make(Ask(), Reply))
    async with asyncio.timeout(BOUND):
        await waiting.wait()
        making.cancel()
        await asyncio.wait([making])
    assert Usage.total(used).calls == toy.calls == 1


async def test_a_retry_is_announced_so_streamed_text_can_start_over():
    class Stuttering(Backend):
        tries = 0

        async def answer(self, prompt: Prompt) -> Answer:
            self.tries += 1
            tell('{"text": "th')
            await seen.wait(lambda seen: seen.now)
            if self.tries < 3:
                raise busy(retry_after=self.tries)
            tell('is"}')
            return Answer(REPLY)

    seen = Seen()
    retried = [Retry(Stuttering(), sleep=at_once, jitter=0) for _ in range(2)]
    for lm in (retried[0], Cached(retried[1])):
        seen = Seen()
        with observing(seen):
            journal = (await graph.arun(Ask(), lm)).journal
        kinds = (AnswerBegan, FieldText, TextVoided, AnswerRestarted, AnswerJudged)
        found = [record for record in journal if isinstance(record, kinds)]
        assert [type(record) for record in found] == [
            *(AnswerBegan, FieldText, TextVoided, AnswerRestarted) * 2,
            *(AnswerBegan, FieldText, FieldText, AnswerJudged),
        ]
        assert seen.now == {"1:Reply.text": "this"}
        assert [record.attempt for record in journal.of(FieldText)] == [1, 2, 3, 3]
        assert [record.attempt for record in journal.of(TextVoided)] == [1, 2]
        restarts = journal.of(AnswerRestarted)
        assert [(str(r.asker), str(r.error), r.wait) for r in restarts] == [
            ("filling Reply", str(busy()), 1),
            ("filling Reply", str(busy()), 2),
        ]
