"""The team's own branch: tasks are merged into it one at a time, tested as merged, and only then is
it moved. The history has one commit a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from bae.team.git import BRANCHES, Conflict, GitError, Merged, Repository
from bae.team.models import TestReport, bounded
from bae.team.user_checkout import Moved, fast_forward
from bae.team.workspaces import TRAILER, Workspace, Workspaces, trailer

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Integrated:
    """The commit that the team's branch is at now, and the tests of it; None where nothing was
    tested, since the work had been merged before. `everything` has also those failures that the
    task does not answer for."""

    commit: str
    report: TestReport | None
    everything: TestReport | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The merged code did not pass its tests: the team's branch is where it was."""

    report: TestReport
    commit: str

    @property
    def text(self) -> str:
        """What failed, for the next attempt."""
        failed = [f"{case.id}\n{case.message}".strip() for case in self.report.of("failed")]
        parts = (
            "The tests failed after the work was merged with what others have done.",
            *filter(None, (self.report.problem, "\n\n".join(failed), self.report.output)),
        )
        return bounded("\n\n".join(parts))


Outcome: TypeAlias = Integrated | Conflict | Failed
RunTests = Callable[[Workspace], Awaitable[TestReport]]
"""Runs the tests of a worktree. Its `base` is what the team's branch was at before the merge."""


class Integration:
    """Merges tasks into the team's branch, in turn."""

    def __init__(self, workspaces: Workspaces, run_tests: RunTests) -> None:
        self.repository: Repository = workspaces.repository
        self.workspaces = workspaces
        self.branch = workspaces.team
        self.run_tests = run_tests
        self._ref = BRANCHES + self.branch
        self._turn = asyncio.Lock()
        self._head_report: tuple[str, TestReport] | None = None

    async def open(self) -> str:
        """Make the team's branch at the user's commit, unless there is one. Returns its head."""
        head = await self.repository.resolve(self._ref)
        if head is None:
            start = await self.repository.commit_id("HEAD")
            await self.repository.move(self._ref, start, None)
        return await self.head()

    async def head(self) -> str:
        """The newest commit of the team's branch."""
        return await self.repository.commit_id(self._ref)

    async def merged_as(self, branch: str) -> str | None:
        """The commit that holds the work of a task's branch, if it was merged. Ask after a run was
        killed or cancelled: the branch may have been moved just before."""
        tip, head = await self.repository.resolve(BRANCHES + branch), await self.head()
        if tip is None:
            return None
        return await self.repository.find_commit(trailer(branch, tip), f"{tip}..{head}")

    async def integrate(self, branch: str, message: str, *, tests: Sequence[str] = ()) -> Outcome:
        """Merge a task's branch as one commit. A conflict or a failure leaves everything as it was,
        and has a `text` for the next attempt. `tests` are those that the task has to make pass,
        where others fail already."""
        done = await self.merged_as(branch)
        if done:
            return Integrated(done, None)
        tip = await self.repository.commit_id(BRANCHES + branch)
        message = message.replace(TRAILER, "Task:")  # an LLM may have written it
        message = f"{message.strip()}\n\n{trailer(branch, tip)}"
        return await self._in_turn(BRANCHES + branch, message, squash=True, tests=tests)

    async def catch_up(self, commit: str = "HEAD") -> Outcome | None:
        """Merge what the user has committed meanwhile; None where there is nothing new."""
        theirs, head = await self.repository.commit_id(commit), await self.head()
        if await self.repository.contains(head, theirs):
            return None
        if await self.repository.contains(theirs, head):
            async with self._turn:
                await self._move(theirs, head)
            return Integrated(theirs, None)
        return await self._in_turn(commit, f"Merge {commit} into {self.branch}", squash=False)

    async def deliver(self, *, branch: str | None = None) -> Moved:
        """Fast-forward the user's checkout to the team's branch, if it is clean."""
        return await fast_forward(self.repository, await self.head(), branch=branch)

    async def _in_turn(
        self, what: str, message: str, *, squash: bool, tests: Sequence[str] = ()
    ) -> Outcome:
        async with self._turn:
            for _ in range(_TRIES):
                before = await self.head()
                outcome = await self._merge_and_test(what, message, before, squash, tests)
                if not isinstance(outcome, Integrated) or await self._move(outcome.commit, before):
                    return outcome
        raise GitError(f"{self.branch} was moved by another process each time, {_TRIES} times")

    async def _merge_and_test(
        self, what: str, message: str, before: str, squash: bool, tests: Sequence[str]
    ) -> Outcome:
        merged = await self.repository.merge(what, self._ref, message, squash=squash)
        if isinstance(merged, Conflict):
            return merged
        conflict = await self._unresolved(merged, what)
        if conflict:
            return conflict
        async with self.workspaces.scratch(merged.commit, before) as workspace:
            report = full = await self.run_tests(workspace)
        if tests and not report.passed:
            report = full.for_task(tests, await self._report_of(before))
        if not report.passed:
            return Failed(report, merged.commit)
        self._head_report = merged.commit, full
        return Integrated(merged.commit, report, full)

    async def _report_of(self, head: str) -> TestReport:
        """What the tests of the team's branch show before a merge."""
        if self._head_report is None or self._head_report[0] != head:
            async with self.workspaces.scratch(head) as workspace:
                self._head_report = head, await self.run_tests(workspace)
        return self._head_report[1]

    async def _unresolved(self, merged: Merged, what: str) -> Conflict | None:
        """The conflict markers of an earlier merge that are still there."""
        marks = ("-e", f"<<<<<<< {self._ref}", "-e", f">>>>>>> {what}")
        args = ("grep", "--no-color", "-n", "-z", "-I", "--fixed-strings", *marks, merged.commit)
        code, output, problem = await self.repository.run_git(*args)
        if code > 1:
            raise GitError(f"git grep failed with {code}: {problem}")
        lines = [line.split("\0") for line in output.decode("utf-8", "replace").splitlines()]
        found = [(line[0].partition(":")[2], *line[1:]) for line in lines if len(line) == 3]
        if not found:
            return None
        said = [f"{name}:{number}: {text}" for name, number, text in found]
        files = tuple(dict.fromkeys(name for name, _, _ in found))
        return Conflict(files, bounded("Conflict markers are left:\n" + "\n".join(said)))

    async def _move(self, to: str, before: str) -> bool:
        """Move the team's branch, also where the user has it checked out."""
        args = ("for-each-ref", "--format=%(worktreepath)", self._ref)
        path = await self.repository.git(*args)
        if not path:
            return await self.repository.move(self._ref, to, before)
        moved = Moved(before, f"switch to another branch in {path}")
        if path == str(self.repository.root):
            moved = await fast_forward(self.repository, to, branch=self.branch)
        if moved.reason:
            raise GitError(
                f"{self.branch} is checked out in {path} and cannot be moved: {moved.reason}",
                fix="switch to another branch there",
            )
        return True
