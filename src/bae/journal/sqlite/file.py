"""The file of a `SQLiteJournal`: how it is laid out, and how it is opened without harm to a file
that is something else. The writer and the reader get their connections here."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from secrets import token_hex
from time import monotonic, sleep

from bae.exceptions import JournalError
from bae.journal.sqlite.errors import code_of, damaged, foreign, is_busy, told

FORMAT = 1
"""The version of the layout, kept in the file as its `user_version`."""
APPLICATION = 0x62616530
"""What tells a journal from any other SQLite file: "bae0", its `application_id`."""
PAGE = 8192
"""Bytes a page: three lines with nodes of 2 KB fit one, two of them would waste one of 4096."""
LOG_PAGES = 1000
"""Pages of the log beyond which a commit also tidies it into the file."""
LOG_BYTES = 32 + LOG_PAGES * (PAGE + 24)
"""How long the log is with so many."""

_HEADER = 100

# A line is found by run << 32 | n: one small key, so that the lines of a run are side by side, a
# step writes one page, and those that follow each other fill pages to the brim.
_LAYOUT = """
create table runs (
    run integer primary key, id text not null unique, graph text not null, status text not null,
    started real not null, shape integer not null, owner text, epoch integer not null,
    waiting text not null default '[]', error text not null default '',
    parent integer, shared integer not null default 0, came_from text
);
create index runs_by_status on runs (status);
create index runs_by_graph on runs (graph, status);
create index runs_by_parent on runs (parent) where parent is not null;
create table lines (
    id integer primary key, kind text not null, at real not null, path text not null,
    step integer not null, data text not null
);
create table shapes (shape integer primary key, hash text not null unique, text text not null);
create table answers (
    run integer not null, gate text not null, value text not null, primary key (run, gate)
) without rowid;
create table owners (name text primary key, until real not null) without rowid;
create table deleted (run integer primary key);
create table unclean (since real not null);
create view readable as
    select runs.id as run, lines.id & 4294967295 as n, kind, datetime(at, 'unixepoch') as at, path,
        step, data
    from lines join runs on runs.run = lines.id >> 32;
"""


def connected(
    path: str, busy_timeout: float, synchronous: str = "full", *, reading: bool = False
) -> sqlite3.Connection | None:
    """A connection to the journal at `path`, which is made where there is none; with `reading` it
    is not, and the answer is None. A file that is something else is left as it is."""
    size = _size(path)
    missing = not size
    if missing and _size(path + "-wal"):
        raise damaged(path, "it is empty or gone, but the log beside it, -wal, is not")
    if 0 < size < _HEADER:  # SQLite would take a file of one byte for an empty one
        raise damaged(path, f"it has {size} bytes")
    if reading and missing:
        return None
    connection: sqlite3.Connection | None = None
    if not os.path.lexists(path):
        _make_private(path)
    try:
        connection = _opened(path, busy_timeout, reading)
        new = _is_new(connection, path)
        if reading:
            connection.execute("pragma query_only = on")
            if new:
                connection.close()
                return None
            return connection
        if new:
            connection.execute(f"pragma page_size = {PAGE}")
        _log_ahead(connection, path, busy_timeout)
        connection.execute(f"pragma synchronous = {synchronous}")
        connection.execute("pragma secure_delete = on")  # what was redacted is not left behind
        connection.execute(f"pragma wal_autocheckpoint = {LOG_PAGES}")
        connection.execute(f"pragma journal_size_limit = {LOG_BYTES}")
        if sys.platform == "darwin":  # where fsync leaves data in the cache of the disk
            connection.execute("pragma fullfsync = on")
        if new:
            _lay_out(connection, path)
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        raise told(error, path) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def identity(path: str) -> tuple[int, int] | None:
    """What tells a file from another one that has come in its place; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_private(path: str) -> None:
    """Make an empty file that nobody but this user can read, as it will hold prompts; SQLite gives
    those beside it the same rights. It comes into its place whole: to close the file itself would
    take away the locks of whoever opens it at the same moment."""
    beside = f"{path}.{token_hex(4)}.new"
    with contextlib.suppress(OSError):  # then SQLite makes it, or says why it cannot
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            os.link(beside, path)
        finally:
            os.unlink(beside)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _opened(path: str, busy_timeout: float, reading: bool) -> sqlite3.Connection:
    try:
        found = _connection(path, busy_timeout)
    except sqlite3.Error:
        if not reading or _size(path + "-wal"):
            raise
    else:
        try:
            found.execute("select 1 from sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            found.close()
            cannot = code_of(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not (reading and cannot) or _size(path + "-wal"):
                raise
        except BaseException:
            found.close()
            raise
        else:
            return found
    # Nobody can be writing in a folder that cannot be written: read the file as it lies there.
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return _connection(f"file:{quoted}?mode=ro&immutable=1", busy_timeout, uri=True)


def _connection(path: str, busy_timeout: float, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
        uri=uri,
    )


def _is_new(connection: sqlite3.Connection, path: str) -> bool:
    """Whether there is nothing in the file yet. One that belongs to others is refused."""
    own = not connection.in_transaction
    if own:  # all three of one moment: somebody else may be making the file just now
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
        raise foreign(path)
    if version > FORMAT:
        raise JournalError(
            f"{path} has format {version}, this bae knows {FORMAT}: a newer one has written it",
            code="bae-journal-version",
            fix="update bae (the package bae-graphs), or use another file",
        )
    return False


def _log_ahead(connection: sqlite3.Connection, path: str, busy_timeout: float) -> None:
    """Switch to write-ahead logging. SQLite does not wait by itself for others that switch too."""
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
            f"{path}: SQLite cannot keep a write-ahead log there (it stays with {mode!r})",
            code="bae-journal-failed",
            fix="put the file on a local disk: network file systems cannot do it",
        )


def _lay_out(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("begin immediate")
    try:
        if _is_new(connection, path):  # nobody was faster
            for statement in _LAYOUT.split(";"):
                connection.execute(statement)
            connection.execute(f"pragma application_id = {APPLICATION}")
            connection.execute(f"pragma user_version = {FORMAT}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
