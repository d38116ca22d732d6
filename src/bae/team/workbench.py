"""What all agents of a team share while they work: the project's state, its worktrees, the team's
branch, the journal of their runs, and what limits and watches them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Final, Self

from bae import LM
from bae.journal import Journal, SQLiteJournal
from bae.lm import resolve
from bae.lm.registry import default_lm
from bae.team import sandbox
from bae.team.edit_format import EditFormat
from bae.team.events import Broadcaster, Event
from bae.team.git import Repository
from bae.team.integration import Integrated, Integration, Outcome
from bae.team.models import Project, Task, TestReport
from bae.team.repository import CodeReader
from bae.team.store import Store
from bae.team.verdict import Verdict, run_fixed, verify
from bae.team.workspaces import Workspace, Workspaces

RUNS: Final = "runs.db"
"""The journal of the agents' runs, beside the state of the team."""
_BEAT: Final = 1.0
_KEPT_REPORTS: Final = 32


def _prepare_runs() -> None:
    """Import and prove what the first run of a worker would, off the event loop."""
    from importlib import import_module

    from bae.team.worker_graph import worker_graph

    for name in ("bae.runner", "bae.given_lm", "bae.journal.resume"):
        import_module(name)
    worker_graph.validate(journal=True)


@dataclass
class Workbench:
    """What the agents of one team share: `async with Workbench.open(project, store) as bench:`."""

    project: Project
    store: Store
    repository: Repository
    workspaces: Workspaces
    integration: Integration
    journal: Journal
    code: CodeReader
    edit_format: EditFormat | Mapping[str, EditFormat] = "auto"
    """How edits are asked for: for all models, or by their names, as `{"gpt-*": "whole"}`."""
    limits: sandbox.Limits = field(default_factory=sandbox.Limits)
    """Those of every command that is run: tests and the setup of worktrees."""
    corrections: int = 3
    """How often a worker corrects itself before it asks a person."""
    limit_lm: Callable[[Task, LM], LM] = lambda task, lm: lm
    """The LM that may be asked for a task in place of a worker's own: where budgets are."""
    on_progress: Callable[[int], None] = lambda task_id: None
    """Called with the number of a task at each step of its work, and now and then within one."""
    should_stop: Callable[[int], bool] = lambda task_id: False
    """Asked between the attempts at a task, whether it is to stop after the one that ended."""

    def __post_init__(self) -> None:
        self._reports: dict[str, TestReport] = {}
        self._testing: dict[str, asyncio.Lock] = {}
        self._lms: dict[str | None, LM] = {}
        self._naming = asyncio.Lock()

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
    ) -> AsyncGenerator[Self]:
        """Open the repository of a project, the team's branch in it, which is made if there is
        none, and the journal beside the store. Events that are stored are sent to `ws_manager`.
        The store stays open afterwards."""
        bound = limits if limits is not None else sandbox.Limits()
        repository = await Repository.open(Path(project.root))

        async def set_up(command: tuple[str, ...], path: Path) -> sandbox.Ran:
            return await sandbox.run(command, path, network=True, **bound)

        async def test(workspace: Workspace) -> TestReport:
            return await run_fixed(project, workspace, **bound)

        workspaces = Workspaces(repository, project.branch, setup=project.setup, run=set_up)
        integration = Integration(workspaces, test)
        await integration.open()
        await asyncio.to_thread(_prepare_runs)
        # As durable as the store: it survives the end of the process at any moment.
        async with SQLiteJournal(store.path.with_name(RUNS), durability="normal") as journal:
            yield cls(
                project,
                store.sending_to(ws_manager),
                repository,
                workspaces,
                integration,
                journal,
                CodeReader(repository),
                edit_format,
                bound,
                corrections,
            )

    def edit_format_for(self, lm: LM) -> EditFormat:
        """How the model of an LM is asked for edits."""
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
        """The LM of a name, made once for all agents; without one, the one that this machine
        offers."""
        async with self._naming:
            if name not in self._lms:
                why = "the agents of a team need one"
                make = partial(resolve, name) if name else partial(default_lm, why)
                self._lms[name] = await asyncio.to_thread(make)
            return self._lms[name]

    async def verify(self, task: Task, workspace: Workspace) -> Verdict:
        """Run the tests of a task's worktree, and judge its work."""
        with self.busy(task.id):
            before = await self.base_report(workspace.base)
            return await verify(
                self.project,
                self.workspaces,
                workspace,
                task,
                before=before,
                **self.limits,
            )

    async def integrate(self, task: Task) -> Outcome:
        """Merge the work of a task into the team's branch, if it passes its tests there."""
        with self.busy(task.id):
            outcome = await self.integration.integrate(
                task.branch, task.title, tests=task.tests, untested=task.proof == "none"
            )
        if isinstance(outcome, Integrated) and outcome.everything is not None:
            self._remember(outcome.commit, outcome.everything)
        return outcome

    async def base_report(self, commit: str) -> TestReport:
        """What the tests of a commit show, run once for all tasks that start from it."""
        async with self._testing.setdefault(commit, asyncio.Lock()):
            if (known := self._reports.get(commit)) is not None:
                return known
            async with self.workspaces.scratch(commit) as base:
                report = await run_fixed(self.project, base, **self.limits)
            self._remember(commit, report)
            return report

    @contextmanager
    def busy(self, task_id: int) -> Generator[None]:
        """Report progress of a task as long as the block lasts, for work that has limits itself and
        may have to wait for its turn."""
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

    def _remember(self, commit: str, report: TestReport) -> None:
        if report.exit_code is None:
            return  # it was ended by a limit: the next run may have more luck
        self._reports[commit] = report
        for old in tuple(self._reports)[:-_KEPT_REPORTS]:
            del self._reports[old]
            self._testing.pop(old, None)
