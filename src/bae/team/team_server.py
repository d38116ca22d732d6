"""A server for one team: the API of `bae.serve` with the team's endpoints."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from starlette.websockets import WebSocket, WebSocketDisconnect

from bae.journal import Journal, Subscriber, subscribe
from bae.serve import API, bearer, listening, router
from bae.team.endpoints import ServedTeam, add_teams
from bae.team.events import StoredEvent
from bae.team.feed import unknown_event
from bae.team.git import Repository
from bae.team.job_endpoints import add_team_jobs
from bae.team.jobs import TeamJobs
from bae.team.store import Store

SEND_SECONDS: Final = 10.0
"""How many seconds a client of `/events` may take for one message."""
_DEPRECATED: Final = (
    (b"deprecation", b"@1795046400"),  # RFC 9745
    (b"link", b'</feed>; rel="successor-version"'),
)
_REFUSED: Final = 1008
_SLOW: Final = 1013


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a served team."""

    url: str
    """The URL of the API."""
    token: str
    """The token that every request needs."""

    def events(self, after: int = 0) -> str:
        """Return the URL of the deprecated WebSocket, which sends events as lists. Use the feed
        instead."""
        query = urlencode({"after": after, "token": self.token})
        return f"{self.url.replace('http', 'ws', 1)}/events?{query}"


@asynccontextmanager
async def serving(
    store: Store,
    project_id: int,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    hosts: Sequence[str] = (),
    journal: Journal | None = None,
) -> AsyncGenerator[Address]:
    """Serve a team's API while the block runs.

    - `port`: 0 picks a free port.
    - `token`: the token that every request needs. By default, a random token is generated.
    - `hosts`: additional host names by which clients reach the server.
    - `journal`: the open journal of the agents' runs. By default, `serving` opens and closes it.
    """
    project = await store.project(project_id)
    key = token or secrets.token_urlsafe(24)
    async with AsyncExitStack() as stack:
        if journal is None:
            journal = await stack.enter_async_context(store.journal())
        names = ("localhost", "127.0.0.1", "[::1]", host, *hosts)
        api = router({}, journal=journal, auth=bearer(key), hosts=names, recover=False)
        repository = await Repository.open(Path(project.root))
        teams = {project.name: ServedTeam(store, project, repository, journal)}
        add_teams(api, teams)
        add_team_jobs(api, teams, await stack.enter_async_context(TeamJobs()))
        _add_events(api, store, project.id, key)
        url = await stack.enter_async_context(listening(api, host, port))
        yield Address(url, key)


# The deprecated WebSocket: `/events?after=NUMBER` sends the events after this number, in lists.


def _add_events(api: API, store: Store, project_id: int, key: str) -> None:
    async def send_events(websocket: WebSocket) -> None:
        await websocket.accept(headers=_DEPRECATED)
        token = websocket.query_params.get("token", "")
        after = websocket.query_params.get("after", "0")
        is_valid = secrets.compare_digest(token.encode(), key.encode())
        if not is_valid and await api.get_user(websocket) is None:
            await websocket.close(_REFUSED, "the token is missing or wrong")
            return
        if not (after.isascii() and after.isdigit() and len(after) <= 15):
            await websocket.close(_REFUSED, f"after={after[:20]!r} is no number of an event")
            return
        async with subscribe(store.feed(project_id), int(after)) as events:
            with api.streaming(events):
                end = await _send_all(websocket, events)
        if events.end == "reset":
            error = unknown_event(int(after), await store.last_event(project_id))
            end = _REFUSED, error.message
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):  # the client may have left
            async with asyncio.timeout(SEND_SECONDS):
                await websocket.close(*end)

    api.sockets["/events"] = send_events


async def _send_all(websocket: WebSocket, events: Subscriber[StoredEvent]) -> tuple[int, str]:
    """Send events as JSON lists until the client leaves, is too slow, or the server stops. Return
    the code and the reason for closing the WebSocket."""
    listener = asyncio.create_task(_listen_until_gone(websocket, events))
    try:
        async for batch in events:
            async with asyncio.timeout(SEND_SECONDS):
                messages = [item.value.to_message() for item in batch.items]
                await websocket.send_text(json.dumps(messages))
    except TimeoutError:
        return _SLOW, f"too slow: nothing was taken for {SEND_SECONDS:g} s"
    except (WebSocketDisconnect, RuntimeError):
        pass
    finally:
        listener.cancel()
        await asyncio.wait([listener])
    return (_SLOW, "too far behind") if events.end == "gap" else (1012, "the server stops")


async def _listen_until_gone(websocket: WebSocket, events: Subscriber[StoredEvent]) -> None:
    """Close the subscription when the client leaves. Messages from the client are ignored."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    events.close()
