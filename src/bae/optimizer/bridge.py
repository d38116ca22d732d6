"""Connect DSPy's optimizers, which are sync, with async LMs. An optimizer runs silently in its own
thread, and its LM calls run on the event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from typing import Any, TextIO, TypeVar, cast

from bae.exceptions import BudgetError
from bae.lm.extras import load_dspy
from bae.lm.policies.budget import Budget
from bae.tasks import wait_despite_cancel
from bae.threads import in_thread

T = TypeVar("T")


class OptimizationStopped(BaseException):
    """The optimization was stopped. This is not an `Exception`, so that `except Exception` in an
    optimizer does not catch it."""


class OutOfBudget(Exception):
    """The optimization's own budget is spent. The optimizer continues without the answer and ends
    with its best result so far."""


class Bridge:
    """Runs coroutines on the event loop for the threads of an optimizer.

    Create a bridge on the loop. Its calls run in a copy of the creator's context, so the creator's
    active budgets apply. If the budget `own` runs out, the optimizer continues, and `spent` is the
    `BudgetError`.
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
        """Run sync work in a thread, where it may use `call`, and return its result.

        If this coroutine is cancelled, the work stops at its next call. This coroutine returns
        after all threads that used `call` have ended. If a call failed, its error is raised
        unchanged.
        """
        outcome: Future[T] = Future()

        def body() -> None:
            try:
                outcome.set_result(work())
            except StopIteration as error:  # asyncio's futures refuse it, so `run` would never end
                failure = RuntimeError("the optimizer raised StopIteration")
                failure.__cause__ = error
                outcome.set_exception(failure)
            except BaseException as error:
                outcome.set_exception(error)

        # A daemon thread, so that the process can end even if the loop was closed.
        thread = threading.Thread(
            target=copy_context().run, args=(body,), name="bae optimizer", daemon=True
        )
        thread.start()
        self._threads.add(thread)
        ended = asyncio.wrap_future(outcome)
        cancelled = await wait_despite_cancel([ended], self._stop)
        self._stop()
        joined = asyncio.ensure_future(in_thread(self._join))
        cancelled = await wait_despite_cancel([*self._tasks, joined]) or cancelled
        for error in (cancelled, self._failed, ended.exception()):
            if error is not None:
                raise error
        return ended.result()

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        expected: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> T:
        """Run a coroutine on the loop and wait for its result. Call this from a thread of the
        optimizer.

        Raises `OutOfBudget` if the optimization's own budget has run out. Raises `expected` errors
        unchanged. Any other error ends the optimization, and `run` raises it.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._over:
                raise OptimizationStopped
            self._threads.add(threading.current_thread())
            begin = self._begin, work, future, expected
            self._loop.call_soon_threadsafe(*begin, context=self._context)
        return future.result()

    def _begin(
        self, work: Callable[[], Coroutine[Any, Any, T]], waiting: Future[T], expected: Any
    ) -> None:
        if self._over:
            waiting.set_exception(OptimizationStopped())
            return
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(done, waiting, expected))

    def _end(self, task: asyncio.Task[T], waiting: Future[T], expected: Any) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            waiting.set_exception(OptimizationStopped())
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
            waiting.set_exception(OptimizationStopped())

    def _stop(self) -> bool:
        with self._lock:
            self._over = True
        for task in self._tasks:
            task.cancel()
        return False  # so that the caller waits until the tasks have ended

    def _join(self) -> None:
        """Wait for all threads that have used `call`. After `_stop`, `call` accepts no further
        thread."""
        for thread in list(self._threads):
            thread.join()


QUIET = "bae_quiet"
"""The DSPy setting that marks an optimizer's threads. DSPy passes its settings on to the threads
that it starts."""

_lock = threading.Lock()
_streams: list[tuple[_Selective, _Selective]] = []
_users = 0
_OURS = "(?#bae)"
"""A pattern that matches any text and marks bae's own warning filters."""


@contextmanager
def silence_dspy() -> Generator[None]:
    """Silence DSPy inside this block. Threads with the setting `QUIET` print nothing and draw no
    progress bars. Warnings of DSPy, gepa, optuna and tqdm are ignored."""
    global _users
    tqdm: Any = sys.modules.get("tqdm")
    if tqdm is not None:
        tqdm.tqdm.monitor_interval = 0  # otherwise tqdm starts a thread that never ends
    with _lock:
        warnings.filterwarnings("ignore", _OURS, module=r"(dspy|gepa|optuna|tqdm)(\.|$)")
        experimental = getattr(sys.modules.get("optuna.exceptions"), "ExperimentalWarning", None)
        if experimental is not None:
            warnings.filterwarnings("ignore", _OURS, experimental)
        _users += 1
        if _users == 1:
            _streams.append((_Selective(sys.stdout), _Selective(sys.stderr)))
            sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", _streams[0])
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                out, err = _streams.pop()
                # If other code has set another stream in the meantime, keep it.
                if cast(object, sys.stdout) is out:
                    sys.stdout = out.stream
                if cast(object, sys.stderr) is err:
                    sys.stderr = err.stream
                # Not `catch_warnings`, which would undo filters that other code has set.
                filters = cast("list[Any]", warnings.filters)
                for entry in [item for item in filters if getattr(item[1], "pattern", "") == _OURS]:
                    with suppress(ValueError):  # another thread may have reset all filters
                        filters.remove(entry)


class _Selective:
    """An output stream that drops what threads with the setting `QUIET` write."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        quiet = load_dspy("optimize_node").settings.get(QUIET, False)
        return len(text) if quiet else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
