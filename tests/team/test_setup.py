"""Setup: with the network only for commits of people, and with its files copied into worktrees.
With real git and real sandboxes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from bae.team import sandbox
from bae.team.models import PlannedTask, TaskStatus
from bae.team.workbench import Workbench
from bae.team.workspaces import ManifestError, SetupError
from git_repositories import commit_files, git
from team_parts import SHELL, a_bench, a_project, edits
from team_scripts import TeamScript, run_team

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

TASK = "bae/task-1-mul"
FETCH = """
import pathlib, socket, sys
made = pathlib.Path("made"); made.mkdir(exist_ok=True)
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) as c: c.sendall(b"{who}")
except OSError:
    (made / "offline").write_text("{who}")
else:
    (made / "online").write_text("{who}")
"""
MUL = {
    "mul.sh": "mul() { echo $(($1 * $2)); }\n",
    "mul.test.sh": '. ./mul.sh\n[ "$(mul 2 3)" = 6 ]\n',
}
PLANNED = PlannedTask(key="mul", title="Multiply")


class Listener:
    """A server of this machine that keeps received data."""

    port = 0

    def __init__(self) -> None:
        self.told: list[bytes] = []

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.told.append(await reader.read())
        writer.close()


@asynccontextmanager
async def listening() -> AsyncGenerator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.hear, "127.0.0.1", 0)
    async with server:
        listener.port = server.sockets[0].getsockname()[1]
        yield listener


def fetch(port: int) -> tuple[str, ...]:
    return ("python", "fetch.py", str(port))


@asynccontextmanager
async def a_team(
    tmp_path: Path, files: Mapping[str, str], setup: tuple[str, ...]
) -> AsyncGenerator[Workbench]:
    settings: dict[str, Any] = {"files": {**SHELL, **files}, "setup": setup}
    async with a_bench(tmp_path, PLANNED, **settings) as (bench, _):
        yield bench


async def test_setup_with_the_network_runs_once_for_a_commit_of_a_person(tmp_path: Path):
    async with listening() as heard:
        files = {"fetch.py": FETCH.format(who="user"), ".gitignore": "made/\n"}
        async with a_team(tmp_path, files, fetch(heard.port)) as bench:
            workspace = await bench.workspaces.start(TASK)
            async with bench.workspaces.scratch("main") as scratch:
                for each in (workspace, scratch):
                    assert (each.path / "made" / "online").read_text() == "user"
                (workspace.path / "made" / "online").write_text("changed by a task")
                assert (scratch.path / "made" / "online").read_text() == "user"
            async with bench.workspaces.scratch("main") as later:
                assert (later.path / "made" / "online").read_text() == "user"
            assert heard.told == [b"user"]
            commit_files(Path(bench.project.root), {"fetch.py": FETCH.format(who="newer")})
            async with bench.workspaces.scratch("main") as newer:
                assert (newer.path / "made" / "online").read_text() == "newer"
            assert heard.told == [b"user", b"newer"]
            await bench.workspaces.remove(workspace)


async def test_a_setup_script_changed_by_a_task_runs_without_the_network(
    tmp_path: Path,
):
    async with listening() as heard:
        files = {**SHELL, "fetch.py": FETCH.format(who="user"), ".gitignore": "made/\n"}
        about: dict[str, Any] = {"files": files, "setup": fetch(heard.port)}
        lm = TeamScript({"mul": edits({**MUL, "fetch.py": FETCH.format(who="model")})})
        async with a_project(tmp_path, PLANNED, **about) as (store, project, _):
            summary = await run_team(project, store, lm)
            assert summary.tasks[0].status is TaskStatus.BLOCKED
            [asked] = await store.blockers(project.id, open_only=True)
            assert "fetch.py" in asked.question
            await store.answer_blocker(asked.id, "yes")
            assert (await run_team(project, store, lm)).done
            assert "model" in git(Path(project.root), "show", "bae/team:fetch.py")
        assert set(heard.told) == {b"user"}


async def test_setup_of_a_team_commit_in_the_users_branch_has_no_network(tmp_path: Path):
    async with listening() as heard:
        files = {**SHELL, "fetch.py": FETCH.format(who="user"), ".gitignore": "made/\n"}
        about: dict[str, Any] = {"files": files, "setup": fetch(heard.port)}
        about |= {"update_checkout": True, "allow": ("fetch.py",)}
        lm = TeamScript({"mul": edits({**MUL, "fetch.py": FETCH.format(who="model")})})
        async with a_project(tmp_path, PLANNED, **about) as (store, project, _):
            assert (await run_team(project, store, lm)).done
            root = Path(project.root)
            assert "model" in (root / "fetch.py").read_text()
            async with (
                Workbench.open(project, store, review="off") as bench,
                bench.workspaces.scratch("main") as scratch,
            ):
                assert (scratch.path / "made" / "offline").read_text() == "model"
            assert set(heard.told) == {b"user"}


async def test_a_task_whose_manifest_cannot_be_set_up_offline_asks_a_person(tmp_path: Path):
    """It continues without another call where the person accepted the manifest."""
    script = 'mkdir -p made; cat requirements.txt > made/all; test "$(cat made/all)" = one'
    files = {**SHELL, "requirements.txt": "one\n", ".gitignore": "made/\n", "ok": "no\n"}
    script += " || grep -q yes ok"  # which only a person writes
    about: dict[str, Any] = {"files": files, "setup": ("sh", "-c", script)}
    about["allow"] = ("requirements.txt",)
    test = {"mul.test.sh": MUL["mul.test.sh"] + '[ "$(cat made/all)" = two ]\n'}
    lm = TeamScript({"mul": edits({**MUL, **test, "requirements.txt": "two\n"})})
    async with a_project(tmp_path, PLANNED, **about) as (store, project, _):
        summary = await run_team(project, store, lm)
        assert summary.tasks[0].status is TaskStatus.BLOCKED
        [asked] = await store.blockers(project.id, open_only=True)
        assert "without the network" in asked.question
        assert "git merge --no-ff bae/team" in asked.question
        commit_files(Path(project.root), {"requirements.txt": "two\n", "ok": "yes\n"})
        await store.answer_blocker(asked.id, "yes")
        assert (await run_team(project, store, lm)).done
    assert len(lm.asked) == 1


async def test_a_version_in_a_manifest_needs_no_setup(tmp_path: Path):
    script = "test -e made && exit 1; mkdir made"  # it fails the second time
    files = {"pyproject.toml": "[project]\nname='x'\nversion='1'\n", ".gitignore": "made/\n"}
    async with a_team(tmp_path, files, ("sh", "-c", script)) as bench:
        workspace = await bench.workspaces.start(TASK)
        for text, raises in (("version='2'", False), ("dependencies=['y']", True)):
            (workspace.path / "pyproject.toml").write_text(f"[project]\nname='x'\n{text}\n")
            await workspace.commit(["pyproject.toml"], "changed")
            if raises:
                with pytest.raises(ManifestError):
                    await bench.workspaces.refresh(workspace)
            else:
                await bench.workspaces.refresh(workspace)
        await bench.workspaces.remove(workspace)


async def test_generated_files_that_git_does_not_ignore_stay_in_worktrees(tmp_path: Path):
    script = "mkdir -p lib 'odd name*'; echo 1 > lib/version.sh; echo 2 > 'odd name*/x'"
    async with a_team(tmp_path, {"lib/a.sh": ""}, ("sh", "-c", script)) as bench:
        workspace = await bench.workspaces.start(TASK)
        assert await workspace.uncommitted() == ()
        (workspace.path / "new.txt").write_text("left by tests")
        assert await workspace.uncommitted() == ("new.txt",)
        await workspace.restore("left")
        assert (workspace.path / "lib" / "version.sh").exists()
        await bench.workspaces.remove(workspace)


async def test_links_made_by_setup_lead_into_the_copy(
    tmp_path: Path,
):
    outside = tmp_path / "outside"
    outside.mkdir()
    script = f"""mkdir real; echo 1 > real/a; ln -s "$PWD/real" node_modules
    ln -s {outside} away; mkdir -p linked; echo 2 > linked/b"""
    async with a_team(tmp_path, {}, ("sh", "-c", script)) as bench:
        root = Path(bench.project.root)
        workspace = await bench.workspaces.start(TASK)
        assert os.readlink(workspace.path / "node_modules") == str(workspace.path / "real")
        (workspace.path / "node_modules" / "a").write_text("changed")
        await bench.workspaces.remove(workspace)
        (root / "linked").symlink_to(outside)  # the user's, where setup makes a folder elsewhere
        git(root, "add", "linked")
        git(root, "commit", "--quiet", "-m", "a link")
        linked = git(root, "rev-parse", "HEAD")
        git(root, "reset", "--quiet", "--hard", "HEAD^")
        async with bench.workspaces.scratch(linked) as scratch:
            assert (scratch.path / "node_modules" / "a").read_text() == "1\n"
        assert os.listdir(outside) == []


async def test_an_editable_install_imports_the_code_of_its_worktree(tmp_path: Path):
    """In a virtual environment that setup makes, with its scripts."""
    script = """python -m venv --without-pip --symlinks .venv
    echo "$PWD/src" > "$(echo .venv/lib/python*/site-packages)/shop.pth"
    printf '#!%s/.venv/bin/python\\nimport shop; print(shop.price)\\n' "$PWD" > .venv/bin/price
    chmod +x .venv/bin/price"""
    files = {"src/shop.py": "price = 1\n", ".gitignore": ".venv/\n"}
    async with a_team(tmp_path, files, ("sh", "-c", script)) as bench:
        workspace = await bench.workspaces.start(TASK)
        (workspace.path / "src" / "shop.py").write_text("price = 2\n")
        program = "import shop; print(shop.price)"
        for command in ((".venv/bin/price",), (".venv/bin/python", "-c", program)):
            ran = await sandbox.run(command, workspace.path, timeout=60)
            assert (ran.exit_code, ran.output) == (0, "2\n")
        await bench.workspaces.remove(workspace)


async def test_setup_may_have_several_commands_and_stops_at_the_first_failure(tmp_path: Path):
    made = ("mkdir", "made", "&&", "touch", "made/a")
    async with a_team(tmp_path / "both", {}, made) as bench, bench.workspaces.scratch("main") as at:
        assert (at.path / "made" / "a").exists()
    fails = ("echo", "one", "&&", "sh", "-c", "echo two; exit 7", "&&", "echo", "three")
    async with a_team(tmp_path / "fails", {}, fails) as bench:
        with pytest.raises(SetupError) as raised:
            async with bench.workspaces.scratch("main"):
                pass
    message = raised.value.message
    assert "echo one && sh -c 'echo two; exit 7' && echo three: failed with 7" in message
    assert "$ echo one\none\n$ sh -c 'echo two; exit 7'\ntwo" in message
    assert "\nthree" not in message


async def test_setup_sees_only_the_version_of_the_repository_in_git(tmp_path: Path):
    """As builds do that write their version into a file."""
    script = "git describe --tags --dirty > version; git config --list --local >> version"
    async with a_team(tmp_path, {".gitignore": "version\n"}, ("sh", "-c", script)) as bench:
        root = Path(bench.project.root)
        git(root, "remote", "add", "origin", "https://ana:hidden-word@example.org/shop")
        git(root, "tag", "2.1")
        async with bench.workspaces.scratch("main") as at:
            text = (at.path / "version").read_text()
            assert text.startswith("2.1\n")
            assert "example.org" not in text
        commit_files(root, {"a.sh": ""})
        newest = commit_files(root, {"b.sh": ""})
        async with bench.workspaces.scratch("main") as at:
            assert (at.path / "version").read_text().startswith(f"2.1-2-g{newest[:7]}")
            assert (at.path / ".git").is_file()


async def test_setup_may_install_hooks_which_no_worktree_gets(tmp_path: Path):
    setup = ("git", "config", "core.hooksPath", ".husky")
    async with a_team(tmp_path, {}, setup) as bench, bench.workspaces.scratch("main") as at:
        assert ".husky" not in git(at.path, "config", "--list")
