"""The HTTP/1.1 server of `Provider`, on loopback, based on h11."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import h11


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """An HTTP request."""

    method: str
    path: str
    """The path without the query."""
    headers: Mapping[str, str]
    body: bytes


class Server:
    """An HTTP server on a free port of 127.0.0.1. Each connection has one task. The task answers
    all requests of the connection and ends with the connection.

    The server calls `respond` for each request, `changed` after each change of a connection, and
    `failed` with the exception of a task.
    """

    def __init__(
        self,
        respond: Callable[[Connection, HTTPRequest], Awaitable[None]],
        *,
        changed: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.respond, self.changed, self.failed = respond, changed, failed
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

    @property
    def busy(self) -> int:
        """The number of connections with an unanswered request."""
        return sum(connection.busy for connection in self.connections)

    async def start(self) -> int:
        """Start listening and return the port."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            lambda: Connection(self), "127.0.0.1", 0, backlog=1024
        )
        return self._listening.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and end every connection and task."""
        if self._listening is None:
            return
        self._listening.close()
        lost = [connection.lost for connection in self.connections]
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(event.wait() for event in lost))
        await self._listening.wait_closed()


class Connection(asyncio.Protocol):
    """A connection to a client. To answer a request, call `send_all`, or `start`, `send` and `end`.
    If the client disconnects, the task of the connection is cancelled, even before the answer is
    complete."""

    def __init__(self, server: Server) -> None:
        self.busy = False
        self.lost = asyncio.Event()
        self._server = server
        self._h11 = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._received = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    async def send_all(
        self,
        status: int,
        payload: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a complete answer."""
        all_headers = {**(headers or {}), "content-length": str(len(payload))}
        await self.start(status, content_type, all_headers)
        await self.send(payload)
        await self.end()

    async def start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Send the headers."""
        fields = {"content-type": content_type, **headers}
        await self._write(h11.Response(status_code=status, headers=list(fields.items())))

    async def send(self, data: bytes) -> None:
        """Send a part of the body. If the client is slow to read, wait."""
        await self._write(h11.Data(data=data))

    async def end(self) -> None:
        """End the body. If `respond` returns without this call, the server closes the connection in
        the middle of the body."""
        await self._write(h11.EndOfMessage())

    def abort(self) -> None:
        """Close the connection at once and cancel its task."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the task of the connection: a client has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve(transport))
        self._server.tasks.add(self._task)
        self._task.add_done_callback(self._finish_task)
        self._server.changed()

    def data_received(self, data: bytes) -> None:
        """Pass data from the client to the task."""
        self._h11.receive_data(data)
        self._received.set()

    def pause_writing(self) -> None:
        """Stop writing: the client reads more slowly than the server writes."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue writing: the client has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the task: the client has disconnected, or the server has closed the connection."""
        self._server.connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        self.lost.set()
        self._server.changed()

    async def _write(self, event: h11.Event) -> None:
        assert self._transport is not None
        data = self._h11.send(event)
        if (
            data and not self._transport.is_closing()
        ):  # asyncio warns of writes to a lost connection
            self._transport.write(data)
        await self._writable.wait()

    async def _serve(self, transport: asyncio.Transport) -> None:
        try:
            while True:
                await self._server.respond(self, await self._request())
                self._set_busy(False)
                if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
                    break
                self._h11.start_next_cycle()
        except h11.RemoteProtocolError:
            pass  # the client sent invalid HTTP: close the connection
        finally:
            self._set_busy(False)
            transport.close()

    async def _request(self) -> HTTPRequest:
        method = path = ""
        headers: dict[str, str] = {}
        body = b""
        while True:
            match event := self._h11.next_event():
                case h11.Request():
                    self._set_busy(True)
                    method = event.method.decode()
                    path = event.target.decode("latin-1").partition("?")[0]
                    headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in event.headers}
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    return HTTPRequest(method, path, headers, body)
                case _:
                    self._received.clear()
                    await self._received.wait()

    def _set_busy(self, busy: bool) -> None:
        if busy != self.busy:
            self.busy = busy
            self._server.changed()

    def _finish_task(self, task: asyncio.Task[None]) -> None:
        self._server.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._server.failed(error)
            self.abort()
        self._server.changed()
