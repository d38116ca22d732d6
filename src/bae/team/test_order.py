"""Running the tests of a project in an order: those that show soonest what is wrong come first, and
the others are run only if these pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Unpack

from bae.team import sandbox
from bae.team.models import Project, TestReport
from bae.team.test_runs import find_test_program, merge_reports, run_tests, split_commands


async def run_in_order(
    project: Project,
    worktree: Path,
    first: Sequence[str],
    is_accepted: Callable[[TestReport], bool],
    *,
    fixed: Sequence[str] = (),
    **limits: Unpack[sandbox.Limits],
) -> TestReport:
    """Run the tests of the files `first`, and the others only if the report of these is accepted.
    The report is that of all tests, or of the first files where tests of them failed. Where a
    command cannot be split, all tests are run at once. No run can change the files `fixed`."""
    split = split_command(project.test_command, first)

    async def run(command: tuple[str, ...]) -> TestReport:
        part = project.model_copy(update={"test_command": command})
        return await run_tests(part, worktree, fixed=fixed, **limits)

    if split is None:
        return await run(project.test_command)

    some = await run(split[0])
    if not is_accepted(some):
        # Conditions on all tests, as a coverage, do not hold for some of them.
        return some if some.of("failed") else await run(project.test_command)
    others = await run(split[1])
    whole = merge_reports(project.test_command, [some, others])
    if whole.problem and not whole.of("failed"):
        return await run(project.test_command)
    return whole


def split_command(
    command: Sequence[str], first: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The commands for some files of tests and for all others; None where the command names files
    itself, or its program has no option for that."""
    words, *more = split_commands(command)
    program = find_test_program(words)
    if more or not first or program is None or program.name != "pytest" or _names_files(words):
        return None
    return (*words, *first), (*words, *(f"--ignore={name}" for name in first))


_WITH_VALUE: Final = ("-m", "-k", "-p", "-n", "-c", "-o", "-W", "-r", "--dist", "--tb", "--timeout")
"""Options of pytest whose value is the next word."""


def _names_files(words: Sequence[str]) -> bool:
    names = [os.path.basename(word).split(".")[0] for word in words]
    at = len(names) - names[::-1].index("pytest") if "pytest" in names else len(words)
    before = ("", *words)
    return any(
        not word.startswith("-") and before[index] not in _WITH_VALUE
        for index, word in enumerate(words)
        if index >= at
    )
