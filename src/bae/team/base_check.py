"""Checks the base, which is the commit that work starts from, before any LLM call. The check tells
if the base's tests can run, and which tests fail already. Test reports are stored by git tree, so
that the same files are not tested twice."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bae import __version__
from bae.team import sandbox
from bae.team.environment import Cause, find_cause
from bae.team.files import INCLUDE
from bae.team.models import Project, TeamError, TestReport, bounded
from bae.team.reports import NOT_LOADED, list_names
from bae.team.test_order import is_selected
from bae.team.workspaces import SetupError, Workspaces

CHECK: Final = "base.json"
"""The file with the result of the newest check. It is beside the team's database."""
SETUP_OUTPUT: Final = "setup.log"
"""The file with the full output of a failed setup command. It is beside the team's database."""
_REPORTS: Final = "base-reports"
_MOST_REPORTS: Final = 32


class BaseError(TeamError):
    """The tests cannot run at the commit that work starts from. No LLM was called."""

    code: str = "bae-team-base"


class BaseCheck(BaseModel):
    """The test results of the commit that work starts from. If the tests cannot run, no task can be
    judged: then `problem` tells a person why, and `fix` what to do."""

    model_config = ConfigDict(frozen=True)

    commit: str
    tests: int = 0
    failed: tuple[str, ...] = Field(default=(), description="tests that fail without any work")
    not_loaded: tuple[str, ...] = Field(default=(), description="files that cannot be loaded")
    problem: str = ""
    fix: str = ""
    output: str = Field(default="", description="the end of what the test program printed")

    @property
    def text(self) -> str:
        """The result of the check in one line."""
        if self.problem:
            return f"the tests cannot be run: {self.problem}"
        if not self.tests:
            return "no tests yet"
        parts = [f"{self.tests} test{'s' if self.tests > 1 else ''}"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed before any work: {list_names(self.failed)}")
        if self.not_loaded:
            parts.append(f"could not be loaded before any work: {list_names(self.not_loaded)}")
        return "; ".join(parts)

    @property
    def cause(self) -> Cause:
        """The problem and its fix."""
        return Cause("base", f"the tests cannot be run: {self.problem}", self.fix)

    def raise_problem(self) -> None:
        """Raise BaseError if the tests cannot run."""
        if self.problem:
            output = f"\n{self.output}" if self.output else ""
            message = f"the tests cannot be run at {self.commit[:12]}: {self.problem}{output}"
            raise BaseError(message, fix=self.fix)


def describe_failed_before(report: TestReport, tests: Sequence[str] = ()) -> str:
    """Return a text that lists tests which failed before a task and are not counted against the
    task. The text is empty if there are no such tests. The text leaves out `tests`, because the
    task must make these tests pass."""
    failed = [case.id for case in report.of("failed") if not is_selected(case, tests)]
    if not failed:
        return ""
    return f"Failed before this task too, and not counted: {list_names(failed)}"


# --- what a report of the base shows --------------------------------------------------------------


def examine_base(
    report: TestReport,
    commit: str,
    *,
    project: Project,
    tracked: Sequence[str] = (),
    tests: Sequence[str] = (),
) -> BaseCheck:
    """Return what the test report of a base shows. `tracked` are the files of the commit. `tests`
    are the tests that tasks must make pass, so these tests may fail to load. Call this function in
    a thread: it reads files of the checkout."""
    from bae.team.base_causes import find_problem  # slow to load, and `read_check` does not need it

    failed = report.of("failed")
    not_loaded = tuple(case.id for case in failed if case.message.startswith(NOT_LOADED))
    cause = find_problem(report, project, tracked, tests)
    return BaseCheck(
        commit=commit,
        tests=len(report.cases) - len(not_loaded),
        failed=tuple(case.id for case in failed if case.id not in not_loaded),
        not_loaded=not_loaded,
        problem=cause.text if cause else "",
        fix=cause.fix if cause else "",
        output=bounded(report.output.strip()[-2000:]) if cause else "",
    )


def shorten_output(output: str) -> str:
    """Return the useful part of a failed command's output: seven lines from the first error on, and
    the last four lines. A short output is returned unchanged."""
    lines = [bounded(line, 300) for line in output.splitlines() if line.strip()]
    error = next((at for at, line in enumerate(lines) if _ERROR.search(line)), 0)
    shown_lines = {*range(error, error + 7), *range(len(lines) - 4, len(lines))}
    if len(lines) <= len(shown_lines) + 1:
        return output
    shortened: list[str] = []
    for at, line in enumerate(lines):
        if at in shown_lines:
            shortened.append(line)
        elif at - 1 in shown_lines:
            shortened.append("…")
    return "\n".join(shortened)


_ERROR: Final = re.compile(r"\berr(or)?\b", re.IGNORECASE)


# --- the reports of commits -----------------------------------------------------------------------


class BaseReports:
    """The test reports of commits. A git tree is tested again only if the test command or the
    installed packages change. With a `folder`, the reports are also stored for other processes."""

    def __init__(
        self,
        project: Project,
        workspaces: Workspaces,
        limits: sandbox.Limits,
        folder: Path | None = None,
    ) -> None:
        self.project = project
        self.workspaces = workspaces
        self.limits = limits
        self.folder = folder
        self._reports: dict[str, TestReport] = {}
        self._testing: dict[str, asyncio.Lock] = {}
        self._environment = ""

    async def check(
        self, commit: str, tests: Sequence[str] = (), *, keep: bool = True
    ) -> BaseCheck:
        """Check a commit that work will start from. A failed setup is a problem of the returned
        check. With `keep` and a `folder`, the result is stored as the newest check of the team."""
        commit = await self.workspaces.repository.commit_id(commit)
        try:
            report = await self.get(commit)
        except SetupError as error:
            reason, output = error.reason, error.message
            if (shortened := shorten_output(error.output)) != error.output:
                output = "\n".join((error.message.partition("\n")[0], shortened))
                if self.folder is not None:
                    log = self.folder / SETUP_OUTPUT
                    await asyncio.to_thread(_write, log, f"{error.output}\n")
                    output += f"\nfull output: {log}"
            check = BaseCheck(commit=commit, problem=reason.text, fix=reason.fix, output=output)
        else:
            check = await asyncio.to_thread(
                examine_base,
                report,
                commit,
                project=self.project,
                tracked=await self.workspaces.repository.list_files(commit),
                tests=tests,
            )
            if check.problem:  # a person may fix the problem without a new commit
                await self._forget(await self._find_tree(commit))
        if keep and self.folder is not None:
            await asyncio.to_thread(_write, self.folder / CHECK, check.model_dump_json())
        return check

    async def get(self, commit: str) -> TestReport:
        """Return the test report of a commit. If no report is stored, run the tests in a new
        worktree, and once more if the setup or the environment fails. Raises SetupError if the
        setup fails again."""
        from bae.team.verdict import run_fixed

        tree = await self._find_tree(commit)
        async with self._testing.setdefault(tree, asyncio.Lock()):
            if (stored_report := await self.find(commit)) is not None:
                return stored_report
            report = None
            for last in (False, True):
                try:
                    async with self.workspaces.scratch(commit) as base:
                        report = await run_fixed(self.project, base, **self.limits)
                except SetupError:
                    if last:
                        raise
                    continue
                if find_cause(report) is None:
                    break
            assert report is not None
            await self.remember(commit, report)
            return report

    async def find(self, commit: str) -> TestReport | None:
        """Return the stored test report of a commit, or None if its tree has no report yet."""
        tree = await self._find_tree(commit)
        if tree not in self._reports and self.folder is not None:
            stored = await asyncio.to_thread(_read_report, await self._find_path(tree))
            if stored is not None:
                self._reports[tree] = stored
        return self._reports.get(tree)

    async def remember(self, commit: str, report: TestReport) -> None:
        """Store the test report of a commit. `report` must be from all tests, in a new worktree. If
        the environment or a limit ended the test run, nothing is stored, because the next test run
        may succeed."""
        if report.exit_code is None or find_cause(report) is not None:
            return
        tree = await self._find_tree(commit)
        self._reports[tree] = report
        for old in tuple(self._reports)[:-_MOST_REPORTS]:
            del self._reports[old]
            self._testing.pop(old, None)
        if self.folder is not None and (report.of("passed") or report.of("failed")):
            await asyncio.to_thread(_write, await self._find_path(tree), report.model_dump_json())

    async def _forget(self, tree: str) -> None:
        self._reports.pop(tree, None)
        if self.folder is not None:
            path = await self._find_path(tree)
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _find_tree(self, commit: str) -> str:
        return await self.workspaces.repository.tree_of(commit)

    async def _find_path(self, tree: str) -> Path:
        assert self.folder is not None
        if not self._environment:
            root = self.project.root
            files = await asyncio.to_thread(
                sandbox.describe_installations, self.project.test_command, root
            )
            include = await asyncio.to_thread(_read_stamp, Path(root, INCLUDE))
            command, setup = self.project.test_command, self.project.setup
            inputs = [command, setup, await sandbox.protection(), files, include, __version__]
            self._environment = sha256(json.dumps(inputs).encode()).hexdigest()[:16]
        return self.folder / _REPORTS / f"{tree[:16]}-{self._environment}.json"


def read_check(folder: Path) -> BaseCheck | None:
    """Return the newest check of a team, or None if it is missing or unreadable."""
    try:
        return BaseCheck.model_validate_json((folder / CHECK).read_bytes())
    except (OSError, ValidationError):
        return None


def _read_report(path: Path) -> TestReport | None:
    try:
        return TestReport.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # reports quote code and output


def _write(path: Path, text: str) -> None:
    """Replace a file atomically. In the folder of test reports, delete all but the newest files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    with open(new, "w", encoding="utf-8", opener=_open_private) as file:
        file.write(text)
    new.replace(path)
    if path.parent.name == _REPORTS:
        with suppress(FileNotFoundError):  # another process may delete the same files
            stored = sorted(
                path.parent.iterdir(), key=lambda file_path: file_path.stat().st_mtime_ns
            )
            for old in stored[:-_MOST_REPORTS]:
                old.unlink()


def _read_stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"
