"""Who may write a run: claims, the lease that a process holds for its claims, and whether the
process that owns a run is still alive."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from secrets import randbits, token_hex
from time import monotonic, time

from bae.exceptions import JournalError
from bae.journal.sqlite.schema import LINES_OF_A_RUN, unknown
from bae.journal.store import Claim, Line

RETRY = 1.0
"""Seconds, at most, until a renewal that failed is tried again."""
LONG_SILENT = 86400.0
"""Seconds after which an owner whose lease is over is forgotten."""

Fence = tuple[int, int]
"""The key of a run and its epoch, which every new claim changes: lines of an older epoch are
refused."""


class SQLiteClaim(Claim):
    """The right to write a run. `held` are lines that were taken in and are not stored yet, `due`
    is the number of the next line, `lost` the error why there can be none."""

    __slots__ = ("due", "fence", "held", "lost")

    def __init__(self, run_id: str, owner: str, fence: Fence, due: int) -> None:
        super().__init__(run_id, owner)
        self.fence = fence
        self.due = due
        self.held: list[Line] = []
        self.lost: JournalError | None = None

    def take(self, lines: Sequence[Line]) -> None:
        """Take lines in, all of them or none."""
        if self.lost is not None:
            raise self.lost
        due = self.due
        for line in lines:
            if line.n != due:
                raise ValueError(f"run {self.run_id!r}: got line {line.n} where {due} is due")
            due += 1
        self.due = due
        self.held += lines


class Lease:
    """The claims of this process. A run is leased to one process for `seconds`; the lease is
    renewed three times per period, in one row for all runs of the process. Only the writer uses
    this, in its own thread, but for `until` and `owner`."""

    def __init__(self, seconds: float) -> None:
        self.owner = process_name()
        self.until = 0.0
        """When the lease ends by the wall clock, which other processes judge it by."""
        self.claims: dict[int, SQLiteClaim] = {}
        """The claims on the runs that this process works on, by key."""
        self.unreleased: list[Fence] = []
        """Runs that could not be released: they are given up with the next commit."""
        self._seconds = seconds
        self._retry_at = 0.0
        self._granted: float | None = None

    def wait(self) -> float:
        """Seconds until the lease must be renewed; -1 where this process owns nothing."""
        if not self.claims and not self.unreleased:
            return -1.0
        renewal = 0.0 if self._is_due() else self.until - self._seconds * 2 / 3 - time()
        return max(renewal, self._retry_at - monotonic(), 0.0)

    def maintain(self, db: sqlite3.Connection) -> None:
        """Renew the lease if that is due, and give up what could not be released before."""
        if not self.wait():
            self.renew(db)
        if self.unreleased:
            give_up(db, self.unreleased)

    def renew_if_due(self, db: sqlite3.Connection) -> None:
        """Make sure that the lease is good for a run that is claimed now."""
        if self._granted is None and self._is_due():
            self.renew(db)

    def renew(self, db: sqlite3.Connection, extra: float = 0.0) -> None:
        """Renew the lease in the open transaction, for `extra` seconds more than usual."""
        if not self.until:
            forget_dead_owners(db)
        elif time() >= self.until:  # another process may have taken runs over
            for claim in [c for c in self.claims.values() if not self.holds(db, c)]:
                self.lose(db, claim)
        self._granted = time() + self._seconds + extra
        db.execute("replace into owners (name, until) values (?, ?)", (self.owner, self._granted))

    def committed(self) -> None:
        """The transaction was committed."""
        self.unreleased.clear()
        if self._granted is not None:
            self.until, self._granted = self._granted, None

    def rolled_back(self) -> None:
        """The transaction was rolled back."""
        self._granted = None

    def failed(self) -> None:
        """Nothing can be stored now."""
        self._retry_at = monotonic() + min(RETRY, self._seconds / 10)

    def holds(self, db: sqlite3.Connection, claim: SQLiteClaim) -> bool:
        """Whether no other process has claimed the run since."""
        query = "select 1 from runs where run = ? and epoch = ?"
        return db.execute(query, claim.fence).fetchone() is not None

    def lose(self, db: sqlite3.Connection, claim: SQLiteClaim) -> JournalError:
        """Drop a claim that is no longer good; returns why."""
        found = db.execute("select owner from runs where id = ?", (claim.run_id,)).fetchone()
        owner: str | None = found[0] if found else None
        who = f"{owner} owns it" if owner else "it was deleted, or given up"
        claim.lost = JournalError(
            f"this process has lost run {claim.run_id!r}: {who} now",
            code="bae-run-taken",
            run_id=claim.run_id,
            fix="leave it to its new owner. A process that is stopped for longer than its lease "
            "loses its runs: SQLiteJournal(…, lease=120) gives it longer",
        )
        self.drop(claim)
        return claim.lost

    def drop(self, claim: SQLiteClaim, *, unreleased: bool = False) -> None:
        """Work on a run no longer; if it is `unreleased`, the file still has us as its owner."""
        run = claim.fence[0]
        if self.claims.get(run) is claim:
            del self.claims[run]
            if unreleased and claim.lost is None:
                self.unreleased.append(claim.fence)
        claim.held = []
        claim.lost = claim.lost or JournalError(
            f"run {claim.run_id!r} was released: nothing more is written under that claim",
            code="bae-run-taken",
            run_id=claim.run_id,
            fix="claim it again to continue it: graph.resume(run_id, …)",
        )

    def start_over(self) -> None:
        """The file was replaced: this process owns nothing in the new one."""
        self.claims.clear()
        self.unreleased.clear()
        self.until = 0.0

    def end(self, db: sqlite3.Connection) -> None:
        """Give up all runs, so that other processes need not wait for the end of the lease."""
        give_up(db, [*(claim.fence for claim in self.claims.values()), *self.unreleased])
        db.execute("delete from owners where name = ?", (self.owner,))

    def _is_due(self) -> bool:
        left = self.until - time()
        return not self._seconds * 2 / 3 < left < self._seconds + 1  # or the clock was set back


def claim_run(db: sqlite3.Connection, lease: Lease, name: str, run_id: str) -> tuple[Fence, int]:
    """Make this process the owner of a run; returns the fence and the number of its lines."""
    found = db.execute(
        "select run, runs.owner, until, shared, status from runs"
        " left join owners on name = runs.owner where id = ?",
        (run_id,),
    ).fetchone()
    if found is None:
        raise unknown(name, run_id)
    run, owner, until, shared, status = found
    if run in lease.claims if owner == lease.owner else is_alive(owner, until):
        left = max((until or 0.0) - time(), 0)
        raise JournalError(
            f"run {run_id!r} is owned by {owner}, whose lease lasts {left:.1f} s more",
            code="bae-run-owned",
            run_id=run_id,
            fix="leave the run to its owner. If the owner has died on another machine, try again "
            "when its lease is over",
        )
    if status == "ended":
        raise JournalError(
            f"run {run_id!r} has ended and cannot be continued",
            code="bae-run-ended",
            run_id=run_id,
            fix="graph.resume(run_id, …) returns its result; to do some of it again, fork it",
        )
    fence = run, randbits(48)
    db.execute(
        "update runs set owner = ?, epoch = ?, status = 'running', waiting = '[]', error = ''"
        " where run = ?",
        (lease.owner, fence[1], run),
    )
    return fence, count_lines(db, run, shared)


def give_up(db: sqlite3.Connection, fences: Sequence[Fence]) -> None:
    """Leave runs as they are, without an owner."""
    db.executemany("update runs set owner = null where run = ? and epoch = ?", fences)


def count_lines(db: sqlite3.Connection, run: int, shared: int) -> int:
    """How many lines a run has, including those it shares with the run it was forked from."""
    first = run * LINES_OF_A_RUN
    last: int | None = db.execute(
        "select max(id) from lines where id between ? and ?", (first, first + LINES_OF_A_RUN - 1)
    ).fetchone()[0]
    return shared if last is None else last - first + 1


def is_alive(owner: str | None, until: float | None) -> bool:
    """Whether the owner of a run still holds its lease."""
    return owner is not None and (until or 0.0) > time() and not has_died(owner)


def forget_dead_owners(db: sqlite3.Connection) -> None:
    """Delete owners that have died, or whose lease ended long ago."""
    long_ago = time() - LONG_SILENT
    for name, until in db.execute("select name, until from owners").fetchall():
        if until < long_ago or has_died(name):
            db.execute("delete from owners where name = ?", (name,))


def process_name() -> str:
    """A name for this process that no other has: host, process id, start time, a random part."""
    pid = os.getpid()
    return f"{_host()}:{pid}:{_started(pid) or ''}:{token_hex(4)}"


def has_died(name: str) -> bool:
    """Whether the process of that name is known to be gone: it ran on this host, and there is no
    such process any more. False where that cannot be seen."""
    host, pid, started, *_ = [*name.split(":"), "", ""]
    if host != _host() or not (pid.isdecimal() and started):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # there is one, of another user
    return _started(int(pid)) not in (started, None)


@cache
def _host() -> str:
    """The host, and the space of its process ids, which containers have of their own."""
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str | None:
    """When a process was started; empty if it is dead, None where that cannot be seen."""
    try:
        # The second field is a name in brackets, which may hold anything.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in "ZX" else fields[18]
