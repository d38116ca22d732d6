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
from typing import Any, Final, TypeVar

from bae.journal.postgres.errors import error_of

T = TypeVar("T")

AT_EXIT: Final = 5.0
"""Seconds that a program which ends waits for lines that are still to be stored."""


class Desk:
    """A thread with an event loop, in which `work` runs until it is told to stop."""

    def __init__(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.over = ""
        """Once nothing more is done: the code of the error that says why."""
        self._work = work
        self._ready: ThreadFuture[asyncio.AbstractEventLoop] = ThreadFuture()
        self.thread = threading.Thread(target=self._run, name=f"bae {name}", daemon=True)
        _alive.add(self)
        self.thread.start()
        self.loop = self._ready.result()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the thread, soon."""
        if self.over:
            raise error_of(self.over, self.name)
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # it ended a moment ago
            raise error_of("bae-journal-closed", self.name) from None

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
                future.get_loop().call_soon_threadsafe(settle, future, task)

        self.call(start)
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                with suppress(Exception):
                    self.call(lambda: [task.cancel() for task in tasks])

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the thread."""
        self.thread.join(seconds)

    def _run(self) -> None:
        async def main() -> None:
            self._ready.set_result(asyncio.get_running_loop())
            await self._work()

        try:
            asyncio.run(main())
        finally:
            self.over = self.over or "bae-journal-closed"


def settle(future: Future[T], task: asyncio.Task[T]) -> None:
    """Tell a caller, in the thread of its loop, what came of a task."""
    if future.done():
        return
    if task.cancelled():
        future.cancel()
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def close_at_exit(journal: Any, close: Callable[[float], None]) -> None:
    """Have a journal closed when the program ends."""
    _closing[journal] = close


def _close_all() -> None:
    for close in [*_closing.values()]:
        close(AT_EXIT)


def _in_child() -> None:
    # The connections are the parent's, and the thread is not there.
    for desk in list(_alive):
        if not desk.over:
            desk.over = "bae-journal-forked"
        _alive.discard(desk)
    _closing.clear()


_alive: weakref.WeakSet[Desk] = weakref.WeakSet()
_closing: weakref.WeakKeyDictionary[Any, Callable[[float], None]] = weakref.WeakKeyDictionary()
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
