"""Graphs and effects for tests of runs with a journal."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Annotated

from bae import Dep, Gate, Graph, Node, Recall
from bae.journal import Journal, MemoryJournal


class Trouble(Exception):
    """The exception with which a test makes a dependency or a body fail."""


class World:
    """The world outside of a run: counts effects, and fails them on request."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.failing: set[str] = set()

    def do(self, what: str) -> None:
        """Have an effect, or fail to."""
        if what in self.failing:
            raise Trouble(what)
        self.done[what] += 1

    def mend(self) -> None:
        """Let nothing fail any more."""
        self.failing.clear()


WORLD = World()
"""What the graph below does; each test of journals begins with a new one."""


async def get_place() -> str:
    await asyncio.sleep(0)
    WORLD.do("place")
    return "Bern"


async def get_weather(place: Annotated[str, Dep(get_place)]) -> str:
    await asyncio.sleep(0)
    WORLD.do("weather")
    return f"rain in {place}"


async def look_up(word: str) -> str:
    await asyncio.sleep(0)
    WORLD.do(f"look up {word}")
    return word.upper()


class Stay(Node):
    reason: str

    async def __call__(self) -> None: ...


class Outfit(Node):
    message: Annotated[str, Recall()]
    top: str

    async def __call__(self) -> Packed:
        WORLD.do("outfit")
        return Packed(item=self.top)


class Packed(Node):
    item: str
    place: Annotated[str, Dep(get_place)]

    async def __call__(self) -> None:
        WORLD.do("packed")


class Client:
    """Something that no journal holds."""


def make_client() -> Client:
    WORLD.do("client")
    return Client()


class Refund(Node):
    amount: int
    approved: Annotated[bool, Gate("Refund?")]
    place: Annotated[str, Dep(get_place)]

    async def __call__(self) -> Paid | None:
        WORLD.do("refund")
        return Paid(amount=self.amount) if self.approved else None


class Paid(Node):
    amount: int

    async def __call__(self) -> None:
        WORLD.do("paid")


refund = Graph(start=Refund)


async def cut_journal(
    journal: Journal, lines: int | None = None, run_id: str = "one"
) -> MemoryJournal:
    """A journal with the run as a process leaves it that is killed after so many lines, or now."""
    stored = await journal.read(run_id)
    info = replace(stored.info, status="running", owner=None, lease_until=None, error="")
    left = MemoryJournal()
    await left.put(replace(stored, info=info, lines=stored.lines[:lines]))
    return left
