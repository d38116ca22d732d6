"""A worker as a process, with a lease that tests choose: JOURNAL LEASE CONCURRENCY [ADDRESS]."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bae.engine import JournalEngine, TemporalEngine, Worker
from bae.journal import SQLiteJournal
from engine import shop


def open_journal(where: str, lease: float) -> Any:
    """The journal of an address, with its schema after a `#`, or of a file."""
    if where.startswith("postgresql:"):
        from bae.journal import PostgresJournal

        url, _, schema = where.partition("#")
        return PostgresJournal(url, schema=schema or "bae", lease=lease)
    return SQLiteJournal(where, lease=lease)


@contextmanager
def write_spans() -> Iterator[None]:
    """Write the spans of the block into the file that SHOP_SPANS names, if it does."""
    if "SHOP_SPANS" not in os.environ:
        yield
        return
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from bae.otel import tracing

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with tracing(provider):
        yield
    written = [json.loads(span.to_json()) for span in spans.get_finished_spans()]
    Path(os.environ["SHOP_SPANS"]).write_text(json.dumps(written))


async def main(where: str, lease: float, concurrency: int, address: str = "") -> None:
    """Carry out runs until SIGTERM."""
    engine: Any = JournalEngine(poll=0.2)
    if address == "dbos":  # of the docs; the test has put it on the path
        from dbos_engine import DBOSEngine

        engine = DBOSEngine(where.partition("#")[0], poll=2)
    elif address:
        engine = TemporalEngine(address, heartbeat=lease, sweep=3)
    async with open_journal(where, lease) as journal:
        graphs = (shop.orders, shop.refunds, shop.poison)
        worker = Worker(
            *graphs, journal=journal, engine=engine, concurrency=concurrency, most_deaths=3
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        print("ready", flush=True)
        with write_spans():
            await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
