"""`bae studio --team`: a team with its agents' runs, alone and beside graphs, as a process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")
pytest.importorskip("httpx")
pytest.importorskip("websockets")
pytest.importorskip("typer")

from websockets.asyncio.client import connect

from bae.cli import main
from git_repositories import make_repository
from studio_pages import write_page
from team_parts import JEST, RUN_SHELL
from test_studio_process import APP, client_of, run_studio, studio

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
SCRIPT = """
import asyncio
from pathlib import Path
from bae.testing import ScriptedLM

class Held(ScriptedLM):
    async def fill(self, *args, **kwargs):
        Path(__file__).with_name("asked").touch()
        await asyncio.Event().wait()

def make():
    return ScriptedLM({"OpenQuestions": {"questions": ["Which currency?"]}})

def held():
    return Held({"WorkerAnswer": ""})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a page, a graph, and the repository of a team whose planning asks something."""
    write_page(tmp_path)
    (tmp_path / "app.py").write_text(APP.format(name="app"))
    (tmp_path / "lm.py").write_text(SCRIPT)
    monkeypatch.chdir(make_repository(tmp_path / "shop", {**JEST, "readme.txt": "A shop\n"}))
    assert main(["team", "init", "--test", " ".join(RUN_SHELL)]) == 0
    assert main(["team", "plan", "a shop", "--lm", "python:../lm.py:make"]) == 3
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_studio_without_graphs_shows_the_runs_of_a_teams_agents(folder: Path):
    with studio(folder, "--team", "shop", "--port", "0") as (told, _), client_of(told) as client:
        seen = client.get("/api/studio").json()
        assert seen["teams"] == [{"name": "shop", "runs": "/api"}]
        assert "answer" in seen["can"]
        assert seen["read_only"]["command"] == "bae studio MODULE --team shop"
        [run] = client.get("/api/runs").json()["runs"]
        assert run["status"] == "waiting"
        assert client.get(f"/api/runs/{run['run_id']}/graph").json()["graph"] == "Goal"
        [row] = client.get("/api/inbox").json()["gates"]  # once, though its run waits too
        assert (row["kind"], row["question"]) == ("question", "Which currency?")
        tasks = {"tasks": [{"key": "prices", "title": "Prices"}]}
        assert client.post("/api/teams/shop/tasks", json=tasks).status_code == 201
        assert client.post("/api/teams/shop/approve", json={}).json()["approved"] == 1
        assert client.get("/api/teams/shop").json()["counts"] == {"pending": 1}


def test_the_api_of_agent_runs_beside_graphs_is_read_only(folder: Path):
    with studio(folder, "app.py", "--team", "shop", "--port", "0") as (told, _):
        with client_of(told) as client:
            [team] = client.get("/api/studio").json()["teams"]
            base = team["runs"]
            assert base == "/api/teams/shop/agents"
            assert client.get("/api/runs").json()["runs"] == []
            [run] = client.get(f"{base}/runs").json()["runs"]
            path = f"{base}/runs/{run['run_id']}"
            assert client.get(f"{path}/steps").json()["total"] > 1
            assert client.post(f"{path}/cancel", json={}).status_code == 403
            assert client.get("/api/inbox").json()["gates"][0]["question"] == "Which currency?"
            del client.headers["authorization"]
            assert client.get(f"{base}/runs").status_code == 401
            headers = {"sec-fetch-site": "same-site"}
            assert client.get(f"{base}/runs", headers=headers).status_code == 403

        async def follow() -> None:
            url = f"{told['url'].replace('http', 'ws', 1)}{base}/feed"
            async with asyncio.timeout(20), connect(url) as socket:
                for message in ({"token": told["token"]}, {"sub": 1, "feed": "runs"}):
                    await socket.send(json.dumps(message))
                while not (message := json.loads(await socket.recv())).get("items"):
                    pass
                assert message["items"][0]["run_id"] == run["run_id"]

        asyncio.run(follow())


def test_a_folder_without_a_team_explains_how_to_make_a_team(folder: Path):
    refused = run_studio(folder, "--team", "page")
    assert refused.returncode == 1
    assert "bae team init" in refused.stderr


def wait_until(is_so: Callable[[], bool]) -> None:
    end = monotonic() + 60
    while not is_so():
        assert monotonic() < end
        sleep(0.02)  # other processes are watched


def is_running(folder: Path) -> bool:
    command = [sys.executable, "-m", "bae", "team", "status", "--json"]
    done = subprocess.run(command, cwd=folder / "shop", capture_output=True, check=True)
    return json.loads(done.stdout)["running"]


def test_a_run_of_the_team_ends_with_the_studio_and_outlives_a_killed_studio(folder: Path):
    options = ("--team", "shop", "--port", "0", "--lm", "python:lm.py:held")
    body = {"worker": "oneshot", "review": "off"}
    asked = folder / "asked"
    with studio(folder, *options) as (told, _), client_of(told) as client:
        client.post("/api/teams/shop/tasks", json={"tasks": [{"key": "a", "title": "A"}]})
        client.post("/api/teams/shop/approve", json={})
        assert client.post("/api/teams/shop/runs", json=body).status_code == 202
        wait_until(asked.exists)
        assert is_running(folder)
    assert not is_running(folder)  # it was told to stop
    asked.unlink()
    with studio(folder, *options) as (told, process):
        with client_of(told) as client:
            client.post("/api/teams/shop/runs", json=body)
            wait_until(asked.exists)
        process.kill()
        process.wait()
        assert is_running(folder)
        with studio(folder, *options) as (again, _), client_of(again) as client:
            assert client.get("/api/teams/shop").json()["running"]
            busy = client.post("/api/teams/shop/runs", json=body)
            assert (busy.status_code, busy.json()["type"]) == (409, "bae-team-busy")
            client.post("/api/teams/shop/actions", json={"action": "kill"})
            wait_until(lambda: not client.get("/api/teams/shop").json()["running"])
        process.returncode = 143  # of the outer block
