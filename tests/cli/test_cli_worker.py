"""`bae submit`, `bae worker` and `bae engine status`, as a user calls them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bae.cli import main
from bae.journal import SQLiteJournal
from bounded import BOUND
from default_signals import restore_signals

APP = """
from bae import Graph, Node
from bae.engine import WorkerGraph
from bae.testing import ScriptedLM
from pydantic import SecretStr


class Word(Node):
    text: str

    async def __call__(self) -> "Length":
        return Length(count=len(self.text))


class Length(Node):
    count: int

    async def __call__(self) -> None: ...


class Login(Node):
    token: SecretStr

    async def __call__(self) -> Length:
        return Length(count=1)


class Question(Node):
    text: str

    async def __call__(self) -> "Reply": ...


class Reply(Node):
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Word, end=Length, name="words")
logins = Graph(start=Login, end=Length, name="logins")
asked = Graph(start=Question, end=Reply, name="questions")
questions = WorkerGraph(asked, ScriptedLM([{"text": "yes"}]))
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(arguments) == code
    return capsys.readouterr().out


def submit(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    return run_command(capsys, "submit", "app.py", "--no-ask", *arguments).strip()


def begin_worker(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bae", "worker", *arguments, "--json", "--poll", "0.05"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BAE_LM": "none"},
        preexec_fn=restore_signals,
    )


def end_worker(worker: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    worker.send_signal(number)
    _, errors = worker.communicate(timeout=BOUND)
    assert worker.returncode == 0, errors
    return errors


def wait_for(run_id: str, folder: Path) -> Any:
    async def wait() -> Any:
        import importlib.util

        spec = importlib.util.spec_from_file_location("shown_app", folder / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        async with SQLiteJournal(folder / ".bae" / "runs.db") as journal:
            info = await journal.info(run_id)
            graph = module.asked if info.graph == "questions" else module.graph
            return (await graph.result(run_id, journal=journal, timeout=BOUND)).result

    return asyncio.run(wait())


def test_a_worker_process_executes_a_run_that_submit_has_stored(
    app: Path, capsys: pytest.CaptureFixture[str]
):
    assert submit(capsys, "--set", "text=hello", "--run-id", "a") == "a"
    data = json.loads(run_command(capsys, "engine", "status", "--json"))
    assert (data["queued"], data["running"]) == ({"words": 1}, {})
    worker = begin_worker("app.py", folder=app)
    assert wait_for("a", app).count == 5
    end_worker(worker)
    assert json.loads(run_command(capsys, "engine", "status", "--json"))["queued"] == {}


def test_a_worker_serves_several_graphs_with_their_own_lms(
    app: Path, capsys: pytest.CaptureFixture[str]
):
    submit(capsys, "--set", "text=hello", "--run-id", "a")
    asked = ["submit", "app.py:asked", "--set", "text=Ready?", "--run-id", "b", "--no-ask"]
    run_command(capsys, *asked)
    worker = begin_worker("app.py", "app.py:questions", folder=app)
    assert (wait_for("a", app).count, wait_for("b", app).text) == (5, "yes")
    end_worker(worker, signal.SIGINT)


def test_engine_status_prints_a_readable_table(app: Path, capsys: pytest.CaptureFixture[str]):
    submit(capsys, "--set", "text=hello")
    submit(capsys, "--set", "text=hello", "--delay", "2h")
    lines = run_command(capsys, "engine", "status").splitlines()
    assert lines[0].split()[:3] == ["queued", "1", "oldest"]
    assert lines[1].split() == ["delayed", "1", "words", "1"]


def test_submit_refuses_a_secret_start_field_and_an_existing_run_id(
    app: Path, capsys: pytest.CaptureFixture[str]
):
    login = ["submit", "app.py:logins", "--set", "token=s3cret", "--no-ask"]
    run_command(capsys, *login, code=1)
    assert main(login) == 1
    errors = capsys.readouterr().err
    assert "bae-submit-secret" in errors
    assert "s3cret" not in errors
    submit(capsys, "--set", "text=hello", "--run-id", "a")
    assert main(["submit", "app.py", "--set", "text=hello", "--run-id", "a", "--no-ask"]) == 1
    assert "bae-run-exists" in capsys.readouterr().err


def test_an_unknown_engine_is_wrong_usage(app: Path, capsys: pytest.CaptureFixture[str]):
    for more in (["--engine", "celery"], ["--address", "127.0.0.1:7233"]):
        assert main(["engine", "status", *more]) == 2
        assert more[0] in capsys.readouterr().err
