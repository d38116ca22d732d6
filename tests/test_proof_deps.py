"""What the proof says about dependencies: what they return, what they take, and cycles."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Annotated, Any, Optional

import pytest
from pydantic import Field

from bae import LM, Dep, Gate, Graph, Map, Node
from end_node import EndNode
from proving import (
    Mood,
    Storm,
    Weather,
    codes,
    field_of,
    get_weather,
    problems,
    ring,
    the_error,
    the_problem,
)

# Dependencies: what they return


def returning(annotation: Any) -> Any:
    """A function annotated to return something."""

    def fn(): ...

    fn.__annotations__["return"] = annotation
    return fn


FITS = [
    (Any, str),
    (dict[str, list[Storm]], Mapping[str, Sequence[Weather | None]]),
    (str, Annotated[str, Field(min_length=1)]),
]

FAILS = [(Weather, Storm), (Optional[Weather], Weather), (list[str | None], list[str])]


@pytest.mark.parametrize(("returned", "declared"), FITS, ids=str)
def test_a_function_with_a_fitting_return_type_has_no_problems(returned: Any, declared: Any):
    assert problems(field_of(declared, returning(returned))) == []


@pytest.mark.parametrize(("returned", "declared"), FAILS, ids=str)
def test_a_function_with_a_wrong_return_type_is_an_error(returned: Any, declared: Any):
    the_error("bae-dep-type", "Wears.x", field_of(declared, returning(returned)))


async def awaited() -> Storm:
    return Storm()


def promised() -> Awaitable[Storm]:
    return awaited()


def yielded() -> Iterator[Storm]:
    yield Storm()


async def yielded_async() -> AsyncIterator[Storm]:
    yield Storm()


@contextmanager
def entered() -> Iterator[Storm]:
    yield Storm()


@asynccontextmanager
async def entered_async() -> AsyncIterator[Storm]:
    yield Storm()


def managed() -> AbstractContextManager[Storm]:
    return entered()


def managed_async() -> AbstractAsyncContextManager[Storm]:
    return entered_async()


class Station:
    def method(self) -> Storm:
        return Storm()

    def __call__(self) -> Storm:
        return Storm()

    @classmethod
    def made(cls) -> Storm:
        return Storm()

    @staticmethod
    def static() -> Storm:
        return Storm()


def with_argument(wind: int) -> Storm:
    return Storm(wind=wind)


@functools.cache
def cached() -> Storm:
    return Storm()


@pytest.mark.parametrize(
    "fn",
    [
        awaited,
        promised,
        yielded,
        yielded_async,
        entered,
        entered_async,
        managed,
        managed_async,
        Station().method,
        Station(),
        Station.made,
        Station.static,
        functools.partial(with_argument, 3),
        functools.partial(with_argument, wind=3),
        cached,
        Storm,
    ],
    ids=lambda fn: getattr(fn, "__name__", type(fn).__name__),
)
def test_the_awaited_yielded_entered_or_built_type_is_compared_with_the_field(fn: Any):
    assert problems(field_of(Weather, fn)) == []

    reported = problems(field_of(Mood, fn))
    assert [p.code for p in reported] == ["bae-dep-type"]
    assert "returns Storm" in reported[0].message


def test_a_graph_as_a_dependency_returns_its_end_types():
    class Stop(EndNode): ...

    class Other(EndNode): ...

    class Fork(Node):
        async def __call__(self) -> Stop | Other:
            return Stop()

    assert problems(field_of(Stop | Other, Fork)) == []
    assert problems(field_of(Node, Graph(start=Fork))) == []
    reported = problems(field_of(Stop, Fork))
    assert [p.code for p in reported] == ["bae-dep-type"]
    assert reported[0].message == "is Stop, but Fork returns Stop | Other"


def test_a_dependency_graph_that_never_ends_gets_the_warning_for_its_loop():
    class Round(Node):
        async def __call__(self) -> Round: ...

    assert codes(field_of(int, Round)) == [("bae-loop-endless", "Round -> Round")]


@pytest.mark.parametrize("fn", [lambda: 1, time.time], ids=["lambda", "builtin"])
def test_a_callable_that_cannot_be_annotated_is_only_a_warning(fn: Any):
    problem = the_problem(field_of(float, fn))

    assert (problem.severity, problem.code) == ("warning", "bae-dep-unannotated")


def test_a_problem_of_a_function_does_not_hide_another_problem():
    def untold(x, y: Annotated[str, Dep(get_weather)], z: Annotated[int, Gate("z?")]):
        return 1

    assert {p.code for p in problems(field_of(int, untold))} == {
        "bae-dep-unannotated",
        "bae-dep-unfilled",
        "bae-dep-type",
    }
    assert len(problems(field_of(int, untold))) == 4


# Dependencies: what they take


def test_parameters_with_a_default_an_lm_or_a_partial_need_no_source():
    def forecast(place: str, model: LM, days: int = 3) -> Weather:
        return Weather()

    assert problems(field_of(Weather, functools.partial(forecast, "here"))) == []
    assert problems(field_of(Weather, functools.partial(forecast, place="here"))) == []


def test_different_options_for_a_shared_call_are_a_warning():
    def forecast(now: Annotated[Weather, Dep(get_weather, retries=2)]) -> Weather:
        return now

    class Differs(EndNode):
        a: Annotated[Weather, Dep(get_weather)]
        b: Annotated[Weather, Dep(forecast)]

    class NotShared(EndNode):
        a: Annotated[Weather, Dep(get_weather, cache=False)]
        b: Annotated[Weather, Dep(get_weather, timeout=5)]
        c: Annotated[Weather, Dep(get_weather, timeout=5)]

    assert codes(Differs) == [("bae-dep-options", "forecast(now)")]
    assert problems(NotShared) == []


# Cycles


def test_a_reported_cycle_leaves_out_the_path_to_it():
    looped = ring(2)[0]

    def outside(x: Annotated[int, Dep(looped)]) -> int:
        return x

    assert "f0 -> f1 -> f0" in the_problem(field_of(int, outside)).message


def test_graphs_that_are_dependencies_of_each_other_are_shown_as_a_path():
    class Outer(EndNode):
        inner: Annotated[Inner, Dep(Inner)]

    class Inner(EndNode):
        outer: Annotated[Outer, Dep(Outer)]

    problem = the_error("bae-dep-cycle", "Inner.outer", Outer)
    assert problem.message == "the graph is a dependency of itself: Outer -> Inner -> Outer"


def test_a_node_that_depends_on_its_own_graph_is_a_cycle():
    class Start(Node):
        async def __call__(self) -> Looped: ...

    class Looped(EndNode):
        again: Annotated[Looped, Dep(Graph(start=Start, name="again"))]

    problem = the_error("bae-dep-cycle", "Looped.again", Start)
    assert problem.message == "the graph is a dependency of itself: Start -> again"


def test_a_graph_and_a_function_that_depend_on_each_other_are_a_cycle():
    class Inner(EndNode):
        x: Annotated[int, Dep(count)]

    def count(inner: Annotated[Inner, Dep(Inner)]) -> int:
        return 1

    class Start(EndNode):
        x: Annotated[int, Dep(count)]

    assert {p.code for p in problems(Start)} == {"bae-dep-cycle"}
    assert "Start -> Inner -> Inner" in problems(Start)[0].message


def test_a_map_over_its_own_graph_is_a_cycle():
    class Tree(EndNode):
        names: list[str]
        below: Annotated[list[Tree], Map(Tree, over="names")]

    assert ("bae-dep-cycle", "Tree.below") in codes(Tree)
