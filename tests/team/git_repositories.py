"""Repositories for tests of the team, made with git itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from bae.team.git import Repository
from bae.team.integration import Integration
from bae.team.models import TestCase, TestReport
from bae.team.workspaces import Workspace, Workspaces

TEAM = "bae/team"


def git(root: Path, *args: str) -> str:
    """What git prints, as a user would see it."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    names = {"GIT_AUTHOR_NAME": "a user", "GIT_AUTHOR_EMAIL": "user@example.com"}
    names |= {"GIT_COMMITTER_NAME": "a user", "GIT_COMMITTER_EMAIL": "user@example.com"}
    done = subprocess.run(
        ["git", *args], cwd=root, env=own | names, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"git {' '.join(args)}: {done.stderr}{done.stdout}"
    return done.stdout.rstrip("\n")


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def commit_files(root: Path, files: Mapping[str, str], message: str = "files") -> str:
    """A commit of the user's."""
    write(root, files)
    git(root, "add", "--", *files)
    git(root, "commit", "--quiet", "-m", message)
    return git(root, "rev-parse", "HEAD")


def make_repository(root: Path, files: Mapping[str, str] | None = None) -> Path:
    """A user's repository with one commit on main: a copy of an earlier repository, if there is
    one."""
    files = files or {"readme.txt": "hello\n"}
    key = tuple(sorted(files.items()))
    if key not in _made:
        _made[key] = made = Path(_templates().name, str(len(_made)))
        made.mkdir()
        git(made, "init", "--quiet", "--initial-branch=main", "--template=")
        commit_files(made, files, "first")
    root.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(_made[key], root, symlinks=True)
    return root


_made: dict[tuple[tuple[str, str], ...], Path] = {}
_TEMPORARY = gettempdir()  # also where a test has its own for what it looks at


@cache
def _templates() -> TemporaryDirectory[str]:
    """Made when it is first needed: a killed process that makes no repository leaves none."""
    return TemporaryDirectory(prefix="bae-test-repositories-", dir=_TEMPORARY)


async def passing(workspace: Workspace) -> TestReport:
    """Tests that pass."""
    case = TestCase(id="test", outcome="passed")
    return TestReport(command=("true",), exit_code=0, cases=(case,))


async def open_team(root: Path, **options: Any) -> tuple[Workspaces, Integration]:
    """A team's worktrees and branch."""
    repository = await Repository.open(root)
    tests = options.pop("run_tests", passing)
    follows = options.pop("update_checkout", False)
    workspaces = Workspaces(repository, TEAM, **options)
    integration = Integration(workspaces, tests, update_checkout=follows)
    await integration.open()
    return workspaces, integration


def contents(root: Path) -> dict[str, str]:
    """The files at the top of a checkout."""
    return {path.name: path.read_text() for path in root.iterdir() if path.is_file()}


def list_leftovers(root: Path) -> list[str]:
    """What must not remain in a repository that a team is done with: worktrees, locks, notes."""
    found = git(root, "worktree", "list", "--porcelain").count("worktree ") - 1
    rest = [f"{found} worktrees"] if found else []
    rest += [str(path) for path in (root / ".git").rglob("*.lock") if not path.match("bae-*.lock")]
    rest += [str(path) for path in (root / ".git").glob("bae-fast-forward*")]
    beside = root.parent / f".{root.name}.team"
    return rest + [str(path) for path in (beside.iterdir() if beside.exists() else ())]


def a_process_at_work(root: Path, program: str) -> subprocess.Popen[str]:
    """A process that has opened a team and runs a program with its `workspaces`."""
    source = f"""
import asyncio
from pathlib import Path
from git_repositories import open_team, write
from bae.team.integration import fast_forward
async def main():
    workspaces, integration = await open_team(Path({str(root)!r}))
    {program}
asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", source], env=env, stdout=subprocess.PIPE, text=True
    )


def kill_all(process: subprocess.Popen[str], *, commands: bool = True) -> str:
    """Kill a process and its git commands like a crash. Returns the output of the process."""
    process.send_signal(signal.SIGSTOP)
    if commands:  # each in a group of its own, with what it has started
        for pid in descendants(process.pid):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    process.kill()
    return process.communicate()[0]


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    left = [pid]
    while left:
        found += (children := parents.get(left.pop(), []))
        left += children
    return found


SLOW = "sh -c 'cat; if [ -e {gate} ]; then echo > {seen}; exec sleep 60; fi'"


def slow_checkout(root: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Have git stall while it writes the file `slow.txt`, as long as the first file exists. To read
    the second one waits until it does."""
    gate, seen = tmp_path / "gate", tmp_path / "seen"
    os.mkfifo(seen)
    git(root, "config", "filter.slow.smudge", SLOW.format(gate=gate, seen=seen))
    commit_files(root, {".gitattributes": "slow.txt filter=slow\n", "slow.txt": "1\n"})
    gate.touch()
    return gate, seen
