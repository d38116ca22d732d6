"""How long it takes to open a journal of very many runs and list the newest.

The runs are copies, made by SQL, of a run that bae has stored: a hundred thousand real runs would
take minutes. A copy has all lines of the run.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from pathlib import Path

from bae.journal import SQLiteJournal
from benchmarks.durable.contenders import BAE, Opened
from benchmarks.durable.contenders.bae_journal import open_store
from benchmarks.durable.samples import Team
from benchmarks.report import Result, Verdict, figure, spread
from benchmarks.sampling import Samples, Settings
from benchmarks.work import expect

RUNS = 100_000
LISTED = 50
STEPS = 3
ROUNDS = 11
MOST_SECONDS = 0.1

_COPY_RUNS = """
    with recursive numbers (n) as (select 2 union all select n + 1 from numbers where n < ?)
    insert into runs (run, id, graph, status, started, shape, epoch)
    select n, 'run-' || n, graph, status, started + n, shape, n from numbers, runs where run = 1"""
_COPY_LINES = """
    insert into lines (id, kind, at, path, step, data, version)
    select (runs.run << 32) + (lines.id & 4294967295), kind, at, path, step, data, version
    from runs, lines where runs.run > 1 and lines.id >> 32 = 1"""


def measure(people: Team, keys: list[str], settings: Settings) -> list[Result]:
    if BAE not in keys:
        return []
    folder = people.folder / "listing"
    folder.mkdir()
    file = folder / "store.db"
    asyncio.run(_build(folder))
    times = {"from the disk": Samples(), "from the system's cache": Samples()}
    for _ in range(min(settings.rounds, ROUNDS)):
        _drop_from_cache(file)
        for taken in times.values():
            taken.append(asyncio.run(_list(file)))
    size = file.stat().st_size
    file.unlink()
    shown = {name: f"{taken.median * 1e3:.1f} ms" for name, taken in times.items()}
    return [
        Result(
            case="listing",
            title=f"Opening a journal of {RUNS:,} runs and listing the newest {LISTED} (ms)",
            header=["", "median", "lowest–highest"],
            rows=[
                [name, figure(taken.median * 1e3), spread(taken, 1e3)]
                for name, taken in times.items()
            ],
            verdicts=[
                Verdict(
                    "listing",
                    f"opening {RUNS:,} runs and listing {LISTED} takes under 100 ms",
                    ", ".join(f"{text} {name}" for name, text in shown.items()),
                    all(taken.median < MOST_SECONDS for taken in times.values()),
                )
            ],
            notes=[f"The file has {size / 1e6:,.0f} MB."],
            samples=dict(times),
        )
    ]


async def _build(folder: Path) -> None:
    ready: Opened
    async with open_store(folder, "full") as ready:
        await ready.run("run-1", STEPS, False)
    connection = sqlite3.connect(folder / "store.db")
    connection.execute("pragma synchronous = off")
    connection.execute(_COPY_RUNS, (RUNS,))
    connection.execute(_COPY_LINES)
    connection.commit()
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()


async def _list(file: Path) -> float:
    start = time.perf_counter()
    async with SQLiteJournal(file) as journal:
        infos = await journal.runs(limit=LISTED)
        seconds = time.perf_counter() - start
    expect("the newest runs", [info.run_id for info in infos], _newest())
    return seconds


def _newest() -> list[str]:
    return [f"run-{RUNS - at}" for at in range(LISTED)]


def _drop_from_cache(file: Path) -> None:
    """Drop the pages of a file from the cache of the system, where that is possible."""
    if not hasattr(os, "posix_fadvise"):
        return
    opened_file = os.open(file, os.O_RDONLY)
    try:
        os.fsync(opened_file)
        os.posix_fadvise(opened_file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(opened_file)
