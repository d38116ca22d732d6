"""A program run for what it prints, of which nothing is left afterwards: not it, not what it
started, no pipe. `claude_cli.py` asks a model by one.

This stands on the loop's `subprocess_exec`, a step below `asyncio.create_subprocess_exec`: it tells
of the exit at once, where the streams above it may wait for a pipe that a grandchild still holds,
and it needs no tasks to read with."""

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
"""Bytes of what a program prints on stderr that are kept: the last."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that came to its end: its exit status, or less the number of the signal that ended
    it; what it printed; and the end of what it printed on stderr."""

    status: int
    out: bytes
    err: bytes


class TookTooLong(TimeoutError):
    """A program did not come to its end in time; `err` is the end of what it printed on stderr."""

    def __init__(self, err: bytes) -> None:
        super().__init__()
        self.err = err


class TooMuchOutput(Exception):
    """A program printed more than it may, on the pipe with this name; `err` is the end of what it
    printed on stderr."""

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

    It leads a process group of its own. When the call ends, however it does, so has the group:
    after a timeout, a cancellation or more than `limit` bytes of output it is asked to end, and
    killed where it has not within `grace` seconds. What leaves the group, as a daemon does, is not
    followed. Raises OSError where the program cannot be started, `TookTooLong` and `TooMuchOutput`.
    """
    loop = asyncio.get_running_loop()
    child = _Child(loop, limit)
    # Not interrupted, because a process that is half started would be nobody's to end.
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
    interrupted = await _surely(starting)
    if interrupted is not None and starting.exception() is not None:
        raise interrupted
    starting.result()
    late: TimeoutError | None = None
    try:
        if interrupted is not None:
            raise interrupted
        child.give(given)
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
    """What is known of a running program, and its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._limit = limit
        self._out = bytearray()
        self._err = bytearray()
        self._err_size = 0
        self._too_much: str | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when there is nothing more to wait for: it exited, or printed too much."""
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when it exited and every pipe is closed: all that was printed is here."""

    def give(self, data: bytes) -> None:
        """Write to its stdin. A program that does not read it is none the worse."""
        pipe = self._stdin()
        if pipe is not None:
            pipe.write(data)
            pipe.write_eof()

    def ended(self) -> Ended:
        """What came of it, once it is at its end."""
        if self._too_much is not None:
            raise TooMuchOutput(self._too_much, self.err)
        status = self._running.get_returncode()
        assert status is not None
        return Ended(status, bytes(self._out), self.err)

    @property
    def err(self) -> bytes:
        """The end of what it printed on stderr so far."""
        return bytes(self._err[-KEPT:])

    async def end(self, grace: float) -> None:
        """Leave nothing of it. A cancellation meanwhile is raised when that is done."""
        interrupted = None
        if not self.exited.done():
            # Asked first: it may be writing to its files, or renewing a login, and a program that
            # is asked ends in a moment. A second cancellation ends the patience.
            self._signal(_TERM)
            try:
                await asyncio.wait([self.exited], timeout=grace)
            except CancelledError as error:
                interrupted = error
            if not self.exited.done():
                self._signal(_KILL)
                interrupted = await _surely(self.exited) or interrupted
        # Who left the group may still hold the pipes; what it does not read is not waited for.
        pipe = self._stdin()
        if pipe is not None and pipe.get_write_buffer_size():
            pipe.abort()
        self._running.close()
        interrupted = await _surely(self.closed) or interrupted
        if interrupted is not None:
            raise interrupted

    # --- what the loop tells ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It was started."""
        assert isinstance(transport, asyncio.SubprocessTransport)
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
            _finish(self.over)

    def process_exited(self) -> None:
        """It ended. What it started and left behind ends with it, at once: later its number could
        be another's."""
        self._signal(_KILL)
        _finish(self.exited)
        _finish(self.over)

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended, and its pipes are closed."""
        _finish(self.closed)

    # --- parts --------------------------------------------------------------------------------

    @property
    def _running(self) -> asyncio.SubprocessTransport:
        assert self._transport is not None
        return self._transport

    def _stdin(self) -> asyncio.WriteTransport | None:
        pipe = self._running.get_pipe_transport(0)
        assert pipe is None or isinstance(pipe, asyncio.WriteTransport)
        return pipe

    def _signal(self, number: int) -> None:
        try:
            if hasattr(os, "killpg"):
                os.killpg(self._running.get_pid(), number)
            else:
                # Windows has no process groups in this sense: what the program started is left.
                self._running.kill()
        except (ProcessLookupError, PermissionError):
            pass  # none is left, or only such as changed to another user


async def _surely(future: asyncio.Future[Any]) -> CancelledError | None:
    """Wait for a future even when cancelled meanwhile; that is returned, to be raised later."""
    interrupted = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except CancelledError as error:
            interrupted = error
    return interrupted


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_TERM = signal.SIGTERM
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
