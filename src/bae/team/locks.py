"""Locks between processes, temporary folders that are removed after a kill too, and work that is
finished though its caller is cancelled."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

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


class TemporaryFolder:
    """A folder in the system's directory for them, locked as long as it is used. Those of processes
    that were killed are removed by `remove_abandoned`."""

    def __init__(self) -> None:
        while True:
            self.path = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX))
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            with suppress(OSError):  # where another process removes it, since it was not locked yet
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.stat(self.path)
                return
            os.close(self._file)

    def remove(self) -> None:
        """Remove it, with what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._file)


def remove_abandoned() -> None:
    """Remove the temporary folders of processes that are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is in use, another user's, or gone
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(file)


_PREFIX: Final = "bae_team_"


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
