"""LangGraph: compiled once, no checkpointer, recursion limit out of the way, routes by `Command`.

The state is one channel that holds the three-field model, and a node names its successor itself;
both measured faster here than a channel per field with conditional edges.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

from benchmarks.contenders import Contender, CrowdRun, DataflowRun, Definition, MapRun, Run
from benchmarks.generated import successors
from benchmarks.work import (
    CHAIN_START,
    CHOICE_START,
    CROWD_STEPS,
    DATAFLOW,
    GRAPH_SIZE,
    KINDS,
    MAP_LIMIT,
    STEPS,
    WEIGHTS,
    Outcome,
    Point,
    observe,
    pick,
    square,
)

CONFIG: Any = {"recursion_limit": 10 * STEPS}
ROUTES = (*KINDS, END)


class State(TypedDict):
    point: Point


async def tick(state: State) -> Command[Any]:
    now = state["point"]
    point = Point(n=now.n + 1, x=now.x + 0.5, label=now.label)
    return Command(update={"point": point}, goto=END if point.n == STEPS else "tick")


async def pace(state: State) -> Command[Any]:
    await asyncio.sleep(0)
    now = state["point"]
    point = Point(n=now.n + 1, x=now.x + 0.5, label=now.label)
    return Command(update={"point": point}, goto=END if point.n == CROWD_STEPS else "pace")


def loop_of(name: str, node: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node(name, node, destinations=(name, END))
    builder.add_edge(START, name)
    return builder.compile()


def chain() -> Run:
    graph = loop_of("tick", tick)

    async def run() -> Outcome:
        state = await graph.ainvoke({"point": Point(**CHAIN_START)}, CONFIG)
        return state["point"]

    return run


def choices() -> Run:
    def kind_of(weight: float) -> Any:
        async def node(state: State) -> Command[Any]:
            now = state["point"]
            point = Point(n=now.n + 1, x=now.x + weight, label=now.label)
            return Command(update={"point": point}, goto=ROUTES[pick(point.n)])

        return node

    builder = StateGraph(State)
    for kind, weight in zip(KINDS, WEIGHTS, strict=True):
        builder.add_node(kind, kind_of(weight), destinations=ROUTES)
    builder.add_edge(START, KINDS[pick(0)])
    graph = builder.compile()

    async def run() -> Outcome:
        state = await graph.ainvoke({"point": Point(**CHOICE_START)}, CONFIG)
        return state["point"]

    return run


def crowd() -> CrowdRun:
    graph = loop_of("pace", pace)

    async def run(index: int) -> Outcome:
        point = Point(n=0, x=float(index), label="crowd")
        return (await graph.ainvoke({"point": point}, CONFIG))["point"]

    return run


class MapState(TypedDict):
    items: list[int]
    out: Annotated[list[int], operator.add]


class MapItem(TypedDict):
    item: int


def map_items(items: list[int]) -> MapRun:
    async def square_one(state: MapItem) -> dict[str, list[int]]:
        return {"out": [await square(state["item"])]}

    def fan_out(state: MapState) -> list[Send]:
        return [Send("square", {"item": item}) for item in state["items"]]

    builder = StateGraph(MapState)
    builder.add_node("square", square_one)
    builder.add_conditional_edges(START, fan_out, ["square"])
    builder.add_edge("square", END)
    graph = builder.compile()
    config: Any = {**CONFIG, "max_concurrency": MAP_LIMIT}

    async def run() -> list[int]:
        return (await graph.ainvoke({"items": items, "out": []}, config))["out"]

    return run


class Weather(TypedDict, total=False):
    north: int
    south: int
    east: int
    rain: int
    wind: int
    tide: int
    storm: int
    swell: int
    alert: int
    forecast: int


def dataflow() -> DataflowRun:
    def node_of(name: str, needs: tuple[str, ...]) -> Any:
        async def node(state: Weather) -> dict[str, int]:
            return {name: await observe(name, *(state[need] for need in needs))}  # type: ignore[literal-required]

        return node

    builder = StateGraph(Weather)
    for name, (_, needs) in DATAFLOW.items():
        builder.add_node(f"get_{name}", node_of(name, needs))
        builder.add_edge([f"get_{need}" for need in needs] or START, f"get_{name}")
    graph = builder.compile()

    async def run() -> tuple[int, int]:
        state = await graph.ainvoke({"north": 0}, CONFIG)
        return state["alert"], state["forecast"]

    return run


def define() -> Definition:
    async def node(state: State) -> State:
        return state

    def build() -> int:
        builder = StateGraph(State)
        for index in range(GRAPH_SIZE):
            builder.add_node(f"n{index}", node)
            onward = [f"n{later}" for later in successors(index)] or [END]
            builder.add_conditional_edges(f"n{index}", lambda _, to=onward[0]: to, onward)
        builder.add_edge(START, "n0")
        return sum(not name.startswith("__") for name in builder.compile().nodes)

    return Definition(build)


CONTENDER = Contender(
    name="LangGraph",
    package="langgraph",
    chain=chain,
    choices=choices,
    crowd=crowd,
    map_items=map_items,
    dataflow=dataflow,
    define=define,
    import_statement="from langgraph.graph import StateGraph",
    notes={"c": "runs in supersteps: a level waits for the slowest of the one before"},
)
