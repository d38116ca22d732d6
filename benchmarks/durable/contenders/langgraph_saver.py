"""LangGraph with its async SQLite saver, which sets WAL itself. As it comes the next step begins
while the last one is being stored (durability "async"); "sync" waits, as the others here do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from benchmarks.durable.contenders import Opened, describe_pragmas
from benchmarks.durable.work import Outcome, Tick, first, following


class State(TypedDict):
    node: Tick


async def tick(state: State) -> Command[Any]:
    node = following(state["node"])
    return Command(update={"node": node}, goto="tick" if node.left else END)


@asynccontextmanager
async def open_store(folder: Path, setting: str) -> AsyncGenerator[Opened]:
    builder = StateGraph(State)
    builder.add_node("tick", tick, destinations=("tick", END))
    builder.add_edge(START, "tick")
    async with AsyncSqliteSaver.from_conn_string(str(folder / "store.db")) as saver:
        await saver.setup()
        graph = builder.compile(checkpointer=saver)
        durability: Any = setting
        pragmas: list[Any] = []
        for pragma in ("journal_mode", "synchronous"):
            async with saver.conn.execute(f"pragma {pragma}") as cursor:
                row: Any = await cursor.fetchone()
                pragmas.append(row[0])

        async def run(run_id: str, steps: int, heavy: bool) -> Outcome:
            configurable = {"thread_id": run_id}
            config: Any = {"configurable": configurable, "recursion_limit": 10 * steps + 10}
            start: Any = {"node": first(steps, heavy)}
            state = await graph.ainvoke(start, config, durability=durability)
            result: Outcome = state["node"]
            return result

        yield Opened(run, lambda: describe_pragmas(*pragmas))
