"""The slots of a local model: shared, waited for in line, given back by what is cancelled; and how
it is loaded once for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bae.lm import LocalBackend, local_model
from bae.lm.local_engine import Loading
from bounded import BOUND, some_turns
from local_parts import DAY, Novel, begun, decoded, need_the_model, prompt, small

need_the_model()


@pytest.fixture
async def novelist() -> Any:
    """A model of its own, so that what it counts is this test's alone."""
    async with LocalBackend(context=2048, threads=1) as lm:
        yield lm


# --- slots ------------------------------------------------------------------------------------


async def test_a_cancelled_fill_gives_its_slot_back_at_once(novelist: LocalBackend):
    task = await begun(novelist)
    assert novelist.shared.statistics().running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert novelist.shared.statistics().running == 0
    assert (await novelist.answer(prompt(small()))).stop == "end"
    assert decoded(novelist) < 200, "the novel of a thousand tokens was not written to its end"


async def test_a_fill_that_is_cancelled_while_its_prompt_is_read_stops_between_two_batches(
    novelist: LocalBackend,
):
    await novelist.answer(prompt(small()))
    before = decoded(novelist)
    task = asyncio.create_task(novelist.answer(prompt(small(), "word " * 1500)))
    async with asyncio.timeout(BOUND):
        while novelist.shared.statistics().running == 0:
            await some_turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await novelist.answer(prompt(small()))
    assert decoded(novelist) - before < 1500 / 64, "most of the prompt was not read"


async def test_a_timeout_around_a_fill_gives_the_slot_back_too(novelist: LocalBackend):
    await novelist.answer(prompt(small()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await novelist.fill(Novel, {}, "Novel", DAY)
    assert novelist.shared.statistics().running == 0
    assert (await novelist.answer(prompt(small()))).stop == "end"


async def test_a_call_that_is_cancelled_in_line_leaves_the_line_at_once(novelist: LocalBackend):
    writing = await begun(novelist)
    waiting = asyncio.create_task(novelist.answer(prompt(small())))
    last = asyncio.create_task(novelist.answer(prompt(small())))
    await some_turns()
    assert novelist.shared.statistics().waiting == 2
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert novelist.shared.statistics().waiting == 1
    assert not writing.done()
    writing.cancel()
    assert (await last).stop == "end"
    with pytest.raises(asyncio.CancelledError):
        await writing


async def test_two_slots_answer_two_questions_at_the_same_time():
    async with LocalBackend(slots=2, context=1024) as lm:
        novel = await begun(lm)
        answers = await asyncio.gather(*(lm.answer(prompt(small())) for _ in range(3)))
        assert [answer.stop for answer in answers] == ["end"] * 3
        assert not novel.done()
        novel.cancel()
        with pytest.raises(asyncio.CancelledError):
            await novel


async def test_the_loop_turns_while_the_model_writes():
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await some_turns()
            turns += 1

    turning = asyncio.create_task(turn())
    await LocalBackend().answer(prompt(small()))
    turning.cancel()
    assert turns > 100


# --- loading ----------------------------------------------------------------------------------


class Loads:
    """Counts loads of the real model, and holds them back until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.began = threading.Event()
        self.go_on = threading.Event()
        real = local_model.load

        def load(loading: Loading) -> Any:
            self.count += 1
            self.began.set()
            assert self.go_on.wait(BOUND)
            return real(loading)

        monkeypatch.setattr(local_model, "load", load)

    async def begin(self) -> None:
        async with asyncio.timeout(BOUND):
            while not self.began.is_set():
                await some_turns()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loads]:
    made = Loads(monkeypatch)
    yield made
    made.go_on.set()


async def test_callers_that_come_at_the_same_time_load_the_model_once(loads: Loads):
    async with LocalBackend(context=512, slots=2) as lm, LocalBackend(context=512, slots=2) as too:
        assert lm.shared is too.shared
        calls = [asyncio.create_task(each.answer(prompt(small()))) for each in (lm, too, lm)]
        await loads.begin()
        loads.go_on.set()
        assert [(await call).stop for call in calls] == ["end"] * 3
    assert loads.count == 1


async def test_a_first_caller_that_is_cancelled_while_the_model_loads_spoils_nothing(loads: Loads):
    async with LocalBackend(context=512) as lm:
        first = asyncio.create_task(lm.answer(prompt(small())))
        await loads.begin()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first  # without waiting for the load
        second = asyncio.create_task(lm.answer(prompt(small())))
        await some_turns()
        loads.go_on.set()
        assert (await second).stop == "end"
    assert loads.count == 1


async def test_the_model_is_unloaded_when_the_last_that_used_it_is_closed(loads: Loads):
    loads.go_on.set()
    one, two = LocalBackend(context=512), LocalBackend(context=512)
    await one.answer(prompt(small()))
    await two.answer(prompt(small()))
    model = one.shared
    await one.aclose()
    assert model.statistics().loaded
    await two.aclose()
    assert not model.statistics().loaded
    assert loads.count == 1
    await two.answer(prompt(small()))
    assert loads.count == 2
    await two.aclose()
    await two.aclose()


def test_what_needs_another_load_is_another_model():
    usual = LocalBackend()
    assert LocalBackend(temperature=1, seed=2, max_tokens=3, timeout=4).shared is usual.shared
    assert LocalBackend(context=512).shared is not usual.shared
