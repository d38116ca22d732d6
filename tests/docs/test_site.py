"""What the docs site promises: it builds without a warning, its reference has every public name and
every command, and a reader's browser fetches nothing from elsewhere. And what the recorder of
terminals promises, whose pictures it shows."""

from __future__ import annotations

import html
import importlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")
pytest.importorskip("pyte")
pytest.importorskip("typer")

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MODULES = (
    *("bae", "bae.compiler", "bae.evals", "bae.files", "bae.given_files", "bae.journal", "bae.lm"),
    *("bae.observers", "bae.optimizer", "bae.otel", "bae.pictures", "bae.resolver", "bae.tasks"),
    *("bae.engine", "bae.serve"),
    *("bae.subprocesses", "bae.team", "bae.testing"),
)
RECORDER = ROOT / "tools" / "record_terminal.py"


def run(*command: str | Path, **surroundings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": "src", **surroundings},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as it is built now."""
    folder = tmp_path_factory.mktemp("site")
    # Not with --quiet: warnings that are not shown are not counted either.
    build = ("-m", "mkdocs", "build", "--strict", "--site-dir", folder)
    done = run(*build, BAE_DOCS_SEARCH="false")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


# --- the site ---------------------------------------------------------------------------------


def test_every_name_that_a_page_imports_is_public():
    for page in [*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md")]:
        if page.stem == "from-bae-3":  # about names that only it has
            continue
        text = page.read_text(encoding="utf-8")
        for module, names in re.findall(r"(?m)^ *from (bae[.\w]*) import ([\w, ]+)$", text):
            assert module in MODULES, f"{page.stem}: {module}"
            public = importlib.import_module(module).__all__
            assert set(names.split(", ")) <= set(public), f"{page.stem}: {module}"


def test_every_public_name_is_in_the_reference(site: Path):
    for module in MODULES:
        page = site / "reference" / module.removeprefix("bae.") / "index.html"
        text = page.read_text(encoding="utf-8")
        wanted = set(importlib.import_module(module).__all__) - {"__version__"}
        assert {name for name in wanted if f'id="{module}.{name}"' not in text} == set()


def test_every_command_is_on_the_site_with_its_options(site: Path):
    from bae.cli.app import load_all_commands

    page = (site / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    commands = list(every_command(load_all_commands(), "bae"))
    assert {"bae run", "bae runs show", "bae graph export"} <= {name for name, _ in commands}
    for name, options in commands:
        assert name in text
        for option in options:
            assert option in text


def test_every_kind_of_journal_line_is_on_the_site_with_its_fields(site: Path):
    from bae.journal.lines import DATA

    page = (site / "journal-format" / "index.html").read_text(encoding="utf-8")
    rows = dict(re.findall(r"<td><code>(\w+)</code></td>\s*<td>(.+)</td>", page))
    for kind, fields in DATA.items():
        assert [name for name in fields if f"<code>{name}</code>" not in rows[kind]] == []


def every_command(command: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    yield name, [opt for param in command.params for opt in param.opts if opt.startswith("--")]
    for inner, subcommand in getattr(command, "commands", {}).items():
        if not subcommand.hidden:
            yield from every_command(subcommand, f"{name} {inner}")


def test_the_site_loads_nothing_from_other_hosts(site: Path):
    fetched = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="?(https?:|//)[^>]*>')
    for page in site.rglob("*.html"):
        tags = [tag[0] for tag in fetched.finditer(page.read_text(encoding="utf-8"))]
        assert [tag for tag in tags if 'rel="canonical"' not in tag] == []


def test_a_linked_file_outside_the_docs_becomes_a_page_of_the_site(site: Path):
    example = (site / "examples" / "ootd.py" / "index.html").read_text(encoding="utf-8")
    assert "GettingDressed" in example
    front = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="examples/ootd.py/"' in front
    assert "CHANGELOG" in {path.name for path in site.iterdir()}


# --- pictures of terminals --------------------------------------------------------------------

ASKING = """
print("\\x1b[2mdim\\x1b[0m \\x1b[1;31mred\\x1b[0m <wide> 漢字 & more", flush=True)
for number in range(30):
    print("line", number)
print("got", input("Go on? "))
"""


def lines_of(svg: Path) -> list[str]:
    """What an SVG shows below its title, line by line, each text at its column."""
    lines: dict[float, str] = {}
    ends: dict[float, float] = {}
    for text in ET.parse(svg).getroot().iter("{http://www.w3.org/2000/svg}text"):
        if "textLength" in text.attrib:
            x, y, width = (float(text.attrib[name]) for name in ("x", "y", "textLength"))
            gap = round((x - ends.get(y, 18)) / 8.4)
            lines[y] = lines.get(y, "") + " " * gap + (text.text or "")
            ends[y] = x + width
    return [lines[y] for y in sorted(lines)]


def test_a_recorded_terminal_is_an_svg_with_all_text_of_the_screen(tmp_path: Path):
    svg = tmp_path / "asked.svg"
    done = run(
        *(RECORDER, "--columns", "60", "--rows", "10", "--keys", "Go on?=>y\\r", "-o", svg),
        *("--title", 'a "title" & more', "--show", "asking", "--", sys.executable, "-c", ASKING),
    )
    assert done.returncode == 0, done.stderr
    assert "exit code 0" in done.stdout
    text = svg.read_text(encoding="utf-8")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "a &quot;title&quot; &amp; more" in text
    command, first, *rest = lines_of(svg)
    assert command == "$ asking"
    assert first == "dim red <wide> 漢字 & more"
    assert rest == [*(f"line {number}" for number in range(30)), "Go on? y", "got y"]


def test_the_recorder_can_capture_a_running_command_and_end_it(tmp_path: Path):
    gone = tmp_path / "gone"
    program = f"""
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path({str(gone)!r}).touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("here it is", flush=True)
signal.pause()
"""
    out = tmp_path / "half.txt"
    done = run(
        *(RECORDER, "--wait", "here it is", "--show", "", "-o", out),
        *("--", sys.executable, "-c", program),
    )
    assert done.returncode == 0, done.stderr
    assert out.read_text(encoding="utf-8") == "here it is\n"
    assert gone.exists()


def test_waiting_for_text_that_never_appears_fails_with_the_screen(tmp_path: Path):
    out = tmp_path / "none.svg"
    done = run(
        *(RECORDER, "--wait", "elsewhere", "-o", out),
        *("--", sys.executable, "-c", "print('only this')"),
    )
    assert done.returncode == 1
    assert "'elsewhere' never was on the screen" in done.stderr
    assert "only this" in done.stderr
    assert not out.exists()


def test_the_front_page_pictures_show_the_example_without_external_files():
    nodes = ("GettingDressed", "AnticipateDay", "RecommendOutfit")
    example = (ROOT / "examples" / "ootd.py").read_text(encoding="utf-8")
    for name in ("run.svg", "graph.svg"):
        svg = (ROOT / "docs" / "assets" / name).read_text(encoding="utf-8")
        ET.fromstring(svg)
        links = re.findall(r'(?:href|src)="([^"#][^"]*)"|url\(([^)#]+)\)|@import', svg)
        assert links == []
        for node in nodes:
            assert f"class {node}(Node)" in example
            assert node in svg
