"""People and tool calls on the command line: approvals at the terminal, parked runs, messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("pyte")

from terminal_session import CTRL_D, Session

APP = """
from __future__ import annotations
from typing import Annotated, Literal
from pydantic import Field
from bae import Ask, Gate, Graph, Map, Node, Tool, ToolCall, Tools


def log(line: str) -> None:
    with open("log", "a") as file:
        file.write(line + "\\n")


def refund(order: str, euros: int) -> str:
    log(f"refund {order} {euros}")
    return f"sent {euros}"


def find(order: str) -> str:
    log(f"find {order}")
    return order


class Message(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    calls: Annotated[
        list[ToolCall],
        Tools(Tool(refund, approve="Send it?"), find, Ask(Literal["red", "blue"])),
    ]
    text: str

    async def __call__(self) -> None: ...


class Plain(Node):
    ok: Annotated[bool, Gate("ok?")]

    async def __call__(self) -> None: ...


class Many(Node):
    texts: list[str]
    replies: Annotated[list[Reply], Map(Message, over="texts")] = Field(init=False)

    async def __call__(self) -> None: ...


graph = Graph(start=Message, end=Reply)
many = Graph(start=Many)
plain = Graph(start=Plain)
"""
ONE = {"call": "refund", "arguments": {"order": "A-1", "euros": 20}}
TWO = {"call": "refund", "arguments": {"order": "A-2\x1b[31m", "euros": 90}}
FIND = {"call": "find", "arguments": {"order": "A-1"}}
COLOR = {"call": "ask_person", "arguments": {"question": "Which color?"}}
ANSWER = {"text": "done"}
Bae = Callable[..., Any]


def script(*fills: Any) -> list[str]:
    """The options for an LM that answers so."""
    Path("script.json").write_text(json.dumps({"fills": {"Reply": fills}}), encoding="utf-8")
    return ["--lm", "scripted:script.json"]


def park(bae: Bae, *calls: Any) -> Any:
    """A run that waits for a person, as it was printed."""
    done = bae(
        "run", "app.py:graph", "-i", "help", "--run-id", "one", "--no-ask", *script([*calls])
    )
    assert done.code == 3, done.err
    return done


def read_log() -> list[str]:
    return Path("log").read_text().splitlines() if Path("log").exists() else []


def test_a_parked_round_prints_one_command_for_each_call(bae: Bae):
    done = park(bae, ONE, FIND, TWO)
    assert "Send it? refund(order='A-1', euros=20)  Reply.calls(refund)(c1)" in done.err
    assert "yes | no: why | run" in done.err
    assert "\x1b" not in done.err
    answers = [command[:5] for command in done.commands if command[1] == "answer"]
    assert answers == [
        ["runs", "answer", "one", "c1", "yes"],
        ["runs", "answer", "one", "c3", "yes"],
    ]
    assert read_log() == ["find A-1"]
    listed = bae("runs", "list", "--status", "waiting", "--json").data
    assert "refund(order='A-1', euros=20)" in json.dumps(listed)
    shown = bae("runs", "show", "one")
    assert "Send it? refund(order='A-1', euros=20)" in shown.out
    assert "\x1b" not in shown.out


def test_the_calls_are_answered_by_their_ids(bae: Bae):
    park(bae, ONE, FIND, TWO)
    options = ["-m", "app.py:graph", "--no-ask", *script(ANSWER)]
    refused = bae("runs", "answer", "one", "yes", *options)
    assert (refused.code, "no open gate yes" in refused.err) == (1, True)
    half = bae(
        "runs", "answer", "one", "c1", '{"arguments": {"order": "A-1", "euros": 5}}', *options
    )
    assert half.code == 3
    wrong = bae("runs", "answer", "one", "c3", "perhaps", *options)
    assert (wrong.code, "answer yes, no" in wrong.err) == (1, True)
    again = bae("runs", "answer", "one", "c1", "yes", *options)
    assert (again.code, "bae-gate-answered" in again.err) == (1, True)
    done = bae("runs", "answer", "one", "c3", "no: too much", "--json", *options)
    assert done.code == 0
    calls = done.data["result"]["fields"]["calls"]
    assert [call["error"] for call in calls] == [None, None, "a person refused this call: too much"]
    assert read_log() == ["find A-1", "refund A-1 5"]


def test_json_has_the_call_that_waits_for_approval(bae: Bae):
    park(bae, ONE)
    options = ["-m", "app.py:graph", "--no-ask", *script(ANSWER)]
    (gate,) = bae("runs", "resume", "one", "--json", *options).data["waiting"]
    assert gate["type"] == "Approval"
    assert gate["call"] == {"id": "c1", "name": "refund", "arguments": ONE["arguments"]}
    (listed,) = bae("runs", "list", "--json").data
    for stored in (listed, bae("runs", "show", "one", "--json").data):
        (parked,) = stored["waiting"]
        assert parked == {name: gate[name] for name in gate if name != "type"} | {
            "address": gate["gate"],
            "answered": False,
        }
    stored = bae("runs", "answer", "one", "yes", "--no-run", "--json", "-m", "app.py:graph")
    assert stored.data["gate"] == gate["gate"]
    ((parked,),) = [run["waiting"] for run in bae("runs", "list", "--json").data]
    assert (parked["answered"], parked["call"]) == (True, gate["call"])


def test_an_approval_for_the_run_is_listed_and_revoked(bae: Bae):
    park(bae, ONE)
    assert "no tool has a yes" in bae("runs", "approvals", "one").err
    options = ["-m", "app.py:graph", "--no-ask"]
    assert bae("runs", "answer", "one", "c1", "run", "--no-run", *options).code == 0
    assert "Reply.calls(refund)" in bae("runs", "approvals", "one").out
    revoked = bae("runs", "approvals", "one", "--revoke", "refund", "--json")
    assert [approval["revoked"] for approval in revoked.data["approvals"]] == [True]
    unknown = bae("runs", "approvals", "one", "--revoke", "refund")
    assert (unknown.code, "bae-approval-unknown" in unknown.err) == (1, True)
    again = bae("runs", "resume", "one", *options, *script([TWO]))
    assert again.code == 3
    assert read_log() == []


def test_an_approval_for_the_thread_is_given_listed_and_revoked(bae: Bae):
    def turn(name: str, *fills: Any) -> Any:
        given = ("-i", "help", "--run-id", name, "--thread", "ana", "--no-ask", *script(*fills))
        return bae("run", "app.py:graph", *given)

    assert turn("one", [ONE]).code == 3
    options = ["-m", "app.py:graph", "--no-ask"]
    assert bae("runs", "answer", "one", "c1", "thread", *options, *script(ANSWER)).code == 0
    assert turn("two", [TWO], ANSWER).code == 0
    assert read_log() == ["refund A-1 20", "refund A-2\x1b[31m 90"]
    line = "Reply.calls(refund)  1:Reply.calls(refund)(c1)"
    (listed,) = bae("runs", "approvals", "two").out.splitlines()
    assert listed.startswith(line)
    assert listed.endswith("of run one  for the thread")
    revoked = bae("runs", "approvals", "two", "--revoke", "refund")
    assert (revoked.code, revoked.out.endswith("for the thread  revoked\n")) == (0, True)
    assert turn("three", [TWO]).code == 3


def test_approving_for_a_thread_is_refused_for_a_run_without_a_thread(bae: Bae):
    park(bae, ONE)
    wrong = bae("runs", "answer", "one", "c1", "thread", "-m", "app.py:graph", "--no-ask")
    assert (wrong.code, "belongs to no thread" in wrong.err) == (1, True)


def test_a_parked_run_accepts_a_message(bae: Bae):
    park(bae, ONE)
    assert bae("runs", "tell", "one", "Be\x1b[31m quick.").code == 0
    assert bae("runs", "tell", "one", "In French.", "--json").data == {
        "run_id": "one",
        "message": 2,
    }
    options = ["-m", "app.py:graph", "--no-ask", *script(ANSWER)]
    assert bae("runs", "answer", "one", "yes", *options).code == 0
    shown = bae("runs", "show", "one", "--full").out
    assert "In French." in shown
    assert "\x1b" not in shown
    over = bae("runs", "tell", "one", "Too late.")
    assert (over.code, "bae-tell-over" in over.err) == (1, True)


def test_a_run_without_tools_refuses_a_message(bae: Bae):
    assert bae("run", "app.py:plain", "--run-id", "two", "--no-ask").code == 3
    nobody = bae("runs", "tell", "two", "hello")
    assert (nobody.code, "bae-tell-nobody" in nobody.err) == (1, True)


@pytest.mark.parametrize("command", ["tell", "approvals", "answer"])
def test_the_help_of_approval_commands_shows_an_example(bae: Bae, command: str):
    done = bae("runs", command, "--help")
    assert done.code == 0
    assert f"bae runs {command} last" in done.out


@pytest.mark.once
def test_the_terminal_asks_about_each_call_and_accepts_plain_answers(folder: Path):
    options = script([ONE, TWO, COLOR], ANSWER)
    with Session(folder, "run", "app.py:graph", "-i", "help", *options, columns=100) as terminal:
        terminal.shows("? Send it? refund(order='A-1', euros=20)", "answer (yes | no: why")
        terminal.shows("waits for a person")
        terminal.types("maybe\r")
        terminal.shows("that does not fit: answer yes, no")
        terminal.types('{"arguments": {"order": "A-1"}}\r')
        terminal.shows("that does not fit: euros: Field required")
        terminal.types("yes\r")  # about the same call
        terminal.shows("? Send it? refund(order='A-2\\x1b[31m'")
        terminal.types("no: too much\r")
        terminal.shows("? Which color?", "red | blue")
        terminal.types("BLUE\r")
        assert terminal.ends() == 0
    assert read_log() == ["refund A-1 20"]


@pytest.mark.once
def test_ctrl_d_leaves_the_calls_waiting_for_approval(folder: Path):
    with Session(folder, "run", "app.py:graph", "-i", "help", *script([ONE, FIND])) as terminal:
        terminal.shows("? Send it?", "answer (yes")
        terminal.types(CTRL_D)
        assert terminal.ends() == 3
        terminal.shows("answer with: bae runs answer")
    assert read_log() == ["find A-1"]


@pytest.mark.once
def test_the_terminal_distinguishes_calls_of_different_map_items(folder: Path):
    options = ["--set", 'texts=["a", "b"]', *script([ONE], [ONE], ANSWER, ANSWER)]
    with Session(folder, "run", "app.py:many", *options, columns=120) as terminal:
        for item in (0, 1):
            terminal.shows(f"0:Many.replies[{item}]/Reply.calls(refund)(c1)", "answer (yes")
            terminal.types("no\r")
        assert terminal.ends() == 0
    assert read_log() == []
