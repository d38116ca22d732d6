"""The events of a team in the order of their numbers, from any number on, those of other processes
included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

from bae.team.events import StoredEvent
from bae.team.models import TeamError
from bae.team.store import Store

BATCH: Final = 500
"""The most events that a subscriber gets at once."""
POLL_SECONDS: Final = 0.1
"""How often a waiting subscriber asks whether another process has written."""


@asynccontextmanager
async def subscribe(
    store: Store, project_id: int, *, after: int = 0, poll: float = POLL_SECONDS
) -> AsyncGenerator[Subscription]:
    """The events of a project with higher numbers than `after`, as they are stored:

        async with subscribe(store, project_id, after=number) as events:
            async for batch in events: ...

    No event is missing and none comes twice. Events are read from the store when the subscriber
    asks for them, so a slow subscriber costs no memory and misses nothing.
    """
    if after and after > (last := await store.last_event(project_id)):
        raise TeamError(
            f"there is no event {after} to continue after: the last one is {last}",
            code="bae-team-unknown",
            fix="start with after=0; the number may be that of another file",
        )
    subscription = Subscription(store, project_id, after, poll)
    leave = store.on_event(subscription.wake)
    try:
        yield subscription
    finally:
        leave()
        subscription.close()


class Subscription:
    """Batches of events, each a list that is not empty. `number` is that of the last event."""

    def __init__(self, store: Store, project_id: int, after: int, poll: float) -> None:
        self.number = after
        self._store = store
        self._project_id = project_id
        self._poll = poll
        self._stored = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[StoredEvent]:
        while not self._closed:
            self._stored.clear()
            version = await self._store.data_version()
            batch = await self._store.events(self._project_id, self.number, most=BATCH)
            if batch:
                self.number = batch[-1].number
                return batch
            while not self._stored.is_set() and version == await self._store.data_version():
                try:
                    async with asyncio.timeout(self._poll):
                        await self._stored.wait()
                except TimeoutError:
                    continue
        raise StopAsyncIteration

    def wake(self) -> None:
        """Have the subscriber look for events again."""
        self._stored.set()

    def close(self) -> None:
        """End the iteration, also while it waits."""
        self._closed = True
        self.wake()
