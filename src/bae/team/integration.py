"""Merges tasks into the team's own branch, one task at a time. The merged code is tested, and then
the branch moves by one commit. If the user allows it, the user's clean checkout is fast-forwarded
too. After a killed run, the next run completes or cleans up what the killed run has left."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from bae.tasks import finish_despite_cancel
from bae.team.base_check import BaseReports
from bae.team.files import read_file
from bae.team.flaky_tests import run_again
from bae.team.git import BRANCHES, Conflict, GitError, Repository, remove_stale
from bae.team.models import May, TestReport, bounded
from bae.team.reports import list_names
from bae.team.verdict import describe_failure, find_broken
from bae.team.workspaces import (
    TRAILER,
    RecoveredWork,
    Workspace,
    WorkspaceError,
    Workspaces,
    trailer,
)

_MOST_TRIES: Final = 5
_NOTE: Final = "bae-fast-forward.json"
_UNFINISHED: Final = (
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG"),
    *("rebase-merge", "rebase-apply"),
)


@dataclass(frozen=True, slots=True)
class Integrated:
    """The work is merged into the team's branch."""

    commit: str
    """The commit that merged the work."""
    report: TestReport | None
    """The test results that the task is responsible for. None if the work was merged before, or if
    the tests did not run."""
    everything: TestReport | None = None
    """The test report with all failures. None if the tree was tested before, or if the tests did
    not run."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The merged code failed its tests. The team's branch did not move."""

    report: TestReport
    commit: str

    @property
    def text(self) -> str:
        """The failure as a text for the LLM's next attempt."""
        reason = describe_failure(self.report)
        return f"The tests failed after the work was merged with what others have done.\n\n{reason}"


@dataclass(frozen=True, slots=True)
class Moved:
    """The user's checkout after a fast-forward."""

    commit: str
    """The commit that the checkout is at."""
    reason: str = ""
    """The reason why the checkout did not move. Empty if it moved."""


MergeOutcome: TypeAlias = Integrated | Conflict | Failed
RunTests = Callable[[Workspace], Awaitable[TestReport]]
"""Runs the tests in a worktree. The worktree's `base` is the head of the team's branch before the
merge."""
RunFirst = Callable[[Workspace, Sequence[str], Callable[[TestReport], bool]], Awaitable[TestReport]]
"""Runs the tests in some files first. The other tests run only if the function accepts the first
test report."""


class Integration:
    """Merges tasks into the team's branch, one at a time. If the user has checked out the team's
    branch, the branch moves only with `update_checkout`."""

    def __init__(
        self,
        workspaces: Workspaces,
        run_tests: RunTests,
        *,
        update_checkout: bool = False,
        reports: BaseReports | None = None,
        run_first: RunFirst | None = None,
    ) -> None:
        """Prepare to merge. If `reports` has a report of a merged tree, the tree is not tested
        again. If the files with the most relevant tests are known, `run_first` is called instead of
        `run_tests`."""
        self.repository: Repository = workspaces.repository
        self.workspaces = workspaces
        self.branch = workspaces.team
        self.run_tests = run_tests
        self.update_checkout = update_checkout
        self.reports = reports
        self.run_first = run_first
        self.split_after = 10.0
        """If all tests together take at least this number of seconds, the task's own tests run
        first. The test program is then started twice."""
        self._ref = BRANCHES + self.branch
        self._turn = asyncio.Lock()
        self._head_report: tuple[str, TestReport] | None = None

    async def open(self) -> str:
        """Return the head of the team's branch. If the branch is missing, create it at the user's
        current commit first."""
        head = await self.repository.resolve(self._ref)
        if head is None:
            start = await self.repository.commit_id("HEAD")
            await self.repository.move(self._ref, start, None)
        return await self.head()

    async def head(self) -> str:
        """Return the newest commit of the team's branch."""
        return await self.repository.commit_id(self._ref)

    async def merged_as(self, branch: str) -> str | None:
        """Return the commit on the team's branch that merged the newest work of a task's branch, or
        None. Call this after a kill or a cancellation, because the work may have been merged just
        before."""
        tip, head = await self.repository.resolve(BRANCHES + branch), await self.head()
        if tip is None:
            return None
        return await self.repository.find_commit(trailer(branch, tip), f"{tip}..{head}")

    async def integrate(
        self,
        branch: str,
        message: str,
        *,
        tests: Sequence[str] = (),
        untested: bool = False,
        may: May = "add-tests",
    ) -> MergeOutcome:
        """Merge a task's branch as one commit, if the tests pass on the merged tree. After a
        conflict or a failure nothing changes, and the outcome has a `text` for the next attempt.

        `tests` are the tests that the task must make pass. Other tests may fail if they failed
        before. With `untested`, there may be no tests, but tests that passed before must still
        pass. Unless `may` lets the task change tests, no test that passed before may be skipped or
        missing."""
        merged_commit = await self.merged_as(branch)
        if merged_commit:
            return Integrated(merged_commit, None)
        tip = await self.repository.commit_id(BRANCHES + branch)
        message = message.replace(TRAILER, "Task:")  # an LLM may have written it
        message = f"{message.strip()}\n\n{trailer(branch, tip)}"
        return await self._merge_in_turn(
            BRANCHES + branch,
            message,
            squash=True,
            tests=tests,
            untested=untested,
            keep=may == "add-tests",
        )

    def on_branch(self, branch: str) -> Integration:
        """Return an integration that merges into another branch of the team. This integration does
        not move the user's checkout."""
        integration = copy(self)
        integration.workspaces = copy(self.workspaces)  # the copies share the open worktrees
        integration.workspaces.team = integration.branch = branch
        integration.update_checkout = False
        integration._ref = BRANCHES + branch
        integration._turn = asyncio.Lock()
        integration._head_report = None
        return integration

    async def merge_branch(
        self, branch: str, message: str, *, tests: Sequence[str] = ()
    ) -> MergeOutcome:
        """Merge another branch of the team with its commits, if the tests pass on the merged tree.
        `tests` must pass even if they failed before. After a conflict or a failure nothing
        changes."""
        return await self._merge_in_turn(
            BRANCHES + branch, message, squash=False, tests=tests, keep=True
        )

    async def take_in(self, branch: str) -> Conflict | None:
        """Merge another branch of the team without a test run. If there is a conflict, return it,
        and change nothing."""
        async with self._turn:
            for _ in range(_MOST_TRIES):
                theirs, head = await self.repository.commit_id(BRANCHES + branch), await self.head()
                if await self.repository.contains(head, theirs):
                    return None
                merged: str | Conflict = theirs
                if not await self.repository.contains(theirs, head):
                    message = f"Merge {branch} into {self.branch}"
                    merged = await self.repository.merge(
                        BRANCHES + branch, self._ref, message, squash=False
                    )
                if isinstance(merged, Conflict):
                    return merged
                if await self._move(merged, head):
                    return None
        raise GitError(f"another process moved {self.branch} during each of {_MOST_TRIES} attempts")

    async def catch_up(self, commit: str = "HEAD") -> MergeOutcome | None:
        """Merge the user's new commits into the team's branch. Returns None if there are no new
        commits."""
        theirs, head = await self.repository.commit_id(commit), await self.head()
        if await self.repository.contains(head, theirs):
            return None
        if await self.repository.contains(theirs, head):
            async with self._turn:
                await self._move(theirs, head)
            return Integrated(theirs, None)
        return await self._merge_in_turn(commit, f"Merge {commit} into {self.branch}", squash=False)

    async def deliver(self, *, branch: str | None = None) -> Moved:
        """Fast-forward the user's checkout to the team's branch, if the checkout is clean."""
        return await fast_forward(self.repository, await self.head(), branch=branch)

    async def recover(self, *, patience: float = 10.0) -> RecoveredWork:
        """Clean up worktrees and lock files of a killed run, and complete a fast-forward of the
        user's checkout. Uncommitted work is kept. Call this before the first task starts. Raises
        WorkspaceError if another process still works after `patience` seconds, for example a
        command of the killed run."""
        try:
            async with self.repository.alone(patience):
                return await finish_despite_cancel(self._recover())
        except TimeoutError as error:
            raise WorkspaceError(
                f"another team is working in {self.repository.root}",
                error,
                fix="wait until it is done, or stop it",
            ) from error

    async def _recover(self) -> RecoveredWork:
        cleaned = await self.workspaces.clean()
        await _complete_move(self.repository)
        return cleaned

    async def _merge_in_turn(
        self,
        source: str,
        message: str,
        *,
        squash: bool,
        tests: Sequence[str] = (),
        untested: bool = False,
        keep: bool = False,
    ) -> MergeOutcome:
        async with self._turn:
            for _ in range(_MOST_TRIES):
                before = await self.head()
                outcome = await self._merge_and_test(
                    source, message, before, squash, tests, untested, keep
                )
                if not isinstance(outcome, Integrated) or await self._move(outcome.commit, before):
                    return outcome
        raise GitError(f"another process moved {self.branch} during each of {_MOST_TRIES} attempts")

    async def _merge_and_test(
        self,
        source: str,
        message: str,
        before: str,
        squash: bool,
        tests: Sequence[str],
        untested: bool,
        keep: bool,
    ) -> MergeOutcome:
        merged = await self.repository.merge(source, self._ref, message, squash=squash)
        if isinstance(merged, Conflict):
            return merged
        conflict = await self._find_unresolved(merged, source)
        if conflict:
            return conflict
        # If the team's branch has not moved, this tree was tested already when the work was judged.
        earlier_report = await self.reports.find(merged) if self.reports is not None else None
        report = full_report = earlier_report
        if full_report is None:
            report = full_report = await self._test_twice(source, merged, before, tests)
            if keep and (lost_tests := await self._find_lost(source, merged, before, full_report)):
                return Failed(full_report.model_copy(update={"problem": lost_tests}), merged)
        if not full_report.passed:
            report = full_report.for_task(tests, await self._get_report(before))
            if not report.passed and not (
                untested and not find_broken(await self._get_report(before), full_report)
            ):
                return Failed(report, merged)
        self._head_report = merged, full_report
        return Integrated(merged, report, full_report if earlier_report is None else None)

    async def _test_twice(
        self, source: str, merged: str, before: str, tests: Sequence[str]
    ) -> TestReport:
        """Test a merged tree. If all failed tests may be flaky, test the tree again."""
        report = await self._test_relevant_first(source, merged, before, tests)
        if not report.of("failed"):
            return report
        changed = await self.repository.changed_files(before, merged)
        base_report = await self._get_report(before)
        run = partial(self._test_all, merged, before)
        return await run_again(report, base_report, run, tests=tests, changed=changed)

    async def _test_all(self, merged: str, before: str) -> TestReport:
        async with self.workspaces.scratch(merged, before) as workspace:
            return await self.run_tests(workspace)

    async def _test_relevant_first(
        self, source: str, merged: str, before: str, tests: Sequence[str]
    ) -> TestReport:
        first = await self._find_first(source, merged, before, tests)
        if not first or self.run_first is None:
            return await self._test_all(merged, before)
        base_report = await self._get_report(before)
        if base_report.seconds < self.split_after:
            return await self._test_all(merged, before)

        def is_accepted(report: TestReport) -> bool:
            return report.passed or report.for_task(tests, base_report).passed

        async with self.workspaces.scratch(merged, before) as workspace:
            return await self.run_first(workspace, first, is_accepted)

    async def _find_lost(self, source: str, merged: str, before: str, report: TestReport) -> str:
        """Return a sentence that lists the tests that passed before the merge and are skipped or
        missing after the merge. Empty if there are none. Two kinds of tests are checked: tests of
        the team's branch in files that the merge does not change, and new tests of the task."""
        if self.reports is None:
            return ""
        changed = await self.repository.changed_files(before, merged)
        files = {*await self.repository.list_files(merged)} - {*changed}
        ran_ids = {case.id for case in report.cases if case.outcome != "skipped"}
        # A file that cannot be loaded is a failed case whose id is the path. Such a failure is
        # reported anyway, so the tests in the file are not listed as lost.
        unloadable = {case.id for case in report.of("failed")}
        passed = [case.id for case in (await self.reports.get(before)).of("passed")]
        lost_tests = [
            id
            for id in passed
            for file in [id.partition("::")[0]]
            if id not in ran_ids and file in files and file not in unloadable
        ]
        start = await self.repository.merge_base(before, source)
        base = await self.reports.find(start) if start else None
        work_report = await self.reports.find(source)
        if base is not None and work_report is not None:
            base_ids = {case.id for case in base.cases}
            new = (case.id for case in work_report.of("passed") if case.id not in base_ids)
            lost_tests += (
                id for id in new if id not in ran_ids and id.partition("::")[0] not in unloadable
            )
        if not lost_tests:
            return ""
        return (
            f"tests that passed before the merge are skipped or missing: {list_names(lost_tests)}"
        )

    async def _find_first(
        self, source: str, merged: str, before: str, tests: Sequence[str]
    ) -> list[str]:
        """Return the files that have the task's own tests: tests in files that the task changed,
        and tests that it must make pass. Empty if the work was not tested before."""
        work_report = await self.reports.find(source) if self.reports is not None else None
        if work_report is None:
            return []
        files = {case.id.partition("::")[0] for case in work_report.cases}
        changed = await self.repository.changed_files(before, merged)
        named_files = [test.partition("::")[0] for test in tests]
        return [name for name in dict.fromkeys((*changed, *named_files)) if name in files]

    async def _get_report(self, head: str) -> TestReport:
        """Return the test report of the team's branch before a merge."""
        if self.reports is not None:
            return await self.reports.get(head)
        if self._head_report is None or self._head_report[0] != head:
            async with self.workspaces.scratch(head) as workspace:
                self._head_report = head, await self.run_tests(workspace)
        return self._head_report[1]

    async def _find_unresolved(self, merged: str, source: str) -> Conflict | None:
        """Return a conflict if the merged files still have conflict markers of an earlier merge.
        Otherwise return None."""
        marks = ("-e", f"<<<<<<< {self._ref}", "-e", f">>>>>>> {source}")
        args = ("grep", "--no-color", "-n", "-z", "-I", "--fixed-strings", *marks, merged)
        code, output, problem = await self.repository.run_git(*args)
        if code > 1:
            raise GitError(f"git grep failed with {code}: {problem}")
        lines = [line.split("\0") for line in output.decode("utf-8", "replace").splitlines()]
        markers = [(line[0].partition(":")[2], *line[1:]) for line in lines if len(line) == 3]
        if not markers:
            return None
        listing = [f"{name}:{number}: {text}" for name, number, text in markers]
        files = tuple(dict.fromkeys(name for name, _, _ in markers))
        return Conflict(files, bounded("Conflict markers are left:\n" + "\n".join(listing)))

    async def _move(self, to: str, before: str) -> bool:
        """Move the team's branch from `before` to another commit. Return False if another process
        has moved the branch. If the user has checked out the branch, the checkout is fast-forwarded
        with the branch. If the checkout may not or cannot be moved, GitError is raised."""
        args = ("for-each-ref", "--format=%(worktreepath)", self._ref)
        path = await self.repository.git(*args)
        if not path:
            return await self.repository.move(self._ref, to, before)
        checkout = Moved(before, f"switch to another branch in {path}")
        if path == str(self.repository.root) and self.update_checkout:
            checkout = await fast_forward(self.repository, to, branch=self.branch)
        if checkout.reason:
            raise GitError(
                f"{self.branch} is checked out in {path} and cannot be moved: {checkout.reason}",
                fix="switch to another branch there",
            )
        return True


async def fast_forward(repository: Repository, to: str, *, branch: str | None = None) -> Moved:
    """Move the user's checkout and its branch to a newer commit. The checkout must be clean, on a
    branch, and behind the commit. If `branch` is not None, the checkout must be on this branch. If
    the checkout does not meet these conditions, nothing changes, and the result has the reason.
    Untracked and ignored files are never overwritten."""
    to = await repository.commit_id(to)
    async with repository.at_work():
        return await finish_despite_cancel(_fast_forward(repository, to, branch))


async def _fast_forward(repository: Repository, to: str, branch: str | None) -> Moved:
    head = await repository.commit_id("HEAD")
    if head == to:
        return Moved(head)
    reason = await _find_reason_to_stay(repository, head, to, branch)
    if reason:
        return Moved(head, reason)
    note = repository.common / _NOTE
    await asyncio.to_thread(note.write_text, json.dumps({"before": head, "after": to}))
    args = ("merge", "--ff-only", "--no-overwrite-ignore", "--no-stat", "--quiet", to)
    code, output, problem = await repository.run_git(*args)
    await asyncio.to_thread(note.unlink)
    if code:
        return Moved(head, problem or output.decode("utf-8", "replace").strip())
    return Moved(to)


async def _find_reason_to_stay(
    repository: Repository, head: str, to: str, branch: str | None
) -> str | None:
    current = await repository.current_branch()
    if current is None:
        return "it is on no branch"
    if branch not in (None, current):
        return f"it is on {current}, not on {branch}"
    if not await repository.contains(to, head):
        return f"{current} has commits that {to[:12]} does not have"
    for name in _UNFINISHED:
        if await asyncio.to_thread((repository.checkout.git_dir / name).exists):
            return f"a git operation is not finished there ({name})"
    args = ("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all")
    changes = await repository.git(*args)
    if changes:
        names = [part[3:] for part in changes.split("\0") if part]
        return f"it has uncommitted changes: {bounded(', '.join(names), 500)}"
    return None


async def _complete_move(repository: Repository) -> None:
    """Complete a fast-forward that was killed before it ended. A file is written only if it is
    missing, or has the old content, the new content or the beginning of the new content. bae
    assumes that the user has not changed such a file."""
    note = repository.common / _NOTE
    try:
        note_time = (await asyncio.to_thread(note.stat)).st_mtime
        move: dict[str, str] = json.loads(await asyncio.to_thread(note.read_text))
        before, after = move["before"], move["after"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError):  # the note is incomplete, so the move had not begun
        await asyncio.to_thread(note.unlink)
        return
    branch = await repository.current_branch()
    refs = ("index", "HEAD", "ORIG_HEAD", *([BRANCHES + branch] if branch else []))
    folders = {repository.checkout.git_dir, repository.common}
    locks = [folder / f"{ref}.lock" for folder in folders for ref in refs]
    # Lock files from a later time belong to git commands of the user.
    await asyncio.to_thread(remove_stale, locks, note_time - 1, note_time + repository.timeout)
    if await repository.commit_id("HEAD") == before:
        await _undo_partial_move(repository, before, after)
        await _fast_forward(repository, after, None)
    await asyncio.to_thread(note.unlink, missing_ok=True)


async def _undo_partial_move(repository: Repository, before: str, after: str) -> None:
    changed_files: list[str] = []
    new_files: list[str] = []
    for name in await repository.changed_files(before, after):
        args = ("cat-file", "--filters")
        missing, old, _ = await repository.run_git(*args, f"{before}:{name}")
        _, new_content, _ = await repository.run_git(*args, f"{after}:{name}")
        path = repository.root / name
        content = await asyncio.to_thread(read_file, path, len(new_content))
        if content is None and await asyncio.to_thread(os.path.lexists, path):
            continue  # git did not write it
        if content != old and new_content.startswith(content or b""):
            (new_files if missing else changed_files).append(name)
    if changed_files:
        paths = ("--pathspec-from-file=-", "--pathspec-file-nul")
        await repository.git(
            "checkout", "--quiet", before, *paths, stdin=_join_names(changed_files)
        )
    if new_files:
        await repository.git(
            "update-index", "--force-remove", "-z", "--stdin", stdin=_join_names(new_files)
        )
        for name in new_files:
            with suppress(FileNotFoundError):
                await asyncio.to_thread((repository.root / name).unlink)


def _join_names(names: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)
