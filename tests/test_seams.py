"""How many places tell kinds apart. A field source is a class in `bae.sources`, and a record is a
class in `bae.records`: what a kind does is written there, and the rest of the program calls it.
These tests count the places that ask for the kind instead, so that their number cannot grow
unseen. CONTRIBUTING.md says what to do instead."""

import ast
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import bae
from bae import records

pytestmark = pytest.mark.once  # it reads the source, which is the same on every Python
SOURCE = Path(bae.__file__).parent

KIND_NAMES = {"plain", "dep", "recall", "map", "gate", "tools", "thread"}
MARKERS = {"Dep", "Recall", "Map", "Gate", "Text", "Thread", "Tools", "MARKERS", "SOURCES"}
FIELD_CLASSES = {f"{name}Field" for name in MARKERS} | {"PlainField"}


SOURCES_TOLD_APART = 0
RECORDS_TOLD_APART = 49
"""How many places do so, at most. Lower these where a change makes them fewer."""


def sources_told_apart(tree: ast.AST) -> Iterator[int]:
    """The lines that tell kinds of field sources apart:

    - a comparison, or a `case`, with the name of a kind, as `field.kind == "dep"`;
    - `isinstance`, `cast` or a `case` with a marker, as `Dep`, or a class of `bae.sources`;
    - a table, or a `Literal`, with two names of kinds or more;
    - what is asked of the plan of one kind: `plan.text`, `field.parse`.
    """
    classes = MARKERS | FIELD_CLASSES
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=ast.Constant(), ops=[ast.In() | ast.NotIn()]):
                continue  # it asks for a key
            case ast.Compare(left=left, comparators=others):
                sides = [
                    operand for operand in (left, *others) if not isinstance(operand, ast.Call)
                ]
                told = KIND_NAMES & {text for side in sides for text in _texts(side)}
            case ast.Call(func=ast.Name(id="isinstance" | "cast"), args=arguments):
                told = [
                    name for argument in arguments for name in _names(argument) if name in classes
                ]
            case ast.MatchClass(cls=cls):
                told = classes & {*_names(cls)}
            case ast.MatchValue(value=value):
                told = KIND_NAMES & {*_texts(value)}
            case ast.Dict(keys=keys):
                told = len(KIND_NAMES & {text for key in keys if key for text in _texts(key)}) > 1
            case ast.Subscript(value=ast.Name(id="Literal")):
                told = len(KIND_NAMES & {*_texts(node)}) > 1
            case ast.Attribute(value=ast.Name(id=of), attr="text", ctx=ast.Load()):
                told = of == "plan" or of.endswith("_plan")
            case ast.Attribute(value=ast.Name(id="field" | "text"), attr="parse"):
                told = True
            case _:
                continue
        if told:
            yield _line(node)


def records_told_apart(tree: ast.AST) -> Iterator[int]:
    """The lines that tell kinds of records apart: `isinstance`, a `case` or the key of a table with
    a class of `bae.records`; a comparison, a `case`, or a tuple with the names of kinds, as
    `line.kind == "RunEnded"`. A handler of `History` is found by its class, and is none of them."""
    kinds = {*records.KINDS}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
                told = kinds & {*_names(classes)}
            case ast.MatchClass(cls=cls):
                told = kinds & {*_names(cls)}
            case ast.Compare() | ast.MatchValue() | ast.Tuple() | ast.Set():
                told = kinds & {*_texts(node)}
            case ast.Dict(keys=keys):
                for key in keys:
                    if key is not None and kinds & {*_names(key)}:
                        yield key.lineno
                continue
            case _:
                continue
        if told:
            yield _line(node)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _names(node: ast.AST) -> Iterator[str]:
    """The names in an expression; those of a type in quotes, as in `cast("Dep | Map", …)`, too."""
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str() as text):
                yield from text.replace("|", " ").split()
            case _:
                pass


def places(rule: Callable[[ast.AST], Iterator[int]], *own: str) -> list[str]:
    """The places outside the modules that may tell them apart, as `file:line`."""
    found: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(own):
            lines = sorted({*rule(ast.parse(path.read_text()))})
            found += [f"{name}:{line}" for line in lines]
    return found


def test_the_number_of_places_that_distinguish_source_kinds_does_not_grow():
    found = places(sources_told_apart, "markers.py", "sources/")
    assert len(found) <= SOURCES_TOLD_APART, "\n".join(found)


def test_the_number_of_places_that_distinguish_record_kinds_does_not_grow():
    found = places(records_told_apart, "records.py")
    assert len(found) <= RECORDS_TOLD_APART, "\n".join(found)


PUBLIC = {
    *("bae", "bae.evals", "bae.given_files", "bae.journal", "bae.lm", "bae.observers"),
    *("bae.otel", "bae.serve", "bae.subprocesses", "bae.tasks", "bae.testing"),
}
INTERNALS_OF_THE_TEAM = 7
"""How many names that are not public the team imports, at most: it is a user of bae like others.
One is the reader of what Claude's program used, so that there is no second one."""


def test_the_team_imports_no_new_internals_of_bae():
    found: list[str] = []
    for path in sorted(SOURCE.glob("team/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bae"):
                module = node.module or ""
                names = import_module(module).__all__ if module in PUBLIC else ()
                if not module.startswith("bae.team"):
                    others = [name.name for name in node.names if name.name not in names]
                    found += [f"{path.name}: {module}.{name}" for name in others]
    assert [place for place in found if ": bae.cli." in place] == []
    assert len(found) <= INTERNALS_OF_THE_TEAM, "\n".join(found)
