"""`Engine`: the protocol of a service that hands the runs of a journal to workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.engine.worker import Worker


class Engine(ABC):
    """Hands the ids of runs to workers. The journal keeps the runs; an engine keeps ids only.

    For an engine of your own, write `dispatch` and `serve`. `dispatch` may come twice, late, or for
    a run that has ended: `Worker.carry_out` finds out what there is to do, and the lease of the
    journal lets one process work on a run. What an engine loses, a worker finds in the journal.
    """

    @abstractmethod
    async def dispatch(self, run_id: str, graph: str, *, delay: float = 0.0) -> None:
        """Have a worker look at a run, because it was submitted or a gate of it was answered. A
        worker may be looking at it already. A new run begins in `delay` seconds."""

    @abstractmethod
    async def serve(self, worker: Worker) -> None:
        """Call `await worker.carry_out(run_id, graph)` for each run, until `worker.stopping` is
        set. Return after the last call has returned."""

    async def status(self) -> dict[str, Any]:
        """Facts about the engine for `bae engine status`, as JSON."""
        return {}

    async def close(self) -> None:  # noqa: B027 - an engine may hold nothing open
        """Close connections and other resources."""
