"""`bae check`: for every mistake that the proof knows, in a file of its own, the output leads to
its fix; the output is readable; and runs that a deployment would break are named."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae import Graph
from bae.cli import main
from bae.journal import SQLiteJournal
from bae.testing import ScriptedLM
from written_mistakes import BEFORE_3_14, CALLS, DURABLE, FIELDS, IMPORTS, ROUTES, Mistake

pytestmark = pytest.mark.usefixtures("folder")
PROVED = [*ROUTES, *FIELDS, *CALLS, *DURABLE]
RAISED = [*IMPORTS, *(BEFORE_3_14 if sys.version_info < (3, 14) else [])]

FINE = """
from __future__ import annotations

from bae import Graph, Node


class Ask(Node):
    question: str

    async def __call__(self) -> Answer | Refusal: ...


class Answer(Node):
    text: str

    async def __call__(self) -> None: ...


class Refusal(Node):
    reason: str

    async def __call__(self) -> None: ...


graph = Graph(start=Ask, end=(Answer, Refusal))
"""
WARNED = FINE.replace("-> Answer | Refusal", "-> Ask").replace("Ask, end=(Answer, Refusal)", "Ask")


def write(text: str, name: str = "app.py") -> Path:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def ids(mistake: Mistake) -> str:
    return mistake.name


@pytest.mark.parametrize("mistake", PROVED, ids=ids)
def test_a_mistake_is_reported_with_its_place_its_fix_its_code_and_its_line(
    mistake: Mistake, capsys: pytest.CaptureFixture[str]
):
    write(mistake.text)

    code = main(["check", "app.py", *mistake.options])
    printed = capsys.readouterr()

    assert code == (1 if mistake.severity == "error" else 0), printed
    assert printed.err == ""
    assert f"[{mistake.code}]" in printed.out
    for part in mistake.said:
        assert part in printed.out
    assert re.search(rf"^{mistake.severity} +\S", printed.out, re.MULTILINE)
    assert re.search(rf"^app\.py:graph: .*1 {mistake.severity}", printed.out, re.MULTILINE)
    if mistake.line is not None:
        assert f"        app.py:{mistake.line}  [{mistake.code}]\n" in printed.out


@pytest.mark.parametrize("mistake", RAISED, ids=ids)
def test_a_module_that_does_not_load_is_reported_with_the_line_and_a_fix(
    mistake: Mistake, capsys: pytest.CaptureFixture[str]
):
    write(mistake.text)

    code = main(["check", "app.py"])
    printed = capsys.readouterr()

    assert (code, printed.out) == (1, "")
    assert printed.err.startswith("error ")
    assert "Traceback" not in printed.err
    assert f"[{mistake.code}]" in printed.err
    assert "\n  try:   " in printed.err
    for part in mistake.said:
        assert part in printed.err
    if mistake.line is not None:
        assert f"app.py:{mistake.line}" in printed.err


def test_every_error_code_of_the_proof_has_a_test_case():
    source = Path(sys.modules["bae"].__file__ or "").parent
    files = ("proof.py", "node_proof.py", "plan.py", "calls.py", "hints.py", "tool_proof.py")
    files = (*files, "file_proof.py")
    matches_by_file = [
        re.findall(r'"(bae-[a-z-]+)"', (source / file).read_text("utf-8")) for file in files
    ]
    reported = r'(?:an_error|a_warning)\(\s*"(bae-[a-z-]+)"'
    matches_by_file += [
        re.findall(reported, path.read_text("utf-8")) for path in source.glob("sources/*.py")
    ]
    codes = {code for matches in matches_by_file for code in matches}
    assert codes - {mistake.code for mistake in [*PROVED, *RAISED]} == set()


# --- how it is printed --------------------------------------------------------------------------


def test_a_graph_without_problems_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]):
    write(FINE)
    for options in ([], ["--strict"]):
        assert main(["check", "app.py", *options]) == 0
        assert capsys.readouterr().out == (
            "app.py:graph: 3 nodes, 2 edges, ends at Answer | Refusal: no problems\n"
        )


def test_problems_are_formatted_like_the_proof(
    capsys: pytest.CaptureFixture[str],
):
    write(WARNED)
    assert main(["check", "app.py"]) == 0
    assert capsys.readouterr().out == (
        "warning Ask -> Ask       the loop has no exit that the types show (Ask never returns "
        "None)\n"
        "        fix: let one of its nodes return None or a node that leads out\n"
        "        app.py:7  [bae-loop-endless]\n"
        "app.py:graph: 1 node, 1 edge, no end: 1 warning\n"
        "not reached: Answer, Refusal\n"
    )
    assert main(["check", "app.py", "--strict"]) == 1


SPARE = """

class Step(Node):
    text: str


class Old(Step):
    async def __call__(self) -> None: ...


class _Hidden(Node):
    async def __call__(self) -> None: ...


class Part(Node):
    async def __call__(self) -> None: ...


class Inside(Node):
    async def __call__(self) -> None: ...


class Whole(Node):
    inside: Annotated[Inside, Dep(Inside)]

    async def __call__(self) -> Part: ...


other = Graph(start=Whole)
"""


def test_unreached_node_classes_are_listed_and_do_not_fail_the_check(
    capsys: pytest.CaptureFixture[str],
):
    head = "from typing import Annotated\nfrom bae import Dep\nfrom elsewhere import Imported\n"
    write(FINE, "elsewhere.py")
    Path("elsewhere.py").write_text(FINE + "\n\nclass Imported(Ask): ...\n")
    write(FINE.replace("from bae import", head + "from bae import") + SPARE)
    assert main(["check", "app.py", "--strict"]) == 0
    assert capsys.readouterr().out == (
        "app.py:graph: 3 nodes, 2 edges, ends at Answer | Refusal: no problems\nnot reached: Old\n"
    )
    assert main(["check", "app.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_reached"] == ["Old"]


def test_a_wrong_return_type_is_not_reported_again_as_unreached_nodes(
    capsys: pytest.CaptureFixture[str],
):
    write(FINE.replace(" -> Answer | Refusal", ""))
    assert main(["check", "app.py"]) == 1
    printed = capsys.readouterr().out
    assert "not reached" not in printed
    assert "graph: 1 node, 0 edges, no end: 1 error\n" in printed


TOOLS = """
from __future__ import annotations
from typing import Annotated
from bae import Dep, Graph, Node, Tool, ToolCall, Tools


class Shop: ...


def get_shop() -> Shop:
    return Shop()


def search(query: str, shop: Annotated[Shop, Dep(get_shop)], top: int = 3) -> str:
    return query


async def pick() -> list[Tool]:
    return []


class Ask(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    calls: Annotated[list[ToolCall], Tools(search, Tool(Ask, name="ask_again"), pick)]

    async def __call__(self) -> None: ...


graph = Graph(start=Ask)
"""


def test_the_tools_of_a_graph_are_listed_with_the_arguments_of_the_model(
    capsys: pytest.CaptureFixture[str],
):
    text = TOOLS.replace('Tool(Ask, name="ask_again"), ', "")
    write(text)
    assert main(["check", "app.py"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("\ntools of Reply.calls: search(query, top), those of pick\n")
    assert main(["check", "app.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tools"] == [
        {
            "field": "Reply.calls",
            "tools": [
                {"name": "search", "parameters": ["query", "top"]},
                {"name": "those of pick", "parameters": None},
            ],
        }
    ]


def test_tools_with_mistakes_are_not_listed(capsys: pytest.CaptureFixture[str]):
    write(TOOLS.replace("query: str", "query"))
    assert main(["check", "app.py"]) == 1
    printed = capsys.readouterr().out
    assert "bae-tool-unannotated" in printed
    assert "tools of" not in printed


def test_the_json_output_has_the_whole_proof(capsys: pytest.CaptureFixture[str]):
    write(WARNED)
    assert main(["check", "app.py", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (problem,) = data.pop("problems")
    assert data == {
        "ok": True,
        "graph": "Ask",
        "module": "app",
        "attribute": "graph",
        "nodes": ["Ask"],
        "edges": [["Ask", "Ask"]],
        "ends": [],
        "tools": [],
        "not_reached": ["Answer", "Refusal"],
        "broken_runs": None,  # none was looked for
        "error": None,
    }
    assert problem["code"] == "bae-loop-endless"
    assert (Path(problem["file"]).name, problem["line"]) == ("app.py", 7)
    assert set(problem) == {"severity", "code", "place", "message", "fix", "file", "line"}


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        (None, 1, "bae-module-unknown"),
        ("1 / 0", 1, "bae-module-failed"),
        ("raise KeyboardInterrupt", 130, None),
        ("raise SystemExit(5)", 1, "bae-module-failed"),
    ],
)
def test_every_loading_error_has_the_same_json_shape(
    text: str | None, code: int, error: str | None, capsys: pytest.CaptureFixture[str]
):
    if text is not None:
        write(text)
    assert main(["check", "app.py", "--json"]) == code
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert set(data) == {"ok", "error"}
    assert (data["ok"], data["error"]["code"]) == (False, error)
    shape = {"code", "message", "fix", "path", "cause", "at", "notes"}
    assert set(data["error"]) == shape
    assert "app.py" in printed.err


def test_a_class_without_a_file_is_reported_without_a_line(capsys: pytest.CaptureFixture[str]):
    write(
        "from bae import Graph, Node\n"
        "made = {}\n"
        "exec('from bae import Node\\nclass Lost(Node):\\n    x: int\\n', made)\n"
        "graph = Graph(start=made['Lost'])\n"
    )
    assert main(["check", "app.py"]) == 1
    assert "\n        [bae-node-without-call]\n" in capsys.readouterr().out


def test_a_problem_in_a_subgraph_is_reported_in_its_own_file(
    capsys: pytest.CaptureFixture[str],
):
    write(
        "from __future__ import annotations\n"
        "from bae import Node\n"
        "class Sub(Node):\n"
        "    async def __call__(self) -> Lost: ...\n",
        "inner.py",
    )
    write(
        "from __future__ import annotations\n"
        "from typing import Annotated, Any\n"
        "from bae import Dep, Graph, Node\n"
        "from inner import Sub\n"
        "class Ask(Node):\n"
        "    told: Annotated[Any, Dep(Sub)]\n"
        "    async def __call__(self) -> None: ...\n"
        "graph = Graph(start=Ask)\n"
    )
    assert main(["check", "app.py"]) == 1
    assert "        inner.py:4  [bae-hint-unresolved]\n" in capsys.readouterr().out


# --- against a journal --------------------------------------------------------------------------


def graph_of(file: str) -> Graph[Any, Any]:
    from bae.cli.loading import load

    return load(file).graph


@pytest.fixture
async def journal() -> str:
    """A journal with a run of FINE that failed once it had come to Answer."""
    write(FINE, "before.py")
    graph = graph_of("before.py")
    async with SQLiteJournal("runs.db") as kept:
        lm = ScriptedLM(["Answer", {"text": "yes"}])
        await graph.arun(graph.start(question="?"), lm, journal=kept, run_id="done")
        lm = ScriptedLM(["Answer", OSError("gone")])
        with pytest.raises(Exception, match="gone"):
            await graph.arun(graph.start(question="?"), lm, journal=kept, run_id="stopped")
    return "runs.db"


def test_runs_that_can_be_resumed_pass_the_check(journal: str, capsys: pytest.CaptureFixture[str]):
    write(FINE)
    assert main(["check", "app.py", "--against", journal]) == 0
    assert capsys.readouterr().out.endswith("runs.db: every unfinished run of Ask can be resumed\n")


def test_unfinished_runs_that_the_code_would_break_are_listed_with_the_change(
    journal: str, capsys: pytest.CaptureFixture[str]
):
    write(
        FINE.replace("Answer | Refusal: ...", "Refusal: ...").replace(
            "(Answer, Refusal)", "Refusal"
        )
    )

    assert main(["check", "app.py", "--against", journal]) == 1
    printed = capsys.readouterr().out
    assert "stopped (Ask, failed since " in printed
    assert "cannot be resumed:" in printed
    assert "done (" not in printed
    assert printed.endswith("runs.db: 1 run of Ask cannot be resumed\n")

    assert main(["check", "app.py", "--against", journal, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    (broken,) = data["broken_runs"]
    assert (data["ok"], broken["run_id"], broken["status"]) == (False, "stopped", "failed")
    assert broken["changes"]


def test_runs_of_a_graph_that_was_renamed_are_found_by_its_old_name(
    journal: str, capsys: pytest.CaptureFixture[str]
):
    renamed = FINE.replace("Ask", "Question").replace("Answer | Refusal: ...", "Refusal: ...")
    write(renamed.replace("(Answer, Refusal)", "Refusal"))
    assert main(["check", "app.py", "--against", journal]) == 0
    assert main(["check", "app.py", "--against", journal, "--was", "Ask"]) == 1
    assert "stopped (Ask" in capsys.readouterr().out


def test_a_check_of_an_invalid_graph_does_not_read_the_journal(
    journal: str, capsys: pytest.CaptureFixture[str]
):
    write(FINE.replace("end=(Answer, Refusal)", "end=Answer"))
    assert main(["check", "app.py", "--against", journal]) == 1
    printed = capsys.readouterr()
    assert "runs.db was not looked at: fix the errors first" in printed.err
    assert "can be resumed" not in printed.out
    assert main(["check", "app.py", "--against", journal, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["broken_runs"] is None


def test_a_missing_journal_is_an_error_after_the_proof(
    capsys: pytest.CaptureFixture[str],
):
    write(FINE)
    assert main(["check", "app.py", "--against", "none.db"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("app.py:graph: ")
    assert "there is no journal none.db" in printed.err
    assert main(["check", "app.py", "--against", "none.db", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["ok"], data["graph"], data["broken_runs"]) == (False, "Ask", None)
    assert data["error"]["message"] == "there is no journal none.db"
    assert not Path("none.db").exists()


def test_an_old_name_without_a_journal_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    write(FINE)
    assert main(["check", "app.py", "--was", "Ask"]) == 2
    assert "--against" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["ollama:qwen3?max_tokens=800", "openai:qwen3@http://127.0.0.1:9/v1?effort=low"]
)
def test_an_available_lm_is_checked_without_a_network(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pydantic_ai")
    write(FINE)
    assert main(["check", "app.py", "--lm", name]) == 0
    assert "no problems" in capsys.readouterr().out


def test_a_missing_requirement_of_an_lm_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pydantic_ai")
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    write(FINE)
    assert main(["check", "app.py", "--lm", "openrouter:qwen/qwen3:free", "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["place"], problem["code"]) == ("--lm", "bae-lm-unauthorized")
    assert "OPENROUTER_API_KEY" in problem["fix"]

    assert main(["check", "app.py", "--lm", "ollama:q?max_tokns=8"]) == 1
    assert "did you mean max_tokens?" in capsys.readouterr().out
    for wrong in ("anthropic?max_tokns=8", "anthropic?effort=lowest"):
        assert main(["check", "app.py", "--lm", wrong, "--json"]) == 1
        (problem,) = json.loads(capsys.readouterr().out)["problems"]
        assert (problem["place"], problem["code"]) == ("--lm", "bae-lm-option")
    assert main(["check", "app.py", "--lm", "olama:q"]) == 2
    assert "did you mean 'ollama'?" in capsys.readouterr().err
