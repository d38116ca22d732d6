"""What is read from the tables of a journal: one run with all its lines, checked, or a page of the
list of runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from bae.exceptions import describe
from bae.journal.sqlite.errors import damaged, unknown
from bae.journal.sqlite.lease import has_died
from bae.journal.sqlite.schema import LINES_OF_A_RUN
from bae.journal.sqlite.statements import ancestry
from bae.journal.store import (
    Line,
    Listed,
    ParkedGate,
    RunInfo,
    Status,
    StoredRun,
    check_version,
)

AT_ONCE = 200
"""How many runs are read at once to find interrupted ones, which no index has."""

_INFO = """select runs.run, runs.id, runs.graph, runs.status, runs.started, hash, runs.owner, until,
    runs.waiting, runs.error, coalesce(parents.id, runs.came_from), runs.shared,
    (select at from lines where lines.id between runs.run << 32 and (runs.run << 32) + 4294967295
        order by lines.id desc limit 1)
from runs join shapes using (shape)
    left join owners on owners.name = runs.owner
    left join runs parents on parents.run = runs.parent"""


def read(db: sqlite3.Connection, name: str, run_id: str) -> StoredRun:
    """A run as it is at one instant, while others may write it."""
    db.execute("begin")
    try:
        row = db.execute(f"{_INFO} where runs.id = ?", (run_id,)).fetchone()
        if row is None:
            raise unknown(name, run_id)
        run: int = row[0]
        shape: str = db.execute(
            "select text from runs join shapes using (shape) where run = ?", (run,)
        ).fetchone()[0]
        answers = dict(
            db.execute("select gate, value from answers where run = ?", (run,)).fetchall()
        )
        lines: list[Line] = []
        for home in reversed(ancestry(db, run, row[11])):
            _read_lines(db, name, run_id, home, lines)
        return StoredRun(_info(db, row), shape, tuple(lines), answers)
    finally:
        if db.in_transaction:
            db.execute("rollback")


def runs(
    db: sqlite3.Connection,
    name: str,
    status: Listed | None,
    graph: str | None,
    limit: int,
    before: str | None,
) -> list[RunInfo]:
    """A page of the list of runs, the newest first, always found through an index."""
    below = LINES_OF_A_RUN
    if before is not None:
        found = db.execute("select run from runs where id = ?", (before,)).fetchone()
        if found is None:
            raise unknown(name, before)
        below = found[0]
    if status == "interrupted":
        return _interrupted(db, graph, limit, below)
    text, values = page_query(status, graph, limit, below)
    return [_info(db, row) for row in db.execute(text, values).fetchall()]


def _interrupted(
    db: sqlite3.Connection, graph: str | None, limit: int, below: int
) -> list[RunInfo]:
    """A page of the runs that are running and whose owners are gone."""
    found: list[RunInfo] = []
    while len(found) < limit:
        text, values = page_query("running", graph, AT_ONCE, below)
        rows = db.execute(text, values).fetchall()
        found += [info for row in rows if (info := _info(db, row)).is_interrupted()]
        if len(rows) < AT_ONCE:
            break
        below = rows[-1][0]
    return found[:limit]


def page_query(
    status: Status | None, graph: str | None, limit: int, below: int
) -> tuple[str, list[Any]]:
    """The statement behind `runs`, and its parameters."""
    where = "runs.run < ?"
    values: list[Any] = [below]
    for column, value in (("graph", graph), ("status", status)):
        if value is not None:
            where += f" and runs.{column} = ?"
            values.append(value)
    return f"{_INFO} where {where} order by runs.run desc limit ?", [*values, limit]


def older(db: sqlite3.Connection, than: float, statuses: Sequence[Status]) -> list[str]:
    """The ids of runs of these statuses whose last line was written before a time."""
    found: list[str] = []
    for status in dict.fromkeys(statuses):
        found += [
            run_id
            for (run_id,) in db.execute(
                "select id from runs where status = ? and coalesce((select at from lines"
                " where lines.id between run << 32 and (run << 32) + 4294967295"
                " order by lines.id desc limit 1), started) < ? order by run",
                (status, than),
            )
        ]
    return found


def newest_first(db: sqlite3.Connection, run_ids: Sequence[str]) -> list[tuple[int, str]]:
    """Runs with their keys: a fork is newer than what it was forked from."""
    found: list[tuple[int, str]] = []
    for run_id in set(run_ids):
        found += db.execute("select run, id from runs where id = ?", (run_id,))
    return sorted(found, reverse=True)


def _info(db: sqlite3.Connection, row: Sequence[Any]) -> RunInfo:
    died = row[6] is not None and has_died(row[6])
    waiting: list[list[Any]] = json.loads(row[8])
    answered: set[str] = set()
    if waiting:
        found = db.execute("select gate from answers where run = ?", (row[0],))
        answered = {gate for (gate,) in found}
    return RunInfo(
        run_id=row[1],
        graph=row[2],
        status=row[3],
        started=row[4],
        updated=row[4] if row[12] is None else row[12],
        shape=row[5],
        owner=row[6],
        lease_until=None if died else row[7],
        waiting=tuple(ParkedGate(*gate, answered=gate[0] in answered) for gate in waiting),
        error=row[9],
        parent=row[10],
    )


def _read_lines(
    db: sqlite3.Connection,
    name: str,
    run_id: str,
    home: tuple[int, int, int],
    lines: list[Line],
) -> None:
    run, first, end = home
    base = run * LINES_OF_A_RUN
    query = (
        "select id - ?, kind, at, path, step, data, version from lines"
        " where id >= ? and id < ? order by id"
    )
    try:
        # Closed even after an error: an open cursor would keep the log from being cleared.
        with closing(db.execute(query, (base, base + first, base + end))) as rows:
            for row in rows:
                line = Line(*row)
                if line.n != len(lines):
                    break
                check_version(line, run_id)
                if not isinstance(json.loads(line.data), dict):
                    raise ValueError("no JSON object")
                lines.append(line)
            else:
                if end == LINES_OF_A_RUN or len(lines) == end:
                    return
    except (ValueError, TypeError, sqlite3.OperationalError) as error:
        if getattr(error, "sqlite_errorcode", None) is not None:
            raise
        what = f"line {len(lines)} of run {run_id!r} cannot be read ({describe(error)})"
        raise damaged(name, what, run_id=run_id, cause=error) from error
    raise damaged(name, f"line {len(lines)} of run {run_id!r} is missing", run_id=run_id)
