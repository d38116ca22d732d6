"""What the proof promises: whatever is sure to go wrong is said before anything is called, all at
once and so that it can be mended in one read; nothing is said of a graph that is fine."""

from __future__ import annotations

import functools
import graphlib
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
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
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypeVar, Union

import pytest
from pydantic import BaseModel, Field, RootModel, create_model
from pydantic.json_schema import SkipJsonSchema

from bae import (
    LM,
    Dep,
    DepError,
    Gate,
    Graph,
    HintError,
    Map,
    Node,
    Problem,
    ProofError,
    Recall,
)
from bae.resolver import build_dep_dag, classify_fields, validate_node_deps
from bae.testing import ScriptedLM

T = TypeVar("T")


class Mood(BaseModel):
    name: str = "calm"


class Weather(BaseModel):
    degrees: int = 20


class Storm(Weather):
    wind: int = 90


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Opaque:
    """A class that JSON knows nothing of."""


def get_weather() -> Weather:
    return Weather()


def get_storm() -> Storm:
    return Storm()


def get_names() -> list[str]:
    return ["a", "b"]


def problems(start: type[Node], **options: Any) -> list[Problem]:
    return Graph(start=start, **options).validate()


def codes(start: type[Node], **options: Any) -> list[tuple[str, str]]:
    """Code and place of every problem, in the order they are told."""
    return [(problem.code, problem.place) for problem in problems(start, **options)]


def the_problem(start: type[Node], **options: Any) -> Problem:
    """The one problem of a graph."""
    (problem,) = problems(start, **options)
    return problem


# What a problem looks like


def test_a_problem_reads_as_place_message_and_fix_on_two_lines():
    class GettingDressed(Node):
        message: int

        async def __call__(self) -> Outfit: ...

    class Outfit(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    problem = the_problem(GettingDressed)

    assert str(problem) == (
        "error   Outfit.mood      Recall() can find no Mood on the path GettingDressed -> Outfit\n"
        "        fix: fill a Mood before Outfit on that path, or give the field a default"
    )
    assert problem.severity == "error"
    assert problem.code == "bae-recall-path"
    assert problem.place == "Outfit.mood"
    assert problem.message == "Recall() can find no Mood on the path GettingDressed -> Outfit"
    assert problem.fix == "fill a Mood before Outfit on that path, or give the field a default"


def test_a_warning_reads_in_the_same_columns():
    class Draft(Node):
        async def __call__(self) -> Review: ...

    class Review(Node):
        async def __call__(self) -> Draft: ...

    assert str(the_problem(Draft)) == (
        "warning Draft -> Review -> Draft the loop has no exit that the types show "
        "(Review never returns None)\n"
        "        fix: let one of its nodes return None or a node that leads out"
    )


def test_a_problem_without_a_fix_is_one_line():
    assert str(Problem("error", "bae-x", "Here", "is wrong")) == "error   Here             is wrong"


def test_a_problem_moved_to_another_place_keeps_everything_else():
    problem = Problem("warning", "bae-x", "Here", "is odd", "mend it")

    assert problem.at("There") == Problem("warning", "bae-x", "There", "is odd", "mend it")


def test_all_problems_are_told_at_once_with_errors_before_warnings():
    def untold():
        return 1

    class Start(Node):
        early: Annotated[int, Recall()]

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        a: Annotated[str, Dep(get_weather)]
        b: Annotated[int, Dep(untold)]
        c: Annotated[int, Dep(lambda: 1)]
        d: Annotated[list[str], Map(get_weather, over="nowhere")]
        e: Opaque

        async def __call__(self) -> Middle: ...

    found = problems(Start)

    assert {(p.code, p.place) for p in found} == {
        ("bae-recall-start", "Start.early"),
        ("bae-dep-type", "Middle.a"),
        ("bae-dep-unannotated", "Middle.b"),
        ("bae-dep-unannotated", "Middle.c"),
        ("bae-dep-type", "Middle.d"),
        ("bae-map-over", "Middle.d"),
        ("bae-field-no-schema", "Middle.e"),
        ("bae-loop-endless", "Middle -> Middle"),
    }
    severities = [p.severity for p in found]
    assert severities == sorted(severities)
    assert severities.count("warning") == 2
    for problem in found:
        assert problem.message
        assert problem.fix


def test_the_list_is_a_copy_that_can_be_changed_without_harm():
    class Lonely(Node): ...

    graph = Graph(start=Lonely)
    graph.validate().clear()

    assert [p.code for p in graph.validate()] == ["bae-node-without-call"]


def test_a_graph_that_is_fine_has_no_problems():
    async def get_place() -> str:
        return "here"

    async def forecast(place: Annotated[str, Dep(get_place)], lm: LM) -> Weather:
        return Weather()

    class Ask(Node):
        question: str

        async def __call__(self) -> Answer | Refusal: ...

    class Answer(Node):
        question: Annotated[str, Recall()]
        weather: Annotated[Weather, Dep(forecast)]
        approved: Annotated[bool, Gate("fine?")]
        lines: list[str]
        lengths: Annotated[list[int], Map(len_of, over="lines")]

        async def __call__(self) -> None: ...

    class Refusal(Node):
        why: Literal["rude", "unclear"]

        async def __call__(self) -> Ask | None: ...

    assert problems(Ask, end=(Answer, Refusal)) == []


def len_of(line: str) -> int:
    return len(line)


def abs_of(number: int) -> int:
    return abs(number)


# Refusing to run


async def test_a_run_with_errors_is_refused_before_anything_is_called():
    called: list[str] = []

    def dep() -> int:
        called.append("dep")
        return 1

    class Start(Node):
        fine: Annotated[int, Dep(dep)]

        async def __call__(self) -> End:
            called.append("body")
            return End()

    class End(Node):
        mood: Annotated[Mood, Recall()]
        weather: Annotated[str, Dep(get_weather)]

        async def __call__(self) -> None: ...

    lm = ScriptedLM([{}])
    graph = Graph(start=Start)
    with pytest.raises(ProofError) as caught:
        await graph.arun(Start(), lm)

    assert called == []
    assert lm.asked == []
    assert caught.value.code == "bae-proof-failed"
    assert list(caught.value.problems) == graph.validate()
    assert len(caught.value.problems) == 2
    for problem in caught.value.problems:
        assert str(problem) in str(caught.value)
    assert "the graph Start cannot run, 2 errors:" in str(caught.value)


async def test_every_way_to_run_refuses_a_graph_with_errors():
    class Start(Node):
        weather: Annotated[str, Dep(get_weather)]

        async def __call__(self) -> None: ...

    graph = Graph(start=Start)
    with pytest.raises(ProofError, match="1 error:"):
        await graph.arun(Start())
    with pytest.raises(ProofError):
        async for _ in graph.stream(Start()):
            raise AssertionError("a record of a run that must not begin")
    with pytest.raises(ProofError):
        graph.prove()


def test_the_sync_run_refuses_a_graph_with_errors():
    class Lonely(Node): ...

    with pytest.raises(ProofError):
        Graph(start=Lonely).run(Lonely())


async def test_warnings_do_not_keep_a_run_from_starting():
    class Start(Node):
        one: Annotated[int, Dep(lambda: 1)]

        async def __call__(self) -> None: ...

    graph = Graph(start=Start)

    assert [p.severity for p in graph.validate()] == ["warning"]
    assert (await graph.arun(Start())).trace[0].model_dump() == {"one": 1}
    assert "cannot run" not in str(graph.prove())


async def test_warnings_are_not_among_the_problems_of_a_refused_run():
    class Start(Node):
        one: Annotated[int, Dep(lambda: 1)]
        weather: Annotated[str, Dep(get_weather)]

        async def __call__(self) -> None: ...

    with pytest.raises(ProofError) as caught:
        await Graph(start=Start).arun(Start())

    assert [p.code for p in caught.value.problems] == ["bae-dep-type"]


# Return types


def test_a_return_type_that_cannot_be_resolved_is_named_with_where_it_was_looked_for():
    class Start(Node):
        async def __call__(self) -> Nowhere: ...  # noqa: F821

    problem = the_problem(Start)

    assert problem.code == "bae-hint-unresolved"
    assert problem.severity == "error"
    assert "'Nowhere'" in problem.message
    assert f"module {__name__}" in problem.message
    assert problem.place.startswith("Start")
    assert "define or import Nowhere" in problem.fix


def test_a_field_type_that_cannot_be_resolved_is_a_problem_not_a_crash():
    class Start(Node):
        thing: Nowhere  # noqa: F821

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert problem.code == "bae-hint-unresolved"
    assert "'Nowhere'" in problem.message


def test_a_name_defined_after_the_first_proof_is_seen_by_the_next():
    class Start(Node):
        async def __call__(self) -> Later: ...

    graph = Graph(start=Start)
    before = [p.code for p in graph.validate()]

    class Later(Node):
        async def __call__(self) -> None: ...

    assert before == ["bae-hint-unresolved"]
    assert graph.validate() == []
    assert graph.nodes == (Start, Later)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (int, "returns int, which is not a Node"),
        (Mood, "returns Mood, which is not a Node"),
        (list[Node], "returns list[Node], which is not a Node"),
        (Any, "returns Any, which is not a Node"),
        (type[Node], "returns type[Node], which is not a Node"),
        (Node, "returns Node, which is not a node class of its own"),
    ],
)
def test_a_return_type_that_is_no_node_is_an_error(returned: Any, said: str):
    class Start(Node):
        async def __call__(self): ...

    Start.__call__.__annotations__["return"] = returned
    problem = the_problem(Start)

    assert (problem.severity, problem.code) == ("error", "bae-route-not-a-node")
    assert (problem.place, problem.message) == ("Start.__call__", said)


def test_each_wrong_member_of_a_union_is_told_and_the_right_ones_are_followed():
    class Start(Node):
        async def __call__(self) -> int | End | str | None: ...

    class End(Node):
        async def __call__(self) -> None: ...

    assert [p.message for p in problems(Start)] == [
        "returns int, which is not a Node",
        "returns str, which is not a Node",
    ]
    assert Graph(start=Start).nodes == (Start, End)


def test_a_missing_return_annotation_is_an_error():
    class Start(Node):
        async def __call__(self):
            return None

    problem = the_problem(Start)

    assert (problem.severity, problem.code) == ("error", "bae-route-unannotated")
    assert problem.place == "Start.__call__"


def test_a_node_without_a_call_is_an_error():
    class Start(Node):
        x: int = 0

    problem = the_problem(Start)

    assert (problem.severity, problem.code, problem.place) == (
        "error",
        "bae-node-without-call",
        "Start",
    )


def test_a_call_parameter_that_nothing_can_fill_is_an_error():
    class Start(Node):
        async def __call__(self, lm: LM, other: int, third: str = "") -> None: ...

    problem = the_problem(Start)

    assert (problem.severity, problem.code) == ("error", "bae-node-parameter")
    assert problem.message == "nothing can fill its parameter other"


def test_an_lm_parameter_that_can_only_be_given_by_position_is_an_error():
    class Start(Node):
        async def __call__(self, lm: LM, /) -> None: ...

    assert the_problem(Start).message == "nothing can fill its parameter lm"


def test_parameters_that_need_no_filling_are_fine():
    class Start(Node):
        async def __call__(self, x: int = 3, *rest: int, y: str = "", **more: int) -> None: ...

    assert problems(Start) == []


def test_a_second_lm_parameter_is_an_error():
    class Start(Node):
        async def __call__(self, one: LM, two: LM) -> None: ...

    assert the_problem(Start).message == "nothing can fill its parameter two"


def test_two_successors_of_one_name_are_an_error_since_the_lm_cannot_tell_them_apart():
    def another() -> type[Node]:
        class Twin(Node):
            async def __call__(self) -> None: ...

        return Twin

    one, two = another(), another()

    class Start(Node):
        async def __call__(self): ...

    Start.__call__.__annotations__["return"] = one | two
    problem = the_problem(Start)

    assert (problem.severity, problem.code) == ("error", "bae-route-same-name")
    assert problem.message == "returns two classes named Twin, which the LM cannot tell apart"


def test_one_name_in_two_places_that_are_never_offered_together_is_fine():
    def another(following: Any) -> type[Node]:
        class Twin(Node):
            async def __call__(self): ...

        Twin.__call__.__annotations__["return"] = following
        return Twin

    assert problems(another(another(None))) == []


# Loops and ends


def test_a_loop_without_an_exit_is_a_warning_that_names_the_whole_loop():
    class Start(Node):
        async def __call__(self) -> Plan | End: ...

    class Plan(Node):
        async def __call__(self) -> Act: ...

    class Act(Node):
        async def __call__(self) -> Check: ...

    class Check(Node):
        async def __call__(self) -> Plan: ...

    class End(Node):
        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert (problem.severity, problem.code) == ("warning", "bae-loop-endless")
    assert problem.place == "Plan -> Act -> Check -> Plan"


def test_two_loops_without_an_exit_are_two_warnings():
    class Start(Node):
        async def __call__(self) -> Left | Right: ...

    class Left(Node):
        async def __call__(self) -> Left: ...

    class Right(Node):
        async def __call__(self) -> Right: ...

    assert codes(Start) == [
        ("bae-loop-endless", "Left -> Left"),
        ("bae-loop-endless", "Right -> Right"),
    ]


def test_a_loop_that_can_be_left_is_fine():
    class Draft(Node):
        async def __call__(self) -> Review: ...

    class Review(Node):
        async def __call__(self) -> Draft | Done: ...

    class Done(Node):
        async def __call__(self) -> None: ...

    assert problems(Draft) == []


def test_a_loop_that_may_stop_by_itself_is_fine():
    class Draft(Node):
        async def __call__(self) -> Draft | None: ...

    assert problems(Draft) == []


def test_a_loop_is_not_called_endless_while_one_of_its_nodes_has_a_problem_that_may_hide_the_exit():
    class Draft(Node):
        async def __call__(self) -> Draft | int: ...

    assert codes(Draft) == [("bae-route-not-a-node", "Draft.__call__")]


class A(Node):
    async def __call__(self) -> B | C: ...


class B(Node):
    async def __call__(self) -> None: ...


class C(Node):
    async def __call__(self) -> B | None: ...


class Elsewhere(Node):
    async def __call__(self) -> None: ...


def test_an_end_that_no_run_can_end_at_is_an_error():
    found = problems(A, end=(A, B, C))

    assert [(p.severity, p.code, p.place) for p in found] == [
        ("error", "bae-end-not-terminal", "A")
    ]
    assert found[0].fix == "name where the graph ends: (B, C)"


def test_an_end_of_a_graph_that_never_ends_has_nothing_to_name_instead():
    class Round(Node):
        async def __call__(self) -> Round: ...

    error, warning = problems(Round, end=Round)

    assert (error.code, warning.code) == ("bae-end-not-terminal", "bae-loop-endless")
    assert error.fix == "name where the graph ends: nothing yet"


def test_an_end_that_cannot_be_reached_is_an_error():
    found = problems(A, end=(B, C, Elsewhere))

    assert [(p.severity, p.code, p.place) for p in found] == [
        ("error", "bae-end-unreachable", "Elsewhere")
    ]
    assert "cannot be reached from A" in found[0].message


def test_an_end_that_is_not_named_is_an_error_that_says_what_to_write():
    found = problems(A, end=B)

    assert [(p.severity, p.code, p.place) for p in found] == [("error", "bae-end-incomplete", "C")]
    assert found[0].fix == "write end=(B, C)"


@pytest.mark.parametrize("end", [None, (B, C), (C, B)])
def test_no_end_or_all_ends_in_any_order_are_fine(end: Any):
    assert problems(A, end=end) == []


# Dependencies: what they return


def field_of(annotation: Any, fn: Any) -> type[Node]:
    """A node with one Dep field."""

    async def call(self: Node) -> None: ...

    node = create_model("Wears", __base__=Node, x=(Annotated[annotation, Dep(fn)], ...))
    type.__setattr__(node, "__call__", call)
    return node


def returning(annotation: Any) -> Any:
    """A function annotated to return something."""

    def fn(): ...

    fn.__annotations__["return"] = annotation
    return fn


class Box(BaseModel, Generic[T]):
    inside: T


Celsius = NewType("Celsius", float)

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
    assert problem.fix == "write `def untold(…) -> …`"


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
    def untold(x, y: Annotated[str, Dep(get_weather)], z: Annotated[int, Recall()]):
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
    "marker", [Recall(), Gate("who?"), Map(get_weather, over="x")], ids=lambda m: type(m).__name__
)
def test_only_dep_can_mark_a_parameter(marker: Any):
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
    assert "its field topic" in problem.message


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


def ring(length: int) -> list[Any]:
    """Functions that each wait for the next, the last for the first."""

    def make(index: int) -> Any:
        def fn(below): ...

        fn.__name__ = fn.__qualname__ = f"f{index}"
        return fn

    functions = [make(i) for i in range(length)]
    for fn, below in zip(functions, [*functions[1:], functions[0]], strict=True):
        fn.__annotations__ = {"below": Annotated[int, Dep(below)], "return": int}
    return functions


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


# Map


def mapping(over: Any, fn: Any = len_of, into: Any = list[int]) -> type[Node]:
    """A start node that maps over a field of type `over`."""

    async def call(self: Node) -> None: ...

    node = create_model(
        "Maps",
        __base__=Node,
        items=(over, ...),
        mapped=(Annotated[into, Map(fn, over="items")], ...),
    )
    type.__setattr__(node, "__call__", call)
    return node


Names = NewType("Names", list[str])


class Words(list[str]):
    pass


class Lines(RootModel[list[str]]):
    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self.root)


@pytest.mark.parametrize(
    "over",
    [
        list[str],
        tuple[str, ...],
        tuple[str, str],
        set[str],
        frozenset[str],
        Sequence[str],
        Iterable[str],
        Collection[str],
        list,
        list[Any],
        Any,
        list[str] | tuple[str, ...],
        list[Literal["a", "b"]],
        Annotated[list[str], Field(min_length=1)],
        Generator[str, int, None],
        tuple,
        Names,
        Words,
        Lines,
    ],
    ids=str,
)
def test_a_map_over_anything_list_like_is_fine(over: Any):
    assert problems(mapping(over)) == []


@pytest.mark.parametrize(
    "over",
    [
        str,
        bytes,
        int,
        Mood,
        dict[str, str],
        Mapping[str, str],
        list[str] | None,
        list[str] | str,
        Celsius,
        Callable[[], str],
        Literal["a", "b"],
        RootModel[list[str]],
        None,
    ],
    ids=str,
)
def test_a_map_over_what_is_no_list_is_an_error(over: Any):
    problem = the_problem(mapping(over))

    assert (problem.severity, problem.code, problem.place) == (
        "error",
        "bae-map-over",
        "Maps.mapped",
    )
    assert "and no list" in problem.message


def test_a_map_over_a_missing_field_is_an_error_that_lists_those_there_are():
    class Start(Node):
        lines: list[str]
        other: int
        lengths: Annotated[list[int], Map(len_of, over="line")]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert problem.code == "bae-map-over"
    assert problem.message == (
        "maps over 'line', and Start has no such field (it has: lines, other)"
    )


def test_a_map_over_a_missing_field_of_a_node_without_others_says_that_there_are_none():
    class Start(Node):
        lengths: Annotated[list[int], Map(len_of, over="line")]

        async def __call__(self) -> None: ...

    assert "(it has: none)" in the_problem(Start).message


def test_a_map_over_itself_is_an_error():
    class Start(Node):
        lengths: Annotated[list[int], Map(len_of, over="lengths")]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert (problem.code, problem.message) == ("bae-map-over", "maps over itself")


def test_maps_over_each_other_are_errors():
    class Start(Node):
        a: Annotated[list[int], Map(len_of, over="b")]
        b: Annotated[list[int], Map(len_of, over="a")]

        async def __call__(self) -> None: ...

    assert codes(Start) == [("bae-map-over", "Start.a"), ("bae-map-over", "Start.b")]


def test_a_map_over_a_map_over_nothing_is_told_where_nothing_is():
    class Start(Node):
        a: Annotated[list[int], Map(abs_of, over="b")]
        b: Annotated[list[int], Map(len_of, over="c")]

        async def __call__(self) -> None: ...

    assert codes(Start) == [("bae-map-over", "Start.b")]


def test_a_map_over_a_map_is_fine():
    def double(n: int) -> int:
        return 2 * n

    class Start(Node):
        lines: list[str]
        doubled: Annotated[list[int], Map(double, over="lengths")]
        lengths: Annotated[list[int], Map(len_of, over="lines")]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_items_of_the_wrong_type_are_an_error_that_names_both():
    problem = the_problem(mapping(list[int]))

    assert (problem.severity, problem.code) == ("error", "bae-map-item")
    assert problem.message == "len_of(line) takes str, but the items are int"


@pytest.mark.parametrize(
    ("over", "items"),
    [
        (tuple[str, int], "str | int"),
        (tuple[int, ...], "int"),
        (list[str] | set[int], "str | int"),
        (Generator[int, str, str], "int"),
        (NewType("Numbers", list[int]), "int"),
    ],
    ids=str,
)
def test_the_items_of_anything_list_like_are_looked_at(over: Any, items: str):
    problem = the_problem(mapping(over))

    assert problem.code == "bae-map-item"
    assert problem.message == f"len_of(line) takes str, but the items are {items}"


def test_a_mapped_function_must_take_the_item_and_nothing_else():
    def two(a: str, b: int) -> int:
        return 1

    def none() -> int:
        return 1

    assert "are: a, b" in the_problem(mapping(list[str], two)).message
    assert "are: nothing" in the_problem(mapping(list[str], none)).message


def test_a_mapped_function_may_have_dependencies_an_lm_and_defaults_besides_the_item():
    def weigh(
        now: Annotated[Weather, Dep(get_weather)], model: LM, item: str, factor: int = 2
    ) -> int:
        return 1

    assert problems(mapping(list[str], weigh)) == []


def test_a_dependency_of_a_mapped_function_is_checked_too():
    def weigh(item: str, now: Annotated[str, Dep(get_weather)]) -> int:
        return 1

    assert codes(mapping(list[str], weigh)) == [("bae-dep-type", "Maps.mapped")]


def test_what_a_map_makes_must_fit_its_field():
    assert problems(mapping(list[str], len_of, Sequence[float])) == []
    assert the_problem(mapping(list[str], len_of, list[str])).message == (
        "is list[str], but len_of returns list[int]"
    )
    assert the_problem(mapping(list[str], len_of, int)).code == "bae-dep-type"


def test_a_mapped_function_without_a_return_annotation_is_an_error():
    def untold(x: str):
        return 1

    assert the_problem(mapping(list[str], untold)).code == "bae-dep-unannotated"


def test_a_mapped_graph_takes_the_item_as_its_start_or_as_the_starts_one_field():
    class Inner(Node):
        name: str
        size: int = 1

        async def __call__(self) -> None: ...

    assert problems(mapping(list[Inner], Inner, list[Inner])) == []
    assert problems(mapping(list[str], Graph(start=Inner), list[Inner])) == []
    assert the_problem(mapping(list[int], Inner, list[Inner])).code == "bae-map-item"


def test_a_mapped_graph_with_two_fields_to_give_is_an_error():
    class Inner(Node):
        name: str
        size: int

        async def __call__(self) -> None: ...

    problem = the_problem(mapping(list[str], Inner, list[Inner]))

    assert problem.code == "bae-map-item"
    assert "but the required plain fields of its start are: name, size" in problem.message


# What the LM fills


def filled(annotation: Any, default: Any = ...) -> type[Node]:
    """A graph whose LM fills a field of that type."""

    class Start(Node):
        async def __call__(self): ...

    async def call(self: Node) -> None: ...

    node = create_model("Filled", __base__=Node, x=(annotation, default))
    type.__setattr__(node, "__call__", call)
    Start.__call__.__annotations__["return"] = node
    return Start


class Recursive(BaseModel):
    inside: Recursive | None = None


class HoldsOpaque(BaseModel, arbitrary_types_allowed=True):
    thing: Opaque


@pytest.mark.parametrize(
    "annotation",
    [
        Opaque,
        list[Opaque],
        dict[str, Opaque],
        HoldsOpaque,
        Callable[[], int],
        Annotated[Opaque, "noted"],
    ],
    ids=str,
)
def test_a_field_for_the_lm_without_a_json_schema_is_an_error(annotation: Any):
    problem = the_problem(filled(annotation))

    assert (problem.severity, problem.code, problem.place) == (
        "error",
        "bae-field-no-schema",
        "Filled.x",
    )
    assert "has no JSON schema" in problem.message


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        int | None,
        list[Mood],
        dict[str, list[Weather | Mood]],
        Colour,
        Literal["a", 1, None],
        tuple[int, str],
        Path,
        bytes,
        Any,
        Recursive,
        Box[Mood],
        Annotated[int, Field(ge=0)],
        Opaque | SkipJsonSchema[Mood] | str,
    ],
    ids=str,
)
def test_a_field_for_the_lm_that_json_can_say_is_fine(annotation: Any):
    assert problems(filled(annotation)) == []


def test_a_default_that_json_cannot_say_is_no_problem_and_no_warning():
    assert problems(filled(list[int], object())) == []


def test_only_fields_that_the_lm_fills_need_a_json_schema():
    def get_opaque() -> Opaque:
        return Opaque()

    class Start(Node):
        given: Opaque

        async def __call__(self) -> Written: ...

    class Written(Node):
        recalled: Annotated[Opaque, Recall()]
        made: Annotated[Opaque, Dep(get_opaque)]
        asked: Annotated[Opaque, Gate("which?")]

        async def __call__(self) -> Built:
            return Built(thing=self.made)

    class Built(Node):
        thing: Opaque

        async def __call__(self) -> None: ...

    assert problems(Start) == []


# Markers


def test_two_sources_for_one_field_are_an_error():
    class Start(Node):
        x: Annotated[Weather, Dep(get_weather), Gate("how is it?")]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert (problem.severity, problem.code, problem.place) == (
        "error",
        "bae-field-sources",
        "Start.x",
    )
    assert problem.message == "has Dep and Gate"


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[Weather, Dep(get_weather)] | None,
        Optional[Annotated[Weather, Recall()]],
        list[Annotated[Weather, Dep(get_weather)]],
        dict[str, list[Annotated[Weather, Gate("?")]]],
        Annotated[Annotated[Weather, Dep(get_weather)] | None, "noted"],
    ],
    ids=str,
)
def test_a_source_inside_the_type_is_an_error_since_it_would_not_be_seen(annotation: Any):
    async def call(self: Node) -> None: ...

    node = create_model("Start", __base__=Node, x=(annotation, ...))
    type.__setattr__(node, "__call__", call)
    problem = the_problem(node)

    assert (problem.severity, problem.code, problem.place) == (
        "error",
        "bae-field-buried",
        "Start.x",
    )


def test_a_source_inside_the_type_of_a_parameter_is_an_error_too():
    def forecast(now: Annotated[Weather, Dep(get_weather)] | None = None) -> Weather:
        return now or Weather()

    problem = the_problem(field_of(Weather, forecast))

    assert problem.code == "bae-field-buried"
    assert problem.message.startswith("forecast(now): ")


def test_a_source_around_an_optional_type_is_fine():
    class Start(Node):
        x: Annotated[Weather | None, "noted", Dep(get_weather)]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


# One node class by itself


def test_validate_node_deps_says_what_is_wrong_with_one_class_a_text_each():
    class Alone(Node):
        a: Annotated[str, Dep(get_weather)]
        b: Annotated[list[int], Map(len_of, over="c")]
        d: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    assert validate_node_deps(Alone) == [
        "error   Alone.a          is str, but get_weather returns Weather\n"
        "        fix: declare the field Weather, or give it a function that returns str",
        "error   Alone.b          maps over 'c', and Alone has no such field (it has: a, d)\n"
        "        fix: name a field of the same node that holds a list",
    ]


def test_validate_node_deps_knows_that_a_start_has_nothing_to_recall():
    class Alone(Node):
        plain: str
        asked: Annotated[bool, Gate("fine?")]
        mood: Annotated[Mood, Recall()]
        maybe: Annotated[Mood | None, Recall()] = None

        async def __call__(self) -> None: ...

    assert validate_node_deps(Alone, is_start=False) == []
    (said,) = validate_node_deps(Alone, is_start=True)
    assert said.startswith("error   Alone.mood       Recall() on the start node")


def test_classify_fields_names_the_source_of_every_field_in_order():
    class Alone(Node):
        plain: list[str]
        dep: Annotated[Weather, Dep(get_weather)]
        recalled: Annotated[Mood, Recall()]
        mapped: Annotated[list[int], Map(len_of, over="plain")]
        gate: Annotated[bool, Gate("fine?")]
        default: int = 3

        async def __call__(self) -> None: ...

    assert list(classify_fields(Alone).items()) == [
        ("plain", "plain"),
        ("dep", "dep"),
        ("recalled", "recall"),
        ("mapped", "map"),
        ("gate", "gate"),
        ("default", "plain"),
    ]


def test_classify_fields_raises_for_a_class_that_cannot_be_resolved():
    class Alone(Node):
        x: Nowhere  # noqa: F821

        async def __call__(self) -> None: ...

    with pytest.raises(HintError, match="Nowhere"):
        classify_fields(Alone)


def test_build_dep_dag_is_what_graphlib_sorts():
    def base() -> int:
        return 1

    def left(x: Annotated[int, Dep(base)]) -> int:
        return x

    def right(x: Annotated[int, Dep(base)]) -> int:
        return x

    def top(a: Annotated[int, Dep(left)], b: Annotated[int, Dep(right)]) -> int:
        return a + b

    class Alone(Node):
        one: Annotated[int, Dep(top)]
        two: Annotated[int, Dep(base)]
        three: int = 0

        async def __call__(self) -> None: ...

    dag = build_dep_dag(Alone)

    assert {fn: set(below) for fn, below in dag.items()} == {
        top: {left, right},
        left: {base},
        right: {base},
        base: set(),
    }
    order = list(graphlib.TopologicalSorter(dag).static_order())
    assert sorted(map(order.index, [base, left, right, top])) == [0, 1, 2, 3]
    assert order[0] is base
    assert order[-1] is top


def test_build_dep_dag_raises_a_cycle_as_a_dep_error():
    looped = ring(3)[0]

    class Alone(Node):
        x: Annotated[int, Dep(looped)]

        async def __call__(self) -> None: ...

    with pytest.raises(DepError) as caught:
        build_dep_dag(Alone)

    assert caught.value.code == "bae-dep-cycle"
    assert caught.value.node_type is Alone
    assert caught.value.field_name == "x"
    assert "f0 -> f1 -> f2 -> f0" in str(caught.value)


async def test_a_proof_asks_nobody_and_calls_nothing():
    called: list[str] = []

    def dep() -> int:
        called.append("dep")
        return 1

    def item(x: int) -> int:
        called.append("item")
        return x

    class Start(Node):
        a: Annotated[int, Dep(dep)]
        b: list[int]
        c: Annotated[list[int], Map(item, over="b")]

        async def __call__(self) -> None:
            called.append("body")

    graph = Graph(start=Start)

    assert graph.validate() == []
    assert graph.prove() is None
    assert graph.to_mermaid()
    assert called == []
