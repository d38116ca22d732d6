"""The right to write a run in Postgres: processes that have lost their lease, that froze, whose
clock is wrong, or whose database went away or came back as an older copy."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from bae import Graph, JournalError, Node
from bae.journal import Claim, PostgresJournal
from journal_parts import expect_refusal, ids, line, lines, new_run, numbers
from postgres_server import PostgresServer, new_schema, postgres_server

pytestmark = pytest.mark.once


@pytest.fixture
async def journal(postgres: PostgresServer) -> AsyncIterator[PostgresJournal]:
    """A journal with the run "r", whose owner is another process."""
    async with PostgresJournal(postgres.url, schema=new_schema()) as made:
        await made.upgrade()
        yield made


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    with postgres_server() as server:
        yield server


@asynccontextmanager
async def another(journal: PostgresJournal, **options: object) -> AsyncIterator[PostgresJournal]:
    """A journal in the same tables, as another process has it."""
    async with PostgresJournal(journal.url, schema=journal.schema, **options) as made:
        yield made


async def execute(journal: PostgresJournal, *statements: str) -> None:
    """Do something behind the back of a journal."""
    import asyncpg

    connection = await asyncpg.connect(journal.url)
    try:
        for statement in statements:
            await connection.execute(statement.replace("{s}", journal.schema))
    finally:
        await connection.close()


async def outlive(journal: PostgresJournal) -> None:
    """Have the leases of all owners end, as if time had passed in which others were heard."""
    await execute(
        journal,
        "update {s}.owners set until = now() - interval '1 h'",
        "update {s}.heart set since = now() - interval '1 h', last = clock_timestamp()",
    )


# --- taking over ---------------------------------------------------------------------------------


async def test_a_takeover_waits_for_a_batch_in_flight(
    journal: PostgresJournal,
):
    import asyncpg

    async with another(journal) as owner:
        claim = await owner.create(new_run("r", lines(0, 1)))
        holding, looking = [await asyncpg.connect(journal.url) for _ in "ab"]
        lock = holding.transaction()
        await lock.start()
        await holding.execute(f"lock table {journal.schema}.lines in share mode")
        storing = asyncio.ensure_future(owner.append(claim, lines(1, 3)))
        await until_waiting(looking)
        await outlive(journal)
        taking = asyncio.ensure_future(journal.claim("r"))
        await until_waiting(looking, count=2)
        await lock.rollback()
        await holding.close()
        await looking.close()
        await journal.append(await taking, [line(3)])
        await storing
        with expect_refusal("bae-run-taken"):
            await owner.append(claim, [line(3)])
    assert await numbers(journal, "r") == [0, 1, 2, 3]


async def until_waiting(connection, count: int = 1) -> None:
    """Wait until so many statements wait for locks."""
    async with asyncio.timeout(20):
        while True:
            waiting = await connection.fetchval(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            )
            if waiting >= count:
                return


def until_in_doubt(claim: Claim) -> None:
    """Wait until the lease of this process is over."""
    while not claim.is_in_doubt():
        pass


async def until_free(journal: PostgresJournal) -> None:
    """Wait until the run "r" has no owner."""
    async with asyncio.timeout(30):
        while (await journal.info("r")).owner is not None:
            pass


async def test_a_batch_after_a_takeover_stores_nothing(journal: PostgresJournal):
    async with another(journal) as owner:
        claim = await owner.create(new_run("r", lines(0, 1)))
        other = await owner.create(new_run("other", lines(0, 1)))
        await outlive(journal)
        taken = await journal.claim("r")
        for store in (
            lambda: owner.append(claim, [line(1)]),
            lambda: owner.append(other, lines(1, 4)),
            lambda: owner.release(claim, "ended", [line(1)]),
        ):
            with expect_refusal("bae-run-taken"):
                await store()
        assert await numbers(journal, "r") == [0]
        assert await numbers(journal, "other") == [0]
        assert (await journal.info("r")).status == "running"
        await journal.append(taken, [line(1)])
        # It may take up again what nobody has taken.
        await owner.append(await owner.claim("other"), [line(1)])
    assert taken.token == 2


async def test_exactly_one_of_six_concurrent_claims_wins(journal: PostgresJournal):
    async with another(journal) as owner:
        await owner.create(new_run("r", lines(0, 1)))
        await outlive(journal)
        others = [PostgresJournal(journal.url, schema=journal.schema) for _ in range(6)]
        results = await asyncio.gather(*(o.claim("r") for o in others), return_exceptions=True)
        errors = [result for result in results if isinstance(result, JournalError)]
        assert [error.code for error in errors] == ["bae-run-owned"] * 5
        for other in others:
            await other.close()


async def test_an_unreleased_run_is_released_after_an_outage(
    own_server: PostgresServer,
):
    async with PostgresJournal(own_server.url, patience=0.1, lease=1) as owner:
        await owner.upgrade()
        claim = await owner.create(new_run("r", lines(0, 1)))
        own_server.kill()
        with expect_refusal("bae-journal-away"):
            await owner.release(claim, "ended", [line(1)])
        own_server.start()
        await until_free(owner)
        assert (await owner.claim("r")).run_id == "r"


# --- clocks --------------------------------------------------------------------------------------

WORKER = """
import sys, time
ahead = float(sys.argv[3])
real = time.time
time.time = lambda: real() + ahead
import asyncio
from bae import JournalError
from bae.journal import Claim, PostgresJournal
from journal_parts import line, lines, new_run

def said(error=None):
    print(error.code if error else "done", flush=True)

async def main():
    journal = PostgresJournal(sys.argv[1], schema=sys.argv[2], lease=float(sys.argv[4]))
    claims = {}
    while command := (await asyncio.to_thread(sys.stdin.readline)).split():
        do, run_id, *n = command
        try:
            if do == "create":
                claims[run_id] = await journal.create(new_run(run_id, lines(0, 1)))
            elif do == "claim":
                claims[run_id] = await journal.claim(run_id)
            elif do == "doubt":
                print(claims[run_id].is_in_doubt(), flush=True)
                continue
            elif do == "confirm":
                await journal.append(claims[run_id], ())
            else:
                await journal.append(claims[run_id], [line(int(n[0]))])
        except JournalError as error:
            said(error)
        else:
            said()
    await journal.close()

asyncio.run(main())
"""


class Worker:
    """Another process, which runs commands on a journal and reports the results."""

    def __init__(self, journal: PostgresJournal, *, ahead: float = 0.0, lease: float = 30) -> None:
        program = dedent(WORKER)
        given = [journal.url, journal.schema, str(ahead), str(lease)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
            text=True,
        )

    async def do(self, *command: object) -> str:
        self.begin(*command)
        return await self.answer()

    def begin(self, *command: object) -> None:
        assert self.process.stdin is not None
        print(*command, file=self.process.stdin, flush=True)

    async def answer(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


async def test_a_clock_that_is_a_year_ahead_does_not_affect_leases(journal: PostgresJournal):
    await journal.create(new_run("first", lines(0, 1)))
    with Worker(journal, ahead=365 * 24 * 3600) as worker:
        assert await worker.do("create", "second") == "done"
        assert await worker.do("claim", "first") == "bae-run-owned"
        await journal.create(new_run("third", lines(0, 1)))
        with expect_refusal("bae-run-owned"):
            await journal.claim("second")
        assert await worker.do("append", "second", 1) == "done"
    assert await ids(journal) == ["third", "second", "first"]


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops processes")
async def test_a_frozen_process_learns_of_a_takeover_before_it_continues(
    postgres: PostgresServer,
):
    async with PostgresJournal(postgres.url, schema=new_schema(), lease=0.5) as journal:
        await journal.upgrade()
        await journal.create(new_run("mine", lines(0, 1)))
        with Worker(journal, lease=0.5) as worker:
            assert await worker.do("create", "r") == "done"
            assert await worker.do("append", "r", 1) == "done"
            os.kill(worker.process.pid, signal.SIGSTOP)
            claim = None
            async with asyncio.timeout(30):
                while claim is None:
                    try:
                        claim = await journal.claim("r")
                    except JournalError as error:
                        if error.code != "bae-run-owned":
                            raise
            await journal.append(claim, [line(2)])
            os.kill(worker.process.pid, signal.SIGCONT)
            assert await worker.do("doubt", "r") == "True"
            assert await worker.do("confirm", "r") == "bae-run-taken"
            assert await worker.do("append", "r", 2) == "bae-run-taken"
            assert await worker.do("claim", "r") == "bae-run-owned"
            await journal.append(claim, [line(3)])
        assert await numbers(journal, "r") == [0, 1, 2, 3]


# --- the database is away ------------------------------------------------------------------------


class Ended(Node):
    left: int

    async def __call__(self) -> None: ...


class Tick(Node):
    left: int

    async def __call__(self) -> Tick | Ended:
        STEPS.append(self.left)
        if self.left == 3 and AT_THREE:
            AT_THREE.pop()()
        return Tick(left=self.left - 1) if self.left else Ended(left=0)


STEPS: list[int] = []
AT_THREE: list = []
TICKS = Graph(start=Tick, end=Ended)


@pytest.fixture(autouse=True)
def steps() -> list[int]:
    STEPS.clear()
    AT_THREE.clear()
    return STEPS


async def test_a_run_waits_for_a_database_that_comes_back_in_time(
    own_server: PostgresServer, steps: list[int]
):
    async with PostgresJournal(own_server.url, lease=0.5) as journal, another(journal) as other:
        await journal.upgrade()

        def restart() -> None:
            own_server.kill()
            asyncio.get_running_loop().call_later(1.0, own_server.launch)  # longer than the lease

        AT_THREE.append(restart)
        running = asyncio.create_task(TICKS.arun(Tick(left=5), journal=journal, run_id="r"))
        while not running.done():
            try:
                await other.claim("r")
            except JournalError as error:
                if error.code not in ("bae-run-unknown", "bae-run-owned", "bae-run-ended"):
                    raise
            else:
                pytest.fail("it was taken over")
        assert (await running).trace[-1] == Ended(left=0)
        assert steps == [5, 4, 3, 2, 1, 0]
        assert (await journal.info("r")).status == "ended"


async def test_a_run_can_be_resumed_after_a_long_database_outage(
    own_server: PostgresServer, steps: list[int]
):
    async with PostgresJournal(own_server.url, lease=0.5, patience=0.2) as journal:
        await journal.upgrade()
        AT_THREE.append(own_server.kill)
        with expect_refusal("bae-journal-away"):
            await TICKS.arun(Tick(left=5), journal=journal, run_id="r")
        own_server.start()
        await until_free(journal)
        result = await TICKS.resume("r", journal=journal)
        assert result.trace[-1] == Ended(left=0)
        assert steps == [5, 4, 3, 3, 2, 1, 0]  # the step that could not be stored


async def test_a_server_outage_does_not_make_owners_look_dead(own_server: PostgresServer):
    async with PostgresJournal(own_server.url, lease=1) as owner:
        await owner.upgrade()
        claim = await owner.create(new_run("r", lines(0, 1)))
        own_server.kill()
        await asyncio.to_thread(until_in_doubt, claim)
        own_server.start()
        async with another(owner, lease=1) as other:
            with expect_refusal("bae-run-owned"):
                await other.claim("r")
        await owner.append(claim, [line(1)])
        assert await numbers(owner, "r") == [0, 1]


async def test_an_older_database_copy_is_detected_before_a_write(
    own_server: PostgresServer, tmp_path: Path
):
    data, copy = own_server.folder / "data", tmp_path / "copy"
    async with PostgresJournal(own_server.url) as journal:
        await journal.upgrade()
        whole = await journal.create(new_run("whole", lines(0, 1)))
        short = await journal.create(new_run("short", lines(0, 1)))
        own_server.stop()
        shutil.copytree(data, copy)
        own_server.start()
        await journal.append(short, lines(1, 3))
        lost = await journal.create(new_run("lost", lines(0, 1)))
        own_server.stop()
        own_server.replace_data(copy)
        own_server.start()
        for claim, n in ((short, 3), (lost, 1)):
            with expect_refusal("bae-journal-lost-lines"):
                await journal.append(claim, [line(n)])
        await journal.append(whole, [line(1)])
        assert await numbers(journal, "whole") == [0, 1]
        assert await numbers(journal, "short") == [0]
        assert await ids(journal) == ["short", "whole"]
        await journal.append(await journal.claim("short"), [line(1)])
        assert await numbers(journal, "short") == [0, 1]
