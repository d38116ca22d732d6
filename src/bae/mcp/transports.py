"""The HTTP transport to an MCP server, and the parts it shares with `server_process`. The SDK does
not bound the messages of a server; these transports do."""

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
"""How a message can fail: it did not reach the server; the server refused it; the connection broke,
so its outcome is unknown; or its answer cannot be read."""

FAILURE: Final = token_hex(16)
"""The key in the data of a transport error. A server cannot know it."""


def failure(kind: Failure, message: str) -> ErrorData:
    """The error to return for a request instead of an answer."""
    return ErrorData(code=CONNECTION_CLOSED, message=message, data={FAILURE: kind})


class Watcher:
    """The state of a transport that its connection reads."""

    def __init__(self) -> None:
        self.fault = ""
        """Why the connection ended, if the transport knows."""
        self.asked = ""
        """The last request of the server to bae."""
        self.asks = 0
        self.cut_off = 0
        """How many streams of events have ended without an answer."""
        self.is_ready = False
        """Whether the server has listed its tools."""
        self.is_over = False
        """Whether the connection has ended."""
        self.stderr = bytearray()
        self.on_end: Callable[[], None] = lambda: None

    def see(self, message: JSONRPCMessage) -> None:
        """Note a request from the server."""
        method: str | None = getattr(message, "method", None)
        if method is not None and not isinstance(message, JSONRPCNotification):
            self.asked = method[:100]
            self.asks += 1

    def end(self, fault: str = "") -> None:
        """Record that the connection has ended."""
        self.is_over = True
        self.fault = self.fault or fault
        self.on_end()


class TransportStream:
    """The parts of a stream that the SDK needs in both directions."""

    async def aclose(self) -> None:
        """Does nothing: the transport closes both directions."""

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
    """Connect to a server over HTTP. Reading has no timeout, since callers set their own."""
    headers = {**endpoint.headers, "accept-encoding": "identity"}
    timeout = httpx2.Timeout(30.0, read=None)
    async with (
        _Client(limit, watcher, headers=headers, auth=endpoint.auth, timeout=timeout) as client,
        streamable_http_client(endpoint.url, http_client=client, max_sse_event_size=limit) as (
            read,
            write,
        ),
    ):
        yield _Watched(read, watcher), write


class _Client(httpx2.AsyncClient):
    """An HTTP client that bounds bodies. If the server cannot be reached or breaks off, only that
    request gets an error, whereas the SDK would end the whole connection."""

    def __init__(self, limit: int, watcher: Watcher, **options: Any) -> None:
        super().__init__(**options)
        self._limit, self._watcher = limit, watcher

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # type: ignore[override]
        """Send a request. The SDK bounds each event of a stream; other bodies are bounded here."""
        try:
            response = await super().send(request, **cast(Any, {**options, "stream": True}))
        except httpx2.TransportError as error:
            kind = "never-sent" if isinstance(error, _UNSENT) else "broken"
            return _failed_response(request, kind, f"{type(error).__name__}: {error}")
        try:
            return await self._bound_body(request, response)
        except httpx2.TransportError as error:
            return _failed_response(request, "broken", f"{type(error).__name__}: {error}")

    async def _bound_body(
        self, request: httpx2.Request, response: httpx2.Response
    ) -> httpx2.Response:
        kind = response.headers.get("content-type", "").lower()
        encoded = response.headers.get("content-encoding", "identity") != "identity"
        if kind.startswith("text/event-stream") and response.is_success and not encoded:
            if request.method == "POST":
                response.stream = _Events(cast(Any, response.stream), self._watcher)
            return response
        try:
            if response.status_code == 404 and "mcp-session-id" in request.headers:
                return _failed_response(request, "never-sent", "it has ended the session")
            if encoded:
                return _failed_response(
                    request, "unreadable", "it sent compressed data, which is refused"
                )
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > self._limit:
                    reason = f"it sent more than the limit of {self._limit:,} bytes in one message"
                    return _failed_response(request, "unreadable", reason)
        finally:
            await response.aclose()
        if request.method == "POST" and not (kind.startswith(_JSON) and _is_message(body)):
            status = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
            if response.is_error:
                return _failed_response(
                    request, "broken" if response.is_server_error else "refused", status
                )
            if response.status_code == 202 and "id" in json.loads(request.content):
                return _failed_response(request, "broken", f"{status}, which is no answer")
            if response.is_success and body:
                return _failed_response(request, "unreadable", f"it is no valid message ({status})")
        headers = {k: v for k, v in response.headers.items() if k not in _OF_BODY}
        made = httpx2.Response(
            response.status_code, headers=headers, content=bytes(body), request=request
        )
        made.next_request = response.next_request
        return made


class _Events(httpx2.AsyncByteStream):
    """The events that answer a request. The watcher counts streams that end without an answer."""

    def __init__(self, stream: httpx2.AsyncByteStream, watcher: Watcher) -> None:
        self._stream, self._watcher = stream, watcher

    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_answered, last = False, b""
        try:
            async for chunk in self._stream:
                last = last[-len(_ANSWERS[0]) :] + chunk
                is_answered = is_answered or any(each in last for each in _ANSWERS)
                yield chunk
        finally:
            self._watcher.cut_off += not is_answered

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


_ANSWERS: Final = (b'"result":', b'"error":')
"""The keys that mark an answer."""
_UNSENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
_JSON: Final = "application/json"
_OF_BODY: Final = frozenset({"content-length", "transfer-encoding", "content-encoding"})


def _is_message(body: bytes | bytearray) -> bool:
    """Whether a body is a message of the protocol. The body of an error may come from a proxy."""
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "jsonrpc" in data


def _failed_response(request: httpx2.Request, kind: Failure, message: str) -> httpx2.Response:
    error = failure(kind, message).model_dump()
    return httpx2.Response(
        502, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request
    )


class _Watched(TransportStream):
    """The messages that the SDK reads from a server over HTTP. The watcher sees each of them."""

    def __init__(self, stream: Any, watcher: Watcher) -> None:
        self._stream, self._watcher = stream, watcher

    @property
    def last_context(self) -> Any:
        """The context of the sender, which the SDK reads."""
        return self._stream.last_context

    async def aclose(self) -> None:
        """Close the stream of the SDK."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransportItem:
        item: TransportItem = await self._stream.__anext__()
        if isinstance(item, SessionMessage):
            self._watcher.see(item.message)
        return item

    async def receive(self) -> TransportItem:
        """The next message."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None
