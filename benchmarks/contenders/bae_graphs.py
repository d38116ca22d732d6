"""bae: nodes are the three-field models themselves, their return types the edges.

A step limit of 0 means no limit, so that no contender is stopped half-way; everything else is as
it comes.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from bae import Dep, Graph, Map, Node
from benchmarks.contenders import Contender, CrowdRun, DataflowRun, Definition, MapRun, Run
from benchmarks.generated import forget, fresh_module, node_source
from benchmarks.work import (
    CHAIN_START,
    CHOICE_START,
    CROWD_STEPS,
    MAP_LIMIT,
    STEPS,
    Outcome,
    observe,
    pick,
    square,
)


class Done(Node):
    n: int
    x: float
    label: str

    async def __call__(self) -> None: ...


class Tick(Node):
    n: int
    x: float
    label: str

    async def __call__(self) -> Tick | Done:
        n = self.n + 1
        if n == STEPS:
            return Done(n=n, x=self.x + 0.5, label=self.label)
        return Tick(n=n, x=self.x + 0.5, label=self.label)


def chain() -> Run:
    graph = Graph(start=Tick, end=Done)

    async def run() -> Outcome:
        return (await graph.arun(Tick(**CHAIN_START), max_iters=0)).result

    return run


class Red(Node):
    n: int
    x: float
    label: str

    async def __call__(self) -> Red | Green | Blue | Done:
        n = self.n + 1
        return SUCCESSORS[pick(n)](n=n, x=self.x + 1.0, label=self.label)


class Green(Node):
    n: int
    x: float
    label: str

    async def __call__(self) -> Red | Green | Blue | Done:
        n = self.n + 1
        return SUCCESSORS[pick(n)](n=n, x=self.x + 2.0, label=self.label)


class Blue(Node):
    n: int
    x: float
    label: str

    async def __call__(self) -> Red | Green | Blue | Done:
        n = self.n + 1
        return SUCCESSORS[pick(n)](n=n, x=self.x + 3.0, label=self.label)


SUCCESSORS: tuple[type[Red | Green | Blue | Done], ...] = (Red, Green, Blue, Done)


def choices() -> Run:
    first = SUCCESSORS[pick(0)]
    graph = Graph(start=first, end=Done)

    async def run() -> Outcome:
        return (await graph.arun(first(**CHOICE_START), max_iters=0)).result

    return run


class Pace(Node):
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
    graph = Graph(start=Pace, end=Done)

    async def run(index: int) -> Outcome:
        start = Pace(n=0, x=float(index), label="crowd")
        return (await graph.arun(start, max_iters=0)).result

    return run


class Mapped(Node):
    items: list[int]
    out: Annotated[list[int], Map(square, over="items", limit=MAP_LIMIT)]

    async def __call__(self) -> None: ...


def map_items(items: list[int]) -> MapRun:
    graph = Graph(start=Mapped, end=Mapped)

    async def run() -> list[int]:
        return (await graph.arun(Mapped(items=items), max_iters=0)).result.out

    return run


async def north() -> int:
    return await observe("north")


async def south() -> int:
    return await observe("south")


async def east() -> int:
    return await observe("east")


async def rain(a: Annotated[int, Dep(north)]) -> int:
    return await observe("rain", a)


async def wind(a: Annotated[int, Dep(south)]) -> int:
    return await observe("wind", a)


async def tide(a: Annotated[int, Dep(north)], b: Annotated[int, Dep(east)]) -> int:
    return await observe("tide", a, b)


async def storm(a: Annotated[int, Dep(rain)], b: Annotated[int, Dep(wind)]) -> int:
    return await observe("storm", a, b)


async def swell(a: Annotated[int, Dep(wind)], b: Annotated[int, Dep(tide)]) -> int:
    return await observe("swell", a, b)


async def get_alert(a: Annotated[int, Dep(storm)]) -> int:
    return await observe("alert", a)


async def get_forecast(a: Annotated[int, Dep(swell)]) -> int:
    return await observe("forecast", a)


class Weather(Node):
    alert: Annotated[int, Dep(get_alert)]
    forecast: Annotated[int, Dep(get_forecast)]

    async def __call__(self) -> None: ...


def dataflow() -> DataflowRun:
    graph = Graph(start=Weather, end=Weather)

    async def run() -> tuple[int, int]:
        weather = (await graph.arun(Weather(), max_iters=0)).result
        return weather.alert, weather.forecast

    return run


def define() -> Definition:
    def one(index: int, onward: list[int]) -> str:
        following = " | ".join(f"N{later}" for later in onward) or "None"
        answer = f"N{onward[0]}(n=self.n, x=self.x, label=self.label)" if onward else "None"
        return (
            f"class N{index}(Node):\n    n: int\n    x: float\n    label: str\n"
            f"    async def __call__(self) -> {following}:\n        return {answer}\n"
        )

    module = fresh_module(node_source("from bae import Node", one))
    graphs: list[Graph] = []

    def build() -> int:
        graph = Graph(start=module.N0)
        graphs.append(graph)
        return len(graph.nodes)

    def validate() -> None:
        graphs.pop().validate()
        forget(module)

    return Definition(build, validate)


CONTENDER = Contender(
    name="bae",
    package="bae-graphs",
    chain=chain,
    choices=choices,
    crowd=crowd,
    map_items=map_items,
    dataflow=dataflow,
    define=define,
    import_statement="import bae",
)
