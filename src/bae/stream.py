"""A run seen from outside while it goes on: its journal, read record by record. The journal holds
every record anyway, so a slow reader costs the run nothing and misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bae.dataflow import gone
from bae.exceptions import BaeError
from bae.journal.memory import MemoryJournal
from bae.journal.records import Record
from bae.node import Node
from bae.result import GraphResult
from bae.runner import run_graph

if TYPE_CHECKING:
    from bae.graph import Graph

T = TypeVar("T", bound=Node, covariant=True)


class RunStream(Generic[T], AsyncIterator[Record]):
    """What `Graph.stream` returns: iterate it for the records, then read `.result`."""

    def __init__(self, graph: Graph[T], start: Node, **options: Any) -> None:
        self._journal = MemoryJournal()
        self._result: GraphResult[T] | None = None
        self._records = self._follow(graph, start, options)

    @property
    def result(self) -> GraphResult[T]:
        """What `arun` would have returned; there once the records are exhausted."""
        if self._result is None:
            raise BaeError(
                "the run is not over yet",
                code="bae-stream-unfinished",
                fix="read .result after the loop over the records",
            )
        return self._result

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
        self, graph: Graph[T], start: Node, options: dict[str, Any]
    ) -> AsyncGenerator[Record, None]:
        journal = self._journal
        news = asyncio.Event()

        def emit(record: Record) -> None:
            journal.append(record)
            news.set()

        task = asyncio.create_task(run_graph(graph, start, emit=emit, journal=journal, **options))
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
            self._result = task.result()
        finally:
            task.cancel()
            await gone([task])
