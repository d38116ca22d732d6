"""Runs of a project's tests in the sandbox, with a report of every test. The exit code and the
report together decide whether the tests passed. Printed output never decides."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Final, Unpack

from bae.tasks import finish_despite_cancel
from bae.team import reports, sandbox
from bae.team.files import TemporaryFolder, make_folder, read_file
from bae.team.models import Project, TestCase, TestReport, bounded, strip_escapes

LARGEST_REPORT: Final = 32 * 1024 * 1024
LARGEST_FIXED: Final = 4 * 1024 * 1024
MOST_MOUNTED: Final = 1000
"""How many fixed files are mounted read-only. Other fixed files are only compared after the run."""
GUARDS: Final = Path(__file__).with_name("guards")
"""The folder of code that test programs load."""


async def run_tests(
    project: Project,
    worktree: str | os.PathLike[str],
    *,
    fixed: Sequence[str] = (),
    **limits: Unpack[sandbox.Limits],
) -> TestReport:
    """Run the tests of a project in one of its worktrees, and return their report.

    bae has pytest, `node --test`, Vitest, Jest and `go test` write a report. Any other program must
    write JUnit files at the path in `project.report`. If a limit ended the run, if there is no
    report, or if no tests were found, the report has a `problem`, and the run has not passed.

    The commands of the project run in `project.folder`. If `&&` joins several commands, all of them
    run, and their reports are merged. Ids of tests begin with the path of the test's file in the
    repository.

    The run cannot change the files `fixed`: if the sandbox can mount, these files are mounted
    read-only. They are always compared after the run. The limits of `sandbox.run` apply to each
    command.
    """
    commands = split_commands(project.test_command)
    place = Path(worktree)
    if not await asyncio.to_thread((place / project.folder).is_dir):
        problem = f"there is no folder {project.folder} in this commit: commit it"
        command = project.test_command
        return TestReport(command=command, exit_code=None, reported=False, problem=problem)
    before = await asyncio.to_thread(_hash_files, place, fixed)
    existing_files = tuple(before)
    run_reports = [
        await _run_command(command, project, place, existing_files, limits) for command in commands
    ]
    report = (
        run_reports[0]
        if len(run_reports) == 1
        else merge_reports(project.test_command, run_reports)
    )
    after = await asyncio.to_thread(_hash_files, place, fixed)
    if changed_files := [name for name in before if after.get(name) != before[name]]:
        names = ", ".join(changed_files[:20])
        problem = f"{names}: written while the tests ran, and code may not change its tests"
        report = report.model_copy(update={"problem": problem})
    return report


def _hash_files(root: Path, names: Sequence[str]) -> dict[str, str]:
    """Return a hash of the content of each named file that exists."""
    hashes: dict[str, str] = {}
    for name in names:
        content = read_file(root / name, LARGEST_FIXED)
        if content is not None:
            hashes[name] = hashlib.sha256(content).hexdigest()
    return hashes


def split_commands(command: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Split a test command into the commands that `&&` joins."""
    commands: list[list[str]] = [[]]
    for word in command:
        if word == AND:
            commands.append([])
        else:
            commands[-1].append(word)
    return tuple(map(tuple, commands))


def count_variables(command: Sequence[str]) -> int:
    """Return how many words at the start of a command set variables: `env` and its assignments."""
    if not command or os.path.basename(command[0]) != "env":
        return 0
    return 1 + sum(1 for _ in takewhile(lambda word: "=" in word, command[1:]))


def write_command(command: Sequence[str]) -> str:
    """Write a test command in the syntax of a shell."""
    return f" {AND} ".join(map(shlex.join, split_commands(command)))


AND: Final = "&&"


def find_variables(project: Project, worktree: Path) -> dict[str, str]:
    """Return the environment variables that a project's tests have in a worktree. Other commands in
    the worktree can use the same variables.

    The function reads files, so call it in a thread."""
    command = split_commands(project.test_command)[0]
    assignments = command[1 : count_variables(command)]
    variables = {**_ENVIRONMENT, **dict(word.split("=", 1) for word in assignments)}
    paths = sandbox.find_editable(command, Path(project.root), worktree)
    if python_paths := [*paths, *filter(None, [variables.get(_PYTHONPATH)])]:
        variables[_PYTHONPATH] = os.pathsep.join(python_paths)
    return variables


async def _run_command(
    command: tuple[str, ...],
    project: Project,
    worktree: Path,
    fixed: Sequence[str],
    limits: sandbox.Limits,
) -> TestReport:
    program = find_test_program(command)
    if program is None and project.report:
        return await _run_with_junit(command, project, worktree, fixed, limits)
    if program is None:
        unknown = _describe_unknown(command)
        return TestReport(command=command, exit_code=None, reported=False, problem=unknown)
    root, start = Path(project.root), worktree / project.folder
    created_folders: list[TemporaryFolder] = []
    try:
        making = asyncio.to_thread(make_folder)
        folder = await finish_despite_cancel(making, then=created_folders.append)
        report = Path(folder.name, "report")
        words, variables = program.with_report(command, str(report)), dict(_ENVIRONMENT)
        if program.name == "pytest":
            editable = await asyncio.to_thread(sandbox.find_editable, command, root, worktree)
            words = _import_first(words, editable)
            variables |= {_PYTHONPATH: os.pathsep.join(editable)} if editable else {}
        ran = await sandbox.run(
            words,
            worktree,
            within=project.folder,
            env=variables,
            readable=[GUARDS],
            writable=[report.parent],
            fixed=[worktree / name for name in fixed[:MOST_MOUNTED]],
            hidden=[root],
            **limits,
        )
        content, missing = await asyncio.to_thread(_read_report, report)
    finally:
        for created in created_folders:
            await finish_despite_cancel(asyncio.to_thread(created.cleanup))
    output, text = ran.output, content.decode("utf-8", "replace")
    if program.name == "go":
        text, missing = output, ""
        output = await asyncio.to_thread(reports.go_output, output)
    cases: tuple[TestCase, ...] = ()
    if not missing:
        try:
            place = str(await asyncio.to_thread(start.resolve))
            cases = await asyncio.to_thread(program.read, text, place)
        except reports.ReportError as error:
            missing = f"its report cannot be read: {error}"
    cases = await asyncio.to_thread(_name_in_repository, cases, worktree, project.folder)
    return _make_report(command, ran, output, cases, missing)


async def _run_with_junit(
    command: tuple[str, ...],
    project: Project,
    worktree: Path,
    fixed: Sequence[str],
    limits: sandbox.Limits,
) -> TestReport:
    """Run a test program that bae does not support, and read the JUnit files that it writes. JUnit
    files of an earlier run are removed first."""
    pattern, start = read_report_option(project.report), worktree / project.folder
    await asyncio.to_thread(_take_reports, start, pattern)
    ran = await sandbox.run(
        command,
        worktree,
        within=project.folder,
        env=_ENVIRONMENT,
        fixed=[worktree / name for name in fixed[:MOST_MOUNTED]],
        hidden=[project.root],
        **limits,
    )
    contents = await asyncio.to_thread(_take_reports, start, pattern)
    cases: tuple[TestCase, ...] = ()
    missing = "" if contents else f"it wrote no JUnit file at {pattern}"
    if sum(map(len, contents)) > LARGEST_REPORT:
        contents, missing = [], f"its report is longer than {LARGEST_REPORT} bytes"
    try:
        place = str(await asyncio.to_thread(start.resolve))
        texts = [content.decode("utf-8", "replace") for content in contents]
        cases = await asyncio.to_thread(reports.read_any_junit, texts, place)
    except reports.ReportError as error:
        missing = f"its report cannot be read: {error}"
    cases = await asyncio.to_thread(_name_in_repository, cases, worktree, project.folder)
    return _make_report(command, ran, ran.output, cases, missing)


def read_report_option(option: str) -> str:
    """Return the path or pattern in a `report` option, such as `junit:reports/*.xml`. The pattern
    is relative to the project's folder. If the option is invalid, raise ValueError with a message
    for a person."""
    kind, _, pattern = option.partition(":")
    parts = PurePosixPath(pattern).parts
    if kind != "junit" or not parts:
        raise ValueError(f"{option!r} names no report: write junit:PATH, as junit:reports/*.xml")
    if pattern.startswith("/") or ".." in parts:
        raise ValueError(f"{pattern} is not inside the project: name a path relative to its folder")
    return pattern


def _take_reports(folder: Path, pattern: str) -> list[bytes]:
    """Read and remove the files that match a pattern, and return their contents. Links are neither
    read nor removed, because tests may have created the links."""
    root, contents = folder.resolve(), list[bytes]()
    for path in sorted(folder.glob(pattern)):
        if path.is_symlink() or path.parent.resolve() != root / path.parent.relative_to(folder):
            continue
        if (content := read_file(path, LARGEST_REPORT)) is not None:
            contents.append(content)
            path.unlink()
    return contents


def _name_in_repository(
    cases: tuple[TestCase, ...], worktree: Path, folder: str
) -> tuple[TestCase, ...]:
    """Return the cases with ids that begin at the root of the repository. The test program may have
    written ids that begin at `folder`."""
    if not folder:
        return cases
    paths: dict[str, str] = {}
    for file in {case.id.partition("::")[0] for case in cases}:
        path = os.path.normpath(os.path.join(folder, file))
        paths[file] = path if not path.startswith("..") and (worktree / path).exists() else file
    return tuple(
        case.model_copy(update={"id": "::".join((paths[file], *rest))})
        for case in cases
        for file, *rest in [case.id.split("::")]
    )


def _make_report(
    command: tuple[str, ...],
    ran: sandbox.Ran,
    output: str,
    cases: tuple[TestCase, ...],
    missing: str,
) -> TestReport:
    return TestReport(
        command=command,
        exit_code=ran.exit_code,
        cases=cases,
        output=bounded(strip_escapes(output)),
        seconds=ran.seconds,
        protection=ran.protection,
        problem=ran.problem or _find_problem(ran.exit_code, cases, missing),
        reported=not missing,
        ended_by=ran.ended_by,
    )


def merge_reports(command: tuple[str, ...], run_reports: Sequence[TestReport]) -> TestReport:
    """Merge the reports of several commands. Every command must succeed, and at least one must find
    tests."""
    # A part of the project may have no tests yet. If its tests vanished, the verdict reports that.
    counted_reports = [
        report for report in run_reports if not report.problem.startswith(_NO_TESTS)
    ] or run_reports[:1]
    codes = [report.exit_code for report in counted_reports]
    return TestReport(
        command=command,
        exit_code=None if None in codes else next(filter(None, codes), 0),
        cases=reports.number_cases([case for report in run_reports for case in report.cases]),
        output=bounded(
            "\n".join(f"$ {' '.join(report.command)}\n{report.output}" for report in run_reports)
        ),
        seconds=sum(report.seconds for report in run_reports),
        protection=run_reports[0].protection,
        problem="; ".join(
            f"{' '.join(report.command)}: {report.problem}"
            for report in counted_reports
            if report.problem
        ),
        reported=all(report.reported for report in counted_reports),
        ended_by=next(
            (report.ended_by for report in counted_reports if report.ended_by != "exit"), "exit"
        ),
    )


@dataclass(frozen=True, slots=True)
class TestProgram:
    """A program that can write a report of each test it runs."""

    __test__ = False  # pytest must not collect this class

    name: str
    options: tuple[str, ...]
    """The options for a report. REPORT stands for the file of the report, and FOLDER for the file's
    folder."""
    read: reports.Reader
    """Reads the cases from a report."""
    after: str | None = None
    """The word of the command that `options` follow. None: they follow the last word."""
    replaces: tuple[str, ...] = ()
    """Options of the user's command that `options` replace."""

    def with_report(self, command: Sequence[str], report: str) -> list[str]:
        """Return the command with the options that have it write a report."""
        words = self._drop_replaced_options(command)
        at = words.index(self.after) + 1 if self.after else len(words)
        folder = os.path.dirname(report)
        options = [
            option.replace("REPORT", report).replace("FOLDER", folder) for option in self.options
        ]
        return [*words[:at], *options, *words[at:]]

    def _drop_replaced_options(self, command: Sequence[str]) -> list[str]:
        pairs = zip(("", *command), command, strict=False)
        return [
            word
            for before, word in pairs
            if before not in self.replaces and word.partition("=")[0] not in self.replaces
        ]


def find_test_program(command: Sequence[str]) -> TestProgram | None:
    """Return the test program of a command, or None if bae does not support the program.

    The command may start the test program directly, or through another program, as `python -m`."""
    command = command[count_variables(command) :]
    names = [os.path.basename(word).split(".")[0] for word in command]
    for name in ("pytest", "vitest", "jest"):
        if name in names:
            return _PROGRAMS[name]
    if "py.test" in command:
        return _PROGRAMS["pytest"]
    if names[:1] == ["node"] and "--test" in command:
        return _PROGRAMS["node"]
    if names[:1] == ["go"] and "test" in command:
        return _PROGRAMS["go"]
    return None


KNOWN_PROGRAMS: Final = "pytest, node --test, vitest run, jest or go test"
_NO_TESTS: Final = "no tests were found"
_PYTHONPATH: Final = "PYTHONPATH"
# `CI` also keeps Vitest and Jest from waiting for changes. `FORCE_COLOR=0` is not set, because
# Rich would then take its output for a terminal. Without the `UV_…` variables, `uv run` would
# install packages again, and that needs the network.
_ENVIRONMENT: Final = {
    "CI": "1",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "UV_NO_SYNC": "1",
    "UV_OFFLINE": "1",
    "UV_PYTHON_DOWNLOADS": "never",
}
_PROGRAMS: Final = {
    program.name: program
    for program in (
        TestProgram(
            "pytest",
            # Only the older JUnit family has the file of each test.
            (
                *("--junit-xml=REPORT", "-o", "junit_family=xunit1"),
                *("-o", "junit_logging=no", "-o", "cache_dir=FOLDER/cache", "--color=no"),
                # All tests must run even after a failure. They are compared with an earlier run.
                *("--continue-on-collection-errors", "--maxfail=0"),
            ),
            reports.read_junit,
        ),
        TestProgram(
            "node",
            (
                *("--test-reporter=spec", "--test-reporter-destination=stdout"),
                f"--test-reporter={(GUARDS / 'reporter.mjs').as_uri()}",
                "--test-reporter-destination=REPORT",
            ),
            reports.read_node,
            after="--test",
            # With several reporters, Node needs a destination for each.
            replaces=("--test-reporter", "--test-reporter-destination"),
        ),
        TestProgram(
            "vitest",
            ("--reporter=default", "--reporter=junit", "--outputFile.junit=REPORT"),
            reports.read_junit,
        ),
        TestProgram("jest", ("--ci", "--json", "--outputFile=REPORT"), reports.read_jest),
        TestProgram("go", ("-json",), reports.read_go, after="test"),
    )
}


def _import_first(command: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Put `paths` before the PYTHONPATH that a command sets, if any."""
    name = f"{_PYTHONPATH}="
    return [
        name + os.pathsep.join((*paths, word.removeprefix(name)))
        if paths and word.startswith(name)
        else word
        for word in command
    ]


def _read_report(path: Path) -> tuple[bytes, str]:
    """Read a report that an untrusted program wrote. Return its content, or no content and the
    reason why it cannot be read."""
    content = read_file(path, LARGEST_REPORT)
    if content is None:
        return b"", "it wrote no report: it did not start, or it exited before all tests were done"
    if len(content) > LARGEST_REPORT:
        return b"", f"its report is longer than {LARGEST_REPORT} bytes"
    return content, ""


def _find_problem(exit_code: int | None, cases: Sequence[TestCase], missing: str) -> str:
    if missing:
        return f"no verdict (exit code {exit_code}): {missing}"
    if not cases:
        return f"{_NO_TESTS} (exit code {exit_code})"
    outcomes = {case.outcome for case in cases}
    if outcomes == {"skipped"}:
        return "every test is skipped"
    if exit_code == 0 and "failed" in outcomes:
        return "the exit code is 0 although tests failed"
    if exit_code != 0 and "failed" not in outcomes:
        return f"the exit code is {exit_code} although no test failed: see the output"
    return ""


def _describe_unknown(command: Sequence[str]) -> str:
    return (
        f"{' '.join(command) or 'an empty command'} is no test command whose report bae can read: "
        f"use {KNOWN_PROGRAMS} by themselves, or a program that writes a JUnit file, with --report "
        "junit:PATH"
    )
