"""A server that serves an API with uvicorn while a block runs."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from bae.exceptions import BaeError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from bae.serve.api import API

CLOSE_SECONDS: Final = 2.0
"""The seconds that connections have to end when the server stops."""
REQUEST_SECONDS: Final = 15.0
"""The seconds that a client has to send a complete request, or to read a part of the response."""
MOST_CONNECTIONS: Final = 1_000
"""The maximum number of connections. If the process may open only few files, the maximum is
lower."""
BACKLOG: Final = 256
"""The maximum number of connections that wait until the server accepts them."""
_KERNEL_BYTES: Final = 128 * 1024

_log = logging.getLogger("bae")


@asynccontextmanager
async def listening(
    api: API, host: str = "127.0.0.1", port: int = 0, *, app: ASGIApp | None = None
) -> AsyncGenerator[str]:
    """Serve an API while the block runs, and yield its address, such as `http://127.0.0.1:8800`.

    With port 0, the server takes a free port. If an application mounts the API, give that
    application as `app`. The server then serves the application.

    At the end of the block, the API closes. Streams end, no new runs start, and runs in progress
    are handed over: another process can resume them at once. The server installs no signal
    handlers.
    """
    listener = _listen(host, port)
    async with api.open():
        server = _Server(
            uvicorn.Config(
                api if app is None else app,
                log_config=None,
                log_level="warning",  # at lower levels, uvicorn would write tokens to the log
                access_log=False,
                lifespan="off",
                backlog=BACKLOG,
                http=_HttpConnection,
                ws=_SocketConnection,
                ws_max_size=16_384,
                ws_per_message_deflate=False,
                server_header=False,
                timeout_graceful_shutdown=int(CLOSE_SECONDS),
            )
        )
        task = asyncio.create_task(server.serve(sockets=[listener]), name="server of an API")
        task.add_done_callback(_log_failure)
        try:
            yield f"http://{_netloc(host, listener.getsockname()[1])}"
        finally:
            api.close()
            server.should_exit = True
            await asyncio.wait([task])
            for connection in [*server.server_state.connections]:
                connection.transport.abort()
            listener.close()


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise BaeError(
            f"the server cannot listen on {host}, port {port}",
            error,
            code="bae-serve-address",
            fix="name another port, or 0 for a free one",
        ) from error
    # Connections inherit this limit. Without it, the system would buffer megabytes for a client
    # that reads nothing, and the server would close the connection late.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # the caller handles signals


class _HttpConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed if its client sends no complete request or does not read the
    response. If there are too many connections, a new connection is closed at once."""

    connections: set[Any]
    cycle: Any
    flow: Any
    loop: asyncio.AbstractEventLoop
    received: int = 0
    """The number of bytes that the client has sent."""
    transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > _most_connections():
            transport.abort()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._close_idle, (None, 0, 0))

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)

    def _close_idle(self, last: tuple[Any, int, int]) -> None:
        """Close the connection if the server waits for the client, and nothing has changed since
        the `last` check. A check compares the newest request, the number of unread bytes of the
        response, and the number of received bytes of an incomplete body."""
        if self not in self.connections:  # the connection is closed, or has become a WebSocket
            return
        cycle, is_sending = self.cycle, False
        if cycle is not None and not cycle.response_complete:
            is_sending = cycle.more_body and not self.flow.read_paused
        is_answered = cycle is None or cycle.response_complete
        # Bytes of an incomplete head do not count. Otherwise a client could keep the connection
        # open by sending a byte from time to time.
        state = cycle, self.transport.get_write_buffer_size(), self.received if is_sending else 0
        if (is_answered or is_sending) and state == last:
            self.transport.abort()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._close_idle, state)


def _most_connections() -> int:
    """Return the maximum number of connections. At least half of the files that the process may
    open remain for the journal and the runs."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
    except ImportError:  # Windows
        return MOST_CONNECTIONS
    files, _ = getrlimit(RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)


class _SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket that ends even if the client reads nothing."""

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            # Otherwise `send` would wait until the client has read all earlier data.
            self.writable.set()
            self.close_timeout = CLOSE_SECONDS
            self.loop.call_later(CLOSE_SECONDS, self.transport.abort)
        await super().send(message)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("the server ended", exc_info=error)
