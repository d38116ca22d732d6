"""`bae prompts`: the prompts that a graph would send, for people and for scripts."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae.cli import main
from bae.lm import LearnedPrompt
from bae.optimizer.artifacts import Artifact, save_artifacts
from bae.optimizer.node_schemas import schema_of

pytestmark = pytest.mark.usefixtures("folder")
APP = """
from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bae import LM, Dep, Graph, Node


async def look_up() -> str:
    raise AssertionError("a function was called")


class Letter(Node):
    text: str

    async def __call__(self) -> Reply | Handover | None: ...


class Reply(Node):
    shop: Annotated[str, Dep(look_up)]
    text: str = Field(description="two polite sentences")

    async def __call__(self, lm: LM) -> Filed:
        return await lm.make(self, Filed)


class Handover(Node):
    to: str

    async def __call__(self) -> None: ...


class Filed(Node):
    topic: str

    async def __call__(self) -> None: ...


graph = Graph(start=Letter, system="Be kind.")
quiet = Graph(start=Filed)
"""


def test_the_prompts_of_a_node_are_printed_as_readable_text(capsys):
    assert main(["prompts", "app.py", "Filed", "-i", "It broke."]) == 0
    printed = capsys.readouterr()
    assert printed.out == (
        "Reply -> Filed: fill, where the body asks for it\n"
        "system\n"
        "  Be kind.\n"
        "user\n"
        "  Filed\n"
        "\n"
        '  {"Reply":{"shop":"sample Reply.shop","text":"sample Reply.text"}}\n'
        "schema\n"
        '  {"properties": {"topic": {"type": "string"}}, "required": ["topic"],\n'
        '    "type": "object", "title": "Filed", "additionalProperties": false}\n'
        "\n"
    )
    assert printed.err == ""


def test_the_heading_of_a_choice_prompt_names_its_filled_fields(capsys):
    assert main(["prompts", "app.py"]) == 0
    printed = capsys.readouterr()
    headings = [line for line in printed.out.splitlines() if "->" in line and line[0] != " "]
    assert headings == [
        "Letter -> Reply | Handover | None: choice, with the fields of Handover",
        "Letter -> Reply: fill",
        "Reply -> Filed: fill, where the body asks for it",
    ]
    assert printed.err == "values are samples; -i gives the fields of Letter\n"


def test_the_json_of_a_prompt_has_every_part(capsys):
    assert main(["prompts", "app.py", "Handover", "--set", "text=It broke.", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["graph"] == "Letter"
    (prompt,) = data["prompts"]
    assert {**prompt, "schema": "…", "messages": "…"} == {
        "kind": "choice",
        "source": "Letter",
        "target": None,
        "options": ["Reply", "Handover", "None"],
        "filled": ["Handover"],
        "body": False,
        "system": "Be kind.",
        "messages": "…",
        "files": [],
        "tools": [],
        "schema": "…",
    }
    (message,) = prompt["messages"]
    assert message["role"] == "user"
    assert '{"Letter":{"text":"It broke."}}' in message["content"]
    assert prompt["schema"]["type"] == "object"


def test_a_node_without_prompts_is_refused_with_the_nodes_that_have_prompts(capsys):
    assert main(["prompts", "app.py", "Letter"]) == 1
    printed_errors = capsys.readouterr().err
    assert "no prompt of the graph Letter asks for Letter, or offers it" in printed_errors
    assert "name one of Reply, Handover, Filed" in printed_errors


def test_a_graph_without_prompts_is_reported(capsys):
    assert main(["prompts", "app.py:quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Filed asks no language model" in printed.err


def test_the_prompts_command_shows_learned_prompts(capsys, folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    import app  # pyright: ignore[reportMissingImports]

    learned = LearnedPrompt(instruction="Name the right person.")
    schema = schema_of(app.Handover)
    artifact = Artifact(node="Handover", schema=schema, fill=learned)
    save_artifacts({app.Handover: artifact}, "learned", among=app.graph)
    assert main(["prompts", "app:graph", "Handover", "--optimized", "learned"]) == 0
    choice, fill = capsys.readouterr().out.split("Letter -> Handover: fill\n")
    assert choice.startswith("Letter -> Reply | Handover | None: choice\n")
    assert "user\n  Name the right person.\n" in fill


TOOLS = """
from __future__ import annotations
from typing import Annotated
from bae import Graph, Node, Tool, ToolCall, Tools


def search(query: str, top: int = 3) -> str:
    \"\"\"Search the catalog.

    Args:
        query: a few words
    \"\"\"
    raise AssertionError("a function was called")


class Letter(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    calls: Annotated[list[ToolCall], Tools(search)]
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Letter)
"""


def test_the_tool_descriptions_of_a_prompt_are_shown(folder, capsys):
    (folder / "tools.py").write_text(TOOLS)
    assert main(["prompts", "tools.py"]) == 0
    printed = capsys.readouterr().out
    assert "\ntool\n  search\n  Search the catalog.\n" in printed
    assert '"description": "a few words"' in printed
    assert "next_step" not in printed

    assert main(["prompts", "tools.py", "--structured"]) == 0
    printed = capsys.readouterr().out
    assert "  Tools:\n  - search: Search the catalog.\n" in printed
    assert '"query": string (a few words)' in printed
    assert '{"action": {"type": "string", "const": "search"}' in printed


def test_the_json_of_a_prompt_has_its_tools(folder, capsys):
    (folder / "tools.py").write_text(TOOLS)
    assert main(["prompts", "tools.py", "--json"]) == 0
    (prompt,) = json.loads(capsys.readouterr().out)["prompts"]
    (tool,) = prompt["tools"]
    assert (tool["name"], [*tool["schema"]["properties"]]) == ("search", ["query", "top"])


def test_tools_that_are_chosen_in_a_run_are_reported_as_not_shown(folder, capsys):
    picked = "def pick() -> list[Tool]:\n    return [Tool(search)]\n\n\nclass Letter"
    app = TOOLS.replace("Tools(search)", "Tools(pick)").replace("class Letter", picked, 1)
    (folder / "tools.py").write_text(app)
    assert main(["prompts", "tools.py"]) == 0
    assert "not shown: tools of Reply.calls that only a run knows, those of pick" in " ".join(
        capsys.readouterr().err.split()
    )
