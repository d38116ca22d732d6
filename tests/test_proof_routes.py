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


def test_an_end_out_of_reach_is_told_where_every_return_type_is_right():
    class End(Node):
        async def __call__(self) -> None: ...

    class Start(Node):
        async def __call__(self) -> None: ...

    assert the_problem(Start, end=(Start, End)).code == "bae-end-unreachable"
