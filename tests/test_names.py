"""What bae promises its contributors about names and words: a class name means one thing, and
nothing is decided by an English sentence."""

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
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
        for inner_node in (inner for part in parts for inner in ast.walk(part)):
            text = inner_node.value if isinstance(inner_node, ast.Constant) else None
            if isinstance(text, str) and re.search("[A-Za-z]{2,} +([A-Za-z]|$)", text):
                yield text


def test_no_code_branches_on_an_english_sentence():
    sentences = {name: {*find_compared_sentences(tree)} for name, tree in trees().items()}
    rooms = {name: texts for name, texts in sentences.items() if not name.startswith("team/")}
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


PUBLIC = (
    *("bae", "bae.compiler", "bae.engine", "bae.evals", "bae.files", "bae.given_files"),
    *("bae.journal", "bae.lm", "bae.mcp", "bae.observers", "bae.optimizer", "bae.otel"),
    *("bae.pictures", "bae.resolver", "bae.serve", "bae.subprocesses", "bae.tasks", "bae.team"),
    "bae.testing",
)
"""The modules of the API reference."""
NAMES_OF_BAE_3 = {
    *("bae.lm.node_to_signature", "bae.resolver.build_dep_dag", "bae.resolver.recall_from_trace"),
    "bae.resolver.validate_node_deps",
}
"""Only the page for users of bae 3.0 names these."""
DOCS = SOURCE.parents[1] / "docs"
PAGES = {*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md")} - {DOCS / "from-bae-3.md"}


@cache
def read_code(page: Path) -> tuple[str, str]:
    """The code blocks of a page, and its code spans."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall("(?s)```.*?```", text)
    spans = re.findall("`[^`\n]+`", re.sub("(?s)```.*?```", "", text))
    return "\n".join(blocks), "\n".join(spans)


def defined_on(page: Path) -> set[str]:
    """The classes and functions that the code of a page defines."""
    return {*re.findall(r"(?m)^\s*(?:class|(?:async )?def) (\w+)", read_code(page)[0])}


def names_in_code(page: Path) -> set[str]:
    """The words in the code of a page, without what it defines."""
    return {*re.findall(r"\w+", "\n".join(read_code(page)))} - defined_on(page)


def names_module(page: Path, module: str) -> bool:
    """Whether a page names a module, or links to its reference."""
    text = page.read_text(encoding="utf-8")
    named = "from bae import" if module == "bae" else module
    return re.search(rf"\b{named}\b|reference/{module.rpartition('.')[2]}\.md", text) is not None


def taught_names(page: Path) -> set[str]:
    """The names that a page teaches, with their modules: as `bae.lm.Budget`, by an import, or in a
    code span, if the page names the module. Names after a dot or before an `=`, texts and commands
    do not count."""
    blocks, spans = read_code(page)
    taught = {*re.findall(r"\bbae(?:\.[a-z_]+)?\.\w+", blocks + spans)}
    imports = re.findall(r"from (bae[\w.]*) import (\([^)]*\)|[^\n#`]+)", f"{blocks}\n{spans}")
    for module, names in imports:
        taught |= {f"{module}.{name}" for name in re.findall(r"\w+", names)}
    expressions = re.sub(r'"[^"\n]*"|`(?:bae|git|make|pip) .*`', "", spans)
    names = {*re.findall(r"(?<![\w.])\w+\b(?!=)", expressions)} - defined_on(page)
    modules = [module for module in PUBLIC if names_module(page, module)]
    return taught | {f"{module}.{name}" for module in modules for name in names}


def test_the_docs_teach_every_public_name():
    reference = {path.stem for path in DOCS.glob("reference/*.md")} - {"index", "commands"}
    assert {module.rpartition(".")[2] for module in PUBLIC} == reference
    names = {f"{module}.{name}" for module in PUBLIC for name in import_module(module).__all__}
    assert names - set().union(*map(taught_names, PAGES)) == NAMES_OF_BAE_3
    assert taught_names(DOCS / "from-bae-3.md") >= NAMES_OF_BAE_3


@pytest.mark.parametrize(
    ("text", "is_taught"),
    [
        ("`bae.lm.Restart`", True),
        ("```\nfrom bae.lm import (\n    Restart,\n)\n```", True),
        ("[bae.lm](reference/lm.md) has `tell(Restart(error, 1.0))`.", True),
        ("`Restart` of systemd", False),
        ("`bae.lm`, `Restart=always`, `systemd.Restart`, `bae lm Restart`", False),
        ("`bae.lm` and `Restart`\n```\nclass Restart: ...\n```", False),
    ],
)
def test_a_name_in_unrelated_code_does_not_count_as_taught(
    tmp_path: Path, text: str, is_taught: bool
):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert ("bae.lm.Restart" in taught_names(page)) == is_taught


def test_the_docs_teach_every_public_attribute_and_method_of_a_graph():
    class Last(bae.Node):
        async def __call__(self) -> None: ...

    names = {name for name in dir(bae.Graph(start=Last)) if not name.startswith("_")}
    assert names - set().union(*map(names_in_code, PAGES)) == set()
