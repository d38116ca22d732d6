"""`ReadyRuns`: finds the runs of a journal that a worker can carry out now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from random import shuffle
from time import time
from typing import TYPE_CHECKING, Final

from bae.journal.stored_runs import Listed, RunInfo

if TYPE_CHECKING:
    from bae.journal.store import Journal

_PAGE: Final = 200


class ReadyRuns:
    """Finds queued runs that are due, interrupted runs, and parked runs whose gate has an answer or
    has timed out. A run that waits for a person is not read again until it changes."""

    def __init__(self, journal: Journal, graphs: Collection[str]) -> None:
        self._journal, self._graphs = journal, tuple(graphs)
        self._seen = dict.fromkeys(graphs, 0)
        """By graph: the greatest change number of the parked runs that were read."""
        self._parked: dict[str, RunInfo] = {}
        """The parked runs that can continue now, or at a deadline."""
        self._skipped: dict[str, tuple[int, float]] = {}
        """By the id of a run to ignore: its change number, and the time until which to ignore the
        run. A run that has changed is not ignored."""

    def skip(self, info: RunInfo, until: float = float("inf")) -> None:
        """Ignore a run until it changes, or until a time."""
        now = time()
        if len(self._skipped) > 10 * _PAGE:
            self._skipped = {id: skip for id, skip in self._skipped.items() if skip[1] > now}
        self._skipped[info.run_id] = info.change, until

    async def find(self, limit: int, busy: Collection[str] = ()) -> list[RunInfo]:
        """Find at most `limit` ready runs that are not `busy` here. Workers search at the same
        time, so each worker takes a random part of the oldest ready runs."""
        candidates: list[RunInfo] = []
        threads: set[str] = set()
        for graph in self._graphs:
            wanted = max(2 * limit, _PAGE)
            parked = await self._find_parked(graph)
            ready = [info for info in parked if self._is_free(info, busy)]
            for status in ("interrupted", "queued"):
                async for info in self._pages(status, graph):
                    if len(ready) >= wanted:
                        break
                    if not info.is_due():
                        continue
                    if status == "queued" and info.thread is not None:
                        if info.thread in threads:
                            continue  # the turns of a thread begin in order
                        threads.add(info.thread)
                    if self._is_free(info, busy):
                        ready.append(info)
            candidates += ready
        shuffle(candidates)
        for info in candidates[:limit]:  # this worker takes the run, which changes the entry
            self._parked.pop(info.run_id, None)
        return candidates[:limit]

    async def _pages(self, status: Listed, graph: str) -> AsyncIterator[RunInfo]:
        """Yield the runs of a status, the oldest change first."""
        after = 0
        while True:
            page = await self._journal.runs(status=status, graph=graph, after=after, limit=_PAGE)
            for info in page:
                yield info
            if len(page) < _PAGE:
                return
            after = page[-1].change

    async def _find_parked(self, graph: str) -> list[RunInfo]:
        while True:
            last_change = self._seen[graph]
            page = await self._journal.runs(
                status="waiting", graph=graph, after=last_change, limit=_PAGE
            )
            for info in page:
                self._seen[graph] = max(self._seen[graph], info.change)
                has_deadline = any(gate.deadline is not None for gate in info.waiting)
                if info.can_continue() or has_deadline:
                    self._parked[info.run_id] = info
            if len(page) < _PAGE:
                break
        now = time()
        return [i for i in self._parked.values() if i.graph == graph and i.can_continue(now)]

    def _is_free(self, info: RunInfo, busy: Collection[str]) -> bool:
        if info.run_id in busy:
            return False
        change, until = self._skipped.get(info.run_id, (-1, 0.0))
        if change == info.change and until > time():
            return False
        self._skipped.pop(info.run_id, None)
        return True
