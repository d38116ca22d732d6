"""Early ends of a run at the command line: by signals, by its own code, by the clock, with threads
that cannot be stopped, and with a closed stdout or stderr."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import bae
from bae.cli import journals, main, signals
from bae.cli.options import open_gates, run_ids
from bae.journal import SQLiteJournal
from bae.observers import observing
from bae.records import RunStarted

pytestmark = pytest.mark.usefixtures("folder")
BOUND = 30.0
APP = """
from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from typing import Annotated

from bae import Dep, Gate, Node


def log(line: str) -> None:
    with open("log", "a") as file:
        file.write(line + "\\n")


async def desk() -> AsyncIterator[str]:
    try:
        yield "desk"
    finally:
        log("desk closed")


Desk = Annotated[str, Dep(desk)]


class End(Node):
    async def __call__(self) -> None: ...


class Exits(Node):
    desk: Desk

    async def __call__(self) -> End:
        sys.exit()


class Interrupts(Node):
    desk: Desk

    async def __call__(self) -> End:
        raise KeyboardInterrupt


class Cancels(Node):
    desk: Desk

    async def __call__(self) -> End:
        raise asyncio.CancelledError("no reason")


class CancelsAll(Node):
    desk: Desk

    async def __call__(self) -> End:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.Event().wait()
        return End()


async def exits(desk: Desk) -> str:
    sys.exit(7)


def exits_in_a_thread(desk: Desk) -> str:
    sys.exit("why")


class DepExits(Node):
    value: Annotated[str, Dep(exits)]

    async def __call__(self) -> None: ...


class ThreadExits(Node):
    value: Annotated[str, Dep(exits_in_a_thread)]

    async def __call__(self) -> None: ...


class TaskExits(Node):
    desk: Desk

    async def __call__(self) -> End:
        task = asyncio.create_task(exits("desk"))
        await asyncio.Event().wait()
        return End()


class Waits(Node):
    desk: Desk

    async def __call__(self) -> End:
        log("waits")
        await asyncio.Event().wait()
        return End()


class HangsUp(Node):
    desk: Desk

    async def __call__(self) -> End:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        return End()


class Warns(Node):
    async def __call__(self) -> End:
        logging.getLogger("bae").warning('pass lm="local"')
        return End()


class Asks(Node):
    sure: Annotated[bool, Gate("Sure?")]

    async def __call__(self) -> None: ...


let_go = threading.Event()
begun: list[str] = []


def stuck() -> str:
    begun.append("stuck")
    let_go.wait()
    return ""


async def stuck_too() -> str:
    return await asyncio.to_thread(stuck)


async def fails() -> str:
    while len(begun) < 2:
        await asyncio.sleep(0)
    raise ValueError("boom")


class Stuck(Node):
    one: Annotated[str, Dep(stuck)]
    two: Annotated[str, Dep(stuck_too)]
    three: Annotated[str, Dep(fails)]

    async def __call__(self) -> None: ...


async def starts_thread() -> str:
    loop = asyncio.get_running_loop()

    def finish() -> None:
        while not loop.is_closed():
            let_go.wait(0.01)
        let_go.wait(0.2)  # the work that it has left
        log("thread done")

    threading.Thread(target=finish).start()
    raise ValueError("boom")


class Finishes(Node):
    one: Annotated[str, Dep(starts_thread)]

    async def __call__(self) -> None: ...


class GivenUp(Node):
    one: Annotated[str, Dep(stuck, timeout=0.05)] = "nothing"

    async def __call__(self) -> None: ...
"""


def read_log() -> list[str]:
    return Path("log").read_text().splitlines() if Path("log").exists() else []


def program(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`bae` as a process of its own, bounded."""
    source = str(Path(bae.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "bae", *words],
        **{"capture_output": True, **options},
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=BOUND,
        check=False,
    )


# --- by its own code ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("Exits", "sys.exit() was called, app.py:"),
        ("DepExits", "sys.exit() was called, app.py:"),
        ("ThreadExits", "sys.exit() was called, app.py:"),
        ("TaskExits", "sys.exit() was called, app.py:"),
        ("Interrupts", "a KeyboardInterrupt was raised, app.py:"),
        ("Cancels", "it was cancelled, app.py:"),
        ("CancelsAll", "it was cancelled, app.py:"),
    ],
)
def test_a_run_whose_code_exits_has_failed_and_closes_its_resources(
    node: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["run", f"app.py:{node}", "--run-id", "r1", "--json"]) == 1
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert (data["outcome"], data["error"]["code"]) == ("failed", "bae-run-ended-itself")
    assert list_failed_runs(capsys)["r1"]
    assert said in data["error"]["message"]
    assert said in printed.err.replace("\n", " ")
    assert "Traceback" not in printed.err
    assert read_log() == ["desk closed"]


def list_failed_runs(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The runs that the journal has as failed, and with what."""
    assert main(["runs", "list", "--status", "failed", "--json"]) == 0
    return {row["run_id"]: row["error"] for row in json.loads(capsys.readouterr().out)}


# --- by the clock -------------------------------------------------------------------------------


def test_a_budget_of_seconds_ends_a_run_without_an_lm(capsys: pytest.CaptureFixture[str]):
    words = ["run", "app.py:Waits", "--run-id", "slow", "--json"]
    assert main([*words, "--budget", "seconds=0.5"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["code"] == "bae-budget-spent"
    assert "--budget: the 0.5 s are over" in printed.err
    assert "bae runs resume slow --budget seconds=1" in printed.err
    assert read_log() == ["waits", "desk closed"]
    assert json.loads(printed.out)["outcome"] == "failed"
    assert "the 0.5 s are over" in list_failed_runs(capsys)["slow"]


def test_a_budget_of_seconds_includes_the_time_before_a_resume(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "app.py:Waits", "--run-id", "slow", "--budget", "seconds=0.05"]) == 1
    again = ["runs", "resume", "slow", "-m", "app.py:Waits"]
    assert main([*again, "--budget", "seconds=0.06"]) == 1
    assert "the 0.06 s are over" in capsys.readouterr().err


# --- by a signal --------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no such signal")
@pytest.mark.usefixtures("default_signals")
def test_closing_the_terminal_ends_a_run_cleanly(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "app.py:HangsUp"]) == 129
    printed_errors = capsys.readouterr().err
    assert "hung up after" in printed_errors
    assert "resume with: bae runs resume" in printed_errors
    assert read_log() == ["desk closed"]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no such signal")
def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["run", "app.py:HangsUp", "--no-journal"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("default_signals")
def test_no_resume_command_is_printed_for_a_run_that_was_not_stored(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        journals, "_open_sqlite", lambda file: SQLiteJournal(file, busy_timeout=0.05)
    )
    assert main(["run", "app.py:End"]) == 0
    others = sqlite3.connect(".bae/runs.db", isolation_level=None)
    others.execute("BEGIN IMMEDIATE")

    def interrupt(run: object, record: object) -> None:
        if isinstance(record, RunStarted):
            os.kill(os.getpid(), signal.SIGINT)

    capsys.readouterr()
    try:
        with observing(interrupt):
            assert main(["run", "app.py:Waits"]) == 130
    finally:
        others.close()
    printed_errors = capsys.readouterr().err
    assert "interrupted" in printed_errors
    assert "the journal has nothing of the run" in printed_errors
    assert "resume" not in printed_errors
    assert read_log() == []


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_while_the_journal_closes_does_not_lose_the_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    class SlowToClose(SQLiteJournal):
        async def close(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            async with asyncio.timeout(BOUND):
                await heard.wait()
            await super().close()

    heard = asyncio.Event()
    monkeypatch.setattr(signals, "SLOW_STOP", 0.0)
    monkeypatch.setattr("bae.cli.live.Display.say", lambda display, text: heard.set())
    monkeypatch.setattr("bae.cli.live.PlainLines.say", lambda display, text: heard.set())
    monkeypatch.setattr(journals, "_open_sqlite", SlowToClose)
    assert main(["run", "app.py:End"]) == 0
    assert capsys.readouterr().out == "End\n"


@pytest.mark.parametrize("command", ["answer", "resume"])
def test_resume_and_answer_report_a_run_owned_by_another_process_as_running(
    command: str, capsys: pytest.CaptureFixture[str]
):
    claimed, over = threading.Event(), threading.Event()

    async def another() -> None:
        async with SQLiteJournal(".bae/runs.db") as journal:
            await journal.claim("shared")
            claimed.set()
            await asyncio.to_thread(over.wait, BOUND)

    assert main(["run", "app.py:Asks", "--run-id", "shared"]) == 3
    capsys.readouterr()
    thread = threading.Thread(target=asyncio.run, args=(another(),))
    thread.start()
    try:
        assert claimed.wait(BOUND)
        reply = ["Asks.sure", "yes"] if command == "answer" else []
        words = ["runs", command, "shared", *reply, "-m", "app.py:Asks", "--json"]
        assert main(words) == 4
    finally:
        over.set()
        thread.join(BOUND)
    printed = capsys.readouterr()
    assert (json.loads(printed.out)["outcome"], json.loads(printed.out)["result"]) == (
        "running",
        None,
    )
    assert ("another process has" if command == "answer" else "is owned by") in printed.err


def test_shell_completion_offers_run_ids_last_and_open_gates(
    capsys: pytest.CaptureFixture[str],
):
    nowhere = SimpleNamespace(params={"run": "last"})
    assert (run_ids(nowhere, ""), open_gates(nowhere, "")) == ([], [])
    assert main(["run", "app.py:Asks", "--run-id", "first", "--no-ask"]) == 3
    assert main(["run", "app.py:End", "--run-id", "second"]) == 0
    assert run_ids(nowhere, "l") == [("last", "second: End, ended")]
    assert run_ids(nowhere, "f") == [("first", "Asks, waiting")]
    assert [run_id for run_id, _ in run_ids(nowhere, "")] == ["last", "second", "first"]
    assert open_gates(nowhere, "") == []
    offered = open_gates(SimpleNamespace(params={"run": "fi"}), "As")
    assert [name for name, _ in offered] == ["Asks.sure"]
    assert main(["runs", "answer", "first", "yes", "-m", "app.py:Asks", "--no-run"]) == 0
    assert open_gates(SimpleNamespace(params={"run": "first"}), "") == []
    Path(".bae/runs.db").write_bytes(b"SQLite format 3\x00" + b"x" * 5000)
    assert (run_ids(nowhere, ""), open_gates(nowhere, "")) == ([], [])  # and never an error


# --- threads ------------------------------------------------------------------------------------


def test_the_error_of_a_run_is_reported_while_its_threads_still_work(
    capsys: pytest.CaptureFixture[str],
):
    try:
        assert main(["run", "app.py:Stuck", "--no-journal"]) == 1
        assert "cause: ValueError: boom" in capsys.readouterr().err
    finally:
        sys.modules["app"].let_go.set()
        for thread in threading.enumerate():
            if thread.name.startswith("asyncio"):
                thread.join(BOUND)


@pytest.mark.once
@pytest.mark.parametrize(("node", "code"), [("Stuck", 1), ("GivenUp", 0)])
def test_unstoppable_threads_do_not_keep_the_program_alive(node: str, code: int):
    done = program("run", f"app.py:{node}", "--no-journal")
    assert done.returncode == code, done.stderr
    assert ("ValueError: boom" in done.stderr) == bool(code)
    assert "Traceback" not in done.stderr


@pytest.mark.once
def test_a_thread_has_a_second_to_finish_after_a_failure():
    assert program("run", "app.py:Finishes", "--no-journal").returncode == 1
    assert read_log() == ["thread done"]


def test_warnings_of_bae_are_shown_as_notes_that_name_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logging.getLogger("bae"), "hasHandlers", lambda: False)  # pytest has some
    assert main(["run", "app.py:Warns", "--no-journal"]) == 0
    assert "note: pass --lm local\n" in capsys.readouterr().err


# --- nobody reads -------------------------------------------------------------------------------


@pytest.mark.parametrize(("node", "code"), [("Warns", 0), ("Asks", 3), ("Exits", 1)])
@pytest.mark.parametrize("gone", ["a pipe", "a full disk"])
def test_the_outcome_of_a_run_does_not_depend_on_a_reader_of_stderr(
    node: str,
    code: int,
    gone: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    if gone == "a pipe":
        read, write = os.pipe()
        os.close(read)
    elif not Path("/dev/full").exists():
        pytest.skip("there is no such device here")
    else:
        write = os.open("/dev/full", os.O_WRONLY)
    with open(write, "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main(["run", f"app.py:{node}", "--no-journal"]) == code
    assert capsys.readouterr().out == ("End\n" if code == 0 else "")
