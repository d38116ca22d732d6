"""Locks between processes, and work that is finished though its caller is cancelled."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class FileLock:
    """A lock between processes, on a file. Where it is taken already it is asked for again every
    few milliseconds, so that nothing waits in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def descriptors(self) -> tuple[int, ...]:
        """The open file, for processes that hold the lock on after this one is killed."""
        return () if self._file is None else (self._file,)

    async def acquire(self, *, exclusive: bool, timeout: float) -> None:
        """Take the lock, or change it from shared to exclusive or back. Raises TimeoutError."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        until = time.monotonic() + timeout
        while True:
            try:
                return fcntl.flock(self._file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"{self.path} is held by another process") from None
            await asyncio.sleep(0.01)

    def release(self) -> None:
        """Give the lock up, also for processes that were handed it."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None

    @asynccontextmanager
    async def held(self, *, exclusive: bool, timeout: float) -> AsyncGenerator[None]:
        """Hold the lock for a while."""
        try:
            await self.acquire(exclusive=exclusive, timeout=timeout)
            yield
        finally:
            self.release()


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end, even if the caller is cancelled meanwhile: that is raised then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller hears of
        raise
