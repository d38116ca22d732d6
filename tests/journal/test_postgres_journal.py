"""`PostgresJournal` on a real server: every promise of a journal, and its own promises."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from textwrap import dedent

import pytest

from bae import Graph, JournalError, Node
from bae.journal import PostgresJournal
from bae.journal.postgres.tables import VERSION
from bae.testing import check_journal
from journal_parts import expect_refusal, ids, line, lines, new_run, numbers
from postgres_server import PostgresServer, Wire, new_schema

pytestmark = pytest.mark.once


async def open_journal(postgres: PostgresServer, **options: object) -> PostgresJournal:
    """A journal in new tables."""
    journal = PostgresJournal(postgres.url, schema=new_schema(), **options)
    await journal.upgrade()
    return journal


def again(journal: PostgresJournal, url: str | None = None, **options: object) -> PostgresJournal:
    """Another journal in the same tables, as another process has it."""
    return PostgresJournal(url or journal.url, schema=journal.schema, **options)


async def test_the_postgres_journal_keeps_every_promise(postgres: PostgresServer):
    journals = [await open_journal(postgres) for _ in range(50)]
    await check_journal(lambda: journals.pop(), reopen=again)


# --- opening -------------------------------------------------------------------------------------


async def test_a_database_without_tables_is_refused_with_the_command_to_create_them(
    postgres: PostgresServer,
):
    journal = PostgresJournal(postgres.url, schema=new_schema())
    with expect_refusal("bae-journal-schema") as error:
        await journal.runs()
    assert "bae db upgrade" in str(error.value)
    assert await journal.upgrade() == (0, VERSION)
    assert await journal.runs() == []
    assert await journal.upgrade() == (VERSION, VERSION)
    await journal.close()


async def test_tables_of_an_earlier_version_are_upgraded_with_their_runs(
    postgres: PostgresServer,
):
    import asyncpg

    journal = await open_journal(postgres)
    await journal.create(new_run("r", lines(0, 2)), claim=False)
    before = await journal.read("r")
    connection = await asyncpg.connect(postgres.url)
    for statement in (
        "drop index {s}.runs_by_state",
        "drop index {s}.runs_of_graph",
        "drop index {s}.runs_of_busy_threads",
        "drop table {s}.rates",
        "drop table {s}.cached_answers",
        "update {s}.versions set version = 1",
    ):
        await connection.execute(statement.replace("{s}", journal.schema))
    await connection.close()
    await journal.close()
    async with again(journal) as refusing:
        with expect_refusal("bae-journal-schema") as error:
            await refusing.read("r")
        assert "version 1" in str(error.value)
        assert await refusing.upgrade() == (1, VERSION)
        assert await refusing.read("r") == before


@pytest.mark.parametrize("url", ["sqlite:///x", "postgresql+psycopg://h/d", "postgresql://h:x/d"])
def test_an_invalid_address_is_refused_at_once(url: str):
    with pytest.raises(ValueError, match="address of a database"):
        PostgresJournal(url)


@pytest.mark.parametrize(
    "place",
    [
        *("bae:s3cret@127.0.0.1:1/d", "127.0.0.1:1/d?password=s3cret"),
        "127.0.0.1:1/d?passwd=s3cret",  # misspelled
    ],
)
async def test_passwords_appear_in_no_journal_name_and_no_error(place: str):
    journal = PostgresJournal(f"postgresql://{place}", patience=0)
    with expect_refusal("bae-journal-away") as error:
        await journal.runs()
    with pytest.raises(ValueError, match="address") as other:
        PostgresJournal(f"mysql://{place}")
    said = f"{journal!r} {journal.name} {journal.url} {error.value!r} {error.value} {other.value}"
    assert "s3cret" not in said
    await journal.close()


async def test_a_missing_database_is_an_error_without_a_wait(postgres: PostgresServer):
    journal = PostgresJournal(postgres.url.replace("/postgres", "/nowhere"))
    with expect_refusal("bae-journal-failed"):
        await asyncio.wait_for(journal.runs(), 10)
    await journal.close()


# --- loops and threads ---------------------------------------------------------------------------


class Ended(Node):
    left: int

    async def __call__(self) -> None: ...


class Tick(Node):
    left: int

    async def __call__(self) -> Tick | Ended:
        return Tick(left=self.left - 1) if self.left else Ended(left=0)


TICKS = Graph(start=Tick, end=Ended)


async def test_many_loops_and_threads_share_a_journal(postgres: PostgresServer):
    journal = await open_journal(postgres)
    ended: list[int] = []

    def work() -> None:
        async def both() -> None:
            done = await asyncio.gather(*(TICKS.arun(Tick(left=5), journal=journal) for _ in "ab"))
            ended.extend(len(run.trace) for run in done)

        asyncio.run(both())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert ended == [7] * 8
    assert {info.status for info in await journal.runs()} == {"ended"}
    await journal.close()


class Blocking(Node):
    async def __call__(self) -> Ended:
        time.sleep(1.2)  # noqa: ASYNC251 - it blocks
        return Ended(left=0)


async def test_a_body_that_blocks_its_loop_for_three_leases_keeps_its_run(
    postgres: PostgresServer,
):
    journal = await open_journal(postgres, lease=0.4)
    other = again(journal, lease=0.4)

    def work() -> None:
        graph = Graph(start=Blocking, end=Ended)
        asyncio.run(graph.arun(Blocking(), journal=journal, run_id="blocking"))

    thread = threading.Thread(target=work)
    thread.start()
    refusals = 0
    while thread.is_alive():
        try:
            await other.claim("blocking")
        except JournalError as error:
            refusals += error.code == "bae-run-owned"
            if error.code not in ("bae-run-owned", "bae-run-unknown", "bae-run-ended"):
                raise
        else:
            pytest.fail("it was taken over")
    assert refusals
    assert (await other.info("blocking")).status == "ended"
    await journal.close()
    await other.close()


async def test_a_garbage_collected_journal_stops_its_thread_and_releases_its_runs(
    postgres: PostgresServer,
):
    owner = await open_journal(postgres)
    forgotten = again(owner)
    await forgotten.create(new_run("r", lines(0, 1)))
    name = f"bae {forgotten.name}"
    threads = [thread for thread in threading.enumerate() if thread.name == name]
    del forgotten
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
    assert (await owner.claim("r")).run_id == "r"
    await owner.close()


def test_a_program_that_never_closes_its_journal_loses_nothing(postgres: PostgresServer):
    schema = new_schema()
    program = f"""
        import asyncio
        from bae.journal import PostgresJournal
        from journal_parts import line, lines, new_run

        async def main():
            global journal
            journal = PostgresJournal({postgres.url!r}, schema={schema!r})
            await journal.upgrade()
            claim = await journal.create(new_run("r", lines(0, 1)))
            journal.note(claim, line(1))

        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True, timeout=60, cwd="tests")

    async def look() -> None:
        async with PostgresJournal(postgres.url, schema=schema) as journal:
            assert await numbers(journal, "r") == [0, 1]
            assert (await journal.info("r")).owner is None

    asyncio.run(look())


# --- answers that are lost -----------------------------------------------------------------------


async def test_lines_in_flight_at_a_broken_connection_are_stored_once(
    postgres: PostgresServer,
):
    owner = await open_journal(postgres)
    async with Wire(postgres) as wire:
        journal = again(owner, wire.url)
        await journal.runs()

        async def losing(do, part=b""):
            wire.losing = part
            done = await do
            assert wire.losing is None
            return done

        claim = await losing(journal.create(new_run("r", lines(0, 1))))
        await losing(journal.append(claim, lines(1, 2)))
        await losing(journal.append(claim, lines(2, 4)))
        assert await losing(journal.answer("r", "0:Gate.yes", "true"))
        assert not await losing(journal.answer("r", "0:Gate.yes", "false"))
        await losing(journal.release(claim, "waiting", lines(4, 5)))
        claim = await losing(journal.claim("r"))
        assert claim.token == 2
        await losing(journal.fork("r", "f", 3, lines(3, 4)), b"COMMIT")
        await losing(journal.replace([new_run("r2", lines(0, 3))]), b"COMMIT")
        await losing(journal.append(claim, lines(5, 6)))
        await losing(journal.release(claim, "ended", ()))
        assert wire.lost == 11
        assert await losing(journal.delete(["r2"]), b"COMMIT") == 1
        await journal.close()
    assert await numbers(owner, "r") == [0, 1, 2, 3, 4, 5]
    assert await numbers(owner, "f") == [0, 1, 2, 3]
    assert await ids(owner) == ["f", "r"]
    await owner.close()


async def test_concurrent_claims_over_a_lossy_connection_succeed_once(
    postgres: PostgresServer,
):
    owner = await open_journal(postgres)
    await owner.create(new_run("r", lines(0, 1)), claim=False)
    async with Wire(postgres) as wire:
        journal = again(owner, wire.url)
        await journal.runs()
        wire.losing = b""
        claims = await asyncio.gather(*(journal.claim("r") for _ in "abc"), return_exceptions=True)
        given = [claim for claim in claims if not isinstance(claim, BaseException)]
        assert len(given) == 1
        assert {claim.code for claim in claims if isinstance(claim, JournalError)} == {
            "bae-run-owned"
        }
        await journal.close()
    await owner.close()


async def test_constantly_broken_connections_neither_lose_nor_duplicate_lines(
    postgres: PostgresServer,
):
    import asyncpg

    journal = await open_journal(postgres)

    cuts = 0

    async def write(run_id: str) -> int:
        """Write lines until there were twelve cuts; returns how many."""
        claim = await journal.create(new_run(run_id, lines(0, 1)))
        n = 1
        while cuts < 12:
            await journal.append(claim, [line(n)])
            n += 1
        await journal.release(claim, "ended", [line(n)])
        return n + 1

    names = [f"r{n}" for n in range(5)]
    writing = asyncio.gather(*map(write, names))
    cutting = await asyncpg.connect(postgres.url)
    while cuts < 12:  # in whatever they do
        ended = await cutting.fetch(
            "select pg_terminate_backend(pid, 100) from pg_stat_activity"
            " where application_name = 'bae' and query ~ $1",
            f"{journal.schema}.(write|lines)",
        )
        cuts += len(ended)
    await cutting.close()
    for name, count in zip(names, await writing, strict=True):
        assert await numbers(journal, name) == [*range(count)]
    assert {info.status for info in await journal.runs()} == {"ended"}
    await journal.close()
