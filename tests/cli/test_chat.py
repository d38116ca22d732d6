"""`bae chat` over pipes: a turn for each line, stdout and exit codes; refusals before anything is
sent; and the history of messages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("prompt_toolkit")

from bae import Graph, Node
from bae.cli import exits
from bae.cli.chat_line import history_file, may_keep, prepare_history
from bae.cli.chat_session import ChatOptions, ChatSession
from bae.cli.outcome import CommandLine

APP = '''
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import SecretStr

from bae import BaeLMError, Gate, Graph, Messages, Node, NodeConfig, Thread
from bae.lm import Answer, Backend, Prompt


class Counts(Backend):
    """Says how many messages it reads."""

    model = "counts"

    async def answer(self, prompt: Prompt) -> Answer:
        turns = [each.text for each in prompt.conversation if each.kind == "turn"]
        asked = prompt.conversation[-1].text
        if "break" in asked:
            raise BaeLMError("no luck")
        return Answer('{"text": "%d before\\\\n\\\\u001b[31mred\\\\tx"}' % len(turns))


class Say(Node):
    text: str
    language: Literal["English", "French"] = "English"

    async def __call__(self) -> Reply: ...


class Reply(Node):
    node_config = NodeConfig(lm=Counts())
    history: Annotated[Messages, Thread()]
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Say, end=Reply)


class Ask(Node):
    text: str

    async def __call__(self) -> Asked: ...


class Asked(Node):
    sure: Annotated[bool, Gate("Sure?")]

    async def __call__(self) -> None: ...


class Number(Node):
    number: int

    async def __call__(self) -> None: ...


class Two(Node):
    title: str
    body: str

    async def __call__(self) -> None: ...


class Login(Node):
    name: str
    token: SecretStr

    async def __call__(self) -> Counted:
        return Counted(letters=len(self.token.get_secret_value()))


class Counted(Node):
    letters: int

    async def __call__(self) -> None: ...
'''

Bae = Callable[..., Any]


def test_each_line_of_stdin_is_a_turn_that_sees_earlier_turns(bae: Bae):
    done = bae("chat", "app.py", "--thread", "ana", stdin="Hello.\n\nAnd again?\n")
    assert done.code == 0
    assert done.out == "0 before\n\\x1b[31mred    x\n2 before\n\\x1b[31mred    x\n"
    again = bae("chat", "app.py", "--thread", "ana", stdin="Still there?")
    assert again.out.startswith("4 before\n")


def test_a_chat_without_a_thread_option_starts_a_new_thread(bae: Bae):
    for _ in range(2):
        assert bae("chat", "app.py", stdin="Hello.\n").out.startswith("0 before\n")


def test_json_has_a_line_for_each_turn_without_its_earlier_turns(bae: Bae):
    done = bae("chat", "app.py", "-t", "ana", "--json", stdin="Hello.\nbreak\nAgain.\n")
    first, second, third = map(json.loads, done.out.splitlines())
    assert done.code == 1
    assert first["thread"] == "ana"
    assert first["outcome"] == "ended"
    assert first["reply"] == "0 before\n\x1b[31mred\tx"
    assert first["result"] == {
        "type": "Reply",
        "fields": {"text": "0 before\n\x1b[31mred\tx"},
    }
    assert first["usage"]["calls"] == 1
    assert second["outcome"] == "failed"
    assert second["reply"] is None
    assert second["error"]["message"] == "no luck"
    assert third["reply"].startswith("2 before")  # the turn that failed is not shown
    assert third["error"] is None


def test_a_turn_that_fails_is_reported_and_the_next_line_is_sent(bae: Bae):
    done = bae("chat", "app.py", stdin="break\n\udcff\udcfe in Latin-1\nHello.\n")
    assert done.code == 1
    assert done.out.startswith("0 before\n")
    assert "error no luck" in done.err
    assert "error the message has bytes that are not UTF-8" in done.err
    assert "later turns do not see this one" in done.err
    assert "/retry" not in done.err  # nobody can type it


def test_a_turn_that_waits_for_a_person_ends_the_chat_and_shows_where_to_answer(bae: Bae):
    done = bae("chat", "app.py:Ask", "-t", "ana", stdin="Hello.\nMore.\n")
    assert done.code == 3
    assert done.out == ""
    assert "the turn waits for an answer: Sure?" in done.err
    assert "bae chat app.py:Ask --thread ana" in done.err
    refused = bae("chat", "app.py:Ask", "-t", "ana", stdin="Hello.\n")
    assert refused.code == 3
    assert "bae-thread-busy" in refused.err
    assert "answer it at a terminal: bae chat app.py:Ask --thread ana" in refused.err


def test_fields_beside_the_message_are_set_once_for_the_chat(bae: Bae):
    done = bae("chat", "app.py:Say", "--set", "language=French", "-t", "a", stdin="Hi\n")
    assert done.code == 0
    assert '"French"' in bae("runs", "show", "last").out


def test_a_secret_beside_the_message_reaches_every_turn_and_is_not_stored(bae: Bae):
    done = bae("chat", "app.py:Login", "--set", "token=hunter2", stdin="Ann\nBo\n")
    assert done.code == 0
    assert done.out == "Counted\n  letters: 7\n" * 2
    assert b"hunter2" not in Path(".bae/runs.db").read_bytes()


def test_metadata_is_stored_with_each_turn(bae: Bae):
    bae("chat", "app.py", "--metadata", "user_id=ana", "--metadata", "vip=true", stdin="Hi\n")
    (run,) = bae("runs", "list", "--json").data
    assert run["metadata"] == {"user_id": "ana", "vip": True}
    wrong = bae("chat", "app.py", "--metadata", "ana", stdin="Hi\n")
    assert wrong.code == 2
    assert "has no KEY=VALUE" in wrong.err


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("Number", ["Number has no text field", "add one, as text: str"]),
        ("Two", ["Two has several text fields: title, body", 'NodeConfig(text="title")']),
    ],
)
def test_a_start_without_a_text_field_is_refused_with_the_fix(
    bae: Bae, start: str, wanted: list[str]
):
    done = bae("chat", f"app.py:{start}", stdin="Hi\n")
    assert done.code == 1
    assert all(text in done.err for text in wanted), done.err
    assert not Path(".bae").exists()


def test_a_chat_refuses_a_set_message_and_names_a_missing_field(bae: Bae):
    done = bae("chat", "app.py", "--set", "text=Hi", stdin="Hi\n")
    assert done.code == 2
    assert "text is the message" in done.err
    missing = bae("chat", "app.py:Login", stdin="Ann\n")
    assert missing.code == 1
    assert "Login needs token" in missing.err


def test_a_thread_id_that_cannot_be_typed_is_refused(bae: Bae):
    done = bae("chat", "app.py", "--thread", "a\x1bb", stdin="Hi\n")
    assert done.code == 1
    assert "bae-thread-name" in done.err
    assert "\x1b" not in done.err


def test_a_mistyped_option_is_wrong_usage(bae: Bae):
    done = bae("chat", "app.py", "--treads", "a")
    assert done.code == 2
    assert "--thread" in done.err


# --- the history --------------------------------------------------------------------------------


def test_the_history_file_is_private_and_stays_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = history_file()
    assert file == tmp_path / "bae" / "chat_history"
    prepare_history(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("\n# 2026-11-18 10:00:00\n+x" * 60_000)
    prepare_history(file)
    history = file.read_text()
    assert 400_000 < len(history) < 800_000
    assert history.startswith("\n# 2026")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_history_omits_secrets_and_lines_that_begin_with_a_space(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("SHOP_API_KEY", "sk-12345678")
    monkeypatch.setenv("SHORT_KEY", "on")
    assert may_keep("what goes on?")
    assert not may_keep("is sk-12345678 a good key?")
    assert not may_keep(" my own business")
    assert os.environ["SHORT_KEY"] == "on"


# Signals between two turns


class Word(Node):
    text: str

    async def __call__(self) -> None: ...


@pytest.fixture
def talk() -> ChatSession:
    command = CommandLine("app.py", "runs.db", None, None)
    return ChatSession(Graph(start=Word), command, ChatOptions("text", {}, None), "ana")


@pytest.mark.usefixtures("default_signals")
async def test_ctrl_c_between_two_prompts_does_not_end_the_chat(talk: ChatSession):
    with talk.signals:
        talk.listen(ends_at_ctrl_c=False)
        signal.raise_signal(signal.SIGINT)
        talk.listen(ends_at_ctrl_c=False)
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(("number", "ends_at_ctrl_c"), [("SIGTERM", False), ("SIGINT", True)])
async def test_a_signal_just_before_the_next_message_ends_the_chat(
    talk: ChatSession, number: str, ends_at_ctrl_c: bool
):
    with talk.signals:
        talk.listen(ends_at_ctrl_c=ends_at_ctrl_c)
        signal.raise_signal(getattr(signal, number))
        with pytest.raises(asyncio.CancelledError):
            talk.listen(ends_at_ctrl_c=ends_at_ctrl_c)
            await asyncio.sleep(60)
        assert talk.signals.code in (exits.INTERRUPTED, 128 + signal.SIGTERM)
