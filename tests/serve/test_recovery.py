"""Runs that can continue are resumed by a server, also after the journal was in the way."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bae.journal import SQLiteJournal
from serving import held, serving


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
