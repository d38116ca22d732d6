"""The floor: what a careful person writes by hand with asyncio and pydantic, and nothing else.

It keeps no trace, checks no route and owns no tasks beyond the case at hand; every other figure is
read as a multiple of this one.
"""

from __future__ import annotations

import asyncio
from typing import final

from pydantic import BaseModel

from benchmarks.contenders import Contender, CrowdRun, DataflowRun, Definition, MapRun, Run
from benchmarks.generated import forget, fresh_module, node_source
from benchmarks.work import (
    CHAIN_START,
    CHOICE_START,
    CROWD_STEPS,
    GRAPH_SIZE,
    MAP_LIMIT,
    STEPS,
    Outcome,
    observe,
    pick,
    square,
)


@final
class Done(BaseModel):
    n: int
    x: float
    label: str


class Tick(BaseModel):
    n: int
    x: float
    label: str

    async def __call__(self) -> Tick | Done:
        n = self.n + 1
        if n == STEPS:
            return Done(n=n, x=self.x + 0.5, label=self.label)
        return Tick(n=n, x=self.x + 0.5, label=self.label)


def chain() -> Run:
    async def run() -> Outcome:
        node: Tick | Done = Tick(**CHAIN_START)
        while type(node) is not Done:
            node = await node()
        return node

    return run


class Red(BaseModel):
    n: int
    x: float
    label: str

    async def __call__(self) -> Red | Green | Blue | Done:
        n = self.n + 1
        return SUCCESSORS[pick(n)](n=n, x=self.x + 1.0, label=self.label)


class Green(BaseModel):
    n: int
    x: float
    label: str

    async def __call__(self) -> Red | Green | Blue | Done:
        n = self.n + 1
        return SUCCESSORS[pick(n)](n=n, x=self.x + 2.0, label=self.label)


class Blue(BaseModel):
    n: int
    x: float
    label: str

    async def __call__(self) -> Red | Green | Blue | Done:
        n = self.n + 1
        return SUCCESSORS[pick(n)](n=n, x=self.x + 3.0, label=self.label)


SUCCESSORS: tuple[type[Red | Green | Blue | Done], ...] = (Red, Green, Blue, Done)


def choices() -> Run:
    async def run() -> Outcome:
        node: Red | Green | Blue | Done = SUCCESSORS[pick(0)](**CHOICE_START)
        while type(node) is not Done:
            node = await node()
        return node

    return run


class Pace(BaseModel):
    n: int
    x: float
    label: str

    async def __call__(self) -> Pace | Done:
        await asyncio.sleep(0)
        n = self.n + 1
        if n == CROWD_STEPS:
            return Done(n=n, x=self.x + 0.5, label=self.label)
        return Pace(n=n, x=self.x + 0.5, label=self.label)


def crowd() -> CrowdRun:
    async def run(index: int) -> Outcome:
        node: Pace | Done = Pace(n=0, x=float(index), label="crowd")
        while type(node) is not Done:
            node = await node()
        return node

    return run


class Mapped(BaseModel):
    items: list[int]
    out: list[int]


def map_items(items: list[int]) -> MapRun:
    async def run() -> list[int]:
        bound = asyncio.Semaphore(MAP_LIMIT)

        async def one(item: int) -> int:
            async with bound:
                return await square(item)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
        return Mapped(items=items, out=[task.result() for task in tasks]).out

    return run


def map_pool(items: list[int]) -> MapRun:
    """Map the items by a pool of workers, one task per free place: the fastest way by hand that we
    know."""

    async def run() -> list[int]:
        out = [0] * len(items)
        left = iter(enumerate(items))

        async def work() -> None:
            for place, item in left:
                out[place] = await square(item)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(MAP_LIMIT, len(items))):
                group.create_task(work())
        return Mapped(items=items, out=out).out

    return run


def dataflow() -> DataflowRun:
    async def run() -> tuple[int, int]:
        async def after(name: str, *needs: asyncio.Task[int]) -> int:
            return await observe(name, *[await need for need in needs])

        async with asyncio.TaskGroup() as group:
            north = group.create_task(after("north"))
            south = group.create_task(after("south"))
            east = group.create_task(after("east"))
            rain = group.create_task(after("rain", north))
            wind = group.create_task(after("wind", south))
            tide = group.create_task(after("tide", north, east))
            storm = group.create_task(after("storm", rain, wind))
            swell = group.create_task(after("swell", wind, tide))
            alert = group.create_task(after("alert", storm))
            forecast = group.create_task(after("forecast", swell))
        return alert.result(), forecast.result()

    return run


def define() -> Definition:
    """Plain models, for what defining two hundred of them costs before any graph is built."""

    def one(index: int, onward: list[int]) -> str:
        return f"class N{index}(BaseModel):\n    n: int\n    x: float\n    label: str\n"

    module = fresh_module(node_source("from pydantic import BaseModel", one))

    def build() -> int:
        forget(module)
        return GRAPH_SIZE

    return Definition(build)


CONTENDER = Contender(
    name="floor (asyncio + pydantic)",
    package=None,
    chain=chain,
    choices=choices,
    crowd=crowd,
    map_items=map_items,
    dataflow=dataflow,
    define=define,
    import_statement="import pydantic",
)
