"""The right to write a run: claims, the lease of a process for its claims, and whether the process
that owns a run is still alive."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from secrets import token_hex
from time import monotonic, time

from bae.exceptions import JournalError
from bae.journal.sqlite.schema import CHANGED, failure
from bae.journal.stored_runs import Claim, Line

RETRY = 1.0
"""After how many seconds at most a failed renewal is tried again."""

Fence = tuple[int, int]
"""The key of a run and its epoch, which every new claim changes. Lines of an older epoch are
refused."""


class SQLiteClaim(Claim):
    """The right to write a run. `held` are lines that were taken in and are not stored yet, and
    `files` such files, by hash. `due` is the number of the next line. If the claim is lost, `lost`
    makes the error for further lines."""

    __slots__ = ("due", "fence", "files", "held", "lease", "lost")

    def __init__(self, run_id: str, owner: str, fence: Fence, due: int) -> None:
        super().__init__(run_id, owner)
        self.fence = fence
        self.due = due
        self.held: list[Line] = []
        self.files: dict[str, bytes] = {}
        self.lost: Callable[[], JournalError] | None = None
        self.lease: Lease | None = None

    def is_in_doubt(self) -> bool:
        """Whether it is lost, or the lease is over."""
        return self.lost is not None or (self.lease is not None and self.lease.is_over())

    def take(self, lines: Sequence[Line]) -> None:
        """Take in lines, all of them or none."""
        if self.lost is not None:
            raise self.lost()
        due = self.due
        for line in lines:
            if line.n != due:
                raise ValueError(f"run {self.run_id!r}: got line {line.n} where {due} is due")
            due += 1
        self.due = due
        self.held += lines


class Lease:
    """The claims of this process. A run is leased to one process for `seconds`. The lease is
    renewed three times per period, in one row for all runs of the process. Only the writer uses
    this, in its own thread, except for `until` and `owner`."""

    def __init__(self, seconds: float) -> None:
        self.owner = process_name()
        self.until = 0.0
        """The end of the lease by the wall clock, which other processes use to judge it."""
        self.claims: set[SQLiteClaim] = set()
        """The claims on the runs that this process works on."""
        self.unreleased: list[Fence] = []
        """Runs that could not be released: they are given up with the next commit."""
        self._seconds = seconds
        self._granted = 0.0
        self._retry_at = 0.0

    def is_over(self) -> bool:
        """Whether other processes may take over the runs of this one."""
        return time() >= self.until

    def hold(self, claim: SQLiteClaim) -> None:
        """Add the claim on one more run."""
        self.claims.add(claim)
        claim.lease = self

    def wait(self) -> float:
        """Seconds until the lease must be renewed; -1 if this process owns nothing."""
        if not self.claims and not self.unreleased:
            return -1.0
        return max(self._seconds_left(), self._retry_at - monotonic(), 0.0)

    def has_work(self) -> bool:
        """Whether the next transaction must do more than store lines."""
        return bool(self.unreleased) or self._seconds_left() <= 0

    def maintain(self, db: sqlite3.Connection) -> None:
        """In a transaction that has just begun, renew the lease if that is due, and give up runs
        that could not be released before."""
        give_up(db, self.unreleased)
        self._granted = self.until
        if self._seconds_left() > 0:
            return
        now = time()
        if not self.until:  # this process owns nothing in a file that it has just opened
            forget_dead_owners(db, now)
            left = "status = 'running' and owner = ?"
            db.execute(f"update runs set owner = null, {CHANGED} where {left}", (self.owner,))
        elif self.is_over():  # another process may have taken over runs
            self.drop_lost(db, list(self.claims))
        self._granted = now + self._seconds
        db.execute("replace into owners (name, until) values (?, ?)", (self.owner, self._granted))

    def committed(self) -> None:
        """Called when the transaction was committed."""
        self.unreleased.clear()
        self.until = self._granted

    def failed(self) -> None:
        """Called when nothing can be stored now."""
        self._retry_at = monotonic() + min(RETRY, self._seconds / 10)

    def confirm(self, db: sqlite3.Connection, claim: SQLiteClaim) -> None:
        """Raise an error if another process has claimed the run since."""
        self.drop_lost(db, [claim])
        if claim.lost is not None:
            raise claim.lost()

    def drop_lost(self, db: sqlite3.Connection, claims: Iterable[SQLiteClaim]) -> None:
        """Drop the claims on runs that another process has claimed since."""
        for claim in claims:
            query = "select epoch, owner from runs where run = ? and id = ?"
            epoch, owner = db.execute(query, (claim.fence[0], claim.run_id)).fetchone() or (0, None)
            if epoch != claim.fence[1]:
                gone = "it was deleted, or given up"
                self.drop(claim, gone if owner is None else f"{owner} owns it now")

    def drop(self, claim: SQLiteClaim, why: str, *, unreleased: bool = False) -> None:
        """Drop the claim on a run; if it is `unreleased`, the file still has us as its owner."""
        if unreleased and claim in self.claims:
            self.unreleased.append(claim.fence)
        self.claims.discard(claim)
        claim.held, claim.files = [], {}
        if claim.lost is None:
            claim.lost = partial(failure, "bae-run-taken", "", claim.run_id, why=why)

    def drop_all(self, code: str, name: str) -> None:
        """Drop all claims: the journal was closed, or its file replaced."""
        for claim in self.claims:
            claim.lost = partial(failure, code, name, claim.run_id)
        self.claims.clear()
        self.unreleased.clear()
        self.until = 0.0

    def end(self, db: sqlite3.Connection) -> None:
        """Give up all runs, so that other processes need not wait for the end of the lease."""
        give_up(db, [*(claim.fence for claim in self.claims), *self.unreleased])
        db.execute("delete from owners where name = ?", (self.owner,))

    def _seconds_left(self) -> float:
        return self.until - time() - self._seconds * 2 / 3


def give_up(db: sqlite3.Connection, fences: Sequence[Fence]) -> None:
    """Leave runs as they are, without an owner."""
    statement = f"update runs set owner = null, {CHANGED} where run = ? and epoch = ?"
    db.executemany(statement, fences)


def is_alive(owner: str | None, until: float | None) -> bool:
    """Whether the owner of a run still holds its lease."""
    return owner is not None and (until or 0.0) > time() and not has_died(owner)


def forget_dead_owners(db: sqlite3.Connection, now: float) -> None:
    """Delete owners that have died, or whose lease is over."""
    for name, until in db.execute("select name, until from owners").fetchall():
        if until < now or has_died(name):
            db.execute("delete from owners where name = ?", (name,))


def process_name() -> str:
    """A unique name for this process: host, process id and a random part."""
    return f"{_host()}:{os.getpid()}:{token_hex(4)}"


_PID = re.compile(r"[0-9]{1,19}")


def has_died(name: str) -> bool:
    """Whether the process of that name is known to have ended: it ran on this host, and there is no
    such process any more. False if that cannot be seen."""
    host, pid, *_ = [*name.split(":"), ""]
    if "/" not in host or host != _host() or not _PID.fullmatch(pid):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # the process exists, of another user
    return False


@cache
def _host() -> str:
    """The host, with its process id namespace if there is one: containers have their own."""
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()
