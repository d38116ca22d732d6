"""What the proof says about maps, fields the LM fills, and markers written wrong."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
from pydantic import BaseModel, Field, RootModel, create_model
from pydantic.json_schema import SkipJsonSchema

from bae import LM, Dep, Gate, Graph, Map, Node, OpenGate, Recall
from bae.testing import ScriptedLM
from end_node import EndNode, leading_to
from naming import describe_value
from proving import (
    Box,
    Celsius,
    Color,
    Mood,
    Opaque,
    Weather,
    codes,
    field_of,
    get_weather,
    len_of,
    problems,
    the_error,
    the_problem,
)

if sys.version_info >= (3, 12):
    from typing import TypeAliasType
else:
    from typing_extensions import TypeAliasType

# Map


def mapping(over: Any, fn: Any = len_of, into: Any = list[int]) -> type[Node]:
    """A start node that maps over a field of type `over`."""
    mapped = (Annotated[into, Map(fn, over="items")], ...)
    return create_model("Maps", __base__=EndNode, items=(over, ...), mapped=mapped)


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
def test_a_map_accepts_any_list_like_type(over: Any):
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
def test_a_map_over_a_type_that_is_not_a_list_is_an_error(over: Any):
    problem = the_error("bae-map-over", "Maps.mapped", mapping(over))
    assert "and no list" in problem.message


def test_two_maps_over_each_other_are_errors():
    class Start(EndNode):
        a: Annotated[list[int], Map(len_of, over="b")]
        b: Annotated[list[int], Map(len_of, over="a")]

    assert codes(Start) == [("bae-map-over", "Start.a"), ("bae-map-over", "Start.b")]


def test_a_map_over_a_map_has_no_problems():
    def double(n: int) -> int:
        return 2 * n

    class Start(EndNode):
        lines: list[str]
        doubled: Annotated[list[int], Map(double, over="lengths")]
        lengths: Annotated[list[int], Map(len_of, over="lines")]

    assert problems(Start) == []


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
def test_the_items_of_any_list_like_type_are_checked(over: Any, items: str):
    problem = the_error("bae-map-item", "Maps.mapped", mapping(over))
    assert problem.message == f"len_of(line) takes str, but the items are {items}"


def test_a_mapped_function_must_take_only_the_item():
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


def test_the_results_of_a_map_must_fit_its_field():
    assert problems(mapping(list[str], len_of, Sequence[float])) == []
    assert the_problem(mapping(list[str], len_of, list[str])).message == (
        "is list[str], but len_of returns list[int]"
    )
    assert the_problem(mapping(list[str], len_of, int)).code == "bae-dep-type"


def test_a_mapped_graph_takes_the_item_as_its_start_node_or_its_only_field():
    class Inner(EndNode):
        name: str
        size: int = 1

    class Special(Inner): ...

    assert problems(mapping(list[Inner], Inner, list[Inner])) == []
    assert problems(mapping(list[str], Graph(start=Inner), list[Inner])) == []
    for item in (int, Special):
        assert the_problem(mapping(list[item], Inner, list[Inner])).code == "bae-map-item"


def test_a_mapped_graph_whose_start_needs_two_fields_is_an_error():
    class Inner(EndNode):
        name: str
        size: int

    problem = the_error("bae-map-item", "Maps.mapped", mapping(list[str], Inner, list[Inner]))
    assert "but the required plain fields of its start are: name, size" in problem.message


# What the LM fills


def make_graph_with_field(annotation: Any, default: Any = ...) -> type[Node]:
    """A graph whose LM fills a field of that type."""
    return leading_to(create_model("Filled", __base__=EndNode, x=(annotation, default)))


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
        SkipJsonSchema[int],
        SkipJsonSchema[Mood],
        type[Mood],
        Literal[Color.RED],
    ],
    ids=str,
)
def test_a_field_for_the_llm_without_a_json_schema_is_an_error(annotation: Any):
    problem = the_error("bae-field-no-schema", "Filled.x", make_graph_with_field(annotation))
    assert "has no JSON schema" in problem.message


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        int | None,
        list[Mood],
        dict[str, list[Weather | Mood]],
        Color,
        Literal["a", 1, None],
        tuple[int, str],
        Path,
        Any,
        Recursive,
        Box[Mood],
        Annotated[int, Field(ge=0)],
        Opaque | SkipJsonSchema[Mood] | str,
    ],
    ids=str,
)
def test_a_field_for_the_llm_with_a_json_schema_has_no_problems(annotation: Any):
    assert problems(make_graph_with_field(annotation)) == []


def test_enum_members_without_a_json_form_are_an_error_even_with_a_default():
    problem = the_error(
        "bae-field-no-schema", "Filled.x", make_graph_with_field(Literal[Color.RED], Color.RED)
    )
    assert "JSON cannot name the members of Color: make it a StrEnum" in problem.message


def test_a_default_without_a_json_form_is_not_a_problem():
    lock = Field(default_factory=threading.Lock, exclude=True)
    for annotation, default in ((list[int], object()), (SkipJsonSchema[int], 0), (object, lock)):
        assert problems(make_graph_with_field(annotation, default)) == []


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

    class Built(EndNode):
        thing: Opaque

    assert problems(Start) == []


# Markers


@pytest.mark.parametrize(
    "annotation",
    [
        TypeAliasType("alias", Annotated[Weather, Dep(get_weather)]),
        Annotated[Weather, Dep(get_weather)] | None,
        Optional[Annotated[Weather, Recall()]],
        list[Annotated[Weather, Dep(get_weather)]],
        dict[str, list[Annotated[Weather, Gate("?")]]],
        Annotated[Annotated[Weather, Dep(get_weather)] | None, "noted"],
    ],
    ids=describe_value,
)
def test_a_source_inside_the_type_is_an_error(annotation: Any):
    start = create_model("Start", __base__=EndNode, x=(annotation, ...))
    the_error("bae-field-buried", "Start.x", start)


def test_a_source_inside_the_type_of_a_parameter_is_an_error_too():
    def forecast(now: Annotated[Weather, Dep(get_weather)] | None = None) -> Weather:
        return now or Weather()

    problem = the_error("bae-field-buried", "Wears.x", field_of(Weather, forecast))
    assert problem.message.startswith("forecast(now): ")


# Gates


@pytest.mark.parametrize(
    "answer", [str, int, Literal["red", "blue"], Mood, bool | str], ids=describe_value
)
def test_a_gate_before_a_fill_is_fine_if_its_answer_informs_the_llm(answer: Any):
    class Letter(EndNode):
        tone: Annotated[answer, Gate("In which tone?")]
        text: str

    assert problems(leading_to(Letter, text=str), end=Letter) == []


def test_an_approval_on_a_node_that_no_llm_fills_has_no_problems():
    class Approval(Node):
        euros: int
        approved: Annotated[bool, Gate("Send it?")] = Field(init=False)

        async def __call__(self) -> Recalled: ...

    class Recalled(EndNode):
        euros: Annotated[int, Recall()]
        sure: Annotated[bool, Gate("Sure?")]  # whoever answers sees the euros

    class Proposal(Node):
        euros: int

        async def __call__(self) -> Approval:
            return Approval(euros=self.euros)

    class Made(Node):
        async def __call__(self, lm: LM) -> Approval:
            return await lm.make(self, Approval)

    for start in (Approval, Proposal, Made):
        assert problems(start) == []


async def test_an_approval_of_a_node_made_in_a_body_shows_the_filled_fields():
    class Refund(EndNode):
        euros: int
        approved: Annotated[bool, Gate("Send the money?")]

    class Complaint(Node):
        async def __call__(self, lm: LM) -> Refund:
            return await lm.make(self, Refund)

    seen: list[dict[str, Any]] = []

    async def approve(gate: OpenGate) -> bool:
        seen.append(dict(gate.context))
        return True

    graph = Graph(start=Complaint, end=Refund)
    await graph.arun(Complaint(), ScriptedLM([{"euros": 5}]), answer=approve)

    assert seen == [{"euros": 5}]
