"""Runs as JSON lines: an exported run is loaded unchanged, between all stores; a damaged file is
refused with the line, and nothing of it is stored."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bae.exceptions import JournalError
from bae.journal import Journal, Line, MemoryJournal, ParkedGate, RunInfo, SQLiteJournal, StoredRun
from bae.journal.export import RecordedRuns, read_runs
from bae.journal.stored_runs import FORMAT
from journal_parts import expect_refusal, new_run

pytestmark = pytest.mark.once


@asynccontextmanager
async def open_journal(kind: str, folder: Path, name: str = "runs.db") -> AsyncIterator[Journal]:
    async with MemoryJournal() if kind == "memory" else SQLiteJournal(folder / name) as journal:
        yield journal


def lines_of(run_id: str, status: Any = "ended", graph: str = "G") -> list[Line]:
    """Four lines: the run reaches a gate, and ends, waits, or is in progress."""
    node = {"type": "A", "fields": {"text": "é \u2028"}}
    gate = {"gate": "1:A.x", "node": "A", "field": "x", "question": "why?"}
    waits_for = ["1:A.x"] if status == "waiting" else []
    last: tuple[str, Any] = ("RunEnded", {"outcome": status, "gates": waits_for})
    if status == "running":
        last = ("FillStarted", {"target": "A"})
    written: list[tuple[str, int, Any]] = [
        ("RunStarted", 0, {"run_id": run_id, "graph": graph, "max_iters": 10, "node": node}),
        ("StepStarted", 0, {}),
        ("GateOpened", 1, gate),
        (last[0], 1, last[1]),
    ]
    return [
        Line(n, kind, 1000.5 + n, "", step, json.dumps(data, ensure_ascii=False))
        for n, (kind, step, data) in enumerate(written)
    ]


async def put(journal: Journal, run_id: str, status: Any = "ended", graph: str = "G") -> None:
    lines = lines_of(run_id, status, graph)
    shape = '{"format":1,"graphs":[]}'
    claim = await journal.create(new_run(run_id, lines[:1], graph=graph, shape=shape))
    assert claim is not None
    await journal.append(claim, lines[1:3])
    gates = [ParkedGate("1:A.x", "A.x", "why?", 2000.0)] if status == "waiting" else []
    error = "ValueError: no" if status == "failed" else ""
    await journal.release(claim, status, lines[3:], gates, error)


def same(one: StoredRun, other: StoredRun) -> None:
    """That two stores hold the same, whenever they were written."""
    forgotten = {"started": 0.0, "updated": 0.0}
    assert replace(one.info, **forgotten) == replace(other.info, **forgotten)
    assert json.loads(one.shape) == json.loads(other.shape)
    assert {g: json.loads(a) for g, a in one.answers.items()} == {
        g: json.loads(a) for g, a in other.answers.items()
    }
    assert [line._replace(data="") for line in one.lines] == [
        line._replace(data="") for line in other.lines
    ]
    assert [json.loads(line.data) for line in one.lines] == [
        json.loads(line.data) for line in other.lines
    ]


# --- out and in ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [("memory", "sqlite"), ("sqlite", "memory")])
async def test_a_run_exported_from_one_store_is_loaded_into_another_unchanged(
    first, second, tmp_path
):
    path = tmp_path / "runs.jsonl"
    statuses = ["ended", "waiting", "failed", "cancelled", "running"]
    async with open_journal(first, tmp_path) as journal:
        for status in statuses:
            await put(journal, f"run-{status}", status)
        await journal.answer("run-waiting", "1:A.x", '{"said":"because"}')
        assert await journal.export(path) == 5
        stored = {s: await journal.read(f"run-{s}") for s in statuses}
    async with open_journal(second, tmp_path, "other.db") as journal:
        loaded = await journal.load(path, unfinished="keep")
        assert sorted(loaded) == sorted(f"run-{s}" for s in statuses)
        for status in statuses:
            same(await journal.read(f"run-{status}"), stored[status])
        # And it can be claimed, so that it can be gone on with.
        claim = await journal.claim("run-running")
        await journal.release(claim, "cancelled", [])


async def test_a_run_in_progress_elsewhere_is_loaded_as_cancelled(tmp_path):
    path = tmp_path / "runs.jsonl"
    async with MemoryJournal() as journal:
        for status in ("running", "waiting", "failed"):
            await put(journal, status, status)
        await journal.answer("waiting", "1:A.x", "1")
        assert await journal.export(path) == 3
    async with SQLiteJournal(tmp_path / "other.db") as journal:
        await journal.load(path)
        infos = {info.run_id: info async for info in journal.every_run()}
        assert (infos["failed"].status, infos["failed"].error) == ("failed", "ValueError: no")
        for run_id, how in (("running", "in progress"), ("waiting", "waiting")):
            assert (infos[run_id].status, infos[run_id].waiting) == ("cancelled", ())
            assert f"it was {how} where it was exported" in infos[run_id].error
        assert (await journal.read("waiting")).answers == {"1:A.x": "1"}
        assert await journal.runs(status="interrupted") == []
        await journal.claim("running")  # whoever means to can go on with it
        with pytest.raises(ValueError, match='give "cancel" or "keep"'):
            await journal.load(path, unfinished="whatever")


async def test_exported_runs_are_selected_by_id_status_or_graph(tmp_path):
    async with MemoryJournal() as journal:
        await put(journal, "a", "ended", "G")
        await put(journal, "b", "failed", "G")
        await put(journal, "c", "ended", "H")
        for wanted, options in [
            (["b"], {"run_ids": ["b", "b"]}),
            (["c", "a"], {"run_ids": ["c", "a"]}),
            ([], {"run_ids": []}),
            (["a", "c"], {"status": "ended"}),
            (["a", "b"], {"graph": "G"}),
            (["a"], {"graph": "G", "status": "ended"}),
        ]:
            file = io.BytesIO()
            assert await journal.export(file, **options) == len(wanted)
            file.seek(0)
            found = [run.info.run_id for run in read_runs(file, "x")]
            assert sorted(found) == sorted(wanted)
        with expect_refusal("bae-run-unknown"):
            await journal.export(io.BytesIO(), ["nobody"])
        with pytest.raises(TypeError, match="as a list"):
            await journal.export(io.BytesIO(), "abc")


async def test_loaded_runs_keep_their_order(tmp_path):
    async with MemoryJournal() as journal:
        for run_id in "cab":
            await put(journal, run_id)
        await journal.export(tmp_path / "runs.jsonl")
        before = await journal.runs()
    async with SQLiteJournal(tmp_path / "other.db") as journal:
        await journal.load(tmp_path / "runs.jsonl")
        assert [info.run_id for info in await journal.runs()] == list("bac")
        assert [info.started for info in await journal.runs()] == [i.started for i in before]
        assert [info.updated for info in await journal.runs()] == [i.updated for i in before]


async def test_a_forked_run_is_exported_completely(tmp_path):
    async with MemoryJournal() as journal:
        await put(journal, "parent")
        data = '{"parent":"parent","node":{"type":"A","fields":{}},"changed":[]}'
        await journal.fork("parent", "child", 2, [Line(2, "RunForked", 5.0, "", 1, data)])
        await journal.export(tmp_path / "child.jsonl", ["child"])
    async with SQLiteJournal(tmp_path / "other.db") as journal:
        assert await journal.load(tmp_path / "child.jsonl") == ["child"]
        child = await journal.read("child")
        assert [line.kind for line in child.lines] == ["RunStarted", "StepStarted", "RunForked"]


async def test_exports_are_written_to_and_read_from_text_and_binary_files(tmp_path):
    journal = MemoryJournal()
    await put(journal, "a")
    texts: list[str] = []
    for file in (io.BytesIO(), io.StringIO()):
        await journal.export(file)
        written = file.getvalue()
        texts.append(written.decode() if isinstance(written, bytes) else written)
        file.seek(0)
        assert await MemoryJournal().load(file) == ["a"]
    assert texts[0] == texts[1]
    assert all(json.loads(line) for line in texts[0].split("\n")[:-1])


# --- what is refused -----------------------------------------------------------------------------


async def export_lines(*run_ids: str) -> list[str]:
    journal = MemoryJournal()
    for run_id in run_ids:
        await put(journal, run_id)
    file = io.StringIO()
    await journal.export(file, run_ids)
    return [f"{line}\n" for line in file.getvalue().split("\n")[:-1]]


def other(line: str, **changed: Any) -> str:
    return json.dumps({**json.loads(line), **changed}) + "\n"


def newer(line: str) -> str:
    return other(line, version=json.loads(line)["version"] + 1)


def without_data(line: str) -> str:
    return json.dumps({k: v for k, v in json.loads(line).items() if k != "data"}) + "\n"


@pytest.mark.parametrize(
    ("number", "change", "code", "said"),
    [
        (7, lambda line: "{garbage\n", "bae-journal-damaged", "Invalid JSON"),
        (10, lambda line: line[:-9], "bae-journal-damaged", "EOF while parsing"),
        (10, lambda line: "", "bae-journal-damaged", "ends after 3 of"),
        (8, lambda line: "", "bae-journal-damaged", "and 1 is next"),
        (6, lambda line: "", "bae-journal-damaged", "not the header of a run"),
        (6, newer, "bae-journal-version", f"version {FORMAT + 1}"),
        (8, newer, "bae-journal-version", f"has version {FORMAT + 1}"),
        (8, without_data, "bae-journal-damaged", "data: Field required"),
        (6, lambda line: other(line, run_id="first"), "bae-run-exists", "a second time"),
    ],
)
async def test_a_damaged_export_is_refused_with_its_file_and_line(
    number: int, change: Callable[[str], str], code: str, said: str, tmp_path: Path
):
    path, lines = tmp_path / "broken.jsonl", await export_lines("first", "second")
    lines[number - 1] = change(lines[number - 1])
    path.write_text("".join(lines), encoding="utf-8")
    async with MemoryJournal() as journal:
        with expect_refusal(code) as raised:
            await journal.load(path)
        last = number if lines[-1] else number - 1
        assert f"broken.jsonl, line {last}: " in raised.value.message
        assert said in raised.value.message
        assert await journal.runs() == []


async def test_a_file_that_is_not_an_export_is_refused(tmp_path):
    for content in (b"hello\n", b'{"a": 1}\n', b"\xff\xfe\x00", b"[]", b"null"):
        path = tmp_path / "other"
        path.write_bytes(content)
        with expect_refusal("bae-journal-damaged") as raised:
            await MemoryJournal().load(path)
        assert "line 1" in raised.value.message
    path.write_bytes(b"")
    assert await MemoryJournal().load(path) == []


async def test_an_unusable_export_path_raises_a_journal_error(tmp_path):
    journal = MemoryJournal()
    await put(journal, "a")
    for use in (
        journal.load(tmp_path / "nothing.jsonl"),
        journal.load(tmp_path),
        journal.export(tmp_path / "no" / "folder.jsonl"),
        journal.export(tmp_path),
    ):
        with expect_refusal("bae-journal-failed") as raised:
            await use
        assert str(tmp_path) in raised.value.message
    assert list(tmp_path.iterdir()) == []


# --- what is there already -----------------------------------------------------------------------


async def test_an_existing_run_is_not_overwritten(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(await export_lines("a", "b")), encoding="utf-8")
    async with MemoryJournal() as journal:
        await put(journal, "b", "failed")
        with expect_refusal("bae-run-exists") as raised:
            await journal.load(path)
        assert raised.value.__notes__ == ["loaded before that: a"]
        assert (await journal.read("b")).info.status == "failed"
        assert (await journal.read("a")).info.status == "ended"
        assert await journal.load(path, existing="keep") == []
        assert (await journal.read("b")).info.status == "failed"
        assert await journal.load(path, existing="replace") == ["a", "b"]
        assert (await journal.read("b")).info.status == "ended"
        with pytest.raises(ValueError, match="existing"):
            await journal.load(path, existing="whatever")


async def test_a_run_that_is_in_progress_or_shares_its_lines_is_not_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(await export_lines("a")), encoding="utf-8")
    async with MemoryJournal() as journal:
        claim = await journal.create(new_run("a", lines_of("a"), graph="G", shape="{}"))
        assert claim is not None
        with expect_refusal("bae-run-owned"):
            await journal.load(path, existing="replace")
        await journal.release(claim, "failed", [])
        data = '{"parent":"a","node":{"type":"A","fields":{}},"changed":[]}'
        await journal.fork("a", "child", 2, [Line(2, "RunForked", 5.0, "", 1, data)])
        with expect_refusal("bae-run-exists"):
            await journal.load(path, existing="replace")
        assert (await journal.read("a")).info.status == "failed"


# --- files ---------------------------------------------------------------------------------------


async def test_an_export_replaces_a_file_only_when_it_is_complete(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text("as it was")
    journal = MemoryJournal()
    await put(journal, "a")
    with pytest.raises(JournalError):
        await journal.export(path, ["a", "nobody"])
    assert path.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [path]
    await journal.export(path, ["a"])
    assert path.read_text().startswith('{"bae":"run"')
    assert list(tmp_path.iterdir()) == [path]


class Slow(MemoryJournal):
    """A journal whose second run is never read to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = asyncio.Event()

    async def read(self, run_id: str) -> StoredRun:
        if run_id == "b":
            self.reading.set()
            await asyncio.Event().wait()
        return await super().read(run_id)


async def test_a_cancelled_export_leaves_no_file(tmp_path):
    journal = Slow()
    await put(journal, "a")
    await put(journal, "b")
    task = asyncio.ensure_future(journal.export(tmp_path / "runs.jsonl", ["a", "b"]))
    await journal.reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == []


# --- recorded runs -------------------------------------------------------------------------------


async def test_recorded_runs_are_read_only(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(await export_lines("a", "b", "c")), encoding="utf-8")
    recorded = RecordedRuns.of(path)
    assert (await recorded.read("b")).info.run_id == "b"
    runs = await recorded.runs()
    assert sorted(info.run_id for info in runs) == ["a", "b", "c"]
    assert await recorded.runs(limit=2) == runs[:2]
    assert await recorded.runs(before=runs[0].run_id) == runs[1:]
    assert await recorded.runs(status="failed") == []
    assert await recorded.runs(graph="H") == []
    with expect_refusal("bae-run-unknown"):
        await recorded.read("nobody")
    for use in (
        recorded.create(new_run("x", [])),
        recorded.claim("a"),
        recorded.answer("a", "g", "1"),
        recorded.delete(["a"]),
        recorded.prune(older_than=-1e11),
        recorded.replace([]),
        recorded.fork("a", "b", 1, []),
        recorded.put(await recorded.read("a")),
    ):
        with expect_refusal("bae-journal-readonly"):
            await use
    with pytest.raises(JournalError, match="could not be read"):
        RecordedRuns.of(tmp_path / "nothing")


async def test_a_damaged_line_of_a_store_is_not_exported():
    good = lines_of("a")
    info = RunInfo("a", "G", "ended", 1.0, 2.0, "hash")
    stored = StoredRun(info, "{}", (good[0], good[1]._replace(data="{tor")), {})
    with expect_refusal("bae-journal-damaged") as raised:
        await RecordedRuns([stored]).export(io.BytesIO())
    assert "line 1 of the run a" in raised.value.message
