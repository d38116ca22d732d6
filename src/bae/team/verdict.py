"""Whether a task's work may be accepted: its tests passed, those that existed are all there and as
they were, and those that are new test something new."""

from __future__ import annotations

import ast
import asyncio
import configparser
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Unpack

from bae.team import sandbox
from bae.team.edits import LARGEST_FILE, FileChange
from bae.team.files import read_file
from bae.team.git import GitError
from bae.team.models import Project, TestCase, TestReport
from bae.team.project import as_table
from bae.team.reports import NOT_LOADED
from bae.team.test_runs import run_tests
from bae.team.workspaces import Workspace, Workspaces


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found about a task's work. `problems` are sentences for its next attempt."""

    report: TestReport
    changes: tuple[FileChange, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems

    @property
    def text(self) -> str:
        """Everything that speaks against it."""
        return "\n\n".join(self.problems)


async def verify(
    project: Project,
    workspaces: Workspaces,
    workspace: Workspace,
    *,
    before: TestReport | None = None,
    edits_tests: bool = False,
    writes_tests: bool = False,
    tests: Sequence[str] = (),
    **limits: Unpack[sandbox.Limits],
) -> Verdict:
    """Run the tests of a task's worktree and judge its work.

    `before` is the report of the tests at its base, which are run if it is None. New tests are run
    on the base too, in a worktree of its own; not where the task `writes_tests` and nothing else,
    of code that there is. `tests` are those that the task has to make pass,
    where others fail already. The limits are those of `sandbox.run`.
    """
    changes = await read_changes(workspace)
    after = await run_tests(project, workspace.path, **limits)
    rewritten = await _find_rewritten(workspace, changes, after)
    if before is None:
        async with workspaces.scratch(workspace.base) as base:
            before = await run_tests(project, base.path, **limits)
    on_base = None
    own = [each for each in changes if is_test_file(each.path, before, after)]
    # Where tests alone were asked for, only those must fail that came with what they test.
    alone = (writes_tests or edits_tests) and len(own) == len(changes)
    new = any(each.after is not None for each in own)
    if new and not alone and after.for_task(tests, before).passed:
        async with workspaces.scratch(workspace.base) as base:
            await asyncio.to_thread(_write_tests, base.path, own)
            on_base = await run_tests(project, base.path, **limits)
    problems = await asyncio.to_thread(
        judge, before, after, changes, on_base=on_base, edits_tests=edits_tests, tests=tests
    )
    return Verdict(after, changes, (*rewritten, *problems))


async def read_changes(workspace: Workspace) -> tuple[FileChange, ...]:
    """What differs in a worktree from the commit that its work started from."""
    changes: list[FileChange] = []
    for path in await workspace.changed():
        name = f"{workspace.base}:{path}"
        code, before, problem = await workspace.repository.run_git("cat-file", "blob", name)
        if code and "does not exist" not in problem and "exists on disk" not in problem:
            raise GitError(f"{path} cannot be read as it was at {workspace.base}: {problem}")
        after = await asyncio.to_thread(read_file, workspace.path / path, LARGEST_FILE)
        changes.append(FileChange(path, None if code else before, after))
    return tuple(changes)


async def _find_rewritten(
    workspace: Workspace, changes: Sequence[FileChange], report: TestReport
) -> list[str]:
    """What the code did to tests while they ran. Other files that tests write are not looked at."""
    known = {each.path: each.after for each in changes}
    problems: list[str] = []
    for path in sorted({*known, *await workspace.changed()}):
        # In folders for tests there may be files that tests write.
        if _TEST_NAME.fullmatch(PurePosixPath(path).name) or path in _reported_files(report):
            now = await asyncio.to_thread(read_file, workspace.path / path, LARGEST_FILE)
            if path not in known or now != known[path]:
                problems.append(
                    f"{path} was written while the tests ran: the code may not change its tests"
                )
    return problems


def judge(
    before: TestReport,
    after: TestReport,
    changes: Sequence[FileChange],
    *,
    on_base: TestReport | None = None,
    edits_tests: bool = False,
    tests: Sequence[str] = (),
) -> tuple[str, ...]:
    """Why a task's work is refused, as sentences that its next attempt is shown; none if it is
    accepted. `before` is the report of the base, `after` that of the work, `on_base` that of the
    base with the tests of the work. With `edits_tests` the task was told to change tests and how
    they are run: then those that there are must pass, and new ones fail on the base. `tests` are
    those that the task has to make pass, where others fail already."""
    problems = [*_find_shadows(changes)]
    if not edits_tests:
        problems += [*_find_tampering(changes, before), *_find_lost(before, after)]
    own = after.for_task(tests, before)
    if not own.passed:
        problems.append(describe_failure(own))
    if on_base is not None:
        problems += _find_useless(before, after, on_base)
    return tuple(problems)


def describe_failure(report: TestReport) -> str:
    """What went wrong in a run of tests, in a few thousand characters."""
    failed = report.of("failed")
    lines = [report.problem] if report.problem else []
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


# --- reports compared -----------------------------------------------------------------------------


def _find_lost(before: TestReport, after: TestReport) -> Iterator[str]:
    now = {case.id: case for case in after.cases}
    files = {case.id for case in after.cases if _stands_for_file(case)}
    existed = [case for case in before.cases if not _stands_for_file(case)]
    vanished = [
        case.id
        for case in existed
        # Where a file cannot be loaded, that is what is reported.
        if case.id not in now and case.id.partition("::")[0] not in files
    ]
    if vanished and after.cases:
        yield f"tests that existed are not run any more: {_list_names(vanished)}; restore them"
    skipped = [
        case.id
        for case in existed
        if case.outcome != "skipped" and case.id in now and now[case.id].outcome == "skipped"
    ]
    if skipped:
        yield f"tests that were run before are skipped now: {_list_names(skipped)}; run them again"


def _find_useless(before: TestReport, after: TestReport, on_base: TestReport) -> Iterator[str]:
    existed = {case.id for case in before.cases}
    passing = {case.id for case in on_base.of("passed")}
    new = [case for case in after.cases if case.id not in existed]
    if new and all(case.outcome == "skipped" for case in new):
        names = _list_names([case.id for case in new])
        yield f"all new tests are skipped, so nothing tests the change: {names}; have them run"
    if useless := [case.id for case in new if case.outcome == "passed" and case.id in passing]:
        yield (
            "new tests pass without the change too, so they do not test it: "
            f"{_list_names(useless)}; have each check something that the change makes true, or "
            "remove it"
        )


def _stands_for_file(case: TestCase) -> bool:
    return case.message.startswith(NOT_LOADED)


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


# --- files compared -------------------------------------------------------------------------------


def is_test_file(path: str, *reports: TestReport) -> bool:
    """Whether a file holds tests, or what only tests use: by its name, by its folder, or since a
    report has tests of it."""
    pure = PurePosixPath(path)
    if _TEST_FOLDERS.intersection(part.lower() for part in pure.parts[:-1]):
        return True
    if _TEST_NAME.fullmatch(pure.name):
        return True
    return any(path in _reported_files(report) for report in reports)


def _reported_files(report: TestReport) -> set[str]:
    return {case.id.partition("::")[0] for case in report.cases}


_TEST_FOLDERS: Final = {"test", "tests", "__tests__", "spec", "specs", "__snapshots__", "testdata"}
_TEST_NAME: Final = re.compile(
    r"test_.*\.py|.*_test\.py|conftest\.py|.*_test\.go"
    r"|(.*[.\-_])?(test|spec)\.[cm]?[jt]sx?|test-.*\.[cm]?[jt]sx?"
)
_SETTINGS: Final = re.compile(
    r"conftest\.py|\.?pytest\.(ini|toml)|(vitest|vite|jest)\.(config|workspace)\..*"
    r"|(site|user)customize\.py|.*\.pth|\.npmrc|\.env(\..*)?|\.mocharc.*|babel\.config\..*"
)
"""Files that say what is run as a test, or that run with every test."""
_SHADOWS: Final = re.compile(
    r"(src/)?(_?pytest|pluggy|iniconfig|unittest|bae_witness|vitest|jest)(\.py|/.*)|(.*/)?node_modules/.*"
)
"""Files that would be loaded instead of the test program's own."""


def _find_shadows(changes: Sequence[FileChange]) -> Iterator[str]:
    """Files that would be loaded in place of the test program, or of a module of Python."""
    for each in changes:
        path, name = each.path, each.path.split("/")[0].removesuffix(".py")
        is_module = path in (f"{name}.py", f"{name}/__init__.py")
        if _SHADOWS.fullmatch(path):
            yield f"{path} would take the place of the test program: remove it"
        elif is_module and each.before is None and name in sys.stdlib_module_names:
            yield f"{path} would be loaded in place of Python's own module: rename it"


def _find_tampering(changes: Sequence[FileChange], before: TestReport) -> Iterator[str]:
    """What a task did to existing tests, or to how they are run."""
    for each in changes:
        path = each.path
        name = PurePosixPath(path).name
        if _SETTINGS.fullmatch(name):
            yield f"{path} decides how tests are run, and this task may not change that: restore it"
        elif (settings := _CONFIGURATIONS.get(name)) is not None:
            if settings(each.before) != settings(each.after):
                yield f"{path}: the part that decides how tests are run was changed: restore it"
        elif path.endswith(".py") and (added := _hooks(each.after) - _hooks(each.before)):
            yield (
                f"{path} has {', '.join(sorted(added))}, which would run around every test: this "
                "task may not change how tests are run"
            )
        elif each.before is not None and is_test_file(path, before):
            if each.after is None:
                yield f"{path} has tests that existed, and was deleted: restore it"
            elif reason := _describe_edit(path, each.before, each.after):
                yield (
                    f"{path} has tests that existed, and was edited ({reason}): restore it, and "
                    "put new tests at its end or into a new file"
                )


def _hooks(content: bytes | None) -> set[str]:
    """The hooks and plugins of pytest that a file has: at its top level, or in classes there."""
    try:
        body = ast.parse(content or b"").body
    except (SyntaxError, ValueError, RecursionError):
        return set()
    names: set[str] = set()
    for each in (*body, *(part for top in body for part in getattr(top, "body", ()))):
        targets = getattr(each, "targets", [getattr(each, "target", None)])
        found = (getattr(target, "id", getattr(each, "name", "")) for target in targets)
        names.update(name for name in found if str(name).startswith("pytest_"))
    return names


def _describe_edit(path: str, before: bytes, after: bytes) -> str:
    """How tests of a file were changed; empty where some were only added."""
    if not path.endswith(".py"):
        added = after.rstrip().startswith(before.rstrip())
        return "" if added else "lines that existed were changed"
    try:
        old, new = ast.parse(before), ast.parse(after)
    except (SyntaxError, ValueError, RecursionError):
        return "it cannot be read as Python"
    imported, used = set(_imports(old)), set(_names(old))
    if not imported <= set(_imports(new)):
        return "an import was removed"
    left = [each for each in old.body if not isinstance(each, _IMPORT)]
    for each in new.body:
        if left and ast.dump(each) == ast.dump(left[0]):
            del left[0]
        elif not isinstance(each, _IMPORT) and (reason := _describe_addition(each, used)):
            return f"{_name(left[0])} was changed" if left else reason
    if left:
        return f"{_name(left[0])} was removed"
    for module, name, alias in set(_imports(new)) - imported:
        if (alias or name.partition(".")[0]) in used:
            return f"{alias or name} is imported from {module or 'elsewhere'} instead"
        if name == "*":
            return "an import of everything was added"
    return ""


_IMPORT: Final = ast.Import | ast.ImportFrom


def _name(statement: ast.stmt) -> str:
    return getattr(statement, "name", f"line {statement.lineno}")


def _describe_addition(added: ast.stmt, used: set[str]) -> str:
    """Why a statement is more than a new test or helper."""
    if not isinstance(added, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return f"line {added.lineno} is code that runs before the tests that existed"
    if added.name in used:
        return f"{added.name} is defined once more"
    around = added.name.startswith(("setup", "teardown", "pytest_", "setUp", "tearDown"))
    if around or any("autouse" in ast.dump(each) for each in added.decorator_list):
        return f"{added.name} would run around the tests that existed"
    return ""


def _imports(tree: ast.Module) -> Iterator[tuple[str, str, str | None]]:
    for each in tree.body:
        if isinstance(each, ast.Import):
            yield from (("", name.name, name.asname) for name in each.names)
        elif isinstance(each, ast.ImportFrom):
            module = "." * each.level + (each.module or "")
            yield from ((module, name.name, name.asname) for name in each.names)


def _names(tree: ast.Module) -> Iterator[str]:
    """The names that tests depend on: imported, defined, used, or those of fixtures."""
    for _, name, alias in _imports(tree):
        yield alias or name.partition(".")[0]
    for each in ast.walk(tree):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.arg):
            yield each.arg
    yield from (str(getattr(each, "name", "")) for each in tree.body)


def _of_package(content: bytes | None) -> object:
    values = _parse_table(content, json.loads)
    return [values.get(key) for key in ("scripts", "jest", "vitest", "type", "imports")]


def _of_pyproject(content: bytes | None) -> object:
    values = _parse_table(content, tomllib.loads)
    tools, project = as_table(values.get("tool")), as_table(values.get("project"))
    return tools.get("pytest"), as_table(project.get("entry-points")).get("pytest11")


def _of_ini(content: bytes | None) -> object:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string((content or b"").decode("utf-8", "replace"))
    except configparser.Error as error:
        return str(error)
    return {name: dict(parser[name]) for name in ("pytest", "tool:pytest") if name in parser}


_CONFIGURATIONS: Final = {
    "package.json": _of_package,
    "pyproject.toml": _of_pyproject,
    "setup.cfg": _of_ini,
    "tox.ini": _of_ini,
}


def _parse_table(content: bytes | None, parse: Any) -> Mapping[str, Any]:
    try:
        return as_table(parse((content or b"").decode()))
    except (ValueError, RecursionError):
        return {"scripts": content, "tool": {"pytest": content}} if content else {}


def _write_tests(base: Path, changes: Sequence[FileChange]) -> None:
    root = base.resolve()
    for each in changes:
        path = base / each.path
        if not path.parent.resolve().is_relative_to(root) or path.is_symlink():
            continue  # a link of the repository leads elsewhere
        if each.after is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(each.after)
