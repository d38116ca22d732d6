"""What the proof promises: whatever is sure to go wrong is said before anything is called, all at
once and so that it can be mended in one read; nothing is said of a graph that is fine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bae import LM, Dep, DepError, Gate, Graph, Map, Node, ProofError, Recall
from bae.proof import endless_loops
from bae.resolver import build_dep_dag, classify_fields, validate_node_deps
from bae.testing import ScriptedLM
from bounded import error_from
from end_node import EndNode, leading_to
from proving import Mood, Opaque, Weather, codes, get_weather, len_of, problems, ring, the_problem

# What a problem looks like


def test_a_problem_is_printed_as_place_message_and_fix_on_two_lines():
    class Outfit(EndNode):
        mood: Annotated[Mood, Recall()]

    problem = the_problem(leading_to(Outfit, name="GettingDressed", message=int))

    assert (problem.severity, problem.code) == ("error", "bae-recall-path")
    assert problem.message == "Recall() can find no Mood on the path GettingDressed -> Outfit"
    assert problem.fix == "fill a Mood before Outfit on that path, or give the field a default"
    assert str(problem) == (
        f"error   Outfit.mood      {problem.message}\n        fix: {problem.fix}"
    )


def test_all_problems_are_reported_at_once_with_errors_before_warnings():
    def untold():
        return 1

    class Middle(Node):
        a: Annotated[str, Dep(get_weather)]
        b: Annotated[int, Dep(untold)]
        c: Annotated[int, Dep(lambda: 1)]
        d: Annotated[list[str], Map(get_weather, over="nowhere")]
        e: Opaque

        async def __call__(self) -> Middle: ...

    reported = problems(leading_to(Middle, early=Annotated[int, Recall()]))

    assert {(p.code, p.place) for p in reported} == {
        ("bae-recall-start", "Start.early"),
        ("bae-dep-type", "Middle.a"),
        ("bae-dep-unannotated", "Middle.b"),
        ("bae-dep-unannotated", "Middle.c"),
        ("bae-dep-type", "Middle.d"),
        ("bae-map-over", "Middle.d"),
        ("bae-field-no-schema", "Middle.e"),
        ("bae-loop-endless", "Middle -> Middle"),
    }
    severities = [p.severity for p in reported]
    assert severities == sorted(severities)
    assert severities.count("warning") == 2
    assert all(problem.message and problem.fix for problem in reported)


def test_a_correct_graph_has_no_problems():
    async def get_place() -> str:
        return "here"

    async def forecast(place: Annotated[str, Dep(get_place)], lm: LM) -> Weather:
        return Weather()

    class Ask(Node):
        question: str

        async def __call__(self) -> Answer | Refusal: ...

    class Answer(EndNode):
        question: Annotated[str, Recall()]
        weather: Annotated[Weather, Dep(forecast)]
        tone: Annotated[str, Gate("in which tone?")]
        lines: list[str]
        lengths: Annotated[list[int], Map(len_of, over="lines")]

    class Refusal(Node):
        question: Annotated[str, Recall()]
        why: Literal["rude", "unclear"]

        async def __call__(self) -> Ask | None: ...

    assert problems(Ask, end=(Answer, Refusal)) == []


# Refusing to run


async def test_a_graph_with_errors_is_refused_before_any_call():
    called: list[str] = []

    def dep() -> int:
        called.append("dep")
        return 1

    class Start(Node):
        fine: Annotated[int, Dep(dep)]

        async def __call__(self) -> End:
            called.append("body")
            return End()

    class End(EndNode):
        mood: Annotated[Mood, Recall()]
        weather: Annotated[str, Dep(get_weather)]

    lm = ScriptedLM([{}])
    graph = Graph(start=Start)
    error = await error_from(ProofError, graph.arun(Start(), lm))

    assert called == []
    assert lm.asked == []
    assert error.code == "bae-proof-failed"
    assert list(error.problems) == graph.validate()
    assert len(error.problems) == 2
    for problem in error.problems:
        assert str(problem) in str(error)
    assert "the graph Start cannot run, 2 errors:" in str(error)


async def test_every_way_to_run_refuses_a_graph_with_errors():
    class Start(EndNode):
        weather: Annotated[str, Dep(get_weather)]

    graph = Graph(start=Start)
    with pytest.raises(ProofError, match="1 error:"):
        await graph.arun(Start())
    with pytest.raises(ProofError):
        async for _ in graph.stream(Start()):
            raise AssertionError("a record of a run that must not begin")
    with pytest.raises(ProofError):
        graph.prove()


async def test_warnings_do_not_stop_a_run():
    class Start(EndNode):
        one: Annotated[int, Dep(lambda: 1)]

    class Refused(Start):
        weather: Annotated[str, Dep(get_weather)]

    graph = Graph(start=Start)

    assert [p.severity for p in graph.validate()] == ["warning"]
    assert (await graph.arun(Start())).trace[0].model_dump() == {"one": 1}
    assert "cannot run" not in str(graph.prove())
    error = await error_from(ProofError, Graph(start=Refused).arun(Refused()))
    assert [p.code for p in error.problems] == ["bae-dep-type"]


# Loops and ends


def test_a_loop_without_an_exit_is_a_warning_that_names_the_whole_loop():
    class Plan(Node):
        async def __call__(self) -> Act: ...

    class Act(Node):
        async def __call__(self) -> Check: ...

    class Check(Node):
        async def __call__(self) -> Plan: ...

    problem = the_problem(leading_to(Plan, B))

    assert (problem.severity, problem.code) == ("warning", "bae-loop-endless")
    assert problem.place == "Plan -> Act -> Check -> Plan"


def test_no_endless_loop_is_reported_if_a_problem_may_hide_the_exit():
    class Draft(Node):
        async def __call__(self) -> Draft | int: ...

    assert codes(Draft) == [("bae-route-not-a-node", "Draft.__call__")]


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, list[int]]:
    count = draw(st.integers(1, 6))
    onward = st.lists(st.integers(0, count - 1), max_size=3, unique=True)
    return {place: draw(onward) for place in range(count)}


@given(graphs(), st.sets(st.integers(0, 5)))
def test_exactly_the_nodes_without_an_exit_lead_to_a_reported_loop(
    edges: dict[int, list[int]], drawn: set[int]
):
    # A place that leads nowhere is an end; in a graph of nodes it returns None.
    exits = {place for place in edges if place in drawn or not edges[place]}
    loops = endless_loops(edges, exits)
    reach = {place: reachable(edges, place) for place in edges}

    for loop in loops:
        for here, onward in zip(loop, [*loop[1:], loop[0]], strict=True):
            assert onward in edges[here]
            assert not exits & ({here} | reach[here])
    for place in edges:
        stuck = not exits & ({place} | reach[place])
        is_reported = any(set(loop) & ({place} | reach[place]) for loop in loops)
        if stuck:
            assert is_reported
    assert len({frozenset(reach[loop[0]]) for loop in loops}) == len(loops)


def reachable(edges: dict[int, list[int]], start: int) -> set[int]:
    seen: set[int] = set()
    ahead = [*edges[start]]
    while ahead:
        place = ahead.pop()
        if place not in seen:
            seen.add(place)
            ahead.extend(edges[place])
    return seen


class B(EndNode): ...


C = leading_to(B, None, name="C")
A = leading_to(B, C, name="A")


def test_the_error_for_a_wrong_end_suggests_no_end_if_the_graph_never_ends():
    class Round(Node):
        async def __call__(self) -> Round: ...

    error, warning = problems(Round, end=Round)

    assert (error.code, warning.code) == ("bae-end-not-terminal", "bae-loop-endless")
    assert error.fix == "let Round return None: so far the graph ends nowhere"


@pytest.mark.parametrize("end", [None, (B, C), (C, B)])
def test_a_graph_may_declare_no_end_or_all_ends_in_any_order(end: Any):
    assert problems(A, end=end) == []


# Return types


def test_every_wrong_member_of_a_union_is_reported():
    start = leading_to(int, B, str, None)

    assert [p.message for p in problems(start)] == [
        "returns int, which is not a Node",
        "returns str, which is not a Node",
    ]
    assert Graph(start=start).nodes == (start, B)


def test_a_second_lm_parameter_and_a_positional_only_lm_parameter_are_errors():
    class ByPosition(Node):
        async def __call__(self, lm: LM, /) -> None: ...

    class Second(Node):
        async def __call__(self, one: LM, two: LM) -> None: ...

    for start, name in ((ByPosition, "lm"), (Second, "two")):
        assert the_problem(start).message == f"nothing can fill its parameter {name}"


def test_parameters_with_defaults_are_accepted():
    class Start(Node):
        async def __call__(self, x: int = 3, *rest: int, y: str = "", **more: int) -> None: ...

    assert problems(Start) == []


@pytest.mark.parametrize("returned", ["nothing", Mood, str], ids=str)
def test_consequences_of_a_wrong_return_type_are_not_reported(returned: Any):
    class Start(Node):
        async def __call__(self): ...

    if returned != "nothing":
        Start.__call__.__annotations__["return"] = returned

    for ends in (B, Start, (Start, B)):
        assert the_problem(Start, end=ends).place == "Start.__call__"


def test_consequences_of_a_missing_call_are_not_reported():
    class Lonely(Node):
        text: str = ""

    for ends in (B, Lonely):
        problem = the_problem(Lonely, end=ends)
        assert (problem.code, problem.place) == ("bae-node-without-call", "Lonely")
        assert "or `-> None` where the run ends" in problem.fix


# One node class by itself


def test_validate_node_deps_describes_every_problem_of_a_class():
    class Alone(EndNode):
        a: Annotated[str, Dep(get_weather)]
        b: Annotated[list[int], Map(len_of, over="c")]
        d: Annotated[Mood, Recall()]

    assert validate_node_deps(Alone) == [
        "error   Alone.a          is str, but get_weather returns Weather\n"
        "        fix: declare the field Weather, or give it a function that returns str",
        "error   Alone.b          maps over 'c', and Alone has no such field (it has: a, d)\n"
        "        fix: name a field of the same node that holds a list",
    ]


def test_validate_node_deps_reports_a_recall_on_a_start_node():
    class Alone(EndNode):
        plain: str
        asked: Annotated[bool, Gate("fine?")]
        mood: Annotated[Mood, Recall()]
        maybe: Annotated[Mood | None, Recall()] = None

    assert validate_node_deps(Alone, is_start=False) == []
    (said,) = validate_node_deps(Alone, is_start=True)
    assert said.startswith("error   Alone.mood       Recall() on the start node")


def test_classify_fields_names_the_source_of_every_field_in_order():
    class Alone(EndNode):
        plain: list[str]
        dep: Annotated[Weather, Dep(get_weather)]
        recalled: Annotated[Mood, Recall()]
        mapped: Annotated[list[int], Map(len_of, over="plain")]
        gate: Annotated[bool, Gate("fine?")]
        default: int = 3

    assert list(classify_fields(Alone).items()) == [
        ("plain", "plain"),
        ("dep", "dep"),
        ("recalled", "recall"),
        ("mapped", "map"),
        ("gate", "gate"),
        ("default", "plain"),
    ]


def test_build_dep_dag_raises_a_cycle_as_a_dep_error():
    looped = ring(3)[0]

    class Alone(EndNode):
        x: Annotated[int, Dep(looped)]

    with pytest.raises(DepError) as caught:
        build_dep_dag(Alone)

    assert caught.value.code == "bae-dep-cycle"
    assert caught.value.node_type is Alone
    assert caught.value.field_name == "x"
    assert "f0 -> f1 -> f2 -> f0" in str(caught.value)
