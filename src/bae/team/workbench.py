"""The shared resources of a team's agents: the state of the project, worktrees, the team's branch,
the journal of runs, and limits."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

from bae import LM
from bae.journal import Journal
from bae.lm import Backend, Policy, resolve
from bae.lm.registry import find_coding_lm
from bae.team import sandbox
from bae.team.base_check import BaseCheck, BaseReports
from bae.team.budgets import Budgets
from bae.team.edit_format import EditFormat
from bae.team.events import Broadcaster, Event
from bae.team.features import Features
from bae.team.git import Repository
from bae.team.guarded_files import Guarded, find_guarded
from bae.team.integration import Integrated, Integration, MergeOutcome
from bae.team.models import Project, ReviewMode, Task, TestReport
from bae.team.programs import CodingProgram
from bae.team.registries import RegistryAccess, find_access
from bae.team.repository import CodeReader
from bae.team.store import Store
from bae.team.test_order import run_in_order
from bae.team.test_runs import split_commands
from bae.team.verdict import WorkVerdict, list_fixed, run_fixed, verify
from bae.team.workspaces import Workspace, Workspaces
from bae.testing import ScriptedLM

_BEAT: Final = 1.0
_SETUP_LIMITS: Final = sandbox.Limits(
    timeout=1800.0,
    memory=4096 * sandbox.MIB,
    file_size=4096 * sandbox.MIB,
    disk=16384 * sandbox.MIB,
)
"""Packages are large."""
WorkerMode: TypeAlias = Literal["loop", "oneshot"]
"""How a worker works: in a conversation with tools, or with one answer that has all edits."""


def can_loop(lm: LM) -> bool:
    """Whether an LM can work in a conversation with tools: a model with native tool calls, or a
    script with answers for `WorkerLoop`."""
    while isinstance(lm, Policy):
        lm = lm.inner
    if isinstance(lm, ScriptedLM):
        return lm.has_answers("WorkerLoop")
    return isinstance(lm, Backend) and lm.calls_tools


def _prepare_runs() -> None:
    """Import the modules and validate the graphs that the first run of a worker needs. Call it in a
    thread."""
    from importlib import import_module

    from bae.team.review import review_graph
    from bae.team.worker_graph import worker_graph

    for name in ("bae.runner", "bae.given_lm", "bae.journal.resume"):
        import_module(name)
    for graph in (worker_graph, review_graph):
        graph.validate(journal=True)


def open_reports(
    project: Project, repository: Repository, store: Store, limits: sandbox.Limits
) -> BaseReports:
    """The test reports of a project's commits. The tests run in worktrees of the team."""

    async def set_up(command: tuple[str, ...], path: Path, network: bool) -> sandbox.Ran:
        """Run the parts of a setup command, up to the first that fails."""
        part_limits: sandbox.Limits = {**_SETUP_LIMITS, **limits} if network else limits
        access = await asyncio.to_thread(find_access) if network else RegistryAccess()
        output = ""
        ran = None
        parts = split_commands(command)
        for part in parts:
            ran = await sandbox.run(
                part,
                path,
                within=project.folder,
                network=network,
                env=access.variables,
                readable=access.readable,
                home=access.home,
                own_git=network,
                hidden=[project.root],
                **part_limits,
            )
            output += f"$ {shlex.join(part)}\n{ran.output}" if len(parts) > 1 else ran.output
            if ran.exit_code != 0:
                break
        assert ran is not None
        return replace(ran, output=access.mask(output))

    workspaces = Workspaces(repository, project.branch, setup=project.setup, run=set_up)
    return BaseReports(project, workspaces, limits, store.path.parent)


@dataclass
class Workbench:
    """The shared resources of a team's agents: `async with Workbench.open(project, store) as
    bench:`."""

    project: Project
    store: Store
    repository: Repository
    workspaces: Workspaces
    integration: Integration
    journal: Journal
    code: CodeReader
    reports: BaseReports
    edit_format: EditFormat | Mapping[str, EditFormat] = "auto"
    """The form of edits that models are asked for: the same for all, or by model name, such as
    `{"gpt-*": "whole"}`."""
    limits: sandbox.Limits = field(default_factory=sandbox.Limits)
    """The limits of every command: tests, and the setup of worktrees."""
    corrections: int = 3
    """How often a worker corrects refused work before it asks a person."""
    worker: Literal["auto"] | WorkerMode | CodingProgram = "auto"
    """How workers work. "auto" chooses by the LM. A coding program replaces the LM."""
    rounds: int = 40
    """How many requests a worker's conversation may have."""
    approve_tests: bool = False
    """Whether a person approves acceptance tests before they are taken."""
    idle_rounds: int = 8
    """How many rounds in a row may pass without an edit."""
    review: ReviewMode = "advise"
    """Whether a second LLM reads accepted work before the merge: "off"; "advise" shows people its
    findings; "require" refuses work with a blocking finding."""
    reviewer: LM | str | None = None
    """The LM that reviews, or its name. None: the worker's LM."""
    budgets: Budgets | None = None
    """The budgets that turns of a coding program are charged to."""
    limit_lm: Callable[[Task, LM], LM] = lambda task, lm: lm
    """Returns the LM to ask for a task in place of a worker's own, with budgets around it."""
    on_progress: Callable[[int], None] = lambda task_id: None
    """Called with the id of a task at each step of its work, and regularly during long steps."""
    should_stop: Callable[[int], bool] = lambda task_id: False
    """Whether a task must stop, asked between its attempts and rounds."""

    def __post_init__(self) -> None:
        self._lms: dict[str | None, LM] = {}
        self._naming = asyncio.Lock()
        self.features = Features(self.integration, self.store, self.project.id)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        project: Project,
        store: Store,
        *,
        ws_manager: Broadcaster | None = None,
        edit_format: EditFormat | Mapping[str, EditFormat] = "auto",
        limits: sandbox.Limits | None = None,
        corrections: int = 3,
        worker: Literal["auto"] | WorkerMode | CodingProgram = "auto",
        rounds: int = 40,
        approve_tests: bool = False,
        review: ReviewMode = "advise",
        reviewer: LM | str | None = None,
    ) -> AsyncGenerator[Self]:
        """Open the repository of a project, the journal beside the store, and the team's branch,
        which is created if it is missing. Stored events are sent to `ws_manager`. The store stays
        open afterwards."""
        bound = sandbox.Limits(unsandboxed=project.allow_unsandboxed)
        bound.update(limits or {})
        repository = await Repository.open(Path(project.root))

        async def test(workspace: Workspace) -> TestReport:
            return await run_fixed(project, workspace, *await find_base_reports(workspace), **bound)

        async def find_base_reports(workspace: Workspace) -> list[TestReport]:
            report = await reports.find(workspace.base)
            return [report] if report is not None else []

        async def test_first(
            workspace: Workspace, files: Sequence[str], is_accepted: Callable[[TestReport], bool]
        ) -> TestReport:
            fixed = await list_fixed(project, workspace, *await find_base_reports(workspace))
            path = workspace.path
            return await run_in_order(project, path, files, is_accepted, fixed=fixed, **bound)

        reports = open_reports(project, repository, store, bound)
        workspaces = reports.workspaces
        integration = Integration(
            workspaces,
            test,
            update_checkout=project.update_checkout,
            reports=reports,
            # The names of tests begin at the root of the repository.
            run_first=None if project.folder or project.report else test_first,
        )
        await integration.open()
        await asyncio.to_thread(_prepare_runs)
        async with store.journal() as journal:
            yield cls(
                project,
                store.sending_to(ws_manager),
                repository,
                workspaces,
                integration,
                journal,
                CodeReader(repository),
                reports,
                edit_format,
                bound,
                corrections,
                worker,
                rounds,
                approve_tests=approve_tests,
                review=review,
                reviewer=reviewer,
            )

    @property
    def program(self) -> CodingProgram | None:
        """The coding program that replaces the LM, or None."""
        return self.worker if isinstance(self.worker, CodingProgram) else None

    def edit_format_for(self, lm: LM) -> EditFormat:
        """The form of edits that the model of an LM is asked for."""
        if not isinstance(self.edit_format, Mapping):
            return self.edit_format
        model = str(getattr(lm, "model", ""))
        for name, form in self.edit_format.items():
            if fnmatchcase(model, name):
                return form
        return "auto"

    async def emit(self, event: Event) -> None:
        """Store an event, then send it."""
        await self.store.add_events([event])

    async def named_lm(self, name: str | None) -> LM:
        """The LM with this name, created once for all agents; without a name, the LM that this
        machine offers."""
        async with self._naming:
            if name not in self._lms:
                purpose = "the agents of a team need one"
                make = partial(resolve, name) if name else partial(find_coding_lm, purpose)
                self._lms[name] = await asyncio.to_thread(make)
            return self._lms[name]

    async def verify(self, task: Task, workspace: Workspace) -> WorkVerdict:
        """Run the tests of a task's committed work in a new worktree, and judge the work by
        them."""
        with self.busy(task.id):
            await self.workspaces.refresh(workspace)
            before = await self.base_report(workspace.base)
            head = await workspace.head()
            verdict = await verify(
                self.project,
                self.workspaces,
                workspace,
                task,
                before=before,
                **self.limits,
            )
            if verdict.accepted:
                await self.reports.remember(head, verdict.report)
            return verdict

    async def integrate(self, task: Task) -> MergeOutcome | Guarded:
        """Merge the work of a task into the team's branch, or into the branch of its feature, if it
        passes its tests there. Guarded files, and acceptance tests that need approval, need a
        person's yes to their content first. The last task of a feature delivers the feature."""
        target = await self.features.branch_of(task)
        if not await target.merged_as(task.branch):
            project = self.project
            guarded = await find_guarded(
                self.repository, task.branch, target.branch, project.allow, project.setup
            )
            if guarded is not None and not await self.has_yes(task, guarded.digest):
                return guarded
            if self.approve_tests and task.proof == "failing-tests":
                guarded = await self.features.ask_about_tests(task)
                if not await self.has_yes(task, guarded.digest):
                    return guarded
        with self.busy(task.id):
            outcome = await target.integrate(
                task.branch,
                task.title,
                tests=task.tests,
                untested=task.proof in ("none", "failing-tests"),
                may=task.may,
            )
            if not isinstance(outcome, Integrated):
                return outcome
            if outcome.everything is not None:
                await self.reports.remember(outcome.commit, outcome.everything)
            return await self.features.deliver(task) or outcome

    async def has_yes(self, task: Task, digest: str) -> bool:
        """Whether a person answered yes to exactly this content of a task."""
        blockers = await self.store.blockers(task.project_id)
        return any(
            blocker.task_id == task.id and blocker.digest == digest and blocker.is_yes
            for blocker in blockers
        )

    async def base_report(self, commit: str) -> TestReport:
        """The test report of a commit. The tests run once for all tasks that start from it."""
        return await self.reports.get(commit)

    async def check_base(self, commit: str, *, keep: bool = True) -> BaseCheck:
        """Whether the tests can run on the commit that tasks start from. With `keep`, the status of
        the team shows the result."""
        tasks = await self.store.tasks(self.project.id)
        test_names = [name for task in tasks for name in task.tests]
        return await self.reports.check(commit, test_names, keep=keep)

    @contextmanager
    def busy(self, task_id: int) -> Generator[None]:
        """Report progress of a task while the block runs: for work that has its own limit, or waits
        for its turn."""
        loop = asyncio.get_running_loop()

        def beat() -> asyncio.TimerHandle:
            nonlocal timer
            self.on_progress(task_id)
            timer = loop.call_later(_BEAT, beat)
            return timer

        timer = beat()
        try:
            yield
        finally:
            timer.cancel()
