"""Checks the work of a task that writes acceptance tests before the code exists. Its tests must
load, and fail because the behavior is missing. Its code must be stubs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from bae.team.edits import FileChange
from bae.team.models import TestReport, headline
from bae.team.reports import NOT_LOADED
from bae.team.test_edits import is_test_file


def find_acceptance_problems(
    before: TestReport, after: TestReport, changes: Sequence[FileChange]
) -> list[str]:
    """Return why the work of a task with the proof `failing-tests` is refused, as sentences for
    the next attempt. The list is empty if the work is accepted: all new tests load and fail, and
    changes outside of tests only add stubs. `before` is the test report of the commit that the
    task starts from. `after` is the test report of the work."""
    known_ids = {case.id for case in before.cases}
    new = [case for case in after.cases if case.id not in known_ids]
    problems = [*_find_behavior(changes, before, after)]
    not_loaded = [case for case in new if case.message.startswith(NOT_LOADED)]
    failed = [case for case in new if case.outcome == "failed" and case not in not_loaded]
    wrong_reason = [case for case in failed if _WRONG_REASON.search(case.message)]
    for case in (*not_loaded, *wrong_reason):
        problems.append(
            f"{case.id} fails before it tests anything: the module or name does not exist, or the "
            "test is not valid code. Write stubs with signatures and types that raise "
            f"NotImplementedError, and import these.\n{_indent(case.message)}"
        )
    for outcome, problem in _NOT_FAILING.items():
        if ids := [case.id for case in new if case.outcome == outcome]:
            problems.append(f"These new tests {problem}: {', '.join(ids[:20])}.")
    if not problems and not failed:
        problems.append("There is no new test. Write tests for each criterion, which fail now.")
    return problems


_NOT_FAILING: Final = {
    "passed": "pass without the work, so they prove nothing: test missing behavior, or remove them",
    "skipped": "are skipped: have them run, and fail",
}
_WRONG_REASON: Final = re.compile(
    r"^(?:E\s+)?(?:\w+\.)*(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|NameError"
    r"|ReferenceError)\b|^(?:E\s+)?AttributeError: (?:module '|type object ')"
    r"|ERR_MODULE_NOT_FOUND|'MODULE_NOT_FOUND'",
    re.MULTILINE,
)


def _find_behavior(
    changes: Sequence[FileChange], before: TestReport, after: TestReport
) -> Iterator[str]:
    """Yield a sentence for each file outside of tests whose change does more than add stubs."""
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
        before, after = ast.parse(old), ast.parse(new)
        old_functions, functions = _read_functions(before), _read_functions(after)
        lost_names = sorted(old_functions.keys() - functions.keys())
        lost_names += dict.fromkeys(_find_lost_statements(before, after))
        changed_names = [
            name for name in old_functions if _differs(old_functions[name], functions.get(name))
        ]
        implemented = [
            name
            for name in functions
            if name not in old_functions and not _is_stub(functions[name])
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield f"{path} is not valid Python, or is nested too deeply to read."
        return
    if lost_names:
        yield f"{path} loses {', '.join(lost_names[:20])}: stubs only add. Restore them."
    if changed_names:
        yield f"{path} changes {', '.join(changed_names[:20])}: leave code that exists as it was."
    if implemented:
        yield (
            f"{path}: {', '.join(implemented[:20])} has behavior. This task writes tests and stubs "
            "only: raise NotImplementedError."
        )


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _differs(old: _Function, new: _Function | None) -> bool:
    return new is not None and ast.dump(old) != ast.dump(new)


def _read_functions(module: ast.Module) -> dict[str, _Function]:
    """Return the functions and methods of a module, by qualified name."""
    functions: dict[str, _Function] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[prefix + child.name] = child
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.stmt):
                visit(child, prefix)

    visit(module, "")
    return functions


def _find_lost_statements(before: ast.Module, after: ast.Module) -> Iterator[str]:
    """Yield the statements outside of functions that are missing or different in `after`."""
    remaining = [text for text, _ in _list_statements(after)]
    for text, statement in _list_statements(before):
        if text in remaining:
            remaining.remove(text)
        else:
            yield f"`{headline(ast.unparse(statement).splitlines()[0], 80)}`"


def _list_statements(
    node: ast.Module | ast.ClassDef, path: str = ""
) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each statement outside of functions, with a text that identifies the statement. Class
    members and imported names have texts of their own, so a new member or name changes no other
    text. `__all__` is left out, because stubs may add to `__all__`."""
    for child in node.body:
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Pass():
                pass
            case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                pass
            case ast.ClassDef(name=name):
                head = (*child.decorator_list, *child.bases, *child.keywords)
                yield f"{path}{name}({', '.join(map(ast.dump, head))})", child
                yield from _list_statements(child, f"{path}{name}.")
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                source = (
                    f"{child.level}.{child.module}" if isinstance(child, ast.ImportFrom) else ""
                )
                yield from ((f"{source} {ast.dump(alias)}", child) for alias in names)
            case _:
                yield path + ast.dump(child), child


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
    new_lines = iter(new)
    return all(line in new_lines for line in old)


def _indent(text: str) -> str:
    lines = text.removeprefix(NOT_LOADED).strip().splitlines()[-8:]
    return "\n".join(f"    {line}" for line in lines)
