"""An MCP server that is a program. Each line on its stdin and stdout is one message, of a bounded
length. bae stores the end of its stderr, and ends all processes of its group when the server is
closed."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, Self, cast

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    JSONRPCError,
    JSONRPCNotification,
    jsonrpc_message_adapter,
)

from bae.mcp.servers import Stdio
from bae.mcp.transports import Streams, TransportItem, TransportStream, Watcher, failure
from bae.subprocesses import KILL, ProcessGroup
from bae.tasks import finish_despite_cancel, wait_despite_cancel

_STDERR: Final = 4_000
"""The number of bytes of stderr to store, from the end."""
_GRACE: Final = 2.0
"""The seconds that a server has to end after bae closes its stdin, and again after SIGTERM."""
_SKIPPED: Final = 16
"""bae ends a server whose message is longer than this number times the limit. A shorter message
over the limit fails only its request."""
_HEAD: Final = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15})\s*,')
"""The beginning of an answer, with the id of its request."""
_NOTIFICATION_READ: Final = "notifications/progress"
"""The only notification that bae reads. Changes to the list of tools are ignored, because tools
stay the same while a server is open."""


@asynccontextmanager
async def open_stdio(endpoint: Stdio, limit: int, watcher: Watcher) -> AsyncGenerator[Streams]:
    """Start a server, and end all processes of its group afterwards."""
    process = _Process(limit, watcher)
    environment = {**get_default_environment(), **endpoint.env}
    try:
        command = endpoint.command, *endpoint.args
        await process.start(command, cwd=endpoint.cwd, env=environment)
        yield _Lines(process, limit, watcher), _Writer(process)
    finally:
        if process.started:
            await finish_despite_cancel(process.stop())


class _Process(ProcessGroup):
    """The process of a server."""

    def __init__(self, limit: int, watcher: Watcher) -> None:
        super().__init__()
        self.out = asyncio.StreamReader(limit, asyncio.get_running_loop())
        self.writable = asyncio.Event()
        self.writable.set()
        self._watcher = watcher

    async def stop(self) -> None:
        """End the server. Close its stdin, then send SIGTERM and SIGKILL to its process group, with
        a pause before each signal. If the server was not ready or its connection failed, send
        SIGTERM without a pause."""
        self.stdin.close()
        polite = _GRACE if self._watcher.is_ready and not self._watcher.fault else 0.0
        for number, seconds in ((signal.SIGTERM, polite), (KILL, _GRACE)):
            await asyncio.wait([self.exited], timeout=seconds)
            if self.exited.done():
                break
            self.signal(number)
        await wait_despite_cancel([self.exited])
        await self.close_pipes()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the pipes of the process that was started."""
        super().connection_made(transport)
        self.out.set_transport(cast(Any, transport).get_pipe_transport(1))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Store what the process printed."""
        if fd == 1:
            self.out.feed_data(data)
        else:
            self._watcher.stderr += data
            del self._watcher.stderr[:-_STDERR]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note that the process has closed a pipe."""
        if fd == 1:
            self.out.feed_eof()
        elif fd == 0:
            self.writable.set()

    def pause_writing(self) -> None:
        """Make writers wait, because the process reads more slowly than bae writes."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Let writers continue, because the process has caught up."""
        self.writable.set()

    def process_exited(self) -> None:
        """Record how the process ended."""
        super().process_exited()
        status: int = self.transport.get_returncode()
        ending = f"with status {status}" if status >= 0 else f"by signal {-status}"
        self._watcher.end(f"its process ended {ending}")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream of messages. The process has ended, and its pipes are closed."""
        self.out.feed_eof()
        super().connection_lost(exc)


class _Lines(TransportStream):
    """The messages of a server: one on each line, of a bounded length."""

    def __init__(self, process: _Process, limit: int, watcher: Watcher) -> None:
        self._process, self._out = process, process.out
        self._limit, self._watcher = limit, watcher

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransportItem:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> TransportItem:
        """Return the next message."""
        while True:
            line = await self._read_line()
            if isinstance(line, SessionMessage):
                return line
            if not line.strip():
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                # Ignore other lines, because many servers print to stdout by mistake.
                answer = _error_message(line, "it is no valid message")
                if answer is None:
                    continue
                return answer
            self._watcher.see(message)
            if isinstance(message, JSONRPCError) and message.error.code == CONNECTION_CLOSED:
                # The SDK takes this code for a lost connection, but many servers send it for any
                # error.
                message.error.code = INTERNAL_ERROR
            if isinstance(message, JSONRPCNotification) and message.method != _NOTIFICATION_READ:
                continue
            return SessionMessage(message)

    async def _read_line(self) -> bytes | SessionMessage:
        """Return the next line. In place of an answer that is too long, return an error. If any
        other message is too long, or the answer is extremely long, end the connection."""
        skipped, head = 0, b""
        while True:
            try:
                line = await self._out.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                self._watcher.is_over = True
                await asyncio.wait([self._process.exited], timeout=_GRACE)  # to report how it ended
                self._watcher.end("it closed its stdout")
                raise anyio.EndOfStream from None
            except asyncio.LimitOverrunError as error:
                part = await self._out.readexactly(error.consumed)
                head = head or part[:200]
                skipped += len(part)
                if skipped > _SKIPPED * self._limit:
                    break
                continue
            if not skipped:
                return line
            skipped += len(line)
            break
        reason = f"it sent {skipped:,} bytes in one message, and the limit is {self._limit:,}"
        answer = _error_message(head, reason)
        if answer is None or skipped > _SKIPPED * self._limit:
            self._watcher.end(reason)
            raise anyio.EndOfStream
        return answer


def _error_message(head: bytes, why: str) -> SessionMessage | None:
    """Return the error to pass on in place of an answer that begins with `head`. Return None if the
    line is not an answer."""
    match = _HEAD.match(head)
    if match is None:
        return None
    error = failure("unreadable", why)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(match[1]), error=error))


class _Writer(TransportStream):
    """The messages to a server."""

    def __init__(self, process: _Process) -> None:
        self._process = process

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message. Wait if the server has not yet read enough earlier messages."""
        pipe = self._process.stdin
        if pipe.is_closing():
            raise anyio.BrokenResourceError
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        pipe.write(text.encode() + b"\n")
        await self._process.writable.wait()
