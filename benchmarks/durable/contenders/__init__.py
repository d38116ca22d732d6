"""The contenders: ways of keeping each step of a run in a SQLite file, with the settings they are
measured at.

A module has `open_store(folder, setting)`, an async context manager that sets a store up in a
folder and yields an `Opened`, whose `run` is timed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.durable.work import Outcome


@dataclass(frozen=True)
class Opened:
    """A store that is open: `run(run_id, steps, heavy)` does one run."""

    run: Callable[[str, int, bool], Awaitable[Outcome]]
    pragmas: Callable[[], str]
    """What the connection that writes says about its durability, once it has written."""
    prepare: Callable[[int, bool], Awaitable[None]] | None = None
    """Get ready what such a run needs, before the clock starts."""
    interrupt: Callable[[str, int, bool], Awaitable[None]] | None = None
    """Do the run but for its last step, at which it fails."""
    resume: Callable[[str, bool], Awaitable[Outcome]] | None = None
    """Finish such a run."""


Open = Callable[[Path, str], AbstractAsyncContextManager[Opened]]


@dataclass(frozen=True)
class Contender:
    """One way of keeping steps, at one setting."""

    name: str
    module: str
    setting: str
    package: str | None = None
    safe: bool = True
    """Whether a step that the next one builds on survives a power cut."""
    notes: tuple[str, ...] = field(default=())

    @property
    def version(self) -> str:
        """The installed version, or an empty string where there is no package."""
        return importlib.metadata.version(self.package) if self.package else ""

    def load(self) -> Open:
        """Import what opens the store; ImportError when the library is not installed."""
        found: Open = importlib.import_module(f"{__name__}.{self.module}").open_store
        return found


FLOOR = "floor"
BY_HAND = "by-hand"
BAE = "bae"
BAE_NORMAL = "bae-normal"
BAE_MEMORY = "bae-memory"
CONTENDERS = {
    FLOOR: Contender("floor: insert, commit", "floor", ""),
    BAE: Contender("bae", "bae_journal", "full", "bae-graphs"),
    BAE_NORMAL: Contender("bae, durability normal", "bae_journal", "normal", "bae-graphs", False),
    BAE_MEMORY: Contender("bae, no journal", "bae_journal", "none", "bae-graphs", False),
    BY_HAND: Contender("group commit by hand", "group_commit", ""),
    "burr": Contender("Burr, async", "burr_persister", "async delete", "burr"),
    "burr-wal": Contender("Burr, async, WAL", "burr_persister", "async wal", "burr"),
    "burr-sync": Contender("Burr, blocking", "burr_persister", "blocking delete", "burr"),
    "burr-sync-wal": Contender("Burr, blocking, WAL", "burr_persister", "blocking wal", "burr"),
    "langgraph": Contender("LangGraph", "langgraph_saver", "async", "langgraph", False),
    "langgraph-sync": Contender("LangGraph, sync", "langgraph_saver", "sync", "langgraph"),
    "dbos": Contender("DBOS", "dbos_workflows", "delete", "dbos"),
    "dbos-wal": Contender("DBOS, WAL", "dbos_workflows", "wal", "dbos"),
}
LIBRARIES = ("burr", "langgraph", "dbos")


def library(key: str) -> str:
    """Whose setting it is: `burr` of `burr-sync-wal`."""
    return key.partition("-")[0]


def describe_pragmas(journal_mode: object, synchronous: object) -> str:
    """Return the two pragmas as text for people."""
    words = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
    number = synchronous if isinstance(synchronous, int) else -1
    return f"{str(journal_mode).upper()}, synchronous {words.get(number, synchronous)}"


def pragmas_of(connection: sqlite3.Connection) -> str:
    """Return the connection's settings for durability."""
    (mode,) = connection.execute("pragma journal_mode").fetchone()
    (synchronous,) = connection.execute("pragma synchronous").fetchone()
    return describe_pragmas(mode, synchronous)
