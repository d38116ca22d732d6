"""What dependencies that open a resource promise: it is closed once, after the run, newest first,
for every outcome of the run, and never opened without a later close."""

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from types import TracebackType
from typing import Annotated, Any, Self

import pytest

from bae import BaeError, Dep, DepError, Gate, Map, Node, NodeError
from bae.journal import RunEnded
from bae.resolver import resolve_dep, resolve_fields
from bounded import error_from, run, value_from
from end_node import EndNode


class Log(list[str]):
    """The opened and closed resources, in order, and the dependencies that log them."""

    def generator(self, name: str) -> Any:
        def open_sync() -> Iterator[str]:
            self.append(f"open {name}")
            yield name
            self.append(f"close {name}")

        return open_sync

    def async_generator(self, name: str) -> Any:
        async def open_async() -> AsyncIterator[str]:
            self.append(f"open {name}")
            yield name
            self.append(f"close {name}")

        return open_async

    def context(self, name: str) -> Any:
        @contextlib.contextmanager
        def open_context() -> Iterator[str]:
            with self._watched(name):
                yield name

        return open_context

    def async_context(self, name: str) -> Any:
        @contextlib.asynccontextmanager
        async def open_context() -> AsyncIterator[str]:
            with self._watched(name):
                yield name

        return open_context

    @contextlib.contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        self.append(f"open {name}")
        try:
            yield
        except BaseException as error:
            self.append(f"{name} saw {type(error).__name__}")
            raise
        finally:
            self.append(f"close {name}")


KINDS = ["generator", "async_generator", "context", "async_context"]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_yielded_value_stays_open_until_the_run_is_over(kind: str):
    log = Log()
    connect = getattr(log, kind)("db")

    class Second(Node):
        db: Annotated[str, Dep(connect)]

        async def __call__(self) -> None:
            log.append(f"second uses {self.db}")

    class First(Node):
        db: Annotated[str, Dep(connect)]

        async def __call__(self) -> Second:
            log.append(f"first uses {self.db}")
            return Second()

    await run(First())
    assert log == ["open db", "first uses db", "second uses db", "close db"]


# The ways a run can end


@pytest.mark.parametrize("kind", KINDS)
async def test_a_resource_is_closed_when_the_run_stops_to_wait_for_a_person(kind: str):
    log = Log()

    class Holder(EndNode):
        db: Annotated[str, Dep(getattr(log, kind)("db"))]
        ok: Annotated[bool, Gate("go on?")]

    result = await run(Holder())
    assert [gate.question for gate in result.waiting] == ["go on?"]
    assert log == ["open db", "close db"]


@pytest.mark.parametrize("kind", ["context", "async_context"])
async def test_the_exit_of_a_context_manager_sees_the_exception_of_the_run(kind: str):
    log = Log()
    connect = getattr(log, kind)("db")
    working = asyncio.Event()

    class Holder(Node):
        db: Annotated[str, Dep(connect)]
        wait: bool = False

        async def __call__(self) -> None:
            if self.wait:
                working.set()
                await asyncio.Event().wait()
            raise KeyError(self.db)

    with pytest.raises(NodeError):
        await run(Holder())
    assert log == ["open db", "db saw NodeError", "close db"]

    log.clear()
    task = asyncio.create_task(run(Holder(wait=True)))
    await working.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["open db", "db saw CancelledError", "close db"]


class Recorder(AbstractContextManager["Recorder"]):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> bool:
        self.seen.append((kind, error, tb is not None))
        return True  # which would hide the error, were this a with block


async def test_a_context_manager_cannot_hide_the_failure_of_the_run():
    recorder = Recorder()

    def entered() -> AbstractContextManager[Recorder]:
        return recorder

    class Holder(Node):
        recorder: Annotated[Recorder, Dep(entered)]

        async def __call__(self) -> None:
            raise KeyError("body")

    error = await error_from(NodeError, run(Holder()))
    assert recorder.seen == [(NodeError, error, True)]


# Cleaning up that fails


async def test_an_error_while_closing_fails_a_run_that_succeeded_otherwise():
    raised = OSError("cannot disconnect")

    async def connect() -> AsyncIterator[str]:
        yield "db"
        raise raised

    error = await error_from(DepError, value_from(connect))
    assert error.code == "bae-dep-close"
    assert error.cause is raised
    assert [type(node).__name__ for node in error.trace] == ["Holder"]
    assert any("connect" in note for note in raised.__notes__)
    assert [r.outcome for r in error.journal.of(RunEnded)] == ["failed"]


async def test_an_error_while_closing_is_a_note_on_the_error_of_a_failed_run():
    def connect() -> Iterator[str]:
        yield "db"
        raise OSError("cannot disconnect")

    class Holder(Node):
        db: Annotated[str, Dep(connect)]

        async def __call__(self) -> None:
            raise KeyError("body")

    error = await error_from(NodeError, run(Holder()))
    assert any("OSError" in note and "cannot disconnect" in note for note in error.__notes__)


async def test_a_cancelled_error_raised_by_a_clean_up_is_a_failure():
    async def background() -> AsyncIterator[str]:
        task = asyncio.create_task(asyncio.Event().wait())
        yield "running"
        task.cancel()
        await task  # raises CancelledError, though nobody cancels the run

    error = await error_from(DepError, value_from(background))
    assert error.code == "bae-dep-close"


async def test_a_generator_without_a_yield_is_reported():
    def none() -> Iterator[int]:
        yield from ()

    async def none_async() -> AsyncIterator[int]:
        for item in ():
            yield item

    for fn in (none, none_async):
        with pytest.raises(RuntimeError, match=f"{fn.__name__} yielded nothing"):
            await resolve_dep(fn, stack=AsyncExitStack())


async def test_a_generator_that_yields_twice_is_reported_and_closed():
    log = Log()

    def twice() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    async def twice_async() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    for fn in (twice, twice_async):
        error = await error_from(DepError, value_from(fn))
        assert f"{fn.__name__} yielded more than once" in str(error.cause)
        assert log.pop() == "closed"


# What counts as something to open


async def test_a_context_manager_is_entered_if_the_return_annotation_names_it():
    class SyncPool:
        state = "new"

        def __enter__(self) -> Self:
            self.state = "open"
            return self

        def __exit__(self, *_: object) -> None:
            self.state = "closed"

    class Pool:
        state = "new"

        async def __aenter__(self) -> Self:
            self.state = "open async"
            return self

        async def __aexit__(self, *_: object) -> None:
            self.state = "closed async"

    def sync_pool() -> AbstractContextManager[SyncPool]:
        return SyncPool()

    def async_pool() -> AbstractAsyncContextManager[Pool]:
        return Pool()

    async def awaited_pool() -> AbstractAsyncContextManager[Pool]:
        return Pool()

    states: list[str] = []

    class Holder(Node):
        a: Annotated[SyncPool, Dep(sync_pool)]
        b: Annotated[Pool, Dep(async_pool)]
        c: Annotated[Pool, Dep(awaited_pool)]

        async def __call__(self) -> None:
            states.extend([self.a.state, self.b.state, self.c.state])

    result = (await run(Holder())).result
    assert states == ["open", "open async", "open async"]
    assert result.a.state == "closed"
    assert result.b.state == result.c.state == "closed async"


async def test_a_returned_client_is_not_entered_even_if_it_is_a_context_manager():
    class Client:
        entered = False

        def __enter__(self) -> Self:
            self.entered = True
            return self

        def __exit__(self, *_: object) -> None: ...

        async def __aenter__(self) -> Self:
            return self.__enter__()

        async def __aexit__(self, *_: object) -> None: ...

    client = Client()

    def connect() -> Client:
        return client

    class Holder(EndNode):
        a: Annotated[Client, Dep(connect)]
        b: Annotated[Client, Dep(Client)]

    result = (await run(Holder())).result
    assert result.a is client
    assert not result.a.entered
    assert not result.b.entered


async def test_methods_callable_objects_partials_and_decorated_functions_may_be_generators():
    log = Log()

    def traced(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            log.append("traced")
            return fn(*args, **kwargs)

        return wrapper

    class Pool:
        def lease(self, name: str = "leased") -> Generator[str, None, None]:
            yield name
            log.append(f"close {name}")

        @contextlib.contextmanager
        def managed(self) -> Iterator[str]:
            yield "managed"
            log.append("close managed")

        async def __call__(self) -> AsyncGenerator[str, None]:
            yield "called"
            log.append("close called")

    pool = Pool()

    class Holder(EndNode):
        a: Annotated[str, Dep(pool.lease)]
        b: Annotated[str, Dep(pool.managed)]
        c: Annotated[str, Dep(pool)]
        d: Annotated[str, Dep(functools.partial(pool.lease, "partial"))]
        e: Annotated[str, Dep(traced(log.generator("e")))]
        f: Annotated[str, Dep(traced(log.async_generator("f")))]
        g: Annotated[str, Dep(traced(log.context("g")))]

    values = [*(await run(Holder())).result.model_dump().values()]
    assert values == ["leased", "managed", "called", "partial", "e", "f", "g"]
    assert log.count("traced") == 3
    closed = sorted(line for line in log if line.startswith("close"))
    assert closed == sorted(f"close {value}" for value in values)


async def test_a_sync_context_manager_does_its_work_off_the_loop_unless_inline():
    threads: list[int] = []

    def note() -> None:
        threads.append(threading.get_ident())

    class Manager:
        def __enter__(self) -> str:
            note()
            return "entered"

        def __exit__(self, *_: object) -> None:
            note()

    def connect() -> AbstractContextManager[str]:
        note()
        return Manager()

    def lease() -> Iterator[str]:
        note()
        yield "leased"
        note()

    class Threaded(EndNode):
        a: Annotated[str, Dep(connect)]
        b: Annotated[str, Dep(lease)]

    class Inline(EndNode):
        a: Annotated[str, Dep(connect, inline=True)]
        b: Annotated[str, Dep(lease, inline=True)]

    await run(Threaded())
    assert len(threads) == 5
    assert threading.get_ident() not in threads
    threads.clear()
    await run(Inline())
    assert threads == [threading.get_ident()] * 5


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("kind", [lambda fn: fn, contextlib.contextmanager])
async def test_a_sync_generator_may_reset_the_context_variable_it_has_set(kind: Any, inline: bool):
    depth: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)
    seen: list[int] = []

    def span() -> Iterator[str]:
        token = depth.set(depth.get() + 1)
        yield "span"
        seen.append(depth.get())
        depth.reset(token)
        seen.append(depth.get())

    depth.set(4)
    await value_from(kind(span), inline=inline)
    assert seen == [5, 4]


async def test_resources_opened_by_items_of_a_map_are_all_closed():
    log = Log()

    async def lease(item: int) -> AsyncIterator[int]:
        log.append(f"open {item}")
        yield item * 10
        log.append(f"close {item}")

    class Holder(Node):
        items: list[int]
        leased: Annotated[list[int], Map(lease, over="items")]

        async def __call__(self) -> None:
            log.append("used")

    result = await run(Holder(items=[1, 2, 3]))
    assert result.result.leased == [10, 20, 30]
    used = log.index("used")
    opened = [line.removeprefix("open ") for line in log[:used]]
    assert [line.removeprefix("close ") for line in log[used + 1 :]] == opened[::-1]


async def test_a_resource_of_a_subgraph_stays_open_until_the_outer_run_is_over():
    log = Log()
    connect = log.generator("db")

    class Inner(EndNode):
        db: Annotated[str, Dep(connect)]

    class Outer(Node):
        inner: Annotated[Inner, Dep(Inner)]

        async def __call__(self) -> None:
            log.append(f"use {self.inner.db}")

    await run(Outer())
    assert log == ["open db", "use db", "close db"]


async def test_only_the_successful_attempt_to_open_a_resource_is_closed():
    log = Log()

    def shaky() -> Iterator[str]:
        log.append("open")
        if log.count("open") == 1:
            raise ConnectionError
        yield "value"
        log.append("close")

    assert await value_from(shaky, retries=1) == "value"
    assert log == ["open", "open", "close"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_resource_is_not_left_in_the_cache_for_the_next_run(kind: str):
    log = Log()
    connect = getattr(log, kind)("db")

    def plain() -> int:
        return 7

    class Holder(EndNode):
        db: Annotated[str, Dep(connect)]
        number: Annotated[int, Dep(plain)]

    cache: dict[Any, Any] = {}
    await run(Holder(), dep_cache=cache)
    assert cache == {plain: 7}
    await run(Holder(), dep_cache=cache)
    assert log == ["open db", "close db"] * 2


# Outside a run


@pytest.mark.parametrize("kind", KINDS)
async def test_resolve_dep_leaves_closing_to_the_exit_stack_of_the_caller(kind: str):
    log = Log()
    connect = getattr(log, kind)("db")
    async with AsyncExitStack() as stack:
        assert await resolve_dep(connect, stack=stack) == "db"
        assert log == ["open db"]
    assert log == ["open db", "close db"]


@pytest.mark.parametrize("kind", KINDS)
async def test_resolve_dep_without_a_stack_refuses_and_closes_a_resource(kind: str):
    log = Log()
    connect = getattr(log, kind)("db")

    async def above(db: Annotated[str, Dep(connect)]) -> str:
        return db

    class Holder(EndNode):
        db: Annotated[str, Dep(connect)]

    for resolving in (resolve_dep(above), resolve_fields(Holder)):
        log.clear()
        error = await error_from(BaeError, resolving)
        assert error.code == "bae-dep-unowned"
        assert "stack=" in str(error.fix)
        assert log == ["open db", "close db"]


async def test_resolve_dep_without_a_stack_raises_the_functions_own_failure():
    log = Log()
    connect = log.context("db")

    def above(db: Annotated[str, Dep(connect)]) -> str:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await resolve_dep(above)
    assert log == ["open db", "db saw ValueError", "close db"]
