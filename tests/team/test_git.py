"""Git commands of the team: named paths only, no hooks, nothing left by a cancellation."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from bae.team.git import BRANCHES, Checkout, Conflict, GitError, Repository, named_path
from git_repositories import commit_files, git, make_repository, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project", {"a.txt": "one\ntwo\nthree\n", "b.txt": "b\n"})


async def test_a_repository_is_found_from_any_directory_in_it(root: Path):
    (root / "deep" / "er").mkdir(parents=True)

    repository = await Repository.open(root / "deep" / "er")

    assert repository.root == root
    assert await repository.commit_id("HEAD") == git(root, "rev-parse", "HEAD")
    assert await repository.current_branch() == "main"


async def test_a_directory_without_a_repository_is_refused_with_a_fix(tmp_path: Path):
    with pytest.raises(GitError, match="not in a git work tree") as raised:
        await Repository.open(tmp_path)

    assert "git init" in (raised.value.fix or "")


async def test_a_repository_without_a_commit_is_refused_with_a_fix(tmp_path: Path):
    git(tmp_path, "init", "--quiet")
    repository = await Repository.open(tmp_path)

    with pytest.raises(GitError, match="no commit yet"):
        await repository.commit_id("HEAD")


async def test_a_new_repository_has_a_first_commit(tmp_path: Path):
    write(tmp_path / "new", {"mine.txt": "mine"})

    repository = await Repository.create(tmp_path / "new")

    assert await repository.current_branch() == "main"
    assert git(tmp_path / "new", "log", "--format=%s") == "Start"
    assert git(tmp_path / "new", "status", "--porcelain") == "?? mine.txt"


async def test_git_ignores_the_environment_of_the_caller(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = make_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.hooksPath=/somewhere'")

    repository = await Repository.open(root)

    assert repository.root == root
    assert await repository.git("config", "core.hooksPath") == "/dev/null"


async def test_only_named_files_are_committed(root: Path):
    repository = await Repository.open(root)
    write(root, {"a.txt": "changed\n", "b.txt": "changed\n", "new/c.txt": "new\n", "d.txt": "d\n"})

    commit = await repository.commit(repository.checkout, ["a.txt", "new/c.txt"], "Two files")

    assert commit == git(root, "rev-parse", "main")
    assert git(root, "show", "--format=%s", "--name-only", "HEAD").split("\n") == [
        *("Two files", "", "a.txt", "new/c.txt")
    ]
    assert git(root, "status", "--porcelain").split("\n") == [" M b.txt", "?? d.txt"]


async def test_a_deleted_file_is_removed_by_a_commit(root: Path):
    repository = await Repository.open(root)
    (root / "b.txt").unlink()

    assert await repository.commit(repository.checkout, ["a.txt"], "nothing") is None
    assert await repository.commit(repository.checkout, ["b.txt"], "removed") is not None
    assert git(root, "ls-files") == "a.txt"


async def test_a_file_can_become_a_directory(root: Path):
    repository = await Repository.open(root)
    (root / "b.txt").unlink()
    write(root, {"b.txt/inside": "x"})

    await repository.commit(repository.checkout, ["b.txt/inside", "b.txt"], "a directory")

    assert git(root, "ls-files") == "a.txt\nb.txt/inside"
    assert await repository.read_files("HEAD", ["b.txt", "b.txt/inside"]) == [None, b"x"]


async def test_odd_file_names_are_committed_literally(root: Path):
    repository = await Repository.open(root)
    names = ["-f", "*", ":(glob)x", "with\nline", "ü ñ.txt", " space ", 'quo"te', "[a-z].txt"]
    write(root, dict.fromkeys(names, "x"))

    await repository.commit(repository.checkout, names, "odd names")

    changed = await repository.changed_files("HEAD~1", "HEAD")
    assert sorted(changed) == sorted(names)


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "/etc/passwd", "../x", "a/../../x", "x\0y", "\ud800"),
        *(".git/config", "sub/.git/hooks/pre-commit", ".GIT/config", ".git./config"),
    ],
)
def test_a_path_outside_the_repository_or_inside_git_is_refused(path: str):
    with pytest.raises(GitError):
        named_path(path)


async def test_committing_links_or_directories_is_refused(root: Path):
    repository = await Repository.open(root)
    write(root, {"folder/x": "x"})
    (root / "link").symlink_to("/etc/passwd")
    (root / "linked").symlink_to(root / "folder")

    for name in ("link", "folder"):
        with pytest.raises(GitError):
            await repository.commit(repository.checkout, [name], "no")
    with pytest.raises(GitError, match="symbolic link"):
        await repository.commit(repository.checkout, ["linked/x"], "no")
    assert git(root, "rev-list", "--count", "HEAD") == "1"


async def test_a_merge_needs_no_checkout_and_moves_no_branch(root: Path):
    repository = await Repository.open(root)
    git(root, "switch", "--quiet", "-c", "work")
    commit_files(root, {"a.txt": "one\ntwo\nTHREE\n"})
    git(root, "switch", "--quiet", "main")
    head = commit_files(root, {"b.txt": "B\n"})

    merged = await repository.merge("work", "main", "Merge the work")

    assert isinstance(merged, str)
    assert git(root, "rev-parse", "main") == head
    assert git(root, "show", f"{merged}:a.txt") == "one\ntwo\nTHREE"
    assert git(root, "show", f"{merged}:b.txt") == "B"
    assert git(root, "log", "-1", "--format=%P", merged) == head
    assert git(root, "status", "--porcelain") == ""


async def test_a_conflict_has_its_files_and_both_sides_as_text(root: Path):
    repository = await Repository.open(root)
    git(root, "switch", "--quiet", "-c", "work")
    commit_files(root, {"a.txt": "one\nmine\nthree\n", "new.txt": "mine\n"})
    git(root, "rm", "--quiet", "b.txt")
    git(root, "commit", "--quiet", "-m", "removed")
    git(root, "switch", "--quiet", "main")
    commit_files(root, {"a.txt": "one\ntheirs\nthree\n", "new.txt": "theirs\n", "b.txt": "more\n"})

    conflict = await repository.merge("work", "main", "no")

    assert isinstance(conflict, Conflict)
    assert set(conflict.files) == {"a.txt", "b.txt", "new.txt"}
    for text in ("<<<<<<< main", "theirs", "||||||| ", "two", "mine", ">>>>>>> work"):
        assert text in conflict.text
    assert "b.txt deleted in work and modified in main" in conflict.text


async def test_a_conflict_of_binary_files_is_named_without_their_bytes(root: Path):
    repository = await Repository.open(root)
    for branch, byte in (("work", b"\1"), ("main", b"\2")):
        git(root, "switch", "--quiet", *(["-c"] if branch == "work" else []), branch)
        (root / "x.bin").write_bytes(b"\0" + byte)
        git(root, "add", "x.bin")
        git(root, "commit", "--quiet", "-m", branch)

    conflict = await repository.merge("work", "main", "no")

    assert isinstance(conflict, Conflict)
    assert conflict.files == ("x.bin",)
    assert "\0" not in conflict.text


async def test_a_ref_is_moved_only_from_its_expected_commit(root: Path):
    repository = await Repository.open(root)
    first = git(root, "rev-parse", "HEAD")
    second = commit_files(root, {"b.txt": "2\n"})

    assert await repository.move(BRANCHES + "x", first, None)
    assert not await repository.move(BRANCHES + "x", second, None)
    assert not await repository.move(BRANCHES + "x", second, second)
    assert await repository.move(BRANCHES + "x", second, first)
    with pytest.raises(GitError, match="cannot be set"):
        await repository.move(BRANCHES + "x/y", first, None)


async def test_constant_git_settings_are_read_only_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log, shim = tmp_path / "log", tmp_path / "bin" / "git"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\necho "$1" >> {log}\nexec {shutil.which("git")} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent), prepend=os.pathsep)
    await Repository.open(root)
    repository = await Repository.open(root)
    assert log.read_text().split() == ["version", *2 * ["rev-parse", "config"]]
    log.unlink()

    first = await repository.commit_id("HEAD")
    second = commit_files(root, {"b.txt": "2\n"})
    commits = [await repository.commit_id("main"), await repository.head(repository.checkout)]
    git(root, "pack-refs", "--all")
    commits += [await repository.resolve(name) for name in ("HEAD", f"{BRANCHES}main")]
    assert commits == 4 * [second]
    assert await repository.resolve(f"{BRANCHES}main~1") == first
    tree = git(root, "rev-parse", "main^{tree}")
    log.unlink()
    assert await repository.resolve(f"{BRANCHES}nothing") is None
    assert not log.exists()  # its files have no such branch
    git(root, "symbolic-ref", f"{BRANCHES}alias", f"{BRANCHES}main")
    assert await repository.resolve(f"{BRANCHES}alias") == second
    log.unlink()
    for _ in range(2):
        assert await repository.contains(second, first)
        assert not await repository.contains(first, second)
        assert await repository.merge_base(second, first) == first
        assert await repository.commit_id(f"{second}^") == first
        assert await repository.changed_files(f"{second}^", second) == ("b.txt",)
        assert await repository.list_files(second) == ("a.txt", "b.txt")
        assert await repository.tree_of(second) == tree
        assert await repository.find_commit("files", f"{first}..{second}") == second
    asked = "merge-base merge-base merge-base rev-parse diff-tree ls-tree rev-parse rev-list"
    assert log.read_text().split() == asked.split()
    assert not await repository.contains(first, "f" * 40)  # which may be fetched later
    assert await repository.find_commit("more", f"{first}..{BRANCHES}main") is None
    third = commit_files(root, {"b.txt": "3\n"}, "more")
    assert await repository.find_commit("more", f"{first}..{BRANCHES}main") == third


async def test_a_cancelled_commit_leaves_no_lock(root: Path):
    repository = await Repository.open(root)
    cancelled = 0
    for number in range(12):
        write(root, {"a.txt": f"{number}\n"})
        work = asyncio.create_task(
            repository.commit(repository.checkout, ["a.txt"], f"number {number}")
        )
        await asyncio.wait([work], timeout=number * 0.003)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        cancelled += work.cancelled()
        assert list((root / ".git").rglob("*.lock")) == []
        assert git(root, "diff", "--cached", "--name-only") == ""

    assert cancelled > 3
    assert git(root, "fsck", "--no-dangling") == ""


async def test_a_slow_git_command_is_ended_without_leaving_a_lock(root: Path):
    repository = await Repository.open(root, timeout=0.5)
    write(root, {".gitattributes": "*.slow filter=slow\n", "x.slow": "x"})
    git(root, "config", "filter.slow.clean", "sleep 60")

    with pytest.raises(GitError, match=r"git update-index took over 0\.5 s"):
        await repository.commit(repository.checkout, ["x.slow"], "never")

    assert list((root / ".git").rglob("*.lock")) == []


@pytest.mark.parametrize("command", ["python3 tools/clean.py", "python3 -m tools.clean"])
async def test_a_filter_does_not_run_a_script_of_a_worktree(
    command: str, root: Path, tmp_path: Path
):
    copy = "import sys\nsys.stdout.write(sys.stdin.read())\n"
    commit_files(root, {"tools/clean.py": copy, ".gitattributes": "*.dat filter=x\n"})
    git(root, "config", "filter.x.clean", command)
    git(root, "config", "filter.x.required", "true")
    repository = await Repository.open(root)
    git(root, "worktree", "add", "--quiet", "-b", "task", str(tmp_path / "tree"))
    ran = tmp_path / "ran"
    write(
        tmp_path / "tree",
        {"tools/clean.py": f"open({str(ran)!r}, 'w')\n{copy}", "a.dat": "content\n"},
    )

    at = Checkout(tmp_path / "tree", root / ".git" / "worktrees" / "tree")
    await repository.commit(at, ["tools/clean.py", "a.dat"], "mine")

    assert git(root, "show", "task:a.dat") == "content"
    assert not ran.exists()


async def test_a_replaced_git_file_in_a_worktree_is_ignored(root: Path, tmp_path: Path):
    repository = await Repository.open(root)
    git(root, "worktree", "add", "--quiet", "-b", "task", str(tmp_path / "tree"))
    evil = make_repository(tmp_path / "evil")
    ran = tmp_path / "ran"
    git(evil, "config", "core.fsmonitor", f"touch {ran}; false")
    git(evil, "config", "filter.x.clean", f"touch {ran}; cat")
    (tmp_path / "tree" / ".git").write_text(f"gitdir: {evil / '.git'}\n")
    write(tmp_path / "tree", {".gitattributes": "* filter=x\n", "a.txt": "changed\n"})

    at = Checkout(tmp_path / "tree", root / ".git" / "worktrees" / "tree")
    commit = await repository.commit(at, ["a.txt"], "mine")

    assert commit == git(root, "rev-parse", "task")
    assert not ran.exists()
