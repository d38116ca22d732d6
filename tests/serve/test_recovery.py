"""Runs that can continue are resumed by a server, also after the journal was in the way."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bae import JournalError
from bae.journal import MemoryJournal, SQLiteJournal
from serving import Slow, held, serving, slow


async def test_a_run_is_recovered_when_its_journal_is_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("bae.serve.owner.RECOVER", 0.05)
    file = tmp_path / "runs.db"
    async with SQLiteJournal(file) as journal, serving(journal) as served:
        await served.post("/graphs/slow/runs", {"run_id": "one", "start": {"name": "recovered"}})
    held["recovered"].set()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        async with (
            SQLiteJournal(file, busy_timeout=0.05) as journal,
            asyncio.timeout(30),
        ):
            other.execute("begin immediate")
            async with serving(journal) as served:
                while "is locked" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                other.execute("rollback")
                while (await served.get("/runs/one"))["status"] != "ended":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


class Noting(MemoryJournal):
    """Notes that a run could not be claimed."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = asyncio.Event()

    async def claim(self, run_id: str, **more: Any) -> Any:
        try:
            return await super().claim(run_id, **more)
        except JournalError:
            self.refused.set()
            raise


async def test_queued_turns_of_a_thread_run_in_sequence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bae.serve.owner.RECOVER", 0.02)
    journal = Noting()
    for name in ("first", "second"):
        held[name] = asyncio.Event()
        await slow.submit(Slow(name=name), journal=journal, run_id=f"{name}-turn", thread="ana")
    async with serving(journal) as served, asyncio.timeout(30):
        await journal.refused.wait()  # the second turn, while the first is in progress
        held["first"].set()
        held["second"].set()
        while (await served.get("/runs/second-turn"))["status"] != "ended":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_fork_stored_without_starting_waits_until_it_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("bae.serve.owner.RECOVER", 0.02)
    journal = MemoryJournal()
    async with serving(journal) as served, asyncio.timeout(30):
        await served.start(run_id="old")
        await served.post("/runs/old/forks", {"at": 0, "run_id": "fork", "go_on": False})
        await slow.submit(Slow(name="later"), journal=journal, run_id="later")
        held["later"] = asyncio.Event()
        held["later"].set()
        while (await served.get("/runs/later"))["status"] != "ended":  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # until runs that can continue were looked for
        assert (await served.get("/runs/fork"))["status"] == "interrupted"
        await served.post("/runs/fork/resume")
        while (await served.get("/runs/fork"))["status"] != "ended":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
