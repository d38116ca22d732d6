"""Queries for a page of a journal's runs, for a run's entry in the list, and for its files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from bae.exceptions import describe
from bae.journal.sqlite.lease import has_died
from bae.journal.stored_runs import LATEST, Line, ParkedGate, RunInfo, RunStatus, Time

_LAST = """(select {} from lines where lines.id between runs.run << 32
    and (runs.run << 32) + 4294967295 order by lines.id desc limit 1)"""

COUNT = f"coalesce({_LAST.format('(lines.id & 4294967295) + 1')}, runs.shared)"
"""SQL for the number of lines of a run, including lines shared with the run it was forked from."""

UPDATED = f"coalesce({_LAST.format('at')}, runs.started)"

INFO = f"""select runs.run, runs.id, runs.graph, runs.status, runs.started, {UPDATED}, hash,
    runs.owner, until, runs.waiting, runs.error, coalesce(parents.id, runs.came_from), runs.thread,
    runs.metadata, runs.summary, runs.change
from runs left join shapes using (shape)
    left join owners on owners.name = runs.owner
    left join runs parents on parents.run = runs.parent"""

# The runs that store the lines of a run, with the numbers of these lines: the run itself, and its
# parents up to the fork.
HOMES = """with recursive homes (run, first, end, parent) as (
    select run, shared, 4294967296, parent from runs where run = ?
    union -- not `union all`, since a damaged run may be its own parent
    select runs.run, min(runs.shared, homes.first), homes.first, runs.parent
        from homes join runs on runs.run = homes.parent where homes.first > 0
) select run, first, end from homes order by first, end"""

_LABELED = "runs.run in (select run from labels where key = ? and value = ?) and "

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def page_query(
    status: RunStatus | None,
    graph: str | None,
    thread: str | None = None,
    labels: Mapping[str, str] = NO_LABELS,
    *,
    by_change: bool = False,
) -> tuple[str, list[str]]:
    """Return the SQL of `Journal.runs`, which always uses an index, and its first parameters.

    Two more parameters follow. The first is the key below which the page begins, or, if `by_change`
    is true, the change number above which the page begins. The second is the size of the page."""
    wanted = {"runs.thread": thread, "runs.graph": graph, "runs.status": status}
    filters = {column: value for column, value in wanted.items() if value is not None}
    where = "".join(f"{column} = ? and " for column in filters)
    where += _LABELED * len(labels)
    order = "runs.run < ? order by runs.run desc"
    if by_change:
        order = "runs.change > ? order by runs.change"
    return f"{INFO} where {where}{order} limit ?", [
        *filters.values(),
        *chain.from_iterable(labels.items()),
    ]


def files_of(db: sqlite3.Connection, run: int, lines: Sequence[Line]) -> dict[str, bytes]:
    """Return the files of a run by hash: its own files, and files in the lines that it shares with
    the runs it was forked from."""
    if not db.execute("select 1 from file_uses limit 1").fetchone():
        return {}
    homes = [home for home, *_ in db.execute(HOMES, (run,)).fetchall()]
    query = f"select hash, max(run = ?) from file_uses where run in ({marks(homes)}) group by hash"
    files: dict[str, bytes] = {}
    for hash, is_own in db.execute(query, (run, *homes)).fetchall():
        if not is_own and not any(hash in line.data for line in lines):
            continue  # the parent got the file after the fork
        data = db.execute("select data from files where hash = ?", (hash,)).fetchone()
        if data is None or not isinstance(data[0], bytes):
            raise ValueError(f"the file {hash!r:.20} is missing")
        files[hash] = data[0]
    return files


def run_info(db: sqlite3.Connection, row: Sequence[Any]) -> RunInfo:
    """Return the entry of a run from its row. Raise one of `UNREADABLE` if the row is damaged."""
    run, run_id, graph, status, started, updated, shape, owner, until, waiting, *rest = row
    error, parent, thread, metadata, summary, change = rest
    infos, gates = _adapters()
    parked: tuple[ParkedGate, ...] = ()
    if waiting != "[]":
        answered = db.execute("select gate from answers where run = ?", (run,)).fetchall()
        listed = gates.validate_json(waiting)
        parked = tuple(ParkedGate(*gate, answered=(gate[0],) in answered) for gate in listed)
    values = run_id, graph, status, started, updated, shape, owner, until, parked, error, parent
    values += thread, json.loads(metadata), summary and json.loads(summary), change
    info = infos.validate_python(dict(zip(_COLUMNS, values, strict=True)))
    return replace(info, lease_until=None) if owner is not None and has_died(owner) else info


def list_entry(db: sqlite3.Connection, row: Sequence[Any]) -> RunInfo:
    """Return the entry of a run for a list. If the row is damaged, return a failed run with the
    reason, so that other runs can still be listed and the damaged run can be deleted."""
    try:
        return run_info(db, row)
    except UNREADABLE as error:
        if getattr(error, "sqlite_errorcode", None) is not None:
            raise
        run_id, graph = (value if isinstance(value, str) else repr(value) for value in row[1:3])
        reason = f"its entry in the journal is damaged: {describe(error)}"
        return RunInfo(run_id, graph, "failed", 0.0, 0.0, "", error=reason)


def fetch_rows(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[Any]:
    """Return all rows of a query. A text that is not UTF-8 becomes bytes, so that the other rows
    can be read. The cursor is not returned: the frames of an error would keep it open, and the
    connection would continue to see the old state of the tables."""
    db.text_factory = _decode_text
    try:
        return db.execute(query, values).fetchall()
    finally:
        db.text_factory = str


def _decode_text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


@cache
def _adapters() -> tuple[
    TypeAdapter[RunInfo], TypeAdapter[list[tuple[str, str, str, Time | None]]]
]:
    """Return the type adapters of the entry of a run and of its gates."""
    return TypeAdapter(RunInfo), TypeAdapter(list[tuple[str, str, str, Time | None]])


def is_possible(line: Line) -> bool:
    return 0 <= line.at < LATEST and line.step >= 0


_COLUMNS = [field.name for field in fields(RunInfo)]

COLUMN_TYPES = int, str, float, str, int, str, int
"""The types of the columns of a line. They must be checked, since SQLite lets other programs store
any type."""

UNREADABLE = ValueError, TypeError, OverflowError, RecursionError, sqlite3.OperationalError
"""The errors that damaged data in the tables can raise."""


def marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
