"""DSPy's optimizers are sync and threaded, and LMs are asked on the event loop: an optimizer runs
in a thread of its own, silently, and hands every call over to the loop."""

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
    """The optimization is over, and nothing is asked any more. No `Exception`, so that code which
    catches those does not catch it."""


class OutOfBudget(Exception):
    """The budget of the optimization is spent: the optimizer continues without the answer, and ends
    with what it has."""


class Bridge:
    """Calls from an optimizer's threads to the event loop. Make one there; what is called runs in
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
        done: Future[T] = Future()

        def body() -> None:
            try:
                done.set_result(work())
            except StopIteration as error:  # which no future of asyncio takes: it would never end
                failure = RuntimeError("the optimizer raised StopIteration")
                failure.__cause__ = error
                done.set_exception(failure)
            except BaseException as error:
                done.set_exception(error)

        # A daemon, so that a process whose loop is gone for good can end all the same.
        thread = threading.Thread(
            target=copy_context().run, args=(body,), name="bae optimizer", daemon=True
        )
        thread.start()
        self._threads.add(thread)
        ended = asyncio.wrap_future(done)
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
        """Have a coroutine run on the loop, and wait for its result; from a worker thread.

        Raises `OutOfBudget` where the optimization's own budget has run out, and what is `expected`
        as itself. Any other failure ends the optimization: `run` raises it.
        """
        waiting: Future[T] = Future()
        with self._lock:
            if self._over:
                raise OptimizationStopped
            self._threads.add(threading.current_thread())
            begin = self._begin, work, waiting, expected
            self._loop.call_soon_threadsafe(*begin, context=self._context)
        return waiting.result()

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
        return False  # what has begun is waited for

    def _join(self) -> None:
        """Wait for all threads that have called: none of them can call again."""
        for thread in list(self._threads):
            thread.join()


QUIET = "bae_quiet"
"""The setting of DSPy that marks the threads of an optimizer: it hands its settings on to them."""

_lock = threading.Lock()
_streams: list[tuple[_Selective, _Selective]] = []
_users = 0
_OURS = "(?#bae)"
"""A pattern of any text, which tells our warning filters from equal ones of others."""


@contextmanager
def silence_dspy() -> Generator[None]:
    """Within this block, threads with the setting `QUIET` print nothing, and draw no bars. DSPy and
    the packages that it uses warn of nothing in it."""
    global _users
    tqdm: Any = sys.modules.get("tqdm")
    if tqdm is not None:
        tqdm.tqdm.monitor_interval = 0  # its bars would start a thread that stays
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
                # Streams that other code has put there meanwhile stay.
                if cast(object, sys.stdout) is out:
                    sys.stdout = out.stream
                if cast(object, sys.stderr) is err:
                    sys.stderr = err.stream
                # Not `catch_warnings`, which would undo what other code sets meanwhile.
                filters = cast("list[Any]", warnings.filters)
                for each in [f for f in filters if getattr(f[1], "pattern", "") == _OURS]:
                    with suppress(ValueError):  # another thread has just reset them all
                        filters.remove(each)


class _Selective:
    """A stream that drops what quiet threads write."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        quiet = load_dspy("optimize_node").settings.get(QUIET, False)
        return len(text) if quiet else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
