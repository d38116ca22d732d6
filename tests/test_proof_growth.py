"""Nested, shared or chained types are proved in time proportional to their size, and too deep types
are refused by name: no proof runs forever or exhausts the stack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from bae import Dep, DepError, Graph, Map, Node, ProofError, Recall
from bae.calls import DEEPEST
from bae.journal import MemoryJournal
from bae.journal.report import report_run
from bae.place import Place
from bae.proof import DEEPEST as DEEPEST_GRAPHS
from bae.resolver import build_dep_dag, resolve_dep
from end_node import EndNode
from growth import Lines, assert_linear
from proving import Mood, field_of


class End(EndNode): ...


def level(*inside: Any, holds: bool = False, recalls: bool = False) -> type[Node]:
    """A graph of two nodes; the second one needs the graphs inside."""
    fields: dict[str, Any] = {
        f"f{number}": (Annotated[End, Dep(graph)], ...) for number, graph in enumerate(inside)
    }
    if recalls:
        fields["mood"] = (Annotated[Mood, Recall()], ...)

    async def end(self: Node) -> End:
        return End()

    class Base(Node):
        __call__ = end

    second = create_model("Second", __base__=Base, **fields)

    async def lead_on(self: Node) -> Node:
        return second()

    lead_on.__annotations__["return"] = second
    base = type("First", (Node,), {"__call__": lead_on, "__module__": __name__})
    moods: dict[str, Any] = {"mood": (Mood, Mood())} if holds else {}
    return create_model("First", __base__=base, **moods)


def nest(depth: int, uses: int = 2) -> type[Node]:
    """Graphs inside graphs, each used so often in the one around it."""
    top: type[Node] = End
    for _ in range(depth - 1):
        top = level(*[top] * uses)
    return top


def chain(length: int, uses: int = 1) -> Callable[..., Any]:
    """Functions that wait for each other, each used so often by the next."""

    async def bottom() -> int:
        return 1

    top: Callable[..., Any] = bottom
    for _ in range(length - 1):
        names = [f"p{number}" for number in range(uses)]

        async def link(**given: int) -> int:
            return max(given.values()) + 1

        scope: dict[str, Any] = {"link": link}
        taken = ", ".join(names)
        passed = ", ".join(f"{name}={name}" for name in names)
        exec(f"async def step({taken}): return await link({passed})", scope)
        top, below = scope["step"], top
        top.__annotations__ = dict.fromkeys(names, Annotated[int, Dep(below)]) | {"return": int}
    return top


# In proportion


@pytest.mark.once
@pytest.mark.parametrize(
    "make", [nest, lambda n: field_of(int, chain(n)), lambda n: field_of(int, chain(n, 2))]
)
def test_the_proof_takes_linear_work_for_nested_and_chained_graphs(
    make: Callable[[int], type[Node]],
) -> None:
    Graph(start=make(3)).validate(journal=True)
    counts: list[Lines] = []
    for n in (10, 20, 30):
        graph = Graph(start=make(n))
        with Lines() as lines:
            assert graph.validate(journal=True) == []
        counts.append(lines)
    assert_linear(counts, allowed=0.03)


def test_the_proof_visits_every_nested_model_once() -> None:
    model: type[BaseModel] = create_model("Leaf", x=(int, 1))
    counts: list[Lines] = []
    for number in range(31):
        model = create_model(f"Model{number}", a=(model, ...), b=(model | None, None))
        if number % 10 == 0:
            cls = create_model("Holds", __base__=End, m=(model, ...))
            with Lines() as lines:
                assert Graph(start=cls).validate() == []
            counts.append(lines)
    assert_linear(counts[1:], allowed=0.01)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_recall_is_proved_for_every_use_of_its_graph(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    holds = [data.draw(st.booleans()) for _ in range(count)]
    inside = [
        data.draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=3)) if number else []
        for number in range(count)
    ]
    levels: list[type[Node]] = []
    for number in range(count):
        graphs = [levels[index] for index in inside[number]]
        levels.append(level(*graphs, holds=holds[number], recalls=number == 0))

    def has_gap(number: int) -> bool:
        """Whether a run can come from this level to the lowest without meeting a mood."""
        return not holds[number] and (not number or any(map(has_gap, inside[number])))

    codes = {problem.code for problem in Graph(start=levels[-1]).validate()}
    assert ("bae-recall-path" in codes) is has_gap(count - 1)


# Too deep


async def use(start: type[Node]) -> None:
    """Whatever reads the plans of a graph or the lines of its run."""
    graph, journal = Graph(start=start), MemoryJournal()
    graph.to_mermaid(fields=True)
    await graph.arun(start(), journal=journal, run_id="run")
    await graph.resume("run", journal=journal)
    await graph.replay("run", journal=journal)
    report_run(await journal.read("run"))
    build_dep_dag(start)


@pytest.mark.parametrize("uses", [1, 2])
async def test_a_chain_of_deps_as_long_as_the_bound_runs_and_is_stored(uses: int) -> None:
    await use(field_of(int, chain(DEEPEST, uses)))


async def test_graphs_nested_up_to_the_bound_run_and_are_stored() -> None:
    await use(nest(DEEPEST_GRAPHS))


@pytest.mark.parametrize("length", [DEEPEST + 1, 5000])
async def test_a_chain_of_deps_beyond_the_bound_is_refused_with_its_names(length: int) -> None:
    fn = chain(length)
    for work in (Graph(start=field_of(int, fn)).prove, lambda: asyncio.run(resolve_dep(fn))):
        with pytest.raises((ProofError, DepError)) as info:
            await asyncio.to_thread(work)
        assert f"{DEEPEST + 1} dependencies wait for each other, but at most {DEEPEST} may" in str(
            info.value
        )
        assert "step -> step -> step -> …" in str(info.value)


async def test_a_chain_of_deps_that_grows_from_the_bottom_is_refused_too() -> None:
    fn = chain(DEEPEST - 1)
    await resolve_dep(fn)  # whose plan is known from here on
    for left in range(2, -1, -1):

        async def one_more(below: int) -> int:
            return below + 1

        one_more.__annotations__["below"] = Annotated[int, Dep(fn)]
        fn = one_more
        if left:
            await resolve_dep(fn) if left == 2 else None
    with pytest.raises(DepError, match=f"at most {DEEPEST} may: one_more"):
        await resolve_dep(fn)


def test_graphs_nested_beyond_the_bound_are_refused_with_their_names() -> None:
    top = nest(DEEPEST_GRAPHS + 5)
    wide = level(nest(3), top, nest(2))
    with pytest.raises(ProofError) as info:
        Graph(start=wide).prove()
    count = DEEPEST_GRAPHS + 6
    assert f"{count} graphs are inside each other, but at most {DEEPEST_GRAPHS} may" in str(
        info.value
    )


def test_a_map_over_graphs_counts_as_a_level_of_nesting() -> None:
    top = nest(DEEPEST_GRAPHS)

    class Top(EndNode):
        items: list[top]
        outs: Annotated[list[End], Map(top, over="items")]

    assert [
        problem.code for problem in Graph(start=Top).validate() if problem.severity == "error"
    ] == ["bae-dep-depth"]


@pytest.mark.parametrize(
    "text",
    [
        "9" * 5000 + ":A.b",
        f"A.b[{'9' * 5000}]",
        "/".join(["0:A.b"] * 20_000),
        "A.b" + "(x)" * 20_000,
        "." * 20_000,
        "(" * 20_000,
    ],
)
def test_a_place_is_parsed_or_refused_however_long_it_is(text: str) -> None:
    place = Place.parse(text)
    assert place is None or str(place) == text
