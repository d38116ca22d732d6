"""Runs that Temporal's real development server hands to workers. Nothing here is found by looking
into the journal, unless a test is about that: the sweep comes once an hour."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from time import time
from typing import Annotated, Any

import pytest

pytest.importorskip("temporalio")

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from bae import Gate, Graph, Node, RunFailed
from bae.engine import TemporalEngine, Worker
from bae.exceptions import BaeLMError
from bae.journal import Journal, PostgresJournal, SQLiteJournal
from bounded import BOUND, error_from
from engine import shop
from engine.fleet import fleet_of
from engine.temporal_server import TemporalServer, temporal_server
from pages import ROOT, blocks
from postgres_server import PostgresServer

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def temporal() -> Iterator[TemporalServer]:
    with temporal_server() as server:
        yield server


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SQLiteJournal]:
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        yield journal


@pytest.fixture
def engine(temporal: TemporalServer, request: pytest.FixtureRequest) -> TemporalEngine:
    """An engine with a task queue that no other test has."""
    queue = f"{request.node.name}-{os.getpid()}"
    return TemporalEngine(temporal.address, task_queue=queue, sweep=3600)


@asynccontextmanager
async def working(
    *graphs: Any, engine: TemporalEngine, seconds: float = BOUND, **options: Any
) -> AsyncIterator[Worker]:
    """A worker of this process inside the block."""
    worker = Worker(*graphs, engine=engine, **options)
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(seconds):
            yield worker
    finally:
        worker.stop()
        await task


async def until_status(journal: Journal, run_id: str, status: str) -> None:
    """Wait for what another task or process does."""
    async with asyncio.timeout(BOUND):
        while (await journal.info(run_id)).status != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Message(Node):
    text: str

    async def __call__(self) -> Sent:
        return Sent(text=self.text, at=time())


class Sent(Node):
    text: str
    at: float

    async def __call__(self) -> None: ...


class Vote(Node):
    yes: Annotated[bool, Gate("agreed?", timeout=0.3)] = False

    async def __call__(self) -> Sent:
        return Sent(text=str(self.yes), at=time())


class Busy(Node):
    async def __call__(self) -> Sent:
        TRIES.append(1)
        if len(TRIES) < 3:
            raise BaeLMError("the secret word is in this message", retryable=True)
        return Sent(text="done", at=time())


class Held(Node):
    async def __call__(self) -> Sent:
        HELD.append(1)
        await asyncio.Event().wait()
        raise AssertionError


TRIES: list[int] = []
HELD: list[int] = []
messages = Graph(start=Message, end=Sent, name="messages")
votes = Graph(start=Vote, end=Sent, name="votes")
busy = Graph(start=Busy, end=Sent, name="busy")
held = Graph(start=Held, end=Sent, name="held")


async def history_of(engine: TemporalEngine, run_id: str) -> Any:
    """What Temporal stores of the workflow of a run."""
    assert engine.address is not None
    client = await Client.connect(engine.address)
    return await client.get_workflow_handle(f"bae:{run_id}").fetch_history()


async def until_open(engine: TemporalEngine, count: int) -> None:
    """Wait until Temporal has so many open workflows of the engine."""
    async with asyncio.timeout(BOUND):
        while (await engine.status())["open_workflows"] != count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_temporal_stores_only_the_id_and_the_graph_of_a_run(
    journal: Journal, engine: TemporalEngine
):
    start = Message(text="confidential")
    await messages.submit(start, journal=journal, run_id="m-1", engine=engine)
    assert (await journal.info("m-1")).status == "queued"
    async with working(messages, journal=journal, engine=engine):
        assert (await messages.result("m-1", journal=journal)).result.text == "confidential"
        await until_open(engine, 0)
    stored = (await history_of(engine, "m-1")).to_json()
    assert "m-1" in stored
    assert "confidential" not in stored


async def test_an_answer_in_another_process_and_a_deadline_wake_their_runs(
    journal: Journal, engine: TemporalEngine
):
    elsewhere = TemporalEngine(engine.address, task_queue=engine.task_queue)
    refund = shop.Refund(amount=5)
    await shop.refunds.submit(refund, journal=journal, run_id="r", engine=engine)
    await votes.submit(Vote(), journal=journal, run_id="v", engine=engine)
    async with working(shop.refunds, votes, journal=journal, engine=engine):
        await until_status(journal, "r", "waiting")
        await shop.refunds.answer("r", "approved", True, journal=journal, engine=elsewhere)
        result = await shop.refunds.result("r", journal=journal)
        assert result.result == shop.Refunded(paid=5)
        assert (await votes.result("v", journal=journal)).result.text == "False"


async def test_a_timer_of_temporal_starts_a_delayed_run(journal: Journal, engine: TemporalEngine):
    soon, late = Message(text="soon"), Message(text="late")
    await messages.submit(late, journal=journal, run_id="late", engine=engine, delay=3600)
    begun = time()
    await messages.submit(soon, journal=journal, run_id="soon", engine=engine, delay=1)
    async with working(messages, journal=journal, engine=engine):
        result = await messages.result("soon", journal=journal)
        assert result.result.at - begun >= 1
        await until_open(engine, 1)
    assert (await journal.info("late")).status == "queued"
    await until_backoff(engine, "late", 3600)


async def until_backoff(engine: TemporalEngine, run_id: str, seconds: float) -> None:
    """Check that Temporal itself holds the start back."""
    first = (await history_of(engine, run_id)).events[0]
    backoff = first.workflow_execution_started_event_attributes.first_workflow_task_backoff
    assert abs(backoff.ToTimedelta() - timedelta(seconds=seconds)) < timedelta(seconds=1)


@slow
async def test_a_retried_run_stores_no_error_in_temporal(
    journal: Journal,
    engine: TemporalEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr("bae.engine.worker.FIRST_WAIT", 0.05)
    TRIES.clear()
    await busy.submit(Busy(), journal=journal, run_id="b", engine=engine)
    async with working(busy, journal=journal, engine=engine):
        assert (await busy.result("b", journal=journal)).result.text == "done"
        await until_open(engine, 0)
    assert len(TRIES) == 3
    assert "Traceback" not in caplog.text
    assert "secret word" not in (await history_of(engine, "b")).to_json()


@slow
async def test_a_stopping_worker_hands_its_runs_to_another_worker_at_once(
    journal: SQLiteJournal, engine: TemporalEngine, tmp_path: Path
):
    where = str(journal.path)
    address = str(engine.address)
    # Neither the lease nor a heartbeat that is missing can be what frees the runs.
    async with fleet_of(1, tmp_path, where, address=address, seconds=3600, lease=600) as fleet:
        shared = TemporalEngine(address, heartbeat=600)
        ids = [f"order-{number}" for number in range(4)]
        for run_id in ids:
            start = shop.Order(run=run_id)
            await shop.orders.submit(start, journal=journal, run_id=run_id, engine=shared)
        await fleet.until_effects(4)
        fleet.workers[0].terminate()
        assert await asyncio.to_thread(fleet.workers[0].wait, BOUND) == 0
        for run_id in ids:
            info = await journal.info(run_id)
            assert (info.standing(), info.owner) == ("interrupted", None)
        assert "Traceback" not in fleet.errors()
        fleet.seconds = 0.01
        fleet.start()
        for run_id in ids:
            await shop.orders.result(run_id, journal=journal, timeout=BOUND)


@slow
async def test_a_run_that_kills_its_workers_fails_and_closes_its_workflow(
    journal: SQLiteJournal, engine: TemporalEngine, tmp_path: Path
):
    address = str(engine.address)
    where = str(journal.path)
    async with fleet_of(1, tmp_path, where, address=address, lease=1) as fleet:
        shared = TemporalEngine(address, heartbeat=1)
        await shop.poison.submit(shop.Poison(), journal=journal, run_id="bad", engine=shared)
        for _ in range(3):
            await fleet.until(lambda: fleet.workers[-1].poll() is not None)
            fleet.start()
        error = await error_from(RunFailed, shop.poison.result("bad", journal=journal))
        assert fleet.workers[-1].poll() is None
    assert error.code == "bae-run-poisoned"
    assert "3 processes died" in error.message


def changed_messages() -> Graph[Any, Any]:
    """The graph of the same name, as another version of the program has it."""

    class Message(Node):
        text: str
        language: str  # new, and no run has it

        async def __call__(self) -> Sent:
            return Sent(text="changed", at=0)

    return Graph(start=Message, end=Sent, name="messages")


@slow
async def test_a_run_goes_to_a_worker_with_compatible_classes(
    journal: Journal, engine: TemporalEngine
):
    await messages.submit(Message(text="old"), journal=journal, run_id="old", engine=engine)
    async with working(changed_messages(), journal=journal, engine=engine):
        await until_event(engine, "old")
        assert (await journal.info("old")).status == "queued"
        other = TemporalEngine(engine.address, task_queue=engine.task_queue, sweep=3600)
        async with working(messages, journal=journal, engine=other):
            assert (await messages.result("old", journal=journal)).result.text == "old"


async def until_event(engine: TemporalEngine, run_id: str) -> None:
    """Wait until an attempt at a run was refused."""
    assert engine.address is not None
    client = await Client.connect(engine.address)
    handle = client.get_workflow_handle(f"bae:{run_id}")
    async with asyncio.timeout(BOUND):
        while True:
            about = await handle.describe()
            pending = about.raw_description.pending_activities
            if pending and pending[0].last_failure.message.startswith("unfit bae-run-changed"):
                return
            await asyncio.sleep(0.05)


@slow
async def test_runs_finish_after_temporal_was_restarted(
    journal: Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    with temporal_server(tmp_path / "temporal.db") as server:
        engine = TemporalEngine(server.address, sweep=1, timeout=1)
        await messages.submit(Message(text="1"), journal=journal, run_id="1", engine=engine)
        await shop.refunds.submit(shop.Refund(amount=5), journal=journal, run_id="r", engine=engine)
        graphs = (messages, shop.refunds)
        async with working(*graphs, journal=journal, engine=engine, seconds=120):
            await messages.result("1", journal=journal)
            await until_status(journal, "r", "waiting")
            server.stop()
            # The run is stored, and the answer too; Temporal gets to know of them later.
            await messages.submit(Message(text="2"), journal=journal, run_id="2", engine=engine)
            await shop.refunds.answer("r", "approved", True, journal=journal, engine=engine)
            assert caplog.text.count("could not be given to the engine") == 2
            await asyncio.to_thread(server.start)
            assert (await messages.result("2", journal=journal)).result.text == "2"
            await shop.refunds.result("r", journal=journal)
            await messages.submit(Message(text="3"), journal=journal, run_id="3", engine=engine)
            assert (await messages.result("3", journal=journal)).result.text == "3"


@slow
async def test_a_worker_may_start_before_temporal(journal: Journal):
    with temporal_server() as server:
        server.stop()
        engine = TemporalEngine(server.address, sweep=1, timeout=1)
        await messages.submit(Message(text="1"), journal=journal, run_id="1", engine=engine)
        async with working(messages, journal=journal, engine=engine, seconds=120):
            await asyncio.to_thread(server.start)
            assert (await messages.result("1", journal=journal)).result.text == "1"


@slow
async def test_cancelling_a_run_completes_its_workflow(journal: Journal, engine: TemporalEngine):
    HELD.clear()
    await held.submit(Held(), journal=journal, run_id="h", engine=engine)
    async with working(held, journal=journal, engine=engine) as worker:
        async with asyncio.timeout(BOUND):
            while not HELD:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert worker.run_ids == ["h"]
        await journal.cancel("h")
        await until_open(engine, 0)
    assert (await journal.info("h")).status == "cancelled"
    last = (await history_of(engine, "h")).events[-1]
    assert last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED


@slow
async def test_the_documented_schedule_submits_a_run_once_a_day(
    temporal: TemporalServer,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    for block in blocks(ROOT / "docs" / "production.md"):
        if block.title.endswith(".py"):
            (tmp_path / block.title).write_text(block.text)
    url = postgres.new_database()
    monkeypatch.setenv("BAE_JOURNAL", url)
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.address)
    monkeypatch.syspath_prepend(tmp_path)
    nightly: Any = importlib.import_module("nightly")
    client = await Client.connect(temporal.address)
    async with PostgresJournal(url) as journal:
        await journal.upgrade()
        await nightly.create_schedule(client)
        serving = asyncio.create_task(nightly.main())
        engine = TemporalEngine(temporal.address, sweep=3600)
        async with working(nightly.graph, journal=journal, engine=engine):
            for count in (1, 2):  # a night that comes twice
                handle = client.get_schedule_handle("nightly")
                await handle.trigger()
                while (await handle.describe()).info.num_actions < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                # Temporal skips an action while the one before is in progress.
                while (await handle.describe()).info.running_actions:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            (info,) = await journal.runs()
            result = await nightly.graph.result(info.run_id, journal=journal)
        serving.cancel()
        await asyncio.wait((serving,))
    assert result.result.lines == [f"report of {info.run_id.removeprefix('report-')}"]
