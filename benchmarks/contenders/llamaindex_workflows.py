"""LlamaIndex Workflows: events are the three-field models, steps are routed by event type.

No timeout; validation happens on the first run, which is the untimed warm-up. Fan-out is a step
that returns a list, fan-in a step that takes one, as its own guide has it.
"""

from __future__ import annotations

import asyncio

from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from benchmarks.contenders import Contender, CrowdRun, Definition, MapRun, Run
from benchmarks.contenders.llamaindex_dataflow import dataflow
from benchmarks.generated import forget, fresh_module, node_source
from benchmarks.work import (
    CHAIN_START,
    CHOICE_START,
    CROWD_STEPS,
    GRAPH_SIZE,
    MAP_LIMIT,
    STEPS,
    Outcome,
    pick,
    square,
)


class Begin(StartEvent):
    n: int
    x: float
    label: str


class Tick(Event):
    n: int
    x: float
    label: str


class Done(StopEvent):
    n: int
    x: float
    label: str


class Chain(Workflow):
    @step
    async def begin(self, ev: Begin) -> Tick:
        return Tick(n=ev.n + 1, x=ev.x + 0.5, label=ev.label)

    @step
    async def tick(self, ev: Tick) -> Tick | Done:
        n = ev.n + 1
        if n == STEPS:
            return Done(n=n, x=ev.x + 0.5, label=ev.label)
        return Tick(n=n, x=ev.x + 0.5, label=ev.label)


def chain() -> Run:
    workflow = Chain(timeout=None)

    async def run() -> Outcome:
        return await workflow.run(start_event=Begin(**CHAIN_START))

    return run


class Red(Event):
    n: int
    x: float
    label: str


class Green(Event):
    n: int
    x: float
    label: str


class Blue(Event):
    n: int
    x: float
    label: str


SUCCESSORS: tuple[type[Red | Green | Blue | Done], ...] = (Red, Green, Blue, Done)


class Choices(Workflow):
    # The first kind is red (pick(0) is 0); its start event stands for the first node.
    @step
    async def begin(self, ev: Begin) -> Red | Green | Blue | Done:
        n = ev.n + 1
        return SUCCESSORS[pick(n)](n=n, x=ev.x + 1.0, label=ev.label)

    @step
    async def red(self, ev: Red) -> Red | Green | Blue | Done:
        n = ev.n + 1
        return SUCCESSORS[pick(n)](n=n, x=ev.x + 1.0, label=ev.label)

    @step
    async def green(self, ev: Green) -> Red | Green | Blue | Done:
        n = ev.n + 1
        return SUCCESSORS[pick(n)](n=n, x=ev.x + 2.0, label=ev.label)

    @step
    async def blue(self, ev: Blue) -> Red | Green | Blue | Done:
        n = ev.n + 1
        return SUCCESSORS[pick(n)](n=n, x=ev.x + 3.0, label=ev.label)


def choices() -> Run:
    workflow = Choices(timeout=None)

    async def run() -> Outcome:
        return await workflow.run(start_event=Begin(**CHOICE_START))

    return run


class Crowd(Workflow):
    @step
    async def begin(self, ev: Begin) -> Tick:
        await asyncio.sleep(0)
        return Tick(n=ev.n + 1, x=ev.x + 0.5, label=ev.label)

    @step
    async def tick(self, ev: Tick) -> Tick | Done:
        await asyncio.sleep(0)
        n = ev.n + 1
        if n == CROWD_STEPS:
            return Done(n=n, x=ev.x + 0.5, label=ev.label)
        return Tick(n=n, x=ev.x + 0.5, label=ev.label)


def crowd() -> CrowdRun:
    workflow = Crowd(timeout=None)

    async def run(index: int) -> Outcome:
        return await workflow.run(start_event=Begin(n=0, x=float(index), label="crowd"))

    return run


class Numbers(StartEvent):
    numbers: list[int]


class Item(Event):
    place: int
    item: int


class Squared(Event):
    place: int
    value: int


class Squares(StopEvent):
    out: list[int]


class SquareAll(Workflow):
    @step
    async def fan_out(self, ev: Numbers) -> list[Item]:
        return [Item(place=place, item=item) for place, item in enumerate(ev.numbers)]

    @step(num_workers=MAP_LIMIT)
    async def square_one(self, ev: Item) -> Squared:
        return Squared(place=ev.place, value=await square(ev.item))

    @step
    async def fan_in(self, events: list[Squared]) -> Squares:
        in_order = sorted(events, key=lambda squared: squared.place)
        return Squares(out=[squared.value for squared in in_order])


def map_items(items: list[int]) -> MapRun:
    workflow = SquareAll(timeout=None)

    async def run() -> list[int]:
        return (await workflow.run(start_event=Numbers(numbers=items))).out

    return run


def define() -> Definition:
    def event(index: int, onward: list[int]) -> str:
        base = "StartEvent" if index == 0 else "Event"
        return f"class N{index}({base}):\n    n: int\n    x: float\n    label: str\n"

    def method(index: int, onward: list[int]) -> str:
        following = " | ".join(f"N{later}" for later in onward) or "StopEvent"
        return (
            f"    @step\n    async def s{index}(self, ev: N{index}) -> {following}:\n"
            f"        return {f'N{onward[0]}(**dict(ev))' if onward else 'StopEvent()'}\n"
        )

    head = (
        "from workflows import Workflow, step\n"
        "from workflows.events import Event, StartEvent, StopEvent\n"
    )
    source = node_source(head, event) + "\nclass Built(Workflow):\n"
    source += node_source("", method).partition("annotations\n")[2]
    module = fresh_module(source)
    workflows: list[Workflow] = []

    def build() -> int:
        workflows.append(module.Built(timeout=None))
        return sum(hasattr(workflows[0], f"s{index}") for index in range(GRAPH_SIZE))

    def validate() -> None:
        workflows.pop().validate()
        forget(module)

    return Definition(build, validate)


CONTENDER = Contender(
    name="LlamaIndex Workflows",
    package="llama-index-workflows",
    chain=chain,
    choices=choices,
    crowd=crowd,
    map_items=map_items,
    dataflow=dataflow,
    define=define,
    import_statement="import workflows",
)
