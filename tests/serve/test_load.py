"""Many subscribers at once: readers get every record, hanging subscribers are dropped."""

import asyncio
import json
import resource
import socket
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bae import Graph, Node
from serving import TOKEN, serving


class Write(Node):
    n: int
    text: str = ""

    async def __call__(self) -> "Write | Written":
        await asyncio.sleep(0.004)
        if self.n == 600:
            return Written(n=self.n)
        return Write(n=self.n + 1, text="x" * 2_000)


class Written(Node):
    n: int

    async def __call__(self) -> None: ...


writes = Graph(start=Write, end=Written, name="writes")


async def read(url: str) -> list[int]:
    async with connect(url, compression=None, ping_interval=None) as client:
        await client.send(json.dumps({"token": TOKEN}))
        await client.send(json.dumps({"sub": 1, "feed": "run/big"}))
        found: list[int] = []
        async for text in client:
            message = json.loads(text)
            found += [item["n"] for item in message.get("items", ())]
            if "end" in message:
                assert message["end"] == "ended"
                break
        return found


async def hang(url: str, over: asyncio.Event) -> int:
    """How a client is closed that reads nothing while the run is in progress."""
    address = urlsplit(url)
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        plain.connect((address.hostname, address.port))
        plain.setblocking(False)
        options = {"compression": None, "ping_interval": None, "max_queue": 1}
        async with connect(url, sock=plain, **options) as client:
            await client.send(json.dumps({"token": TOKEN}))
            await client.send(json.dumps({"sub": 1, "feed": "run/big"}))
            await over.wait()
            while True:
                try:
                    await client.recv()
                except ConnectionClosed:
                    return client.close_code or 0


@pytest.mark.slow
async def test_hanging_subscribers_do_not_delay_the_rest_of_200(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("bae.serve.live.SEND_SECONDS", 1.0)
    over = asyncio.Event()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with serving(graphs={"writes": writes}, max_iters=0) as served, asyncio.timeout(120):
        await served.post("/graphs/writes/runs", {"run_id": "big", "start": {"n": 0}})
        readers = [asyncio.create_task(read(served.ws())) for _ in range(180)]
        hanging = [asyncio.create_task(hang(served.ws(), over)) for _ in range(20)]
        total = (await served.get("/runs/big/records?limit=1"))["last"]
        read_by = await asyncio.gather(*readers)
        over.set()
        for found in read_by:
            assert found == [*range(len(found))]
            assert len(found) > max(600, total)
        assert {await task for task in hanging} <= {1006, 1013}
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 300
