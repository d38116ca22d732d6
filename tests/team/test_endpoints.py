"""A team behind HTTP: every endpoint with a real server, for users who may and who may not."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")
pytest.importorskip("httpx")

import httpx
from pydantic import Field
from websockets.asyncio.client import connect

from bae import Gate, Graph, Node
from bae.journal import MemoryJournal, RunInfo
from bae.lm import Budget
from bae.serve import API, User, bearer, router
from bae.serve.endpoints import Endpoint
from bae.serve.server import listening
from bae.team import tables
from bae.team.budgets import begin_run
from bae.team.endpoints import ServedTeam, add_teams
from bae.team.events import (
    ActionRequested,
    ActivityUpdate,
    BlockerResolved,
    PlanChanged,
    TestResult,
    WorkReviewed,
)
from bae.team.git import Repository
from bae.team.models import Finding, FindingKind, PlannedTask, Project, Review, TestCase, TestReport
from bae.team.models import TaskAttempt as Attempt
from bae.team.models import TaskStatus as Status
from bae.team.store import Store
from bae.team.team_run import lead_lock
from bae.team.worker_graph import worker_graph
from bae.usage import Usage
from git_repositories import git, write
from team_parts import CALC, SUB, a_project

VERBS = frozenset(("read", "run", "answer", "edit", "admin"))
USERS = {"ana": User("ana"), "ben": User("ben"), "eve": User("eve", frozenset({"read", "edit"}))}
TASKS = (
    PlannedTask(key="sub", title="Subtract", files=("calc.sh",), tests=("calc.test.sh",)),
    PlannedTask(key="report", title="Report", depends_on=("sub",)),
    PlannedTask(key="guide", title="Write a guide", proof="none"),
)


class Worked(Node):
    task: str

    async def __call__(self) -> None: ...


class Asking(Node):
    task: str
    answer: Annotated[str, Gate("May it take negative numbers?")] = Field(init=False)

    async def __call__(self) -> None: ...


work = Graph(start=Worked, end=Worked, name="work")


@dataclass
class Served:
    """A server that runs, and a client of it, who is ana."""

    url: str
    api: API
    client: httpx.AsyncClient
    store: Store
    commit: str

    async def get(self, path: str, user: str = "ana") -> Any:
        response = await self.ask("GET", path, user=user)
        assert response.status_code == 200, response.text
        return response.json()

    async def ask(self, method: str, path: str, body: Any = None, user: str | None = "ana") -> Any:
        headers = {} if user is None else {"authorization": f"Bearer {user}"}
        more = {} if method in ("GET", "DELETE") else {"json": {} if body is None else body}
        return await self.client.request(method, path, headers=headers, **more)


@asynccontextmanager
async def serve_shop(
    tmp_path: Path, users: dict[str, User] = USERS, *, name: str = "shop"
) -> AsyncGenerator[Served]:
    """A team with three tasks: one has an attempt, a question and a run; ana alone may see it."""
    async with a_project(tmp_path, *TASKS) as (store, project, [sub, *_]):
        root = Path(project.root)
        git(root, "branch", project.branch)
        git(root, "checkout", "--quiet", "-b", sub.branch)
        write(root, {"calc.sh": SUB, "notes.txt": "line\n" * 3000})
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", "sub")
        commit = git(root, "rev-parse", "HEAD")
        git(root, "checkout", "--quiet", "main")
        case = TestCase(id="calc.test.sh", outcome="failed", message="sub is 8")
        report = TestReport(command=("sh",), exit_code=1, cases=(case,), output="o" * 9000)
        files = ("calc.sh", "notes.txt")
        about = {"task_id": sub.id, "files": files, "commit": commit, "usage": Usage(2, 10, 5)}
        for number, outcome in ((1, "failed"), (2, "passed")):
            about |= {"number": number, "outcome": outcome, "report": report}
            await store.add_attempt(Attempt(**about))
        await store.add_blocker(sub.id, "May it take negative numbers?")
        finding = Finding(kind=FindingKind.OTHER, file="calc.sh", text="no comment", blocking=False)
        review = Review(commit=commit, digest="d", summary="fine", findings=(finding,))
        await store.add_events([WorkReviewed(project.id, sub.id, review)])
        await begin_run(store, project.id, Budget(cost=5))
        journal = MemoryJournal()
        await work.arun(Worked(task="sub"), journal=journal, run_id="task-1-1")
        repository = await Repository.open(root)
        api = router(
            {"work": work}, journal=journal, auth=bearer(users), visible=_is_ana, recover=False
        )
        add_teams(api, {name: ServedTeam(store, project, repository, journal)}, visible=_is_ana)
        async with (
            listening(api) as url,
            httpx.AsyncClient(base_url=url, timeout=20) as client,
        ):
            yield Served(url, api, client, store, commit)


def _is_ana(user: User, thing: Project | RunInfo) -> bool:
    return user.name != "ben"


# Who may do what

BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/teams/{team}/tasks"): {"tasks": [{"key": "more", "title": "More"}]},
    ("PATCH", "/teams/{team}/tasks/{task}"): {"priority": 3},
    ("POST", "/teams/{team}/approve"): {"tasks": ["guide"], "without_tests": True},
    ("POST", "/teams/{team}/actions"): {"action": "pause"},
    ("POST", "/teams/{team}/blockers/{blocker}"): {"answer": "no"},
}


def rows() -> tuple[Endpoint, ...]:
    api = router({}, journal=MemoryJournal(), auth=bearer("a-token"))
    add_teams(api, {})
    return tuple(endpoint for endpoint in api.endpoints if endpoint.path.startswith("/teams"))


def path_of(row: Endpoint) -> str:
    task = "sub" if "diff" in row.path or "attempts" in row.path else "guide"
    return row.path.format(team="shop", task=task, attempt="1", blocker="1")


async def test_every_endpoint_checks_the_rights_and_visible_teams_of_a_user(tmp_path: Path):
    others = {f"not-{verb}": User("other", VERBS - {verb}) for verb in VERBS}
    async with serve_shop(tmp_path, USERS | others) as shop:
        before = await shop.store.last_event(1), await shop.store.tasks(1)
        for row in rows():
            path, body = path_of(row), BODIES.get((row.method, row.path))
            for user, status, code in (
                (None, 401, "bae-serve-auth"),
                ("wrong", 401, "bae-serve-auth"),
                (f"not-{row.verb}", 403, "bae-serve-verb"),
            ):
                refused = await shop.ask(row.method, path, body, user)
                assert (refused.status_code, refused.json()["type"]) == (status, code), path
            hidden = await shop.ask(row.method, path, body, "ben")
            if path == "/teams":
                assert hidden.json() == {"teams": []}
            else:
                found = hidden.json()
                assert (hidden.status_code, found["type"]) == (404, "bae-team-unknown"), path
                assert "no team 'shop'" in found["detail"]
        assert (await shop.store.last_event(1), await shop.store.tasks(1)) == before
        for row in sorted(rows(), key=lambda row: row.method == "DELETE"):
            body = BODIES.get((row.method, row.path))
            allowed = await shop.ask(row.method, path_of(row), body)
            assert allowed.status_code in row.answers, allowed.text


async def test_no_refusal_names_a_file_of_the_server(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        await shop.store.write(lambda db: db.exec_driver_sql("drop table attempts"))
        refused = await shop.ask("GET", "/teams/shop/tasks/sub/attempts")
        assert (refused.status_code, refused.json()["type"]) == (503, "bae-team-store")
        assert refused.headers["retry-after"]
        assert str(tmp_path) not in refused.text


HOSTILE = ("%00", "%ff", "-1", "9" * 30, "..%2f..", "%27%20or%201=1", "%F0%9F%90%91")


async def test_no_hostile_request_causes_a_server_error(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        for number, row in enumerate(rows()):
            for bad in (HOSTILE[(number + more) % len(HOSTILE)] for more in (0, 3)):
                names = {"team": "shop", "task": "sub", "attempt": "1", "blocker": "1"}
                last = [name for name in names if f"{{{name}}}" in row.path][-1:]
                paths = [row.path.format(**names | dict.fromkeys(last, bad))]
                if row.method != "DELETE":
                    paths.append(f"{path_of(row)}?after={bad}&cut={bad}&path={bad}")
                    paths.append(f"{path_of(row)}?path={bad}")
                body = {"tasks": [bad], "answer": "\x00", "action": bad, "title": "\x00"}
                for path in paths:
                    answer = await shop.ask(row.method, path, body)
                    assert answer.status_code < 500, (row.method, path, answer.text)


async def test_the_feed_and_the_inbox_have_only_visible_teams(tmp_path: Path):
    async with serve_shop(tmp_path) as shop, asyncio.timeout(20):
        kinds = [gate["kind"] for gate in (await shop.get("/inbox"))["gates"]]
        assert sorted(kinds) == ["blocker", "plan"]
        assert (await shop.get("/inbox", "ben"))["gates"] == []
        url = shop.url.replace("http", "ws", 1) + "/feed"
        async with connect(url) as socket:
            await socket.send(json.dumps({"token": "ben"}))
            await socket.send(json.dumps({"sub": 1, "feed": "team/shop"}))
            refused = json.loads(await socket.recv())
            assert (refused["end"], refused["type"]) == ("refused", "bae-team-unknown")
        async with connect(url) as socket:
            await socket.send(json.dumps({"token": "ana"}))
            await socket.send(json.dumps({"sub": 1, "feed": "team/shop", "after": 1}))
            found: list[Any] = []
            while not found:
                found += json.loads(await socket.recv())["items"]
            [new] = await shop.store.add_events([ActivityUpdate(1, "looks at calc.sh")])
            while found[-1]["number"] < new.number:
                found += json.loads(await socket.recv()).get("items", [])
        assert [row["number"] for row in found] == [*range(2, new.number + 1)]
        assert found[-1] == new.to_message()
        assert (await shop.get("/teams/shop/events?after=1"))["events"] == found
        last = found[-1]["number"]
        end = await shop.get(f"/teams/shop/events?after={last}")
        assert end == {"events": [], "last": last}
        unknown = await shop.ask("GET", f"/teams/shop/events?after={last + 1}")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "bae-team-unknown")
        assert f"the last one is {last}" in unknown.json()["detail"]


# The plan


async def test_a_plan_can_be_edited_approved_and_dropped(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        plan = await shop.get("/teams/shop/plan")
        assert (plan["unapproved"], plan["without_tests"]) == (["guide"], ["guide"])
        assert plan["rounds"] == [["guide"]]
        assert [item["task"] for item in plan["left"]] == ["sub", "report"]
        task = {"key": "mul", "title": "Multiply", "depends_on": ["sub"]}
        added = await shop.ask("POST", "/teams/shop/tasks", {"tasks": [task]})
        assert added.status_code == 201
        assert added.json()["tasks"][0]["approved"] is False
        edited = await shop.ask("PATCH", "/teams/shop/tasks/mul", {"title": "Times", "priority": 2})
        assert edited.json()["task"]["title"] == "Times"
        assert edited.json()["task"]["depends_on"] == ["sub"]
        approved = await shop.ask("POST", "/teams/shop/approve")
        assert approved.json()["approved"] == 1
        assert approved.json()["plan"]["unapproved"] == ["guide"]
        body = {"tasks": ["guide"], "without_tests": True}
        assert (await shop.ask("POST", "/teams/shop/approve", body)).json()["approved"] == 1
        assert (await shop.ask("DELETE", "/teams/shop/tasks/mul")).status_code == 204
        needed = await shop.ask("DELETE", "/teams/shop/tasks/sub")
        assert (needed.status_code, needed.json()["type"]) == (409, "bae-team-transition")
        assert "report depends on it" in needed.json()["detail"]
        changes = [e.event for e in await shop.store.events_of(1, PlanChanged)]
        assert [(e.change, e.by) for e in changes if isinstance(e, PlanChanged)] == [
            ("added", None),
            *(("added", "ana"), ("edited", "ana"), ("approved", "ana"), ("approved", "ana")),
            ("dropped", "ana"),
        ]
        assert [
            planned_task["key"] for planned_task in (await shop.get("/teams/shop/tasks"))["tasks"]
        ] == [*("sub", "report", "guide")]
        page = await shop.get("/teams/shop/tasks?limit=2")
        assert [
            t["key"] for t in (await shop.get(f"/teams/shop/tasks?after={page['next']}"))["tasks"]
        ] == ["guide"]


async def test_a_user_without_the_answer_right_cannot_approve(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        task = {"key": "mul", "title": "Multiply"}
        body = {"tasks": [task], "approve": True}
        refused = await shop.ask("POST", "/teams/shop/tasks", body, "eve")
        assert (refused.status_code, refused.json()["type"]) == (403, "bae-serve-verb")
        assert (await shop.ask("POST", "/teams/shop/approve", {}, "eve")).status_code == 403
        change = {"description": "Something else."}
        edited = await shop.ask("PATCH", "/teams/shop/tasks/sub", change, "eve")
        assert edited.json()["task"]["approved"] is False  # what was approved was another task
        response = await shop.ask("PATCH", "/teams/shop/tasks/report", change)
        assert response.json()["task"]["approved"] is True


async def test_impossible_tasks_are_refused_with_their_place(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        for task, code, said in (
            ({"key": "X", "title": "x"}, "bae-serve-input", "body.tasks.0.key"),
            ({"key": "x", "title": "x", "files": ["no.sh"]}, "bae-team-unknown-file", "no.sh"),
            ({"key": "x", "title": "x", "depends_on": ["y"]}, "bae-team-unknown-dependency", "y"),
            ({"key": "sub", "title": "x"}, "bae-team-duplicate", "sub"),
        ):
            refused = await shop.ask("POST", "/teams/shop/tasks", {"tasks": [task]})
            problem = refused.json()
            assert (refused.status_code, problem["type"]) == (422, code), problem
            assert said in problem["detail"]
            assert problem["errors"]
        assert len(await shop.store.tasks(1)) == 3
        edit = {"proof": "named-tests"}
        wrong = await shop.ask("PATCH", "/teams/shop/tasks/report", edit)
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bae-team-task")
        assert "needs the names in tests" in wrong.json()["errors"][0]["msg"]
        unknown = await shop.ask("GET", "/teams/shop/tasks/none")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "bae-team-unknown")


# What was done


async def test_a_task_shows_its_attempts_tests_reviews_log_and_cost(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        task = await shop.get("/teams/shop/tasks/1")
        assert (task["task"]["key"], task["reviews"]) == ("sub", 1)
        assert [attempt["outcome"] for attempt in task["attempts"]] == ["failed", "passed"]
        assert task["attempts"][0]["tests"] == {"passed": 0, "failed": 1, "skipped": 0}
        assert task["blockers"][0]["question"] == "May it take negative numbers?"
        assert task["spent"] == {"calls": 0, "tokens": 0, "cost": 0.0, "unpriced": 0}
        attempt = await shop.get("/teams/shop/tasks/sub/attempts/1")
        assert attempt["report"]["cases"][0]["message"] == "sub is 8"
        assert len(attempt["report"]["output"]) < 3000
        whole = await shop.get("/teams/shop/tasks/sub/attempts/1?cut=0")
        assert whole["report"]["output"] == "o" * 9000
        tests = await shop.get("/teams/shop/tasks/sub/tests")
        assert (tests["attempt"], tests["merged"]) == (2, [])
        reviews = await shop.get("/teams/shop/tasks/sub/reviews")
        assert reviews["reviews"][0]["findings"][0]["text"] == "no comment"
        log = await shop.get("/teams/shop/tasks/sub/log")
        assert [entry["kind"] for entry in log["entries"]] == ["question", "review"]
        first = await shop.get("/teams/shop/tasks/sub/log?limit=1")
        assert (first["total"], first["next"]) == (2, 1)


async def test_the_list_of_tasks_shows_the_state_of_each_task(
    tmp_path: Path,
):
    async with serve_shop(tmp_path) as shop:
        [sub, report, _] = (await shop.get("/teams/shop/tasks"))["tasks"]
        assert (sub["attempts"], sub["outcome"]) == (2, "passed")
        assert (sub["question"], sub["outcomes"]) == ("May it take negative numbers?", None)
        assert (report["attempts"], report["question"], report["doing"]) == (0, "", None)

        await shop.store.move(2, Status.PENDING, Status.READY)
        await shop.store.move(2, Status.READY, Status.IN_PROGRESS)
        event = ActivityUpdate(1, "runs the tests", 2, "backend-1")
        counted = TestResult(1, 2, passed=False, counts={"passed": 3, "failed": 1})
        await shop.store.add_events([counted, event])
        [_, report, _] = (await shop.get("/teams/shop/tasks"))["tasks"]
        assert report["outcomes"] == {"passed": 3, "failed": 1}
        assert report["since"] > 0
        assert report["doing"] is None  # no run is in progress: nobody works on it
        repository = await Repository.open(tmp_path / "project")
        async with lead_lock(repository).hold(exclusive=True, timeout=1):
            [_, report, _] = (await shop.get("/teams/shop/tasks"))["tasks"]
        assert report["doing"]["text"] == "runs the tests"


async def test_a_team_shows_the_spending_of_its_last_run_and_its_budget(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        about: Any = {"project_id": 1, "task_id": 1, "run_id": 1, "tokens": 500}
        await shop.store.write(lambda db: tables.insert(db, tables.spending, **about, cost=0.25))
        run = (await shop.get("/teams/shop"))["run"]
        assert run["spent"] == {"calls": 1, "tokens": 500, "cost": 0.25, "unpriced": 0}
        assert (run["calls"], run["tokens"], run["cost"]) == (None, None, 5.0)


async def test_a_pending_request_is_listed(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        for body in ({"action": "retry"}, {"action": "pause", "task": "report"}):
            assert (await shop.ask("POST", "/teams/shop/actions", body)).status_code == 202
        team = await shop.get("/teams/shop")
        assert [(request["action"], request["task"]) for request in team["requests"]] == [
            ("retry", None)
        ]
        rows = (await shop.get("/teams/shop/tasks"))["tasks"]
        assert [row["key"] for row in rows if row["paused"]] == ["report"]


async def test_a_plan_has_a_picture_of_its_tasks(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        plan = await shop.get("/teams/shop/plan")
        boxes = {box["node"]: box for box in plan["boxes"]}
        assert boxes.keys() == {"sub", "report", "guide"}
        assert boxes["sub"]["x"] < boxes["report"]["x"]
        [edge] = plan["edges"]
        assert (edge["source"], edge["target"]) == ("sub", "report")
        assert {"key", "title"} <= set(plan["task_schema"]["required"])


async def test_a_cost_sum_counts_the_calls_with_unknown_cost(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        about: Any = {"project_id": 1, "task_id": 1, "run_id": 1, "tokens": 500}

        async def spend(cost: float) -> Any:
            values = about | {"cost": cost, "unpriced": not cost}
            await shop.store.write(lambda db: tables.insert(db, tables.spending, **values))
            return (await shop.get("/teams/shop/tasks"))["tasks"][0]["spent"]

        assert await spend(0.0) == {"calls": 1, "tokens": 500, "cost": None, "unpriced": 1}
        some = {"calls": 2, "tokens": 1000, "cost": 0.25, "unpriced": 1}
        assert await spend(0.25) == some
        assert (await shop.get("/teams/shop"))["spent"] == some


async def test_tasks_and_questions_of_another_project_are_not_found(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        about = {"root": "/bank", "branch": "b", "test_command": ("t",)}
        bank = await shop.store.save_project(Project(id=0, name="bank", **about))
        [task] = await shop.store.add_tasks(bank.id, [PlannedTask(key="vault", title="Vault")])
        asked = await shop.store.add_blocker(task.id, "Which key?")
        before = await shop.store.tasks(bank.id), await shop.store.last_event(bank.id)
        for named in (task.key, str(task.id)):
            for method, path, body in (
                ("GET", f"tasks/{named}/log", None),
                ("GET", f"tasks/{named}/diff", None),
                ("PATCH", f"tasks/{named}", {"title": "Mine"}),
                ("DELETE", f"tasks/{named}", None),
                ("POST", "approve", {"tasks": [named]}),
                ("POST", "actions", {"action": "kill", "task": named}),
                ("POST", f"blockers/{asked.id}", {"answer": "mine"}),
            ):
                refused = await shop.ask(method, f"/teams/shop/{path}", body)
                assert (refused.status_code, refused.json()["type"]) == (404, "bae-team-unknown")
        assert (await shop.store.tasks(bank.id), await shop.store.last_event(bank.id)) == before
        assert "Which key?" not in str(await shop.get("/inbox"))


async def test_the_change_of_an_attempt_is_a_list_of_hunks(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        for path in ("tasks/sub/attempts/2/diff", "tasks/sub/diff"):
            code, notes = (await shop.get(f"/teams/shop/{path}"))["files"]
            assert (code["path"], code["change"], code["is_cut"]) == ("calc.sh", "changed", False)
            [hunk] = code["hunks"]
            lines = hunk["lines"]
            assert "".join(f"{line[1:]}\n" for line in lines if line[0] in " -") == CALC
            assert "".join(f"{line[1:]}\n" for line in lines if line[0] in " +") == SUB
            assert (notes["change"], notes["added"], notes["is_cut"]) == ("added", 3000, True)
            assert len(notes["hunks"][0]["lines"]) == 2000
        whole = await shop.get("/teams/shop/tasks/sub/attempts/2/diff?path=notes.txt&lines=0")
        assert len(whole["files"][0]["hunks"][0]["lines"]) == 3000
        none = await shop.ask("GET", "/teams/shop/tasks/report/diff")
        assert (none.status_code, none.json()["type"]) == (404, "bae-team-unknown")


async def test_the_diff_of_an_attempt_whose_commit_is_gone_is_not_found(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        task = (await shop.store.tasks(1))[0]
        attempt = Attempt(task_id=task.id, number=9, outcome="failed", commit="f" * 40)
        await shop.store.add_attempt(attempt)
        refused = await shop.ask("GET", f"/teams/shop/tasks/{task.id}/attempts/9/diff")
        assert (refused.status_code, refused.json()["type"]) == (404, "bae-team-unknown")
        assert "its commit is gone" in refused.json()["detail"]


async def test_files_with_odd_names_are_found_by_their_path(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        root = Path((await shop.store.project(1)).root)
        git(root, "checkout", "--quiet", "-b", "bae/task-2-report")
        (root / "bilder ä").mkdir()
        (root / "bilder ä" / "ö.bin").write_bytes(bytes(range(256)))
        (root / "leer\t.txt").touch()
        write(root, {"app.min.js": "x" * 300_000, "a b/c.txt": "one\n"})
        (root / os.fsdecode(b"gr\xfc\xdfe.txt")).write_text("hi\n")
        (root / "link").symlink_to("/etc/passwd")
        (root / "calc.test.sh").chmod(0o755)
        git(root, "mv", "calc.sh", "sums and more.sh")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", "odd")
        git(root, "checkout", "--quiet", "main")
        files = {f["path"]: f for f in (await shop.get("/teams/shop/tasks/report/diff"))["files"]}
        assert set(files) == {
            *("bilder ä/ö.bin", "leer\t.txt", "app.min.js", "a b/c.txt", "sums and more.sh"),
            *("gr��e.txt", "link", "calc.test.sh"),
        }
        modes = {path: file["mode"] for path, file in files.items()}
        assert (modes["link"], modes["calc.test.sh"]) == ("120000", "100755")
        assert (modes["leer\t.txt"], modes["sums and more.sh"]) == ("100644", "")
        assert files["gr��e.txt"]["old_path"] == "gr��e.txt"
        image = files["bilder ä/ö.bin"]
        assert (image["is_binary"], image["change"], image["hunks"]) == (True, "added", [])
        moved = files["sums and more.sh"]
        assert (moved["change"], moved["old_path"]) == ("renamed", "calc.sh")
        [line] = files["app.min.js"]["hunks"][0]["lines"][:1]
        assert (len(line) < 2_100, files["app.min.js"]["is_cut"]) == (True, True)
        for path in files:
            query = urlencode({"path": path, "lines": 0})
            [found] = (await shop.get(f"/teams/shop/tasks/report/diff?{query}"))["files"]
            assert (found["path"], found["is_cut"]) == (path, False)
        one = await shop.get("/teams/shop/tasks/report/diff?path=app.min.js&lines=0")
        assert len(one["files"][0]["hunks"][0]["lines"][0]) == 300_001
        outside = await shop.ask("GET", "/teams/shop/tasks/report/diff?path=../../etc/passwd")
        assert (outside.status_code, outside.json()["type"]) == (404, "bae-team-unknown")


# Questions and actions


async def test_a_different_second_answer_is_refused(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        [blocker] = (await shop.get("/teams/shop/blockers"))["blockers"]
        assert (blocker["task"], blocker["answer"]) == ("sub", None)
        assert blocker["since"] > 0
        path = f"/teams/shop/blockers/{blocker['id']}"
        for _ in range(2):  # the equal answer a second time is no error
            answered = await shop.ask("POST", path, {"answer": "Yes."})
            assert answered.json()["answered_by"] == "ana"
        other = await shop.ask("POST", path, {"answer": "No."})
        assert (other.status_code, other.json()["type"]) == (409, "bae-team-transition")
        assert "was answered by ana: Yes." in other.json()["detail"]
        assert (await shop.get("/teams/shop/blockers"))["blockers"] == []
        [kept] = (await shop.get("/teams/shop/blockers?all=true"))["blockers"]
        assert kept["answer"] == "Yes."
        event = (await shop.store.events(1))[-1].event
        assert getattr(event, "by", None) == "ana"


async def test_the_first_of_many_concurrent_answers_wins(
    tmp_path: Path,
):
    users = USERS | {f"user-{n}": User(f"user-{n}") for n in range(20)}
    async with serve_shop(tmp_path, users) as shop:
        answers = await asyncio.gather(
            *(
                shop.ask("POST", "/teams/shop/blockers/1", {"answer": f"{n}"}, f"user-{n}")
                for n in range(20)
            )
        )
        [first] = [answer.json() for answer in answers if answer.status_code == 200]
        assert first["answered_by"] == f"user-{first['answer']}"
        late = [answer for answer in answers if answer.status_code != 200]
        assert {response.status_code for response in late} == {409}
        said = f"was answered by {first['answered_by']}: {first['answer']}"
        assert all(said in response.json()["detail"] for response in late)
        resolved = await shop.store.events_of(1, BlockerResolved)
        assert len(resolved) == 1


async def test_a_question_in_the_inbox_has_its_task_and_answer_path(
    tmp_path: Path,
):
    async with serve_shop(tmp_path, name="my shop/ä") as shop:
        plan, question = (await shop.get("/inbox"))["gates"]
        if plan["kind"] != "plan":
            plan, question = question, plan
        assert question["context"]["title"]["value"] == "Subtract"
        assert (question["team"], question["task"]) == ("my shop/ä", "sub")
        answered = await shop.ask("POST", f"/{question['gate']}", {"answer": "Yes."})
        assert answered.json()["answered_by"] == "ana"
        body = {"tasks": [*plan["context"]], "without_tests": True}
        assert (await shop.ask("POST", f"/{plan['gate']}", body)).json()["approved"] == 1
        assert (await shop.get("/inbox"))["gates"] == []


async def test_the_inbox_shows_a_question_of_a_worker_only_once(tmp_path: Path):
    asking = Graph(start=Asking, end=Asking, name=worker_graph.name)
    async with serve_shop(tmp_path) as shop:
        before = (await shop.get("/inbox"))["gates"]
        run = await asking.arun(Asking(task="sub"), journal=shop.api.journal, run_id="task-1-2")
        assert run.waiting
        assert (await shop.get("/inbox"))["gates"] == before


async def test_actions_on_a_merged_task_are_refused(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        for before, after in ((Status.PENDING, Status.READY), (Status.READY, Status.IN_PROGRESS)):
            await shop.store.move(1, before, after)
        await shop.store.move(1, Status.IN_PROGRESS, Status.COMPLETED, commit=shop.commit)
        for action in ("note", "stop", "kill", "retry", "skip", "pause", "resume"):
            body = {"action": action, "task": "sub"} | ({"text": "x"} if action == "note" else {})
            refused = await shop.ask("POST", "/teams/shop/actions", body)
            assert (refused.status_code, refused.json()["type"]) == (409, "bae-team-transition")
        for text, status in (("x" * 20_001, 422), ("\x00\x1b[2J\ud800" * 100, 202)):
            body = {"action": "note", "task": "report", "text": text}
            content = json.dumps(body)
            headers = {"authorization": "Bearer ana", "content-type": "application/json"}
            told = await shop.client.post("/teams/shop/actions", content=content, headers=headers)
            assert told.status_code in (status, 400), told.text
        for path in ("sub", "guide"):
            dropped = await shop.ask("DELETE", f"/teams/shop/tasks/{path}")
            assert dropped.status_code == (409 if path == "sub" else 204)


async def test_people_steer_the_team_with_actions(tmp_path: Path):
    async with serve_shop(tmp_path) as shop:
        note = {"action": "note", "task": "sub", "text": "Mind the sign."}
        assert (await shop.ask("POST", "/teams/shop/actions", note)).status_code == 202
        assert (await shop.store.task(1)).notes == ("Mind the sign.",)
        [asked] = await shop.store.events_of(1, ActionRequested)
        assert asked.event == ActionRequested(1, "note", 1, "Mind the sign.", "ana")
        log = await shop.get("/teams/shop/tasks/sub/log")
        assert log["entries"][-1]["text"] == "note by ana: Mind the sign."
        paused = await shop.ask("POST", "/teams/shop/actions", {"action": "pause"})
        assert paused.json() == {"action": "pause", "task": None, "running": False, "request": 1}
        assert (await shop.get("/teams/shop"))["paused"] is True
        for body, status in (
            ({"action": "skip"}, 422),
            ({"action": "note", "task": "sub"}, 422),
            ({"action": "retry", "task": "none"}, 404),
            ({"action": "dance"}, 422),
            ({"action": "kill"}, 409),  # no run is in progress
        ):
            refused = await shop.ask("POST", "/teams/shop/actions", body)
            assert refused.status_code == status, refused.text
        await shop.store.move(1, Status.PENDING, Status.READY)
        row = await shop.get("/teams/shop")
        assert (row["running"], row["counts"]["ready"], row["blockers"]) == (False, 1, 1)
