"""Jobs that a server starts for a team: planning with questions, runs, stops and restarts, with
real processes, git and tests."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("typer")

import httpx

from bae.cli import main
from bae.serve import User, bearer, router
from bae.serve.server import listening
from bae.team import Repository, ServedTeam, Store, TeamJobs, add_team_jobs, add_teams, store_path
from bae.team.team_run import lead_lock
from git_repositories import git, make_repository
from team_parts import JEST, RUN_SHELL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

SCRIPT = '''
import asyncio, os
from pathlib import Path
from bae.testing import ScriptedLM

CODE = """
<<<<<<< FILE {key}.sh
name() {{ echo {key}; }}
>>>>>>> FILE
<<<<<<< FILE {key}.test.sh
. ./{key}.sh
[ "$(name)" = {key} ]
>>>>>>> FILE
"""
TASK = {"key": "prices", "title": "Prices", "criteria": ["name prints prices"]}

def write(asked):
    return CODE.format(key=asked.source.task)

def make():
    return ScriptedLM({
        "OpenQuestions": {"questions": ["Which currency?", "Which country?"]},
        "Requirements": lambda asked: "# Shop\\n" + asked.prompt.text,
        "Plan": {"tasks": [{**TASK, "new_files": ["prices.sh", "prices.test.sh"]}]},
        "WorkerAnswer": write,
    })

class Held(ScriptedLM):
    async def fill(self, *args, **kwargs):
        names = [name for name in os.environ if name.endswith("_TOKEN")]
        Path(__file__).with_name("asked").write_text(repr(names))
        await asyncio.Event().wait()

def held():
    return Held({"WorkerAnswer": write})
'''
USERS = {"ana": User("ana"), "eve": User("eve", frozenset({"read", "edit"}))}


@dataclass
class Shop:
    """A server of a team, and a client of it."""

    client: httpx.AsyncClient
    store: Store

    async def get(self, path: str) -> Any:
        response = await self.client.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None, status: int = 202) -> Any:
        response = await self.client.post(path, json={} if body is None else body)
        assert response.status_code == status, response.text
        return response.json()

    async def ended(self, kind: str) -> Any:
        """The newest job of a kind, when it has ended."""
        page = {"change": -1}
        while True:
            page = await self.get(f"/teams/shop/jobs?wait=20&after={page['change']}")
            [job] = [entry for entry in page["jobs"] if entry["kind"] == kind]
            if job["status"] != "running":
                return job


@asynccontextmanager
async def serve_team(root: Path, lm: str, *, apart: bool = False) -> AsyncGenerator[Shop]:
    """The team of a repository; its agents' runs are `apart` from the runs of the API, or not."""
    from bae.journal import MemoryJournal

    repository = await Repository.open(root)
    async with (
        await Store.open(store_path(root)) as store,
        store.journal() as journal,
        TeamJobs(f"python:{root.parent / 'lm.py'}:{lm}") as jobs,
    ):
        [project] = await store.projects()
        agent_journal = MemoryJournal() if apart else journal
        api = router({}, journal=agent_journal, auth=bearer(USERS), recover=False)
        teams = {"shop": ServedTeam(store, project, repository, journal)}
        add_teams(api, teams)
        add_team_jobs(api, teams, jobs)
        async with listening(api) as url:
            headers = {"authorization": "Bearer ana"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
                yield Shop(client, store)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a team."""
    (tmp_path / "lm.py").write_text(SCRIPT)
    root = make_repository(tmp_path / "shop", {**JEST, "readme.txt": "A shop\n"})
    monkeypatch.chdir(root)
    assert main(["team", "init", "--test", " ".join(RUN_SHELL)]) == 0
    return root


@pytest.fixture
def approved(root: Path) -> Path:
    """The same, with a task that may run."""
    assert main(["team", "tasks", "add", "prices"]) == 0
    assert main(["team", "tasks", "approve"]) == 0
    return root


@pytest.mark.parametrize("apart", [False, True], ids=["own journal", "apart"])
async def test_a_goal_is_planned_clarified_approved_and_built_over_http(root: Path, apart: bool):
    async with asyncio.timeout(120), serve_team(root, "make", apart=apart) as shop:
        started = await shop.post("/teams/shop/plans", {"goal": "- a shop\nwith prices"})
        assert (started["kind"], started["status"], started["by"]) == ("plan", "running", "ana")
        assert started["command"].startswith("bae team plan --file -")
        job = await shop.ended("plan")
        assert job["status"] == "waiting", str(job)
        [plan] = (await shop.get("/teams/shop/plans"))["plans"]
        assert plan["goal"] == "- a shop\nwith prices"
        asked = [question["question"] for question in plan["questions"]]
        assert asked == ["Which currency?", "Which country?"]
        inbox = (await shop.get("/inbox"))["gates"]
        assert [(row["kind"], row["question"], row["team"]) for row in inbox] == [
            ("question", "Which currency?", "shop"),
            ("question", "Which country?", "shop"),
        ]
        first, second = [row["gate"] for row in inbox]
        answered = await shop.post(f"/{first}", {"answer": "Euros"}, 200)
        assert [question["answered"] for question in answered["questions"]] == [True, False]
        assert not answered["continues"]
        assert len((await shop.get("/inbox"))["gates"]) == 1
        await shop.post(f"/{first}", {"answer": "Euros"}, 200)  # the same again
        other = await shop.post(f"/{first}", {"answer": "Dollars"}, 409)
        assert other["type"] == "bae-gate-answered"
        assert (await shop.post(f"/{second}", {"decide": True}, 200))["continues"]
        assert (await shop.ended("plan"))["status"] == "done"
        assert (await shop.get("/teams/shop/plans"))["plans"] == []
        [project] = await shop.store.projects()
        assert "Euros" in project.requirements
        [task] = (await shop.get("/teams/shop/tasks"))["tasks"]
        assert (task["key"], task["approved"]) == ("prices", False)
        early = await shop.post("/teams/shop/runs")
        assert early["status"] == "running"
        refused = await shop.ended("run")
        assert (refused["status"], "no task is approved" in refused["output"]) == ("failed", True)
        await shop.post("/teams/shop/approve", {}, 200)
        body = {"max_agents": 2, "worker": "oneshot", "budget": {"calls": 50}, "review": "off"}
        run = await shop.post("/teams/shop/runs", body)
        assert "--max-agents 2 --worker oneshot" in run["command"]
        assert "--budget calls=50" in run["command"]
        done = await shop.ended("run")
        assert (done["status"], done["reason"]) == ("done", "done"), done
        [task] = (await shop.get("/teams/shop/tasks"))["tasks"]
        assert task["status"] == "completed"
    assert "prices.sh" in git(root, "ls-tree", "--name-only", "bae/team")


async def until_asked(root: Path) -> str:
    """What the LM has noted when it was asked."""
    note = root.parent / "asked"
    while not note.exists():  # noqa: ASYNC110  another process writes it
        await asyncio.sleep(0.02)
    return note.read_text()


async def test_the_only_run_ends_with_the_server_and_continues_later(
    approved: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BAE_STUDIO_TOKEN", "token-of-the-server")
    body = {"worker": "oneshot", "review": "off"}
    async with asyncio.timeout(120):
        async with serve_team(approved, "held") as shop:
            await shop.post("/teams/shop/runs", body)
            assert "BAE_STUDIO_TOKEN" not in await until_asked(approved)
            busy = await shop.post("/teams/shop/runs", body, 409)
            assert busy["type"] == "bae-team-busy"
            assert (await shop.get("/teams/shop"))["running"]
        async with serve_team(approved, "make") as shop:  # the process before has ended
            assert not (await shop.get("/teams/shop"))["running"]
            [task] = (await shop.get("/teams/shop/tasks"))["tasks"]
            assert task["status"] != "completed"
            await shop.post("/teams/shop/runs", body)
            assert (await shop.ended("run"))["status"] == "done"
            [task] = (await shop.get("/teams/shop/tasks"))["tasks"]
            assert task["status"] == "completed"


async def test_a_run_is_stopped_as_a_process_or_by_the_teams_own_action(approved: Path):
    body = {"worker": "oneshot", "review": "off"}
    async with asyncio.timeout(120), serve_team(approved, "held") as shop:
        for path, more in (
            ("/teams/shop/jobs/run/stop", {}),
            ("/teams/shop/actions", {"action": "kill"}),
        ):
            (approved.parent / "asked").unlink(missing_ok=True)
            await shop.post("/teams/shop/runs", body)
            await until_asked(approved)
            await shop.post(path, more)
            assert (await shop.ended("run"))["status"] == "stopped", path
        assert (await shop.post("/teams/shop/jobs/none/stop", {}, 404))["fix"]


async def test_a_run_is_refused_to_unauthorized_users_and_beside_another_process(root: Path):
    repository = await Repository.open(root)
    async with asyncio.timeout(60), serve_team(root, "make") as shop:
        async with lead_lock(repository).hold(exclusive=True, timeout=5):
            busy = await shop.post("/teams/shop/runs", {}, 409)
            assert busy["type"] == "bae-team-busy"
        shop.client.headers["authorization"] = "Bearer eve"
        paths = ("plans", "runs", "jobs/run/stop", "plans/x/questions/0")
        for path, body in zip(paths, ({"goal": "x"}, {}, {}, {"decide": True}), strict=True):
            refused = await shop.post(f"/teams/shop/{path}", body, 403)
            assert refused["type"] == "bae-serve-verb", path
        assert (await shop.get("/teams/shop/jobs"))["jobs"] == []


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("plans", {"goal": "  \n"}, "goal"),
    ("plans", {}, "goal"),
    ("plans", {"goal": "x", "lm": "python:/tmp/evil.py:make"}, "lm"),
    ("plans", {"goal": "x", "lm": "scripted:answers.json"}, "lm"),
    ("runs", {"lm": "openai:m@http://evil.example/v1"}, "lm"),
    ("runs", {"lm": "no-such-kind"}, "lm"),
    ("runs", {"budget": {}}, "budget"),
    ("runs", {"budget": {"cost": -1}}, "budget"),
    ("runs", {"worker": "--serve"}, "worker"),
    ("runs", {"max_agents": 0}, "max_agents"),
    ("plans/x/questions/0", {}, ""),
    ("plans/x/questions/0", {"answer": "x", "decide": True}, ""),
]


async def test_invalid_options_and_code_named_in_a_request_are_refused(root: Path):
    async with asyncio.timeout(60), serve_team(root, "make") as shop:
        for path, body, field in WRONG:
            refused = await shop.post(f"/teams/shop/{path}", body, 422)
            expected = ["body", field] if field else ["body"]
            assert refused["errors"][0]["loc"][: len(expected)] == expected, (path, body)
        missing = await shop.post("/teams/shop/plans/x/questions/0", {"answer": "y"}, 404)
        assert missing["type"] == "bae-team-unknown"
        assert (await shop.get("/teams/shop/jobs"))["jobs"] == []


async def test_a_failing_job_shows_the_output_of_its_command(root: Path):
    async with asyncio.timeout(60), serve_team(root, "not_there") as shop:
        await shop.post("/teams/shop/plans", {"goal": "a shop"})
        job = await shop.ended("plan")
        assert job["status"] == "failed"
        assert "not_there" in job["output"]
        assert os.fspath(root) not in job["command"]
