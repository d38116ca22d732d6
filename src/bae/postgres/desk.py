"""The thread that talks with the database: it has an event loop of its own, so that any number of
loops and threads share a journal, and a body that blocks its loop does not end the lease."""

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
"""Why the thread does nothing more: it was closed, or this process was forked from its process."""

AT_EXIT: Final = 5.0
"""Seconds that a program which ends waits for lines that are still to be stored."""


class PostgresDesk:
    """A thread with an event loop, in which `serve` runs until `stop` has told it to end. Then
    `refuse` gets the reason, and `error` makes an error of it."""

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
        """Once nothing more is done: why."""
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
        """What an async function returns that is called in the thread. A caller that is cancelled
        cancels it."""
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
                future.get_loop().call_soon_threadsafe(self._settle, future, task)

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
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(function, *args)

    def end(self, seconds: float | None = None) -> None:
        """Have it stop, and wait for that."""
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

    def _settle(self, future: Future[T], task: asyncio.Task[T]) -> None:
        """Tell a caller, in the thread of its loop, what came of a task."""
        if future.done():
            return
        if task.cancelled():  # by the end of the thread: a caller that cancels it does not wait
            future.set_exception(self._error("closed"))
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())


def _in_child() -> None:
    # The connections are the parent's, and the thread is not there.
    for desk in list(_alive):
        desk.over = desk.over or "forked"
        _alive.discard(desk)


def _end_all() -> None:
    for desk in list(_alive):
        desk.end(AT_EXIT)


_alive: weakref.WeakSet[PostgresDesk] = weakref.WeakSet()
atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
