"""Connections that send no request, and more of them than the server takes."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect

from bae.serve import server
from serving import TOKEN, Served, held, serving

HEAD = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n"
CLOSE = b"connection: close\r\n\r\n"


@asynccontextmanager
async def open_pipe(
    url: str, sent: bytes = b""
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # little is received unread
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", urlsplit(url).port))
    reader, writer = await asyncio.open_connection(sock=plain)
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def wait_for_checks(served: Served, count: int) -> None:
    """Wait until so many silent connections, one after the other, were closed."""
    for _ in range(count):
        async with open_pipe(served.url) as (pipe, _):
            assert await pipe.read() == b""


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n" + HEAD], ids=range(3))
async def test_an_incomplete_request_closes_its_connection(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.1)
    async with serving() as served, asyncio.timeout(20), open_pipe(served.url, sent) as (pipe, _):
        answers = await pipe.read()
    assert answers.count(b"HTTP/1.1 200 OK") == sent.count(b"\r\n\r\n")


START = (
    b"POST /graphs/orders/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer " + TOKEN.encode() + b"\r\ncontent-length: 30\r\n\r\n"
)


async def test_an_incomplete_body_closes_its_connection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.1)
    async with serving() as served, asyncio.timeout(20):
        half = open_pipe(served.url, START + b'{"start": ')
        async with half as (pipe, _):
            with suppress(ConnectionError):
                assert b"201" not in await pipe.read()


async def test_streams_outlive_the_request_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.1)
    async with serving() as served, asyncio.timeout(20), connect(served.ws()) as feed:
        body = {"run_id": "long", "start": {"name": "long"}}
        await served.post("/graphs/slow/runs", body)
        await feed.send(json.dumps({"token": TOKEN, "sub": 1, "feed": "runs"}))
        events = served.events("long")
        kinds = [(await anext(events))[0]]
        await wait_for_checks(served, 2)
        held["long"].set()
        kinds += [kind async for kind, _, _ in events]
        assert (kinds[0], kinds[-1]) == ("record", "end")
        await feed.send(json.dumps({"sub": 1, "feed": "runs"}))
        assert json.loads(await feed.recv())["sub"] == 1


@pytest.mark.parametrize("reads", [True, False])
async def test_a_long_answer_is_sent_for_as_long_as_the_client_reads(
    reads: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.05)
    async with serving() as served, asyncio.timeout(20):
        octets = {"content-type": "application/octet-stream"}
        sent = await served.client.post("/files", content=b"text" * 4_000_000, headers=octets)
        request = f"GET /files/{sent.json()['hash']} HTTP/1.1\r\nhost: localhost\r\n"
        request += f"authorization: Bearer {TOKEN}\r\n\r\n"
        async with open_pipe(served.url, request.encode()) as (pipe, _):
            await pipe.readuntil(b"\r\n\r\n")
            if not reads:
                await wait_for_checks(served, 3)
            with suppress(ConnectionError):
                size = 0
                while data := await pipe.read(1 << 16):
                    size += len(data)
            assert (size == 16_000_000) is reads


async def test_connections_beyond_the_limit_are_closed_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)
    async with serving() as served, asyncio.timeout(20), AsyncExitStack() as opened:
        pipes = [await opened.enter_async_context(open_pipe(served.url, HEAD)) for _ in range(3)]
        async with open_pipe(served.url) as (pipe, _):
            with suppress(ConnectionError):
                assert await pipe.read() == b""
        pipe, writer = pipes[0]
        writer.write(CLOSE)
        assert (await pipe.read()).startswith(b"HTTP/1.1 200 OK")
        async with open_pipe(served.url, HEAD + CLOSE) as (pipe, _):
            assert (await pipe.read()).startswith(b"HTTP/1.1 200 OK")
