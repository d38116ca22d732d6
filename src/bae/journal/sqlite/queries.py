"""What is read from the file of a `SQLiteJournal`: one run with all its lines, checked, or a page
of the list of runs. The reader calls these; `statements.py` is about what is written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from bae.exceptions import JournalError
from bae.journal.sqlite.errors import damaged, oneline, unknown
from bae.journal.sqlite.processes import has_died
from bae.journal.sqlite.statements import LINES_OF_A_RUN, ancestry
from bae.journal.store import Line, Listed, ParkedGate, RunInfo, Status, StoredRun

STATUSES: tuple[Status, ...] = get_args(Status)
AT_ONCE = 200
"""How many runs are looked at together for interrupted ones: no index knows these."""

_INFO = """select runs.run, runs.id, runs.graph, runs.status, runs.started, hash, runs.owner, until,
    runs.waiting, runs.error, coalesce(parents.id, runs.came_from), runs.shared,
    (select at from lines where lines.id between runs.run << 32 and (runs.run << 32) + 4294967295
        order by lines.id desc limit 1)
from runs join shapes using (shape)
    left join owners on owners.name = runs.owner
    left join runs parents on parents.run = runs.parent"""


def read(connection: sqlite3.Connection, path: str, run_id: str) -> StoredRun:
    """A run as it stands at one instant, whoever writes it meanwhile."""
    connection.execute("begin")
    try:
        row = connection.execute(f"{_INFO} where runs.id = ?", (run_id,)).fetchone()
        if row is None:
            raise unknown(path, run_id)
        run: int = row[0]
        shape: str = connection.execute(
            "select text from runs join shapes using (shape) where run = ?", (run,)
        ).fetchone()[0]
        answers = dict(
            connection.execute("select gate, value from answers where run = ?", (run,)).fetchall()
        )
        lines: list[Line] = []
        for home in reversed(ancestry(connection, run, row[11])):
            _read_lines(connection, path, run_id, home, lines)
        return StoredRun(_info(connection, row), shape, tuple(lines), answers)
    finally:
        if connection.in_transaction:
            connection.execute("rollback")


def runs(
    connection: sqlite3.Connection,
    path: str,
    status: Listed | None,
    graph: str | None,
    limit: int,
    before: str | None,
) -> list[RunInfo]:
    """A page of the list of runs, the newest first, found through an index whatever is asked."""
    below = LINES_OF_A_RUN
    if before is not None:
        found = connection.execute("select run from runs where id = ?", (before,)).fetchone()
        if found is None:
            raise unknown(path, before)
        below = found[0]
    if status == "interrupted":
        return _interrupted(connection, graph, limit, below)
    text, values = page_query(status, graph, limit, below)
    return [_info(connection, row) for row in connection.execute(text, values).fetchall()]


def _interrupted(
    connection: sqlite3.Connection, graph: str | None, limit: int, below: int
) -> list[RunInfo]:
    """A page of the runs that are under way and whose owners are gone."""
    found: list[RunInfo] = []
    while len(found) < limit:
        text, values = page_query("running", graph, AT_ONCE, below)
        rows = connection.execute(text, values).fetchall()
        found += [info for row in rows if (info := _info(connection, row)).is_interrupted()]
        if len(rows) < AT_ONCE:
            break
        below = rows[-1][0]
    return found[:limit]


def page_query(
    status: Status | None, graph: str | None, limit: int, below: int
) -> tuple[str, list[Any]]:
    """The statement behind `runs`, and its parameters."""
    order = "order by runs.run desc limit ?"
    if graph is None:
        if status is None:
            return f"{_INFO} where runs.run < ? {order}", [below, limit]
        return f"{_INFO} where runs.status = ? and runs.run < ? {order}", [status, below, limit]
    # The index is by graph, status and age: a page of each status has the page of all of them.
    each = "select * from (select run from runs where graph = ? and status = ? and run < ?"
    each += " order by run desc limit ?)"
    wanted = STATUSES if status is None else (status,)
    values: list[Any] = [value for one in wanted for value in (graph, one, below, limit)]
    return (
        f"{_INFO} where runs.run in ({' union all '.join([each] * len(wanted))}) {order}",
        [*values, limit],
    )


def older(connection: sqlite3.Connection, than: float, statuses: Sequence[Status]) -> list[str]:
    """The ids of runs of these statuses whose last line was written before a time."""
    found: list[str] = []
    for status in dict.fromkeys(statuses):
        found += [
            run_id
            for (run_id,) in connection.execute(
                "select id from runs where status = ? and coalesce((select at from lines"
                " where lines.id between run << 32 and (run << 32) + 4294967295"
                " order by lines.id desc limit 1), started) < ? order by run",
                (status, than),
            )
        ]
    return found


def newest_first(connection: sqlite3.Connection, run_ids: Sequence[str]) -> list[tuple[int, str]]:
    """Runs with their keys: a fork is newer than what it was forked from."""
    found: list[tuple[int, str]] = []
    for run_id in set(run_ids):
        found += connection.execute("select run, id from runs where id = ?", (run_id,))
    return sorted(found, reverse=True)


def _info(connection: sqlite3.Connection, row: Sequence[Any]) -> RunInfo:
    died = row[6] is not None and has_died(row[6])
    waiting: list[list[Any]] = json.loads(row[8])
    answered: set[str] = set()
    if waiting:
        told = connection.execute("select gate from answers where run = ?", (row[0],))
        answered = {gate for (gate,) in told}
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
    connection: sqlite3.Connection,
    path: str,
    run_id: str,
    home: tuple[int, int, int],
    lines: list[Line],
) -> None:
    run, first, end = home
    base = run * LINES_OF_A_RUN
    rows: Iterator[tuple[Any, ...]] = connection.execute(
        "select id - ?, kind, at, path, step, data from lines where id >= ? and id < ? order by id",
        (base, base + first, base + end),
    )
    try:
        for row in rows:
            line = Line(*row)
            if line.n != len(lines):
                raise damaged(
                    path, f"line {len(lines)} of run {run_id!r} is missing", run_id=run_id
                )
            if not isinstance(json.loads(line.data), dict):
                raise ValueError("no JSON object")
            lines.append(line)
    except (ValueError, TypeError, sqlite3.OperationalError) as error:
        if getattr(error, "sqlite_errorcode", None) is not None:
            raise
        what = f"line {len(lines)} of run {run_id!r} cannot be read ({oneline(error)})"
        raise damaged(path, what, run_id=run_id, cause=error) from error
    if end != LINES_OF_A_RUN and len(lines) < end:
        raise _missing(path, run_id, len(lines))


def _missing(path: str, run_id: str, n: int) -> JournalError:
    return damaged(path, f"line {n} of run {run_id!r} is missing", run_id=run_id)
