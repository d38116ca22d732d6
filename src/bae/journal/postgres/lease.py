"""The right of this process to write runs in Postgres: its lease, by the clock of the database, and
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
    """Return the seconds of a clock that cannot be set, and that also runs while this process is
    suspended."""
    return time.clock_gettime(_CLOCK)


class PostgresClaim(Claim):
    """The right of this process to write a run."""

    __slots__ = ("at", "due", "lease", "lost", "number", "run", "stored", "token")

    def __init__(
        self, run_id: str, lease: PostgresLease, run: int, due: int, number: int, token: int
    ) -> None:
        super().__init__(run_id, lease.owner)
        self.lease = lease
        self.run = run
        """The key of the run."""
        self.due = self.stored = due
        """`due` is the number of the next line. The database has certainly stored the lines with
        numbers below `stored`."""
        self.at = 0.0
        """The time of the last line."""
        self.number = number
        """The number that identifies the claim in the database."""
        self.token = token
        """The fencing token, greater than the tokens of all earlier claims on the run."""
        self.lost: Callable[[], JournalError] | None = None
        """If the claim is lost, makes the error for further lines; otherwise None."""

    def is_in_doubt(self) -> bool:
        """Whether the claim is lost, or the lease is over."""
        return self.lost is not None or self.lease.is_over()

    def take(self, lines: Sequence[Line]) -> None:
        """Count `lines` as written. If the claim is lost, or a line does not have the next number,
        raise an error and count no line."""
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
    """The lease and the claims of this process. One database row is the lease for all runs of the
    process. The writer renews the lease three times per period, and stores no lines without the
    lease. Only the thread of the writer uses this object, except for `is_over`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.owner = process_name()
        self.is_registered = False
        self.claims: set[PostgresClaim] = set()
        self.unreleased: dict[int, str] = {}
        """The claims that the database may still have: the id of the run, by the number of the
        claim. The next commit releases these claims."""
        self._valid_until = 0.0

    def is_over(self) -> bool:
        """Whether other processes may have taken over the runs of this process."""
        return steady_time() >= self._valid_until

    def note_renewal(self, asked_at: float) -> None:
        """Note that the database renewed the lease. The lease lasts `seconds` from `asked_at`, the
        time of the request."""
        self.is_registered = True
        self._valid_until = asked_at + self.seconds

    def drop(self, claim: PostgresClaim, why: str, *, unreleased: bool = False) -> None:
        """Give up a claim. Further lines of the run raise `bae-run-taken` with the reason `why`.
        With `unreleased`, the database still has the claim, and the next commit releases it."""
        if unreleased and claim in self.claims:
            self.unreleased[claim.number] = claim.run_id
        self.claims.discard(claim)
        if claim.lost is None:
            claim.lost = partial(failure, "bae-run-taken", "", claim.run_id, why=why)

    def lose(self) -> None:
        """Give up all claims, because another process has taken over the runs. For later claims,
        this process has a new owner name."""
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
"""The number of random bits at the end of a run's key. The bits before them are the milliseconds
from 1970 to the start of the run."""


def day_of(key: int) -> date:
    """Return the day on which the run with this key began. The lines of the run are in the
    partition of that day."""
    return datetime.fromtimestamp((key >> KEY_BITS) / 1000, UTC).date()


class Keys:
    """Makes keys for new runs: the database time in milliseconds, followed by random bits. A later
    run has a greater key, and the keys of a day are a range."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, now: float) -> int:
        """Return a key that is greater than all earlier keys. `now` is the time of the database."""
        key = (int(now * 1000) << KEY_BITS) | randbits(KEY_BITS)
        self._last = key if key > self._last else self._last + 1 + randbits(KEY_BITS // 2)
        return self._last
