"""The HTTP transport to an MCP server, and code that the transport for programs shares. The SDK
does not bound the size of a server's messages, but these transports do."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Literal, Self, cast

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, ErrorData, JSONRPCMessage, JSONRPCNotification

from bae.mcp.servers import Http

TransportItem = SessionMessage | Exception
Streams = tuple[Any, Any]

Failure = Literal["never-sent", "refused", "broken", "unreadable"]
"""How a request failed. `never-sent`: it did not reach the server. `refused`: the server refused
it. `broken`: the connection broke, so it is unknown whether the server acted on it. `unreadable`:
bae cannot read the answer."""

FAILURE: Final = token_hex(16)
"""The key of the failure in the data of a transport error. It is random, so a server cannot forge
such an error."""


def failure(kind: Failure, message: str) -> ErrorData:
    """Return the error that a request gets in place of an answer."""
    return ErrorData(code=CONNECTION_CLOSED, message=message, data={FAILURE: kind})


class Watcher:
    """The state of a transport. The transport writes it, and the connection reads it."""

    def __init__(self) -> None:
        self.fault = ""
        """Why the connection ended, or empty if the transport does not know."""
        self.asked = ""
        """The method of the last request that the server sent to bae."""
        self.asks = 0
        """The number of requests that the server sent to bae."""
        self.cut_off = 0
        """The number of event streams that ended without an answer."""
        self.is_ready = False
        """Whether the server has listed its tools."""
        self.is_over = False
        """Whether the connection has ended."""
        self.stderr = bytearray()
        """The end of the server's stderr."""
        self.on_end: Callable[[], None] = lambda: None
        """The function to call when the connection ends."""

    def see(self, message: JSONRPCMessage) -> None:
        """Record the message if it is a request from the server."""
        method: str | None = getattr(message, "method", None)
        if method is not None and not isinstance(message, JSONRPCNotification):
            self.asked = method[:100]
            self.asks += 1

    def end(self, fault: str = "") -> None:
        """Record that the connection has ended, and why."""
        self.is_over = True
        self.fault = self.fault or fault
        self.on_end()


class TransportStream:
    """The methods that the SDK needs of a stream in either direction."""

    async def aclose(self) -> None:
        """Do nothing, because the transport closes both directions."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


@asynccontextmanager
async def open_http(endpoint: Http, limit: int, watcher: Watcher) -> AsyncGenerator[Streams]:
    """Connect to a server over HTTP. Reading has no timeout, because callers set timeouts of their
    own."""
    headers = {**endpoint.headers, "accept-encoding": "identity"}
    timeout = httpx2.Timeout(30.0, read=None)
    async with (
        _Client(limit, watcher, headers=headers, auth=endpoint.auth, timeout=timeout) as client,
        streamable_http_client(endpoint.url, http_client=client, max_sse_event_size=limit) as (
            read,
            write,
        ),
    ):
        yield _WatchedStream(read, watcher), write


class _Client(httpx2.AsyncClient):
    """An HTTP client that bounds response bodies. If the server cannot be reached or the connection
    breaks, the client gives only that request an error. The SDK would end the whole connection."""

    def __init__(self, limit: int, watcher: Watcher, **options: Any) -> None:
        super().__init__(**options)
        self._limit, self._watcher = limit, watcher

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # type: ignore[override]
        """Send a request, and bound the body of its response. The SDK itself bounds each event of a
        stream."""
        try:
            response = await super().send(request, **cast(Any, {**options, "stream": True}))
        except httpx2.TransportError as error:
            kind = "never-sent" if isinstance(error, _UNSENT_ERRORS) else "broken"
            return _make_failed_response(request, kind, f"{type(error).__name__}: {error}")
        try:
            return await self._bound_body(request, response)
        except httpx2.TransportError as error:
            return _make_failed_response(request, "broken", f"{type(error).__name__}: {error}")

    async def _bound_body(
        self, request: httpx2.Request, response: httpx2.Response
    ) -> httpx2.Response:
        """Return a response whose body has a bounded size, or an error response. Event streams stay
        streams, because the SDK bounds their events."""
        kind = response.headers.get("content-type", "").lower()
        encoded = response.headers.get("content-encoding", "identity") != "identity"
        if kind.startswith("text/event-stream") and response.is_success and not encoded:
            if request.method == "POST":
                response.stream = _Events(cast(Any, response.stream), self._watcher)
            return response
        try:
            if response.status_code == 404 and "mcp-session-id" in request.headers:
                return _make_failed_response(request, "never-sent", "it has ended the session")
            if encoded:
                return _make_failed_response(
                    request, "unreadable", "it sent compressed data, which is refused"
                )
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > self._limit:
                    reason = f"it sent more than the limit of {self._limit:,} bytes in one message"
                    return _make_failed_response(request, "unreadable", reason)
        finally:
            await response.aclose()
        if request.method == "POST" and not (kind.startswith(_JSON) and _is_message(body)):
            status = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
            if response.is_error:
                return _make_failed_response(
                    request, "broken" if response.is_server_error else "refused", status
                )
            if response.status_code == 202 and "id" in json.loads(request.content):
                return _make_failed_response(request, "broken", f"{status}, which is no answer")
            if response.is_success and body:
                return _make_failed_response(
                    request, "unreadable", f"it is no valid message ({status})"
                )
        headers = {k: v for k, v in response.headers.items() if k not in _BODY_HEADERS}
        bounded = httpx2.Response(
            response.status_code, headers=headers, content=bytes(body), request=request
        )
        bounded.next_request = response.next_request
        return bounded


class _Events(httpx2.AsyncByteStream):
    """The events that answer a request. If they end without an answer, the watcher counts the
    stream."""

    def __init__(self, stream: httpx2.AsyncByteStream, watcher: Watcher) -> None:
        self._stream, self._watcher = stream, watcher

    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_answered, last = False, b""
        try:
            async for chunk in self._stream:
                last = last[-len(_ANSWERS[0]) :] + chunk
                is_answered = is_answered or any(key in last for key in _ANSWERS)
                yield chunk
        finally:
            self._watcher.cut_off += not is_answered

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


_ANSWERS: Final = (b'"result":', b'"error":')
"""The JSON keys of an answer."""
_UNSENT_ERRORS: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
"""The errors of a request that did not reach the server."""
_JSON: Final = "application/json"
_BODY_HEADERS: Final = frozenset({"content-length", "transfer-encoding", "content-encoding"})
"""Headers that describe the original body."""


def _is_message(body: bytes | bytearray) -> bool:
    """Return whether a body is a message of the protocol. The body of an HTTP error may come from a
    proxy instead."""
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "jsonrpc" in data


def _make_failed_response(request: httpx2.Request, kind: Failure, message: str) -> httpx2.Response:
    error = failure(kind, message).model_dump()
    return httpx2.Response(
        502, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request
    )


class _WatchedStream(TransportStream):
    """The messages that the SDK reads from a server over HTTP. The watcher sees each message."""

    def __init__(self, stream: Any, watcher: Watcher) -> None:
        self._stream, self._watcher = stream, watcher

    @property
    def last_context(self) -> Any:
        """The context of the sender, which the SDK reads."""
        return self._stream.last_context

    async def aclose(self) -> None:
        """Close the SDK's stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransportItem:
        item: TransportItem = await self._stream.__anext__()
        if isinstance(item, SessionMessage):
            self._watcher.see(item.message)
        return item

    async def receive(self) -> TransportItem:
        """Return the next message."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None
