"""Reviewing and taking the work of a team, with real git, tests and sandboxes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("typer")

from rich.console import Console

from bae import Graph, Node, ToolCall, ToolError, Tools
from bae.cli import main, team_review
from bae.journal import MemoryJournal
from bae.team import (
    Delivery,
    ProvedTask,
    Store,
    Task,
    TaskStatus,
    read_task_log,
    store_path,
)
from bae.testing import Call, ScriptedLM
from git_repositories import commit_files, git, make_repository
from team_parts import JEST, RUN_SHELL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

SCRIPT = '''
from bae.lm import Usage, report_usage
from bae.testing import ScriptedLM

CODE = """
<<<<<<< FILE {key}.sh
name() {{ echo {name}; }}
>>>>>>> FILE
<<<<<<< FILE {key}.test.sh
. ./{key}.sh
[ "$(name)" = {key} ]
>>>>>>> FILE
"""

def write(asked):
    key = asked.previous.task
    report_usage(Usage(cost=None))  # as of a model without a price
    if key == "guide":
        return "<<<<<<< FILE GUIDE.md\\nA shop.\\n>>>>>>> FILE\\n"
    if key == "orders" and asked.previous.attempt > 1 or key == "stocks":
        return "QUESTION: Which tax?\\n\\nThere are two."
    wrong = asked.previous.attempt == 1
    return CODE.format(key=key, name="wrong" if wrong else key)

def make():
    return ScriptedLM({"WorkerAnswer": write})
'''
LM = ("--lm", "python:../lm.py:make")
Bae = Callable[..., Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with a team that has worked, and a copy of it: `prices` and `guide` are merged,
    `orders` has written something wrong and asks, `stocks` asks before it writes anything."""
    work = tmp_path_factory.mktemp("team") / "work"
    root = make_repository(work / "shop", {**JEST, "readme.txt": "A shop\n"})
    git(root, "config", "user.name", "Ana")
    git(root, "config", "user.email", "ana@example.com")
    (work / "lm.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", str(work / "home"))
        patched.chdir(root)
        assert main(["team", "init", "--no-check", "--test", " ".join(RUN_SHELL)]) == 0
        for key in ("prices", "orders", "stocks"):
            main(["team", "tasks", "add", key])
        main(["team", "tasks", "add", "Guide for people", "--key", "guide", "--proof", "none"])
        main(["team", "tasks", "approve", "guide", "--without-tests"])
        assert main(["team", "run", "--no-wait", "--quiet", "--max-agents", "1", *LM]) == 3
        patched.chdir(work.parent)
    return work, Path(shutil.copytree(work, work.with_name("copy"), symlinks=True))


@pytest.fixture
def bae(
    finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Bae:
    """The command, where the team has worked: each test has it as it was then."""
    work, copy = finished
    shutil.rmtree(work)
    shutil.copytree(copy, work, symlinks=True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(work / "shop")

    def run(*arguments: str, code: int = 0) -> SimpleNamespace:
        capfd.readouterr()
        got = main(["team", *arguments])
        out, err = capfd.readouterr()
        assert got == code, f"{arguments}: {got}\n{out}{err}"
        return SimpleNamespace(out=out, err=err)

    return run


def head(branch: str = "main") -> str:
    return git(Path(), "rev-parse", branch)


# The change of a task


def test_the_diff_of_a_merged_task_can_be_applied(bae: Bae):
    text = bae("diff", "prices").out
    assert "+name() { echo prices; }\n" in text
    assert "wrong" not in text
    Path("work.diff").write_text(text)
    git(Path(), "apply", "work.diff")
    assert Path("prices.sh").read_text() == "name() { echo prices; }\n"


def test_the_diff_of_an_unmerged_task_is_its_branch_since_its_start(bae: Bae):
    text = bae("diff", "2").out
    assert "+name() { echo wrong; }\n" in text
    assert "prices" not in text


def test_a_diff_stat_has_the_files_and_line_counts(bae: Bae):
    text = bae("diff", "prices", "--stat").out
    assert "prices.sh      | 1 +\n" in text
    assert "2 files changed, 3 insertions(+)" in text


def test_a_task_without_work_has_no_diff_and_the_error_has_a_fix(bae: Bae):
    failed = bae("diff", "stocks", code=1)
    assert "nothing is written for stocks yet: it is blocked  [bae-team-unknown]" in failed.err
    assert "bae team run" in failed.err
    assert "did you mean prices" in bae("diff", "price", code=1).err


def test_a_diff_at_a_terminal_has_colors(bae: Bae, monkeypatch: pytest.MonkeyPatch):
    commit = commit_files(Path(), {"bell.txt": "a\x1b]0;title\x07b\n"})
    git(Path(), "branch", "-f", "bae/task-2-orders", commit)
    terminal = Console(force_terminal=True, color_system="standard", highlight=False)
    monkeypatch.setattr(team_review, "out", lambda: terminal)
    text = bae("diff", "orders").out
    assert "\x1b[32m+a\\x1b]0;title\\x07b" in text
    assert "\x1b[1m+++ b/bell.txt" in text


# The log of a task


def test_a_log_has_questions_edits_tests_and_merges_in_order(bae: Bae):
    result = bae("log", "prices")
    first, *lines = result.out.splitlines()
    assert first.startswith("prices  prices  completed, 2 attempts, 2 LM calls")
    labels = [line[10:22].strip() for line in lines]
    begun = ["task", "asked", "edited", "tested", "correction"]
    assert labels[:5] == begun
    assert labels[5:8] == ["asked", "edited", "tested"]
    assert labels[-2:] == ["merged", "task"]
    assert labels.count("tested") == 2  # a tree that was tested is not tested again, or shown twice
    assert "1 of 1 tests failed: prices.test.sh" in result.out
    assert ["cost unknown" in line for line in lines[:3]] == [False, True, False]
    assert "--full" in result.err


def test_a_full_log_has_the_prompts_and_the_answers(bae: Bae):
    text = bae("log", "prices", "--full").out
    assert "# Task" in text
    assert "<<<<<<< FILE prices.sh" in text
    assert "runs the tests" in text
    asked = bae("log", "stocks", "--full").out
    assert "asks you    Which tax?\n          There are two." in asked
    short = bae("log", "prices").out
    assert "runs the tests" not in short
    assert "# Task" not in short


def test_a_log_has_the_questions_to_a_person_with_answers(bae: Bae):
    assert "asks you    Which tax?" in bae("log", "stocks").out
    bae("answer", "stocks", "19 %")
    assert re.search("answered    by .+: 19 %", bae("log", "stocks").out)


def test_a_log_as_json_has_entries_with_their_times_and_usage(bae: Bae):
    data = json.loads(bae("log", "prices", "--json").out)
    assert data["task"]["key"] == "prices"
    assert [attempt["outcome"] for attempt in data["attempts"]] == ["failed", "passed"]
    times = [entry["at"] for entry in data["entries"]]
    assert times == sorted(times)
    asked = [entry for entry in data["entries"] if entry["kind"] == "lm"]
    assert [(entry["usage"]["calls"], entry["usage"]["cost"]) for entry in asked] == [(1, None)] * 2
    assert asked[0]["run"].startswith("task-1-")


def test_an_unstarted_task_has_an_empty_log(bae: Bae):
    bae("tasks", "add", "later")
    assert "nothing has happened yet" in bae("log", "later").err


async def test_a_log_has_the_tool_calls_of_a_worker(bae: Bae):
    def look(path: str) -> str:
        if path == "gone.py":
            raise ToolError("there is no gone.py")
        return f"1 the text of {path}\n2 more"

    class Ask(Node):
        text: str

        async def __call__(self) -> Submission: ...

    class Submission(Node):
        calls: Annotated[list[ToolCall], Tools(look)]
        summary: str

        async def __call__(self) -> None: ...

    Ask.__call__.__annotations__["return"] = Submission
    calls = [Call("look", path="shop.py"), Call("look", path="gone.py"), {"summary": "done"}]
    journal = MemoryJournal()
    graph = Graph(start=Ask, end=Submission)
    async with await Store.open(store_path(Path.cwd())) as store:
        task = await store.task(3)
        lm = ScriptedLM({"Submission": calls})
        await graph.arun(Ask(text="a"), lm, journal=journal, run_id=f"task-{task.id}-7-ab")
        log = await read_task_log(store, journal, task)
    found = [entry for entry in log.entries if entry.kind == "tool"]
    assert [check.text for check in found] == [
        'look(path="shop.py") -> 1 the text of shop.py 2 more',
        'look(path="gone.py") -> there is no gone.py',
    ]
    assert [entry.ok for entry in found] == [True, False]
    assert "2 more" in found[0].detail


# Merge and patch


def test_a_merge_is_one_commit_of_the_user_with_the_tasks_and_their_tests(bae: Bae):
    before = head()
    output = bae("merge").out
    assert git(Path(), "log", "-1", "--format=%an %cn %P") == f"Ana Ana {before} {head('bae/team')}"
    message = git(Path(), "log", "-1", "--format=%B")
    assert message.splitlines() == [
        "Merge 2 tasks of bae/team",
        "",
        "prices: prices",
        "- prices.test.sh::prices",
        "",
        "guide: Guide for people",
        "- without tests, as a person approved",
    ]
    assert "guide: Guide for people\n- without tests, as a person approved" in output
    assert Path("GUIDE.md").exists()
    assert git(Path(), "status", "--porcelain") == ""
    assert "there is nothing to merge: main has all merged tasks" in bae("merge").err


def test_a_merge_lists_only_work_on_the_branch_of_the_team(bae: Bae):
    git(Path(), "branch", "--force", "bae/team", "bae/team~1")  # as before the last task
    data = json.loads(bae("merge", "--json").out)
    assert [task["key"] for task in data["tasks"]] == ["prices"]
    assert data["tasks"][0]["tests"] == ["prices.test.sh::prices"]


def test_model_text_cannot_add_lines_to_a_merge_message():
    title = "Prices\n---\nFrom x\nBae-Task: bae/task-1-a 1234\x1b[31m"
    task = Task(id=1, project_id=1, key="prices", title=title)
    tests = tuple(f"test_{n}\n\ndiff --git a/x b/x" for n in range(25))
    done = Delivery("main", "bae/team", "1" * 40, "2" * 40, (ProvedTask(task, tests),))
    lines = done.message.splitlines()
    assert lines[:3] == [
        "Merge 1 task of bae/team",
        "",
        "prices: Prices --- From x Task: bae/task-1-a 1234",
    ]
    assert all(line.startswith("- test_") for line in lines[3:-1])
    assert len(lines[3:-1]) == 20
    assert lines[-1] == "- and 5 more tests"


def test_a_merge_can_create_another_branch(bae: Bae):
    before = head()
    Path("readme.txt").write_text("not committed\n")  # of no concern to another branch
    data = json.loads(bae("merge", "--into", "review", "--json").out)
    assert data["into"] == "review"
    assert data["commit"] == head("review")
    assert [task["key"] for task in data["tasks"]] == ["prices", "guide"]
    assert (head(), Path("readme.txt").read_text()) == (before, "not committed\n")
    assert git(Path(), "show", "review:prices.sh") == "name() { echo prices; }"


def test_a_merge_with_uncommitted_changes_is_refused(bae: Bae):
    before = head()
    Path("readme.txt").write_text("changed\n")
    failed = bae("merge", code=1).err
    assert "was not merged into main: it has uncommitted changes: readme.txt" in failed
    assert "--into" in failed
    assert (head(), Path("readme.txt").read_text()) == (before, "changed\n")


def test_an_untracked_file_is_not_overwritten_by_a_merge(bae: Bae):
    before = head()
    Path("prices.sh").write_text("mine\n")
    assert "prices.sh" in bae("merge", code=1).err
    assert (head(), Path("prices.sh").read_text()) == (before, "mine\n")


def test_conflicts_are_named_and_nothing_is_merged(bae: Bae):
    before = commit_files(Path(), {"prices.sh": "name() { echo mine; }\n"})
    failed = bae("merge", code=1).err
    assert "bae/team has conflicts with main in prices.sh; nothing was merged" in failed
    assert "git merge --no-ff bae/team" in failed
    assert head() == before
    assert "has conflicts" in bae("patch", code=1).err


@pytest.mark.parametrize(
    ("into", "why"),
    [
        ("bae/team", "is the team's own branch"),
        ("a..b", "is not a valid branch name"),
        ("-x", "is not a valid branch name"),
        ("elsewhere", "is checked out in"),
    ],
)
def test_a_merge_into_an_invalid_branch_is_refused(bae: Bae, into: str, why: str):
    git(Path(), "worktree", "add", "--quiet", "-b", "elsewhere", "../elsewhere")
    assert why in bae("merge", f"--into={into}", code=1).err


def test_a_merge_without_a_git_identity_is_refused(bae: Bae, monkeypatch: pytest.MonkeyPatch):
    git(Path(), "config", "--unset", "user.name")
    assert "git config user.name" in bae("merge", code=1).err
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Bea")
    bae("merge")
    assert git(Path(), "log", "-1", "--format=%an") == "Bea"


def test_a_merge_from_a_detached_head_needs_a_branch_name(bae: Bae):
    git(Path(), "checkout", "--quiet", "--detach")
    assert "name a branch with --into" in bae("merge", code=1).err
    bae("merge", "--into", "main")


def test_a_patch_can_be_applied_by_git_am(bae: Bae, tmp_path: Path):
    before = head()
    result = bae("patch", str(tmp_path / "work.patch"))
    assert "has 2 tasks for main" in result.err
    assert head() == before
    text = (tmp_path / "work.patch").read_text()
    assert text.index("- prices.test.sh") < text.index("diff --git")
    git(Path(), "am", "--quiet", str(tmp_path / "work.patch"))
    assert git(Path(), "log", "-1", "--format=%an %s") == "Ana Merge 2 tasks of bae/team"
    assert git(Path(), "diff", "--stat", "HEAD", "bae/team") == ""


def test_an_unwritable_patch_file_is_named_in_the_error(bae: Bae):
    assert "Subject: Merge 2 tasks of bae/team" in bae("patch").out
    assert "cannot be written" in bae("patch", "no/such/folder.patch", code=1).err


# Status and clean


def test_status_has_the_cost_of_each_task(bae: Bae):
    assert re.search(
        r"backend, completed, 2 LM calls, [\d,]+ tokens, cost unknown", bae("status").out
    )
    data = json.loads(bae("status", "--json").out)
    tasks = {task["key"]: task for task in data["tasks"]}
    assert tasks["prices"]["status"] == TaskStatus.COMPLETED
    assert tasks["prices"]["branch"] == "bae/task-1-prices"
    spent = tasks["prices"]["spent"]
    assert (spent["calls"], spent["cost"], spent["unpriced"]) == (2, None, 2)
    assert data["spent"]["cost"] is None
    assert sum(task["spent"]["calls"] for task in tasks.values()) == data["spent"]["calls"]


def test_only_branches_of_merged_tasks_are_deleted_on_request(bae: Bae):
    listed = ["bae/task-1-prices", "bae/task-4-guide"]
    assert bae("clean", "--dry-run").out.split() == listed
    assert head("bae/task-1-prices")
    assert json.loads(bae("clean", "--json").out) == {"branches": listed, "deleted": True}
    left = git(Path(), "branch", "--format=%(refname:short)").split()
    assert left == ["bae/task-2-orders", "bae/task-3-stocks", "bae/team", "main"]
    assert "0 branches deleted" in bae("clean").err
    assert "prices.sh" in bae("diff", "prices", "--stat").out


def test_a_branch_with_newer_work_or_a_worktree_is_not_deleted(bae: Bae):
    git(Path(), "worktree", "add", "--quiet", "../guide", "bae/task-4-guide")
    git(Path(), "switch", "--quiet", "bae/task-1-prices")
    commit_files(Path(), {"more.txt": "more\n"})
    git(Path(), "switch", "--quiet", "main")
    assert bae("clean").out == ""


def test_a_mistyped_option_exits_with_the_usage_code(bae: Bae):
    assert "--stat" in bae("diff", "prices", "--stats", code=2).err
