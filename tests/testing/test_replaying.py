"""`bae.testing.replaying`: a recorded run is a test. It is run again with the recorded answers and
without calls to the outside, the file is never changed, and a deviation is reported with a diff.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from bae import LM, BaeError, Dep, Gate, Graph, Map, Node, Recall
from bae.exceptions import JournalError, ReplayError
from bae.journal import MemoryJournal, SQLiteJournal
from bae.testing import replaying
from end_node import EndNode
from toy_backend import ToyBackend, choose

pytestmark = pytest.mark.once

CALLED: list[str] = []


async def get_weather() -> str:
    CALLED.append("weather")
    return "cold"


def rated(word: str) -> int:
    CALLED.append(word)
    return len(word)


class Morning(Node):
    message: str

    async def __call__(self) -> Day: ...


class Day(Node):
    weather: Annotated[str, Dep(get_weather)]
    words: list[str]
    ratings: Annotated[list[int], Map(rated, over="words")]

    async def __call__(self) -> Outfit | Rest: ...


class Rest(Node):
    async def __call__(self) -> None: ...


EXTRA = ["scarf"]


class Outfit(Node):
    message: Annotated[str, Recall(Morning)]
    top: str
    approved: Annotated[bool, Gate("Fine?")]

    async def __call__(self, lm: LM) -> Worn:
        shoes = await lm.make(self, Shoes)
        return Worn(items=[self.top, shoes.kind, *EXTRA])


class Shoes(EndNode):
    kind: str


class Worn(EndNode):
    items: list[str]


graph = Graph(start=Morning, end=(Worn, Rest))


def answers(prompt: Any) -> Any:
    properties = prompt.schema["properties"]
    if "words" in properties:
        return {"words": ["warm", "dry"]}
    if "kind" in properties:
        return {"kind": "boots"}
    if "top" in properties:
        return {"top": "a thick jumper"}
    return choose("Outfit")


async def yes(gate: Any) -> bool:
    return True


async def record(journal: Any, run_id: str) -> None:
    start = Morning(message="ugh")
    await graph.arun(start, ToyBackend(answers), journal=journal, run_id=run_id, answer=yes)


def in_a_database(folder: Path, *run_ids: str) -> Path:
    return asyncio.run(export_runs(SQLiteJournal(folder / "runs.db"), folder / "runs.db", run_ids))


def in_lines(folder: Path, *run_ids: str) -> Path:
    return asyncio.run(export_runs(MemoryJournal(), folder / "runs.jsonl", run_ids))


async def export_runs(journal: Any, path: Path, run_ids: tuple[str, ...]) -> Path:
    async with journal:
        for run_id in run_ids:
            await record(journal, run_id)
        if path.suffix == ".jsonl":
            await journal.export(path)
    return path


WRITERS = pytest.mark.parametrize("write", [in_lines, in_a_database])


def contents(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
    } | {"": str(sorted(os.stat(path).st_mtime_ns for path in folder.iterdir()))}


@WRITERS
def test_a_replay_runs_a_recorded_run_again_without_outside_calls_or_writes(write, tmp_path):
    path = write(tmp_path, "one")
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    before = contents(tmp_path)
    CALLED.clear()
    try:
        with replaying(path) as recorded:
            result = recorded.run(graph)
            again = recorded.run(graph, "one")
            assert contents(tmp_path) == before
    finally:
        tmp_path.chmod(0o755)
    assert result.result == Worn(items=["a thick jumper", "boots", "scarf"])
    assert [type(node).__name__ for node in result.trace] == ["Morning", "Day", "Outfit", "Worn"]
    assert again.trace == result.trace
    assert result.trace[1].ratings == [4, 3]
    assert result.trace[2].message == "ugh"
    assert CALLED == []
    assert contents(tmp_path) == before


@WRITERS
async def test_a_replay_works_in_async_tests_too(write, tmp_path):
    path = await asyncio.to_thread(write, tmp_path, "one")
    with replaying(path) as recorded:
        assert (await recorded.arun(graph)).result.items[0] == "a thick jumper"
        assert [info.run_id for info in recorded.runs] == ["one"]
    async with replaying(str(path)) as recorded:
        assert (await recorded.arun(graph, "one")).result.items[0] == "a thick jumper"
        with pytest.raises(BaeError) as raised:
            recorded.run(graph)
        assert raised.value.code == "bae-run-in-loop"


@WRITERS
def test_a_replayed_file_lists_its_runs_for_a_choice(write, tmp_path):
    path = write(tmp_path, "one", "two")
    other = Graph(start=Morning, end=(Worn, Rest), name="Other")
    with replaying(path) as recorded:
        assert {info.run_id for info in recorded.runs} == {"one", "two"}
        assert {info.graph for info in recorded.runs} == {"Morning"}
        assert recorded.run(graph, "two").result.items[0] == "a thick jumper"
        with pytest.raises(JournalError, match="has 2 runs of Morning") as raised:
            recorded.run(graph)
        assert "one" in str(raised.value)
        assert "two" in str(raised.value)
        with pytest.raises(JournalError, match="has no run of Other"):
            recorded.run(other)
        with pytest.raises(JournalError) as raised:
            recorded.run(graph, "three")
        assert raised.value.code == "bae-run-unknown"


def test_a_deviation_of_a_replay_is_reported_with_a_diff(tmp_path, monkeypatch):
    path = in_lines(tmp_path, "one")
    monkeypatch.setattr(f"{__name__}.EXTRA", ["hat"])
    with replaying(path) as recorded, pytest.raises(ReplayError) as raised:
        recorded.run(graph)
    assert raised.value.code == "bae-replay-diverged"
    assert re.search(r"^-\s+\"scarf\"", raised.value.diff, re.MULTILINE)
    assert re.search(r"^\+\s+\"hat\"", raised.value.diff, re.MULTILINE)


async def test_a_journal_can_be_replayed_while_it_is_written(tmp_path):
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal:
        await record(journal, "one")
        assert path.with_name("runs.db-wal").exists()
        with replaying(path) as recorded:
            assert (await recorded.arun(graph)).result.items[0] == "a thick jumper"
            await record(journal, "two")
            assert [info.run_id for info in recorded.runs] == ["two", "one"]


def test_a_replay_takes_secrets_and_unstorable_values_from_the_test(tmp_path):
    class Client:
        pass

    def connect() -> Client:
        raise AssertionError("called")

    class Login(Node):
        token: SecretStr
        client: Annotated[Client, Dep(connect)]

        model_config = {"arbitrary_types_allowed": True}

        async def __call__(self) -> In: ...

    class In(EndNode):
        name: str

    login = Graph(start=Login, end=In)

    async def write() -> None:
        journal = MemoryJournal()
        await login.arun(
            Login.model_construct(token=SecretStr("s3cret")),
            ToyBackend(lambda prompt: {"name": "ada"}),
            journal=journal,
            dep_cache={connect: Client()},
        )
        await journal.export(tmp_path / "login.jsonl")

    asyncio.run(write())
    assert "s3cret" not in (tmp_path / "login.jsonl").read_text()
    with replaying(tmp_path / "login.jsonl") as recorded:
        with pytest.raises(JournalError) as raised:
            recorded.run(login)
        assert raised.value.code == "bae-journal-secret"
        client = Client()
        result = recorded.run(
            login, given={"Login.token": SecretStr("s3cret")}, dep_cache={connect: client}
        )
        assert result.result == In(name="ada")
        assert result.trace[0].client is client


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "bae-journal-failed"),
        (b"hello", "bae-journal-damaged"),
        (b"SQLite format 3\x00 and then something else", "bae-journal-damaged"),
        ("create table t (x)", "bae-journal-foreign"),  # of another program
    ],
)
def test_an_unreplayable_file_is_refused_with_its_name_and_not_changed(content, code, tmp_path):
    path = tmp_path / "runs"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        with closing(sqlite3.connect(path)) as other:
            other.execute(content)
    before = contents(tmp_path)
    with pytest.raises(JournalError) as raised, replaying(path) as recorded:
        recorded.run(graph)
    assert raised.value.code == code
    assert str(path) in str(raised.value)
    with pytest.raises(JournalError):
        replaying(path).runs
    assert contents(tmp_path) == before
