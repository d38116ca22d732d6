"""What is written to the file of a `SQLiteJournal`, one function for each thing that can happen to
a run. The writer calls them inside a transaction of its own; each checks before it writes, so that
what it refuses has changed nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from secrets import randbits
from time import time
from typing import Any

from bae.exceptions import JournalError
from bae.journal.refusals import has_ended, not_replaced
from bae.journal.sqlite.errors import unknown
from bae.journal.sqlite.processes import has_died
from bae.journal.store import Line, ParkedGate, Rewrite, Status, StoredRun

LONG_SILENT = 86400.0
"""Seconds after which an owner whose word is over is forgotten: it gives it anew if it lives."""
LINES_OF_A_RUN = 1 << 32
"""How far apart the keys of two runs are; the number of a line is below."""

ADD_LINE = """insert into lines (id, kind, at, path, step, data)
    select ? + (run << 32), ?, ?, ?, ?, ? from runs where run = ? and epoch = ?"""
"""Adds nothing where somebody else has claimed the run since: its `epoch` is another one then."""

Fence = tuple[int, int]
"""The key of a run and its epoch under a claim: what every line of it is checked against."""


def create(
    connection: sqlite3.Connection,
    owner: str,
    run_id: str,
    graph: str,
    shape: str,
    shape_hash: str,
    lines: Sequence[Line],
) -> Fence:
    """Add a run with its first lines, claimed by `owner`."""
    _refuse_existing(connection, run_id)
    connection.execute(
        "insert or ignore into shapes (hash, text) values (?, ?)", (shape_hash, shape)
    )
    started = lines[0].at if lines else time()
    fence = _next_key(connection), randbits(48)
    connection.execute(
        "insert into runs (run, id, graph, status, started, shape, owner, epoch)"
        " select ?, ?, ?, 'running', ?, shape, ?, ? from shapes where hash = ?",
        (fence[0], run_id, graph, started, owner, fence[1], shape_hash),
    )
    add_lines(connection, fence, lines)
    return fence


def put(connection: sqlite3.Connection, run: StoredRun, replace: bool = False) -> None:
    """Add a run that was read elsewhere, as it was there, and nobody's."""
    info = run.info
    if replace:
        _take_away(connection, info.run_id)
    shape = run.shape, info.shape
    fence = create(connection, "", info.run_id, info.graph, *shape, run.lines)
    connection.execute(
        "update runs set started = ?, came_from = ? where run = ?",
        (info.started, info.parent, fence[0]),
    )
    connection.executemany(
        "insert into answers (run, gate, value) values (?, ?, ?)",
        [(fence[0], gate, value) for gate, value in run.answers.items()],
    )
    release(connection, fence, info.status, info.waiting, info.error)


def add_lines(connection: sqlite3.Connection, fence: Fence, lines: Iterable[Line]) -> int:
    """Add lines under a claim, and answer how many: none where it was lost."""
    return connection.executemany(ADD_LINE, [line + fence for line in lines]).rowcount


def claim(
    connection: sqlite3.Connection, path: str, run_id: str, owner: str, has: Callable[[int], bool]
) -> tuple[Fence, int]:
    """Make `owner` the owner of a run, and answer where its lines go on. `has` says which runs the
    same owner is at work on."""
    found = connection.execute(
        "select run, runs.owner, until, shared, status from runs"
        " left join owners on name = runs.owner where id = ?",
        (run_id,),
    ).fetchone()
    if found is None:
        raise unknown(path, run_id)
    run, had, until, shared, status = found
    if has(run) if had == owner else _is_at_work(had, until):
        left = (until or 0.0) - time()
        raise JournalError(
            f"run {run_id!r} has an owner, {had}, whose word is good for {max(left, 0):.1f} s more",
            code="bae-run-owned",
            run_id=run_id,
            fix="leave the run to its owner. Where that has died, on another machine, try again "
            "when its lease is over",
        )
    if status == "ended":
        raise has_ended(run_id)
    fence = run, randbits(48)
    connection.execute(
        "update runs set owner = ?, epoch = ?, status = 'running', waiting = '[]', error = ''"
        " where run = ?",
        (owner, fence[1], run),
    )
    return fence, count_lines(connection, run, shared)


def release(
    connection: sqlite3.Connection,
    fence: Fence,
    status: Status,
    waiting: Sequence[ParkedGate],
    error: str,
) -> bool:
    """Say how a run came out, and that it has no owner; False where that was lost before."""
    gates = "[]"
    if waiting:
        gates = json.dumps([(g.address, g.place, g.question, g.deadline) for g in waiting])
    changed = connection.execute(
        "update runs set owner = null, status = ?, waiting = ?, error = ?"
        " where run = ? and epoch = ?",
        (status, gates, error, *fence),
    )
    return changed.rowcount > 0


def give_up(connection: sqlite3.Connection, fences: Iterable[Fence]) -> None:
    """Leave runs as they stand, without an owner."""
    connection.executemany("update runs set owner = null where run = ? and epoch = ?", fences)


def renew(connection: sqlite3.Connection, owner: str, until: float) -> None:
    """Say that an owner is alive: one small row, however many runs it has."""
    connection.execute("replace into owners (name, until) values (?, ?)", (owner, until))


def forget_dead(connection: sqlite3.Connection) -> None:
    """Take away owners that have died, or have said nothing for long. Runs that still bear the name
    of one are nobody's."""
    long_ago = time() - LONG_SILENT
    for name, until in connection.execute("select name, until from owners").fetchall():
        if until < long_ago or has_died(name):
            forget_owner(connection, name)


def forget_owner(connection: sqlite3.Connection, owner: str) -> None:
    """Take away an owner that has no runs any more."""
    connection.execute("delete from owners where name = ?", (owner,))


def owner_of(connection: sqlite3.Connection, run_id: str) -> str | None:
    """Who has a run, if anybody does."""
    found = connection.execute("select owner from runs where id = ?", (run_id,)).fetchone()
    return found[0] if found else None


def answer(connection: sqlite3.Connection, path: str, run_id: str, gate: str, value: str) -> bool:
    """Add the answer to a gate, the first one."""
    run, _ = _found(connection, path, run_id)
    added = connection.execute(
        "insert or ignore into answers (run, gate, value) values (?, ?, ?)", (run, gate, value)
    )
    return added.rowcount > 0


def fork(
    connection: sqlite3.Connection,
    path: str,
    run_id: str,
    new_id: str,
    upto: int,
    lines: Sequence[Line],
) -> None:
    """Add a run that has the lines of another below `upto`."""
    parent, shared = _found(connection, path, run_id)
    _refuse_existing(connection, new_id)
    there = count_lines(connection, parent, shared)
    if not 0 <= upto <= there:
        raise ValueError(f"run {run_id!r} has {there} lines, it cannot be forked at {upto}")
    if [line.n for line in lines] != list(range(upto, upto + len(lines))):
        raise ValueError(f"the lines of a run forked at {upto} must be numbered from there")
    fence = _next_key(connection), randbits(48)
    started = lines[0].at if lines else time()
    connection.execute(
        "insert into runs (run, id, graph, status, started, shape, epoch, parent, shared)"
        " select ?, ?, graph, 'running', ?, shape, ?, run, ? from runs where run = ?",
        (fence[0], new_id, started, fence[1], upto, parent),
    )
    add_lines(connection, fence, lines)


def rewrite(connection: sqlite3.Connection, path: str, changes: Iterable[Rewrite]) -> bool:
    """Put other lines in the place of those that are there, in the runs that have them. The answer
    is whether the file must be written anew, as copies of lines may be left in it: these, or some
    that an earlier call could not get rid of."""
    rows: list[tuple[Any, ...]] = []
    forgotten: list[tuple[int, str]] = []
    for run_id, lines, forget in changes:
        run, shared = _found(connection, path, run_id)
        homes = ancestry(connection, run, shared)
        for line in lines:
            home = next((home for home, first, end in homes if first <= line.n < end), 0)
            key = home * LINES_OF_A_RUN + line.n
            if not connection.execute("select 1 from lines where id = ?", (key,)).fetchone():
                raise ValueError(f"run {run_id!r} has no line {line.n} to replace")
            rows.append((*line[1:], key))
        forgotten += [(run, gate) for gate in forget]
    connection.executemany(
        "update lines set kind = ?, at = ?, path = ?, step = ?, data = ? where id = ?", rows
    )
    connection.executemany("delete from answers where run = ? and gate = ?", forgotten)
    if rows or forgotten:
        connection.execute("insert into unclean (since) values (?)", (time(),))
    return connection.execute("select 1 from unclean limit 1").fetchone() is not None


def ancestry(connection: sqlite3.Connection, run: int, shared: int) -> list[tuple[int, int, int]]:
    """Where the lines of a run are: (run, first, end) for itself, then for those it shares with."""
    homes = [(run, shared, LINES_OF_A_RUN)]
    while shared:
        found = connection.execute(
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


def count_lines(connection: sqlite3.Connection, run: int, shared: int) -> int:
    """How many lines a run has, those included that it shares."""
    first = run * LINES_OF_A_RUN
    last: int | None = connection.execute(
        "select max(id) from lines where id between ? and ?", (first, first + LINES_OF_A_RUN - 1)
    ).fetchone()[0]
    return shared if last is None else last - first + 1


def delete(connection: sqlite3.Connection, runs: Sequence[tuple[int, str]]) -> int:
    """Take runs out of the list, given with their keys and the newest first, but for those that
    others share lines with or that somebody is at work on. Their lines are left to `sweep`."""
    forget_dead(connection)
    now = time()
    deleted = 0
    for run, run_id in runs:
        gone = connection.execute(
            "delete from runs where run = ? and id = ?"
            " and not exists (select 1 from owners where name = runs.owner and until > ?)"
            " and not exists (select 1 from runs forks where forks.parent = runs.run)",
            (run, run_id, now),
        ).rowcount
        if gone:
            deleted += 1
            _leave_lines(connection, run)
    return deleted


def sweep(connection: sqlite3.Connection, at_once: int) -> bool:
    """Delete some lines of deleted runs; False when none are left."""
    left = at_once
    while left > 0:
        run = connection.execute("select run from deleted limit 1").fetchone()
        if run is None:
            return False
        first = run[0] * LINES_OF_A_RUN
        done = connection.execute(
            "delete from lines where id in"
            " (select id from lines where id between ? and ? order by id limit ?)",
            (first, first + LINES_OF_A_RUN - 1, left),
        ).rowcount
        if done < left:
            connection.execute("delete from deleted where run = ?", run)
        left -= max(done, 1)
    return True


def _take_away(connection: sqlite3.Connection, run_id: str) -> None:
    """Take a run out of the list, if there is one, for another that comes in its place."""
    found = connection.execute(
        "select run, runs.owner, until from runs left join owners on name = runs.owner"
        " where id = ?",
        (run_id,),
    ).fetchone()
    if found is None:
        return
    run, owner, until = found
    if _is_at_work(owner, until):
        raise not_replaced(run_id, owner)
    if connection.execute("select 1 from runs where parent = ?", (run,)).fetchone():
        raise not_replaced(run_id, None)
    connection.execute("delete from runs where run = ?", (run,))
    _leave_lines(connection, run)


def _leave_lines(connection: sqlite3.Connection, run: int) -> None:
    """Leave the lines of a run that is gone to `sweep`: there may be many."""
    connection.execute("delete from answers where run = ?", (run,))
    connection.execute("insert into deleted (run) values (?)", (run,))


def _is_at_work(owner: str | None, until: float | None) -> bool:
    return owner is not None and (until or 0.0) > time() and not has_died(owner)


def _found(connection: sqlite3.Connection, path: str, run_id: str) -> tuple[int, int]:
    found = connection.execute("select run, shared from runs where id = ?", (run_id,)).fetchone()
    if found is None:
        raise unknown(path, run_id)
    return found[0], found[1]


def _refuse_existing(connection: sqlite3.Connection, run_id: str) -> None:
    if connection.execute("select 1 from runs where id = ?", (run_id,)).fetchone():
        raise JournalError(
            f"there is a run {run_id!r} already",
            code="bae-run-exists",
            run_id=run_id,
            fix="give the new run another id, or go on with that one: graph.resume(run_id, …)",
        )


def _next_key(connection: sqlite3.Connection) -> int:
    """The key of a new run, above those of all runs whose lines are in the file."""
    found = connection.execute(
        "select max(coalesce((select max(run) from runs), 0),"
        " coalesce((select max(run) from deleted), 0)) + 1"
    ).fetchone()
    return found[0]
