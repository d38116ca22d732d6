"""The agents of a team: made, used again, retired."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from bae import BaeLMError
from bae.team.models import AgentInfo, PlannedTask, TeamError
from bae.team.pool import AgentPoolManager
from bae.team.worker import BackendWorkerAgent, TestWorkerAgent
from bae.team.worker_graph import WorkerAnswer
from bae.testing import ScriptedLM
from team_parts import Messages, a_bench, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")


def some_tasks(count: int) -> list[PlannedTask]:
    return [PlannedTask(key=f"t{n}", title=f"Task {n}") for n in range(count)]


async def test_agents_are_created_on_demand_and_reused(tmp_path: Path):
    messages = Messages()
    async with a_bench(tmp_path, *some_tasks(3), ws_manager=messages) as (bench, [one, two, three]):
        async with AgentPoolManager(bench, ScriptedLM()) as pool:
            first = await pool.take("backend", one.id)
            assert isinstance(first, BackendWorkerAgent)
            other = await pool.take("test", two.id)
            assert isinstance(other, TestWorkerAgent)
            await pool.give_back(first)
            assert await pool.take("backend", three.id) is first
            assert {agent.id: agent.task_id for agent in pool.agents} == {
                first.agent_id: three.id,
                other.agent_id: two.id,
            }
        stored = await bench.store.agents(bench.project.id)
        assert [stored_agent.status for stored_agent in stored] == ["retired", "retired"]
        events = [event.to_message() for event in await bench.store.events(1, 1)]
    assert messages.messages == events  # sent as they were stored
    created = [event["agent_id"] for event in events if event["type"] == "agent_created"]
    assert created == ["backend-1", "test-2"]


async def test_an_idle_agent_of_another_kind_makes_room(tmp_path: Path):
    async with (
        a_bench(tmp_path, *some_tasks(2)) as (bench, [one, two]),
        AgentPoolManager(bench, ScriptedLM(), most=1) as pool,
    ):
        first = await pool.take("backend", one.id)
        with pytest.raises(TeamError, match="all 1 agents of the pool are working"):
            await pool.take("test", two.id)
        await pool.give_back(first)
        taken = await pool.take("test", two.id)
        assert [agent.id for agent in pool.agents] == [taken.agent_id]
        with pytest.raises(TeamError, match="no worker for tasks of the kind 'poet'"):
            await pool.take("poet", two.id)


async def test_concurrent_requests_get_different_agents(tmp_path: Path):
    async with (
        a_bench(tmp_path, *some_tasks(4)) as (bench, tasks),
        AgentPoolManager(bench, ScriptedLM(), most=4) as pool,
    ):
        taken = await asyncio.gather(*(pool.take("backend", task.id) for task in tasks))
        assert len({worker.agent_id for worker in taken}) == 4
        for worker in taken:
            await pool.give_back(worker)
        again = await asyncio.gather(*(pool.take("backend", task.id) for task in tasks))
        assert set(again) == set(taken)


async def test_agents_that_a_killed_process_has_left_are_retired(tmp_path: Path):
    async with a_bench(tmp_path) as (bench, [task]):
        left = AgentInfo(id="backend-7", kind="backend", status="working", task_id=task.id)
        await bench.store.save_agent(bench.project.id, left)
        async with AgentPoolManager(bench, ScriptedLM()) as pool:
            [known] = await bench.store.agents(bench.project.id)
            assert (known.status, known.task_id) == ("retired", None)
            assert (await pool.take("backend", task.id)).agent_id == "backend-8"


async def test_agents_count_their_tasks(tmp_path: Path):
    good, bad = some_tasks(2)
    right = edits({"t0.sh": "x=1\n", "t0.test.sh": '. ./t0.sh\n[ "$x" = 1 ]\n'})
    lm = ScriptedLM({WorkerAnswer: [right, BaeLMError("down")]})
    async with a_bench(tmp_path, good, bad) as (bench, tasks):
        async with AgentPoolManager(bench, lm) as pool:
            for task in tasks:
                worker = await pool.take("backend", task.id)
                await worker.execute_task(task)
                await pool.give_back(worker)
        [stored] = await bench.store.agents(bench.project.id)
    assert (stored.completed, stored.failed) == (1, 1)
