"""Tasks with an owner: awaited, cancelled and never lost, even if the owner is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["finish_despite_cancel"]

T = TypeVar("T")
Closer = Callable[[BaseException | None], Awaitable[None]]
"""Closes a resource. It gets the error that the run failed with, if it failed."""


def cancellations() -> int:
    """How often the current task has been cancelled. Use it to tell causes apart: a function can
    raise a CancelledError by itself, which is an ordinary failure, and a cancelled function can
    raise another error."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


Explains = Callable[[asyncio.CancelledError], BaseException | None]
"""The error that caused a cancellation; None if the work is just not wanted any more."""


def explain_cancellation(task: asyncio.Task[Any], by: Explains) -> None:
    """Register `by` to say why a task was cancelled. If the cause is an error, a run in the task
    has failed with that error, for its journal and its observers. The task itself is cancelled."""
    _explained[task] = by


def reason_of(cancelled: asyncio.CancelledError) -> BaseException | None:
    """The error that the current task has failed with, though it ends by a CancelledError: the
    registered reason, or the CancelledError if the task's own code raised it. None if the task was
    just cancelled."""
    task = asyncio.current_task()
    explains = None if task is None else _explained.get(task)
    reason = None if explains is None else explains(cancelled)
    return reason if reason is not None or cancellations() else cancelled


_explained: WeakKeyDictionary[asyncio.Task[Any], Explains] = WeakKeyDictionary()


async def wait_despite_cancel(
    futures: Iterable[asyncio.Future[Any]],
    drop: Callable[[], bool] | None = None,
) -> asyncio.CancelledError | None:
    """Wait until all futures are done, even if this is cancelled meanwhile. Returns the last
    cancellation, for the caller to raise. A cancellation calls `drop`; if that returns True, the
    work was dropped before it began, and the cancellation is raised at once."""
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
    """Await `work` to its end, even if the caller is cancelled meanwhile. Use it for work that must
    not stop half-way, such as a write or a clean-up. The cancellation is raised when `work` has
    ended.

    - `then` is called with the value, even if a cancellation is raised next: it can hand the value
      to an owner that closes it.
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


async def wait_until_ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until cancelled tasks have ended, even if this task is cancelled meanwhile."""
    own = asyncio.current_task()
    cancelled = await wait_despite_cancel(task for task in tasks if task is not own)
    if cancelled is not None:
        raise cancelled


async def all_or_first_error(workers: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run workers as tasks to their end. When a worker fails, or this is cancelled, the others are
    cancelled and awaited; then the first failure is raised, not a group."""
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
        # `asyncio.wait` for the next task would look at all tasks each time.
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
        await wait_until_ended(tasks)
    if failures:
        first = failures[0]
        failures.clear()
        try:
            raise first
        finally:
            del first  # its traceback holds this frame


async def opened_in_task(
    enter: Callable[[], Awaitable[Any]], leave: Closer, remember: Callable[[Closer], None]
) -> Any:
    """Open something in a task of its own, which stays until it is to be closed.

    Cancel scopes, task groups and context variables must be left in the task that entered them, and
    the task that asks for a dependency has ended when the run is over. As soon as it is open,
    `remember` gets the function that closes it.
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
