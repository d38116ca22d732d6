"""What a run has used, over all the times it was gone on with."""

from __future__ import annotations

import asyncio

from bae import LM, Graph, Node
from bae.journal import Journal, MemoryJournal
from bae.lm import Answer
from bae.usage import Usage
from bounded import BOUND
from end_node import EndNode
from kept_runs import killed
from toy_backend import ToyBackend


class Part(EndNode):
    text: str


class Whole(EndNode):
    text: str


class Puts(Node):
    count: int

    async def __call__(self, lm: LM) -> Whole:
        texts: list[str] = []
        for number in range(self.count):
            texts.append((await lm.make(self, Part)).text)
            await REACHED(number)
        return Whole(text="".join(texts))


async def go_on(number: int) -> None:
    pass


REACHED = go_on
graph = Graph(start=Puts, end=Whole)


def backend() -> ToyBackend:
    return ToyBackend(lambda prompt: Answer('{"text":"a"}', Usage(calls=1, cost=1.0)))


async def cut_off_at(number: int, journal: Journal, backend: ToyBackend) -> MemoryJournal:
    """What a journal has of the run when its process is gone right after an answer."""
    global REACHED
    reached, never = asyncio.Event(), asyncio.Event()

    async def stop(at: int) -> None:
        if at == number:
            reached.set()
            await never.wait()

    REACHED = stop
    try:
        if await journal.runs():
            run = asyncio.create_task(graph.resume("one", backend, journal=journal))
        else:
            start = Puts(count=3)
            run = asyncio.create_task(graph.arun(start, backend, journal=journal, run_id="one"))
        await asyncio.wait_for(reached.wait(), BOUND)
        left = await killed(journal)
        run.cancel()
        await asyncio.wait([run])
    finally:
        REACHED = go_on
    return left


async def test_answers_are_counted_once_however_often_a_run_was_cut_off() -> None:
    lm = backend()
    journal = await cut_off_at(0, MemoryJournal(), lm)
    journal = await cut_off_at(2, journal, lm)
    result = await graph.resume("one", lm, journal=journal)
    assert (lm.calls, result.usage.calls) == (3, 3)
    again = await graph.resume("one", lm, journal=journal)
    assert again.usage == result.usage
