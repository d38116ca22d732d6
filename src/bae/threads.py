"""Calls of sync functions in worker threads, with the context variables of the caller. The number
of threads is limited, and all runs of the process share them."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from bae.exceptions import describe
from bae.tasks import finish_despite_cancel

T = TypeVar("T")

THREAD_LIMIT = 64
"""How many sync calls of a process run at the same time, unless `set_thread_limit` is called."""
NAME_PREFIX = "bae "
"""The prefix of the worker threads' names."""


def set_thread_limit(limit: int) -> None:
    """Let at most `limit` sync dependencies of this process run at the same time. Further calls
    wait in a queue.

    A sync dependency may run a graph, and waits for the sync calls of that graph. Those calls have
    a limit of their own, of the same size. The new limit is for new calls: calls that are running
    or queued have the old limit."""
    global _limit
    if limit < 1:
        raise ValueError(f"set_thread_limit({limit}): give 1 or more")
    with _lock:
        _limit = limit
        old_pools = list(_pools.values())
        _pools.clear()
    for pool in old_pools:
        pool.shutdown(wait=False)


async def in_thread(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call `fn` in a worker thread. A cancellation ends the wait at once, and drops a call that is
    still queued. A running call continues to its end, because a thread cannot be stopped."""
    return await asyncio.wrap_future(_submit(fn, args, kwargs))


async def in_thread_to_the_end(
    fn: Callable[..., T], /, *args: Any, then: Callable[[T], None] | None = None
) -> T:
    """Call `fn` in a worker thread, and wait until the call has ended, even if this task is
    cancelled meanwhile. Use it for functions that open or close a resource.

    `then` gets the result, also after a cancellation, so that an opened resource is always closed.
    With `then`, a cancellation drops a call that is still queued."""
    submitted = _submit(fn, args, {})
    drop = None if then is None else submitted.cancel
    return await finish_despite_cancel(asyncio.wrap_future(submitted), then, drop)


def _submit(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[T]:
    depth = getattr(_thread_state, "depth", 0)
    with _lock:
        pool = _pools.get(depth)
        if pool is None:
            pool = _pools[depth] = ThreadPoolExecutor(
                _limit, f"{NAME_PREFIX}{depth}", initializer=_set_depth, initargs=(depth + 1,)
            )
        return pool.submit(contextvars.copy_context().run, _call, fn, args, kwargs)


def _set_depth(depth: int) -> None:
    _thread_state.depth = depth


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    try:
        return fn(*args, **kwargs)
    except StopIteration as error:
        # A future cannot hold a StopIteration: the caller would wait forever.
        raise RuntimeError(f"a sync call raised {describe(error)}") from error


def _forget_pools() -> None:
    global _lock
    _pools.clear()
    _lock = threading.Lock()


_pools: dict[int, ThreadPoolExecutor] = {}
"""The pools by depth. A graph that runs in a worker thread has its calls in the next pool, so they
never wait for the thread that waits for them."""
_thread_state = threading.local()
_limit = THREAD_LIMIT
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a forked child has the pools without their threads
    os.register_at_fork(after_in_child=_forget_pools)
