"""Rules for changes of tests in a task's work.

The module tells which files are tests, whether a change only adds tests or also changes and removes
some, and which changed code a person should read before the merge."""

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
    """Return whether a file has tests, or code or data for tests.

    The file's name or folder decides. If a report has tests of the file, it is a test file too. A
    file whose only tests are doctests is not a test file."""
    pure = PurePosixPath(path)
    if _TEST_FOLDERS.intersection(part.lower() for part in pure.parts[:-1]):
        return True
    if _TEST_NAME.fullmatch(pure.name):
        return True
    return any(path in reported_files(report) for report in reports)


def is_fixed(path: str) -> bool:
    """Return whether a file has the name of a test file or of test settings. No test run may change
    such a file."""
    name = PurePosixPath(path).name
    decides_tests = (
        _TEST_NAME.fullmatch(name) or _SETTINGS.fullmatch(name) or name in _CONFIGURATIONS
    )
    return bool(decides_tests) and "node_modules" not in PurePosixPath(path).parts


def reported_files(report: TestReport) -> set[str]:
    """Return the files of a report's tests, without files whose only tests are doctests."""
    paths = ((case.id, case.id.partition("::")[0]) for case in report.cases)
    return {path for id, path in paths if is_test_file(path) or not is_example(id)}


def files_with_examples(*reports: TestReport) -> set[str]:
    """Return the files whose doctests are in the reports, without test files."""
    ids = [case.id for report in reports for case in report.cases]
    files = {id.partition("::")[0] for id in ids if is_example(id)}
    return {path for path in files if not is_test_file(path, *reports)}


def find_named(command: Sequence[str], folder: str = "") -> set[str]:
    """Return the paths that the words of a test command may name, such as scripts or settings.

    The words are relative to `folder`. The returned paths are relative to the repository."""
    paths: set[str] = set()
    for option, word in zip(("", *command), command, strict=False):
        name = word.rpartition("=")[2]
        name = name.replace(".", "/") + ".py" if option == "-p" else name
        paths.add(os.path.normpath(os.path.join(folder, name)))
    return paths


def is_prose(path: str) -> bool:
    """Return whether a file is a text or a picture for people, not for programs.

    In a folder for documentation, data such as JSON is for people too."""
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
"""Names of files that decide which tests run, or that run with every test."""
_CONFTEST: Final = "conftest.py"
_PLUGINS: Final = "pytest_plugins"
_SHADOWS: Final = re.compile(
    r"(src/)?(_?pytest|pluggy|iniconfig|unittest|vitest|jest)(\.py|/.*)|(.*/)?node_modules/.*"
)
"""Files that the test program would load in place of its own files."""


@dataclass(frozen=True, slots=True)
class TestEdits:
    """Changes of tests that a task may not make."""

    __test__ = False  # pytest must not collect this class

    problems: tuple[str, ...] = ()
    """Sentences for the next attempt: what is forbidden, and what to do."""
    forbidden: tuple[FileChange, ...] = ()
    """The forbidden changes of tests and test settings."""


def find_edits(
    changes: Sequence[FileChange],
    files: Collection[str],
    may: May,
    *reports: TestReport,
    command: Sequence[str] = (),
    folder: str = "",
) -> TestEdits:
    """Find the changes of existing tests and of test settings that a task may not make.

    - `files`: all files of the task's base.
    - `may`: what the task may do to tests.
    - `reports`: test reports. Files with tests in a report are test files.
    - `command`: the test command, which runs in `folder`. Files that it names are test settings.
    """
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
    """Return the names of a file's tests in the reports. A name is the part of a test's id after
    the file, without the parameters."""
    ids = (case.id for report in reports for case in report.cases)
    start = f"{path}::"
    return {id.removeprefix(start).partition("[")[0] for id in ids if id.startswith(start)}


def _describe_safely(describe: Callable[[FileChange], str], change: FileChange) -> str:
    """Describe a change, or say that its code is nested too deeply."""
    try:
        return describe(change)
    except RecursionError:
        return f"{_TOO_DEEP}: split its longest expression, or chain of `elif`"


_TOO_DEEP: Final = "is nested too deeply to be read"


def _holds_tests(path: str, *reports: TestReport) -> bool:
    """Return whether a file is a test file by its name, or has tests or doctests in the reports."""
    cases = (case for report in reports for case in report.cases)
    return is_test_file(path) or any(case.id.startswith(f"{path}::") for case in cases)


def _ask_to_restore(level: May) -> str:
    subject = "tests that exist" if level == "change-tests" else "how tests are run"
    return f"This task may not change {subject}: restore it. {ask_for(level)}"


def ask_for(level: May) -> str:
    """Write the advice to ask a person for `--may`, with this level."""
    return f"If the task needs it, ask a person for `bae team tasks edit TASK --may {level}`"


def _find_shadows(
    changes: Sequence[FileChange], files: Collection[str], start: str
) -> Iterator[str]:
    """Find changed files that would be loaded in place of the test program, of a module of Python,
    or of the project's own code. Tests run in the folder `start`."""
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
    """Find the name by which a Python file, or its top-level package, is imported."""
    parts = PurePosixPath(path).parts
    if path.endswith(".py"):
        start = 1 if parts[0] in _ROOTS and len(parts) > 1 else 0
        yield parts[start].removesuffix(".py")


_ROOTS: Final = ("src", "lib")


# --- how tests are run ----------------------------------------------------------------------------


def _describe_setup(change: FileChange) -> str:
    """Describe how a change affects how tests are run. Return an empty text if it does not."""
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
    """Find code that runs around every test, as pairs of a name and the dumped code.

    - In a conftest: hooks, plugins and automatic fixtures.
    - In other test files: functions with the name of a hook.
    - In any Python file: `pytest_plugins`, which names plugins."""
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
    """Return the names that a definition, an assignment or an import binds."""
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
"""The parts of manifests that decide how tests are run."""


def _read_settings(name: str, content: bytes | None) -> object:
    """Return the test settings of a manifest. If the manifest cannot be parsed, return its text."""
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
    """Describe how a change alters or removes tests. Return an empty text if it only adds tests.

    A function in `reported` is a test whatever its name, since a project may choose the names of
    tests."""
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
    """Return whether tokens were only added: `new` has all old tokens, in their order."""
    rest = iter(new)
    return all(token in rest for token in old)


def _split_imports(content: bytes) -> tuple[set[tuple[str, str]], str]:
    """Split JavaScript code into its imports and the rest of the code, without comments.

    An import is a pair of a name and a module. In other languages no imports are found."""
    text = _drop_comments(content.decode("utf-8", "replace"))
    imports: set[tuple[str, str]] = set()
    for match in _IMPORT_JAVASCRIPT.finditer(text):
        names = re.findall(r"[\w$*]+(?:\s+as\s+\w+|\s*:\s*\w+)?", match["es"] or match["common"])
        imports |= {
            (" ".join(name.split()), match["module"] or match["required"]) for name in names
        }
    return imports, _IMPORT_JAVASCRIPT.sub(" ", text)


# The names of an import end before a line that may begin the next import. Otherwise the time of
# the search would grow faster than the length of the code.
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
    """Replace JavaScript comments by spaces. The time is linear in the length of the text, because
    a model may have written the text."""
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
    """Remove skip marks from the code of tests: a task may remove these marks."""
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
    """Return the test functions of a file by the part of their ids after the file."""
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
    """Return whether a test keeps its arguments and statements.

    Assertions may be added between the old statements, and most other statements at the end.
    Decorators are ignored."""
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
    # A name that an added statement binds becomes local in the whole test. So an old statement that
    # reads the name would change its meaning.
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
"""Code that may not be added: it changes what the statements before it do, or binds names."""


def _write_code(tree: ast.Module) -> str:
    """Write the code of a file without imports.

    The last `return` of a fixture is written as `yield`. So a task may turn a `return` into a
    `yield`, to add a cleanup."""
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
    """Return the names that a module imports, as pairs of a name and the name's module."""
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
    """Find changed code that a person should read before the merge, as pairs of a file and a
    reason. The work is not refused.

    - Code outside of tests that could influence test results: it imports a test program, has hooks
      of a test program, or ends the process.
    - Code, in tests too, to which the change adds invisible characters that reorder its text.

    A file that supports tests, such as a plugin or a setup file, is returned after every change.
    Other code is returned only if the change adds the reason."""
    reordered = (
        (change.path, _REORDERED)
        for change in changes
        if _count_reordering(change.after) > _count_reordering(change.before)
        and not is_prose(change.path)
    )
    influences = (
        (change.path, reason)
        for change in changes
        if change.after is not None and not is_test_file(change.path, *reports)
        for reason, is_support in sorted(_find_influences_safely(change.path, change.after))
        if is_support
        or (reason, is_support) not in _find_influences_safely(change.path, change.before)
    )
    return (*reordered, *influences)


_REORDERED: Final = "has invisible characters that show text in another order than it is read"
_REORDERING: Final = re.compile("[\u202a-\u202e\u2066-\u2069]")


def _count_reordering(content: bytes | None) -> int:
    return len(_REORDERING.findall((content or b"").decode("utf-8", "replace")))


def _find_influences_safely(path: str, content: bytes | None) -> set[tuple[str, bool]]:
    """Find the ways in which code could influence test results, as pairs of a description and a
    flag. The flag tells whether such code is support for tests."""
    try:
        return _find_influences(path, content)
    except RecursionError:
        return {(_TOO_DEEP, True)}


def _find_influences(path: str, content: bytes | None) -> set[tuple[str, bool]]:
    text = (content or b"").decode("utf-8", "replace")
    if path.endswith(".py"):
        tree = _parse(content)
        modules = {source.partition(".")[0] for _, source in _find_imports(tree)}
        influences = {
            (f"imports {module}", module != "unittest") for module in modules & _PYTHON_TESTS
        }
        names = {
            name
            for node in _walk_import_code(tree.body, functions=True)
            for name in _list_bound_names(node)
        }
        hooks = {name for name in names if name.startswith("pytest_")}
        influences |= {(f"has {hook}, a hook of pytest", True) for hook in hooks}
        if _ENDS_PROCESS.search(text):
            influences.add(("ends the process with os._exit", False))
        if PurePosixPath(path).name != "__main__.py" and any(
            map(_ends_process, _walk_import_code(tree.body))
        ):
            influences.add(("ends the process while it is imported", False))
        return influences
    if not re.search(r"\.[cm]?[jt]sx?$", path):
        return set()
    influences = {(f"imports {program}", True) for program in _JAVASCRIPT_TESTS.findall(text)}
    influences |= {(f"uses {call} of the test program", True) for call in _SETUP.findall(text)}
    if re.search(r"(?m)^\S.*process\.(exit|reallyExit|abort|kill)\b", text):
        influences.add(("ends the process while it is loaded", False))
    return influences


_SETUP: Final = re.compile(
    r"(?m)^\s*(?:global(?:This)?\.)?"
    r"((?:before|after)(?:Each|All)|expect\.\w+|(?:jest|vi)\.(?:\w*[mM]ock|fn|spyOn|stubGlobal)"
    r"|(?<=\.)(?:expect|it|test|describe))\s*(?:\(|=(?!=))"
)
"""Calls of Jest and Vitest that affect every test. They work without an import too."""
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
    """Yield the code of a module that runs when the module is imported. With `functions`, yield its
    functions too, without their bodies."""
    for node in body:
        if isinstance(node, _Function | ast.Lambda):
            if functions:
                yield node
            continue
        if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
            continue
        yield node
        yield from _walk_import_code(ast.iter_child_nodes(node), functions=functions)
