"""The feed of a team: order, no gaps, other processes, one reader for all subscribers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from bae.journal import Subscriber, feeds, subscribe
from bae.team.events import ActivityUpdate, StoredEvent
from bae.team.models import Project
from bae.team.store import Store

PROCESS = Path(__file__).with_name("team_event_process.py")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with await Store.open(tmp_path / "team.db") as opened:
        for name in ("shop", "bank"):
            await opened.save_project(
                Project(id=0, name=name, root=f"/{name}", branch="b", test_command=("pytest",))
            )
        yield opened


async def add(store: Store, count: int, project_id: int = 1) -> list[int]:
    made = [ActivityUpdate(project_id=project_id, text=f"step {i}") for i in range(count)]
    return [event.number for event in await store.add_events(made)]


async def take(events: Subscriber[StoredEvent], count: int) -> list[StoredEvent]:
    """At least so many events, in the batches in which they come."""
    taken: list[StoredEvent] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            taken += [item.value for item in (await anext(events)).items]
    return taken


async def test_a_subscriber_gets_stored_events_before_new_events(store: Store):
    before = await add(store, 3)
    await add(store, 2, project_id=2)
    async with subscribe(store.feed(1), before[0]) as events:
        assert [e.number for e in await take(events, 2)] == before[1:]
        new = await add(store, 2)
        taken = await take(events, 2)
    assert [e.number for e in taken] == new
    assert taken == (await store.events(1))[-2:]
    assert events.number == new[-1]


async def test_many_stored_events_are_delivered_in_pages(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(feeds, "PAGE", 40)
    expected = await add(store, 300)
    async with (
        subscribe(store.feed(1)) as old,
        subscribe(store.feed(1), expected[150]) as newer,
        asyncio.TaskGroup() as tasks,
    ):
        every = tasks.create_task(take(old, 400))
        half = tasks.create_task(take(newer, 249))
        for _ in range(10):
            expected += await add(store, 10)
    assert [e.number for e in every.result()] == expected
    assert [e.number for e in half.result()] == expected[151:]


async def test_events_stored_by_another_process_arrive_in_order(store: Store):
    mine = 0
    async with subscribe(store.feed(1)) as events:
        run = (sys.executable, str(PROCESS), str(store.path), "1", "0", "60")
        process = await asyncio.create_subprocess_exec(*run)
        while process.returncode is None:
            mine += len(await add(store, 1))
            try:
                async with asyncio.timeout(0.005):
                    await process.wait()
            except TimeoutError:
                continue
        taken = await take(events, 60 + mine)
    assert taken == await store.events(1)
    others = [e.event.text for e in taken if e.event.text.startswith("other")]
    assert others == [f"other {i}" for i in range(60)]


async def test_a_subscription_after_an_unknown_event_number_ends(store: Store):
    await add(store, 3)
    async with subscribe(store.feed(1), 4) as events:
        assert [batch async for batch in events] == []
    assert events.end == "reset"


async def test_a_subscription_can_skip_stored_events(store: Store):
    await add(store, 3)
    async with subscribe(store.feed(1), None) as events:
        new = await add(store, 2)
        assert [e.number for e in await take(events, 2)] == new


async def test_subscribers_share_a_reader(store: Store):
    before = asyncio.all_tasks()
    assert store.feed(1) is store.feed(1) is not store.feed(2)
    async with subscribe(store.feed(1)) as first, subscribe(store.feed(1)):
        waiting = asyncio.ensure_future(anext(first, None))
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks() - before - {waiting}) == 1
    assert await waiting is None
    assert asyncio.all_tasks() == before


async def test_a_cancelled_wait_loses_no_event(store: Store):
    async with subscribe(store.feed(1)) as events:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await anext(events)
        numbers = await add(store, 5)
        assert [e.number for e in await take(events, 5)] == numbers


async def test_a_slow_subscriber_misses_no_event(store: Store):
    async with subscribe(store.feed(1)) as stalled, subscribe(store.feed(1)) as quick:
        for _ in range(4):
            await add(store, 20)
            await take(quick, 20)
        assert [e.number for e in await take(stalled, 80)] == list(range(1, 81))
