"""What observers promise: they see every record of the runs that begin while they are there, in
order and when it is written; they cannot break a run; and a run without any knows nothing of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import Callable
from typing import Annotated, Any

import pytest

import tool_runs
from bae import Dep, DepError, Graph, Map, Node
from bae.journal import Record, RunEnded, RunStarted, StepStarted
from bae.observers import ObservedRun, observe, observing
from bae.resolver import resolve_dep
from bae.testing import ScriptedLM
from bounded import BOUND, some_turns
from end_node import EndNode


async def get_word() -> str:
    return "word"


class Start(Node):
    text: str

    async def __call__(self) -> Middle: ...


class Middle(Node):
    word: Annotated[str, Dep(get_word)]
    number: int

    async def __call__(self) -> Last:
        return Last(words=["a", "b"])


class Item(EndNode):
    text: str


class Last(EndNode):
    words: list[str]
    items: Annotated[list[Item], Map(Item, over="words")]


graph = Graph(start=Start, end=Last)
start = Start(text="hi")


def lm() -> ScriptedLM:
    return ScriptedLM([{"number": 1}])


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[ObservedRun, Record]] = []

    def __call__(self, run: ObservedRun, record: Record) -> None:
        self.told.append((run, record))

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.told]


async def test_an_observer_receives_every_record_in_order_with_its_run():
    seen = Seen()
    with observing(seen):
        one, two = await asyncio.gather(graph.arun(start, lm()), graph.arun(start, lm()))
    runs = {run for run, _ in seen.told}
    assert {run.run_id for run in runs} == {one.run_id, two.run_id}
    assert {run.graph for run in runs} == {graph.name}
    for result in (one, two):
        mine = [record for run, record in seen.told if run.run_id == result.run_id]
        assert mine == list(result.journal)
        steps = [record for record in mine if isinstance(record, StepStarted) and not record.path]
        assert [type(record.node) for record in steps] == [Start, Middle, Last]


async def test_an_observer_receives_a_record_before_the_run_continues():
    happened: list[str] = []

    class One(Node):
        async def __call__(self) -> None:
            happened.append("called")

    with observing(lambda run, record: happened.append(type(record).__name__)):
        await Graph(start=One).arun(One())
    assert happened == ["RunStarted", "StepStarted", "called", "RunEnded"]


async def test_a_stream_can_be_observed_and_still_yields_every_record():
    seen = Seen()
    with observing(seen):
        stream = graph.stream(start, lm())
    with observing(seen):
        async with graph.stream(start, lm()) as records:
            streamed = [record async for record in records]
    assert streamed == seen.records
    assert records.result.result == Last(words=["a", "b"], items=[Item(text="a"), Item(text="b")])
    await stream.aclose()


async def test_an_observing_block_covers_runs_started_in_it_to_their_ends():
    seen = Seen()
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait() -> int:
        reached.set()
        await go.wait()
        return 1

    class Held(EndNode):
        value: Annotated[int, Dep(wait)]

    with observing(seen):
        inside = asyncio.create_task(Graph(start=Held).arun(Held()))
        async with asyncio.timeout(BOUND):
            await reached.wait()
    outside = await graph.arun(start, lm())
    go.set()
    result = await inside
    assert seen.records == list(result.journal)
    assert outside.run_id not in {run.run_id for run, _ in seen.told}


async def test_observing_blocks_can_be_nested():
    outer, inner = Seen(), Seen()
    with observing(outer):
        with observing(inner):
            await graph.arun(start, lm())
        await graph.arun(start, lm())
    await graph.arun(start, lm())
    assert len(inner.records) > 0
    assert len(outer.records) == 2 * len(inner.records)


async def test_an_observer_for_the_process_receives_all_runs_until_it_is_removed():
    seen = Seen()
    remove = observe(seen)
    try:
        await graph.arun(start, lm())
        await asyncio.to_thread(graph.run, start, lm())
    finally:
        remove()
    remove()  # and once more does no harm
    await graph.arun(start, lm())
    assert len({run for run, _ in seen.told}) == 2


async def test_an_observer_added_twice_is_called_once_and_stays_until_both_are_removed():
    seen = Seen()
    first, second = observe(seen), observe(seen)
    try:
        with observing(seen):
            result = await graph.arun(start, lm())
        assert len(seen.records) == len(result.journal)
        first()
        await graph.arun(start, lm())
        assert len(seen.records) == 2 * len(result.journal)
    finally:
        first()
        second()
    await graph.arun(start, lm())
    assert len(seen.records) == 2 * len(result.journal)


@pytest.mark.parametrize("error", [OSError("the screen is gone"), asyncio.CancelledError()])
async def test_an_observer_that_raises_is_dropped_for_that_run_and_noted_once(
    error: BaseException, caplog: pytest.LogCaptureFixture
):
    told: list[Record] = []

    def breaks(run: ObservedRun, record: Record) -> None:
        told.append(record)
        raise error

    seen = Seen()
    with caplog.at_level(logging.WARNING, "bae"), observing(breaks), observing(seen):
        result = await graph.arun(start, lm())
        assert [type(record) for record in told] == [RunStarted]
        assert seen.records == list(result.journal)
        assert len(caplog.records) == 1
        note = caplog.records[0]
        assert "breaks" in note.getMessage()
        assert result.run_id in note.getMessage()
        assert note.exc_info is not None
        await graph.arun(start, lm())
    assert len(told) == 2
    assert len(caplog.records) == 2


async def test_only_system_exit_and_keyboard_interrupt_pass_through_an_observer():
    def stops(run: ObservedRun, record: Record) -> None:
        raise SystemExit(3)

    async def run() -> None:
        with observing(stops):
            await graph.arun(start, lm())

    coroutine = run()  # driven by hand, since a loop would end with it
    with pytest.raises(SystemExit):
        coroutine.send(None)


async def test_a_slow_observer_receives_no_more_records_of_the_run(
    caplog: pytest.LogCaptureFixture,
):
    told: list[str] = []

    def slow(run: ObservedRun, record: Record) -> None:
        told.append(run.run_id)
        time.sleep(0.02)

    quick: list[Record] = []
    with (
        observing(slow, patience=0.01),
        observing(lambda run, record: quick.append(record)),
        caplog.at_level(logging.WARNING, logger="bae"),
    ):
        first = await graph.arun(start, lm(), run_id="first")
        await graph.arun(start, lm(), run_id="second")
    assert told == ["first", "second"]
    assert quick[: len(first.journal)] == list(first.journal)
    assert "s at a RunStarted and is not called again in the run first" in caplog.text


async def test_a_run_that_fails_or_is_cancelled_is_observed_to_the_end():
    async def fail() -> int:
        raise ConnectionError

    class Failing(EndNode):
        value: Annotated[int, Dep(fail)]

    reached = asyncio.Event()

    class Endless(Node):
        async def __call__(self) -> None:
            reached.set()
            await asyncio.Event().wait()

    seen = Seen()
    with observing(seen):
        with pytest.raises(DepError):
            await Graph(start=Failing).arun(Failing())
        running = asyncio.create_task(Graph(start=Endless).arun(Endless()))
        async with asyncio.timeout(BOUND):
            await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    outcomes = [record.outcome for record in seen.records if isinstance(record, RunEnded)]
    assert outcomes == ["failed", "cancelled"]


async def test_resolve_dep_and_resolve_fields_are_not_observed_as_runs():
    seen = Seen()
    with observing(seen):
        assert await resolve_dep(get_word) == "word"
    assert seen.told == []


async def test_data_keyed_by_a_run_object_is_released_with_the_run():
    known: weakref.WeakKeyDictionary[ObservedRun, int] = weakref.WeakKeyDictionary()

    def count(run: ObservedRun, record: Record) -> None:
        known[run] = known.get(run, 0) + 1

    with observing(count):
        result = await graph.arun(start, lm())
    assert list(known.values()) == [len(result.journal)]
    del result
    await some_turns()  # tasks that are done let go of what they did
    gc.collect()
    assert list(known) == []


@pytest.mark.parametrize("how", [observe, lambda observer: observing(observer).__enter__()])
async def test_an_async_observer_is_refused(how: Callable[..., Any]):
    async def later(run: ObservedRun, record: Record) -> None: ...

    class Later:
        async def __call__(self, run: ObservedRun, record: Record) -> None: ...

    for observer in (later, Later()):
        with pytest.raises(TypeError, match="put_nowait"):
            how(observer)
    with pytest.raises(TypeError, match="not an observer"):
        how(3)


async def test_observers_and_streams_get_tool_calls_when_they_start_report_and_end():
    seen: list[str] = []

    def name(record: Record) -> str:
        return f"{type(record).__name__} {getattr(record, 'name', '')}".strip()

    start, told = tool_runs.Question(text="how large?"), ("Tool", "Round")
    with observing(lambda run, record: seen.append(name(record))):
        async with tool_runs.GRAPH.stream(start, lm=tool_runs.make_scripted_lm()) as records:
            streamed = [name(record) async for record in records]
    about_tools = [kind for kind in streamed if kind.startswith(told)]
    assert about_tools == [kind for kind in seen if kind.startswith(told)]
    assert about_tools[:2] == ["ToolsOffered", "RoundMade"]
    assert about_tools.count("ToolReported") == 2
    assert about_tools.count("ToolStarted read_page") == 2
    assert about_tools.count("ToolEnded research") == 1
    assert about_tools.count("RoundMade") == 3
