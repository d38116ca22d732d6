"""Burr with its SQLite persisters: the async persister, and the blocking persister, which is faster
as long as nothing else runs. By default they use SQLite's rollback journal; the benchmark sets WAL.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from burr.core import ApplicationBuilder, Condition, State, action
from burr.core.graph import Graph, GraphBuilder
from burr.core.persistence import SQLitePersister
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

from benchmarks.durable.contenders import Opened, describe_pragmas, pragmas_of
from benchmarks.durable.work import Outcome, first, following


@action(reads=["node"], writes=["node"])
async def tick(state: State) -> State:
    return state.update(node=following(state["node"]))


@action(reads=["node"], writes=["node"])
def tick_blocking(state: State) -> State:
    return state.update(node=following(state["node"]))


def chain_of(step: Any) -> Graph:
    last = Condition.lmda(lambda state: state["node"].left == 1, ["node"])
    return (
        GraphBuilder()
        .with_actions(step=step, last=step)
        .with_transitions(("step", "last", last), ("step", "step"))
        .build()
    )


def application(graph: Graph, persister: Any, run_id: str, steps: int, heavy: bool) -> Any:
    return (
        ApplicationBuilder()
        .with_graph(graph)
        .with_entrypoint("last" if steps == 1 else "step")
        .with_state(node=first(steps, heavy))
        .with_identifiers(app_id=run_id)
        .with_state_persister(persister)
    )


@asynccontextmanager
async def open_store(folder: Path, setting: str) -> AsyncGenerator[Opened]:
    way, mode = setting.split()
    file = str(folder / "store.db")
    keep = _blocking(file, mode) if way == "blocking" else _async(file, mode)
    async with keep as found:
        yield found


@asynccontextmanager
async def _blocking(file: str, mode: str) -> AsyncGenerator[Opened]:
    graph = chain_of(tick_blocking)
    persister = SQLitePersister(file)
    persister.connection.execute(f"pragma journal_mode = {mode}")
    persister.initialize()

    async def run(run_id: str, steps: int, heavy: bool) -> Outcome:
        app = application(graph, persister, run_id, steps, heavy).build()
        _, _, state = app.run(halt_after=["last"])
        result: Outcome = state["node"]
        return result

    try:
        yield Opened(run, lambda: pragmas_of(persister.connection))
    finally:
        persister.cleanup()


@asynccontextmanager
async def _async(file: str, mode: str) -> AsyncGenerator[Opened]:
    graph = chain_of(tick)
    async with AsyncSQLitePersister.from_values(file) as persister:
        pragmas: list[Any] = []
        for pragma in (f"journal_mode = {mode}", "journal_mode", "synchronous"):
            async with persister.connection.execute(f"pragma {pragma}") as cursor:
                pragmas.append((await cursor.fetchone())[0])
        await persister.initialize()

        async def run(run_id: str, steps: int, heavy: bool) -> Outcome:
            app = await application(graph, persister, run_id, steps, heavy).abuild()
            _, _, state = await app.arun(halt_after=["last"])
            result: Outcome = state["node"]
            return result

        yield Opened(run, lambda: describe_pragmas(*pragmas[1:]))
