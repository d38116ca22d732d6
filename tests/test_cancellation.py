"""What cancelling a run promises, wherever it is: CancelledError comes out, and the moment it does
nothing of the run is left: no task, no open generator, no wait for a thread."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Annotated, Any

import pytest

from bae import Dep, DepError, Gate, Graph, Map, Node, NodeError
from bae.journal import MemoryJournal
from bae.resolver import resolve_dep, resolve_fields
from bae.tasks import explain_cancellation
from bae.testing import ScriptedLM
from bounded import BOUND, error_from, run, some_turns, value_from
from end_node import EndNode, leading_to


@pytest.fixture(autouse=True)
async def no_task_outlives_a_test() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Reached:
    """A point in a run that waits for ever, and says when it is reached and when it is left."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.seen: list[str] = []

    async def wait(self) -> Any:
        self.seen.append("reached")
        self.event.set()
        try:
            await asyncio.Event().wait()
        finally:
            await some_turns()  # a clean-up that takes its time
            self.seen.append("left")

    async def wait_for(self, value: Any) -> Any:
        await self.wait()
        return value


async def cancel_at(
    running: Coroutine[Any, Any, Any], reached: asyncio.Event, times: int = 1
) -> set[asyncio.Task[Any]]:
    """Cancel a coroutine once a point is reached; answers the tasks there were beside it at the
    very moment it ended."""
    others = asyncio.all_tasks()
    left: set[asyncio.Task[Any]] = set()

    async def watched() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await running
        finally:
            left.update(asyncio.all_tasks() - others - {task})

    async with asyncio.timeout(BOUND):
        task = asyncio.create_task(watched())
        task.add_done_callback(lambda _: reached.set())
        await reached.wait()
        for _ in range(times):
            task.cancel()
            await some_turns()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    return left


class BlockedLM(ScriptedLM):
    """An LM that hangs in one of its methods."""

    def __init__(self, point: Reached, method: str, script: Any = ()) -> None:
        super().__init__(script)
        self.point = point
        self.method = method

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        if self.method == "fill":
            await self.point.wait()
        return await super().fill(target, resolved, instruction, source)

    async def choose_type(self, types: Any, context: Any) -> Any:
        if self.method == "choose_type":
            await self.point.wait()
        return await super().choose_type(types, context)


# One scenario for each point a run can be cancelled at. Each gets the point, an open generator
# that must be closed, and answers the coroutine of a run that gets to the point.

Scenario = Callable[[Reached, Any], Coroutine[Any, Any, Any]]


def in_a_dependency(point: Reached, opened: Any) -> Coroutine[Any, Any, Any]:
    async def waits(x: Annotated[str, Dep(opened)]) -> Any:
        return await point.wait()

    return value_from(waits)


def in_a_body(point: Reached, opened: Any) -> Coroutine[Any, Any, Any]:
    class Holder(Node):
        value: Annotated[str, Dep(opened)]

        async def __call__(self) -> None:
            await point.wait()

    return run(Holder())


def in_a_fill_with_the_next_node_s_dependencies_under_way(
    point: Reached, opened: Any
) -> Coroutine[Any, Any, Any]:
    early = Reached()

    async def waits(x: Annotated[str, Dep(opened)]) -> Any:
        return await early.wait()

    class Last(EndNode):
        value: Annotated[Any, Dep(waits)]

    class FillsLate(BlockedLM):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            await early.event.wait()
            return await super().fill(*args, **kwargs)

    start = leading_to(leading_to(Last, name="Filled", text=str))
    return run(start(), FillsLate(point, "fill"))


def in_a_choice(point: Reached, opened: Any) -> Coroutine[Any, Any, Any]:
    class Left(EndNode): ...

    start = leading_to(Left, EndNode, value=Annotated[str, Dep(opened)])
    return run(start(), BlockedLM(point, "choose_type"))


def in_a_map(point: Reached, opened: Any) -> Coroutine[Any, Any, Any]:
    async def one(item: int, x: Annotated[str, Dep(opened)]) -> int:
        return await point.wait_for(item) if item == 5 else item

    class Holder(EndNode):
        items: list[int]
        mapped: Annotated[list[int], Map(one, over="items", limit=3)]

    return run(Holder(items=[*range(20)]))


def in_a_map_of_graphs(point: Reached, opened: Any) -> Coroutine[Any, Any, Any]:
    async def waits(x: Annotated[str, Dep(opened)]) -> Any:
        return await point.wait()

    class Inner(EndNode):
        item: int
        value: Annotated[Any, Dep(waits)]

    class Holder(EndNode):
        items: list[int]
        mapped: Annotated[list[Inner], Map(Inner, over="items")]

    return run(Holder(items=[1, 2]))


def in_a_graph_inside_a_graph(point: Reached, opened: Any) -> Coroutine[Any, Any, Any]:
    class Innermost(Node):
        value: Annotated[str, Dep(opened)]

        async def __call__(self) -> None:
            await point.wait()

    class Inner(EndNode):
        value: Annotated[Innermost, Dep(Innermost)]

    return value_from(Graph(start=Inner))


def in_the_answer_to_a_gate(point: Reached, opened: Any) -> Coroutine[Any, Any, Any]:
    class Holder(Node):
        first: Annotated[str, Dep(opened)]

        async def __call__(self) -> "Asks":
            return Asks()

    class Asks(EndNode):
        ok: Annotated[bool, Gate("go on?")]

    async def answer(gate: Any) -> bool:
        return await point.wait_for(True)

    return run(Holder(), answer=answer)


def in_a_pause_before_a_retry(point: Reached, opened: Any) -> Coroutine[Any, Any, Any]:
    async def fails(x: Annotated[str, Dep(opened)]) -> int:
        asyncio.get_running_loop().call_soon(point.event.set)
        point.seen.extend(["reached", "left"])
        raise ConnectionError

    return value_from(fails, retries=1_000)


SCENARIOS = [
    in_a_dependency,
    in_a_body,
    in_a_fill_with_the_next_node_s_dependencies_under_way,
    in_a_choice,
    in_a_map,
    in_a_map_of_graphs,
    in_a_graph_inside_a_graph,
    in_the_answer_to_a_gate,
    in_a_pause_before_a_retry,
]


def opening(log: list[str], is_async: bool = False) -> Any:
    def sync() -> Iterator[str]:
        log.append("open")
        yield "opened"
        log.append("close")

    async def on_loop() -> AsyncIterator[str]:
        log.append("open")
        yield "opened"
        await some_turns()
        log.append("close")

    return on_loop if is_async else sync


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_cancelling_leaves_no_task_and_no_open_resource(scenario: Scenario, times: int):
    point, log = Reached(), list[str]()
    left = await cancel_at(scenario(point, opening(log, times == 1)), point.event, times)
    assert left == set()
    assert point.seen == ["reached", "left"] or times == 2
    assert log == ["open", "close"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_timeout_around_a_run_raises_timeout_error(scenario: Scenario):
    point, log = Reached(), list[str]()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as bound:

            async def expire() -> None:
                await point.event.wait()
                bound.reschedule(asyncio.get_running_loop().time())

            expiring = asyncio.create_task(expire())
            await scenario(point, opening(log))
    await expiring
    assert log == ["open", "close"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


# Threads


async def test_cancelling_ends_the_wait_for_a_thread_at_once():
    entered, release, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def blocks() -> int:
        loop.call_soon_threadsafe(entered.set)
        release.wait(BOUND)
        ended.set()
        return 1

    try:
        left = await cancel_at(value_from(blocks), entered)
        assert left == set()
        assert not ended.is_set()
    finally:
        release.set()
    assert ended.wait(BOUND)


@pytest.mark.parametrize("managed", [False, True], ids=["generator", "context manager"])
async def test_a_sync_generator_that_is_opening_in_a_thread_is_still_closed(managed: bool):
    opening, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    log: list[str] = []

    def slow_to_open() -> Iterator[str]:
        loop.call_soon_threadsafe(opening.set)
        release.wait(BOUND)
        log.append("open")
        try:
            yield "opened"
        finally:
            log.append("close")

    fn: Any = contextlib.contextmanager(slow_to_open) if managed else slow_to_open

    async def cancel_while_opening() -> set[asyncio.Task[Any]]:
        cancelling = asyncio.create_task(cancel_at(value_from(fn), opening))
        await opening.wait()
        await some_turns()
        assert log == []
        release.set()
        return await cancelling

    assert await cancel_while_opening() == set()
    assert log == ["open", "close"]


async def test_an_opening_that_runs_over_its_timeout_is_closed():
    release = threading.Event()
    log: list[str] = []
    loop = asyncio.get_running_loop()

    def slow_to_open() -> Iterator[str]:
        loop.call_soon_threadsafe(loop.call_later, 0.4, release.set)
        release.wait(BOUND)
        log.append("open")
        yield "opened"
        log.append("close")

    error = await error_from(DepError, value_from(slow_to_open, timeout=0.3))
    assert error.code == "bae-dep-timeout"
    assert log == ["open", "close"]


async def test_a_sync_generator_waiting_for_a_free_thread_is_not_opened_after_a_cancellation():
    from bae.threads import THREAD_LIMIT, set_thread_limit

    entered, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    log: list[str] = []

    def blocks() -> int:
        loop.call_soon_threadsafe(entered.set)
        release.wait(BOUND)
        return 1

    def opens() -> Iterator[int]:
        log.append("open")
        yield 1
        log.append("close")

    class Holder(EndNode):
        a: Annotated[int, Dep(blocks)]
        b: Annotated[int, Dep(opens)]

    set_thread_limit(1)
    try:
        left = await cancel_at(run(Holder()), entered)
    finally:
        release.set()
        set_thread_limit(THREAD_LIMIT)
    assert left == set()
    assert log == []


# While something is being closed


async def test_cancelling_during_a_clean_up_still_closes_the_other_resources():
    log: list[str] = []
    closing = asyncio.Event()

    def first() -> Iterator[str]:
        yield "first"
        log.append("close first")

    async def second(x: Annotated[str, Dep(first)]) -> AsyncIterator[str]:
        yield "second"
        log.append("close second")

    async def third(x: Annotated[str, Dep(second)]) -> AsyncIterator[str]:
        yield "third"
        closing.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("close third")

    assert await cancel_at(value_from(third), closing) == set()
    assert log == ["close third", "close second", "close first"]


async def test_cancelling_while_a_sync_generator_closes_lets_it_finish():
    log: list[str] = []
    closing, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow_to_close() -> Iterator[str]:
        yield "opened"
        loop.call_soon_threadsafe(closing.set)
        release.wait(BOUND)
        log.append("closed")

    cancelling = asyncio.create_task(cancel_at(value_from(slow_to_close), closing, 2))
    await closing.wait()
    await some_turns()
    assert not cancelling.done()
    release.set()
    assert await cancelling == set()
    assert log == ["closed"]


async def test_a_clean_up_that_raises_another_exception_does_not_hide_a_cancellation():
    closing = asyncio.Event()

    async def opened() -> AsyncIterator[str]:
        yield "opened"
        closing.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("cannot disconnect") from None

    assert await cancel_at(value_from(opened), closing) == set()
    gc.collect()  # asyncio reports the error here, and not while another test runs


async def test_a_run_in_a_previously_cancelled_task_works():
    async def opened() -> AsyncIterator[str]:
        yield "opened"
        raise asyncio.CancelledError("by myself")

    class Holder(Node):
        value: Annotated[str, Dep(opened)]
        fails: bool

        async def __call__(self) -> None:
            if self.fails:
                raise KeyError

    ran: list[str] = []
    begun = asyncio.Event()

    async def cleans_up_with_a_run() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            error = await error_from(DepError, run(Holder(fails=False)))
            ran.append(error.code)
            with pytest.raises(NodeError):
                await run(Holder(fails=True))
            ran.append("failed as it should")

    task = asyncio.create_task(cleans_up_with_a_run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == ["bae-dep-close", "failed as it should"]


async def test_cancelling_a_failed_run_while_it_stops_prefetched_work_is_a_cancellation():
    running, leaving, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> int:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            leaving.set()
            await left.wait()
        return 1

    class Last(EndNode):
        value: Annotated[int, Dep(stubborn)]

    class FailsLate(ScriptedLM):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            await running.wait()
            raise ConnectionError("no model")

    async def cancel() -> set[asyncio.Task[Any]]:
        failing = run(leading_to(leading_to(Last, text=str))(), FailsLate())
        cancelling = asyncio.create_task(cancel_at(failing, leaving))
        await leaving.wait()
        await some_turns()
        left.set()
        return await cancelling

    assert await cancel() == set()


# Outside a run, and after any other end


async def test_cancelling_resolve_dep_and_resolve_fields_leaves_no_open_resource():
    for kind in ("dep", "fields"):
        point, sibling = Reached(), Reached()

        async def waits(sibling: Reached = sibling) -> int:
            return await sibling.wait_for(1)

        async def above(
            x: Annotated[int, Dep(lambda waits=waits: waits())], point: Reached = point
        ) -> int:
            return x

        async def other(point: Reached = point, sibling: Reached = sibling) -> int:
            await sibling.event.wait()
            return await point.wait_for(2)

        async def both(a: Annotated[int, Dep(above)], b: Annotated[int, Dep(other)]) -> int:
            return a + b

        class Holder(EndNode):
            a: Annotated[int, Dep(above)]
            b: Annotated[int, Dep(other)]

        resolving = resolve_dep(both) if kind == "dep" else resolve_fields(Holder)
        assert await cancel_at(resolving, point.event) == set()
        assert point.seen == sibling.seen == ["reached", "left"]


async def test_a_cancelled_error_raised_by_an_item_fails_the_item():
    others = Reached()

    async def one(item: int) -> int:
        if item == 1:
            await others.event.wait()
            raise asyncio.CancelledError("by myself")
        return await others.wait_for(item)

    class Holder(EndNode):
        items: list[int]
        mapped: Annotated[list[int], Map(one, over="items")]

    async with asyncio.timeout(BOUND):
        error = await error_from(DepError, run(Holder(items=[0, 1])))
    assert isinstance(error.cause, asyncio.CancelledError)
    assert "Holder.mapped[1]" in error.message
    assert others.seen == ["reached", "left"]


# --- for a reason -------------------------------------------------------------------------------


async def outcome_of(task: asyncio.Task[Any], journal: MemoryJournal) -> tuple[str, str]:
    """How a run came out whose task is cancelled all the same, for its journal."""
    with pytest.raises(asyncio.CancelledError):
        await task
    (info,) = await journal.runs()
    return info.status, info.error


@pytest.mark.parametrize("reason", [None, LookupError("the desk is closed")])
async def test_a_run_that_is_cancelled_because_of_an_error_fails_with_the_error(
    reason: Exception | None,
):
    point, journal = Reached(), MemoryJournal()

    class Waits(Node):
        async def __call__(self) -> None:
            await point.wait()

    task = asyncio.create_task(Graph(start=Waits).arun(Waits(), journal=journal))
    explain_cancellation(task, lambda cancelled: reason)
    await point.event.wait()
    task.cancel()
    status, error = await outcome_of(task, journal)
    assert status == ("failed" if reason else "cancelled")
    assert ("the desk is closed" in error) == bool(reason)


async def test_a_run_whose_own_code_raises_cancelled_error_fails():
    journal = MemoryJournal()

    class GivesUp(Node):
        async def __call__(self) -> None:
            raise asyncio.CancelledError

    task = asyncio.create_task(Graph(start=GivesUp).arun(GivesUp(), journal=journal))
    status, error = await outcome_of(task, journal)
    assert (status, "CancelledError" in error) == ("failed", True)
