"""bae with a `SQLiteJournal`, as it comes and at its weaker durability."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bae import Graph, LimitError, Node
from bae.journal import SQLiteJournal
from benchmarks.durable.contenders import Opened, pragmas_of
from benchmarks.durable.work import Outcome, fields, page
from benchmarks.work import WrongAnswer


class Done(Node):
    n: int
    left: int
    x: float

    async def __call__(self) -> None: ...


class Tick(Node):
    n: int
    left: int
    x: float

    async def __call__(self) -> Tick | Done:
        kind = Tick if self.left > 1 else Done
        return kind(n=self.n + 1, left=self.left - 1, x=self.x + 0.5)


class LastPage(Node):
    n: int
    left: int
    x: float
    text: str

    async def __call__(self) -> None: ...


class Page(Node):
    n: int
    left: int
    x: float
    text: str

    async def __call__(self) -> Page | LastPage:
        kind = Page if self.left > 1 else LastPage
        n = self.n + 1
        return kind(n=n, left=self.left - 1, x=self.x + 0.5, text=page(n))


SMALL = Graph(start=Tick, end=Done)
HEAVY = Graph(start=Page, end=LastPage)


_connections: list[sqlite3.Connection] = []


def _notice(event: str, args: tuple[Any, ...]) -> None:
    """Remember the connections that a journal makes. The journal hides them, but an audit hook sees
    them."""
    if event == "sqlite3.connect/handle":
        _connections.append(args[0])


sys.addaudithook(_notice)


def _pragmas() -> str:
    return pragmas_of(_connections[0])  # the writing journal is made first


def graph_of(heavy: bool) -> Any:
    return HEAVY if heavy else SMALL


def start_of(steps: int, heavy: bool) -> Node:
    return (Page if heavy else Tick)(**fields(steps, heavy))


@asynccontextmanager
async def open_store(folder: Path, setting: str) -> AsyncGenerator[Opened]:
    if setting == "none":
        yield Opened(_in_memory, lambda: "none")
        return
    durability: Any = setting
    _connections.clear()
    async with SQLiteJournal(folder / "store.db", durability=durability) as journal:

        async def run(run_id: str, steps: int, heavy: bool) -> Outcome:
            result = await graph_of(heavy).arun(
                start_of(steps, heavy), journal=journal, run_id=run_id, max_iters=0
            )
            outcome: Outcome = result.result
            return outcome

        async def interrupt(run_id: str, steps: int, heavy: bool) -> None:
            try:
                await graph_of(heavy).arun(
                    start_of(steps, heavy), journal=journal, run_id=run_id, max_iters=steps
                )
            except LimitError:
                return
            raise WrongAnswer("the run was not interrupted")

        async def resume(run_id: str, heavy: bool) -> Outcome:
            result = await graph_of(heavy).resume(run_id, journal=journal, max_iters=0)
            outcome: Outcome = result.result
            return outcome

        yield Opened(run, _pragmas, interrupt=interrupt, resume=resume)


async def _in_memory(run_id: str, steps: int, heavy: bool) -> Outcome:
    result = await graph_of(heavy).arun(start_of(steps, heavy), max_iters=0)
    outcome: Outcome = result.result
    return outcome
