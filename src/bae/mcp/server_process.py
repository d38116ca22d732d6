"""An MCP server that is a program: it exchanges messages in lines of a bounded length, bae keeps
the end of its stderr, and no process of its group outlives it."""

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
"""How many of the last bytes of stderr are kept."""
_GRACE: Final = 2.0
"""Seconds for a server to end after its stdin is closed, and again after SIGTERM."""
_SKIPPED: Final = 16
"""A server whose message is so many times longer than the limit is ended."""
_HEAD: Final = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15})\s*,')
_HEARD: Final = "notifications/progress"
"""The only notification that bae reads. The list of tools does not change while a server is
open."""


@asynccontextmanager
async def open_stdio(endpoint: Stdio, limit: int, watcher: Watcher) -> AsyncGenerator[Streams]:
    """Start a server. No process of its group is left afterwards."""
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
        """End the server: close its stdin, then send SIGTERM and SIGKILL to its process group. A
        server that broke the protocol gets SIGTERM at once."""
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
        """The process was started."""
        super().connection_made(transport)
        self.out.set_transport(cast(Any, transport).get_pipe_transport(1))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """The process has printed something."""
        if fd == 1:
            self.out.feed_data(data)
        else:
            self._watcher.stderr += data
            del self._watcher.stderr[:-_STDERR]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """The process has closed a pipe."""
        if fd == 1:
            self.out.feed_eof()
        elif fd == 0:
            self.writable.set()

    def pause_writing(self) -> None:
        """The process reads more slowly than bae writes."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """The process has caught up."""
        self.writable.set()

    def process_exited(self) -> None:
        """The process has ended."""
        super().process_exited()
        status: int = self.transport.get_returncode()
        how = f"with status {status}" if status >= 0 else f"by signal {-status}"
        self._watcher.end(f"its process ended {how}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended, and its pipes are closed."""
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
        """The next message."""
        while True:
            line = await self._line()
            if isinstance(line, SessionMessage):
                return line
            if not line.strip():
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                # Many servers print lines by mistake, which are ignored.
                answer = _error_for(line, "it is no valid message")
                if answer is None:
                    continue
                return answer
            self._watcher.see(message)
            if isinstance(message, JSONRPCError) and message.error.code == CONNECTION_CLOSED:
                # To the SDK this code means a lost connection. Many servers use it for any error.
                message.error.code = INTERNAL_ERROR
            if isinstance(message, JSONRPCNotification) and message.method != _HEARD:
                continue
            return SessionMessage(message)

    async def _line(self) -> bytes | SessionMessage:
        """The next line, or an error message instead of a line that is too long."""
        skipped, head = 0, b""
        while True:
            try:
                line = await self._out.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                self._watcher.is_over = True
                await asyncio.wait([self._process.exited], timeout=_GRACE)  # for how it ended
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
        answer = _error_for(head, reason)
        if answer is None or skipped > _SKIPPED * self._limit:
            self._watcher.end(reason)
            raise anyio.EndOfStream
        return answer


def _error_for(head: bytes, why: str) -> SessionMessage | None:
    """The error to pass on instead of an answer with this beginning. None if it is no answer."""
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
        """Send a message. Waits while the server is slow to read."""
        pipe = self._process.stdin
        if pipe.is_closing():
            raise anyio.BrokenResourceError
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        pipe.write(text.encode() + b"\n")
        await self._process.writable.wait()
