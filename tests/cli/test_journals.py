"""Which journal a command means where none is named: that of the project, from anywhere in it, and
without a project that of the directory at hand."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae.cli import exits, main

APP = """
from __future__ import annotations

from typing import Annotated

from bae import Gate, Graph, Node


class Ask(Node):
    agreed: Annotated[bool, Gate("Well?")]

    async def __call__(self) -> None: ...


graph = Graph(start=Ask)
"""
RUN = ["run", "--no-ask", "--run-id", "r1"]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("BAE_JOURNAL", raising=False)
    monkeypatch.setenv("BAE_LM", "none")
    Path(tmp_path, "project", "deep", "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    Path("app.py").write_text(APP)
    Path("pyproject.toml").write_text('[tool.bae]\ngraph = "app.py"\n')
    modules, path = dict(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules.keys():
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def listed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["runs", "list", "--json"]) == 0
    return [run["run_id"] for run in json.loads(capsys.readouterr().out)]


def test_a_run_from_a_subdirectory_is_kept_with_the_project_and_found_from_anywhere_in_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    project = Path.cwd()
    monkeypatch.chdir("deep/er")
    assert main(RUN) == exits.WAITING
    said = capsys.readouterr()
    assert not Path(".bae").exists()
    assert (project / ".bae" / ".gitignore").read_text() == "*\n"
    for folder in (project, project / "deep"):
        monkeypatch.chdir(folder)
        assert listed(capsys) == ["r1"]
    monkeypatch.chdir("er")  # the command to copy works where it was printed
    line = next(line for line in said.err.splitlines() if "bae runs answer" in line)
    words = shlex.split(line[line.index("bae runs answer") :].rstrip("`"))
    assert "-j" not in words
    assert main(words[1:]) == 0
    assert "agreed" in capsys.readouterr().out


def test_without_a_project_the_journal_is_in_the_directory_at_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    Path("pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir("deep")
    assert main([*RUN, "../app.py"]) == exits.WAITING
    assert Path(".bae/runs.db").is_file()
    assert listed(capsys) == ["r1"]


@pytest.mark.parametrize("text", ["[tool.bae\n", "tool = 3\n", '[tool]\nbae = "x"\n'])
def test_a_pyproject_that_cannot_be_read_keeps_no_named_graph_from_running(
    text: str, capsys: pytest.CaptureFixture[str]
):
    Path("pyproject.toml").write_text(text)
    assert main([*RUN, "app.py"]) == exits.WAITING
    assert listed(capsys) == ["r1"]


def test_the_journal_that_is_missing_is_named_as_it_is_called_from_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir("deep")
    assert main(["runs", "list"]) == 1
    assert f"{Path('..', '.bae', 'runs.db')} is not there" in capsys.readouterr().err
