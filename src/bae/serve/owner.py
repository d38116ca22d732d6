"""`RunOwner` runs the runs of a server. The runs belong to the server, not to a connection. When a
server stops, it hands over its runs and does not cancel them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from bae.exceptions import BaeError, JournalError, describe
from bae.journal.live_texts import LiveTexts
from bae.journal.resume import recoverable
from bae.observers import observing
from bae.run import HandedOver
from bae.serve.failures import Failures
from bae.serve.problems import Refused
from bae.tasks import explain_cancellation, wait_until_ended

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.lm import LM
    from bae.lm.policies.budget import Budget
    from bae.node import Node

RECOVER: Final = 10.0
"""Seconds between two searches for runs that can continue: queued runs, interrupted runs, and
waiting runs that have an answer or are past a deadline."""
_TAKEN: Final = ("bae-run-owned", "bae-run-taken", "bae-run-ended", "bae-thread-busy")
"""The codes of errors for runs that have an owner, have ended, or wait for an earlier turn."""
_STORE_ERRORS: Final = ("bae-journal-failed", "bae-journal-full", "bae-journal-locked")
"""The codes of errors of the store. After such an error, the server tries to recover the run again,
because the run itself did not fail."""
_log = logging.getLogger("bae")


class RunOwner:
    """Starts and resumes runs as its own tasks, at most `at_once` at a time."""

    def __init__(
        self,
        graphs: Mapping[str, Graph[Any, Any]],
        journal: Journal,
        lm: LM | str | None,
        max_iters: int,
        at_once: int,
    ) -> None:
        self._graphs, self._journal, self._lm = graphs, journal, lm
        self._max_iters, self._at_once = max_iters, at_once
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._not_recovered: set[str] = set()
        """The runs that this process does not recover, because an attempt failed, or because a
        person will resume the run."""
        self._open = False
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.texts = LiveTexts()
        """The text in progress of this process's runs."""
        self.failures = Failures()
        """The errors of this process's runs."""
        self.closing = asyncio.Event()
        """An event that is set when the server stops."""

    @property
    def run_ids(self) -> list[str]:
        """The ids of the runs in progress in this process."""
        return [*self._tasks]

    def budgets(self) -> list[Budget]:
        """Return the budgets that limit the LM of the runs."""
        from bae.lm.policies.policy import budgets_of

        return budgets_of(self._lm)

    @asynccontextmanager
    async def open(self, *, recover: bool) -> AsyncGenerator[None]:
        """Accept runs inside the block. At the end of the block, hand over the runs in progress.
        The journal stores a handed-over run as interrupted, and any process can resume the run at
        once."""
        self.closing = asyncio.Event()
        self._open = True
        recovering = asyncio.create_task(self._recover()) if recover else None
        try:
            yield
        finally:
            self.close()
            if recovering is not None:
                recovering.cancel()
                await wait_until_ended([recovering])
            await _hand_over([*self._tasks.values()])
            self._open = False

    def close(self) -> None:
        """Take no more runs, and set `closing`, which ends all streams."""
        self.closing.set()

    @asynccontextmanager
    async def alone(self, run_id: str) -> AsyncGenerator[None]:
        """Block other requests that start or resume the run, until the end of the block. Of two
        requests with the same id, the second request then finds the run of the first request."""
        lock = self._locks.setdefault(run_id, asyncio.Lock())
        async with lock:
            yield

    async def start(self, graph: Graph[Any, Any], start: Node, run_id: str, **more: Any) -> None:
        """Start a run, and return when the journal has the run. The caller must be inside
        `alone`."""
        self._check_room()
        stored = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note_written_run(written_id: str) -> None:
            if written_id == run_id:
                loop.call_soon_threadsafe(stored.set)

        stop = self._journal.listen(note_written_run)
        waiting = asyncio.ensure_future(stored.wait())
        try:
            task = self._run_in_task(
                run_id,
                lambda: graph.arun(
                    start,
                    self._lm,
                    self._max_iters,
                    journal=self._journal,
                    run_id=run_id,
                    **more,
                ),
            )
            async with self._until_closing() as closing:
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait([waiting, task, closing], return_when=first)
                if not (waiting.done() or task.done()):
                    # The server stops before the run begins. For example, the run waits for an
                    # earlier turn.
                    await _hand_over([task])
        finally:
            stop()
            waiting.cancel()
        if stored.is_set() or not task.done():
            return
        if self.closing.is_set():
            raise _closing_refusal()
        if not task.cancelled():
            task.result()  # raises the error that kept the run from beginning

    async def resume(
        self, graph: Graph[Any, Any], run_id: str, given: Mapping[str, Any] | None = None
    ) -> None:
        """Resume a run, and return when the run has begun. Do nothing if the run is in progress in
        this process."""
        async with self.alone(run_id):
            if run_id not in self._tasks:
                self._not_recovered.discard(run_id)
                await self._resume(graph, run_id, given)

    @contextmanager
    def leaving(self, run_id: str) -> Generator[None]:
        """Do not recover the run that the block makes, because a person will resume the run. If the
        block fails, the run may be recovered."""
        is_new = run_id not in self._not_recovered
        self._not_recovered.add(run_id)
        try:
            yield
        except BaseException:
            if is_new:
                self._not_recovered.discard(run_id)
            raise

    async def _resume(
        self, graph: Graph[Any, Any], run_id: str, given: Mapping[str, Any] | None
    ) -> None:
        before = (await self._journal.lines(run_id, limit=0)).info.change
        self._check_room()

        def begin() -> Awaitable[Any]:
            return graph.resume(run_id, self._lm, journal=self._journal, given=given)

        task = self._run_in_task(run_id, begin)
        while not task.done():
            if (await self._journal.lines(run_id, limit=0)).info.change != before:
                return  # the change of the run's entry shows that this process has claimed the run
            await asyncio.wait([task], timeout=0.05)
        if not task.cancelled() and isinstance(task.exception(), JournalError):
            task.result()

    async def wait(self, run_id: str, seconds: float) -> bool:
        """Wait until a run in progress in this process has ended, until the server stops, or until
        `seconds` have passed. Return False if this process still works on the run."""
        task = self._tasks.get(run_id)
        if task is not None:
            async with self._until_closing() as closing:
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait([task, closing], timeout=seconds, return_when=first)
        return task is None or task.done()

    @asynccontextmanager
    async def _until_closing(self) -> AsyncGenerator[asyncio.Task[Any]]:
        """Yield a task that ends when the server stops."""
        closing = asyncio.create_task(self.closing.wait())
        try:
            yield closing
        finally:
            closing.cancel()

    def _run_in_task(self, run_id: str, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        async def run() -> Any:
            with observing(self.texts.observe):
                return await work()

        task = self._tasks[run_id] = asyncio.create_task(run(), name=f"run {run_id}")
        task.add_done_callback(lambda ended_task: self._note_end(run_id, ended_task))
        return task

    def _note_end(self, run_id: str, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(run_id) is task:
            del self._tasks[run_id]
        error = None if task.cancelled() else task.exception()
        if error is not None:  # the journal has the error too, unless the journal failed
            self.failures.add(run_id, error)
            level = logging.INFO if isinstance(error, BaeError) else logging.WARNING
            _log.log(level, "the run %s failed: %s", run_id, describe(error))

    def _check_room(self) -> None:
        if self.closing.is_set():
            raise _closing_refusal()
        if not self._open:
            raise Refused(
                500,
                "bae-serve-closed",
                "the API is not open, so no process would own the run",
                "open it with the application: FastAPI(lifespan=api.open)",
            )
        if len(self._tasks) >= self._at_once:
            raise Refused(
                429,
                "bae-serve-busy",
                f"{self._at_once} runs are in progress here",
                "try again later; router(…, at_once=…) sets the limit",
                headers={"retry-after": "2"},
            )

    async def _recover(self) -> None:
        """Resume the runs that can continue, now and every few seconds."""
        while True:
            for graph in self._graphs.values():
                try:
                    ids = [info.run_id async for info in recoverable(graph, self._journal)]
                    for run_id in ids:
                        if len(self._tasks) < self._at_once and run_id not in self._tasks:
                            await self._recover_run(graph, run_id)
                except Exception as error:  # a store may raise any error
                    _log.warning("runs of %s are not recovered: %s", graph.name, describe(error))
            await asyncio.sleep(RECOVER)

    async def _recover_run(self, graph: Graph[Any, Any], run_id: str) -> None:
        if run_id in self._not_recovered:
            return
        try:
            await self.resume(graph, run_id)
        except BaeError as error:
            if error.code not in _TAKEN:
                if error.code not in _STORE_ERRORS:
                    self._not_recovered.add(run_id)
                _log.warning("the run %s is not recovered: %s", run_id, error.message)
        except Refused:
            return


def _closing_refusal() -> Refused:
    return Refused(
        503,
        "bae-serve-closing",
        "the server stops, and takes no more runs",
        "try again: another process answers soon",
        headers={"retry-after": "2"},
    )


async def _hand_over(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Stop runs. The journal stores each run as interrupted."""
    for task in tasks:
        explain_cancellation(task, _explain_hand_over)
        task.cancel()
    await wait_until_ended(tasks)


def _explain_hand_over(cancelled: asyncio.CancelledError) -> BaseException:
    return HandedOver()
