"""Connections that send no request, and more of them than the server takes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect

from bae.serve import server
from serving import TOKEN, held, serving

HEAD = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n"
CLOSE = b"connection: close\r\n\r\n"


@asynccontextmanager
async def open_pipe(
    url: str, sent: bytes = b""
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n" + HEAD], ids=range(3))
async def test_a_connection_without_a_complete_request_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.1)
    async with serving() as served, asyncio.timeout(20), open_pipe(served.url, sent) as (pipe, _):
        answers = await pipe.read()
    assert answers.count(b"HTTP/1.1 200 OK") == sent.count(b"\r\n\r\n")


async def test_streams_outlive_the_time_for_a_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.1)
    async with serving() as served, asyncio.timeout(20), connect(served.ws()) as socket:
        body = {"run_id": "long", "start": {"name": "long"}}
        await served.post("/graphs/slow/runs", body)
        await socket.send(json.dumps({"token": TOKEN, "sub": 1, "feed": "runs"}))
        events = served.events("long")
        kinds = [(await anext(events))[0]]
        for _ in range(2):
            async with open_pipe(served.url) as (pipe, _):
                assert await pipe.read() == b""
        held["long"].set()
        kinds += [kind async for kind, _, _ in events]
        assert (kinds[0], kinds[-1]) == ("record", "end")
        await socket.send(json.dumps({"sub": 1, "feed": "runs"}))
        assert json.loads(await socket.recv())["sub"] == 1


async def test_connections_beyond_the_bound_are_closed_at_once(monkeypatch: pytest.MonkeyPatch):
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
