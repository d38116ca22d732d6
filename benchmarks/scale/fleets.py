"""Runs a second with 1, 2 and 3 workers, and how soon a submitted run begins."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from bae.engine import Engine
from bae.journal import PostgresJournal
from benchmarks.report import Result, figure
from benchmarks.sampling import say
from benchmarks.scale.errands import PAUSE, STEPS, Errand, engine_of, graph

AT_ONCE = 20
"""Runs in progress in each worker."""
SUBMITTED_AT_ONCE = 50
WAYS = {
    "journal alone": "1.0",
    "journal alone, --poll 0.1": "0.1",
    "Temporal's development server": "temporal",
    "DBOS, which looks every 0.2 s": "dbos",
}


@contextmanager
def workers(number: int, url: str, way: str, address: str) -> Generator[None]:
    """So many worker processes inside the block."""
    arguments = [url, way, str(AT_ONCE), address]
    command = [sys.executable, "-m", "benchmarks.scale.errands", *arguments]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    started = [
        subprocess.Popen(command, stdout=pipe, stderr=null, text=True) for _ in range(number)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("a worker has not started: see above")
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.communicate()


async def measure_fleets(url: str, address: str, runs: int, latencies: int) -> list[Result]:
    """The table of throughput, and that of latency."""
    speeds: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}
    async with PostgresJournal(url) as journal:
        await journal.upgrade()
        for name, way in WAYS.items():
            engine = engine_of(way, url, address)
            for number in (1, 2, 3):
                with workers(number, url, way, address):
                    say(f"  {name}: {number} workers")
                    await _speed(journal, engine, 5)  # all is connected, and has tables
                    speeds.setdefault(name, []).append(await _speed(journal, engine, runs))
                    if number == 1:
                        waits[name] = await _waits(journal, engine, latencies)
            await engine.close()
    return [_throughput(speeds, runs), _latency(waits)]


async def _speed(journal: PostgresJournal, engine: Engine, runs: int) -> float:
    """Runs a second, from the first submission to the last end."""
    slots = asyncio.Semaphore(SUBMITTED_AT_ONCE)

    async def submit() -> str:
        async with slots:
            return await graph.submit(Errand(), journal=journal, engine=engine)

    begun = time.time()
    ids = await asyncio.gather(*(submit() for _ in range(runs)))
    results = [await graph.result(run_id, journal=journal, timeout=300) for run_id in ids]
    return runs / (max(each.result.ended for each in results) - begun)


async def _waits(journal: PostgresJournal, engine: Engine, times: int) -> list[float]:
    """Seconds from the submission of a run to its first line of code, with an idle worker."""
    found: list[float] = []
    for _ in range(times):
        submitted = time.time()
        run_id = await graph.submit(Errand(step=STEPS - 1), journal=journal, engine=engine)
        result = await graph.result(run_id, journal=journal, timeout=60)
        found.append(result.result.begun - submitted)
    return sorted(found)


def _throughput(speeds: dict[str, list[float]], runs: int) -> Result:
    rows = [
        [
            name,
            *(figure(each) for each in mine),
            *(figure(each / mine[0]) for each in mine[1:]),
        ]
        for name, mine in speeds.items()
    ]
    bound = AT_ONCE / (STEPS * PAUSE)
    return Result(
        "workers",
        f"{runs} runs of {STEPS} steps of {PAUSE * 1000:.0f} ms, {AT_ONCE} at once in each worker "
        "(runs a second)",
        ["", "1 worker", "2", "3", "2 ×", "3 ×"],
        rows,
        [],
        [
            f"A worker that did nothing but wait would end {bound:.0f} runs a second.",
            "Postgres, Temporal, the workers and the submitting process share the machine.",
        ],
        {"speeds": speeds},
    )


def _latency(waits: dict[str, list[float]]) -> Result:
    rows = [
        [
            name,
            figure(statistics.median(mine) * 1000),
            figure(mine[int(len(mine) * 0.95)] * 1000),
        ]
        for name, mine in waits.items()
    ]
    title = "From submit to the first line of the body, with an idle worker (ms)"
    return Result("dispatch", title, ["", "median", "p95"], rows, [], [], {"waits": waits})
