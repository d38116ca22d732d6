"""The SQLite file of a journal: its tables, the functions that open it, and the errors that SQLite
raises for it. A file of another program is refused and stays unchanged."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import ExitStack, closing

from bae.exceptions import JournalError
from bae.journal.stored_runs import FORMAT
from bae.private_files import make_private, switch_to_wal

APPLICATION = 0x62616530
"""The `application_id` of journals, "bae0". Other SQLite files have another number."""
PAGE = 8192
"""The size of a page in bytes. Three lines with nodes of 2 KB fit, whereas two would not fit into a
page of 4096."""
LOG_PAGES = {"full": 64, "normal": 1000}
"""By durability: if the write-ahead log has this many pages, a commit moves them into the file, and
the log is written again from its start. If the log need not grow, a commit that waits for the disk
takes 150 µs instead of 240."""
LOG_BYTES = 8 << 20
"""The number of bytes to which a larger log is cut back."""
LINES_OF_A_RUN = 1 << 32
"""The number of ids for the lines of a run. The id of a line is `run << 32 | n`, so the lines of a
run are next to each other, and a step writes one page."""

NEXT_CHANGE = """(select 1 + max(coalesce((select max(change) from runs), 0),
    coalesce((select max(last) from changes), 0)))"""
"""SQL for a number that is greater than the change numbers of all runs, including deleted runs."""
CHANGED = f"change = {NEXT_CHANGE}"
"""SQL for the column that each statement sets when it changes the entry of a run."""

_BEFORE_FIRST = 1
"""The `user_version` of a file is this number plus the version of the stored format. Files from
before version 1 have this number."""
_HEADER = 100
_NEARLY_NOTHING = 1 << 20
"""If a write fails and the disk has fewer free bytes than this, the disk is reported as full."""
_TABLES = """
create table runs (
    run integer primary key, id text not null unique, graph text not null, status text not null,
    started real not null, shape integer not null, owner text, epoch integer not null,
    waiting text not null default '[]', error text not null default '',
    parent integer, shared integer not null default 0, came_from text,
    thread text, metadata text not null default '{}', summary text,
    change integer not null default 0
);
create index runs_by_status on runs (status);
create index runs_by_graph on runs (graph);
create index runs_by_parent on runs (parent) where parent is not null;
create index runs_by_thread on runs (thread) where thread is not null;
create index runs_by_change on runs (change);
create index open_threads on runs (thread)
    where thread is not null and status in ('running', 'waiting');
create table labels (
    key text not null, value text not null, run integer not null, primary key (key, value, run)
) without rowid;
create index labels_by_run on labels (run);
create table changes (last integer not null);
create table lines (
    id integer primary key, kind text not null, at real not null, path text not null,
    step integer not null, data text not null, version integer not null
);
create table shapes (shape integer primary key, hash text not null unique, text text not null);
create table answers (
    run integer not null, gate text not null, value text not null, person text not null default '',
    primary key (run, gate)
) without rowid;
create table files (hash text primary key, data blob not null);
create table file_uses (
    run integer not null, hash text not null, primary key (run, hash)
) without rowid;
create index file_uses_by_hash on file_uses (hash);
create table owners (name text primary key, until real not null) without rowid;
create table unclean (since real not null);
create view readable as
    select runs.id as run, lines.id & 4294967295 as n, kind, datetime(at, 'unixepoch') as at, path,
        step, data
    from lines join runs on runs.run = lines.id >> 32;
"""
_KIND_OF_FILE = """
select (select count(*) from sqlite_master), application_id, user_version
from pragma_application_id, pragma_user_version
"""
_LABELS = """select key, iif(type in ('true', 'false'), type, json_quote(value)) as value, run
    from runs, json_each(runs.metadata)
    where runs.metadata <> '{}' and type not in ('object', 'array')"""
UPGRADES: dict[int, str] = {
    2: """
alter table runs add column thread text;
alter table runs add column metadata text not null default '{}';
alter table runs add column summary text;
alter table runs add column change integer not null default 0;
create index runs_by_thread on runs (thread) where thread is not null;
create index runs_by_change on runs (change);
create table changes (last integer not null);
update runs set change = run
""",
    6: f"""
create table files (hash text primary key, data blob not null);
create table file_uses (
    run integer not null, hash text not null, primary key (run, hash)
) without rowid;
create index file_uses_by_hash on file_uses (hash);
alter table answers add column person text not null default '';
create index open_threads on runs (thread)
    where thread is not null and status in ('running', 'waiting');
create table labels (
    key text not null, value text not null, run integer not null, primary key (key, value, run)
) without rowid;
create index labels_by_run on labels (run);
insert into labels {_LABELS}
""",
}
"""By version of the stored format: the statements that upgrade the tables to the next version."""
_OLDER = {
    2: """create temp view runs as select *, null as thread, '{}' as metadata, null as summary,
        run as change from main.runs""",
    6: f"""create temp view files as select '' as hash, x'' as data where 0;
        create temp view file_uses as select 0 as run, '' as hash where 0;
        create temp view answers as select *, '' as person from main.answers;
        create temp view labels as {_LABELS}""",
}
"""By version: the views with which a file of this version, or of an older version, can be read
without changing the file."""


def open_in_memory() -> sqlite3.Connection:
    """Open a new journal in memory."""
    connection = _connect(":memory:", 0.0)
    connection.executescript(_TABLES)
    return connection


def open_to_write(path: str, busy_timeout: float, synchronous: str) -> sqlite3.Connection:
    """Open the journal at `path` for writing. Create it if there is no file. Refuse a file of any
    other kind, and leave it unchanged."""
    _check_size(path)
    if not os.path.lexists(path):
        make_private(path)
    elif not os.access(path, os.W_OK):
        # An open connection would not notice if the file became writable later.
        raise failure("bae-journal-readonly", path)
    with ExitStack() as opened:
        connection = opened.enter_context(closing(_connect(path, busy_timeout)))
        new = not _version_of(connection, path)
        if new:
            connection.execute(f"pragma page_size = {PAGE}")
        _use_log(connection, path, busy_timeout)
        connection.execute(f"pragma synchronous = {synchronous}")
        connection.execute("pragma secure_delete = on")  # redacted data must not be left behind
        connection.execute(f"pragma wal_autocheckpoint = {LOG_PAGES[synchronous]}")
        connection.execute(f"pragma journal_size_limit = {LOG_BYTES}")
        if sys.platform == "darwin":  # where fsync leaves data in the cache of the disk
            connection.execute("pragma fullfsync = on")
        _upgrade(connection, path)
        opened.pop_all()  # the connection stays open
    return connection


def open_to_read(path: str, busy_timeout: float) -> sqlite3.Connection | None:
    """Open the journal at `path` for reading only. Return None if there is no journal yet."""
    if not _check_size(path):
        return None
    with ExitStack() as opened:
        connection = opened.enter_context(closing(_connect(path, busy_timeout)))
        try:
            version = _version_of(connection, path)
        except sqlite3.OperationalError as error:
            cannot_write = _code_of(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not cannot_write or _size(path + "-wal"):
                raise
            # No process can change a file in this folder, so let SQLite assume that none does.
            quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
            connection = _connect(f"file:{quoted}?mode=ro&immutable=1", busy_timeout)
            opened.enter_context(closing(connection))
            version = _version_of(connection, path)
        if not version:
            return None
        for older, statements in _OLDER.items():
            if version <= older:
                for statement in statements.split(";"):
                    connection.execute(statement)
        connection.execute("pragma query_only = on")
        opened.pop_all()  # the connection stays open
    return connection


def _check_size(path: str) -> int:
    """Return the size of the file. Refuse a file that SQLite would wrongly consider empty."""
    size = _size(path)
    if not size and _size(path + "-wal"):
        what = "it is empty or gone, but the log beside it, -wal, is not"
        raise failure("bae-journal-damaged", path, what=what)
    if 0 < size < _HEADER:
        raise failure("bae-journal-damaged", path, what=f"it has {size} bytes")
    return size


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _connect(path: str, busy_timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
        uri=path.startswith("file:"),
    )


def _version_of(connection: sqlite3.Connection, path: str) -> int:
    """Return the file's version of the stored format, or 0 for an empty file. Refuse a file of
    another program, or a version that this bae does not read."""
    # One statement reads all three numbers, since another process may be creating the tables now.
    kind: tuple[int, int, int] = connection.execute(_KIND_OF_FILE).fetchone()
    if not any(kind):
        return 0
    _, application, number = kind
    if application != APPLICATION:
        raise failure("bae-journal-foreign", path)
    version = number - _BEFORE_FIRST
    if not 1 <= version <= FORMAT:
        age = "a newer" if version > FORMAT else "an older"
        raise failure("bae-journal-version", path, version=version, newest=FORMAT, age=age)
    return version


def _use_log(connection: sqlite3.Connection, path: str, busy_timeout: float) -> None:
    mode = switch_to_wal(connection, busy_timeout)
    if mode != "wal":
        raise JournalError(
            f"{path}: SQLite cannot keep a write-ahead log there (its journal mode is {mode!r})",
            code="bae-journal-failed",
            fix="put the file on a local disk: network file systems cannot do it",
        )


def _upgrade(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables, or upgrade them from an older version, in one transaction."""
    if _version_of(connection, path) == FORMAT:
        return
    connection.execute("begin immediate")
    version = _version_of(connection, path)  # another process may have been faster
    scripts = (
        [UPGRADES.get(older, "") for older in range(version, FORMAT)] if version else [_TABLES]
    )
    for statement in ";".join(scripts).split(";"):
        connection.execute(statement)
    if version != FORMAT:
        connection.execute(f"pragma application_id = {APPLICATION}")
        connection.execute(f"pragma user_version = {FORMAT + _BEFORE_FIRST}")
    connection.execute("commit")


# Errors


_FAILURES = {
    "bae-journal-failed": (
        "{name} could not be read or written",
        "see the cause; once it is fixed, resume the run",
    ),
    "bae-journal-locked": (
        "{name} is locked by another program, and stayed locked",
        "end whatever holds the file (a backup, an open transaction in another program), "
        "or wait longer with SQLiteJournal(…, busy_timeout=60)",
    ),
    "bae-journal-full": (
        "the disk of {name} is full",
        "make room, then resume the run: what was acknowledged is stored; "
        "journal.prune(older_than=…) makes room inside the file",
    ),
    "bae-journal-readonly": (
        "{name} cannot be written by this user",
        "allow this user to write the file and its folder: SQLite keeps two more files there",
    ),
    "bae-journal-damaged": (
        "the journal {name} is damaged, or is no journal: {what}",
        "nothing in it was changed. Copy the file, and those beside it that end in -wal and "
        "-shm, before you do anything; then try `sqlite3 FILE .recover`, or a backup",
    ),
    "bae-journal-foreign": (
        "{name} is no journal of bae: it is the SQLite file of another program",
        "name another file; nothing in this one was changed",
    ),
    "bae-journal-version": (
        "{name} has version {version} of the stored format, and this bae reads versions up to "
        "{newest}: {age} bae wrote it",
        "use that version of bae (the package bae-graphs), or another file",
    ),
    "bae-journal-gone": (
        "{name} was deleted, moved or replaced while it was in use",
        "put the file back and resume its runs, or start them again; stop the processes that "
        "use a journal before you move it",
    ),
    "bae-journal-closed": (
        "the journal {name} is closed",
        "open a new one, and close it when its last run has ended; a run that was in progress can "
        "be resumed",
    ),
    "bae-journal-forked": (
        "{name} was opened before this process was forked, and the parent still has it open",
        "open the journal after the fork, start processes with "
        "multiprocessing.get_context('spawn'), or give each process a file of its own",
    ),
    "bae-run-unknown": (
        "the journal {name} has no run {run_id!r}",
        "look at `await journal.runs()`: it may be in another journal, or was deleted",
    ),
    "bae-run-exists": (
        "there is a run {run_id!r} already",
        "give the new run another id, or continue that one: graph.resume(run_id, …)",
    ),
    "bae-run-ended": (
        "run {run_id!r} has ended and cannot be continued",
        "graph.resume(run_id, …) returns its result; to do some of it again, fork it",
    ),
    "bae-run-owned": (
        "run {run_id!r} is owned by {owner}, whose lease lasts {left:.1f} s more",
        "leave the run to its owner. If the owner has died on another machine, try again when its "
        "lease is over",
    ),
    "bae-run-taken": (
        "run {run_id!r} cannot be written any more: {why}",
        "leave it to its new owner, or claim it again: graph.resume(run_id, …). A process that is "
        "stopped for longer than its lease loses its runs: SQLiteJournal(…, lease=120) gives it "
        "longer",
    ),
}
"""By code: the message of the error, and its fix."""


class FileGone(sqlite3.Error):
    """The file was deleted or replaced, so the data written to it is lost."""


def failure(
    code: str,
    name: str,
    run_id: str | None = None,
    *,
    cause: BaseException | None = None,
    **words: object,
) -> JournalError:
    """Return the error with this code, about the journal `name`. `words` are the values for the
    placeholders in its message."""
    message, fix = _FAILURES[code]
    message = message.format(name=name, run_id=run_id, **words)
    return JournalError(message, code=code, run_id=run_id, cause=cause, fix=fix)


def as_journal_error(error: BaseException, path: str, run_id: str | None = None) -> JournalError:
    """Return the `JournalError` for an error of SQLite."""
    if isinstance(error, JournalError):
        return error
    result = _code_of(error)
    code = "bae-journal-failed"
    if isinstance(error, FileGone):
        code = "bae-journal-gone"
    elif is_busy(error):
        code = "bae-journal-locked"
    elif result == sqlite3.SQLITE_FULL or (result == sqlite3.SQLITE_IOERR and _is_full(path)):
        code = "bae-journal-full"
    elif result in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH) or (
        result == sqlite3.SQLITE_CANTOPEN and not is_writable(path)
    ):
        code = "bae-journal-readonly"
    elif (
        result in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or "decode to UTF-8" in str(error)
        or isinstance(error, UnicodeDecodeError)  # in SQLite's data about the tables
    ):
        code = "bae-journal-damaged"
    return failure(code, path, run_id, cause=error, what="SQLite cannot read it")


def is_busy(error: BaseException) -> bool:
    """Whether another connection locked the file for longer than the busy timeout."""
    return _code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def is_writable(path: str) -> bool:
    """Whether this user may write a file and its folder."""
    beside = os.access(os.path.dirname(path), os.W_OK)
    return beside and (not os.path.exists(path) or os.access(path, os.W_OK))


def _code_of(error: BaseException) -> int:
    """Return the primary result code of an SQLite error, or 0 for any other error."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _is_full(path: str) -> bool:
    try:
        return shutil.disk_usage(os.path.dirname(path)).free < _NEARLY_NOTHING
    except OSError:
        return False
