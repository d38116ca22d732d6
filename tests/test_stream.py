"""What a stream promises: the records of a run as they are written, without gaps; a result at their
end; and nothing is left of a run without a reader."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import pytest

from bae import BaeError, BaeLMError, Dep, Gate, Graph, Node, NodeError, ProofError
from bae.journal import (
    FieldText,
    MemoryJournal,
    Record,
    RunEnded,
    RunResumed,
    RunStarted,
    StepStarted,
)
from bae.testing import ScriptedLM
from end_node import EndNode, leading_to


class End(EndNode):
    text: str


Start = leading_to(leading_to(End, n=int))


def script() -> ScriptedLM:
    return ScriptedLM([{"n": 1}, {"text": "done"}])


class Sign(asyncio.Event):
    """An event that a test does not wait for in vain."""

    async def wait(self) -> Literal[True]:
        async with asyncio.timeout(20):
            return await super().wait()


class Hold:
    """A place in a run where it waits until it is cancelled or released."""

    def __init__(self) -> None:
        self.reached = Sign()
        self.go = asyncio.Event()
        self.cancelled = Sign()
        self.closed = Sign()
        hold = self

        async def opened() -> AsyncIterator[int]:
            yield 1
            hold.closed.set()

        class Held(Node):
            opened: Annotated[int, Dep(opened)]

            async def __call__(self) -> Last:
                hold.reached.set()
                try:
                    await hold.go.wait()
                except asyncio.CancelledError:
                    hold.cancelled.set()
                    raise
                return Last()

        class Last(EndNode): ...

        self.start: Any = Held
        self.graph: Any = Graph(start=Held)


@pytest.fixture
def hold() -> Hold:
    return Hold()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Disable the garbage collector, so that dropped objects are freed at once or not at all."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def nothing_left() -> bool:
    """Whether this task is the only task, after all others could end."""
    for _ in range(20):
        await asyncio.sleep(0)
    return asyncio.all_tasks() == {asyncio.current_task()}


async def until(stream: Any, kind: type[Record]) -> Record:
    async for record in stream:
        if isinstance(record, kind):
            return record
    raise AssertionError(f"no {kind.__name__} came")


async def test_the_records_of_a_stream_are_the_records_of_the_journal():
    stream = Graph(start=Start).stream(Start(), script())
    records = [record async for record in stream]

    assert records == list(stream.result.journal)
    assert isinstance(records[0], RunStarted)
    assert isinstance(records[-1], RunEnded)


async def test_records_arrive_while_the_run_continues(hold: Hold):
    stream = hold.graph.stream(hold.start())
    await until(stream, StepStarted)
    await hold.reached.wait()

    assert not hold.cancelled.is_set()
    with pytest.raises(BaeError) as caught:
        stream.result
    assert caught.value.code == "bae-stream-unfinished"
    assert "not over yet" in caught.value.message

    hold.go.set()
    kinds = [type(record) async for record in stream]
    assert kinds[-2:] == [StepStarted, RunEnded]
    assert len(stream.result.trace) == 2


async def test_a_streamed_run_does_not_start_before_the_first_read():
    called: list[int] = []

    class Noted(Node):
        async def __call__(self) -> None:
            called.append(1)

    stream = Graph(start=Noted).stream(Noted())
    assert await nothing_left()
    assert called == []

    await stream.aclose()
    assert called == []
    assert [record async for record in stream] == []


async def test_a_slow_reader_gets_every_record_without_delaying_the_run(hold: Hold):
    hold.go.set()
    stream = hold.graph.stream(hold.start())
    first = await anext(stream)
    await hold.closed.wait()  # the run is over, and one record has been read

    rest = [record async for record in stream]
    assert [first, *rest] == list(stream.result.journal)


# Leaving


async def test_breaking_out_of_a_loop_over_a_stream_cancels_the_run(hold: Hold, no_collector: None):
    async for record in hold.graph.stream(hold.start()):
        if isinstance(record, StepStarted):
            await hold.reached.wait()
            break

    await hold.cancelled.wait()
    await hold.closed.wait()
    assert await nothing_left()


async def test_leaving_the_block_of_a_stream_cancels_the_run_and_waits_for_it(hold: Hold):
    async with hold.graph.stream(hold.start()) as records:
        await until(records, StepStarted)
        await hold.reached.wait()

    assert hold.cancelled.is_set()
    assert hold.closed.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("waits", [True, False], ids=["for a record", "for something else"])
async def test_cancelling_a_reader_cancels_the_run(hold: Hold, waits: bool):
    async def read() -> None:
        if waits:
            async for _ in hold.graph.stream(hold.start()):
                pass
        async with hold.graph.stream(hold.start()) as records:
            await until(records, StepStarted)
            await asyncio.Event().wait()

    reader = asyncio.create_task(read())
    await hold.reached.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader

    assert hold.cancelled.is_set()
    assert hold.closed.is_set()
    assert await nothing_left()


# Failing


async def test_the_loop_raises_the_error_of_the_run_after_the_last_record():
    class Fails(Node):
        async def __call__(self) -> None:
            raise LookupError("gone")

    records: list[Record] = []
    stream = Graph(start=Fails).stream(Fails())
    with pytest.raises(NodeError) as caught:
        async for record in stream:
            records.append(record)

    assert isinstance(caught.value.cause, LookupError)
    last = records[-1]
    assert isinstance(last, RunEnded)
    assert last.error is caught.value
    assert records == list(caught.value.journal)
    with pytest.raises(BaeError, match="it failed"):
        stream.result


@pytest.mark.parametrize(
    ("start", "raised"), [("unproved", ProofError), ("no lm", BaeLMError), ("bound", ValueError)]
)
async def test_the_first_step_of_the_loop_raises_an_error_that_prevents_the_start(
    start: str, raised: type[Exception]
):
    class Unproved(Node): ...

    stream = {
        "unproved": lambda: Graph(start=Unproved).stream(Unproved()),
        "no lm": lambda: Graph(start=Start).stream(Start()),
        "bound": lambda: Graph(start=Start).stream(Start(), script(), -1),
    }[start]()
    with pytest.raises(raised):
        await anext(stream)


async def test_a_stream_takes_the_same_options_as_a_run():
    stream = Graph(start=Start).stream(Start(), script(), 2, prefetch=False)
    with pytest.raises(BaeError) as caught:
        async for _ in stream:
            pass

    assert caught.value.code == "bae-limit-reached"


# --- a run that was begun before ----------------------------------------------------------------


class Order(Node):
    item: str

    async def __call__(self) -> Confirmed: ...


class Confirmed(EndNode):
    ok: Annotated[bool, Gate("Really?")]
    text: str


class Say(Node):
    async def __call__(self) -> Said: ...


class Said(EndNode):
    text: str


ORDERING, SAYING = Graph(start=Order, end=Confirmed), Graph(start=Say, end=Said)


async def test_a_run_can_be_streamed_from_its_answered_gate():
    async with MemoryJournal() as journal:
        first = await ORDERING.arun(
            Order(item="lamp"), ScriptedLM([{"text": "done"}]), journal=journal, run_id="one"
        )
        assert first.waiting
        lm = ScriptedLM([{"text": "Done."}])
        stream = ORDERING.stream_answer("one", "ok", True, lm, journal=journal)
        async with stream as records:
            streamed = [record async for record in records]
    assert isinstance(streamed[0], RunResumed)
    assert isinstance(streamed[-1], RunEnded)
    assert [record.delta for record in streamed if isinstance(record, FieldText)] == ["Done."]
    assert records.result.result.text == "Done."
    # What was recorded before is in the result, and was not streamed again.
    assert isinstance(records.result.journal[0], RunStarted)
    assert len(records.result.journal) > len(streamed)


async def test_a_resumed_run_can_be_streamed():
    async with MemoryJournal() as journal:
        with pytest.raises(BaeError):
            await SAYING.arun(Say(), ScriptedLM([]), journal=journal, run_id="one")
        async with SAYING.stream_resume(
            "one", ScriptedLM([{"text": "done"}]), journal=journal
        ) as records:
            kinds = [type(record) async for record in records]
        assert kinds[0] is RunResumed
        assert FieldText in kinds
        assert records.result.result.text == "done"
        async with SAYING.stream_resume(
            "one", ScriptedLM([{"text": "done"}]), journal=journal
        ) as records:
            assert [record async for record in records] == []
        assert records.result.result.text == "done"
        again = SAYING.stream(
            Say(), ScriptedLM([{"text": "done"}]), journal=journal, run_id="one", resume=True
        )
        async with again as records:
            assert [record async for record in records] == []
        assert records.result.result.text == "done"


async def test_a_run_that_a_body_starts_is_not_part_of_the_stream():
    class Outer(EndNode):
        async def __call__(self) -> None:
            await ORDERING.arun(Order(item="lamp"), ScriptedLM([{"text": "x"}]), answer=yes)

    async def yes(gate: Any) -> bool:
        return True

    async with Graph(start=Outer).stream(Outer(), ScriptedLM([{"text": "done"}])) as records:
        streamed = [record async for record in records]
    assert {record.graph for record in streamed if isinstance(record, RunStarted)} == {"Outer"}
