"""What the README, the docs and the examples show is what bae does: their code runs as printed,
their outputs are what the code prints, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT, blocks, consoles, module_of, named, python_blocks, run_page

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
    """What a Python command prints, when it ends well."""
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
    "backend": ("httpx", "h11"),
    "from-langgraph": ("langgraph",),
    "from-pydantic-graph": ("pydantic_graph",),
}
"""Packages that the code of a page needs besides bae, by the page."""


def as_told(page: Path):
    """A page as a parameter: one that needs more than bae, or is tried at a terminal, tells little
    about Python."""
    once = page.stem in NEEDS or consoles(page)
    return pytest.param(page, id=named(page), marks=[pytest.mark.once] if once else [])


@pytest.mark.parametrize("page", [as_told(page) for page in (README, *DOCS)])
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for package in (*NEEDS.get(page.stem, ()), *(("pyte",) if consoles(page) else ())):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(tmp_path)  # for the files that it shows
    with module_of(page) as module:
        printed = run_page(page, module, tmp_path)
    for block in blocks(page):
        if block.language == "text" and block.follows in printed:
            assert printed[block.follows] == block.text, f"{named(page)}:{block.line}"
        if block.language == "console" and block in printed:
            assert printed[block] == block.text, f"{named(page)}:{block.line}"


@pytest.mark.parametrize("page", SHOWING_TESTS, ids=named)
def test_tests_shown_on_a_page_pass_as_a_file_of_their_own(page: Path, tmp_path: Path):
    file = tmp_path / f"test_{page.stem}.py"
    file.write_text("\n".join(block.text for block in python_blocks(page)), encoding="utf-8")
    shown = len(re.findall(r"^def test_", file.read_text("utf-8"), re.MULTILINE))
    printed = run("-m", "pytest", "-q", "-p", "no:cacheprovider", file.name, cwd=tmp_path)
    assert f"{shown} passed" in printed


@pytest.mark.parametrize("name", TAUGHT_BY_A_FILE)
def test_each_subject_is_taught_by_a_complete_file(name: str):
    first = python_blocks(ROOT / "docs" / f"{name}.md")[0].text
    assert "from bae import" in first
    assert "Graph(" in first


@pytest.mark.parametrize("page", [README, *DOCS], ids=named)
def test_every_block_says_what_language_it_is_in(page: Path):
    assert len(blocks(page)) * 2 == len(re.findall(r"^```", page.read_text("utf-8"), re.MULTILINE))
    for block in blocks(page):
        assert block.language, f"{named(page)}:{block.line}"


# --- the front door ---------------------------------------------------------------------------


def test_the_picture_in_the_readme_is_of_a_run_of_what_make_demo_runs():
    demo = ROOT / "examples" / "ootd.py"
    assert f"examples/{demo.name}" in (ROOT / "Makefile").read_text("utf-8")
    picture = ROOT / "docs" / "assets" / "run.svg"
    assert f"({named(picture)})" in README.read_text("utf-8")
    drawn = picture.read_text("utf-8")
    with module_of(demo) as module:
        exec(compile(demo.read_text("utf-8"), str(demo), "exec", dont_inherit=True), vars(module))
        for cls in module.graph.nodes:
            for name in (cls.__name__, *cls.model_fields):
                assert name in drawn, name


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    for page in PROSE:
        text = page.read_text("utf-8")
        for target in re.findall(r"(?:`|^\$ |^)make ([a-z][a-z0-9-]*)", text, re.MULTILINE):
            assert target in targets, f"{named(page)}: make {target}"


# --- links and names --------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_relative_to(ROOT), f"{named(page)}: {target}"
        assert file.exists(), f"{named(page)}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{named(page)}: {target}"


def test_every_page_can_be_reached_from_the_index():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for page in DOCS:
        path = page.relative_to(ROOT / "docs").as_posix()
        assert path == "index.md" or f"({path})" in index, path
    assert "(docs/index.md)" in README.read_text("utf-8")


MACHINE = re.compile(
    r"(?<![\w.])/(?:root|home|Users|tmp|work|opt|var|mnt|private)/"
    r"|[A-Za-z]:\\\\|localhost|\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w-]+\.(?:local|internal|lan)\b"
)


@pytest.mark.parametrize("page", [*PROSE, *EXAMPLES], ids=named)
def test_no_page_names_a_machine_or_a_folder_on_one(page: Path):
    found = [match[0] for match in MACHINE.finditer(page.read_text("utf-8"))]
    assert found == []
