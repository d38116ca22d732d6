"""The cost of serving runs: a server in its own process, with a run that stores 500 records a
second, alone and with 50 WebSocket clients that follow it:

    python -m benchmarks.serve [--clients 50] [--rate 500] [--seconds 10] [--stalled 2]

It prints the CPU time of the server as a share of one core, and its memory. It exits with 1 where
50 clients cost more than 10 % of a core, or a client that reads misses a record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from websockets.asyncio.client import ClientConnection, connect

from bae import Graph, Node
from bae.journal import SQLiteJournal
from bae.serve import bearer, router
from bae.serve.server import listening

TOKEN = "token-of-a-benchmark"
TARGET = 0.10


class Tick(Node):
    """Stores a record at a time that follows from its number."""

    n: int
    upto: int
    rate: float
    begun: float

    async def __call__(self) -> Tick | Over:
        await asyncio.sleep(self.begun + self.n / self.rate - time.time())
        if self.n == self.upto:
            return Over(n=self.n)
        return Tick(n=self.n + 1, upto=self.upto, rate=self.rate, begun=self.begun)


class Over(Node):
    """The end."""

    n: int

    async def __call__(self) -> None: ...


graph = Graph(start=Tick, end=Over, name="ticks")


async def serve(file: str) -> None:
    """Run the server and print its address. Print its CPU time and memory for each line that it
    reads."""
    async with SQLiteJournal(file, durability="normal") as journal:
        api = router(graph, journal=journal, auth=bearer(TOKEN), max_iters=0)
        async with listening(api) as url:
            print(url, flush=True)
            loop = asyncio.get_running_loop()
            while await loop.run_in_executor(None, sys.stdin.readline):
                used = os.times()
                print(json.dumps([used.user + used.system, memory()]), flush=True)


def memory() -> int:
    """Return the resident kilobytes of this process."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


class Server:
    """The process of the server."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, "-m", "benchmarks.serve", "--serve", f"{folder}/runs.db"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.url = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def used(self) -> tuple[float, int]:
        """Return the CPU seconds so far, and the kilobytes of memory."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, memory = json.loads(self._line())
        return seconds, memory


async def follow(url: str, run_id: str, *, reads: bool) -> int:
    """Follow a run, and return the number of records that the client got. A stalled client reads
    nothing."""
    address = f"{url.replace('http', 'ws', 1)}/feed"
    async with connect(address, compression=None, max_queue=1 if not reads else 16) as socket:
        await socket.send(json.dumps({"token": TOKEN}))
        await socket.send(json.dumps({"sub": 1, "feed": f"run/{run_id}"}))
        return await (_read(socket) if reads else _stall(socket))


async def _read(socket: ClientConnection) -> int:
    count = 0
    async for text in socket:
        message: dict[str, Any] = json.loads(text)
        count += len(message.get("items", ()))
        if "end" in message:
            return count if message["end"] == "ended" else -1
    return -1


async def _stall(socket: ClientConnection) -> int:
    await socket.wait_closed()
    return 0


class Measured(NamedTuple):
    """The share of a core that the server used, its memory, whether every client that reads had
    every record, and how many records a second there were."""

    share: float
    memory: int
    complete: bool
    rate: float


async def measure(clients: int, stalled: int, rate: int, seconds: float) -> Measured:
    """Serve one run to its end."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        try:
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=server.url, headers=headers) as http:
                begin = time.time() + 2
                start = {"n": 0, "upto": int(rate * seconds), "rate": rate, "begun": begin}
                body = {"run_id": "ticks", "start": start}
                (await http.post("/graphs/ticks/runs", json=body)).raise_for_status()
                readers = [
                    asyncio.create_task(follow(server.url, "ticks", reads=True))
                    for _ in range(clients)
                ]
                hanging = [
                    asyncio.create_task(follow(server.url, "ticks", reads=False))
                    for _ in range(stalled)
                ]
                await asyncio.sleep(begin - time.time())
                before, _ = await asyncio.to_thread(server.used)
                # To the end of the run: a busy machine may need longer for the same work.
                again = await http.post("/graphs/ticks/runs?wait=300", json=body, timeout=300)
                took = time.time() - begin
                counts = await asyncio.gather(*readers)
                after, memory = await asyncio.to_thread(server.used)
                share = (after - before) / seconds
                total = (await http.get("/runs/ticks/records?limit=1")).json()["last"] + 1
                assert again.json()["status"] == "ended"
                for task in hanging:
                    task.cancel()
                await asyncio.gather(*hanging, return_exceptions=True)
                return Measured(
                    share, memory, all(count == total for count in counts), total / took
                )
        finally:
            server.process.kill()
            server.process.wait()


async def main(args: argparse.Namespace) -> int:
    alone = await measure(0, 0, args.rate, args.seconds)
    served = await measure(args.clients, args.stalled, args.rate, args.seconds)
    cost = served.share - alone.share
    print(f"{args.rate} records/s, {args.clients} clients that read, {args.stalled} that do not")
    print(f"stored: {alone.rate:.0f} records/s alone, {served.rate:.0f} with clients")
    print(f"CPU of the server: {alone.share:.1%} of a core alone, {served.share:.1%} with clients")
    print(f"clients cost {cost:.1%} of a core")
    print(f"memory: {alone.memory / 1024:.0f} MB alone, {served.memory / 1024:.0f} MB with clients")
    print(f"every client that reads had every record: {'yes' if served.complete else 'NO'}")
    return 0 if served.complete and (cost <= TARGET or args.clients > 50) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--stalled", type=int, default=2)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    sys.exit(asyncio.run(serve(options.serve) if options.serve else main(options)))
