"""The server of a team's events: real sockets, stalled clients, other sites, the page."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bae.team.events import ActivityUpdate
from bae.team.models import AgentInfo, PlannedTask, Project, TaskStatus, TeamError
from bae.team.server import Address, serving
from bae.team.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with await Store.open(tmp_path / "team.db") as opened:
        project = Project(id=0, name="shop", root="/shop", branch="b", test_command=("pytest",))
        await opened.save_project(project)
        await opened.add_tasks(1, [PlannedTask(key="api", title="The <b>API</b>")])
        yield opened


async def add(store: Store, count: int, text: str = "step") -> list[int]:
    made = [ActivityUpdate(project_id=1, text=text) for _ in range(count)]
    return [each.number for each in await store.add_events(made)]


async def receive(client: ClientConnection, count: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            taken += json.loads(await client.recv())
    return taken


async def get(address: Address, path: str = "/", **headers: str) -> tuple[int, str, dict[str, str]]:
    """What the server answers to a plain request, of which every header can be said."""

    def ask() -> tuple[int, str, dict[str, str]]:
        asked = http.client.HTTPConnection(address.host, address.port, timeout=10)
        asked.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            asked.putheader(name, value)
        asked.endheaders()
        answer = asked.getresponse()
        body = answer.read().decode()
        asked.close()
        return answer.status, body, {k.lower(): v for k, v in answer.getheaders()}

    return await asyncio.to_thread(ask)


@asynccontextmanager
async def stalled(address: Address) -> AsyncIterator[socket.socket]:
    """A client that connects and then reads nothing."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    try:
        await loop.sock_connect(client, (address.host, address.port))
        key = base64.b64encode(os.urandom(16)).decode()
        ask = (
            f"GET /events HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nUpgrade: websocket\r\n"
        )
        ask += (
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await loop.sock_sendall(client, ask.encode())
        assert b"101" in await loop.sock_recv(client, 64)
        yield client
    finally:
        client.close()


# Events


async def test_a_client_gets_numbered_events_from_any_number_on(store: Store):
    old = await add(store, 5)
    async with serving(store, 1) as address:
        async with connect(address.events(after=old[1])) as client:
            got = await receive(client, 3)
            new = await add(store, 40)
            got += await receive(client, 40)
        assert [each["number"] for each in got] == old[2:] + new
        assert got[0] == (await store.events(1, old[1]))[0].to_message()
        missed = await add(store, 3)  # while it was away
        async with connect(address.events(after=got[-1]["number"])) as client:
            assert [each["number"] for each in await receive(client, 3)] == missed


async def test_events_that_come_together_are_sent_together(store: Store):
    async with serving(store, 1) as address, connect(address.events()) as client:
        await add(store, 1)
        await receive(client, 1)
        for _ in range(10):
            await add(store, 10)
        batches: list[list[Any]] = []
        while sum(map(len, batches)) < 100:
            batches.append(json.loads(await client.recv()))
    assert len(batches) < 8


async def test_a_stalled_client_is_dropped_while_others_get_everything(store: Store):
    async with (
        serving(store, 1, timeout=0.3) as address,
        connect(address.events(), max_size=None) as one,
        connect(address.events(), max_size=None) as two,
        stalled(address) as stuck,
    ):
        numbers: list[int] = []
        got: dict[ClientConnection, list[dict[str, Any]]] = {one: [], two: []}
        for _ in range(20):
            numbers += await add(store, 20, "x" * 20_000)
            for client, taken in got.items():
                taken += await receive(client, 20)
        for taken in got.values():
            assert [each["number"] for each in taken] == numbers
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
async def test_a_number_that_makes_no_sense_is_refused_with_the_reason(
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


# Who may ask


async def test_a_page_of_another_site_can_read_nothing(store: Store):
    async with serving(store, 1) as address:
        own = f"http://127.0.0.1:{address.port}"
        for origin in ("https://evil.example", f"http://evil.example:{address.port}", "null"):
            with pytest.raises(InvalidStatus) as caught:
                async with connect(address.events(), origin=origin):  # type: ignore[arg-type]
                    pass
            assert caught.value.response.status_code == 403
            assert (await get(address, "/state", Origin=origin))[0] == 403
        async with connect(address.events(), origin=own):  # type: ignore[arg-type]
            pass
        assert (await get(address, "/state", Origin=own))[0] == 200
        # DNS rebinding: the name is of another site, the address is ours.
        for host in ("evil.example", f"evil.example:{address.port}", "", "[::1"):
            assert (await get(address, "/", Host=host))[0] in (400, 403)
        for host in (f"localhost:{address.port}", f"127.0.0.1:{address.port}", "[::1]:1"):
            assert (await get(address, "/", Host=host))[0] == 200


async def test_a_token_is_asked_for_everywhere_and_needed_off_loopback(store: Store):
    with pytest.raises(TeamError, match="would show the project to everyone"):
        async with serving(store, 1, host="0.0.0.0"):
            raise AssertionError
    async with serving(store, 1, token="s3cret&") as address:
        for path in ("/", "/state", "/?token=wrong", "/state?token="):
            assert (await get(address, path))[0] == 403
        with pytest.raises(InvalidStatus):
            async with connect(address.events().replace("s3cret", "guess")):
                pass
        assert (await get(address, "/state", Authorization="Bearer s3cret&"))[0] == 200
        assert (await get(address, "/" + address.url.partition("?")[1] + "token=s3cret%26"))[
            0
        ] == 200
        await add(store, 1)
        async with connect(address.events()) as client:
            assert len(await receive(client, 1)) == 1


# The server itself


async def test_the_page_has_no_remote_parts_and_the_state_has_what_it_shows(store: Store):
    await store.save_agent(1, AgentInfo(id="a1", kind="backend"))
    await store.move(1, TaskStatus.PENDING, TaskStatus.READY)
    await store.add_blocker(1, "Which one?")
    async with serving(store, 1) as address:
        status, page, headers = await get(address)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "innerHTML" not in page
        assert "{nonce}" not in page
        assert "http" not in page.replace('"http"', "")
        state = json.loads((await get(address, "/state"))[1])
    assert state["number"] == (await store.events(1))[-1].number
    assert (state["name"], state["tasks"][0]["status"]) == ("shop", "ready")
    assert state["agents"][0]["id"] == "a1"
    assert state["blockers"][0]["question"] == "Which one?"


async def test_a_port_that_is_taken_is_an_error_that_says_so(store: Store):
    async with serving(store, 1) as address:
        with pytest.raises(TeamError, match=f"no server on 127.0.0.1, port {address.port}"):
            async with serving(store, 1, port=address.port):
                raise AssertionError


async def test_nothing_is_left_of_a_server_whose_block_is_cancelled(store: Store):
    before, handler = asyncio.all_tasks(), signal.getsignal(signal.SIGTERM)
    found: asyncio.Future[Address] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with serving(store, 1) as address:
            found.set_result(address)
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    address = await found
    async with connect(address.events()) as client, stalled(address):
        assert signal.getsignal(signal.SIGTERM) is handler  # signals are the caller's
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(10):
                await task
        with pytest.raises(ConnectionClosed):
            await client.recv()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.host, address.port), 1)
    assert asyncio.all_tasks() == before
