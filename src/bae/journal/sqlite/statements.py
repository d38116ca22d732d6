"""What is written to the tables of a journal. Each function runs inside a transaction of the writer
and checks before it writes, so that a refusal has changed nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from secrets import randbits
from time import time
from typing import Any

from bae.journal.sqlite.errors import exists, unknown
from bae.journal.sqlite.lease import Fence, Lease, count_lines, forget_dead_owners
from bae.journal.sqlite.schema import LINES_OF_A_RUN
from bae.journal.store import Line, ParkedGate, Rewrite, Status, StoredRun, not_replaced

# Adds nothing where another process has claimed the run since: its epoch is a new one then.
_ADD_LINE = """insert into lines (id, kind, at, path, step, data, version)
    select ? + (run << 32), ?, ?, ?, ?, ?, ? from runs where run = ? and epoch = ?"""


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
        raise exists(run_id)
    assert added.lastrowid is not None
    fence = added.lastrowid, epoch
    add_lines(db, [line + fence for line in lines])
    return fence


def _find(db: sqlite3.Connection, name: str, run_id: str) -> tuple[int, int]:
    found = db.execute("select run, shared from runs where id = ?", (run_id,)).fetchone()
    if found is None:
        raise unknown(name, run_id)
    return found[0], found[1]
