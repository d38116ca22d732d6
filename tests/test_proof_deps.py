"""What the proof says about dependencies: what they return, what they take, and cycles."""

from __future__ import annotations

import functools
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from pydantic import Field

from bae import (
    LM,
    Dep,
    Gate,
    Graph,
    Map,
    Node,
)
from proving import (
    Box,
    Celsius,
    Colour,
    Mood,
    Storm,
    T,
    Weather,
    codes,
    field_of,
    get_weather,
    problems,
    ring,
    the_problem,
)

# Dependencies: what they return


def returning(annotation: Any) -> Any:
    """A function annotated to return something."""

    def fn(): ...

    fn.__annotations__["return"] = annotation
    return fn


FITS = [
    (str, str),
    (Storm, Weather),
    (int, float),
    (bool, int),
    (str, Any),
    (Any, str),
    (str, object),
    (str, str | None),
    (None, str | None),
    (None, Optional[str]),
    (str | None, str | int | None),
    (Storm, Weather | Mood),
    (Storm | None, Optional[Weather]),
    (Union[int, str], Union[str, int, None]),
    (list[str], list[str]),
    (list[Storm], list[Weather]),
    (list[Storm], Sequence[Weather]),
    (list[str], Iterable[str]),
    (list, list[str]),
    (list[Any], list[str]),
    (list[str], list),
    (tuple[int, ...], Sequence[int]),
    (tuple[int, str], tuple[int | str, ...]),
    (tuple[int, str], tuple[int, str]),
    (set[str], Collection[str]),
    (dict[str, Storm], dict[str, Weather]),
    (dict[str, int], Mapping[str, float]),
    (dict[str, list[Storm]], Mapping[str, Sequence[Weather | None]]),
    (Literal["red"], Literal["red", "blue"]),
    (Literal["red"], str),
    (Literal[1], int),
    (Colour, Colour),
    (Literal[Colour.RED], Colour),
    (bool, Literal[True, False]),
    (Celsius, float),
    (Celsius, Celsius),
    (Box[int], Box[int]),
    (Box[Storm], Box[Weather]),
    (Box, Box[int]),
    (type[Storm], type[Weather]),
    (Callable[[int], str], Callable[..., Any]),
    (Annotated[str, "noted"], str),
    (str, Annotated[str, Field(min_length=1)]),
    (list[Annotated[int, Field(ge=0)]], list[int]),
    (T, str),
]

FAILS = [
    (Weather, str),
    (Weather, Storm),
    (str, int),
    (float, int),
    (str | None, str),
    (Optional[Weather], Weather),
    (Storm | Mood, Weather),
    (None, str),
    (list[str], list[int]),
    (list[Weather], list[Storm]),
    (list[str | None], list[str]),
    (list[str], str),
    (str, list[str]),
    (Iterable[str], list[str]),
    (Sequence[str], list[str]),
    (tuple[int, str], tuple[int, int]),
    (tuple[int, ...], tuple[int, int]),
    (set[str], list[str]),
    (dict[str, int], dict[str, str]),
    (dict[int, str], dict[str, str]),
    (Literal["green"], Literal["red", "blue"]),
    (str, Literal["red", "blue"]),
    (str, Colour),
    (Colour, str),
    (float, Celsius),
    (Box[str], Box[int]),
    (type[Weather], type[Storm]),
]


@pytest.mark.parametrize(("returned", "declared"), FITS, ids=str)
def test_a_function_that_returns_what_the_field_takes_is_fine(returned: Any, declared: Any):
    assert problems(field_of(declared, returning(returned))) == []


@pytest.mark.parametrize(("returned", "declared"), FAILS, ids=str)
def test_a_function_that_returns_what_the_field_cannot_take_is_an_error(
    returned: Any, declared: Any
):
    problem = the_problem(field_of(declared, returning(returned)))

    assert (problem.severity, problem.code) == ("error", "bae-dep-type")
    assert problem.place == "Wears.x"


def test_a_wrong_type_names_both_types_and_the_function():
    problem = the_problem(field_of(list[Weather], returning(dict[str, Storm | None])))

    assert problem.message == "is list[Weather], but fn returns dict[str, Storm | None]"
    assert problem.fix == (
        "declare the field dict[str, Storm | None], or give it a function that returns "
        "list[Weather]"
    )


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
def test_what_is_awaited_yielded_entered_or_built_is_what_is_compared(fn: Any):
    assert problems(field_of(Weather, fn)) == []

    found = problems(field_of(Mood, fn))
    assert [p.code for p in found] == ["bae-dep-type"]
    assert "returns Storm" in found[0].message


def test_a_graph_as_a_dependency_returns_what_it_can_end_at():
    class Stop(Node):
        async def __call__(self) -> None: ...

    class Other(Node):
        async def __call__(self) -> None: ...

    class Fork(Node):
        async def __call__(self) -> Stop | Other:
            return Stop()

    assert problems(field_of(Stop | Other, Fork)) == []
    assert problems(field_of(Node, Graph(start=Fork))) == []
    found = problems(field_of(Stop, Fork))
    assert [p.code for p in found] == ["bae-dep-type"]
    assert found[0].message == "is Stop, but Fork returns Stop | Other"


def test_a_graph_that_never_ends_as_a_dependency_is_warned_of_as_the_loop_it_is():
    class Round(Node):
        async def __call__(self) -> Round: ...

    assert codes(field_of(int, Round)) == [("bae-loop-endless", "Round -> Round")]


def test_a_parameter_that_is_given_the_wrong_type_is_an_error_that_names_it():
    def forecast(place: Annotated[str, Dep(get_weather)]) -> Weather:
        return Weather()

    problem = the_problem(field_of(Weather, forecast))

    assert (problem.severity, problem.code, problem.place) == ("error", "bae-dep-type", "Wears.x")
    assert problem.message == "forecast(place) takes str, but get_weather returns Weather"


def test_a_wrong_parameter_far_below_the_field_is_told_at_the_field():
    def low(a: Annotated[Mood, Dep(get_weather)]) -> int:
        return 1

    def middle(b: Annotated[int, Dep(low)]) -> int:
        return 1

    def high(c: Annotated[int, Dep(middle)]) -> int:
        return 1

    assert codes(field_of(int, high)) == [("bae-dep-type", "Wears.x")]


def test_a_function_without_a_return_annotation_is_an_error():
    def untold():
        return 1

    problem = the_problem(field_of(int, untold))

    assert (problem.severity, problem.code) == ("error", "bae-dep-unannotated")
    assert "untold does not say what it returns" in problem.message
    assert problem.fix == "write `def untold(…) -> int`"


@pytest.mark.parametrize("fn", [lambda: 1, time.time], ids=["lambda", "builtin"])
def test_what_cannot_be_annotated_is_only_warned_of(fn: Any):
    problem = the_problem(field_of(float, fn))

    assert (problem.severity, problem.code) == ("warning", "bae-dep-unannotated")


def test_an_unannotated_function_below_the_field_is_an_error_too():
    def untold():
        return 1

    def told(x: Annotated[int, Dep(untold)]) -> int:
        return x

    problem = the_problem(field_of(int, told))

    assert problem.code == "bae-dep-unannotated"
    assert "untold" in problem.message


def test_one_problem_of_a_function_does_not_hide_another():
    def untold(x, y: Annotated[str, Dep(get_weather)], z: Annotated[int, Gate("z?")]):
        return 1

    assert {p.code for p in problems(field_of(int, untold))} == {
        "bae-dep-unannotated",
        "bae-dep-unfilled",
        "bae-dep-type",
    }
    assert len(problems(field_of(int, untold))) == 4


def test_a_function_whose_hint_cannot_be_resolved_is_told_where_it_was_looked_for():
    def lost() -> Nowhere: ...  # noqa: F821

    problem = the_problem(field_of(int, lost))

    assert problem.code == "bae-hint-unresolved"
    assert "'Nowhere'" in problem.message
    assert f"module {__name__}" in problem.message


def test_a_shared_dependency_far_down_costs_no_more_for_being_reached_in_many_ways():
    def bottom(lost: Nowhere) -> int:  # noqa: F821
        return 1

    left = right = bottom
    for _ in range(60):

        def one(a: Annotated[int, Dep(left)], b: Annotated[int, Dep(right)]) -> int:
            return a + b

        def two(a: Annotated[int, Dep(left)], b: Annotated[int, Dep(right)]) -> int:
            return a + b

        for fn in (one, two):
            fn.__annotations__.update(
                a=Annotated[int, Dep(left)], b=Annotated[int, Dep(right)], **{"return": int}
            )
        left, right = one, two

    assert codes(field_of(int, left)) == [("bae-hint-unresolved", "Wears.x")]


# Dependencies: what they take


def test_a_parameter_that_nothing_can_fill_is_an_error():
    def forecast(place: str, days: int = 3, *rest: int, **more: int) -> Weather:
        return Weather()

    problem = the_problem(field_of(Weather, forecast))

    assert (problem.severity, problem.code) == ("error", "bae-dep-unfilled")
    assert problem.message == "nothing can fill the parameter place of forecast"


def test_a_parameter_far_below_the_field_that_nothing_can_fill_is_an_error():
    def low(place: str) -> int:
        return 1

    def high(x: Annotated[int, Dep(low)]) -> int:
        return x

    problem = the_problem(field_of(int, high))

    assert (problem.code, problem.place) == ("bae-dep-unfilled", "Wears.x")
    assert problem.message == "nothing can fill the parameter place of low"


def test_defaults_an_lm_and_what_a_partial_gives_need_no_filling():
    def forecast(place: str, model: LM, days: int = 3) -> Weather:
        return Weather()

    assert problems(field_of(Weather, functools.partial(forecast, "here"))) == []
    assert problems(field_of(Weather, functools.partial(forecast, place="here"))) == []


@pytest.mark.parametrize(
    "marker", [Gate("who?"), Map(get_weather, over="x")], ids=lambda m: type(m).__name__
)
def test_only_dep_and_recall_can_mark_a_parameter(marker: Any):
    def forecast(place) -> Weather:
        return Weather()

    forecast.__annotations__["place"] = Annotated[str, marker]
    problem = the_problem(field_of(Weather, forecast))

    assert (problem.severity, problem.code) == ("error", "bae-dep-unfilled")
    assert f"forecast(place) is annotated {type(marker).__name__}" in problem.message


def test_a_start_field_that_nobody_gives_a_graph_used_as_a_dependency_is_an_error():
    class Inner(Node):
        topic: str
        depth: int = 1

        async def __call__(self) -> None: ...

    problem = the_problem(field_of(Inner, Inner))

    assert (problem.severity, problem.code) == ("error", "bae-dep-unfilled")
    assert "nothing can fill the field topic of the start node of Inner" in problem.message
    assert 'Dep(Inner, topic="…")' in problem.fix


def test_options_that_differ_for_one_shared_function_are_a_warning():
    class Start(Node):
        a: Annotated[Weather, Dep(get_weather, timeout=3)]

        async def __call__(self) -> End: ...

    class End(Node):
        b: Annotated[Weather, Dep(get_weather, timeout=5)]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert (problem.severity, problem.code, problem.place) == (
        "warning",
        "bae-dep-options",
        "End.b",
    )
    assert "with other options than Start.a" in problem.message


def test_options_that_differ_between_a_field_and_a_parameter_are_a_warning_too():
    def forecast(now: Annotated[Weather, Dep(get_weather, retries=2)]) -> Weather:
        return now

    class Start(Node):
        a: Annotated[Weather, Dep(get_weather)]
        b: Annotated[Weather, Dep(forecast)]

        async def __call__(self) -> None: ...

    assert codes(Start) == [("bae-dep-options", "forecast(now)")]


def test_a_call_that_is_not_shared_may_have_options_of_its_own():
    class Start(Node):
        a: Annotated[Weather, Dep(get_weather, cache=False)]
        b: Annotated[Weather, Dep(get_weather, timeout=5)]
        c: Annotated[Weather, Dep(get_weather, timeout=5)]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_a_parameter_may_ask_for_an_unshared_call_with_options_of_its_own():
    def forecast(now: Annotated[Weather, Dep(get_weather, retries=2, cache=False)]) -> Weather:
        return now

    class Start(Node):
        a: Annotated[Weather, Dep(get_weather)]
        b: Annotated[Weather, Dep(forecast)]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_an_unshared_call_does_not_hide_two_shared_ones_that_differ():
    class Start(Node):
        a: Annotated[Weather, Dep(get_weather, cache=False)]
        b: Annotated[Weather, Dep(get_weather, timeout=1)]
        c: Annotated[Weather, Dep(get_weather, timeout=2)]

        async def __call__(self) -> None: ...

    assert codes(Start) == [("bae-dep-options", "Start.c")]


# Cycles


@pytest.mark.parametrize(
    ("length", "path"),
    [(1, "f0 -> f0"), (2, "f0 -> f1 -> f0"), (4, "f0 -> f1 -> f2 -> f3 -> f0")],
)
def test_functions_that_wait_for_each_other_are_shown_as_a_path(length: int, path: str):
    problem = the_problem(field_of(int, ring(length)[0]))

    assert (problem.severity, problem.code) == ("error", "bae-dep-cycle")
    assert problem.place == "Wears.x"
    assert problem.message == f"dependencies wait for each other: {path}"


def test_a_path_to_a_cycle_is_not_part_of_it():
    looped = ring(2)[0]

    def outside(x: Annotated[int, Dep(looped)]) -> int:
        return x

    assert "f0 -> f1 -> f0" in the_problem(field_of(int, outside)).message


def test_a_diamond_of_dependencies_is_no_cycle():
    def base() -> int:
        return 1

    def left(x: Annotated[int, Dep(base)]) -> int:
        return x

    def right(x: Annotated[int, Dep(base)]) -> int:
        return x

    def top(a: Annotated[int, Dep(left)], b: Annotated[int, Dep(right)]) -> int:
        return a + b

    assert problems(field_of(int, top)) == []


def test_graphs_that_are_dependencies_of_each_other_are_shown_as_a_path():
    class Outer(Node):
        inner: Annotated[Inner, Dep(Inner)]

        async def __call__(self) -> None: ...

    class Inner(Node):
        outer: Annotated[Outer, Dep(Outer)]

        async def __call__(self) -> None: ...

    problem = the_problem(Outer)

    assert (problem.severity, problem.code, problem.place) == (
        "error",
        "bae-dep-cycle",
        "Inner.outer",
    )
    assert problem.message == "the graph is a dependency of itself: Outer -> Inner -> Outer"


def test_a_node_that_needs_a_graph_it_is_part_of_is_a_cycle():
    class Start(Node):
        async def __call__(self) -> Looped: ...

    class Looped(Node):
        again: Annotated[Looped, Dep(Graph(start=Start, name="again"))]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert problem.code == "bae-dep-cycle"
    assert problem.message == "the graph is a dependency of itself: Start -> again"


def test_a_graph_that_needs_a_function_that_needs_the_graph_is_a_cycle():
    class Inner(Node):
        x: Annotated[int, Dep(count)]

        async def __call__(self) -> None: ...

    def count(inner: Annotated[Inner, Dep(Inner)]) -> int:
        return 1

    class Start(Node):
        x: Annotated[int, Dep(count)]

        async def __call__(self) -> None: ...

    assert {p.code for p in problems(Start)} == {"bae-dep-cycle"}
    assert "Start -> Inner -> Inner" in problems(Start)[0].message


def test_a_map_over_the_graph_it_is_part_of_is_a_cycle():
    class Tree(Node):
        names: list[str]
        below: Annotated[list[Tree], Map(Tree, over="names")]

        async def __call__(self) -> None: ...

    assert ("bae-dep-cycle", "Tree.below") in codes(Tree)


def test_one_graph_used_in_two_places_is_no_cycle():
    class Inner(Node):
        async def __call__(self) -> None: ...

    class Start(Node):
        a: Annotated[Inner, Dep(Inner)]

        async def __call__(self) -> End: ...

    class End(Node):
        b: Annotated[Inner, Dep(Inner)]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_problems_inside_a_graph_used_as_a_dependency_are_told_with_the_others():
    class Inner(Node):
        x: Annotated[str, Dep(get_weather)]

        async def __call__(self) -> None: ...

    class Start(Node):
        a: Annotated[Inner, Dep(Inner)]
        b: Annotated[str, Dep(get_weather)]

        async def __call__(self) -> None: ...

    assert codes(Start) == [("bae-dep-type", "Start.b"), ("bae-dep-type", "Inner.x")]
