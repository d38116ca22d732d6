"""DSPy's optimisers are sync and threaded, and LMs are asked on the event loop: here the one runs
in a thread of its own and hands every call over to the other. When the optimiser is to end, its
next call does not return, and none of its threads stays behind. What a call does in a worker thread
of bae's, such as a metric that is no coroutine, is not waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, TypeVar

from bae.exceptions import BudgetError
from bae.lm.policies.budget import Budget
from bae.tasks import gone
from bae.threads import in_thread_to_the_end

T = TypeVar("T")


class Stopped(BaseException):
    """The optimisation is over, so that nothing is asked any more. No exception that code which
    catches all of them would catch."""


class OutOfBudget(Exception):
    """The budget of the optimisation does not allow for a call: it goes on without the answer, and
    comes to its end with what it has."""


class Bridge:
    """Calls from an optimiser's threads to the event loop. Make one there; what is called runs in
    the context it was made in, with the budgets that are in force.

    `own` is the budget that may run out without this being an error. `spent` is what it said then.
    """

    def __init__(self, own: Budget | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._context: Context = copy_context()
        self._own = own
        self._lock = threading.Lock()
        self._over = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: set[threading.Thread] = set()
        self._failed: BaseException | None = None
        self.spent: BudgetError | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Do sync work in a thread, which may `call`. Cancelled, it stops at the next call; this
        returns when all its threads are gone. What a call failed with is raised as itself."""
        ended: asyncio.Future[None] = self._loop.create_future()
        result: list[T] = []
        raised: list[BaseException] = []

        def body() -> None:
            try:
                result.append(work())
            except BaseException as error:
                raised.append(error)
            finally:
                self._loop.call_soon_threadsafe(ended.set_result, None)

        # A daemon, so that a process whose loop is gone for good can end all the same.
        thread = threading.Thread(
            target=copy_context().run, args=(body,), name="bae optimizer", daemon=True
        )
        thread.start()
        self._threads.add(thread)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError as error:
                cancelled = error
                self._stop()
        self._stop()
        for waited in (gone(list(self._tasks)), in_thread_to_the_end(self._join)):
            try:
                await waited
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        if self._failed is not None:
            raise self._failed
        if raised:
            raise raised[0]
        return result[0]

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        expected: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> T:
        """Have a coroutine run on the loop, and wait for its result; from a worker thread.

        Raises `OutOfBudget` where the optimisation's own budget has run out, and what is `expected`
        as itself. Any other failure ends the optimisation: `run` raises it.
        """
        waiting: Future[T] = Future()
        with self._lock:
            if self._over:
                raise Stopped
            self._threads.add(threading.current_thread())
            begin = self._begin, work, waiting, expected
            self._loop.call_soon_threadsafe(*begin, context=self._context)
        return waiting.result()

    def _begin(
        self, work: Callable[[], Coroutine[Any, Any, T]], waiting: Future[T], expected: Any
    ) -> None:
        if self._over:
            waiting.set_exception(Stopped())
            return
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(done, waiting, expected))

    def _end(self, task: asyncio.Task[T], waiting: Future[T], expected: Any) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            waiting.set_exception(Stopped())
            return
        error = task.exception()
        if error is None:
            waiting.set_result(task.result())
        elif isinstance(error, expected):
            waiting.set_exception(error)
        elif isinstance(error, BudgetError) and error.budget is self._own:
            self.spent = self.spent or error
            waiting.set_exception(OutOfBudget(str(error)))
        else:
            if self._failed is None and not self._over:
                self._failed = error
            self._stop()
            waiting.set_exception(Stopped())

    def _stop(self) -> None:
        with self._lock:
            self._over = True
        for task in self._tasks:
            task.cancel()

    def _join(self) -> None:
        """Wait for all threads that have called: none of them can call again."""
        for thread in list(self._threads):
            thread.join()
