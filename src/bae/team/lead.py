"""The lead of a team: starts each task the moment its prerequisites are merged, and is the only one
that writes where tasks are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from bae import LM, BaeError
from bae.exceptions import describe
from bae.lm.policies.budget import Budget
from bae.team.budgets import Budgets, Spent, begin_run, finish_run, read_spent
from bae.team.controls import close_request, open_requests, read_paused
from bae.team.events import (
    ActivityUpdate,
    Event,
    ProgressUpdate,
    TaskBlocked,
    TaskStatusChanged,
    TaskUnblocked,
    broadcast,
)
from bae.team.locks import FileLock, finish
from bae.team.models import (
    Request,
    Task,
    TaskResult,
    TaskStatus,
    TeamError,
    bounded,
    may_move,
    summary,
)
from bae.team.pool import AgentPoolManager
from bae.team.schedule import DONE, choose_next, find_changes
from bae.team.user_checkout import Moved
from bae.team.workbench import Workbench
from bae.team.worker import worker_class

_S = TaskStatus
LONGEST_REASON: Final = 4000
Ended = Literal["done", "waiting", "paused", "stopped", "killed", "budget", "timeout"]
"""Why a run ended: nothing is left to do, or only with an answer; a person asked for it; the budget
of the run is spent; its time is over."""


class TeamSummary(BaseModel):
    """What a run has come to."""

    model_config = ConfigDict(frozen=True)

    ended: Ended
    counts: dict[TaskStatus, int] = Field(description="each task is in exactly one")
    tasks: tuple[Task, ...]
    head: str = Field(description="the commit that the team's branch is at")
    checkout: Moved | None = Field(default=None, description="what became of the user's checkout")
    spent: Spent = Field(default=Spent(), description="in the whole run, also before a restart")
    seconds: float = 0.0
    notes: tuple[str, ...] = Field(default=(), description="what a person should know")

    @property
    def done(self) -> bool:
        """Whether all tasks are merged, or skipped by a person."""
        return all(task.status in DONE for task in self.tasks)


@dataclass
class _Work:
    """A task in progress."""

    task: Task
    asked: Literal["stop", "kill", "pause", "skip"] | None = None
    bound: asyncio.Timeout | None = None
    job: asyncio.Task[None] | None = None


@dataclass
class _Run:
    """What is known while a run lasts."""

    number: int
    budgets: Budgets
    pool: AgentPoolManager
    branch: str | None
    """The branch that the user's checkout was on."""
    works: dict[int, _Work] = field(default_factory=dict[int, _Work])
    ending: Literal["stopped", "killed"] | None = None
    bound: asyncio.Timeout | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    merged: asyncio.Event = field(default_factory=asyncio.Event)
    checkout: Moved | None = None
    notes: list[str] = field(default_factory=list[str])


class LeadAgent:
    """Runs the tasks of a team: `summary = await LeadAgent(bench, lm).run()`.

    At most `max_agents` tasks are in progress. `budget` is for the run, a restart included, and
    `task_budget` for each task: `calls`, `tokens` and `cost` of a `Budget`. The run ends after
    `timeout` seconds, and a task that makes no progress for `task_timeout` seconds fails. A failed
    task is tried `retries` times more. With `wait`, the run lasts until all questions are answered;
    without, it ends when nothing can be done before. What people ask for from other processes is
    looked for every `poll` seconds.

    A run that was killed, cancelled or timed out is continued by the next one: tasks that were in
    progress are completed if they had been merged, and ready otherwise.
    """

    def __init__(
        self,
        bench: Workbench,
        lm: LM | str | None = None,
        *,
        max_agents: int = 5,
        budget: Budget | None = None,
        task_budget: Budget | None = None,
        timeout: float | None = None,
        task_timeout: float | None = 300.0,
        retries: int = 1,
        wait: bool = False,
        poll: float = 0.2,
    ) -> None:
        if max_agents < 1 or retries < 0:
            raise ValueError(
                f"LeadAgent({max_agents=}, {retries=}): give 1 agent, 0 retries or more"
            )
        self.bench = bench
        self.lm = lm
        self.max_agents = max_agents
        self.budget = budget
        self.task_budget = task_budget
        self.timeout = timeout
        self.task_timeout = task_timeout
        self.retries = retries
        self.wait = wait
        self.poll = poll
        self._wake = asyncio.Event()
        self._stored = False

    async def run(self) -> TeamSummary:
        """Carry out the tasks, until nothing is left to do. A cancellation is raised after every
        worker has ended and the status of every task is stored."""
        lock = FileLock(self.bench.repository.common / "bae-lead.lock")
        try:
            await lock.acquire(exclusive=True, timeout=0)
        except TimeoutError as error:
            lock.release()
            raise TeamError(
                f"another lead is working on {self.bench.project.root}",
                error,
                code="bae-team-busy",
                fix="wait until it is done, or end it with bae team stop",
            ) from None
        try:
            return await self._run()
        finally:
            lock.release()

    async def _run(self) -> TeamSummary:
        bench, store, project_id = self.bench, self.bench.store, self.bench.project.id
        since = monotonic()
        for task in await store.tasks(project_id):
            if task.status not in DONE:
                worker_class(task.kind)  # raises for a kind that there is no worker for
        number = await begin_run(store, project_id)
        budgets = Budgets(store, number, per_run=self.budget, per_task=self.task_budget)
        pool = AgentPoolManager(bench, self.lm, most=self.max_agents)
        run = _Run(number, budgets, pool, await bench.repository.current_branch())
        before = bench.limit_lm, bench.on_progress, bench.should_stop
        bench.limit_lm = budgets.limit
        bench.on_progress = lambda task_id: self._progress(run, task_id)
        bench.should_stop = lambda task_id: _is_to_stop(run, task_id)
        leave = store.on_event(self._note_stored)
        try:
            async with pool:
                ended = await self._in_time(run)
            await self._tell_progress(run, await store.tasks(project_id))
        finally:
            leave()
            bench.limit_lm, bench.on_progress, bench.should_stop = before
        await self._deliver(run)
        if ended == "done":
            await finish_run(store, number)
        tasks = await store.tasks(project_id)
        return TeamSummary(
            ended=ended,
            counts=summary(task.status for task in tasks),
            tasks=tuple(tasks),
            head=await bench.integration.head(),
            checkout=run.checkout,
            spent=await read_spent(store, run=number),
            seconds=monotonic() - since,
            notes=tuple(run.notes),
        )

    async def _in_time(self, run: _Run) -> Ended:
        run.bound = asyncio.timeout(self.timeout)
        try:
            async with run.bound:
                await self._recover(run)
                return await self._work(run)
        except TimeoutError:
            if not run.bound.expired():
                raise
            return "timeout"
        finally:
            await finish(self._end_unstarted(run))

    async def _work(self, run: _Run) -> Ended:
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self._watch()), group.create_task(self._delivery(run))]
                while (ended := await self._step(run, group)) is None:
                    await self._wake.wait()
                for each in beside:
                    each.cancel()
        except BaseExceptionGroup as group:
            # A worker's failure is its task's: this is one of the store, or of git.
            raise group.exceptions[0] from None
        return ended

    async def _end_unstarted(self, run: _Run) -> None:
        """Store where tasks are that were cancelled just before their work began."""
        for task in await self.bench.store.tasks(self.bench.project.id):
            if task.status is _S.IN_PROGRESS:
                await self._settle_cancelled(run, _Work(task))

    async def _step(self, run: _Run, group: asyncio.TaskGroup) -> Ended | None:
        """Do all that can be done now: why the run ends, or None where it goes on."""
        self._wake.clear()
        store, project_id = self.bench.store, self.bench.project.id
        for request in await open_requests(store, project_id):
            await close_request(store, request, await self._take(run, request))
        paused = await read_paused(store, project_id)
        held = await self._held(paused)
        tasks = await self._apply_rules(run, held)
        over_budget = "run" in run.budgets.refused.values()
        if not run.ending and None not in paused and not over_budget:
            for task in choose_next(tasks, self.max_agents):
                await self._start(run, group, task)
            tasks = await store.tasks(project_id)
        await self._tell_progress(run, tasks)
        if run.works or self._wake.is_set():  # or one has ended since the tasks were read
            return None
        if run.ending:
            return run.ending
        if over_budget:
            return "budget"
        if None in paused and any(task.status is _S.READY for task in tasks):
            return None if self.wait else "paused"
        if any(task.status is _S.BLOCKED and task.id in held for task in tasks):
            return None if self.wait else "waiting"
        return "done"

    # --- before and beside the work ---

    async def _recover(self, run: _Run) -> None:
        """Find what a killed run has left, and what the user has committed since."""
        bench = self.bench
        for request in await open_requests(bench.store, bench.project.id):
            if request.task_id is None and request.action in ("stop", "kill"):
                await close_request(bench.store, request, "no run was in progress")
        found = await bench.workspaces.recover()
        for each in found.kept:
            await self._say(run, f"work that was not committed is kept as {each}")
        for each in found.problems:
            await self._say(run, each)
        for task in await bench.store.tasks(bench.project.id):
            if task.status is _S.IN_PROGRESS:
                await self._end(run, task, _S.READY, "the run was killed")
        if await bench.repository.resolve("HEAD"):
            try:
                caught_up = await bench.integration.catch_up()
            except BaeError as error:
                await self._say(run, f"your commits cannot be merged: {error.message}")
                return
            text = getattr(caught_up, "text", "")
            if text:
                said = f"your commits are not in {bench.integration.branch}: {text}"
                await self._say(run, bounded(said, LONGEST_REASON))

    async def _watch(self) -> None:
        """Wake the lead where something was stored: here, or by another process."""
        version = await self.bench.store.data_version()
        while True:
            await asyncio.sleep(self.poll)
            before, version = version, await self.bench.store.data_version()
            if version != before or self._stored:
                self._stored = False
                self._wake.set()

    async def _delivery(self, run: _Run) -> None:
        """Have the user's checkout follow the team's branch."""
        while True:
            await run.merged.wait()
            run.merged.clear()
            await self._deliver(run)

    async def _deliver(self, run: _Run) -> None:
        try:
            run.checkout = await self.bench.integration.deliver(branch=run.branch)
        except BaeError as error:
            run.checkout = Moved("", error.message)

    def _note_stored(self) -> None:
        self._stored = True

    # --- tasks ---

    async def _held(self, paused: frozenset[int | None]) -> Mapping[int, str]:
        """Why tasks wait for a person, by their ids."""
        held = {task_id: "paused by a person" for task_id in paused if task_id is not None}
        blockers = await self.bench.store.blockers(self.bench.project.id, open_only=True)
        return {each.task_id: _reason(each.question) for each in reversed(blockers)} | held

    async def _apply_rules(self, run: _Run, held: Mapping[int, str]) -> list[Task]:
        tasks = await self.bench.store.tasks(self.bench.project.id)
        final = [task_id for task_id, scope in run.budgets.refused.items() if scope == "task"]
        for change in find_changes(tasks, held=held, retries=self.retries, final=final):
            await self._move(change.task.id, change.before, change.after, reason=change.reason)
        return await self.bench.store.tasks(self.bench.project.id)

    async def _start(self, run: _Run, group: asyncio.TaskGroup, task: Task) -> None:
        base = await self.bench.integration.head()
        moved = await self._move(task.id, _S.READY, _S.IN_PROGRESS, base=base)
        if moved is not None:
            work = run.works[task.id] = _Work(moved)
            work.job = group.create_task(self._carry_out(run, work), name=f"task {task.key}")

    async def _carry_out(self, run: _Run, work: _Work) -> None:
        """Have a worker carry out a task, and store where that has led."""
        task = work.task
        try:
            result = await self._execute(run, work)
            await finish(self._settle(run, work, result))
        except asyncio.CancelledError:
            await finish(self._settle_cancelled(run, work))
            raise
        finally:
            del run.works[task.id]
            self._wake.set()

    async def _execute(self, run: _Run, work: _Work) -> TaskResult:
        task = work.task
        work.bound = asyncio.timeout(self.task_timeout)
        try:
            worker = await run.pool.take(task.kind, task.id)
            try:
                async with work.bound:
                    return await worker.execute_task(task)
            finally:
                await finish(run.pool.give_back(worker))
        except Exception as error:  # whatever a worker raises: it is that task's failure
            text = describe(error)
            if work.bound.expired():
                text = f"there was no progress for {self.task_timeout:g} s"
            return TaskResult(status="failed", task_id=task.id, error=text)

    async def _settle(self, run: _Run, work: _Work, result: TaskResult) -> None:
        """Store where the work on a task has led."""
        task, end = work.task, self._end
        refused = run.budgets.refused.get(task.id)
        if work.asked is not None and result.status != "completed":
            await self._settle_cancelled(run, work)
        elif result.status == "completed":
            await end(run, task, _S.FAILED, "it was reported as completed, and is not merged")
        elif result.status == "blocked":
            question = result.question or ""
            await self.bench.store.add_blocker(task.id, question)
            await end(run, task, _S.BLOCKED, _reason(question))
        elif run.ending:
            await end(run, task, _S.READY, "the run was stopped")
        elif refused == "run":
            await end(run, task, _S.READY, "the budget of the run is spent")
        else:
            await end(run, task, _S.FAILED, _reason(result.error or ""))

    async def _settle_cancelled(self, run: _Run, work: _Work) -> None:
        """Store where a task is whose work was cut off, or stopped by a person."""
        task = work.task
        if work.asked in ("stop", "kill"):
            how = "stopped" if work.asked == "stop" else "killed"
            await self._end(run, task, _S.CANCELLED, f"{how} by a person")
        elif work.asked == "skip":
            ended = await self._end(run, task, _S.CANCELLED, "skipped by a person")
            if ended and ended.status is _S.CANCELLED:
                await self._move(task.id, _S.CANCELLED, _S.SKIPPED, reason="skipped by a person")
        elif work.asked == "pause":
            await self._end(run, task, _S.READY, "paused by a person")
        else:
            timed_out = run.bound is not None and run.bound.expired()
            how = "killed" if run.ending else "timed out" if timed_out else "cancelled"
            await self._end(run, task, _S.READY, f"the run was {how}")

    async def _end(self, run: _Run, task: Task, after: TaskStatus, reason: str) -> Task | None:
        """End the work on a task: whatever became of it, it is completed if it was merged."""
        commit = await self.bench.integration.merged_as(task.branch)
        if commit is None:
            return await self._move(task.id, _S.IN_PROGRESS, after, reason=reason)
        run.merged.set()
        return await self._move(task.id, _S.IN_PROGRESS, _S.COMPLETED, commit=commit)

    async def _move(
        self, task_id: int, before: TaskStatus, after: TaskStatus, **more: Any
    ) -> Task | None:
        """Change a task's status, and send the events that were stored with it."""
        task = await self.bench.store.move(task_id, before, after, **more)
        if task is not None:
            about: dict[str, Any] = {"project_id": task.project_id, "task_id": task_id}
            said = task.reason
            events: list[Event] = [
                TaskStatusChanged(**about, status=after, before=before, reason=said)
            ]
            events += [TaskUnblocked(**about)] if before is _S.BLOCKED else []
            events += [TaskBlocked(**about, reason=said)] if after is _S.BLOCKED else []
            for event in events:
                await broadcast(self.bench.ws_manager, event)
        return task

    def _progress(self, run: _Run, task_id: int) -> None:
        work = run.works.get(task_id)
        bound = work.bound if work else None
        if bound is None or bound.when() is None or bound.expired():
            return
        with suppress(RuntimeError):  # it is over
            bound.reschedule(asyncio.get_running_loop().time() + (self.task_timeout or 0.0))

    async def _tell_progress(self, run: _Run, tasks: list[Task]) -> None:
        counts = {str(status): n for status, n in summary(task.status for task in tasks).items()}
        if counts != run.counts:
            run.counts = counts
            await self.bench.emit(ProgressUpdate(project_id=self.bench.project.id, counts=counts))

    async def _say(self, run: _Run, text: str) -> None:
        run.notes.append(text)
        await self.bench.emit(ActivityUpdate(project_id=self.bench.project.id, text=text))

    # --- requests ---

    async def _take(self, run: _Run, request: Request) -> str:
        """Do what a person asks for: what became of it."""
        if request.task_id is None:
            return await self._take_for_all(run, request)
        task = await self.bench.store.task(request.task_id)
        work = run.works.get(task.id)
        match request.action:
            case "retry":
                return await self._retry(run, task)
            case "resume":
                if work and work.asked == "pause":
                    work.asked = None
                return "resumed"
            case "pause":
                if work:
                    work.asked = work.asked or "pause"
                return "pauses after its attempt" if work else "paused"
            case "stop" if work:
                work.asked = work.asked or "stop"
                return "stops after its attempt"
            case "kill" | "skip" if work and work.job:
                work.asked = request.action
                work.job.cancel()
                return "its work is cut off"
            case _:
                after = _S.SKIPPED if request.action == "skip" else _S.CANCELLED
                return await self._put(task, after, f"{_PAST[request.action]} by a person")

    async def _take_for_all(self, run: _Run, request: Request) -> str:
        if request.action == "retry":
            tasks = await self.bench.store.tasks(self.bench.project.id)
            again = [task for task in tasks if task.status in (_S.FAILED, _S.CANCELLED)]
            for task in again:
                await self._retry(run, task)
            return f"retried: {', '.join(task.key for task in again) or 'none'}"
        if request.action == "resume":
            for work in run.works.values():
                work.asked = None if work.asked == "pause" else work.asked
        elif request.action in ("stop", "kill"):
            run.ending = "stopped" if request.action == "stop" else "killed"
            for work in run.works.values() if request.action == "kill" else ():
                if work.job:
                    work.job.cancel()
        return _PAST[request.action]

    async def _retry(self, run: _Run, task: Task) -> str:
        run.budgets.refused.pop(task.id, None)
        return await self._put(task, _S.PENDING, "", forgive=True)

    async def _put(self, task: Task, after: TaskStatus, reason: str, **more: Any) -> str:
        """Have a task that nobody works on where a person wants it."""
        if not may_move(task.status, after):
            return f"it is {task.status}"
        for blocker in await self.bench.store.blockers(task.project_id, open_only=True):
            if blocker.task_id == task.id:
                said = reason or "try again"
                await self.bench.store.answer_blocker(blocker.id, f"No answer: {said}.")
        moved = await self._move(task.id, task.status, after, reason=reason, **more)
        return f"it is {moved.status if moved else 'changed by another process'}"


_PAST: Final = {
    "stop": "stopped",
    "kill": "killed",
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "skip": "skipped",
}


def _is_to_stop(run: _Run, task_id: int) -> bool:
    work = run.works.get(task_id)
    return run.ending is not None or (work is not None and work.asked is not None)


def _reason(text: str) -> str:
    return bounded(text, LONGEST_REASON)
