"""What `bae graph` promises: a picture in the terminal that fits, files that are not written over,
and errors that say what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae.cli import main

PROGRAM = '''
from __future__ import annotations
from typing import Annotated
from pydantic import Field
from bae import Dep, Graph, Node, Recall


def get_day() -> str:
    return "Monday"


class Ask(Node):
    """What somebody asks."""
    text: str

    async def __call__(self) -> Look | Reply: ...


class Look(Node):
    day: Annotated[str, Dep(get_day)]

    async def __call__(self) -> Ask | Reply:
        return Reply(text=self.day)


class Reply(Node):
    asked: Annotated[str, Recall(Ask)]
    text: str = Field(description="[bold]short[/bold]")

    async def __call__(self) -> None: ...


graph = Graph(start=Ask)
'''


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "asking_app.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(tmp_path)


def bae(*arguments: str, code: int = 0) -> None:
    assert main(["graph", *arguments]) == code


def test_show_fits_the_drawing_to_the_width_of_the_terminal(capsys, monkeypatch):
    bae("show", "asking_app.py")
    wide = capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "30")
    bae("show", "asking_app.py")
    narrow = capsys.readouterr().out

    assert "│ Ask  start" in wide.out
    assert "║ recall  asked: str  from Ask" in wide.out
    assert "◆┄┄▶ the LM chooses\n◇──▶ your code chooses\n" in wide.out
    assert wide.err == ""
    assert "\x1b" not in wide.out
    assert max(map(len, narrow.splitlines())) <= 30


def test_show_has_options_for_a_list_ascii_and_no_fields(capsys):
    bae("show", "asking_app.py", "--compact", "--no-fields")
    assert capsys.readouterr().out == (
        "Ask  start\n"
        "  ⇢ Look  if the LM chooses it\n"
        "  ⇢ Reply  if the LM chooses it\n"
        "\n"
        "Look\n"
        "  → Ask  back, if your code chooses it\n"
        "  → Reply  if your code chooses it\n"
        "\n"
        "Reply  end\n"
    )
    bae("show", "asking_app.py", "--ascii", "-d", "lr")
    assert capsys.readouterr().out.isascii()


def test_show_is_colored_only_on_request(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    bae("show", "asking_app.py")
    colored = capsys.readouterr().out
    monkeypatch.delenv("FORCE_COLOR")
    bae("show", "asking_app.py")

    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == capsys.readouterr().out


def test_show_prints_everything_as_json_for_a_script(capsys):
    bae("show", "asking_app.py", "--json")
    data = json.loads(capsys.readouterr().out)

    assert data["name"] == "Ask"
    assert data["edges"] == [
        {"tail": "Ask", "head": "Look", "kind": "lm"},
        {"tail": "Ask", "head": "Reply", "kind": "lm"},
        {"tail": "Look", "head": "Ask", "kind": "code"},
        {"tail": "Look", "head": "Reply", "kind": "code"},
    ]
    ask, look, reply = data["nodes"]
    assert (ask["start"], ask["ending"], ask["doc"]) == (True, "never", "What somebody asks.")
    assert look["written"]
    assert look["fields"] == [
        {
            "name": "day",
            "type": "str",
            "source": "dep",
            "origin": "get_day",
            "description": "",
            "required": True,
            "graphs": [],
        }
    ]
    assert [(field["name"], field["source"]) for field in reply["fields"]] == [
        ("asked", "recall"),
        ("text", "lm"),
    ]
    assert reply["fields"][1]["description"] == "[bold]short[/bold]"


def test_mermaid_prints_a_flowchart_and_nothing_else(capsys):
    bae("mermaid", "asking_app.py", "--no-fields", "--direction", "LR")
    printed = capsys.readouterr()

    assert printed.out.startswith('flowchart LR\n    Ask["Ask"]\n')
    assert printed.err == ""
    bae("mermaid", "asking_app.py")
    assert "Ask -.->|LM| Look" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["svg", "mmd", "SVG"])
def test_export_writes_a_file_and_prints_its_name(capsys, ending):
    bae("export", "asking_app.py", "-o", f"x.{ending}")

    assert capsys.readouterr().out == f"x.{ending}\n"
    assert "Look" in Path(f"x.{ending}").read_text(encoding="utf-8")


def test_export_has_the_options_of_the_drawing():
    bae("export", "asking_app.py", "-o", "a.svg", "--theme", "dark", "--no-fields", "-d", "LR")
    text = Path("a.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)

    assert "get_day" not in text
    assert "prefers-color-scheme" not in text
    assert float(root.get("width", "0")) > float(root.get("height", "0"))


def test_export_overwrites_a_file_only_on_request(capsys):
    Path("x.svg").write_text("mine")
    bae("export", "asking_app.py", "-o", "x.svg", code=1)

    assert Path("x.svg").read_text() == "mine"
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "x.svg is there already" in printed.err
    assert "--force" in printed.err
    bae("export", "asking_app.py", "-o", "x.svg", "--force")
    assert Path("x.svg").read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("x.gif", "a picture ends in .svg or .mmd"),
        ("x", "x is no format"),
        ("nowhere/x.svg", "cannot be written"),
    ],
)
def test_export_refuses_an_invalid_output_file_with_a_fix(capsys, file, message):
    bae("export", "asking_app.py", "-o", file, code=1)
    printed = capsys.readouterr()

    assert message in printed.err
    assert "try:" in printed.err
    assert "Traceback" not in printed.err
