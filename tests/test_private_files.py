"""Every file that bae creates to hold prompts, answers or runs can be read by its user alone, from
its first byte; one that exists keeps its permissions."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

from bae import Graph, Node
from bae.journal import SQLiteJournal
from bae.lm import Cached, SQLiteCache
from bae.optimizer.calls import CallLog
from bae.private_files import write_private
from toy_backend import ToyBackend

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there are no such permissions")

APP = """
from __future__ import annotations

from bae import Graph, Node


class Start(Node):
    text: str

    async def __call__(self) -> Said:
        return Said(word=self.text)


class Said(Node):
    word: str

    async def __call__(self) -> None: ...


graph = Graph(start=Start, end=Said)
"""


class Start(Node):
    text: str

    async def __call__(self) -> None: ...


@pytest.fixture(autouse=True)
def open_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder of a user who hides nothing."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    yield
    os.umask(before)


def modes(*besides: str) -> dict[str, int]:
    found = [path for path in Path().rglob("*") if path.is_file() and path.name not in besides]
    return {str(path): stat.S_IMODE(path.stat().st_mode) for path in found}


async def make_journal() -> None:
    async with SQLiteJournal("made.db") as journal:
        await Graph(start=Start).arun(Start(text="a"), journal=journal)
        assert len(modes()) == 3
        assert set(modes().values()) == {0o600}


async def make_export() -> None:
    async with SQLiteJournal("runs.db") as journal:
        await Graph(start=Start).arun(Start(text="a"), journal=journal)
        await journal.export("made.jsonl")


async def make_cache() -> None:
    async with aclosing(Cached(ToyBackend({"text": "b"}), SQLiteCache("made.db"))) as lm:
        await lm.fill(Start, {}, "")
        assert len(set(modes("made.jsonl").values())) == 1


async def make_log() -> None:
    with closing(CallLog("made.db")) as log:
        await log.around(ToyBackend({"text": "b"})).fill(Start, {}, "")
        assert len(set(modes("made.jsonl").values())) == 1


def command(*arguments: str) -> None:
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    from bae.cli import main

    app = f"app_{Path.cwd().name}.py"  # a module of its own
    Path(app).write_text(APP)
    assert main([app if argument == "APP" else argument for argument in arguments]) == 0


def run_of_command() -> None:
    command("run", "APP", "--set", "text=a", "--run-id", "r1")


def export_of_command() -> None:
    run_of_command()
    command("runs", "export", "made.jsonl")
    command("runs", "load", "made.jsonl", "-j", "made.db")


def test_of_command() -> None:
    run_of_command()
    command("runs", "test", "r1", "-m", "APP", "-o", "tests/test_made.py")


def report_of_command() -> None:
    Path("cases.jsonl").write_text(json.dumps({"input": "a", "expected": {"word": "a"}}))
    command("eval", "APP", "--data", "cases.jsonl", "-o", "made.md", "-o", "made.csv")
    command("eval", "APP", "--data", "cases.jsonl")


test_of_command.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]
WAYS: list[Callable[[], Any]] = [
    *(make_journal, make_export, make_cache, make_log),
    *(run_of_command, export_of_command, test_of_command, report_of_command),
]


@pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)
def test_created_files_are_private_to_their_user(make):
    made = make()
    if made is not None:
        asyncio.run(made)
    public_files = {
        path: oct(mode)
        for path, mode in modes("cases.jsonl", ".gitignore").items()
        if "app_" not in path and mode != 0o600
    }
    assert public_files == {}
    assert len(modes()) > 0


@pytest.mark.parametrize("make", [make_export, make_cache, make_log])
def test_existing_files_keep_their_permissions(make):
    for name in ("made.db", "made.jsonl"):
        Path(name).touch(0o640)
    asyncio.run(make())
    assert modes("runs.db") == {"made.db": 0o640, "made.jsonl": 0o640}


@pytest.mark.parametrize("name", ["made.db", "made.jsonl"])
def test_other_users_can_never_read_a_file_while_it_is_written(name, monkeypatch):
    """Whatever opens a file by its path finds it private, or makes it so."""
    import sqlite3

    seen: list[int] = []
    connect, opened = sqlite3.connect, os.open

    def connected(path: Any, *given: Any, **named: Any) -> Any:
        seen.append(stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o644)
        return connect(path, *given, **named)

    def made(path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        if flags & os.O_CREAT and str(path).endswith((".new", ".part")):
            seen.append(mode)
        return opened(path, flags, mode, **named)

    monkeypatch.setattr(sqlite3, "connect", connected)
    monkeypatch.setattr(os, "open", made)
    asyncio.run(make_cache() if name == "made.db" else make_export())
    assert set(seen) == {0o600}


def test_a_file_is_written_completely_or_stays_unchanged(monkeypatch):
    file = Path("report.md")
    write_private(file, b"old")
    monkeypatch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        write_private(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(Path().iterdir()) == [file]
