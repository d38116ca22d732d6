"""DBOS on SQLite: an async workflow whose steps are async functions. As it comes it uses SQLite's
rollback journal; WAL is a property of the file, so here a file is made that has it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import sqlalchemy
from dbos import DBOS, SetWorkflowID
from sqlalchemy import event

from benchmarks.durable.contenders import Opened, pragmas_of
from benchmarks.durable.work import Outcome, Tick, first, following


@DBOS.step()
async def tick(now: Tick) -> Tick:
    return following(now)


@DBOS.workflow()
async def chain(now: Tick) -> Tick:
    while now.left:
        now = await tick(now)
    return now


@asynccontextmanager
async def open_store(folder: Path, setting: str) -> AsyncGenerator[Opened]:
    file = folder / "store.db"
    with sqlite3.connect(file) as made:
        made.execute(f"pragma journal_mode = {setting}")
    made.close()
    seen: list[str] = []

    @event.listens_for(sqlalchemy.Engine, "checkin")
    def look(connection: sqlite3.Connection | None, record: object) -> None:
        if not seen and connection is not None:
            seen.append(pragmas_of(connection))

    DBOS(
        config={
            "name": "durable-benchmark",
            "system_database_url": f"sqlite:///{file}",
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    DBOS.launch()
    event.remove(sqlalchemy.Engine, "checkin", look)

    async def run(run_id: str, steps: int, heavy: bool) -> Outcome:
        with SetWorkflowID(run_id):
            return await chain(first(steps, heavy))

    try:
        yield Opened(run, lambda: seen[0] if seen else "not told")
    finally:
        await asyncio.to_thread(DBOS.destroy)
