"""The changes of tests in a task's work: which files are tests, which changes only add tests, which
change or remove tests, and which a person should read before the merge."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from bae.team.doctests import is_example, keeps_examples
from bae.team.edits import FileChange
from bae.team.manifests import as_table, find_table
from bae.team.models import May, TestReport


def is_test_file(path: str, *reports: TestReport) -> bool:
    """Whether a file holds tests, or code and data of tests: by its name, by its folder, or because
    a report has tests of the file. Code with doctests is code."""
    pure = PurePosixPath(path)
    if _TEST_FOLDERS.intersection(part.lower() for part in pure.parts[:-1]):
        return True
    if _TEST_NAME.fullmatch(pure.name):
        return True
    return any(path in reported_files(report) for report in reports)


def is_fixed(path: str) -> bool:
    """Whether a test run may not write to a file: it holds tests or test settings."""
    name = PurePosixPath(path).name
    decides_tests = (
        _TEST_NAME.fullmatch(name) or _SETTINGS.fullmatch(name) or name in _CONFIGURATIONS
    )
    return bool(decides_tests) and "node_modules" not in PurePosixPath(path).parts


def reported_files(report: TestReport) -> set[str]:
    """The files with tests in a report, without files that only have examples."""
    paths = ((case.id, case.id.partition("::")[0]) for case in report.cases)
    return {path for id, path in paths if is_test_file(path) or not is_example(id)}


def files_with_examples(*reports: TestReport) -> set[str]:
    """The files with doctests of pytest in reports."""
    ids = [case.id for report in reports for case in report.cases]
    files = {id.partition("::")[0] for id in ids if is_example(id)}
    return {path for path in files if not is_test_file(path, *reports)}


def find_named(command: Sequence[str], folder: str = "") -> set[str]:
    """The files of a repository that a test command names, as scripts or settings. Its words are
    relative to `folder`."""
    paths: set[str] = set()
    for option, word in zip(("", *command), command, strict=False):
        name = word.rpartition("=")[2]
        name = name.replace(".", "/") + ".py" if option == "-p" else name
        paths.add(os.path.normpath(os.path.join(folder, name)))
    return paths


def is_prose(path: str) -> bool:
    """Whether a file is a text or a picture for people, not for programs. In folders for
    documentation this includes data."""
    pure = PurePosixPath(path)
    name, suffix = pure.name.lower(), pure.suffix.lower()
    if _READ_BY_PROGRAMS.fullmatch(name) or any(part.startswith(".") for part in pure.parts):
        return False
    in_docs = any(part.lower() in _DOCS for part in pure.parts[:-1])
    return suffix in _PROSE or name in _PROSE_NAMES or (in_docs and suffix in _DATA)


_DOCS: Final = {"doc", "docs", "documentation", "man"}
_PROSE: Final = {
    *(".md", ".markdown", ".rst", ".txt", ".adoc", ".png", ".jpg", ".jpeg", ".gif", ".webp"),
}
_DATA: Final = {".json", ".yml", ".yaml", ".toml", ".csv", ".svg", ".css", ".html"}
_PROSE_NAMES: Final = {"readme", "license", "licence", "changelog", "changes", "authors", "notice"}
_READ_BY_PROGRAMS: Final = re.compile(r"(dev-|test-)?(requirements|constraints).*|cmakelists\.txt")
_TEST_FOLDERS: Final = {
    *("test", "tests", "__tests__", "spec", "specs", "__snapshots__", "__mocks__", "testdata"),
}
_TEST_NAME: Final = re.compile(
    r"test_.*\.py|.*_test\.py|conftest\.py|.*_test\.go"
    r"|(.*[.\-_])?(test|spec)\.[cm]?[jt]sx?|test-.*\.[cm]?[jt]sx?"
)
_SETTINGS: Final = re.compile(
    r"\.?pytest\.(ini|toml)|(vitest|vite|jest)\.(config|workspace)\..*"
    r"|(site|user)customize\.py|.*\.pth|\.mocharc.*|babel\.config\..*|\.babelrc.*|\.swcrc"
    r"|entry_points\.txt"  # it can name plugins of pytest in the repository
)
"""Files that decide which tests run, or that run with every test."""
_CONFTEST: Final = "conftest.py"
_PLUGINS: Final = "pytest_plugins"
_SHADOWS: Final = re.compile(
    r"(src/)?(_?pytest|pluggy|iniconfig|unittest|vitest|jest)(\.py|/.*)|(.*/)?node_modules/.*"
)
"""Files that would be loaded in place of files of the test program."""


@dataclass(frozen=True, slots=True)
class TestEdits:
    """Changes of existing tests that the task may not make. `problems` are sentences for the next
    attempt, and `forbidden` the changes."""

    __test__ = False  # pytest must not collect this class

    problems: tuple[str, ...] = ()
    forbidden: tuple[FileChange, ...] = ()


def find_edits(
    changes: Sequence[FileChange],
    files: Collection[str],
    may: May,
    *reports: TestReport,
    command: Sequence[str] = (),
    folder: str = "",
) -> TestEdits:
    """Find changes of existing tests and test settings that a task may not make. `files` are the
    files of the base; files with tests in the reports are files of tests. Files that the test
    `command` names, which runs in `folder`, are test settings."""
    named_files = find_named(command, folder)
    refused: list[tuple[FileChange, str]] = []
    examples = files_with_examples(*reports) if may == "add-tests" else ()
    for change in changes:
        reason = "" if may == "change-test-setup" else _describe_safely(_describe_setup, change)
        if change.path in named_files and not _holds_tests(change.path, *reports):
            reason = reason or "is named by the test command"
        if may != "change-test-setup" and reason:
            refused.append(
                (change, f"{change.path} {reason}. {_ask_to_restore('change-test-setup')}")
            )
            continue
        reason = ""
        if may == "add-tests" and change.before is not None and is_test_file(change.path, *reports):
            reported = _list_reported(change.path, *reports)
            reason = _describe_safely(partial(_describe_edit, reported=reported), change)
        elif change.path in examples and not keeps_examples(change):
            reason = "an example was changed or removed"
        if reason:
            refused.append((change, f"{change.path}: {reason}. {_ask_to_restore('change-tests')}"))
    return TestEdits(
        (*_find_shadows(changes, files, folder), *(text for _, text in refused)),
        tuple(change for change, _ in refused),
    )


def _list_reported(path: str, *reports: TestReport) -> set[str]:
    """The tests of a file in reports, by the part of their ids after the file name, without
    cases."""
    ids = (case.id for report in reports for case in report.cases)
    start = f"{path}::"
    return {id.removeprefix(start).partition("[")[0] for id in ids if id.startswith(start)}


def _describe_safely(describe: Callable[[FileChange], str], change: FileChange) -> str:
    """The description of a change, or a message that its code is nested too deeply."""
    try:
        return describe(change)
    except RecursionError:
        return f"{_TOO_DEEP}: split its longest expression, or chain of `elif`"


_TOO_DEEP: Final = "is nested too deeply to be read"


def _holds_tests(path: str, *reports: TestReport) -> bool:
    """Whether a file has tests or doctests."""
    cases = (case for report in reports for case in report.cases)
    return is_test_file(path) or any(case.id.startswith(f"{path}::") for case in cases)


def _ask_to_restore(level: May) -> str:
    subject = "tests that exist" if level == "change-tests" else "how tests are run"
    return f"This task may not change {subject}: restore it. {ask_for(level)}"


def ask_for(level: May) -> str:
    """The advice for a task that needs another level."""
    return f"If the task needs it, ask a person for `bae team tasks edit TASK --may {level}`"


def _find_shadows(
    changes: Sequence[FileChange], files: Collection[str], start: str
) -> Iterator[str]:
    """Files that would be loaded in place of the test program, a module of Python, or the project's
    own code. Tests run in the folder `start`."""
    own_modules = {
        part for path in files if not is_test_file(path) for part in _find_top_module(path)
    }
    packages = {str(PurePosixPath(p).parent) for p in files if p.endswith("/__init__.py")}
    roots = {".", "src", str(PurePosixPath(start)), str(PurePosixPath(start, "src"))}
    for change in changes:
        pure, inside = PurePosixPath(change.path), change.path.removeprefix(f"{start}/")
        folder = pure.parent.parent if pure.name == "__init__.py" else pure.parent
        name = pure.parent.name if pure.name == "__init__.py" else pure.stem
        imported = pure.suffix == ".py" and str(folder) not in packages
        in_tests = is_test_file(f"{folder}/x.py") and not is_test_file(f"x/{pure.name}")
        if _SHADOWS.fullmatch(change.path) or _SHADOWS.fullmatch(inside):
            yield f"{change.path} would take the place of the test program: remove it"
        elif change.before is not None or not imported:
            continue
        elif name in sys.stdlib_module_names and (in_tests or str(folder) in roots):
            yield f"{change.path} would be loaded in place of Python's own module: rename it"
        elif in_tests and name in own_modules:
            yield f"{change.path} would be loaded in place of the project's {name}: rename it"


def _find_top_module(path: str) -> Iterator[str]:
    """The import name of a Python project's code."""
    parts = PurePosixPath(path).parts
    if path.endswith(".py"):
        start = 1 if parts[0] in _ROOTS and len(parts) > 1 else 0
        yield parts[start].removesuffix(".py")


_ROOTS: Final = ("src", "lib")


# --- how tests are run ----------------------------------------------------------------------------


def _describe_setup(change: FileChange) -> str:
    """The effect of a change on how tests run, or an empty text."""
    name = PurePosixPath(change.path).name
    if _SETTINGS.fullmatch(name):
        return "decides how tests are run, and this task may not change that"
    if name in _CONFIGURATIONS:
        if _read_settings(name, change.before) != _read_settings(name, change.after):
            return "was changed in the part that decides how tests are run"
    elif name.endswith(".py"):
        hooks_before, hooks_after = [
            _find_hooks(content, change.path) for content in (change.before, change.after)
        ]
        if hooks_before != hooks_after:
            added = hooks_after - hooks_before
            names = ", ".join(sorted({hook for hook, _ in added or hooks_before - hooks_after}))
            verb = "has" if added else "loses"
            return f"{verb} {names}, which would run around every test"
    return ""


def _find_hooks(content: bytes | None, path: str) -> set[tuple[str, str]]:
    """Code that runs around every test: hooks, plugins and automatic fixtures of a conftest, hooks
    in test folders, and plugins that any file names."""
    hooks: set[tuple[str, str]] = set()
    is_conftest = PurePosixPath(path).name == _CONFTEST
    text = content or b""
    if not is_test_file(path) and text.isascii() and _PLUGINS.encode() not in text:
        return hooks
    for node in _walk_import_code(_parse(content).body, functions=True):
        names = {n for n in _list_bound_names(node) if n.startswith(("pytest_", "collect_ignore"))}
        automatic = any("autouse" in ast.dump(d) for d in getattr(node, "decorator_list", ()))
        if is_conftest and automatic:
            names |= {str(getattr(node, "name", ""))}
        if not is_conftest and not (is_test_file(path) and isinstance(node, _Function)):
            names &= {_PLUGINS}
        hooks |= {(n, ast.dump(node)) for n in names}
    return hooks


def _list_bound_names(node: ast.AST) -> set[str]:
    """The names that a definition, an assignment or an import binds."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    names = {str(getattr(target, "id", "")) for target in targets}
    names.add(str(getattr(node, "name", "")))
    if isinstance(node, ast.ImportFrom):
        names |= {alias.asname or alias.name for alias in node.names}
    return names


_CONFIGURATIONS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "package.json": (*(("jest",), ("vitest",), ("mocha",), ("ava",), ("babel",), ("imports",)),),
    "pyproject.toml": (("tool", "pytest"), ("project", "entry-points", "pytest11")),
    "setup.cfg": (("tool:pytest",),),
    "tox.ini": (("pytest",),),
}
"""The parts of manifests that say how tests are run."""


def _read_settings(name: str, content: bytes | None) -> object:
    """The test settings in a manifest, or the whole manifest if it cannot be read."""
    text = (content or b"").decode("utf-8", "replace")
    try:
        if name.endswith(".json"):
            values = as_table(json.loads(text or "{}"))
        elif name.endswith(".toml"):
            values = tomllib.loads(text)
        else:
            parser = configparser.RawConfigParser(strict=False)
            parser.read_string(text)
            values = {section: dict(parser[section]) for section in parser}
    except (ValueError, RecursionError, configparser.Error):
        return text
    scripts = as_table(values.get("scripts"))
    tests = {name: script for name, script in scripts.items() if "test" in name}
    parts = [find_table(values, *path[:-1]).get(path[-1]) for path in _CONFIGURATIONS[name]]
    return [tests, *parts]


# --- existing tests -------------------------------------------------------------------------------

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _describe_edit(change: FileChange, reported: Collection[str]) -> str:
    """The change of a file's tests, or an empty text if tests were only added. `reported` tests are
    tests whatever their names, since a project may choose them."""
    before, after = change.before or b"", change.after
    if after is None:
        return "it was deleted"
    if not change.path.endswith(".py"):
        (old_imports, old), (new_imports, new) = map(
            _split_imports, (_SKIPPED_JAVASCRIPT.sub(rb"\1", before), after)
        )
        added = old_imports <= new_imports and is_added_to(_split_tokens(old), _split_tokens(new))
        return "" if added else "lines that existed were changed or removed"
    old, new = _remove_skips(_parse(before)), _parse(after)
    if not new.body and after.strip() and not after.lstrip().startswith(b"#"):
        return "it cannot be read as Python"
    tests, tests_after = _find_tests(old, reported), _find_tests(new, reported)
    for name, test in tests.items():
        if name not in tests_after:
            return f"{name} was removed"
        if not _is_extended(test, tests_after[name]):
            return f"{name} was changed"
    used_names = {node.id for node in ast.walk(new) if isinstance(node, ast.Name)}
    imported = _find_imports(old)
    for name, _ in sorted(imported ^ _find_imports(new)):
        if name in used_names & {imported_name for imported_name, _ in imported}:
            return f"the import of {name} was changed"
    tokens = _split_tokens(_write_code(new))
    for statement in old.body:
        if not is_added_to(_split_tokens(_write_code(ast.Module([statement], []))), tokens):
            return f"{getattr(statement, 'name', f'line {statement.lineno}')} was changed"
    return (
        "" if is_added_to(_split_tokens(_write_code(old)), tokens) else "what existed was changed"
    )


def is_added_to(old: Sequence[object], new: Sequence[object]) -> bool:
    """Whether tokens were only added: all old tokens are there, in their order."""
    rest = iter(new)
    return all(token in rest for token in old)


def _split_imports(content: bytes) -> tuple[set[tuple[str, str]], str]:
    """The imports of JavaScript code, each with a name and a module, and the rest of the code
    without comments. Other files have no imports."""
    text = _drop_comments(content.decode("utf-8", "replace"))
    imports: set[tuple[str, str]] = set()
    for match in _IMPORT_JAVASCRIPT.finditer(text):
        names = re.findall(r"[\w$*]+(?:\s+as\s+\w+|\s*:\s*\w+)?", match["es"] or match["common"])
        imports |= {
            (" ".join(name.split()), match["module"] or match["required"]) for name in names
        }
    return imports, _IMPORT_JAVASCRIPT.sub(" ", text)


# Names end at the next line that may begin an import, so that the time is linear in the length.
_NAMES: Final = r"""(?:(?!\n[ \t]*(?:import|const|let|var)\s)[^"'();=])"""
_IMPORT_JAVASCRIPT: Final = re.compile(
    rf"""(?m)^[ \t]*(?:import\s(?P<es>{_NAMES}+?)\sfrom\s*["'](?P<module>[^"']+)["']"""
    rf"""|(?:const|let|var)\s(?P<common>{_NAMES}+?)=\s*"""
    r"""require\(\s*["'](?P<required>[^"']+)["']\s*\))"""
)
_SKIPPED_JAVASCRIPT: Final = re.compile(rb"\b(it|test|describe|suite)\.(skip|todo|fails|failing)\b")


def _split_tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s,;]", text)


def _drop_comments(text: str) -> str:
    """The text without comments of JavaScript. The time is linear in the length, since a model may
    have written the text."""
    parts: list[str] = []
    position = copied_to = 0
    while (match := _COMMENT.search(text, position)) is not None:
        position = match.end()
        if match[0] == "/*":
            end = text.find("*/", position)
            if end < 0:  # no block comment follows
                parts.append(_LINE_COMMENT.sub(" ", text[copied_to:]))
                return " ".join(parts)
            position = end + 2
        parts.append(text[copied_to : match.start()])
        copied_to = position
    return " ".join((*parts, text[copied_to:]))


_LINE_COMMENT: Final = re.compile(r"(?m)^[ \t]*//[^\n]*$")
_COMMENT: Final = re.compile(rf"{_LINE_COMMENT.pattern}|/\*")


def _remove_skips(tree: ast.Module) -> ast.Module:
    """The code of tests without skip marks, which may be removed."""
    for node in ast.walk(tree):
        if isinstance(node, _Function | ast.ClassDef):
            marks = node.decorator_list
            node.decorator_list = [mark for mark in marks if not _SKIPS.search(ast.unparse(mark))]
    return tree


_SKIPS: Final = re.compile(r"\b(skip|skipif|skipIf|skipUnless|xfail|expectedFailure)\b")


def _parse(content: bytes | None) -> ast.Module:
    try:
        return ast.parse(content or b"")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _find_tests(tree: ast.Module, reported: Collection[str]) -> dict[str, _Function]:
    """The tests of a file, by the part of their ids behind its name."""
    return {
        name: function
        for name, function in _walk_functions(tree.body)
        if function.name.startswith("test") or name in reported
    }


def _walk_functions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, _Function]]:
    for statement in body:
        if isinstance(statement, _Function):
            yield prefix + statement.name, statement
        elif isinstance(statement, ast.ClassDef):
            yield from _walk_functions(statement.body, f"{prefix}{statement.name}::")


def _is_extended(old: _Function, new: _Function) -> bool:
    """Whether a test keeps its statements. Assertions may be added between them, and any statement
    at the end. Cases and marks are ignored."""
    if ast.dump(old.args) != ast.dump(new.args):
        return False
    remaining, added_asserts = [*new.body], list[ast.stmt]()
    for statement in old.body:
        while (
            remaining
            and ast.dump(remaining[0]) != ast.dump(statement)
            and isinstance(remaining[0], ast.Assert)
        ):
            added_asserts.append(remaining.pop(0))
        if not remaining or ast.dump(remaining.pop(0)) != ast.dump(statement):
            return False
    added = [node for statement in (*added_asserts, *remaining) for node in ast.walk(statement)]
    if any(isinstance(node, _CHANGING) for node in added):
        return False
    # A name that is bound at the end becomes a local name in the whole test.
    names = {
        node.id
        for statement in old.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    }
    bound_names = {n.id for n in added if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return not names & bound_names


_CHANGING: Final = (
    *(ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Delete),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.pattern),
)
"""Code that also changes the statements before it, or binds names."""


def _write_code(tree: ast.Module) -> str:
    """The code of a file without imports. Fixtures yield their return value, so that a cleanup may
    follow."""
    for node in ast.walk(tree):
        if isinstance(node, _Function) and any(
            "fixture" in ast.unparse(mark) for mark in node.decorator_list
        ):
            *others, last = node.body
            ends = [result for result in ast.walk(node) if isinstance(result, _RESULTS)]
            if isinstance(last, ast.Return) and ends == [last]:
                node.body = [*others, ast.Expr(ast.Yield(last.value))]
    return "\n".join(
        ast.unparse(statement) for statement in tree.body if not isinstance(statement, _IMPORTS)
    )


_RESULTS: Final = (ast.Return, ast.Yield, ast.YieldFrom)
_IMPORTS: Final = (ast.Import, ast.ImportFrom)


def _find_imports(tree: ast.Module) -> set[tuple[str, str]]:
    """The names that a module imports, with their modules."""
    imports: set[tuple[str, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {(n.asname or n.name.partition(".")[0], n.name) for n in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imports |= {(n.asname or n.name, module) for n in node.names}
    return imports


# --- concerns for a person ------------------------------------------------------------------------


def find_concerns(
    changes: Sequence[FileChange], *reports: TestReport
) -> tuple[tuple[str, str], ...]:
    """The changed code that a person should read, as pairs of a file and a reason. Code outside of
    tests could decide about its own tests if it imports a test program, has its hooks, or ends the
    process. Support of tests, such as a plugin or a setup file, is listed at each change. So is
    code, in tests too, with invisible characters that reorder its text. The work is not refused."""
    reordered = (
        (change.path, _REORDERED)
        for change in changes
        if _count_reordering(change.after) > _count_reordering(change.before)
        and not is_prose(change.path)
    )
    acts = (
        (change.path, reason)
        for change in changes
        if change.after is not None and not is_test_file(change.path, *reports)
        for reason, is_support in sorted(_find_acts_safely(change.path, change.after))
        if is_support or (reason, is_support) not in _find_acts_safely(change.path, change.before)
    )
    return (*reordered, *acts)


_REORDERED: Final = "has invisible characters that show text in another order than it is read"
_REORDERING: Final = re.compile("[\u202a-\u202e\u2066-\u2069]")


def _count_reordering(content: bytes | None) -> int:
    return len(_REORDERING.findall((content or b"").decode("utf-8", "replace")))


def _find_acts_safely(path: str, content: bytes | None) -> set[tuple[str, bool]]:
    """The ways in which code could decide about its tests, each with a flag: whether it makes the
    code support of tests."""
    try:
        return _find_acts(path, content)
    except RecursionError:
        return {(_TOO_DEEP, True)}


def _find_acts(path: str, content: bytes | None) -> set[tuple[str, bool]]:
    text = (content or b"").decode("utf-8", "replace")
    if path.endswith(".py"):
        tree = _parse(content)
        modules = {source.partition(".")[0] for _, source in _find_imports(tree)}
        acts = {(f"imports {module}", module != "unittest") for module in modules & _PYTHON_TESTS}
        names = {
            name
            for node in _walk_import_code(tree.body, functions=True)
            for name in _list_bound_names(node)
        }
        hooks = {name for name in names if name.startswith("pytest_")}
        acts |= {(f"has {hook}, a hook of pytest", True) for hook in hooks}
        if _ENDS_PROCESS.search(text):
            acts.add(("ends the process with os._exit", False))
        if PurePosixPath(path).name != "__main__.py" and any(
            map(_ends_process, _walk_import_code(tree.body))
        ):
            acts.add(("ends the process while it is imported", False))
        return acts
    if not re.search(r"\.[cm]?[jt]sx?$", path):
        return set()
    acts = {(f"imports {program}", True) for program in _JAVASCRIPT_TESTS.findall(text)}
    acts |= {(f"uses {call} of the test program", True) for call in _SETUP.findall(text)}
    if re.search(r"(?m)^\S.*process\.(exit|reallyExit|abort|kill)\b", text):
        acts.add(("ends the process while it is loaded", False))
    return acts


_SETUP: Final = re.compile(
    r"(?m)^\s*(?:global(?:This)?\.)?"
    r"((?:before|after)(?:Each|All)|expect\.\w+|(?:jest|vi)\.(?:\w*[mM]ock|fn|spyOn|stubGlobal)"
    r"|(?<=\.)(?:expect|it|test|describe))\s*(?:\(|=(?!=))"
)
"""Calls of Jest and Vitest that run code around every test, also without an import."""
_JAVASCRIPT_TESTS: Final = re.compile(
    r"""(?:from|require\(|import\(?)\s*["'](node:test|vitest|jest|@jest/[^"']+|mocha|ava)["']"""
)
_PYTHON_TESTS: Final = {"pytest", "_pytest", "unittest", "pluggy"}
_ENDS_PROCESS: Final = re.compile(r"\b(_exit|os\.abort)\s*\(|\bimport\b.*\b_exit\b")


def _ends_process(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("sys.exit", "exit", "quit")
    return isinstance(node, ast.Raise) and "SystemExit" in ast.dump(node)


def _walk_import_code(body: Iterable[ast.AST], *, functions: bool = False) -> Iterator[ast.AST]:
    """The code of a module that runs when it is imported. With `functions`, also its functions."""
    for node in body:
        if isinstance(node, _Function | ast.Lambda):
            if functions:
                yield node
            continue
        if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
            continue
        yield node
        yield from _walk_import_code(ast.iter_child_nodes(node), functions=functions)
