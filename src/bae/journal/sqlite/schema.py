"""The SQLite file of a journal: its tables, and how it is opened without harm to other files."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from secrets import token_hex
from time import monotonic, sleep

from bae.exceptions import JournalError
from bae.journal.sqlite.errors import as_journal_error, code_of, damaged, is_busy, readonly

FORMAT = 2
"""The version of the tables, kept in the file as its `user_version`."""
APPLICATION = 0x62616530
"""What tells a journal from other SQLite files: "bae0", its `application_id`."""
PAGE = 8192
"""Bytes a page: three lines with nodes of 2 KB fit one, two of them would waste one of 4096."""
LOG_PAGES = {"full": 64, "normal": 1000}
"""Pages of the write-ahead log after which a commit moves them into the file and starts over. A
commit that waits for the disk takes 150 µs instead of 240 where the log need not grow."""
LOG_BYTES = 8 << 20
"""How long the log may stay after it had to grow."""
LINES_OF_A_RUN = 1 << 32
"""A line is found by run << 32 | n: the lines of a run are side by side, and a step writes one
page."""

_HEADER = 100
_TABLES = """
create table runs (
    run integer primary key, id text not null unique, graph text not null, status text not null,
    started real not null, shape integer not null, owner text, epoch integer not null,
    waiting text not null default '[]', error text not null default '',
    parent integer, shared integer not null default 0, came_from text
);
create index runs_by_status on runs (status);
create index runs_by_graph on runs (graph);
create index runs_by_parent on runs (parent) where parent is not null;
create table lines (
    id integer primary key, kind text not null, at real not null, path text not null,
    step integer not null, data text not null, version integer not null
);
create table shapes (shape integer primary key, hash text not null unique, text text not null);
create table answers (
    run integer not null, gate text not null, value text not null, primary key (run, gate)
) without rowid;
create table owners (name text primary key, until real not null) without rowid;
create table unclean (since real not null);
create view readable as
    select runs.id as run, lines.id & 4294967295 as n, kind, datetime(at, 'unixepoch') as at, path,
        step, data
    from lines join runs on runs.run = lines.id >> 32;
"""


def open_in_memory() -> sqlite3.Connection:
    """A new journal without a file."""
    connection = _connect(":memory:", 0.0)
    connection.executescript(_TABLES)
    return connection


def open_to_write(path: str, busy_timeout: float, synchronous: str) -> sqlite3.Connection:
    """A connection to the journal at `path`, which is created if there is none. A file that is
    something else is refused and not changed."""
    _check_size(path)
    if not os.path.lexists(path):
        _make_private(path)
    elif not os.access(path, os.W_OK):  # a connection would not notice when it becomes writable
        raise readonly(path)
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(path, busy_timeout)
        new = _is_new(connection, path)
        if new:
            connection.execute(f"pragma page_size = {PAGE}")
        _use_log(connection, path, busy_timeout)
        connection.execute(f"pragma synchronous = {synchronous}")
        connection.execute("pragma secure_delete = on")  # what was redacted is not left behind
        connection.execute(f"pragma wal_autocheckpoint = {LOG_PAGES[synchronous]}")
        connection.execute(f"pragma journal_size_limit = {LOG_BYTES}")
        if sys.platform == "darwin":  # where fsync leaves data in the cache of the disk
            connection.execute("pragma fullfsync = on")
        if new:
            _create_tables(connection, path)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error | OSError):
            raise as_journal_error(error, path) from error
        raise
    return connection


def open_to_read(path: str, busy_timeout: float) -> sqlite3.Connection | None:
    """A connection to the journal at `path` that writes nothing; None where there is no journal
    yet."""
    if not _check_size(path):
        return None
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect_to_read(path, busy_timeout)
        if not _is_new(connection, path):
            connection.execute("pragma query_only = on")
            return connection
        connection.close()
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise as_journal_error(error, path) from error
        raise
    return None


def identity(path: str) -> tuple[int, int] | None:
    """What tells a file from another one that replaced it; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_size(path: str) -> int:
    """The size of the file. One that SQLite would wrongly take for an empty one is refused."""
    size = _size(path)
    if not size and _size(path + "-wal"):
        raise damaged(path, "it is empty or gone, but the log beside it, -wal, is not")
    if 0 < size < _HEADER:
        raise damaged(path, f"it has {size} bytes")
    return size


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _make_private(path: str) -> None:
    """Make an empty file that only this user can read, as it will hold prompts; SQLite gives those
    beside it the same rights. It is linked to its place: to open and close the file there would
    drop the locks of a connection that is made at the same moment."""
    beside = f"{path}.{token_hex(4)}.new"
    with contextlib.suppress(OSError):  # then SQLite makes it, or reports why it cannot
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            os.link(beside, path)
        finally:
            os.unlink(beside)


def _connect(path: str, busy_timeout: float, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
        uri=uri,
    )


def _connect_to_read(path: str, busy_timeout: float) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(path, busy_timeout)
        connection.execute("select 1 from sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        if connection is not None:
            connection.close()
        cannot_write = code_of(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not cannot_write or _size(path + "-wal"):
            raise
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    # Nobody can be writing in a folder that cannot be written: read the file as it is.
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return _connect(f"file:{quoted}?mode=ro&immutable=1", busy_timeout, uri=True)


def _is_new(connection: sqlite3.Connection, path: str) -> bool:
    """Whether the file is empty. One of another program, or of another format, is refused."""
    own = not connection.in_transaction
    if own:  # all three at one moment: another process may be creating the tables just now
        connection.execute("begin")
    try:
        tables: int = connection.execute("select count(*) from sqlite_master").fetchone()[0]
        application: int = connection.execute("pragma application_id").fetchone()[0]
        version: int = connection.execute("pragma user_version").fetchone()[0]
    finally:
        if own:
            connection.execute("rollback")
    if not (application or version or tables):
        return True
    if application != APPLICATION:
        raise JournalError(
            f"{path} is no journal of bae: it is the SQLite file of another program",
            code="bae-journal-foreign",
            fix="name another file; nothing in this one was changed",
        )
    if version != FORMAT:
        age = "a newer" if version > FORMAT else "an older"
        raise JournalError(
            f"{path} has format {version}, this bae reads {FORMAT}: {age} version wrote it",
            code="bae-journal-version",
            fix="use that version of bae (the package bae-graphs), or another file",
        )
    return False


def _use_log(connection: sqlite3.Connection, path: str, busy_timeout: float) -> None:
    """Switch to write-ahead logging. SQLite itself does not wait for others that switch too."""
    until = monotonic() + busy_timeout
    while True:
        try:
            mode: str = connection.execute("pragma journal_mode = wal").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not is_busy(error) or monotonic() > until:
                raise
            sleep(0.005)
            continue
        if mode == "wal":
            return
        raise JournalError(
            f"{path}: SQLite cannot keep a write-ahead log there (its journal mode is {mode!r})",
            code="bae-journal-failed",
            fix="put the file on a local disk: network file systems cannot do it",
        )


def _create_tables(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("begin immediate")
    if _is_new(connection, path):  # no other process was faster
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"pragma application_id = {APPLICATION}")
        connection.execute(f"pragma user_version = {FORMAT}")
    connection.execute("commit")
