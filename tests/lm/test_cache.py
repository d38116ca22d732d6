"""What `Cached` promises: the same question is asked once, also when it is asked at once; anything
that changes it makes another; and nothing wrong is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from bae import BaeLMError, Graph, GraphResult, Node, Usage
from bae.exceptions import BudgetError
from bae.journal import FieldText, RunEnded, RunJournal
from bae.lm import (
    Answer,
    Backend,
    Budget,
    Cached,
    Correction,
    MemoryCache,
    Prompt,
    Retry,
    SQLiteCache,
    Timeout,
    metered,
    tell,
)
from bae.lm.policies.cache import cache_key
from bae.lm.policies.policy import Policy
from bae.observers import observing
from bae.run import Run, RunOptions
from bae.runner import run_graph
from bae.testing import ScriptedLM
from bounded import BOUND
from end_node import EndNode
from growth import Scans
from policy_parts import REPLY, Ask, Gated, Held, Reply, busy, graph, prompt, run, settle
from toy_backend import FourMethods, ToyBackend

USED = Usage(calls=1, input_tokens=30, output_tokens=10, cost=0.01, models=("toy-7",))


def counts(lm: Cached) -> tuple[int, int, int]:
    statistics = lm.statistics()
    return statistics.hits, statistics.misses, statistics.joined


# --- hits ---------------------------------------------------------------------------------------


async def test_a_repeated_question_is_answered_from_the_cache():
    toy = ToyBackend(Answer(REPLY, USED))
    lm = Cached(toy)
    first = await graph.arun(Ask(), lm)
    second = await graph.arun(Ask(), lm)
    assert first.result == second.result == Reply(text="this")
    assert toy.calls == 1
    assert counts(lm) == (1, 1, 0)
    assert first.usage.tokens == 40
    again = second.usage
    assert (again.calls, again.tokens, again.cost, again.models) == (0, 0, 0.0, ("toy-7",))


class Choice(Node):
    async def __call__(self) -> Reply | Ask | None: ...


async def test_choices_and_fills_of_a_custom_lm_are_cached():
    lm = ScriptedLM([Reply, {"text": "this"}])
    cached = Cached(lm)
    for _ in range(2):
        result = await Graph(start=Choice).arun(Choice(), cached)
        assert result.result == Reply(text="this")
    lm.assert_complete()
    assert counts(cached) == (2, 2, 0)


class Telling(ScriptedLM):
    """An LM that says what changes its answers."""

    def __init__(self, script: Any, **settings: Any) -> None:
        super().__init__(script)
        self.settings = settings


async def test_lms_share_cached_answers_only_with_equal_settings(tmp_path: Path):
    for store in (MemoryCache(), SQLiteCache(tmp_path / "answers.sqlite")):
        for temperature, said in ((0, "cold"), (1, "hot"), (0, "not asked")):
            lm = Cached(Telling([{"text": said}], temperature=temperature), store)
            found = (await graph.arun(Ask(), lm)).result.text
            assert found == ("hot" if temperature else "cold")
        await store.aclose()


async def test_lms_without_declared_settings_share_no_cached_answers():
    store = MemoryCache()
    for said in ("one", "two"):
        lm = Cached(ScriptedLM([{"text": said}]), store)
        for _ in range(2):
            assert (await graph.arun(Ask(), lm)).result.text == said


def test_an_lm_without_settings_is_refused_a_persistent_cache(tmp_path: Path):
    with pytest.raises(BaeLMError, match="ScriptedLM has no `settings`") as caught:
        Cached(Retry(ScriptedLM([])), tmp_path / "answers.sqlite")
    assert caught.value.code == "bae-lm-cache-key"
    Cached(Telling([]), tmp_path / "answers.sqlite")


# --- what is not kept ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "unstored"),
    [
        (Answer(REPLY, stop="cut-off"), 0),
        (Answer(REPLY, stop="refused"), 0),
        (Answer(value={"text": object()}), 1),  # which JSON cannot say
        (busy(), 0),
    ],
    ids=["cut-off", "refused", "no-json", "failure"],
)
async def test_an_incomplete_answer_is_returned_but_not_cached(first: Any, unstored: int):
    toy = ToyBackend(first, REPLY)
    lm = Cached(toy)
    with pytest.raises(BaeLMError) if isinstance(first, BaeLMError) else nullcontext():
        await lm.answer(prompt())
    assert (await lm.answer(prompt())).text == REPLY
    assert toy.calls == 2
    assert lm.statistics().unstored == unstored


async def test_an_invalid_answer_is_removed_from_the_cache():
    toy = ToyBackend('{"text": 1}', '{"text": "right"}', '{"text": "right at once"}')
    lm = Cached(toy)
    assert (await graph.arun(Ask(), lm)).result.text == "right"
    assert toy.rejected == toy.prompts[:1]
    assert (await graph.arun(Ask(), lm)).result.text == "right at once"


class Inner(BaseModel):
    number: int = Field(serialization_alias="n")


class Colour(StrEnum):
    RED = "red"


class Nested(EndNode):
    inner: Inner
    note: str = Field("", serialization_alias="remark")


class Secret(EndNode):
    word: SecretStr


class Vague(EndNode):
    value: str | int | float | bool


class Counting(FourMethods):
    """An LM that builds the node it is given, and counts how often."""

    settings: Mapping[str, Any] = {}

    def __init__(self, node: Node) -> None:
        self.node = node
        self.calls = 0

    async def fill(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self.node


@pytest.mark.parametrize(
    ("node", "calls"),
    [
        (Nested(inner=Inner(number=1), note="x"), 1),
        (Vague(value=True), 1),
        (Vague(value=1.5), 1),
        (Secret(word=SecretStr("hunter2")), 2),
        (Vague.model_construct(value=Colour.RED), 2),
        (Vague.model_construct(value=(1, 2)), 2),
    ],
    ids=repr,
)
async def test_a_cached_node_is_the_same_each_time(node: Node, calls: int):
    inner = Counting(node)
    lm = Cached(inner)
    for _ in range(2):
        for found in (
            await lm.fill(type(node), {}, "it"),
            await lm.make(Ask(), type(node)),
        ):
            assert found == node
            assert repr(found) == repr(node)
    assert inner.calls == 2 * calls  # of each method
    assert lm.statistics().unstored == (4 if calls == 2 else 0)


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"version": 0}', '{"version": 1, "text": 1}'])
async def test_an_unreadable_cached_answer_is_requested_again(kept: str):
    store = MemoryCache()
    toy = ToyBackend(REPLY)
    await store.put(cache_key(toy, prompt()), kept)
    assert (await Cached(toy, store).answer(prompt())).text == REPLY


class Broken(MemoryCache):
    """A store on a disk that is full."""

    async def put(self, key: str, text: str) -> None:
        raise OSError("no space left on device")


async def test_an_answer_that_cannot_be_cached_is_returned_with_a_warning(caplog):
    lm = Cached(ToyBackend(REPLY), Broken())
    assert (await lm.answer(prompt())).text == REPLY
    assert lm.statistics().unstored == 1
    assert "could not store an answer" in caplog.text
    assert "no space left on device" in caplog.text


class Faulty(MemoryCache):
    """A store whose methods are replaced."""

    def __init__(self, **faults: Any) -> None:
        super().__init__()
        self.faults = faults

    async def get(self, key: str) -> str | None:
        return await self.do("get") or await super().get(key)

    async def put(self, key: str, text: str) -> None:
        await self.do("put")
        await super().put(key, text)

    async def drop(self, key: str) -> None:
        await self.do("drop")
        await super().drop(key)

    async def aclose(self) -> None:
        await self.do("aclose")

    async def do(self, method: str) -> Any:
        fault = self.faults.get(method)
        if isinstance(fault, BaseException):
            raise fault
        return await fault() if callable(fault) else fault


async def test_a_failing_cache_store_fails_no_run(caplog):
    for gone in (OSError("the disk is gone"), asyncio.CancelledError("its own")):
        toy = ToyBackend({}, REPLY, {}, REPLY)
        store = Faulty(get=gone, put=gone, drop=gone, aclose=gone)
        lm = Cached(toy, store)
        caplog.clear()
        for _ in range(2):  # with an answer each that is not valid
            assert (await graph.arun(Ask(), lm)).result == Reply(text="this")
        assert toy.calls == 4
        assert lm.statistics().unstored == 4
        await lm.aclose()
        tasks = ["look up an answer", "store an answer", "drop an invalid answer", "be closed"]
        logged = [record.getMessage() for record in caplog.records if record.name == "bae.lm"]
        assert all(any(task in line for line in logged) for task in tasks)
        assert all(str(gone) in line for line in logged)
        assert len(logged) == 4

    store.faults.clear()
    await lm.reject(prompt())
    store.faults["drop"] = OSError("it is gone again")
    await lm.reject(prompt())
    assert "it is gone again" in caplog.text


async def test_a_failing_cache_store_does_not_prevent_closing_the_lm():
    class Closing(ToyBackend):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    for fault in (OSError("gone"), KeyboardInterrupt()):
        toy = Closing()
        lm = Cached(toy, Faulty(drop=OSError("gone"), aclose=fault))
        await lm.reject(prompt())
        assert len(toy.rejected) == 1
        with nullcontext() if isinstance(fault, OSError) else pytest.raises(KeyboardInterrupt):
            await lm.aclose()
        assert toy.closed


@pytest.mark.parametrize("value", [7, b"{}", {"text": REPLY}, ["a"]], ids=str)
async def test_a_cached_value_of_another_type_is_requested_again(value: Any, caplog):
    lm = Cached(ToyBackend(REPLY), Faulty(get=value))
    assert (await lm.answer(prompt())).text == REPLY
    assert f"it returned a {type(value).__name__}" in caplog.text


class Elsewhere:
    """A store of one's own, which is asked for nothing in time."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def get(self, key: str) -> str | None:
        self.asked.set()
        await asyncio.Event().wait()

    async def put(self, key: str, text: str) -> None:
        await asyncio.Event().wait()


async def test_a_hanging_cache_store_delays_a_call_no_longer_than_its_timeout(caplog):
    lm = Cached(ToyBackend(REPLY), Elsewhere(), store_timeout=0.01)  # pyright: ignore[reportArgumentType] - it has two of the four methods
    async with asyncio.timeout(BOUND):
        assert (await lm.answer(prompt())).text == REPLY
        await lm.reject(prompt())  # it has no such method
        await lm.aclose()
    assert "could not look up an answer: it took more than store_timeout=0.01 s" in caplog.text
    assert "could not store an answer: it took" in caplog.text
    assert "could not drop" in caplog.text
    for wrong in (0, -1, float("inf"), float("nan"), "1"):
        with pytest.raises(ValueError, match="store_timeout"):
            Cached(ToyBackend(), store_timeout=wrong)  # type: ignore[arg-type]


async def test_a_caller_cancelled_during_a_cache_access_is_cancelled():
    toy, store = ToyBackend(), Elsewhere()
    asking = asyncio.create_task(Cached(toy, store).answer(prompt()))  # pyright: ignore[reportArgumentType] - as above
    await store.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert toy.calls == 0


# --- keys ---------------------------------------------------------------------------------------


class Tuned(Backend):
    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self._settings = settings

    @property
    def settings(self) -> dict[str, Any]:
        return self._settings

    async def answer(self, prompt: Prompt) -> Answer:
        raise AssertionError("not asked")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), values, max_size=5)
questions = st.fixed_dictionaries(
    {
        "system": st.text(),
        "text": st.text(),
        "schema": objects,
        "corrections": st.lists(st.builds(Correction, st.text(), st.text()), max_size=2),
        "model": st.text(),
        "settings": objects,
    }
)

PARTS = ["system", "text", "schema", "corrections", "model", "settings"]
UNORDERED = ["schema", "settings"]


def key_of(question: dict[str, Any]) -> str:
    parts = {k: v for k, v in question.items() if k not in ("model", "settings")}
    return cache_key(Tuned(question["model"], question["settings"]), prompt(**parts))


def shuffle_keys(value: Any, random: Random) -> Any:
    if isinstance(value, list):
        return [shuffle_keys(item, random) for item in value]
    if not isinstance(value, dict):
        return value
    items = [(key, shuffle_keys(item, random)) for key, item in value.items()]
    random.shuffle(items)
    return dict(items)


@settings(max_examples=40)
@given(questions, questions, st.sampled_from(PARTS), st.randoms(use_true_random=False))
def test_a_cache_key_changes_with_any_part_of_the_question(
    question: dict[str, Any], other: dict[str, Any], part: str, random: Any
):
    key = key_of(question)
    assert key == key_of({**question, **{p: shuffle_keys(question[p], random) for p in UNORDERED}})
    same = json.dumps(question[part], default=repr, sort_keys=True) == json.dumps(
        other[part], default=repr, sort_keys=True
    )
    assert (key == key_of({**question, part: other[part]})) == same


class Politely(Policy):
    """A custom policy that changes the question."""

    async def answer(self, prompt: Prompt) -> Answer:
        return await self.ask(prompt.with_question(f"Please: {prompt.text}"))


def test_a_cache_key_is_the_same_in_every_process():
    plain = Tuned("m", {"temperature": 0})
    key = cache_key(plain, prompt())
    assert key == "442cac82c275980d181dd145956c0a89a27fae3610d39e965342803286a024f7"
    assert key == cache_key(Retry(Timeout(plain, 1)), prompt())
    twin = type("Tuned", (Tuned,), {"__module__": "elsewhere"})
    for other in (
        Tuned("m", {"temperature": 1}),
        twin("m", {"temperature": 0}),
        Retry(Politely(Timeout(plain, 1))),
    ):
        assert cache_key(other, prompt()) != key
    scripted = ScriptedLM([])
    named = type("ScriptedLM", (ScriptedLM,), {"__module__": "elsewhere", "settings": {}})
    assert cache_key(Retry(named([])), prompt()) != cache_key(Retry(scripted), prompt())


# --- the same at once ---------------------------------------------------------------------------


async def test_equal_questions_asked_at_once_make_one_request():
    backend = Held(USED)
    lm = Cached(backend)
    asking = [asyncio.create_task(lm.answer(prompt())) for _ in range(5)]
    await settle()
    backend.release()
    async with asyncio.timeout(BOUND):
        answers = await asyncio.gather(*asking)
    assert backend.asked == ["Reply"]
    assert counts(lm) == (0, 1, 4)
    used = Usage.total(a.usage for a in answers)
    assert replace(used, seconds=0.0, attempts=0) == USED


async def test_a_shared_request_is_cancelled_with_its_last_waiter():
    backend = Held()
    lm = Cached(backend)
    asking = [asyncio.create_task(lm.answer(prompt())) for _ in range(3)]
    await settle()
    for task in asking:
        task.cancel()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*asking, return_exceptions=True)
    assert (backend.cancelled, backend.running) == (["Reply"], 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}

    backend.release()
    assert (await lm.answer(prompt())).text == REPLY


async def test_cancelling_a_waiter_takes_constant_time_however_many_share_the_request():
    backend = Held()
    lm = Cached(backend)
    with Scans() as scans:
        asking = [asyncio.create_task(lm.answer(prompt())) for _ in range(200)]
        await settle()
        for task in reversed(asking[1:]):
            task.cancel()
        await asyncio.wait(asking[1:])
        backend.release()
        async with asyncio.timeout(BOUND):
            await asking[0]
    assert scans.looks < 10 * len(asking)
    assert len(backend.asked) == 1


async def test_every_waiter_of_a_failed_request_has_a_separate_error():
    error = busy()

    class Failing(Held):
        async def answer(self, prompt: Prompt) -> Answer:
            await super().answer(prompt)
            raise error

    failing = Failing()
    lm = Cached(failing)
    asking = [asyncio.create_task(graph.arun(Ask(), Retry(lm, retries=0))) for _ in range(3)]
    await settle()
    failing.release()
    async with asyncio.timeout(BOUND):
        errors = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(e) for e in errors] == [str(error)] * 3
    assert len({id(e) for e in errors}) == 3
    assert len({e.run_id for e in errors if isinstance(e, BaeLMError)}) == 3


async def test_the_spent_budget_of_one_waiter_does_not_fail_other_waiters():
    backend = Held()
    lm = Cached(backend)

    with Budget(calls=0):
        first = asyncio.create_task(lm.answer(prompt()))
    second = asyncio.create_task(lm.answer(prompt()))
    backend.release()
    async with asyncio.timeout(BOUND):
        with pytest.raises(BudgetError):
            await first
        assert (await second).text == REPLY
    assert backend.asked == ["Reply"]


class Streaming(Held):
    """Streams half of its answer when it is asked, and the rest after `release`."""

    async def answer(self, prompt: Prompt) -> Answer:
        tell('{"text": ')
        answer = await super().answer(prompt)
        tell('"this"}')
        return answer


def records(run: Run) -> RunJournal:
    return RunJournal(run.outermost.writer.log, run.trace)


def observed_runs(lm: Cached, count: int) -> list[Run]:
    with observing(lambda run, record: None):
        return [Run(RunOptions(lm)) for _ in range(count)]


def text_in(journal: RunJournal) -> str:
    return "".join(record.delta for record in journal.of(FieldText))


async def in_budget(budget: Budget, run: Run) -> GraphResult[Reply]:
    with budget:
        return await run_graph(graph, Ask(), run)


async def test_every_waiter_gets_the_whole_text_but_only_one_is_charged():
    backend = Streaming(USED)
    lm = Cached(backend)
    runs, budgets = observed_runs(lm, 3), [Budget(calls=5) for _ in range(3)]
    asking = []
    for budget, observed in zip(budgets, runs, strict=True):
        asking.append(asyncio.create_task(in_budget(budget, observed)))
        await settle()
    backend.release()
    async with asyncio.timeout(BOUND):
        results = await asyncio.gather(*asking)
    assert [text_in(records(observed)) for observed in runs] == ["this"] * 3
    assert [result.usage.calls for result in results] == [1, 0, 0]
    assert [budget.usage.calls for budget in budgets] == [1, 0, 0]


async def test_the_next_waiter_is_charged_if_the_first_is_cancelled():
    backend = Streaming(USED)
    lm = Cached(backend)
    runs, budgets = (
        observed_runs(lm, 2),
        [Budget(calls=5), Budget(calls=5, cost=1)],
    )
    asking = []
    for budget, observed in zip(budgets, runs, strict=True):
        asking.append(asyncio.create_task(in_budget(budget, observed)))
        await settle()
    asking[0].cancel()
    await asyncio.wait(asking[:1])
    ended = len(records(runs[0]))
    assert [budget.remaining.calls for budget in budgets] == [4, 5]

    backend.release()
    async with asyncio.timeout(BOUND):
        result = await asking[1]
    assert len(records(runs[0])) == ended
    assert isinstance(records(runs[0])[-1], RunEnded)
    assert records(runs[0]).usage() == Usage()
    assert text_in(result.journal) == "this"
    assert budgets[1].usage == Usage()
    for used in (result.usage, budgets[0].usage):
        assert (used.calls, used.tokens, used.cost) == (1, 40, 0.01)


@settings(max_examples=40)
@given(
    budgets=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    moves=st.lists(st.tuples(st.sampled_from(["ask", "cancel", "answer"]), st.integers(0, 4))),
)
def test_every_shared_request_is_charged_once_to_a_waiter_with_budget(
    budgets: list[int], moves: list[tuple[str, int]]
):
    async def play() -> None:
        inner = Gated(Answer(REPLY, USED, "cut-off"))  # which is not kept
        lm = Cached(inner)
        scopes = [Budget(calls=limit) for limit in budgets]
        tasks: list[list[asyncio.Task[Answer]]] = [[] for _ in scopes]

        async def ask(budget: Budget) -> Answer:
            with budget:
                return await lm.answer(prompt())

        for move, number in moves:
            number %= len(scopes)
            if move == "ask":
                tasks[number].append(asyncio.create_task(ask(scopes[number])))
            elif move == "cancel" and tasks[number]:
                tasks[number][-1].cancel()
            elif move == "answer" and inner.gates:
                inner.open(-1)
            await settle()
            for scope, limit in zip(scopes, budgets, strict=True):
                assert scope.usage.calls <= limit
        for task in (task for tasks_of_budget in tasks for task in tasks_of_budget):
            task.cancel()
        await settle()
        assert len(inner.gates) == sum(scope.usage.calls for scope in scopes)
        for scope, limit in zip(scopes, budgets, strict=True):
            assert scope.remaining.calls == limit - scope.usage.calls
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for task in (task for tasks_of_budget in tasks for task in tasks_of_budget):
            if not task.cancelled():
                task.exception()

    run(play)


async def test_an_uncached_answer_is_counted_after_all_waiters_left():
    putting = asyncio.Event()

    class Slow(MemoryCache):
        async def put(self, key: str, text: str) -> None:
            putting.set()
            await asyncio.Event().wait()

    lm = Cached(ToyBackend(Answer(REPLY, USED)), Slow())
    with metered() as used:
        making = asyncio.create_task(lm.make(Ask(), Reply))
    async with asyncio.timeout(BOUND):
        await putting.wait()
        making.cancel()
        await asyncio.wait([making])
    assert replace(Usage.total(used), seconds=0.0, attempts=0) == USED
