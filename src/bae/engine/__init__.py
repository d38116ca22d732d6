"""Runs on many machines: workers carry out the runs of a journal, and an engine hands runs to the
workers. `JournalEngine` needs only the journal. `TemporalEngine` uses Temporal to dispatch runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.engine.engine import Engine
    from bae.engine.journal_engine import JournalEngine
    from bae.engine.queue_status import QueueStatus, queue_status
    from bae.engine.temporal import TemporalEngine
    from bae.engine.worker import Worker, WorkerGraph, WorkOutcome

__all__ = [
    "Engine",
    "JournalEngine",
    "QueueStatus",
    "TemporalEngine",
    "WorkOutcome",
    "Worker",
    "WorkerGraph",
    "queue_status",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "engine": "Engine",
        "journal_engine": "JournalEngine",
        "queue_status": "QueueStatus queue_status",
        "temporal": "TemporalEngine",
        "worker": "WorkOutcome Worker WorkerGraph",
    },
)
