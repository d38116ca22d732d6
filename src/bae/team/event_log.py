"""The events of a team in the order of their numbers, from any number on, those of other processes
included. One reader of the database serves all subscribers of a process."""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

from bae.team.events import StoredEvent
from bae.team.models import TeamError
from bae.team.store import Store

RECENT: Final = 5_000
"""How many events are kept in memory for all subscribers: the last ones."""
BATCH: Final = 500
"""The most events that are read, or given to a subscriber, at once."""
POLL_SECONDS: Final = 0.1
"""How often it is asked whether another process has written."""
_GATHER_SECONDS: Final = 0.02
"""How long events gather between two reads, so that each write is no read of its own."""


class SlowSubscriber(TeamError):
    """A subscriber fell too far behind and gets no more events. `number` is the last that it has:
    subscribe again with that as `after`."""

    code: str = "bae-team-slow-subscriber"
    number: int = 0


@asynccontextmanager
async def subscribe(
    store: Store,
    project_id: int,
    *,
    after: int = 0,
    behind: int = RECENT,
    poll: float = POLL_SECONDS,
) -> AsyncGenerator[Subscription]:
    """The events of a project with higher numbers than `after`, as they are stored:

        async with subscribe(store, project_id, after=number) as events:
            async for batch in events: ...

    None is missing and none comes twice. What is long stored is read in pages, as fast as it is
    taken. A subscriber that has caught up and then falls more than `behind` events behind is
    dropped with `SlowSubscriber`. Memory is bounded by `RECENT` events, however many subscribe.
    """
    key = (store, project_id)
    log = _LOGS.get(key)
    if log is None or log.error is not None:
        log = _LOGS[key] = _Log(store, project_id, poll)
    log.subscribers += 1
    subscription = Subscription(log, after, behind)
    try:
        if after > log.head and after > (last := await store.last_event(project_id)):
            raise TeamError(
                f"there is no event {after} to continue after: the last one is {last}",
                code="bae-team-unknown",
                fix="start with after=0; the number may be that of another file",
            )
        yield subscription
    finally:
        subscription.close()
        log.subscribers -= 1
        if not log.subscribers:
            if _LOGS.get(key) is log:
                del _LOGS[key]
            await log.stop()


class Subscription:
    """Batches of events, each a list that is not empty. `number` is the last one given."""

    def __init__(self, log: _Log, after: int, behind: int) -> None:
        self.number = after
        self._log = log
        self._behind = min(behind, RECENT)
        self._caught_up = False
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[StoredEvent]:
        log = self._log
        while not self._closed:
            if log.error is not None:
                raise TeamError(
                    f"the events of project {log.project_id} cannot be read", log.error
                ) from log.error
            changed = log.changed
            self._refuse_if_slow()
            batch = await log.after(self.number)
            if batch:
                self.number = batch[-1].number
                self._caught_up = self.number >= log.floor
                return batch
            await changed.wait()
        raise StopAsyncIteration

    def close(self) -> None:
        """End the iteration, wherever it waits."""
        self._closed = True
        self._log.wake()

    def _refuse_if_slow(self) -> None:
        if self._caught_up and self._log.count(self.number) > self._behind:
            raise SlowSubscriber(
                f"a subscriber of project {self._log.project_id} fell more than"
                f" {self._behind:,} events behind: it has {self.number:,}, and the last one is"
                f" {self._log.head:,}",
                fix=f"take events faster, and subscribe again with after={self.number}",
                number=self.number,
            )


class _Log:
    """The reader of one project's events, while there are subscribers."""

    def __init__(self, store: Store, project_id: int, poll: float) -> None:
        self.project_id = project_id
        self.subscribers = 0
        self.error: BaseException | None = None
        self.changed = asyncio.Event()
        """Set, and replaced by another one, when there is something new for subscribers."""
        self.head = 0
        """The number of the last event that was read."""
        self.floor = sys.maxsize
        """All events above this number and up to `head` are in memory."""
        self._recent: list[StoredEvent] = []
        self._store = store
        self._poll = poll
        self._reader = asyncio.create_task(self._run(), name="events of a team")

    async def stop(self) -> None:
        """End the reader."""
        self._reader.cancel()
        await asyncio.wait([self._reader])

    def wake(self) -> None:
        """Have all subscribers look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def after(self, number: int) -> Sequence[StoredEvent]:
        """The next events with higher numbers: from memory, or those long stored from the store."""
        if number >= self.floor:
            start = bisect_right(self._recent, number, key=_number)
            return self._recent[start : start + BATCH]
        if self.floor == sys.maxsize:  # the reader has not begun
            return ()
        return await self._store.events(self.project_id, number, most=BATCH)

    def count(self, number: int) -> int:
        """How many events have higher numbers; those that are not in memory count as one."""
        more = len(self._recent) - bisect_right(self._recent, number, key=_number)
        return more + (number < self.floor)

    async def _run(self) -> None:
        stored = asyncio.Event()
        leave = self._store.on_event(stored.set)
        try:
            await self._read(stored)
        except Exception as error:  # a full disk, a file that is gone: for every subscriber
            self.error = error
        finally:
            leave()
            self.wake()

    async def _read(self, stored: asyncio.Event) -> None:
        version = await self._store.data_version()
        self.head = self.floor = await self._store.last_event(self.project_id)
        self.wake()
        while True:
            stored.clear()
            page = await self._store.events(self.project_id, self.head, most=BATCH)
            if page:
                self._publish(page)
            await asyncio.sleep(_GATHER_SECONDS)
            while len(page) < BATCH and not stored.is_set():
                try:
                    async with asyncio.timeout(self._poll):
                        await stored.wait()
                except TimeoutError:
                    before, version = version, await self._store.data_version()
                    if before != version:
                        break

    def _publish(self, page: Sequence[StoredEvent]) -> None:
        self._recent += page
        self.head = page[-1].number
        more = len(self._recent) - RECENT
        if more > 0:
            self.floor = self._recent[more - 1].number
            del self._recent[:more]
        self.wake()


_LOGS: Final[dict[tuple[Store, int], _Log]] = {}


def _number(event: StoredEvent) -> int:
    return event.number
