"""`queue_status`: how many runs wait, for how long, and which processes work on the others."""

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
    """The runs of a journal that have not ended. Numbers are by graph; seconds are of the oldest
    run of the kind.

    `ready` are parked runs that can continue, `delayed` are queued runs that are not due yet, and
    `owners` has how many runs each process works on.
    """

    queued: Counter[str] = field(default_factory=Counter[str])
    delayed: Counter[str] = field(default_factory=Counter[str])
    running: Counter[str] = field(default_factory=Counter[str])
    interrupted: Counter[str] = field(default_factory=Counter[str])
    waiting: Counter[str] = field(default_factory=Counter[str])
    ready: Counter[str] = field(default_factory=Counter[str])
    oldest: dict[str, float] = field(default_factory=dict[str, float])
    """By "queued", "interrupted" and "waiting": the age of the oldest such run in seconds."""
    owners: Counter[str] = field(default_factory=Counter[str])


async def queue_status(journal: Journal, graphs: Collection[str] = ()) -> QueueStatus:
    """The runs of a journal that have not ended: of some graphs, or of all. It reads the entry of
    each."""
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
