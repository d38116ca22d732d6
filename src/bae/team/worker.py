"""Workers: agents that carry out tasks. A worker turns the description of a task into tested,
merged code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from os import PathLike, urandom
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast, overload

from bae import LM, BaeError
from bae.lm import check_lm_name
from bae.tasks import finish_despite_cancel
from bae.team import sandbox
from bae.team.base_check import describe_failed_before
from bae.team.edits import apply_answer
from bae.team.events import ActivityUpdate, Broadcaster, CommitCreated, TestResult
from bae.team.git import BRANCHES, Repository, shown_path
from bae.team.guarded_files import Guarded
from bae.team.integration import Integrated, MergeOutcome
from bae.team.models import (
    LONGEST_REASON,
    Task,
    TaskResult,
    TaskStatus,
    TeamError,
    TestReport,
    bounded,
    describe,
    headline,
)
from bae.team.programs import NoLM
from bae.team.repository import CommitReader
from bae.team.store import Store
from bae.team.task_context import LONGEST_CONTEXT, LOOP_CONTEXT, Context, gather_context
from bae.team.verdict import WorkVerdict
from bae.team.workbench import Workbench, WorkerMode, can_loop, open_reports
from bae.team.worker_graph import WorkerAnswer, WorkRequest, add_failed_before, compose_brief
from bae.team.worker_runs import run_task
from bae.team.workspaces import SetupError, Workspace

_log = logging.getLogger(__name__)


class WorkerAgent:
    """Carries out tasks: `await worker.execute_task(task)`. You can also call the steps of a task
    one by one, inside `async with worker`, or call `close` after the last step.

    - `project_id`: the project of the tasks.
    - `bench`: the bench of a team. Without a bench, the worker is alone and opens a bench from
      `db`.
    - `db`: a store, or the path of its file.
    - `root`: the path of the repository, if the repository was moved.
    - `lm`: an LM, or the name of an LM.
    - `api_key`: a key for Anthropic's API.
    - `ws_manager`: if the worker is alone, its events are also sent here.

    A worker stores attempts, test reports and events. If the worker is alone, it also stores the
    status of the task and its question. In a team, the lead stores these.
    """

    kind: ClassVar[str] = "worker"
    role: ClassVar[str] = "You are a software engineer."
    """The first words of the prompt."""

    def __init__(
        self,
        *,
        project_id: int,
        db: Store | str | PathLike[str] | None = None,
        ws_manager: Broadcaster | None = None,
        api_key: str | None = None,
        lm: LM | str | None = None,
        root: str | PathLike[str] | None = None,
        bench: Workbench | None = None,
        agent_id: str | None = None,
    ) -> None:
        if bench is None and db is None:
            raise TypeError(f"{type(self).__name__} needs db=…, or the bench=… of a team")
        self.project_id = project_id
        self.agent_id = agent_id or f"{self.kind}-{urandom(3).hex()}"
        self._db = db
        self._root = root
        self._ws_manager = ws_manager
        self._lm = lm
        self._api_key = _check_key(lm, api_key)
        self._bench = bench
        self.alone = bench is None
        """Whether the worker works without a team."""
        self.completed = 0
        """How many tasks the worker has completed."""
        self.failed = 0
        """How many tasks have failed."""
        self._opened: AsyncExitStack | None = None
        self._workspaces: dict[int, Workspace] = {}
        self._turn = asyncio.Lock()
        self._opening = asyncio.Lock()

    # --- a task ---

    @overload
    async def execute_task(self, task: Task) -> TaskResult: ...

    @overload
    async def execute_task(self, task: Mapping[str, Any]) -> dict[str, Any]: ...

    async def execute_task(self, task: Task | Mapping[str, Any]) -> TaskResult | dict[str, Any]:
        """Carry out a task until it is merged, failed, or blocked by a question.

        A worker carries out one task at a time. If an earlier run of the task was killed, cancelled
        or failed, this call continues that run. If you cancel the call, it ends all work before it
        raises the cancellation, and keeps committed edits.

        If you pass a dict instead of a `Task`, you get a dict. Your dict needs the `id` of a stored
        task, and its other values replace the task's stored values. Unknown keys are ignored.
        """
        async with self._turn:
            opens_bench = self._bench is None
            try:
                bench = await self.open()
                if isinstance(task, Task):
                    return await self._carry_out(bench, task)
                stored = await _find_stored_task(bench.store, task)
                return (await self._carry_out(bench, stored)).to_dict()
            finally:
                if opens_bench:
                    await finish_despite_cancel(self.close())

    async def self_correct(self, task: Task, failure: str) -> TaskResult:
        """Have the LLM correct the last attempt, and merge the work, as `execute_task` does.

        `failure` describes what is wrong with the attempt. The bench limits the number of
        corrections."""
        async with self._turn:
            return await self._carry_out(await self.open(), task, failure)

    async def _carry_out(self, bench: Workbench, task: Task, failure: str = "") -> TaskResult:
        """Carry out a task and count the result. If the worker is alone, store the task's
        status."""
        if self.alone:
            await _store_begin(bench, task.id)
        try:
            result = await run_task(self, bench, task, failure)
        except BaseException as error:
            is_failure = isinstance(error, Exception)
            self.failed += is_failure
            if self.alone:
                reason = describe(error) if is_failure else "the work was cancelled"
                after = TaskStatus.FAILED if is_failure else TaskStatus.READY
                await finish_despite_cancel(_store_end(bench, task.id, after, reason))
            raise
        self.completed += result.commit is not None
        self.failed += result.status == "failed"
        if self.alone:
            await finish_despite_cancel(_store_result(bench, result))
        return result

    # --- steps ---

    async def build_context(self, task: Task) -> Context:
        """Gather the context of a task from the store and the task's worktree."""
        bench = await self.open()
        workspace = await self.workspace(task)
        stored = await bench.store.task(task.id)  # people may have added notes since the start
        notes = (*task.notes, *stored.notes)
        task = task.model_copy(update={"notes": tuple(dict.fromkeys(notes))})
        longest = LONGEST_CONTEXT if await self.find_mode() == "oneshot" else LOOP_CONTEXT
        at = workspace.checkout
        return await gather_context(task, bench.store, bench.code, at, longest=longest)

    async def generate_code(
        self,
        task: Task,
        context: Context | str,
        failure: str = "",
        *,
        lm: LM | None = None,
        request: WorkRequest | None = None,
    ) -> str:
        """Ask the LLM for edits, and return its answer as plain text.

        `failure` describes the last attempt's failure. If `context` is a text, that text is the
        prompt."""
        bench = await self.open()
        if not isinstance(context, str):
            context = await self.brief(task, context, failure)
        lm = lm or bench.limit_lm(task, await self.lm())
        request = request or WorkRequest(task=task.key, attempt=1)
        return (await lm.fill(WorkerAnswer, {}, context, request)).text

    async def apply_file_changes(
        self, task: Task, answer: str, *, mark: str = ""
    ) -> tuple[str, ...]:
        """Apply the edits of an answer in the task's worktree, commit them, and return the changed
        files.

        If an edit cannot be applied, change nothing and raise EditError with a message for the LLM.
        If edits with this `mark` are already committed, return the files of that commit."""
        bench = await self.open()
        workspace = await self.workspace(task)
        if mark and (attempt_commit := await workspace.find_attempt(mark)):
            return await bench.repository.changed_files(f"{attempt_commit}^", attempt_commit)
        await workspace.restore("left before new edits")
        changes = await apply_answer(workspace.path, answer, workspace.submodules)
        files = tuple(change.path for change in changes)
        commit = await workspace.commit_attempt(files, task.title, mark)
        if commit:
            await bench.emit(CommitCreated(task.project_id, task.id, commit, files))
        return files

    async def run_tests(self, task: Task) -> WorkVerdict:
        """Judge the task's committed work by test runs in the sandbox, and report the result."""
        bench = await self.open()
        workspace = await self.workspace(task)
        await self.say(task, "runs the tests")
        verdict = await bench.verify(task, workspace)
        before = await bench.base_report(workspace.base)
        task_report = verdict.report.for_task(task.tests, before)
        known_failures = len(verdict.report.cases) - len(task_report.cases)
        event = TestResult.of(
            task.project_id, task.id, task_report, headline(verdict.text), known_failures
        )
        await bench.emit(event)
        await self._report_flaky(task, verdict.report)
        return verdict

    async def merge(self, task: Task) -> MergeOutcome | Guarded:
        """Merge the task's branch into the team's branch, or into the branch of the task's feature,
        if the tests pass on the merged tree.

        If the work changes files that run on the user's machine or that instruct later workers,
        return a question instead, until a person has answered yes to exactly this content."""
        bench = await self.open()
        await self.say(task, "merges")
        outcome = await bench.integrate(task)
        if outcome_report := getattr(outcome, "report", None):
            report = cast(TestReport, outcome_report)
            await bench.store.add_report(task.id, report)
            if not isinstance(outcome, Integrated) or outcome.everything is not None:
                await bench.emit(TestResult.of(task.project_id, task.id, report))
                await self._report_flaky(task, report)
        if isinstance(outcome, Integrated):
            await bench.emit(CommitCreated(task.project_id, task.id, outcome.commit))
        return outcome

    async def _report_flaky(self, task: Task, report: TestReport) -> None:
        if report.flaky:
            names = bounded(", ".join(report.flaky), 500)
            await self.say(task, f"found flaky tests, which failed and then passed: {names}")

    # --- resources of the steps ---

    async def lm(self) -> LM:
        """Return the LM that the worker asks. Workers of a bench share one LM for each name."""
        if self._lm is not None and not isinstance(self._lm, str):
            return self._lm
        if self._api_key is None:
            bench = await self.open()
            if self._lm is None and bench.program is not None:
                return NoLM(bench.program.name)
            return await bench.named_lm(self._lm)
        model = (self._lm or "").partition(":")[2]
        self._lm = await asyncio.to_thread(_make_anthropic_lm, model, self._api_key)
        return self._lm

    async def find_mode(self) -> WorkerMode:
        """Return the worker's mode.

        A mode that the bench sets comes first. Otherwise a class that overrides `generate_code`
        works in "oneshot", and the LM decides for other classes."""
        bench = await self.open()
        if isinstance(bench.worker, str) and bench.worker != "auto":
            return bench.worker
        if type(self).generate_code is not WorkerAgent.generate_code:
            return "oneshot"
        return "loop" if can_loop(await self.lm()) else "oneshot"

    async def brief(self, task: Task, context: Context, failure: str = "") -> str:
        """Write the prompt for the LLM."""
        bench = await self.open()
        diff = await (await self.workspace(task)).diff()
        is_loop = await self.find_mode() == "loop"
        form = None if is_loop else bench.edit_format_for(await self.lm())
        return compose_brief(self.role, context, failure, diff, form)

    async def workspace(self, task: Task) -> Workspace:
        """Return the worktree of a task. The first call creates the worktree."""
        bench = await self.open()
        async with self._opening:
            if task.id not in self._workspaces:
                with bench.busy(task.id):  # setup may be slow, and has its own limit
                    await bench.features.refresh(task)
                    workspaces = (await bench.features.branch_of(task)).workspaces
                    try:
                        started = await workspaces.start(task.branch)
                    except SetupError:  # the environment may be the cause, so try once more
                        started = await workspaces.start(task.branch)
                    self._workspaces[task.id] = started
                if started.left_out:
                    names = bounded(", ".join(map(shown_path, started.left_out)), 500)
                    text = f"not in the worktree: {names}"
                    await bench.emit(ActivityUpdate(task.project_id, text, task.id, self.agent_id))
            return self._workspaces[task.id]

    async def leave(self, task_id: int, why: str) -> None:
        """Remove the worktree of a task. Uncommitted changes are kept under `refs/bae/kept/`."""
        workspace = self._workspaces.pop(task_id, None)
        if workspace is not None and self._bench is not None:
            try:
                await self._bench.workspaces.remove(workspace, why)
            except (BaeError, OSError):  # no work is lost: the next recovery removes the worktree
                _log.warning("the worktree %s is left", workspace.path, exc_info=True)

    async def say(self, task: Task, text: str, *, program: str = "") -> None:
        """Report what bae, or the coding `program`, is doing for a task now. What an LLM does is in
        the journal of the run."""
        bench = await self.open()
        bench.on_progress(task.id)
        about = task.project_id, text, task.id, self.agent_id
        await bench.emit(ActivityUpdate(*about, program=program))

    async def open(self) -> Workbench:
        """Return the worker's bench. If the worker is alone, the first call opens the bench."""
        async with self._opening:
            if self._bench is not None:
                return self._bench
            async with AsyncExitStack() as stack:
                store = self._db
                if not isinstance(store, Store):
                    assert store is not None
                    store = await stack.enter_async_context(await Store.open(Path(store)))
                project = await store.project(self.project_id)
                if self._root is not None:
                    root = await asyncio.to_thread(Path(self._root).resolve)
                    project = project.model_copy(update={"root": str(root)})
                opening = Workbench.open(project, store, ws_manager=self._ws_manager)
                self._bench = await stack.enter_async_context(opening)
                self._opened = stack.pop_all()
            return self._bench

    async def close(self) -> None:
        """Remove the worker's worktrees, and close the bench and the store that the worker opened.

        Uncommitted changes are kept under `refs/bae/kept/`."""
        try:
            for task_id in tuple(self._workspaces):
                await self.leave(task_id, "left")
        finally:
            if self._opened is not None:
                opened, self._opened, self._bench = self._opened, None, None
                await opened.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await finish_despite_cancel(self.close())


class BackendWorkerAgent(WorkerAgent):
    """Writes code that runs on a server or in a library."""

    kind = "backend"
    role = "You are a backend engineer. You write code that is correct, plain and tested."


class FrontendWorkerAgent(WorkerAgent):
    """Writes code for the user interface."""

    kind = "frontend"
    role = (
        "You are a frontend engineer. You write user interfaces that are accessible and tested, in "
        "the framework that the project uses."
    )


class TestWorkerAgent(WorkerAgent):
    """Writes tests."""

    __test__ = False  # pytest must not collect this class

    kind = "test"
    role = (
        "You are a test engineer. You write tests that would fail if the code were wrong, of "
        "behavior and not of how it is made."
    )


class DocsWorkerAgent(WorkerAgent):
    """Writes documentation."""

    kind = "docs"
    role = "You write documentation: plain, true and complete, with examples that run."


_WORKERS: Final = (BackendWorkerAgent, FrontendWorkerAgent, TestWorkerAgent, DocsWorkerAgent)
_KINDS: Final[dict[str, type[WorkerAgent]]] = {cls.kind: cls for cls in _WORKERS}


def register_worker(kind: str, cls: type[WorkerAgent]) -> None:
    """Have workers of this class carry out the tasks of this kind."""
    _KINDS[kind] = cls


def worker_kinds() -> tuple[str, ...]:
    """Return the kinds of tasks that have a worker."""
    return tuple(_KINDS)


def worker_class(kind: str) -> type[WorkerAgent]:
    """Return the worker class for a kind of task. Raise TeamError if the kind has no worker."""
    if kind not in _KINDS:
        raise TeamError(
            f"there is no worker for tasks of the kind {kind!r}",
            code="bae-team-unknown",
            fix=f"use one of {', '.join(_KINDS)}, or register_worker({kind!r}, …)",
        )
    return _KINDS[kind]


async def preview_brief(
    store: Store, repository: Repository, task: Task, *, with_tools: bool = True
) -> str:
    """Write the first prompt for a task, without asking a model, creating a worktree or running
    tests.

    If `with_tools` is true, the prompt is for a conversation with tools, otherwise for
    "oneshot"."""
    project = await store.project(task.project_id)
    # If a branch does not exist yet, the first run creates it: the team's branch from the user's
    # branch, and a feature's branch from the team's branch.
    branches = [branch for branch in (task.feature_branch, project.branch) if branch]
    heads = [await repository.resolve(BRANCHES + branch) for branch in branches]
    start = next(filter(None, heads), None) or await repository.commit_id("HEAD")
    head = await repository.resolve(BRANCHES + task.branch) or start
    base = await repository.merge_base(start, head) or start
    diff = await repository.git("diff", "--no-ext-diff", "--no-textconv", base, head)
    longest = LOOP_CONTEXT if with_tools else LONGEST_CONTEXT
    reader = CommitReader(repository, head)
    context = await gather_context(task, store, reader, longest=longest)
    role = worker_class(task.kind).role
    brief = compose_brief(role, context, "", bounded(diff), None if with_tools else "auto")
    limits = sandbox.Limits(unsandboxed=project.allow_unsandboxed)
    report = await open_reports(project, repository, store, limits).find(base)
    return add_failed_before(brief, describe_failed_before(report, task.tests) if report else "")


def _check_key(lm: LM | str | None, api_key: str | None) -> str | None:
    """Return the API key if the worker needs it to create its LM, otherwise None. Raise an error if
    the name of the LM is unknown, or if the key is not for this LM."""
    if isinstance(lm, str):
        check_lm_name(lm)
    if api_key is None or (lm is not None and not isinstance(lm, str)):
        return None
    if lm is not None and lm.partition(":")[0] != "anthropic":
        raise ValueError(f"api_key=… is for Anthropic's API, and not for {lm!r}")
    return api_key


async def _store_begin(bench: Workbench, task_id: int) -> None:
    """Store that a task is in progress, and close its open questions."""
    from bae.team.team_run import is_running  # only a worker without a team needs it

    if await is_running(bench.repository):
        raise TeamError(
            f"a team is working on {bench.project.root}, and only its lead may start tasks",
            code="bae-team-busy",
            fix="wait until it is done, or end it with bae team stop",
        )
    store = bench.store
    task = await store.task(task_id)
    for blocker in await store.blockers(task.project_id, open_only=True):
        if blocker.task_id == task_id:
            await store.answer_blocker(blocker.id, "No answer: it is tried again.")
    if task.status not in (TaskStatus.READY, TaskStatus.IN_PROGRESS, TaskStatus.COMPLETED):
        await store.move(task_id, task.status, TaskStatus.READY)
    if task.status not in (TaskStatus.IN_PROGRESS, TaskStatus.COMPLETED):
        base = await (await bench.features.branch_of(task)).head()
        await store.move(task_id, TaskStatus.READY, TaskStatus.IN_PROGRESS, base=base)


async def _store_end(
    bench: Workbench, task_id: int, after: TaskStatus, reason: str, commit: str | None = None
) -> None:
    """Store the new status of a task in progress. A completed task keeps its status."""
    reason = bounded(reason, LONGEST_REASON)
    await bench.store.move(task_id, TaskStatus.IN_PROGRESS, after, reason=reason, commit=commit)


async def _store_result(bench: Workbench, result: TaskResult) -> None:
    """Store a task's result: its status, and its question to a person."""
    if result.question is not None:
        await bench.store.add_blocker(result.task_id, result.question, digest=result.digest)
    reason = result.error or result.question or ""
    after = TaskStatus(result.status)
    await _store_end(bench, result.task_id, after, reason, result.commit)


async def _find_stored_task(store: Store, values: Mapping[str, Any]) -> Task:
    """Find the stored task with the dict's `id`, and return it with the dict's other values."""
    number = values.get("id")
    if not isinstance(number, int):
        raise TeamError(
            f"the dict of a task needs the id of a stored task, and has the id {number!r}",
            code="bae-team-unknown",
            fix="add the task with Store.add_tasks, and pass the `id` of the task that it returns",
        )
    stored = await store.task(number)
    changed = {key: value for key, value in values.items() if key in Task.model_fields}
    return Task.model_validate({**stored.model_dump(), **changed})


def _make_anthropic_lm(model: str, api_key: str) -> LM:
    from bae.lm import AnthropicBackend  # slow to load

    return AnthropicBackend(*filter(None, [model]), api_key=api_key)
