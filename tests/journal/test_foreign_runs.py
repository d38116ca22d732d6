"""Runs from files and journals of others: their names are checked at every entry like the names of
new runs, and their shape must have its claimed hash."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bae import Graph, JournalError
from bae.journal import Journal, MemoryJournal, SQLiteJournal, StoredRun, check
from bae.journal.export import RecordedRuns, write_run
from bae.journal.shape import shape_of
from end_node import EndNode
from journal_parts import expect_refusal


class Start(EndNode):
    text: str


class Other(EndNode):
    text: str
    more: int = 0


GRAPH = Graph(start=Start)
BAD = ["", " ", "last", "a\nb", "a\x1b[31m", "\u202ea", "a\x00", '"""\n', "half \ud800"]


async def make_changed_run(**changed: Any) -> StoredRun:
    """A run with changed data."""
    run = await honest("good")
    shape = changed.pop("text", run.shape)
    return replace(run, info=replace(run.info, **changed), shape=shape)


async def honest(run_id: str, graph: Graph[Any, Any] = GRAPH) -> StoredRun:
    journal = MemoryJournal()
    await graph.arun(Start(text="a"), journal=journal, run_id=run_id)
    return await journal.read(run_id)


def as_file(run: StoredRun) -> io.BytesIO:
    return io.BytesIO(b"".join(write_run(run)))


async def record_run(journal: Journal, run: StoredRun) -> None:
    RecordedRuns([run])


async def read(journal: Journal, run: StoredRun) -> None:
    Path("runs.jsonl").write_bytes(as_file(run).getvalue())  # noqa: ASYNC240
    RecordedRuns.of("runs.jsonl")


FOREIGN: dict[str, Callable[[Journal, StoredRun], Awaitable[Any]]] = {
    "load": lambda journal, run: journal.load(as_file(run)),
    "put": lambda journal, run: journal.put(run),
    "RecordedRuns": record_run,
    "RecordedRuns.of": read,
}
OWN: dict[str, Callable[[Journal, str], Awaitable[Any]]] = {
    "arun": lambda journal, name: GRAPH.arun(Start(text="a"), journal=journal, run_id=name),
    "fork": lambda journal, name: GRAPH.fork("good", at=0, journal=journal, new_id=name),
}


@pytest.mark.parametrize("way", FOREIGN)
async def test_a_foreign_run_with_an_untypable_name_is_refused_everywhere(
    way, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    async with SQLiteJournal("runs.db") as journal:
        for what, name in (("run_id", "a\nb"), ("graph", "\u202ea"), ("parent", "last")):
            with expect_refusal("bae-run-name"):
                await FOREIGN[way](journal, await make_changed_run(**{what: name}))
        assert await journal.runs() == []


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("way", OWN)
async def test_a_new_run_with_an_untypable_name_is_refused(way, name):
    if not name and way == "arun":
        return  # that is none
    journal = MemoryJournal()
    await OWN["arun"](journal, "good")
    with expect_refusal("bae-run-name"):
        await OWN[way](journal, name)


async def test_a_graph_with_an_untypable_name_is_refused_a_journal():
    graph = Graph(start=Start, name="a\nb")
    with pytest.raises(JournalError, match=r"graph of a run cannot be called 'a\\nb'"):
        await graph.arun(Start(text="a"), journal=MemoryJournal())
    assert (await graph.arun(Start(text="a"))).trace


@pytest.mark.parametrize("way", FOREIGN)
@pytest.mark.parametrize(
    "forged",
    [
        json.dumps({**json.loads(shape_of(GRAPH).json), "calls": [{"by": "f", "inputs": {}}]}),
        shape_of(Graph(start=Other)).json,
        "[" * 5000,
    ],
)
async def test_a_foreign_shape_that_does_not_match_its_hash_is_refused(
    way, forged, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    async with SQLiteJournal("runs.db") as journal:
        with pytest.raises(JournalError, match="does not match its hash"):
            await FOREIGN[way](journal, await make_changed_run(text=forged))
        # And the honest run after it has the shape of its own classes.
        await GRAPH.arun(Start(text="a"), journal=journal, run_id="mine")
        assert (await journal.read("mine")).shape == shape_of(GRAPH).json


@pytest.mark.parametrize("way", FOREIGN)
async def test_a_valid_foreign_run_is_stored_with_its_shape(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with SQLiteJournal("runs.db") as journal:
        await FOREIGN[way](journal, await make_changed_run())
        await FOREIGN[way](journal, await honest("größe 7", Graph(start=Start, name="Neu")))
        assert await check(GRAPH, journal) == []
