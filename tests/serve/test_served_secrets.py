"""Secrets of a graph are in no response and no feed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr
from websockets.asyncio.client import connect

from bae import Gate, Graph, JournalError, Node, ToolCall, Tools
from bae.journal import MemoryJournal, SQLiteJournal
from bae.serve.live import FEEDS
from bae.serve.table import TABLE
from bae.testing import ScriptedLM
from serving import TOKEN, serving

SECRET = "correct-horse-battery"


class Login(Node):
    name: str
    password: SecretStr
    pin: str = Field(default="", repr=False)

    async def __call__(self) -> Confirm:
        return Confirm(name=self.name, pin=self.pin)


class Confirm(Node):
    name: str
    pin: str = Field(repr=False)
    sure: Annotated[bool, Gate("Log in?")] = Field(init=False)

    async def __call__(self) -> Account:
        return Account(pin=self.pin)


class Account(Node):
    pin: str = Field(repr=False)

    async def __call__(self) -> None: ...


login = Graph(start=Login, end=Account, name="login")
START = {"name": "ana", "password": SECRET, "pin": SECRET}
BODIES: dict[str, Any] = {
    "/graphs/{graph}/runs": {"run_id": "run", "start": START},
    "/runs/{run}/answers": {"gate": "1:Confirm.sure", "value": True},
    "/runs/{run}/forks": {"at": 0, "changed": {"name": "ben", "pin": SECRET, "password": SECRET}},
    "/runs/{run}/approvals/revoke": {"tool": "none"},
    "/ag-ui/{graph}": {"threadId": "t", "runId": "r", "messages": [], "state": START},
    "/runs/{run}/resume": {"given": {"Login.password": SECRET, "Login.pin": SECRET}},
}
QUERIES = {
    "/runs/{run}/steps/{step}/why": "?field=password",
    "/compare": "?a=run&b=run&same=true",
}


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_no_response_contains_a_secret(accept: str):
    order = {"GET": 0, "POST": 1, "DELETE": 2}
    async with serving(graphs={"login": login}) as served:
        await served.post("/graphs/login/runs?wait=10", BODIES["/graphs/{graph}/runs"])
        seen = 0
        for endpoint in sorted(TABLE, key=lambda row: order[row.method]):
            if endpoint.takes_bytes:
                continue
            path = endpoint.path.format(
                graph="login", run="run", step="0", call="0", thread="t", hash="sha256:0"
            )
            more: Any = {"json": BODIES.get(endpoint.path, {})} if endpoint.method == "POST" else {}
            response = await served.client.request(
                endpoint.method,
                path + QUERIES.get(endpoint.path, ""),
                headers={"accept": accept},
                **more,
            )
            assert response.status_code < 500
            assert SECRET not in response.text, endpoint.path
            seen += response.status_code < 300
        assert seen > len(TABLE) / 2


async def test_no_refusal_contains_a_secret():
    async with serving(graphs={"login": login}) as served:
        for start in ({**START, "name": 7}, {**START, "pin": [SECRET]}, {"password": [SECRET]}):
            refused = await served.client.post("/graphs/login/runs", json={"start": start})
            assert refused.status_code == 422
            assert SECRET not in refused.text


class Keys(BaseModel):
    name: str = "main"
    key: str = Field(default=SECRET, repr=False)


def call_partner(sku: str, key: Annotated[str, Field(repr=False)] = SECRET) -> str:
    """Order from a partner."""
    return sku


class Setup(Node):
    name: str = "ana"
    pin: str = Field(default=SECRET, repr=False)
    password: SecretStr = SecretStr(SECRET)
    keys: Keys = Keys()

    async def __call__(self) -> Connected: ...


class Connected(Node):
    calls: Annotated[list[ToolCall], Tools(call_partner)]
    keys: Annotated[Keys, Gate("Which keys?")]
    spare: list[Keys] = [Keys()]
    pin: str = Field(default=SECRET, repr=False)

    async def __call__(self) -> None: ...


async def test_no_schema_contains_a_secret_default():
    graph = Graph(start=Setup, end=Connected, name="setup")
    async with serving(graphs={"setup": graph}, lm=ScriptedLM()) as served:
        await served.post("/graphs/setup/runs?wait=10", {"run_id": "run", "start": {}})
        shown = await served.get("/graphs/setup")
        assert shown["start_schema"]["properties"]["name"]["default"] == "ana"
        for name in ("pin", "password", "keys"):
            assert "default" not in shown["start_schema"]["properties"][name]
        [gate] = (await served.get("/inbox"))["gates"]
        assert gate["answer_schema"]["properties"]["name"]["default"] == "main"
        for path in ("/graphs/setup", "/openapi.json", "/inbox", "/runs/run/steps/0/fork"):
            assert SECRET not in json.dumps(await served.get(path)), path


async def test_an_answer_to_a_run_with_secrets_explains_how_to_resume():
    async with serving(graphs={"login": login}) as served, asyncio.timeout(20):
        await served.post("/graphs/login/runs?wait=10", BODIES["/graphs/{graph}/runs"])
        answer = BODIES["/runs/{run}/answers"]
        for _ in range(2):
            refused = await served.client.post("/runs/run/answers", json=answer)
            assert (refused.status_code, refused.json()["type"]) == (409, "bae-journal-secret")
            assert refused.json()["detail"].startswith("the answer is stored")
            assert (
                'POST /runs/R/resume with {"given": {"Login.password": …' in refused.json()["fix"]
            )
        assert (await served.post("/runs/run/replay"))["outcome"] == "unknown"
        given = {"Login.password": SECRET, "Login.pin": SECRET, "Confirm.pin": SECRET}
        await served.post("/runs/run/resume", {"given": given})
        ends = [data async for kind, _, data in served.events("run") if kind == "end"]
        assert ends[0]["reason"] == "ended"


async def test_a_fork_of_a_run_with_secrets_explains_how_to_resume():
    async with serving(graphs={"login": login}) as served, asyncio.timeout(20):
        await served.post("/graphs/login/runs?wait=10", BODIES["/graphs/{graph}/runs"])
        missing = await served.client.post("/runs/run/forks", json={"at": 0})
        assert missing.json()["fix"] == 'give the values again: {"changed": {"password": …}}'
        fork = {**BODIES["/runs/{run}/forks"], "run_id": "fork"}
        made = await served.client.post("/runs/run/forks", json=fork)
        assert (made.status_code, made.json()["run_id"]) == (409, "fork")
        assert made.json()["detail"].startswith("the fork fork is stored")
        again = await served.client.post("/runs/run/forks", json=fork)
        assert (again.status_code, again.json()["run_id"]) == (200, "fork")
        await served.post(
            "/runs/fork/resume", {"given": {"Login.password": SECRET, "Login.pin": SECRET}}
        )
        ends = [data async for kind, _, data in served.events("fork") if kind == "end"]
        assert ends[0]["reason"] == "waiting"


@pytest.mark.parametrize("kind", FEEDS)
async def test_no_feed_contains_a_secret(kind: str):
    async with serving(graphs={"login": login}) as served, asyncio.timeout(20):
        await served.post("/graphs/login/runs?wait=10", BODIES["/graphs/{graph}/runs"])
        async with connect(served.ws()) as socket:
            await socket.send(json.dumps({"token": TOKEN}))
            await socket.send(json.dumps({"sub": 1, "feed": {"run": "run/run"}.get(kind, kind)}))
            text = ""
            while '"run_id":"run"' not in text.replace(" ", "") and "GateOpened" not in text:
                text += str(await socket.recv())
            assert SECRET not in text


async def test_no_refusal_names_a_file_of_the_server(tmp_path: Path):
    async with SQLiteJournal(tmp_path / "runs.db") as journal, serving(journal) as served:
        await served.start(run_id="one")
        unknown = await served.client.get("/runs/none")
        assert (unknown.status_code, str(tmp_path) in unknown.text) == (404, False)
        await journal.close()
        closed = await served.client.get("/runs/one")
        assert (closed.status_code, closed.json()["type"]) == (503, "bae-journal-closed")
        assert str(tmp_path) not in closed.text


class Broken(MemoryJournal):
    """Refuses every question with an error that names the store."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self.error = JournalError("postgresql://db.example/runs is broken", code=code)

    async def runs(self, **more: Any) -> Any:
        raise self.error

    async def lines(self, run_id: str, **more: Any) -> Any:
        raise self.error

    async def create(self, stored: Any, **more: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "name",
    [
        "away",
        "closed",
        "damaged",
        "failed",
        "foreign",
        "forked",
        "full",
        "gone",
        "locked",
        "lost-lines",
        "schema",
    ],
)
async def test_no_refusal_names_the_store_of_the_server(name: str):
    async with serving(Broken(f"bae-journal-{name}"), recover=False) as served:
        body = {"start": {"sku": "lamp"}}
        for refused in (
            await served.client.get("/runs"),
            await served.client.get("/runs/one"),
            await served.client.post("/graphs/orders/runs", json=body),
        ):
            assert refused.status_code in (500, 503)
            assert refused.json()["type"] == f"bae-journal-{name}"
            assert "db.example" not in refused.text
            assert ("retry-after" in refused.headers) == (refused.status_code == 503)
