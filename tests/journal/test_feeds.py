"""Following a run and the list of runs: every line once, in order, from any number on, and a slow
subscriber does not slow others."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

import pytest

from bae import Gate, Graph, JournalError, Node
from bae.journal import (
    Feed,
    FeedItem,
    FeedPage,
    Feeds,
    Journal,
    MemoryJournal,
    SQLiteJournal,
    subscribe,
)


class Count(Node):
    upto: int = 3

    async def __call__(self) -> "Counted": ...


class Counted(Node):
    upto: int

    async def __call__(self) -> None: ...


class First(Node):
    n: int = 0

    async def __call__(self) -> "Second":
        return Second(n=self.n + 1)


class Second(Node):
    n: int

    async def __call__(self) -> None: ...


class Asks(Node):
    sure: Annotated[bool, Gate("Sure?")] = None  # type: ignore[assignment]

    async def __call__(self) -> None: ...


graph = Graph(start=First, end=Second)
asking = Graph(start=Asks, end=Asks)


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "runs.db")
    async with made:
        yield made


async def numbers(feed: Feed, after: int | None = -1) -> tuple[list[int], str]:
    found: list[int] = []
    async with asyncio.timeout(20), subscribe(feed, after) as items:
        async for batch in items:
            found += [item.number for item in batch.items]
        return found, items.end


async def test_a_feed_has_every_later_line_of_a_run_once_and_in_order(journal: Journal):
    await graph.arun(First(), journal=journal, run_id="run")
    count = len((await journal.read("run")).lines)
    feed = Feeds(journal).run("run")
    assert await numbers(feed) == ([*range(count)], "ended")
    assert await numbers(feed, 1) == ([*range(2, count)], "ended")
    assert await numbers(feed, count - 1) == ([], "ended")
    assert await numbers(feed, count + 7) == ([], "reset")


async def test_many_subscribers_follow_a_run_to_its_end(journal: Journal):
    held = asyncio.Event()

    class Slow(Node):
        async def __call__(self) -> Second:
            await held.wait()
            return Second(n=1)

    slow = Graph(start=Slow, end=Second)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(slow.arun(Slow(), journal=journal, run_id="slow"))
        while not await journal.runs():  # noqa: ASYNC110
            await asyncio.sleep(0)
        feed = Feeds(journal).run("slow")
        readers = [tasks.create_task(numbers(feed)) for _ in range(5)]
        async with subscribe(feed) as lines:
            await anext(lines)  # the others read too
            held.set()
    count = len((await journal.read("slow")).lines)
    assert [reader.result() for reader in readers] == [([*range(count)], "ended")] * 5


async def test_the_feed_of_a_run_ends_when_the_run_waits(journal: Journal):
    await asking.arun(Asks(), journal=journal, run_id="asks")
    feed = Feeds(journal).run("asks")
    before, end = await numbers(feed)
    assert end == "waiting"
    async with asyncio.timeout(20), subscribe(feed, before[-1]) as kept:
        assert [batch async for batch in kept][-1].state == "waiting"
        # The same feed object, which has a subscriber still.
        await asking.answer("asks", "Asks.sure", True, journal=journal)
        after, end = await numbers(feed, before[-1])
    assert (after[0], end) == (before[-1] + 1, "ended")


async def test_a_run_of_another_process_can_be_followed(tmp_path: Path):
    async with SQLiteJournal(tmp_path / "r.db") as ours, SQLiteJournal(tmp_path / "r.db") as theirs:
        await asking.arun(Asks(), journal=theirs, run_id="asks")
        await theirs.answer("asks", "0:Asks.sure", "true")  # so that it is not over
        async with asyncio.timeout(20), subscribe(Feeds(ours).run("asks"), None) as lines:
            assert (await anext(lines)).state == "waiting"
            await asking.resume("asks", journal=theirs)
            kinds = [item.value.kind async for batch in lines for item in batch.items]
    assert kinds[0] == "RunResumed"
    assert kinds[-1] == "RunEnded"


async def test_a_feed_of_the_list_of_runs_has_its_changes(journal: Journal):
    await graph.arun(First(), journal=journal, run_id="before")
    feed = Feeds(journal).runs
    async with asyncio.timeout(20), subscribe(feed, None) as live, subscribe(feed, 0) as every:
        await graph.arun(First(), journal=journal, run_id="later")
        seen = [(await anext(every)).items[0].value.run_id]
        found: dict[str, str] = {}
        while found.get("later") != "ended":
            batch = await anext(live)
            found |= {item.value.run_id: item.value.status for item in batch.items}
    assert seen == ["before"]
    assert [*found] == ["later"]


async def test_a_missing_or_deleted_run_ends_the_subscription(journal: Journal):
    with pytest.raises(JournalError, match="no run 'none'"):
        await numbers(Feeds(journal).run("none"))
    await asking.arun(Asks(), journal=journal, run_id="asks")
    await journal.answer("asks", "0:Asks.sure", "true")
    async with asyncio.timeout(20), subscribe(Feeds(journal).run("asks"), None) as lines:
        await anext(lines)
        await journal.delete(["asks"])
        assert [batch async for batch in lines if batch.items] == []
    assert lines.end == "deleted"


class Numbers(Feed[int]):
    """A feed of a test: numbers up to `last`, and whoever adds some wakes it."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.newest = last
        self.reads = 0
        self.wakes: list[Callable[[], None]] = []

    async def read(self, after: int, limit: int) -> FeedPage[int]:
        self.reads += 1
        upto = min(self.newest, after + limit)
        items = [FeedItem(n, n * n) for n in range(after + 1, upto + 1)]
        return FeedPage(items, self.newest, end="ended" if self.newest == 20_000 else "")

    async def version(self) -> int:
        return self.newest

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        self.wakes.append(wake)
        return lambda: self.wakes.remove(wake)


async def test_a_slow_subscriber_gets_a_gap_without_harm_to_others():
    feed = Numbers(0)
    found: list[int] = []
    async with asyncio.timeout(20), subscribe(feed, None) as hanging, subscribe(feed) as quick:
        feed.newest = 20_000
        async for batch in quick:
            found += [item.number for item in batch.items]
        assert [batch async for batch in hanging] == []
        assert hanging.end == "gap"
    assert found == [*range(20_001)]
    assert quick.end == "ended"


async def test_a_subscriber_that_begins_too_far_behind_gets_a_gap():
    feed = Numbers(10_000)
    async with (
        subscribe(feed, 1, behind=5_000) as far,
        subscribe(feed, 9_000, behind=5_000) as near,
    ):
        assert [batch async for batch in far] == []
        assert far.end == "gap"
        assert (await anext(near)).items[0].number == 9_001


async def test_subscribers_of_a_feed_share_each_read():
    feed = Numbers(10)
    async with asyncio.timeout(20):
        async with subscribe(feed, None) as one, subscribe(feed, None) as two:
            feed.newest = 11
            for wake in feed.wakes:
                wake()
            first, second = await anext(one), await anext(two)
            assert [item.value for item in first.items] == [121]
            assert first.items[0] is second.items[0]
        assert feed.wakes == []


async def test_an_error_of_the_store_is_raised_in_every_subscriber():
    feed = Numbers(3)
    feed.newest = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        await numbers(feed)
    feed.newest = 20_000
    assert (await numbers(feed, 19_990))[1] == "ended"
