"""`Worker`: carries out the runs of a journal for an engine, and hands them over when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Final, Literal

from bae.engine.attempts import Attempts, attempts_of, end_poison, note_death
from bae.exceptions import BaeError, JournalError, describe
from bae.graph import Graph
from bae.journal.resume import resume
from bae.run import HandedOver, RunOptions
from bae.tasks import explain_cancellation, wait_until_ended

if TYPE_CHECKING:
    from bae.engine.engine import Engine
    from bae.journal.store import Journal
    from bae.journal.stored_runs import RunInfo
    from bae.lm import LM
    from bae.result import GraphResult

_ELSEWHERE: Final = ("bae-run-owned", "bae-run-taken", "bae-thread-busy")
"""Codes of errors that mean that another process works on the run, or on its thread."""
_AWAY: Final = (
    *("bae-journal-failed", "bae-journal-away", "bae-journal-locked", "bae-journal-full"),
)
"""Codes of errors that mean that the journal cannot be used at present."""
FIRST_WAIT: Final = 1.0
"""Seconds before the first retry of a run. The pause doubles with each retry."""
_SHORTEST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 60.0
_SUSPECT: Final = 2
"""A run is a suspect after this many processes died while they worked on it. A worker carries out
one suspect at a time: if its process dies too, only that suspect is blamed."""

_log = logging.getLogger("bae")


@dataclass(frozen=True, slots=True)
class WorkerGraph:
    """A graph for a `Worker`, with an LM and secrets for its runs."""

    graph: Graph[Any, Any]
    lm: LM | str | None = None
    """The LM of the runs."""
    given: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The secrets that the journal does not store: `{"Login.token": SecretStr(…)}`."""


@dataclass(frozen=True, slots=True)
class WorkOutcome:
    """The outcome of one attempt to carry out a run."""

    kind: Literal["over", "waiting", "again", "unfit", "handed over"]
    """The kind of outcome:

    - "over": the run has ended, has failed or was cancelled.
    - "waiting": the run waits for a person or a deadline.
    - "again": the run can be tried again in `after` seconds.
    - "unfit": this worker does not have the graph of the run, or its classes do not fit the run.
    - "handed over": the worker stops, and another worker can continue the run at once.
    """
    after: float | None = None
    """Seconds until the next attempt or the deadline. None if the run waits without a deadline."""
    error: BaseException | None = None
    """The error that ended the attempt."""
    result: GraphResult[Any] | None = None
    """The result of a run that has ended or waits."""


class Worker:
    """Carries out the runs of some graphs in a journal: `await Worker(graph, journal=…).run()`.

    - `graphs` are graphs or `WorkerGraph`s. A `WorkerGraph` brings its own LM and secrets; the
      other graphs use `lm`.
    - `engine` hands runs to the worker. The default is a `JournalEngine`, which searches the
      journal.
    - `concurrency` is the number of runs in progress here at once.
    - `retries` is how often a run is tried again after a temporary error, such as a busy LLM
      (`error.retryable`), with growing pauses. If the journal cannot be used, the worker tries
      again without a limit.
    - `most_deaths` is a number of processes. When so many have died at the same step of a run, the
      run fails with `bae-run-poisoned`.

    A worker leaves a run that does not fit its classes to workers with other code.
    """

    def __init__(
        self,
        *graphs: Graph[Any, Any] | WorkerGraph,
        journal: Journal,
        engine: Engine | None = None,
        lm: LM | str | None = None,
        concurrency: int = 10,
        retries: int = 5,
        most_deaths: int = 5,
    ) -> None:
        if not graphs:
            raise ValueError("Worker(): give the graphs whose runs it carries out")
        if concurrency < 1 or retries < 0 or most_deaths < 1:
            raise ValueError(
                f"Worker(concurrency={concurrency}, retries={retries}, most_deaths={most_deaths}): "
                "give numbers of 1 or more; retries may be 0"
            )
        worker_graphs = [
            graph if isinstance(graph, WorkerGraph) else WorkerGraph(graph, lm) for graph in graphs
        ]
        self.graphs = {worker_graph.graph.name: worker_graph for worker_graph in worker_graphs}
        if len(self.graphs) < len(worker_graphs):
            raise ValueError(
                "Worker(): two graphs have the same name, so their runs cannot be distinguished; "
                'name them: Graph(…, name="refunds")'
            )
        for worker_graph in worker_graphs:
            worker_graph.graph.prove()
        self.journal, self.engine = journal, engine
        self.concurrency, self.retries, self.most_deaths = concurrency, retries, most_deaths
        self.stopping = asyncio.Event()
        """Set when the worker takes no more runs."""
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._suspects = asyncio.Lock()

    @property
    def run_ids(self) -> list[str]:
        """The runs in progress here."""
        return [*self._tasks.values()]

    @property
    def free(self) -> int:
        """How many more runs the worker takes now."""
        return 0 if self.stopping.is_set() else self.concurrency - len(self._tasks)

    async def run(self) -> None:
        """Carry out runs until `stop` is called, or until this call is cancelled. Then runs in
        progress are handed over: they are stored as interrupted, and another worker continues them
        at once."""
        from bae.engine.journal_engine import JournalEngine

        engine = JournalEngine() if self.engine is None else self.engine
        serving = asyncio.create_task(engine.serve(self), name="bae worker")
        stopped = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stopping.set()
            await self._hand_over()
            if asyncio.current_task() is not None and not serving.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((serving,), timeout=_LONGEST_WAIT)
                serving.cancel()
            stopped.cancel()
            await wait_until_ended((serving, stopped))
        if not serving.cancelled():
            serving.result()

    def stop(self) -> None:
        """Take no more runs, and hand over the runs in progress."""
        self.stopping.set()

    async def carry_out(self, run_id: str, graph: str, info: RunInfo | None = None) -> WorkOutcome:
        """Begin or resume a run, and return the outcome. Engines call this method.

        Errors of the run are not raised, but are part of the outcome. If you have just read the
        entry of the run, pass it as `info`. If this call is cancelled, the run is handed over.
        """
        worker_graph = self.graphs.get(graph)
        if worker_graph is None:
            return WorkOutcome("unfit")
        if self.stopping.is_set():
            return WorkOutcome("handed over")
        task = asyncio.create_task(self._attempt(run_id, worker_graph, info), name=f"run {run_id}")
        self._tasks[task] = run_id
        is_given_up = False
        explain_cancellation(
            task, lambda _: HandedOver() if is_given_up or self.stopping.is_set() else None
        )
        task.add_done_callback(self._tasks.pop)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            # The engine cancels this call. Temporal does so if heartbeats are missing.
            is_given_up = True
            task.cancel()
            await wait_until_ended((task,))
            raise
        if task.cancelled():
            return WorkOutcome("handed over")
        return task.result()

    async def _attempt(
        self, run_id: str, worker_graph: WorkerGraph, info: RunInfo | None
    ) -> WorkOutcome:
        attempts = Attempts()
        try:
            info = await self.journal.info(run_id) if info is None else info
            if info.status in ("ended", "failed", "cancelled"):
                return WorkOutcome("over")
            if not info.is_due():
                return WorkOutcome("again", after=info.started - time())
            if info.status == "queued" and await self._has_earlier_turn(info):
                return WorkOutcome("again", after=_SHORTEST_WAIT)
            if info.status == "waiting" and not info.can_continue():
                return _waiting_outcome(info)
            if info.status == "running":
                if not info.is_interrupted():
                    return WorkOutcome("again", after=_remaining_lease(info))
                attempts = await attempts_of(self.journal, run_id)
                if attempts.died and not await self._note_death(run_id, worker_graph, attempts):
                    return WorkOutcome("over")
            if attempts.deaths < _SUSPECT:
                return await self._resume(run_id, worker_graph, attempts)
            if self._suspects.locked():
                return WorkOutcome("again", after=_SHORTEST_WAIT)
            async with self._suspects:
                return await self._resume(run_id, worker_graph, attempts)
        except Exception as error:
            return await self._outcome_of(error, run_id, attempts)

    async def _has_earlier_turn(self, info: RunInfo) -> bool:
        """Whether an earlier turn of the thread is queued and due."""
        if info.thread is None:
            return False
        queued = await self.journal.runs(thread=info.thread, status="queued", after=0, limit=200)
        return any(turn.change < info.change and turn.is_due() for turn in queued)

    async def _note_death(self, run_id: str, worker_graph: WorkerGraph, attempts: Attempts) -> bool:
        """Store that the process of a run died. If so many processes have died that the run fails,
        end the run and return False."""
        await note_death(self.journal, run_id, attempts)
        if attempts.deaths < self.most_deaths:
            return True
        await end_poison(self.journal, run_id, worker_graph.graph, attempts)
        _log.error(
            "the run %s is not tried again: %d processes died while they worked on its step %d",
            run_id,
            attempts.deaths,
            attempts.step,
        )
        return False

    async def _resume(
        self, run_id: str, worker_graph: WorkerGraph, attempts: Attempts
    ) -> WorkOutcome:
        will_retry = partial(self._will_retry, attempts=attempts)
        options = RunOptions(worker_graph.lm, None, dep_cache={}, tries_again=will_retry)
        result = await resume(
            worker_graph.graph,
            run_id,
            options,
            self.journal,
            worker_graph.given or None,
            skip_ended=True,
        )
        if not result.waiting:
            return WorkOutcome("over", result=result)
        deadlines = [gate.deadline for gate in result.waiting if gate.deadline is not None]
        after = max(0.0, min(deadlines) - time()) if deadlines else None
        return WorkOutcome("waiting", after=after, result=result)

    def _will_retry(self, error: BaseException, attempts: Attempts) -> bool:
        """Whether a run is tried again after this error."""
        if getattr(error, "code", "") in _AWAY:
            return True
        return is_retryable(error) and attempts.tries < self.retries

    async def _outcome_of(self, error: Exception, run_id: str, attempts: Attempts) -> WorkOutcome:
        code = getattr(error, "code", "")
        if code in ("bae-run-ended", "bae-run-unknown"):
            return WorkOutcome("over", error=error)
        after = max(min(_LONGEST_WAIT, FIRST_WAIT * 2.0**attempts.tries), _retry_after(error))
        try:
            info = await self.journal.info(run_id)
        except JournalError:
            return WorkOutcome("again", after=after, error=error)
        if info.status in ("ended", "failed", "cancelled"):
            if info.status == "failed":
                _log.warning("the run %s failed: %s", run_id, describe(error))
            return WorkOutcome("over", error=error)
        if code in _ELSEWHERE:
            return WorkOutcome("again", after=_remaining_lease(info), error=error)
        if self._will_retry(error, attempts):
            _log.info("the run %s is tried again: %s", run_id, describe(error))
            return WorkOutcome("again", after=after, error=error)
        # The run could not begin here: its classes have changed, or a secret is missing.
        return WorkOutcome("unfit", error=error)

    async def _hand_over(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await wait_until_ended(tasks)


def is_retryable(error: BaseException) -> bool:
    """Whether another attempt may succeed, since the error or one of its causes is `retryable`."""
    current: BaseException | None = error
    while current is not None:
        if getattr(current, "retryable", False):
            return True
        current = current.cause if isinstance(current, BaeError) else current.__cause__
    return False


def _retry_after(error: BaseException) -> float:
    """Return the number of seconds that a provider asks to wait, or 0."""
    current: BaseException | None = error
    while current is not None:
        after: float | None = getattr(current, "retry_after", None)
        if after is not None:
            return after
        current = current.cause if isinstance(current, BaeError) else current.__cause__
    return 0.0


def _remaining_lease(info: RunInfo) -> float:
    """Return the seconds to wait until the lease of the run's owner ends."""
    remaining = 0.0 if info.lease_until is None else info.lease_until - time()
    return min(max(remaining, _SHORTEST_WAIT), _LONGEST_WAIT)


def _waiting_outcome(info: RunInfo) -> WorkOutcome:
    deadlines = [gate.deadline for gate in info.waiting if gate.deadline is not None]
    return WorkOutcome("waiting", after=min(deadlines) - time() if deadlines else None)
