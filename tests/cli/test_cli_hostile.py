"""What other people and models have written cannot act on the terminal, the shell or the output of
`bae`: it is text, wherever it is printed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae.cli import main
from bae.journal import SQLiteJournal

EVIL = "x \x1b[31m\x07\x9b\x0b\x0c\x00\u202e\u2028;$(touch it)`id`' \" \r\nFORGED\rFORGED\nFORGED"
APP = f"""
from __future__ import annotations

from typing import Annotated

from bae import BaeError, Dep, Gate, Graph, Node
from bae.lm import Answer, Backend, Usage

EVIL = {EVIL!r}


class Model(Backend):
    model = EVIL
    free = True

    async def answer(self, prompt):
        text = Answer('{{"text": "fine"}}', Usage(calls=1, input_tokens=1, models=(EVIL,)))
        return text


async def look_up() -> str:
    return EVIL


class Begin(Node):
    text: str
    found: Annotated[str, Dep(look_up)]

    async def __call__(self) -> Told: ...


class Told(Node):
    text: str
    found: Annotated[str, Dep(look_up)]

    async def __call__(self) -> Failed | Asked | Done:
        if "fail" in self.text:
            raise ValueError(EVIL)
        return Done(text=EVIL, parts={{EVIL: [EVIL]}})


class Failed(Node):
    async def __call__(self) -> None: ...


class Asked(Node):
    async def __call__(self) -> None: ...


class Done(Node):
    text: str
    parts: dict[str, list[str]]

    async def __call__(self) -> None: ...


class Fails(Node):
    text: str

    async def __call__(self) -> None:
        raise ValueError(EVIL)


class Coded(Node):
    async def __call__(self) -> None:
        raise BaeError(EVIL, code=EVIL, path=EVIL, fix=EVIL)


class Asks(Node):
    text: str
    sure: Annotated[str, Gate(EVIL)]

    async def __call__(self) -> None: ...


graph = Graph(start=Begin, end=(Failed, Asked, Done))
failing = Graph(start=Fails)
coded = Graph(start=Coded)
asking = Graph(start=Asks)
lm = Model()
"""


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Path("hostile.py").write_text(APP)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("BAE_LM", "none")
    monkeypatch.syspath_prepend(str(folder))
    return folder


async def write_runs(file: str) -> None:
    import hostile  # pyright: ignore[reportMissingImports]

    async with SQLiteJournal(file) as journal:
        given = {"journal": journal, "lm": hostile.lm}
        await hostile.graph.arun(hostile.Begin(text=EVIL), run_id="told", **given)
        with pytest.raises(Exception, match="Fails"):
            await hostile.failing.arun(hostile.Fails(text=EVIL), run_id="failed", **given)
        await hostile.asking.arun(hostile.Asks(text=EVIL), run_id="asked", **given)


COMMANDS = [
    ["prompts", "hostile:graph", "-i", json.dumps({"text": EVIL})],
    ["run", "hostile:graph", "-i", json.dumps({"text": EVIL}), "--lm", "hostile:lm"],
    ["run", "hostile:failing", "-i", json.dumps({"text": EVIL})],
    ["run", "hostile:asking", "-i", json.dumps({"text": EVIL})],
    ["--debug", "run", "hostile:failing", "-i", json.dumps({"text": EVIL})],
    ["run", "hostile:coded"],
    ["runs", "list", "-j", "runs.db"],
    *(["runs", "show", run, "-j", "runs.db"] for run in ("told", "failed", "asked")),
    *(["runs", "show", run, "-j", "runs.db", "--timeline"] for run in ("told", "failed")),
    ["runs", "why", "told", "Done.text", "-j", "runs.db"],
    ["runs", "why", "told", "Told.found", "-j", "runs.db"],
    ["runs", "replay", "told", "-m", "hostile:graph", "-j", "runs.db"],
    ["runs", "replay", "failed", "-m", "hostile:failing", "-j", "runs.db"],
    ["runs", "resume", "failed", "-m", "hostile:failing", "-j", "runs.db"],
    ["runs", "show", EVIL, "-j", "runs.db"],
    ["runs", "why", "told", EVIL, "-j", "runs.db"],
    ["run", EVIL],
    ["run", "hostile:graph", "-i", EVIL],
    ["run", "hostile:graph", "--set", f"text={EVIL}", "--lm", EVIL],
    ["runs", "answer", "asked", EVIL, EVIL, "-m", "hostile:asking", "-j", "runs.db"],
    ["runs", "load", EVIL, "-j", "runs.db"],
    ["check", f"hostile:{EVIL}"],
    ["graph", "show", EVIL],
    ["eval", EVIL],
    [EVIL],
    ["--debug", EVIL],
    [f"--{EVIL}"],
    ["run", "hostile:graph", f"--{EVIL}"],
    ["run", "hostile:graph", EVIL, EVIL],
    ["run", "hostile:graph", "--max-iters", EVIL],
    ["run", "hostile:graph", "--budget", f"calls={EVIL}"],
    ["run", "hostile:graph", "--optimized", EVIL],
    ["runs", "prune", "--older-than", EVIL],
    ["runs", "list", "--status", EVIL],
    ["runs", EVIL],
    ["lm", "try", EVIL],
    ["graph", "export", "hostile:graph", "-o", EVIL.replace("\0", "") + ".svg"],
    ["graph", "mermaid", "hostile:graph"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: " ".join(each)[:40].split("\n")[0])
def test_text_of_a_run_cannot_control_the_terminal_or_forge_a_line_of_output(
    command: list[str], project: Path, capfd: pytest.CaptureFixture[str]
):
    asyncio.run(write_runs("runs.db"))
    capfd.readouterr()
    main(command)
    printed = capfd.readouterr()
    for text in printed:
        assert not [
            character for character in text if not character.isprintable() and character != "\n"
        ]
        assert not [line for line in text.split("\n") if line.startswith("FORGED")]


NOISY = f"""
import atexit, hostile, logging, threading, warnings

EVIL = {EVIL!r}
logging.getLogger("bae.optimizer").warning("found %s", EVIL)
logging.getLogger("library").error(EVIL)
try:
    raise ValueError(EVIL)
except ValueError:
    logging.getLogger(EVIL).exception(EVIL)
warnings.warn(EVIL)


class Dropped:
    def __del__(self):
        raise ValueError(EVIL)


def fail():
    raise ValueError(EVIL)


def end():
    logging.getLogger("end").error(EVIL)
    warnings.warn(EVIL)
    fail()


Dropped()
thread = threading.Thread(target=fail, name=EVIL)
thread.start()
thread.join()
atexit.register(end)
logging.getLogger("wrong").error("%d", EVIL)
logging.error(EVIL)  # this sets up a handler
graph = hostile.graph
"""


@pytest.mark.parametrize(
    "command",
    [
        ["check", "noisy:graph"],
        ["run", "hostile:graph", "-i", "x", "--lm", "python:hostile:lm", "--optimized", "learned"],
        ["run", "hostile:graph", "-i", "x", "--lm", "python:hostile:lm", "--optimized", "none"],
        [
            "eval",
            "hostile:graph",
            "--data",
            "c.jsonl",
            "--lm",
            "python:hostile:lm",
            "--optimized",
            "learned",
        ],
        ["optimize", "hostile:graph", "--lm", "python:hostile:lm", "-o", "learned"],
    ],
    ids=lambda each: " ".join(each),
)
def test_notes_and_warnings_never_control_the_terminal(command: list[str], project: Path):
    if command[0] == "optimize":
        pytest.importorskip("dspy")
    name = EVIL.replace("/", "").replace("\0", "")
    Path("noisy.py").write_text(NOISY)
    Path("c.jsonl").write_text('{"input": "x"}\n')
    for folder in ("learned", "none"):
        Path(folder).mkdir()
        Path(folder, f"{name}.json").write_text("{}")
    asyncio.run(write_runs("runs.db"))
    env = {**os.environ, "PYTHONPATH": str(project), "BAE_JOURNAL": "runs.db"}
    done = subprocess.run(
        [sys.executable, "-m", "bae", *command], capture_output=True, env=env, check=False
    )
    text = (done.stdout + done.stderr).decode()
    assert r"\x1b[31m" in text
    assert not [
        character for character in text if not character.isprintable() and character != "\n"
    ]
    assert not [line for line in text.split("\n") if line.startswith("FORGED")]


def test_shell_completions_are_quoted_or_left_out(project: Path, capfd: pytest.CaptureFixture[str]):
    from bae.cli.options import open_gates, run_ids

    Path(".bae").mkdir()
    asyncio.run(write_runs(".bae/runs.db"))
    with closing(sqlite3.connect(".bae/runs.db")) as file, file:  # whoever gave it may have
        copied = "graph, status, started, shape, owner, epoch"
        for evil in ("$(id)", "`id`", "a;id", "-rf", "a b", "a\nb", "*", "a\x1b"):
            file.execute(
                f"insert into runs (id, {copied}) select ?, {copied} from runs where id = 'failed'",
                (evil,),
            )
    of_run = SimpleNamespace(params={"run": "asked"})
    offered = [name for name, _ in [*run_ids(None, ""), *open_gates(of_run, "")]]
    assert {"last", "told", "Asks.sure"} <= set(offered)
    assert not [name for name in offered if re.search(r"[^\w.:-]", name) or name.startswith("-")]


BASE = """
from __future__ import annotations
import asyncio
from typing import Annotated
import pytest
from bae import BaeError, Dep, Graph, Map, Node

class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")
    __repr__ = __str__

class Bare(BaeError):
    def __init__(self, text):
        pass

class Panic(BaseException):
    pass

RAISED = {
    "panic": Panic("out of order"),
    "generator": GeneratorExit("out of order"),
    "group": BaseExceptionGroup("out of order", [Panic("inside")]),
    "outcome": pytest.fail.Exception("out of order"),
    "silent": Silent("out of order"),
    "bare": Bare("out of order"),
    "half": ValueError("\\ud800 out of order"),
    "long": ValueError("out of order " * 1_000_000),
}[%r]
WHERE = %r

if WHERE == "import":
    raise RAISED

async def broken() -> str:
    raise RAISED

class Start(Node):
    text: str
    async def __call__(self) -> Body | Source:
        return Body() if WHERE == "body" else Source()

class Body(Node):
    async def __call__(self) -> None:
        raise RAISED

class Source(Node):
    text: Annotated[str, Dep(broken)]
    async def __call__(self) -> None: ...

graph = Graph(start=Start)
"""


@pytest.mark.parametrize("where", ["import", "body", "dependency"])
@pytest.mark.parametrize(
    "raised", ["panic", "generator", "group", "outcome", "silent", "bare", "half", "long"]
)
def test_any_exception_of_user_code_is_reported_as_an_error(
    where: str, raised: str, project: Path, capfd: pytest.CaptureFixture[str]
):
    Path("broken.py").write_text(BASE % (raised, where))
    try:
        assert main(["run", "broken.py", "-i", '{"text": "a"}', "--json", "-q"]) == 1
    finally:
        sys.modules.pop("broken", None)
    printed = capfd.readouterr()
    told = json.loads(printed.out)
    expected = "it has no text" if raised == "silent" else "out of order"
    assert expected in json.dumps(told["error"])
    assert len(printed.out + printed.err) < 50_000
    assert "Traceback" not in printed.err
    if where != "import":
        assert main(["runs", "list", "--json"]) == 0
        (run,) = json.loads(capfd.readouterr().out)
        assert run["status"] == "failed"
