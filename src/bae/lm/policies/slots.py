"""Slots for those who want to do something at the same time: so many at once, first come, first
served. They hold across event loops and threads, as an LM may serve runs in several."""

from __future__ import annotations

import asyncio
from collections import deque
from threading import Lock
from types import TracebackType


class Slots:
    """At most `limit` holders at once. Enter it to take a slot; those who wait get theirs in the
    order they came, and one who is cancelled while waiting, or at the moment a slot is handed to
    it, loses none."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[_Waiter] = deque()
        self._lock = Lock()

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._waiting)

    async def __aenter__(self) -> None:
        with self._lock:
            if self.taken < self.limit:
                self.taken += 1
                return
            waiter = _Waiter(asyncio.get_running_loop())
            self._waiting.append(waiter)
        try:
            await waiter.turn
        except BaseException:
            with self._lock:
                if waiter.served:
                    self._hand_on()
                else:
                    self._waiting.remove(waiter)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._hand_on()

    def _hand_on(self) -> None:
        """Give a slot to the next who waits, with the lock held."""
        while self._waiting:
            waiter = self._waiting.popleft()
            waiter.served = True
            try:
                waiter.loop.call_soon_threadsafe(waiter.wake)
            except RuntimeError:
                continue  # its loop was closed under it
            return
        self.taken -= 1


class _Waiter:
    __slots__ = ("loop", "served", "turn")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.turn: asyncio.Future[None] = loop.create_future()
        self.served = False

    def wake(self) -> None:
        if not self.turn.done():
            self.turn.set_result(None)
