"""Follow the changes of a journal. `subscribe` yields the numbered items of a feed, from any number
on.

A `RunFeed` has the lines of a run, by line number. A `RunsFeed` has the entries of all runs, by the
number of their change.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

from bae.exceptions import JournalError
from bae.journal.store import Journal
from bae.journal.stored_runs import Line, RunInfo
from bae.tasks import wait_until_ended

T = TypeVar("T")

PAGE: Final = 500
"""How many items are read, or yielded, at once at most."""
MAX_KEPT_ITEMS: Final = 5_000
"""How many of its newest items a feed keeps in memory for its subscribers."""
MAX_KEPT_BYTES: Final = 32 << 20
"""How large the items that a feed keeps in memory may be together. Older items are read from the
store again."""
GATHER: Final = 0.05
"""Seconds for which new items gather before they are read together."""
POLL: Final = 0.1
"""Seconds between two looks for items of other processes, if the store has a cheap `version`."""
SLOW_POLL: Final = 1.0
"""Seconds between two looks for items of other processes, if the store has no `version`."""
LOOK: Final = 5.0
"""Seconds after which a feed is read even if nothing was stored. For example, a lease may have run
out."""

FeedEnd = Literal["", "ended", "failed", "cancelled", "waiting", "deleted", "reset", "gap"]
"""Why a subscription has ended; empty while it continues.

- "ended", "failed", "cancelled": the run has this status.
- "waiting": the run waits for a person.
- "deleted": the run no longer exists.
- "reset": the run has fewer lines than the subscriber has seen.
- "gap": the subscriber was too slow.
"""


class FeedItem(Generic[T]):
    """One numbered item of a feed."""

    __slots__ = ("encoded", "number", "size", "value")

    def __init__(self, number: int, value: T, size: int = 0) -> None:
        self.number = number
        self.value = value
        self.size = size
        """The approximate number of characters in the item."""
        self.encoded = ""
        """The form in which a server sends the item. It is stored here, so that all subscribers
        share it."""

    def __repr__(self) -> str:
        return f"<FeedItem {self.number}: {self.value!r}>"


class FeedPage(NamedTuple, Generic[T]):
    """Some items of a feed, in order."""

    items: Sequence[FeedItem[T]]
    """The items, in the order of their numbers."""
    last: int
    """The number of the newest item of the feed."""
    state: str = ""
    """The state of the feed, such as the status of its run."""
    end: FeedEnd = ""
    """Why no item will follow after `last`; empty if items may follow."""


class FeedBatch(NamedTuple, Generic[T]):
    """New items for a subscriber."""

    items: Sequence[FeedItem[T]]
    """The items, in the order of their numbers. There are none if only the `state` has changed."""
    state: str
    """The state of the feed when the items were read."""


class Feed(ABC, Generic[T]):
    """Numbered items in a store, which subscribers can follow. Subscribers of one `Feed` object
    share its newest items and one reader. The reader works while there are subscribers.

    A subclass implements `read`. It may also implement `version` and `listen`, to avoid needless
    reads.
    """

    def __init__(self) -> None:
        self.tail = Tail(self)
        """The newest items, while there are subscribers."""

    @abstractmethod
    async def read(self, after: int, limit: int) -> FeedPage[T]:
        """Return at most `limit` items with numbers greater than `after`, in order. If `limit` is
        0, the page has no items. Only its `last`, `state` and `end` are used."""

    async def version(self) -> int | None:
        """Return a number that changes when something is stored. None if no such number is cheap to
        read."""
        return None

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake`, from any thread, whenever this process has stored something. Returns a
        function that stops the calls."""
        return lambda: None


class Tail(Generic[T]):
    """The newest items of a feed, and the task that reads new items while there are subscribers."""

    def __init__(self, feed: Feed[T]) -> None:
        self._feed = feed
        self.recent: list[FeedItem[T]] = []
        """All items with numbers greater than `floor`, up to `last`."""
        self.floor = self.last = -1
        self.state = ""
        self.end: FeedEnd = ""
        self.error: Exception | None = None
        """The error of the store, if the feed cannot be read."""
        self.news = asyncio.Event()
        """An event that is set when an attribute changes. A new event replaces it then."""
        self._is_known = False
        """Whether `last` was read from the store."""
        self._seen: int | None = None
        """The version of the store at the last read."""
        self._subscribers = 0
        self._reader: asyncio.Task[None] | None = None

    @property
    def is_followed(self) -> bool:
        """Whether the feed has subscribers."""
        return self._subscribers > 0

    async def enter(self) -> None:
        """Add a subscriber. The first subscriber starts the reader."""
        self._subscribers += 1
        if self._reader is None or self._reader.done():
            self.error, self.end = None, ""
            self._reader = asyncio.create_task(self._follow(), name="reads a feed")
        while not (self._is_known or self._reader.done()):
            await self.news.wait()

    async def leave(self) -> None:
        """Remove a subscriber. The last subscriber stops the reader."""
        self._subscribers -= 1
        if not self._subscribers and self._reader is not None:
            reader, self._reader = self._reader, None
            reader.cancel()
            self.recent, self._is_known = [], False
            await wait_until_ended([reader])

    async def _follow(self) -> None:
        """Read new items until no more can come."""
        loop, rung = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            if not rung.is_set():
                with suppress(RuntimeError):  # the loop is closed, and so are all subscriptions
                    loop.call_soon_threadsafe(rung.set)

        stop = self._feed.listen(ring)
        try:
            if not self._is_known:
                self._seen = await self._feed.version()
                page = await self._feed.read(_LAST, 0)
                self.floor = self.last = page.last
                self.state, self.end, self._is_known = page.state, page.end, True
                self.wake()
            while not self.end:
                rung.clear()
                await self._read_new()
                if not self.end:
                    await self._wait(rung)
        except Exception as error:  # any store may raise it; the subscribers raise it again
            self.error = error
        finally:
            stop()
            self.wake()

    async def _wait(self, rung: asyncio.Event) -> None:
        """Wait until there may be new items."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LOOK
        while not rung.is_set() and loop.time() < until:
            version = await self._feed.version()
            if version is not None and version != self._seen:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(SLOW_POLL if version is None else POLL):
                    await rung.wait()
            if version is None:
                break
        await asyncio.sleep(GATHER)

    async def _read_new(self) -> None:
        more = True
        while more and not self.end:
            self._seen = await self._feed.version()
            page = await self._feed.read(self.last, PAGE)
            new = [item for item in page.items if item.number > self.last]
            more = bool(new) and len(page.items) == PAGE
            if page.last < self.last:
                self.end = page.end or "reset"
            elif not more:
                self.end = page.end
            if new:
                self.last = new[-1].number
                self._keep([*self.recent, *new])
            if new or self.end or page.state != self.state:
                self.state = page.state
                self.wake()
            if more:  # subscribers take these items before more arrive
                await asyncio.sleep(GATHER / 10)

    def _keep(self, items: list[FeedItem[T]]) -> None:
        """Keep the newest of these items."""
        first = max(0, len(items) - MAX_KEPT_ITEMS)
        room = MAX_KEPT_BYTES
        for index in range(len(items) - 1, first - 1, -1):
            room -= items[index].size
            if room < 0 and index < len(items) - 1:
                first = index + 1
                break
        if first:
            self.floor = items[first - 1].number
        self.recent = items[first:]

    def wake(self) -> None:
        """Wake all waiting subscribers, so that they look for changes."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class Subscriber(Generic[T]):
    """An iterator over batches of a feed's items."""

    def __init__(self, feed: Feed[T], after: int | None, behind: int | None) -> None:
        self._feed = feed
        self._behind = behind
        self._live = after is None
        """Whether the subscriber has once reached the items in memory. From then on, it must not
        fall behind."""
        self._state = ""
        self._closed = False
        tail = feed.tail
        self.number = tail.last if after is None else after
        """The number of the last item. At first, the number that the subscription starts after."""
        self.end: FeedEnd = "reset" if self.number > tail.last else ""
        """Why the iteration has ended; empty before it ends."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FeedBatch[T]:
        feed, tail = self._feed, self._feed.tail
        while not (self._closed or self.end):
            if tail.error is not None:
                raise tail.error
            news = tail.news
            if self.number >= tail.floor:
                self._live = True
                start = bisect_right(tail.recent, self.number, key=_number_of)
                items = tail.recent[start : start + PAGE]
                if items or self._state != tail.state:
                    return self._take(items, tail.state)
                self.end = tail.end
                if not self.end:
                    await news.wait()
            elif (
                MAX_KEPT_ITEMS if self._live else self._behind or _LAST
            ) < tail.last - self.number:
                self.end = "gap"
            else:
                page = await feed.read(self.number, PAGE)
                if page.items:
                    return self._take(page.items, page.state)
                self.number = tail.floor  # the store has no items in between
        raise StopAsyncIteration

    def _take(self, items: Sequence[FeedItem[T]], state: str) -> FeedBatch[T]:
        self.number = items[-1].number if items else self.number
        self._state = state
        return FeedBatch(items, state)

    def close(self) -> None:
        """End the iteration, even while it waits."""
        self._closed = True
        self._feed.tail.wake()


@asynccontextmanager
async def subscribe(
    feed: Feed[T], after: int | None = -1, *, behind: int | None = None
) -> AsyncGenerator[Subscriber[T]]:
    """Follow a feed: first the items with numbers greater than `after`, and then each new item.

        async with subscribe(feeds.run("order-7"), after=41) as lines:
            async for batch in lines: ...
        print(lines.end)

    No item is missing or repeated. `after=None` skips all existing items. Items are read from the
    store when the subscriber asks for them. A slow subscriber therefore costs no memory, and does
    not delay others.

    A subscriber that has once caught up with the feed must not fall more than 5,000 items behind
    again. Otherwise its iteration ends with "gap", and the caller can subscribe again. `behind` is
    the same limit until the subscriber has caught up. By default, there is no limit until then.
    """
    try:
        await feed.tail.enter()
        if feed.tail.error is not None:
            raise feed.tail.error
        subscriber = Subscriber(feed, after, behind)
        try:
            yield subscriber
        finally:
            subscriber.close()
    finally:
        await feed.tail.leave()


class RunFeed(Feed[Line]):
    """The lines of a run, from any process, with their numbers in the store.

    The feed ends when the run has ended, has failed, was cancelled, or waits for a person. If the
    process of the run has died, the feed continues, and its `state` is "interrupted".
    """

    def __init__(self, journal: Journal, run_id: str) -> None:
        super().__init__()
        self.journal = journal
        self.run_id = run_id
        self._was_there = False

    async def read(self, after: int, limit: int) -> FeedPage[Line]:
        """Return some lines of the run, and the run's status."""
        try:
            info, lines, count = await self.journal.lines(self.run_id, after=after, limit=limit)
        except JournalError as error:
            if error.code != "bae-run-unknown" or not self._was_there:
                raise
            return FeedPage((), after, "", "deleted")
        self._was_there = True
        items = [FeedItem(line.n, line, len(line.data)) for line in lines]
        return FeedPage(items, count - 1, info.standing(), _end_of(info))

    async def version(self) -> int | None:
        """Return the version of the journal."""
        return await self.journal.version()

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever this process has written a line of the run."""
        return self.journal.listen(lambda run_id: wake() if run_id == self.run_id else None)


class RunsFeed(Feed[RunInfo]):
    """The entries of all runs, each numbered by its `change`. An entry comes again when its run is
    claimed, released, answered or replaced. A deleted run has no entry."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal = journal

    async def read(self, after: int, limit: int) -> FeedPage[RunInfo]:
        """Return the entries that have changed since the change `after`."""
        if not limit:
            return FeedPage((), await self.journal.last_change())
        infos = await self.journal.runs(after=after, limit=limit)
        items = [FeedItem(info.change, info) for info in infos]
        return FeedPage(items, max([after, *(item.number for item in items)]))

    async def version(self) -> int | None:
        """Return the version of the journal."""
        return await self.journal.version()

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever this process has written a run."""
        return self.journal.listen(lambda _: wake())


class Feeds:
    """The feeds of a journal. Each run has one feed object, so that its subscribers share one
    reader."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.runs = RunsFeed(journal)
        """The list of runs."""
        self._of_runs: WeakValueDictionary[str, RunFeed] = WeakValueDictionary()

    def run(self, run_id: str) -> RunFeed:
        """Return the feed of a run's lines."""
        feed = self._of_runs.get(run_id)
        if feed is None:
            feed = self._of_runs[run_id] = RunFeed(self.journal, run_id)
        return feed


_LAST: Final = 1 << 53
"""A number greater than the number of any item."""


def _number_of(item: FeedItem[Any]) -> int:
    return item.number


def _end_of(info: RunInfo) -> FeedEnd:
    if info.status == "waiting":
        return "" if info.can_continue() else "waiting"
    return info.status if info.status in ("ended", "failed", "cancelled") else ""
