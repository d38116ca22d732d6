"""Long runs are read where they do not hold up the event loop, short ones on the spot."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic import field_validator

from bae import Graph, Node, NodeError
from bae.journal import MemoryJournal
from bae.journal.decoder import MANY_LINES

pytestmark = pytest.mark.once

SEEN: set[int] = set()
FAILING = True


class Link(Node):
    n: int
    upto: int

    @field_validator("n")
    @classmethod
    def note(cls, value: int) -> int:
        SEEN.add(threading.get_ident())
        return value

    async def __call__(self) -> Link | None:
        if self.n < self.upto:
            return Link(n=self.n + 1, upto=self.upto)
        if FAILING:
            raise OSError("not yet")
        return None


graph = Graph(start=Link)


async def record_failed_run(upto: int) -> MemoryJournal:
    global FAILING
    journal = MemoryJournal()
    FAILING = True
    with pytest.raises(NodeError):
        await graph.arun(Link(n=0, upto=upto), max_iters=0, journal=journal, run_id="one")
    FAILING = False
    return journal


async def threads_of(work: Any) -> set[int]:
    """The threads in which nodes are judged while something is done."""
    SEEN.clear()
    await work
    return set(SEEN)


async def test_a_long_run_is_resumed_shown_replayed_and_forked_off_the_event_loop() -> None:
    journal = await record_failed_run(MANY_LINES + 10)
    works = (
        graph.resume("one", journal=journal),
        graph.resume("one", journal=journal),  # which shows it as it stands
        graph.replay("one", journal=journal),
        graph.fork("one", at=MANY_LINES + 5, journal=journal, new_id="two"),
    )
    for work in works:
        assert await threads_of(work) - {threading.get_ident()}, work


async def test_a_short_run_is_read_on_the_event_loop() -> None:
    journal = await record_failed_run(10)
    here = threading.get_ident()
    assert await threads_of(graph.resume("one", journal=journal)) == {here}
    assert await threads_of(graph.replay("one", journal=journal)) == {here}


@pytest.mark.parametrize(("upto", "waits"), [(10, False), (MANY_LINES, True)])
async def test_why_reads_a_long_run_off_the_event_loop(upto: int, waits: bool) -> None:
    journal = await record_failed_run(upto)
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    provenance = await journal.why("one", "Link.n", step=3)
    assert provenance.value == 3
    assert turned.is_set() is waits


async def test_a_long_run_is_redacted_with_the_same_result() -> None:
    journal = await record_failed_run(MANY_LINES)
    done = await journal.redact("one", "Link.upto")
    assert done.values == MANY_LINES + 1
    assert not any(
        f'"upto":{MANY_LINES}' in line.data for line in (await journal.read("one")).lines
    )
