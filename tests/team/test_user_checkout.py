"""The user's checkout: moved by fast-forward only, only when clean, and never left halfway."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bae.team.git import Repository
from bae.team.integration import fast_forward
from git_repositories import (
    a_process_at_work,
    commit_files,
    contents,
    git,
    kill_all,
    list_leftovers,
    make_repository,
    open_team,
    slow_checkout,
    write,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project", {"a.txt": "a\n", ".gitignore": "*.log\n"})


def newer(root: Path, files: dict[str, str]) -> str:
    """A commit that is ahead of the user's branch."""
    git(root, "switch", "--quiet", "-c", "ahead")
    commit = commit_files(root, files)
    git(root, "switch", "--quiet", "main")
    return commit


async def test_a_clean_checkout_moves_with_its_branch(root: Path):
    commit = newer(root, {"a.txt": "new\n", "b.txt": "b\n"})
    write(root, {"untracked.txt": "mine"})

    moved = await fast_forward(await Repository.open(root), commit, branch="main")

    assert (moved.commit, moved.reason) == (commit, "")
    assert git(root, "rev-parse", "main") == commit
    assert git(root, "status", "--porcelain") == "?? untracked.txt"
    assert (root / "a.txt").read_text() == "new\n"
    assert (await fast_forward(await Repository.open(root), commit)).reason == ""


def change(root: Path) -> None:
    write(root, {"a.txt": "mine\n"})


def stage(root: Path) -> None:
    write(root, {"c.txt": "mine\n"})
    git(root, "add", "c.txt")


def add_untracked_file(root: Path) -> None:
    write(root, {"b.txt": "mine\n"})


def add_ignored_file(root: Path) -> None:
    write(root, {"b.log": "mine\n"})


def diverge(root: Path) -> None:
    commit_files(root, {"d.txt": "d\n"})


def detach(root: Path) -> None:
    git(root, "switch", "--quiet", "--detach")


def switch(root: Path) -> None:
    git(root, "switch", "--quiet", "-c", "elsewhere")


def merge(root: Path) -> None:
    (root / ".git" / "MERGE_HEAD").write_text(git(root, "rev-parse", "ahead") + "\n")


@pytest.mark.parametrize(
    ("disturb", "reason"),
    [
        (change, "uncommitted changes: a.txt"),
        (stage, "uncommitted changes: c.txt"),
        (add_untracked_file, "overwritten"),
        (add_ignored_file, "overwritten"),
        (diverge, "main has commits"),
        (detach, "on no branch"),
        (switch, "on elsewhere, not on main"),
        (merge, "not finished"),
    ],
)
async def test_a_checkout_that_cannot_move_is_unchanged_and_the_reason_is_reported(
    root: Path, disturb: Callable[[Path], None], reason: str
):
    git(root, "switch", "--quiet", "-c", "ahead")
    commit_files(root, {".gitignore": ""})
    commit = commit_files(root, {"a.txt": "new\n", "b.txt": "b\n", "b.log": "new\n"})
    git(root, "switch", "--quiet", "main")
    disturb(root)
    before = git(root, "status", "--porcelain", "--ignored"), git(root, "rev-parse", "HEAD")
    files = contents(root)

    moved = await fast_forward(await Repository.open(root), commit, branch="main")

    assert reason in moved.reason
    assert (git(root, "status", "--porcelain", "--ignored"), moved.commit) == before
    assert contents(root) == files
    assert list_leftovers(root) == []


@pytest.mark.parametrize("mine", [{}, {"a.txt": "mine\n"}], ids=["untouched", "edited"])
async def test_a_move_killed_halfway_is_completed_unless_the_user_changed_its_files(
    root: Path, tmp_path: Path, mine: dict[str, str]
):
    gate, seen = slow_checkout(root, tmp_path)
    files = {"a.txt": "new\n", "b/c.txt": "new\n", "slow.txt": "2\n", "z.txt": "z\n"}
    gate.unlink()
    before, commit = git(root, "rev-parse", "HEAD"), newer(root, files)
    gate.touch()
    process = a_process_at_work(root, f"await fast_forward(workspaces.repository, {commit!r})")
    await asyncio.to_thread(seen.read_bytes)
    kill_all(process)
    gate.unlink()
    assert (root / "a.txt").read_text() == "new\n"
    assert (root / ".git" / "index.lock").exists()
    assert git(root, "rev-parse", "HEAD") == before
    write(root, mine)

    _, integration = await open_team(root)
    await integration.recover()

    assert git(root, "rev-parse", "main") == (before if mine else commit)
    assert git(root, "status", "--porcelain") == (" M a.txt" if mine else "")
    assert mine or {name: (root / name).read_text() for name in files} == files
    assert (root / "a.txt").read_text() == mine.get("a.txt", "new\n")
    assert list_leftovers(root) == []


async def test_an_index_written_before_the_kill_is_reverted_and_moved_again(root: Path):
    before, commit = git(root, "rev-parse", "HEAD"), newer(root, {"a.txt": "new\n", "b.txt": "b\n"})
    git(root, "read-tree", "-m", "-u", before, commit)
    note = root / ".git" / "bae-fast-forward.json"
    note.write_text(f'{{"before": "{before}", "after": "{commit}"}}')

    _, integration = await open_team(root)
    await integration.recover()

    assert git(root, "rev-parse", "main") == commit
    assert git(root, "status", "--porcelain") == ""


async def test_locks_of_the_users_own_commands_stay(root: Path):
    before, commit = git(root, "rev-parse", "HEAD"), newer(root, {"a.txt": "new\n"})
    note, lock = root / ".git" / "bae-fast-forward.json", root / ".git" / "index.lock"
    note.write_text(f'{{"before": "{before}", "after": "{commit}"}}')
    os.utime(note, (0, 0))
    lock.touch()

    _, integration = await open_team(root)
    await integration.recover()

    assert git(root, "rev-parse", "main") == before
    assert lock.exists()
