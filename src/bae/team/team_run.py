"""A run of a team while it lasts: the tasks in progress, and the one way in which the status of a
task is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from bae.exceptions import BaeError
from bae.team.budgets import Budgets
from bae.team.events import (
    ActivityUpdate,
    ProgressUpdate,
    broadcast_blocker_created,
    broadcast_blocker_resolved,
    broadcast_task_blocked,
    broadcast_task_status,
    broadcast_task_unblocked,
)
from bae.team.integration import Moved
from bae.team.models import LONGEST_REASON, Task, TaskStatus, TeamError, bounded, summary
from bae.team.pool import AgentPoolManager
from bae.team.workbench import Workbench

_S = TaskStatus


@dataclass
class Work:
    """A task in progress. `asked` is what a person wants of it."""

    task: Task
    asked: Literal["stop", "kill", "pause", "skip"] | None = None
    bound: asyncio.Timeout | None = None
    job: asyncio.Task[None] | None = None

    def cut_off(self) -> None:
        """End the work now; it is awaited with the run."""
        if self.job is not None:
            self.job.cancel()


@dataclass
class TeamRun:
    """What is known while a run lasts."""

    bench: Workbench
    number: int
    budgets: Budgets
    pool: AgentPoolManager
    branch: str | None
    """The branch that the user's checkout was on."""
    task_timeout: float | None = None
    works: dict[int, Work] = field(default_factory=dict[int, Work])
    ending: Literal["stopped", "killed"] | None = None
    """What a person wants of the run."""
    bound: asyncio.Timeout | None = None
    merged: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the team's branch has moved."""
    checkout: Moved | None = None
    notes: list[str] = field(default_factory=list[str])
    _counts: dict[str, int] = field(default_factory=dict[str, int])

    # --- the status of tasks ---

    async def move(
        self, task_id: int, before: TaskStatus, after: TaskStatus, **more: Any
    ) -> Task | None:
        """Change a task's status, and send the events that are stored with it. None where it has
        another status by now, or was dropped."""
        try:
            task = await self.bench.store.move(task_id, before, after, **more)
        except TeamError as error:
            if error.code != "bae-team-unknown":
                raise
            return None
        if task is not None:
            about = self.bench.ws_manager, task.project_id, task_id
            await broadcast_task_status(*about, after, before=before, reason=task.reason)
            if before is _S.BLOCKED:
                await broadcast_task_unblocked(*about)
            if after is _S.BLOCKED:
                await broadcast_task_blocked(*about, task.reason)
        return task

    async def end_work(self, task: Task, after: TaskStatus, reason: str) -> Task | None:
        """End the work on a task: whatever became of it, it is completed if it was merged."""
        commit = await self.bench.integration.merged_as(task.branch)
        if commit is None:
            reason = bounded(reason, LONGEST_REASON)
            return await self.move(task.id, _S.IN_PROGRESS, after, reason=reason)
        self.merged.set()
        return await self.move(task.id, _S.IN_PROGRESS, _S.COMPLETED, commit=commit)

    async def end_early(self, work: Work) -> None:
        """Store where a task is whose work was cut off, or stopped by a person."""
        task = work.task
        match work.asked:
            case "stop" | "kill":
                how = "stopped" if work.asked == "stop" else "killed"
                await self.end_work(task, _S.CANCELLED, f"{how} by a person")
            case "skip":
                ended = await self.end_work(task, _S.CANCELLED, "skipped by a person")
                if ended and ended.status is _S.CANCELLED:
                    reason = "skipped by a person"
                    await self.move(task.id, _S.CANCELLED, _S.SKIPPED, reason=reason)
            case "pause":
                await self.end_work(task, _S.READY, "paused by a person")
            case None:
                timed_out = self.bound is not None and self.bound.expired()
                how = self.ending or ("timed out" if timed_out else "cancelled")
                await self.end_work(task, _S.READY, f"the run was {how}")

    # --- questions ---

    async def ask(self, task: Task, question: str) -> None:
        """Store the question of a task."""
        blocker = await self.bench.store.add_blocker(task.id, question)
        about = self.bench.ws_manager, task.project_id, task.id
        await broadcast_blocker_created(*about, blocker.id, blocker.question)

    async def withdraw(self, task: Task, why: str) -> None:
        """Close the open questions of a task that nobody has to answer any more."""
        for blocker in await self.bench.store.blockers(task.project_id, open_only=True):
            if blocker.task_id == task.id:
                answer = f"No answer: {why}."
                await self.bench.store.answer_blocker(blocker.id, answer)
                about = self.bench.ws_manager, task.project_id, task.id
                await broadcast_blocker_resolved(*about, blocker.id, answer)

    # --- what is watched and told ---

    def note_progress(self, task_id: int) -> None:
        """Give a task its time again."""
        work = self.works.get(task_id)
        bound = work.bound if work else None
        if self.task_timeout is None or bound is None or bound.expired():
            return
        with suppress(RuntimeError):  # it has not begun, or it has ended
            bound.reschedule(asyncio.get_running_loop().time() + self.task_timeout)

    def is_to_stop(self, task_id: int) -> bool:
        """Whether a task is to stop after the attempt that is in progress."""
        work = self.works.get(task_id)
        return self.ending is not None or (work is not None and work.asked is not None)

    async def deliver(self) -> None:
        """Have the user's checkout follow the team's branch, if it is clean."""
        try:
            self.checkout = await self.bench.integration.deliver(branch=self.branch)
        except BaeError as error:
            self.checkout = Moved("", error.message)

    async def tell_progress(self, tasks: Iterable[Task]) -> None:
        """Store and send how many tasks are in each status, where that has changed."""
        counts = {str(status): n for status, n in summary(task.status for task in tasks).items()}
        if counts != self._counts:
            self._counts = counts
            await self.bench.emit(ProgressUpdate(project_id=self.bench.project.id, counts=counts))

    async def say(self, text: str) -> None:
        """Tell a person something, now and in the summary."""
        text = bounded(text, LONGEST_REASON)
        self.notes.append(text)
        await self.bench.emit(ActivityUpdate(project_id=self.bench.project.id, text=text))
