"""A team alone on an address: its token, the WebSocket of earlier versions, stalled clients."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")
pytest.importorskip("httpx")

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bae import BaeError
from bae.team import team_server
from bae.team.events import ActivityUpdate
from bae.team.models import PlannedTask, Project
from bae.team.store import Store
from bae.team.team_server import Address, serving
from git_repositories import make_repository

TOKEN = "s3cret&token"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with await Store.open(tmp_path / "team.db") as opened:
        root = str(make_repository(tmp_path / "shop"))
        project = Project(id=0, name="shop", root=root, branch="b", test_command=("pytest",))
        await opened.save_project(project)
        await opened.add_tasks(1, [PlannedTask(key="api", title="The <b>API</b>")])  # event 1
        yield opened


async def add(store: Store, count: int, text: str = "step") -> list[int]:
    made = [ActivityUpdate(project_id=1, text=text) for _ in range(count)]
    return [event.number for event in await store.add_events(made)]


async def receive(client: ClientConnection, count: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            taken += json.loads(await client.recv())
    return taken


@asynccontextmanager
async def connect_stalled_client(address: Address) -> AsyncIterator[socket.socket]:
    """A client that connects and then reads nothing."""
    loop = asyncio.get_running_loop()
    where = urlsplit(address.events())
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    try:
        await loop.sock_connect(client, (where.hostname, where.port))
        key = base64.b64encode(os.urandom(16)).decode()
        ask = (
            f"GET {where.path}?{where.query} HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n"
        )
        await loop.sock_sendall(client, ask.encode())
        assert b"101" in await loop.sock_recv(client, 64)
        yield client
    finally:
        client.close()


# Events


async def test_a_client_gets_numbered_events_after_any_number(store: Store):
    old = await add(store, 5)
    async with serving(store, 1) as address:
        async with connect(address.events(after=old[1])) as client:
            assert client.response is not None
            assert client.response.headers["Deprecation"].startswith("@")
            got = await receive(client, 3)
            new = await add(store, 40)
            got += await receive(client, 40)
        assert [event["number"] for event in got] == old[2:] + new
        assert got[0] == (await store.events(1, old[1]))[0].to_message()
        missed = await add(store, 3)  # while it was away
        async with connect(address.events(after=got[-1]["number"])) as client:
            assert [event["number"] for event in await receive(client, 3)] == missed


async def test_a_stalled_client_is_dropped_while_others_get_every_event(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(team_server, "SEND_SECONDS", 0.3)
    async with (
        serving(store, 1) as address,
        connect(address.events(after=1), max_size=None) as one,
        connect(address.events(after=1), max_size=None) as two,
        connect_stalled_client(address) as stuck,
    ):
        numbers: list[int] = []
        got: dict[ClientConnection, list[dict[str, Any]]] = {one: [], two: []}
        for _ in range(20):
            numbers += await add(store, 20, "x" * 20_000)
            for client, taken in got.items():
                taken += await receive(client, 20)
        for taken in got.values():
            assert [event["number"] for event in taken] == numbers
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):  # until its connection is ended
            with suppress(ConnectionResetError):
                while await loop.sock_recv(stuck, 1 << 20):
                    pass
        numbers = await add(store, 1)
        for client in (one, two):
            assert (await receive(client, 1))[0]["number"] == numbers[0]


@pytest.mark.parametrize(
    ("after", "reason"), [("x", "no number"), ("9", "the last one is"), ("-1", "no number")]
)
async def test_an_invalid_event_number_is_refused_with_the_reason(
    store: Store, after: str, reason: str
):
    async with serving(store, 1) as address:
        url = address.events().replace("after=0", f"after={after}")
        async with connect(url) as client:
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1008
    assert reason in caught.value.rcvd.reason


# The server itself


async def test_the_api_needs_the_token_and_its_root_names_the_document(store: Store):
    async with (
        serving(store, 1, token=TOKEN) as address,
        httpx.AsyncClient(base_url=address.url) as client,
    ):
        assert (await client.get("/teams")).status_code == 401
        headers = {"authorization": f"Bearer {TOKEN}"}
        [team] = (await client.get("/teams", headers=headers)).json()["teams"]
        assert (team["team"], team["counts"]) == ("shop", {"pending": 1})
        root = await client.get("/")
        assert root.status_code == 404
        assert root.headers["content-type"] == "application/problem+json"
        assert "openapi.json" in root.json()["fix"]
        document = (await client.get("/openapi.json", headers=headers)).json()
        assert "/teams/{team}/blockers/{blocker}" in document["paths"]


async def test_the_web_socket_of_earlier_versions_requires_a_generated_token(store: Store):
    async with serving(store, 1) as address:
        assert len(address.token) > 20
        for url in (address.events().replace(address.token, "guess"), address.events()[:-40]):
            async with connect(url) as client:
                await client.wait_closed()
                assert client.close_code == 1008
        await add(store, 1)
        async with connect(address.events(after=1)) as client:
            assert len(await receive(client, 1)) == 1
        for origin in ("https://evil.example", "null"):
            async with connect(address.events(), origin=origin) as client:  # type: ignore[arg-type]
                await client.wait_closed()
                assert client.close_code == 1008


async def test_a_port_in_use_is_reported_as_an_error(store: Store):
    async with serving(store, 1) as address:
        port = urlsplit(address.url).port or 0
        with pytest.raises(BaeError, match=f"bae-serve-address.*127.0.0.1, port {port}"):
            async with serving(store, 1, port=port):
                raise AssertionError


async def test_a_server_is_gone_after_its_block_is_cancelled(store: Store):
    before, handler = asyncio.all_tasks(), signal.getsignal(signal.SIGTERM)
    address_found: asyncio.Future[Address] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with serving(store, 1) as address:
            address_found.set_result(address)
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    address = await address_found
    async with connect(address.events(after=1)) as client, connect_stalled_client(address):
        assert signal.getsignal(signal.SIGTERM) is handler  # signals are the caller's
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(10):
                await task
        with pytest.raises(ConnectionClosed):
            await client.recv()
        with pytest.raises(ConnectionRefusedError):
            where = urlsplit(address.url)
            socket.create_connection((where.hostname or "", where.port or 0), 1)
    assert asyncio.all_tasks() == before
