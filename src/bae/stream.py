"""`RunStream`: the records of a run, read one by one while it is in progress. They are kept for the
result anyway, so a slow reader costs the run nothing and misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bae.exceptions import BaeError
from bae.node import Node
from bae.observers import ObservedLog
from bae.recorder import Recorder, RunStore, checked_store
from bae.records import Record
from bae.result import GraphResult
from bae.run import Run
from bae.runner import run_graph
from bae.tasks import gone

if TYPE_CHECKING:
    from bae.graph import Graph

T = TypeVar("T", bound=Node, covariant=True)


class RunStream(Generic[T], AsyncIterator[Record]):
    """What `Graph.stream` returns: iterate it for the records, then read `.result`."""

    def __init__(self, graph: Graph[Any, T], start: Node, **options: Any) -> None:
        self._results: list[GraphResult[T]] = []
        # The generator does not know this object: with nothing pointing in a circle, both are
        # dropped, and the run cancelled, as soon as a loop that was left lets go of them.
        self._records = _follow(graph, start, options, self._results)

    @property
    def result(self) -> GraphResult[T]:
        """What `arun` would have returned; there once the records are exhausted."""
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
        """Cancel the run if it is not over, and wait until nothing of it is left."""
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
    graph: Graph[Any, T], start: Node, options: dict[str, Any], results: list[GraphResult[T]]
) -> AsyncGenerator[Record, None]:
    news = asyncio.Event()
    store: RunStore | None = options.pop("journal", None)
    run = Run(**options, recorder=Recorder(ObservedLog(wake=news.set)))
    journal = run.journal
    if store is None:
        task = asyncio.create_task(run_graph(graph, start, run))
    else:
        task = asyncio.create_task(checked_store(store).begin_run(graph, start, run))
    task.add_done_callback(lambda _: news.set())
    position = 0
    try:
        while True:
            while position < len(journal):
                position += 1
                yield journal[position - 1]
            if task.done():
                break
            news.clear()
            await news.wait()
        results.append(task.result())
    finally:
        task.cancel()
        await gone([task])
