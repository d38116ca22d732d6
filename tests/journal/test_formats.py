"""Every version of the stored format stays readable: `tests/journal/formats` has a journal and an
export of each, written by the code of then. Files of older versions are upgraded when they are
first written."""

from __future__ import annotations

import io
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from bae.cli import main
from bae.exceptions import ReplayError, describe
from bae.journal import Journal, MemoryJournal, SQLiteJournal
from bae.journal.report import report_run
from bae.journal.stored_runs import FORMAT
from bae.testing import ScriptedLM
from format_runs import (
    COMPLAINTS,
    ENDED,
    FORMATS,
    LETTERS,
    LOGIN,
    LOGINS,
    ORDERS,
    PHOTO,
    PHOTOS,
    QUESTIONS,
    SINCE,
    TOKEN,
    UNFINISHED,
    UNFINISHED_SINCE,
    Framed,
    calling_lm,
    fields,
    lm,
)
from journal_parts import execute, expect_refusal, program, run_program

pytestmark = pytest.mark.once

VERSIONS = sorted(int(folder.name) for folder in FORMATS.iterdir() if folder.name.isdecimal())
RUNS = len([*ENDED, *SINCE, *UNFINISHED, *UNFINISHED_SINCE])
"""How many runs today's files have."""
TO_WRITE = "run `python tests/format_runs.py`, which writes the files of the new version"


def copy_journal(version: int, folder: Path) -> Path:
    return Path(shutil.copy(FORMATS / str(version) / "journal.sqlite", folder / "runs.db"))


def version_in(path: Path) -> int:
    """The version of the stored format, by a journal that is not opened."""
    return execute(path, "pragma user_version")[0][0] - 1


def graph_of(run_id: str) -> tuple[Any, dict[str, Any]]:
    return (LOGINS, {"given": {"Login.token": TOKEN}}) if run_id == "secret" else (ORDERS, {})


async def use_all(journal: Journal, version: int) -> None:
    """Show every run, replay those that ended, finish the others, export them all."""
    later = [run_id for run_id, since in SINCE.items() if since <= version]
    begun = [run_id for run_id, since in UNFINISHED_SINCE.items() if since <= version]
    every = [*ENDED, *later, *UNFINISHED, *begun]
    assert {info.run_id async for info in journal.every_run()} == {*every}
    for run_id in every:
        assert report_run(await journal.read(run_id)).graphs[0].nodes
    assert (await journal.why("finished", "Parcel.stock")).by == "count_stock"
    for run_id in ENDED:
        graph, given = graph_of(run_id)
        assert (await graph.replay(run_id, journal=journal, **given)).trace
    file = io.BytesIO()
    assert await journal.export(file) == len(every)
    if "outside" in later:  # its answer holds a secret, which no journal stores
        assert (await journal.why("outside", "Stamped.place")).value == "Bern"
        with pytest.raises(ReplayError):
            await LETTERS.replay("outside", journal=journal)
    if "tools" in later:
        assert (await QUESTIONS.replay("tools", journal=journal)).result.is_right
        assert (await journal.why("tools", "Reply.text")).value == "a lamp in Bern"
        assert (await journal.why("tools", "Reply.calls")).source == "tools"
    if "photo" in later:
        seen = await PHOTOS.replay("photo", journal=journal)
        assert seen.trace == [PHOTO, Framed(image=PHOTO.image)]
        assert (await journal.read("photo")).files == {PHOTO.image.hash: PHOTO.image.data}
    if "calling" in begun:  # in the second round
        done = await QUESTIONS.resume("calling", calling_lm(2), journal=journal)
        calls = done.trace[1].calls
        names = ["search", "search", "count", "search", "count", "sell"]
        assert [call.name for call in calls] == names
        assert "it is unknown whether this call ran" in calls[3].error
    if "asked" in begun:  # about four calls, and three are answered
        assert [approval.tool for approval in await journal.approvals("asked")] == ["pay_back"]
        settled = ScriptedLM({"Settled": [{"text": "so it is"}]})
        done = await COMPLAINTS.answer("asked", "c4", 2, settled, journal=journal)
        told = [call.error or call.result for call in done.result.calls]
        assert told == ["paid A", "a person refused this call: it was dry", "paid D", 2]
    for run_id in UNFINISHED:
        model = lm()
        if run_id in ("parked", "answered"):
            model = None
        if run_id == "parked":
            done = await ORDERS.answer(run_id, "Shipment.approved", True, model, journal=journal)
        else:
            done = await ORDERS.resume(run_id, model, journal=journal, answer=approve)
        assert type(done.result).__name__ == "Sent"
    await journal.export(io.BytesIO())


async def approve(gate: object) -> bool:
    return True


@pytest.mark.parametrize("version", VERSIONS)
async def test_journals_of_every_version_are_shown_resumed_replayed_and_exported(version, tmp_path):
    path = copy_journal(version, tmp_path)
    async with SQLiteJournal(path) as journal:
        await use_all(journal, version)
        await ORDERS.arun(
            ORDERS.start(text="more"), lm(), journal=journal, run_id="new", answer=approve
        )
        assert (await journal.read("new")).lines[0].version == FORMAT
    assert version_in(path) == FORMAT


@pytest.mark.parametrize("version", VERSIONS)
async def test_exports_of_every_version_are_loaded_and_used(version):
    async with MemoryJournal() as journal:
        await journal.load(FORMATS / str(version) / "export.jsonl", unfinished="keep")
        await use_all(journal, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_commands_show_journals_and_exports_of_every_version(version, tmp_path, capsys):
    since = {**SINCE, **UNFINISHED_SINCE}
    later = [run_id for run_id in since if since[run_id] <= version]
    for path in (copy_journal(version, tmp_path), FORMATS / str(version) / "export.jsonl"):
        for run_id in [*ENDED, *UNFINISHED, *later]:
            assert main(["runs", "show", run_id, "--full", "--journal", str(path)]) == 0
        assert main(["runs", "why", "finished", "Parcel.labels", "--journal", str(path)]) == 0
        assert "spell" in capsys.readouterr().out


async def test_a_change_of_the_stored_fields_needs_a_new_format_version(tmp_path):
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        await LOGINS.arun(LOGIN, journal=journal)
    listed = FORMATS / str(FORMAT) / "fields.txt"
    assert list(range(1, FORMAT + 1)) == VERSIONS, TO_WRITE
    assert fields(tmp_path / "runs.db") == listed.read_text(), (
        f"raise FORMAT in bae/journal/store.py, then {TO_WRITE}"
    )


# --- upgrades ------------------------------------------------------------------------------------

NEXT = f"""
import asyncio, os, signal, sys
from bae.journal.sqlite import schema

schema.FORMAT = {FORMAT + 1}
schema.UPGRADES[{FORMAT}] = '''
    create table more (a integer);
    insert into more select run from runs;
    alter table runs add column note text not null default '';
    update runs set note = id
'''
from format_runs import ORDERS, START, lm
from bae.journal import SQLiteJournal

async def write():
    async with SQLiteJournal(sys.argv[1]) as journal:
        await ORDERS.arun(START, lm(), journal=journal, run_id=sys.argv[2])

async def read():
    async with SQLiteJournal(sys.argv[1]) as journal:
        print(len(await journal.runs()), len((await journal.read("finished")).lines))
"""
"""A program of the next version, whose tables differ."""


async def check_unchanged(path: Path) -> None:
    """That a file is of today's version, and all of it is there."""
    assert version_in(path) == FORMAT
    assert execute(path, "select name from sqlite_master where name = 'more'") == []
    async with SQLiteJournal(path) as journal:
        await use_all(journal, FORMAT)


async def test_a_newer_bae_upgrades_an_older_journal_only_when_it_writes(tmp_path):
    path = copy_journal(FORMAT, tmp_path)
    before = path.read_bytes()
    assert run_program(f"{NEXT}\nasyncio.run(read())", path) == f"{RUNS} 42"
    assert path.read_bytes() == before
    os.chmod(path, 0o444)
    os.chmod(tmp_path, 0o555)
    assert run_program(f"{NEXT}\nasyncio.run(read())", path) == f"{RUNS} 42"
    os.chmod(tmp_path, 0o755)
    os.chmod(path, 0o644)
    assert path.read_bytes() == before
    run_program(f"{NEXT}\nasyncio.run(write())", path, "new")
    assert version_in(path) == FORMAT + 1
    assert execute(path, "select count(*), sum(note = id) from runs") == [(RUNS + 1, RUNS)]
    # This bae leaves it alone, and says why.
    before = path.read_bytes()
    async with SQLiteJournal(path) as journal:
        for use in (journal.runs(), journal.delete(["new"]), journal.claim("parked")):
            with expect_refusal("bae-journal-version") as raised:
                await use
            assert f"version {FORMAT + 1} of the stored format" in raised.value.message
            assert f"reads versions up to {FORMAT}: a newer bae wrote it" in raised.value.message
    assert path.read_bytes() == before


DIES = """
def die(statement):
    if statement.strip().startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

connect = schema._connect

def connect_and_die(*given):
    connection = connect(*given)
    connection.set_trace_callback(die)
    return connection

schema._connect = connect_and_die
asyncio.run(write())
"""


@pytest.mark.parametrize(
    "statement", ["insert into more", "update runs set note", "pragma user_version =", "commit"]
)
async def test_a_kill_during_an_upgrade_leaves_the_older_journal(statement, tmp_path):
    path = copy_journal(FORMAT, tmp_path)
    with program(NEXT + DIES, path, "new", statement) as started:
        started.communicate(timeout=60)
    assert started.returncode == -signal.SIGKILL
    await check_unchanged(path)


async def test_concurrent_processes_upgrade_a_journal_once(tmp_path):
    path = copy_journal(FORMAT, tmp_path)
    text = NEXT + "\nprint('ready', flush=True)\nsys.stdin.readline()\nasyncio.run(write())"
    started = [program(text, path, f"new-{n}") for n in range(4)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        out, complaints = process.communicate(timeout=60)
        assert (process.returncode, out, complaints) == (0, "", "")
    assert version_in(path) == FORMAT + 1
    assert execute(path, "select count(*) from more") == [(RUNS,)]
    assert execute(path, "select count(*) from runs") == [(RUNS + 4,)]
    assert execute(path, "pragma integrity_check") == [("ok",)]


async def test_a_journal_before_the_first_version_is_refused(tmp_path):
    path = copy_journal(1, tmp_path)
    execute(path, "pragma user_version = 1")
    async with SQLiteJournal(path) as journal:
        with expect_refusal("bae-journal-version") as raised:
            await journal.runs()
    assert "an older bae wrote it" in describe(raised.value)
