"""pydantic-graph: nodes are dataclasses whose `run` returns the next one, the way closest to bae's.

Instrumentation spans are off. The map and the uneven dependency graph use its builder's forks and
joins, which have no bound on how many branches run at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pydantic_graph import (
    BaseNode,
    End,
    Graph,
    GraphBuilder,
    GraphRunContext,
    Join,
    Step,
    StepContext,
    reduce_dict_update,
    reduce_list_append,
)

from benchmarks.contenders import Contender, CrowdRun, DataflowRun, Definition, MapRun, Run
from benchmarks.generated import forget, fresh_module, node_source
from benchmarks.work import (
    CHAIN_START,
    CHOICE_START,
    CROWD_STEPS,
    DATAFLOW,
    DONE,
    STEPS,
    Outcome,
    Point,
    observe,
    pick,
    square,
)

Values = dict[str, int]
ValueStep = Step[None, None, Values, Values]
ValueJoin = Join[None, None, Values, Values]


@dataclass
class Tick(BaseNode[None, None, Point]):
    point: Point

    async def run(self, ctx: GraphRunContext[None, None]) -> Tick | End[Point]:
        now = self.point
        point = Point(n=now.n + 1, x=now.x + 0.5, label=now.label)
        return End(point) if point.n == STEPS else Tick(point)


@dataclass
class Red(BaseNode[None, None, Point]):
    point: Point

    async def run(self, ctx: GraphRunContext[None, None]) -> Red | Green | Blue | End[Point]:
        return onward(self.point, 1.0)


@dataclass
class Green(BaseNode[None, None, Point]):
    point: Point

    async def run(self, ctx: GraphRunContext[None, None]) -> Red | Green | Blue | End[Point]:
        return onward(self.point, 2.0)


@dataclass
class Blue(BaseNode[None, None, Point]):
    point: Point

    async def run(self, ctx: GraphRunContext[None, None]) -> Red | Green | Blue | End[Point]:
        return onward(self.point, 3.0)


SUCCESSORS: tuple[type[Red | Green | Blue], ...] = (Red, Green, Blue)


def onward(now: Point, weight: float) -> Red | Green | Blue | End[Point]:
    point = Point(n=now.n + 1, x=now.x + weight, label=now.label)
    kind = pick(point.n)
    return End(point) if kind == DONE else SUCCESSORS[kind](point)


@dataclass
class Pace(BaseNode[None, None, Point]):
    point: Point

    async def run(self, ctx: GraphRunContext[None, None]) -> Pace | End[Point]:
        await asyncio.sleep(0)
        now = self.point
        point = Point(n=now.n + 1, x=now.x + 0.5, label=now.label)
        return End(point) if point.n == CROWD_STEPS else Pace(point)


def graph_of(
    name: str, start: type[BaseNode[None, None, Point]], *others: type[BaseNode[None, None, Point]]
) -> Graph[None, None, Any, Point]:
    builder = GraphBuilder(name=name, input_type=BaseNode, output_type=Point, auto_instrument=False)
    builder.add(
        builder.edge_from(builder.start_node).to(start),
        *(builder.node(node) for node in (start, *others)),
    )
    return builder.build()


def chain() -> Run:
    graph = graph_of("chain", Tick)

    async def run() -> Outcome:
        return await graph.run(inputs=Tick(Point(**CHAIN_START)))

    return run


def choices() -> Run:
    first = SUCCESSORS[pick(0)]
    graph = graph_of("choices", first, *(kind for kind in SUCCESSORS if kind is not first))

    async def run() -> Outcome:
        return await graph.run(inputs=first(Point(**CHOICE_START)))

    return run


def crowd() -> CrowdRun:
    graph = graph_of("crowd", Pace)

    async def run(index: int) -> Outcome:
        return await graph.run(inputs=Pace(Point(n=0, x=float(index), label="crowd")))

    return run


def map_items(items: list[int]) -> MapRun:
    builder = GraphBuilder(
        name="map", input_type=list[int], output_type=list[int], auto_instrument=False
    )

    @builder.step
    async def number(ctx: StepContext[None, None, list[int]]) -> list[tuple[int, int]]:
        return list(enumerate(ctx.inputs))

    @builder.step
    async def square_one(ctx: StepContext[None, None, tuple[int, int]]) -> tuple[int, int]:
        index, item = ctx.inputs
        return index, await square(item)

    collect = builder.join(reduce_list_append, initial_factory=list[tuple[int, int]])

    # Branches join as they finish, so each carries its place and the list is put in order here.
    @builder.step
    async def in_order(ctx: StepContext[None, None, list[tuple[int, int]]]) -> list[int]:
        return [value for _, value in sorted(ctx.inputs, key=itemgetter(0))]

    builder.add(
        builder.edge_from(builder.start_node).to(number),
        builder.edge_from(number).map().to(square_one),
        builder.edge_from(square_one).to(collect),
        builder.edge_from(collect).to(in_order),
        builder.edge_from(in_order).to(builder.end_node),
    )
    graph = builder.build()

    async def run() -> list[int]:
        return await graph.run(inputs=items)

    return run


def dataflow() -> DataflowRun:
    builder = GraphBuilder(
        name="dataflow", input_type=dict, output_type=dict, auto_instrument=False
    )

    def step_of(name: str, needs: tuple[str, ...]) -> ValueStep:
        async def call(ctx: StepContext[None, None, Values]) -> Values:
            return {name: await observe(name, *(ctx.inputs[need] for need in needs))}

        return builder.step(call, node_id=name)

    steps = {name: step_of(name, needs) for name, (_, needs) in DATAFLOW.items()}
    entries: dict[str, ValueStep | ValueJoin] = {}
    for name, (_, needs) in DATAFLOW.items():
        entries[name] = steps[name]
        if len(needs) > 1:
            join = builder.join(reduce_dict_update, initial_factory=dict, node_id=f"join_{name}")
            builder.add(builder.edge_from(join).to(steps[name]))
            entries[name] = join
    answer = builder.join(reduce_dict_update, initial_factory=dict, node_id="answer")
    roots = [entries[name] for name, (_, needs) in DATAFLOW.items() if not needs]
    builder.add(
        builder.edge_from(builder.start_node).to(*roots),
        builder.edge_from(answer).to(builder.end_node),
    )
    for name in DATAFLOW:
        users = [entries[user] for user, (_, needs) in DATAFLOW.items() if name in needs]
        builder.add(builder.edge_from(steps[name]).to(*(users or [answer])))
    graph = builder.build()

    async def run() -> tuple[int, int]:
        values = await graph.run(inputs={})
        return values["alert"], values["forecast"]

    return run


def define() -> Definition:
    def one(index: int, onward: list[int]) -> str:
        following = " | ".join(f"N{later}" for later in onward) or "End[int]"
        answer = f"N{onward[0]}(self.n, self.x, self.label)" if onward else "End(self.n)"
        return (
            f"@dataclass\nclass N{index}(BaseNode[None, None, int]):\n"
            "    n: int\n    x: float\n    label: str\n"
            f"    async def run(self, ctx: GraphRunContext[None, None]) -> {following}:\n"
            f"        return {answer}\n"
        )

    head = (
        "from dataclasses import dataclass\n"
        "from pydantic_graph import BaseNode, End, GraphRunContext\n"
    )
    module = fresh_module(node_source(head, one))
    nodes = [value for name, value in vars(module).items() if name[0] == "N" and name[1:].isdigit()]

    def build() -> int:
        graph = graph_of("built", *nodes)
        forget(module)
        return sum(node_id in graph.nodes for node_id in (node.__name__ for node in nodes))

    return Definition(build)


CONTENDER = Contender(
    name="pydantic-graph",
    package="pydantic-graph",
    chain=chain,
    choices=choices,
    crowd=crowd,
    map_items=map_items,
    dataflow=dataflow,
    define=define,
    import_statement="import pydantic_graph",
    notes={"b": "no bound on branches in flight"},
)
