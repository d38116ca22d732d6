"""Clients that hold connections, one for each event loop. Connections belong to the loop they were
opened in: a backend that is used by `graph.run` twice is used in two loops, and a client shared
between them would fail in the second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

C = TypeVar("C")


class PerLoop(Generic[C]):
    """Makes a client when a loop first asks for one, and closes it with the loop.

    `asyncio.run` closes what is left open by itself: an async generator that is still suspended is
    closed at the loop's end, and the client is held by one. The same closes it when nobody holds
    the `PerLoop` any more: give a `close` that does not hold it either.
    """

    def __init__(self, make: Callable[[], C], close: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._open: _Open[C] = WeakKeyDictionary()

    async def get(self) -> C:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        if found is not None:
            return found[0]
        for other in [each for each in self._open if each.is_closed()]:
            del self._open[other]  # it was closed without closing what was open in it
        client = self._make()
        holder = _held(client, self._close, ref(self._open))
        self._open[loop] = client, holder
        await anext(holder)
        return client

    async def aclose(self) -> None:
        """Close the client of the running loop; the next `get` makes a new one."""
        found = self._open.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found[1].aclose()


_Open = WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[None]]]


async def _held(
    client: C, close: Callable[[C], Awaitable[None]], among: ref[_Open[C]]
) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        # A suspended generator knows its loop, so what is kept for a loop would keep it alive.
        still = among()
        loop = asyncio.get_running_loop()
        found = still.get(loop) if still is not None else None
        if still is not None and found is not None and found[0] is client:
            del still[loop]
        await close(client)
