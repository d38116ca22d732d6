"""`bae serve` as a process: killed, stopped and started again, with clients that come back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

TOKEN = "token-of-a-process"
APP = """
from __future__ import annotations
import asyncio, os
from bae import Graph, Node

class Step(Node):
    n: int = 0
    upto: int = 40

    async def __call__(self) -> Step | Done:
        await asyncio.sleep(0.02)
        if self.n >= self.upto:
            return Done(n=self.n)
        return Step(n=self.n + 1, upto=self.upto)

class Done(Node):
    n: int
    async def __call__(self) -> None: ...

graph = Graph(start=Step, end=Done, name="steps")
"""


MOUNTED = f"""{APP}
import json, socket, sys
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from bae.journal import SQLiteJournal
from bae.serve import bearer, router

token = os.environ["BAE_SERVE_TOKEN"]
api = router(graph, journal=SQLiteJournal("runs.db"), auth=bearer(token), max_iters=0)
app = Starlette(lifespan=api.open, routes=[Mount("/", app=api)])
if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print(json.dumps({{"token": token}}), flush=True)
    uvicorn.run(app, fd=listener.fileno(), log_level="warning")
"""


@contextmanager
def run_server(
    folder: Path, port: int, app: str = APP, *options: str, mounted: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """`bae serve` on a port while the block runs, or uvicorn with an application of its own."""
    (folder / "app.py").write_text(MOUNTED if mounted else app)
    command = [sys.executable, "-m", "bae", "serve", "app.py", "--json", "--max-iters", "0"]
    command += ["--port", str(port), "--journal", "runs.db", *options]
    command = [sys.executable, "app.py", str(port)] if mounted else command
    environment = {**os.environ, "BAE_SERVE_TOKEN": TOKEN}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        if not first:
            raise AssertionError(process.communicate()[1])
        rest = first
        while True:
            try:
                assert json.loads(rest)["token"] == TOKEN
                break
            except ValueError:
                rest += process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Follower:
    """Follows a run as an EventSource does: it comes back with the number of the last record."""

    def __init__(self, client: httpx.Client, run_id: str) -> None:
        self.client, self.run_id = client, run_id
        self.numbers: list[int] = []
        self.end: dict[str, Any] = {}

    def follow(self, *, until: int = 1 << 30) -> None:
        """Read until the end, a number, or until the connection is lost."""
        headers = {"accept": "text/event-stream"}
        if self.numbers:
            headers["last-event-id"] = str(self.numbers[-1])
        path = f"/runs/{self.run_id}/records"
        kind = ""
        with self.client.stream("GET", path, headers=headers) as response:
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    self.numbers.append(int(value))
                elif name == "event":
                    kind = value
                elif name == "data" and kind == "end":
                    self.end = json.loads(value)
                elif not line and self.numbers and self.numbers[-1] >= until:
                    return


class SocketFollower:
    """Follows a run and the list of runs over the WebSocket, and comes back with the numbers of the
    last items."""

    def __init__(self, port: int, run_id: str) -> None:
        self.url, self.run_id = f"ws://127.0.0.1:{port}/feed", run_id
        self.numbers: list[int] = []
        self.changes: list[int] = []
        self.statuses: list[str] = []

    def follow(self, *, until: int = 1 << 30) -> None:
        """Read until the run is over, a number, or until the connection is lost."""
        with suppress(ConnectionClosed), connect(self.url) as socket:
            run = {"sub": 1, "feed": f"run/{self.run_id}", "after": (self.numbers or [-1])[-1]}
            runs = {"sub": 2, "feed": "runs", "after": (self.changes or [0])[-1]}
            for message in ({"token": TOKEN}, run, runs):
                socket.send(json.dumps(message))
            while True:
                message = json.loads(socket.recv(timeout=30))
                for item in message.get("items", ()):
                    if message["sub"] == 1:
                        self.numbers.append(item["n"])
                    else:
                        self.changes.append(item["change"])
                        self.statuses.append(item["status"])
                if "end" in message:
                    assert message["end"] in ("ended", "waiting"), message
                is_over = "ended" in self.statuses and self.numbers[-1:] == [message.get("last")]
                if (self.numbers and self.numbers[-1] >= until) or is_over:
                    return


def start(client: httpx.Client) -> Follower:
    body = {"run_id": "long", "start": {}}
    made = client.post("/graphs/steps/runs", json=body)
    assert made.status_code == 201, made.text
    return Follower(client, "long")


def client_of(port: int) -> httpx.Client:
    headers = {"authorization": f"Bearer {TOKEN}"}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)


@pytest.mark.parametrize(
    ("option", "wrong", "why"),
    [
        ("--allow-origin", "https://shop.example/page", "without a path"),
        ("--token", "short", "at least 8"),
    ],
)
def test_an_impossible_option_of_the_serve_command_is_refused(
    option: str, wrong: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    main = pytest.importorskip("bae.cli").main
    (tmp_path / "app.py").write_text(APP)
    assert main(["serve", str(tmp_path / "app.py"), option, wrong]) == 2
    error = capsys.readouterr().err
    assert option in error
    assert why in " ".join(error.replace("│", " ").split())


def test_reconnecting_clients_miss_no_event_after_a_killed_server(tmp_path: Path):
    port = free_port()
    with client_of(port) as client, ThreadPoolExecutor() as threads:
        with run_server(tmp_path, port) as process:
            follower, socket = start(client), SocketFollower(port, "long")
            lost = threads.submit(socket.follow)  # until the connection is lost
            follower.follow(until=20)
            process.send_signal(signal.SIGKILL)
            process.wait()
            lost.result(30)
        assert socket.numbers
        with run_server(tmp_path, port):
            again = threads.submit(socket.follow)
            follower.follow()
            again.result(30)
            run = client.get("/runs/long").json()
            total = client.get("/runs/long/records?limit=1").json()["last"] + 1
    assert follower.end["reason"] == "ended"
    assert follower.numbers == socket.numbers == [*range(total)]
    assert socket.changes == sorted({*socket.changes})
    assert socket.statuses[-1] == "ended"
    assert (run["status"], run["result"]) == ("ended", {"n": 40})


@pytest.mark.parametrize("mounted", [False, True], ids=["alone", "mounted"])
def test_stopping_the_server_ends_its_streams_and_cancels_no_run(tmp_path: Path, mounted: bool):
    port = free_port()
    with client_of(port) as client, ThreadPoolExecutor() as threads:
        with run_server(tmp_path, port, mounted=mounted) as process:
            follower, other = start(client), Follower(client, "long")
            stream = threads.submit(other.follow)
            follower.follow(until=10)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == (-signal.SIGTERM if mounted else 143)
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
            stream.result(20)
            assert (other.end["reason"], other.end["last"]) == ("closing", other.numbers[-1])
        with run_server(tmp_path, port):
            follower.follow()
            page = client.get("/runs/long/records?limit=1000").json()
    assert follower.end["reason"] == "ended"
    assert follower.numbers == [*range(page["last"] + 1)]
    assert [record["kind"] for record in page["records"]].count("RunEnded") == 1
    assert not any("cancelled" in json.dumps(record["data"]) for record in page["records"])
