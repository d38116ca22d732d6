"""The verdict on a task's work. Work is accepted if tests prove it and the tests of the base still
pass unchanged. Each test run has a fresh worktree."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, Unpack

from bae.team import sandbox
from bae.team.acceptance import find_acceptance_problems
from bae.team.doctests import add_examples, is_added
from bae.team.edits import FileChange
from bae.team.files import delete_folder
from bae.team.flaky_tests import run_again
from bae.team.git import Repository, split_paths
from bae.team.models import May, PlannedTask, Project, TestCase, TestReport
from bae.team.reports import NOT_LOADED, list_names
from bae.team.test_edits import (
    ask_for,
    files_with_examples,
    find_concerns,
    find_edits,
    find_named,
    is_fixed,
    is_prose,
    is_test_file,
    reported_files,
)
from bae.team.test_order import is_selected
from bae.team.test_runs import run_tests
from bae.team.workspaces import Workspace, Workspaces


@dataclass(frozen=True, slots=True)
class WorkVerdict:
    """The verdict on a task's work."""

    report: TestReport
    changes: tuple[FileChange, ...] = ()
    problems: tuple[str, ...] = ()
    """The reasons why the work is refused, as sentences for the next attempt."""
    concerns: tuple[tuple[str, str], ...] = ()
    """Files that a person should read before the merge, each with the reason."""

    @property
    def accepted(self) -> bool:
        """Whether the work has no problems."""
        return not self.problems

    @property
    def text(self) -> str:
        """All problems in one text."""
        return "\n\n".join(self.problems)

    @property
    def digest(self) -> str:
        """A digest of the concerns and the contents of their files. A person's yes accepts exactly
        this content. Empty if there are no concerns."""
        if not self.concerns:
            return ""
        files = [
            (change.path, hashlib.sha256(change.after or b"").hexdigest())
            for change in self.changes
            if change.path in dict(self.concerns)
        ]
        return hashlib.sha256(json.dumps([self.concerns, files]).encode()).hexdigest()[:16]


async def verify(
    project: Project,
    workspaces: Workspaces,
    workspace: Workspace,
    task: PlannedTask,
    *,
    before: TestReport | None = None,
    **limits: Unpack[sandbox.Limits],
) -> WorkVerdict:
    """Judge the commits of a task by test runs in fresh worktrees.

    `before` is the test report of the task's base. If it is None, the base is tested first. The
    limits of `sandbox.run` apply to each test run.

    1. The tests run on the work. Forbidden changes of tests are undone for this run.
    2. If the task may only add tests, and the work changes or adds test files, the tests run on the
       work again, with the test files as they are in the base.
    3. If new tests have to prove the work, the new and changed test files run on the code of the
       base.
    """
    may = task.may
    repository, base, head = workspace.repository, workspace.base, await workspace.head()
    changes = await read_changes(repository, base, head)
    files = await repository.list_files(base)
    if before is None:
        async with workspaces.scratch(base) as fresh:
            before = await run_fixed(project, fresh, **limits)
    look_for_edits = partial(find_edits, changes, files, may, command=project.test_command)
    look_for_edits = partial(look_for_edits, folder=project.folder)
    edits = await asyncio.to_thread(look_for_edits, before)
    changed_files = {change.path for change in changes}

    async def run_restored_once(restored: Sequence[FileChange]) -> TestReport:
        async with workspaces.scratch(head, base) as fresh:
            await asyncio.to_thread(_write_files, fresh.path, restored, undo=True)
            return await run_fixed(project, fresh, before, **limits)

    async def run_restored(restored: Sequence[FileChange], tests: Sequence[str]) -> TestReport:
        run = partial(run_restored_once, restored)
        report = await run()
        return await run_again(report, before, run, tests=tests, changed=changed_files)

    after = await run_restored(edits.forbidden, task.tests)
    edits = await asyncio.to_thread(look_for_edits, before, after)
    test_changes = [change for change in changes if is_test_file(change.path, before, after)]
    named_tests = find_existing(task.tests, before)
    flaky = [*after.flaky]
    problems = [*edits.problems]
    if task.proof == "none":
        problems += _find_forbidden_code(changes, () if task.kind == "docs" else task.paths)
        reasons = find_broken(before, after)
    elif task.proof == "failing-tests":
        missing = find_acceptance_problems(before, after, changes)
        reasons = (*find_broken(before, after), *missing)
    else:
        reasons = judge(before, after, tests=task.tests, may=may)
    problems += (
        f"With that restored: {reason}" if edits.forbidden else reason for reason in reasons
    )
    if not problems and test_changes and may == "add-tests":
        restored_report = await run_restored(test_changes, named_tests)
        flaky += restored_report.flaky
        for text in find_broken(before, restored_report):
            problems.append(
                f"{_AS_BEFORE}{text}\n\nKeep what they check. {ask_for('change-tests')}"
            )
        edited_tests = [change for change in test_changes if change.before is not None]
        if not problems and named_tests and edited_tests:
            # This run keeps new test files, because a named test may need a new fixture or new
            # data.
            if len(edited_tests) < len(test_changes):
                restored_report = await run_restored(edited_tests, named_tests)
                flaky += restored_report.flaky
            if not (named_report := restored_report.for_task(named_tests, before)).passed:
                problems.append(f"{_HIDDEN}{describe_failure(named_report)}")
    # A task that changes only tests changes no code, so its tests cannot fail without the change.
    only_tests = task.kind == "test" and len(test_changes) == len(changes)
    unproved = task.proof == "new-tests" or (task.proof == "named-tests" and not named_tests)
    if not problems and unproved:
        on_base = None
        documented = files_with_examples(after)
        examples = [add_examples(change) for change in changes if change.path in documented]
        if not only_tests and any(
            change.after is not None for change in (*test_changes, *examples)
        ):
            async with workspaces.scratch(base) as fresh:
                await asyncio.to_thread(_write_files, fresh.path, [*test_changes, *examples])
                on_base = await run_fixed(project, fresh, before, after, **limits)
        problems += find_unproved(before, after, on_base, changes, only_tests=only_tests, may=may)
    concerns = await asyncio.to_thread(find_concerns, changes, before, after)
    report = after.model_copy(update={"flaky": tuple(dict.fromkeys(flaky))})
    return WorkVerdict(report, changes, tuple(problems), concerns)


_AS_BEFORE: Final = "With the tests as they were before this task, without what it adds to them, "
_HIDDEN: Final = (
    "The tests that this task has to make pass do not pass as they were before it. Additions to "
    "their files hide that. "
)


async def run_fixed(
    project: Project, workspace: Workspace, *reports: TestReport, **limits: Unpack[sandbox.Limits]
) -> TestReport:
    """Run the tests of a worktree. The run cannot write to test files or test settings. A file with
    tests in `reports` is a test file."""
    fixed = await list_fixed(project, workspace, *reports)
    return await run_tests(project, workspace.path, fixed=fixed, **limits)


async def list_fixed(
    project: Project, workspace: Workspace, *reports: TestReport
) -> tuple[str, ...]:
    """List the files of a worktree that a test run cannot write to: test files, test settings, and
    files that the test command names."""
    args = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    _, output, _ = await workspace.repository.run_git(*args, at=workspace.checkout)
    test_files = {path for report in reports for path in reported_files(report)}
    named_files = find_named(project.test_command, project.folder)
    return tuple(
        path
        for path in sorted({*split_paths(output)})
        if is_fixed(path) or path in test_files | named_files
    )


async def read_changes(repository: Repository, base: str, head: str) -> tuple[FileChange, ...]:
    """Read the changed files between two commits, with their contents before and after."""
    paths = await repository.changed_files(base, head)
    before, after = [await repository.read_files(commit, paths) for commit in (base, head)]
    return tuple(map(FileChange, paths, before, after))


def _write_files(root: Path, changes: Sequence[FileChange], *, undo: bool = False) -> None:
    """Write files with their contents after the changes. With `undo`, write their contents before
    the changes.

    A file or folder in the way, such as a folder with the name of a file, is removed."""
    place = root.resolve()
    for change in changes:
        path, content = root / change.path, change.before if undo else change.after
        if not path.parent.resolve().is_relative_to(place) or path.is_symlink():
            continue  # a link in the repository leads outside of the worktree
        if content is None:
            if path.is_file():
                path.unlink()
            continue
        for parent in path.parents:
            if parent.is_file():
                parent.unlink()
        if path.is_dir():
            delete_folder(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# --- comparison of reports ------------------------------------------------------------------------


def judge(
    before: TestReport,
    after: TestReport,
    *,
    tests: Sequence[str] = (),
    may: May = "add-tests",
) -> tuple[str, ...]:
    """Compare two test reports, and return the reasons to refuse a task's work, as sentences for
    the next attempt.

    - `before`: the report of the task's base.
    - `after`: the report of the work.
    - `tests`: the tests that the task must make pass. Other tests may fail if they failed before.
    - `may`: what the task may do to tests.
    """
    problems = [*_find_lost_tests(before, after)] if may == "add-tests" else []
    task_report = after.for_task(tests, before)
    if not task_report.passed:
        problems.append(describe_failure(task_report))
    return tuple(problems)


def _find_lost_tests(before: TestReport, after: TestReport) -> Iterator[str]:
    current_cases = {case.id: case for case in after.cases}
    unloaded_files = {case.id for case in after.cases if _stands_for_file(case)}
    previous_cases = [case for case in before.cases if not _stands_for_file(case)]
    vanished = [
        case.id
        for case in previous_cases
        # If a file cannot be loaded, the report has a failed case for the file.
        if case.id not in current_cases and case.id.partition("::")[0] not in unloaded_files
    ]
    if vanished and after.cases:
        yield f"tests that existed are not run any more: {list_names(vanished)}; restore them"
    newly_skipped = [
        case.id
        for case in previous_cases
        if case.outcome != "skipped"
        and case.id in current_cases
        and current_cases[case.id].outcome == "skipped"
    ]
    if newly_skipped:
        yield f"tests that ran before are skipped now: {list_names(newly_skipped)}; run them again"


def find_broken(before: TestReport, after: TestReport) -> tuple[str, ...]:
    """Describe the tests that passed before and do not pass now. Return an empty tuple if there are
    none."""
    passed = {case.id for case in after.of("passed")}
    broken = [case.id for case in before.of("passed") if case.id not in passed]
    if not broken:
        return ()
    why = describe_failure(after)
    return (f"tests that passed before do not pass now: {list_names(broken)}\n\n{why}".rstrip(),)


def find_existing(names: Sequence[str], before: TestReport) -> tuple[str, ...]:
    """Return the names of tests, files and groups that exist in `before`. If a file could not be
    loaded for this report, any name of a test in the file exists."""

    return tuple(name for name in names if any(is_selected(case, [name]) for case in before.cases))


def find_unproved(
    before: TestReport,
    after: TestReport,
    on_base: TestReport | None,
    changes: Sequence[FileChange],
    *,
    only_tests: bool = False,
    may: May = "add-tests",
) -> tuple[str, ...]:
    """Return the reason why no new test proves the work, or an empty tuple if a test proves it.

    - `before`: the report of the task's base.
    - `after`: the report of the work.
    - `on_base`: the report of the new and changed tests on the code of the base. A test that proves
      the work passes in `after` and does not pass in `on_base`.
    - `only_tests`: whether the work changes only tests. Then a new test proves it by passing.
    """
    existing_ids = {case.id for case in before.cases}
    new_cases = [case for case in after.cases if case.id not in existing_ids]
    passed_ids = [case.id for case in new_cases if case.outcome == "passed"]
    passed_on_base = {case.id for case in on_base.of("passed")} if on_base else set[str]()
    changed_tests = _find_changed_tests(before, after, on_base, changes, may)
    changed_tests |= (
        {case.id for case in on_base.of("failed") if is_added(case.id)} if on_base else set()
    )
    if only_tests:
        proof = {*passed_ids} if may == "add-tests" else {*passed_ids} | changed_tests
    else:
        proof = (
            {*passed_ids} - passed_on_base if _fails_on_base(on_base, before) else set[str]()
        ) | changed_tests
    if proof:
        return ()
    requirement = "passes" if only_tests else "fails without the change and passes with it"
    lines = [f"Nothing tests this work: it needs at least one new test that {requirement}."]
    if useless := [id for id in passed_ids if id in passed_on_base]:
        lines.append(f"These new tests pass without the change too: {list_names(useless)}.")
        if all(is_test_file(change.path, after) for change in changes):
            advice = "If the task asks for tests alone, a person sets its kind: {} --kind test`."
        else:
            advice = "For a refactoring, a person names the tests that prove it: {} --test TEST`."
        lines.append(advice.format("`bae team tasks edit TASK"))
    if skipped := [case.id for case in new_cases if case.outcome == "skipped"]:
        lines.append(f"These new tests are skipped: {list_names(skipped)}.")
    if on_base is not None and (absent := [id for id in passed_ids if id not in passed_on_base]):
        lines.append(f"Without the change these are skipped or not there: {list_names(absent)}.")
    if uncollected := _find_uncollected_files(changes, after):
        lines.append(
            f"These files look like tests, and the test program ({' '.join(after.command)}) "
            f"collects no test of them: {list_names(uncollected)}. Put them where it looks for "
            "tests, and name them like the other tests."
        )
    fixed_tests = {c.id for c in before.of("failed")} & {c.id for c in after.of("passed")}
    if fixed_tests:
        lines.append(
            f"Tests that failed before pass now: {list_names(sorted(fixed_tests))}. They "
            "prove work only if the task names them, and a person has to name them."
        )
    return (" ".join(lines),)


def _fails_on_base(on_base: TestReport | None, before: TestReport) -> bool:
    """Return whether a test fails without the work, compared with `before`. A skipped or missing
    test does not fail."""
    if on_base is None or (on_base.reported and not on_base.cases):
        return False
    return on_base.for_task((), before).exit_code != 0


def _find_changed_tests(
    before: TestReport,
    after: TestReport,
    on_base: TestReport | None,
    changes: Sequence[FileChange],
    may: May,
) -> set[str]:
    """Find existing tests that the work has changed, so that they may prove the work.

    Such a test passes in `after`, did not fail in `before`, and fails in `on_base`. Its file was
    changed, or test data or helpers were changed.

    If the task may change tests, a test also counts if its file was changed and it passes in
    `after` but not in `on_base`, for example because its file cannot be loaded there."""
    edits = [change for change in changes if change.after is not None]
    collected, touched = reported_files(after), {change.path for change in edits}
    is_data_changed = any(
        change.before is not None and change.path not in collected and is_test_file(change.path)
        for change in edits
    )
    not_failed_before = {case.id for case in before.cases if case.outcome != "failed"}
    failed_on_base = {case.id for case in on_base.of("failed")} if on_base else set[str]()
    passed_on_base = {case.id for case in on_base.of("passed")} if on_base else set[str]()
    changed_tests: set[str] = set()
    for id in {case.id for case in after.of("passed")} & {case.id for case in before.cases}:
        is_touched = id.partition("::")[0] in touched
        may_differ = may != "add-tests" and is_touched and id not in passed_on_base
        if may_differ or (
            id in not_failed_before & failed_on_base and (is_touched or is_data_changed)
        ):
            changed_tests.add(id)
    return changed_tests


def _find_uncollected_files(changes: Sequence[FileChange], report: TestReport) -> list[str]:
    """Find changed files that look like tests but have no test in the report."""
    collected = reported_files(report)
    return [
        change.path
        for change in changes
        if change.after is not None and change.path not in collected and _looks_like_tests(change)
    ]


def _looks_like_tests(change: FileChange) -> bool:
    if PurePosixPath(change.path).suffix.lower() not in _CODE:
        return False
    return _A_TEST.search(change.after or b"") is not None


_CODE: Final = {".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx"}
_A_TEST: Final = re.compile(
    rb"(?m)^\s*(async\s+)?def test|^\s*class Test|^\s*(test|it|describe)(\.\w+)*\("
)


def _find_forbidden_code(changes: Sequence[FileChange], allowed: Collection[str]) -> Iterator[str]:
    """Describe the problem if nothing was changed, or if a task without tests changed code."""
    if not changes:
        yield "nothing was changed"
    if code := [c.path for c in changes if not is_prose(c.path) and c.path not in allowed]:
        yield (
            "This task is to be merged without tests, so it may change only text for people and "
            f"the files that the task names, and it changes {list_names(code)}: restore them"
        )


def _stands_for_file(case: TestCase) -> bool:
    return case.message.startswith(NOT_LOADED)


def describe_failure(report: TestReport) -> str:
    """Describe a failed test run in a few thousand characters."""
    failed = report.of("failed")
    lines = [f"{report.problem.rstrip('.')}."] if report.problem else []
    if failed:
        lines.append(f"{len(failed)} of {len(report.cases)} tests failed:")
        lines += (f"{case.id}\n{_indent_lines(case.message)}" for case in failed[:_SHOWN])
        if len(failed) > _SHOWN:
            lines.append("also: " + ", ".join(case.id for case in failed[_SHOWN:][:100]))
    elif report.output.strip():
        lines.append(f"output:\n{_indent_lines(report.output[-4000:])}")
    return "\n".join(lines)


_SHOWN: Final = 10


def _indent_lines(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())
