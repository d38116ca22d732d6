"""`bae runs test`: the tests it makes of runs, which are run by a pytest of their own, and the code
that they are written in."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import sampled_from, text

pytest.importorskip("typer")
pytest.importorskip("rich")

import bae
from bae import JournalError, Node
from bae.journal import MemoryJournal
from bae.journal.written_test import GraphName, literal, write_test
from bae.testing import Call, ScriptedLM
from wardrobe_runs import WARDROBE, read_notes, read_refusal, write_runs

pytestmark = pytest.mark.once
MAKE = ["test", "abc", "-j", "runs.db", "-m", "wardrobe", "-o", "tests/test_outfit.py"]


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """A folder of a project, with a journal of its runs."""
    (tmp_path / "wardrobe.py").write_text(WARDROBE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    asyncio.run(write_runs())
    yield tmp_path
    for name in ("wardrobe", "shop", "shop.clothes"):
        sys.modules.pop(name, None)


def environment(*paths: str) -> dict[str, str]:
    source = str(Path(bae.__file__).parents[1])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([source, *paths]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take longer to load than the test
        "BAE_LM": "none",
    }


def in_a_pytest_of_its_own(*paths: str, found: str = ".") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "--rootdir", ".", *paths],
        env=environment(*filter(None, [found])),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_run_becomes_a_test_that_fails_with_a_diff_when_a_body_is_changed(journal, capsys):
    text = read_notes(capsys, *MAKE)
    assert text == dedent(
        """\
        tests/test_outfit.py: replays the run and checks its path and its end
        tests/test_outfit.jsonl: the recording; keep it beside the test
        run it with: python -m pytest tests/test_outfit.py
        """
    )
    assert Path("tests/test_outfit.py").read_text() == dedent(
        '''\
        """A run of Morning (abc123) that must still go the same way.

        It is replayed: no LM, no dependency, no tool and no person is asked, the bodies of
        nodes are called. Written by `bae runs test`; edit it as you like.
        """

        from pathlib import Path

        from bae.testing import replaying

        from wardrobe import graph

        RECORDED = Path(__file__).with_suffix(".jsonl")


        def test_morning_goes_the_way_it_was_recorded():
            with replaying(RECORDED) as recorded:
                result = recorded.run(graph)

            path = [type(node).__name__ for node in result.trace]
            assert path == ["Morning", "Day", "Outfit", "Worn"]
            end = result.result
            assert type(end).__name__ == "Worn"
            assert end.items == ["a thick jumper", "boots"]
            assert end.warm is True
            assert end.weather is None
        '''
    )
    source = Path("wardrobe.py").read_text()
    assert "[self.top, *self.shoes]" in source
    Path("wardrobe.py").write_text(
        source.replace("[self.top, *self.shoes]", '[self.top, "a scarf", *self.shoes]')
    )
    run = in_a_pytest_of_its_own("tests/test_outfit.py")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "bae-replay-diverged" in run.stdout
    assert re.search(r'\+ +"a scarf"', run.stdout)


def test_written_tests_pass_in_any_working_directory(journal, capsys):
    Path("shop").mkdir()
    Path("shop/__init__.py").touch()
    Path("shop/clothes.py").write_text(WARDROBE)
    Path("loose").mkdir()
    Path("loose/garments.py").write_text(WARDROBE)
    named = {
        "wardrobe.py": ("abc", "Path(__file__).parents[2]"),
        "wardrobe.py:make_graph": ("abc", "recorded.run(make_graph())"),
        "wardrobe.py:Morning": ("abc", "recorded.run(Graph(start=Morning))"),
        "wardrobe.py:Holder.graph": ("abc", "recorded.run(Holder.graph)"),
        "wardrobe.py:asking": (
            "ask",
            'assert [gate.place for gate in result.waiting] == ["Ask.sure"]',
        ),
        "shop/clothes.py": ("abc", "from shop.clothes import graph"),
        "loose/garments.py": ("abc", 'Path(__file__).parents[2] / "loose"'),
    }
    try:
        for number, (module, (run, code)) in enumerate(named.items()):
            test = f"tests/kept/test_{number}.py"
            read_notes(capsys, "test", run, "-j", "runs.db", "-m", module, "-o", test)
            assert code in Path(test).read_text()
    finally:
        sys.modules.pop("garments", None)
    # Nothing but bae is on the path, and it is no matter where pytest is called.
    ran = in_a_pytest_of_its_own("tests/kept", found="")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "7 passed" in ran.stdout


def test_a_test_is_not_written_for_a_file_that_cannot_be_imported(journal, capsys):
    Path("json.py").write_text(WARDROBE)
    arguments = [*MAKE[:-3], "json.py", *MAKE[-2:]]
    assert "has the name of another module" in read_refusal(capsys, *arguments)
    sys.modules.pop("json_", None)


@pytest.mark.skipif(find_spec("ruff") is None, reason="needs ruff")
def test_written_tests_are_clean_code(journal, capsys):
    for number, module in enumerate(("wardrobe", "wardrobe.py", "wardrobe.py:Morning")):
        read_notes(capsys, *MAKE[:-3], module, "-o", f"tests/test_{number}.py")
    select = "B,C4,E,F,I,N,PIE,PT,RET,RUF,SIM,UP,W"
    for command in (["check", "--select", select], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "tests"]
        run = subprocess.run(ruff, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stdout + run.stderr


def test_writing_a_test_overwrites_a_file_only_on_request(journal, capsys):
    read_notes(capsys, *MAKE)
    Path("tests/test_outfit.py").write_text("mine")
    assert "are there already" in read_refusal(capsys, *MAKE)
    Path("tests/test_outfit.py").unlink()
    assert "tests/test_outfit.jsonl is there already" in read_refusal(capsys, *MAKE)
    assert not Path("tests/test_outfit.py").exists()
    read_notes(capsys, *MAKE, "--force")
    assert "replaying" in Path("tests/test_outfit.py").read_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"-m": "wardrobe:not_a_graph"}, "is no Graph: its type is int"),
        ({"-m": "wardrobe:nothing"}, "wardrobe has no nothing"),
        ({"-m": "nowhere.at:all"}, "there is no module nowhere.at"),
        ({"-m": "wardrobe:asking"}, "error "),
        ({"abc": "bad"}, "a test is made of a run that has ended, not of bad789: it has failed"),
        ({"abc": "nobody"}, "no run id begins with nobody"),
    ],
)
def test_a_test_is_not_written_for_an_unsuitable_run(changed, message, journal, capsys):
    arguments = list(MAKE)
    for name, value in changed.items():
        at = arguments.index(name)
        arguments[at + 1 if name.startswith("-") else at] = value
    assert message in read_refusal(capsys, *arguments)
    assert not Path("tests").exists()


def test_a_test_is_not_written_for_a_run_that_deviates(journal, capsys, monkeypatch):
    import wardrobe  # pyright: ignore[reportMissingImports]

    async def other(self: Any) -> Any:
        return wardrobe.Worn(items=["a hat"], warm=False, tags=set(), weather=None)

    monkeypatch.setattr(wardrobe.Outfit, "__call__", other)
    changed = bae.Graph(start=wardrobe.Morning)
    monkeypatch.setattr(wardrobe, "graph", changed)
    error = read_refusal(capsys, *MAKE)
    assert "a hat" in error
    assert "bae-replay-diverged" in error
    assert not Path("tests").exists()


AGENT = """
from typing import Annotated
from bae import Graph, Node, ToolCall, Tools

CALLED = []

def search(word: str) -> list[str]:
    CALLED.append(word)
    return [word.upper()]

class Ask(Node):
    text: str
    async def __call__(self) -> "Reply": ...

class Reply(Node):
    calls: Annotated[list[ToolCall], Tools(search)]
    text: str
    async def __call__(self) -> None: ...

graph = Graph(start=Ask, end=Reply)
"""


def test_a_run_with_tools_becomes_a_test_that_calls_no_tools(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import agent  # pyright: ignore[reportMissingImports]

    async def write() -> Any:
        async with MemoryJournal() as journal:
            lm = ScriptedLM({"Reply": [[Call("search", word="tea")], {"text": "TEA"}]})
            await agent.graph.arun(agent.Ask(text="?"), lm, journal=journal, run_id="one")
            stored = await journal.read("one")
        agent.CALLED.clear()
        return await write_test(agent.graph, stored, GraphName("agent", "graph"))

    written = asyncio.run(write())
    assert agent.CALLED == []
    assert '[call.name for call in end.calls] == ["search"]' in written.source
    Path("test_agent.py").write_text(written.source)
    Path("test_agent.jsonl").write_bytes(written.recording)
    namespace: dict[str, Any] = {"__file__": str(tmp_path / "test_agent.py"), "__name__": "made"}
    exec(compile(written.source, "test_agent.py", "exec"), namespace)
    namespace["test_ask_goes_the_way_it_was_recorded"]()
    assert agent.CALLED == []
    sys.modules.pop("agent")


# --- the code of tests ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *("short", 'with "quotes"', "it's", "both ' and \"", "lines\nand\ttabs\\", "\u2028é\x00"),
        *({"key": {"deeper": ["x"]}, "other": None, 1: "one"}, [[[]], {}, True, 1.5, -3]),
    ],
)
def test_a_value_is_written_as_code_that_evaluates_to_it(value: Any):
    assert eval(literal(value)) == value


class Said(Node):
    text: str

    async def __call__(self) -> None: ...


HOSTILE = [
    '"""\nimport os\nos.abort()\n"""',
    "x\\",
    "'''",
    "\n",
    "\r\u2028\u202e",
    "",
    "²",
    "def",
    "\x00",
]


@given(run_id=text(min_size=1) | sampled_from(HOSTILE), name=text() | sampled_from(HOSTILE))
def test_text_of_a_recording_never_becomes_code_of_a_written_test(run_id, name):
    async def written() -> str:
        async with MemoryJournal() as journal:
            graph = bae.Graph(start=Said)
            await graph.arun(Said(text=name), journal=journal, run_id="a")
            stored = await journal.read("a")
        told = replace(stored, info=replace(stored.info, run_id=run_id, graph=name))
        return (await write_test(graph, told, GraphName("said", "graph"))).source

    try:
        source = asyncio.run(written())
    except JournalError as error:
        if error.code == "bae-run-name":
            return  # no run or graph can be called so
        raise
    parts = ast.parse(source).body
    assert [type(part).__name__ for part in parts] == [
        "Expr",  # the docstring
        "ImportFrom",
        "ImportFrom",
        "ImportFrom",
        "Assign",
        "FunctionDef",
    ]
    asserted = parts[-1].body[-1].test.comparators[0]
    assert ast.literal_eval(asserted) == name
