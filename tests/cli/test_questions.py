"""`bae run` at a real terminal: its output and questions, Ctrl-C at any moment, and a later resume
that repeats no work."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("pyte")

from terminal_session import CTRL_C, CTRL_D, Session

pytestmark = pytest.mark.once

APP = '''
from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from bae import Dep, Gate, Graph, Node, NodeConfig
from bae.lm import Answer, Backend, Prompt


def log(line: str) -> None:
    with open("log", "a") as file:
        file.write(line + "\\n")


async def held(name: str) -> None:
    """Wait for ever, where the file `hold` says so."""
    log(f"{name} begun")
    if Path("hold").read_text() == name:
        await asyncio.Event().wait()
    log(f"{name} done")


async def desk() -> AsyncIterator[str]:
    log("desk opened")
    try:
        yield "desk"
    finally:
        log("desk closed")


async def quick() -> str:
    log("quick done")
    return "a quick fact"


async def slow(desk: Annotated[str, Dep(desk)]) -> str:
    await held("dep")
    return "a slow fact"


class Held(Backend):
    model = "held"

    async def answer(self, prompt: Prompt) -> Answer:
        await held("lm")
        return Answer('{"text": "Umbrellas keep rain off."}')


class Ask(Node):
    topic: str = Field(description="What it is about.")
    tone: Literal["dry", "warm"] = "dry"

    async def __call__(self) -> Facts:
        return Facts(topic=self.topic)


class Facts(Node):
    topic: str
    first: Annotated[str, Dep(quick)]
    second: Annotated[str, Dep(slow)]

    async def __call__(self) -> Draft: ...


class Draft(Node):
    node_config = NodeConfig(lm=Held())
    text: str

    async def __call__(self) -> Review:
        return Review(text=self.text)


class Review(Node):
    text: str
    approved: Annotated[bool, Gate("Print it?")]
    copies: Annotated[int, Gate("How many copies?")]

    async def __call__(self) -> Printed:
        return Printed(text=self.text, copies=self.copies if self.approved else 0)


class Printed(Node):
    text: str
    copies: int

    async def __call__(self) -> None: ...


graph = Graph(start=Ask, end=Printed)


class Login(Node):
    password: SecretStr

    async def __call__(self) -> Counted:
        return Counted(letters=len(self.password.get_secret_value()))


class Counted(Node):
    letters: int

    async def __call__(self) -> None: ...


class Patient(Node):
    sure: Annotated[bool, Gate("Sure?", timeout=0.5)] = False
    name: Annotated[str, Gate("Who?")]
    note: Annotated[str, Gate("What for?")]

    async def __call__(self) -> None: ...


async def noisy() -> str:
    logging.basicConfig(level=logging.INFO)
    while not Path("asked").exists():
        await asyncio.sleep(0.01)
    print("printed meanwhile")
    logging.info("logged meanwhile")
    log("printed")
    return "done"


class Noisy(Node):
    noise: Annotated[str, Dep(noisy)]
    ok: Annotated[bool, Gate("Is it quiet?")]

    async def __call__(self) -> None: ...


def stuck() -> str:
    log("stuck begun")
    threading.Event().wait()  # nobody can stop a thread
    return ""


async def stuck_too() -> str:
    return await asyncio.to_thread(stuck)


class Stuck(Node):
    one: Annotated[str, Dep(stuck)]
    two: Annotated[str, Dep(stuck_too)]

    async def __call__(self) -> None: ...


def released() -> str:
    log("waits")
    return Path("released").read_text()  # a pipe


class Released(Node):
    by: Annotated[str, Dep(released)]

    async def __call__(self) -> None: ...


class Deaf(Node):
    async def __call__(self) -> None:
        while True:  # swallows every cancellation
            try:
                log("deaf again")
                print("deaf")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
'''

NOHUP = """
import os, sys
os.execvp("nohup", ["nohup", sys.executable, "-m", "bae", *sys.argv[1:]])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "hold").write_text("nothing")
    return tmp_path


def read_log(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def logs(terminal: Session, folder: Path, line: str) -> None:
    """Wait until the program has logged a line."""
    terminal.waits(lambda: line in read_log(folder), f"never logged {line!r}")


def resume_command(screen: str) -> list[str]:
    """The command that resumes the run, as its words."""
    line = next(line for line in screen.splitlines() if line.startswith("resume with: bae "))
    return line.removeprefix("resume with: bae ").split()


def test_a_terminal_run_asks_for_fields_and_gates_and_prints_its_result(folder):
    with Session(folder, "run", "app.py", piped=True) as terminal:
        terminal.shows("topic - What it is about.\ntopic (str):")
        terminal.types("umbrellas\r")
        terminal.shows("tone", "dry | warm", "Enter for dry")
        terminal.types("wet\r")
        terminal.shows("does not fit", "'dry' or 'warm'")
        terminal.types("WARM\r")
        asked = terminal.shows("? Print it?  Review.approved", "approved (y/n):")
        above, _, question = asked.partition("? Print it?  Review.approved")
        for text in ("✓ Ask", "✓ Facts", "a slow fact", "✓ Draft", "? Review"):
            assert above.count(text) == 1, asked
        assert "Umbrellas keep rain off." in question
        terminal.types("perhaps\r")
        terminal.shows("valid boolean")
        terminal.types("y\r")
        terminal.shows("\ncopies (int):")
        terminal.types("3\r")
        assert terminal.ends() == 0
        shown = terminal.screen
        for text in ("✓ Ask", "✓ Facts", "a slow fact", "✓ Draft", "✓ Review", "✓ Printed"):
            assert shown.count(text) == 1, shown
        assert "1 LM call" in shown
        assert terminal.is_as_it_was
    assert terminal.stdout.read_text() == (
        "Printed\n  text: Umbrellas keep rain off.\n  copies: 3\n"
    )


@pytest.mark.parametrize(
    ("where", "seen", "at"),
    [
        ("dep", "slow", "Facts (after Ask)"),
        ("lm", "Draft", "Draft (after Ask -> Facts)"),
        ("gate", "approved (y/n):", "Review (after Ask -> Facts -> Draft)"),
    ],
)
def test_ctrl_c_names_the_node_and_resume_repeats_no_work(folder, where, seen, at):
    (folder / "hold").write_text(where)
    with Session(folder, "run", "app.py", "-i", "umbrellas") as terminal:
        terminal.shows(seen)
        if where != "gate":
            logs(terminal, folder, f"{where} begun")
        terminal.types(CTRL_C)
        assert terminal.ends() == 130
        shown = terminal.shows("interrupted", f", at {at}", "resume with: bae runs resume")
        assert "Traceback" not in shown
        assert terminal.is_as_it_was
        assert not terminal.left_processes
    assert read_log(folder)[-1] == "desk closed"
    (folder / "hold").write_text("nothing")
    with Session(folder, *resume_command(shown)) as terminal:
        terminal.shows("approved (y/n):")
        terminal.types("y\r")
        terminal.shows("\ncopies (int):")
        terminal.types("2\r")
        assert terminal.ends() == 0
        terminal.shows("Printed", "Umbrellas keep rain off.", "copies")
        assert terminal.is_as_it_was
    counts = Counter(read_log(folder))
    assert counts["quick done"] == counts["dep done"] == counts["lm done"] == 1
    assert counts["desk opened"] == counts["desk closed"]


def test_ctrl_d_at_a_gate_leaves_the_run_waiting_and_keeps_earlier_answers(folder):
    with Session(folder, "run", "app.py", "-i", "umbrellas") as terminal:
        terminal.shows("approved (y/n):")
        terminal.types("y\r")
        terminal.shows("\ncopies (int):")
        terminal.types(CTRL_D)
        assert terminal.ends() == 3
        shown = terminal.shows("answer with: bae runs answer")
        assert "Review.copies" in shown.rpartition("waits for an answer")[2]
        assert "Review.approved" not in shown.rpartition("waits for an answer")[2]
        assert terminal.is_as_it_was
    with Session(folder, "runs", "answer", "-m", "app.py") as terminal:
        terminal.shows("How many copies?", "\ncopies (int):")
        terminal.types("7\r")
        assert terminal.ends() == 0
        terminal.shows("Printed", "7")
    assert Counter(read_log(folder))["lm done"] == 1


@pytest.mark.parametrize("how", ["SIGTERM", "its terminal is closed"])
def test_a_run_ended_by_a_signal_closes_its_resources(folder, how):
    (folder / "hold").write_text("dep")
    with Session(folder, "run", "app.py", "-i", "umbrellas") as terminal:
        terminal.shows("slow")
        logs(terminal, folder, "dep begun")
        if how == "SIGTERM":
            os.kill(terminal.process.pid, signal.SIGTERM)
            assert terminal.ends() == 143
            terminal.shows("terminated", "resume with: bae runs resume")
            assert terminal.is_as_it_was
        else:
            terminal.hangs_up()
            assert terminal.ends() == 129
    assert read_log(folder)[-1] == "desk closed"


def test_a_second_ctrl_c_ends_work_that_ignores_the_first_at_once(folder):
    with Session(folder, "run", "app.py:Deaf") as terminal:
        logs(terminal, folder, "deaf again")
        terminal.types(CTRL_C)
        terminal.shows("stopping", "Ctrl-C again")
        terminal.types(CTRL_C)
        assert terminal.ends() == 130
        terminal.shows("ended at once", "resume with: bae runs resume")
        assert terminal.is_as_it_was
        assert not terminal.left_processes


def test_a_typed_secret_is_never_shown(folder):
    with Session(folder, "run", "app.py:Login") as terminal:
        terminal.shows("password (not shown):")
        terminal.types("hunter2\r")
        assert terminal.ends() == 0
        assert "hunter2" not in terminal.shows("Counted", "letters", "7")
        assert terminal.is_as_it_was


def test_ctrl_c_at_the_question_for_a_field_ends_the_command_before_the_run_begins(folder):
    with Session(folder, "run", "app.py") as terminal:
        terminal.shows("topic (str):")
        terminal.types(CTRL_C)
        assert terminal.ends() == 130
        assert "Traceback" not in terminal.screen
        assert terminal.is_as_it_was
    assert not (folder / ".bae").exists()


def test_an_expired_question_gives_way_to_the_next_question(folder):
    with Session(folder, "run", "app.py:Patient") as terminal:
        terminal.shows("Sure?", "then it is no")
        terminal.shows("Who?", "name (str):")
        terminal.types(f"An{CTRL_D}")
        terminal.types("a\r")
        terminal.shows("What for?")
        terminal.types("\r")
        terminal.shows('type an answer, "" for an empty text')
        terminal.types('""\r')
        assert terminal.ends() == 0
        terminal.shows("sure  no", "name  Ana", "note  ''")
        assert terminal.is_as_it_was


def test_unstoppable_threads_do_not_delay_ctrl_c(folder):
    with Session(folder, "run", "app.py:Stuck") as terminal:
        terminal.waits(lambda: read_log(folder).count("stuck begun") == 2, "never began")
        terminal.types(CTRL_C)
        assert terminal.ends() == 130
        terminal.shows("interrupted", "resume with: bae runs resume")
        assert terminal.is_as_it_was
        assert not terminal.left_processes


def test_sigterm_during_a_secret_question_turns_the_echo_on_again(folder):
    with Session(folder, "run", "app.py:Login") as terminal:
        terminal.shows("password (not shown):")
        terminal.waits(lambda: not terminal.is_as_it_was, "never turned the echo off")
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.ends() == 143
        assert terminal.is_as_it_was


def test_nohup_keeps_a_run_going_when_its_terminal_is_closed(folder):
    os.mkfifo(folder / "released")
    with Session(folder, "run", "app.py:Released", program=("-c", NOHUP)) as terminal:
        logs(terminal, folder, "waits")
        terminal.hangs_up()
        (folder / "released").write_text("the test")
        assert terminal.ends() == 0
    assert "by: the test" in (folder / "nohup.out").read_text()


def test_output_during_an_open_question_is_above_it(folder):
    with Session(folder, "run", "app.py:Noisy", "--no-journal") as terminal:
        terminal.shows("Is it quiet?", "ok (y/n):")
        (folder / "asked").touch()
        logs(terminal, folder, "printed")
        terminal.types("maybe\r")
        terminal.shows("that does not fit", "printed meanwhile")
        terminal.types("y\r")
        screen = terminal.shows("printed meanwhile", "logged meanwhile", "1 node")
        assert terminal.ends() == 0
        assert terminal.is_as_it_was
    lines = [line for line in screen.splitlines() if line.strip()]
    assert "printed meanwhile" in lines
    assert "INFO:root:logged meanwhile" in lines
    assert lines.index("Noisy") > next(i for i, line in enumerate(lines) if "✓ Noisy" in line)
