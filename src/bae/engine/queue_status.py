"""`queue_status`: the runs that wait, their waiting times, and the processes that work on runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Final

from bae.journal.stored_runs import Listed

if TYPE_CHECKING:
    from bae.journal.store import Journal

_OPEN: Final[tuple[Listed, ...]] = ("queued", "running", "waiting")


@dataclass(slots=True)
class QueueStatus:
    """Counts of the runs of a journal that have not ended, by the names of their graphs."""

    queued: Counter[str] = field(default_factory=Counter[str])
    """Queued runs that are due."""
    delayed: Counter[str] = field(default_factory=Counter[str])
    """Queued runs that are not due yet."""
    running: Counter[str] = field(default_factory=Counter[str])
    """Runs in progress."""
    interrupted: Counter[str] = field(default_factory=Counter[str])
    waiting: Counter[str] = field(default_factory=Counter[str])
    """All parked runs."""
    ready: Counter[str] = field(default_factory=Counter[str])
    """Parked runs that can continue. `waiting` counts these runs too."""
    oldest: dict[str, float] = field(default_factory=dict[str, float])
    """By "queued", "interrupted" and "waiting": the longest time in seconds that such a run has
    waited. A queued run waits from the time at which it is due. Other runs wait from the time at
    which they were last written."""
    owners: Counter[str] = field(default_factory=Counter[str])
    """By process: the number of runs that the process works on."""


async def queue_status(journal: Journal, graphs: Collection[str] = ()) -> QueueStatus:
    """Count the runs of a journal that have not ended, for some graphs or for all. This reads
    the entry of every such run."""
    status = QueueStatus()
    for listed in _OPEN:
        async for info in journal.every_run(status=listed):
            if graphs and info.graph not in graphs:
                continue
            now = time()
            standing = info.standing(now)
            if standing == "queued" and not info.is_due(now):
                status.delayed[info.graph] += 1
                continue
            getattr(status, standing)[info.graph] += 1
            if standing == "running":
                status.owners[info.owner or ""] += 1
                continue
            if standing == "waiting" and info.can_continue(now):
                status.ready[info.graph] += 1
            since = info.started if standing == "queued" else info.updated
            status.oldest[standing] = max(status.oldest.get(standing, 0.0), now - since)
    return status
