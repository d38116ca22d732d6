"""Runs of selected tests. `select_tests` makes a test command for named tests. `run_in_order` runs
the most relevant tests first, and the other tests only if the first tests pass."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Unpack

from bae.team import sandbox
from bae.team.models import Project, TestCase, TestReport
from bae.team.reports import NOT_LOADED
from bae.team.test_runs import AND, find_test_program, merge_reports, run_tests, split_commands


async def run_in_order(
    project: Project,
    worktree: Path,
    first: Sequence[str],
    is_accepted: Callable[[TestReport], bool],
    *,
    fixed: Sequence[str] = (),
    **limits: Unpack[sandbox.Limits],
) -> TestReport:
    """Run the tests of the files `first`. If `is_accepted` accepts their report, run the other
    tests too.

    Return the report of all tests. If `is_accepted` refuses the first report and tests failed in
    it, return only the first report. If the test command cannot be split, all tests run at once. No
    run can change the files `fixed`."""
    split = split_command(project.test_command, first)

    async def run(command: tuple[str, ...]) -> TestReport:
        part = project.model_copy(update={"test_command": command})
        return await run_tests(part, worktree, fixed=fixed, **limits)

    if split is None:
        return await run(project.test_command)

    first_report = await run(split[0])
    if not is_accepted(first_report):
        # The command may fail although no test failed, for example because the first tests alone
        # cover too little code. Then only a run of all tests can tell.
        return first_report if first_report.of("failed") else await run(project.test_command)
    other_report = await run(split[1])
    full_report = merge_reports(project.test_command, [first_report, other_report])
    if full_report.problem and not full_report.of("failed"):
        return await run(project.test_command)
    return full_report


def split_command(
    command: Sequence[str], first: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Split a test command into a command for the test files `first` and a command for all other
    tests.

    Return None if `first` is empty, if `command` names files or joins several commands, or if its
    program is not pytest."""
    words, *more = split_commands(command)
    program = find_test_program(words)
    if more or not first or program is None or program.name != "pytest":
        return None
    if drop_files(words) != words:
        return None
    return (*words, *first), (*words, *(f"--ignore={name}" for name in first))


def is_selected(case: TestCase, names: Iterable[str]) -> bool:
    """Return whether `names` has the test itself, or its file, group or folder.

    If the case reports a file that could not be loaded, the name of any test in this file selects
    it."""
    not_loaded = case.message.startswith(NOT_LOADED)
    return any(
        case.id == name
        or case.id.startswith((f"{name}::", f"{name}[", f"{name.rstrip('/')}/"))
        or (not_loaded and name.startswith(f"{case.id}::"))
        for name in names
    )


def select_tests(
    command: Sequence[str], names: Sequence[str], *, folder: str = "", only_files: bool = False
) -> tuple[str, ...] | None:
    """Return a test command that runs the tests, files or groups in `names`.

    Paths in `names` are relative to the root of the repository; the command runs in `folder`. The
    command may run more tests than `names` has. With `only_files`, it runs all tests of the named
    files. Return None if the test program is unknown, if it cannot run a file in `names`, or if it
    is unclear which words of `command` are files."""
    chosen: list[str] = []
    unclaimed = set(names)
    commands = split_commands(command)
    for words in commands:
        program = find_test_program(words)
        base_words = drop_files(words)
        if program is None or base_words is None:
            return None
        selection = _SELECTIONS[program.name]
        own_names = [name for name in names if selection.takes(name, alone=len(commands) == 1)]
        unclaimed -= set(own_names)
        if own_names:
            paths = [_name_in_folder(name, folder) for name in own_names]
            if program.name == "go":
                paths = own_names
            if only_files:
                paths = list(dict.fromkeys(path.partition("::")[0] for path in paths))
            chosen += [*([AND] if chosen else ()), *base_words, *selection.write(paths)]
    return tuple(chosen) if chosen and not unclaimed else None


def drop_files(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return a test command without the files, folders and packages that it names.

    Return None if the test program is unknown, or if a word could be either a file or the value of
    an option."""
    program = find_test_program(words)
    if program is None:
        return None
    at = len(words)
    if program.after:
        at = words.index(program.after) + 1
    elif positions := [n for n, word in enumerate(words) if find_test_program([word]) is program]:
        at = positions[-1] + 1
    options = list(words[: at + 1 if "run" in words[at : at + 1] else at])
    for before, word in zip(words[len(options) - 1 :], words[len(options) :], strict=False):
        if word in ("--", "-args"):
            return None
        if word.startswith("-") or before in _WITH_VALUE:
            options.append(word)
        elif before.startswith("-") and "=" not in before and not _FLAG.fullmatch(before):
            return None
    return tuple(options)


@dataclass(frozen=True, slots=True)
class _Selection:
    """How a test program selects tests."""

    suffixes: frozenset[str]
    """The suffixes of the program's test files."""
    option: str = ""
    """The option that selects tests by name. Without it, the program takes the ids of tests."""
    folders: bool = True
    """Whether the program takes folders."""
    patterns: bool = False
    """Whether the program takes files as regular expressions."""

    def takes(self, name: str, *, alone: bool) -> bool:
        """Return whether the program can run the named test, file or folder. `alone` tells whether
        the test command has only this program."""
        if name.startswith("-"):
            return False
        suffix = PurePosixPath(name.partition("::")[0]).suffix.lower()
        return suffix in self.suffixes or (alone and not suffix and self.folders)

    def write(self, names: Sequence[str]) -> list[str]:
        """Return the words of a command that select the named tests."""
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        if not self.option:
            return list(dict.fromkeys(names))
        files = list(map(re.escape, files)) if self.patterns else files
        inner = [name.split("::")[-1] for name in names if "::" in name]
        if len(inner) < len(names):
            return files
        # A report of Vitest joins the names of groups by " > ", and numbers tests of equal names.
        inner = [re.sub(r" \(\d+\)$", "", name).split(" > ")[-1] for name in inner]
        pattern = "|".join(map(re.escape, dict.fromkeys(inner)))
        return [f"{self.option}=(?:{pattern})", *files]


class _GoSelection(_Selection):
    """Selects packages of Go, and test functions in packages."""

    def takes(self, name: str, *, alone: bool) -> bool:
        suffix = PurePosixPath(name.partition("::")[0]).suffix
        return not name.startswith("-") and suffix not in (*_SCRIPTS, ".go")

    def write(self, names: Sequence[str]) -> list[str]:
        packages = list(dict.fromkeys(name.partition("::")[0] for name in names))
        tests = [name.partition("::")[2].partition("/")[0] for name in names]
        pattern = "|".join(map(re.escape, dict.fromkeys(tests)))
        return [*([f"-run=^({pattern})$"] if all(tests) else ()), *packages]


_SCRIPTS: Final = frozenset(
    (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".py", ".md", ".rst", ".txt")
)
_JAVASCRIPT: Final = _SCRIPTS - {".py", ".md", ".rst", ".txt"}
_SELECTIONS: Final = {
    "pytest": _Selection(_SCRIPTS - _JAVASCRIPT),
    "node": _Selection(_JAVASCRIPT, "--test-name-pattern", folders=False),
    "vitest": _Selection(_JAVASCRIPT, "--testNamePattern"),
    "jest": _Selection(_JAVASCRIPT, "--testNamePattern", patterns=True),
    "go": _GoSelection(frozenset()),
}
_WITH_VALUE: Final = frozenset(
    (
        *("-m", "-k", "-p", "-n", "-c", "-o", "-W", "-r", "--dist", "--tb", "--timeout", "--cov"),
        *("--maxfail", "--durations", "--rootdir", "--ignore", "--config", "--root", "--project"),
        *("-t", "--testNamePattern", "--reporter", "--import", "--require", "--loader", "-w"),
        *("-run", "-count", "-timeout", "-tags", "-parallel"),
    )
)
"""Options whose value is the next word of the command."""
_FLAG: Final = re.compile(
    r"-[qvxsli]+|--(quiet|verbose|strict-markers|strict-config|no-header|exitfirst|run|runInBand|ci"
    r"|silent|passWithNoTests|test|doctest-modules|no-cov)|-(race|short|json|cover|failfast)"
)
"""Options without a value."""


def _name_in_folder(name: str, folder: str) -> str:
    file, *inner = name.split("::")
    return "::".join((os.path.relpath(file, folder or "."), *inner))
