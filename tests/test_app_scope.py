"""What `Dep(fn, scope="app")` promises inside `graph.open()`: opened once when a run first asks,
shared by every run on its event loop, closed once, and never under a run."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest

from bae import LM, Dep, DepError, Graph, Map, Node, ProofError, Recall, ReplayError
from bae.journal import MemoryJournal, SourceEnded
from bae.testing import ScriptedLM
from bounded import BOUND, error_from, some_turns
from end_node import EndNode


class Pool:
    """A resource, and the loop that opened it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_open = True


class Pools:
    """Opens pools and logs it; each run of `graph` uses one."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.opened: list[Pool] = []
        self.asked = asyncio.Event()
        pools = self

        async def load_settings() -> AsyncIterator[str]:
            pools.log.append("settings")
            yield "settings"
            pools.log.append("settings closed")

        async def open_pool(
            settings: Annotated[str, Dep(load_settings, scope="app")],
        ) -> AsyncIterator[Pool]:
            pools.log.append("pool")
            pools.asked.set()
            await some_turns()
            pool = Pool(asyncio.get_running_loop())
            pools.opened.append(pool)
            yield pool
            pool.is_open = False
            pools.log.append("pool closed")

        class Ask(Node):
            pool: Annotated[Any, Dep(open_pool, scope="app")]

            async def __call__(self) -> None:
                await some_turns()
                assert self.pool.is_open
                assert self.pool.loop is asyncio.get_running_loop()

        self.open_pool = open_pool
        self.ask = Ask
        self.graph = Graph(start=Ask, end=Ask)

    async def run(self, **options: Any) -> Pool:
        async with asyncio.timeout(BOUND):
            return (await self.graph.arun(self.ask(), **options)).result.pool


OPEN = ["settings", "pool"]
CLOSED = ["pool closed", "settings closed"]


def asking(open_pool: Any) -> Graph[Any, Any]:
    """A graph of one node with the resource of the app."""

    class Ask(EndNode):
        pool: Annotated[Any, Dep(open_pool, scope="app")]

    return Graph(start=Ask, end=Ask)


@pytest.fixture
def pools() -> Pools:
    return Pools()


# Opened once, closed once


async def test_a_value_of_the_app_is_opened_once_and_closed_after_the_block(
    pools: Pools,
):
    async with pools.graph.open():
        assert pools.log == []
        first = await pools.run()
        assert await pools.run() is first
        assert pools.log == OPEN
    assert pools.log == OPEN + CLOSED


async def test_concurrent_first_runs_share_one_opening(pools: Pools):
    async with pools.graph.open():
        results = await asyncio.gather(*(pools.run() for _ in range(20)))
    assert len(set(results)) == len(pools.opened) == 1
    assert pools.log == OPEN + CLOSED


async def test_a_run_outside_the_block_opens_and_closes_its_own_value(pools: Pools):
    assert await pools.run() is not await pools.run()
    async with pools.graph.open():
        pass
    await pools.run()
    assert pools.log == (OPEN + CLOSED) * 3


async def test_graphs_open_together_share_values_until_the_last_graph_is_closed(
    pools: Pools,
):
    other = asking(pools.open_pool)
    async with contextlib.AsyncExitStack() as outer:
        async with pools.graph.open():
            first = await pools.run()
            await outer.enter_async_context(other.open())
        assert pools.log == OPEN
        assert (await other.arun(other.start())).result.pool is first
        assert await pools.run() is not first  # this graph is not open any more
    assert pools.log == OPEN + OPEN + CLOSED + CLOSED


async def test_subgraphs_and_items_of_a_map_share_the_values_of_the_app(pools: Pools):
    async def use(item: int, pool: Annotated[Any, Dep(pools.open_pool, scope="app")]) -> Any:
        return pool

    class Outer(EndNode):
        inner: Annotated[Any, Dep(pools.graph)]
        items: list[int]
        mapped: Annotated[list[Any], Map(use, over="items")]

    graph = Graph(start=Outer, end=Outer)
    async with graph.open():
        for _ in range(2):
            result = (await graph.arun(Outer(items=[1, 2]))).result
            assert {result.inner.pool, *result.mapped} == set(pools.opened)
    assert pools.log == OPEN + CLOSED


async def test_a_look_up_with_an_argument_shares_the_pool_of_the_app(pools: Pools):
    async def search(query: str, pool: Annotated[Any, Dep(pools.open_pool, scope="app")]) -> Any:
        return query, pool

    class Find(EndNode):
        query: str
        found: Annotated[Any, Dep(search, query="query")]

    graph = Graph(start=Find, end=Find)
    async with graph.open():
        for query in ("a", "b"):
            found = (await graph.arun(Find(query=query))).result.found
            assert found == (query, *pools.opened)
    assert pools.log == OPEN + CLOSED


async def test_a_body_shares_the_pool_of_the_app_even_if_its_graph_has_no_source(
    pools: Pools,
):
    class Aside(EndNode):
        pool: Annotated[Any, Dep(pools.open_pool, scope="app")]
        text: str

    class Start(Node):
        async def __call__(self, lm: LM) -> None:
            await lm.make(self, Aside)

    graph, lm = Graph(start=Start), ScriptedLM([{"text": "a"}, {"text": "b"}])
    async with graph.open():
        await graph.arun(Start(), lm)
        await graph.arun(Start(), lm)
        assert pools.log == OPEN
    assert pools.log == OPEN + CLOSED


async def test_a_value_in_dep_cache_replaces_the_value_of_the_app(pools: Pools):
    stand_in = Pool(asyncio.get_running_loop())
    async with pools.graph.open():
        assert await pools.run(dep_cache={pools.open_pool: stand_in}) is stand_in
    assert pools.log == []


async def test_a_value_of_the_app_is_not_stored_in_the_cache_of_a_run(pools: Pools):
    cache: dict[Any, Any] = {}
    async with pools.graph.open():
        await pools.run(dep_cache=cache)
    assert cache == {}


# Failures


async def test_a_failed_opening_is_raised_with_its_path_and_tried_again_later():
    calls: list[int] = []

    async def connect() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("refused")
        return "connection"

    async def open_pool(connection: Annotated[str, Dep(connect, scope="app")]) -> str:
        return f"pool of {connection}"

    graph = asking(open_pool)
    async with graph.open():
        error = await error_from(DepError, graph.arun(graph.start()))
        assert error.path == "Ask.pool <- open_pool(connection) <- connect()"
        assert isinstance(error.cause, ConnectionError)
        for _ in range(2):
            assert (await graph.arun(graph.start())).result.pool == "pool of connection"
    assert len(calls) == 2


async def test_the_block_raises_an_exception_while_closing_or_notes_it_on_its_own_error():
    async def open_pool() -> AsyncIterator[str]:
        yield "pool"
        raise OSError("cannot close")

    graph = asking(open_pool)
    with pytest.raises(DepError) as caught:
        async with graph.open():
            await graph.arun(graph.start())
    assert caught.value.code == "bae-dep-close"
    with pytest.raises(KeyError) as own:
        async with graph.open():
            await graph.arun(graph.start())
            raise KeyError("own")
    assert "cannot close" in own.value.__notes__[0]


async def test_a_cancelled_run_does_not_cancel_an_opening_that_other_runs_wait_for(pools: Pools):
    async with pools.graph.open():
        first, second = (asyncio.ensure_future(pools.run()) for _ in range(2))
        await pools.asked.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).is_open
    assert pools.log == OPEN + CLOSED


async def test_cancelling_a_run_does_not_scan_all_runs_that_wait_for_the_opening(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
):
    looks = 0

    def compare(one: object, other: object) -> bool:
        nonlocal looks
        looks += 1
        return one is other

    monkeypatch.setattr("bae.scheduling._Waiter.__eq__", compare)
    monkeypatch.setattr("bae.scheduling._Waiter.__hash__", lambda one: id(one))
    async with pools.graph.open():
        runs = [asyncio.ensure_future(pools.run()) for _ in range(200)]
        await pools.asked.wait()
        for run in reversed(runs[1:]):
            run.cancel()
        await asyncio.wait(runs[1:])
        assert (await runs[0]).is_open
    assert looks < 10 * len(runs)


async def test_an_opening_that_no_run_waits_for_is_cancelled():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    graph = asking(hang)
    async with graph.open():
        run = asyncio.ensure_future(graph.arun(graph.start()))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert ended.is_set()


# Leaving the block


class Held(Pools):
    """The same, with runs that wait for a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        held = self

        class Hold(Node):
            pool: Annotated[Any, Dep(self.open_pool, scope="app")]

            async def __call__(self) -> None:
                held.begun.set()
                try:
                    await held.go.wait()
                finally:
                    held.log.append("run over" if self.pool.is_open else "closed under a run")

        self.ask = Hold
        self.graph = Graph(start=Hold, end=Hold)


async def test_leaving_the_block_waits_for_the_runs_in_progress():
    held = Held()
    async with asyncio.timeout(BOUND), held.graph.open():
        run = asyncio.ensure_future(held.run())
        await held.begun.wait()
        asyncio.get_running_loop().call_later(0, held.go.set)
    assert run.done()
    assert held.log == [*OPEN, "run over", *CLOSED]


@pytest.mark.parametrize("when", ["the block fails", "it is cancelled", "it waits"])
async def test_a_block_that_fails_or_is_cancelled_cancels_its_runs_before_it_closes(when: str):
    held = Held()
    runs: list[asyncio.Future[Any]] = []
    left = asyncio.Event()

    async def serve() -> None:
        async with held.graph.open():
            runs.append(asyncio.ensure_future(held.run()))
            await held.begun.wait()
            left.set()
            if when == "the block fails":
                raise KeyError("own")
            if when == "it is cancelled":
                await asyncio.Event().wait()

    async with asyncio.timeout(BOUND):
        server = asyncio.ensure_future(serve())
        await left.wait()
        await some_turns()
        server.cancel()
        with pytest.raises(KeyError if when == "the block fails" else asyncio.CancelledError):
            await server
    assert runs[0].cancelled()
    assert held.log == [*OPEN, "run over", *CLOSED]


async def test_a_run_that_starts_while_the_block_ends_has_its_own_values():
    held = Held()
    async with asyncio.timeout(BOUND):
        async with held.graph.open():
            first = asyncio.ensure_future(held.run())
            await held.begun.wait()

            async def late() -> Pool:
                await some_turns()
                held.go.set()
                return await held.run()

            second = asyncio.ensure_future(late())
        assert await second is not await first
    assert len(held.opened) == 2


# Event loops and contexts


def test_every_event_loop_has_its_own_values(pools: Pools):
    both = threading.Barrier(2, timeout=BOUND)
    found: list[Pool] = []

    async def serve() -> None:
        async with pools.graph.open():
            both.wait()
            found.append(await pools.run())
            found.append(await pools.run())
            both.wait()

    threads = [threading.Thread(target=asyncio.run, args=(serve(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert len(found) == 4
    assert len(pools.opened) == len(set(found)) == 2
    assert sorted(pools.log) == sorted((OPEN + CLOSED) * 2)


async def test_a_resource_of_the_app_sees_the_context_of_the_block_and_not_of_the_run():
    request = contextvars.ContextVar("request", default="none")
    seen: list[str] = []

    async def open_pool() -> str:
        seen.append(request.get())
        return "pool"

    graph = asking(open_pool)
    async with graph.open():
        request.set("first request")
        await graph.arun(graph.start())
    assert seen == ["none"]


# Journals


async def test_a_resumed_run_takes_values_of_the_app_from_its_app():
    made: list[str] = []

    async def get_token() -> str:
        made.append(f"token {len(made)}")
        return made[-1]

    async def ask_server(token: Annotated[str, Dep(get_token, scope="app")]) -> int:
        return 7

    class Ask(Node):
        token: Annotated[str, Dep(get_token, scope="app")]
        answer: Annotated[int, Dep(ask_server)]

        async def __call__(self) -> None:
            if len(made) == 1:
                raise ConnectionError("gone")

    graph = Graph(start=Ask, end=Ask)
    journal = MemoryJournal()
    async with graph.open():
        with pytest.raises(Exception, match="ConnectionError"):
            await graph.arun(Ask(), journal=journal, run_id="a")
    lines = (await journal.read("a")).lines
    assert not any("token 0" in line.data for line in lines)
    assert [p.place for p in graph.validate(journal=True)] == ["Ask.token", "Ask.answer(token)"]
    async with graph.open():
        result = await graph.resume("a", journal=journal)
        assert result.result.token == "token 1"
        assert result.result.answer == 7
        error = await error_from(ReplayError, graph.replay("a", journal=journal))
        assert error.code == "bae-replay-live"
        await graph.replay("a", journal=journal, dep_cache={get_token: "stand-in"})
    assert made == ["token 0", "token 1"]


async def test_every_run_has_a_record_of_the_values_of_the_app_that_it_used(pools: Pools):
    async with pools.graph.open():
        for _ in range(2):
            result = await pools.graph.arun(pools.ask())
            (ended,) = result.journal.of(SourceEnded)
            assert (ended.by, ended.value) == ("open_pool", result.result.pool)


# The proof


def scope_problems(field: Any) -> list[tuple[str, str]]:
    class Ask(EndNode):
        value: field

    problems = Graph(start=Ask).validate()
    return [(p.place, p.message) for p in problems if p.code == "bae-dep-scope"]


async def settings() -> str:
    return ""


async def test_a_function_of_the_app_cannot_depend_on_a_function_of_the_run():
    async def open_pool(settings: Annotated[str, Dep(settings)]) -> str:
        return ""

    async def orders(pool: Annotated[str, Dep(open_pool, scope="app")]) -> str:
        return ""

    ((place, message),) = scope_problems(Annotated[str, Dep(orders)])
    assert place == "Ask.value"
    assert "its parameter settings is made for each run by settings" in message


async def test_a_function_of_the_app_cannot_take_an_lm_or_a_recall_or_be_a_graph():
    async def open_pool(lm: LM) -> str:
        return ""

    for marker, reason in (
        (Dep(open_pool, scope="app"), "the LM of a run, as lm"),
        (Dep(settings, scope="app", name=Recall()), "called with values of a run"),
        (Dep(EndNode, scope="app"), "a graph"),
    ):
        assert reason in scope_problems(Annotated[Any, marker])[0][1]


async def test_a_function_has_the_same_scope_in_the_whole_graph():
    async def orders(pool: Annotated[str, Dep(settings, scope="app")]) -> str:
        return ""

    class Ask(EndNode):
        one: Annotated[str, Dep(settings)]
        two: Annotated[str, Dep(orders)]

    graph = Graph(start=Ask)
    with pytest.raises(ProofError, match="once for all runs for orders"):
        async with graph.open():
            raise AssertionError("not opened")


def test_an_impossible_scope_is_refused_when_the_marker_is_built():
    with pytest.raises(ValueError, match='give "run" or "app"'):
        Dep(settings, scope="request")
    with pytest.raises(ValueError, match="made once"):
        Dep(settings, scope="app", cache=False)
