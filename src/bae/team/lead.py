"""The lead of a team. It starts a task as soon as the task's prerequisites are merged, and awaits
the workers. During a run, only the lead changes the status of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from bae import LM, BaeError
from bae.lm import Budget
from bae.tasks import finish_despite_cancel
from bae.team.budgets import TASK_BUDGET, Budgets, Spent, begin_run, finish_run, read_spent
from bae.team.events import ActivityUpdate
from bae.team.integration import Moved
from bae.team.models import (
    LONGEST_REASON,
    Request,
    Task,
    TaskResult,
    TaskStatus,
    TeamError,
    bounded,
    describe,
    summary,
)
from bae.team.pool import AgentPoolManager
from bae.team.schedule import DONE, choose_next, find_changes
from bae.team.team_run import (
    TaskInProgress,
    TeamRun,
    close_request,
    lead_lock,
    open_requests,
    read_held,
    read_paused,
)
from bae.team.workbench import Workbench
from bae.team.worker import worker_class

_S = TaskStatus
Ended = Literal["done", "waiting", "paused", "stopped", "killed", "budget", "timeout"]
"""Why a run ended.

- `done`: no task is left to start.
- `waiting`: every open task needs an answer.
- `paused`, `stopped`, `killed`: a person has paused, stopped or killed the run.
- `budget`, `timeout`: the run reached a limit.
"""


class TeamSummary(BaseModel):
    """The outcome of a run."""

    model_config = ConfigDict(frozen=True)

    ended: Ended
    counts: dict[TaskStatus, int] = Field(description="the number of tasks in each status")
    tasks: tuple[Task, ...]
    head: str = Field(description="the newest commit of the team's branch")
    checkout: Moved | None = Field(
        default=None, description="the user's checkout after the run, if it follows the branch"
    )
    spent: Spent = Field(default=Spent(), description="spending of the run, restarts included")
    seconds: float = 0.0
    notes: tuple[str, ...] = Field(default=(), description="messages for a person")

    @property
    def done(self) -> bool:
        """Whether every task is merged, or skipped by a person."""
        return all(task.status in DONE for task in self.tasks)


class LeadAgent:
    """Runs the tasks of a team: `summary = await LeadAgent(bench, lm).run()`.

    - `max_agents`: how many tasks may be in progress at the same time.
    - `budget`: limits on the calls, tokens and cost of the run, restarts included.
    - `task_budget`: limits on the calls, tokens and cost of each task. Default: a million tokens.
    - `timeout`: seconds after which the run ends.
    - `task_timeout`: seconds without progress after which a task fails.
    - `retries`: how often the lead retries a failed task.
    - `wait`: if true, the run waits until people have answered all questions. Otherwise the run
      ends when every open task needs an answer.
    - `poll`: seconds between two checks for requests from other processes.

    The next run continues a run that was killed, cancelled, stopped or timed out. If the work of an
    interrupted task was merged, the task is completed. Otherwise the task is ready again.
    """

    def __init__(
        self,
        bench: Workbench,
        lm: LM | str | None = None,
        *,
        max_agents: int = 5,
        budget: Budget | None = None,
        task_budget: Budget | None = TASK_BUDGET,
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
        """Carry out the tasks until the run ends, and return the summary. If the run is cancelled,
        CancelledError is raised after all workers have ended and the status of every task is
        stored."""
        lock = lead_lock(self.bench.repository)
        # Requests that are stored from here on are for this run, because other processes see the
        # run as soon as it has the lock.
        old_requests = await open_requests(self.bench.store, self.bench.project.id)
        try:
            # Another process may have the lock for a moment, to check whether a run is in progress.
            await lock.acquire(exclusive=True, timeout=0.5)
        except TimeoutError as error:
            lock.release()
            raise TeamError(
                f"another lead is working on {self.bench.project.root}",
                error,
                code="bae-team-busy",
                fix="wait until it is done, or end it with bae team stop",
            ) from None
        try:
            return await self._run_locked(old_requests)
        finally:
            lock.release()

    async def _run_locked(self, old_requests: Sequence[Request]) -> TeamSummary:
        bench, store, project_id = self.bench, self.bench.store, self.bench.project.id
        since = monotonic()
        for task in await store.tasks(project_id):
            if task.status not in DONE:
                worker_class(task.kind)  # raises if the kind has no worker
        lm = self.lm
        if bench.program is not None:
            await bench.program.check()
        elif lm is None or isinstance(lm, str):
            lm = await bench.named_lm(lm)  # raises if there is no LM
        run_number = await begin_run(store, project_id, self.budget)
        per_task = self.task_budget
        if bench.program is not None and per_task is TASK_BUDGET:
            per_task = bench.program.task_budget
        budgets = Budgets(store, run_number, per_run=self.budget, per_task=per_task)
        pool = AgentPoolManager(bench, lm, most=self.max_agents)
        branch = await bench.repository.current_branch()
        run = TeamRun(bench, run_number, budgets, pool, branch, self.task_timeout)
        outer_hooks = bench.limit_lm, bench.on_progress, bench.should_stop
        bench.limit_lm, bench.budgets = budgets.limit, budgets
        bench.on_progress, bench.should_stop = run.note_progress, run.is_to_stop
        unsubscribe = store.on_event(self._note_stored)
        try:
            async with pool:
                ended = await self._run_in_time(run, old_requests)
            await run.tell_progress(await store.tasks(project_id))
        finally:
            unsubscribe()
            bench.limit_lm, bench.on_progress, bench.should_stop = outer_hooks
            bench.budgets = None
        await run.deliver()
        if ended == "done":
            await finish_run(store, run_number)
        tasks = await store.tasks(project_id)
        return TeamSummary(
            ended=ended,
            counts=summary(task.status for task in tasks),
            tasks=tuple(tasks),
            head=await bench.integration.head(),
            checkout=run.checkout,
            spent=await read_spent(store, run=run_number),
            seconds=monotonic() - since,
            notes=tuple(run.notes),
        )

    async def _run_in_time(self, run: TeamRun, old_requests: Sequence[Request]) -> Ended:
        run.bound = asyncio.timeout(self.timeout)
        try:
            async with run.bound:
                await self._recover(run, old_requests)
                await self._check_base()
                return await self._schedule_until_end(run)
        except TimeoutError:
            if not run.bound.expired():
                raise
            return "timeout"
        finally:
            await finish_despite_cancel(self._end_unstarted(run))

    async def _schedule_until_end(self, run: TeamRun) -> Ended:
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(self._watch()), group.create_task(_follow_branch(run))]
                while (ended := await self._take_step(run, group)) is None:
                    await self._wake.wait()
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as group:
            # A worker's failure is stored with its task, so this error comes from the store or git.
            raise group.exceptions[0] from None
        return ended

    async def _take_step(self, run: TeamRun, group: asyncio.TaskGroup) -> Ended | None:
        """Take requests, apply the rules and start tasks. Return why the run ends, or None if it
        continues."""
        self._wake.clear()
        store, project_id = self.bench.store, self.bench.project.id
        for request in await open_requests(store, project_id):
            outcome = await run.take_request(request)
            if outcome is not None:
                await close_request(store, request, outcome)
        await run.settle_features()
        paused = await read_paused(store, project_id)
        held_tasks = await read_held(store, project_id)
        tasks = await self._apply_rules(run, held_tasks)
        over_budget = "run" in run.budgets.refused.values()
        if not run.ending and None not in paused and not over_budget:
            for task in choose_next(tasks, self.max_agents):
                await self._start_task(run, group, task)
            tasks = await store.tasks(project_id)
        await run.tell_progress(tasks)
        if run.works or self._wake.is_set():  # if set, `tasks` may be out of date
            return None
        if run.ending:
            return run.ending
        if over_budget:
            return "budget"
        if None in paused and any(task.status is _S.READY for task in tasks):
            return None if self.wait else "paused"
        if any(task.status is _S.BLOCKED and task.id in held_tasks for task in tasks):
            return None if self.wait else "waiting"
        return "done"

    # --- before the tasks start, and while they run ---

    async def _recover(self, run: TeamRun, old_requests: Sequence[Request]) -> None:
        """Clean up after a killed run, and merge the user's new commits."""
        bench = self.bench
        for request in old_requests:
            if request.task_id is None and request.action in ("stop", "kill"):
                await close_request(bench.store, request, "no run was in progress")
        recovered = await bench.integration.recover()
        for ref in recovered.kept:
            await run.say(f"work that was not committed is kept as {ref}")
        for problem in recovered.problems:
            await run.say(problem)
        for task in await bench.store.tasks(bench.project.id):
            if task.status is _S.IN_PROGRESS:
                await run.end_work(task, _S.READY, "the run was killed")
        try:
            caught_up = await bench.integration.catch_up()
        except BaeError as error:
            await run.say(f"your commits cannot be merged: {error.message}")
            return
        text = getattr(caught_up, "text", "")
        if text:
            await run.say(f"your commits are not in {bench.integration.branch}: {text}")

    async def _check_base(self) -> None:
        """Raise BaseError if the tests cannot run on the commit that tasks start from."""
        bench, project_id = self.bench, self.bench.project.id
        tasks = await bench.store.tasks(project_id)
        if not any(task.approved and task.status in (_S.PENDING, _S.READY) for task in tasks):
            return
        head = await bench.integration.head()
        if await bench.reports.find(head) is None:
            await bench.emit(ActivityUpdate(project_id, "runs the tests once, before any work"))
        check = await bench.check_base(head)
        if check.problem or check.failed or check.not_loaded:
            await bench.emit(ActivityUpdate(project_id, bounded(check.text, LONGEST_REASON)))
        check.raise_problem()

    async def _watch(self) -> None:
        """Wake the lead after every write to the store, by this process or another."""
        version = await self.bench.store.data_version()
        while True:
            await asyncio.sleep(self.poll)
            before, version = version, await self.bench.store.data_version()
            if version != before or self._stored:
                self._stored = False
                self._wake.set()

    def _note_stored(self) -> None:
        self._stored = True

    async def _end_unstarted(self, run: TeamRun) -> None:
        """Store the status of tasks whose work was cancelled before it began."""
        for task in await self.bench.store.tasks(self.bench.project.id):
            if task.status is _S.IN_PROGRESS:
                await run.end_early(TaskInProgress(task))

    # --- tasks ---

    async def _apply_rules(self, run: TeamRun, held: Mapping[int, str]) -> list[Task]:
        tasks = await self.bench.store.tasks(self.bench.project.id)
        final = [task_id for task_id, scope in run.budgets.refused.items() if scope == "task"]
        for change in find_changes(tasks, held=held, retries=self.retries, final=final):
            await run.move(change.task.id, change.before, change.after, reason=change.reason)
        return await self.bench.store.tasks(self.bench.project.id)

    async def _start_task(self, run: TeamRun, group: asyncio.TaskGroup, task: Task) -> None:
        base = await (await self.bench.features.branch_of(task)).head()
        started = await run.move(task.id, _S.READY, _S.IN_PROGRESS, base=base)
        if started is not None:
            work = run.works[task.id] = TaskInProgress(started)
            work.job = group.create_task(self._carry_out(run, work), name=f"task {task.key}")

    async def _carry_out(self, run: TeamRun, work: TaskInProgress) -> None:
        """Have a worker carry out a task, and store the result."""
        try:
            result = await self._execute_task(run, work)
            await finish_despite_cancel(self._store_result(run, work, result))
        except asyncio.CancelledError:
            await finish_despite_cancel(run.end_early(work))
            raise
        finally:
            del run.works[work.task.id]
            self._wake.set()

    async def _execute_task(self, run: TeamRun, work: TaskInProgress) -> TaskResult:
        task = work.task
        work.bound = asyncio.timeout(self.task_timeout)
        try:
            worker = await run.pool.take(task.kind, task.id)
            try:
                async with work.bound:
                    return await worker.execute_task(task)
            finally:
                await finish_despite_cancel(run.pool.give_back(worker))
        except Exception as error:  # any error of a worker is a failure of its task
            text = describe(error)
            if work.bound.expired():
                text = f"there was no progress for {self.task_timeout:g} s"
            return TaskResult(status="failed", task_id=task.id, error=text)

    async def _store_result(self, run: TeamRun, work: TaskInProgress, result: TaskResult) -> None:
        """Store the result of the work on a task."""
        task = work.task
        if result.status in ("completed", "merged", "staged"):
            contradiction = f"it was reported as {result.status}, and is not merged"
            await run.end_work(task, _S.FAILED, contradiction)
        elif work.asked is not None:
            await run.end_early(work)
        elif result.status == "blocked":
            question = result.question or ""
            await self.bench.store.add_blocker(task.id, question, digest=result.digest)
            await run.end_work(task, _S.BLOCKED, question)
        elif run.ending:
            await run.end_early(work)
        elif run.budgets.refused.get(task.id) == "run":
            await run.end_work(task, _S.READY, "the budget of the run is spent")
        else:
            await run.end_work(task, _S.FAILED, result.error or "")


async def _follow_branch(run: TeamRun) -> None:
    """Update the user's checkout after each merge, if it follows the team's branch."""
    while True:
        await run.merged.wait()
        run.merged.clear()
        await run.deliver()
