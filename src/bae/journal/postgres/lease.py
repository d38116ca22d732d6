"""The right to write runs in Postgres: the lease of this process, by the clock of the database, and
its claims on runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from secrets import randbits
from typing import Final

from bae.exceptions import JournalError
from bae.journal.sqlite.lease import process_name
from bae.journal.sqlite.schema import failure
from bae.journal.stored_runs import Claim, Line

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 1))
"""A clock that also counts the time in which the process or the machine is suspended."""


def steady_time() -> float:
    """Seconds of a clock that nobody can set, and that runs while this process is suspended."""
    return time.clock_gettime(_CLOCK)


class PostgresClaim(Claim):
    """The right to write a run. `run` is the key of the run, and `due` the number of its next line.
    The database has certainly stored `stored` lines. `at` is the time of the last line. `number`
    identifies the claim, and `token` is greater than the tokens of all earlier claims on the run.
    If the claim is lost, `lost` makes the error for further lines."""

    __slots__ = ("at", "due", "lease", "lost", "number", "run", "stored", "token")

    def __init__(
        self, run_id: str, lease: PostgresLease, run: int, due: int, number: int, token: int
    ) -> None:
        super().__init__(run_id, lease.owner)
        self.lease = lease
        self.run = run
        self.due = self.stored = due
        self.at = 0.0
        self.number = number
        self.token = token
        self.lost: Callable[[], JournalError] | None = None

    def is_in_doubt(self) -> bool:
        """Whether the claim is lost, or the lease is over."""
        return self.lost is not None or self.lease.is_over()

    def take(self, lines: Sequence[Line]) -> None:
        """Count lines as written: all of them, or none. Raises if the claim is lost, or if a number
        is wrong."""
        if self.lost is not None:
            raise self.lost()
        due = self.due
        for line in lines:
            if line.n != due:
                raise ValueError(f"run {self.run_id!r}: got line {line.n} where {due} is due")
            due += 1
        self.due = due
        if lines:
            self.at = lines[-1].at


class PostgresLease:
    """The lease and the claims of this process. One row of the database is the lease for all runs
    of the process. It is renewed three times per period, and each batch of lines needs it. Only
    the thread of the writer uses this object, except for `is_over`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.owner = process_name()
        self.is_registered = False
        self.claims: set[PostgresClaim] = set()
        self.unreleased: dict[int, str] = {}
        """Runs by the numbers of claims that the database may still have. The next commit releases
        them."""
        self._valid_until = 0.0

    def is_over(self) -> bool:
        """Whether other processes may have taken over the runs of this process."""
        return steady_time() >= self._valid_until

    def note_renewal(self, asked_at: float) -> None:
        """Note that the database renewed the lease after a request at this time."""
        self.is_registered = True
        self._valid_until = asked_at + self.seconds

    def drop(self, claim: PostgresClaim, why: str, *, unreleased: bool = False) -> None:
        """Give up the claim on a run. With `unreleased`, the database still has the claim."""
        if unreleased and claim in self.claims:
            self.unreleased[claim.number] = claim.run_id
        self.claims.discard(claim)
        if claim.lost is None:
            claim.lost = partial(failure, "bae-run-taken", "", claim.run_id, why=why)

    def lose(self) -> None:
        """Give up all claims, because another process has taken over. Later claims have a new
        owner."""
        for claim in list(self.claims):
            self.drop(claim, f"the lease of {self.owner} was over, and another process took over")
        self._forget()
        self.owner = process_name()

    def end(self, code: str, name: str) -> None:
        """Give up all claims for good. Further lines raise the error with this code."""
        for claim in self.claims:
            claim.lost = partial(failure, code, name, claim.run_id)
        self.claims.clear()
        self._forget()

    def _forget(self) -> None:
        self.unreleased.clear()
        self.is_registered = False
        self._valid_until = 0.0


KEY_BITS: Final = 22
"""The number of random bits in the key of a run, below the milliseconds since 1970."""


def day_of(key: int) -> date:
    """The day on which a run began, by its key: the partition of its lines."""
    return datetime.fromtimestamp((key >> KEY_BITS) / 1000, UTC).date()


class Keys:
    """Makes keys of runs: the time of the database in milliseconds, then random bits. So keys are
    in the order of the runs and of their days."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, now: float) -> int:
        """A key that is greater than all earlier keys."""
        key = (int(now * 1000) << KEY_BITS) | randbits(KEY_BITS)
        self._last = key if key > self._last else self._last + 1 + randbits(KEY_BITS // 2)
        return self._last
