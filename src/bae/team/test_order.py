"""Runs some tests of a project: named tests, or the most relevant tests first. The other tests then
run only if the first tests pass."""

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
    """Run the tests of the files `first`, then the other tests if the first report is accepted. The
    result is the report of all tests, or of the first files if they failed. If the command cannot
    be split, all tests run at once. No run can change the files `fixed`."""
    split = split_command(project.test_command, first)

    async def run(command: tuple[str, ...]) -> TestReport:
        part = project.model_copy(update={"test_command": command})
        return await run_tests(part, worktree, fixed=fixed, **limits)

    if split is None:
        return await run(project.test_command)

    first_report = await run(split[0])
    if not is_accepted(first_report):
        # The command may fail although no test failed, for example if these tests alone cover
        # too little code. Then all tests run.
        return first_report if first_report.of("failed") else await run(project.test_command)
    other_report = await run(split[1])
    full_report = merge_reports(project.test_command, [first_report, other_report])
    if full_report.problem and not full_report.of("failed"):
        return await run(project.test_command)
    return full_report


def split_command(
    command: Sequence[str], first: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The command for the test files `first`, and the command for all other tests. Returns None if
    `command` names files itself, or if its program has no option to leave files out."""
    words, *more = split_commands(command)
    program = find_test_program(words)
    if more or not first or program is None or program.name != "pytest":
        return None
    if drop_files(words) != words:
        return None
    return (*words, *first), (*words, *(f"--ignore={name}" for name in first))


def is_selected(case: TestCase, names: Iterable[str]) -> bool:
    """Whether `names` has the test itself, or its file, group or folder. A file that could not be
    loaded stands for all of its tests."""
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
    """The test command for the tests, files or groups in `names`. Their paths begin at the root of
    the repository, and the command runs in `folder`. It may run more tests than named; with
    `only_files`, it runs all tests of the files. Returns None if the program cannot select tests,
    or if it is unclear which words of `command` are files."""
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
    """A test command without the files, folders or packages that it names. Returns None if a word
    may be a file or the value of an option."""
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
    """How a test program selects tests: its files, by suffix, and its option for the names of
    tests."""

    suffixes: frozenset[str]
    option: str = ""
    folders: bool = True
    patterns: bool = False
    """Whether files are named by regular expressions."""

    def takes(self, name: str, *, alone: bool) -> bool:
        """Whether a name can belong to this program; `alone` if there is no other program."""
        if name.startswith("-"):
            return False
        suffix = PurePosixPath(name.partition("::")[0]).suffix.lower()
        return suffix in self.suffixes or (alone and not suffix and self.folders)

    def write(self, names: Sequence[str]) -> list[str]:
        """The words of a command that select tests."""
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        if not self.option:
            return list(dict.fromkeys(names))
        files = list(map(re.escape, files)) if self.patterns else files
        inner = [name.split("::")[-1] for name in names if "::" in name]
        if len(inner) < len(names):
            return files
        # Vitest joins the names of groups; a second test of the same name has a number.
        inner = [re.sub(r" \(\d+\)$", "", name).split(" > ")[-1] for name in inner]
        pattern = "|".join(map(re.escape, dict.fromkeys(inner)))
        return [f"{self.option}=(?:{pattern})", *files]


class _GoSelection(_Selection):
    """The packages of Go, and the functions in them."""

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
"""Options of test programs whose value is the next word."""
_FLAG: Final = re.compile(
    r"-[qvxsli]+|--(quiet|verbose|strict-markers|strict-config|no-header|exitfirst|run|runInBand|ci"
    r"|silent|passWithNoTests|test|doctest-modules|no-cov)|-(race|short|json|cover|failfast)"
)
"""Options of test programs without a value."""


def _name_in_folder(name: str, folder: str) -> str:
    file, *inner = name.split("::")
    return "::".join((os.path.relpath(file, folder or "."), *inner))
