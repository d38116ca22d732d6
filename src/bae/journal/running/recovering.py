"""All runs of a graph that are nobody's and can go on: interrupted ones, and parked ones whose
gates were answered or are out of time. `Graph.recover` is the way in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bae.exceptions import BaeError, JournalError
from bae.journal.running.resuming import Options, resume
from bae.journal.store import Journal, RunInfo
from bae.node import Node
from bae.result import GraphResult
from bae.tasks import all_or_first_error

if TYPE_CHECKING:
    from bae.graph import Graph

T = TypeVar("T", bound=Node, covariant=True)


@dataclass(frozen=True, slots=True)
class Recovered(Generic[T]):
    """What became of one run: its `result`, or the `error` it failed with."""

    run_id: str
    result: GraphResult[T] | None = None
    error: BaeError | None = None


async def recover(
    graph: Graph[Any, T],
    options: Options,
    journal: Journal,
    concurrency: int,
    given: Mapping[str, Any] | None,
) -> list[Recovered[T]]:
    """Resume what can go on, so many at once; those that somebody else takes first are left out."""
    if concurrency < 1:
        raise ValueError(f"concurrency={concurrency}: give a number of runs, 1 or more")
    ids = [info.run_id async for info in _stranded(graph, journal)]
    found: dict[str, Recovered[T]] = {}
    left = iter(ids)

    async def worker() -> None:
        for run_id in left:
            try:
                # What one run has found is none of the others' business.
                own = options._replace(dep_cache=dict(options.dep_cache or {}))
                result = await resume(graph, run_id, own, journal, given)
                found[run_id] = Recovered(run_id, result)
            except BaeError as error:
                if isinstance(error, JournalError) and error.code in _TAKEN:
                    continue
                found[run_id] = Recovered(run_id, error=error)

    await all_or_first_error(worker for _ in range(min(concurrency, len(ids))))
    return [found[run_id] for run_id in ids if run_id in found]


async def _stranded(graph: Graph[Any, Any], journal: Journal) -> AsyncIterator[RunInfo]:
    """The runs of a graph that nobody has and that can go on, the newest first."""
    async for info in journal.every_run(status="interrupted", graph=graph.name):
        yield info
    async for info in journal.every_run(status="waiting", graph=graph.name):
        now = time()
        if any(g.answered or (g.deadline is not None and g.deadline <= now) for g in info.waiting):
            yield info


_TAKEN = ("bae-run-owned", "bae-run-taken", "bae-run-ended")
