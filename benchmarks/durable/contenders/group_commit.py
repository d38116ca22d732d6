"""A group commit by hand: runs are plain loops over pydantic models, which hand the rows of each
step to one thread; it takes all that are queued and stores them in one transaction.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any

from benchmarks.durable.contenders import Opened, pragmas_of
from benchmarks.durable.contenders.rows import ADD_LINE, ADD_RUN, END_RUN, connect, node_data
from benchmarks.durable.work import Outcome, first, following

Statement = tuple[str, tuple[Any, ...]]


class Writer:
    """One thread, one connection, one transaction for whatever is queued."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[list[Statement], asyncio.Future[None]]] = deque()
        self._wake = threading.Semaphore(0)
        self._open = True
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def put(self, statements: list[Statement]) -> asyncio.Future[None]:
        """Queue statements, which are stored when the returned awaitable is awaited."""
        stored: asyncio.Future[None] = self._loop.create_future()
        self._queue.append((statements, stored))
        self._wake.release()
        return stored

    def close(self) -> None:
        self._open = False
        self._wake.release()
        self._thread.join()

    def _write(self) -> None:
        execute = self._connection.execute
        many = self._connection.executemany
        while True:
            self._wake.acquire()
            batch: list[tuple[list[Statement], asyncio.Future[None]]] = []
            while self._queue:
                batch.append(self._queue.popleft())
            if not batch:
                if not self._open:
                    return
                continue
            by_text: dict[str, list[tuple[Any, ...]]] = {}
            for statements, _ in batch:
                for text, row in statements:
                    by_text.setdefault(text, []).append(row)
            execute("begin immediate")
            for text, rows in by_text.items():
                many(text, rows)
            execute("commit")
            self._loop.call_soon_threadsafe(_tell, [stored for _, stored in batch])


def _tell(waiting: list[asyncio.Future[None]]) -> None:
    for stored in waiting:
        if not stored.done():
            stored.set_result(None)


@asynccontextmanager
async def open_store(folder: Path, setting: str) -> AsyncGenerator[Opened]:
    connection = connect(folder)
    pragmas = pragmas_of(connection)
    writer = Writer(connection)
    runs = 0

    async def run(run_id: str, steps: int, heavy: bool) -> Outcome:
        nonlocal runs
        runs += 1
        key = runs
        node = first(steps, heavy)
        name = type(node).__name__
        now = time()
        data = node_data(name, node.model_dump_json())
        await writer.put(
            [
                (ADD_RUN, (key, run_id, "chain", "running", now, now)),
                (ADD_LINE, (key, 0, "RunStarted", now, "", 0, data)),
            ]
        )
        n = 0
        while node.left:
            node = following(node)
            n += 1
            data = node_data(name, node.model_dump_json())
            await writer.put([(ADD_LINE, (key, n, "StepStarted", time(), "", n, data))])
        now = time()
        ended = (key, n + 1, "RunEnded", now, "", n, '{"outcome":"ended"}')
        await writer.put([(ADD_LINE, ended), (END_RUN, (now, key))])
        return node

    try:
        yield Opened(run, lambda: pragmas)
    finally:
        writer.close()
        connection.close()
