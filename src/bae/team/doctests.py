"""Doctests: examples in docstrings and texts, which pytest runs as tests. Examples are
in files of code, so their changes are judged separately from the code around them."""

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
    """Whether a test is a doctest. Its id ends with its dotted name, as in
    `a/b.py::a.b.function`."""
    path, _, name = id.partition("::")
    pure = PurePosixPath(path)
    if pure.suffix not in (".py", ".md", ".rst", ".txt"):
        return False
    module = pure.parent.name if pure.name == "__init__.py" else pure.stem
    return name == module or "." in name.partition("[")[0]


def keeps_examples(change: FileChange) -> bool:
    """Whether all examples of a file are still there."""
    before, after = [
        Counter(
            example for text in _read_texts(change.path, each) for example in _parse_examples(text)
        )
        for each in (change.before, change.after)
    ]
    return before <= after


def add_examples(change: FileChange) -> FileChange:
    """The code of a file before a change, with the new and changed docstrings added as one doctest.
    `is_added` recognizes this doctest. A change of another file is returned unchanged."""
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
    """The docstrings of a Python file, or the text of another file."""
    if not path.endswith(".py"):
        return [(content or b"").decode("utf-8", "replace")]
    try:
        nodes = ast.walk(ast.parse(content or b""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # pytest reports it
        return []
    return [ast.get_docstring(node) or "" for node in nodes if isinstance(node, _DOCUMENTED)]


def _parse_examples(text: str) -> list[tuple[str, str]]:
    """The examples of a text, each with its code and its expected output."""
    try:
        return [
            (example.source, example.want) for example in doctest.DocTestParser().get_examples(text)
        ]
    except ValueError:  # pytest reports it
        return [(text, "")]
