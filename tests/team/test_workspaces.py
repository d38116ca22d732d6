"""Worktrees of tasks: apart from each other, prepared, and never removed with work in them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from bae.team.git import Conflict, GitError
from bae.team.repository import read_code
from bae.team.sandbox import Ran
from bae.team.workspaces import WorkspaceError
from git_repositories import (
    TEAM,
    a_process_at_work,
    commit_files,
    descendants,
    git,
    kill_all,
    list_leftovers,
    make_repository,
    open_team,
    slow_checkout,
    write,
)

TASK = "bae/task-1-login"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(
        tmp_path / "project", {"a.txt": "a\n", ".gitignore": "ignored/\n.env*\n"}
    )


networked: list[Path] = []


async def run(command: tuple[str, ...], cwd: Path, network: bool) -> Ran:
    networked.extend([cwd] if network else [])
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=pipe, stderr=-2)
    output, _ = await process.communicate()
    return Ran(process.returncode, output.decode(), 0.0, "exit", "none")


async def test_ten_worktrees_at_once_without_an_error(root: Path):
    teams = [await open_team(root) for _ in range(2)]  # as two processes would

    async def work(number: int) -> None:
        workspaces, _ = teams[number % 2]
        for turn in range(2):
            workspace = await workspaces.start(f"bae/task-{number}-x")
            write(workspace.path, {f"{number}.txt": f"{number} {turn}\n"})
            assert await workspace.commit([f"{number}.txt"], f"{number}")
            await workspaces.remove(workspace)

    await asyncio.gather(*map(work, range(10)))

    assert list_leftovers(root) == []
    for number in range(10):
        assert (
            git(root, "log", "--format=%s", f"main..bae/task-{number}-x") == f"{number}\n{number}"
        )


async def test_a_task_starts_at_the_teams_head_on_its_own_branch(root: Path):
    git(root, "config", "branch.autoSetupMerge", "always")
    workspaces, integration = await open_team(root)
    commit_files(root, {"later.txt": "not the team's"})

    workspace = await workspaces.start(TASK)

    assert workspace.base == await integration.head() == await workspace.head()
    assert not (workspace.path / "later.txt").exists()
    assert git(workspace.path, "branch", "--show-current") == TASK
    assert "branch" not in git(root, "config", "--list", "--local").replace("branch.autoset", "")
    assert not workspace.path.is_relative_to(root)
    await workspaces.remove(workspace)


async def test_untracked_files_are_copied_but_never_secrets(root: Path):
    private_key = "-----BEGIN RSA PRIVATE" + " KEY-----"
    included = {
        "ignored/data.json": "{}",
        "ignored/deep/x": "x",
        "local.cfg": "c",
        ".env.example": "",
    }
    secret = {
        ".env": "K=1",
        ".env.local": "K=1",
        "ignored/id_rsa": "k",
        "ignored/server.key": "k",
        "ignored/x.txt": private_key,
        "ignored/my_secrets.json": "{}",
        "ignored/.ssh/config": "x",
        "ignored/plain.txt": "key = sk-ant-" + "a" * 40,
    }
    write(root, {**included, **secret, "other.txt": "untracked, not named"})
    write(root, {".worktreeinclude": "ignored/\n.env*\nlocal.cfg\n"})
    (root / "ignored" / "out").symlink_to("/etc/passwd")
    workspaces, _ = await open_team(root)

    workspace = await workspaces.start(TASK)

    for name in included:
        assert (workspace.path / name).exists(), name
    for name in (*secret, "ignored/out", "other.txt"):
        assert not (workspace.path / name).exists(), name
    assert set(workspace.left_out) == {*secret, "ignored/out"}
    assert await workspace.uncommitted() == ()
    with pytest.raises(WorkspaceError, match="only the user"):
        await workspace.commit(["./.WorktreeInclude"], "more for me")
    assert await workspaces.remove(workspace) is None


async def test_the_setup_command_is_run_once_and_every_worktree_has_a_copy(root: Path):
    setup = ("sh", "-c", "mkdir -p ignored && echo ran >> ignored/log")
    workspaces, _ = await open_team(root, setup=setup, run=run)

    workspace = await workspaces.start(TASK)
    again = await workspaces.start(TASK)

    assert again.path == workspace.path
    assert (workspace.path / "ignored" / "log").read_text() == "ran\n"
    async with workspaces.scratch("main") as scratch:
        assert (scratch.path / "ignored" / "log").read_text() == "ran\n"
    assert not scratch.path.exists()
    await workspaces.remove(workspace)


async def test_unignored_files_made_by_setup_are_not_shown_to_an_llm(root: Path):
    setup = ("sh", "-c", "mkdir .venv app.egg-info && touch .venv/b.py app.egg-info/c.py")
    workspaces, _ = await open_team(root, setup=setup, run=run)
    before = await read_code(workspaces.repository)

    workspace = await workspaces.start(TASK)
    (workspace.path / "new.py").write_text("y = 1\n")

    assert (workspace.path / ".venv" / "b.py").exists()
    shown = await read_code(workspaces.repository, workspace.checkout)
    assert set(shown.names) == {*before.names, "new.py"}
    await workspaces.remove(workspace)


async def test_a_failed_setup_command_is_reported_with_its_output_and_run_again(root: Path):
    setup = ("sh", "-c", "echo no network; test -e ../there")
    workspaces, _ = await open_team(root, setup=setup, run=run)

    with pytest.raises(WorkspaceError, match="no network"):
        await workspaces.start(TASK)
    with pytest.raises(WorkspaceError, match="failed with 1"):
        async with workspaces.scratch("main"):
            pass
    (workspaces.directory / "setup" / "there").touch()
    workspace = await workspaces.start(TASK)

    await workspaces.remove(workspace)


async def test_a_start_that_is_cancelled_after_git_made_the_worktree_leaves_no_worktree(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    workspaces, _ = await open_team(root)
    merge_base = workspaces.repository.merge_base

    async def cancelled(one: str, other: str) -> str | None:
        assert list_leftovers(root) != []
        starting.cancel()
        return await merge_base(one, other)

    monkeypatch.setattr(workspaces.repository, "merge_base", cancelled)
    starting = asyncio.create_task(workspaces.start(TASK))
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert list_leftovers(root) == []


async def test_a_directory_that_is_not_a_worktree_is_not_touched(root: Path):
    workspaces, _ = await open_team(root)
    path = workspaces.directory / "bae.task-1-login"
    write(path, {"mine.txt": "mine\n"})
    with pytest.raises(GitError, match="already exists"):
        await workspaces.start(TASK)
    assert (path / "mine.txt").read_text() == "mine\n"


async def test_uncommitted_work_is_stored_when_a_worktree_is_removed(root: Path):
    workspaces, _ = await open_team(root)
    workspace = await workspaces.start(TASK)
    write(workspace.path, {"a.txt": "changed\n", "new.txt": "new\n", "done.txt": "done\n"})
    write(workspace.path, {"__pycache__/x.pyc": "", "ignored/x": "x"})
    git(make_repository(workspace.path / "nested"), "status")
    await workspace.commit(["done.txt"], "done")

    kept = await workspaces.remove(workspace)

    assert kept is not None
    assert kept.startswith("refs/bae/kept/task-1-login/")
    assert git(root, "diff", "--name-only", TASK, kept).split() == [
        *("a.txt", "nested/readme.txt", "new.txt")
    ]
    assert git(root, "show", f"{kept}:new.txt") == "new"
    assert git(root, "log", "--format=%s", f"main..{TASK}") == "done"
    assert list_leftovers(root) == []


async def test_a_branch_continues_at_its_last_commit(root: Path):
    workspaces, _ = await open_team(root)
    workspace = await workspaces.start(TASK)
    write(workspace.path, {"a.txt": "first try\n"})
    first = await workspace.commit(["a.txt"], "first try")
    await workspaces.remove(workspace)

    again = await workspaces.start(TASK)

    assert await again.head() == first
    assert await again.changed() == ("a.txt",)
    assert "+first try" in await again.diff()
    await workspaces.remove(again)


async def test_an_update_brings_newly_merged_commits(root: Path):
    workspaces, integration = await open_team(root)
    one, two = await workspaces.start(TASK), await workspaces.start("bae/task-2-other")
    write(two.path, {"two.txt": "two\n"})
    await two.commit(["two.txt"], "two")
    await integration.integrate("bae/task-2-other", "Two")
    write(one.path, {"one.txt": "one\n"})
    await one.commit(["one.txt"], "one")

    assert await one.update() is None

    assert (one.path / "two.txt").read_text() == "two\n"
    assert one.base == await integration.head()
    assert await one.changed() == ("one.txt",)
    assert await one.update() is None
    for workspace in (one, two):
        assert await workspaces.remove(workspace) is None


async def test_an_update_leaves_a_conflict_in_the_files(root: Path):
    workspaces, integration = await open_team(root)
    one, two = await workspaces.start(TASK), await workspaces.start("bae/task-2-other")
    for workspace, text in ((one, "mine\n"), (two, "theirs\n")):
        write(workspace.path, {"a.txt": text})
        await workspace.commit(["a.txt"], text)
    await integration.integrate("bae/task-2-other", "Two")

    conflict = await one.update()

    assert isinstance(conflict, Conflict)
    assert conflict.files == ("a.txt",)
    text = (one.path / "a.txt").read_text()
    assert text.startswith(f"<<<<<<< refs/heads/{TEAM}\ntheirs\n")
    assert text.endswith(f"mine\n>>>>>>> refs/heads/{TASK}\n")
    for workspace in (one, two):
        await workspaces.remove(workspace)


async def test_an_update_never_overwrites_uncommitted_work(root: Path):
    workspaces, integration = await open_team(root)
    one, two = await workspaces.start(TASK), await workspaces.start("bae/task-2-other")
    write(two.path, {"a.txt": "theirs\n", "new.txt": "theirs\n"})
    await two.commit(["a.txt", "new.txt"], "two")
    await integration.integrate("bae/task-2-other", "Two")
    write(one.path, {"new.txt": "mine\n"})

    with pytest.raises(GitError, match="overwritten"):
        await one.update()

    assert (one.path / "new.txt").read_text() == "mine\n"
    for workspace in (one, two):
        await workspaces.remove(workspace)


async def test_files_that_tests_made_unreadable_are_stored_and_removed_too(root: Path):
    workspaces, _ = await open_team(root)
    workspace = await workspaces.start(TASK)
    write(workspace.path, {"x/y/z": "z"})
    for name in ("x/y/z", "x/y", "a.txt"):
        (workspace.path / name).chmod(0)

    kept = await workspace.keep("tests ran")

    assert git(root, "diff", "--name-only", TASK, str(kept)) == "x/y/z"
    for name in ("x/y/z", "x/y", "a.txt"):  # root could read them before, others could not
        assert (workspace.path / name).stat().st_mode & 0o400, name
    (workspace.path / "x").chmod(0)
    await workspaces.remove(workspace)
    assert list_leftovers(root) == []


# What a killed run leaves


WORKING = (
    f"w = await workspaces.start({TASK!r}); write(w.path, {{'x.txt': 'not committed', "
    "'a.txt': 'changed'}); await w.commit(['a.txt'], 'a'); print('ready', flush=True); "
    "await asyncio.sleep(60)"
)


async def test_leftovers_of_a_killed_process_are_stored_and_cleaned_by_the_next_process(root: Path):
    process = a_process_at_work(root, WORKING)
    assert process.stdout is not None
    process.stdout.readline()
    workspaces, integration = await open_team(root)

    with pytest.raises(WorkspaceError, match="another team is working"):
        await integration.recover(patience=0.05)
    kill_all(process)
    lock = root / ".git" / "worktrees" / "bae.task-1-login" / "index.lock"
    lock.touch()
    (root / ".git" / "refs" / "heads" / "bae" / "task-1-login.lock").touch()
    done = await integration.recover()

    assert done.worktrees == ["task-1-login"]
    assert done.problems == []
    assert git(root, "show", f"{done.kept[0]}:x.txt") == "not committed"
    assert git(root, "show", f"{TASK}:a.txt") == "changed"
    assert list_leftovers(root) == []
    workspace = await workspaces.start(TASK)
    assert await workspace.changed() == ("a.txt",)
    await workspaces.remove(workspace)


async def test_a_half_created_worktree_is_created_again_after_a_kill(root: Path, tmp_path: Path):
    gate, seen = slow_checkout(root, tmp_path)
    process = a_process_at_work(root, f"await workspaces.start({TASK!r})")
    await asyncio.to_thread(seen.read_bytes)
    kill_all(process)
    gate.unlink()
    assert git(root, "worktree", "list").count("\n") == 1

    workspaces, integration = await open_team(root)
    done = await integration.recover()

    assert (done.worktrees, done.kept, done.problems) == (["task-1-login"], [], [])
    assert list_leftovers(root) == []
    workspace = await workspaces.start(TASK)
    assert await workspace.changed() == ()
    await workspaces.remove(workspace)


BEGUN = {"locked": "initializing\n", "gitdir": ""}


@pytest.mark.parametrize("written", [{}, {"locked": ""}, {"locked": "initializing\n"}, BEGUN])
async def test_leftover_metadata_of_a_half_created_worktree_is_cleaned(
    root: Path, written: dict[str, str]
):
    workspaces, integration = await open_team(root)
    about = root / ".git" / "worktrees" / "bae.task-1-login"
    about.mkdir(parents=True)
    write(about, written)
    if written == BEGUN:
        (workspaces.directory / "bae.task-1-login").mkdir(parents=True)

    workspace = await workspaces.start(TASK)
    await workspaces.remove(workspace)
    about.mkdir()
    write(about, written)
    done = await integration.recover()

    assert done.problems == []
    assert list_leftovers(root) == []


async def test_recovery_waits_for_the_commands_of_a_killed_process(root: Path, tmp_path: Path):
    gate, seen = slow_checkout(root, tmp_path)
    process = a_process_at_work(root, f"await workspaces.start({TASK!r})")
    await asyncio.to_thread(seen.read_bytes)
    still_there = descendants(process.pid)
    kill_all(process, commands=False)
    _, integration = await open_team(root)

    with pytest.raises(WorkspaceError, match="another team is working"):
        await integration.recover(patience=0.05)
    for pid in still_there:
        os.kill(pid, signal.SIGKILL)
    gate.unlink()
    done = await integration.recover()

    assert done.problems == []
    assert list_leftovers(root) == []


async def test_unknown_or_locked_worktrees_are_never_removed(root: Path):
    workspaces, _ = await open_team(root)
    locked = await workspaces.start(TASK)
    git(root, "worktree", "lock", "--reason", "mine", str(locked.path))
    write(workspaces.directory, {"bae.strange/x": "x"})
    mine = root.parent / "mine"
    git(root, "worktree", "add", "--quiet", "-b", "mine", str(mine))
    write(mine, {"x.txt": "x"})

    _, later = await open_team(root)
    workspaces.repository.end_work()  # as if its process were gone
    done = await later.recover()

    assert len(done.problems) == 2
    assert "mine" in done.problems[0]
    assert locked.path.exists()
    assert (workspaces.directory / "bae.strange" / "x").exists()
    assert (mine / "x.txt").exists()
