"""Stores for a cache of answers: in memory, or in an SQLite file that several processes may use at
once. A store maps a text (the key) to another text."""

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
    """The four methods that `Cached` calls on a store. Write a class with them to store answers
    elsewhere. One store may be used from several event loops."""

    async def get(self, key: str) -> str | None:
        """The text stored under `key`, or None."""
        ...

    async def put(self, key: str, text: str) -> None:
        """Store a text under `key`."""
        ...

    async def drop(self, key: str) -> None:
        """Delete the text of `key`, if there is one."""
        ...

    async def aclose(self) -> None:
        """Close the store. It opens again when it is used again."""
        ...


class MemoryCache:
    """Stores answers in this process: the `size` most recently used ones."""

    def __init__(self, size: int = 1000) -> None:
        if type(size) is not int or size < 1:
            raise ValueError(f"MemoryCache(size={size!r}): give 1 or more")
        self.size = size
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._texts)

    async def get(self, key: str) -> str | None:
        """The text of a key, or None. Counts as a use."""
        with self._lock:
            text = self._texts.get(key)
            if text is not None:
                self._texts.move_to_end(key)
            return text

    async def put(self, key: str, text: str) -> None:
        """Store a text. Beyond `size`, the least recently used text is deleted."""
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
        """Does nothing: the answers stay."""


class SQLiteCache:
    """Stores answers in a file, for later runs: `SQLiteCache("answers.sqlite")`.

    Several processes may use one file at once, and a killed process leaves it intact. The file is
    opened on first use and read in worker threads. Answers older than `age` seconds are ignored,
    and the oldest answers beyond `size` are deleted; None means no bound. `timeout` is how many
    seconds to wait while another process writes.
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
        """The text of a key, unless it is too old."""
        since = float("-inf") if self.age is None else self._clock() - self.age
        query = "SELECT text FROM answers WHERE key = ? AND at > ?"
        row = await self._do(lambda database: database.execute(query, (key, since)).fetchone())
        return None if row is None else str(row[0])

    async def put(self, key: str, text: str) -> None:
        """Store a text. After every 100 texts, delete those that are too old or beyond `size`."""

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
        """Delete the answers that are too old or beyond `size`. Returns how many were deleted."""
        return await self._do(self._prune)

    async def aclose(self) -> None:
        """Close the file."""
        await in_thread(self._close)

    def _prune(self, database: sqlite3.Connection) -> int:
        deleted = 0
        if self.age is not None:
            old = self._clock() - self.age
            deleted += database.execute("DELETE FROM answers WHERE at <= ?", (old,)).rowcount
        if self.size is not None:
            deleted += database.execute(
                "DELETE FROM answers WHERE key IN"
                " (SELECT key FROM answers ORDER BY at DESC LIMIT -1 OFFSET ?)",
                (self.size,),
            ).rowcount
        return deleted

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # One call at a time: if another process has locked the file, only one thread waits. The
        # lock is for work that continues after its caller was cancelled.
        async with self._turn:
            return await in_thread(lambda: self._with(work))

    def _with(self, work: Callable[[sqlite3.Connection], T]) -> T:
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
    # Read both in one statement: another process may be creating the file.
    version, tables = database.execute(
        "SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version"
    ).fetchone()
    if version != VERSION and (version or tables):
        raise sqlite3.DatabaseError("it is the database of something else, or of another version")
    switch_to_wal(database, timeout)
    # After a power failure, lost answers are asked for again. A process that dies loses nothing.
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
"""How many answers are stored between two checks of the bounds."""

VERSION = 0x62616502
"""The mark of a cache file: "bae" in ASCII, then the version of the tables."""
