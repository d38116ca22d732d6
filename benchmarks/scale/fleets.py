"""Runs a second with 1, 2 and 3 workers, and how soon a submitted run begins."""

from __future__ import annotations

import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from random import Random

from bae.engine import Engine
from bae.journal import PostgresJournal
from benchmarks.report import Result, Verdict, figure
from benchmarks.sampling import say
from benchmarks.scale.errands import PAUSE, STEPS, Errand, engine_of, graph

AT_ONCE = 20
"""Runs in progress in each worker."""
SUBMITTED_AT_ONCE = 50
ALONE, TEMPORAL = "journal alone", "Temporal's development server"
POLL = 1.0
"""Seconds between two looks of a worker into the journal, by default."""
WAYS = {
    ALONE: str(POLL),
    "journal alone, --poll 0.1": "0.1",
    TEMPORAL: "temporal",
    "DBOS, which looks every 0.2 s": "dbos",
}
FASTER = {2: 1.5, 3: 2.0}
"""How many times the runs a second of one worker two and three must end at least: the machine has
two cores, which they share with Postgres."""
MOST_WAIT = {ALONE: 0.5 * POLL + 0.1, TEMPORAL: 0.1}
"""Seconds that half of the runs may take at most from their submission to their first line."""
_TROUBLE = re.compile("WARN|ERROR|CRITICAL|Traceback")


@contextmanager
def workers(number: int, url: str, way: str, address: str) -> Generator[None]:
    """Run this number of worker processes inside the block, and print the warnings and errors that
    they log."""
    arguments = [url, way, str(AT_ONCE), address]
    command = [sys.executable, "-m", "benchmarks.scale.errands", *arguments]
    with tempfile.TemporaryFile("w+") as log:
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            for _ in range(number)
        ]
        try:
            for process in started:
                assert process.stdout is not None
                if process.stdout.readline().strip() != "ready":
                    log.seek(0)
                    raise RuntimeError(f"a worker has not started: {log.read()}")
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.communicate()
        log.seek(0)
        for line in filter(_TROUBLE.search, log):
            say(line.rstrip())


async def measure_fleets(url: str, address: str, runs: int, latencies: int) -> list[Result]:
    """Return the tables of throughput and of latency."""
    speeds: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}
    async with PostgresJournal(url) as journal:
        await journal.upgrade()
        for name, way in WAYS.items():
            engine = engine_of(way, url, address)
            for number in (1, 2, 3):
                with workers(number, url, way, address):
                    say(f"  {name}: {number} workers")
                    await _measure_speed(journal, engine, 5)  # all is connected, and has tables
                    speeds.setdefault(name, []).append(await _measure_speed(journal, engine, runs))
                    if number == 1:
                        waits[name] = await _waits(journal, engine, latencies)
            await engine.close()
    return [_throughput(speeds, runs), _latency(waits)]


async def _measure_speed(journal: PostgresJournal, engine: Engine, runs: int) -> float:
    """Return the runs per second, from the first submission to the last end."""
    slots = asyncio.Semaphore(SUBMITTED_AT_ONCE)

    async def submit() -> str:
        async with slots:
            return await graph.submit(Errand(), journal=journal, engine=engine)

    begun = time.time()
    ids = await asyncio.gather(*(submit() for _ in range(runs)))
    results = [await graph.result(run_id, journal=journal, timeout=300) for run_id in ids]
    return runs / (max(result.result.ended for result in results) - begun)


async def _waits(journal: PostgresJournal, engine: Engine, times: int) -> list[float]:
    """Return the seconds from the submission of each run to its first line of code, with an idle
    worker."""
    waits: list[float] = []
    random = Random(1)
    for _ in range(times):
        # At any moment between two looks: otherwise each run comes just after the one before.
        await asyncio.sleep(random.uniform(0, POLL))
        submitted = time.time()
        run_id = await graph.submit(Errand(step=STEPS - 1), journal=journal, engine=engine)
        result = await graph.result(run_id, journal=journal, timeout=60)
        waits.append(result.result.begun - submitted)
    return sorted(waits)


def _throughput(speeds: dict[str, list[float]], runs: int) -> Result:
    rows = [
        [
            name,
            *(figure(speed) for speed in mine),
            *(figure(other / mine[0]) for other in mine[1:]),
        ]
        for name, mine in speeds.items()
    ]
    bound = AT_ONCE / (STEPS * PAUSE)
    verdicts: list[Verdict] = []
    for number, least in FASTER.items():
        ratio = speeds[ALONE][number - 1] / speeds[ALONE][0]
        target = f"{ALONE}: {number} workers end at least {least:g} × the runs of one"
        verdicts.append(Verdict("workers", target, f"{ratio:.2f} ×", ratio >= least))
    return Result(
        "workers",
        f"{runs} runs of {STEPS} steps of {PAUSE * 1000:.0f} ms, {AT_ONCE} at once in each worker "
        "(runs a second)",
        ["", "1 worker", "2", "3", "2 ×", "3 ×"],
        rows,
        verdicts,
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
    verdicts: list[Verdict] = []
    for name, most in MOST_WAIT.items():
        median = statistics.median(waits[name])
        target = f"{name}: a run begins at most {most * 1000:.0f} ms after submit (median)"
        verdicts.append(Verdict("dispatch", target, f"{median * 1000:.0f} ms", median <= most))
    title = "From submit to the first line of the body, with an idle worker (ms)"
    return Result("dispatch", title, ["", "median", "p95"], rows, verdicts, [], {"waits": waits})
