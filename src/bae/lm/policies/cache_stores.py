"""Stores for a cache of answers: in memory, or in an SQLite file that processes share. A store maps
a key to a text."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from time import time
from typing import Protocol, TypeVar

from bae.exceptions import BaeLMError
from bae.lm.policies.limits import Slots
from bae.private_files import make_private, switch_to_wal
from bae.threads import in_thread

T = TypeVar("T")


class CacheStore(Protocol):
    """The methods that `Cached` calls on a store. Write a class with these methods to store answers
    elsewhere. Several event loops may use one store."""

    async def get(self, key: str) -> str | None:
        """Return the text stored under `key`, or None."""
        ...

    async def put(self, key: str, text: str) -> None:
        """Store a text under `key`."""
        ...

    async def drop(self, key: str) -> None:
        """Delete the text stored under `key`. Do nothing if there is none."""
        ...

    async def aclose(self) -> None:
        """Close the store. The next use opens it again."""
        ...


class MemoryCache:
    """Stores the `size` most recently used answers in memory."""

    def __init__(self, size: int = 1000) -> None:
        if type(size) is not int or size < 1:
            raise ValueError(f"MemoryCache(size={size!r}): give 1 or more")
        self.size = size
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._texts)

    async def get(self, key: str) -> str | None:
        """Return the text stored under `key`, or None. Reading a text counts as a use."""
        with self._lock:
            text = self._texts.get(key)
            if text is not None:
                self._texts.move_to_end(key)
            return text

    async def put(self, key: str, text: str) -> None:
        """Store a text under `key`. If there are more than `size` texts, delete the least recently
        used text."""
        with self._lock:
            self._texts[key] = text
            self._texts.move_to_end(key)
            while len(self._texts) > self.size:
                self._texts.popitem(last=False)

    async def drop(self, key: str) -> None:
        """Delete a text."""
        with self._lock:
            self._texts.pop(key, None)

    async def aclose(self) -> None:
        """Do nothing. The answers stay in memory."""


class SQLiteCache:
    """Stores answers in an SQLite file: `SQLiteCache("answers.sqlite")`.

    Several processes may use one file at once, and a killed process does not damage the file. The
    first use opens the file. Worker threads read and write the file.

    - `size`: the most answers in the file. bae deletes the oldest answers beyond `size` from time
      to time. None means no bound.
    - `age`: the age in seconds from which an answer is ignored and then deleted. None means no
      bound.
    - `timeout`: seconds to wait while another process writes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        size: int | None = 100_000,
        age: float | None = None,
        timeout: float = 10.0,
        clock: Callable[[], float] = time,
    ) -> None:
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"SQLiteCache(size={size!r}): give 1 or more, or None for no bound")
        if age is not None and not age > 0:
            raise ValueError(f"SQLiteCache(age={age!r}): give more than 0, or None for no bound")
        self.path = Path(path)
        self.size = size
        self.age = age
        self.timeout = timeout
        self._clock = clock
        self._turn = Slots(1)
        self._lock = Lock()
        self._open: sqlite3.Connection | None = None
        self._process = 0
        self._puts = 0

    async def get(self, key: str) -> str | None:
        """Return the text stored under `key`. None if there is none or it is older than `age`."""
        since = float("-inf") if self.age is None else self._clock() - self.age
        query = "SELECT text FROM answers WHERE key = ? AND at > ?"
        row = await self._do(lambda database: database.execute(query, (key, since)).fetchone())
        return None if row is None else str(row[0])

    async def put(self, key: str, text: str) -> None:
        """Store a text under `key`. After every 100 texts, prune the file."""

        def write(database: sqlite3.Connection) -> None:
            database.execute(
                "INSERT OR REPLACE INTO answers (key, text, at) VALUES (?, ?, ?)",
                (key, text, self._clock()),
            )
            self._puts += 1
            if self._puts % PRUNE_EVERY == 0:
                self._prune(database)

        await self._do(write)

    async def drop(self, key: str) -> None:
        """Delete a text."""
        delete = "DELETE FROM answers WHERE key = ?"
        await self._do(lambda database: database.execute(delete, (key,)).rowcount)

    async def prune(self) -> int:
        """Delete the answers older than `age` and the oldest answers beyond `size`. Return how many
        were deleted."""
        return await self._do(self._prune)

    async def aclose(self) -> None:
        """Close the file."""
        await in_thread(self._close)

    def _prune(self, database: sqlite3.Connection) -> int:
        deleted = 0
        if self.age is not None:
            oldest = self._clock() - self.age
            deleted += database.execute("DELETE FROM answers WHERE at <= ?", (oldest,)).rowcount
        if self.size is not None:
            deleted += database.execute(
                "DELETE FROM answers WHERE key IN"
                " (SELECT key FROM answers ORDER BY at DESC LIMIT -1 OFFSET ?)",
                (self.size,),
            ).rowcount
        return deleted

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # `_turn` admits one call at a time, so only one thread waits for a locked file. A cancelled
        # caller leaves `_turn` while its thread still works, so the next thread waits for `_lock`.
        async with self._turn:
            return await in_thread(lambda: self._run(work))

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                if self._open is None or self._process != os.getpid():
                    self._open = self._connect()
                return work(self._open)
            except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
                raise self._unreadable(error) from error

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(self.path):
            make_private(self.path)
        # Autocommit: each statement is its own transaction.
        database = sqlite3.connect(
            self.path, timeout=self.timeout, isolation_level=None, check_same_thread=False
        )
        self._process = os.getpid()
        self._close_file = weakref.finalize(self, _close_in, self._process, database)
        try:
            _prepare(database, self.timeout)
        except BaseException:
            self._close_file()
            raise
        return database

    def _close(self) -> None:
        with self._lock:
            if self._open is not None:
                self._close_file()
                self._open = None

    def _unreadable(self, error: Exception) -> BaeLMError:
        busy = "locked" in str(error) or "busy" in str(error)
        return BaeLMError(
            f"the cache {self.path} cannot be used",
            code="bae-lm-cache-unreadable",
            sent=False,
            cause=error,
            fix="another process has been writing to it for too long: raise timeout=…"
            if busy
            else "check the path and its permissions, or move the file away: the answers in it can "
            "be asked for again",
        )


def _close_in(process: int, database: sqlite3.Connection) -> None:
    # A forked child must not close the parent's database: that would release the parent's locks.
    if process == os.getpid():
        database.close()


def _prepare(database: sqlite3.Connection, timeout: float) -> None:
    # One statement reads the version and the tables, because another process may be creating them.
    version, tables = database.execute(
        "SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version"
    ).fetchone()
    if version != VERSION and (version or tables):
        raise sqlite3.DatabaseError("it is the database of something else, or of another version")
    switch_to_wal(database, timeout)
    # A power failure may lose the last answers, which are then asked for again. A process that dies
    # loses nothing.
    database.execute("PRAGMA synchronous = NORMAL")
    if version == VERSION:
        return
    database.execute("BEGIN IMMEDIATE")
    database.execute(
        "CREATE TABLE IF NOT EXISTS answers"
        " (key TEXT PRIMARY KEY, text TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID"
    )
    database.execute("CREATE INDEX IF NOT EXISTS answers_at ON answers (at)")
    database.execute(f"PRAGMA user_version = {VERSION}")
    database.execute("COMMIT")


PRUNE_EVERY = 100
"""How many answers are stored before old answers are deleted again."""

VERSION = 0x62616502
"""SQLite's `user_version` of a cache file: "bae" in ASCII, then the version of the tables."""
