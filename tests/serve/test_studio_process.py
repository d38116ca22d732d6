"""`bae studio` as a process: ports, links, restarts, and the errors at its start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from studio_pages import write_page

TOKEN = "token-of-a-process"
APP = """
from __future__ import annotations
from bae import Graph, Node

class Greeting(Node):
    text: str

    async def __call__(self) -> Reply:
        return Reply(text=self.text.upper())

class Reply(Node):
    text: str
    async def __call__(self) -> None: ...

graph = Graph(start=Greeting, end=Reply, name="{name}")
"""
PROGRAM = """
import sys
from pathlib import Path
import bae.serve.studio_page as studio_page
studio_page.FOLDER = Path({page!r})
from bae.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""`bae` with a page of the test: what is tested here does not change with the built one."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_page(tmp_path)
    for name in ("app", "refunds"):
        (tmp_path / f"{name}.py").write_text(APP.format(name=name))
    return tmp_path


def command_of(folder: Path, *arguments: str) -> list[str]:
    program = PROGRAM.format(page=str(folder / "page"))
    return [sys.executable, "-c", program, "studio", *arguments]


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    left_out = ("BAE_STUDIO_TOKEN", "BAE_JOURNAL", "BAE_LM", "BROWSER")
    own = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**own, "XDG_STATE_HOME": str(folder / "state"), **more}


def run_studio(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A `bae studio` that ends by itself."""
    return subprocess.run(
        command_of(folder, *arguments),
        cwd=folder,
        env=environment_of(folder, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def studio(folder: Path, *arguments: str, **more: str) -> Iterator[tuple[Any, Any]]:
    """Run `bae studio` while the block runs: yields its JSON output and the process."""
    process = subprocess.Popen(
        command_of(folder, *arguments, "--json"),
        cwd=folder,
        env=environment_of(folder, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        text = ""
        while line := process.stdout.readline():
            text += line
            if line.startswith("}"):
                break
        else:
            raise AssertionError(process.communicate()[1])
        yield json.loads(text), process
        process.terminate()
        assert process.wait(20) == 143
        assert "Traceback" not in process.communicate()[1]
    finally:
        process.kill()
        process.communicate()


def client_of(told: Any, token: str | None = None) -> httpx.Client:
    headers = {"authorization": f"Bearer {token or told['token']}"}
    return httpx.Client(base_url=told["url"], headers=headers, timeout=20)


def log_in(told: Any) -> str:
    link, token = told["link"].split("/#token=")
    assert link == told["url"]
    response = httpx.post(f"{link}/api/login", json={"token": token}, timeout=20)
    return response.json()["token"]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def test_a_browser_stays_logged_in_when_the_studio_is_killed_and_started_again(folder: Path):
    port = free_port()
    with studio(folder, "app.py", "--port", port) as (told, process):
        assert told["url"] == f"http://127.0.0.1:{port}"
        token = log_in(told)
        with client_of(told, token) as client:
            body = {"run_id": "hello", "start": {"text": "hello"}}
            run = client.post("/api/graphs/app/runs?wait=10", json=body).json()
            assert run["result"] == {"text": "HELLO"}
        process.kill()
        process.wait()
        with studio(folder, "app.py", "--port", port) as (again, _):
            assert again["url"] == told["url"]
            with client_of(told, token) as client:
                assert client.get("/api/runs/hello").json()["status"] == "ended"
        process.returncode = 143  # of the outer block


def test_repeating_the_command_prints_a_new_link_to_the_running_studio(folder: Path):
    with studio(folder, "app.py", "--port", free_port()) as (told, _):
        port = told["url"].rpartition(":")[2]
        again = run_studio(folder, "app.py", "--port", port)
        assert again.returncode == 0, again.stderr
        [link] = re.findall(r"http://\S+", again.stdout)
        assert link.startswith(f"{told['url']}/#token=")
        assert link != told["link"]
        for info in (told, {**told, "link": link}):
            assert log_in(info)
        for more in ({"BAE_STUDIO_TOKEN": TOKEN}, {"BAE_JOURNAL": "other.db"}):
            other = run_studio(folder, "app.py", "--port", port, **more)
            assert (other.returncode, "bae-serve-address" in other.stderr) == (1, True)
        other = run_studio(folder, "refunds.py", "--port", port)
        assert (other.returncode, "bae-serve-address" in other.stderr) == (1, True)


def test_the_studio_uses_the_next_free_port_by_default(folder: Path):
    with closing(socket.socket()) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8421))
            taken.listen()
        except OSError:
            pass  # another program has it, which is as good
        with studio(folder, "app.py") as (told, process):
            port = int(told["url"].rpartition(":")[2])
            assert 8421 < port < 8441
            with client_of(told) as client:
                assert client.get("/api/health").status_code == 200
            process.terminate()
            assert f"is on {port}" in process.communicate()[1]
            process.returncode = 143


def test_a_studio_serves_several_graphs_with_distinct_names(folder: Path):
    with studio(folder, "app.py", "refunds.py", "--port", "0") as (told, _):
        assert told["graphs"] == ["app", "refunds"]
        with client_of(told) as client:
            names = [graph["name"] for graph in client.get("/api/studio").json()["graphs"]]
            assert names == ["app", "refunds"]
    refused = run_studio(folder, "app.py", "app.py:graph")
    assert refused.returncode == 2
    assert "same name, app" in " ".join(refused.stderr.split())


def test_a_studio_with_only_a_journal_is_read_only(folder: Path):
    started = studio(folder, "app.py", "--port", "0", "--journal", "runs.db")
    with started as (told, _), client_of(told) as client:
        body = {"run_id": "hello", "start": {"text": "hello"}}
        client.post("/api/graphs/app/runs?wait=10", json=body)
    exported = run_bae(folder, "runs", "export", "--journal", "runs.db", "runs.jsonl")
    assert exported.returncode == 0, exported.stderr
    for file in ("runs.db", "runs.jsonl"):
        with (
            studio(folder, "--journal", file, "--port", "0") as (told, _),
            client_of(told) as client,
        ):
            seen = client.get("/api/studio").json()
            assert (seen["can"], seen["graphs"]) == (["read"], [])
            assert seen["read_only"]["command"] == f"bae studio MODULE --journal {file}"
            assert [row["run_id"] for row in client.get("/api/runs").json()["runs"]] == ["hello"]
            assert client.get("/api/runs/hello/steps").json()["total"] == 2
            assert client.post("/api/runs/hello/resume", json={}).status_code == 403
    missing = run_studio(folder, "--journal", "none.db")
    assert (missing.returncode, "none.db" in missing.stderr) == (1, True)


def run_bae(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bae", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_token_from_the_environment_gives_scripts_access(folder: Path):
    started = studio(folder, "app.py", "--port", "0", BAE_STUDIO_TOKEN=TOKEN)
    with started as (told, _), client_of(told, TOKEN) as client:
        assert client.get("/api/runs").status_code == 200
    short = run_studio(folder, "app.py", BAE_STUDIO_TOKEN="short")
    assert (short.returncode, "at least 8" in " ".join(short.stderr.split())) == (2, True)


def test_the_open_option_opens_the_link_in_the_browser(folder: Path):
    browser = folder / "browser.sh"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {folder}/opened\n')
    browser.chmod(0o755)
    with studio(folder, "app.py", "--port", "0", "--open", BROWSER=f"{browser} %s") as (told, _):
        assert httpx.get(told["url"], timeout=20).status_code == 200
        assert (folder / "opened").read_text() == told["link"]


def test_a_studio_starts_without_a_writable_state_folder(folder: Path):
    (folder / "state").write_text("a file where the folder should be")
    with studio(folder, "app.py", "--port", "0") as (told, process):
        assert log_in(told)
        process.send_signal(signal.SIGTERM)
        assert "forgotten when the studio stops" in process.communicate()[1]
        process.returncode = 143


def test_an_invalid_module_is_refused_before_the_studio_starts(folder: Path):
    (folder / "bad.py").write_text("x = 1\n")
    refused = run_studio(folder, "bad.py")
    assert refused.returncode == 1
    assert "neither `graph` nor" in " ".join(refused.stderr.split())
    assert not refused.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_pressing_enter_prints_another_link(folder: Path):
    pytest.importorskip("pyte")
    terminal = pytest.importorskip("terminal_session")
    program = ("-c", PROGRAM.format(page=str(folder / "page")))
    environment = {"XDG_STATE_HOME": str(folder / "state")}
    arguments = ("studio", "app.py", "--port", "0")
    with terminal.Session(folder, *arguments, env=environment, program=program) as session:
        [first] = re.findall(r"http://\S+", session.shows("Enter prints another"))
        session.types("\r")
        session.waits(lambda: len(links_in(session)) > 1, "no other link")
        link = links_in(session)[-1]
        assert link != first
        assert log_in({"url": link.partition("/#")[0], "link": link})
        session.types(terminal.CTRL_C)
        assert session.ends() == 130
        assert session.is_as_it_was


def links_in(session: Any) -> list[str]:
    return re.findall(r"http://\S+", session.screen)
