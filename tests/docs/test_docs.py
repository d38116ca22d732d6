"""What the README, the docs and the examples show is what bae does: their code runs as printed,
their outputs are what the code prints, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bae import Graph
from pages import (
    ROOT,
    alike,
    at_terminal,
    blocks,
    consoles,
    module_of,
    python_blocks,
    relative_path,
    run_page,
    shape,
)

README = ROOT / "README.md"
DOCS = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")])
PROSE = [
    *(README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"),
    *(ROOT / "examples" / "README.md", *DOCS),
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TAUGHT_BY_A_FILE = (
    "nodes",
    "sources",
    "routing",
    "proof",
    "testing",
    "journal",
    "people",
    "replay",
)
SHOWING_TESTS = [
    page for page in DOCS if any("def test_" in block.text for block in python_blocks(page))
]


def run(*command: str, cwd: Path) -> str:
    """The output of a Python command that ends with exit code 0."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(paths)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- code in prose ----------------------------------------------------------------------------


NEEDS = {
    "ag-ui": ("fastapi", "httpx"),
    "fastapi": ("fastapi", "httpx"),
    "images": ("anthropic", "h11", "openai", "pydantic_ai"),
    "lm": ("httpx", "h11"),
    "mcp": ("mcp",),
    "optimize": ("dspy",),
    "rag": ("voyager",),
    "approval-over-the-web": ("fastapi", "httpx"),
    "serve": ("fastapi", "httpx"),
    "streaming": ("fastapi", "httpx"),
}
"""Packages that the code of a page needs besides bae, by the page."""


def collect_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph[Any, Any]]:
    """The graphs that are made from here on."""
    made: list[Graph[Any, Any]] = []
    make = Graph.__init__

    def remember(self: Graph[Any, Any], *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(Graph, "__init__", remember)
    return made


def as_told(page: Path):
    """A page as a parameter. Pages that need more than bae or a terminal show little about a
    version of Python."""
    once = page.stem in NEEDS or consoles(page)
    return pytest.param(page, id=relative_path(page), marks=[pytest.mark.once] if once else [])


@pytest.mark.parametrize("page", [as_told(page) for page in (README, *DOCS)])
def test_the_code_of_a_page_runs_and_prints_the_output_on_the_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for package in (*NEEDS.get(page.stem, ()), *(("pyte",) if consoles(page) else ())):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(tmp_path)  # for the files that it shows
    graphs = collect_graphs(monkeypatch)
    with module_of(page) as module:
        printed = run_page(page, module, tmp_path)
        # Not a place to teach that a model is asked about what it cannot see.
        lost = [p for g in graphs if g.name != "lost" for p in g.validate()]
        assert [p for p in lost if p.code == "bae-context-lost"] == []
    for block in blocks(page):
        if block.language == "text" and block.follows in printed:
            assert printed[block.follows] == block.text, f"{relative_path(page)}:{block.line}"
        if block.language == "console" and block in printed:
            assert printed[block] == block.text, f"{relative_path(page)}:{block.line}"


def test_tests_on_a_page_pass_as_a_separate_file(tmp_path: Path):
    shown = 0
    for page in SHOWING_TESTS:
        folder = tmp_path / page.stem
        folder.mkdir()
        for block in blocks(page):
            if block.title:
                folder.joinpath(block.title).write_text(block.text, encoding="utf-8")
        text = "\n".join(block.text for block in python_blocks(page))
        folder.joinpath(f"test_{page.stem}.py").write_text(text, encoding="utf-8")
        shown += len(re.findall(r"^def test_", text, re.MULTILINE))
    options = ("-q", "-p", "no:cacheprovider", "--disable-plugin-autoload")
    assert f"{shown} passed" in run("-m", "pytest", *options, cwd=tmp_path)


@pytest.mark.parametrize("name", TAUGHT_BY_A_FILE)
def test_each_subject_has_a_complete_file_in_the_docs(name: str):
    page = blocks(ROOT / "docs" / f"{name}.md")
    first = next(block.text for block in page if block.language == "python")
    assert "from bae import" in first
    assert "Graph(" in first


@pytest.mark.parametrize("page", [README, *DOCS], ids=relative_path)
def test_every_code_block_names_its_language(page: Path):
    assert len(blocks(page)) * 2 == len(re.findall(r"^```", page.read_text("utf-8"), re.MULTILINE))
    for block in blocks(page):
        assert block.language, f"{relative_path(page)}:{block.line}"


# --- the front door ---------------------------------------------------------------------------


PICTURE = ROOT / "docs" / "assets" / "run.svg"
WIDTH, HEIGHT = 8.4, 18
"""Of a character in the picture."""


def read_picture(picture: Path) -> str:
    """The text of a picture of a terminal, each character in its place."""
    texts = ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}text")
    rows: dict[int, str] = {}
    for text in texts:
        if text.get("text-anchor"):  # the title of the window
            continue
        column = round((float(text.get("x", 0)) - 18) / WIDTH)
        row = round(float(text.get("y", 0)) / HEIGHT)
        rows[row] = rows.get(row, "").ljust(column) + (text.text or "")
    return "\n".join(rows.get(row, "") for row in range(min(rows), max(rows) + 1))


@pytest.mark.once
def test_the_picture_in_the_readme_shows_the_current_output_of_a_run(tmp_path: Path):
    """The texts of the model may be anything; nodes, fields and sources must match a run."""
    pytest.importorskip("pyte")
    assert f"({relative_path(PICTURE)})" in README.read_text("utf-8")
    typed, _, told = read_picture(PICTURE).partition("\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    words = shlex.split(typed)[2:]
    assert words[-2:] == ["--lm", "local"]
    words[-1] = "scripted:examples/scripted/ootd.json"
    code, printed = at_terminal([*words, "--no-journal"], tmp_path)
    assert code == 0
    tree, _, outcome = told.partition("\n\n")
    tree_now, _, outcome_now = printed.partition("\n\n")
    # A field with a default may be left out by the model.
    assert shape(re.sub("default$", "LM", tree, flags=re.MULTILINE)) == shape(tree_now)
    assert fields_of(outcome) == fields_of(outcome_now)


def fields_of(outcome: str) -> list[str]:
    """The node that a run ended at, and its fields."""
    return re.findall(r"^(?:  )?(\w+)(?=  |$)", outcome, re.MULTILINE)


def test_output_of_a_real_model_matches_the_page_in_all_but_values():
    shown = (
        "✓ Outfit  2.3 s · 180 tokens\n    top  'grey jumper'  LM · 1 s\n\nOutfit\n  top  jumper\n"
        "2 nodes in 2.3 s · 1 LM call · 180 tokens · $0\n"
    )
    other = shown.replace("jumper", "shirt").replace("180", "9").replace("2.3 s", "31 ms")
    assert alike(shown, other)
    for was, now in (("top", "hat"), ("LM ·", "given ·"), ("✓", "✗"), ("1 LM call", "2 LM calls")):
        assert not alike(shown, other.replace(was, now)), was


def test_output_with_tools_matches_the_page_in_all_but_calls():
    shown = (
        "✓ Reply  5.3 s · 105 tokens · 2 rounds\n    calls  1 call in 1 round: find  LM\n"
        "    ✓ find(number='1')  'kettle'\n    item   'kettle'   LM\n\n"
        "Reply\n  calls  - find(number='1') -> 'kettle'\n  item   kettle\n"
        "2 nodes in 5.4 s · 2 LM calls · 105 tokens · $0\n"
    )
    other = shown.replace(
        "    ✓ find(number='1')  'kettle'\n", "    ✓ track(a=1)  'b'\n    ✗ find(number='2')  'c'\n"
    ).replace("2 LM calls", "3 LM calls")
    assert alike(shown, other)
    for was, now in (("item ", "thing "), ("✓ Reply", "✗ Reply"), ("2 nodes", "3 nodes")):
        assert not alike(shown, other.replace(was, now)), was


def test_every_make_target_in_the_docs_exists():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    for page in PROSE:
        text = page.read_text("utf-8")
        for target in re.findall(r"(?:`|^\$ |^)make ([a-z][a-z0-9-]*)", text, re.MULTILINE):
            assert target in targets, f"{relative_path(page)}: make {target}"


# --- links and names --------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PROSE, ids=relative_path)
def test_every_link_leads_to_an_existing_file_and_heading(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_relative_to(ROOT), f"{relative_path(page)}: {target}"
        assert file.exists(), f"{relative_path(page)}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{relative_path(page)}: {target}"


def test_every_page_can_be_reached_from_the_index():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for page in DOCS:
        path = page.relative_to(ROOT / "docs").as_posix()
        assert path == "index.md" or f"({path})" in index, path
    assert "(docs/index.md)" in README.read_text("utf-8")


MACHINE = re.compile(
    r"(?<![\w.])/(?:root|home|Users|tmp|work|opt|var|mnt|private)/"
    r"|[A-Za-z]:\\\\|localhost|\b(?!127\.0\.0\.1\b)\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w-]+\.(?:local|internal|lan)\b"
)


@pytest.mark.parametrize("page", [*PROSE, *EXAMPLES], ids=relative_path)
def test_no_page_contains_local_paths_or_host_names(page: Path):
    matches = [match[0] for match in MACHINE.finditer(page.read_text("utf-8"))]
    assert matches == []
