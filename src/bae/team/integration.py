"""The team's own branch. Tasks are merged one at a time, tested as merged, and then the branch
moves, with one commit a task. The user's checkout follows by fast-forward only if the user wants
that and it is clean. The next run completes or cleans up the work of a killed run."""

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

_TRIES: Final = 5
_NOTE: Final = "bae-fast-forward.json"
_UNFINISHED: Final = (
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG"),
    *("rebase-merge", "rebase-apply"),
)


@dataclass(frozen=True, slots=True)
class Integrated:
    """The new commit of the team's branch and its test report, which is None if the work had been
    merged before. `everything` also has the failures that the task does not answer for; it is None
    if the tree had been tested before."""

    commit: str
    report: TestReport | None
    everything: TestReport | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The merged code failed its tests. The team's branch did not move."""

    report: TestReport
    commit: str

    @property
    def text(self) -> str:
        """The failure, for the next attempt."""
        what = describe_failure(self.report)
        return f"The tests failed after the work was merged with what others have done.\n\n{what}"


@dataclass(frozen=True, slots=True)
class Moved:
    """The user's checkout after a fast-forward: its commit, or the reason why it was left alone."""

    commit: str
    reason: str = ""


MergeOutcome: TypeAlias = Integrated | Conflict | Failed
RunTests = Callable[[Workspace], Awaitable[TestReport]]
"""Runs the tests of a worktree. Its `base` is the team's branch before the merge."""
RunFirst = Callable[[Workspace, Sequence[str], Callable[[TestReport], bool]], Awaitable[TestReport]]
"""Runs the tests of some files first, and the others only if the report of these is accepted."""


class Integration:
    """Merges tasks into the team's branch, in turn. Where the user has that branch itself checked
    out, it moves only with `update_checkout`."""

    def __init__(
        self,
        workspaces: Workspaces,
        run_tests: RunTests,
        *,
        update_checkout: bool = False,
        reports: BaseReports | None = None,
        run_first: RunFirst | None = None,
    ) -> None:
        """A tree with a report in `reports` is not tested again. `run_first` replaces `run_tests`
        if the files of the most relevant tests are known."""
        self.repository: Repository = workspaces.repository
        self.workspaces = workspaces
        self.branch = workspaces.team
        self.run_tests = run_tests
        self.update_checkout = update_checkout
        self.reports = reports
        self.run_first = run_first
        self.split_after = 10.0
        """How many seconds tests must take for a task's own tests to run first: the test program
        starts twice then."""
        self._ref = BRANCHES + self.branch
        self._turn = asyncio.Lock()
        self._head_report: tuple[str, TestReport] | None = None

    async def open(self) -> str:
        """Create the team's branch at the user's commit, if it is missing, and return its head."""
        head = await self.repository.resolve(self._ref)
        if head is None:
            start = await self.repository.commit_id("HEAD")
            await self.repository.move(self._ref, start, None)
        return await self.head()

    async def head(self) -> str:
        """The newest commit of the team's branch."""
        return await self.repository.commit_id(self._ref)

    async def merged_as(self, branch: str) -> str | None:
        """The commit on the team's branch with the work of a task's branch, or None. Ask after a
        kill or a cancellation: the branch may have moved just before."""
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
        """Merge a task's branch as one commit. A conflict or a failure changes nothing, and has a
        `text` for the next attempt. `tests` are the tests that the task must make pass, while
        others may fail as before. For `untested` work, tests that passed must still pass, and there
        may be no tests at all. Tests of others may be lost only if the task `may` change tests."""
        done = await self.merged_as(branch)
        if done:
            return Integrated(done, None)
        tip = await self.repository.commit_id(BRANCHES + branch)
        message = message.replace(TRAILER, "Task:")  # an LLM may have written it
        message = f"{message.strip()}\n\n{trailer(branch, tip)}"
        return await self._in_turn(
            BRANCHES + branch,
            message,
            squash=True,
            tests=tests,
            untested=untested,
            keep=may == "add-tests",
        )

    def on_branch(self, branch: str) -> Integration:
        """The same for another branch of the team, which the user's checkout does not follow."""
        other = copy(self)
        other.workspaces = copy(self.workspaces)  # which share the open worktrees
        other.workspaces.team = other.branch = branch
        other.update_checkout = False
        other._ref = BRANCHES + branch
        other._turn = asyncio.Lock()
        other._head_report = None
        return other

    async def merge_branch(
        self, branch: str, message: str, *, tests: Sequence[str] = ()
    ) -> MergeOutcome:
        """Merge another branch of the team with its commits, if the merged tree passes its tests,
        `tests` among them. A conflict or a failure leaves everything as it was."""
        return await self._in_turn(BRANCHES + branch, message, squash=False, tests=tests, keep=True)

    async def take_in(self, branch: str) -> Conflict | None:
        """Merge another branch of the team without a test run. With a conflict nothing changes."""
        async with self._turn:
            for _ in range(_TRIES):
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
        raise GitError(f"{self.branch} was moved by another process each time, {_TRIES} times")

    async def catch_up(self, commit: str = "HEAD") -> MergeOutcome | None:
        """Merge the user's new commits. Returns None if there are none."""
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

    async def recover(self, *, patience: float = 10.0) -> RecoveredWork:
        """Clean up after a killed run: worktrees, lock files, and an unfinished move of the
        checkout. Uncommitted work is kept. Call it before the first task starts. It waits at most
        `patience` seconds for commands of the killed run."""
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

    async def _in_turn(
        self,
        what: str,
        message: str,
        *,
        squash: bool,
        tests: Sequence[str] = (),
        untested: bool = False,
        keep: bool = False,
    ) -> MergeOutcome:
        async with self._turn:
            for _ in range(_TRIES):
                before = await self.head()
                outcome = await self._merge_and_test(
                    what, message, before, squash, tests, untested, keep
                )
                if not isinstance(outcome, Integrated) or await self._move(outcome.commit, before):
                    return outcome
        raise GitError(f"{self.branch} was moved by another process each time, {_TRIES} times")

    async def _merge_and_test(
        self,
        what: str,
        message: str,
        before: str,
        squash: bool,
        tests: Sequence[str],
        untested: bool,
        keep: bool,
    ) -> MergeOutcome:
        merged = await self.repository.merge(what, self._ref, message, squash=squash)
        if isinstance(merged, Conflict):
            return merged
        conflict = await self._find_unresolved(merged, what)
        if conflict:
            return conflict
        # The same tree as one that passed in a new worktree, where the branch has not moved since.
        known = await self.reports.find(merged) if self.reports is not None else None
        report = full = known
        if full is None:
            report = full = await self._test_twice(what, merged, before, tests)
            if keep and (lost := await self._find_lost(what, merged, before, full)):
                return Failed(full.model_copy(update={"problem": lost}), merged)
        if not full.passed:
            report = full.for_task(tests, await self._report_of(before))
            if not report.passed and not (
                untested and not find_broken(await self._report_of(before), full)
            ):
                return Failed(report, merged)
        self._head_report = merged, full
        return Integrated(merged, report, full if known is None else None)

    async def _test_twice(
        self, what: str, merged: str, before: str, tests: Sequence[str]
    ) -> TestReport:
        """Test a merged tree, and test it again if only possibly flaky tests failed."""
        report = await self._test(what, merged, before, tests)
        if not report.of("failed"):
            return report
        changed = await self.repository.changed_files(before, merged)
        known, run = await self._report_of(before), partial(self._test_all, merged, before)
        return await run_again(report, known, run, tests=tests, changed=changed)

    async def _test_all(self, merged: str, before: str) -> TestReport:
        async with self.workspaces.scratch(merged, before) as workspace:
            return await self.run_tests(workspace)

    async def _test(self, what: str, merged: str, before: str, tests: Sequence[str]) -> TestReport:
        first = await self._find_first(what, merged, before, tests)
        if not first or self.run_first is None:
            return await self._test_all(merged, before)
        known = await self._report_of(before)
        if known.seconds < self.split_after:
            return await self._test_all(merged, before)

        def is_accepted(report: TestReport) -> bool:
            return report.passed or report.for_task(tests, known).passed

        async with self.workspaces.scratch(merged, before) as workspace:
            return await self.run_first(workspace, first, is_accepted)

    async def _find_lost(self, what: str, merged: str, before: str, report: TestReport) -> str:
        """A sentence that names the tests which passed before a merge and are skipped or missing
        now: tests of the team's branch in files that the merge does not change, and tests of the
        work."""
        if self.reports is None:
            return ""
        changed = await self.repository.changed_files(before, merged)
        files = {*await self.repository.list_files(merged)} - {*changed}
        ran = {case.id for case in report.cases if case.outcome != "skipped"}
        loaded = {case.id for case in report.of("failed")}  # a whole file, as it cannot be loaded
        passed = [case.id for case in (await self.reports.get(before)).of("passed")]
        lost = [
            id
            for id in passed
            for file in [id.partition("::")[0]]
            if id not in ran and file in files and file not in loaded
        ]
        start = await self.repository.merge_base(before, what)
        base = await self.reports.find(start) if start else None
        tested = await self.reports.find(what)
        if base is not None and tested is not None:
            known = {case.id for case in base.cases}
            new = (case.id for case in tested.of("passed") if case.id not in known)
            lost += (id for id in new if id not in ran and id.partition("::")[0] not in loaded)
        if not lost:
            return ""
        return f"tests that passed before the merge are skipped or missing: {list_names(lost)}"

    async def _find_first(
        self, what: str, merged: str, before: str, tests: Sequence[str]
    ) -> list[str]:
        """The files with tests that a task changed or must make pass."""
        tested = await self.reports.find(what) if self.reports is not None else None
        if tested is None:
            return []
        files = {case.id.partition("::")[0] for case in tested.cases}
        changed = await self.repository.changed_files(before, merged)
        named = [each.partition("::")[0] for each in tests]
        return [name for name in dict.fromkeys((*changed, *named)) if name in files]

    async def _report_of(self, head: str) -> TestReport:
        """The test report of the team's branch before a merge."""
        if self.reports is not None:
            return await self.reports.get(head)
        if self._head_report is None or self._head_report[0] != head:
            async with self.workspaces.scratch(head) as workspace:
                self._head_report = head, await self.run_tests(workspace)
        return self._head_report[1]

    async def _find_unresolved(self, merged: str, what: str) -> Conflict | None:
        """The conflict markers of an earlier merge that remain."""
        marks = ("-e", f"<<<<<<< {self._ref}", "-e", f">>>>>>> {what}")
        args = ("grep", "--no-color", "-n", "-z", "-I", "--fixed-strings", *marks, merged)
        code, output, problem = await self.repository.run_git(*args)
        if code > 1:
            raise GitError(f"git grep failed with {code}: {problem}")
        lines = [line.split("\0") for line in output.decode("utf-8", "replace").splitlines()]
        markers = [(line[0].partition(":")[2], *line[1:]) for line in lines if len(line) == 3]
        if not markers:
            return None
        shown = [f"{name}:{number}: {text}" for name, number, text in markers]
        files = tuple(dict.fromkeys(name for name, _, _ in markers))
        return Conflict(files, bounded("Conflict markers are left:\n" + "\n".join(shown)))

    async def _move(self, to: str, before: str) -> bool:
        """Move the team's branch, also if the user has it checked out."""
        args = ("for-each-ref", "--format=%(worktreepath)", self._ref)
        path = await self.repository.git(*args)
        if not path:
            return await self.repository.move(self._ref, to, before)
        moved = Moved(before, f"switch to another branch in {path}")
        if path == str(self.repository.root) and self.update_checkout:
            moved = await fast_forward(self.repository, to, branch=self.branch)
        if moved.reason:
            raise GitError(
                f"{self.branch} is checked out in {path} and cannot be moved: {moved.reason}",
                fix="switch to another branch there",
            )
        return True


async def fast_forward(repository: Repository, to: str, *, branch: str | None = None) -> Moved:
    """Move the user's checkout and its branch to a newer commit. The checkout is left alone unless
    it is clean, on a branch (`branch`, if given) and behind that commit. Untracked files, including
    ignored files, are never overwritten."""
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
    here = await repository.current_branch()
    if here is None:
        return "it is on no branch"
    if branch not in (None, here):
        return f"it is on {here}, not on {branch}"
    if not await repository.contains(to, head):
        return f"{here} has commits that {to[:12]} does not have"
    for name in _UNFINISHED:
        if await asyncio.to_thread((repository.checkout.git_dir / name).exists):
            return f"an operation of git's is not finished there ({name})"
    args = ("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all")
    changes = await repository.git(*args)
    if changes:
        names = [part[3:] for part in changes.split("\0") if part]
        return f"it has uncommitted changes: {bounded(', '.join(names), 500)}"
    return None


async def _complete_move(repository: Repository) -> None:
    """Complete a fast-forward that was killed halfway. A file is written only if it is unchanged,
    or holds the new content or its beginning."""
    note = repository.common / _NOTE
    try:
        written = (await asyncio.to_thread(note.stat)).st_mtime
        noted: dict[str, str] = json.loads(await asyncio.to_thread(note.read_text))
        before, after = noted["before"], noted["after"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError):  # killed while the note was written: nothing had begun
        await asyncio.to_thread(note.unlink)
        return
    branch = await repository.current_branch()
    refs = ("index", "HEAD", "ORIG_HEAD", *([BRANCHES + branch] if branch else []))
    folders = {repository.checkout.git_dir, repository.common}
    locks = [folder / f"{ref}.lock" for folder in folders for ref in refs]
    # Later ones are of the user's own commands.
    await asyncio.to_thread(remove_stale, locks, written - 1, written + repository.timeout)
    if await repository.commit_id("HEAD") == before:
        await _undo(repository, before, after)
        await _fast_forward(repository, after, None)
    await asyncio.to_thread(note.unlink, missing_ok=True)


async def _undo(repository: Repository, before: str, after: str) -> None:
    known: list[str] = []
    new: list[str] = []
    for name in await repository.changed_files(before, after):
        args = ("cat-file", "--filters")
        missing, old, _ = await repository.run_git(*args, f"{before}:{name}")
        _, written, _ = await repository.run_git(*args, f"{after}:{name}")
        path = repository.root / name
        now = await asyncio.to_thread(read_file, path, len(written))
        if now is None and await asyncio.to_thread(os.path.lexists, path):
            continue  # not of git's making
        if now != old and written.startswith(now or b""):
            (new if missing else known).append(name)
    if known:
        paths = ("--pathspec-from-file=-", "--pathspec-file-nul")
        await repository.git("checkout", "--quiet", before, *paths, stdin=_join(known))
    if new:
        await repository.git("update-index", "--force-remove", "-z", "--stdin", stdin=_join(new))
        for name in new:
            with suppress(FileNotFoundError):
                await asyncio.to_thread((repository.root / name).unlink)


def _join(names: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)
