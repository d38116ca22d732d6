"""Acceptance tests before the work: whether a task wrote tests that load and fail because the
behavior is missing, with stubs beside them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from bae.team.edits import FileChange
from bae.team.models import TestReport
from bae.team.reports import NOT_LOADED
from bae.team.test_edits import is_test_file


def find_acceptance_problems(
    before: TestReport, after: TestReport, changes: Sequence[FileChange]
) -> list[str]:
    """The reasons why the work of a task with the proof `failing-tests` is refused, as sentences
    for its next attempt. `before` is the report of the base, `after` the report of the work. All
    new tests have to load and fail, and code outside of tests must have no behavior."""
    known = {case.id for case in before.cases}
    new = [case for case in after.cases if case.id not in known]
    problems = [*_find_behavior(changes, before, after)]
    not_loaded = [case for case in new if case.message.startswith(NOT_LOADED)]
    failed = [case for case in new if case.outcome == "failed" and case not in not_loaded]
    wrong = [case for case in failed if _WRONG_REASON.search(case.message)]
    for case in (*not_loaded, *wrong):
        problems.append(
            f"{case.id} fails before it tests anything: the module or name does not exist, or the "
            "test is not valid code. Write stubs with signatures and types that raise "
            f"NotImplementedError, and import these.\n{_indent(case.message)}"
        )
    for outcome, why in _NOT_FAILING.items():
        if names := [case.id for case in new if case.outcome == outcome]:
            problems.append(f"These new tests {why}: {', '.join(names[:20])}.")
    if not problems and not failed:
        problems.append("There is no new test. Write tests for each criterion, which fail now.")
    return problems


_NOT_FAILING: Final = {
    "passed": "pass without the work, so they show nothing: check what is missing, or remove them",
    "skipped": "are skipped: have them run, and fail",
}
_WRONG_REASON: Final = re.compile(
    r"^(?:E\s+)?(?:\w+\.)*(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|NameError"
    r"|ReferenceError)\b|ERR_MODULE_NOT_FOUND|'MODULE_NOT_FOUND'",
    re.MULTILINE,
)


def _find_behavior(
    changes: Sequence[FileChange], before: TestReport, after: TestReport
) -> Iterator[str]:
    """The changes of code outside of tests that are not stubs."""
    for change in changes:
        if is_test_file(change.path, before, after):
            continue
        old, new = (change.before or b"").decode("utf-8", "replace"), change.after
        if new is None:
            yield f"{change.path} is removed: acceptance tests and stubs only add. Restore it."
        elif change.path.endswith(".py"):
            yield from _find_python_behavior(change.path, old, new.decode("utf-8", "replace"))
        elif not _only_adds(old.splitlines(), new.decode("utf-8", "replace").splitlines()):
            yield f"{change.path} changes lines: stubs only add lines. Restore them."


def _find_python_behavior(path: str, old: str, new: str) -> Iterator[str]:
    try:
        known, functions = _read_functions(old), _read_functions(new)
        changed = [
            name
            for name, node in functions.items()
            if not _is_stub(node) and (name not in known or ast.dump(known[name]) != ast.dump(node))
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield f"{path} is no valid Python, or is nested too deeply to be read."
        return
    if lost := sorted(known.keys() - functions.keys()):
        yield f"{path} loses {', '.join(lost[:20])}: stubs only add. Restore them."
    if changed:
        yield (
            f"{path}: {', '.join(changed[:20])} has behavior. This task writes tests and stubs "
            "only: raise NotImplementedError, and leave code that exists as it was."
        )


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _read_functions(text: str) -> dict[str, _Function]:
    """The functions and methods of a module by their qualified names."""
    functions: dict[str, _Function] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[prefix + child.name] = child
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.stmt):
                visit(child, prefix)

    visit(ast.parse(text), "")
    return functions


def _is_stub(function: _Function) -> bool:
    def is_empty(statement: ast.stmt) -> bool:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                return True
            case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))):
                return name == "NotImplementedError"
            case _:
                return False

    return all(map(is_empty, function.body))


def _only_adds(old: Sequence[str], new: Sequence[str]) -> bool:
    left = iter(new)
    return all(line in left for line in old)


def _indent(text: str) -> str:
    lines = text.removeprefix(NOT_LOADED).strip().splitlines()[-8:]
    return "\n".join(f"    {line}" for line in lines)
