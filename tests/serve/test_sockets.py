"""The WebSocket: messages of a client, and the end of a connection."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bae.serve import Refused, User
from serving import TOKEN, serving


async def say(socket: ClientConnection, message: Any) -> None:
    await socket.send(json.dumps(message))


@pytest.mark.parametrize("first", ["garbage", "[]", b"\x00\xff", "x" * 5_000], ids=range(4))
async def test_a_first_message_without_a_token_closes_the_connection_with_a_reason(
    first: str | bytes, caplog: pytest.LogCaptureFixture
):
    async with serving() as served, asyncio.timeout(20), connect(served.ws()) as socket:
        await socket.send(first)
        await socket.wait_closed()
        assert (socket.close_code, "token" in (socket.close_reason or "")) == (4401, True)
    assert not caplog.records


@pytest.mark.parametrize("later", ["garbage", b"\x00\xff", "x" * 5_000], ids=range(3))
async def test_an_invalid_later_message_closes_the_connection_with_a_reason(
    later: str | bytes, caplog: pytest.LogCaptureFixture
):
    async with serving() as served, asyncio.timeout(20), connect(served.ws()) as socket:
        await say(socket, {"token": TOKEN})
        await socket.send(later)
        await socket.wait_closed()
        assert (socket.close_code, bool(socket.close_reason)) == (1008, True)
    assert not caplog.records


async def test_a_finished_feed_does_not_use_up_the_feed_limit():
    async with serving() as served, asyncio.timeout(20), connect(served.ws()) as socket:
        await served.start(run_id="one")
        await say(socket, {"token": TOKEN})
        for number in range(52):
            await say(socket, {"sub": number, "feed": "run/one"})
            while "end" not in (message := json.loads(await socket.recv())):
                pass
            assert (message["sub"], message["end"]) == (number, "ended")


async def test_too_many_feeds_close_the_connection():
    async with serving() as served, asyncio.timeout(20), connect(served.ws()) as socket:
        await say(socket, {"token": TOKEN})
        for number in range(51):
            await say(socket, {"sub": number, "feed": "runs"})
        with suppress(ConnectionClosed):
            while True:
                await socket.recv()
        assert (socket.close_code, "50" in (socket.close_reason or "")) == (1008, True)


async def test_an_invalid_feed_is_refused_with_a_reason():
    async with serving() as served, asyncio.timeout(20), connect(served.ws()) as socket:
        await say(socket, {"token": TOKEN})
        await say(socket, {"sub": 1, "feed": "runs", "after": "now"})
        assert json.loads(await socket.recv())["sub"] == 1
        await say(socket, {"unsub": 1})
        for number, (feed, after, code) in enumerate(
            [("none", -1, "bae-serve-path"), ("runs", "later", "bae-serve-input")], 2
        ):
            await say(socket, {"sub": number, "feed": feed, "after": after})
            message = json.loads(await socket.recv())
            assert (message["sub"], message["end"], message["type"]) == (number, "refused", code)
        await served.start(run_id="one")
        await say(socket, {"sub": 9, "feed": "run/one", "after": 10_000})
        messages = [json.loads(await socket.recv()) for _ in range(2)]
        assert {message["sub"] for message in messages} == {9}
        assert messages[-1]["end"] == "reset"


async def test_web_socket_clients_get_pings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bae.serve.live.HEARTBEAT", 0.01)
    async with serving() as served, asyncio.timeout(20), connect(served.ws()) as socket:
        await say(socket, {"token": TOKEN})
        assert [json.loads(await socket.recv()) for _ in range(2)] == [{"ping": 1}, {"ping": 2}]


async def test_a_hook_that_refuses_a_connection_gives_its_reason():
    async def find_user(request: Any) -> User | None:
        raise Refused(403, "my-tenant", "no tenant of this name: größe " * 20)

    async with serving(auth=find_user) as served, asyncio.timeout(20):
        refused = await served.client.get("/runs")
        assert (refused.status_code, refused.json()["type"]) == (403, "my-tenant")
        async with connect(served.ws()) as socket:
            await socket.wait_closed()
            assert socket.close_code == 1008
            assert "no tenant" in (socket.close_reason or "")
