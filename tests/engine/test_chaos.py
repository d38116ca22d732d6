"""Workers are killed and stopped, and so is the database: every run ends, and no effect begins
again after its result was stored. With the journal alone, and with Temporal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bae import RunFailed
from bae.engine import JournalEngine, TemporalEngine
from bounded import error_from
from engine import shop
from engine.fleet import Fleet, all_ended, fleet_of, repeats, submit_orders
from engine.temporal_server import TemporalServer, temporal_server
from engine.worker_program import open_journal
from postgres_server import PostgresServer, new_schema, postgres_server

LEASE = 2.0


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def temporal() -> Iterator[TemporalServer]:
    with temporal_server() as server:
        yield server


@pytest.fixture(params=["journal", "temporal"])
def address(request: pytest.FixtureRequest) -> str:
    """Where Temporal is; empty for the journal alone."""
    return request.getfixturevalue("temporal").address if request.param == "temporal" else ""


@pytest.fixture
async def where(database: PostgresServer) -> str:
    where = f"{database.url}#{new_schema()}"
    async with open_journal(where, LEASE) as journal:
        await journal.upgrade()
    return where


def engine_at(address: str) -> Any:
    return TemporalEngine(address, heartbeat=LEASE) if address else JournalEngine()


async def test_runs_finish_although_two_workers_are_killed(
    address: str, where: str, tmp_path: Path
):
    random = Random(1)
    async with open_journal(where, LEASE) as journal:
        async with fleet_of(3, tmp_path, where, lease=LEASE, address=address) as fleet:
            ids = await submit_orders(journal, 20, engine_at(address))
            for count in (15, 45):
                await fleet.until_effects(count)
                fleet.replace(random)
            await all_ended(fleet, journal, ids, 60)
        repeated = await repeats(fleet, journal, ids)
    assert (repeated.after_stored, repeated.missing) == ([], [])
    assert repeated.again <= 2 * fleet.concurrency


async def test_a_worker_on_the_same_machine_continues_runs_of_a_killed_worker_at_once(
    database: PostgresServer, tmp_path: Path
):
    where = f"{database.url}#{new_schema()}"
    async with open_journal(where, 600) as journal:
        await journal.upgrade()
        async with fleet_of(1, tmp_path, where, lease=600, seconds=3600) as fleet:
            ids = await submit_orders(journal, 3)
            await fleet.until_effects(3)
            fleet.seconds = 0.01
            fleet.replace(Random(1))
            await all_ended(fleet, journal, ids, 30)


async def test_a_run_that_kills_three_workers_fails_before_its_lease_expires(
    database: PostgresServer, tmp_path: Path
):
    where = f"{database.url}#{new_schema()}"
    async with open_journal(where, 600) as journal:
        await journal.upgrade()
        await shop.poison.submit(shop.Poison(), journal=journal, run_id="bad")
        async with fleet_of(1, tmp_path, where, lease=600) as fleet:
            for _ in range(3):
                await fleet.until(lambda: fleet.workers[-1].poll() is not None)
                fleet.start()
            error = await error_from(RunFailed, shop.poison.result("bad", journal=journal))
    assert error.code == "bae-run-poisoned"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_runs_finish_although_workers_and_the_database_are_killed(
    seed: int, address: str, database: PostgresServer, where: str, tmp_path: Path
):
    random = Random(seed)
    async with open_journal(where, LEASE) as journal:
        more: Any = {"lease": LEASE, "address": address, "seconds": 0.3}
        async with fleet_of(3, tmp_path, where, **more) as fleet:
            ids = await submit_orders(journal, 200, engine_at(address))
            for number in range(10):
                await fleet.until_effects(40 + 60 * number)
                fleet.replace(random)
                if number == 4:
                    database.kill()
                    await asyncio.to_thread(database.start)
                if number in (2, 7):
                    await stand_still(fleet, random)
            await all_ended(fleet, journal, ids, 240)
        repeated = await repeats(fleet, journal, ids)
    print(f"seed {seed} {'temporal' if address else 'journal'}: {repeated}")
    assert (repeated.after_stored, repeated.missing) == ([], [])
    # Each kill, and each process that stands still, cuts off what is in progress there.
    assert repeated.again <= 13 * fleet.concurrency


@pytest.mark.slow
async def test_no_work_is_repeated_after_a_database_outage_of_three_leases(
    address: str, database: PostgresServer, where: str, tmp_path: Path
):
    async with open_journal(where, LEASE) as journal:
        more: Any = {"lease": LEASE, "address": address, "seconds": 0.3}
        async with fleet_of(3, tmp_path, where, **more) as fleet:
            ids = await submit_orders(journal, 50, engine_at(address))
            await fleet.until_effects(40)
            database.kill()
            await asyncio.sleep(3 * LEASE)  # the lease is a time
            await asyncio.to_thread(database.start)
            await all_ended(fleet, journal, ids, 120)
        repeated = await repeats(fleet, journal, ids)
    assert (repeated.again, repeated.after_stored, repeated.missing) == (0, [], [])


async def stand_still(fleet: Fleet, random: Random) -> None:
    """Stop a worker for longer than its lease, and let it continue."""
    worker = random.choice(fleet.workers)
    os.kill(worker.pid, signal.SIGSTOP)
    await asyncio.sleep(1.6 * LEASE)  # the lease is a time
    os.kill(worker.pid, signal.SIGCONT)
