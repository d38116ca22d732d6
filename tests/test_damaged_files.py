"""Whatever is in a file that bae reads, the outcome is a result or a `BaeError`: journals, exported
runs, caches, logs of calls, artifacts, cases, scripts and pyproject.toml, all changed at random,
from a seed, by bytes and by values."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing, suppress
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from bae import BaeError, Dep, Gate, Graph, JournalError, Map, Node, Recall
from bae.evals import load_cases
from bae.journal import Journal, MemoryJournal, SQLiteJournal, check
from bae.journal.export import RecordedRuns
from bae.journal.gates import open_gates
from bae.journal.report import report_run
from bae.lm import Cached, LearnedPrompt, PromptExample, SQLiteCache
from bae.optimizer import Improvement
from bae.optimizer.artifacts import Artifact, load_artifacts, save_artifacts
from bae.optimizer.calls import CallLog
from bae.optimizer.node_schemas import schema_of
from bae.testing import ScriptedLM, replaying
from end_node import EndNode
from journal_parts import execute
from toy_backend import ToyBackend

pytestmark = pytest.mark.once


@pytest.fixture(params=[4, pytest.param(48, marks=pytest.mark.slow)], ids=["few", "many"])
def many(request: pytest.FixtureRequest) -> int:
    """How many cases of each kind there are."""
    return request.param


class Weather(BaseModel):
    degrees: float


async def get_weather() -> Weather:
    return Weather(degrees=7.5)


class Word(Node):
    text: str

    async def __call__(self) -> Length:
        return Length(count=len(self.text))


class Length(EndNode):
    count: int


class Begin(Node):
    words: list[str]
    lengths: Annotated[list[Length], Map(Graph(start=Word, end=Length), over="words")]

    async def __call__(self) -> Day: ...


class Day(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    mood: str

    async def __call__(self) -> Outfit | Rest: ...


class Rest(EndNode): ...


class Outfit(EndNode):
    mood: Annotated[str, Recall(Day)]
    top: str
    sure: Annotated[bool, Gate("Are you sure?")] = True


GRAPH = Graph(start=Begin, end=(Outfit, Rest))
RUNS = ["done", "parked", "failed", "forked"]
PLACES = ["Day.mood", "Day.weather", "Outfit.mood", "Outfit.sure", "Begin.lengths", "Outfit.top"]


def lm() -> ScriptedLM:
    return ScriptedLM([{"mood": "calm"}, "Outfit", {"top": "a shirt"}])


async def write_runs(journal: Journal) -> None:
    """Runs of all kinds: ended, parked at a gate, failed and forked."""
    start = Begin.model_construct(words=["a", "bc"])

    async def yes(gate: object) -> bool:
        return True

    await GRAPH.arun(start, lm(), journal=journal, run_id="done", answer=yes)
    await GRAPH.arun(start, lm(), journal=journal, run_id="parked")
    with pytest.raises(BaeError):
        await GRAPH.arun(start, ScriptedLM([]), journal=journal, run_id="failed")
    await GRAPH.fork("done", at=1, journal=journal, new_id="forked", mood="glad")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a journal and the same runs as a file."""
    folder = tmp_path_factory.mktemp("whole")

    async def write() -> None:
        async with SQLiteJournal(folder / "runs.db") as journal:
            await write_runs(journal)
            await journal.export(folder / "runs.jsonl")

    asyncio.run(write())
    return folder


# --- damage --------------------------------------------------------------------------------------

DEEP = "[" * 3000 + "]" * 3000
VALUES = [
    *("null", "true", "-1", "0", "3", "1e308", "1e999", "NaN", "-Infinity", "9" * 5000, "1" * 30),
    *('""', '"x"', r'"\u0000"', r'"\ud800"', '"0:Begin.lengths[0]"', '"Outfit"', '"9:No.no(x)"'),
    *("[]", "{}", "[[]]", "[null]", '{"type":"Outfit"}', '{"":1}', DEEP, f'{{"a":{DEEP}}}'),
]
"""What stands in for a value of JSON, as text."""


def places_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(child, (*at, key))


def damage_json(text: str, rng: random.Random) -> str:
    """Change, remove or rename one value."""
    value = {"": json.loads(text)}
    *around, last = ("", *rng.choice(list(places_in(value[""]))))
    parent: Any = value
    for key in around:
        parent = parent[key]
    way = rng.random()
    if way < 0.7 or last == "":
        parent[last] = "@@"
        return json.dumps(value[""]).replace('"@@"', rng.choice(VALUES), 1)
    found = parent[last]
    del parent[last]
    if way > 0.85 and isinstance(parent, dict):
        parent[rng.choice(["x", "", "type", "\x00"])] = found
    return json.dumps(value[""])


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change, remove or repeat some bytes, or cut off the end."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, many = rng.randrange(len(damaged) + 1), rng.randint(1, 40)
        match rng.randrange(5):
            case 0:
                damaged[at : at + many] = rng.randbytes(many)
            case 1:
                del damaged[at : at + many]
            case 2:
                damaged[at:at] = damaged[at : at + many]
            case 3:
                damaged[at : at + 1] = bytes([rng.choice([0, 0xFF, 0x80, 0xED, 10, 34, 92])])
            case _:
                del damaged[at : at + (many if rng.random() < 0.7 else len(damaged))]
    return bytes(damaged)


def damage_lines(data: bytes, rng: random.Random) -> bytes:
    """Change a value in one line of JSON, or remove or repeat the line."""
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    match rng.randrange(10):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, rng.choice(lines))
        case _:
            lines[at] = damage_json(lines[at], rng)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def damage_rows(file: Path, rng: random.Random) -> str:
    """One cell of an SQLite file holds something else."""
    with closing(sqlite3.connect(file)) as db:
        tables = [r[0] for r in db.execute("select name from sqlite_master where type = 'table'")]
        table = rng.choice([t for t in tables if db.execute(f"select 1 from {t}").fetchone()])
        columns = [row[1] for row in db.execute(f"pragma table_info({table})")]
        column = rng.choice(columns)
        key = columns[0]
        rows = db.execute(f"select {key}, {column} from {table}").fetchall()
        of, old = rng.choice(rows)
        new: Any = rng.choice([None, -1, 5, 2**62, 1e300, 9e999, "", "x", b"\xff", b"\xed\xa0\x80"])
        if isinstance(old, str) and old[:1] in ("{", "[") and rng.random() < 0.8:
            new = damage_json(old, rng).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        value = "cast(? as text)" if isinstance(new, bytes) and rng.random() < 0.6 else "?"
        with suppress(sqlite3.IntegrityError):
            db.execute(f"update {table} set {column} = {value} where {key} is ?", (new, of))
            db.commit()
    return f"{table}.{column} of {of!r} is {new!r:.80}"


class Outcomes:
    """Notes exceptions other than `BaeError`, for all cases together."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.errors = self.results = 0

    async def of(self, case: object, ask: Callable[..., Any], *given: Any, **named: Any) -> Any:
        try:
            async with asyncio.timeout(20):
                found = ask(*given, **named)
                found = await found if hasattr(found, "__await__") else found
        except BaseException as error:
            if not isinstance(error, BaeError) or not str(error):
                what = f"{ask.__name__}{given!r:.60}: {type(error).__name__}: {error!s:.150}"
                self.wrong.append(f"case {case}, {what}")
            self.errors += 1
        else:
            self.results += 1
            return found


@pytest.fixture
def outcomes() -> Iterator[Outcomes]:
    outcomes = Outcomes()
    yield outcomes
    assert not outcomes.wrong, "\n".join(outcomes.wrong)
    assert outcomes.errors, "nothing was damaged"


async def use_runs(journal: Journal, case: object, outcomes: Outcomes) -> None:
    """Ask a journal all that it can be asked."""

    async def listed() -> None:
        for info in await journal.runs():
            info.standing()
            info.lasted()

    async def asked(ask: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return await outcomes.of(case, ask, *given, **named)

    await asked(listed)
    await asked(check, GRAPH, journal)
    for run_id in RUNS:
        stored = await asked(journal.read, run_id)
        if stored is None:
            continue
        await asked(report_run, stored)
        await asked(open_gates, stored)
        for place in PLACES:
            await asked(journal.why, run_id, place)
        await asked(GRAPH.replay, run_id, journal=journal)
        await asked(GRAPH.fork, run_id, at=1, journal=journal)
        await asked(GRAPH.answer, run_id, "Outfit.sure", True, journal=journal)
        await asked(GRAPH.resume, run_id, lm(), journal=journal)
        await asked(journal.redact, run_id, "Day.mood")
        await asked(MemoryJournal().put, stored)
    await asked(journal.prune, older_than=10**9)


# --- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [damage_lines, damage_bytes])
async def test_damaged_exports_cause_no_unexpected_error(many, damage, runs, tmp_path, outcomes):
    whole = (runs / "runs.jsonl").read_bytes()
    for case in range(many):
        file = tmp_path / "runs.jsonl"
        file.write_bytes(damage(whole, random.Random(case)))
        recorded = await outcomes.of(case, RecordedRuns.of, file)
        if recorded is not None:
            await use_runs(recorded, case, outcomes)
        journal = MemoryJournal()
        if await outcomes.of(case, journal.load, file) is not None:
            await use_runs(journal, case, outcomes)


async def test_damaged_rows_of_a_journal_cause_no_unexpected_error(many, runs, tmp_path, outcomes):
    for case in range(many // 2):
        file = tmp_path / f"{case}.db"
        file.write_bytes((runs / "runs.db").read_bytes())
        what = damage_rows(file, random.Random(case))
        async with SQLiteJournal(file, durability="normal") as journal:
            await use_runs(journal, f"{case} ({what})", outcomes)


async def test_damaged_bytes_of_a_journal_cause_no_unexpected_error(many, runs, tmp_path, outcomes):
    for case in range(many // 2):
        file = tmp_path / f"{case}.db"
        file.write_bytes(damage_bytes((runs / "runs.db").read_bytes(), random.Random(case)))
        async with SQLiteJournal(file, durability="normal") as journal:
            await use_runs(journal, case, outcomes)
        await outcomes.of(case, replay_file, file)


def replay_file(file: Path) -> None:
    with replaying(file) as recorded:
        assert recorded.runs is not None


def test_a_damaged_row_hides_no_other_run(runs, tmp_path):
    """Every column, not UTF-8 and of another type, while the errors are held."""

    async def look(column: str, value: str) -> None:
        file = tmp_path / f"{column} {value[:9]}.db"
        file.write_bytes((runs / "runs.db").read_bytes())
        async with (
            SQLiteJournal(file, durability="normal") as journal,
            SQLiteJournal(file) as other,
        ):
            await other.runs()
            with suppress(sqlite3.IntegrityError):
                execute(file, f"update runs set {column} = {value} where id = 'parked'")
            listed = {info.run_id: info for info in await other.runs()}
            assert {"done", "failed", "forked"} <= listed.keys()
            assert len(listed) == 4
            assert await other.export(tmp_path / "rest", ["done", "failed", "forked"]) == 3
            held = []
            for ask in (
                other.read("parked"),
                other.export(tmp_path / "all"),
                other.older(1e11, ()),
            ):
                try:
                    await ask
                except JournalError as error:
                    held.append(error)
            damaged = "damaged" in listed.get("parked", listed["done"]).error
            assert not damaged or {error.run_id for error in held} == {"parked"}
            await GRAPH.arun(Begin.model_construct(words=[]), lm(), journal=journal, run_id="new")
            assert (await other.read("new")).info.run_id == "new"
            ((is_busy, *_),) = execute(file, "pragma wal_checkpoint(truncate)")
            assert not is_busy, "an error holds what the tables were"

    columns = [row[1] for row in execute(runs / "runs.db", "pragma table_info(runs)")]
    values = cycle(["cast(x'ff' as text)", "'[[1]]'", "x'ff'", "9e999", "x'ff'"])
    for column in columns[1:]:
        for value in (next(values), next(values)):
            asyncio.run(look(column, value))


@pytest.mark.parametrize("value", ["cast(x'ff' as text)", "x'ff'", "'a' || char(10)", "''"])
@pytest.mark.parametrize("column", ["id", "graph", "shared"])
async def test_an_export_includes_damaged_runs_and_can_be_loaded(column, value, runs, tmp_path):
    file = tmp_path / "runs.db"
    file.write_bytes((runs / "runs.db").read_bytes())
    execute(file, f"update runs set {column} = {value} where id = 'parked'")
    async with SQLiteJournal(file) as journal:
        with pytest.raises(JournalError):
            await journal.export(tmp_path / "all.jsonl")
    assert not (tmp_path / "all.jsonl").exists()


# --- other files ---------------------------------------------------------------------------------


def damage_text(data: bytes, rng: random.Random) -> bytes:
    return damage_json(data.decode(), rng).encode("utf-8", "surrogatepass")


DAMAGES = [damage_text, damage_bytes]
KNOWN = {"weather": Weather(degrees=7.5)}


async def test_damaged_caches_and_call_logs_cause_no_unexpected_error(many, tmp_path, outcomes):
    backend = ToyBackend(lambda prompt: {"mood": "calm"})
    whole = tmp_path / "whole.db"
    with closing(CallLog(whole)) as log:
        await log.around(backend).fill(Day, KNOWN, "now")
    cached = tmp_path / "cached.db"
    async with aclosing(Cached(backend, SQLiteCache(cached))) as asked:
        await asked.fill(Day, KNOWN, "now")
    for case in range(many):
        file = tmp_path / f"{case}.db"
        for kind, source in (("calls", whole), ("cache", cached)):
            file.write_bytes(source.read_bytes())
            if case % 3:
                damage_rows(file, random.Random(case))
            else:
                file.write_bytes(damage_bytes(file.read_bytes(), random.Random(case)))
            if kind == "calls":
                with closing(CallLog(file)) as log:
                    await outcomes.of(case, log.open)
                    await outcomes.of(case, log.around(backend).fill, Day, KNOWN, "now")
            else:
                async with aclosing(Cached(backend, SQLiteCache(file))) as asked:
                    await outcomes.of(case, asked.fill, Day, KNOWN, "now")


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_artifacts_cause_no_unexpected_error(many, damage, tmp_path, outcomes):
    known = {"Begin": {"words": ["a"]}, "context": {"weather": {"degrees": 3.0}}}
    example = PromptExample(known=known, answer={"mood": "calm"})
    learned = LearnedPrompt(instruction="Look outside", examples=[example])
    (file,) = save_artifacts(
        {Day: Artifact(node="Day", schema=schema_of(Day), fill=learned)}, tmp_path
    )
    whole = file.read_bytes()
    for case in range(many):
        file.write_bytes(damage(whole, random.Random(case)))
        await outcomes.of(case, load_artifacts, GRAPH, tmp_path)


@pytest.mark.parametrize("what", ["bytes", "folder", "pipe"])
async def test_a_damaged_lock_of_an_optimization_causes_no_unexpected_error(many, what, tmp_path):
    pytest.importorskip("dspy")
    lock = tmp_path / ".calls" / "lock"
    lock.parent.mkdir()
    if what == "folder":
        lock.mkdir()
    elif what == "pipe":
        os.mkfifo(lock)
    backend = ToyBackend(lambda prompt: {"mood": "calm"})
    for case in range(many if what == "bytes" else 1):
        if what == "bytes":
            whole = b"SQLite format 3\x00" + bytes(5000)
            lock.write_bytes(damage_bytes(whole, random.Random(case)))
        with pytest.raises(BaeError, match="lock is damaged") as caught:
            await Improvement(GRAPH, MemoryJournal(), tmp_path, lm=backend).run()
        assert caught.value.code == "bae-optimizing-elsewhere"


CASE = {
    "input": {"words": ["a", "b"]},
    "name": "one",
    "expected": {"top": "a shirt"},
    "expected_type": "Outfit",
    "nodes": {"Day": {"mood": "calm"}},
    "metadata": {"from": "here"},
    "answers": {"Outfit.sure": True},
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_cases_cause_no_unexpected_error(many, damage, tmp_path, outcomes):
    file = tmp_path / "cases.jsonl"
    for case in range(many):
        file.write_bytes(damage(json.dumps(CASE).encode(), random.Random(case)))
        await outcomes.of(case, load_cases, file, GRAPH)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("ending", [".json", ".yaml"])
async def test_damaged_datasets_cause_no_unexpected_error(many, damage, ending, tmp_path, outcomes):
    pytest.importorskip("pydantic_evals")
    file = tmp_path / f"cases{ending}"
    case = {"name": "one", "inputs": {"words": ["a"]}, "expected_output": {"top": "a shirt"}}
    whole = json.dumps({"name": "n", "cases": [{**case, "metadata": {"a": 1}, "evaluators": []}]})
    for number in range(max(1, many // 8)):
        file.write_bytes(damage(whole.encode(), random.Random(number)))
        for own_metric in (True, False):
            await outcomes.of(number, load_cases, file, GRAPH, own_metric=own_metric)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_scripts_cause_no_unexpected_error(many, damage, tmp_path, outcomes):
    file = tmp_path / "script.json"
    in_order = [{"mood": "calm"}, "Outfit", {"top": "a shirt"}]
    by_name = {"fills": {"Day": [{"mood": "calm"}], "Outfit": in_order[2]}, "choices": ["Outfit"]}
    for case in range(many):
        whole = json.dumps(in_order if case % 2 else by_name).encode()
        file.write_bytes(damage(whole, random.Random(case)))
        script = await outcomes.of(case, ScriptedLM.from_file, file)
        if script is not None:
            await outcomes.of(case, GRAPH.arun, Begin.model_construct(words=[]), script)


PROJECT = """
[project]
name = "wardrobe"
[tool.bae]
graph = "wardrobe.py:graph"
[[tool.other]]
when = 2026-01-02T03:04:05Z
"""


@pytest.fixture
def unexpected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[BaseException]:
    """The errors that a command did not expect, in a folder of its own."""
    pytest.importorskip("typer")
    from bae.cli import app

    errors: list[BaseException] = []
    report_error = app._report_error

    def report_and_note(error: BaseException, debug: bool) -> int:
        if not isinstance(error, BaeError | app.UsageError | app.typer.Abort):
            errors.append(error)
        return report_error(error, debug)

    monkeypatch.setattr(app, "_report_error", report_and_note)
    monkeypatch.chdir(tmp_path)
    return errors


def test_a_damaged_pyproject_causes_no_unexpected_error(many, tmp_path, unexpected, capsys):
    from bae.cli import main

    hostile = ["[" * 3000, "x = " + "[" * 3000, "n = " + "9" * 5000, "d = 2026-99-99", "\x00"]
    for value in (
        '"a\\u0000.py"',
        '"a.py:b\\u0000"',
        '"\\ud800.py"',
        f'"{"a" * 5000}.py"',
        '"/"',
        "5",
    ):
        hostile.append(f"[tool.bae]\ngraph = {value}")
    texts = [text.encode("utf-8", "surrogatepass") for text in hostile]
    texts += [damage_bytes(PROJECT.encode(), random.Random(case)) for case in range(many)]
    for text in texts:
        (tmp_path / "pyproject.toml").write_bytes(text)
        main(["check"])
        main(["runs", "list"])
        assert not unexpected, text


START = {"text": "a", "many": [1, 2], "parts": {"a": {"b": [1.5, None]}}}
APP = """
from __future__ import annotations
from typing import Any
from bae import Graph, Node

class Start(Node):
    text: str = ""
    many: list[int] = []
    parts: dict[str, Any] = {}

    async def __call__(self) -> None: ...

graph = Graph(start=Start)
"""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_start_file_causes_no_unexpected_error(many, damage, unexpected, capsys):
    from bae.cli import main

    Path("app.py").write_text(APP)
    for case in range(many):
        Path("start.json").write_bytes(damage(json.dumps(START).encode(), random.Random(case)))
        main(["run", "app.py", "-i", "@start.json", "--no-ask", "-q"])
        assert not unexpected, case


def test_no_value_of_the_option_set_causes_an_unexpected_error(unexpected, capsys):
    from bae.cli import main

    Path("app.py").write_text(APP)
    fields = cycle([*START, *(f"{field}.a" for field in START)])
    for value in (*VALUES, "[" * 100_000, "\ud800", "\n", "\x1b"):
        for field in (next(fields), next(fields)):
            main(["run", "app.py", "--set", f"{field}={value}", "--no-ask", "-q"])
            assert not unexpected, (field, value[:80])


def test_commands_on_damaged_exports_cause_no_unexpected_error(
    many, runs, tmp_path, unexpected, capsys
):
    from bae.cli import main

    whole = (runs / "runs.jsonl").read_bytes()
    for case in range(many // 2):
        Path("runs.jsonl").write_bytes(damage_lines(whole, random.Random(case)))
        main(["runs", "list", "-j", "runs.jsonl"])
        for run_id in ("done", "parked"):
            main(["runs", "show", run_id, "-j", "runs.jsonl"])
            main(["runs", "show", run_id, "--json", "-j", "runs.jsonl"])
            main(["runs", "show", run_id, "--timeline", "-j", "runs.jsonl"])
        assert not unexpected, case


def test_commands_on_damaged_journals_cause_no_unexpected_error(
    many, runs, tmp_path, unexpected, capsys
):
    from bae.cli import main

    for case in range(many // 2):
        file = Path(f"{case}.db")
        file.write_bytes((runs / "runs.db").read_bytes())
        what = damage_rows(file, random.Random(case))
        for command in (
            ["list"],
            ["list", "--json"],
            ["show", "parked"],
            ["prune", "--older-than", "1d", "--yes"],
        ):
            main(["runs", *command, "-j", str(file)])
        assert not unexpected, what
