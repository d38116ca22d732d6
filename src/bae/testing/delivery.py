"""How an answer of `Provider` is sent: whole or streamed, and with what goes wrong on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from bae.testing.endpoints import refuse
from bae.testing.faults import Cut, Fault, Malformed, Stall, Status
from bae.testing.wire import Said, Wire

if TYPE_CHECKING:
    from bae.testing.serving import Exchange


async def refuse_by(exchange: Exchange, wire: Wire, status: Status) -> None:
    """Answer with the error that a test asked for."""
    headers = dict(status.headers)
    if status.retry_after is not None:
        headers["retry-after"] = f"{status.retry_after:g}"
    message = status.message or f"this is a fault of status {status.code}"
    await refuse(exchange, wire, status.code, message, headers)


async def send(
    exchange: Exchange,
    wire: Wire,
    said: Said,
    fault: Fault | None,
    *,
    stream: bool,
    waiting: Callable[[], AbstractContextManager[None]],
) -> None:
    """Send what is said; `waiting` is entered for the time that nothing is sent any more."""
    if stream:
        parts = wire.events(said)
        if isinstance(fault, Malformed):
            parts[1:] = [wire.malformed()]
        await exchange.start(200, "text/event-stream", {"cache-control": "no-cache"})
    else:
        payload = json.dumps(wire.whole(said)).encode()
        if isinstance(fault, Malformed):
            payload = b"upstream said something that is not JSON"
        half = len(payload) // 2
        parts = [payload[:half], payload[half:]]
        await exchange.start(200, "application/json", {"content-length": str(len(payload))})
    match fault:
        case Stall(after=after) | Cut(after=after) if stream:
            parts = parts[:after]
        case Stall():
            parts = []
        case Cut():
            parts = parts[:1]
        case _:
            pass
    for part in parts:
        await exchange.send(part)
    if isinstance(fault, Stall):
        with waiting():
            await asyncio.Event().wait()
    # A body without an end is one whose connection is closed.
    if not isinstance(fault, Cut):
        await exchange.end()
