"""Adds runs to the tables of a journal, releases runs and deletes runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from secrets import randbits

from pydantic_core import to_json

from bae.journal.run_checks import thread_busy
from bae.journal.run_lists import labels_of
from bae.journal.sqlite.lease import Fence, is_alive
from bae.journal.sqlite.schema import CHANGED, LINES_OF_A_RUN, NEXT_CHANGE, failure
from bae.journal.sqlite.writer import add_lines
from bae.journal.stored_runs import OPEN, ParkedGate, RunStatus, RunSummary, StoredRun

_ADD_RUN = f"""insert into runs (run, id, graph, status, started, shape, owner, epoch, waiting,
    error, parent, shared, came_from, thread, metadata, summary, change)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {NEXT_CHANGE})
on conflict (id) do nothing"""

ADD_ANSWER = "insert or ignore into answers (run, gate, value, person) values (?, ?, ?, ?)"

_RELEASE_RUN = f"""update runs set owner = null, status = ?, waiting = ?, error = ?,
    summary = coalesce(?, summary), {CHANGED} where run = ? and epoch = ?"""

_BUSY = """select id from runs where thread = ? and status in ('running', 'waiting') and run <> ?
    limit 1"""


def add_run(
    db: sqlite3.Connection,
    run: StoredRun,
    *,
    owner: str | None = None,
    parent: int | None = None,
    shared: int = 0,
    key: int | None = None,
) -> Fence:
    """Add a run, and return its fence. With an `owner`, the status of the run is "running".

    A fork has the key of its `parent`, and shares the parent's first `shared` lines. `run.lines`
    are only the lines that follow. If the new run replaces a run, `key` is the key of that run."""
    info = run.info
    for n, line in enumerate(run.lines, shared):
        if line.n != n:
            raise ValueError(f"run {info.run_id!r}: got line {line.n} where {n} is due")
    epoch = randbits(48)
    values = (
        key,
        info.run_id,
        info.graph,
        info.status if owner is None else "running",
        info.started,
        _shape_key(db, run.shape, info.shape),
        owner,
        epoch,
        _dump(info.waiting),
        info.error,
        parent,
        shared,
        info.parent if parent is None else None,
        info.thread,
        json.dumps(info.metadata) if info.metadata else "{}",
        _dump_summary(info.summary),
    )
    added = db.execute(_ADD_RUN, values)
    if not added.rowcount:
        raise failure("bae-run-exists", "", info.run_id)
    assert added.lastrowid is not None
    fence = added.lastrowid, epoch
    if owner is not None or info.status in OPEN:
        refuse_busy(db, info.thread, fence[0])
    add_files(db, fence[0], run.files)
    add_lines(db, [line + fence for line in run.lines])
    if info.metadata:
        labels = [(*label, fence[0]) for label in labels_of(info.metadata, strict=False).items()]
        db.executemany("insert into labels (key, value, run) values (?, ?, ?)", labels)
    if run.answers:
        people = run.answered_by
        answers = [(fence[0], g, value, people.get(g, "")) for g, value in run.answers.items()]
        db.executemany(ADD_ANSWER, answers)
    return fence


def add_files(db: sqlite3.Connection, run: int, files: Mapping[str, bytes]) -> None:
    """Add the files of a run. A file that several runs have is stored once."""
    for hash, data in files.items():
        db.execute("insert or ignore into files (hash, data) values (?, ?)", (hash, data))
        db.execute("insert or ignore into file_uses (run, hash) values (?, ?)", (run, hash))


def refuse_busy(db: sqlite3.Connection, thread: str | None, run: int) -> None:
    """Raise `bae-thread-busy` if another run of the thread is in progress, interrupted or
    parked."""
    if thread is not None and (busy := db.execute(_BUSY, (thread, run)).fetchone()):
        raise thread_busy(thread, busy[0])


def _shape_key(db: sqlite3.Connection, text: str, shape_hash: str) -> int:
    """Return the key of a shape. If the shape is new, add it."""
    query = "select shape from shapes where hash = ?"
    row = db.execute(query, (shape_hash,)).fetchone()
    if row is None:
        db.execute("insert into shapes (hash, text) values (?, ?)", (shape_hash, text))
        row = db.execute(query, (shape_hash,)).fetchone()
    return row[0]


def release_run(
    db: sqlite3.Connection,
    fence: Fence,
    outcome: tuple[RunStatus, Sequence[ParkedGate], str, RunSummary | None],
) -> None:
    """Store the outcome of a run, and remove its owner."""
    status, waiting, error, summary = outcome
    values = status, _dump(waiting), error, _dump_summary(summary), *fence
    db.execute(_RELEASE_RUN, values)


def delete_runs(db: sqlite3.Connection, run_ids: Sequence[str]) -> int:
    """Delete runs, and return the number of deleted runs. A run that has forks or a living owner
    stays. Pass the newest run first, so that forks are deleted before their parents."""
    deleted = 0
    for run_id in run_ids:
        row = db.execute(
            "select run, owner, until from runs left join owners on name = owner where id = ?"
            " and not exists (select 1 from runs forks where forks.parent = runs.run)",
            (run_id,),
        ).fetchone()
        if row is not None and not is_alive(*row[1:]):
            deleted += 1
            remove_run(db, row[0])
    return deleted


def remove_run(db: sqlite3.Connection, run: int) -> None:
    """Delete a run with its lines, its answers, and the files that no other run has. All later
    change numbers are greater than the change numbers of this run."""
    of_run = run * LINES_OF_A_RUN, (run + 1) * LINES_OF_A_RUN
    db.execute(f"insert into changes (last) values ({NEXT_CHANGE})")
    db.execute("delete from changes where last < (select max(last) from changes)")
    db.execute("delete from lines where id >= ? and id < ?", of_run)
    db.execute("delete from runs where run = ?", (run,))
    db.execute("delete from answers where run = ?", (run,))
    db.execute("delete from labels where run = ?", (run,))
    hashes = db.execute("select hash from file_uses where run = ?", (run,)).fetchall()
    if hashes:
        db.execute("delete from file_uses where run = ?", (run,))
        unused = "not exists (select 1 from file_uses where file_uses.hash = files.hash)"
        db.executemany(f"delete from files where hash = ? and {unused}", hashes)


def _dump(waiting: Sequence[ParkedGate]) -> str:
    if not waiting:
        return "[]"
    return json.dumps(
        [(gate.address, gate.place, gate.question, gate.deadline) for gate in waiting]
    )


def _dump_summary(summary: RunSummary | None) -> str | None:
    return None if summary is None else to_json(summary).decode()
