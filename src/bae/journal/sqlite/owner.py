"""This process as the owner of runs, in the eyes of a `SQLiteJournal`: which runs it is at work on,
and its word that it is alive, which the writer renews in time."""

from __future__ import annotations

import sqlite3
from time import monotonic, time

from bae.exceptions import JournalError
from bae.journal.sqlite import statements
from bae.journal.sqlite.claims import SQLiteClaim
from bae.journal.sqlite.processes import own_name
from bae.journal.sqlite.statements import Fence

AGAIN = 1.0
"""Seconds, at most, until a word that could not be renewed is tried again."""


class Owner:
    """Used by the thread of the writer alone, but for its `name`."""

    def __init__(self, lease: float) -> None:
        self.name = own_name()
        self.active: dict[int, SQLiteClaim] = {}
        """The runs that this process is at work on, by key."""
        self.owing: dict[int, Fence] = {}
        """The runs that could not be released, by key: they are given up with the next commit."""
        self.claiming: set[int] = set()
        """Those that the transaction which is open gives it."""
        self.renew_at = 0.0
        """When the word is to be renewed, at the latest."""
        self._lease = lease
        self._retry_at = 0.0
        self._given_at: float | None = None

    def is_due(self) -> bool:
        """Whether the word must be renewed now."""
        if not self.active and not self.owing:
            return False
        now = monotonic()
        return now >= self.renew_at and now >= self._retry_at

    def patience(self) -> float:
        """Seconds until the word must be renewed; -1 where nobody relies on it."""
        if not self.active and not self.owing:
            return -1.0
        return max(self.renew_at, self._retry_at, monotonic()) - monotonic()

    def vouch(self, connection: sqlite3.Connection) -> None:
        """Give the word, in the transaction that is open, unless that was done lately."""
        now = monotonic()
        if now >= self.renew_at:
            if not self.renew_at:  # the first word of this process: others may have left theirs
                statements.forget_dead(connection)
            statements.renew(connection, self.name, time() + self._lease)
            self._given_at = now

    def vouch_for(self, connection: sqlite3.Connection, seconds: float) -> None:
        """Give the word for longer, while it cannot be renewed."""
        if self.active:
            statements.renew(connection, self.name, time() + self._lease + seconds)

    def has(self, run: int) -> bool:
        """Whether a run is this process's already."""
        return run in self.active or run in self.claiming

    def stored(self) -> None:
        """The transaction was committed."""
        self.owing.clear()
        self.claiming.clear()
        if self._given_at is not None:
            self.renew_at = self._given_at + self._lease / 3
            self._given_at = None

    def undone(self) -> None:
        """It was rolled back."""
        self._given_at = None
        self.claiming.clear()

    def failed(self) -> None:
        """Nothing can be stored now."""
        self.undone()
        self._retry_at = monotonic() + min(AGAIN, self._lease / 10)

    def hold(self, claim: SQLiteClaim) -> SQLiteClaim:
        """Be at work on a run from now on."""
        self.owing.pop(claim.fence[0], None)
        self.active[claim.fence[0]] = claim
        return claim

    def let_go(self, claim: SQLiteClaim, *, released: bool) -> None:
        """Be at work on a run no longer; it is to be given up where it could not be `released`."""
        run = claim.fence[0]
        if self.active.get(run) is claim:
            del self.active[run]
            if not released and claim.lost is None:
                self.owing[run] = claim.fence
        claim.held = []
        claim.lost = claim.lost or JournalError(
            f"run {claim.run_id!r} was released: it is written no more under that claim",
            code="bae-run-taken",
            run_id=claim.run_id,
            fix="claim it again to go on with it: graph.resume(run_id, …)",
        )

    def forget(self) -> None:
        """The file is another one now, in which this process has said nothing."""
        self.active.clear()
        self.owing.clear()
        self.renew_at = 0.0
        self.undone()
