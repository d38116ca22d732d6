"""A graph of five steps that each wait 50 ms, and its worker as a process:
python -m benchmarks.scale.errands JOURNAL WAY CONCURRENCY TEMPORAL."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bae import Graph, Node
from bae.engine import Engine, JournalEngine, TemporalEngine, Worker
from bae.journal import PostgresJournal

STEPS, PAUSE = 5, 0.05


class Errand(Node):
    step: int = 0
    begun: float = 0.0

    async def __call__(self) -> Errand | Finished:
        begun = self.begun or time.time()
        await asyncio.sleep(PAUSE)
        if self.step + 1 < STEPS:
            return Errand(step=self.step + 1, begun=begun)
        return Finished(begun=begun, ended=time.time())


class Finished(Node):
    begun: float
    ended: float

    async def __call__(self) -> None: ...


graph = Graph(start=Errand, end=Finished, name="errands")


def engine_of(way: str, url: str, address: str) -> Engine:
    """Return an engine by its name: "temporal", "dbos", or a number, which is the seconds between
    two looks into the journal."""
    if way == "temporal":
        return TemporalEngine(address)
    if way == "dbos":
        return dbos_engine(url)
    return JournalEngine(poll=float(way))


def dbos_engine(url: str) -> Engine:
    """Return the engine of the docs. It looks for lost runs only once a minute, so it does not
    affect the figures."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "engine.md"
    (code,) = re.findall(r'title="dbos_engine.py"\n(.*?)^```$', page.read_text(), re.S | re.M)
    names: dict[str, Any] = {}
    exec(compile(code, str(page), "exec"), names)
    engine: Engine = names["DBOSEngine"](url, poll=60)
    return engine


async def work(url: str, way: str, concurrency: int, address: str) -> None:
    """Carry out runs until SIGTERM."""
    engine = engine_of(way, url, address)
    async with PostgresJournal(url) as journal:
        await journal.last_change()  # the connection is open
        worker = Worker(graph, journal=journal, engine=engine, concurrency=concurrency)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        print("ready", flush=True)
        await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
