"""Workers: agents that carry out one task each, from its description to merged, tested code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from os import PathLike, urandom
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, cast, overload

from bae import LM, BaeError, GraphResult
from bae.journal import Record
from bae.lm import Usage, resolve
from bae.lm.registry import default_lm
from bae.observers import observing
from bae.team.edits import apply_answer
from bae.team.events import ActivityUpdate, Broadcaster, CommitCreated, TestResult
from bae.team.git import BRANCHES
from bae.team.integration import Integrated, Outcome
from bae.team.locks import finish
from bae.team.models import Task, TaskResult, TeamError, TestReport, bounded
from bae.team.store import Store
from bae.team.task_context import Context, gather_context
from bae.team.verdict import Verdict
from bae.team.workbench import Workbench
from bae.team.worker_graph import (
    Answer,
    Assignment,
    Blocked,
    Delivered,
    Desk,
    Draft,
    Stopped,
    Turn,
    compose_brief,
    correction_graph,
    get_desk,
    worker_graph,
)
from bae.team.workspaces import Workspace

_log = logging.getLogger(__name__)
ATTEMPT: Final = "Bae-Attempt:"
"""The line of a commit that says which attempt's edits it holds."""


class WorkerAgent:
    """Carries out tasks: `await worker.execute_task(task)`. Its steps can be used by themselves.

    In a team it works at the `bench` of the team. Alone it opens one from `db`, a store or its
    file, for the project `project_id`, whose repository is at `root` if it was moved. It asks `lm`,
    an LM or the name of one; with an `api_key`, Anthropic's API. It stores attempts and test
    reports, and sends events to the store and to `ws_manager`; the status of a task it leaves to
    the scheduler. Use `async with`, or `close`, after steps that were used by themselves.
    """

    kind: ClassVar[str] = "worker"
    role: ClassVar[str] = "You are a software engineer."
    """What the LLM is told first."""

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
        self._lm = _given_lm(lm, api_key)
        self._bench = bench
        self._alone = bench is None
        self._opened: AsyncExitStack | None = None
        self._workspaces: dict[int, Workspace] = {}

    # --- a task ---

    @overload
    async def execute_task(self, task: Task) -> TaskResult: ...

    @overload
    async def execute_task(self, task: Mapping[str, Any]) -> dict[str, Any]: ...

    async def execute_task(self, task: Task | Mapping[str, Any]) -> TaskResult | dict[str, Any]:
        """Carry out a task until it is merged, blocked by a question, or failed. A plain dict, with
        at least the `id` of a stored task, gives a plain dict.

        A run that was killed, cancelled or failed continues where it was. A cancellation is raised
        after everything has ended; what was written is kept.
        """
        mine = self._bench is None
        try:
            bench = await self.open()
            if isinstance(task, Task):
                return await self._execute(bench, task)
            stored = await bench.store.task(int(task["id"]))
            values = {**stored.model_dump(), **task}
            return (await self._execute(bench, Task.model_validate(values))).to_dict()
        finally:
            if mine:
                await finish(self.close())

    async def self_correct(self, task: Task, failure: str) -> TaskResult:
        """Have the LLM correct what an attempt has left, with the text of its failure, at most as
        often as the bench allows; then merge it, as `execute_task` does."""
        bench = await self.open()
        tried = await bench.store.attempts(task.id)
        number = max((each.number for each in tried), default=0) + 1
        start = Draft(first=number - 1, number=number, failure=failure)
        run = f"task-{task.id}-corrected-{urandom(4).hex()}"
        return await self._run(bench, task, run, start)

    # --- steps ---

    async def build_context(self, task: Task) -> Context:
        """All that is known about a task, from the store and its worktree, gathered at once."""
        bench = await self.open()
        workspace = await self.workspace(task)
        return await gather_context(task, bench.store, bench.code, workspace.checkout)

    async def generate_code(self, task: Task, context: Context | str, failure: str = "") -> str:
        """Have the LLM write edits, as plain text; `failure` is what was wrong before."""
        bench = await self.open()
        brief = await self.brief(task, context, failure)
        lm = bench.limit_lm(task, await self.lm())
        return (await lm.fill(Answer, {}, brief, Turn(task=task.key, attempt=1))).text

    async def apply_file_changes(
        self, task: Task, answer: str, *, mark: str = ""
    ) -> tuple[str, ...]:
        """Apply the edits of an answer in the task's worktree, all or none, and commit them on its
        branch. Returns the files. Raises EditError, with words for the LLM. Edits that were
        committed with the same `mark` before are not applied again."""
        bench = await self.open()
        workspace = await self.workspace(task)
        trailer = f"{ATTEMPT} {mark}\n" if mark else ""
        within = f"{workspace.base}..{BRANCHES}{task.branch}"
        if mark and (done := await bench.repository.find_commit(trailer.rstrip(), within)):
            return await bench.repository.changed_files(f"{done}^", done)
        await self.say(task, "applies edits")
        await workspace.restore("left before new edits")
        changes = await apply_answer(workspace.path, answer)
        files = tuple(change.path for change in changes)
        title = " ".join(task.title.split()).replace(ATTEMPT, "")
        commit = await workspace.commit(files, f"{title}\n\n{trailer}")
        if commit:
            await bench.emit(
                CommitCreated(
                    project_id=task.project_id, task_id=task.id, commit=commit, files=files
                )
            )
        return files

    async def run_tests(self, task: Task) -> Verdict:
        """Run the tests in the task's worktree, in the sandbox, and judge its work by them."""
        bench = await self.open()
        workspace = await self.workspace(task)
        await self.say(task, "runs the tests")
        verdict = await bench.verify(task, workspace)
        await bench.emit(_test_result(task, verdict.report, bounded(verdict.text, 500)))
        return verdict

    async def merge(self, task: Task) -> Outcome:
        """Merge the task's branch into the team's, if the tests pass there too."""
        bench = await self.open()
        await self.say(task, "merges")
        outcome = await bench.integrate(task)
        if outcome_report := getattr(outcome, "report", None):
            report = cast(TestReport, outcome_report)
            await bench.store.add_report(task.id, report)
            await bench.emit(_test_result(task, report, report.problem))
        if isinstance(outcome, Integrated):
            await bench.emit(
                CommitCreated(project_id=task.project_id, task_id=task.id, commit=outcome.commit)
            )
        return outcome

    # --- what the steps need ---

    async def lm(self) -> LM:
        """The LM that is asked."""
        if self._lm is None:
            self._lm = await asyncio.to_thread(default_lm, f"{type(self).__name__} needs one")
        return self._lm

    async def brief(self, task: Task, context: Context | str, failure: str = "") -> str:
        """What the LLM is asked, in plain text."""
        bench = await self.open()
        diff = await (await self.workspace(task)).diff()
        return compose_brief(self.role, context, failure, diff, bench.edit_format)

    async def workspace(self, task: Task) -> Workspace:
        """The worktree of a task, made when it is first needed."""
        bench = await self.open()
        if task.id not in self._workspaces:
            with bench.busy(task.id):  # its setup may take a while, and has a limit itself
                self._workspaces[task.id] = await bench.workspaces.start(task.branch)
        return self._workspaces[task.id]

    async def say(self, task: Task, text: str) -> None:
        """Report what is being done."""
        bench = await self.open()
        bench.on_progress(task.id)
        about: dict[str, Any] = {"project_id": task.project_id, "task_id": task.id}
        await bench.emit(ActivityUpdate(**about, text=text, agent_id=self.agent_id))

    async def open(self) -> Workbench:
        """The bench that the worker works at; alone, it is opened when it is first needed."""
        if self._bench is None:
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
        """Remove the worktrees that steps have made, and keep what is in them on its branches; then
        close what the worker has opened."""
        try:
            for task_id in tuple(self._workspaces):
                await self._leave(task_id, "left")
        finally:
            if self._opened is not None:
                opened, self._opened, self._bench = self._opened, None, None
                await opened.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await finish(self.close())

    # --- runs ---

    async def _execute(self, bench: Workbench, task: Task) -> TaskResult:
        run, start = await self._run_id(bench, task), Assignment(task_id=task.id, key=task.key)
        return await self._run(bench, task, run, start)

    async def _run(
        self, bench: Workbench, task: Task, run: str, start: Assignment | Draft
    ) -> TaskResult:
        desk = Desk(self, bench, task, run)

        def progress(_: object, record: Record) -> None:
            bench.on_progress(task.id)

        why = "cancelled"
        try:
            lm = bench.limit_lm(task, await self.lm())
            graph = worker_graph if isinstance(start, Assignment) else correction_graph
            with observing(progress):
                ended: GraphResult[Delivered | Blocked | Stopped] = await cast(Any, graph).arun(
                    start,
                    lm,
                    max_iters=0,
                    dep_cache={get_desk: desk},
                    journal=bench.journal,
                    run_id=run,
                    resume=True,
                )
            last, used, why = ended.result, ended.usage, "done"
        except BaeError as error:
            why = "failed"
            if error.code == "bae-run-changed":  # it is of another version of bae: begin again
                await bench.journal.delete([run])
                return await self._run(bench, task, run, start)
            _log.info("task %s failed", task.key, exc_info=True)
            last, used = error, error.journal.usage() if error.journal else Usage()
        finally:
            await finish(self._leave(task.id, why))
        return await _result(bench, task, last, used)

    async def _run_id(self, bench: Workbench, task: Task) -> str:
        """The newest run of a task, if it is to continue, or a new one."""
        prefix, newest, ended = f"task-{task.id}-", 0, True
        async for info in bench.journal.every_run(graph=worker_graph.name):
            number = info.run_id.removeprefix(prefix)
            if number != info.run_id and number.isdecimal() and int(number) > newest:
                newest, ended = int(number), info.status == "ended"
        if not ended or (newest and await self._is_unheard(bench, task, f"{prefix}{newest}")):
            return f"{prefix}{newest}"
        return f"{prefix}{newest + 1}"

    async def _is_unheard(self, bench: Workbench, task: Task, run: str) -> bool:
        """Whether a run has ended with a question that the team was killed before it stored."""
        if self._alone:
            return False
        ended = await worker_graph.resume(run, journal=bench.journal)
        if not isinstance(ended.result, Blocked):
            return False
        asked = await bench.store.blockers(task.project_id)
        return ended.result.question not in [e.question for e in asked if e.task_id == task.id]

    async def _leave(self, task_id: int, why: str) -> None:
        workspace = self._workspaces.pop(task_id, None)
        if workspace is not None and self._bench is not None:
            try:
                await self._bench.workspaces.remove(workspace, why)
            except (BaeError, OSError):  # it is there still: nothing is lost, and recover cleans
                _log.warning("the worktree %s is left", workspace.path, exc_info=True)


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

    __test__ = False  # no test class for pytest

    kind = "test"
    role = (
        "You are a test engineer. You write tests that would fail if the code were wrong, of "
        "behavior and not of how it is made."
    )


_KINDS: Final[dict[str, type[WorkerAgent]]] = {
    each.kind: each for each in (BackendWorkerAgent, FrontendWorkerAgent, TestWorkerAgent)
}


def register_worker(kind: str, cls: type[WorkerAgent]) -> None:
    """Have tasks of a kind carried out by workers of a class."""
    _KINDS[kind] = cls


def worker_kinds() -> tuple[str, ...]:
    """The kinds of tasks that there are workers for."""
    return tuple(_KINDS)


def worker_class(kind: str) -> type[WorkerAgent]:
    """The class of the workers for tasks of a kind."""
    if kind not in _KINDS:
        raise TeamError(
            f"there is no worker for tasks of the kind {kind!r}",
            code="bae-team-unknown",
            fix=f"use one of {', '.join(_KINDS)}, or register_worker({kind!r}, …)",
        )
    return _KINDS[kind]


def _given_lm(lm: LM | str | None, api_key: str | None) -> LM | None:
    if api_key is not None and (lm is None or isinstance(lm, str)):
        name = lm or "anthropic"
        kind, _, model = name.partition(":")
        if kind != "anthropic":
            raise ValueError(f"api_key=… is for Anthropic's API, and not for {name!r}")
        from bae.lm import AnthropicBackend

        return AnthropicBackend(*filter(None, [model]), api_key=api_key)
    return resolve(lm) if isinstance(lm, str) else lm


async def _result(
    bench: Workbench, task: Task, last: Delivered | Blocked | Stopped | BaeError, used: Usage
) -> TaskResult:
    tried = await bench.store.attempts(task.id)
    about: dict[str, Any] = {
        "task_id": task.id,
        "attempts": len(tried),
        "report": tried[-1].report if tried else None,
        "files": tried[-1].files if tried else (),
        "usage": used,
    }
    if isinstance(last, Delivered):
        told = f"{task.title}: merged as {last.commit[:12]}"
        return TaskResult(status="completed", commit=last.commit, summary=told, **about)
    if isinstance(last, Blocked):
        return TaskResult(status="blocked", question=last.question, **about)
    if isinstance(last, Stopped):
        return TaskResult(status="failed", error=f"stopped after attempt {last.number}", **about)
    return TaskResult(status="failed", error=_described(last), **about)


def _test_result(task: Task, report: TestReport, problem: str) -> TestResult:
    return TestResult(
        project_id=task.project_id,
        task_id=task.id,
        passed=report.passed,
        counts={name: len(report.of(name)) for name in ("passed", "failed", "skipped")},
        seconds=report.seconds,
        problem=problem,
    )


def _described(error: BaseException) -> str:
    """An error with what caused it, in a few lines."""
    lines = [str(error)]
    cause = error.__cause__
    while cause is not None and len(lines) < 5:
        lines.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    return bounded("\n".join(dict.fromkeys(lines)), 4000)
