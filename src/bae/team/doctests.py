"""Doctests are examples in docstrings and text files that pytest runs as tests. Examples may be in
files of code, so bae judges changes of examples apart from changes of code."""

from __future__ import annotations

import ast
import doctest
from collections import Counter
from pathlib import PurePosixPath
from typing import Final

from bae.team.edits import FileChange

_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_ADDED_ID: Final = ".__test__.examples"


def is_example(id: str) -> bool:
    """Whether a test is a doctest. The id of a doctest ends with a dotted name, as in
    `a/b.py::a.b.function`."""
    path, _, name = id.partition("::")
    pure = PurePosixPath(path)
    if pure.suffix not in (".py", ".md", ".rst", ".txt"):
        return False
    module = pure.parent.name if pure.name == "__init__.py" else pure.stem
    return name == module or "." in name.partition("[")[0]


def keeps_examples(change: FileChange) -> bool:
    """Whether a file still has all its examples after a change."""
    before, after = [
        Counter(
            example
            for text in _read_texts(change.path, content)
            for example in _parse_examples(text)
        )
        for content in (change.before, change.after)
    ]
    return before <= after


def add_examples(change: FileChange) -> FileChange:
    """Return a change that leaves a Python file's code as it was, and adds the new and changed
    docstrings as one doctest. `is_added` recognizes this doctest. The change of any other file is
    returned as it is."""
    if not change.path.endswith(".py"):
        return change
    old_texts = _read_texts(change.path, change.before)
    texts = [text for text in _read_texts(change.path, change.after) if text not in old_texts]
    added = {"examples": "\n\n".join(texts)}
    code = (change.before or b"") + f"\n__test__ = {added!r}\n".encode()
    return FileChange(change.path, change.before, code)


def is_added(id: str) -> bool:
    """Whether a test is the doctest that `add_examples` added."""
    return id.endswith(_ADDED_ID)


def _read_texts(path: str, content: bytes | None) -> list[str]:
    """Return the docstrings of a Python file, or the text of any other file."""
    if not path.endswith(".py"):
        return [(content or b"").decode("utf-8", "replace")]
    try:
        nodes = ast.walk(ast.parse(content or b""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # pytest reports the error
        return []
    return [ast.get_docstring(node) or "" for node in nodes if isinstance(node, _DOCUMENTED)]


def _parse_examples(text: str) -> list[tuple[str, str]]:
    """Return the code and the expected output of each example in a text."""
    try:
        return [
            (example.source, example.want) for example in doctest.DocTestParser().get_examples(text)
        ]
    except ValueError:  # pytest reports the error
        return [(text, "")]
