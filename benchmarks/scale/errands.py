"""A graph of five steps that each wait 50 ms, and its worker as a process:
python -m benchmarks.scale.errands JOURNAL POLL CONCURRENCY [TEMPORAL]."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

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


async def work(url: str, poll: float, concurrency: int, address: str = "") -> None:
    """Carry out runs until SIGTERM."""
    engine: Engine = TemporalEngine(address) if address else JournalEngine(poll=poll)
    async with PostgresJournal(url) as journal:
        await journal.last_change()  # the connection is open
        worker = Worker(graph, journal=journal, engine=engine, concurrency=concurrency)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        print("ready", flush=True)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
