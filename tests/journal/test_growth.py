"""Reading a run back takes work in proportion to its length."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

import pytest

from bae import Dep, Gate, Graph, Map, Node, NodeError, Recall
from bae.journal import MemoryJournal, StoredRun
from bae.journal.compatibility import changes_for
from bae.journal.decoder import decode, read_history
from bae.journal.export import read_runs, write_run
from bae.journal.report import report_run
from bae.journal.shape import hash_of
from bae.journal.why import why
from end_node import EndNode
from growth import Lines, assert_linear
from toy_backend import ToyBackend

FAILING: set[int] = set()


async def get_town() -> str:
    return "Bern"


async def double(item: int, town: Annotated[str, Dep(get_town)]) -> int:
    return item * 2


class One(Node):
    item: int
    town: Annotated[str, Dep(get_town)]

    async def __call__(self) -> Two:
        if self.item in FAILING:
            FAILING.discard(self.item)
            raise OSError("not yet")
        return Two(out=self.item)


class Two(EndNode):
    out: int
    item: Annotated[int, Recall(One)]


class Asked(EndNode):
    item: int
    said: Annotated[str, Gate("What now?")]


class Sum(EndNode):
    total: int


class Functions(Node):
    items: list[int]
    outs: Annotated[list[int], Map(double, over="items")]

    async def __call__(self) -> Sum:
        return Sum(total=len(self.outs))


class Graphs(Node):
    items: list[int]
    outs: Annotated[list[Two], Map(One, over="items", retries=1)]

    async def __call__(self) -> Sum:
        if -1 in FAILING:
            raise OSError("not at all")
        return Sum(total=len(self.outs))


class Gates(Node):
    items: list[int]
    outs: Annotated[list[Asked], Map(Asked, over="items")]

    async def __call__(self) -> Sum:
        return Sum(total=len(self.outs))


class Filled(Node):
    item: int

    async def __call__(self) -> Answer: ...


class Answer(EndNode):
    out: int


class Fills(Node):
    items: list[int]
    outs: Annotated[list[Answer], Map(Filled, over="items", limit=1000)]

    async def __call__(self) -> Sum:
        return Sum(total=len(self.outs))


class Link(Node):
    left: int
    town: Annotated[str, Dep(get_town)]

    async def __call__(self) -> Link | None:
        return Link(left=self.left - 1) if self.left else None


class Turn(Node):
    left: int
    said: Annotated[str, Gate("And?")]

    async def __call__(self) -> Turn | None:
        return Turn(left=self.left - 1) if self.left else None


Made = tuple[Graph[Any, Any], MemoryJournal]
Maker = Callable[[int], Awaitable[Made]]


async def _run_graph(start: Node, graph: Graph[Any, Any] | None = None, **options: Any) -> Made:
    graph, journal = graph or Graph(start=type(start)), MemoryJournal()
    await graph.arun(start, max_iters=0, journal=journal, run_id="run", **options)
    return graph, journal


async def mapped_functions(n: int) -> Made:
    return await _run_graph(Functions(items=[*range(n)]))


async def graphs_tried_twice_and_resumed(n: int) -> Made:
    graph, journal = Graph(start=Graphs), MemoryJournal()
    FAILING.update(range(-1, n))
    with pytest.raises(NodeError):
        await graph.arun(Graphs(items=[*range(n)]), journal=journal, run_id="run")
    FAILING.clear()
    await graph.resume("run", journal=journal)
    return graph, journal


async def gates_in_a_map(n: int) -> Made:
    return await _run_graph(Gates(items=[*range(n)]))


async def fills_at_once(n: int) -> Made:
    return await _run_graph(Fills(items=[*range(n)]), lm=ToyBackend(lambda _: {"out": 1}))


def level(below: Any) -> type[Node]:
    class Level(Node):
        below: Annotated[Sum, Dep(below)]

        async def __call__(self) -> Sum:
            return Sum(total=self.below.total + 1)

    return Level


class Bottom(Node):
    async def __call__(self) -> Sum:
        return Sum(total=0)


async def nested_graphs(n: int) -> Made:
    top: type[Node] = Bottom
    for _ in range(n):
        top = level(top)
    graph = Graph(start=top)
    made = await _run_graph(top(), graph)
    for read in READERS.values():
        await read(*made)  # what is worked out once for these classes is known after that
    return await _run_graph(top(), graph)


async def many_turns(n: int) -> Made:
    graph, journal = await _run_graph(Turn(left=n))
    for number in range(n):
        await graph.answer("run", f"{number}:Turn.said", "yes", journal=journal)
    return graph, journal


async def many_forks(n: int) -> Made:
    graph, journal = await _run_graph(Link(left=n))
    run_id = "run"
    for number in range(n):
        run_id = await graph.fork(run_id, at=number, journal=journal, new_id=f"fork-{number}")
        await graph.resume(run_id, journal=journal)
    stored = await journal.read(run_id)
    only = MemoryJournal()
    await only.put(replace(stored, info=replace(stored.info, run_id="run")))
    return graph, only


MAKERS = (
    mapped_functions,
    graphs_tried_twice_and_resumed,
    gates_in_a_map,
    fills_at_once,
    nested_graphs,
    many_turns,
    many_forks,
)

Reader = Callable[[Graph[Any, Any], MemoryJournal], Awaitable[object]]


def of_stored(read: Callable[[Graph[Any, Any], StoredRun], object]) -> Reader:
    async def reader(graph: Graph[Any, Any], journal: MemoryJournal) -> object:
        return read(graph, await journal.read("run"))

    return reader


def other_shape(stored: StoredRun) -> StoredRun:
    """A run whose classes count as changed, so that all of it is looked at."""
    text = stored.shape.replace('"ends":true', '"ends":false')
    info = replace(stored.info, shape=hash_of(json.loads(text)))
    assert info.shape != stored.info.shape
    return replace(stored, info=info, shape=text)


READERS: dict[str, Reader] = {
    "read": lambda _, journal: journal.read("run"),
    "fold": of_stored(lambda graph, stored: decode(graph, stored.lines)[1].usage),
    "changes": of_stored(lambda graph, stored: changes_for(other_shape(stored), graph)),
    "report": of_stored(lambda _, stored: report_run(stored)),
    "why": of_stored(lambda _, stored: why(stored, str(read_history(stored).run.steps[0].place))),
    "export": of_stored(lambda _, stored: [*read_runs([*write_run(stored)], "run")]),
    "resume": lambda graph, journal: graph.resume("run", journal=journal),
    "replay": lambda graph, journal: graph.replay("run", journal=journal),
    "redact": lambda graph, journal: journal.redact("run", graph.start.__name__),
}


@pytest.mark.once
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
async def test_reading_a_run_takes_work_in_proportion_to_its_length(make: Maker) -> None:
    counts: dict[str, list[Lines]] = {name: [] for name in READERS}
    made = await make(2)
    for read in READERS.values():
        await read(*made)  # what is worked out once is known after that
    for n in (3, 6, 9):
        graph, journal = await make(n)
        for name, read in READERS.items():
            with Lines() as lines:
                await read(graph, journal)
            counts[name].append(lines)
    for name, line_counts in counts.items():
        # What each level of a nest used is summed up; and a replay, like a run, asks who is around.
        if make is not nested_graphs or name not in ("report", "replay"):
            assert_linear(line_counts, name)
