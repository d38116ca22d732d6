"""The state of a team's run in progress, and people's requests to the run.

`TeamRun` changes the status of tasks while a lead works. A person requests stop, kill, pause,
resume, retry or skip in any process. The request is stored, and the lead takes it from the store.
If no lead is working, the next run takes the request, unless it is to stop or kill the run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from bae import BaeError
from bae.team import tables
from bae.team.events import ActionRequested, ActivityUpdate, ProgressUpdate
from bae.team.files import FileLock
from bae.team.models import (
    LONGEST_REASON,
    Action,
    Request,
    Task,
    TaskStatus,
    TeamError,
    bounded,
    may_move,
    summary,
)
from bae.team.store import Store, add_event
from bae.team.tables import sa

if TYPE_CHECKING:
    # Commands that only read the state of a run start without these.
    from bae.team.budgets import Budgets
    from bae.team.git import Repository
    from bae.team.integration import Moved
    from bae.team.pool import AgentPoolManager
    from bae.team.workbench import Workbench

_S = TaskStatus
_PAUSING: Final[tuple[Action, ...]] = ("pause", "resume")
_PAST: Final[dict[Action, str]] = {
    "stop": "stopped",
    "kill": "killed",
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "skip": "skipped",
}


@dataclass
class TaskInProgress:
    """A task in progress."""

    task: Task
    asked: Literal["stop", "kill", "pause", "skip"] | None = None
    """A person's request for the task."""
    bound: asyncio.Timeout | None = None
    """The time limit of the task."""
    job: asyncio.Task[None] | None = None
    """The asyncio task that works on the task."""

    def cut_off(self) -> None:
        """Cancel the work on the task, without waiting for its end."""
        if self.job is not None:
            self.job.cancel()


@dataclass
class TeamRun:
    """The state of a run in progress."""

    bench: Workbench
    number: int
    budgets: Budgets
    pool: AgentPoolManager
    branch: str | None
    """The branch that the user's checkout was on at the start."""
    task_timeout: float | None = None
    works: dict[int, TaskInProgress] = field(default_factory=dict[int, TaskInProgress])
    ending: Literal["stopped", "killed"] | None = None
    """How a person wants the run to end."""
    bound: asyncio.Timeout | None = None
    """The time limit of the run."""
    merged: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when work of a task was merged."""
    checkout: Moved | None = None
    """The result of the last fast-forward of the user's checkout."""
    notes: list[str] = field(default_factory=list[str])
    """Facts for the user. The summary of the run repeats them."""
    _counts: dict[TaskStatus, int] = field(default_factory=dict[TaskStatus, int])
    _settled: tuple[object, ...] = ()

    # --- the status of tasks ---

    async def move(
        self, task_id: int, before: TaskStatus, after: TaskStatus, **more: Any
    ) -> Task | None:
        """Change a task's status from `before` to `after`, and return the task.

        Return None if the status is no longer `before`, or if the task was dropped."""
        try:
            return await self.bench.store.move(task_id, before, after, **more)
        except TeamError as error:
            if error.code != "bae-team-unknown":
                raise
            return None

    async def end_work(self, task: Task, after: TaskStatus, reason: str) -> Task | None:
        """Store the status `after` for a task whose work has ended.

        If the work is already merged, store the status of merged work instead: `completed`,
        `merged` for work without tests, or `staged` until the task's feature is delivered."""
        merged = await self.bench.features.find_merged(task)
        if merged is None:
            reason = bounded(reason, LONGEST_REASON)
            return await self.move(task.id, _S.IN_PROGRESS, after, reason=reason)
        self.merged.set()
        return await self.move(task.id, _S.IN_PROGRESS, merged.status, commit=merged.commit)

    async def settle_features(self) -> None:
        """Complete the tasks of delivered features, close their questions, and have complete
        features delivered.

        A complete feature can be undelivered, for example because a person skipped its last task.
        Then its newest staged task becomes ready, and delivers the feature."""
        tasks = await self.bench.store.tasks(self.bench.project.id)
        staged = [task for task in tasks if task.status is _S.STAGED]
        asking = [task for task in tasks if task.status is _S.BLOCKED and task.feature]
        if not staged and not asking:
            return
        head = await self.bench.integration.head()
        state = (head, *((task.id, task.status) for task in tasks))
        if state == self._settled:
            return
        for task in staged:
            merged = await self.bench.features.find_merged(task)
            if merged is None and await self.bench.features.is_undelivered(task):
                await self.move(task.id, _S.STAGED, _S.READY, reason="its feature is complete")
            elif merged is not None and merged.status is not _S.STAGED:
                await self.move(task.id, _S.STAGED, merged.status, commit=merged.commit)
        for task in asking:
            merged = await self.bench.features.find_merged(task)
            if merged is not None and merged.status is not _S.STAGED:
                await self._close_questions(task, "its feature is delivered")
        self._settled = state

    async def _close_questions(self, task: Task, why: str) -> None:
        """Close the open questions of a task that no longer needs answers."""
        for blocker in await self.bench.store.blockers(task.project_id, open_only=True):
            if blocker.task_id == task.id:
                await self.bench.store.answer_blocker(blocker.id, f"No answer: {why}.")

    async def end_early(self, work: TaskInProgress) -> None:
        """Store the status of a task after its work was cancelled or stopped."""
        task = work.task
        match work.asked:
            case "stop" | "kill":
                ending = "stopped" if work.asked == "stop" else "killed"
                await self.end_work(task, _S.CANCELLED, f"{ending} by a person")
            case "skip":
                moved = await self.end_work(task, _S.CANCELLED, "skipped by a person")
                if moved and moved.status is _S.CANCELLED:
                    reason = "skipped by a person"
                    await self.move(task.id, _S.CANCELLED, _S.SKIPPED, reason=reason)
            case "pause":
                await self.end_work(task, _S.READY, "paused by a person")
            case None:
                timed_out = self.bound is not None and self.bound.expired()
                ending = self.ending or ("timed out" if timed_out else "cancelled")
                await self.end_work(task, _S.READY, f"the run was {ending}")

    # --- requests of people ---

    async def take_request(self, request: Request) -> str | None:
        """Carry out a person's request and return the outcome.

        Return None if the work on the task has to end first. The request stays open until then,
        even if the run is killed."""
        if request.task_id is None:
            return await self._take_run_request(request.action)
        task = await self.bench.store.task(request.task_id)
        work = self.works.get(task.id)
        match request.action:
            case "retry":
                return await self._retry_task(task)
            case "resume":
                if work and work.asked == "pause":
                    work.asked = None
                return "resumed"
            case "pause":
                if work:
                    work.asked = work.asked or "pause"
                return "pauses after its current round or attempt" if work else "paused"
            case "stop" if work:
                work.asked = work.asked or "stop"
                return None
            case "kill" | "skip" if work:
                if work.asked not in ("kill", "skip"):
                    work.asked = request.action
                    work.cut_off()
                return None
            case _:
                after = _S.SKIPPED if request.action == "skip" else _S.CANCELLED
                return await self._move_task(task, after, f"{_PAST[request.action]} by a person")

    async def _take_run_request(self, action: Action) -> str:
        if action == "retry":
            tasks = await self.bench.store.tasks(self.bench.project.id)
            failed_tasks = [task for task in tasks if task.status in (_S.FAILED, _S.CANCELLED)]
            for task in failed_tasks:
                await self._retry_task(task)
            return f"retried: {', '.join(task.key for task in failed_tasks) or 'none'}"
        for work in self.works.values():
            if action == "kill":
                work.cut_off()
            elif action == "resume" and work.asked == "pause":
                work.asked = None
        if action in ("stop", "kill"):
            self.ending = "stopped" if action == "stop" else "killed"
        return _PAST[action]

    async def _retry_task(self, task: Task) -> str:
        self.budgets.refused.pop(task.id, None)
        return await self._move_task(task, _S.PENDING, "", forgive=True)

    async def _move_task(
        self, task: Task, after: TaskStatus, reason: str, *, forgive: bool = False
    ) -> str:
        """Move a task that no agent works on to another status, and return the outcome in
        words."""
        if not may_move(task.status, after):
            return f"it is {task.status}"
        await self._close_questions(task, reason or "it is tried again")
        moved = await self.move(task.id, task.status, after, reason=reason, forgive=forgive)
        return f"it is {moved.status}" if moved else "another process was faster"

    # --- progress and messages ---

    def note_progress(self, task_id: int) -> None:
        """Restart the time limit of a task."""
        work = self.works.get(task_id)
        time_limit = work.bound if work else None
        if self.task_timeout is None or time_limit is None or time_limit.expired():
            return
        with suppress(RuntimeError):  # the work has not begun, or has ended
            time_limit.reschedule(asyncio.get_running_loop().time() + self.task_timeout)

    def is_to_stop(self, task_id: int) -> bool:
        """Return whether a task must stop after its attempt in progress."""
        work = self.works.get(task_id)
        return self.ending is not None or (work is not None and work.asked is not None)

    async def deliver(self) -> None:
        """Fast-forward the user's checkout if it is clean and the project's settings allow the
        update."""
        if not self.bench.project.update_checkout:
            return
        try:
            self.checkout = await self.bench.integration.deliver(branch=self.branch)
        except BaeError as error:
            from bae.team.integration import Moved

            self.checkout = Moved("", error.message)

    async def tell_progress(self, tasks: Iterable[Task]) -> None:
        """Store and send the number of tasks in each status, if a number has changed."""
        counts = summary(task.status for task in tasks)
        if counts != self._counts:
            self._counts = counts
            await self.bench.emit(ProgressUpdate(self.bench.project.id, counts))

    async def say(self, text: str) -> None:
        """Tell the user a fact, now and in the summary."""
        text = bounded(text, LONGEST_REASON)
        self.notes.append(text)
        await self.bench.emit(ActivityUpdate(self.bench.project.id, text))


async def add_request(
    store: Store,
    project_id: int,
    action: Action,
    task_id: int | None = None,
    *,
    by: str | None = None,
) -> Request:
    """Request an action for one task. Without a task, the request is for the whole run.

    - `stop`: end the task, or the run, after the attempts in progress.
    - `kill`: end the task, or the run, now. Unmerged work stays on its branch.
    - `pause`: start nothing new until `resume`. With a task, that task stops after its attempt.
    - `resume`: continue the task. Without a task, continue everything that is paused.
    - `retry`: do a failed, cancelled, skipped or blocked task again. Without a task, do all failed
      and cancelled tasks again.
    - `skip`: do without the task. Tasks that depend on it continue.

    To add a note to a task, use `Store.add_note`. To answer a question, use `Store.answer_blocker`.
    """
    if action == "skip" and task_id is None:
        raise TeamError("skip needs a task", code="bae-team-unknown", fix="name one")

    def add(db: sa.Connection) -> Request:
        project = sa.select(tables.projects).filter_by(id=project_id)
        tables.one(db, project, "project", project_id)
        if task_id is not None:
            task = sa.select(tables.tasks).filter_by(id=task_id, project_id=project_id)
            tables.one(db, task, "task", task_id)
        columns: dict[str, Any] = {"project_id": project_id, "task_id": task_id, "action": action}
        add_event(db, ActionRequested(project_id, action, task_id, by=by))
        return Request(id=tables.insert(db, tables.requests, **columns), **columns)

    return await store.write(add)


async def open_requests(store: Store, project_id: int) -> list[Request]:
    """Return the requests without an outcome, oldest first."""
    query = sa.select(tables.requests).filter_by(project_id=project_id, outcome=None)
    query = query.order_by(tables.requests.c.id)
    return [
        Request.model_validate(row) for row in await store.read(lambda db: tables.rows(db, query))
    ]


async def close_request(store: Store, request: Request, outcome: str) -> None:
    """Store the outcome of a request, so that no run takes it again."""
    change = sa.update(tables.requests).filter_by(id=request.id).values(outcome=outcome)
    await store.write(lambda db: db.execute(change).rowcount)


def lead_lock(repository: Repository) -> FileLock:
    """Return the lock that a repository's lead holds while it works."""
    return FileLock(repository.common / "bae-lead.lock")


async def is_running(repository: Repository) -> bool:
    """Return whether a lead is working in a repository, in this process or another."""
    try:
        async with lead_lock(repository).hold(exclusive=False, timeout=0):
            return False
    except TimeoutError:
        return True


async def read_held(store: Store, project_id: int) -> dict[int, str]:
    """Return the reason of each task that waits for a person, by task id. The reason is an open
    question, or that a person paused the task."""
    paused = await read_paused(store, project_id)
    paused_tasks = {task_id: "paused by a person" for task_id in paused if task_id is not None}
    open_ones = await store.blockers(project_id, open_only=True)
    questions = {blocker.task_id: blocker.question for blocker in reversed(open_ones)}
    return {key: bounded(text, LONGEST_REASON) for key, text in questions.items()} | paused_tasks


async def read_paused(store: Store, project_id: int) -> frozenset[int | None]:
    """Return the ids of paused tasks. If the whole run is paused, None is among them."""
    query = sa.select(tables.requests).filter_by(project_id=project_id)
    query = query.where(tables.requests.c.action.in_(_PAUSING)).order_by(tables.requests.c.id)
    last: dict[int | None, str] = {}
    for row in await store.read(lambda db: tables.rows(db, query)):
        if row["task_id"] is None and row["action"] == "resume":
            last.clear()
        last[row["task_id"]] = row["action"]
    return frozenset(task_id for task_id, action in last.items() if action == "pause")
