"""Running a program for its output. Nothing of it is left afterwards: no process, no child process,
no pipe."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bae.tasks import finish_despite_cancel, wait_despite_cancel

__all__ = ["EndedProgram", "run_program"]

KEPT: Final = 2048
"""How many of the last bytes of stderr are kept."""
LARGEST_OUTPUT: Final = 16 * 1024 * 1024
"""How many bytes a program may print to each pipe, unless the caller gives another limit."""

ExceededBound = Literal["timeout", "stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """A program that has ended.

    - `status`: its exit status, or the negative number of the signal that ended it.
    - `out`, `err`: its output, and the last bytes of its stderr: 2,048, or the number `kept`.
    - `bound`: why `run_program` ended it: "timeout", or "stdout" or "stderr" for too much output.
      None if it ended by itself.
    """

    status: int
    out: bytes
    err: bytes
    bound: ExceededBound | None = None


async def run_program(
    command: Sequence[str],
    *,
    given: bytes | None = b"",
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 300.0,
    limit: int = LARGEST_OUTPUT,
    grace: float = 1.0,
    pass_fds: Sequence[int] = (),
    on_output: Callable[[bytes], None] | None = None,
    kept: int = KEPT,
) -> EndedProgram:
    """Run a program with `given` on its stdin, and wait for its end. It has the environment of this
    process unless `env` replaces it, and inherits the open files `pass_fds`. No shell is used.

    The program leads a process group of its own. No process of the group is left when this call
    ends. After `timeout` seconds, a cancellation, or more than `limit` bytes of output, the group
    gets SIGTERM, and SIGKILL if it has not ended within `grace` seconds. A process that leaves the
    group, as a daemon does, is not followed. Raises `OSError` if the program cannot be started.

    With `given=None`, stdin stays open, and is closed instead of sending SIGTERM. A program that
    supervises other programs then learns that it must end them, even if this process dies. With
    `on_output`, that function gets every piece of stdout when it arrives, and `out` is empty.
    """
    child = _Child(limit, on_output, kept)
    try:
        await child.start(command, cwd=cwd, env=env, pass_fds=pass_fds)
        if given is not None:
            child.write(given)
        done, _ = await asyncio.wait([child.over], timeout=timeout)
        if not done:
            child.bound = "timeout"
        if child.exited.done():
            await asyncio.wait([child.closed], timeout=grace)  # for output still in the pipes
    finally:
        if child.started:
            await child.end(grace, ask=given is not None)
    status: int = child.transport.get_returncode()
    return EndedProgram(status, bytes(child.out), bytes(child.err), child.bound)


class ProcessGroup(asyncio.SubprocessProtocol):
    """A program that leads a process group of its own, and the way to end the group."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.started = False
        self.transport: Any
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when it has exited and every pipe is closed: its whole output has arrived."""

    async def start(self, command: Sequence[str], **options: Any) -> None:
        """Start the program, with pipes for its stdin, stdout and stderr. A cancellation waits
        until it is started: nothing would end a half-started process."""
        # One level below `asyncio.create_subprocess_exec`, which may wait for a pipe that a
        # grandchild still holds, and needs tasks to read with.
        starting = asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            **options,
        )
        await finish_despite_cancel(starting)

    @property
    def stdin(self) -> Any:
        """The pipe to its stdin."""
        return self.transport.get_pipe_transport(0)

    def signal(self, number: int) -> None:
        """Send a signal to the group."""
        try:
            if hasattr(os, "killpg"):
                os.killpg(self.transport.get_pid(), number)
            else:
                # Windows has no process groups in this sense: children of the program are left.
                self.transport.kill()
        except (ProcessLookupError, PermissionError):
            pass  # no process is left, or only processes of another user

    async def close_pipes(self) -> asyncio.CancelledError | None:
        """Close the pipes of a program that has exited. A process that left the group may still
        hold them, and unread input is dropped. Returns a cancellation that came meanwhile."""
        if self.stdin is not None and self.stdin.get_write_buffer_size():
            self.stdin.abort()
        self.transport.close()
        return await wait_despite_cancel([self.closed])

    # --- called by the loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The program has started."""
        self.started = True
        self.transport = transport

    def process_exited(self) -> None:
        """The program has ended. The children that it left are killed at once: later, the number of
        its group could belong to another group."""
        self.signal(KILL)
        set_done(self.exited)

    def connection_lost(self, exc: Exception | None) -> None:
        """The program has ended, and its pipes are closed."""
        set_done(self.closed)


class _Child(ProcessGroup):
    """A running program: its output so far, and the way to end it."""

    def __init__(
        self, limit: int, on_output: Callable[[bytes], None] | None = None, kept: int = KEPT
    ) -> None:
        super().__init__()
        self.limit = limit
        self.kept = kept
        self.on_output = on_output
        self.out = bytearray()
        self.err = bytearray()
        self.sizes = {1: 0, 2: 0}
        self.bound: ExceededBound | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is nothing more to wait for: it exited, or printed too much."""

    def write(self, data: bytes) -> None:
        """Write to its stdin. A program need not read it."""
        if self.stdin is not None:
            self.stdin.write(data)
            self.stdin.write_eof()

    async def end(self, grace: float, *, ask: bool) -> None:
        """End it and leave nothing. A cancellation that comes meanwhile is raised afterwards."""
        interrupted = None
        if not self.exited.done():
            # Not SIGKILL first: it may be writing to its files, renewing a login, or ending other
            # programs. A second cancellation ends the wait.
            if ask:
                self.signal(signal.SIGTERM)
            else:
                self.stdin.close()
            try:
                await asyncio.wait([self.exited], timeout=grace)
            except asyncio.CancelledError as error:
                interrupted = error
            if not self.exited.done():
                self.signal(KILL)
                interrupted = await wait_despite_cancel([self.exited]) or interrupted
        interrupted = await self.close_pipes() or interrupted
        if interrupted is not None:
            raise interrupted

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """The program has printed something."""
        self.sizes[fd] += len(data)
        if self.sizes[fd] > self.limit and self.bound is None:
            self.bound = "stdout" if fd == 1 else "stderr"
            set_done(self.over)
        if fd == 2:
            self.err += data
            del self.err[: -self.kept]
        elif self.on_output is not None:
            self.on_output(data)
        elif self.bound is None:
            self.out += data

    def process_exited(self) -> None:
        """The program has ended, so there is nothing more to wait for."""
        super().process_exited()
        set_done(self.over)


def set_done(future: asyncio.Future[None]) -> None:
    """Set a future that may be set already."""
    if not future.done():
        future.set_result(None)


KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
