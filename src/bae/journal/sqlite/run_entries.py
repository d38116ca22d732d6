"""Queries on the tables of a journal: the runs of a page, the entry of a run, and the files of a
run."""

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
"""How many lines a run has, including the lines it shares with the run it was forked from."""

UPDATED = f"coalesce({_LAST.format('at')}, runs.started)"

INFO = f"""select runs.run, runs.id, runs.graph, runs.status, runs.started, {UPDATED}, hash,
    runs.owner, until, runs.waiting, runs.error, coalesce(parents.id, runs.came_from), runs.thread,
    runs.metadata, runs.summary, runs.change
from runs left join shapes using (shape)
    left join owners on owners.name = runs.owner
    left join runs parents on parents.run = runs.parent"""

# Where the lines of a run are: in the run itself, and below its fork point in its parents.
HOMES = """with recursive homes (run, first, end, parent) as (
    select run, shared, 4294967296, parent from runs where run = ?
    union -- and not all of them: a damaged run may be its own parent
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
    """The statement behind `runs`, always with an index, and its first parameters. The parameters
    after them are the key below which the page begins, or the change above which, and its size."""
    wanted = {"runs.thread": thread, "runs.graph": graph, "runs.status": status}
    given = {column: value for column, value in wanted.items() if value is not None}
    where = "".join(f"{column} = ? and " for column in given)
    where += _LABELED * len(labels)
    order = "runs.run < ? order by runs.run desc"
    if by_change:
        order = "runs.change > ? order by runs.change"
    return f"{INFO} where {where}{order} limit ?", [
        *given.values(),
        *chain.from_iterable(labels.items()),
    ]


def files_of(db: sqlite3.Connection, run: int, lines: Sequence[Line]) -> dict[str, bytes]:
    """The files of a run by hash: its own files, and files in the lines that it shares with the
    runs it was forked from."""
    if not db.execute("select 1 from file_uses limit 1").fetchone():
        return {}
    homes = [home for home, *_ in db.execute(HOMES, (run,)).fetchall()]
    query = f"select hash, max(run = ?) from file_uses where run in ({marks(homes)}) group by hash"
    files: dict[str, bytes] = {}
    for hash, is_own in db.execute(query, (run, *homes)).fetchall():
        if not is_own and not any(hash in line.data for line in lines):
            continue  # another run got it after the fork
        data = db.execute("select data from files where hash = ?", (hash,)).fetchone()
        if data is None or not isinstance(data[0], bytes):
            raise ValueError(f"the file {hash!r:.20} is missing")
        files[hash] = data[0]
    return files


def run_info(db: sqlite3.Connection, row: Sequence[Any]) -> RunInfo:
    """The entry of a run. Raises one of `UNREADABLE` if the row is no entry."""
    run, run_id, graph, status, started, updated, shape, owner, until, waiting, *rest = row
    error, parent, thread, metadata, summary, change = rest
    infos, gates = _forms()
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
    """The entry of a run in a list. A damaged entry is listed as a failed run with the reason, to
    be deleted or read from a backup: it must not hide the others."""
    try:
        return run_info(db, row)
    except UNREADABLE as error:
        if getattr(error, "sqlite_errorcode", None) is not None:
            raise
        run_id, graph = (each if isinstance(each, str) else repr(each) for each in row[1:3])
        what = f"its entry in the journal is damaged: {describe(error)}"
        return RunInfo(run_id, graph, "failed", 0.0, 0.0, "", error=what)


def fetch_rows(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[Any]:
    """All rows, with bytes for a text that is not UTF-8, which must not hide the other rows. Never
    returns an open cursor: the frames of an error would hold it, and with it the earlier state of
    the tables."""
    db.text_factory = _text
    try:
        return db.execute(query, values).fetchall()
    finally:
        db.text_factory = str


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


@cache
def _forms() -> tuple[TypeAdapter[RunInfo], TypeAdapter[list[tuple[str, str, str, Time | None]]]]:
    """The forms of the entry of a run, and of the gates in it."""
    return TypeAdapter(RunInfo), TypeAdapter(list[tuple[str, str, str, Time | None]])


def is_possible(line: Line) -> bool:
    return 0 <= line.at < LATEST and line.step >= 0


_COLUMNS = [field.name for field in fields(RunInfo)]

COLUMN_TYPES = int, str, float, str, int, str, int
"""The types of the columns of a line; SQLite stores any type that another program writes."""

UNREADABLE = ValueError, TypeError, OverflowError, RecursionError, sqlite3.OperationalError
"""The errors for anything in the tables that bae does not write."""


def marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
