"""Running a program for its output. Afterwards nothing of the program is left: no process, no child
process in its group, and no pipe."""

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

STDERR_TAIL: Final = 2048
"""How many of the last bytes of stderr `run_program` returns, unless the caller passes `kept`."""
LARGEST_OUTPUT: Final = 16 * 1024 * 1024
"""How many bytes a program may print to each pipe, unless the caller passes `limit`."""

ExceededBound = Literal["timeout", "stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """A program that has ended.

    - `status`: the exit status, or the negative number of the signal that ended the program.
    - `out`: the stdout, until `run_program` ended the program. Empty if `on_output` gets it.
    - `err`: the last bytes of stderr, at most `kept`.
    - `bound`: why `run_program` ended the program: "timeout", or "stdout" or "stderr" for too much
      output there. None if the program ended by itself.
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
    kept: int = STDERR_TAIL,
) -> EndedProgram:
    """Run a program without a shell, and wait until it ends. Raises `OSError` if the program cannot
    be started.

    The program leads a process group of its own. When this call ends, no process of the group is
    left. After `timeout` seconds, a cancellation, or more than `limit` bytes of output on a pipe,
    the group gets SIGTERM. If it has not ended `grace` seconds later, it gets SIGKILL. A process
    that leaves the group, as a daemon does, keeps running.

    - `given`: the input of the program. With None, stdin stays open, and is closed instead of
      sending SIGTERM. A program that supervises other programs then sees the end of its input, even
      if this process dies, and can end the other programs.
    - `env`: replaces the environment of this process.
    - `pass_fds`: open file descriptors that the program inherits.
    - `on_output`: gets each piece of stdout as it arrives. `EndedProgram.out` is then empty.
    - `kept`: how many of the last bytes of stderr are returned.
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
            # The pipes may still have output of the program.
            await asyncio.wait([child.closed], timeout=grace)
    finally:
        if child.started:
            await child.end(grace, ask=given is not None)
    status: int = child.transport.get_returncode()
    return EndedProgram(status, bytes(child.out), bytes(child.err), child.bound)


class ProcessGroup(asyncio.SubprocessProtocol):
    """A running program that leads a process group of its own. The methods end the group."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.started = False
        self.transport: Any
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the program has exited and all pipes are closed, so all output has arrived."""

    async def start(self, command: Sequence[str], **options: Any) -> None:
        """Start the program, with pipes for its stdin, stdout and stderr. A cancellation waits
        until the program has started, because nothing would end a half-started process."""
        # Not `asyncio.create_subprocess_exec`: it needs tasks to read the pipes, and may wait for a
        # pipe that a grandchild still has open.
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
        """The pipe to the program's stdin."""
        return self.transport.get_pipe_transport(0)

    def signal(self, number: int) -> None:
        """Send a signal to the group."""
        try:
            if hasattr(os, "killpg"):
                os.killpg(self.transport.get_pid(), number)
            else:
                # Windows has no process groups to signal, so children of the program keep running.
                self.transport.kill()
        except (ProcessLookupError, PermissionError):
            pass  # no process is left, or only processes of another user

    async def close_pipes(self) -> asyncio.CancelledError | None:
        """Close the pipes of a program that has exited, even if a process that left the group still
        has them open. Input that the program has not read is dropped. Returns the cancellation if
        this task is cancelled meanwhile."""
        if self.stdin is not None and self.stdin.get_write_buffer_size():
            self.stdin.abort()
        self.transport.close()
        return await wait_despite_cancel([self.closed])

    # --- called by the loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the program has started."""
        self.started = True
        self.transport = transport

    def process_exited(self) -> None:
        """Note that the program has exited, and kill the other processes of its group. This cannot
        wait, because the system may give the group's number to another group later."""
        self.signal(KILL)
        set_done(self.exited)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the program has exited and its pipes are closed."""
        set_done(self.closed)


class _Child(ProcessGroup):
    """A running program, with its output so far."""

    def __init__(
        self, limit: int, on_output: Callable[[bytes], None] | None = None, kept: int = STDERR_TAIL
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
        """Done when the program has exited or printed too much."""

    def write(self, data: bytes) -> None:
        """Write the whole input to the program's stdin, and close stdin."""
        if self.stdin is not None:
            self.stdin.write(data)
            self.stdin.write_eof()

    async def end(self, grace: float, *, ask: bool) -> None:
        """End the process group and close the pipes. With `ask`, the group gets SIGTERM first;
        without it, stdin is closed first. If this task is cancelled meanwhile, the cancellation is
        raised afterwards."""
        interrupted = None
        if not self.exited.done():
            # No SIGKILL yet: the program may be writing to its files, renewing a login, or ending
            # other programs. A second cancellation ends the wait.
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
        """Take a piece of output. If the program has printed too much, end the wait for it."""
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
        """Note that the program has exited, and end the wait for it."""
        super().process_exited()
        set_done(self.over)


def set_done(future: asyncio.Future[None]) -> None:
    """Set a future as done, unless it is done already."""
    if not future.done():
        future.set_result(None)


KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
