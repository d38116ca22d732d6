"""Lists and claims read no more rows than they return, however many runs there are: Postgres finds
them by an index."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bae.journal import PostgresJournal
from journal_parts import lines, new_run
from postgres_server import PostgresServer, journals_of

pytestmark = pytest.mark.once
COUNT = 4000
FILL = """
insert into {s}.runs (
    run, id, graph, status, started, updated, shape, owner, thread, labels, change
)
select ((extract(epoch from now()) * 1000)::bigint << 22) - n, 'r' || n, 'g' || n % 97,
    case when n % 100 = 0 then 'running' when n % 100 < 5 then 'queued'
        when n % 100 < 10 then 'waiting' when n % 100 < 15 then 'failed' else 'ended' end,
    1000, 1000, 1, case when n % 100 = 0 then 'host:' || n end,
    case when n % 100 >= 15 then 't' || n / 10 end,
    jsonb_build_object('"user"', (n % 500)::text), n
from generate_series(1, 4000) n
"""
LINES = """
insert into {s}.lines (run, n, kind, at, path, step, data, version)
select run, n, 'StepStarted', 1000, '', n, '{}', 1
from {s}.runs cross join generate_series(0, 4) n where id <> 'mine'
"""


@pytest.fixture
async def journal(postgres: PostgresServer) -> AsyncIterator[PostgresJournal]:
    """A journal with many runs, whose other processes have ended."""
    with journals_of(postgres) as made:
        journal = made()
        await journal.create(new_run("mine", lines(0, 3)), claim=False)
        async with connect(journal) as db:
            for text in (FILL, LINES, "analyze {s}.runs", "analyze {s}.lines"):
                await db.execute(text.replace("{s}", journal.schema))
        yield journal


@asynccontextmanager
async def connect(journal: PostgresJournal) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(journal.url)
    try:
        yield connection
    finally:
        await connection.close()


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


async def plans(journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch, ask: Any) -> list[Any]:
    """The query plans of a journal in Postgres: the nodes of the plan of each statement."""
    import asyncpg

    asked: list[tuple[str, tuple[Any, ...]]] = []
    fetch, fetch_row = asyncpg.Connection.fetch, asyncpg.Connection.fetchrow

    async def note_fetch(self: Any, query: str, *values: Any, **options: Any) -> Any:
        asked.append((query, values))
        return await fetch(self, query, *values, **options)

    async def note_row(self: Any, query: str, *values: Any, **options: Any) -> Any:
        asked.append((query, values))
        return await fetch_row(self, query, *values, **options)

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "fetch", note_fetch)
        patch.setattr(asyncpg.Connection, "fetchrow", note_row)
        await ask()
    found: list[Any] = []
    async with connect(journal) as db:
        await db.execute("set random_page_cost = 1.1")  # the table is small and in memory
        for query, values in asked:
            text = await db.fetchval(f"explain (analyze, format json) {query}", *values)
            found += nodes_of(json.loads(text)[0]["Plan"])
    assert found
    return found


def assert_indexed(nodes: list[Any], most: int = 120) -> None:
    """No more rows are read than a page has; tables that are read completely are small."""
    for node in nodes:
        removed = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
        assert (node["Actual Rows"] + removed) * node["Actual Loops"] <= most, node


ASKED = {
    "newest": {},
    "next page": {"before": "r2000"},
    "status": {"status": "failed"},
    "graph": {"graph": "g3"},
    "graph and status": {"graph": "g3", "status": "waiting"},
    "thread": {"thread": "t77"},
    "metadata": {"metadata": {"user": "77"}},
    "changed": {"after": COUNT - 20},
    "queued of a graph, as they changed": {"status": "queued", "graph": "g3", "after": 0},
    "interrupted": {"status": "interrupted", "limit": 20},
    "interrupted of a graph, as they changed": {"status": "interrupted", "graph": "g0", "after": 0},
}


@pytest.mark.parametrize("name", ASKED)
async def test_the_list_of_runs_reads_a_page_through_an_index(
    journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch, name: str
):
    options = {"limit": 50, **ASKED[name]}
    assert_indexed(await plans(journal, monkeypatch, lambda: journal.runs(**options)))


async def test_runs_lines_answers_and_forks_are_found_through_indexes(
    journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch
):
    await journal.fork("r7", "fork", 2, lines(2, 4))

    async def ask() -> None:
        for name in ("r5", "fork"):
            await journal.read(name)
            await journal.lines(name, after=1)
            await journal.answers(name)
            await journal.forks(name)

    assert_indexed(await plans(journal, monkeypatch, ask))


async def test_the_queries_of_a_claim_use_indexes(journal: PostgresJournal):
    """A claim is one function of the database: these are the statements in it."""
    claim = await journal.claim("r100")  # its owner is gone
    assert claim.run_id == "r100"
    async with connect(journal) as db:
        key = await db.fetchval(f"select run from {journal.schema}.runs where id = 'r100'")
        for text in (
            "select * from {s}.runs where id = 'r100' for update",
            f"select max(n) + 1 from {{s}}.lines where run = {key}",
            "select id from {s}.runs where thread = 't77' and status in ('running', 'waiting')"
            f" and run <> {key} limit 1",
            f"update {{s}}.runs set status = 'running' where run = {key}",
        ):
            text = text.replace("{s}", journal.schema)
            plan = json.loads(await db.fetchval(f"explain (analyze, format json) {text}"))
            assert_indexed([*nodes_of(plan[0]["Plan"])])
