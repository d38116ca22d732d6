"""Doctests: examples in docstrings of code and in texts, which pytest runs as tests. The file of an
example is code, so what a change does to examples is looked at without the code around them."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from bae.team.edits import FileChange
from bae.team.models import TestReport

_OF_FILE: Final = "of_the_file"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_example(id: str) -> bool:
    """Whether a test is a doctest: it is named by its module, as `a/b.py::a.b.function`."""
    path, _, name = id.partition("::")
    pure = PurePosixPath(path)
    if pure.suffix not in (".py", ".md", ".rst", ".txt"):
        return False
    module = pure.parent.name if pure.name == "__init__.py" else pure.stem
    return name == module or "." in name.partition("[")[0]


@dataclass(frozen=True, slots=True)
class _Examples:
    """A docstring, or a text, and the examples in it: what is run, and what it shows."""

    text: str
    pairs: tuple[tuple[str, str], ...]


def read_examples(path: str, content: bytes | None) -> dict[str, _Examples]:
    """The examples of a file by the definition that has them, which is empty for the file itself.
    A definition without an example has no pairs."""
    if content is None:
        return {}
    if not path.endswith(".py"):
        return {"": _parse_examples(content.decode("utf-8", "replace"))}
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):  # pytest reports it
        return {}
    return {
        name: _parse_examples(ast.get_docstring(node) or "") for name, node in _documented(tree)
    }


def _documented(
    node: ast.Module | ast.ClassDef | _Function, name: str = ""
) -> Iterator[tuple[str, ast.Module | ast.ClassDef | _Function]]:
    yield name, node
    for each in () if isinstance(node, _Function) else node.body:
        if isinstance(each, _Function | ast.ClassDef):
            yield from _documented(each, f"{name}.{each.name}".lstrip("."))


def _parse_examples(text: str) -> _Examples:
    try:
        found = doctest.DocTestParser().get_examples(text)
    except ValueError:  # pytest reports it
        return _Examples(text, ((text, ""),))
    return _Examples(text, tuple((each.source, each.want) for each in found))


def add_examples(change: FileChange) -> FileChange:
    """The code of a file before a change, with the docstrings whose examples the change has added
    to. They are run by the names that `rename_examples` gives back."""
    if not change.path.endswith(".py"):
        return change
    known = read_examples(change.path, change.before)
    added = {
        name or _OF_FILE: each.text
        for name, each in read_examples(change.path, change.after).items()
        if each.pairs and (name not in known or known[name].pairs != each.pairs)
    }
    code = (change.before or b"") + f"\n__test__ = {added!r}\n".encode()
    return FileChange(change.path, change.before, code)


def rename_examples(report: TestReport) -> TestReport:
    """A report in which the examples of `add_examples` have the names of their docstrings."""
    added = {
        case.id.replace(f".__test__.{_OF_FILE}", "").replace(".__test__.", "."): case
        for case in report.cases
        if ".__test__." in case.id
    }
    cases = [case for case in report.cases if ".__test__." not in case.id and case.id not in added]
    cases += (case.model_copy(update={"id": id}) for id, case in added.items())
    return report.model_copy(update={"cases": tuple(cases)})


def ids_of(path: str, name: str, *reports: TestReport) -> list[str]:
    """The tests that the examples of a definition are."""
    ids = {case.id for report in reports for case in report.cases}
    end = f".{name}" if name else ""
    return [id for id in ids if id.partition("::")[0] == path and id.endswith(end)]
