"""Syntax checks of files that an LLM has edited.

An error is ignored if the file was broken before the edit, if the code may need a newer Python, or
if the file may be test data that is broken on purpose."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Parser


def find_syntax_error(path: str, before: bytes | None, after: bytes | None) -> str | None:
    """Return a message about the syntax error of an edited file, with the lines around the error.

    Return None if there is no error, or if the error is ignored, for example because the file was
    broken before the edit. Python, JSON, TOML, JavaScript and TypeScript are checked."""
    check = _CHECKS.get(PurePosixPath(path).suffix.lower())
    if check is None or after is None or is_broken_on_purpose(path):
        return None
    try:
        text = after.decode().removeprefix("\ufeff").replace("\r\n", "\n")
        text_before = before.decode().removeprefix("\ufeff") if before is not None else None
    except UnicodeDecodeError:
        return None
    error = check(path, text)
    if error is None or (text_before is not None and check(path, text_before) is not None):
        return None
    lines = text.split("\n")
    first, last = max(1, error.line - _AROUND), min(len(lines), error.line + _AROUND)
    excerpt = "\n".join(
        f"{'>' if number == error.line else ' '} {number:>4} {lines[number - 1][:_WIDEST]}"
        for number in range(first, last + 1)
    )
    return (
        f"{path} would have broken syntax in line {error.line}: {error.message}. Its lines then:\n"
        f"{excerpt}"
    )


def is_broken_on_purpose(path: str) -> bool:
    """Return whether a file may be test data that is broken on purpose.

    Such a file is in a folder of test data, such as `tests/data` or `fixtures`, or has a name such
    as `broken.json` below a folder of tests."""
    *folders, name = PurePosixPath(path.lower()).parts
    if _DATA.intersection(folders):
        return True
    if not _TESTS.intersection(folders) or _TEST_FILE.search(name):
        return False
    return bool(_TEST_DATA.intersection(folders)) or _BROKEN.search(name) is not None


def make_parser(suffix: str) -> Parser | None:
    """Return a parser for files with this suffix, or None if there is no grammar for them."""
    grammar = _find_grammar(suffix)
    if grammar is None:
        return None
    from tree_sitter import Language, Parser

    return Parser(Language(grammar))


@dataclass(frozen=True, slots=True)
class _Error:
    line: int
    message: str


def _check_python(path: str, text: str) -> _Error | None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        lines = text.split("\n")
        number = min(error.lineno or 1, len(lines))
        # A newer version of Python may accept this line.
        if _NEWER_PYTHON.search(lines[number - 1]) and _check_tree(path, text) is None:
            return None
        return _Error(number, error.msg)
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _check_json(path: str, text: str) -> _Error | None:
    if _WITH_COMMENTS.search(path) or re.search(r"(?m)^\s*(//|/\*)", text):
        return None
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return _Error(error.lineno, error.msg)
    except (ValueError, RecursionError):
        return None
    return None


def _check_toml(path: str, text: str) -> _Error | None:
    if any(len(line) > _LONGEST_LINE for line in text.splitlines()):
        return None  # tomllib may take minutes to read a long line of keys
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+)", str(error))  # Python 3.14 has `lineno`
        return _Error(int(place[1]) if place else text.rstrip().count("\n") + 1, str(error))
    except RecursionError:
        return None
    return None


def _check_tree(path: str, text: str) -> _Error | None:
    parser = make_parser(PurePosixPath(path).suffix.lower())
    if parser is None or "@flow" in text[:_PRAGMA]:
        return None
    node = parser.parse(text.encode()).root_node
    if not node.has_error:
        return None
    while not (node.is_error or node.is_missing):
        broken_children = [child for child in node.children if child.has_error or child.is_missing]
        if not broken_children:
            break
        node = broken_children[0]
    line = node.start_point[0] + 1
    if node.is_missing:
        return _Error(line, f"{node.type!r} is missing")
    words = (node.text or b"").decode("utf-8", "replace").strip().partition("\n")[0][:60]
    return _Error(line, f"unexpected {words!r}" if words else "it cannot be read")


_AROUND: Final = 3
_WIDEST: Final = 200
_PRAGMA: Final = 500
_NEWER_PYTHON: Final = re.compile(
    r"^\s*type \w+|\b(def|class) \w+\[|^\s*except [^(\n]+,|\b[tT][rR]?[\"']|\b[rR]?[fF][rR]?[\"']"
)
"""Syntax of Python 3.12 and later: type parameters, nested f-strings, template strings, `except`
without parentheses."""
_WITH_COMMENTS: Final = re.compile(
    r"(^|/)([tj]sconfig[^/]*|\.eslintrc|devcontainer|deno|\.swcrc|babel\.config|api-extractor)\.json$"
    r"|(^|/)\.vscode/",
    re.IGNORECASE,
)
"""JSON files that may have comments and trailing commas, because their programs accept both."""
_TESTS: Final = frozenset(("test", "tests", "__tests__", "spec", "specs"))
_DATA: Final = frozenset(("fixtures", "__fixtures__", "testdata", "test_data", "test-data"))
_TEST_DATA: Final = frozenset(("data", "cases", "samples", "snapshots", "resources", "files"))
_TEST_FILE: Final = re.compile(r"^(test_|conftest\.)|(_test|\.test|\.spec)\.\w+$")
_BROKEN: Final = re.compile(r"broken|invalid|malformed|corrupt|(^|[._-])bad([._-]|$)|syntax.?error")
_LONGEST_LINE: Final = 10_000
_CHECKS: Final[Mapping[str, Callable[[str, str], _Error | None]]] = {
    **dict.fromkeys((".py", ".pyi"), _check_python),
    ".json": _check_json,
    ".toml": _check_toml,
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".tsx"), _check_tree),
}


@cache
def _find_grammar(suffix: str) -> object | None:
    """Return the tree-sitter grammar for a suffix.

    Return None if the suffix has no grammar, or if tree-sitter is not installed."""
    try:
        if suffix in (".py", ".pyi"):
            from tree_sitter_python import language
        elif suffix in (".js", ".jsx", ".mjs", ".cjs"):
            from tree_sitter_javascript import language
        elif suffix in (".ts", ".mts", ".cts"):
            from tree_sitter_typescript import language_typescript as language
        elif suffix == ".tsx":
            from tree_sitter_typescript import language_tsx as language
        else:
            return None
    except ImportError:
        return None
    return language()
