"""`bae new`: the new project works at once, requires the bae that wrote it, and overwrites no
file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import bae
from bae.cli import main
from bae.cli.new import FILES, TEMPLATES

pytestmark = pytest.mark.usefixtures("folder")
SOURCE = Path(bae.__file__).parent.parent


def files_in(folder: str) -> set[str]:
    return {
        path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()
    }


def test_a_new_project_is_written_and_the_next_steps_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("BAE_LM", "local")
    assert main(["new", "wardrobe"]) == 0
    assert files_in("wardrobe") == {
        *("wardrobe.py", "tests/test_wardrobe.py", "tests/answers.json"),
        *("pyproject.toml", "README.md", ".gitignore"),
    }
    printed = capsys.readouterr().out
    steps = ["cd wardrobe", "bae run --set 'text=Where is my parcel?'", "bae check", "pytest"]
    assert "Next:\n" + "".join(f"  {step}\n" for step in steps) in printed
    readme = Path("wardrobe/README.md").read_text("utf-8")
    assert all(f"$ {step}\n" in readme for step in steps[1:])
    assert ".bae/\n" in Path("wardrobe/.gitignore").read_text("utf-8")
    for name in files_in("wardrobe"):
        assert "@" not in Path("wardrobe", name).read_text("utf-8")


def test_the_next_steps_install_pytest_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("BAE_LM", "local")
    monkeypatch.setitem(sys.modules, "pytest", None)  # what Python takes for not installed
    assert main(["new", "wardrobe"]) == 0
    assert "  bae check\n  pip install pytest\n  pytest\n" in capsys.readouterr().out


def test_the_tests_of_a_new_project_pass():
    assert main(["new", "wardrobe"]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd="wardrobe",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_a_new_project_can_be_checked_and_run_without_naming_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert main(["new", "wardrobe"]) == 0
    monkeypatch.chdir("wardrobe")
    capsys.readouterr()

    assert main(["check", "--strict", "--durable"]) == 0
    assert capsys.readouterr().out == (
        "wardrobe.py:graph: 4 nodes, 3 edges, ends at Reply | HandOver: no problems\n"
    )

    run = ["run", "--set", "text=Where is my parcel?", "--lm", "scripted:tests/answers.json"]
    assert main([*run, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["type"] == "Reply"
    assert result["fields"]["answer"].startswith("Your parcel 1041")


def test_a_project_name_may_have_dashes_and_a_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert main(["new", "desks/Support-Desk", "--lm", "claude-cli:sonnet"]) == 0
    printed = capsys.readouterr().out
    assert "  cd desks/Support-Desk\n" in printed
    run = "bae run --set 'text=Where is my parcel?' --lm claude-cli:sonnet\n"
    assert f"  {run}" in printed
    assert f"$ {run}" in Path("desks/Support-Desk/README.md").read_text("utf-8")
    project = tomllib.loads(Path("desks/Support-Desk/pyproject.toml").read_text("utf-8"))
    assert project["project"]["name"] == "Support-Desk"
    assert project["tool"]["bae"] == {"graph": "support_desk.py"}
    monkeypatch.chdir("desks/Support-Desk/tests")
    assert main(["check"]) == 0


def test_the_current_directory_can_become_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    Path("depot").mkdir()
    monkeypatch.chdir("depot")
    Path("notes.txt").write_text("mine")
    assert main(["new", "."]) == 0
    assert "cd " not in capsys.readouterr().out
    assert Path("depot.py").is_file()
    assert Path("notes.txt").read_text() == "mine"


def test_bae_new_overwrites_files_only_with_force(capsys: pytest.CaptureFixture[str]):
    Path("wardrobe").mkdir()
    Path("wardrobe/README.md").write_text("mine")
    assert main(["new", "wardrobe"]) == 1
    printed = capsys.readouterr()
    assert "wardrobe has README.md already, and nothing was written" in printed.err
    assert "--force" in printed.err
    assert files_in("wardrobe") == {"README.md"}
    assert Path("wardrobe/README.md").read_text() == "mine"

    assert main(["new", "wardrobe", "--force"]) == 0
    assert Path("wardrobe/README.md").read_text("utf-8").startswith("# wardrobe\n")


def test_a_file_in_the_way_is_an_error(capsys: pytest.CaptureFixture[str]):
    Path("wardrobe").write_text("mine")
    assert main(["new", "wardrobe", "--force"]) == 1
    assert "is there already, and no directory" in capsys.readouterr().err
    assert Path("wardrobe").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my agent", "a letter first"),
        ("1st", "a letter first"),
        ("été", "a letter first"),
        ("-x", "No such option"),
        ("a-", "with a letter first"),
        ("class", "class means something else in Python"),
        ("json", "there is a module json already"),
        ("pydantic", "there is a module pydantic already"),
        ("bae", "bae means something else"),
        ("tests", "tests means something else"),
        ("", "no NAME was given"),
        ("  ", "no NAME was given"),
    ],
)
def test_an_impossible_name_is_refused_with_an_alternative(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["new", name]) in (1, 2)
    assert said in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_an_unknown_lm_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["new", "wardrobe", "--lm", "lcoal"]) == 1
    assert "did you mean 'local'?" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_the_next_steps_use_a_scripted_lm_if_no_lm_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("BAE_LM", "none")
    assert main(["new", "wardrobe"]) == 0
    printed = capsys.readouterr().out
    assert (
        "  bae run --set 'text=Where is my parcel?' --lm scripted:tests/answers.json\n" in printed
    )
    assert "No language model is ready here" in printed
    assert main(["new", "closet", "--lm", "local"]) == 0
    assert "No language model is ready" not in capsys.readouterr().out


def test_a_project_is_written_completely_or_not_at_all(
    capsys: pytest.CaptureFixture[str],
):
    Path("file").touch()
    assert main(["new", "file/wardrobe"]) == 1
    assert "could not be written" in capsys.readouterr().err
    Path("wardrobe").mkdir()
    Path("wardrobe/tests").write_text("mine")
    assert main(["new", "wardrobe"]) == 1
    assert "wardrobe could not be written" in capsys.readouterr().err
    assert files_in("wardrobe") == {"tests"}

    Path("depot/README.md").mkdir(parents=True)
    Path("depot/pyproject.toml").write_text("mine")
    assert main(["new", "depot", "--force"]) == 1
    assert f"{Path('depot/README.md')} is a directory" in capsys.readouterr().err
    assert files_in("depot") == {"pyproject.toml"}
    assert Path("depot/pyproject.toml").read_text() == "mine"


def test_a_failed_new_project_leaves_no_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_text = Path.write_text

    def full(self: Path, *args: Any, **options: Any) -> int:
        if self.name.startswith("pyproject"):
            raise OSError(28, "No space left on device")
        return write_text(self, *args, **options)

    Path("desks").mkdir()
    monkeypatch.setattr(Path, "write_text", full)
    assert main(["new", "desks/here/wardrobe"]) == 1
    assert "wardrobe could not be written: No space left" in capsys.readouterr().err
    assert not Path("desks/here/wardrobe").exists()


def test_a_project_can_be_overwritten_from_its_own_directory(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.syspath_prepend("")  # as `python -m bae` does
    assert main(["new", "wardrobe"]) == 0
    monkeypatch.chdir("wardrobe")
    Path("wardrobe.py").write_text("changed")
    assert main(["new", ".", "--force"]) == 0
    assert Path("wardrobe.py").read_text("utf-8") != "changed"


# --- how a project gets bae ---------------------------------------------------------------------


def test_a_new_project_requires_its_version_of_bae_without_a_local_path():
    assert main(["new", "wardrobe"]) == 0
    required = f"bae-graphs[cli]>={bae.__version__}"
    project = tomllib.loads(Path("wardrobe/pyproject.toml").read_text("utf-8"))
    assert project["project"]["dependencies"] == [required]
    readme = Path("wardrobe/README.md").read_text("utf-8")
    assert f"$ pip install '{required}' pytest\n" in readme
    assert f"pip install --find-links ../bae/dist '{required}' pytest" in readme
    for name in files_in("wardrobe"):
        text = Path("wardrobe", name).read_text("utf-8")
        assert str(Path.cwd()) not in text
        assert "file://" not in text


def test_every_template_is_used():
    assert {path.name for path in TEMPLATES.iterdir()} == set(FILES)
