"""What the proof says about return types: where a node may lead."""

from __future__ import annotations

from typing import Any

import pytest

from bae import (
    LM,
    Graph,
    Node,
)
from proving import (
    Mood,
    problems,
    the_problem,
)

# Return types


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


def test_one_name_in_two_places_that_are_never_offered_together_is_fine():
    def another(following: Any) -> type[Node]:
        class Twin(Node):
            async def __call__(self): ...

        Twin.__call__.__annotations__["return"] = following
        return Twin

    assert problems(another(another(None))) == []


@pytest.mark.parametrize("returned", ["nothing", Mood, str], ids=str)
def test_what_follows_from_a_wrong_return_type_is_not_told_besides(returned: Any):
    class End(Node):
        async def __call__(self) -> None: ...

    class Start(Node):
        async def __call__(self): ...

    if returned != "nothing":
        Start.__call__.__annotations__["return"] = returned

    for ends in (End, Start, (Start, End)):
        assert the_problem(Start, end=ends).place == "Start.__call__"


def test_what_follows_from_a_missing_call_is_not_told_besides():
    class End(Node):
        async def __call__(self) -> None: ...

    class Lonely(Node):
        text: str = ""

    for ends in (End, Lonely):
        problem = the_problem(Lonely, end=ends)
        assert (problem.code, problem.place) == ("bae-node-without-call", "Lonely")
        assert "or `-> None` where the run ends" in problem.fix
