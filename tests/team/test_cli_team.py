"""`bae team` as a person uses it: set up, plan, approve, run, answer, steer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("typer")

from bae.cli import main
from git_repositories import commit_files, git, make_repository

SCRIPT = """
from bae.testing import ScriptedLM

def make():
    return ScriptedLM({
        "OpenQuestions": {"questions": []},
        "Requirements": "# Shop\\nPrices in euros.",
        "Plan": {"tasks": [
            {"key": "prices", "title": "Prices", "criteria": ["price() adds tax"]},
            {"key": "orders", "title": "Orders", "criteria": ["order() is 1"],
             "depends_on": ["prices"]},
            {"key": "page", "title": "A page", "kind": "frontend", "criteria": ["a title"],
             "depends_on": ["prices"]},
            {"key": "whole", "title": "All of it", "kind": "test", "criteria": ["it adds up"],
             "depends_on": ["orders", "page"]},
        ]},
    })

def ask():
    lm = make()
    return ScriptedLM({
        "OpenQuestions": {"questions": ["Which currency?", "Which country?"]},
        "Requirements": lambda asked: "# Shop\\n" + asked.prompt.text,
        "Plan": {"tasks": [{"key": "prices", "title": "Prices", "criteria": ["1"]}]},
    })
"""
IMPORTS = "import shop\n\n\ndef test_open():\n    assert shop\n"
LM = ("--lm", "python:../lm.py:make")
ASKS = ("--lm", "python:../lm.py:ask")
Bae = Callable[..., Any]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where folders are kept that were set up once, to be copied."""
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def tmp_path(templates: Path) -> Path:
    """An empty folder, at the same path for each test: a team stores the path of its repository."""
    folder = templates / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@pytest.fixture
def bae(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Bae:
    """The command, in a repository with a test."""
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "lm.py").write_text(SCRIPT)
    root = make_repository(
        tmp_path / "shop", {"test_shop.py": "def test_open():\n    assert True\n"}
    )
    monkeypatch.chdir(root)

    def run(*arguments: str, code: int = 0) -> SimpleNamespace:
        capfd.readouterr()
        got = main(["team", *arguments])
        out, err = capfd.readouterr()
        assert got == code, f"{out}{err}"
        return SimpleNamespace(out=out, err=err)

    return run


@pytest.fixture
def ready(bae: Bae, tmp_path: Path, templates: Path) -> Bae:
    """The same, set up."""
    make_once(tmp_path, templates / "ready", lambda: bae("init"))
    return bae


@pytest.fixture
def shop(ready: Bae, tmp_path: Path, templates: Path) -> Bae:
    """The same, with a plan."""
    make_once(tmp_path, templates / "planned", lambda: ready("plan", "A shop", *LM))
    return ready


def make_once(folder: Path, template: Path, make: Callable[[], object]) -> None:
    """Does to a folder what `make` does, which is called once for all tests."""
    here = Path.cwd()
    if template.exists():
        os.chdir(folder.parent)
        shutil.rmtree(folder)
        shutil.copytree(template, folder, symlinks=True)
        os.chdir(here)
    else:
        make()
        shutil.copytree(folder, template, symlinks=True)


def keys(bae: Bae) -> list[str]:
    return [task["key"] for task in json.loads(bae("tasks", "list", "--json").out)]


# Set up


def test_init_needs_no_options_in_a_repository_with_tests(bae: Bae, tmp_path: Path):
    output = bae("init").out
    assert f"folder       {tmp_path / 'shop'}" in output
    assert "python -m pytest" in output
    assert "bae/team" in output
    assert "sandbox" in output
    assert (tmp_path / ".shop.team" / "team.db").exists()
    assert git(tmp_path / "shop", "status", "--porcelain") == ""


def test_init_creates_a_repository_in_a_plain_directory(bae: Bae, tmp_path: Path):
    failed = bae("init", str(tmp_path / "new"), code=1)
    assert "--test" in failed.err
    bae("init", str(tmp_path / "new"), "--test", "make test", code=1)
    assert not (tmp_path / "new").exists()  # nothing is made before all is known
    result = bae("init", str(tmp_path / "new"), "--test", "python -m pytest -q")
    assert "made a git repository" in result.err
    assert git(tmp_path / "new", "rev-parse", "--abbrev-ref", "HEAD") == "main"


@pytest.mark.parametrize("inside", ["bare.git", "bare.git/hooks", "shop/.git"])
def test_a_bare_repository_is_refused_unchanged(bae: Bae, tmp_path: Path, inside: str):
    git(tmp_path, "clone", "--quiet", "--bare", "shop", "bare.git")
    (tmp_path / "bare.git/hooks").mkdir(exist_ok=True)
    failed = bae("init", str(tmp_path / inside), "--test", "python -m pytest -q", code=1)
    assert "is in a bare repository" in failed.err
    assert "git worktree add" in failed.err
    assert not (tmp_path / inside / ".git").exists()


def test_a_project_can_be_a_folder_of_its_repository(bae: Bae, tmp_path: Path):
    git(tmp_path / "shop", "commit", "--quiet", "--allow-empty", "-m", "empty")
    (tmp_path / "shop/packages/a").mkdir(parents=True)
    (tmp_path / "shop/packages/a/package.json").write_text('{"scripts": {"test": "mocha"}}')
    refused = bae("init", "--folder", "packages/a", code=1).err
    assert "runs its tests with mocha" in refused
    assert "--report" in refused
    assert "there is no folder nowhere" in bae("init", "--folder", "nowhere", code=1).err
    result = bae(
        *("init", "--folder", "packages/a", "--test", "sh -c 'npx mocha'"),
        *("--report", "junit:out/*.xml", "--no-check"),
    ).out
    assert f"folder       {tmp_path / 'shop/packages/a'}" in result
    assert "report       junit:out/*.xml" in result
    assert "there is no folder packages/a in this commit" in bae("init", code=1).err
    assert "junit:out/*.xml" in bae("init", "--no-check").out  # kept
    assert "python -m pytest" in bae("init", "--folder", "", "--report", "", "--no-check").out
    assert "writes" not in bae("init", "--report", "xml:a", code=1).out


def test_a_repository_without_a_commit_is_refused_before_anything_is_spent(
    bae: Bae, tmp_path: Path
):
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "--quiet")
    failed = bae("init", str(tmp_path / "empty"), "--test", "python -m pytest -q", code=1)
    assert "git commit --allow-empty" in failed.err


def test_a_command_that_reports_no_tests_is_refused(bae: Bae):
    assert "reports no tests" in bae("init", "--test", "make test", code=1).err
    assert "close its quotes" in bae("init", "--test", "pytest '", code=1).err


def test_uncommitted_work_causes_a_warning(bae: Bae):
    Path("prices.py").write_text("")
    assert "the team does not see it: prices.py" in bae("init").err


def test_a_detected_setup_command_can_be_disabled(bae: Bae):
    Path("package.json").write_text('{"devDependencies": {"vitest": "1"}}')
    assert "npm install" in bae("init", "--no-check").out
    assert "npm install" in bae("init", "--no-check").out
    assert "npm install" not in bae("init", "--no-check", "--setup", "").out


def test_tests_that_cannot_be_run_are_reported_before_anything_is_planned(bae: Bae):
    result = bae("init")
    assert "running the tests once" in result.err
    assert "base         1 test\n" in result.out
    commit_files(Path(), {"test_shop.py": IMPORTS, "src/shop/__init__.py": ""})
    failed = bae("init", code=1)
    assert "shop, a package of this project, is not installed" in failed.err
    assert "pip install -e ." in failed.err
    assert "bae team plan" not in failed.err
    shown = bae("status").out
    assert "the tests cannot be run: shop, a package" in shown
    fix = json.loads(bae("status", "--json").out)["base"]["fix"]
    assert "`bae team init --test 'env PYTHONPATH=src python -m pytest'`" in fix
    assert "running the tests" not in bae("init", "--no-check").err
    bae("plan", "A shop", *LM)
    bae("tasks", "approve")
    failed = bae("run", *LM, code=1)
    assert "is not installed where its tests run" in failed.err
    assert "bae-team-base" in failed.err
    bae("init", "--test", "env PYTHONPATH=src python -m pytest")


def test_a_moved_repository_keeps_its_tasks(
    shop: Bae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "shop").rename(tmp_path / "store")
    (tmp_path / ".shop.team").rename(tmp_path / ".store.team")
    monkeypatch.chdir(tmp_path / "store")
    assert "bae team init" in shop("tasks", code=1).err
    assert f"moved here from {tmp_path / 'shop'}" in shop("init").err
    assert len(keys(shop)) == 4


def test_repeating_init_keeps_the_plan(shop: Bae):
    shop("init", "--test", "python -m pytest -x")
    assert "python -m pytest -x" in shop("status").out
    assert "Prices in euros." in shop("requirements").out
    assert len(keys(shop)) == 4


@pytest.mark.parametrize("command", [["status"], ["tasks"], ["plan", "a goal"], ["requirements"]])
def test_every_command_explains_how_to_create_a_missing_team(bae: Bae, command: list[str]):
    assert "bae team init" in bae(*command, code=1).err


def test_a_team_is_found_from_any_folder_of_the_repository(shop: Bae, monkeypatch: Any):
    Path("deep/down").mkdir(parents=True)
    monkeypatch.chdir("deep/down")
    assert len(keys(shop)) == 4


# Plan


def test_a_goal_is_planned_and_drawn_and_waits_for_approval(ready: Bae):
    result = ready("plan", "A shop", *LM)
    assert result.out.splitlines() == [
        "○ prices  Prices  backend, not approved",
        "├── ○ orders  Orders  backend, not approved",
        "│   └── ○ whole  All of it  test, not approved, also after page",
        "└── ○ page  A page  frontend, not approved",
    ]
    assert "planning the tasks …" in result.err
    assert "bae team tasks approve" in result.err
    assert ready("requirements").out == "# Shop\nPrices in euros.\n"
    ready("tasks", "approve")
    assert "not approved" not in ready("tasks").out


def test_open_questions_can_be_answered_from_a_file(ready: Bae, tmp_path: Path):
    result = ready("plan", "A shop", *ASKS, code=3)
    file = tmp_path / ".shop.team" / "questions.md"
    assert f"bae team plan --answers {file}" in result.err
    assert keys(ready) == []
    file.write_text(file.read_text().replace("currency?\n", "currency?\nEuros\n"))
    assert "Which country?" in ready("plan", "--answers", str(file), *ASKS, code=3).err
    file.write_text("# Which currency?\nEuros\n# Which country?\nPortugal\n")
    ready("plan", "--answers", str(file), *ASKS)
    assert keys(ready) == ["prices"]
    assert "Portugal" in ready("requirements").out


def test_questions_may_be_left_to_the_llm(ready: Bae):
    Path("prd.md").write_text("A shop, as a file\n")
    ready("plan", "--file", "prd.md", "--decide", *ASKS)
    assert keys(ready) == ["prices"]
    assert "A shop, as a file" in ready("requirements").out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("a", "--file", "b.md"), 2, "two goals"),
        ((), 2, "there is no goal"),
        ((" ",), 1, "the goal is empty"),
        (("--file", "nowhere.md"), 1, "nowhere.md cannot be read"),
        (("a", "--answers", "nowhere.md"), 1, "nowhere.md cannot be read"),
        (("a", "--lm", "nope"), 1, "there is no LM named 'nope'"),
        (("a",), 1, "name one with --lm"),
    ],
)
def test_missing_requirements_are_reported_before_any_question(
    ready: Bae, arguments: tuple[str, ...], code: int, said: str
):
    assert said in ready("plan", *arguments, code=code).err


# Tasks


def test_tasks_are_added_edited_and_dropped(shop: Bae):
    shop("tasks", "add", "Send it back!", "--after", "orders", "-c", "it is sent", "-p", "3")
    shown = shop("tasks", "show", "send-it-back").out
    assert "- it is sent" in shown
    assert "orders" in shown
    Path("back.md").write_text("Within 14 days.")
    shop("tasks", "edit", "send-it-back", "-d", "@back.md", "--key", "returns", "--after", "")
    data = json.loads(shop("tasks", "show", "returns", "--json").out)
    assert (data["description"], data["depends_on"]) == ("Within 14 days.", [])
    assert (data["criteria"], data["priority"], data["approved"]) == (["it is sent"], 3, True)
    shop("tasks", "drop", "orders", "whole", str(data["id"]))
    assert keys(shop) == ["prices", "page"]


def test_a_task_of_a_person_names_files_that_exist_or_are_marked_as_new(shop: Bae):
    result = shop("tasks", "add", "Prices", "--file", "tests/test_shop.py", code=1)
    assert "there is no such file" in result.err
    assert "test_shop.py" in result.err
    assert "--new-file" in result.err
    shop("tasks", "add", "Open", "--file", "test_shop.py", "--new-file", "shop.py")
    shop("tasks", "add", "Close", "--file", "shop.py", "--after", "open")
    result = shop("tasks", "edit", "close", "--new-file", "test_shop.py", code=1)
    assert "which exists" in result.err


def test_tasks_without_tests_are_approved_only_by_name(shop: Bae):
    result = shop("tasks", "add", "Guide", "--proof", "none", "--new-file", "guide.md")
    first = result.out.splitlines()[0]
    assert first == "to be approved without tests: guide  Guide"
    assert "bae team tasks approve guide --without-tests" in result.err
    result = shop("tasks", "approve")
    assert "without tests: guide, Guide; may change guide.md" in result.err
    assert "4 tasks approved" in result.err
    assert json.loads(shop("tasks", "show", "guide", "--json").out)["approved"] is False
    assert "name each of them" in shop("tasks", "approve", "--without-tests", code=2).err
    assert "1 task approved" in shop("tasks", "approve", "guide", "--without-tests").err
    task = json.loads(shop("tasks", "show", "guide", "--json").out)
    assert (task["approved"], task["proof"]) == (True, "none")


def test_the_proof_and_the_permission_level_of_a_task_can_be_edited(shop: Bae):
    def read() -> tuple[str, str]:
        task = json.loads(shop("tasks", "show", "prices", "--json").out)
        return task["proof"], task["may"]

    assert read() == ("new-tests", "add-tests")
    shop("tasks", "edit", "prices", "--test", "test_shop.py", "--edits-tests")
    assert read() == ("named-tests", "change-tests")
    shop("tasks", "edit", "prices", "--may", "change-test-setup", "--proof", "new-tests")
    assert read() == ("new-tests", "change-test-setup")
    shop("tasks", "edit", "prices", "--keeps-tests")
    assert read() == ("new-tests", "add-tests")
    result = shop("tasks", "add", "Refactor", "--proof", "named-tests", code=1)
    assert "named-tests needs the names in tests" in result.err


def test_a_task_kind_without_a_worker_causes_a_warning(shop: Bae):
    assert "no worker of the kind 'bakend'" in shop("tasks", "add", "Pay", "--kind", "bakend").err
    assert "no worker" not in shop("tasks", "edit", "pay", "--kind", "backend").err


def test_tasks_can_be_added_from_a_file(shop: Bae):
    tasks = [{"title": "Stock", "depends_on": ["refill"]}, {"title": "Refill"}]
    Path("tasks.json").write_text(json.dumps(tasks))
    shop("tasks", "add", "--from", "tasks.json")
    assert keys(shop)[-2:] == ["stock", "refill"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("edit", "prices", "--after", "whole"), "depends on itself"),
        (("add", "prices"), "two tasks have the key 'prices'"),
        (("add", "More", "--after", "nothing"), "there is no task 'nothing'"),
        (("drop", "prices"), "cannot be dropped: orders, page"),
        (("show", "price"), "did you mean prices?"),
        (("add", "!!"), "this is no task: key"),
        (("add", "--from", "../lm.py"), "is not a list of tasks"),
    ],
)
def test_a_plan_change_that_does_not_fit_is_refused_by_name(
    shop: Bae, arguments: tuple[str, ...], said: str
):
    assert said in shop("tasks", *arguments, code=1).err
    assert keys(shop) == ["prices", "orders", "page", "whole"]


def test_the_status_counts_every_task_once(shop: Bae):
    data = json.loads(shop("status", "--json").out)
    assert sum(data["counts"].values()) == 4
    assert data["counts"]["pending"] == data["not_approved"] == 4
    shop("tasks", "approve", "prices")
    assert "not approved 3" in shop("status").out


def test_commands_that_show_the_team_load_no_worker_modules(shop: Bae):
    program = """
import sys
from bae.cli import main
for command in (["status"], ["tasks"], ["blockers"]):
    assert main(["team", *command]) == 0
works = {"bae.graph", "bae.runner", "bae.team.verdict", "bae.team.workbench", "bae.team.worker"}
print("\\nloaded:", *sorted(works & sys.modules.keys()))
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1] == "loaded:", shown.stderr


def test_open_decisions_are_asked_at_a_terminal(tmp_path: Path, bae: Bae):
    pytest.importorskip("pyte")
    from terminal_session import CTRL_D, Session

    (tmp_path / "new").mkdir()
    with Session(tmp_path / "new", "team", "init") as terminal:
        terminal.shows("Which command runs the tests?", "\n  >")
        terminal.types("\r")  # no answer
        terminal.types("python -m pytest -q\r")
        assert terminal.ends() == 0
    (tmp_path / "new" / "stdout").unlink()
    with Session(tmp_path / "new", "team", "plan", "A shop", *ASKS) as terminal:
        terminal.shows("? Which currency?\n  >")
        terminal.types("Euros\r")
        terminal.shows("? Which country?\n  >")
        terminal.types(CTRL_D)
        assert terminal.ends() == 3
        assert "bae team plan --answers" in terminal.screen
    with Session(tmp_path / "new", "team", "plan", *ASKS) as terminal:
        terminal.shows("? Which country?\n  >")  # the first answer is stored
        terminal.types("Portugal\r")
        assert terminal.ends() == 0
        assert "○ prices" in terminal.screen


def test_the_brief_of_a_task_is_printed_without_a_model(
    shop: Bae, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    before = git(tmp_path / "shop", "worktree", "list"), git(tmp_path / "shop", "branch", "--list")

    assert main(["prompts", "--task", "prices"]) == 0
    out = capfd.readouterr().out

    for part in ("# How your work is judged", "python -m pytest", "- price() adds tax", "`find`"):
        assert part in out
    assert out.rstrip().splitlines()[-2] == "# In short"
    assert main(["prompts", "--task", "prices", "--structured", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["task"] == "prices"
    assert "<<<<<<< FILE" in data["brief"]
    assert main(["prompts", "--task", "price"]) == 1
    assert "did you mean prices?" in capfd.readouterr().err
    assert main(["prompts", "app.py", "--task", "prices"]) == 2
    after = git(tmp_path / "shop", "worktree", "list"), git(tmp_path / "shop", "branch", "--list")
    assert before == after
