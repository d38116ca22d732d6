"""The content of stdout and stderr: only JSON on request, no terminal commands, no secrets, and
shell commands that can be copied."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from bae.cli import printing
from bae.cli.exits import FAILED, MISUSED
from bae.cli.printing import print_error, print_hanging
from bae.cli.wording import in_json, in_lines, in_one_line
from bae.exceptions import BaeError
from bounded import BOUND

APP = """
from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr

from bae import Dep, Gate, Graph, Node

SUBPROCESS = False
print("printed on import")


async def chatty() -> str:
    print("printed by a dependency")
    if SUBPROCESS:
        subprocess.run([sys.executable, "-c", "print('printed by a subprocess')"], check=True)
    return "fine"


async def failing() -> str:
    error = ValueError("no such place")
    error.add_note("as the map says")
    raise error


class Cred(BaseModel):
    user: str
    pw: str = Field(repr=False)
    token: SecretStr


@dataclass
class Login:
    name: str
    pin: str = field(repr=False)


class Begin(Node):
    async def __call__(self) -> End:
        return End(text="it is \\x1b[31mred\\x9b \\u202e \\ud800 👩\\u200d👧")


class End(Node):
    said: Annotated[str, Dep(chatty)]
    text: str

    async def __call__(self) -> None: ...


class Fails(Node):
    said: Annotated[str, Dep(failing)]

    async def __call__(self) -> None: ...


class BeginFailing(Node):
    async def __call__(self) -> Fails:
        return Fails()


class Holder(Node):
    async def __call__(self) -> Held:
        cred = Cred(user="ann", pw="hunter2", token=SecretStr("hunter2"))
        held = {"list": [cred, (Login("bob", "hunter2"),)], 1: {"plain": [1.5, None]}}
        return Held(anything=held, plain={"a": 1})


class Held(Node):
    anything: Any
    plain: Any

    async def __call__(self) -> None: ...


class BeginAsking(Node):
    async def __call__(self) -> Asked:
        return Asked()


class Asked(Node):
    ok: Annotated[bool, Gate("really \\x1b[31mnow?")]

    async def __call__(self) -> None: ...


graph = Graph(start=Begin)
"""


@pytest.fixture(autouse=True)
def _no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def test_only_json_is_on_stdout_even_if_user_code_prints(bae: Any):
    done = bae("run", "app.py", "--no-journal", "--json")
    assert done.code == 0
    assert json.loads(done.out)["result"]["fields"]["said"] == "fine"
    assert "printed on import\n" in done.err
    assert "printed by a dependency\n" in done.err
    for command in (["graph", "show", "app.py"], ["check", "app.py"]):
        done = bae(*command, "--json")
        json.loads(done.out)
        assert "printed on import" in done.err


def test_output_of_modules_is_on_stdout_without_json(bae: Any):
    done = bae("run", "app.py", "--no-journal")
    assert done.out.startswith("printed on import\nprinted by a dependency\nEnd\n")


@pytest.mark.once
def test_output_of_subprocesses_is_on_stderr_with_json(tmp_path: Path):
    (tmp_path / "app.py").write_text(APP.replace("SUBPROCESS = False", "SUBPROCESS = True"))
    done = subprocess.run(
        [sys.executable, "-m", "bae", "run", "app.py", "--no-journal", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        timeout=BOUND,
    )
    assert json.loads(done.stdout)["result"]["type"] == "End"
    said = done.stderr.decode()
    assert "printed by a subprocess" in said
    assert said.index("printed by a dependency") < said.index("printed by a subprocess")


@pytest.mark.parametrize(
    ("command", "code", "about"),
    [
        (["run", "nofile.py"], FAILED, "nofile.py"),
        (["run", "app.py", "-j", "no/such/folder.db"], FAILED, "no/such"),
        (["run", "app.py", "--budget", "x=1"], MISUSED, "--budget"),
        (["run", "app.py", "-i", "{"], FAILED, "not JSON"),
        (["run", "app.py:BeginFailing"], FAILED, "failing raised"),
        (["runs", "resume", "-m", "app.py"], FAILED, "no journal"),
        (["runs", "answer", "-m", "app.py"], FAILED, "no journal"),
        (["runs", "fork", "last", "--at", "0", "-m", "app.py"], FAILED, "no journal"),
        (["runs", "list"], FAILED, "no journal"),
        (["runs", "replay", "-m", "app.py"], FAILED, "no journal"),
        (["graph", "show", "nofile.py"], FAILED, "nofile.py"),
        (["check", "nofile.py"], FAILED, "nofile.py"),
    ],
)
def test_an_error_is_one_json_object_with_json(bae: Any, command: list[str], code: int, about: str):
    done = bae(*command, "--json")
    assert done.code == code
    error = json.loads(done.out)["error"]
    assert about in error["message"]
    assert code == MISUSED or f"[{error['code']}]" in done.err
    assert "Traceback" not in done.err


def test_an_unexpected_error_is_one_json_object_with_json(
    bae: Any, monkeypatch: pytest.MonkeyPatch
):
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr("bae.cli.run.load_proved", broken)
    done = bae("run", "app.py", "--json")
    assert done.code == FAILED
    assert json.loads(done.out)["error"]["message"] == "RuntimeError: out of order"


def test_stdout_is_restored_after_a_command_with_json(bae: Any):
    before = sys.stdout
    bae("run", "nofile.py", "--json")
    assert sys.stdout is before
    assert bae("run", "app.py", "--no-journal").out.endswith("fine\n  text: " + PIPED)


PIPED = "it is \\x1b[31mred\\x9b \\u202e \\ud800 👩\u200d👧\n"


def test_an_error_as_json_has_its_cause_and_its_notes(bae: Any):
    done = bae("run", "app.py:BeginFailing", "--json")
    error = json.loads(done.out)["error"]
    assert error["code"] == "bae-dep-failed"
    assert error["cause"] == "ValueError: no such place"
    assert error["path"] == "Fails.said <- failing()"
    assert any("bae runs resume" in note for note in error["notes"])


def test_a_lone_surrogate_does_not_lose_the_rest_of_a_result(bae: Any):
    assert "\\ud800" in bae("run", "app.py", "--no-journal").out
    done = bae("run", "app.py", "--no-journal", "--json")
    text = json.loads(done.out)["result"]["fields"]["text"]
    assert text == "it is \x1b[31mred\x9b \u202e \ud800 👩\u200d👧"
    for obeyed in "\x1b\x9b\u202e":
        assert obeyed not in done.out
        assert obeyed not in done.err
    assert "👩\u200d👧" in done.out


def test_hidden_fields_are_withheld_anywhere_in_a_result(bae: Any):
    done = bae("run", "app.py:Holder", "--no-journal", "--json")
    assert json.loads(done.out)["result"]["fields"] == {
        "anything": {
            "list": [
                {"user": "ann", "pw": "(withheld)", "token": "**********"},
                [{"name": "bob", "pin": "(withheld)"}],
            ],
            "1": {"plain": [1.5, None]},
        },
        "plain": {"a": 1},
    }
    assert "hunter2" not in done.out + done.err
    said = bae("run", "app.py:Holder", "--no-journal")
    assert "hunter2" not in said.out + said.err
    assert "pw: (withheld)" in said.out


def test_a_later_question_contains_no_terminal_commands(bae: Any, monkeypatch: pytest.MonkeyPatch):
    parked = bae("run", "app.py:BeginAsking", "--run-id", "r", "--no-ask")
    assert "\x1b" not in parked.err
    monkeypatch.setattr("bae.cli.resume.can_ask", lambda: True)

    async def typed(prompt: str, *, hidden: bool) -> str:
        return "yes"

    monkeypatch.setattr("bae.cli.questions.typed_line", typed)
    done = bae("runs", "answer", "r", "-m", "app.py:BeginAsking")
    assert done.code == 0
    assert "really \\x1b[31mnow?" in done.err
    assert "\x1b" not in done.err


ANY_TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from("\x1b\x9b\u202e\u200d\r"))


@pytest.mark.once
@settings(derandomize=True, max_examples=200, deadline=None)
@given(ANY_TEXT)
def test_no_text_contains_terminal_commands(text: str):
    for said in (in_one_line(text), *in_lines(text).split("\n")):
        assert all(character.isprintable() or character in "\u200c\u200d" for character in said)
        said.encode()
    assert json.loads(in_json(text)) == json.loads(in_json(text, ascii_only=True)) == text
    assert all(
        character.isprintable() or character in "\u200c\u200d" for character in in_json(text)
    )
    in_json({"a": [text]}).encode()


def test_printed_text_keeps_line_breaks_only_in_multi_line_output():
    assert in_lines("a\r\n\tb\x1b") == "a\n    b\\x1b"
    assert in_one_line("a\r\n\tb\u2028c") == "a   b c"
    assert in_one_line("👩\u200d👩\u200d👧 ❤️ می\u200cخواهم") == "👩\u200d👩\u200d👧 ❤️ می\u200cخواهم"


# Commands that are printed to be copied


def at_terminal(columns: int) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=columns,
        color_system=None,
        legacy_windows=False,
    )


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("columns", [40, 80])
def test_a_command_to_copy_is_never_wrapped(columns: int):
    command = "bae runs resume 3f2a --budget calls=40 -m a/rather/long/path/to/app.py:graph -j x.db"
    console = at_terminal(columns)
    text = Text(f"  what is done is kept; once it is mended, resume with: {command}  (or not)")
    print_hanging(console, text, 9)
    lines = text_of(console).splitlines()
    assert f"         {command}" in lines
    assert lines[-1].strip() == "(or not)"
    assert all(len(line) <= columns for line in lines if "bae" not in line)
    assert all(line.startswith(" " * 9) for line in lines[1:])
    assert " ".join("".join(lines).split()) == " ".join(text.plain.split())
    pipe = Console(file=io.StringIO(), width=columns)
    print_hanging(pipe, text, 9)
    assert text_of(pipe) == f"{text.plain}\n"
    short = at_terminal(80)
    print_hanging(short, Text("resume with: bae runs resume 3f2a"), 2)
    assert text_of(short) == "resume with: bae runs resume 3f2a\n"


def test_the_code_of_an_error_is_on_its_first_line(capsys: pytest.CaptureFixture[str]):
    print_error(BaeError("two things are wrong\n  this\n  that", code="bae-error"))
    assert capsys.readouterr().err.startswith(
        "error two things are wrong  [bae-error]\n      this\n      that\n"
    )


def test_a_terminal_that_reports_no_width_is_80_columns_wide(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("COLUMNS", "0")
    assert (printing.err().width, printing.out().width) == (80, 80)


def test_the_json_output_has_the_name_of_the_written_file(bae: Any):
    drawn = bae("graph", "export", "app.py", "-o", "x.svg", "--json")
    assert json.loads(drawn.out) == {"path": "x.svg"}
    bae("run", "app.py")
    written = bae("runs", "export", "x.jsonl", "--json")
    assert json.loads(written.out) == {"path": "x.jsonl", "count": 1}
    made = json.loads(bae("new", "desk", "--json").out)
    assert made["path"] == "desk"
    assert all(Path("desk", file).is_file() for file in made["files"])
    both = bae("runs", "export", "-", "--json")
    assert (both.code, "--json" in both.err) == (MISUSED, True)
