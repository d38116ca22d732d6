"""The requests behind an answer: failures and retries, usage, streamed events, and cancellation."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Annotated, Any

import pytest

from asked_nodes import GOOD, Ask, Found, Left, attempts_of, failure, priced_answer
from bae import LM, BaeLMError, Dep, FillError, Graph, Map, Node, Usage
from bae.journal import AnswerBegan, AnswerJudged, FieldText, FillEnded, FillStarted, LMUsed
from bae.lm import Answer, Backend, Policy, Prompt, Retry, Timeout, metered, tell
from bae.observers import observing
from bounded import BOUND, run
from end_node import EndNode
from field_texts import Seen
from toy_backend import ToyBackend, route

# Requests that fail


async def test_a_retryable_request_is_sent_again_and_counted():
    lm = ToyBackend(failure(retryable=True), failure(retryable=True, retry_after=0), GOOD)
    result = await run(Ask(), lm)

    assert result.trace[-1] == Found(**GOOD)
    assert (result.usage.calls, result.usage.attempts) == (3, 1)
    assert attempts_of(result) == [(1, "valid", ())]
    assert lm.prompts[0] == lm.prompts[2]
    assert lm.rejected == []


async def test_a_request_that_fails_for_good_is_not_sent_again():
    error = failure(retryable=False, status=401)
    lm = ToyBackend(error)
    with pytest.raises(BaeLMError) as caught:
        await run(Ask(), lm)

    assert caught.value is error
    assert lm.calls == 1
    assert error.journal is not None
    assert error.journal.usage().calls == 1


LATE = [failure(code="bae-lm-timeout", retryable=True), TimeoutError("late")]


@pytest.mark.parametrize("error", LATE, ids=repr)
@pytest.mark.parametrize("around", [None, lambda lm: Timeout(lm, BOUND)], ids=["alone", "policy"])
async def test_only_the_retry_policy_repeats_a_request_that_timed_out(
    error: Exception, around: Any
):
    lm = ToyBackend(lambda prompt: error)
    with pytest.raises(BaeLMError):
        await run(Ask(), around(lm) if around else lm)
    assert lm.calls == 1

    again = ToyBackend(error, GOOD)
    result = await run(Ask(), Retry(around(again) if around else again, first=0.0))
    assert (result.trace[-1], again.calls) == (Found(**GOOD), 2)


@pytest.mark.parametrize("known", [{"sent": False}, {"status": 504}], ids=repr)
async def test_a_connection_timeout_is_retried(known: dict[str, Any]):
    lm = ToyBackend(failure(code="bae-lm-timeout", retryable=True, **known), GOOD)
    assert (await run(Ask(), lm)).trace[-1] == Found(**GOOD)


@pytest.mark.parametrize(
    ("error", "cost"),
    [
        (failure(status=429), 0.0),
        (failure(status=400), 0.0),
        (failure(status=529), 0.0),
        (failure(status=408), None),
        (failure(status=504), None),
        (failure(status=502), None),
        (failure(code="bae-lm-timeout"), None),
        (TimeoutError("late"), None),
        (ConnectionResetError("cut"), None),
        (KeyError("choices"), None),
    ],
    ids=repr,
)
async def test_a_failed_request_is_free_only_if_it_was_certainly_not_sent(
    error: Exception, cost: float | None
):
    with metered() as used, pytest.raises(type(error)):
        await ToyBackend(error, retries=0).make(Ask(), Found)

    (one,) = used
    assert one == Usage(calls=1, cost=cost, seconds=one.seconds, models=("toy",))


@pytest.mark.parametrize("retries", [0, 3])
async def test_the_retries_option_limits_repeated_requests(retries: int):
    lm = ToyBackend(lambda prompt: failure(retryable=True), retries=retries)
    with pytest.raises(BaeLMError) as caught:
        await run(Ask(), lm)

    assert lm.calls == retries + 1
    assert caught.value.journal is not None
    used = caught.value.journal.usage()
    assert used == Usage(calls=retries + 1, cost=None, seconds=used.seconds, models=("toy",))
    assert [str(record.asker) for record in caught.value.journal.of(LMUsed)] == ["filling Found"]


async def test_an_unexpected_exception_of_a_backend_is_wrapped_with_its_cause():
    cause = KeyError("choices")
    with pytest.raises(BaeLMError) as caught:
        await run(Ask(), ToyBackend(cause))

    assert caught.value.code == "bae-lm-failed"
    assert caught.value.cause is cause
    assert "ToyBackend raised KeyError while filling Found" in caught.value.message


@pytest.mark.parametrize("returned", [None, json.dumps(GOOD), {"note": "x"}], ids=repr)
@pytest.mark.parametrize("around", [False, True], ids=["backend", "policy"])
async def test_a_backend_that_returns_no_answer_raises_an_error_with_a_fix(
    returned: Any, around: bool
):
    class Mute(Policy if around else Backend):  # type: ignore[misc]
        async def answer(self, prompt: Prompt) -> Any:
            return returned

    with pytest.raises(BaeLMError, match=r"Mute\.answer returned") as caught:
        await run(Ask(), Mute(ToyBackend()) if around else Mute())
    assert caught.value.code == "bae-lm-answer-type"
    assert "return an Answer" in str(caught.value)


# What it used


async def test_the_usage_of_a_fill_is_in_its_record_and_in_the_sum():
    lm = ToyBackend(priced_answer({**GOOD, "score": 99}), priced_answer({"score": 7}))
    result = await run(Ask(), lm)

    (ended,) = result.journal.of(FillEnded)
    assert ended.usage == Usage(2, 200, 40, 60, 1.0, 2, ended.usage.seconds, ("m",))
    assert 0 < ended.usage.seconds <= ended.seconds
    assert result.usage == ended.usage
    assert result.usage.tokens == 240
    usages = [record.attempt.usage for record in result.journal.of(AnswerJudged)]
    assert Usage.total(usages) == ended.usage

    lm = ToyBackend(priced_answer({**GOOD, "score": 99}), priced_answer({"score": 7}, cost=None))
    result = await run(Ask(), lm)
    assert (result.usage.cost, result.usage.input_tokens) == (None, 200)


async def test_usage_before_a_failure_is_in_the_journal():
    lm = ToyBackend(priced_answer({}), priced_answer({}), priced_answer({}))
    with pytest.raises(FillError) as caught:
        await run(Ask(), lm)

    assert caught.value.journal is not None
    (used,) = caught.value.journal.of(LMUsed)
    assert str(used.asker) == "filling Found"
    assert (used.usage.calls, used.usage.cost, used.usage.attempts) == (3, 1.5, 3)
    assert caught.value.journal.usage() == used.usage


async def test_usage_is_summed_over_every_kind_of_call():
    class Word(Node):
        word: str

        async def __call__(self) -> Length: ...

    class Same(Node):
        async def __call__(self) -> Length: ...

    class Length(EndNode):
        length: int

    async def ask_too(lm: LM) -> str:
        made = await lm.make(Left(), Note)
        return made.text

    class Note(EndNode):
        text: str

    class Begin(Node):
        async def __call__(self, lm: LM) -> Gather:
            await lm.make(self, Note)
            return Gather(words=["a", "b", "c"])

    class Gather(Node):
        words: list[str]
        inside: Annotated[Length, Dep(Graph(start=Same))]
        asked: Annotated[str, Dep(ask_too)]
        lengths: Annotated[list[Length], Map(Graph(start=Word), over="words")]

        async def __call__(self) -> Note | None: ...

    def answer(prompt: Prompt) -> Any:
        target = prompt.question.target
        if target is Length:
            return priced_answer({"length": 1})
        return priced_answer({"text": "t"} if target is Note else route("Note", text="t"))

    lm = ToyBackend(answer)
    result = await run(Begin(), lm)

    # a body, a graph inside, a dependency, three items, and a choice that is filled at once
    assert lm.calls == 1 + 1 + 1 + 3 + 1
    assert result.usage == Usage(7, 700, 140, 210, 3.5, 7, result.usage.seconds, ("m",))
    by = [str(record.asker) for record in result.journal.of(LMUsed)]
    assert sorted(name.rpartition(".")[2] for name in by) == ["__call__", "asked"]
    paths = {record.path for record in result.journal.of(FillEnded)}
    assert len(paths) == 5
    judged = result.journal.of(AnswerJudged)
    assert len(judged) == 7
    assert {record.path for record in judged} == paths


# What is told while it lasts


class Streams(ToyBackend):
    """Tells its text piece by piece, and waits in between."""

    async def answer(self, prompt: Prompt) -> Answer:
        answer = await super().answer(prompt)
        half = len(answer.text) // 2
        for piece in (answer.text[:half], answer.text[half:]):
            tell(piece)
            await asyncio.sleep(0)
        return answer


async def test_streamed_pieces_appear_in_the_stream_before_the_answer_is_judged():
    graph = Graph(start=Ask)
    kinds: list[Any] = []
    seen = Seen()
    async with asyncio.timeout(BOUND), graph.stream(Ask(), Streams({}, GOOD)) as records:
        async for record in records:
            kinds.append(type(record))
            seen.add(record)
            if isinstance(record, FieldText):
                assert str(record.asker) == "filling Found"

    middle = kinds[kinds.index(FillStarted) : kinds.index(FillEnded) + 1]
    assert middle == [
        FillStarted,
        *(AnswerBegan, AnswerJudged),
        *(AnswerBegan, FieldText, FieldText, AnswerJudged),
        FillEnded,
    ]
    assert seen.now == {"1:Found.person.name": "Ada", "1:Found.note": "fine"}


async def test_streamed_pieces_of_bodies_and_inner_graphs_have_their_path():
    class Word(Node):
        async def __call__(self) -> Found: ...

    class Begin(Node):
        async def __call__(self, lm: LM) -> Uses:
            await lm.make(self, Found)
            return Uses()

    class Uses(EndNode):
        found: Annotated[Found, Dep(Graph(start=Word))]

    with observing(lambda _, record: None):
        result = await run(Begin(), Streams(lambda prompt: GOOD))

    pieces = result.journal.of(FieldText)
    places = {(record.path, str(record.asker)) for record in pieces}
    assert places == {("", "Begin.__call__"), ("1:Uses.found", "filling Found")}
    assert {str(record.place) for record in pieces} == {
        "0:Begin/0:Found.note",
        "0:Begin/0:Found.person.name",
        "1:Uses.found/1:Found.note",
        "1:Uses.found/1:Found.person.name",
    }


# Cancellation


async def test_the_cost_of_a_cancelled_fill_is_unknown():
    asked = asyncio.Event()
    ended: list[str] = []

    class Waits(ToyBackend):
        async def answer(self, prompt: Prompt) -> Answer:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("closed")
            raise AssertionError

    before = asyncio.all_tasks()
    lm = Waits()
    with metered() as used:
        making = asyncio.create_task(lm.make(Ask(), Found))
    async with asyncio.timeout(BOUND):
        await asked.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    assert ended == ["closed"]
    assert asyncio.all_tasks() == before
    assert lm.rejected == []
    (one,) = used
    assert one == Usage(calls=1, cost=None, seconds=one.seconds, models=("toy",))


async def test_a_run_cancelled_before_a_retry_ends_at_once():
    sent = asyncio.Event()

    class Down(ToyBackend):
        first_wait = 1000.0

        async def answer(self, prompt: Prompt) -> Answer:
            sent.set()
            raise failure(retryable=True)

    graph = Graph(start=Ask)
    stream = graph.stream(Ask(), Down())
    async with asyncio.timeout(BOUND), stream as records:
        async for _ in records:
            if sent.is_set():
                break
        else:
            raise AssertionError
        # Leaving the block cancels the run, which waits.
    assert len(asyncio.all_tasks()) == 1


async def test_an_unreferenced_backend_is_released():
    lm = ToyBackend(GOOD)
    reference = weakref.ref(lm)
    result = await run(Ask(), lm)
    del lm
    gc.collect()

    assert reference() is None
    assert result.trace
