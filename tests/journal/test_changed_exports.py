"""An export that was changed in one place is refused, with the file and the line, and the journal
stays as it was; or it is loaded, and the run can be shown, explained, replayed and exported."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bae import BaeError, JournalError
from bae.cli import main
from bae.journal import MemoryJournal, SQLiteJournal
from bae.journal.gates import open_gates
from bae.journal.report import report_run, timeline
from bae.journal.stored_runs import FORMAT
from format_runs import (
    COMPLAINTS,
    FORMATS,
    LETTERS,
    LOGINS,
    ORDERS,
    QUESTIONS,
    TOKEN,
    calling_lm,
    lm,
)
from journal_parts import execute, expect_refusal

pytestmark = pytest.mark.once

TABLES = ["runs", "lines", "shapes", "answers"]
REFUSALS = ("bae-journal-damaged", "bae-journal-version", "bae-run-name")
OTHER_VALUES: list[Any] = [None, True, -1, 0, 7, 10**30, -(10**30), 1.5, 1e308, "", "x", [], {}]
PLACES = {
    "Order": ["Order.text", "Parcel.stock", "Parcel.labels", "Parcel.lengths", "Shipment.approved"],
    "Login": ["Login.place"],
    "Letter": ["Stamped.place"],
    "Question": ["Reply.text", "Reply.calls", "Checked.calls"],
    "Complaint": ["Settled.text", "Settled.calls"],
}
GRAPHS: dict[str, Any] = {
    "Order": ORDERS,
    "Login": LOGINS,
    "Letter": LETTERS,
    "Question": QUESTIONS,
    "Complaint": COMPLAINTS,
}


def export_runs() -> dict[str, list[Any]]:
    """The header and the lines of each run in today's format."""
    runs: dict[str, list[Any]] = {}
    for text in (FORMATS / str(FORMAT) / "export.jsonl").read_text().splitlines():
        row = json.loads(text)
        if row.get("bae") == "file":  # test_stored_files.py damages these
            continue
        if "bae" in row:
            runs[row["run_id"]] = []
            of_run = runs[row["run_id"]]
        of_run.append(row)
    return {run_id: rows for run_id, rows in runs.items() if "files" not in rows[0]}


RUNS = export_runs()
GIVEN = {"Login.token": TOKEN}


def places_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        if isinstance(item, dict | list):
            yield from places_in(item, (*at, key))


def value_changes(rows: list[Any]) -> Iterator[tuple[str, Callable[[list[Any]], Any]]]:
    """Every key dropped, and every value as another."""
    for number, row in enumerate(rows):
        for at in places_in(row):
            if at[0] == "shape" and len(at) > 3:
                continue  # it has a hash

            def parent(changed: list[Any], number=number, at=at) -> Any:
                found = changed[number]
                for key in at[:-1]:
                    found = found[key]
                return found

            yield f"{number}: {at} dropped", lambda r, p=parent, k=at[-1]: p(r).pop(k)
            for value in OTHER_VALUES:
                change = lambda r, p=parent, k=at[-1], v=value: p(r).__setitem__(k, v)  # noqa: E731
                yield f"{number}: {at} = {value!r}", change


def line_changes(rows: list[Any]) -> Iterator[tuple[str, Callable[[list[Any]], Any]]]:
    """Lines that are dropped, there twice, swapped, or of another kind or version; numbered as they
    were, and numbered again."""

    def numbered(changed: list[Any]) -> None:
        changed[0]["lines"] = len(changed) - 1
        for n, row in enumerate(changed[1:]):
            row["n"] = n

    def swap(changed: list[Any], at: int) -> None:
        changed[at - 1 : at + 1] = [changed[at], changed[at - 1]]

    kinds = {row["kind"] for row in rows[1:]}
    for number in range(len(rows)):
        changes: dict[str, Callable[[list[Any]], Any]] = {
            "dropped": lambda r, n=number: r.pop(n),
            "twice": lambda r, n=number: r.insert(n, copy.deepcopy(r[n])),
            "swapped": lambda r, n=number: swap(r, n or 1),
        }
        for kind in {*kinds, "TextArrived", "Whatever"}:
            changes[f"a {kind}"] = lambda r, n=number, k=kind: r[n].update(kind=k)
        for name, change in changes.items():
            yield f"{number}: {name}", change
            if number and name in ("dropped", "twice", "swapped"):
                again = lambda r, c=change: (c(r), numbered(r))  # noqa: E731
                yield f"{number}: {name} and numbered", again


def rows_of(path: Path) -> list[Any]:
    return [execute(path, f"select * from {table} order by 1, 2") for table in TABLES]


class Attack:
    """Loads changed exports in the place of a good run, and notes each outcome that is neither a
    refusal nor a run that can be used."""

    def __init__(self, path: Path, thorough: bool) -> None:
        self.path = path
        self.thorough = thorough
        self.wrong: list[str] = []
        self.refused = self.loaded = 0

    async def load(self, journal: SQLiteJournal, name: str, run_id: str, rows: list[Any]) -> None:
        text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        before = rows_of(self.path)
        file = io.BytesIO(text)
        file.name = "changed.jsonl"
        try:
            loaded = await journal.load(file, existing="replace", unfinished="keep")
        except JournalError as error:
            self.refused += 1
            if error.code not in REFUSALS or "changed.jsonl, line " not in error.message:
                self.wrong.append(f"{name}: {error}")
            if rows_of(self.path) != before:
                self.wrong.append(f"{name}: was refused, and changed the journal")
            return
        except Exception as error:
            self.wrong.append(f"{name}: {type(error).__name__}: {error}")
            return
        self.loaded += 1
        for loaded_id in loaded:
            try:
                await self.use(journal, loaded_id)
            except Exception as error:
                self.wrong.append(f"{name}: loaded, then {type(error).__name__}: {error!s:.300}")
        await journal.delete([loaded_id for loaded_id in loaded if loaded_id != run_id])

    async def use(self, journal: SQLiteJournal, run_id: str) -> None:
        stored = await journal.read(run_id)
        report_run(stored)
        timeline(stored)
        open_gates(stored)
        for place in PLACES[stored.info.graph]:
            try:
                await journal.why(run_id, place)
            except JournalError as error:
                if error.code not in ("bae-why-unknown", "bae-why-pending"):
                    raise
        file = io.BytesIO()
        assert await journal.export(file, [run_id]) == 1
        file.seek(0)
        again = MemoryJournal()
        assert await again.load(file, unfinished="keep") == [run_id]
        if not self.thorough:
            return
        graph = GRAPHS[stored.info.graph]
        given = GIVEN if graph is LOGINS else None
        model = calling_lm if graph is QUESTIONS else lm
        show = ["runs", "show", run_id, "--full", "--journal", str(self.path)]
        assert await asyncio.to_thread(main, show) == 0
        for work in (graph.replay, graph.resume):
            more = {} if work == graph.replay else {"lm": model()}
            with suppress(BaeError):  # values are read by the classes, which may refuse them
                await work(run_id, journal=again, given=given, **more)


async def attack(path: Path, cases: Any, *, thorough: bool) -> Attack:
    good = b"".join(f"{json.dumps(row)}\n".encode() for rows in RUNS.values() for row in rows)
    made = Attack(path, thorough)
    async with SQLiteJournal(path, durability="normal") as journal:
        await journal.load(io.BytesIO(good), unfinished="keep")
        for run_id, name, change in cases:
            changed = copy.deepcopy(RUNS[run_id])
            change(changed)
            loaded = made.loaded
            await made.load(journal, f"{run_id}, {name}", run_id, changed)
            if made.loaded > loaded:
                text = "".join(f"{json.dumps(row)}\n" for row in RUNS[run_id])
                await journal.load(io.StringIO(text), existing="replace", unfinished="keep")
    return made


def all_cases() -> list[tuple[str, str, Callable[[list[Any]], Any]]]:
    return [
        (run_id, name, change)
        for run_id, rows in RUNS.items()
        if run_id != "finished"  # its fork shares its lines, so that nothing replaces it
        for changes in (value_changes, line_changes)
        for name, change in changes(rows)
    ]


@pytest.mark.parametrize(
    "many", [120, pytest.param(4000, marks=pytest.mark.slow)], ids=["few", "many"]
)
async def test_a_changed_export_is_either_refused_or_usable(many, tmp_path):
    cases = random.Random(many).sample(all_cases(), many)
    made = await attack(tmp_path / "runs.db", cases, thorough=many > 1000)
    assert not made.wrong, f"{len(made.wrong)} of {many}:\n" + "\n".join(made.wrong[:40])
    assert made.refused > many / 4
    assert made.loaded > many / 20


def write_changed_export(changes: dict[str, Callable[[list[Any]], Any]]) -> bytes:
    """An export of all runs, some of them changed."""
    runs = copy.deepcopy(RUNS)
    for run_id, change in changes.items():
        change(runs[run_id])
    return b"".join(f"{json.dumps(row)}\n".encode() for rows in runs.values() for row in rows)


LAST = "interrupted"
BAD = write_changed_export({LAST: lambda rows: rows[-1]["data"].pop("asker")})


class Pipe(io.BytesIO):
    """A file that can be read once, as a pipe."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: Any) -> int:
        raise io.UnsupportedOperation("seek")


@pytest.mark.parametrize("opened", [io.BytesIO, Pipe, lambda data: io.StringIO(data.decode())])
@pytest.mark.parametrize("existing", ["refuse", "keep", "replace"])
async def test_an_export_with_an_invalid_last_line_stores_nothing(opened, existing):
    async with MemoryJournal() as journal:
        with expect_refusal("bae-journal-damaged") as raised:
            await journal.load(opened(BAD), existing=existing)
        last = sum(map(len, RUNS.values()))
        assert f"the file, line {last}: " in raised.value.message
        assert "asker: Field required" in raised.value.message
        assert raised.value.run_id == LAST
        assert await journal.runs() == []
        loaded = await journal.load(opened(write_changed_export({})), existing=existing)
        assert loaded == [*RUNS]


def without_version(rows: list[Any]) -> None:
    for row in rows:
        del row["version"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without_version, "bae-journal-version"),
        (lambda rows: rows[0].update(version=FORMAT + 1), "bae-journal-version"),
        (lambda rows: rows[0].update(version=0), "bae-journal-version"),
        (lambda rows: rows[0].update(version="1"), "bae-journal-version"),
        (lambda rows: rows[3].update(version=FORMAT + 1), "bae-journal-version"),
        (lambda rows: rows[0].pop("bae"), "bae-journal-damaged"),
        (lambda rows: rows[1]["data"].pop("max_iters"), "bae-journal-damaged"),
    ],
)
async def test_an_export_in_an_unknown_format_is_refused_with_the_readable_versions(change, code):
    async with MemoryJournal() as journal:
        with expect_refusal(code) as raised:
            await journal.load(io.BytesIO(write_changed_export({LAST: change})))
        assert f"this bae reads versions up to {FORMAT}" in str(raised.value)
        assert await journal.runs() == []
