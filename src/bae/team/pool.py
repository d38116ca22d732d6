"""The pool of a team's workers. It creates workers on demand, reuses them and retires them."""

from __future__ import annotations

import asyncio
from typing import Self

from bae import LM
from bae.tasks import finish_despite_cancel
from bae.team.models import AgentInfo, TeamError
from bae.team.workbench import Workbench
from bae.team.worker import WorkerAgent, worker_class


class AgentPoolManager:
    """A pool of at most `most` workers: `async with AgentPoolManager(bench, lm) as pool:`.

    The pool reuses an idle worker of the right kind. If the pool is full, it replaces an idle
    worker of another kind. All workers are retired when the block ends.
    """

    def __init__(self, bench: Workbench, lm: LM | str | None = None, *, most: int = 5) -> None:
        if most < 1:
            raise ValueError(f"AgentPoolManager(most={most!r}): give 1 or more")
        self.bench = bench
        self.most = most
        self._lm = lm
        self._agents: dict[str, tuple[WorkerAgent, AgentInfo]] = {}
        self._last_number = 0
        self._turn = asyncio.Lock()

    @property
    def agents(self) -> list[AgentInfo]:
        """All workers of the pool, including idle workers."""
        return [info for _, info in self._agents.values()]

    async def open(self) -> None:
        """Retire the workers that a killed process left in the store."""
        for info in await self.bench.store.agents(self.bench.project.id):
            number = info.id.rpartition("-")[2]
            self._last_number = max(self._last_number, int(number) if number.isdecimal() else 0)
            if info.status != "retired":
                await self._save_info(
                    info.model_copy(update={"status": "retired", "task_id": None})
                )

    async def take(self, kind: str, task_id: int) -> WorkerAgent:
        """Return a worker for a task, and mark the worker as busy. Raise TeamError if no worker
        class has this kind, or if all workers of the pool are busy."""
        async with self._turn:
            idle = [info for info in self.agents if info.status == "idle"]
            reusable = next((info for info in idle if info.kind == kind), None)
            worker = (
                self._agents[reusable.id][0] if reusable else await self._make_worker(kind, idle)
            )
            before = reusable or AgentInfo(id=worker.agent_id, kind=kind)
            working = before.model_copy(update={"status": "working", "task_id": task_id})
            try:
                await self._set_state(worker, working)
            except BaseException:  # the call was cancelled after the state was stored
                await finish_despite_cancel(self.give_back(worker))
                raise
            return worker

    async def give_back(self, worker: WorkerAgent) -> None:
        """Return a worker to the pool. The worker is idle, and can take the next task."""
        _, info = self._agents[worker.agent_id]
        idle = {"status": "idle", "task_id": None}
        counts = {"completed": worker.completed, "failed": worker.failed}
        await self._set_state(worker, info.model_copy(update=idle | counts))

    async def retire(self, agent_id: str) -> None:
        """Close a worker and remove it from the pool."""
        worker, info = self._agents.pop(agent_id)
        try:
            await worker.close()
        finally:
            await self._save_info(info.model_copy(update={"status": "retired", "task_id": None}))

    async def close(self) -> None:
        """Retire all workers."""
        for agent_id in tuple(self._agents):
            await self.retire(agent_id)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await finish_despite_cancel(self.close())

    async def _make_worker(self, kind: str, idle: list[AgentInfo]) -> WorkerAgent:
        cls = worker_class(kind)
        if len(self._agents) >= self.most:
            if not idle:
                raise TeamError(
                    f"all {self.most} agents of the pool are working",
                    code="bae-team-pool",
                    fix="give an agent back, or make the pool larger",
                )
            await self.retire(idle[0].id)
        self._last_number += 1
        name = f"{kind}-{self._last_number}"
        return cls(project_id=self.bench.project.id, bench=self.bench, lm=self._lm, agent_id=name)

    async def _set_state(self, worker: WorkerAgent, info: AgentInfo) -> None:
        self._agents[info.id] = worker, info
        await self._save_info(info)

    async def _save_info(self, info: AgentInfo) -> None:
        await self.bench.store.save_agent(self.bench.project.id, info)
