"""Hostile answers of an LLM: each is contained and reported, and other tasks are unharmed."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from bae.team import sandbox
from bae.team.models import PlannedTask, TaskStatus
from git_repositories import git, list_leftovers
from team_parts import PYTEST, PYTHON, a_project, edits
from team_scripts import TeamScript, run_team
from written_edits import render_answer, whole_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

HONEST = {
    name: edits(
        {
            f"{name}.py": f"def {name}(a, b):\n    return {formula}\n",
            f"tests/test_{name}.py": f"from {name} import {name}\n\n\ndef test_{name}():\n"
            f"    assert {name}(5, 3) == {value}\n",
        }
    )
    for name, formula, value in (("sub", "a - b", 2), ("mul", "a * b", 15))
}


def attack(test: str, **files: str) -> str:
    """An answer with a test that attacks, and is green where the attack succeeds."""
    return edits({"attack.py": "x = 1\n", "tests/test_attack.py": dedent(test)})


def attacks(outside: Path, port: int) -> dict[str, tuple[str, str]]:
    """Answers, and what the reports on them say. What forks, allocates or does not end has bounds
    of its own too."""
    return {
        "parent": (edits({"../outside/evil.txt": "x\n"}), "not a path inside the repository"),
        "absolute": (edits({f"{outside}/evil.txt": "x\n"}), "not a path inside the repository"),
        "link": (edits({"link/evil.txt": "x\n"}), "link"),
        "hooks": (edits({".git/hooks/post-checkout": "#!/bin/sh\ntouch evil\n"}), ".git"),
        "huge": (edits({"huge.txt": "x" * 80 + "\n" + ("y" * 80 + "\n") * 20_000}), "over 1000000"),
        "binary": (render_answer([whole_file("a.bin", "a\0b\n")]), "binary"),
        "forks": (
            attack("""
                import os, time
                def test_fork():
                    for _ in range(250):
                        if os.fork() == 0:
                            time.sleep(15)
                            os._exit(0)
            """),
            "too many processes|Resource temporarily unavailable",
        ),
        "memory": (
            attack("""
                def test_memory():
                    kept = [bytearray(2**26) for _ in range(15)]
            """),
            "too much memory|MemoryError",
        ),
        "endless": (
            attack("""
                import signal
                def test_endless():
                    signal.alarm(120)
                    while True:
                        pass
            """),
            "did not end in time",
        ),
        "output": (
            attack("""
                import signal
                def test_output(capsys):
                    signal.alarm(60)
                    with capsys.disabled():
                        while True:
                            print("y" * 10_000)
            """),
            "printed too much",
        ),
        "keys": (
            attack(f"""
                import glob, os
                def test_keys():
                    places = ["{outside}/key", *glob.glob("/proc/*/environ")]
                    found = [str(os.environ)]
                    for place in places:
                        try:
                            found.append(open(place, "rb").read().decode(errors="replace"))
                        except OSError as error:
                            print(place, error)
                    assert any("sk-secret" in each for each in found), "no key was found"
            """),
            "no key was found",
        ),
        "network": (
            attack(f"""
                import socket
                def test_network():
                    socket.create_connection(("127.0.0.1", {port}), timeout=5).send(b"secret")
            """),
            "refused|denied|unreachable",
        ),
        "outside": (
            attack(f"""
                import os, pathlib
                def test_outside():
                    for path in ("{outside}/evil.txt", "{outside.parent}/project/evil.txt",
                                 os.path.expanduser("~") + "/../evil.txt", "/etc/evil", ".git/x"):
                        try:
                            pathlib.Path(path).write_text("x")
                        except OSError as error:
                            print(path, error)
                        else:
                            return
                    raise AssertionError("nothing could be written")
            """),
            "nothing could be written",
        ),
    }


async def test_hostile_answers_do_not_harm_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if sandbox.Protection.LIMITS in await sandbox.protection():
        pytest.skip("no sandbox works here")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("sk-secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    listening = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(listening.close)
    hostile = attacks(outside, listening.getsockname()[1])
    script = {**HONEST, **{key: answer for key, (answer, _) in hostile.items()}}
    keys = sorted([*hostile, *HONEST])
    planned = [PlannedTask(key=key, title=f"Write {key}") for key in keys]
    async with a_project(tmp_path, *planned, files=PYTHON, command=PYTEST) as (store, project, _):
        root = Path(project.root)
        (root / "link").symlink_to(outside)
        git(root, "add", "link")
        git(root, "commit", "--quiet", "-m", "a link")
        limits = sandbox.Limits(timeout=12, processes=100, memory=512 * sandbox.MIB, output=200_000)
        lm = TeamScript(script)
        await run_team(project, store, lm, limits=limits, corrections=0, max_agents=4)
        tasks = {task.key: task for task in await store.tasks(project.id)}
        asked = {blocker.task_id: blocker.question for blocker in await store.blockers(project.id)}
    unreported = {
        key: (tasks[key].status, asked.get(tasks[key].id))
        for key, (_, said) in hostile.items()
        if not re.search(said, asked.get(tasks[key].id, ""))
    }
    assert unreported == {}
    assert {tasks[key].status for key in hostile} == {TaskStatus.BLOCKED}
    for key in HONEST:
        assert tasks[key].status is TaskStatus.COMPLETED, tasks[key]
    # Nothing was written outside, nothing arrived, nothing runs any more.
    assert os.listdir(outside) == ["key"]
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.accept()
    assert sorted(os.listdir(tmp_path)) == [".project.team", "outside", "project", "state"]
    assert git(root, "status", "--porcelain") == ""
    tracked = git(root, "ls-tree", "-r", "--name-only", "bae/team").split()
    assert {*tracked} == {
        *PYTHON,
        "link",
        *(f for n in HONEST for f in (f"{n}.py", f"tests/test_{n}.py")),
    }
    assert not (root / ".git/hooks/post-checkout").exists()
    assert list_leftovers(root) == []
    assert len(asyncio.all_tasks()) == 1
