"""What is written to the tables of a journal and read from them. A function that writes runs inside
a transaction of the writer and checks first, so that a refusal has changed nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from secrets import randbits
from time import time
from typing import Any

from bae.exceptions import JournalError, describe
from bae.journal.sqlite.lease import Fence, Lease, count_lines, forget_dead_owners, has_died
from bae.journal.sqlite.schema import LINES_OF_A_RUN, damaged, unknown
from bae.journal.store import (
    Line,
    Listed,
    ParkedGate,
    Rewrite,
    RunInfo,
    Status,
    StoredRun,
    check_version,
    not_replaced,
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
# Adds nothing where another process has claimed the run since: its epoch is a new one then.
_ADD_LINE = """insert into lines (id, kind, at, path, step, data, version)
    select ? + (run << 32), ?, ?, ?, ?, ?, ? from runs where run = ? and epoch = ?"""


# Writing


def add_lines(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> bool:
    """Add rows of (*line, *fence). False where a claim was lost: then roll back."""
    return db.executemany(_ADD_LINE, rows).rowcount == len(rows)


def create(
    db: sqlite3.Connection,
    lease: Lease | None,
    run_id: str,
    graph: str,
    shape: str,
    shape_hash: str,
    lines: Sequence[Line],
) -> tuple[Fence, int]:
    """Add a run with its first lines; returns its fence and the number of the next line."""
    db.execute("insert or ignore into shapes (hash, text) values (?, ?)", (shape_hash, shape))
    fence = _add_run(
        db,
        "insert into runs (id, started, epoch, graph, status, owner, shape)"
        " select ?, ?, ?, ?, 'running', ?, shape from shapes where hash = ?",
        run_id,
        lines,
        0,
        (graph, lease and lease.owner, shape_hash),
    )
    return fence, len(lines)


def put(db: sqlite3.Connection, run: StoredRun, replace: bool = False) -> None:
    """Add a run that was read elsewhere, as it was there, without an owner."""
    info = run.info
    if replace:
        old = db.execute(
            "select run, owner, (select 1 from runs forks where forks.parent = runs.run)"
            " from runs where id = ?",
            (info.run_id,),
        ).fetchone()
        if old is not None and not delete(db, [(old[0], info.run_id)]):
            raise not_replaced(info.run_id, None if old[2] else old[1])
    shape = run.shape, info.shape
    fence, _ = create(db, None, info.run_id, info.graph, *shape, run.lines)
    db.execute(
        "update runs set started = ?, came_from = ? where run = ?",
        (info.started, info.parent, fence[0]),
    )
    db.executemany(
        "insert into answers (run, gate, value) values (?, ?, ?)",
        [(fence[0], gate, value) for gate, value in run.answers.items()],
    )
    release(db, fence, info.status, info.waiting, info.error)


def release(
    db: sqlite3.Connection, fence: Fence, status: Status, waiting: Sequence[ParkedGate], error: str
) -> bool:
    """Store how a run ended, and that it has no owner; False where the claim was lost before."""
    gates = "[]"
    if waiting:
        gates = json.dumps([(g.address, g.place, g.question, g.deadline) for g in waiting])
    changed = db.execute(
        "update runs set owner = null, status = ?, waiting = ?, error = ?"
        " where run = ? and epoch = ?",
        (status, gates, error, *fence),
    )
    return changed.rowcount > 0


def answer(db: sqlite3.Connection, name: str, run_id: str, gate: str, value: str) -> bool:
    """Add the answer to a gate, if there is none."""
    run, _ = _find(db, name, run_id)
    added = db.execute(
        "insert or ignore into answers (run, gate, value) values (?, ?, ?)", (run, gate, value)
    )
    return added.rowcount > 0


def fork(
    db: sqlite3.Connection, name: str, run_id: str, new_id: str, upto: int, lines: Sequence[Line]
) -> None:
    """Add a run that shares the lines of another below `upto`."""
    parent, shared = _find(db, name, run_id)
    there = count_lines(db, parent, shared)
    if not 0 <= upto <= there:
        raise ValueError(f"run {run_id!r} has {there} lines, it cannot be forked at {upto}")
    _add_run(
        db,
        "insert into runs (id, started, epoch, graph, status, shape, parent, shared)"
        " select ?, ?, ?, graph, 'running', shape, run, ? from runs where run = ?",
        new_id,
        lines,
        upto,
        (upto, parent),
    )


def rewrite(db: sqlite3.Connection, name: str, changes: Iterable[Rewrite]) -> bool:
    """Replace lines in the runs that have them. Returns whether the file must be vacuumed, as
    copies of old lines may be left in it: of these, or of an earlier call that failed halfway."""
    rows: list[tuple[Any, ...]] = []
    forgotten: list[tuple[int, str]] = []
    for run_id, lines, forget in changes:
        run, shared = _find(db, name, run_id)
        homes = ancestry(db, run, shared)
        for line in lines:
            home = next((home for home, first, end in homes if first <= line.n < end), 0)
            key = home * LINES_OF_A_RUN + line.n
            if not db.execute("select 1 from lines where id = ?", (key,)).fetchone():
                raise ValueError(f"run {run_id!r} has no line {line.n} to replace")
            rows.append((*line[1:], key))
        forgotten += [(run, gate) for gate in forget]
    db.executemany(
        "update lines set kind = ?, at = ?, path = ?, step = ?, data = ?, version = ? where id = ?",
        rows,
    )
    db.executemany("delete from answers where run = ? and gate = ?", forgotten)
    if rows or forgotten:
        db.execute("insert into unclean (since) values (?)", (time(),))
    return db.execute("select 1 from unclean limit 1").fetchone() is not None


def vacuum(db: sqlite3.Connection) -> None:
    """Leave nothing in the file and its log but what can be read from the tables. The file notes
    that this is due, for the next call where it fails. Outside of a transaction."""
    db.execute("vacuum")
    if db.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
        busy = sqlite3.OperationalError("the log is in use")
        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise busy
    db.execute("delete from unclean")


def delete(db: sqlite3.Connection, runs: Sequence[tuple[int, str]]) -> int:
    """Delete runs, given by key and id and the newest first, except those that have forks or a
    living owner; returns how many."""
    forget_dead_owners(db)
    now = time()
    deleted = 0
    for run, run_id in runs:
        found = db.execute(
            "delete from runs where run = ? and id = ?"
            " and not exists (select 1 from owners where name = runs.owner and until > ?)"
            " and not exists (select 1 from runs forks where forks.parent = runs.run)",
            (run, run_id, now),
        )
        if found.rowcount:
            deleted += 1
            first = run * LINES_OF_A_RUN
            end = first + LINES_OF_A_RUN
            db.execute("delete from lines where id >= ? and id < ?", (first, end))
            db.execute("delete from answers where run = ?", (run,))
    return deleted


def _add_run(
    db: sqlite3.Connection,
    statement: str,
    run_id: str,
    lines: Sequence[Line],
    first: int,
    more: tuple[Any, ...],
) -> Fence:
    """Add a run with lines that are numbered from `first`. The parameters of the statement are its
    id, when it started, its epoch, and `more`."""
    for n, line in enumerate(lines, first):
        if line.n != n:
            raise ValueError(f"run {run_id!r}: got line {line.n} where {n} is due")
    started = lines[0].at if lines else time()
    epoch = randbits(48)
    added = db.execute(f"{statement} on conflict (id) do nothing", (run_id, started, epoch, *more))
    if not added.rowcount:
        raise JournalError(
            f"there is a run {run_id!r} already",
            code="bae-run-exists",
            run_id=run_id,
            fix="give the new run another id, or continue that one: graph.resume(run_id, …)",
        )
    assert added.lastrowid is not None
    fence = added.lastrowid, epoch
    add_lines(db, [line + fence for line in lines])
    return fence


def _find(db: sqlite3.Connection, name: str, run_id: str) -> tuple[int, int]:
    found = db.execute("select run, shared from runs where id = ?", (run_id,)).fetchone()
    if found is None:
        raise unknown(name, run_id)
    return found[0], found[1]


# Reading


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


def ancestry(db: sqlite3.Connection, run: int, shared: int) -> list[tuple[int, int, int]]:
    """Where the lines of a run are: (run, first, end) for itself, then for those it shares with."""
    homes = [(run, shared, LINES_OF_A_RUN)]
    while shared:
        found = db.execute(
            "select p.run, p.shared from runs c join runs p on p.run = c.parent where c.run = ?",
            (run,),
        ).fetchone()
        if found is None:
            break
        end = shared
        run, shared = found
        shared = min(shared, end)
        homes.append((run, shared, end))
    return homes


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
