"""Who may write a run in Postgres: the lease of this process, by the clock of the database, and the
claims that it holds."""

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
"""Counts the time in which the process, or the machine, is suspended."""


def steady_time() -> float:
    """Seconds of a clock that nobody sets, and that runs on while this process is suspended."""
    return time.clock_gettime(_CLOCK)


class PostgresClaim(Claim):
    """The right to write a run. `run` is its key, `due` the number of its next line, `kept` how
    many lines the database has for certain, `at` the time
    of the last line; `number` tells this claim from all others, and `token` is greater than those
    of all claims on the run before it. `lost` makes the error why there can be no more lines."""

    __slots__ = ("at", "due", "kept", "lease", "lost", "number", "run", "token")

    def __init__(
        self, run_id: str, lease: PostgresLease, run: int, due: int, number: int, token: int
    ) -> None:
        super().__init__(run_id, lease.owner)
        self.lease = lease
        self.run = run
        self.due = self.kept = due
        self.at = 0.0
        self.number = number
        self.token = token
        self.lost: Callable[[], JournalError] | None = None

    def is_in_doubt(self) -> bool:
        """Whether it is lost, or the lease is over."""
        return self.lost is not None or self.lease.is_over()

    def take(self, lines: Sequence[Line]) -> None:
        """Take lines in, all of them or none."""
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
    """The claims of this process. One row of the database, which is renewed three times per period,
    holds for all its runs; each batch of lines needs the row. Used in the thread of the writer
    alone, but for `is_over`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.owner = process_name()
        self.is_registered = False
        self.claims: set[PostgresClaim] = set()
        self.unreleased: dict[int, str] = {}
        """Runs by the numbers of claims which the database may still have: they are given up with
        the next commit."""
        self._good_until = 0.0

    def is_over(self) -> bool:
        """Whether other processes may have taken over the runs of this one."""
        return steady_time() >= self._good_until

    def renewed(self, asked_at: float) -> None:
        """The database has renewed the lease, in answer to what was asked at this time."""
        self.is_registered = True
        self._good_until = asked_at + self.seconds

    def drop(self, claim: PostgresClaim, why: str, *, unreleased: bool = False) -> None:
        """Work on a run no longer; if it is `unreleased`, the database has this owner still."""
        if unreleased and claim in self.claims:
            self.unreleased[claim.number] = claim.run_id
        self.claims.discard(claim)
        if claim.lost is None:
            claim.lost = partial(failure, "bae-run-taken", "", claim.run_id, why=why)

    def lose(self) -> None:
        """Another process has taken over: all claims are lost, and new ones are of another name."""
        for claim in list(self.claims):
            self.drop(claim, f"the lease of {self.owner} was over, and another process took over")
        self._forget()
        self.owner = process_name()

    def end(self, code: str, name: str) -> None:
        """This process owns nothing any more."""
        for claim in self.claims:
            claim.lost = partial(failure, code, name, claim.run_id)
        self.claims.clear()
        self._forget()

    def _forget(self) -> None:
        self.unreleased.clear()
        self.is_registered = False
        self._good_until = 0.0


KEY_BITS: Final = 22
"""A key of a run is the milliseconds since 1970, then as many bits that tell runs apart."""


def day_of(key: int) -> date:
    """The day on which a run began, by its key: the partition of its lines."""
    return datetime.fromtimestamp((key >> KEY_BITS) / 1000, UTC).date()


class Keys:
    """Keys of runs: the time of the database in milliseconds, then random bits, so that runs are
    ordered by their keys, and so are the days of their lines."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, now: float) -> int:
        """A key that is greater than all before it."""
        key = (int(now * 1000) << KEY_BITS) | randbits(KEY_BITS)
        self._last = key if key > self._last else self._last + 1 + randbits(KEY_BITS // 2)
        return self._last
