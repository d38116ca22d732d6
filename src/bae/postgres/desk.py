"""The thread that talks to the database. It has its own event loop, so several event loops and
threads can share a journal. Even if a node body blocks the event loop of its run, the lease is
renewed."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from asyncio import Future
from collections.abc import Awaitable, Callable
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from typing import Final, Literal, TypeVar

T = TypeVar("T")
Over = Literal["closed", "forked"]
"""The reason why a thread has stopped: it was closed, or this process is a fork, which has no
threads."""

AT_EXIT: Final = 5.0
"""Seconds that an ending program waits for each thread to store its pending lines."""


class PostgresDesk:
    """A thread whose event loop runs `serve`.

    `stop` must make `serve` return. When the thread has stopped, `refuse` gets the reason, and
    `error` makes an error from the reason for each later call.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[], Awaitable[None]],
        stop: Callable[[], None],
        refuse: Callable[[Over], None],
        error: Callable[[Over], Exception],
    ) -> None:
        self.name = name
        self.over: Over | None = None
        """The reason why the thread has stopped, or None."""
        self.stop = stop
        self._serve = serve
        self._refuse = refuse
        self._error = error
        ready: ThreadFuture[asyncio.AbstractEventLoop] = ThreadFuture()
        self._thread = threading.Thread(
            target=self._run, args=[ready], name=f"bae {name}", daemon=True
        )
        _alive.add(self)
        self._thread.start()
        self.loop = ready.result()

    async def ask(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call an async function in the thread, and return its result. If the caller is cancelled,
        the call is cancelled too."""
        future: Future[T] = asyncio.get_running_loop().create_future()
        tasks: list[asyncio.Task[T]] = []

        async def run() -> T:
            return await make()

        def start() -> None:
            task = self.loop.create_task(run())
            tasks.append(task)
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[T]) -> None:
            with suppress(RuntimeError):  # a closed loop has no callers
                future.get_loop().call_soon_threadsafe(self._set_outcome, future, task)

        try:
            self.loop.call_soon_threadsafe(start)
        except RuntimeError:
            raise self._error(self.over or "closed") from None
        try:
            return await future
        except asyncio.CancelledError:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the thread, soon."""
        with suppress(RuntimeError):  # the thread has ended
            self.loop.call_soon_threadsafe(function, *args)

    def end(self, seconds: float | None = None) -> None:
        """Stop the thread, and wait for its end."""
        self.stop()
        self._thread.join(seconds)

    def _run(self, ready: ThreadFuture[asyncio.AbstractEventLoop]) -> None:
        async def main() -> None:
            ready.set_result(asyncio.get_running_loop())
            await self._serve()

        try:
            asyncio.run(main())
        finally:
            self.over = self.over or "closed"
            self._refuse(self.over)

    def _set_outcome(self, future: Future[T], task: asyncio.Task[T]) -> None:
        """Pass the outcome of a task to its caller, in the caller's loop."""
        if future.done():
            return
        if task.cancelled():  # the thread has ended: if a caller is cancelled, its future is done
            future.set_exception(self._error("closed"))
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())


def _mark_forked_desks() -> None:
    # The child has neither the connections nor the thread.
    for desk in list(_alive):
        desk.over = desk.over or "forked"
        _alive.discard(desk)


def _end_all() -> None:
    for desk in list(_alive):
        desk.end(AT_EXIT)


_alive: weakref.WeakSet[PostgresDesk] = weakref.WeakSet()
atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked_desks)
