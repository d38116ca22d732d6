"""`Engine`: the protocol of a service that hands the runs of a journal to workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.engine.worker import Worker


class Engine(ABC):
    """Hands the ids of runs to workers. The journal keeps the runs; an engine keeps ids only.

    For an engine of your own, write `dispatch` and `serve`. A run may be dispatched twice, late, or
    after its end: `Worker.carry_out` checks the state of the run, and the lease of the journal lets
    only one process work on it. If an engine loses a run, a worker finds the run in the journal.
    """

    @abstractmethod
    async def dispatch(self, run_id: str, graph: str, *, delay: float = 0.0) -> None:
        """Make a worker carry out a run that was submitted, or whose gate was answered. A worker
        may be working on the run already. A new run begins after `delay` seconds."""

    @abstractmethod
    async def serve(self, worker: Worker) -> None:
        """Call `await worker.carry_out(run_id, graph)` for each run, until `worker.stopping` is
        set. Return after the last call has returned."""

    async def status(self) -> dict[str, Any]:
        """Return facts about the engine for `bae engine status`, as JSON values."""
        return {}

    async def close(self) -> None:  # noqa: B027 - an engine may have no resources
        """Close connections and other resources."""
