"""A server on loopback that sends whatever a test gives it, for what no real provider sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass
class Raw:
    """A response. Its `body` is sent chunk by chunk, until the client goes."""

    body: Iterable[bytes]
    status: int = 200
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class RawProvider:
    """A server with its address, its answers, and its received requests: their heads and their
    bodies."""

    url: str
    respond: Callable[[dict[str, Any]], Raw]
    heads: list[str] = field(default_factory=list[str])
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    sent: int = 0


@asynccontextmanager
async def raw_provider(respond: Callable[[dict[str, Any]], Raw]) -> AsyncIterator[RawProvider]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lengths = [li for li in head.splitlines() if li.lower().startswith("content-length:")]
            body = json.loads(await reader.readexactly(int(lengths[0].split(":")[1])))
            made.heads.append(head)
            made.bodies.append(body)
            raw = made.respond(body)
            said = {"content-type": raw.kind, "connection": "close", **raw.headers}
            lines = [f"HTTP/1.1 {raw.status} Some", *(f"{k}: {v}" for k, v in said.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            for chunk in raw.body:
                writer.write(chunk)
                made.sent += len(chunk)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made = RawProvider(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", respond)
    async with server:
        yield made
        server.close()
