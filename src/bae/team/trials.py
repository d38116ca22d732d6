"""Trials that a worker makes before it submits: it runs a command or some tests on a throw-away
copy of its committed work. Results are texts for an LLM."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path
from textwrap import indent
from typing import Final

from bae import ToolError
from bae.team import sandbox
from bae.team.files import make_accessible
from bae.team.git import GitError, shown_path
from bae.team.models import Project, Task, TestReport, bounded, strip_escapes
from bae.team.test_order import is_selected, select_tests
from bae.team.test_runs import find_variables, run_tests, split_commands
from bae.team.verdict import list_fixed
from bae.team.workbench import Workbench
from bae.team.workspaces import ManifestError, Workspace

LONGEST_RESULT: Final = 8_000
_LONGEST_OUTPUT: Final = 6_500
LONGEST_COMMAND: Final = 20_000
_MOST_NAMES: Final = 50
_LONGEST_NAME: Final = 1_000
_MOST_LISTED: Final = 20
_SHOWN_FAILURES: Final = 10
_LONGEST_MESSAGE: Final = 2_000
_START: Final = 'PATH="$1$PATH"; export PATH; eval "$2"'
_ENVIRONMENTS: Final = (".venv/bin", "node_modules/.bin")


async def run_command(
    bench: Workbench, task: Task, workspace: Workspace, command: str, *, timeout: float = 60.0
) -> str:
    """Run a shell command on a copy of a task's committed work, and describe the result.

    The command runs in the sandbox without a network, with the same programs on its `PATH` as the
    project's tests. Files that it writes are deleted with the copy. Raise ToolError if the command
    cannot run."""
    if not command.strip() or "\0" in command or len(command) > LONGEST_COMMAND:
        raise ToolError(
            f"a command is a text of 1 to {LONGEST_COMMAND} characters, without null characters"
        )
    project = bench.project
    limits: sandbox.Limits = {**bench.limits, "timeout": timeout}
    async with _copy_work(bench, task, workspace) as copy:
        place = copy.path / project.folder
        programs, variables = await asyncio.to_thread(_find_programs, project, copy.path)
        ran = await sandbox.run(
            ["sh", "-c", _START, "sh", programs, command],
            copy.path,
            within=project.folder,
            env=variables,
            like=split_commands(project.test_command),
            hidden=[project.root],
            **limits,
        )
        changed = await _list_changed(copy)
    ending = ran.problem or f"exit code {ran.exit_code}"
    output = strip_escapes(ran.output).replace(str(place), ".").strip()
    lines = [
        f"{ending} (after {ran.seconds:.1f} s)",
        bounded(output, _LONGEST_OUTPUT) or "(no output)",
    ]
    if changed is None:
        lines.append("Which files it changed in the copy is not known: git cannot list them.")
    elif changed:
        more = f" and {len(changed) - _MOST_LISTED} more" if len(changed) > _MOST_LISTED else ""
        names = bounded(", ".join(map(shown_path, changed[:_MOST_LISTED])), 1000)
        lines.append(
            f"The command changed or created files in the copy: {names}{more}. These changes are "
            "not kept: `edit` is the only way to change files."
        )
    return "\n".join(lines)


async def check_tests(
    bench: Workbench, task: Task, workspace: Workspace, tests: Sequence[str] = ()
) -> str:
    """Run tests on a copy of a task's committed work, and describe the result.

    `tests` are names of tests, files or groups; without `tests`, all tests run. The result marks
    tests that also failed before the task, and suggests the nearest names for unknown names. Raise
    ToolError if the tests cannot run."""
    if len(tests) > _MOST_NAMES:
        raise ToolError(f"{len(tests)} tests are named: name at most {_MOST_NAMES}, or their files")
    names = list(dict.fromkeys(name.strip().removeprefix("./") for name in tests if name.strip()))
    for name in names:
        if not name.partition("::")[0] or len(name) > _LONGEST_NAME:
            raise ToolError(
                f"{bounded(name, 200)!r} names no test: begin with its file, and use at most "
                f"{_LONGEST_NAME} characters"
            )
    project = bench.project
    async with _copy_work(bench, task, workspace) as copy:
        before = await bench.base_report(workspace.base)
        fixed = await list_fixed(project, copy, before)

        async def run(command: Sequence[str]) -> TestReport:
            part = project.model_copy(update={"test_command": tuple(command)})
            return await run_tests(part, copy.path, fixed=fixed, **bench.limits)

        command = select_tests(project.test_command, names, folder=project.folder)
        report = await run(command or project.test_command)
        if command and _find_missing(names, report):
            # One wrong name may have made the program refuse all names, or the program matches
            # names in another way than bae. So all tests of the existing files run.
            existing_names = await asyncio.to_thread(_find_files, copy.path, names)
            command = select_tests(
                project.test_command, existing_names, folder=project.folder, only_files=True
            )
            report = await run(command) if command else report
    text = await asyncio.to_thread(
        _describe_report, report, before, names, files=fixed, is_part=bool(command)
    )
    return bounded(text, LONGEST_RESULT)


@asynccontextmanager
async def _copy_work(
    bench: Workbench, task: Task, workspace: Workspace
) -> AsyncGenerator[Workspace]:
    """Make a throw-away copy of a task's committed work. While the caller uses the copy, the task
    does not time out."""
    folder = bench.project.folder
    with bench.busy(task.id):
        try:
            async with bench.workspaces.scratch(await workspace.head(), workspace.base) as copy:
                if not await asyncio.to_thread((copy.path / folder).is_dir):
                    raise ToolError(f"your work has no folder {folder}, in which tests run")
                yield copy
        except ManifestError as error:
            raise ToolError(
                f"{error.message}\n\nUndo the change of the manifests, or submit: a person decides."
            ) from error
        except sandbox.SandboxError as error:
            raise ToolError(f"the sandbox cannot run this: {error.message}") from error


async def _list_changed(copy: Workspace) -> list[str] | None:
    """List the files that a command has changed. Return None if git cannot list them, for example
    because folders are nested too deeply."""
    await asyncio.to_thread(make_accessible, copy.path)
    try:
        return sorted(await copy.uncommitted())
    except GitError:
        return None


def _find_programs(project: Project, worktree: Path) -> tuple[str, dict[str, str]]:
    """Return the beginning of PATH and the environment variables that the test command has in a
    worktree."""
    start = worktree / project.folder
    folders = [
        Path(word).parent
        for word in project.test_command
        if os.sep in word and "=" not in word and Path(word).parent.name in ("bin", ".bin")
    ]
    paths = dict.fromkeys(str(start / folder) for folder in (*folders, *_ENVIRONMENTS))
    path = "".join(folder + os.pathsep for folder in paths if os.path.isdir(folder))
    return path, find_variables(project, worktree)


def _find_missing(names: Sequence[str], report: TestReport) -> list[str]:
    return [name for name in names if not any(is_selected(case, [name]) for case in report.cases)]


def _find_files(root: Path, names: Sequence[str]) -> list[str]:
    """Return the names whose files exist."""
    return [name for name in names if os.path.exists(root / name.partition("::")[0])]


def _describe_report(
    report: TestReport,
    before: TestReport,
    names: Sequence[str],
    *,
    files: Sequence[str],
    is_part: bool,
) -> str:
    missing = _find_missing(names, report)
    cases = [case for case in report.cases if not names or is_selected(case, names)]
    failed = [case for case in cases if case.outcome == "failed"]
    known_failures = [case.id for case in before.of("failed")]
    counts = [f"{len(failed)} failed"] if failed else []
    for outcome in ("passed", "skipped"):
        if number := sum(case.outcome == outcome for case in cases):
            counts.append(f"{number} {outcome}")
    lines = [
        ", ".join(counts) or "no test was run",
        *_describe_missing(missing, report, before, files),
    ]
    for number, case in enumerate(failed):
        mark = " (failed before your work too)" if is_selected(case, known_failures) else ""
        lines.append(f"FAILED {case.id}{mark}")
        if number < _SHOWN_FAILURES:
            message = bounded(case.message.strip(), _LONGEST_MESSAGE)
            lines.append(indent(message, "    "))
    if report.problem and not failed and (not cases or not is_part):
        lines.append(report.problem)
        lines.append(bounded(report.output.strip(), _LONGEST_MESSAGE))
    return "\n".join(lines)


def _describe_missing(
    missing: Sequence[str], report: TestReport, before: TestReport, files: Sequence[str]
) -> list[str]:
    """Write a message for each unknown name, with the nearest names of tests."""
    ids = dict.fromkeys(case.id for run_report in (report, before) for case in run_report.cases)
    known_names = dict.fromkeys((*ids, *(id.partition("::")[0] for id in ids), *files))
    lines: list[str] = []
    for name in missing:
        containing = [
            known_name for known_name in known_names if name in known_name
        ]  # such as the name of a function without its file
        nearest = [*containing, *get_close_matches(name, known_names, n=5, cutoff=0.5)]
        nearest = list(dict.fromkeys(nearest))[:5]
        suggestions = f" The nearest names: {', '.join(nearest)}" if nearest else ""
        lines.append(f"no test is named {name}.{suggestions}")
    return lines
