"""What look-ups by value promise: a dependency takes arguments from the trace and from fields of
its node, is called once for equal arguments of any caller, and starts as soon as they are
available."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from bae import Dep, DepError, Gate, Graph, Map, Node, OpenGate, Recall, RecallError
from bae.arguments import freeze
from bae.journal import FillStarted, Recalled, SourceEnded, SourceStarted
from bae.resolver import resolve_dep, resolve_fields
from bae.testing import ScriptedLM
from bounded import BOUND, error_from, run, some_turns
from end_node import EndNode, leading_to
from proving import Mood

asked: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_asked():
    asked.clear()


async def search(query: str) -> list[str]:
    asked.append(query)
    await some_turns()
    return [f"{query} 1", f"{query} 2"]


async def search_newest(query: Annotated[str, Recall()]) -> list[str]:
    return await search(query)


async def count_hits(hits: Annotated[list[str], Dep(search_newest)]) -> int:
    asked.append("count")
    return len(hits)


class Question(Node):
    text: str

    async def __call__(self) -> Answer: ...


class Answer(EndNode):
    hits: Annotated[list[str], Dep(search, query=Recall(Question))]
    count: Annotated[int, Dep(count_hits)]
    text: str


# Where arguments come from


@pytest.mark.parametrize("kind", ["plain", "recall", "dep", "gate", "map"])
async def test_a_parameter_is_bound_to_a_field_of_the_node_whatever_its_source(kind: str):
    def word() -> str:
        return "lamp"

    def get_words() -> list[str]:
        return ["lamp"]

    def upper(word: str) -> str:
        return word.upper()

    async def total(query: Any) -> str:
        return f"{query}!"

    source: dict[str, Any] = {
        "plain": str,
        "recall": Annotated[str, Recall(First)],
        "dep": Annotated[str, Dep(word)],
        "gate": Annotated[str, Gate("which?")],
        "map": Annotated[list[str], Map(upper, over="words")],
    }

    class Second(EndNode):
        words: Annotated[list[str], Dep(get_words)] = Field(init=False)
        query: source[kind] = Field(init=False)  # type: ignore[valid-type]
        found: Annotated[str, Dep(total, query="query")] = Field(init=False)

    class Start(First):
        async def __call__(self) -> Second: ...

    async def answer(gate: OpenGate) -> str:
        return "lamp"

    lm = ScriptedLM({Second: {"query": "lamp"}} if kind == "plain" else {Second: {}})
    result = await run(Start(word="lamp"), lm, answer=answer)

    assert result.result.found == ("['LAMP']!" if kind == "map" else "lamp!")


class First(EndNode):
    word: str


async def test_a_dep_bound_to_an_llm_field_runs_after_the_fill():
    class Plan(EndNode):
        query: str
        hits: Annotated[list[str], Dep(search, query="query")]
        twice: Annotated[list[str], Map(str.upper, over="hits")]

    lm = ScriptedLM({Plan: {"query": "lamps"}})
    result = await run(leading_to(Plan)(), lm)

    assert result.result.hits == ["lamps 1", "lamps 2"]
    assert result.result.twice == ["LAMPS 1", "LAMPS 2"]
    assert [record.resolved for record in result.journal.of(FillStarted)] == [{}]


async def test_a_bound_argument_is_the_validated_value_of_the_field():
    class Place(BaseModel):
        name: str

    def where() -> Any:
        return {"name": "Oslo"}

    def describe(place: Place) -> str:
        return place.name

    class Trip(EndNode):
        place: Annotated[Place, Dep(where)] = Field(init=False)
        said: Annotated[str, Dep(describe, place="place")] = Field(init=False)

    assert (await run(Trip())).result.said == "Oslo"


async def test_a_graph_takes_bound_values_as_fields_of_its_start_node():
    class Look(Node):
        question: str
        depth: int = 1

        async def __call__(self) -> Found:
            asked.append(self.question)
            return Found(said=f"{self.question} {self.depth}")

    class Found(EndNode):
        said: str

    class Ask(EndNode):
        question: str
        number: int
        one: Annotated[Found, Dep(Look, question="question", depth="number")] = Field(init=False)
        two: Annotated[Found, Dep(Look, question="question", depth="number")] = Field(init=False)
        each: Annotated[list[Found], Map(Look, over="words", depth="number")] = Field(init=False)
        words: list[str] = Field(default=["a", "b"])

    result = (await run(Ask(question="why?", number=3))).result

    assert result.one.said == result.two.said == "why? 3"
    assert [each.said for each in result.each] == ["a 3", "b 3"]
    assert sorted(asked) == ["a", "b", "why?"]


async def test_a_map_takes_bound_and_recalled_values_for_every_item():
    def rate(item: str, query: str, word: Annotated[str, Recall(First)], top: int = 5) -> str:
        return f"{item} {query} {word} {top}"

    class Rated(EndNode):
        items: list[str]
        limit: int
        query: str
        ratings: Annotated[list[str], Map(rate, over="items", query="query", top="limit")]

    class Start(First):
        async def __call__(self) -> Rated: ...

    lm = ScriptedLM({Rated: {"items": ["a", "b"], "limit": 2, "query": "q"}})
    result = await run(Start(word="w"), lm)

    assert result.result.ratings == ["a q w 2", "b q w 2"]


async def test_a_default_is_the_argument_if_no_value_is_recalled():
    def greet(mood: Annotated[Mood | None, Recall()] = None, /) -> str:
        return "none" if mood is None else mood.name

    def read(mood: Mood) -> str:
        return mood.name

    class Start(EndNode):
        word: str
        greeted: Annotated[str, Dep(greet)] = Field(init=False)
        mood: Annotated[Mood, Recall()] = Field(default_factory=lambda d: Mood(name=d["word"]))
        said: Annotated[str, Dep(read, mood="mood")] = Field(init=False)

    result = (await run(Start(word="cheerful"))).result
    assert (result.greeted, result.said) == ("none", "cheerful")


# One call for equal arguments


async def test_equal_arguments_share_a_call_between_nodes_and_subgraphs():
    class Inner(EndNode):
        hits: Annotated[list[str], Dep(search_newest)] = Field(init=False)

    class Again(Node):
        query: str
        inner: Annotated[Inner, Dep(Inner)]
        hits: Annotated[list[str], Dep(search, query="query")] = Field(init=False)
        more: Annotated[list[str], Dep(search, query=Recall(Question))] = Field(init=False)
        count: Annotated[int, Dep(count_hits)] = Field(init=False)

        async def __call__(self) -> Again | None:
            return Again(query="why?") if self.query != "why?" else None

    class Start(Question):
        async def __call__(self) -> Again:
            return Again(query="how?")

    result = await run(Start(text="why?"))

    assert result.trace[1].hits == ["how? 1", "how? 2"]
    assert result.trace[2].hits == result.trace[2].more == ["why? 1", "why? 2"]
    # Once by `search` and once by `search_newest` for each question; the newest text in the trace
    # is `how?` from the second node on.
    assert sorted(asked) == ["count", "count", "how?", "how?", "why?", "why?"]


async def test_a_later_caller_waits_for_the_call_in_progress_and_fails_with_it():
    async def fail(query: str) -> str:
        asked.append(query)
        await some_turns()
        raise ConnectionError("down")

    class Both(EndNode):
        query: str
        one: Annotated[str, Dep(fail, query="query")] = "none"
        two: Annotated[str, Dep(fail, query="query")] = "none"

    result = await run(Both(query="q"))

    assert (result.result.one, result.result.two, asked) == ("none", "none", ["q"])
    failed = [record for record in result.journal.of(SourceEnded) if record.error is not None]
    assert [record.called_at for record in failed] == ["", "0:Both.one"]


async def test_a_shared_call_is_cancelled_only_when_no_caller_needs_it():
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def slow(query: str) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    async def fail(query: str) -> str:
        await started.wait()
        raise ValueError(query)

    class Both(EndNode):
        query: str
        one: Annotated[str, Dep(slow, query="query")] = Field(init=False)
        two: Annotated[str, Dep(slow, query="query")] = Field(init=False)
        bad: Annotated[str, Dep(fail, query="query")] = Field(init=False)

    with pytest.raises(DepError, match=r"Both\.bad"):
        await run(Both(query="q"))
    assert cancelled.is_set()


async def test_cache_false_calls_again_and_dep_cache_replaces_the_function():
    class Twice(EndNode):
        query: str
        one: Annotated[list[str], Dep(search, query="query", cache=False)] = Field(init=False)
        two: Annotated[list[str], Dep(search, query="query", cache=False)] = Field(init=False)

    await run(Twice(query="q"))
    assert asked == ["q", "q"]
    result = await run(Twice(query="q"), dep_cache={search: ["given"]})
    assert (result.result.one, asked) == (["given"], ["q", "q"])


async def test_a_reused_dep_cache_holds_values_by_arguments():
    class One(EndNode):
        query: str
        hits: Annotated[list[str], Dep(search, query="query")] = Field(init=False)

    cache: dict[Any, Any] = {}
    for query in ("a", "b", "a"):
        await run(One(query=query), dep_cache=cache)
    assert asked == ["a", "b"]


async def test_a_slow_argument_does_not_delay_other_inputs_of_the_function():
    opened, typed = asyncio.Event(), asyncio.Event()

    async def connect() -> str:
        opened.set()
        return "line"

    async def slow_word() -> str:
        await opened.wait()  # it is opened while the word is not there yet
        typed.set()
        return "word"

    async def fetch(word: str, line: Annotated[str, Dep(connect)]) -> str:
        return f"{word} by {line}"

    class Fetch(EndNode):
        word: Annotated[str, Dep(slow_word)] = Field(init=False)
        page: Annotated[str, Dep(fetch, word="word")] = Field(init=False)

    assert (await run(Fetch())).result.page == "word by line"


async def test_a_dep_that_uses_the_trace_or_a_field_is_not_prefetched():
    class Inside(EndNode):
        hits: Annotated[list[str], Dep(search_newest)]

    class Last(EndNode):
        hits: Annotated[list[str], Dep(search, query=Recall())]
        inside: Annotated[Inside, Dep(Inside)] = Inside(hits=[])
        text: str

    start = leading_to(leading_to(Last, name="Middle", topic=str), topic=str)
    lm = ScriptedLM({"Middle": {"topic": "new"}, Last: {"text": "x"}})
    result = await run(start(topic="old"), lm)

    assert result.result.hits == ["new 1", "new 2"]
    assert asked == ["new", "new"]  # each function once, and never with what was there before


# What is recorded


async def test_a_recalled_parameter_can_be_declared_on_the_function_or_the_field():
    result = await run(Question(text="why?"), ScriptedLM({Answer: {"text": "so"}}))

    assert (result.result.hits, result.result.count) == (["why? 1", "why? 2"], 2)
    recalled = [(r.field, r.parameter, r.value) for r in result.journal.of(Recalled)]
    assert recalled == [("hits", "(query)", "why?"), ("count", "(hits)(query)", "why?")]
    assert [r.by for r in result.journal.of(SourceStarted)] == [
        "search",
        "search_newest",
        "count_hits",
    ]


async def test_resolve_fields_recalls_parameters_from_a_trace():
    values = await resolve_fields(Answer, [Question(text="why?")])
    assert values == {"hits": ["why? 1", "why? 2"], "count": 2}
    with pytest.raises(RecallError, match=r"search_newest\(query\)"):
        await resolve_dep(search_newest)
    with pytest.raises(
        RecallError, match=r"Answer\.hits\(query\): Recall\(Question\) found no str"
    ):
        await resolve_fields(Answer, [])


async def test_the_path_of_a_failure_includes_the_bound_field():
    def broken() -> str:
        raise ValueError("no word")

    class Page(EndNode):
        word: Annotated[str, Dep(broken)] = Field(init=False)
        hits: Annotated[list[str], Dep(search, query="word")] = Field(init=False)

    class Lenient(EndNode):
        word: Annotated[str, Dep(broken)] = "none"
        hits: Annotated[list[str], Dep(search, query="word")] = Field(init=False)

    error = await error_from(DepError, run(Page()))
    assert isinstance(error.cause, ValueError)
    error = await error_from(DepError, run(Lenient()))
    assert error.path == "Lenient.hits <- search(query) <- broken()"


async def test_a_generator_is_opened_once_for_equal_arguments_and_closed_after_the_run():
    closed: list[str] = []

    async def connect(host: str) -> AsyncIterator[str]:
        asked.append(host)
        yield host
        closed.append(host)

    async def load(line: Annotated[str, Dep(connect, host=Recall(First))]) -> str:
        assert not closed
        return line

    class Load(EndNode):
        host: str
        one: Annotated[str, Dep(connect, host="host")]
        two: Annotated[str, Dep(load)]

    class Start(First):
        async def __call__(self) -> Load: ...

    cache: dict[Any, Any] = {}
    await run(Start(word="a"), ScriptedLM({Load: {"host": "b"}}), dep_cache=cache)
    assert (asked, closed) == (["a", "b"], ["b", "a"])
    assert [key for key in cache if key is not load and getattr(key, "key", None) is connect] == []


async def test_a_long_or_branching_chain_of_look_ups_takes_linear_work():
    def chain(length: int) -> Any:
        bottom: Any = search_newest
        for _ in range(length):

            async def above(a, b):
                return a + b[:0]

            below = Annotated[list[str], Dep(bottom)]
            above.__annotations__ = {"a": below, "b": below, "return": list[str]}
            bottom = above
        return bottom

    class End(EndNode):
        hits: Annotated[list[str], Dep(chain(90))]

    class Start(First):
        async def __call__(self) -> End: ...

    async with asyncio.timeout(BOUND):
        result = await run(Start(word="w"), ScriptedLM({End: {}}))
    assert (result.result.hits, asked) == (["w 1", "w 2"], ["w"])


# When arguments are equal


class Point(BaseModel):
    x: Any
    tags: list[str] = []


@dataclass
class Pair:
    left: Any
    right: Any


leaves = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=3), st.floats(width=16)),
    *(st.decimals(allow_nan=False), st.just(Decimal("NaN")), st.binary(max_size=2)),
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2) | st.integers(0, 3), inner, max_size=3)
        | st.builds(Point, x=inner, tags=st.lists(st.text(max_size=1), max_size=2))
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


@given(values)
@settings(max_examples=60, deadline=None)
def test_copies_and_nan_are_equal_arguments(a: Any):
    assert freeze(a) == freeze(deepcopy(a))
    assert hash(freeze(a)) == hash(freeze(deepcopy(a)))


def test_an_incomparable_argument_equals_only_itself():
    class Array:
        def __eq__(self, other: object) -> Any:
            return [True]

        def __ne__(self, other: object) -> Any:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    one, two = Array(), Array()
    held: list[Any] = []
    held.append(held)
    assert freeze(one) == freeze(one)
    assert freeze(one) != freeze(two)
    assert freeze(held) == freeze(held)
    assert freeze(Decimal("sNaN")) != freeze(Decimal("sNaN"))  # which raises when it is compared
    assert freeze(1) != freeze(True)
    assert freeze({1, 2}) == freeze({2, 1})


@given(st.lists(st.sampled_from(["a", "b", math.nan, 1, 1.0, True, None]), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_function_is_called_once_for_each_distinct_argument(values: list[Any]):
    async def note(value: Any) -> str:
        asked.append(value)
        return repr(value)

    class Loop(Node):
        left: list[Any]
        value: Any
        said: Annotated[str, Dep(note, value="value")] = Field(init=False)

        async def __call__(self) -> Loop | None:
            return Loop(left=self.left[1:], value=self.left[0]) if self.left else None

    asked.clear()
    start = Loop(left=values[1:], value=values[0])
    result = Graph(start=Loop).run(start, max_iters=0)

    assert [node.said for node in result.trace] == [repr(value) for value in values]
    assert len(asked) == len({(type(value), repr(value)) for value in values})


# Any fields bound to each other

bindings = st.integers(1, 6).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(0, size - 1), max_size=3) | st.none(), min_size=size, max_size=size
    )
)
"""For each field the fields that its function takes; None for one that the caller gives."""


@given(bindings, st.lists(st.integers(0, 1), min_size=6, max_size=6), st.data())
@settings(max_examples=60, deadline=None)
def test_bound_fields_have_their_sequential_values_or_are_a_cycle(
    bound: list[list[int] | None], given: list[int], data: Any
):
    calls: list[Any] = []

    async def join(a: str = "", b: str = "", c: str = "") -> str:
        calls.append((a, b, c))
        for _ in range(len(calls) % 3):
            await asyncio.sleep(0)
        return f"({a}{b}{c})"

    async def end(self: Node) -> None: ...

    body: dict[str, Any] = {"__annotations__": {}, "__call__": end, "__module__": __name__}
    for place in data.draw(st.permutations(range(len(bound)))):
        inputs, name = bound[place], f"f{place}"
        body["__annotations__"][name] = str
        if inputs is not None:
            names = {p: f"f{n}" for p, n in zip("abc", inputs, strict=False)}
            body["__annotations__"][name] = Annotated[str, Dep(join, **names)]
            body[name] = Field(init=False)
    graph = Graph(start=type(Node)("Bound", (Node,), body))
    order = TopologicalSorter({place: needs or () for place, needs in enumerate(bound)})
    try:
        expected: dict[int, str] = {}
        for place in order.static_order():
            each = bound[place]
            parts = None if each is None else "".join(expected[n] for n in each)
            expected[place] = str(given[place]) if parts is None else f"({parts})"
    except CycleError:
        assert "bae-dep-cycle" in {problem.code for problem in graph.validate()}
        return
    plain = {f"f{n}": str(given[n]) for n, needs in enumerate(bound) if needs is None}
    result = graph.run(graph.start(**plain)).result
    assert {n: getattr(result, f"f{n}") for n in expected} == expected
    distinct = {tuple(expected[n] for n in needs) for needs in bound if needs is not None}
    assert len(calls) == len(distinct)
