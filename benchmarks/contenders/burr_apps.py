"""Burr: async actions over one state key that holds the three-field model, with no tracker.

The graph of actions is built once and shared; an application is one run of it and is therefore
made inside the run. One key measured faster here than a key per field, plain lambdas faster than
`expr`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from burr.core import Action, ApplicationBuilder, ApplicationContext, Condition, State, action
from burr.core.graph import Graph, GraphBuilder
from burr.core.parallelism import MapStates

from benchmarks.contenders import Contender, CrowdRun, Definition, MapRun, Run
from benchmarks.generated import successors
from benchmarks.work import (
    CHAIN_START,
    CHOICE_START,
    CROWD_STEPS,
    GRAPH_SIZE,
    KINDS,
    STEPS,
    WEIGHTS,
    Outcome,
    Point,
    pick,
    square,
)


@action(reads=["point"], writes=["point"])
async def tick(state: State) -> State:
    now = state["point"]
    return state.update(point=Point(n=now.n + 1, x=now.x + 0.5, label=now.label))


@action(reads=["point"], writes=["point"])
async def pace(state: State) -> State:
    await asyncio.sleep(0)
    now = state["point"]
    return state.update(point=Point(n=now.n + 1, x=now.x + 0.5, label=now.label))


def at(n: int) -> Condition:
    return Condition.lmda(lambda state: state["point"].n == n, ["point"])


def loop_of(step: Any, steps: int) -> Graph:
    # Burr stops after a named action, so the last step goes by a name of its own.
    last = ("step", "last", at(steps - 1))
    return (
        GraphBuilder()
        .with_actions(step=step, last=step)
        .with_transitions(last, ("step", "step"))
        .build()
    )


async def run_app(graph: Graph, entrypoint: str, halt_after: list[str], point: Point) -> Point:
    app = (
        ApplicationBuilder()
        .with_graph(graph)
        .with_entrypoint(entrypoint)
        .with_state(point=point)
        .build()
    )
    _, _, state = await app.arun(halt_after=halt_after)
    result: Point = state["point"]
    return result


def chain() -> Run:
    graph = loop_of(tick, STEPS)

    async def run() -> Outcome:
        return await run_app(graph, "step", ["last"], Point(**CHAIN_START))

    return run


def choices() -> Run:
    def kind_of(weight: float) -> Any:
        @action(reads=["point"], writes=["point"])
        async def node(state: State) -> State:
            now = state["point"]
            return state.update(point=Point(n=now.n + 1, x=now.x + weight, label=now.label))

        return node

    def goes_to(kind: int) -> Condition:
        return Condition.lmda(lambda state: pick(state["point"].n) == kind, ["point"])

    @action(reads=[], writes=[])
    async def done(state: State) -> State:
        return state

    builder = GraphBuilder().with_actions(
        done=done,
        **{kind: kind_of(weight) for kind, weight in zip(KINDS, WEIGHTS, strict=True)},
    )
    for kind in KINDS:
        builder = builder.with_transitions(
            *((kind, other, goes_to(index)) for index, other in enumerate(KINDS)),
            (kind, "done"),
        )
    graph = builder.build()

    async def run() -> Outcome:
        return await run_app(graph, KINDS[pick(0)], ["done"], Point(**CHOICE_START))

    return run


def crowd() -> CrowdRun:
    graph = loop_of(pace, CROWD_STEPS)

    async def run(index: int) -> Outcome:
        point = Point(n=0, x=float(index), label="crowd")
        return await run_app(graph, "step", ["last"], point)

    return run


@action(reads=["item"], writes=["value"])
async def square_one(state: State) -> State:
    return state.update(value=await square(state["item"]))


class SquareAll(MapStates):
    """Burr's own fan-out: one sub-application per item."""

    def is_async(self) -> bool:
        return True

    @property
    def reads(self) -> list[str]:
        return ["items"]

    @property
    def writes(self) -> list[str]:
        return ["out"]

    def action(self, state: State, inputs: dict[str, Any]) -> Any:
        return square_one

    async def states(
        self, state: State, context: ApplicationContext, inputs: dict[str, Any]
    ) -> AsyncGenerator[State, None]:
        for item in state["items"]:
            yield State({"item": item})

    async def reduce(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state: State, results: AsyncGenerator[State, None]
    ) -> State:
        return state.update(out=[sub["value"] async for sub in results])


def map_items(items: list[int]) -> MapRun:
    fan_out: Action = SquareAll()
    graph = GraphBuilder().with_actions(square=fan_out).build()

    async def run() -> list[int]:
        app = (
            ApplicationBuilder()
            .with_graph(graph)
            .with_entrypoint("square")
            .with_state(items=items)
            .build()
        )
        _, _, state = await app.arun(halt_after=["square"])
        out: list[int] = state["out"]
        return out

    return run


def define() -> Definition:
    @action(reads=["point"], writes=["point"])
    async def node(state: State) -> State:
        return state

    always = Condition.lmda(lambda state: True, ["point"])

    def build() -> int:
        graph = (
            GraphBuilder()
            .with_actions(**{f"n{index}": node for index in range(GRAPH_SIZE)})
            .with_transitions(
                *(
                    (f"n{index}", f"n{later}", always)
                    for index in range(GRAPH_SIZE)
                    for later in successors(index)
                )
            )
            .build()
        )
        app = ApplicationBuilder().with_graph(graph).with_entrypoint("n0").build()
        return len(app.graph.actions)

    return Definition(build)


CONTENDER = Contender(
    name="Burr",
    package="burr",
    chain=chain,
    choices=choices,
    crowd=crowd,
    map_items=map_items,
    define=define,
    import_statement="import burr.core",
    notes={
        "b": "no bound on items in flight",
        "d": "an application is one run, so making it is part of the run",
        "f": "loads LangChain too when that is installed, as it is here for LangGraph",
        "c": "runs one action at a time; its fan-out is a map with one reducer, not a graph",
    },
)
