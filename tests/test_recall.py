"""What `Recall` promises: the newest value of its type that was given, filled or answered, in this
run or around it; and a graph that cannot serve a recall is refused before it runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, create_model

from bae import Dep, Gate, Graph, LimitError, Map, Node, Problem, Recall, RecallError
from bae.journal import Recalled
from bae.resolver import recall_from_trace, resolve_fields
from bae.testing import ScriptedLM
from bounded import error_from, run
from end_node import EndNode, leading_to
from proving import Celsius, Color, Mood, Storm, Weather, get_weather, len_of, problems, the_problem


def holding(annotation: Any, value: Any) -> Node:
    """A node with one plain field."""
    return create_model("Holds", __base__=Node, x=(annotation, ...))(x=value)


# What is found in a trace


class Said(EndNode):
    text: str
    count: int = 0


class Felt(EndNode):
    mood: Mood
    other: Mood | None = None


class Worked(EndNode):
    lines: list[str]
    lengths: Annotated[list[int], Map(len_of, over="lines")]
    fine: Annotated[bool, Gate("fine?")]


def test_a_recall_of_a_node_class_finds_subclasses_and_nodes_in_fields():
    class Shouted(Said): ...

    class Quotes(EndNode):
        inner: Said

    shouted, quoted = Shouted(text="!"), Said(text="quoted")

    assert recall_from_trace([Said(text="."), shouted], Said) is shouted
    with pytest.raises(RecallError):
        recall_from_trace([Said(text=".")], Shouted)
    assert recall_from_trace([Said(text="older"), Quotes(inner=quoted)], Said) is quoted


def test_a_recall_skips_values_from_dep_and_recall():
    class Looked(EndNode):
        weather: Annotated[Weather, Dep(get_weather)]
        again: Annotated[Weather, Recall()]

    holder = holding(Weather, Weather(degrees=1))
    looked = Looked(weather=Weather(degrees=2), again=Weather(degrees=3))

    assert recall_from_trace([holder, looked], Weather).degrees == 1
    with pytest.raises(RecallError):
        recall_from_trace([looked], Weather)


def test_a_recall_finds_resolved_values_of_gates_and_maps():
    worked = Worked(lines=["a"], lengths=[1], fine=False)

    assert recall_from_trace([worked], list[int]) == [1]
    assert recall_from_trace([worked], bool) is False
    assert recall_from_trace([holding(list[int], [7]), Worked(lines=["a"])], list[int]) == [7]


def test_a_recall_skips_none_in_an_optional_field():
    mood = Mood(name="older")
    trace = [holding(Mood | None, mood), holding(Mood | None, None)]

    assert recall_from_trace(trace, Mood) is mood
    assert recall_from_trace(trace, Mood | None) is mood
    assert recall_from_trace(trace, Optional[Mood]) is mood


def test_a_recall_of_a_union_finds_the_newest_value_of_any_member():
    trace = [holding(Mood, Mood()), holding(Weather, Weather(degrees=3))]

    assert recall_from_trace(trace, Mood | Weather) == Weather(degrees=3)
    assert recall_from_trace(trace, Union[Mood, int]) == Mood()


FOUND = [
    (str, "x", str),
    (list[str], ["x"], Sequence[str]),
    (Storm, Storm(), Weather),
    (list[Storm], [Storm()], list[Weather]),
    (Color, Color.RED, Color),
    (Literal["a"], "a", Literal["a", "b"]),
    (Annotated[str, Field(min_length=1)], "x", str),
    (Celsius, 3.5, float),
    (Any, "x", str),
    (Mood | Weather, Weather(), Weather),
    (None | int, 1, int),
    (None, None, None),
]

MISSED = [
    (list[str], ["x"], list[int]),
    (Weather, Storm(), Storm),
    (Color, Color.RED, str),
    (str, "a", Literal["a", "b"]),
    (float, 3.5, Celsius),
    (bool, True, int),
    (int, 1, float),
    (bool | str, True, int),
    (Any, 1, str),
    (Mood | Weather, Mood(), Weather),
    (object, "x", str),
]


@pytest.mark.parametrize(("held", "value", "wanted"), FOUND, ids=str)
def test_a_recall_finds_a_value_by_its_declared_type(held: Any, value: Any, wanted: Any):
    older = Said(text="older")

    assert recall_from_trace([older, holding(held, value)], wanted) == value


@pytest.mark.parametrize(("held", "value", "wanted"), MISSED, ids=str)
def test_a_value_of_another_type_is_not_recalled(held: Any, value: Any, wanted: Any):
    with pytest.raises(RecallError):
        recall_from_trace([holding(held, value)], wanted)


def test_a_recall_without_a_match_lists_the_searched_values():
    trace = [Said(text="a"), Felt(mood=Mood())]
    with pytest.raises(RecallError) as caught:
        recall_from_trace(trace, list[Weather])

    assert str(caught.value) == (
        "[bae-recall-missing] no list[Weather] in the trace\n"
        "  path:  Said -> Felt\n"
        "  try:   have a node before this one hold a list[Weather] that no Dep or Recall made"
    )
    with pytest.raises(RecallError, match="the trace is empty"):
        recall_from_trace([], str)


# In a run


async def test_a_recalled_value_is_shown_to_the_llm_and_recorded():
    class End(EndNode):
        word: Annotated[str, Recall()]
        more: int

    lm = ScriptedLM([{"more": 1}])
    result = await run(leading_to(End, word=str)(word="one"), lm)

    assert lm.asked[0].resolved == {"word": "one"}
    (record,) = result.journal.of(Recalled)
    assert (record.node_type, record.field, record.value) == (End, "word", "one")


async def test_a_recall_prefers_the_field_of_the_same_name():
    class End(EndNode):
        second: Annotated[str, Recall()]
        other: Annotated[str, Recall()]

    start = leading_to(End, first=str, second=str)(first="1", second="2")

    assert (await run(start, ScriptedLM())).trace[-1].model_dump() == {"second": "2", "other": "1"}


async def test_a_recall_from_a_named_node_class_skips_newer_values_elsewhere():
    class Start(Node):
        word: str

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        word: str

        async def __call__(self) -> End: ...

    class End(EndNode):
        word: Annotated[str, Recall(Start)]
        start: Annotated[Start, Recall()]

    start = Start(word="one")
    result = await Graph(start=Start).arun(start, ScriptedLM([{"word": "two"}]))

    assert result.trace[-1].word == "one"
    assert result.trace[-1].start.word == "one"


async def test_a_node_in_a_loop_recalls_the_value_of_the_previous_round():
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


async def test_a_recall_that_finds_no_value_uses_the_default_of_its_field():
    class End(EndNode):
        mood: Annotated[Mood, Recall()] = Field(default_factory=lambda: Mood(name="default"))

    class Start(leading_to(End)):  # type: ignore[misc]
        mood: Annotated[Mood | None, Recall()] = None

    result = await run(Start(), ScriptedLM())

    assert [node.mood for node in result.trace] == [None, Mood(name="default")]
    assert result.journal.of(Recalled) == []


async def test_an_inner_graph_recalls_its_own_trace_before_the_outer_trace():
    class Foreign(EndNode):
        word: Annotated[str, Recall()]

    own = leading_to(Foreign, name="Own", word=str)
    inner = leading_to(own, Foreign)

    class Outer(EndNode):
        inner: Annotated[Foreign, Dep(inner)]

    start = leading_to(Outer, word=str)(word="outer")
    for script, word in (([own, {"word": "inner"}], "inner"), ([Foreign], "outer")):
        assert (await run(start, ScriptedLM(script))).trace[-1].inner.word == word


async def test_a_missing_value_at_run_time_is_an_error_with_the_trace():
    class End(EndNode):
        mood: Annotated[Mood, Recall()]

    middle = leading_to(End, name="Middle")
    start = leading_to(middle, mood=Mood | None)
    error = await error_from(RecallError, run(start(mood=None), ScriptedLM()))
    assert (error.code, error.node_type, error.field_name) == ("bae-recall-missing", End, "mood")
    assert [type(node) for node in error.trace] == [start, middle]
    assert str(error) == (
        "[bae-recall-missing] End.mood: Recall() found no Mood in the trace\n"
        "  path:  Start -> Middle -> End\n"
        "  try:   have a node before End hold a Mood, or give the field a default"
    )


async def test_an_error_for_a_refused_recalled_value_names_the_field():
    class End(EndNode):
        word: Annotated[str, Recall(), Field(max_length=3)]

    error = await error_from(
        RecallError, run(leading_to(End, word=str)(word="too long"), ScriptedLM())
    )

    assert error.code == "bae-recall-invalid"
    assert (error.node_type, error.field_name) == (End, "word")
    assert error.message.startswith("End.word: String should have at most 3 characters")
    assert error.fix == "declare the field like the field that it recalls"


async def test_resolve_fields_recalls_from_its_trace_argument():
    class End(EndNode):
        word: Annotated[str, Recall()]
        said: Annotated[Said, Recall()]

    node = Said(text="one")

    assert await resolve_fields(End, [node]) == {"word": "one", "said": node}
    with pytest.raises(RecallError):
        await resolve_fields(End, [])


# Before a run


def test_recall_from_a_node_class_searches_only_the_class_and_its_subclasses():
    class Draft(EndNode):
        text: str

    class End(EndNode):
        text: Annotated[str, Recall(Draft)]
        draft: Annotated[Draft, Recall()]

    class Better(Draft):
        async def __call__(self) -> End: ...

    assert problems(leading_to(Better)) == []
    for problem, wanted in zip(
        problems(leading_to(Better, End, text=str)),
        ("(Draft) can find no str", "() can find no Draft"),
        strict=True,
    ):
        assert f"Recall{wanted} on the path Start -> End" in problem.message


def test_an_error_for_an_unserved_recall_in_a_subgraph_names_the_whole_path():
    class Deeper(EndNode):
        topic: Annotated[str, Recall()]

    class Inner(EndNode):
        deep: Annotated[Deeper, Dep(leading_to(Deeper, name="Deep"))]

    class Outer(EndNode):
        inner: Annotated[Inner, Dep(Inner)]
        topic: str

    problem = the_problem(leading_to(Outer))

    assert (problem.code, problem.place) == ("bae-recall-path", "Deeper.topic")
    assert "on the path Start -> Outer -> Inner -> Deep -> Deeper" in problem.message


def test_a_subgraph_with_a_served_and_an_unserved_use_is_reported_once():
    class Inner(EndNode):
        topic: Annotated[str, Recall()]

    class Next(EndNode):
        inner: Annotated[Inner, Dep(Inner)]

    problem = the_problem(leading_to(Next, inner=Annotated[Inner, Dep(Inner)], topic=str))

    assert problem.place == "Inner.topic"
    assert "on the path Start -> Inner" in problem.message


def test_a_recall_is_not_judged_if_a_class_on_its_path_is_unresolvable():
    class Start(Node):
        async def __call__(self) -> End | Odd: ...

    class Odd(Node):
        async def __call__(self) -> End | Nowhere: ...  # noqa: F821

    class End(EndNode):
        mood: Annotated[Mood, Recall()]

    assert [p.code for p in problems(Start)] == ["bae-hint-unresolved"]


@pytest.mark.parametrize("given", ["Said", str, Mood, Said(text="x")], ids=str)
def test_recall_accepts_only_a_node_class(given: Any):
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
            call: Any = leading_to(None).__call__
            if route is not None:
                call = written_body(self, classes, index, route)
            targets = [classes[i] for i in self.successors[index]]
            offered = [*targets, *([None] if self.may_end[index] else [])]
            call.__annotations__ = {"return": Union[tuple(offered)]}
            type.__setattr__(cls, "__call__", call)
        return classes

    def new(self, classes: list[type[Node]], index: int, number: int) -> Node:
        return classes[index](**{f"h{k}": VALUES[k](number) for k in self.holds[index]})


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


@settings(deadline=None, max_examples=100)
@given(shapes())
def test_a_recall_is_reported_exactly_if_some_path_may_lack_its_value(
    shape: Shape,
):
    problems = Graph(start=shape.build()[0]).validate()
    recalls = [p for p in problems if p.code.startswith("bae-recall-")]
    unserved = shape.unserved(MAYBE)

    assert places([p for p in recalls if p.severity == "error"]) == unserved
    unsure = places([p for p in problems if p.code == "bae-recall-unsure"])
    assert unsure == shape.unserved(SURELY) - unserved
    for problem in recalls:
        if problem.code in ("bae-recall-path", "bae-recall-unsure"):
            check_path(shape, problem)


def shortest_gap(shape: Shape, goal: int, kind: int, by: list[set[int]]) -> int:
    """How many nodes the shortest walk to `goal` has that meets no holder on its way."""
    edge, length = {0}, 1
    while goal not in edge:
        free = {i for i in edge if kind not in shape.held(i, by)}
        edge, length = {onward for i in free for onward in shape.successors[i]}, length + 1
    return length


def check_path(shape: Shape, problem: Problem) -> None:
    """The path that a problem names is a shortest walk without a holder."""
    by = MAYBE if problem.severity == "error" else SURELY
    ((index, kind),) = places([problem])
    named = problem.message.split(" on the path ")[1].split(":")[0]
    path = [int(name[1:]) for name in named.split(" -> ")]

    assert (path[0], path[-1]) == (0, index)
    for here, onward in itertools.pairwise(path):
        assert onward in shape.successors[here]
        assert kind not in shape.held(here, by)
    assert len(path) == shortest_gap(shape, index, kind, by)


@settings(deadline=None, max_examples=100)
@given(shapes(), st.lists(st.integers(0, 11), max_size=12))
def test_a_graph_without_errors_misses_only_recalls_with_a_warning(shape: Shape, route: list[int]):
    # What a walk cannot be served is taken out, so that every example is a graph that may run.
    for index, kind in shape.unserved(MAYBE):
        shape.recalls[index].remove(kind)
    classes = shape.build([*route])
    graph = Graph(start=classes[0])
    problems = graph.validate()
    assert [p for p in problems if p.severity == "error"] == []
    warned = places([p for p in problems if p.code == "bae-recall-unsure"])

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
    """The value that a recall must find: the newest value of its type, and the first of several in
    a node."""
    for node in reversed(trace):
        for held in shape.holds[classes.index(type(node))]:
            value = getattr(node, f"h{held}")
            if kind in SURELY[held] or (kind in MAYBE[held] and type(value) is TYPES[kind]):
                return value
    return NOTHING


def test_a_recall_is_not_ambiguous_because_of_a_later_node():
    third = leading_to(None, name="Third", title=str, body=str)
    second = leading_to(third, name="Second", message=Annotated[str, Recall()])

    assert problems(leading_to(second, message=str)) == []
