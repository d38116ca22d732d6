"""The resources that a team's agents share: the project's state, worktrees, the team's branch, the
journal of runs, and limits."""

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
"""The limits of setup with the network. They are high, because packages are large."""
WorkerMode: TypeAlias = Literal["loop", "oneshot"]
"""How a worker works: "loop" is a conversation with tools, and "oneshot" is one answer with all
edits."""


def can_loop(lm: LM) -> bool:
    """Return whether an LM can work in a conversation with tools. A model with native tool calls
    can, and a script with answers for `WorkerLoop`."""
    while isinstance(lm, Policy):
        lm = lm.inner
    if isinstance(lm, ScriptedLM):
        return lm.has_answers("WorkerLoop")
    return isinstance(lm, Backend) and lm.calls_tools


def _prepare_runs() -> None:
    """Import the modules and validate the graphs that the first run of a worker needs.

    The function is slow, so call it in a thread."""
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
    """Open the test reports of a project's commits. Missing reports come from test runs in
    worktrees of the team."""

    async def set_up(command: tuple[str, ...], path: Path, network: bool) -> sandbox.Ran:
        """Run the parts of a setup command until a part fails."""
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
    """The resources that a team's agents share. To open a bench, write `async with
    Workbench.open(project, store) as bench:`."""

    project: Project
    store: Store
    repository: Repository
    workspaces: Workspaces
    integration: Integration
    journal: Journal
    code: CodeReader
    reports: BaseReports
    edit_format: EditFormat | Mapping[str, EditFormat] = "auto"
    """The form in which models write edits: one form for all models, or forms by model name, such
    as `{"gpt-*": "whole"}`."""
    limits: sandbox.Limits = field(default_factory=sandbox.Limits)
    """The limits of every command, such as tests and the setup of worktrees."""
    corrections: int = 3
    """How often a worker corrects refused work before it asks a person."""
    worker: Literal["auto"] | WorkerMode | CodingProgram = "auto"
    """How workers work. "auto" chooses a mode that suits the LM. A coding program replaces the
    LM."""
    rounds: int = 40
    """How many requests a worker's conversation may have."""
    approve_tests: bool = False
    """Whether a person approves acceptance tests before they are taken."""
    idle_rounds: int = 8
    """How many rounds in a row may pass without an edit or a person's answer."""
    review: ReviewMode = "advise"
    """Whether a reviewer, an LLM, reads accepted work before the merge. "off": no review. "advise":
    people see the findings, and the work is merged. "require": work with a blocking finding is
    refused."""
    reviewer: LM | str | None = None
    """The reviewer's LM, or the name of this LM. None: the worker's LM."""
    budgets: Budgets | None = None
    """The budgets that pay for turns of a coding program."""
    limit_lm: Callable[[Task, LM], LM] = lambda task, lm: lm
    """Wraps a worker's LM in the budgets for a task."""
    on_progress: Callable[[int], None] = lambda task_id: None
    """Called with a task's id at each step of the work on the task, and regularly during long
    steps."""
    should_stop: Callable[[int], bool] = lambda task_id: False
    """Called with a task's id between attempts and rounds. Returns whether the task must stop."""

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
        """Open a project's repository, the journal beside the store, and the team's branch. A
        missing branch is created.

        Stored events are also sent to `ws_manager`. When the block ends, the store stays open. The
        other arguments are attributes of the bench."""
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
            # `test_first` takes paths from the root of the repository. The test command of a
            # project with a folder could not find them, because it runs in that folder.
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
        """Return the form in which the model of an LM writes edits."""
        if not isinstance(self.edit_format, Mapping):
            return self.edit_format
        model = str(getattr(lm, "model", ""))
        for name, form in self.edit_format.items():
            if fnmatchcase(model, name):
                return form
        return "auto"

    async def emit(self, event: Event) -> None:
        """Store an event, then send the event to the broadcaster."""
        await self.store.add_events([event])

    async def named_lm(self, name: str | None) -> LM:
        """Return the LM with this name. Without a name, return the LM that this machine offers.

        All agents share one LM for each name."""
        async with self._naming:
            if name not in self._lms:
                purpose = "the agents of a team need one"
                make = partial(resolve, name) if name else partial(find_coding_lm, purpose)
                self._lms[name] = await asyncio.to_thread(make)
            return self._lms[name]

    async def verify(self, task: Task, workspace: Workspace) -> WorkVerdict:
        """Judge a task's committed work by test runs in new worktrees."""
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
        """Merge a task's work into the team's branch, or into the branch of the task's feature. The
        tests must pass on the merged tree.

        Changes of guarded files need a person's yes to their content before the merge. With
        `approve_tests`, acceptance tests need this yes too. If the yes is missing, merge nothing
        and return the question to the person.

        The last task of a feature then delivers the feature."""
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
        """Return whether a person answered yes to a task's question about the content with this
        digest."""
        blockers = await self.store.blockers(task.project_id)
        return any(
            blocker.task_id == task.id and blocker.digest == digest and blocker.is_yes
            for blocker in blockers
        )

    async def base_report(self, commit: str) -> TestReport:
        """Return the test report of a commit. All tasks that start from the commit share one test
        run."""
        return await self.reports.get(commit)

    async def check_base(self, commit: str, *, keep: bool = True) -> BaseCheck:
        """Check that the tests can run on a commit that tasks start from. With `keep`, the team's
        status shows the result."""
        tasks = await self.store.tasks(self.project.id)
        test_names = [name for task in tasks for name in task.tests]
        return await self.reports.check(commit, test_names, keep=keep)

    @contextmanager
    def busy(self, task_id: int) -> Generator[None]:
        """Report progress of a task while the block runs, so that the task does not time out.

        Use it for work that has a limit of its own, or that waits for other work."""
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
