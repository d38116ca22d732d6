"""Observe runs in progress. bae calls an observer with each record when the run writes it.
`observe` registers an observer for all runs of the process, and `observing` for the runs that begin
in a block. A `RunStream` yields the records of one run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from time import perf_counter
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from bae.exceptions import BaeError
from bae.records import Record, RunResumed, RunStarted
from bae.tasks import wait_until_ended

if TYPE_CHECKING:
    from bae.node import Node
    from bae.result import GraphResult
    from bae.run import RunOptions

__all__ = ["ObservedRun", "Observer", "RunStream", "observe", "observing"]

T = TypeVar("T", bound="Node", covariant=True)


class ObservedRun:
    """The run that a record belongs to. An observer gets the same object with all records of a run.
    Two runs with the same id, such as a run and its replay, have different objects.

    To store data about runs, use this object as the key in a `WeakKeyDictionary`. Python then drops
    the data together with the run.
    """

    __slots__ = ("__weakref__", "graph", "metadata", "past", "run_id", "thread")

    def __init__(
        self,
        run_id: str,
        past: tuple[Record, ...] = (),
        thread: str | None = None,
        metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.run_id = run_id
        self.thread = thread
        """The id of the thread that the run belongs to."""
        self.metadata = metadata
        """The `metadata` that the caller passed."""
        self.past = past
        """The records of a resumed run that were written earlier. Observers are not called with
        these records again."""
        start = next((record for record in past if isinstance(record, RunStarted)), None)
        self.graph = "" if start is None else start.graph
        """The name of the graph. It is set before observers get the first record."""

    def __repr__(self) -> str:
        return f"<ObservedRun {self.run_id}>"


Observer = Callable[[ObservedRun, Record], object]
"""A function that bae calls with the run and each record of the run.

The run writes a record mostly on the event loop and sometimes in a worker thread. It calls the
observer there and waits until the observer returns. So return quickly, and put slow work into a
queue. If an observer raises or takes too long, bae does not call it again in that run. The run
continues, and the logger `bae` warns.
"""


def observe(observer: Observer, *, patience: float = 1.0) -> Callable[[], None]:
    """Call `observer` with the records of all runs of this process that begin from now on.

    If the observer takes more than `patience` seconds for a record, bae does not call it again in
    that run. Call the returned function to stop observing new runs. Runs in progress are observed
    until they end.
    """
    _refuse_async(observer)
    registration = Watching(observer, patience)
    everywhere.append(registration)

    def remove() -> None:
        everywhere[:] = [watching for watching in everywhere if watching is not registration]

    return remove


@contextmanager
def observing(observer: Observer, *, patience: float = 1.0) -> Generator[None]:
    """Call `observer` with the records of the runs that begin inside the block, until the runs end.

    Runs in tasks and threads that start in the block are included. If the observer takes more than
    `patience` seconds for a record, bae does not call it again in that run.
    """
    _refuse_async(observer)
    token = here.set((*here.get(), Watching(observer, patience)))
    try:
        yield
    finally:
        here.reset(token)


class RunStream(Generic[T], AsyncIterator[Record]):
    """The records of one run, as an async iterator. `Graph.stream`, `stream_resume` and
    `stream_answer` return a `RunStream`. After the last record, read `.result`.

    A slow reader misses nothing and does not slow the run down, because the run keeps all its
    records.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, GraphResult[T]]]) -> None:
        self._results: list[GraphResult[T]] = []
        # The generator does not refer to this object. Without a reference cycle, Python drops both
        # as soon as a loop over the stream is left, and the run is cancelled.
        self._records = _follow(work, self._results)

    @property
    def result(self) -> GraphResult[T]:
        """The result that `arun` would have returned. Before the last record, and if the run has
        failed or was cancelled, reading the result raises an error."""
        if not self._results:
            raise BaeError(
                "there is no result: the run is not over yet, or it failed or was cancelled",
                code="bae-stream-unfinished",
                fix="read .result after a loop that took all records and raised nothing",
            )
        return self._results[0]

    def __aiter__(self) -> RunStream[T]:
        return self

    async def __anext__(self) -> Record:
        return await anext(self._records)

    async def aclose(self) -> None:
        """Cancel the run if it has not ended, and wait until all its tasks have ended."""
        await self._records.aclose()

    async def __aenter__(self) -> RunStream[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


async def _follow(
    work: Callable[[], Coroutine[Any, Any, GraphResult[T]]], results: list[GraphResult[T]]
) -> AsyncGenerator[Record, None]:
    reader = RunReader()

    async def read() -> GraphResult[T]:
        reading.set(reader)
        return await work()

    task = asyncio.create_task(read())
    task.add_done_callback(lambda _: reader.news.set())
    unread = reader.unread
    try:
        while True:
            while unread:
                yield unread.popleft()
            if task.done():
                break
            reader.news.clear()
            await reader.news.wait()
        results.append(task.result())
    finally:
        task.cancel()
        await wait_until_ended([task])


# Used by runs


class RunReader:
    """Collects the records of the first run that begins in a context. Runs that a body of that run
    starts are not included."""

    __slots__ = ("_run_id", "news", "unread")

    def __init__(self) -> None:
        self._run_id: str | None = None
        self.unread: deque[Record] = deque()
        self.news = asyncio.Event()

    def reads(self, run_id: str) -> bool:
        """Whether the records of a run are collected. The first call decides which run that is."""
        self._run_id = self._run_id or run_id
        return self._run_id == run_id

    def hear(self, record: Record) -> None:
        """Add the next record and wake the consumer."""
        self.unread.append(record)
        self.news.set()


class Watching(NamedTuple):
    """A registered observer."""

    observer: Observer
    patience: float
    """How many seconds the observer may take for a record."""


@contextmanager
def carrying(work: str, run_id: str, graph: str) -> Generator[Mapping[str, str]]:
    """Report to the active observers that another process will continue a run. `work` is "submit"
    or "dispatch".

    Only observers with a method `carry` get the report. `carry` returns a context manager that
    yields headers. This function yields the headers of all observers. `submit` stores them in the
    metadata of the run, so that telemetry in the other process continues the trace.
    """
    headers: dict[str, str] = {}
    with ExitStack() as stack:
        for watching in in_force():
            carry = getattr(watching.observer, "carry", None)
            if carry is not None:
                headers |= stack.enter_context(carry(work, run_id, graph))
        yield headers


def in_force() -> Sequence[Watching]:
    """Return the observers of a run that begins now in this context. An observer that is registered
    twice is returned once."""
    registered = [*everywhere, *here.get()]
    observers = [watching.observer for watching in registered]
    return [
        watching
        for index, watching in enumerate(registered)
        if watching.observer not in observers[:index]
    ]


def observe_log(log: list[Record], run_id: str, options: RunOptions) -> list[Record]:
    """Return a log that passes new records to the observers and the reader of the run, in place of
    `log`. If there is no observer and no reader, return `log` itself."""
    reader = reading.get()
    hear = None if reader is None or not reader.reads(run_id) else reader.hear
    observers = in_force()
    if hear is None and not observers:
        return log
    thread = None if options.turn is None else options.turn.thread
    run = ObservedRun(run_id, tuple(log), thread, options.metadata)
    return ObservedLog(log, run, observers, hear)


class ObservedLog(list[Record]):
    """The log of a run that has observers or a reader. The reader's `hear` gets every record."""

    __slots__ = ("_began", "_hear", "_observers", "_run")

    def __init__(
        self,
        log: Iterable[Record] = (),
        run: ObservedRun | None = None,
        observers: Sequence[Watching] = (),
        hear: Callable[[Record], object] | None = None,
    ) -> None:
        super().__init__(log)
        self._run = ObservedRun("") if run is None else run
        self._observers = tuple(observers)
        self._began = False
        self._hear = hear

    def append(self, record: Record) -> None:
        super().append(record)
        if self._observers:
            if not self._began:
                # Without a run, as in `resolve_fields`, there is nothing to observe.
                self._began = isinstance(record, RunStarted | RunResumed)
                if isinstance(record, RunStarted):
                    self._run.graph = record.graph
            if self._began:
                self._call_observers(record)
        if self._hear is not None:
            self._hear(record)

    def extend(self, records: Iterable[Record]) -> None:
        for record in records:
            self.append(record)

    def _call_observers(self, record: Record) -> None:
        for watching in self._observers:
            began = perf_counter()
            try:
                watching.observer(self._run, record)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # a CancelledError of the observer must not cancel the run
                self._drop_observer(watching, record, "raised")
            else:
                seconds = perf_counter() - began
                if seconds > watching.patience:
                    self._drop_observer(watching, record, f"took {seconds:.1f} s")

    def _drop_observer(self, watching: Watching, record: Record, did: str) -> None:
        import logging

        self._observers = tuple(
            observer for observer in self._observers if observer is not watching
        )
        logging.getLogger("bae").warning(
            "the observer %r %s at a %s and is not called again in the run %s, which continues",
            watching.observer,
            did,
            type(record).__name__,
            self._run.run_id,
            exc_info=did == "raised",
        )


def _refuse_async(observer: Observer) -> None:
    from inspect import iscoroutinefunction

    if not callable(observer):
        raise TypeError(f"{observer!r} is not an observer: give a function of a run and a record")
    call: object = getattr(observer, "__call__", None)  # noqa: B004  looked at, not tested for
    if iscoroutinefunction(observer) or iscoroutinefunction(call):
        raise TypeError(
            f"{observer!r} is async, and would not be awaited: give a plain function, which can "
            "put records into a queue with put_nowait; graph.stream(…) yields them in async code"
        )


everywhere: list[Watching] = []
"""The observers of all runs of this process."""
here: ContextVar[tuple[Watching, ...]] = ContextVar("bae_observers", default=())
"""The observers of the runs that begin in this context."""
reading: ContextVar[RunReader | None] = ContextVar("bae_reader", default=None)
"""The reader of the first run that begins in this context."""
