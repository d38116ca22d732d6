"""A worker as `bae worker` is, with a lease of 3 seconds instead of 30, so that a demo is short:
python worker.py JOURNAL TEMPORAL."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from orders import graph

from bae.engine import TemporalEngine, Worker
from bae.journal import PostgresJournal

LEASE = 3.0


async def main(url: str, address: str) -> None:
    """Carry out runs until SIGTERM."""
    engine = TemporalEngine(address, heartbeat=LEASE)
    async with PostgresJournal(url, lease=LEASE) as journal:
        worker = Worker(graph, journal=journal, engine=engine, concurrency=5)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(main(*sys.argv[1:]))
