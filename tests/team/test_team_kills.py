"""A team that is killed at random instants ends like an undisturbed team: no work is lost, no
task is stranded, and nothing is left over. Fifty kills: `pytest -m slow
tests/team/test_team_kills.py`."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bae.team.models import TaskStatus
from bae.team.store import Store
from bounded import some_turns
from git_repositories import git, kill_all, list_leftovers
from team_goal_process import ANSWER, END, FILES, PLAN, SCRIPT
from team_parts import NODE, a_project
from team_scripts import TeamScript, run_team

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no node"),
]
PROCESS = Path(__file__).with_name("team_goal_process.py")
BOUND = 120  # seconds that a run may take; an undisturbed one takes a few
AGENTS = 4


async def set_up(tmp_path: Path) -> tuple[Path, list[str]]:
    """The goal, and the command that works on it."""
    about: dict[str, Any] = {"files": FILES, "command": NODE, "update_checkout": True}
    async with a_project(tmp_path, *PLAN, **about) as (store, project, _):
        log = tmp_path / "asked"
        log.touch()
        command = [sys.executable, str(PROCESS), str(project.id), str(store.path), str(log)]
        return Path(project.root), command


def start(command: list[str], temporary: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    env["TMPDIR"] = str(temporary)
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def processes_at(place: Path) -> list[str]:
    """What still runs there, or was started for it."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                cwd, words = os.readlink(entry / "cwd"), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(place) in cwd or str(place).encode() in words:
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def wait_for_the_end(place: Path) -> None:
    """Wait for processes that a kill has left: they end by themselves."""
    until = time.monotonic() + BOUND
    while left := processes_at(place):
        assert time.monotonic() < until, left
        time.sleep(0.05)


async def check_end(root: Path, tmp_path: Path, kills: int) -> None:
    """What must be true of a team that has ended."""
    async with await Store.open(tmp_path / "state" / "team.db") as store:
        project = (await store.projects())[0]
        tasks = await store.tasks(project.id)
        agents = await store.agents(project.id)
        asked_people = await store.blockers(project.id)
    assert {task.key: task.status for task in tasks} == {
        task.key: TaskStatus.COMPLETED for task in PLAN
    }
    assert [blocker.question for blocker in asked_people] == ["Which price?"]
    assert [agent for agent in agents if agent.status == "working"] == []
    assert git(root, "status", "--porcelain") == ""
    assert {name: (root / name).read_text() for name in git(root, "ls-files").split()} == END
    subjects = git(root, "log", "--format=%s", "--reverse").split("\n")
    assert sorted(subjects[1:]) == sorted(task.title for task in PLAN)
    for task in tasks:
        assert git(root, "branch", "--list", task.branch, "--format=%(refname:short)")
        assert task.commit is not None
        assert git(root, "merge-base", "--is-ancestor", task.commit, "HEAD") == ""
    assert list_leftovers(root) == []
    assert os.listdir(tmp_path / "temporary") == []
    await asyncio.to_thread(wait_for_the_end, tmp_path)
    # An answer that was given is in the journal: what is asked again was in progress in a kill.
    asked = Counter((tmp_path / "asked").read_text().splitlines())
    # Shipping is asked for once more with the answer of a person, as a new attempt.
    assert sum(asked.values()) - len(asked) <= kills * AGENTS + 1


async def answer(tmp_path: Path) -> bool:
    """Answer what the team asks, as a person does between two runs. Returns whether it asked."""
    async with await Store.open(tmp_path / "state" / "team.db") as store:
        asked = await store.blockers(1, open_only=True)
        for each in asked:
            await store.answer_blocker(each.id, ANSWER)
    return bool(asked)


async def run_killed(tmp_path: Path, chance: random.Random, kills: int, longest: float) -> int:
    """Have a team reach its goal, killed so often at most. Returns how often it was."""
    root, command = await set_up(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = 0
    while True:
        process = start(command, temporary)
        # The instant is random, and that is the point of the test.
        timeout = chance.uniform(0.3, longest) if done < kills else BOUND
        try:
            await asyncio.to_thread(process.wait, timeout)
        except subprocess.TimeoutExpired:
            kill_all(process, commands=chance.random() < 0.5)
            assert done < kills, "it does not end"
            done += 1
            await answer(tmp_path)
            continue
        output, _ = process.communicate()
        if not await answer(tmp_path):
            assert (process.returncode, output) == (0, "done\n")
            break
    await check_end(root, tmp_path, done)
    return done


@pytest.mark.slow
async def test_a_team_that_is_killed_repeatedly_ends_like_an_undisturbed_team(
    tmp_path: Path,
) -> None:
    assert await run_killed(tmp_path, random.Random(16), 4, 5)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [40])
async def test_a_cancelled_or_timed_out_run_leaves_no_task_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    chance, goal = random.Random(rounds), 0
    while rounds > 0:
        place = tmp_path / str(goal)
        (place / "temporary").mkdir(parents=True)
        monkeypatch.setattr(tempfile, "tempdir", str(place / "temporary"))
        rounds -= await run_cancelled(place, chance, rounds)
        goal += 1


async def run_cancelled(tmp_path: Path, chance: random.Random, rounds: int) -> int:
    """Have a team reach its goal, cut off so often at most. Returns how often it was."""
    root, _ = await set_up(tmp_path)
    done = 0
    async with await Store.open(tmp_path / "state" / "team.db") as store:
        project = (await store.projects())[0]
        while True:
            longest = chance.uniform(0.05, 5) if done < rounds else BOUND
            timed = chance.random() < 0.5
            lm = TeamScript(SCRIPT)
            run = asyncio.create_task(
                run_team(project, store, lm, timeout=longest if timed else None)
            )
            await asyncio.wait([run], timeout=None if timed else longest)
            run.cancel()
            try:
                summary = await run
            except asyncio.CancelledError:
                pass
            else:
                if summary.ended == "done":
                    break
                if summary.ended == "waiting":
                    assert await answer(tmp_path)
                    continue
                assert summary.ended == "timeout"
            assert done < rounds, "it does not end"
            done += 1
            # All has ended: workers, their processes, and what is written.
            assert processes_at(tmp_path) == []
            assert len(asyncio.all_tasks()) == 1
            tasks, events = await store.tasks(project.id), await store.events(project.id)
            assert [task for task in tasks if task.status is TaskStatus.IN_PROGRESS] == []
            await some_turns()
            assert await store.events(project.id) == events
            assert list_leftovers(root) == []
    await check_end(root, tmp_path, done)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_a_team_survives_fifty_kills(tmp_path: Path, seed: int) -> None:
    chance, kills, goal = random.Random(seed), 0, 0
    while kills < 10:
        kills += await run_killed(tmp_path / str(goal), chance, 10 - kills, 8)
        goal += 1
