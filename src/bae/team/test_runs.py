"""Running a project's tests: in the sandbox, with a report of every test. The verdict is that of
the exit code and the report together, never of what the program printed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Unpack

from bae.tasks import finish_despite_cancel
from bae.team import reports, sandbox
from bae.team.files import TemporaryFolder, read_file
from bae.team.models import Project, TestCase, TestReport, bounded

LARGEST_REPORT: Final = 32 * 1024 * 1024
LARGEST_FIXED: Final = 4 * 1024 * 1024
MOST_MOUNTED: Final = 1000
"""How many files are mounted read-only at most; more are only compared."""
GUARDS: Final = Path(__file__).with_name("guards")
"""What is loaded into the processes of test programs."""


async def run_tests(
    project: Project,
    worktree: str | os.PathLike[str],
    *,
    fixed: Sequence[str] = (),
    **limits: Unpack[sandbox.Limits],
) -> TestReport:
    """Run the tests of a project in one of its worktrees.

    pytest, `node --test`, Vitest, Jest and `go test` are asked for a report beside what they print.
    A run that was ended, that wrote no report or found no tests has a `problem`, and has not
    passed. Several commands, with `&&` between them, are all run, and their reports are one. The
    files `fixed` cannot be changed by the run: they are mounted read-only where the sandbox can
    mount, and compared afterwards in any case. The limits are those of `sandbox.run`, for each
    command.
    """
    commands = split_commands(project.test_command)
    root, place = Path(project.root), Path(worktree)
    before = await asyncio.to_thread(_hash_files, place, fixed)
    found = [
        await _run_command(command, root, place, tuple(before), limits) for command in commands
    ]
    report = found[0] if len(found) == 1 else _merge_reports(project.test_command, found)
    after = await asyncio.to_thread(_hash_files, place, fixed)
    if written := [name for name in before if after.get(name) != before[name]]:
        names = ", ".join(written[:20])
        problem = f"{names}: written while the tests ran, and code may not change its tests"
        report = report.model_copy(update={"problem": problem})
    return report


def _hash_files(root: Path, names: Sequence[str]) -> dict[str, str]:
    """The files among names, each with a hash of its content."""
    found: dict[str, str] = {}
    for name in names:
        content = read_file(root / name, LARGEST_FIXED)
        if content is not None:
            found[name] = hashlib.sha256(content).hexdigest()
    return found


def split_commands(command: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The commands of a test command, which has `&&` between them."""
    commands: list[list[str]] = [[]]
    for word in command:
        if word == AND:
            commands.append([])
        else:
            commands[-1].append(word)
    return tuple(map(tuple, commands))


def write_command(command: Sequence[str]) -> str:
    """A test command as a person writes it."""
    return f" {AND} ".join(map(shlex.join, split_commands(command)))


AND: Final = "&&"


async def _run_command(
    command: tuple[str, ...],
    root: Path,
    worktree: Path,
    fixed: Sequence[str],
    limits: sandbox.Limits,
) -> TestReport:
    program = find_test_program(command)
    if program is None:
        return TestReport(command=command, exit_code=None, problem=_describe_unknown(command))
    made: list[TemporaryFolder] = []
    try:
        making = asyncio.to_thread(TemporaryFolder)
        folder = await finish_despite_cancel(making, then=made.append)
        report = Path(folder.path, "report")
        words, more = program.with_report(command, str(report)), dict(_ENVIRONMENT)
        if program.name == "pytest":
            own = await asyncio.to_thread(sandbox.find_editable, command, root, worktree)
            words = _import_first(words, own)
            more |= {_PYTHONPATH: os.pathsep.join(own)} if own else {}
        ran = await sandbox.run(
            words,
            worktree,
            env=more,
            readable=[GUARDS],
            writable=[report.parent],
            fixed=[worktree / name for name in fixed[:MOST_MOUNTED]],
            **limits,
        )
        content, missing = await asyncio.to_thread(_read_report, report)
    finally:
        for each in made:
            await finish_despite_cancel(asyncio.to_thread(each.remove))
    output, text = ran.output, content.decode("utf-8", "replace")
    if program.name == "go":
        text, missing = output, ""
        output = await asyncio.to_thread(reports.go_output, output)
    cases: tuple[TestCase, ...] = ()
    if not missing:
        try:
            place = str(await asyncio.to_thread(worktree.resolve))
            cases = await asyncio.to_thread(program.read, text, place)
        except reports.ReportError as error:
            missing = f"its report cannot be read: {error}"
    return TestReport(
        command=command,
        exit_code=ran.exit_code,
        cases=cases,
        output=bounded(output),
        seconds=ran.seconds,
        protection=ran.protection,
        problem=ran.problem or _find_problem(ran.exit_code, cases, missing),
    )


def _merge_reports(command: tuple[str, ...], found: Sequence[TestReport]) -> TestReport:
    """The report of several commands: each has to end well, and one of them to find tests."""
    # A part of the project may have no tests yet: those that it had are missed by the verdict.
    told = [each for each in found if not each.problem.startswith(_NONE)] or found[:1]
    codes = [each.exit_code for each in told]
    return TestReport(
        command=command,
        exit_code=None if None in codes else next(filter(None, codes), 0),
        cases=reports.number_cases([case for each in found for case in each.cases]),
        output=bounded("\n".join(f"$ {' '.join(each.command)}\n{each.output}" for each in found)),
        seconds=sum(each.seconds for each in found),
        protection=found[0].protection,
        problem="; ".join(
            f"{' '.join(each.command)}: {each.problem}" for each in told if each.problem
        ),
    )


@dataclass(frozen=True, slots=True)
class TestProgram:
    """A program that runs tests and can report on each. `options` come after the command, or
    after its word `after`; REPORT in them is the file of the report."""

    __test__ = False  # no test class for pytest

    name: str
    options: tuple[str, ...]
    read: reports.Reader
    after: str | None = None

    def with_report(self, command: Sequence[str], report: str) -> list[str]:
        """The command, which also writes its report to a file."""
        words = list(command)
        at = words.index(self.after) + 1 if self.after else len(words)
        folder = os.path.dirname(report)
        options = [
            each.replace("REPORT", report).replace("FOLDER", folder) for each in self.options
        ]
        return [*words[:at], *options, *words[at:]]


def find_test_program(command: Sequence[str]) -> TestProgram | None:
    """The program that a command runs tests with, itself or through another, as `python -m`."""
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


_NONE: Final = "no tests were found"
_PYTHONPATH: Final = "PYTHONPATH"
_ENVIRONMENT: Final = {"CI": "1", "NO_COLOR": "1"}  # which also keeps Vitest and Jest from waiting
_PROGRAMS: Final = {
    each.name: each
    for each in (
        TestProgram(
            "pytest",
            # The older of the two families has the file of each test.
            (
                *("--junit-xml=REPORT", "-o", "junit_family=xunit1"),
                *("-o", "junit_logging=no", "-o", "cache_dir=FOLDER/cache"),
                "--continue-on-collection-errors",
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
    """A command whose Python imports from paths before those that the command names itself."""
    name = f"{_PYTHONPATH}="
    return [
        name + os.pathsep.join((*paths, word.removeprefix(name)))
        if paths and word.startswith(name)
        else word
        for word in command
    ]


def _read_report(path: Path) -> tuple[bytes, str]:
    """A report that an untrusted program wrote: its content, or why there is none."""
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
        return f"{_NONE} (exit code {exit_code})"
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
        f"{' '.join(command) or 'an empty command'} is no test command that reports its tests: use "
        "pytest, node --test, vitest, jest or go test by themselves, not a script that runs them"
    )
