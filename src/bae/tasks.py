"""Tasks with an owner. The owner awaits or cancels each task, even if the owner itself is
cancelled, so no task outlives its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["finish_despite_cancel"]

T = TypeVar("T")
Closer = Callable[[BaseException | None], Awaitable[None]]
"""A function that closes a resource. Its argument is the error that the run failed with, or
None."""


def cancellations() -> int:
    """Return how often the current task has been cancelled.

    An error does not tell whether its task was cancelled. A function may raise a CancelledError by
    itself, which is an ordinary failure. A cancelled function may raise another error."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


Explains = Callable[[asyncio.CancelledError], BaseException | None]
"""A function that returns the error that caused a cancellation; None if the work is just not
wanted any more."""


def explain_cancellation(task: asyncio.Task[Any], by: Explains) -> None:
    """Register `by` to explain a cancellation of `task`. If `by` returns an error, the journal and
    the observers of a run in the task record that the run failed with this error. The task itself
    still ends as cancelled."""
    _explained[task] = by


def reason_of(cancelled: asyncio.CancelledError) -> BaseException | None:
    """Return the error that a CancelledError of the current task stands for. It is the error from
    the function registered with `explain_cancellation`. Without such an error, it is the
    CancelledError itself if nobody cancelled the task, so that the task's own code raised it. None
    if the task was just cancelled."""
    task = asyncio.current_task()
    explains = None if task is None else _explained.get(task)
    reason = None if explains is None else explains(cancelled)
    return reason if reason is not None or cancellations() else cancelled


_explained: WeakKeyDictionary[asyncio.Task[Any], Explains] = WeakKeyDictionary()


async def wait_despite_cancel(
    futures: Iterable[asyncio.Future[Any]],
    drop: Callable[[], bool] | None = None,
) -> asyncio.CancelledError | None:
    """Wait until all futures are done, even if this task is cancelled meanwhile. Returns the last
    cancellation, for the caller to raise.

    A cancellation calls `drop`. If `drop` returns True, it has dropped the work before the work
    began, and the cancellation is raised at once."""
    pending: list[asyncio.Future[Any]] = [future for future in futures if not future.done()]
    cancelled: asyncio.CancelledError | None = None
    while pending:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            if drop is not None and drop():
                raise
            cancelled = error
        pending = [future for future in pending if not future.done()]
    return cancelled


async def finish_despite_cancel(
    work: Awaitable[T],
    then: Callable[[T], None] | None = None,
    drop: Callable[[], bool] | None = None,
) -> T:
    """Await `work` to its end, and return its value. If the caller is cancelled meanwhile, the
    cancellation is raised when `work` has ended. Use it for work that must not stop half-way, such
    as a write or a clean-up.

    - `then` is called with the value, also when a cancellation is raised next. For example, it
      passes an opened resource to an owner that closes the resource.
    - `drop` is called at a cancellation. If `drop` returns True, it has dropped the work before the
      work began, and the cancellation is raised at once.
    """
    future = asyncio.ensure_future(work)
    cancelled = await wait_despite_cancel([future], drop)
    if cancelled is not None and (future.cancelled() or future.exception() is not None):
        raise cancelled
    value = future.result()
    if then is not None:
        then(value)
    if cancelled is not None:
        raise cancelled
    return value


async def wait_until_ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until cancelled tasks have ended. If this task is cancelled meanwhile, the cancellation
    is raised afterwards."""
    current = asyncio.current_task()
    cancelled = await wait_despite_cancel(task for task in tasks if task is not current)
    if cancelled is not None:
        raise cancelled


async def all_or_first_error(workers: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run each worker as a task, and wait until all have ended. If a worker fails, or this task is
    cancelled, the other workers are cancelled and awaited. The first failure is then raised itself,
    not in an exception group."""
    failures: list[BaseException] = []

    async def run_worker(worker: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await worker()
        except BaseException as error:
            failures.append(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):  # these end the event loop
                raise

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(run_worker(worker)) for worker in workers]
    over: asyncio.Future[None] = loop.create_future()
    remaining = len(tasks)

    def count_down(_: object) -> None:
        # A callback takes constant time. `asyncio.wait` looks at all tasks whenever a task ends.
        nonlocal remaining
        remaining -= 1
        if (failures or not remaining) and not over.done():
            over.set_result(None)

    for task in tasks:
        task.add_done_callback(count_down)
    try:
        if tasks:
            await over
    finally:
        for task in tasks:
            task.cancel()
        await wait_until_ended(tasks)
    if failures:
        first = failures[0]
        failures.clear()
        try:
            raise first
        finally:
            del first  # its traceback and this frame would keep each other alive


async def opened_in_task(
    enter: Callable[[], Awaitable[Any]], leave: Closer, remember: Callable[[Closer], None]
) -> Any:
    """Open a resource in a task of its own, and return the value of `enter`. The same task calls
    `leave` when the resource is closed.

    Cancel scopes, task groups and context variables must be left in the task that entered them. The
    task that needs a dependency cannot do this, because it has ended when the run is over. As soon
    as the resource is open, `remember` gets the function that closes it.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[Any] = loop.create_future()
    over: asyncio.Future[BaseException | None] = loop.create_future()

    async def close(error: BaseException | None) -> None:
        over.set_result(error)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await wait_until_ended([task])
            raise
        task.result()

    async def hold() -> None:
        value = await enter()
        remember(close)
        ready.set_result(value)
        try:
            error = await over
        except asyncio.CancelledError as cancelled:
            await leave(cancelled)
            raise
        await leave(error)

    task = loop.create_task(hold())
    cancelled: asyncio.CancelledError | None = None
    while not ready.done() and not task.done():
        try:
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
            if not ready.done():
                task.cancel()
    if cancelled is not None:
        raise cancelled
    if not ready.done():
        task.result()
    return ready.result()
