"""The journal of a command without `--journal`: the journal of the project, from any directory in
it; without a project the journal of the current directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae.cli import exits

APP = """
from __future__ import annotations

from typing import Annotated

from bae import Gate, Graph, Node


class Ask(Node):
    agreed: Annotated[bool, Gate("Well?")]

    async def __call__(self) -> None: ...


graph = Graph(start=Ask)
"""
RUN = ("run", "--no-ask", "--run-id", "r1")


@pytest.fixture(autouse=True)
def _project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAE_LM", "none")
    Path("deep", "er").mkdir(parents=True)
    Path("pyproject.toml").write_text('[tool.bae]\ngraph = "app.py"\n')


def list_run_ids(bae: Any) -> list[str]:
    return [run["run_id"] for run in bae("runs", "list", "--json").data]


def test_a_run_from_a_subdirectory_is_stored_in_the_journal_of_the_project(
    bae: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir("deep/er")
    parked = bae(*RUN)
    assert parked.code == exits.WAITING
    assert not Path(".bae").exists()
    assert (folder / ".bae" / ".gitignore").read_text() == "*\n"
    for place in (folder, folder / "deep"):
        monkeypatch.chdir(place)
        assert list_run_ids(bae) == ["r1"]
    monkeypatch.chdir("er")  # the command to copy works where it was printed
    words = parked.command("runs answer")
    assert "-j" not in words
    assert "agreed" in bae(*words).out


def test_a_run_outside_a_project_is_stored_in_the_current_directory(
    bae: Any, monkeypatch: pytest.MonkeyPatch
):
    Path("pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir("deep")
    assert bae(*RUN, "../app.py").code == exits.WAITING
    assert Path(".bae/runs.db").is_file()
    assert list_run_ids(bae) == ["r1"]


@pytest.mark.parametrize("text", ["[tool.bae\n", "tool = 3\n", '[tool]\nbae = "x"\n'])
def test_an_invalid_pyproject_does_not_prevent_running_a_named_graph(bae: Any, text: str):
    Path("pyproject.toml").write_text(text)
    assert bae(*RUN, "app.py").code == exits.WAITING
    assert list_run_ids(bae) == ["r1"]


def test_a_missing_journal_is_named_by_its_path_from_the_current_directory(
    bae: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir("deep")
    missing = bae("runs", "list")
    assert missing.code == 1
    assert f"{Path('..', '.bae', 'runs.db')} is not there" in missing.err
