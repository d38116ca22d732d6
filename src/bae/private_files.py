"""Private files: files with prompts, answers or runs. If bae creates such a file, only the user can
read it, from its first byte. An existing file keeps its permissions."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from shutil import copymode
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import Connection


def private(path: str | Path, flags: int) -> int:
    """The `opener` of a private file: `open(path, "wb", opener=private)`."""
    return os.open(path, flags, 0o600)


def make_private(path: str | Path) -> None:
    """Create an empty file for SQLite, which gives the files beside it the same permissions. The
    file is created under another name and then linked to `path`. Closing a file drops all locks of
    this process on it, so closing `path` itself could drop the locks of another connection."""
    beside = f"{path}.{os.urandom(4).hex()}.new"
    with suppress(OSError):  # SQLite then creates the file, or reports why it cannot
        os.close(private(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            os.link(beside, path)
        finally:
            os.unlink(beside)


def switch_to_wal(connection: Connection, timeout: float) -> str:
    """Switch a SQLite file to a write-ahead log, and return its journal mode. Tries again until
    `timeout`: SQLite does not wait if another process switches the file at the same time."""
    import sqlite3

    until = monotonic() + timeout
    while True:
        try:
            return connection.execute("pragma journal_mode = wal").fetchone()[0]
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF
            busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
            if code not in busy or monotonic() > until:
                raise
        sleep(0.005)


def write_private(path: Path, data: bytes) -> None:
    """Write a private file, all of it or nothing."""
    beside = path.with_name(f".{path.name[:100]}.{os.urandom(6).hex()}.part")
    try:
        with open(beside, "xb", opener=private) as file:
            file.write(data)
            put_in_place(file, path)
    finally:
        with suppress(OSError):
            beside.unlink()


def put_in_place(file: IO[bytes], path: Path) -> None:
    """Close `file`, and move it to `path`. If a file there is replaced, its permissions are
    kept."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    with suppress(FileNotFoundError):
        copymode(path, file.name)
    os.replace(file.name, path)
