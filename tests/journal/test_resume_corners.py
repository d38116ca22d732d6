"""Runs with a journal where it is least convenient: cancelled at every single await, with stores
that are slow, fail once or are taken away, in several threads and event loops at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import pytest

from bae import Dep, DepError, Gate, Graph, GraphResult, JournalError, Map, Node, NodeError
from bae.journal import (
    Claim,
    Journal,
    Line,
    MemoryJournal,
    RunResumed,
    RunStarted,
    SQLiteJournal,
    StepStarted,
)
from bae.journal.decoder import decode
from bae.observers import observing
from bae.testing import ScriptedLM
from bounded import BOUND
from journal_graphs import (
    WORLD,
    Outfit,
    Packed,
    Paid,
    Refund,
    Stay,
    get_place,
    get_weather,
    look_up,
    refund,
)
from journal_parts import expect_refusal


class Inner(Node):
    place: Annotated[str, Dep(get_place)]

    async def __call__(self) -> Last:
        WORLD.do("inner")
        return Last(text=f"in {self.place}")


class Last(Node):
    text: str

    async def __call__(self) -> None:
        WORLD.do("last")


class Ask(Node):
    message: str

    async def __call__(self) -> Think:
        WORLD.do("ask")
        return Think(words=self.message.split())


class Think(Node):
    words: list[str]
    weather: Annotated[str, Dep(get_weather, retries=2)] = "dry"
    found: Annotated[list[str], Map(look_up, over="words", limit=2, retries=2)] = []
    inside: Annotated[Last | None, Dep(Graph(start=Inner), retries=2)] = None

    async def __call__(self) -> Outfit | Stay: ...


graph = Graph(start=Ask, end=(Packed, Stay))
EFFECTS = {"place", "weather", "ask", "outfit", "packed", "look up a", "look up b", "inner", "last"}
TRACE = [
    Ask(message="a b"),
    Think(words=["a", "b"], weather="rain in Bern", found=["A", "B"], inside=Last(text="in Bern")),
    Outfit(message="a b", top="a coat"),
    Packed(item="a coat", place="Bern"),
]


def lm() -> ScriptedLM:
    return ScriptedLM({Outfit: [{"top": "a coat"}] * 50}, choices=[Outfit] * 50)


# Cancelled at every await


def slow(method: Callable[..., Awaitable[Any]]) -> Any:
    async def slowly(*args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        answer = await method(*args, **options)
        await asyncio.sleep(0)
        return answer

    return slowly


class SlowJournal(MemoryJournal):
    """Takes a turn of the loop before and after everything it does."""

    create = slow(MemoryJournal.create)
    release = slow(MemoryJournal.release)
    claim = slow(MemoryJournal.claim)
    read = slow(MemoryJournal.read)
    answer = slow(MemoryJournal.answer)

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        stored = super().append(claim, lines)  # which takes them in at the call
        return slow(lambda: stored)()


async def cancel_after(
    turns: int, work: Coroutine[Any, Any, GraphResult[Any]], twice: bool
) -> GraphResult[Any] | None:
    """Run something and cancel it after so many turns of the loop; its result where it was
    faster."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    if twice:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


async def assert_nobody_has_it(journal: Journal, *statuses: str) -> None:
    for info in await journal.runs():
        assert info.owner is None
        assert info.status in statuses
        decode(graph, (await journal.read(info.run_id)).lines)


@pytest.mark.parametrize("twice", [False, True])
async def test_a_run_cancelled_at_any_await_is_cancelled_and_can_be_resumed(twice: bool):
    for turns in range(1000):
        WORLD.__init__()
        journal = SlowJournal()
        begun = graph.arun(Ask(message="a b"), lm(), journal=journal, run_id="one")
        if await cancel_after(turns, begun, twice) is not None:
            break
        if not await journal.runs():
            continue  # it was cancelled before it was stored
        await assert_nobody_has_it(journal, "cancelled", "ended")
        result = await graph.resume("one", lm(), journal=journal)
        assert result.trace == TRACE
        assert all(0 < times <= 2 for times in WORLD.done.values())
    assert 20 < turns < 1000


@pytest.mark.parametrize("twice", [False, True])
async def test_a_resumed_run_cancelled_at_any_await_can_be_resumed(twice: bool):
    for turns in range(1000):
        WORLD.__init__()
        WORLD.failing.add("weather")
        WORLD.failing.add("outfit")
        journal = SlowJournal()
        with pytest.raises(Exception, match="outfit"):
            await graph.arun(Ask(message="a b"), lm(), journal=journal, run_id="one")
        before = (await journal.read("one")).info
        WORLD.mend()
        if await cancel_after(turns, graph.resume("one", lm(), journal=journal), twice):
            break
        await assert_nobody_has_it(journal, "failed", "cancelled", "ended")
        if (await journal.read("one")).lines[-1].kind != "RunEnded":
            after = (await journal.read("one")).info  # as if nothing had been
            assert (after.status, after.error) == (before.status, before.error)
        result = await graph.resume("one", lm(), journal=journal)
        assert result.trace[-1] == TRACE[-1]
        assert WORLD.done["outfit"] <= 2
        assert WORLD.done["place"] == WORLD.done["ask"] == 1
    assert 5 < turns < 1000


@pytest.mark.postgres
@pytest.mark.parametrize("twice", [False, True])
async def test_an_answer_cancelled_at_any_await_leaves_a_resumable_run(
    twice: bool,
):
    for turns in range(1000):
        WORLD.__init__()
        journal = SlowJournal()
        await refund.arun(Refund(amount=3), journal=journal, run_id="one")
        answering = refund.answer("one", "approved", True, journal=journal)
        if await cancel_after(turns, answering, twice):
            break
        (info,) = await journal.runs()
        assert info.owner is None
        assert info.status in ("waiting", "cancelled", "ended")
        if not (await journal.read("one")).answers:
            assert (await refund.answer("one", "approved", True, journal=journal)).trace[1:]
        result = await refund.resume("one", journal=journal)
        assert result.result == Paid(amount=3)
        assert WORLD.done["place"] == 1
        assert WORLD.done["refund"] <= 2
    assert 5 < turns < 1000


async def test_a_run_that_continues_at_an_answer_can_be_cancelled_at_any_await():
    for turns in range(1000):
        WORLD.__init__()
        journal = SlowJournal()
        reached, answered = asyncio.Event(), asyncio.Event()

        async def slow(reached: asyncio.Event = reached, answered: asyncio.Event = answered) -> int:
            reached.set()
            await answered.wait()
            WORLD.do("slow")
            return 1

        class Both(Node):
            approved: Annotated[bool, Gate("well?")]
            number: Annotated[int, Dep(slow)]

            async def __call__(self) -> None:
                WORLD.do("both")

        both = Graph(start=Both)
        task = asyncio.create_task(both.arun(Both(), journal=journal, run_id="one"))
        await reached.wait()
        await both.answer("one", "approved", True, journal=journal, go_on=False)
        answered.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            assert task.result().trace == [Both(approved=True, number=1)]
            break
        (info,) = await journal.runs()
        assert info.owner is None
        result = await both.resume("one", journal=journal)
        assert result.trace == [Both(approved=True, number=1)]
        assert WORLD.done["slow"] == 1
    assert 5 < turns < 1000


# Stores that fail


class FailingJournal(MemoryJournal):
    """Refuses every line from a number on, until the run is resumed."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.failed: Claim | None = None

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        if self.failed is None and lines[-1].n >= self.at:
            self.failed = claim
        return _fail_to_write() if self.failed is claim else super().append(claim, lines)

    def note(self, claim: Claim, line: Line) -> None:
        if self.failed is not claim:
            super().note(claim, line)


async def _fail_to_write() -> None:
    await asyncio.sleep(0)
    raise JournalError("the disk is full", code="bae-journal-full", fix="make room")


async def test_a_failed_write_at_any_line_ends_the_run_with_a_journal_error():
    for at in range(100):
        WORLD.__init__()
        journal = FailingJournal(at)
        begun = asyncio.create_task(
            graph.arun(Ask(message="a b"), lm(), journal=journal, run_id="one")
        )
        await asyncio.wait([begun])
        if not journal.failed:
            assert begun.result().trace == TRACE
            break
        with pytest.raises(JournalError) as caught:
            begun.result()
        assert (caught.value.code, caught.value.run_id) == ("bae-journal-full", "one")
        once = +WORLD.done
        assert set(once.values()) == {1}  # nothing is tried again because of it
        await assert_nobody_has_it(journal, "failed")
        lines_before = (await journal.read("one")).lines
        result = await graph.resume("one", lm(), journal=journal)
        assert result.trace == TRACE
        assert (await journal.read("one")).lines[: len(lines_before)] == lines_before
        assert dict(+WORLD.done).keys() == EFFECTS
        assert max(WORLD.done.values()) <= 2
        for line in lines_before:
            if line.kind == "SourceEnded" and '"value"' in line.data:
                by = json.loads(line.data)["by"]
                assert WORLD.done[by.removeprefix("get_").lower()] == 1, by
            if line.kind == "ItemEnded":
                assert WORLD.done[f"look up {'ab'[json.loads(line.data)['index']]}"] == 1
    assert 10 < at < 100


class NoRelease(MemoryJournal):
    async def release(self, *args: Any, **options: Any) -> None:
        raise JournalError("the disk is full", code="bae-journal-full", fix="make room")


async def test_a_run_whose_end_cannot_be_stored_fails():
    with pytest.raises(JournalError, match="disk is full") as caught:
        await graph.arun(Ask(message="a b"), lm(), journal=NoRelease(), run_id="one")
    assert caught.value.run_id == "one"
    assert WORLD.done == dict.fromkeys(EFFECTS, 1)
    WORLD.failing.add("ask")
    with pytest.raises(NodeError, match="Ask") as failed:
        await graph.arun(Ask(message="a b"), lm(), journal=NoRelease(), run_id="one")
    assert any("the disk is full" in said for said in failed.value.__notes__)


async def test_a_custom_store_that_raises_any_error_ends_the_run_with_a_journal_error():
    class Odd(MemoryJournal):
        def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
            if lines[-1].n > 3:
                raise OSError("no such socket")
            return super().append(claim, lines)

    with pytest.raises(JournalError, match="OSError") as caught:
        await graph.arun(Ask(message="a b"), lm(), journal=Odd(), run_id="one")
    assert isinstance(caught.value.cause, OSError)


class Forgetful(MemoryJournal):
    """Whose owners can be made to lose a run, as one does whose lease runs out."""

    def lose(self) -> None:
        self._writer.connect().execute("update runs set owner = null")


@pytest.mark.postgres
async def test_a_run_taken_over_by_another_process_stops():
    journal = Forgetful()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> int:
        if reached.is_set():
            return 2
        reached.set()
        await go_on.wait()
        return 1

    class Held(Node):
        number: Annotated[int, Dep(hold, retries=3)] = 0
        place: Annotated[str, Dep(get_place)]

        async def __call__(self) -> None:
            WORLD.do("held")

    held = Graph(start=Held)
    first = asyncio.create_task(held.arun(Held(), journal=journal, run_id="one"))
    await reached.wait()
    journal.lose()
    result = await held.resume("one", journal=journal)
    assert result.trace == [Held(number=2, place="Bern")]
    go_on.set()
    with expect_refusal("bae-run-taken"):
        await first
    stored = await journal.read("one")
    assert stored.info.status == "ended"
    assert WORLD.done["held"] == 1
    assert (await held.replay("one", journal=journal)).trace == result.trace


# What is wrong is said before a run is taken


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lm": object()}, Exception),
        ({"max_iters": -1}, ValueError),
        ({"dep_cache": {"no function": 1}}, Exception),
    ],
)
async def test_invalid_arguments_of_resume_leave_the_run_unchanged(
    options: dict[str, Any], error: type[Exception]
):
    journal = MemoryJournal()
    WORLD.failing.add("outfit")
    with pytest.raises(Exception, match="outfit"):
        await graph.arun(Ask(message="a b"), lm(), journal=journal, run_id="one")
    before = (await journal.read("one")).info
    WORLD.mend()
    with pytest.raises(error):
        await graph.resume("one", journal=journal, **{"lm": lm(), **options})
    after = (await journal.read("one")).info
    assert (after.status, after.owner, after.error) == ("failed", None, before.error)
    assert (await graph.resume("one", lm(), journal=journal)).trace == TRACE


# Threads, event loops, contexts


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_one_journal_serves_event_loops_in_several_threads(tmp_path: Path, kind: str):
    journal = MemoryJournal() if kind == "memory" else SQLiteJournal(tmp_path / "runs.db")
    results: dict[str, Any] = {}

    def work(name: str) -> None:
        async def main() -> None:
            async with asyncio.timeout(BOUND):
                for n in range(3):
                    result = await graph.arun(
                        Ask(message="a b"), lm(), journal=journal, run_id=f"{name} {n}"
                    )
                    results[f"{name} {n}"] = result.trace

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=(f"thread {n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 9
    assert all(trace == TRACE for trace in results.values())
    asyncio.run(journal.close())


async def test_a_resumed_run_sees_context_variables():
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    async def get_tenant() -> str:
        seen.append(tenant.get())
        WORLD.do("tenant")
        return tenant.get()

    def get_in_thread() -> str:
        return tenant.get()

    class Who(Node):
        name: Annotated[str, Dep(get_tenant)]
        again: Annotated[str, Dep(get_in_thread)]

        async def __call__(self) -> None:
            seen.append(f"body {tenant.get()}")

    who = Graph(start=Who)
    journal = MemoryJournal()
    WORLD.failing.add("tenant")
    tenant.set("first")
    with pytest.raises(DepError):
        await who.arun(Who(), journal=journal, run_id="one")
    WORLD.mend()
    tenant.set("second")
    result = await who.resume("one", journal=journal)
    assert result.trace[0].name == "second"
    assert seen[-2:] == ["second", "body second"]


# Again and again


async def test_observers_do_not_receive_records_from_before_a_resume():
    journal = MemoryJournal()
    WORLD.failing.add("outfit")
    with pytest.raises(Exception, match="outfit"):
        await graph.arun(Ask(message="a b"), lm(), journal=journal, run_id="one")
    WORLD.mend()
    told: list[Any] = []
    with observing(lambda run, record: told.append((run, record))):
        result = await graph.resume("one", lm(), journal=journal)
    records = [record for _, record in told]
    assert isinstance(records[0], RunResumed)
    assert not any(isinstance(record, RunStarted) for record in records)
    assert [type(n).__name__ for n in (r.node for r in records if isinstance(r, StepStarted))] == [
        "Packed"
    ]
    assert len({id(run) for run, _ in told}) == 1
    assert records == [*result.journal][-len(records) :]


async def test_leaving_a_stream_leaves_a_resumable_run():
    journal = MemoryJournal()
    async with graph.stream(Ask(message="a b"), lm(), journal=journal, run_id="one") as records:
        async for record in records:
            if isinstance(record, StepStarted) and record.step == 1:
                break
    (info,) = await journal.runs()
    assert (info.status, info.owner) == ("cancelled", None)
    result = await graph.resume("one", lm(), journal=journal)
    assert result.trace == TRACE
    assert dict(WORLD.done) == dict.fromkeys(EFFECTS, 1)


@pytest.mark.postgres
async def test_concurrent_recovers_resume_each_run_once():
    journal = MemoryJournal()
    for n in range(30):
        await refund.arun(Refund(amount=n), journal=journal, run_id=f"run {n}")
        if n % 2:
            await refund.answer(f"run {n}", "approved", True, journal=journal, go_on=False)
    both = await asyncio.gather(refund.recover(journal=journal), refund.recover(journal=journal))
    ids = [run.run_id for runs in both for run in runs]
    assert sorted(ids) == sorted(f"run {n}" for n in range(1, 30, 2))
    assert all(run.error is None for runs in both for run in runs)
    assert WORLD.done["paid"] == 15
    assert WORLD.done["place"] == 30
    waiting = await journal.runs(status="waiting", limit=100)
    assert len(waiting) == 15
