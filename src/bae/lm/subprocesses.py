"""Running a program for its output, with nothing of it left afterwards: no process, no child of it,
no pipe."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio import CancelledError
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEPT = 2048
"""Bytes of stderr that are kept: the last."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that ended: its exit status, or the negative number of the signal that ended it;
    its output; and the end of its stderr."""

    status: int
    out: bytes
    err: bytes


class TookTooLong(TimeoutError):
    """A program did not end in time; `err` is the end of its stderr."""

    def __init__(self, err: bytes) -> None:
        super().__init__()
        self.err = err


class TooMuchOutput(Exception):
    """A program printed more than it may on `pipe`; `err` is the end of its stderr."""

    def __init__(self, pipe: str, err: bytes) -> None:
        super().__init__(pipe)
        self.pipe = pipe
        self.err = err


async def run(
    command: Sequence[str],
    *,
    given: bytes,
    cwd: str,
    env: Mapping[str, str],
    timeout: float | None,
    limit: int,
    grace: float = 1.0,
) -> Ended:
    """Run a program with `given` on its stdin, and wait for its end.

    It leads a process group of its own. When this call ends, in whatever way, so has the group:
    after a timeout, a cancellation or more than `limit` bytes of output it gets SIGTERM, and
    SIGKILL where it has not ended within `grace` seconds. A process that leaves the group, as a
    daemon does, is not followed. Raises OSError where the program cannot be started, `TookTooLong`
    and `TooMuchOutput`.
    """
    loop = asyncio.get_running_loop()
    child = _Child(loop, limit)
    # A step below `asyncio.create_subprocess_exec`, which may wait for a pipe that a grandchild
    # still holds, and needs tasks to read with.
    starting = asyncio.ensure_future(
        loop.subprocess_exec(
            lambda: child,
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    )
    # Not interrupted: nothing would end a process that is half started.
    interrupted = await _finish(starting)
    if interrupted is not None and starting.exception() is not None:
        raise interrupted
    starting.result()
    late: TimeoutError | None = None
    try:
        if interrupted is not None:
            raise interrupted
        child.write(given)
        async with asyncio.timeout(timeout):
            await child.over
        if child.exited.done():
            await asyncio.wait([child.closed], timeout=grace)  # for what is still in the pipes
    except TimeoutError as error:
        late = error
    finally:
        await child.end(grace)
    if late is not None:
        raise TookTooLong(child.err) from late
    return child.ended()


class _Child(asyncio.SubprocessProtocol):
    """A running program: what it has printed, and how to end it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._limit = limit
        self._out = bytearray()
        self._err = bytearray()
        self._err_size = 0
        self._too_much: str | None = None
        self._transport: Any = None
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when there is nothing more to wait for: it exited, or printed too much."""
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when it exited and every pipe is closed: its whole output is here."""

    @property
    def err(self) -> bytes:
        """The end of its stderr so far."""
        return bytes(self._err[-KEPT:])

    def write(self, data: bytes) -> None:
        """Write to its stdin. A program need not read it."""
        pipe = self._transport.get_pipe_transport(0)
        if pipe is not None:
            pipe.write(data)
            pipe.write_eof()

    def ended(self) -> Ended:
        """Its result, once it has ended."""
        if self._too_much is not None:
            raise TooMuchOutput(self._too_much, self.err)
        return Ended(self._transport.get_returncode(), bytes(self._out), self.err)

    async def end(self, grace: float) -> None:
        """Leave nothing of it. A cancellation meanwhile is raised when that is done."""
        interrupted = None
        if not self.exited.done():
            # SIGTERM first: it may be writing to its files, or renewing a login. A second
            # cancellation ends the wait.
            self._signal(signal.SIGTERM)
            try:
                await asyncio.wait([self.exited], timeout=grace)
            except CancelledError as error:
                interrupted = error
            if not self.exited.done():
                self._signal(_KILL)
                interrupted = await _finish(self.exited) or interrupted
        # A process that left the group may still hold the pipes; what it does not read is dropped.
        pipe = self._transport.get_pipe_transport(0)
        if pipe is not None and pipe.get_write_buffer_size():
            pipe.abort()
        self._transport.close()
        interrupted = await _finish(self.closed) or interrupted
        if interrupted is not None:
            raise interrupted

    def _signal(self, number: int) -> None:
        try:
            if hasattr(os, "killpg"):
                os.killpg(self._transport.get_pid(), number)
            else:
                # Windows has no process groups in this sense: children of the program are left.
                self._transport.kill()
        except (ProcessLookupError, PermissionError):
            pass  # none is left, or only such as changed to another user

    # --- called by the loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It was started."""
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """It printed something."""
        if fd == 1:
            if self._too_much is not None:
                return
            self._out += data
            size = len(self._out)
        else:
            self._err += data
            self._err_size = size = self._err_size + len(data)
            if len(self._err) > 2 * KEPT:
                del self._err[:-KEPT]
        if size > self._limit and self._too_much is None:
            self._too_much = "stdout" if fd == 1 else "stderr"
            self._out.clear()
            _set_done(self.over)

    def process_exited(self) -> None:
        """It ended. Children that it left behind are killed at once: later the number of its group
        could be another's."""
        self._signal(_KILL)
        _set_done(self.exited)
        _set_done(self.over)

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended, and its pipes are closed."""
        _set_done(self.closed)


async def _finish(future: asyncio.Future[Any]) -> CancelledError | None:
    """Wait for a future even when cancelled meanwhile; the cancellation is returned."""
    interrupted = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except CancelledError as error:
            interrupted = error
    return interrupted


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
