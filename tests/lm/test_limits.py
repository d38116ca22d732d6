"""What `Concurrency` promises: never more at once than the limit, in any event loop; those who wait
go in the order they came, and one who gives up takes no slot with it."""

from __future__ import annotations

import asyncio
import threading
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from bae import Usage
from bae.lm import Answer, Backend, Concurrency, Prompt
from bounded import BOUND
from growth import Scans
from policy_parts import REPLY, Gated, Held, prompt, run, settle


async def test_the_limit_bounds_concurrent_calls():
    backend = Held()
    lm = Concurrency(backend, 3)
    asking = [asyncio.create_task(lm.answer(prompt(str(n)))) for n in range(10)]
    await settle()
    assert backend.running == 3
    statistics = lm.statistics()
    assert (statistics.limit, statistics.running, statistics.waiting, statistics.asked) == (
        3,
        3,
        7,
        10,
    )

    backend.release()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*asking)
    assert backend.most == 3
    statistics = lm.statistics()
    assert (statistics.running, statistics.waiting, statistics.most) == (0, 0, 3)


async def test_waiting_calls_start_in_the_order_they_came():
    backend = Held()
    lm = Concurrency(backend, 1)
    asking = [asyncio.create_task(lm.answer(prompt(str(n)))) for n in range(6)]
    await settle()
    backend.release()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*asking)
    assert backend.asked == [str(n) for n in range(6)]


async def test_a_call_cancelled_while_starting_passes_on_its_slot():
    backend = Held()
    lm = Concurrency(backend, 1)
    first, second, third = (asyncio.create_task(lm.answer(prompt(n))) for n in "123")
    await settle()
    first.add_done_callback(lambda _: second.cancel())
    backend.release()
    async with asyncio.timeout(BOUND):
        await third
    assert (backend.asked, lm.statistics().running) == (["1", "3"], 0)


async def test_a_cancelled_caller_leaves_the_queue_without_a_scan():
    lm = Concurrency(Held(), 1)
    with Scans() as scans:
        asking = [asyncio.create_task(lm.answer(prompt())) for _ in range(200)]
        await settle()
        assert lm.statistics().waiting == 199
        for task in reversed(asking):
            task.cancel()
        await asyncio.wait(asking)
    assert scans.looks < 10 * len(asking)
    assert (lm.statistics().running, lm.statistics().waiting) == (0, 0)


@settings(max_examples=40)
@given(st.integers(1, 4), st.lists(st.integers(0, 3), max_size=30), st.integers(0, 2**32))
def test_no_slot_is_lost_when_callers_are_cancelled(limit: int, moves: list[int], seed: int):
    """Moves: ask, ask, cancel a caller, release one answer."""

    async def play() -> None:
        random = Random(seed)
        inner = Gated(Answer(REPLY, Usage(calls=1)))
        lm = Concurrency(inner, limit)
        asking: list[asyncio.Task[Answer]] = []
        for move in moves:
            if move < 2:
                asking.append(asyncio.create_task(lm.answer(prompt())))
            elif move == 2 and asking:
                random.choice(asking).cancel()
            elif inner.gates:
                inner.open(random.randrange(len(inner.gates)))
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
        while not all(task.done() for task in asking):
            for number in range(len(inner.gates)):
                inner.open(number)
            await asyncio.sleep(0)
        await asyncio.gather(*asking, return_exceptions=True)
        assert inner.most <= limit
        statistics = lm.statistics()
        assert (statistics.running, statistics.waiting) == (0, 0)

    run(play)


def test_one_limit_holds_across_event_loops_in_several_threads():
    class Counting(Backend):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()
            self.running = self.most = self.answered = 0

        async def answer(self, prompt: Prompt) -> Answer:
            with self.lock:
                self.running += 1
                self.most = max(self.most, self.running)
            await settle()
            with self.lock:
                self.running -= 1
                self.answered += 1
            return Answer(REPLY)

    inner = Counting()
    lm = Concurrency(inner, 2)

    async def several() -> None:
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(lm.answer(prompt()) for _ in range(20)))

    threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert (inner.answered, inner.most) == (60, 2)
    assert lm.statistics().running == 0
