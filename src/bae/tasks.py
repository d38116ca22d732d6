"""Tasks with an owner: waited for, cancelled and never lost, even if the owner is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["finish_despite_cancel"]

T = TypeVar("T")
Closer = Callable[[BaseException | None], Awaitable[None]]
"""Closes something that was opened; it is given what the run failed with, if it did."""


def cancellations() -> int:
    """How often the current task has been cancelled. A CancelledError can also come from a
    function that raised it by itself, which is a failure like any other; and a function that is
    cancelled can raise something else."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


Explains = Callable[[asyncio.CancelledError], BaseException | None]
"""The error that a cancellation is due to; None if the work is just not wanted any more."""


def explained(task: asyncio.Task[Any], by: Explains) -> None:
    """Have `by` asked why a task was cancelled. A run in it that was for an error has failed with
    that, for its journal and its observers; the task is cancelled as any other."""
    _explained[task] = by


def reason_of(cancelled: asyncio.CancelledError) -> BaseException | None:
    """What the current task has failed with, though it ends by a CancelledError: what explains
    that, or this error itself where its own code raised it. None where it was just cancelled."""
    task = asyncio.current_task()
    explains = None if task is None else _explained.get(task)
    reason = None if explains is None else explains(cancelled)
    return reason if reason is not None or cancellations() else cancelled


_explained: WeakKeyDictionary[asyncio.Task[Any], Explains] = WeakKeyDictionary()


async def wait_despite_cancel(
    futures: Iterable[asyncio.Future[Any]],
    drop: Callable[[], bool] | None = None,
) -> asyncio.CancelledError | None:
    """Wait until all futures are done, even if this is cancelled meanwhile; the last cancellation
    is returned, to be raised later. It is raised at once if `drop`, which is called then, says that
    the work was dropped before it began."""
    left: list[asyncio.Future[Any]] = [future for future in futures if not future.done()]
    cancelled: asyncio.CancelledError | None = None
    while left:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            if drop is not None and drop():
                raise
            cancelled = error
        left = [future for future in left if not future.done()]
    return cancelled


async def finish_despite_cancel(
    work: Awaitable[T],
    then: Callable[[T], None] | None = None,
    drop: Callable[[], bool] | None = None,
) -> T:
    """Await `work` to its end, even if the caller is cancelled meanwhile: for work that must not
    stop half-way, such as a write or a clean-up. The cancellation is raised when `work` has ended.

    - `then` is called with the value, also where a cancellation is raised next: it can hand the
      value to an owner that closes it.
    - `drop` is called at a cancellation. If it returns True, the work was dropped before it began,
      and the cancellation is raised at once.
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


async def gone(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until tasks that were cancelled have ended, even if this one is cancelled meanwhile."""
    own = asyncio.current_task()
    cancelled = await wait_despite_cancel(task for task in tasks if task is not own)
    if cancelled is not None:
        raise cancelled


async def all_or_first_error(workers: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run workers as tasks to their end. When one fails, or this is cancelled, the others are
    cancelled and awaited; the first failure is raised as itself."""
    failures: list[BaseException] = []

    async def heard_out(worker: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await worker()
        except BaseException as error:
            failures.append(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):  # for the loop itself
                raise

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(heard_out(worker)) for worker in workers]
    over: asyncio.Future[None] = loop.create_future()
    left = len(tasks)

    def count(_: object) -> None:
        # Not `asyncio.wait` for the next to end: that looks at all tasks each time.
        nonlocal left
        left -= 1
        if (failures or not left) and not over.done():
            over.set_result(None)

    for task in tasks:
        task.add_done_callback(count)
    try:
        if tasks:
            await over
    finally:
        for task in tasks:
            task.cancel()
        await gone(tasks)
    if failures:
        first = failures[0]
        failures.clear()
        try:
            raise first
        finally:
            del first  # as its traceback holds this frame


async def opened_in_task(
    enter: Callable[[], Awaitable[Any]], leave: Closer, remember: Callable[[Closer], None]
) -> Any:
    """Open something in a task of its own, which waits there until it is to be closed.

    Cancel scopes, task groups and context variables want to be left in the task that entered
    them, and the one that asks for a dependency is not there any more when the run is over. What
    closes it is handed to `remember` at the moment it is open.
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
            await gone([task])
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
