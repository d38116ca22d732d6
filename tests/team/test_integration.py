"""The team's branch: merged in turn, tested as merged, one commit a task, and no kill harms it."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bae.team.git import Conflict, GitError
from bae.team.integration import Failed, Integrated
from bae.team.models import TestCase, TestReport
from bae.team.workspaces import Workspace, Workspaces
from git_repositories import (
    TEAM,
    commit_files,
    git,
    kill_all,
    list_leftovers,
    make_repository,
    open_team,
    passing,
    write,
)

PROCESS = Path(__file__).with_name("killed_team.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project", {"a.txt": "one\ntwo\nthree\n"})


async def real_tests(workspace: Workspace) -> TestReport:
    """What pytest says of a worktree."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=workspace.path, stdout=pipe, env=env
    )
    output, _ = await process.communicate()
    code = process.returncode
    outcome = "failed" if code else "passed"
    case = TestCase(id="all", outcome=outcome, message=output.decode())
    return TestReport(command=command, exit_code=code, cases=(case,))


async def work(workspaces: Workspaces, branch: str, files: dict[str, str]) -> Workspace:
    """A task that is done in its worktree."""
    workspace = await workspaces.start(branch)
    write(workspace.path, files)
    await workspace.commit(list(files), f"work on {branch}")
    return workspace


async def test_ten_concurrent_tasks_become_ten_tested_commits(root: Path):
    tested: list[list[str]] = []
    at_once = 0

    async def run_tests(workspace: Workspace) -> TestReport:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        tested.append(sorted(path.name for path in workspace.path.glob("task*.txt")))
        assert len(await workspace.changed()) == 2
        at_once -= 1
        return await passing(workspace)

    workspaces, integration = await open_team(root, run_tests=run_tests)

    async def task(number: int) -> None:
        branch = f"bae/task-{number}-x"
        workspace = await work(workspaces, branch, {f"task{number}.txt": "half\n"})
        write(workspace.path, {f"task{number}.txt": "done\n", f"more{number}.txt": "more\n"})
        await workspace.commit([f"task{number}.txt", f"more{number}.txt"], "second try")
        done = await integration.integrate(branch, f"Task {number}\n\nWhat it does.")
        assert isinstance(done, Integrated)
        assert await integration.merged_as(branch) == done.commit
        await workspaces.remove(workspace)

    await asyncio.gather(*map(task, range(10)))

    subjects = git(root, "log", "--format=%s", f"main..{TEAM}").split("\n")
    assert sorted(subjects) == sorted(f"Task {number}" for number in range(10))
    assert git(root, "log", "--merges", "--format=%s", TEAM) == ""
    assert sorted(map(len, tested)) == list(range(1, 11))
    assert git(root, "log", "-1", "--format=%b", TEAM).startswith("What it does.\n\nBae-Task: bae/")
    assert git(root, "branch", "--list", "bae/task-*").count("\n") == 9
    assert list_leftovers(root) == []
    assert git(root, "status", "--porcelain") == ""


async def test_failed_tests_of_merged_code_leave_the_branch_unchanged(root: Path):
    commit_files(root, {"price.py": "def price():\n    return 1\n"})
    workspaces, integration = await open_team(root, run_tests=real_tests)
    use = {"test_use.py": "from price import price\ndef test_it():\n    assert price() == 1\n"}
    one = await work(workspaces, "bae/task-1-use", use)
    two = await work(workspaces, "bae/task-2-change", {"price.py": "def price():\n    return 2\n"})
    assert isinstance(await integration.integrate("bae/task-1-use", "Use"), Integrated)
    head = await integration.head()

    failed = await integration.integrate("bae/task-2-change", "Change")

    assert isinstance(failed, Failed)
    assert "assert 2 == 1" in failed.text
    assert await integration.head() == head
    assert await integration.merged_as("bae/task-2-change") is None
    for workspace in (one, two):
        await workspaces.remove(workspace)
    assert list_leftovers(root) == []


async def test_tests_that_failed_before_a_merge_may_fail_after_it(
    root: Path,
):
    async def run_tests(workspace: Workspace) -> TestReport:
        names = [path.stem for path in workspace.path.glob("[xyz].txt")]
        cases = [
            TestCase(id=f"{name}::1", outcome="passed" if name in names else "failed")
            for name in "xyz"
        ]
        code = int(len(names) < 3)
        return TestReport(command=("x",), exit_code=code, cases=tuple(cases))

    workspaces, integration = await open_team(root, run_tests=run_tests)
    for name in "xy":
        workspace = await work(workspaces, f"bae/task-{name}", {f"{name}.txt": "done\n"})
        failed = await integration.integrate(f"bae/task-{name}", "All", tests=["z"])
        assert isinstance(failed, Failed)
        assert "no test of z has passed" in failed.text
        done = await integration.integrate(f"bae/task-{name}", "Named", tests=[name])
        assert isinstance(done, Integrated)
        await workspaces.remove(workspace)
    again = await work(workspaces, "bae/task-again", {"z.txt": "done\n", "x.txt": "done\n"})
    (again.path / "x.txt").unlink()
    await again.commit(["x.txt"], "breaks another")
    failed = await integration.integrate("bae/task-again", "Breaks", tests=["z"])
    assert isinstance(failed, Failed)
    await workspaces.remove(again)
    assert list_leftovers(root) == []


async def test_a_merge_conflict_is_resolved_in_the_worktree(root: Path):
    workspaces, integration = await open_team(root)
    one = await work(workspaces, "bae/task-1-x", {"a.txt": "one\nTWO\nthree\n"})
    two = await work(workspaces, "bae/task-2-y", {"a.txt": "one\nzwei\nthree\n"})
    assert isinstance(await integration.integrate("bae/task-1-x", "One"), Integrated)

    conflict = await integration.integrate("bae/task-2-y", "Two")
    assert isinstance(conflict, Conflict)
    assert "CONFLICT (content): Merge conflict in a.txt" in conflict.text
    assert "TWO" in conflict.text
    assert "zwei" in conflict.text

    assert isinstance(await two.update(), Conflict)
    unresolved = await integration.integrate("bae/task-2-y", "Two")
    assert isinstance(unresolved, Conflict)
    assert unresolved.files == ("a.txt",)
    assert "a.txt:2: <<<<<<< refs/heads/bae/team" in unresolved.text

    write(two.path, {"a.txt": "one\nTWO zwei\nthree\n"})
    await two.commit(["a.txt"], "resolved")
    assert isinstance(await integration.integrate("bae/task-2-y", "Two"), Integrated)

    assert git(root, "show", f"{TEAM}:a.txt") == "one\nTWO zwei\nthree"
    assert git(root, "log", "--format=%s", f"main..{TEAM}") == "Two\nOne"
    for workspace in (one, two):
        await workspaces.remove(workspace)


async def test_work_is_merged_only_once(root: Path):
    workspaces, integration = await open_team(root)
    workspace = await work(workspaces, "bae/task-1-x", {"b.txt": "b\n"})

    first = await integration.integrate("bae/task-1-x", "One")
    again = await integration.integrate("bae/task-1-x", "One")
    await workspaces.remove(workspace)
    restarted = await workspaces.start("bae/task-1-x")

    assert isinstance(first, Integrated)
    assert again == Integrated(first.commit, None)
    assert await restarted.head() == first.commit
    assert await restarted.changed() == ()
    await workspaces.remove(restarted)


async def test_a_branch_that_moved_during_the_tests_is_merged_and_tested_again(root: Path):
    runs = 0

    async def run_tests(workspace: Workspace) -> TestReport:
        nonlocal runs
        runs += 1
        if runs == 1:
            git(root, "update-ref", f"refs/heads/{TEAM}", commit_files(root, {"other.txt": "o\n"}))
        return await passing(workspace)

    workspaces, integration = await open_team(root, run_tests=run_tests)
    workspace = await work(workspaces, "bae/task-1-x", {"b.txt": "b\n"})

    assert isinstance(await integration.integrate("bae/task-1-x", "One"), Integrated)

    assert runs == 2
    assert git(root, "ls-tree", "--name-only", TEAM).split() == ["a.txt", "b.txt", "other.txt"]
    await workspaces.remove(workspace)


async def test_a_cancelled_integration_changes_nothing_and_leaves_nothing(root: Path):
    testing = asyncio.Event()

    async def run_tests(workspace: Workspace) -> TestReport:
        testing.set()
        await asyncio.Event().wait()
        raise AssertionError

    workspaces, integration = await open_team(root, run_tests=run_tests)
    workspace = await work(workspaces, "bae/task-1-x", {"b.txt": "b\n"})
    task = asyncio.create_task(integration.integrate("bae/task-1-x", "One"))
    await testing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await integration.merged_as("bae/task-1-x") is None
    assert git(root, "rev-parse", TEAM) == git(root, "rev-parse", "main")
    await workspaces.remove(workspace)
    assert list_leftovers(root) == []


async def test_the_team_merges_commits_of_the_user(root: Path):
    workspaces, integration = await open_team(root)
    assert await integration.catch_up() is None
    newer = commit_files(root, {"mine.txt": "mine\n"})
    assert await integration.catch_up() == Integrated(newer, None)
    workspace = await work(workspaces, "bae/task-1-x", {"b.txt": "b\n"})
    await integration.integrate("bae/task-1-x", "One")
    commit_files(root, {"mine.txt": "more\n"})

    assert "main has commits" in (await integration.deliver()).reason
    assert isinstance(await integration.catch_up(), Integrated)
    moved = await integration.deliver(branch="main")

    assert moved.reason == ""
    assert (root / "b.txt").read_text() == "b\n"
    assert (root / "mine.txt").read_text() == "more\n"
    assert git(root, "rev-parse", "main") == git(root, "rev-parse", TEAM)
    await workspaces.remove(workspace)


async def test_a_contradicting_commit_of_the_user_is_reported_as_a_conflict(root: Path):
    workspaces, integration = await open_team(root)
    workspace = await work(workspaces, "bae/task-1-x", {"a.txt": "theirs\n"})
    await integration.integrate("bae/task-1-x", "One")
    commit_files(root, {"a.txt": "mine\n"})

    conflict = await integration.catch_up()

    assert isinstance(conflict, Conflict)
    assert "mine" in conflict.text
    await workspaces.remove(workspace)


async def test_a_merge_keeps_edits_in_a_checkout_of_the_teams_branch(root: Path):
    workspaces, integration = await open_team(root, update_checkout=True)
    git(root, "switch", "--quiet", TEAM)
    one = await work(workspaces, "bae/task-1-x", {"b.txt": "b\n"})

    integration.update_checkout = False
    with pytest.raises(GitError, match="switch to another branch"):
        await integration.integrate("bae/task-1-x", "One")
    assert not (root / "b.txt").exists()
    integration.update_checkout = True
    assert isinstance(await integration.integrate("bae/task-1-x", "One"), Integrated)
    assert (root / "b.txt").exists()
    assert git(root, "status", "--porcelain") == ""
    write(root, {"a.txt": "an edit\n"})
    two = await work(workspaces, "bae/task-2-x", {"c.txt": "c\n"})
    with pytest.raises(GitError, match="uncommitted changes"):
        await integration.integrate("bae/task-2-x", "Two")
    assert (root / "a.txt").read_text() == "an edit\n"
    for workspace in (one, two):
        await workspaces.remove(workspace)


HOOKS = (
    *("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-merge-commit"),
    *("post-checkout", "post-merge", "post-index-change", "reference-transaction", "post-rewrite"),
)


async def test_integration_never_runs_git_hooks(root: Path, tmp_path: Path):
    ran = tmp_path / "ran"
    for folder in (root / ".git" / "hooks", tmp_path / "hooks"):
        folder.mkdir(exist_ok=True)
        for hook in HOOKS:
            (folder / hook).write_text(f"#!/bin/sh\necho {hook} >> {ran}\n")
            (folder / hook).chmod(0o755)
    git(root, "config", "core.hooksPath", str(tmp_path / "hooks"))
    commit_files(root, {"x.txt": "the user's hooks run\n"})
    assert "post-commit" in ran.read_text()
    ran.unlink()

    workspaces, integration = await open_team(root)
    workspace = await work(workspaces, "bae/task-1-x", {"b.txt": "b\n"})
    await integration.integrate("bae/task-1-x", "One")
    other = await work(workspaces, "bae/task-2-x", {"c.txt": "c\n"})
    await integration.integrate("bae/task-2-x", "Two")
    await workspace.update()
    assert (await integration.deliver()).reason == ""
    write(other.path, {"left.txt": "left\n"})
    for leftover in (workspace, other):
        await workspaces.remove(leftover)
    await integration.recover()

    assert not ran.exists()


# Killed at any point


async def run_with_kills(root: Path, kills: int, seed: int) -> int:
    """Run a team again and again, with more tasks where it was done too soon to be killed, then to
    its end, and see that nothing is lost. Returns how many tasks there were."""
    chance = random.Random(seed)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said: list[str] = []
    tasks = 3
    while kills or said[-1] != "done":
        command = [sys.executable, str(PROCESS), str(root), str(tasks)]
        start = partial(subprocess.Popen[str], env=env, stdout=subprocess.PIPE, text=True)
        process = await asyncio.to_thread(start, command)
        assert process.stdout is not None
        process.stdout.readline()
        try:
            wait = chance.uniform(0, 0.8) if kills else None
            rest, _ = await asyncio.to_thread(process.communicate, timeout=wait)
            tasks += 1 if kills else 0
        except subprocess.TimeoutExpired:
            rest = kill_all(process, commands=chance.random() < 0.5)
            kills -= 1
        said += rest.strip().split("\n")
        assert process.returncode in (0, -9), rest
    for line in said:
        kind, _, what = line.partition(" ")
        if kind == "committed":
            assert git(root, "for-each-ref", "--contains", what), f"{what} is on no branch"
        elif kind == "wrote":
            kept = git(root, "for-each-ref", "--format=%(refname)", f"refs/bae/kept/task-{what}-x")
            assert kept, f"{line!r} of {said}"
            grep = ("grep", "-h", "^note", *kept.split("\n"), "--", "notes.txt")
            assert set(git(root, *grep).split("\n")) == {f"note {what}"}
    return tasks


def check_that_all_is_done(root: Path, tasks: int) -> None:
    subjects = git(root, "log", "--format=%s", "main").split("\n")
    assert sorted(subjects) == sorted([*(f"Task {number}" for number in range(tasks)), "first"])
    assert git(root, "rev-parse", "main") == git(root, "rev-parse", TEAM)
    assert git(root, "status", "--porcelain") == ""
    assert list_leftovers(root) == []
    assert git(root, "fsck", "--no-dangling") == ""


async def test_a_repeatedly_killed_team_ends_like_an_undisturbed_team(root: Path):
    check_that_all_is_done(root, await run_with_kills(root, kills=2, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
async def test_a_team_survives_fifty_kills(root: Path, seed: int):
    check_that_all_is_done(root, await run_with_kills(root, kills=5, seed=seed))
