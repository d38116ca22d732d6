"""`python -m bae.journal`: what it prints, what it refuses, and the tests it writes, which are run
by a pytest of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import bae
from bae.journal import MemoryJournal, SQLiteJournal
from bae.journal.__main__ import main
from bae.journal.commands import seconds_in
from bae.testing import ScriptedLM
from bae.testing.written_tests import GraphName, literal

pytestmark = pytest.mark.once

WARDROBE = """
from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import BaseModel

from bae import Dep, Gate, Graph, Node, Recall


class Weather(BaseModel):
    degrees: int
    day: date


def get_weather() -> Weather:
    return Weather(degrees=7, day=date(2026, 3, 1))


class Morning(Node):
    message: str

    async def __call__(self) -> Day: ...


class Day(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    mood: str

    async def __call__(self) -> Outfit | Rest: ...


class Rest(Node):
    async def __call__(self) -> None: ...


class Outfit(Node):
    mood: Annotated[str, Recall(Day)]
    top: str
    shoes: list[str]

    async def __call__(self) -> Worn:
        return Worn(items=[self.top, *self.shoes], warm=True, tags={"b", "a"}, weather=None)


class Worn(Node):
    items: list[str]
    warm: bool
    tags: set[str]
    weather: Weather | None
    seen: Annotated[Weather, Dep(get_weather)]

    async def __call__(self) -> None: ...


graph = Graph(start=Morning, end=(Worn, Rest))
not_a_graph = 12


class Ask(Node):
    question: str
    sure: Annotated[bool, Gate("Are you sure?")]

    async def __call__(self) -> None: ...


asking = Graph(start=Ask, end=Ask)


class Holder:
    graph = graph
"""
SCRIPT: list[Any] = [
    {"mood": "grumpy"},
    "Outfit",
    {"top": "a thick jumper", "shoes": ["boots"]},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a project: with a package, a journal of its runs, and nothing else."""
    (tmp_path / "wardrobe.py").write_text(WARDROBE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("wardrobe", None)


async def _write() -> None:
    import wardrobe  # pyright: ignore[reportMissingImports]

    async with SQLiteJournal("runs.db") as journal:
        await wardrobe.graph.arun(
            wardrobe.Morning(message="ugh"), ScriptedLM(SCRIPT), journal=journal, run_id="abc123"
        )
        await wardrobe.asking.arun(
            wardrobe.Ask.model_construct(question="now?"), journal=journal, run_id="ask456"
        )
        with pytest.raises(bae.BaeError):
            await wardrobe.graph.arun(
                wardrobe.Morning(message="oh"),
                ScriptedLM([ValueError("the model is out")]),
                journal=journal,
                run_id="bad789",
            )


@pytest.fixture
def journal(folder):
    asyncio.run(_write())
    return folder


def said(capsys: Any, *arguments: str) -> str:
    """What a command prints, when it succeeds."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return out


def refused(capsys: Any, *arguments: str) -> str:
    """What a command says when it does not."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "Traceback" not in err
    return err


# --- reading -------------------------------------------------------------------------------------


def test_runs_are_listed_as_a_table(journal, capsys):
    lines = said(capsys, "runs", "runs.db").splitlines()
    assert lines[0].split() == ["RUN", "GRAPH", "STATUS", "STARTED", "LASTED"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["bad789", "Morning", "failed"],
        ["ask456", "Ask", "waiting"],
        ["abc123", "Morning", "ended"],
    ]
    assert "ScriptedLM raised ValueError" in lines[1]
    assert lines[2].endswith("Ask.sure: Are you sure?")
    assert said(capsys, "runs", "runs.db", "--status", "ended").count("\n") == 2
    assert said(capsys, "runs", "runs.db", "--graph", "Ask").count("\n") == 2
    assert "--limit shows more" in said(capsys, "runs", "runs.db", "--limit", "2")
    assert said(capsys, "runs", "runs.db", "--graph", "Nothing") == "no runs\n"


def test_a_run_is_told_from_its_start_to_its_end(journal, capsys):
    text = said(capsys, "show", "runs.db", "abc123")
    assert text.startswith("Morning, run abc123: ended\n")
    for part in (
        r'0  Morning\n +message  "ugh"',
        r"1  Day   <- filled in .*; 1 call",
        r'weather  {"degrees": 7, "day": "2026-03-01"}   <- get_weather',
        r'mood     "grumpy"',
        r"2  Outfit   <- chosen among Outfit, Rest",
        r"mood   +<- recalled from 1:Day.mood",
        r'top    "a thick jumper"',
        r"3  Worn\n",
        r'seen     {"degrees": 7, "day": "2026-03-01"}   <- get_weather, called before',
        r"ended at Worn\n$",
    ):
        assert re.search(part, text), f"{part}\n{text}"
    waiting = said(capsys, "show", "runs.db", "ask456")
    assert "sure         <- waits for a person: Are you sure?" in waiting
    assert "waits at 0:Ask.sure: Are you sure?" in waiting
    assert "failed: " in said(capsys, "show", "runs.db", "bad789")
    full = said(capsys, "show", "runs.db", "abc123", "--full")
    assert "answer:" in full


def test_a_run_is_named_by_how_its_id_begins(journal, capsys):
    assert "run abc123" in said(capsys, "show", "runs.db", "abc")
    assert "no run is called xyz" in refused(capsys, "show", "runs.db", "xyz")
    assert "several runs begin with a: " in refused(capsys, "show", "runs.db", "a")


def test_where_a_value_came_from_is_told(journal, capsys):
    assert "get_weather" in said(capsys, "why", "runs.db", "abc123", "Day.weather")
    assert "recalled" in said(capsys, "why", "runs.db", "abc", "Outfit.mood", "--step", "2")
    assert "no field wether" in refused(capsys, "why", "runs.db", "abc123", "Day.wether")


def test_commands_that_read_leave_the_file_as_it_is(journal, capsys):
    before = Path("runs.db").read_bytes()
    said(capsys, "runs", "runs.db")
    said(capsys, "show", "runs.db", "abc123")
    said(capsys, "why", "runs.db", "abc123", "Day.mood")
    assert Path("runs.db").read_bytes() == before
    assert sorted(p.name for p in journal.iterdir() if not p.is_dir()) == ["runs.db", "wardrobe.py"]


# --- out and in ----------------------------------------------------------------------------------


def test_runs_are_exported_and_loaded(journal, capsys, monkeypatch):
    assert said(capsys, "export", "runs.db", "all.jsonl") == "all.jsonl: 3 runs\n"
    assert said(capsys, "export", "runs.db", "one.jsonl", "abc") == "one.jsonl: 1 run\n"
    assert "one.jsonl is there already" in refused(capsys, "export", "runs.db", "one.jsonl", "ask")
    said(capsys, "export", "runs.db", "one.jsonl", "abc", "--force")
    loaded = said(capsys, "load", "new.db", "one.jsonl")
    assert loaded == "new.db: 1 run loaded\n  abc123\n"
    assert "already" in refused(capsys, "load", "new.db", "all.jsonl")
    said(capsys, "load", "new.db", "all.jsonl", "--existing", "keep")
    listed = said(capsys, "runs", "new.db").splitlines()
    assert sorted(line.split()[0] for line in listed[1:]) == ["abc123", "ask456", "bad789"]
    # And what only reads takes the exported file as it is.
    assert "run abc123" in said(capsys, "show", "all.jsonl", "abc")
    assert said(capsys, "show", "new.db", "abc123") == said(capsys, "show", "runs.db", "abc123")
    assert "no journal that can be written" in refused(
        capsys, "prune", "all.jsonl", "--older-than", "1d"
    )


def test_runs_go_through_a_pipe(journal):
    command = [sys.executable, "-m", "bae.journal"]
    export = subprocess.run(
        [*command, "export", "runs.db", "-"], env=environment(), capture_output=True, timeout=60
    )
    assert (export.returncode, export.stderr) == (0, b"")
    assert len(export.stdout.splitlines()) > 3
    load = subprocess.run(
        [*command, "load", "new.db", "-"],
        env=environment(),
        input=export.stdout,
        capture_output=True,
        timeout=60,
    )
    assert (load.returncode, load.stderr) == (0, b"")
    assert load.stdout.startswith(b"new.db: 3 runs loaded")


# --- less ----------------------------------------------------------------------------------------


def test_old_runs_are_pruned_and_those_that_wait_stay(journal, capsys):
    assert said(capsys, "prune", "runs.db", "--older-than", "30d") == "runs.db: 0 runs deleted\n"
    assert said(capsys, "prune", "runs.db", "--older-than", "0s") == "runs.db: 2 runs deleted\n"
    assert said(capsys, "runs", "runs.db").count("\n") == 2
    pruned = said(capsys, "prune", "runs.db", "--older-than", "0s", "--status", "waiting", "ended")
    assert pruned == "runs.db: 1 run deleted\n"


def test_values_are_redacted(journal, capsys):
    text = said(capsys, "redact", "runs.db", "abc123", "Outfit.top")
    assert "1 value of Outfit.top" in text
    assert "still in Worn.items: redact these too, or give --copies" in text
    assert "still" not in said(capsys, "redact", "runs.db", "abc123", "Worn.items", "--copies")
    shown = said(capsys, "show", "runs.db", "abc123")
    assert "thick jumper" not in shown
    assert "(withheld)" in shown
    assert b"thick jumper" not in Path("runs.db").read_bytes()
    assert "no field Outfit.tip" in refused(capsys, "redact", "runs.db", "abc123", "Outfit.tip")


# --- tests of runs -------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    source = str(Path(bae.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "BAE_LM": "none"}


def in_a_pytest_of_its_own(*paths: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    options = {**environment(), "PYTHONPATH": f"{environment()['PYTHONPATH']}{os.pathsep}."}
    return subprocess.run(
        [*command, *paths], env=options, capture_output=True, text=True, timeout=120
    )


MAKE = ["test", "runs.db", "abc", "--graph", "wardrobe:graph", "-o", "tests/test_outfit.py"]


def test_a_run_becomes_a_test_that_passes_and_fails_with_a_diff_when_a_body_is_changed(
    journal, capsys
):
    text = said(capsys, *MAKE)
    assert text == dedent(
        """\
        tests/test_outfit.py: replays the run and says where it went and ended
        tests/test_outfit.jsonl: the recording, which belongs beside it
        run it with: python -m pytest tests/test_outfit.py
        """
    )
    assert Path("tests/test_outfit.py").read_text() == dedent(
        '''\
        """A run of Morning (abc123) that must still go the same way.

        It is replayed: no LM, no dependency and nobody at a gate is asked, the bodies of nodes
        are called. Written by `python -m bae.journal test`; edit it as you like.
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
            assert end.tags == {"a", "b"}
            assert end.weather is None
            said = end.model_dump(mode="json")
            assert said["seen"] == {"degrees": 7, "day": "2026-03-01"}
        '''
    )
    run = in_a_pytest_of_its_own("tests/test_outfit.py")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout

    source = Path("wardrobe.py").read_text()
    assert "[self.top, *self.shoes]" in source
    Path("wardrobe.py").write_text(
        source.replace("[self.top, *self.shoes]", '[self.top, "a scarf", *self.shoes]')
    )
    run = in_a_pytest_of_its_own("tests/test_outfit.py")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "bae-replay-diverged" in run.stdout
    assert re.search(r'\+ +"a scarf"', run.stdout)


@pytest.mark.skipif(find_spec("ruff") is None, reason="needs ruff")
def test_what_is_written_is_clean_code(journal, capsys):
    said(capsys, *MAKE)
    ruff = [sys.executable, "-m", "ruff"]
    select = "B,C4,E,F,I,N,PIE,PT,RET,RUF,SIM,UP,W"
    for command in (
        ["check", "--isolated", "--select", select],
        ["format", "--isolated", "--check"],
    ):
        run = subprocess.run(
            [*ruff, *command, "--no-cache", "tests"], capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_no_file_is_written_over_unless_that_is_asked_for(journal, capsys):
    said(capsys, *MAKE)
    Path("tests/test_outfit.py").write_text("mine")
    assert "are there already" in refused(capsys, *MAKE)
    Path("tests/test_outfit.py").unlink()
    assert "tests/test_outfit.jsonl is there already" in refused(capsys, *MAKE)
    assert not Path("tests/test_outfit.py").exists()
    said(capsys, *MAKE, "--force")
    assert "replaying" in Path("tests/test_outfit.py").read_text()


def test_a_run_that_waits_becomes_a_test_of_what_it_waits_for(journal, capsys):
    said(capsys, "test", "runs.db", "ask", "--graph", "wardrobe:asking", "-o", "test_ask.py")
    source = Path("test_ask.py").read_text()
    assert 'assert [gate.place for gate in result.waiting] == ["Ask.sure"]' in source
    run = in_a_pytest_of_its_own("test_ask.py")
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_graph_inside_something_is_named_with_dots(journal, capsys):
    said(capsys, "test", "runs.db", "abc", "--graph", "wardrobe:Holder.graph", "-o", "test_it.py")
    source = Path("test_it.py").read_text()
    assert "from wardrobe import Holder\n" in source
    assert "recorded.run(Holder.graph)" in source


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--graph": "wardrobe"}, "write package.module:graph"),
        ({"--graph": "wardrobe:not_a_graph"}, "is int, and no Graph"),
        ({"--graph": "wardrobe:nothing"}, "and no Graph"),
        ({"--graph": "nowhere.at:all"}, "there is no module nowhere.at"),
        ({"--graph": "wardrobe:asking"}, "error: "),
        ({"-o": "tests/outfit.txt"}, "is no Python file"),
        ({"abc": "bad"}, "is failed, and a test is made of one that has ended"),
        ({"abc": "nobody"}, "no run is called nobody"),
    ],
)
def test_what_cannot_become_a_test_is_refused_and_nothing_is_written(
    changed, message, journal, capsys
):
    arguments = list(MAKE)
    for name, value in changed.items():
        at = arguments.index(name)
        arguments[at + 1 if name.startswith("-") else at] = value
    assert message in refused(capsys, *arguments)
    assert not Path("tests").exists()


def test_a_run_that_goes_another_way_today_does_not_become_a_test(journal, capsys, monkeypatch):
    import wardrobe  # pyright: ignore[reportMissingImports]

    async def other(self: Any) -> Any:
        return wardrobe.Worn(items=["a hat"], warm=False, tags=set(), weather=None)

    monkeypatch.setattr(wardrobe.Outfit, "__call__", other)
    changed = bae.Graph(start=wardrobe.Morning)
    monkeypatch.setattr(wardrobe, "graph", changed)
    error = refused(capsys, *MAKE)
    assert "a hat" in error
    assert "bae-replay-diverged" in error
    assert not Path("tests").exists()


# --- the command line itself ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["", "runs", "show", "why", "export", "load", "prune", "redact", "test"]
)
def test_help_is_given(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "FILE" in out
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["runs"],
        ["runs", "x", "--limit", "0"],
        ["runs", "x", "--status", "over"],
        ["prune", "x"],
        ["prune", "x", "--older-than", "soon"],
        ["redact", "x", "run"],
        ["test", "x", "run"],
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "nothing.db"],
        ["show", "nothing.db", "x"],
        ["prune", "nothing.db", "--older-than", "1d"],
        ["redact", "nothing.db", "x", "A.b"],
        ["export", "nothing.db", "x.jsonl"],
        ["runs", "."],
    ],
)
def test_a_journal_that_is_not_there_is_not_made(arguments, folder, capsys):
    assert "there is no file" in refused(capsys, *arguments)
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["wardrobe.py"]


def test_a_file_that_is_no_journal_is_refused_in_words(folder, capsys):
    Path("text").write_text("hello\n")
    assert "text, line 1" in refused(capsys, "runs", "text")
    Path("torn.db").write_bytes(b"SQLite format 3\x00" + b"x" * 5000)
    refused(capsys, "runs", "torn.db")
    assert "no journal" in refused(capsys, "load", "text", "torn.db")


def test_it_is_run_as_a_module(journal):
    run = subprocess.run(
        [sys.executable, "-m", "bae.journal", "runs", "runs.db", "--status", "ended"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "abc123" in run.stdout
    run = subprocess.run(
        [sys.executable, "-m", "bae.journal", "show", "runs.db", "nobody"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == (
        "error: no run is called nobody, nor begins so [bae-command-refused]\n"
        "  try:   list them with: runs FILE\n"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("12h", 43200), ("30d", 2592000), ("2w", 1209600)],
)
def test_lengths_of_time_are_read(text, seconds):
    assert seconds_in(text) == seconds


def test_a_length_of_time_that_is_none_is_refused():
    for text in ("", "3", "d", "-1d", "1y", "1d2h", "∞d"):
        with pytest.raises(ValueError, match="no length of time"):
            seconds_in(text)


# --- the code of tests ---------------------------------------------------------------------------


def test_every_value_is_written_as_code_that_means_it_and_fits_the_line():
    values: list[Any] = [
        "short",
        'with "quotes"',
        "it's",
        "both ' and \"",
        "lines\nand\ttabs\\",
        "long " * 40,
        "x" * 300,
        "\u2028\u00e9\x00" * 60,
        ["a" * 30, "b" * 30, "c" * 30],
        {"key": {"deeper": ["x" * 40, "y" * 40]}, "other": None},
        {1: "one", "two": (2,), "three": ()},
        {"b", "a"},
        frozenset({1, 2}),
        set(),
        [[[]], {}, True, 1.5, -3],
        {"text": "word " * 60},
        ["word " * 30],
    ]
    for value in values:
        code = f"    assert x == {literal(value, 16, 4)}"
        assert eval(literal(value, 16, 4)) == value
        assert max(map(len, code.splitlines())) <= 88, code
        compile(dedent(code), "x", "exec")


def test_names_of_graphs_are_read():
    assert GraphName.read("a.b:c.d") == ("a.b", "c.d")
    for text in ("", "a", "a:", ":b", "a b:c", "a:b()", "a..b:c", "1:2"):
        with pytest.raises(ValueError, match=r"package\.module:graph"):
            GraphName.read(text)


def test_what_is_exported_is_one_object_a_line(journal, capsys):
    said(capsys, "export", "runs.db", "all.jsonl")
    for line in Path("all.jsonl").read_text("utf-8").splitlines():
        assert isinstance(json.loads(line), dict)


async def test_the_functions_are_used_without_a_command_line(tmp_path):
    from bae.journal import commands

    memory = MemoryJournal()
    await memory.export(tmp_path / "none.jsonl")
    assert await commands.runs(str(tmp_path / "none.jsonl")) == "no runs"


# --- gates and deployments -----------------------------------------------------------------------


def test_a_gate_is_answered_and_the_run_left_to_whoever_goes_on(journal, capsys):
    asked = ("answer", "runs.db", "ask", "sure")
    text = refused(capsys, *asked, "perhaps", "--graph", "wardrobe:asking")
    assert "bae-gate-invalid" in text
    assert "ask456: sure is answered" in said(capsys, *asked, "true", "--graph", "wardrobe:asking")
    assert "(answered)" in said(capsys, "show", "runs.db", "ask456")
    assert "bae-gate-answered" in refused(capsys, *asked, "true", "--graph", "wardrobe:asking")

    async def go_on() -> list[Any]:
        import wardrobe  # pyright: ignore[reportMissingImports]

        async with SQLiteJournal("runs.db") as runs:
            return await wardrobe.asking.recover(journal=runs)

    (done,) = asyncio.run(go_on())
    assert done.result.result.sure is True


def test_a_deployment_that_breaks_runs_is_told_and_has_an_exit_code(journal, capsys):
    assert "every unfinished run" in said(capsys, "check", "runs.db", "--graph", "wardrobe:asking")
    text = (journal / "wardrobe.py").read_text()
    changed = text.replace("    question: str\n", "    question: str\n    urgent: bool\n")
    (journal / "changed.py").write_text(changed)
    try:
        assert main(["check", "runs.db", "--graph", "changed:asking"]) == 1
    finally:
        sys.modules.pop("changed", None)
    out, err = capsys.readouterr()
    assert "ask456 (Ask, waiting since" in out
    assert "1 run of Ask cannot go on" in out
    assert err == ""
    assert "no module" in refused(capsys, "check", "runs.db", "--graph", "nothing:graph")
    assert refused(capsys, "check", "runs.db", "--graph", "nonsense")


def test_a_run_that_waits_elsewhere_is_cancelled_where_it_is_loaded(journal, capsys):
    said(capsys, "export", "runs.db", "out.jsonl", "ask456")
    said(capsys, "load", "one.db", "out.jsonl")
    assert "cancelled" in said(capsys, "runs", "one.db")
    said(capsys, "load", "two.db", "out.jsonl", "--unfinished", "keep")
    assert "waiting" in said(capsys, "runs", "two.db")
    assert said(capsys, "runs", "two.db", "--status", "interrupted") == "no runs\n"
