"""Private files, which contain prompts, answers or runs. When bae creates a private file, only the
user can read it, even while bae writes it. An existing file keeps its permissions."""

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
    """Open a file that only the user can read, if the file is new. For use as an `opener`:
    `open(path, "wb", opener=private)`."""
    return os.open(path, flags, 0o600)


def make_private(path: str | Path) -> None:
    """Create an empty private file for SQLite. SQLite gives its other files for this database the
    same permissions. If `path` exists, nothing happens.

    The file gets another name first and is then linked to `path`. Opening and closing `path` itself
    would drop all locks of this process on the file, including the locks of another connection.
    """
    new_file = f"{path}.{os.urandom(4).hex()}.new"
    with suppress(OSError):  # SQLite then creates the file, or reports why it cannot
        os.close(private(new_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            os.link(new_file, path)
        finally:
            os.unlink(new_file)


def switch_to_wal(connection: Connection, timeout: float) -> str:
    """Switch a SQLite file to a write-ahead log and return the journal mode of the file.

    If another process switches the file at the same time, SQLite fails without waiting. So this
    function tries again for up to `timeout` seconds.
    """
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
    """Write a private file atomically: on failure, `path` stays unchanged."""
    part_file = path.with_name(f".{path.name[:100]}.{os.urandom(6).hex()}.part")
    try:
        with open(part_file, "xb", opener=private) as file:
            file.write(data)
            put_in_place(file, path)
    finally:
        with suppress(OSError):
            part_file.unlink()


def put_in_place(file: IO[bytes], path: Path) -> None:
    """Close `file` and move it to `path`. If the move replaces a file, the new file gets the
    permissions of the replaced file."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    with suppress(FileNotFoundError):
        copymode(path, file.name)
    os.replace(file.name, path)
