"""`JournalEngine`: workers search the journal for runs, without another service."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from random import uniform
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from bae.engine.engine import Engine
from bae.engine.ready_runs import ReadyRuns
from bae.exceptions import describe

if TYPE_CHECKING:
    from bae.engine.worker import Worker
    from bae.journal.stored_runs import RunInfo

_LONGEST_PAUSE: Final = 30.0

_log = logging.getLogger("bae")


class JournalEngine(Engine):
    """Makes workers search the journal every `poll` seconds. No other service is needed. Use a
    `SQLiteJournal` for workers on one machine, and a `PostgresJournal` for workers on several."""

    def __init__(self, *, poll: float = 1.0) -> None:
        if not poll > 0:
            raise ValueError(f"JournalEngine(poll={poll!r}): give seconds, more than 0")
        self.poll = poll

    async def dispatch(self, run_id: str, graph: str, *, delay: float = 0.0) -> None:
        """Do nothing: a worker finds the run in the journal."""

    async def serve(self, worker: Worker) -> None:
        """Carry out ready runs until the worker stops."""
        ready = ReadyRuns(worker.journal, [*worker.graphs])
        bell = asyncio.Event()
        ready_infos: deque[RunInfo] = deque()
        next_search = 0.0
        failures = 0
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(_ring_at_stop(worker, bell))
            while not worker.stopping.is_set():
                bell.clear()
                if worker.free and (now := monotonic()) >= next_search:
                    limit = 2 * worker.concurrency
                    try:
                        ready_infos = deque(await ready.find(limit, worker.run_ids))
                        failures = 0
                    except Exception as error:  # any error of the store: search again later
                        failures += 1
                        _log.warning("the journal could not be searched: %s", describe(error))
                    next_search = now + min(self.poll * 2**failures, _LONGEST_PAUSE)
                    # Workers search at different times.
                    next_search += self.poll * uniform(-0.2, 0.2)
                had_runs = bool(ready_infos)
                for _ in range(min(worker.free, len(ready_infos))):
                    group.create_task(self._carry_out(worker, ready, ready_infos.popleft(), bell))
                await asyncio.sleep(0)  # let the tasks start, so that `worker.free` counts them
                if had_runs and not ready_infos:
                    next_search = 0.0  # there may be more ready runs
                pause = next_search - monotonic() if worker.free else self.poll
                if pause > 0:
                    await _wait(bell, pause)
            stop.cancel()

    async def _carry_out(
        self, worker: Worker, ready: ReadyRuns, info: RunInfo, bell: asyncio.Event
    ) -> None:
        outcome = await worker.carry_out(info.run_id, info.graph, info)
        if outcome.kind == "unfit":
            ready.skip(info)
            reason = (
                "this worker does not have its graph"
                if outcome.error is None
                else describe(outcome.error)
            )
            _log.warning("the run %s is left to another worker: %s", info.run_id, reason)
        elif outcome.kind == "again":
            try:
                info = await worker.journal.info(info.run_id)
            except Exception as error:  # try this run again later
                _log.warning("the run %s could not be read: %s", info.run_id, describe(error))
            ready.skip(info, time() + (outcome.after or 0.0))
        bell.set()  # there is room for another run


async def _ring_at_stop(worker: Worker, bell: asyncio.Event) -> None:
    await worker.stopping.wait()
    bell.set()


async def _wait(bell: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        pass
