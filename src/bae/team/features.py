"""Features are groups of tasks. Each feature has its own branch. The feature's acceptance tests are
merged into this branch before the other tasks start. When all tasks are done, the feature is
delivered, which means that its branch is merged into the team's branch. The git history records
which tasks are merged and which features are delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Final

from bae import Problem
from bae.team.git import BRANCHES, Conflict, GitError, shown_path
from bae.team.guarded_files import Guarded
from bae.team.integration import Failed, Integrated, Integration, MergeOutcome
from bae.team.models import PlannedTask, Task, TaskStatus, TestReport, bounded
from bae.team.planned_files import find_prerequisites
from bae.team.reports import list_names
from bae.team.schedule import DONE
from bae.team.test_edits import is_test_file
from bae.team.test_order import is_selected
from bae.team.workspaces import TRAILER

if TYPE_CHECKING:
    from bae.team.store import Store

_SHOWN: Final = 20_000


@dataclass(frozen=True, slots=True)
class MergedWork:
    """The commit of a merged task, and the status that the task gets because it is merged."""

    commit: str
    status: TaskStatus


class Features:
    """The branches of a team's features. When the first task of a feature starts, the feature's
    branch is created at the head of the team's branch."""

    def __init__(self, team: Integration, store: Store, project_id: int) -> None:
        self._team = team
        self._store = store
        self._project_id = project_id
        self._branches: dict[str, Integration] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def branch_of(self, task: Task) -> Integration:
        """Return the branch that a task is merged into: its feature's branch, which is created if
        it is missing, or the team's branch."""
        if not task.feature_branch:
            return self._team
        if task.feature_branch not in self._branches:
            self._branches[task.feature_branch] = self._team.on_branch(task.feature_branch)
        branch = self._branches[task.feature_branch]
        if await self._team.repository.resolve(BRANCHES + branch.branch) is None:
            ref, head = BRANCHES + branch.branch, await self._team.head()
            await self._team.repository.move(ref, head, None)
        return branch

    async def refresh(self, task: Task) -> None:
        """Merge the team's branch into the branch of a task's feature. If there is a conflict, the
        feature's branch does not change, and the delivery will report the conflict."""
        branch = await self.branch_of(task)
        if branch is not self._team:
            await branch.take_in(self._team.branch)

    async def find_merged(self, task: Task) -> MergedWork | None:
        """Return the merged work of a task, or None. The work for a feature is staged until the
        feature is delivered. For the last task of a feature, return None until the delivery,
        because this task must correct the feature if the delivery fails."""
        commit = await self._team.merged_as(task.branch)
        if commit:
            status = TaskStatus.MERGED if task.proof == "none" else TaskStatus.COMPLETED
            return MergedWork(commit, status)
        commit = await self.find_staged(task)
        if commit is None or await self._is_last(task, commit):
            return None
        return MergedWork(commit, TaskStatus.STAGED)

    async def find_staged(self, task: Task) -> str | None:
        """Return the commit that merged a task into its feature's branch, or None."""
        branch = await self.branch_of(task)
        return None if branch is self._team else await branch.merged_as(task.branch)

    async def was_staged(self, task: Task) -> bool:
        """Whether some work of a task is merged into its feature's branch, and the feature is not
        delivered yet. The task's branch may have newer work."""
        if (branch := await self.branch_of(task)) is self._team:
            return False
        head = await branch.head()
        start = await self._team.repository.merge_base(await self._team.head(), head)
        earlier_trailer = f"{TRAILER} {task.branch} "
        return (
            await self._team.repository.find_commit(earlier_trailer, f"{start}..{head}") is not None
        )

    async def is_undelivered(self, task: Task) -> bool:
        """Whether a task was the last task of its feature, and the feature is not delivered yet."""
        if await self._team.merged_as(task.branch):
            return False
        commit = await self.find_staged(task)
        return commit is not None and await self._is_last(task, commit)

    async def _is_last(self, task: Task, commit: str) -> bool:
        """Whether a task was the last task of its feature. All other tasks must be done, or merged
        before `commit`, which is the task's own commit in the feature's branch. A feature that has
        only acceptance tests has no last task."""
        has_work = task.proof != "failing-tests"
        for other in await self._list_feature_tasks(task):
            if other.id == task.id or other.status in DONE:
                continue
            staged = await self.find_staged(other)
            if staged is None or not await self._team.repository.contains(commit, staged):
                return False
            has_work = True
        return has_work

    async def _list_feature_tasks(self, task: Task) -> list[Task]:
        tasks = await self._store.tasks(self._project_id)
        return [other for other in tasks if other.feature == task.feature]

    async def deliver(self, task: Task) -> MergeOutcome | Guarded | None:
        """Merge a task's feature into the team's branch if the task has completed the feature, and
        return the outcome. After a success, the outcome has the task's own commit. Return None if
        other tasks of the feature are open, or if the feature is delivered already."""
        commit = await self.find_staged(task)
        if commit is None:
            return None
        async with self._turns.setdefault(task.feature, asyncio.Lock()):
            if not await self.is_undelivered(task):
                return None
            tasks = await self._list_feature_tasks(task)
            lines = "\n".join(f"{task.key}: {task.title}" for task in tasks)
            message = f"Merge the feature {task.feature}\n\n{lines}".replace(TRAILER, "Task:")
            required = (task.tests for task in tasks if task.status is not TaskStatus.SKIPPED)
            tests = dict.fromkeys(name for names in required for name in names)
            branch = await self.branch_of(task)
            outcome = await self._team.merge_branch(branch.branch, message, tests=tuple(tests))
            if isinstance(outcome, Conflict):
                return await self._ask_about_conflict(branch, outcome)
            if isinstance(outcome, Failed):
                if question := _ask_about_skipped(branch.branch, tasks, outcome.report):
                    return question
                await self.refresh(task)  # the next attempt then has the team's newest code
                return outcome
            if outcome.everything is not None and self._team.reports is not None:
                await self._team.reports.remember(outcome.commit, outcome.everything)
            return Integrated(commit, outcome.report, outcome.everything)

    async def _ask_about_conflict(self, branch: Integration, conflict: Conflict) -> Guarded:
        heads = f"{await branch.head()} {await self._team.head()}"
        names = ", ".join(map(shown_path, conflict.files[:20]))
        question = (
            f"All tasks of {branch.branch} are merged, and it has conflicts with "
            f"{self._team.branch} in {names}. Resolve them yourself: git switch {branch.branch} && "
            f"git merge {self._team.branch}. Commit, switch back, and answer yes.\n\n"
            f"{conflict.text}"
        )
        return Guarded(conflict.files, question, sha256(heads.encode()).hexdigest())

    async def ask_about_tests(self, task: Task) -> Guarded:
        """Return the question to a person who must approve a task's acceptance tests before they
        are merged."""
        repository, branch = self._team.repository, await self.branch_of(task)
        base = await repository.merge_base(BRANCHES + branch.branch, BRANCHES + task.branch)
        if base is None:
            raise GitError(f"{task.branch} and {branch.branch} have no commit in common")
        args = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", base)
        diff = await repository.git(*args, BRANCHES + task.branch)
        files = await repository.changed_files(base, BRANCHES + task.branch)
        question = (
            f"Are these the acceptance tests of {task.feature}? The answer `yes` takes exactly "
            "this content; any other answer is guidance for the next attempt.\n\n"
            f"{bounded(diff, _SHOWN)}"
        )
        return Guarded(files, question, sha256(diff.encode()).hexdigest())


def _ask_about_skipped(branch: str, tasks: Sequence[Task], report: TestReport) -> Guarded | None:
    """Return the question to a person if only acceptance tests of skipped tasks fail. Otherwise
    return None."""
    skipped = [task for task in tasks if task.status is TaskStatus.SKIPPED]
    names = {name for task in skipped for name in task.tests}
    names -= {name for task in tasks if task not in skipped for name in task.tests}
    failed = report.of("failed")
    if not failed or not all(is_selected(case, names) for case in failed):
        return None
    key = next(task.key for task in skipped if {*task.tests} & names)
    question = (
        f"All other tasks of {branch} are merged into it, and acceptance tests of skipped tasks "
        f"fail: {list_names([case.id for case in failed])}. Have the work done with "
        f"`bae team retry {key}`. Or remove these tests yourself: git switch {branch}, remove "
        "them, commit, switch back, and answer yes."
    )
    return Guarded(tuple(sorted(names)), question, sha256(question.encode()).hexdigest())


def find_feature_problems(
    tasks: Sequence[PlannedTask], others: Sequence[PlannedTask] = ()
) -> list[Problem]:
    """Return the problems of the features in a plan. In a feature, exactly one task must write the
    acceptance tests. The other tasks must depend on this task, and must name the tests that they
    make pass, unless their proof is `none`. `others` are tasks that were planned earlier."""
    tasks_by_key = {task.key: task for task in (*others, *tasks)}
    needs = find_prerequisites(tasks_by_key)
    problems: list[Problem] = []

    def report(key: str, text: str, fix: str) -> None:
        problems.append(Problem("error", "bae-team-feature", key, text, fix))

    planned = {task.feature for task in tasks if task.feature}
    grouped = sorted(tasks_by_key.values(), key=lambda task: task.feature)
    for name, members in groupby(grouped, key=lambda task: task.feature):
        if name not in planned:
            continue
        group = list(members)
        writers = [task for task in group if task.proof == "failing-tests"]
        new = [task for task in writers if task in tasks]
        if new and len(new) < len(writers):
            key = next(task.key for task in writers if task not in tasks)
            text = f"the feature {name!r} has acceptance tests already, of {key!r}"
            report(
                new[0].key,
                text,
                "give another feature to this task and to the tasks that depend on it",
            )
            continue
        if len(writers) != 1:
            text = f"the feature {name!r} has {len(writers)} tasks with the proof failing-tests"
            report(group[0].key, text, "plan exactly one, of kind test, which the others depend on")
            continue
        [writer] = writers
        test_files = [path for path in writer.paths if is_test_file(path)]
        named_files = {test.partition("::")[0] for task in group for test in task.tests}
        for task in group:
            if task is writer or task.proof == "none":
                continue
            if writer.key not in needs[task.key]:
                report(task.key, "does not wait for the acceptance tests", f"add {writer.key!r}")
            if not {test.partition("::")[0] for test in task.tests} & {*test_files}:
                source = ", ".join(test_files) or writer.key
                fix = f"name in tests the tests of {source} that it makes pass"
                report(task.key, "names no acceptance test of its feature", fix)
            if task.may != "add-tests" and task in tasks:
                text = f"may not have {task.may}: it would judge itself by tests that it changed"
                report(task.key, text, "leave out `may`; a person can allow it later")
        if unnamed := [path for path in test_files if path not in named_files]:
            text = f"no task makes {', '.join(unnamed)} pass"
            report(writer.key, text, "name them in the tests of the task that does")
        if not test_files:
            fix = "name the files of the tests in its new_files"
            report(writer.key, "has the proof failing-tests and names no file of tests", fix)
    return problems
