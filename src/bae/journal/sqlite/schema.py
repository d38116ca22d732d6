"""The SQLite file of a journal: its tables, how it is opened without harm to other files, and what
its errors mean."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import ExitStack, closing, suppress
from secrets import token_hex
from time import monotonic, sleep

from bae.exceptions import JournalError

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
_NEARLY_NOTHING = 1 << 20
"""With fewer free bytes on the disk than this, a write that failed means that the disk is full."""
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
    try:
        with ExitStack() as opened:
            connection = opened.enter_context(closing(_connect(path, busy_timeout)))
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
            opened.pop_all()  # it stays open
    except (sqlite3.Error, OSError) as error:
        raise as_journal_error(error, path) from error
    return connection


def open_to_read(path: str, busy_timeout: float) -> sqlite3.Connection | None:
    """A connection to the journal at `path` that writes nothing; None where there is no journal
    yet."""
    if not _check_size(path):
        return None
    try:
        with ExitStack() as opened:
            connection = opened.enter_context(closing(_connect_to_read(path, busy_timeout)))
            if _is_new(connection, path):
                return None
            connection.execute("pragma query_only = on")
            opened.pop_all()  # it stays open
    except sqlite3.Error as error:
        raise as_journal_error(error, path) from error
    return connection


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
    with suppress(OSError):  # then SQLite makes it, or reports why it cannot
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
    try:
        with ExitStack() as opened:
            connection = opened.enter_context(closing(_connect(path, busy_timeout)))
            connection.execute("select 1 from sqlite_master").fetchone()
            opened.pop_all()  # it stays open
            return connection
    except sqlite3.OperationalError as error:
        cannot_write = code_of(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not cannot_write or _size(path + "-wal"):
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


# Errors


def as_journal_error(error: BaseException, path: str, run_id: str | None = None) -> JournalError:
    """The error to raise for one of SQLite's."""
    if isinstance(error, JournalError):
        return error
    result = code_of(error)
    if is_busy(error):
        what, code = f"{path} is locked by another program, and stayed locked", "bae-journal-locked"
        fix = (
            "end whatever holds the file (a backup, an open transaction in another program), "
            "or wait longer with SQLiteJournal(…, busy_timeout=60)"
        )
    elif result == sqlite3.SQLITE_FULL or (result == sqlite3.SQLITE_IOERR and _is_full(path)):
        what, code = f"the disk of {path} is full", "bae-journal-full"
        fix = (
            "make room, then resume the run: what was acknowledged is stored; "
            "journal.prune(older_than=…) makes room inside the file"
        )
    elif result in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH) or (
        result == sqlite3.SQLITE_CANTOPEN and not is_writable(path)
    ):
        return readonly(path, run_id, error)
    elif result in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "decode to UTF-8" in str(
        error
    ):
        return damaged(path, "SQLite cannot read it", run_id=run_id, cause=error)
    else:
        what, code = f"{path} could not be read or written", "bae-journal-failed"
        fix = "see the cause; once it is fixed, resume the run"
    return JournalError(what, code=code, cause=error, run_id=run_id, fix=fix)


def code_of(error: BaseException) -> int:
    """The primary result code of an SQLite error; 0 for any other error."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether another connection held the file for longer than we wait."""
    return code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def needs_new_connection(error: BaseException) -> bool:
    """Whether a connection may keep failing this way after the cause is gone."""
    return code_of(error) in (
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
    )


def is_writable(path: str) -> bool:
    """Whether this user may write a file and its folder."""
    beside = os.access(os.path.dirname(path), os.W_OK)
    return beside and (not os.path.exists(path) or os.access(path, os.W_OK))


def _is_full(path: str) -> bool:
    try:
        return shutil.disk_usage(os.path.dirname(path)).free < _NEARLY_NOTHING
    except OSError:
        return False


def damaged(
    path: str, what: str, *, run_id: str | None = None, cause: BaseException | None = None
) -> JournalError:
    return JournalError(
        f"the journal {path} is damaged, or is no journal: {what}",
        code="bae-journal-damaged",
        cause=cause,
        run_id=run_id,
        fix="nothing in it was changed. Copy the file, and those beside it that end in -wal and "
        "-shm, before you do anything; then try `sqlite3 FILE .recover`, or a backup",
    )


def readonly(
    path: str, run_id: str | None = None, cause: BaseException | None = None
) -> JournalError:
    return JournalError(
        f"{path} cannot be written by this user",
        code="bae-journal-readonly",
        cause=cause,
        run_id=run_id,
        fix="allow this user to write the file and its folder: SQLite keeps two more files there",
    )


def gone(path: str, run_id: str | None = None) -> JournalError:
    return JournalError(
        f"{path} was deleted, moved or replaced while it was in use",
        code="bae-journal-gone",
        run_id=run_id,
        fix="put the file back and resume its runs, or start them again; stop the processes that "
        "use a journal before you move it",
    )


def closed(name: str, run_id: str | None = None, *, in_progress: bool = False) -> JournalError:
    fix = "close it when its last run has ended; this run can be resumed"
    return JournalError(
        f"the journal {name} is closed",
        code="bae-journal-closed",
        run_id=run_id,
        fix=fix if in_progress else "open a new one, and close it when you are done",
    )


def forked(path: str, run_id: str | None = None) -> JournalError:
    return JournalError(
        f"{path} was opened before this process was forked, and the parent still has it open",
        code="bae-journal-forked",
        run_id=run_id,
        fix="open the journal after the fork, start processes with "
        "multiprocessing.get_context('spawn'), or give each process a file of its own",
    )


def unknown(name: str, run_id: str) -> JournalError:
    return JournalError(
        f"the journal {name} has no run {run_id!r}",
        code="bae-run-unknown",
        run_id=run_id,
        fix="look at `await journal.runs()`: it may be in another journal, or was deleted",
    )
