"""`Fallback`: which errors another LM is asked after, who answered and why others failed, and how
budgets, caches and other policies go with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bae import BaeLMError, BudgetError, FillError, Graph, Image, Node, Usage
from bae.exceptions import BaeParseError
from bae.journal import AnswerRestarted, MemoryJournal
from bae.journal.decoder import read_history
from bae.journal.report import report_run
from bae.lm import (
    Answer,
    Backend,
    Budget,
    Budgeted,
    Cached,
    Concurrency,
    Fallback,
    Policy,
    Prompt,
    RateLimit,
    Retry,
    SQLiteCache,
    Timeout,
    WithPrompts,
)
from bae.lm.http import connection_error, malformed_error, status_error, timeout_error
from bae.observers import observing
from bae.records import Record
from bae.testing import Call, Provider, ScriptedLM, Status
from bounded import BOUND
from file_parts import DOT
from http_backends import BACKENDS, WIRES
from policy_parts import REPLY, Ask, Reply, busy, graph
from raw_provider import Raw, raw_provider
from tool_nodes import QUESTION, Question
from tool_nodes import rounds as scripted_rounds
from toy_backend import ToyBackend


class First(ToyBackend):
    model = "first"


class Second(ToyBackend):
    model = "second"


class Third(ToyBackend):
    model = "third"


def status(number: int, **headers: str) -> BaeLMError:
    return status_error("a model", number, "no", headers=headers)


async def ask(lm: Any) -> Any:
    async with asyncio.timeout(BOUND):
        return await graph.arun(Ask(), lm)


def test_a_fallback_needs_at_least_two_lms():
    with pytest.raises(TypeError, match="two LMs or more"):
        Fallback(First())


@pytest.mark.parametrize("skip_for", [-1, float("inf"), float("nan"), "30"])
def test_a_fallback_refuses_an_invalid_skip_time(skip_for: Any):
    with pytest.raises(ValueError, match="skip_for"):
        Fallback(First(), Second(), skip_for=skip_for)


@pytest.mark.parametrize("on", ["overloaded", 200, 7000, True, BaseException, None])
def test_a_fallback_refuses_a_condition_that_no_error_can_meet(on: Any):
    with pytest.raises(ValueError, match="Fallback"):
        Fallback(First(), Second(), on=[on])


def test_a_fallback_resolves_lm_names_when_it_is_created():
    lm = Fallback("python:policy_parts:Held", First())
    assert [inner.model for inner in lm.inners] == ["held", "first"]
    with pytest.raises(BaeLMError) as caught:
        Fallback(First(), "anthropc")
    assert caught.value.code == "bae-lm-unknown-name"


# After which errors

PASSED_ON: dict[str, Callable[[], Exception]] = {
    **{f"status {n}": lambda n=n: status(n) for n in (402, 408, 409, 429, 500, 502, 503, 504, 529)},
    "not to be retried": lambda: status(503, **{"x-should-retry": "false"}),
    "no money": lambda: BaeLMError("no money is left", code="bae-lm-rate-limited", status=429),
    "rate wait": lambda: BaeLMError("the wait is too long", code="bae-lm-rate-wait"),
    "timeout": lambda: timeout_error("a model", 3, None),
    "connection": lambda: connection_error("a model", ConnectionRefusedError()),
    "malformed": lambda: malformed_error("a model", None),
    "retryable": busy,
    "plain connection": ConnectionResetError,
    "plain timeout": TimeoutError,
}
RAISED: dict[str, Callable[[], Exception]] = {
    **{f"status {n}": lambda n=n: status(n) for n in (301, 400, 401, 403, 404, 413, 422)},
    "no key": lambda: BaeLMError("no key", code="bae-lm-unauthorized", sent=False),
    "context": lambda: BaeLMError("too long", code="bae-lm-context-exceeded", sent=False),
    "unparsable": lambda: BaeParseError("no JSON"),
    "own": lambda: ValueError("mine"),
    "failed": lambda: BaeLMError("it failed"),
}


@pytest.mark.parametrize("error", list(PASSED_ON))
async def test_a_provider_error_falls_back_to_the_next_lm(error: str):
    first, second = First(PASSED_ON[error]()), Second(REPLY)
    run = await ask(Fallback(first, second))

    assert run.result.text == "this"
    assert (first.calls, second.calls) == (1, 1)


@pytest.mark.parametrize("error", list(RAISED))
async def test_a_permanent_error_is_raised_without_a_fallback(error: str):
    given = RAISED[error]()
    second = Second(REPLY)
    with pytest.raises(Exception) as caught:
        await ask(Fallback(First(given), second))

    assert given in (caught.value, caught.value.__cause__)
    assert second.calls == 0


@pytest.mark.parametrize(
    ("on", "error"),
    [
        (401, status(401)),
        ([400, 404], status(404)),
        ("bae-lm-request-refused", status(400)),
        (["bae-lm-context-exceeded"], BaeLMError("long", code="bae-lm-context-exceeded")),
        ([ValueError], ValueError("mine")),
        ([lambda error: "mine" in str(error)], ValueError("mine")),
    ],
    ids=["status", "statuses", "code", "codes", "class", "function"],
)
async def test_the_caller_can_add_errors_that_fall_back(on: Any, error: Exception):
    run = await ask(Fallback(First(error), Second(REPLY), on=on))
    assert run.usage.models == ("first", "second")


async def test_a_refusal_falls_back_to_the_next_lm_on_request():
    refusal = Answer("I must not", Usage(calls=1, input_tokens=7), "refused")
    with pytest.raises(FillError) as caught:
        await ask(Fallback(First(refusal), Second(REPLY)))
    assert caught.value.code == "bae-fill-refused"

    run = await ask(Fallback(First(refusal), Second(REPLY), on=["refused"]))
    assert run.result.text == "this"
    assert (run.usage.calls, run.usage.input_tokens) == (2, 7)

    with pytest.raises(FillError) as caught:
        await ask(Fallback(First(refusal), Second(refusal), on=["refused"]))
    assert caught.value.code == "bae-fill-refused"


async def test_an_invalid_answer_is_requested_again_from_the_same_lm():
    first, second = First({"text": 7}, REPLY), Second(REPLY)
    run = await ask(Fallback(first, second))

    assert (first.calls, second.calls) == (2, 0)
    assert run.usage.attempts == 2


async def test_corrections_of_an_invalid_answer_are_sent_to_the_next_lm():
    second = Second(REPLY)
    await ask(Fallback(First({"text": 7}, busy()), second))
    assert len(second.prompts[0].corrections) == 1


async def test_a_cancelled_call_does_not_fall_back():
    class Hanging(First):
        async def answer(self, prompt: Prompt) -> Answer:
            began.set()
            return await asyncio.Future[Answer]()

    began, second = asyncio.Event(), Second(REPLY)
    task = asyncio.create_task(graph.arun(Ask(), Fallback(Hanging(), second)))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert second.calls == 0


# When none answers


async def test_the_error_of_a_failed_fallback_has_the_error_of_every_lm():
    errors = busy(), status(503), busy(status=429, code="bae-lm-rate-limited")
    lm = Fallback(First(errors[0]), Second(errors[1]), Third(errors[2]))
    for inner in lm.inners:
        inner.retries = 0
    with pytest.raises(BaeLMError) as caught:
        await ask(lm)

    error = caught.value
    assert error.code == "bae-lm-all-failed"
    assert tuple(error.failures) == errors
    for name, inner in zip(("First('first')", "Second('second')", "Third"), errors, strict=True):
        assert f"{name}" in error.message
        assert inner.message in error.message
    assert error.retryable


@pytest.mark.parametrize(
    "error", [status(402), status(529), BaeLMError("a long wait", code="bae-lm-rate-wait")]
)
async def test_a_failed_inner_fallback_falls_back_to_the_next_lm(error: BaeLMError):
    inner = Fallback(First(error), Second(error))
    lm = Fallback(inner, Third(REPLY, REPLY))
    assert (await ask(lm)).usage.models == ("first", "second", "third")
    assert (await ask(lm)).usage.models == ("third",)


async def test_a_spent_budget_in_an_inner_fallback_falls_back_to_the_next_lm():
    spent = Budget(calls=0)
    lm = Fallback(Fallback(Budgeted(First(), spent), Second(status(503))), Third(REPLY))
    assert (await ask(lm)).result.text == "this"


async def test_an_extra_condition_of_an_inner_fallback_does_not_apply_outside():
    inner = Fallback(First(status(404)), Second(status(404)), on=404)
    with pytest.raises(BaeLMError) as caught:
        await ask(Fallback(inner, Third(REPLY)))
    assert caught.value.code == "bae-lm-all-failed"


async def test_an_error_raised_without_a_fallback_names_the_lms_that_failed_before():
    with pytest.raises(BaeLMError) as caught:
        await ask(Fallback(First(busy()), Second(status(401)), Third(REPLY)))
    assert caught.value.code == "bae-lm-unauthorized"
    (note,) = [line for line in caught.value.__notes__ if "First" in line]
    assert "the provider is busy" in note


async def test_a_retry_of_a_failed_fallback_asks_every_lm_again():
    first, second = First(busy(), busy(), REPLY), Second(busy(), busy())
    run = await ask(Fallback(first, second, skip_for=0))
    assert (first.calls, second.calls) == (3, 2)
    assert run.usage.calls == 5


async def test_a_failed_fallback_waits_for_the_shortest_requested_time():
    lm = Fallback(First(busy(retry_after=7)), Second(busy(retry_after=3)))
    for inner in lm.inners:
        inner.retries = 0
    with pytest.raises(BaeLMError) as caught:
        await ask(lm)
    assert caught.value.retry_after == 3


async def test_a_fallback_is_not_retried_if_every_lm_timed_out():
    first, second = First(timeout_error("a", 3, None)), Second(timeout_error("b", 3, None))
    with pytest.raises(BaeLMError, match="none of 2 LMs"):
        await ask(Fallback(first, second))
    assert (first.calls, second.calls) == (1, 1)


# Who is asked first


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_failed_lm_is_skipped_for_a_while():
    clock = Clock()
    first, second = First(busy(), REPLY, REPLY), Second(REPLY, REPLY)
    lm = Fallback(first, second, skip_for=30, clock=clock)

    for _ in range(2):
        await ask(lm)
    assert (first.calls, second.calls) == (1, 2)
    about, other = lm.statistics()
    assert (about.model, about.asked, about.answered, about.failed) == ("first", 1, 0, 1)
    assert (about.skipped_for, other.skipped_for, other.answered) == (30, 0, 2)

    clock.now = 31
    for _ in range(2):
        await ask(lm)
    assert (first.calls, second.calls) == (3, 2)
    assert lm.statistics()[0].skipped_for == 0


async def test_a_skipped_lm_is_asked_if_all_others_fail():
    first, second = First(busy(), REPLY), Second(REPLY, busy())
    lm = Fallback(first, second, clock=Clock())
    await ask(lm)
    run = await ask(lm)
    assert (first.calls, second.calls) == (2, 2)
    assert run.result.text == "this"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (busy(), 30),
        (busy(retry_after=90), 90),
        (busy(retry_after=1e9), 600),
        (status(401), 30),
        (status(400), 0),
    ],
    ids=["busy", "asks to wait", "asks for very long", "wrong key", "this request"],
)
async def test_the_error_decides_how_long_an_lm_is_skipped(error: BaeLMError, seconds: float):
    lm = Fallback(First(error), Second(REPLY), on=[400, 401], clock=Clock())
    await ask(lm)
    assert lm.statistics()[0].skipped_for == seconds


async def test_no_lm_is_skipped_with_a_skip_time_of_zero():
    first = First(busy(retry_after=90), REPLY)
    lm = Fallback(first, Second(REPLY), skip_for=0)
    await ask(lm)
    await ask(lm)
    assert first.calls == 2


# What the run records


async def test_the_record_of_a_fallback_shows_failed_and_answering_lms():
    journal = MemoryJournal()
    seen: list[Record] = []
    lm = Fallback(First(status(529)), Second(REPLY))
    with observing(lambda run, record: seen.append(record)):
        run = await graph.arun(Ask(), lm, journal=journal, run_id="r1")

    (restart,) = [record for record in seen if isinstance(record, AnswerRestarted)]
    assert isinstance(restart.error, BaeLMError)
    assert (restart.error.status, restart.wait, restart.model) == (529, 0.0, "second")
    assert run.usage.models == ("first", "second")

    stored = await journal.read("r1")
    (question,) = [step.fill for step in read_history(stored).run.steps.values() if step.fill]
    assert [restart.model for restart in question.restarts] == ["second"]
    reply = report_run(stored).graphs[0].nodes[-1]
    again, answer = reply.calls
    assert (answer.verdict, answer.model) == ("valid", "second")
    assert (again.verdict, again.model) == ("restarted", "second")
    assert "529" in again.errors[0]
    assert (await journal.why("r1", "Reply.text")).models == ("second",)


async def test_streamed_text_of_a_failed_lm_is_voided_before_the_fallback():
    from bae.usage import Restart, metered, tell

    class Streaming(First):
        async def answer(self, prompt: Prompt) -> Answer:
            tell('{"text": "not th')
            raise busy()

    class After(Second):
        async def answer(self, prompt: Prompt) -> Answer:
            tell(REPLY)
            return Answer(REPLY)

    events: list[Any] = []
    with metered(events.append):
        await Fallback(Streaming(), After()).fill(Reply, {}, "Reply")
    first, void, second, _ = events
    assert (first, second) == ('{"text": "not th', REPLY)
    assert isinstance(void, Restart)


# Budgets


class Paid(ToyBackend):
    """Costs a dollar a request."""

    def least_cost(self, usage: Usage) -> float:
        return 1.0

    async def answer(self, prompt: Prompt) -> Answer:
        answer = await super().answer(prompt)
        return Answer(answer.text, Usage(calls=1, input_tokens=10, cost=1.0))


async def test_a_spent_budget_around_a_fallback_is_raised():
    second = Second(REPLY)
    with pytest.raises(BudgetError), Budget(calls=1) as budget:
        await ask(Fallback(First(busy()), second))
    assert second.calls == 0
    assert budget.usage.calls == 1

    with Budget(calls=2) as budget:
        await ask(Fallback(First(busy()), Second(REPLY)))
    assert budget.usage.calls == 2


async def test_the_spent_budget_of_one_lm_falls_back_to_the_next_lm():
    dear = Budget(cost=1.5)
    lm = Fallback(Budgeted(Paid(REPLY, REPLY), dear), Second(REPLY, REPLY))
    for _ in range(3):
        await ask(lm)
    assert dear.usage.cost == 1.0
    assert [question.answered for question in lm.statistics()] == [1, 2]


async def test_an_inner_budget_is_charged_the_earlier_usage_of_a_run():
    budget = Budget(calls=5)
    lm = Fallback(First(REPLY), Budgeted(Second(REPLY), budget))
    lm.restore("r1", Usage(calls=3), 2.0)
    assert budget.usage.calls == 3


# With other policies


@pytest.mark.parametrize("around", [True, False], ids=["around", "inside"])
@pytest.mark.parametrize(
    "policy",
    [
        lambda lm: Retry(lm, 0),
        lambda lm: Timeout(lm, 5),
        lambda lm: Concurrency(lm, 1),
        lambda lm: RateLimit(lm, requests=100),
        lambda lm: Budgeted(lm, Budget(calls=9)),
        lambda lm: Cached(lm),
        lambda lm: WithPrompts(lm, {}),
    ],
    ids=["Retry", "Timeout", "Concurrency", "RateLimit", "Budgeted", "Cached", "WithPrompts"],
)
async def test_policies_work_around_and_inside_a_fallback(
    policy: Callable[[Any], Policy], around: bool
):
    first, second = First(busy()), Second(REPLY)
    lm = policy(Fallback(first, second)) if around else Fallback(policy(first), policy(second))
    run = await ask(lm)
    assert run.result.text == "this"
    assert (first.calls, second.calls) == (1, 1)


async def test_an_lm_with_a_retry_policy_is_retried_before_the_fallback():
    first, second = First(busy(), busy(), busy()), Second(REPLY)
    await ask(Fallback(Retry(first, 2, first=0), second))
    assert (first.calls, second.calls) == (3, 1)


async def test_a_request_that_exceeds_its_rate_limit_falls_back():
    limited = RateLimit(First(REPLY, REPLY), requests=1, per=60, longest_wait=0.01)
    lm = Fallback(limited, Second(REPLY))
    runs = [await ask(lm) for _ in range(2)]
    assert [run.usage.models for run in runs] == [("first",), ("second",)]


async def test_a_timeout_of_one_lm_falls_back_to_the_next_lm():
    class Hanging(First):
        async def answer(self, prompt: Prompt) -> Answer:
            return await asyncio.Future[Answer]()

    run = await ask(Fallback(Timeout(Hanging(), 0.01), Second(REPLY)))
    assert run.result.text == "this"


async def test_a_cache_around_a_fallback_shares_no_answers_with_its_lms(tmp_path: Path):
    store = SQLiteCache(tmp_path / "answers.sqlite")
    first = First(busy(), '{"text": "of the first"}')
    lm = Cached(Fallback(first, Second(REPLY)), store)
    assert (await ask(lm)).result.text == "this"
    again = await ask(lm)
    assert (again.usage.calls, again.usage.models) == (0, ("second",))
    # The answer of the second is not taken for one of the first.
    assert (await ask(Cached(first, store))).result.text == "of the first"
    await lm.aclose()


async def test_a_cache_inside_a_fallback_belongs_to_its_lm():
    first = Cached(First('{"text": "of the first"}'))
    assert (await ask(first)).usage.calls == 1
    run = await ask(Fallback(first, Second()))
    assert (run.result.text, run.usage.calls) == ("of the first", 0)


async def test_a_fallback_with_an_lm_without_settings_is_refused_a_cache_file(tmp_path: Path):
    class Mine:
        async def fill(self, target: Any, resolved: Any, instruction: str, source: Any) -> Any:
            return target(text="mine")

        choose_type = make = decide = fill

    with pytest.raises(BaeLMError) as caught:
        Cached(Fallback(First(), Mine()), tmp_path / "answers.sqlite")  # type: ignore[arg-type]
    assert caught.value.code == "bae-lm-cache-key"


async def test_an_invalid_answer_is_dropped_from_caches_inside_a_fallback():
    inside = Cached(First({"text": 7}, REPLY))
    await ask(Fallback(inside, Second()))
    assert inside.statistics().misses == 2


async def test_a_custom_lm_works_beside_a_backend():
    lm = Fallback(First(busy()), ScriptedLM([{"text": "scripted"}]))
    assert (await ask(lm)).result.text == "scripted"


async def test_a_fallback_closes_all_lms_even_if_one_raises():
    closed: list[str] = []

    class Closing(First):
        async def aclose(self) -> None:
            closed.append(self.model)
            raise OSError("it is stuck")

    class Closed(Second):
        async def aclose(self) -> None:
            closed.append(self.model)

    with pytest.raises(OSError, match="stuck"):
        await Fallback(Closing(), Closed()).aclose()
    assert closed == ["first", "second"]


async def test_secrets_of_all_lms_are_masked_in_the_error():
    class Keyed(First):
        secrets = ("sk-hunter2hunter2",)

    lm = Fallback(
        Keyed(busy(), BaeLMError("key sk-hunter2hunter2 is busy", retryable=True)), Second(busy())
    )
    lm.inners[0].answers.pop(0)  # type: ignore[attr-defined]
    for inner in lm.inners:
        inner.retries = 0
    with pytest.raises(BaeLMError) as caught:
        await ask(lm)
    assert "hunter2" not in str(caught.value)
    assert {*lm.secrets} == {"sk-hunter2hunter2"}


def test_a_fallback_has_the_abilities_that_all_its_lms_share():
    class Able(First):
        calls_tools = True
        native_tools = frozenset({"web_search", "web_fetch"})
        context_window = 1000

    class Less(Second):
        calls_tools = True
        native_tools = frozenset({"web_search"})
        answers_unions = False

    both = Fallback(Able(), Less())
    assert (both.calls_tools, both.native_tools) == (True, {"web_search"})
    assert (both.context_window, both.answers_unions) == (1000, False)
    assert Fallback(Able(), Second()).calls_tools is False


# Files


class Shown(Node):
    photo: Image | None

    async def __call__(self) -> Reply: ...


class AlwaysShown(Node):
    photo: Image

    async def __call__(self) -> Reply: ...


class Seeing(First):
    takes_files = frozenset({"image"})


async def test_an_lm_without_image_support_is_reported_before_the_run():
    for lm in (Fallback(Seeing(), Second()), Retry(Fallback(Retry(Seeing()), Retry(Second())))):
        with pytest.raises(BaeLMError, match=r"\] Second\('second'\) takes no images"):
            await Graph(start=AlwaysShown, end=Reply).arun(AlwaysShown(photo=DOT), lm)
    assert Fallback(Seeing(), Seeing()).find_refuser("image") is None


async def test_a_prompt_with_an_image_falls_back_to_a_vision_lm_on_request():
    shown = Graph(start=Shown, end=Reply)
    with pytest.raises(BaeLMError, match="takes no images"):
        await shown.arun(Shown(photo=DOT), Fallback(Second(), Seeing()))
    second, seeing = Second(REPLY), Seeing(REPLY)
    lm = Fallback(second, seeing, on=["bae-lm-files"])
    assert (await shown.arun(Shown(photo=DOT), lm)).usage.models == ("first",)
    assert (await shown.arun(Shown(photo=None), lm)).usage.models == ("second",)


# Tools


async def test_tool_calls_use_structured_output_for_an_lm_without_native_calls(
    provider: Provider,
):
    class Native(First):
        calls_tools = True

    from bae.prompts.tools import WRAPPER

    second = Second(
        {WRAPPER: {"action": "search", "query": "kettle"}},
        {WRAPPER: {"action": "answer", "answer": "42", "pages": [1]}},
    )
    run = await QUESTION.arun(Question(text="?"), Fallback(Native(busy()), second))
    assert [str(call) for call in run.result.calls] == ["search(query='kettle')"]


async def test_a_fallback_refuses_to_mix_an_lm_that_runs_tools_itself():
    script = ScriptedLM([Call("search", query="x"), {"answer": "42", "pages": []}])
    with pytest.raises(BaeLMError) as caught:
        await QUESTION.arun(Question(text="?"), Fallback(First(), script))
    assert caught.value.code == "bae-tools-lm"


@pytest.mark.parametrize(
    ("before", "after"),
    [("anthropic", "pydantic-ai-openai"), ("pydantic-ai-openai", "anthropic")],
)
async def test_a_conversation_with_tools_continues_with_another_model(
    provider: Provider, before: str, after: str
):
    first, second = BACKENDS[before](provider), BACKENDS[after](provider)
    answer = {"answer": "42", "pages": [1]}
    provider.script(*scripted_rounds(first, Call("search", query="kettle")), Status(529), answer)
    async with Fallback(first, second) as lm, asyncio.timeout(BOUND):
        run = await QUESTION.arun(Question(text="which kettle?"), lm)

    assert [call.result for call in run.result.calls] == [["kettle 0", "kettle 1"]]
    assert run.result.answer == "42"
    opened, refused, last = provider.requests
    assert opened.path == refused.path != last.path
    # The provider on loopback refuses a call without its result, and the reverse.
    said = str(last.body["messages"])
    assert "kettle 0" in said
    assert "search" in said
    assert {*run.usage.models} == {opened.model, last.model}


@pytest.mark.parametrize("after", ["anthropic", "pydantic-ai-anthropic"])
async def test_a_thinking_model_continues_a_conversation_without_thinking(
    provider: Provider, after: str
):
    thinking = {"type": "enabled", "budget_tokens": 2000}
    options = {
        "anthropic": {"extra": {"thinking": thinking}},
        "pydantic-ai-anthropic": {"model_settings": {"anthropic_thinking": thinking}},
    }
    first, second = (
        BACKENDS["pydantic-ai-openai"](provider),
        BACKENDS[after](provider, **options[after]),
    )
    answer = {"answer": "42", "pages": [1]}
    call = Call("search", query="kettle")
    provider.script(call, Status(529), call, answer)
    async with Fallback(first, second) as lm, asyncio.timeout(BOUND):
        run = await QUESTION.arun(Question(text="which kettle?"), lm)
    assert run.result.answer == "42"
    # The provider on loopback refuses calls without thinking, where thinking is enabled.
    assert [request.body.get("thinking", {}).get("type") for request in provider.requests[2:]] == [
        "disabled"
    ] * 2


async def test_an_overloaded_provider_falls_back_over_http(provider: Provider):
    first, second = BACKENDS["anthropic"](provider), BACKENDS["pydantic-ai-openai"](provider)
    provider.script(Status(529), {"text": "this"}, {"text": "that"})
    async with Fallback(first, second) as lm, asyncio.timeout(BOUND):
        run = await graph.arun(Ask(), lm)
        again = await graph.arun(Ask(), lm)

    assert (run.result.text, again.result.text) == ("this", "that")
    paths = [request.path for request in provider.requests]
    assert paths == ["/v1/messages", "/v1/chat/completions", "/v1/chat/completions"]
    assert run.usage.calls == 2


@pytest.mark.parametrize("kind", ["pydantic-ai-openai", "dspy"])
async def test_a_full_context_falls_back_over_http_only_on_request(kind: str):
    """With the code that OpenAI and most others have for it."""
    said = {"message": "no", "type": "invalid_request_error", "code": "context_length_exceeded"}
    full = Raw([json.dumps({"error": said}).encode()], 400)
    async with raw_provider(lambda _: full) as server, WIRES[kind](server) as first:
        with pytest.raises(BaeLMError) as caught:
            await ask(Fallback(first, Second(REPLY)))
        assert (caught.value.code, caught.value.status) == ("bae-lm-context-exceeded", 400)
        run = await ask(Fallback(first, Second(REPLY), on=["bae-lm-context-exceeded"]))
        assert run.usage.models[-1] == "second"
        assert len(server.bodies) == 2


async def test_a_wrong_api_key_is_raised_over_http(provider: Provider):
    first, second = BACKENDS["anthropic"](provider), BACKENDS["pydantic-ai-openai"](provider)
    provider.script(Status(401))
    async with Fallback(first, second) as lm, asyncio.timeout(BOUND):
        with pytest.raises(BaeLMError) as caught:
            await graph.arun(Ask(), lm)
    assert caught.value.code == "bae-lm-unauthorized"
    assert provider.received == 1


def test_a_pinned_lm_is_used_instead_of_the_fallback_of_the_run():
    class Pinned(Node):
        node_config = {"lm": Third('{"text": "pinned"}')}
        text: str

        async def __call__(self) -> None: ...

    class Begin(Node):
        async def __call__(self) -> Pinned: ...

    lm: Backend = Fallback(First(), Second())
    assert Graph(start=Begin, end=Pinned).run(Begin(), lm).result.text == "pinned"
