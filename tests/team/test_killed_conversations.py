"""A conversation of a worker that is killed at any instant continues: nothing is lost, no finished
call is made again, and each edit is committed once. Fifty seeds are slow tests."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bae.journal import SQLiteJournal, list_questions
from bae.team.store import Store
from bae.team.workspaces import ATTEMPT
from bounded import BOUND
from git_repositories import git, list_leftovers
from killed_conversation import CALLS, QUESTION
from team_parts import FAILING, SUB, a_project

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
PROCESS = Path(__file__).with_name("killed_conversation.py")


async def run_killed(tmp_path: Path, seed: int, most: int) -> None:
    """Have a task done by processes that are killed, `most` times at most."""
    async with a_project(tmp_path, files=FAILING) as (store, project, [task]):
        path, root = store.path, Path(project.root)
    log, chance, kills = tmp_path / "asked", random.Random(seed), 0
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    while True:
        command = [sys.executable, str(PROCESS), str(path), str(project.id), str(task.id), str(log)]
        if kills < most:
            command.append(str(chance.random()))
        done = await asyncio.to_thread(
            subprocess.run, command, env=env, capture_output=True, text=True, timeout=BOUND
        )
        if done.returncode == -9:
            kills += 1
            continue
        assert done.returncode == 0, done.stderr
        if done.stdout != f"blocked: {QUESTION}\n":
            break
        async with await Store.open(path) as store:
            for blocker in await store.blockers(project.id, open_only=True):
                await store.answer_blocker(blocker.id, "Yes.")
    assert done.stdout == "completed: \n", done.stdout + done.stderr
    assert git(root, "log", "--format=%s", "bae/team") == "Subtract\nfirst"
    assert git(root, "show", "bae/team:calc.sh") == SUB.strip()
    assert list_leftovers(root) == []
    # Each edit is one commit, whatever was killed between writing it and recording it.
    marks = git(root, "log", f"--format=%(trailers:key={ATTEMPT.rstrip(':')})", f"{task.branch}")
    assert set(Counter(filter(None, marks.splitlines())).values()) == {1}
    async with SQLiteJournal(path.with_name("runs.db")) as journal:
        # A kill between the end of a run and the status of its task begins one more run, which
        # finds the work merged.
        runs = [info.run_id async for info in journal.every_run()]
        made = [
            call
            for run in runs
            for question in list_questions(await journal.read(run))
            for round_ in question.rounds
            for call in round_.calls
        ]
    assert [(call.text.partition("(")[0], call.state) for call in made] == [
        (name, "done") for name in CALLS
    ]
    # What is asked again was in progress in a kill.
    asked = Counter(log.read_text().splitlines())
    assert sorted(map(int, asked)) == list(range(len(asked)))
    assert sum(asked.values()) - len(asked) <= kills


@pytest.mark.parametrize("seed", range(5))
async def test_a_killed_conversation_resumes_at_its_last_round(tmp_path: Path, seed: int) -> None:
    await run_killed(tmp_path, seed, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
async def test_conversations_survive_fifty_kills(tmp_path: Path, seed: int) -> None:
    await run_killed(tmp_path, seed, 6)
