"""How long lists, claims and retention take in a Postgres journal with very many runs.

The tables are filled by SQL. Everything that is measured goes through the public journal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import asyncpg

from bae.engine.ready_runs import ReadyRuns
from bae.journal import PostgresJournal
from benchmarks.report import Result, Verdict, figure, publish
from benchmarks.sampling import say

sys.path.append(str(Path(__file__).parents[1] / "examples" / "scale"))
from servers import postgres

BEGIN = "<!-- run list figures: begin, written by python -m benchmarks.run_lists --write -->"
END = "<!-- run list figures: end -->"
DAYS = 10
REPEATS = 7
MOST_MS = 20.0
"""What a list or a claim may take at most, as the median."""
CLAIMS = ("runs for a worker to claim", "claim and end an interrupted run")

_DAYS = "select {s}.make_day((now() at time zone 'utc')::date - d) from generate_series(1, $1) d"
# Of a hundred runs 88 have ended, 5 failed, 3 are parked, 3 queued and 1 is in progress; they began
# evenly over ten days. A run has ten lines of about 150 bytes.
_RUNS = """
insert into {s}.runs (run, id, graph, status, started, updated, shape, owner, waiting, error,
    thread, metadata, labels, change)
select run, 'run-' || n, 'graph-' || n % 10,
    case when n % 100 < 88 then 'ended' when n % 100 < 93 then 'failed'
        when n % 100 < 96 then 'waiting' when n % 100 < 99 then 'queued' else 'running' end,
    at, at, 1, case when n % 100 = 99 then 'host:' || n / 100 % 100 || ':owner' end,
    case when n % 100 between 93 and 95
        then '[["0:Ask.agreed", "Ask.agreed", "Well?", null]]' else '[]' end,
    '', case when n % 4 = 0 then 'thread-' || n / 40 end, '{{"user": ' || n % 1000 || '}}',
    jsonb_build_object('"user"', n % 1000 || ''), n
from (
    select n, at, ((at * 1000)::bigint << 22) + n as run from (
        select n, extract(epoch from now()) - 86400.0 * $3::int * (1 - n::float8 / $4::int) as at
        from generate_series($1::int, $2::int) n
    ) timed
) keyed
"""
_LINES = """
insert into {s}.lines (run, n, kind, at, path, step, data, version)
select run, n, 'StepStarted', started, '', n, repeat('x', 100), 1
from {s}.runs cross join generate_series(0, $3::int - 1) n where change between $1 and $2
"""


async def fill(url: str, schema: str, runs: int, lines: int) -> float:
    """Fill the tables, and return how many seconds that took."""
    connection = await asyncpg.connect(url)
    started = time.perf_counter()

    async def execute(text: str, *values: object) -> None:
        await connection.execute(
            text.replace("{s}", schema).replace("{{", "{").replace("}}", "}"), *values
        )

    await execute("insert into {s}.shapes (hash, text) values ('hash', '{{}}')")
    await execute(_DAYS, DAYS)
    await execute(
        "insert into {s}.owners (name, until, lease) select 'host:' || n || ':owner',"
        " now() + interval '1 h', interval '30 s' from generate_series(0, 99) n where n % 10 <> 0"
    )
    at_once = 50_000
    for first in range(1, runs + 1, at_once):
        last = min(first + at_once - 1, runs)
        await execute(_RUNS, first, last, DAYS, runs)
        await execute(_LINES, first, last, lines)
        say(f"{last:,} runs")
    await execute("update {s}.changes set last = $1", runs)
    for table in ("runs", "lines", "owners"):
        await connection.execute(f"vacuum analyze {schema}.{table}")
    await connection.close()
    return time.perf_counter() - started


async def median_ms(ask: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Return the median and the maximum of the time of some calls, in milliseconds."""
    await ask()
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        await ask()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times), max(times)


async def measure(journal: PostgresJournal, runs: int) -> tuple[list[list[str]], dict[str, float]]:
    """Measure the queries. Returns table rows, and the medians."""
    page = (await journal.runs(limit=50))[-1].run_id
    middle = f"run-{runs // 2}"
    numbers = iter(range(99, runs, 1000))
    ready = ReadyRuns(journal, ["graph-8"])

    async def claim() -> None:
        run_id = f"run-{next(numbers)}"  # its owner is dead
        await journal.release(await journal.claim(run_id), "ended", [])

    queries: dict[str, Callable[[], Awaitable[object]]] = {
        "the newest 50": lambda: journal.runs(limit=50),
        "the next page": lambda: journal.runs(limit=50, before=page),
        "a page in the middle": lambda: journal.runs(limit=50, before=middle),
        "failed": lambda: journal.runs(status="failed"),
        "of a graph": lambda: journal.runs(graph="graph-3"),
        "of a graph and a status": lambda: journal.runs(graph="graph-3", status="failed"),
        "interrupted": lambda: journal.runs(status="interrupted"),
        "of a thread": lambda: journal.runs(thread="thread-500"),
        "by metadata": lambda: journal.runs(metadata={"user": 500}),
        "changed last": lambda: journal.runs(after=runs - 50, limit=50),
        "one run with its lines": lambda: journal.read(middle),
        CLAIMS[0]: lambda: ready.find(20),
        CLAIMS[1]: claim,
    }
    rows: list[list[str]] = []
    medians: dict[str, float] = {}
    for name, ask in queries.items():
        medians[name], most = await median_ms(ask)
        rows.append([name, figure(medians[name]), figure(most)])
        say(f"{name}: {medians[name]:.1f} ms")
    started = time.perf_counter()
    count = await journal.prune(older_than=(DAYS - 1.5) * 86_400)
    seconds = (time.perf_counter() - started) * 1000
    rows.append([f"prune {count:,} runs, a day and more", figure(seconds), "–"])
    return rows, medians


def judge(medians: dict[str, float]) -> list[Verdict]:
    """Return the verdicts on the slowest list and the slowest claim."""
    verdicts: list[Verdict] = []
    for what, names in (("list", medians.keys() - {*CLAIMS}), ("claim", CLAIMS)):
        slowest = max(names, key=lambda name: medians[name])
        measured = f"{figure(medians[slowest])} ms: {slowest}"
        target = f"each {what} takes at most {MOST_MS:g} ms (median)"
        verdicts.append(Verdict(what, target, measured, medians[slowest] <= MOST_MS))
    return verdicts


async def work(url: str, runs: int, lines: int) -> Result:
    schema = f"run_lists_{int(time.time())}"
    async with PostgresJournal(url, schema=schema) as journal:
        await journal.upgrade()
        seconds = await fill(url, schema, runs, lines)
        rows, medians = await measure(journal, runs)
    connection = await asyncpg.connect(url)
    await connection.execute(f"drop schema {schema} cascade")
    await connection.close()
    title = f"{runs:,} runs with {runs * lines:,} lines (ms)"
    notes = [f"Filled in {seconds:.0f} s."]
    return Result("lists", title, ["", "median", "most"], rows, judge(medians), notes)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_lists", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--lines", type=int, default=10, metavar="N", help="of each run")
    parser.add_argument("--url", help="a database (default: a new server)")
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bae-bench-")))
        url = options.url or stack.enter_context(postgres(folder))
        load = os.getloadavg()[0]
        result = asyncio.run(work(url, options.runs, options.lines))
    where = f"Measured on {os.cpu_count()} cores with a load of {load:.1f} before it began."
    print(where, result.markdown(), sep="\n\n")
    print("\n" + "\n".join(verdict.line() for verdict in result.verdicts))
    if options.write:
        publish(options.write, where, [result], BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
