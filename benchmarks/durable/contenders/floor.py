"""The floor: a row inserted and committed for each step, in the thread of the caller, and nothing
else. The content of the rows is made before the clock starts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from time import time

from benchmarks.durable.contenders import Opened, pragmas_of
from benchmarks.durable.contenders.rows import node_data
from benchmarks.durable.work import Outcome, Tick, first, following

SCHEMA = """
pragma journal_mode = wal;
pragma synchronous = full;
create table lines (
    id integer primary key, run integer, kind text, at real, path text, step integer, data text
);
"""
ADD = "insert into lines (run, kind, at, path, step, data) values (?, ?, ?, ?, ?, ?)"


@cache
def _nodes(steps: int, heavy: bool) -> tuple[tuple[str, ...], Tick]:
    """Return the data of every step, and the last node."""
    node = first(steps, heavy)
    data: list[str] = []
    while node.left:
        node = following(node)
        data.append(node_data(type(node).__name__, node.model_dump_json()))
    return tuple(data), node


@asynccontextmanager
async def open_store(folder: Path, setting: str) -> AsyncGenerator[Opened]:
    connection = sqlite3.connect(folder / "store.db", isolation_level=None)
    connection.executescript(SCHEMA)
    runs = 0

    async def run(run_id: str, steps: int, heavy: bool) -> Outcome:
        nonlocal runs
        runs += 1
        data, last = _nodes(steps, heavy)
        execute = connection.execute
        for n, text in enumerate(data):
            execute(ADD, (runs, "StepStarted", time(), "", n, text))
        return last

    async def prepare(steps: int, heavy: bool) -> None:
        _nodes(steps, heavy)

    try:
        yield Opened(run, lambda: pragmas_of(connection), prepare)
    finally:
        connection.close()
