"""Waiting until something is so, for tests that must not sleep: whoever changes something tells it,
and those who wait look again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """What changes, all in one event loop."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Have those who wait look again."""
        for change in self._watchers:
            if not change.done():
                change.set_result(None)

    async def until(
        self, true: Callable[[], bool], timeout: float, complaint: Callable[[], str]
    ) -> None:
        """Wait until it is true; raise TimeoutError with the complaint when that takes longer."""
        try:
            async with asyncio.timeout(timeout):
                while not true():
                    change = asyncio.get_running_loop().create_future()
                    self._watchers.add(change)
                    try:
                        await change
                    finally:
                        self._watchers.discard(change)
        except TimeoutError:
            raise TimeoutError(f"{complaint()} after {timeout:g} s") from None
