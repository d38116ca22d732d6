"""`bae serve` as a process: killed, stopped and started again, with clients that come back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

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


@contextmanager
def served(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """`bae serve` on a port while the block runs."""
    (folder / "app.py").write_text(APP)
    command = [sys.executable, "-m", "bae", "serve", "app.py", "--json", "--max-iters", "0"]
    command += ["--port", str(port), "--journal", "runs.db"]
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


def start(client: httpx.Client) -> Follower:
    body = {"run_id": "long", "start": {}}
    made = client.post("/graphs/steps/runs", json=body)
    assert made.status_code == 201, made.text
    return Follower(client, "long")


def client_of(port: int) -> httpx.Client:
    headers = {"authorization": f"Bearer {TOKEN}"}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)


def test_a_client_that_comes_back_misses_nothing_when_the_server_is_killed(tmp_path: Path):
    port = free_port()
    with client_of(port) as client:
        with served(tmp_path, port) as process:
            follower = start(client)
            follower.follow(until=20)
            process.send_signal(signal.SIGKILL)
            process.wait()
        with served(tmp_path, port):
            follower.follow()
            run = client.get("/runs/long").json()
            total = client.get("/runs/long/records?limit=1").json()["last"] + 1
    assert follower.end["reason"] == "ended"
    assert follower.numbers == [*range(total)]
    assert (run["status"], run["result"]) == ("ended", {"n": 40})


def test_a_server_that_is_told_to_stop_ends_its_streams_and_cancels_no_run(tmp_path: Path):
    port = free_port()
    with client_of(port) as client:
        with served(tmp_path, port) as process:
            follower = start(client)
            follower.follow(until=10)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 143
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
        with served(tmp_path, port):
            follower.follow()
            page = client.get("/runs/long/records?limit=1000").json()
    assert follower.end["reason"] == "ended"
    assert follower.numbers == [*range(page["last"] + 1)]
    assert [each["kind"] for each in page["records"]].count("RunEnded") == 1
    assert not any("cancelled" in json.dumps(each["data"]) for each in page["records"])
