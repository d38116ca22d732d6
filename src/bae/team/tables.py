"""The tables of a team's SQLite file, and functions that open and read the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bae.private_files import make_private, switch_to_wal
from bae.team.models import TeamError

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    raise TeamError(
        "the state of a team needs the package sqlalchemy, which is not installed",
        error,
        code="bae-team-extra-missing",
        fix="pip install '.[team]' in a clone of bae",
    ) from error
from sqlalchemy import event
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.exc import SQLAlchemyError as SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable

APPLICATION: Final = 0x62616574
FORMAT: Final = 5
_UPGRADES: Final = {
    1: ("alter table blockers add column digest text",),
    2: (
        "alter table blockers add column answered_by text",
        "alter table tasks add column added float",
    ),
    3: (
        "alter table spending add column unpriced boolean not null default 0",
        "update spending set unpriced = 1 where tokens > 0 and cost = 0",
    ),
    4: ("alter table runs add column budget json",),
}
"""The statements that upgrade a file from each earlier format to the next."""
BUSY_SECONDS: Final = 30.0
"""How many seconds a process waits while another process writes."""

_metadata = sa.MetaData()


def _table(name: str, *columns: Any) -> sa.Table:
    # Numbers are never reused: branches, clients and people remember them.
    return sa.Table(name, _metadata, *columns, sqlite_autoincrement=True)


def _number() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True)


def _reference(table: str, *, optional: bool = False, dropped: str = "CASCADE") -> sa.Column[int]:
    name = f"{table.removesuffix('s')}_id"
    key = sa.ForeignKey(f"{table}.id", ondelete=dropped)
    return sa.Column(name, sa.Integer, key, nullable=optional, index=True)


def _text(name: str, *, optional: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=optional)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=False)


projects = _table(
    "projects", _number(), sa.Column("root", sa.Text, nullable=False, unique=True), _json("data")
)
tasks = _table(
    "tasks",
    _number(),
    _reference("projects"),
    _text("key"),
    sa.Column("approved", sa.Boolean, nullable=False),
    _text("status"),
    _text("reason"),
    _text("base", optional=True),
    _text("commit", optional=True),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    _json("planned"),
    sa.Column("added", sa.Float),  # null: the task was added before format 3
    sa.UniqueConstraint("project_id", "key"),
)
dependencies = sa.Table(
    "dependencies",
    _metadata,
    sa.Column(
        "task_id", sa.Integer, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("needs_id", sa.Integer, sa.ForeignKey("tasks.id"), nullable=False, index=True),
)
notes = _table("notes", _number(), _reference("tasks"), _text("text"))
attempts = sa.Table(
    "attempts",
    _metadata,
    sa.Column(
        "task_id", sa.Integer, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("number", sa.Integer, primary_key=True),
    _json("data"),
)
reports = _table(
    "reports",
    _number(),
    _reference("tasks"),
    sa.Column("attempt", sa.Integer),  # null: the tests ran on the merged tree
    sa.Column("passed", sa.Boolean, nullable=False),
    _json("data"),
)
blockers = _table(
    "blockers",
    _number(),
    _reference("tasks"),
    _text("question"),
    _text("answer", optional=True),
    _text("digest", optional=True),
    _text("answered_by", optional=True),
)
agents = sa.Table(
    "agents",
    _metadata,
    sa.Column(
        "project_id", sa.Integer, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("id", sa.Text, primary_key=True),
    _json("data"),
)
events = _table(
    "events",
    _number(),
    _reference("projects"),
    sa.Column("at", sa.Float, nullable=False),
    _json("data"),
)
runs = _table(
    "runs",
    _number(),
    _reference("projects"),
    sa.Column("finished", sa.Boolean, nullable=False),
    sa.Column("budget", sa.JSON(none_as_null=True)),  # the run's limits by name, or null
)
spending = _table(
    "spending",
    _number(),
    _reference("projects"),
    _reference("tasks", optional=True, dropped="SET NULL"),  # a dropped task was still paid for
    _reference("runs"),
    # Tokens and cost are a reservation until the actual usage is known.
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("cost", sa.Float, nullable=False),
    # Whether the price is unknown. If so, the cost is 0 or the reserved cost.
    sa.Column("unpriced", sa.Boolean, nullable=False, server_default="0"),
)
requests = _table(
    "requests",
    _number(),
    _reference("projects"),
    _reference("tasks", optional=True),
    _text("action"),
    _text("outcome", optional=True),
)


def insert(db: sa.Connection, table: sa.Table, **values: Any) -> int:
    """Add a row and return its number."""
    number = db.execute(sa.insert(table).values(values)).inserted_primary_key
    assert number is not None
    return number[0]


def rows(db: sa.Connection, query: sa.Executable) -> Sequence[Mapping[str, Any]]:
    """Run a query and return its rows as dicts."""
    return [dict(row) for row in db.execute(query).mappings()]


def one(db: sa.Connection, query: sa.Executable, kind: str, number: int) -> Mapping[str, Any]:
    """Run a query and return its first row. If there is no row, raise TeamError. Its message names
    the missing object by `kind` and `number`."""
    matching = rows(db, query)
    if not matching:
        raise unknown(kind, number)
    return matching[0]


def unknown(kind: str, number: int) -> TeamError:
    """Return the error for a number that no object of this kind has."""
    return TeamError(f"there is no {kind} {number}", code="bae-team-unknown")


def open_engine(path: Path) -> sa.Engine:
    """Open a team's SQLite file and return an engine with one connection to the file.

    A missing file is created. A file of an earlier format is upgraded. A file of another program or
    of a later format is refused and stays unchanged.

    A transaction that writes must have the execution option `write`. At its start it waits for
    other writers, and then locks the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            make_private(path)
        connection = _open_connection(path)
    except (OSError, sqlite3.Error) as error:
        raise TeamError(f"{path} cannot be opened", error, fix="name another file") from error
    engine = sa.create_engine("sqlite://", creator=lambda: connection, poolclass=sa.StaticPool)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("begin immediate" if write else "begin")


def _open_connection(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        _check_kind(connection, path)
        mode = switch_to_wal(connection, BUSY_SECONDS)
        if mode != "wal":
            raise TeamError(
                f"{path}: SQLite cannot keep a write-ahead log there (its mode is {mode!r})",
                fix="put the file on a local disk",
            )
        # Commits survive a killed process. A power cut may lose the last commits of this file, but
        # merged work is in git.
        connection.execute("pragma synchronous = normal")
        connection.execute("pragma foreign_keys = on")
        connection.execute("begin immediate")
        if _check_kind(connection, path):
            _create_tables(connection)
        _upgrade(connection)
        connection.execute("commit")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_kind(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is empty. Raise TeamError if another program or a later version of
    bae wrote it."""
    header: tuple[int, int, int] = connection.execute(
        "select (select count(*) from sqlite_master), application_id, user_version"
        " from pragma_application_id, pragma_user_version"
    ).fetchone()
    if not any(header):
        return True
    if header[1] != APPLICATION:
        raise TeamError(f"{path} is not the state of a team", fix="name another file")
    if header[2] != FORMAT and header[2] not in _UPGRADES:
        raise TeamError(
            f"{path} has format {header[2]}, and this version of bae reads {FORMAT} and earlier",
            fix="use the version of bae that wrote it",
        )
    return False


def _upgrade(connection: sqlite3.Connection) -> None:
    """Upgrade a file of an earlier format to the current format."""
    [(stored,)] = connection.execute("pragma user_version").fetchall()
    for number in range(stored, FORMAT):
        for statement in _UPGRADES[number]:
            connection.execute(statement)
    if stored != FORMAT:
        connection.execute(f"pragma user_version = {FORMAT}")


def _create_tables(connection: sqlite3.Connection) -> None:
    for table in _metadata.sorted_tables:
        for item in (CreateTable(table), *map(CreateIndex, table.indexes)):
            connection.execute(str(item.compile(dialect=dialect())))
    connection.execute(f"pragma application_id = {APPLICATION}")
    connection.execute(f"pragma user_version = {FORMAT}")
