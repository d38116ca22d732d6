"""The events of a team for other programs and for a browser: a WebSocket endpoint, numbered and
batched, and one page that shows the work live. On the loopback interface unless it is told more."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from bae.journal import Subscriber, subscribe
from bae.team.events import StoredEvent
from bae.team.feed import unknown_event
from bae.team.models import TeamError
from bae.team.store import Store

BATCH_SECONDS: Final = 0.05
"""How long events gather before they are sent as one message."""
SEND_SECONDS: Final = 10.0
"""How long a client may take no more of what is sent to it."""
TRY_AGAIN_LATER: Final = 1013
"""How a slow client is closed."""
_REFUSED: Final = 1008
_CLOSE_SECONDS: Final = 2.0
_KERNEL_BYTES: Final = 128 * 1024

_log = logging.getLogger(__name__)


def team_app(
    store: Store,
    project_id: int,
    *,
    token: str | None = None,
    timeout: float = SEND_SECONDS,
) -> ASGIApp:
    """A Starlette app: the page at `/`, what there is now at `/state`, and the WebSocket at
    `/events?after=NUMBER`, which sends JSON lists of events, oldest first.

    A web page of another site can read none of it: the `Origin` of a browser has to be that of the
    app. Without a token only requests to a loopback name are answered; with one, a request has it
    as `?token=` or in an `Authorization: Bearer` header. An app of your own can mount it.
    """
    page = (files("bae.team") / "page.html").read_text("utf-8")

    async def show_page(request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}';"
            " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(
            page.replace("{nonce}", nonce), headers={"content-security-policy": policy, **_HEADERS}
        )

    async def show_state(request: Request) -> Response:
        number = await store.last_event(project_id)  # first: later events are sent once more
        project = await store.project(project_id)
        state = {
            "number": number,
            "name": project.name,
            "tasks": [t.model_dump(mode="json") for t in await store.tasks(project_id)],
            "agents": [a.model_dump(mode="json") for a in await store.agents(project_id)],
            "blockers": [
                b.model_dump(mode="json") for b in await store.blockers(project_id, open_only=True)
            ],
        }
        return JSONResponse(state, headers=_HEADERS)

    async def send_events(websocket: WebSocket) -> None:
        said = websocket.query_params.get("after", "0")
        if not (said.isascii() and said.isdigit() and len(said) <= 18):
            return await _refuse(websocket, f"after={said[:20]!r} is no number of an event")
        try:
            if int(said) > (last := await store.last_event(project_id)):
                raise unknown_event(int(said), last)
            async with subscribe(store.feed(project_id), int(said)) as events:
                await _send_all(websocket, events, timeout)
        except TeamError as error:
            await _refuse(websocket, error.message)

    routes = [
        Route("/", show_page),
        Route("/state", show_state),
        WebSocketRoute("/events", send_events),
    ]
    return _Guard(Starlette(routes=routes), token)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is reached."""

    host: str
    port: int
    token: str | None = None

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{self._netloc}/{self._query()}"

    def events(self, after: int = 0) -> str:
        """The address of the WebSocket."""
        return f"ws://{self._netloc}/events{self._query(after=after)}"

    @property
    def _netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def _query(self, **values: Any) -> str:
        values |= {} if self.token is None else {"token": self.token}
        return f"?{urlencode(values)}" if values else ""


@asynccontextmanager
async def serving(
    store: Store,
    project_id: int,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    timeout: float = SEND_SECONDS,
) -> AsyncGenerator[Address]:
    """Serve a team's events while the block runs; port 0 takes a free one. The server has no signal
    handlers, an error of it ends nothing but the server, and it is gone after the block."""
    if token is None and not _is_loopback(host):
        raise TeamError(
            f"a server on {host} would show the project to everyone who can reach it",
            code="bae-team-server",
            fix="give it a token, or serve on 127.0.0.1",
        )
    app = team_app(store, project_id, token=token, timeout=timeout)
    listener = _listen(host, port)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",  # below that, tokens would be in the log
            access_log=False,
            lifespan="off",
            ws=_Connection,
            ws_max_size=4_096,
            ws_per_message_deflate=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]), name="server of a team")
    task.add_done_callback(_tell_failure)
    try:
        yield Address(host, listener.getsockname()[1], token)
    finally:
        server.should_exit = True
        await asyncio.wait([task])
        for connection in [*server.server_state.connections]:
            connection.transport.abort()
        listener.close()


# Who may ask

_HEADERS: Final = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


class _Guard:
    """Refuses requests that a page of another site may have caused, and those without the token."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self._objection(HTTPConnection(scope)) if "headers" in scope else None
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, send).close(_REFUSED, reason)
        else:
            await PlainTextResponse(f"{reason}\n", 403, headers=_HEADERS)(scope, receive, send)

    def _objection(self, request: HTTPConnection) -> str | None:
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "another site may not read this"
        if self._token is None:
            # A name of another site can be made to lead here: DNS rebinding.
            return None if _is_loopback(_hostname(host)) else f"{host[:100]!r} is not served here"
        given = request.query_params.get("token", "")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = bearer.strip()
        if secrets.compare_digest(given.encode(), self._token.encode()):
            return None
        return "the token is missing or wrong"


async def _refuse(websocket: WebSocket, reason: str) -> None:
    await websocket.accept()  # else a browser is not told the reason
    await websocket.close(_REFUSED, reason)


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# Sending


async def _send_all(websocket: WebSocket, events: Subscriber[StoredEvent], timeout: float) -> None:
    """Send batches as JSON lists until the client leaves, or is dropped because it is slow."""
    await websocket.accept()
    listener = asyncio.create_task(_listen_until_gone(websocket, events))
    end: tuple[int, str] | None = None
    try:
        async for batch in events:
            async with asyncio.timeout(timeout):
                messages = [item.value.to_message() for item in batch.items]
                await websocket.send_text(json.dumps(messages))
            await asyncio.sleep(BATCH_SECONDS)
    except TimeoutError:
        end = TRY_AGAIN_LATER, f"too slow: nothing was taken for {timeout:g} s"
    except TeamError as error:
        _log.warning("a client gets no more events: %s", error)
        end = 1011, "the events cannot be read"
    except WebSocketDisconnect:
        pass
    finally:
        listener.cancel()
        await asyncio.wait([listener])
    if end is not None:
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):  # it may be gone by itself
            async with asyncio.timeout(_CLOSE_SECONDS):
                await websocket.close(*end)


async def _listen_until_gone(websocket: WebSocket, events: Subscriber[StoredEvent]) -> None:
    """End the subscription of a client that leaves. What a client sends is ignored."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    events.close()


# The server


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise TeamError(
            f"there can be no server on {host}, port {port}",
            error,
            code="bae-team-server",
            fix="name another port, or 0 for a free one",
        ) from error
    # Each connection has this from its listener. Else the system keeps megabytes for a client that
    # reads nothing, and it takes long to see that it does not.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # signals are the caller's


class _Connection(WebSocketsSansIOProtocol):
    """A connection that ends also where the client reads nothing."""

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.writable.set()  # the reason is put behind what the client has not read
            self.close_timeout = _CLOSE_SECONDS
            self.loop.call_later(_CLOSE_SECONDS, self.transport.abort)
        await super().send(message)


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("the server of the team ended", exc_info=error)
