"""What bae promises its contributors about names and words: a class name means one thing, and
nothing is decided by an English sentence."""

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import bae

pytestmark = pytest.mark.once  # it reads the source, which is the same on every Python
SOURCE = Path(bae.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    """The modules of the package, parsed where a test needs them."""
    gc.collect()  # if a finalizer prints a traceback while Python 3.11 parses, ast.parse fails
    paths = SOURCE.rglob("*.py")
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in paths}


OF_OTHERS = {
    "cli/loading.py": {"no known parent package"},  # Python
    "hints.py": {"return None"},  # Python
    "journal/decoder.py": {"waiting for "},  # earlier versions of bae
    "journal/sqlite/schema.py": {"decode to UTF-8"},  # SQLite
}
"""Sentences of other programs, which have no values for what they mean. The team reads much that
other programs print, and is not counted."""
SEARCHES = {
    *("startswith", "endswith", "find", "index", "count", "partition", "rpartition", "split"),
    *("removeprefix", "removesuffix", "match", "search", "fullmatch", "findall", "sub", "compile"),
}


def find_compared_sentences(tree: ast.Module) -> Iterator[str]:
    """The texts of several words that a module compares with another text or searches for."""
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        match node:
            case ast.Compare(left=left, comparators=others):
                parts = [left, *others]
            case ast.Call(func=ast.Attribute(attr=attr), args=args) if attr in SEARCHES:
                parts = [*args]
            case ast.MatchValue(value=value):
                parts = [value]
            case _:
                pass
        for each in (inner for part in parts for inner in ast.walk(part)):
            text = each.value if isinstance(each, ast.Constant) else None
            if isinstance(text, str) and re.search("[A-Za-z]{2,} +([A-Za-z]|$)", text):
                yield text


def test_nothing_is_decided_by_an_english_sentence():
    found = {name: {*find_compared_sentences(tree)} for name, tree in trees().items()}
    rooms = {name: texts for name, texts in found.items() if not name.startswith("team/")}
    assert {name: texts for name, texts in rooms.items() if texts} == OF_OTHERS


def defined_names(tree: ast.Module) -> Iterator[str]:
    """The classes of a module, those inside others and inside functions too, and its aliases of
    types, without the private ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if not (name.isupper() or name[0].islower()):
                    yield name
            case _:
                pass


def test_a_class_name_means_one_thing_in_the_whole_package():
    found: dict[str, list[str]] = {}
    for module, tree in trees().items():
        for name in defined_names(tree):
            if not name.startswith("_"):
                found.setdefault(name, []).append(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}
