"""Claims, which are the right to write a run, and the lease of a process on its claims. Also checks
whether the process that owns a run is still alive."""

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
"""The longest pause in seconds before a failed renewal of the lease is tried again."""

Fence = tuple[int, int]
"""The key of a run, and its epoch. Every new claim changes the epoch, and lines with an older epoch
are refused."""


class SQLiteClaim(Claim):
    """The right of this process to write a run, with the lines that are not stored yet."""

    __slots__ = ("due", "fence", "files", "held", "lease", "lost")

    def __init__(self, run_id: str, owner: str, fence: Fence, due: int) -> None:
        super().__init__(run_id, owner)
        self.fence = fence
        self.due = due
        """The number of the next line."""
        self.held: list[Line] = []
        """The lines that are not stored yet."""
        self.files: dict[str, bytes] = {}
        """The files that are not stored yet, by hash."""
        self.lost: Callable[[], JournalError] | None = None
        """Makes the error for further lines. None unless the claim is lost."""
        self.lease: Lease | None = None

    def is_in_doubt(self) -> bool:
        """Whether the claim is lost, or its lease is over."""
        return self.lost is not None or (self.lease is not None and self.lease.is_over())

    def take(self, lines: Sequence[Line]) -> None:
        """Add lines to store: all of them, or none if the claim is lost or a number is wrong."""
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
    """The lease of this process, with all its claims. The lease lasts for `seconds` and is renewed
    three times per period, in one row for all runs of the process. Only the writer's thread may use
    the lease. Other threads may read `until` and `owner`."""

    def __init__(self, seconds: float) -> None:
        self.owner = process_name()
        self.until = 0.0
        """The end of the lease by the wall clock, so that other processes can check it."""
        self.claims: set[SQLiteClaim] = set()
        """The claims on the runs that this process works on."""
        self.unreleased: list[Fence] = []
        """Runs that could not be released. The next commit gives them up."""
        self._seconds = seconds
        self._granted = 0.0
        self._retry_at = 0.0

    def is_over(self) -> bool:
        """Whether other processes may take over the runs of this process."""
        return time() >= self.until

    def hold(self, claim: SQLiteClaim) -> None:
        """Put a claim under this lease."""
        self.claims.add(claim)
        claim.lease = self

    def wait(self) -> float:
        """Return the seconds until the lease must be renewed, or -1 if this process owns no run."""
        if not self.claims and not self.unreleased:
            return -1.0
        return max(self._seconds_left(), self._retry_at - monotonic(), 0.0)

    def has_work(self) -> bool:
        """Whether the next transaction must renew the lease or give up runs."""
        return bool(self.unreleased) or self._seconds_left() <= 0

    def maintain(self, db: sqlite3.Connection) -> None:
        """Renew the lease if that is due, and give up runs that could not be released before. Call
        this at the start of a transaction."""
        give_up(db, self.unreleased)
        self._granted = self.until
        if self._seconds_left() > 0:
            return
        now = time()
        if not self.until:  # the file was just opened, so this process has no claims in it
            forget_dead_owners(db, now)
            stale = "status = 'running' and owner = ?"
            db.execute(f"update runs set owner = null, {CHANGED} where {stale}", (self.owner,))
        elif self.is_over():  # another process may have taken over runs
            self.drop_lost(db, list(self.claims))
        self._granted = now + self._seconds
        db.execute("replace into owners (name, until) values (?, ?)", (self.owner, self._granted))

    def note_commit(self) -> None:
        """Note that the transaction of `maintain` was committed."""
        self.unreleased.clear()
        self.until = self._granted

    def note_failure(self) -> None:
        """Note that nothing can be stored now, and delay the next renewal."""
        self._retry_at = monotonic() + min(RETRY, self._seconds / 10)

    def confirm(self, db: sqlite3.Connection, claim: SQLiteClaim) -> None:
        """Raise the error of the claim if it is lost."""
        self.drop_lost(db, [claim])
        if claim.lost is not None:
            raise claim.lost()

    def drop_lost(self, db: sqlite3.Connection, claims: Iterable[SQLiteClaim]) -> None:
        """Drop the claims on runs that were deleted, or claimed by another process."""
        for claim in claims:
            query = "select epoch, owner from runs where run = ? and id = ?"
            epoch, owner = db.execute(query, (claim.fence[0], claim.run_id)).fetchone() or (0, None)
            if epoch != claim.fence[1]:
                unowned = "it was deleted, or given up"
                self.drop(claim, unowned if owner is None else f"{owner} owns it now")

    def drop(self, claim: SQLiteClaim, why: str, *, unreleased: bool = False) -> None:
        """Drop a claim. If the file still names this process as the owner of the run, pass
        `unreleased`: the next commit then gives up the run."""
        if unreleased and claim in self.claims:
            self.unreleased.append(claim.fence)
        self.claims.discard(claim)
        claim.held, claim.files = [], {}
        if claim.lost is None:
            claim.lost = partial(failure, "bae-run-taken", "", claim.run_id, why=why)

    def drop_all(self, code: str, name: str) -> None:
        """Drop all claims, because the journal was closed or its file was replaced."""
        for claim in self.claims:
            claim.lost = partial(failure, code, name, claim.run_id)
        self.claims.clear()
        self.unreleased.clear()
        self.until = 0.0

    def end(self, db: sqlite3.Connection) -> None:
        """Give up all runs and the lease, so that other processes can resume the runs at once."""
        give_up(db, [*(claim.fence for claim in self.claims), *self.unreleased])
        db.execute("delete from owners where name = ?", (self.owner,))

    def _seconds_left(self) -> float:
        return self.until - time() - self._seconds * 2 / 3


def give_up(db: sqlite3.Connection, fences: Sequence[Fence]) -> None:
    """Remove the owner of runs, and keep their status."""
    statement = f"update runs set owner = null, {CHANGED} where run = ? and epoch = ?"
    db.executemany(statement, fences)


def is_alive(owner: str | None, until: float | None) -> bool:
    """Whether a run's owner has a lease that is not over, and is not known to have died."""
    return owner is not None and (until or 0.0) > time() and not has_died(owner)


def forget_dead_owners(db: sqlite3.Connection, now: float) -> None:
    """Delete owners that have died, or whose lease is over."""
    for name, until in db.execute("select name, until from owners").fetchall():
        if until < now or has_died(name):
            db.execute("delete from owners where name = ?", (name,))


def process_name() -> str:
    """Return a unique name for this process: host, process id and a random part."""
    return f"{_host()}:{os.getpid()}:{token_hex(4)}"


_PID = re.compile(r"[0-9]{1,19}")


def has_died(name: str) -> bool:
    """Whether the process with this name ran on this host and does not exist any more. False if
    this cannot be determined."""
    host, pid, *_ = [*name.split(":"), ""]
    if "/" not in host or host != _host() or not _PID.fullmatch(pid):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # the process exists and belongs to another user
    return False


@cache
def _host() -> str:
    """Return the host name and, on Linux, its namespace of process ids: each container has its own
    process ids."""
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()
