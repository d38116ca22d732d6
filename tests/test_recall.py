"""What `Recall` promises: the newest value of its type that somebody gave, filled or answered, in
this run or around it; and that a graph which cannot serve one is refused before it runs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from bae import Dep, Gate, Graph, LimitError, Map, Node, Problem, Recall, RecallError
from bae.journal import Recalled
from bae.resolver import recall_from_trace, resolve_fields
from bae.testing import ScriptedLM


class Mood(BaseModel):
    name: str = "calm"


class Weather(BaseModel):
    degrees: int = 20


class Storm(Weather):
    wind: int = 90


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


Celsius = NewType("Celsius", float)


def get_weather() -> Weather:
    return Weather(degrees=-40)


def len_of(line: str) -> int:
    return len(line)


def problems(start: type[Node]) -> list[Problem]:
    return Graph(start=start).validate()


def codes(start: type[Node]) -> list[tuple[str, str]]:
    """Code and place of every problem, in the order they are told."""
    return [(problem.code, problem.place) for problem in problems(start)]


def the_problem(start: type[Node]) -> Problem:
    """The one problem of a graph."""
    (problem,) = problems(start)
    return problem


def holding(annotation: Any, value: Any) -> Node:
    """A node with one plain field."""
    return create_model("Holds", __base__=Node, x=(annotation, ...))(x=value)


# What is found in a trace


class Said(Node):
    text: str
    count: int = 0

    async def __call__(self) -> None: ...


class Felt(Node):
    mood: Mood
    other: Mood | None = None

    async def __call__(self) -> None: ...


def test_the_newest_value_is_found():
    trace = [Said(text="old"), Said(text="new"), Felt(mood=Mood())]

    assert recall_from_trace(trace, str) == "new"


def test_the_trace_may_be_any_iterable():
    assert recall_from_trace(iter([Said(text="old"), Said(text="new")]), str) == "new"
    assert recall_from_trace((Said(text="only"),), str) == "only"


def test_the_first_field_of_the_type_is_taken_where_a_node_holds_several():
    first, second = Mood(name="first"), Mood(name="second")

    assert recall_from_trace([Felt(mood=first, other=second)], Mood) is first


def test_the_value_is_the_very_object_in_the_trace():
    mood = Mood()

    assert recall_from_trace([Felt(mood=mood)], Mood) is mood


def test_a_node_class_finds_the_newest_such_node():
    old, new = Said(text="old"), Said(text="new")

    assert recall_from_trace([old, new, Felt(mood=Mood())], Said) is new


def test_a_node_class_finds_nodes_of_its_subclasses():
    class Shouted(Said):
        async def __call__(self) -> None: ...

    shouted = Shouted(text="!")

    assert recall_from_trace([Said(text="."), shouted], Said) is shouted
    with pytest.raises(RecallError):
        recall_from_trace([Said(text=".")], Shouted)


def test_a_node_held_in_a_field_is_found_too():
    class Quotes(Node):
        inner: Said

        async def __call__(self) -> None: ...

    inner = Said(text="quoted")

    assert recall_from_trace([Said(text="older"), Quotes(inner=inner)], Said) is inner


def test_a_base_of_all_nodes_is_looked_for_in_fields_like_any_other_type():
    mood = Mood()

    assert recall_from_trace([Felt(mood=mood)], BaseModel) is mood


def test_a_field_that_is_not_resolved_yet_holds_nothing():
    class Worked(Node):
        lines: list[str]
        lengths: Annotated[list[int], Map(len_of, over="lines")]

        async def __call__(self) -> None: ...

    trace = [holding(list[int], [7]), Worked(lines=["a"])]

    assert recall_from_trace(trace, list[int]) == [7]


def test_values_that_a_dep_or_a_recall_made_are_skipped():
    class Looked(Node):
        weather: Annotated[Weather, Dep(get_weather)]
        again: Annotated[Weather, Recall()]

        async def __call__(self) -> None: ...

    told = holding(Weather, Weather(degrees=1))
    looked = Looked(weather=Weather(degrees=2), again=Weather(degrees=3))

    assert recall_from_trace([told, looked], Weather).degrees == 1
    with pytest.raises(RecallError):
        recall_from_trace([looked], Weather)


def test_values_from_gates_and_maps_are_found():
    class Worked(Node):
        lines: list[str]
        lengths: Annotated[list[int], Map(len_of, over="lines")]
        fine: Annotated[bool, Gate("fine?")]

        async def __call__(self) -> None: ...

    worked = Worked(lines=["a"], lengths=[1], fine=False)

    assert recall_from_trace([worked], list[int]) == [1]
    assert recall_from_trace([worked], bool) is False


def test_none_in_an_optional_field_is_no_value_and_the_search_goes_on():
    mood = Mood(name="older")
    trace = [holding(Mood | None, mood), holding(Mood | None, None)]

    assert recall_from_trace(trace, Mood) is mood
    assert recall_from_trace(trace, Mood | None) is mood
    assert recall_from_trace(trace, Optional[Mood]) is mood


def test_a_subclass_serves_where_its_base_is_asked_for():
    storm = Storm()

    assert recall_from_trace([holding(Storm, storm)], Weather) is storm


def test_a_union_finds_the_newest_of_any_of_its_members():
    trace = [holding(Mood, Mood()), holding(Weather, Weather(degrees=3))]

    assert recall_from_trace(trace, Mood | Weather) == Weather(degrees=3)
    assert recall_from_trace(trace, Union[Mood, int]) == Mood()


FOUND = [
    (str, "x", str),
    (list[str], ["x"], list[str]),
    (list[str], ["x"], Sequence[str]),
    (list[str], ["x"], list),
    (list[Storm], [Storm()], list[Weather]),
    (dict[str, int], {"x": 1}, dict[str, int]),
    (tuple[int, str], (1, "x"), tuple[int, str]),
    (Colour, Colour.RED, Colour),
    (Level, Level.LOW, Level),
    (Literal["a", "b"], "a", Literal["a", "b"]),
    (Literal["a"], "a", Literal["a", "b"]),
    (Literal["a"], "a", str),
    (Annotated[str, Field(min_length=1)], "x", str),
    (str, "x", Annotated[str, "noted"]),
    (Celsius, 3.5, Celsius),
    (Celsius, 3.5, float),
    (Any, "x", str),
    (Mood | Weather, Weather(), Weather),
    (bool, True, bool),
    (int, 1, int),
    (float, 1.0, float),
    (None | int, 1, int),
    (int, 1, object),
    (bool, True, Any),
    (None, None, None),
]

MISSED = [
    (str, "x", int),
    (list[str], ["x"], list[int]),
    (list[str], ["x"], str),
    (list[str], ["x"], tuple[str, ...]),
    (list[Weather], [Weather()], list[Storm]),
    (dict[str, int], {"x": 1}, dict[str, str]),
    (Weather, Weather(), Storm),
    (Weather, Storm(), Storm),
    (Colour, Colour.RED, str),
    (str, "red", Colour),
    (str, "a", Literal["a", "b"]),
    (Literal["a", "c"], "c", Literal["a", "b"]),
    (float, 3.5, Celsius),
    (bool, True, int),
    (bool, True, float),
    (int, 1, float),
    (int, 1, bool),
    (float, 1.0, int),
    (bool | str, True, int),
    (int | str, 1, float),
    (Any, 1, str),
    (Any, True, int),
    (Mood | Weather, Mood(), Weather),
    (object, "x", str),
]


@pytest.mark.parametrize(("held", "value", "wanted"), FOUND, ids=str)
def test_a_value_is_found_by_its_declared_type(held: Any, value: Any, wanted: Any):
    older = Said(text="older")

    assert recall_from_trace([older, holding(held, value)], wanted) == value


@pytest.mark.parametrize(("held", "value", "wanted"), MISSED, ids=str)
def test_a_value_of_another_type_is_not_taken_for_it(held: Any, value: Any, wanted: Any):
    with pytest.raises(RecallError):
        recall_from_trace([holding(held, value)], wanted)


def test_a_bool_is_passed_over_for_the_int_before_it():
    trace = [holding(int, 7), holding(bool | int, True), holding(bool, False)]

    assert recall_from_trace(trace, int) == 7
    assert recall_from_trace([*trace, holding(bool | int, 8)], int) == 8


def test_a_recall_that_finds_nothing_says_what_was_looked_through():
    trace = [Said(text="a"), Felt(mood=Mood())]
    with pytest.raises(RecallError) as caught:
        recall_from_trace(trace, list[Weather])

    assert str(caught.value) == (
        "[bae-recall-missing] no list[Weather] in the trace\n"
        "  path:  Said -> Felt\n"
        "  try:   have a node before this one hold a list[Weather] that no Dep or Recall made"
    )


def test_an_empty_trace_has_nothing_to_recall():
    with pytest.raises(RecallError, match="the trace is empty"):
        recall_from_trace([], str)


# In a run


async def test_the_newest_value_is_set_before_the_node_is_called():
    seen: list[str] = []

    class Start(Node):
        word: str

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        word: str

        async def __call__(self) -> End: ...

    class End(Node):
        heard: Annotated[str, Recall()]

        async def __call__(self) -> None:
            seen.append(self.heard)

    result = await Graph(start=Start).arun(Start(word="one"), ScriptedLM([{"word": "two"}, {}]))

    assert seen == ["two"]
    assert result.trace[-1].model_dump() == {"heard": "two"}


async def test_a_recalled_value_is_passed_to_the_lm_and_written_down():
    class Start(Node):
        word: str

        async def __call__(self) -> End: ...

    class End(Node):
        word: Annotated[str, Recall()]
        more: int

        async def __call__(self) -> None: ...

    lm = ScriptedLM([{"more": 1}])
    result = await Graph(start=Start).arun(Start(word="one"), lm)

    assert lm.asked[0].resolved == {"word": "one"}
    (record,) = result.journal.of(Recalled)
    assert (record.node_type, record.field, record.value) == (End, "word", "one")


async def test_the_field_of_the_same_name_is_preferred():
    class Start(Node):
        first: str
        second: str

        async def __call__(self) -> End: ...

    class End(Node):
        second: Annotated[str, Recall()]
        other: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    result = await Graph(start=Start).arun(Start(first="1", second="2"), ScriptedLM())

    assert result.trace[-1].model_dump() == {"second": "2", "other": "1"}


async def test_a_newer_node_wins_over_an_older_one_with_the_same_name():
    class Start(Node):
        wanted: str

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        unrelated: str

        async def __call__(self) -> End: ...

    class End(Node):
        wanted: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    lm = ScriptedLM([{"unrelated": "newer"}])
    result = await Graph(start=Start).arun(Start(wanted="older"), lm)

    assert result.trace[-1].model_dump() == {"wanted": "newer"}


async def test_a_named_node_class_is_looked_for_past_newer_values():
    class Start(Node):
        word: str

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        word: str

        async def __call__(self) -> End: ...

    class End(Node):
        word: Annotated[str, Recall(Start)]
        start: Annotated[Start, Recall()]

        async def __call__(self) -> None: ...

    start = Start(word="one")
    result = await Graph(start=Start).arun(start, ScriptedLM([{"word": "two"}]))

    assert result.trace[-1].word == "one"
    assert result.trace[-1].start.word == "one"


async def test_a_loop_recalls_what_the_round_before_left():
    class Start(Node):
        text: str

        async def __call__(self) -> Turn:
            return Turn(text="1")

    class Turn(Node):
        before: Annotated[str, Recall()]
        text: str

        async def __call__(self) -> Turn | None:
            return None if self.text == "3" else Turn(text=str(int(self.text) + 1))

    result = await Graph(start=Start).arun(Start(text="0"))

    assert [node.before for node in result.trace[1:]] == ["0", "1", "2"]


async def test_a_default_stands_in_where_nothing_is_found():
    class Start(Node):
        mood: Annotated[Mood | None, Recall()] = None

        async def __call__(self) -> End: ...

    class End(Node):
        mood: Annotated[Mood, Recall()] = Field(default_factory=lambda: Mood(name="default"))

        async def __call__(self) -> None: ...

    result = await Graph(start=Start).arun(Start(), ScriptedLM())

    assert [node.mood for node in result.trace] == [None, Mood(name="default")]
    assert result.journal.of(Recalled) == []


async def test_a_value_that_the_body_gives_is_kept():
    class Start(Node):
        word: str

        async def __call__(self) -> End:
            return End(word="given")

    class End(Node):
        word: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    result = await Graph(start=Start).arun(Start(word="recalled"))

    assert result.trace[-1].word == "given"


async def test_a_graph_inside_recalls_its_own_trace_before_the_one_around_it():
    class Inner(Node):
        async def __call__(self) -> Own | Foreign: ...

    class Own(Node):
        word: str

        async def __call__(self) -> Foreign: ...

    class Foreign(Node):
        word: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    class Start(Node):
        word: str

        async def __call__(self) -> Outer: ...

    class Outer(Node):
        inner: Annotated[Foreign, Dep(Inner)]

        async def __call__(self) -> None: ...

    graph = Graph(start=Start)
    own = await graph.arun(Start(word="outer"), ScriptedLM([Own, {"word": "inner"}]))
    foreign = await graph.arun(Start(word="outer"), ScriptedLM([Foreign]))

    assert own.trace[-1].inner.word == "inner"
    assert foreign.trace[-1].inner.word == "outer"


async def test_a_graph_that_recalls_two_levels_down_is_not_started_early():
    class Innermost(Node):
        word: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    class Inner(Node):
        below: Annotated[Innermost, Dep(Innermost)]

        async def __call__(self) -> None: ...

    class Start(Node):
        async def __call__(self) -> Middle: ...

    class Middle(Node):
        word: str

        async def __call__(self) -> End: ...

    class End(Node):
        inner: Annotated[Inner, Dep(Inner)]

        async def __call__(self) -> None: ...

    class Pausing(ScriptedLM):
        """Lets everything that was started go on while it fills."""

        async def fill(self, *args: Any, **options: Any) -> Any:
            for _ in range(20):
                await asyncio.sleep(0)
            return await super().fill(*args, **options)

    result = await Graph(start=Start).arun(Start(), Pausing([{"word": "said"}]))

    assert result.trace[-1].inner.below.word == "said"


async def test_what_cannot_be_found_after_all_is_an_error_with_the_way_there():
    class Start(Node):
        mood: Mood | None

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        async def __call__(self) -> End: ...

    class End(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    with pytest.raises(RecallError) as caught:
        await Graph(start=Start).arun(Start(mood=None), ScriptedLM())

    error = caught.value
    assert (error.code, error.node_type, error.field_name) == ("bae-recall-missing", End, "mood")
    assert [type(node) for node in error.trace] == [Start, Middle]
    assert str(error) == (
        "[bae-recall-missing] End.mood: Recall() found no Mood in the trace\n"
        "  path:  Start -> Middle -> End\n"
        "  try:   have a node before End hold a Mood, or give the field a default"
    )


async def test_a_recalled_value_that_the_field_refuses_is_an_error_of_the_field():
    class Start(Node):
        word: str

        async def __call__(self) -> End: ...

    class End(Node):
        word: Annotated[str, Recall(), Field(max_length=3)]

        async def __call__(self) -> None: ...

    with pytest.raises(RecallError) as caught:
        await Graph(start=Start).arun(Start(word="too long"), ScriptedLM())

    assert caught.value.code == "bae-recall-invalid"
    assert (caught.value.node_type, caught.value.field_name) == (End, "word")
    assert caught.value.message.startswith("End.word: String should have at most 3 characters")
    assert caught.value.fix == "declare the field as the one it is recalled from"


async def test_resolve_fields_recalls_from_the_trace_it_is_given():
    class End(Node):
        word: Annotated[str, Recall()]
        said: Annotated[Said, Recall()]

        async def __call__(self) -> None: ...

    said = Said(text="one")

    assert await resolve_fields(End, [said]) == {"word": "one", "said": said}
    with pytest.raises(RecallError):
        await resolve_fields(End, [])


# Before a run


def test_a_recall_on_the_start_node_is_an_error():
    class Start(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert (problem.severity, problem.code, problem.place) == (
        "error",
        "bae-recall-start",
        "Start.mood",
    )


def test_a_recall_with_a_default_may_stand_anywhere():
    class Start(Node):
        mood: Annotated[Mood | None, Recall()] = None

        async def __call__(self) -> End: ...

    class End(Node):
        mood: Annotated[Mood, Recall()] = Field(default_factory=Mood)

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_a_start_that_is_come_back_to_still_has_nothing_to_recall_the_first_time():
    class Start(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> Feel | None: ...

    class Feel(Node):
        mood: Mood

        async def __call__(self) -> Start: ...

    assert codes(Start) == [("bae-recall-start", "Start.mood")]


def test_a_diamond_with_a_holder_on_one_side_only_names_the_other_side():
    class Start(Node):
        async def __call__(self) -> Left | Right: ...

    class Left(Node):
        mood: Mood

        async def __call__(self) -> End: ...

    class Right(Node):
        async def __call__(self) -> End: ...

    class End(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert problem.code == "bae-recall-path"
    assert problem.message == "Recall() can find no Mood on the path Start -> Right -> End"


def test_a_diamond_with_a_holder_on_both_sides_is_fine():
    class Start(Node):
        async def __call__(self) -> Left | Right: ...

    class Left(Node):
        mood: Mood

        async def __call__(self) -> End: ...

    class Right(Node):
        feeling: Mood

        async def __call__(self) -> End: ...

    class End(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_the_shortest_path_without_a_holder_is_named():
    class Start(Node):
        async def __call__(self) -> One | Two | End: ...

    class One(Node):
        async def __call__(self) -> Two: ...

    class Two(Node):
        async def __call__(self) -> Three: ...

    class Three(Node):
        async def __call__(self) -> End: ...

    class End(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    assert "on the path Start -> End" in the_problem(Start).message


def test_what_is_filled_only_after_a_loop_came_round_is_missing_the_first_time():
    class Start(Node):
        async def __call__(self) -> Draft: ...

    class Draft(Node):
        notes: Annotated[list[str], Recall()]

        async def __call__(self) -> Review: ...

    class Review(Node):
        notes: list[str]

        async def __call__(self) -> Draft | None: ...

    assert the_problem(Start).message == "Recall() can find no list[str] on the path Start -> Draft"


def test_a_node_cannot_recall_what_it_holds_itself_before_it_has_been_there():
    class Start(Node):
        async def __call__(self) -> Turn: ...

    class Turn(Node):
        said: str
        before: Annotated[str, Recall()]

        async def __call__(self) -> Turn | None: ...

    assert "Start -> Turn" in the_problem(Start).message


def test_a_holder_before_a_loop_serves_every_round():
    class Start(Node):
        topic: str

        async def __call__(self) -> Draft: ...

    class Draft(Node):
        topic: Annotated[str, Recall()]
        text: list[str]

        async def __call__(self) -> Draft | None: ...

    assert problems(Start) == []


def test_a_value_made_by_a_dep_or_a_recall_is_no_value_to_recall():
    class Start(Node):
        async def __call__(self) -> Look: ...

    class Look(Node):
        weather: Annotated[Weather, Dep(get_weather)]

        async def __call__(self) -> End: ...

    class End(Node):
        weather: Annotated[Weather, Recall()]

        async def __call__(self) -> None: ...

    assert "Start -> Look -> End" in the_problem(Start).message


def test_a_value_from_a_gate_or_a_map_can_be_recalled():
    class Start(Node):
        lines: list[str]
        lengths: Annotated[list[int], Map(len_of, over="lines")]
        approved: Annotated[bool, Gate("fine?")]

        async def __call__(self) -> End: ...

    class End(Node):
        lengths: Annotated[list[int], Recall()]
        approved: Annotated[bool, Recall()]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_recall_of_a_node_type_looks_only_at_nodes_of_that_type():
    class Start(Node):
        text: str

        async def __call__(self) -> Draft | End: ...

    class Draft(Node):
        text: str

        async def __call__(self) -> End: ...

    class End(Node):
        text: Annotated[str, Recall(Draft)]

        async def __call__(self) -> None: ...

    assert the_problem(Start).message == "Recall(Draft) can find no str on the path Start -> End"


def test_recall_of_a_node_type_takes_its_subclasses():
    class Draft(Node):
        text: str

        async def __call__(self) -> None: ...

    class Start(Node):
        async def __call__(self) -> Better: ...

    class Better(Draft):
        async def __call__(self) -> End: ...

    class End(Node):
        text: Annotated[str, Recall(Draft)]
        draft: Annotated[Draft, Recall()]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_a_field_of_a_node_class_recalls_the_node_itself():
    class Start(Node):
        async def __call__(self) -> End | Side: ...

    class Side(Node):
        async def __call__(self) -> End: ...

    class End(Node):
        start: Annotated[Start, Recall()]
        side: Annotated[Side, Recall()]

        async def __call__(self) -> None: ...

    assert codes(Start) == [("bae-recall-path", "End.side")]


def test_a_graph_inside_another_sees_what_was_held_around_it():
    class Inner(Node):
        topic: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    class Start(Node):
        topic: str

        async def __call__(self) -> Outer: ...

    class Outer(Node):
        inner: Annotated[Inner, Dep(Inner)]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_a_recall_that_neither_a_graph_nor_those_around_it_can_serve_names_the_whole_way():
    class Deep(Node):
        async def __call__(self) -> Deeper: ...

    class Deeper(Node):
        topic: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    class Inner(Node):
        deep: Annotated[Deeper, Dep(Deep)]

        async def __call__(self) -> None: ...

    class Start(Node):
        async def __call__(self) -> Outer: ...

    class Outer(Node):
        inner: Annotated[Inner, Dep(Inner)]
        topic: str

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert (problem.code, problem.place) == ("bae-recall-path", "Deeper.topic")
    assert "on the path Start -> Outer -> Inner -> Deep -> Deeper" in problem.message


def test_a_graph_used_where_its_recall_is_served_and_where_it_is_not_is_told_once():
    class Inner(Node):
        topic: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    class Start(Node):
        inner: Annotated[Inner, Dep(Inner)]
        topic: str

        async def __call__(self) -> Next: ...

    class Next(Node):
        inner: Annotated[Inner, Dep(Inner)]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert problem.place == "Inner.topic"
    assert "on the path Start -> Inner" in problem.message


def test_a_holder_that_may_hold_something_else_makes_a_recall_unsure_not_wrong():
    class Start(Node):
        mood: Mood | None

        async def __call__(self) -> End: ...

    class End(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert (problem.severity, problem.code) == ("warning", "bae-recall-unsure")
    assert "Recall() may find no Mood on the path Start -> End" in problem.message


def test_a_sure_holder_before_an_unsure_one_is_enough():
    class Start(Node):
        mood: Mood

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        mood: Mood | None

        async def __call__(self) -> End: ...

    class End(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    assert problems(Start) == []


def test_two_holders_in_one_node_are_ambiguous_unless_one_has_the_name():
    class Start(Node):
        first: str
        second: str

        async def __call__(self) -> End: ...

    class End(Node):
        second: Annotated[str, Recall()]
        other: Annotated[str, Recall()]

        async def __call__(self) -> None: ...

    problem = the_problem(Start)

    assert (problem.severity, problem.code, problem.place) == (
        "warning",
        "bae-recall-ambiguous",
        "End.other",
    )
    assert problem.message == "Start holds a str in first, second; first is taken"


def test_paths_are_not_judged_while_a_class_on_them_cannot_be_resolved():
    class Start(Node):
        async def __call__(self) -> End | Odd: ...

    class Odd(Node):
        async def __call__(self) -> End | Nowhere: ...  # noqa: F821

    class End(Node):
        mood: Annotated[Mood, Recall()]

        async def __call__(self) -> None: ...

    assert [p.code for p in problems(Start)] == ["bae-hint-unresolved"]


@pytest.mark.parametrize("given", ["Said", str, Mood, Said(text="x")], ids=str)
def test_only_a_node_class_can_be_named_to_look_at(given: Any):
    with pytest.raises(TypeError, match="give it a Node class"):
        Recall(given)


# Random graphs: the proof against what walks find

TYPES: list[Any] = [
    str,
    int,
    float,
    bool,
    list[str],
    list[int],
    Mood,
    Literal["x"],
    Mood | None,
    str | int,
]
VALUES: list[Callable[[int], Any]] = [
    lambda n: f"s{n}",
    lambda n: n,
    lambda n: n + 0.5,
    lambda n: n % 2 == 0,
    lambda n: [f"l{n}"],
    lambda n: [n],
    lambda n: Mood(name=f"m{n}"),
    lambda n: "x",
    lambda n: Mood(name=f"o{n}") if n % 2 else None,
    lambda n: n if n % 2 else f"u{n}",
]
# What a field of each type surely holds, and what it may hold: a literal is a string too.
SURELY: list[set[int]] = [*({kind} for kind in range(7)), {7, 0}, set(), set()]
MAYBE: list[set[int]] = [*SURELY[:8], {6}, {0, 1}]
RECALLED = 8


class Shape:
    """A random graph: for every node its successors, whether it may end, the types it holds, and
    the types it recalls."""

    def __init__(self, nodes: list[tuple[set[int], bool, set[int], set[int]]]) -> None:
        count = len(nodes)
        self.successors = [sorted(i for i in onward if i < count) for onward, *_ in nodes]
        self.may_end = [
            ends or not onward
            for (_, ends, _, _), onward in zip(nodes, self.successors, strict=True)
        ]
        self.holds = [sorted(held) for _, _, held, _ in nodes]
        self.recalls = [sorted(wanted) for *_, wanted in nodes]

    def __repr__(self) -> str:
        return f"<{self.successors} {self.may_end} {self.holds} {self.recalls}>"

    def held(self, index: int, by: list[set[int]]) -> set[int]:
        return set().union(*(by[kind] for kind in self.holds[index]))

    def entries(self, by: list[set[int]]) -> set[tuple[int, frozenset[int]]]:
        """Every node with every set of types that some walk has seen when it gets there."""
        seen: set[tuple[int, frozenset[int]]] = set()
        ahead = [(0, frozenset[int]())]
        while ahead:
            state = ahead.pop()
            if state in seen:
                continue
            seen.add(state)
            index, held = state
            after = held | self.held(index, by)
            ahead.extend((following, after) for following in self.successors[index])
        return seen

    def unserved(self, by: list[set[int]]) -> set[tuple[int, int]]:
        """Every recall that some walk gets to with nothing to find."""
        return {
            (index, kind)
            for index, held in self.entries(by)
            for kind in self.recalls[index]
            if kind not in held
        }

    def build(self, route: list[int] | None = None) -> list[type[Node]]:
        """Node classes of this shape; their bodies follow `route`, or are empty without one."""
        classes: list[type[Node]] = []
        for index in range(len(self.successors)):
            fields: dict[str, Any] = {f"h{kind}": (TYPES[kind], ...) for kind in self.holds[index]}
            fields |= {
                f"r{kind}": (Annotated[TYPES[kind], Recall()], ...) for kind in self.recalls[index]
            }
            classes.append(create_model(f"N{index}", __base__=Node, **fields))
        for index, cls in enumerate(classes):
            call = empty_body() if route is None else written_body(self, classes, index, route)
            targets = [classes[i] for i in self.successors[index]]
            offered = [*targets, *([None] if self.may_end[index] else [])]
            call.__annotations__ = {"return": Union[tuple(offered)]}
            type.__setattr__(cls, "__call__", call)
        return classes

    def new(self, classes: list[type[Node]], index: int, number: int) -> Node:
        return classes[index](**{f"h{k}": VALUES[k](number) for k in self.holds[index]})


def empty_body() -> Any:
    async def call(self: Node): ...

    return call


def written_body(shape: Shape, classes: list[type[Node]], index: int, route: list[int]) -> Any:
    async def call(self: Node):
        onward: list[int | None] = [*shape.successors[index]]
        if shape.may_end[index]:
            onward.append(None)
        drawn = route.pop(0) if route else -1
        chosen = onward[drawn % len(onward)]
        return None if chosen is None else shape.new(classes, chosen, drawn)

    return call


def shapes(most: int = 6) -> st.SearchStrategy[Shape]:
    held = st.sets(st.integers(0, len(TYPES) - 1), max_size=3)
    recalled = st.sets(st.integers(0, RECALLED - 1), max_size=3)
    onward = st.sets(st.integers(0, most - 1), max_size=3)
    node = st.tuples(onward, st.booleans(), held, recalled)
    return st.lists(node, min_size=1, max_size=most).map(Shape)


def places(found: list[Problem]) -> set[tuple[int, ...]]:
    return {tuple(int(part[1:]) for part in problem.place.split(".")) for problem in found}


@settings(deadline=None, max_examples=200)
@given(shapes())
def test_a_recall_is_refused_exactly_when_some_walk_gets_there_without_a_holder(shape: Shape):
    found = Graph(start=shape.build()[0]).validate()
    recalls = [p for p in found if p.code.startswith("bae-recall-")]

    assert places([p for p in recalls if p.severity == "error"]) == shape.unserved(MAYBE)


@settings(deadline=None, max_examples=200)
@given(shapes())
def test_a_recall_is_warned_of_exactly_when_some_walk_gets_there_without_a_sure_holder(
    shape: Shape,
):
    found = Graph(start=shape.build()[0]).validate()
    unsure = shape.unserved(SURELY) - shape.unserved(MAYBE)

    assert places([p for p in found if p.code == "bae-recall-unsure"]) == unsure


@settings(deadline=None, max_examples=200)
@given(shapes())
def test_the_path_that_is_named_is_a_shortest_walk_without_a_holder(shape: Shape):
    for problem in Graph(start=shape.build()[0]).validate():
        if problem.code not in ("bae-recall-path", "bae-recall-unsure"):
            continue
        by = MAYBE if problem.severity == "error" else SURELY
        ((index, kind),) = places([problem])
        named = problem.message.split(" on the path ")[1].split(":")[0]
        path = [int(name[1:]) for name in named.split(" -> ")]

        assert path[0] == 0
        assert path[-1] == index
        for here, onward in itertools.pairwise(path):
            assert onward in shape.successors[here]
            assert kind not in shape.held(here, by)
        assert len(path) == shortest_gap(shape, index, kind, by)


def shortest_gap(shape: Shape, goal: int, kind: int, by: list[set[int]]) -> int:
    """How many nodes the shortest walk to `goal` has that meets no holder on its way."""
    edge, length = {0}, 1
    while goal not in edge:
        free = {i for i in edge if kind not in shape.held(i, by)}
        edge, length = {onward for i in free for onward in shape.successors[i]}, length + 1
    return length


@settings(deadline=None, max_examples=200)
@given(shapes(), st.lists(st.integers(0, 11), max_size=12))
def test_a_graph_proved_without_errors_misses_only_recalls_it_was_warned_of_and_finds_the_newest(
    shape: Shape, route: list[int]
):
    # What a walk cannot be served is taken out, so that every example is a graph that may run.
    for index, kind in shape.unserved(MAYBE):
        shape.recalls[index].remove(kind)
    classes = shape.build([*route])
    graph = Graph(start=classes[0])
    found = graph.validate()
    assert [p for p in found if p.severity == "error"] == []
    warned = places([p for p in found if p.code == "bae-recall-unsure"])

    try:
        trace = graph.run(shape.new(classes, 0, 100), max_iters=len(route) + 1).trace
    except LimitError as error:  # the walk was cut where the graph cannot end
        trace = error.trace
    except RecallError as error:
        trace = error.trace
        missed = classes.index(error.node_type), int(error.field_name[1:])
        assert missed in warned
        assert newest(shape, classes, trace, missed[1]) is NOTHING
    for position, node in enumerate(trace):
        for kind in shape.recalls[classes.index(type(node))]:
            assert getattr(node, f"r{kind}") == newest(shape, classes, trace[:position], kind)


NOTHING = object()


def newest(shape: Shape, classes: list[type[Node]], trace: list[Node], kind: int) -> Any:
    """What a recall must find: the newest value of its type, the first where there are several."""
    for node in reversed(trace):
        for held in shape.holds[classes.index(type(node))]:
            value = getattr(node, f"h{held}")
            if kind in SURELY[held] or (kind in MAYBE[held] and type(value) is TYPES[kind]):
                return value
    return NOTHING


def test_a_node_that_cannot_come_before_is_not_called_ambiguous():
    class First(Node):
        message: str

        async def __call__(self) -> Second: ...

    class Second(Node):
        message: Annotated[str, Recall()]

        async def __call__(self) -> Third: ...

    class Third(Node):
        title: str
        body: str

        async def __call__(self) -> None: ...

    assert Graph(start=First).validate() == []
