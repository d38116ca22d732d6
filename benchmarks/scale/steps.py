"""A step that is stored in Postgres: by hand, by bae and by LangGraph, alone and in a crowd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any, TypedDict

import asyncpg
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from bae import Graph, Node
from bae.journal import PostgresJournal
from benchmarks.durable.work import Outcome, Tick, check, first, following
from benchmarks.report import Result, Verdict, figure, spread
from benchmarks.sampling import Samples, Settings, interleave

HAND, BAE, LANGGRAPH = "a row by hand", "bae", "LangGraph"
CONNECTIONS = 10
"""Of the pools of those that store by hand and of LangGraph."""
STEPS, CROWD, STEPS_IN_CROWD = 200, 100, 10
MOST_ALONE, MOST_IN_CROWD, LEAST_LANGGRAPH = 1.4, 0.5, 4.0

Run = Callable[[int], Awaitable[Outcome]]
"""One run of so many steps."""


class DoneNode(Node):
    n: int
    left: int
    x: float

    async def __call__(self) -> None: ...


class TickNode(Node):
    n: int
    left: int
    x: float

    async def __call__(self) -> TickNode | DoneNode:
        kind = TickNode if self.left > 1 else DoneNode
        return kind(n=self.n + 1, left=self.left - 1, x=self.x + 0.5)


class State(TypedDict):
    node: Tick


@asynccontextmanager
async def by_hand(url: str) -> AsyncGenerator[Run]:
    """Insert and commit a row for each step, on a connection of a pool."""
    runs = count()
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        await pool.execute(
            "create table by_hand (run bigint, n int, kind text, at float8, path text, step int, "
            "data text, primary key (run, n))"
        )

        async def run(steps: int) -> Outcome:
            number, node = next(runs), first(steps, heavy=False)
            while node.left:
                node = following(node)
                row = (number, node.n, "Step", time.time(), "", node.n, node.model_dump_json())
                await pool.execute("insert into by_hand values ($1, $2, $3, $4, $5, $6, $7)", *row)
            return node

        yield run


@asynccontextmanager
async def with_bae(url: str) -> AsyncGenerator[Run]:
    """Run the steps with a `PostgresJournal` and its defaults."""
    graph = Graph(start=TickNode, end=DoneNode, name="ticks")
    async with PostgresJournal(url) as journal:
        await journal.upgrade()

        async def run(steps: int) -> Outcome:
            start = TickNode(n=0, left=steps, x=0.0)
            result = await graph.arun(start, journal=journal, max_iters=0)
            outcome: Any = result.result
            return outcome

        yield run


async def tick(state: State) -> Command[Any]:
    node = following(state["node"])
    return Command(update={"node": node}, goto="tick" if node.left else END)


@asynccontextmanager
async def with_langgraph(url: str) -> AsyncGenerator[Run]:
    """Run the steps with LangGraph's Postgres saver and a pool. With "sync" it waits for each step,
    as the other contenders do."""
    builder = StateGraph(State)
    builder.add_node("tick", tick, destinations=("tick", END))
    builder.add_edge(START, "tick")
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    runs = count()
    async with AsyncConnectionPool(
        url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=options, open=False
    ) as pool:
        saver = AsyncPostgresSaver(pool)  # pyright: ignore[reportArgumentType]
        await saver.setup()
        graph = builder.compile(checkpointer=saver)

        async def run(steps: int) -> Outcome:
            configurable = {"thread_id": f"run-{next(runs)}"}
            config: Any = {"configurable": configurable, "recursion_limit": 10 * steps + 10}
            start: Any = {"node": first(steps, heavy=False)}
            state = await graph.ainvoke(start, config, durability="sync")
            outcome: Outcome = state["node"]
            return outcome

        yield run


async def measure_steps(url: str, settings: Settings) -> list[Result]:
    """Return both tables: a single run, and a hundred concurrent runs."""
    async with AsyncExitStack() as stack:
        ways = {HAND: by_hand(url), BAE: with_bae(url), LANGGRAPH: with_langgraph(url)}
        runs = {name: await stack.enter_async_context(way) for name, way in ways.items()}
        alone = await interleave(
            {name: _alone(run) for name, run in runs.items()}, _check_alone, settings
        )
        crowd = await interleave(
            {name: _crowd(run) for name, run in runs.items()}, _check_crowd, settings.at_most(5)
        )
    return [
        _table(f"A run of {STEPS} steps alone (µs a step)", alone, STEPS, _judge_alone(alone)),
        _table(
            f"{CROWD} runs of {STEPS_IN_CROWD} steps at once (µs a step)",
            crowd,
            CROWD * STEPS_IN_CROWD,
            _judge_crowd(crowd),
        ),
    ]


def _alone(run: Run) -> Callable[[], Awaitable[list[Outcome]]]:
    async def work() -> list[Outcome]:
        return [await run(STEPS)]

    return work


def _crowd(run: Run) -> Callable[[], Awaitable[list[Outcome]]]:
    async def work() -> list[Outcome]:
        return await asyncio.gather(*(run(STEPS_IN_CROWD) for _ in range(CROWD)))

    return work


def _check_alone(outcomes: list[Outcome]) -> None:
    check(outcomes[0], STEPS, heavy=False)


def _check_crowd(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        check(outcome, STEPS_IN_CROWD, heavy=False)


def _judge_alone(times: Mapping[str, Samples]) -> list[Verdict]:
    ratio = times[BAE].ratio_to(times[HAND])
    slower = times[LANGGRAPH].ratio_to(times[BAE])
    return [
        Verdict("step", f"at most {MOST_ALONE} × a row", f"{ratio:.2f} ×", ratio <= MOST_ALONE),
        Verdict(
            "step",
            f"LangGraph takes at least {LEAST_LANGGRAPH:g} × bae",
            f"{slower:.1f} ×",
            slower >= LEAST_LANGGRAPH,
        ),
    ]


def _judge_crowd(times: Mapping[str, Samples]) -> list[Verdict]:
    ratio = times[BAE].ratio_to(times[HAND])
    target = f"at most {MOST_IN_CROWD} × a row in a crowd of {CROWD}"
    return [Verdict("crowd", target, f"{ratio:.2f} ×", ratio <= MOST_IN_CROWD)]


def _table(title: str, times: Mapping[str, Samples], steps: int, verdicts: list[Verdict]) -> Result:
    rows = [
        [
            name,
            figure(mine.median * 1e6 / steps),
            spread(mine, 1e6 / steps),
            figure(mine.ratio_to(times[HAND])),
        ]
        for name, mine in times.items()
    ]
    header = ["", "median", "lowest–highest", "× by hand"]
    return Result("step", title, header, rows, verdicts, samples=dict(times))
