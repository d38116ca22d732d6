"""The engine that the docs show for DBOS carries out runs, and survives that workers are killed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bounded import BOUND
from engine import shop
from engine.fleet import Fleet, all_ended, fleet_of, repeats, submit_orders
from engine.worker_program import open_journal
from packages import is_missing
from pages import ROOT, blocks
from postgres_server import PostgresServer, new_schema

LEASE = 2.0
PAGE = ROOT / "docs" / "how-to" / "engine.md"

pytestmark = pytest.mark.slow


@pytest.fixture
def make_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class of the page, whose file is where workers find it."""
    if is_missing("dbos") and not os.environ.get("BAE_REQUIRE_EXTRAS"):
        pytest.skip("install dbos")
    (block,) = [block for block in blocks(PAGE) if block.title == "dbos_engine.py"]
    (tmp_path / block.title).write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    from dbos_engine import DBOSEngine  # pyright: ignore[reportMissingImports]

    yield DBOSEngine
    logging.getLogger("dbos").handlers.clear()


async def test_the_engine_of_the_docs_finishes_all_runs_of_killed_workers(
    make_engine: Any, postgres: PostgresServer, tmp_path: Path
):
    engine = make_engine(postgres.url)
    where = f"{postgres.url}#{new_schema()}"
    random = Random(1)
    async with open_journal(where, LEASE) as journal:
        await journal.upgrade()
        async with fleet_of(3, tmp_path, where, lease=LEASE, address="dbos") as fleet:
            await until_ready(fleet)
            ids = await submit_orders(journal, 20, engine)
            for count in (15, 45):
                await fleet.until_effects(count)
                fleet.replace(random)
            await all_ended(fleet, journal, ids, 60)
            refund = shop.Refund(amount=5)
            await shop.refunds.submit(refund, journal=journal, run_id="r", engine=engine)
            async with asyncio.timeout(BOUND):
                while (await journal.info("r")).status != "waiting":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await shop.refunds.answer("r", "approved", True, journal=journal, engine=engine)
            paid = await shop.refunds.result("r", journal=journal, timeout=BOUND)
            assert paid.result == shop.Refunded(paid=5)
        repeated = await repeats(fleet, journal, ids)
        await engine.close()
    assert (repeated.after_stored, repeated.missing) == ([], [])
    assert repeated.again <= 2 * fleet.concurrency


async def test_runs_submitted_before_the_first_worker_are_in_the_queue_of_dbos(
    make_engine: Any, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
):
    url = postgres.new_database()
    engine = make_engine(url)
    async with open_journal(url, LEASE) as journal:
        await journal.upgrade()
        runs = [shop.Order(run=f"order-{number}") for number in range(20)]
        submitted = [shop.orders.submit(run, journal=journal, engine=engine) for run in runs]
        ids = await asyncio.gather(*submitted)
    queued = engine._client.list_queued_workflows()
    await engine.close()
    assert sorted(workflow.input["args"][0] for workflow in queued) == sorted(ids)
    assert not [record for record in caplog.records if record.name == "bae"]


async def until_ready(fleet: Fleet) -> None:
    """Wait until a worker listens to the queue."""
    await fleet.until(lambda: "Queue: bae" in fleet.errors())
