"""Every type that bae promises an editor, asserted. All three checkers accept this file."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Self, assert_type

from pydantic import BaseModel

from bae import (
    LM,
    BaeError,
    Dep,
    DepError,
    Gate,
    Graph,
    GraphResult,
    Map,
    Node,
    NodeConfig,
    OpenGate,
    Problem,
    ProofError,
    Recall,
    Usage,
)
from bae.journal import FillEnded, Record, RunJournal, StepStarted
from bae.lm import Budget, Budgeted, Cached, Retry, Timeout, resolve
from bae.node import NodeTypes
from bae.observers import RunStream
from bae.testing import ScriptedLM


class Weather(BaseModel):
    sky: str


async def get_weather() -> Weather:
    return Weather(sky="grey")


async def length(word: str) -> int:
    return len(word)


class A(Node):
    m: str

    async def __call__(self) -> "B | C | None": ...


class Goes(Node):
    async def __call__(self) -> "B | C": ...


class B(Node):
    m: Annotated[str, Recall()]
    n: int
    weather: Annotated[Weather, Dep(get_weather, timeout=3, retries=1)]
    words: list[str]
    lengths: Annotated[list[int], Map(length, over="words", limit=3)]
    fine: Annotated[bool, Gate("fine?")]

    async def __call__(self) -> None: ...


class C(Node):
    async def __call__(self, lm: LM) -> "D | Self":
        """A written body that asks the LM itself."""
        assert_type(await lm.make(self, D), D)
        assert_type(await lm.decide(self), Node | None)
        assert_type(await lm.choose_type([D, C], {}), type[Node] | type[None])
        return await lm.fill(D, {}, "D", source=self)


class D(Node):
    async def __call__(self) -> None: ...


class E(Node):
    async def __call__(self) -> None: ...


class G(Node):
    node_config: ClassVar[NodeConfig] = NodeConfig(lm=ScriptedLM())

    async def __call__(self) -> None: ...


class H(G):
    node_config = NodeConfig(lm=ScriptedLM([{"m": "a"}]))


start = A(m="x")
lm: LM = ScriptedLM([B, {"n": 1}])

# A field is what it says, whatever its source.


def fields(node: B) -> None:
    assert_type(node.m, str)
    assert_type(node.weather, Weather)
    assert_type(node.lengths, list[int])
    assert_type(node.fine, bool)


assert_type(A.successors(), NodeTypes)
assert_type(A.is_terminal(), bool)

# The result of a graph is what end= names.

assert_type(Graph(start=A), Graph[A, Node])
assert_type(Graph(A), Graph[A, Node])
assert_type(Graph(start=A, end=None), Graph[A, Node])
assert_type(Graph(start=A, end=B), Graph[A, B])
assert_type(Graph(A, B, name="named"), Graph[A, B])
assert_type(Graph(start=A, end=(B, C), system="You sort mail."), Graph[A, B | C])
assert_type(Graph(start=A, end=(B,)), Graph[A, B])
assert_type(Graph(start=A, end=(B, C)), Graph[A, B | C])
assert_type(Graph(start=A, end=(B, C, D)), Graph[A, B | C | D])
assert_type(Graph(start=A, end=(B, C, D, E)), Graph[A, B | C | D | E])

any_end = Graph(start=A)
one = Graph(start=A, end=B)
two = Graph(start=A, end=(B, C))
three = Graph(start=A, end=(B, C, D))
four = Graph(start=A, end=(B, C, D, E))


def results() -> None:
    assert_type(any_end.run(start).result, Node)
    assert_type(one.run(start), GraphResult[B])
    assert_type(one.run(start, lm, 5, prefetch=False, dep_cache={}).result, B)
    assert_type(one.run(start).result.weather.sky, str)
    assert_type(two.run(start).result, B | C)
    assert_type(three.run(start).result, B | C | D)
    assert_type(four.run(start).result, B | C | D | E)


def every_result_is_told_apart() -> int:
    result = two.run(start).result
    match result:
        case B():
            return result.n
        case C():
            return 0


def the_rest_of_a_result(result: GraphResult[B]) -> None:
    assert_type(result.trace, list[Node])
    assert_type(result.node, Node | None)
    assert_type(result.waiting, tuple[OpenGate, ...])
    assert_type(result.usage, Usage)
    assert_type(result.run_id, str)
    assert_type(result.journal, RunJournal)
    assert_type(result.journal[0], Record)
    assert_type(result.journal.of(FillEnded), list[FillEnded])


async def answer(gate: OpenGate) -> bool:
    return gate.question == "fine?"


async def awaited() -> None:
    assert_type(await one.arun(start, lm=lm, answer=answer), GraphResult[B])
    assert_type((await one.arun(start)).result, B)
    assert_type((await two.arun(start, max_iters=0)).result, B | C)
    assert_type((await any_end.arun(start)).result, Node)


async def streamed() -> None:
    assert_type(one.stream(start), RunStream[B])
    async with one.stream(start, lm) as records:
        async for record in records:
            assert_type(record, Record)
            if isinstance(record, StepStarted):
                assert_type(record.node, Node)
        assert_type(records.result, GraphResult[B])
        assert_type(records.result.result, B)
    async for record in two.stream(start):
        assert_type(record, Record)
    assert_type(two.stream(start).result.result, B | C)
    iterator: AsyncIterator[Record] = one.stream(start)
    await anext(iterator)


# A graph of something narrower is a graph of something wider.


def takes_any(graph: Graph[Any, Node], result: GraphResult[Node]) -> None: ...


takes_any(one, one.run(start))
takes_any(two, two.run(start))


def run_any(graph: Graph[A, B | C]) -> B | C:
    return graph.run(start).result


run_any(one)


# A graph is looked at, and a failure is caught, with types.

assert_type(one.nodes, NodeTypes)
assert_type(one.edges, dict[type[Node], NodeTypes])
assert_type(one.terminal_nodes, NodeTypes)
assert_type(one.validate(), list[Problem])
assert_type(one.to_mermaid(), str)


def failures() -> None:
    try:
        one.run(start)
    except DepError as error:
        assert_type(error.node_type, type[Node] | None)
        assert_type(error.field_name, str)
    except ProofError as error:
        assert_type(error.problems, tuple[Problem, ...])
    except BaeError as error:
        assert_type(error.code, str)
        assert_type(error.trace, list[Node])
        assert_type(error.cause, BaseException | None)


# A graph, a node class and a function of any kind can be a source.


def sync() -> int:
    return 1


class Sources(Node):
    by_graph: Annotated[B, Dep(one)]
    by_node: Annotated[D, Dep(D)]
    by_sync: Annotated[int, Dep(sync, inline=True, cache=False)]
    by_lambda: Annotated[Any, Dep(lambda: 1)]
    from_node: Annotated[str, Recall(A)]

    async def __call__(self) -> None: ...


def models_by_name_and_policies_are_lms(start: A, lm: LM) -> None:
    assert_type(one.run(start, lm="local"), GraphResult[B])
    policies = Cached(Retry(Timeout(Budgeted("local", Budget(calls=3)), seconds=3)))
    assert_type(one.run(start, lm=policies), GraphResult[B])
    accepted: LM = policies
    Retry(lm)
    NodeConfig(lm="claude-cli:sonnet")
    NodeConfig(lm=accepted)
    assert_type(resolve("local"), LM)
    assert_type(Budget(calls=3).usage, Usage)
