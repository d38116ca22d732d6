"""Old runs are deleted by the day: the partition of a day is dropped once the lines that others
still need were moved, and a process that is killed in the middle changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256

import pytest

from bae.journal import PostgresJournal, StoredRun
from journal_parts import ids, lines, new_run, program, run_program
from postgres_server import PostgresServer, journals_of

pytestmark = pytest.mark.once
DAYS = 40
PRUNE = """
import asyncio, sys
from bae.journal import PostgresJournal

async def main():
    async with PostgresJournal(sys.argv[1], schema=sys.argv[2]) as journal:
        print(await journal.prune(older_than=30 * 86400))

asyncio.run(main())
"""


@pytest.fixture
async def journal(postgres: PostgresServer) -> AsyncIterator[PostgresJournal]:
    with journals_of(postgres) as made:
        yield made()


async def execute(journal: PostgresJournal, *statements: str) -> list[list[object]]:
    """Do something behind the back of a journal; the rows of the last statement."""
    import asyncpg

    connection = await asyncpg.connect(journal.url)
    try:
        for statement in statements:
            rows = await connection.fetch(statement.replace("{s}", journal.schema))
        return [list(row) for row in rows]
    finally:
        await connection.close()


async def make_older(journal: PostgresJournal, *run_ids: str, days: int = DAYS) -> None:
    """Have runs, and their forks among them, be as if they had begun so many days ago."""
    keys = f"(select run from {{s}}.runs where id in {(*run_ids, '')})"
    older = f"- ({days * 86_400_000}::bigint << 22)"
    await execute(
        journal,
        f"select {{s}}.make_day((now() at time zone 'utc')::date - {days})",
        *(
            f"update {{s}}.{table} set run = run {older} where run in {keys}"
            for table in ("lines", "answers", "file_uses")
        ),
        f"update {{s}}.runs set parent = parent {older} where parent in {keys}",
        f"update {{s}}.runs set run = run {older}, updated = updated - {days * 86_400}"
        f" where id in {(*run_ids, '')}",
    )


async def partitions(journal: PostgresJournal) -> dict[str, int]:
    """The partitions that have lines, and how many."""
    rows = await execute(
        journal, "select tableoid::regclass::text, count(*) from {s}.lines group by 1"
    )
    return {str(name).rpartition("_")[2]: int(str(count)) for name, count in rows}


async def read_runs(journal: PostgresJournal, *run_ids: str) -> list[StoredRun]:
    runs = [await journal.read(run_id) for run_id in run_ids]
    # A lease that another process renews meanwhile, and the number of the last change.
    return [replace(r, info=replace(r.info, lease_until=None, change=0)) for r in runs]


def with_file(run: StoredRun, data: bytes) -> StoredRun:
    """The same run with a file, which its first line names."""
    name = f"sha256:{sha256(data).hexdigest()}"
    first = run.lines[0]._replace(data=f'{{"file": "{name}"}}')
    return replace(run, lines=(first, *run.lines[1:]), files={name: data})


OLD = [f"old-{n}" for n in range(12)]
KEPT = ["fork", "open", "parent", "queued", "turn-1", "turn-2", "waiting", "with-file"]
"""What is still needed: a run and its young fork, runs that are not over, the old turns of a thread
that goes on, and a young run with the file of an old one."""


async def fill(journal: PostgresJournal) -> None:
    """Runs of an old day, most of them not needed, and some runs of today."""
    for name in OLD:
        run = new_run(name, lines(0, 3, at=await today(journal)), status="ended")
        await journal.create(
            with_file(run, b"shared" if name == "old-1" else name.encode()), claim=False
        )
        await journal.answer(name, "gate", "1")
    for name, status, thread in (
        ("parent", "ended", None),
        ("open", "running", None),
        ("queued", "queued", None),
        ("waiting", "waiting", None),
        ("turn-1", "ended", "ana"),
        ("turn-2", "waiting", "ana"),
        ("with-file", "ended", None),
    ):
        run = new_run(name, lines(0, 3, at=await today(journal)), status=status, thread=thread)
        await journal.create(with_file(run, b"shared"), claim=False)
    await make_older(journal, *OLD, "parent", "open", "queued", "waiting", "turn-1")
    await journal.fork("parent", "fork", 2, lines(2, 4, at=await today(journal)))


async def today(journal: PostgresJournal) -> float:
    [[now]] = await execute(journal, "select extract(epoch from now())::float8")
    return float(str(now))


async def test_pruning_drops_the_partition_of_old_runs_and_keeps_needed_lines(
    journal: PostgresJournal,
):
    await fill(journal)
    before = await read_runs(journal, *KEPT)
    assert sum((await partitions(journal)).values()) == 3 * 19 + 2
    assert await journal.prune(older_than=30 * 86_400) == len(OLD)
    assert sorted(await ids(journal)) == KEPT
    assert await read_runs(journal, *KEPT) == before
    left = await partitions(journal)
    assert left.pop("kept") == 5 * 3
    assert [*left.values()] == [2 * 3 + 2]  # those of today
    rows = await execute(
        journal,
        "select (select count(*) from {s}.files), (select count(*) from {s}.answers),"
        " (select count(*) from {s}.file_uses)",
    )
    assert rows == [[1, 0, 7]]
    # What is moved is a run like any other: it goes on, and is deleted once nobody needs it.
    claim = await journal.claim("open")
    await journal.release(claim, "ended", lines(3, 5))
    assert await journal.delete(["fork", "parent", "open"]) == 3
    assert (await partitions(journal))["kept"] == 3 * 3
    assert await journal.prune(older_than=30 * 86_400) == 0


async def test_a_partition_with_many_kept_runs_is_not_dropped(journal: PostgresJournal):
    names = [f"r{n}" for n in range(9)]
    for name in names:
        status = "ended" if name in names[:3] else "waiting"
        await journal.create(
            new_run(name, lines(0, 2, at=await today(journal)), status=status), claim=False
        )
    await make_older(journal, *names)
    (day,) = await partitions(journal)
    assert await journal.prune(older_than=30 * 86_400) == 3
    assert await partitions(journal) == {day: 12}


async def test_a_process_killed_while_it_drops_a_partition_changes_nothing(
    journal: PostgresJournal,
):
    import asyncpg

    await fill(journal)
    everything = sorted([*OLD, *KEPT])
    before, days = await read_runs(journal, *everything), await partitions(journal)
    reader = await asyncpg.connect(journal.url)
    reading = reader.transaction()
    await reading.start()
    await reader.fetch(f"select count(*) from {journal.schema}.lines")
    pruning = program(PRUNE, journal.url, journal.schema)
    async with asyncio.timeout(60):
        while not await reader.fetchval(
            "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock'"
        ):
            assert pruning.poll() is None
    pruning.kill()
    pruning.communicate()
    await reading.rollback()
    await reader.close()
    assert await read_runs(journal, *everything) == before
    assert await partitions(journal) == days
    assert await asyncio.to_thread(run_program, PRUNE, journal.url, journal.schema) == str(len(OLD))
    assert sorted(await ids(journal)) == KEPT


async def test_runs_are_written_while_a_partition_is_dropped(journal: PostgresJournal):
    await fill(journal)
    claim = await journal.create(new_run("new", lines(0, 1)))
    assert claim is not None
    pruning = program(PRUNE, journal.url, journal.schema)
    n = 1
    while pruning.poll() is None:
        await journal.append(claim, lines(n, n + 1))
        n += 1
    assert pruning.communicate()[0].strip() == str(len(OLD))
    await journal.release(claim, "ended", lines(n, n + 1))
    assert [line.n for line in (await journal.read("new")).lines] == [*range(n + 1)]
