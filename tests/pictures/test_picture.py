"""The picture of a graph as data: exactly the nodes and edges of the types, and fields by
source."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from pydantic import Field, create_model

import tool_runs
from bae import Dep, Gate, Graph, Map, Node, Recall
from bae.pictures import picture_of, to_mermaid, to_svg, to_text
from bae.pictures.picture import cells, cut_columns
from drawn_graphs import SHAPES, Doc, Summary, SumUp, edges_of, library, make_graph
from end_node import EndNode
from random_graphs import Made, random_graphs


def declared_edges(graph: Graph[Any, Any], picture: Any) -> set[tuple[str, str]]:
    """The edges of the types, by the ids of the picture."""
    ids = dict(zip(graph.nodes, (box.id for box in picture.boxes), strict=True))
    return {(ids[cls], ids[to]) for cls, targets in graph.edges.items() for to in targets}


@settings(deadline=None, derandomize=True, max_examples=40)
@given(SHAPES)
def test_a_picture_has_exactly_the_nodes_and_edges_of_the_types(shape: Any):
    graph = make_graph(shape)
    picture = picture_of(graph)

    assert [box.name for box in picture.boxes] == [cls.__name__ for cls in graph.nodes]
    assert {(a, b) for a, b, _ in edges_of(picture)} == declared_edges(graph, picture)
    for box, cls in zip(picture.boxes, graph.nodes, strict=True):
        several = len(cls.successors()) + cls.is_terminal() > 1
        chooser = ("code" if box.written else "lm") if several else "certain"
        assert box.chooser == chooser
        assert (box.ending != "never") == (cls in graph.terminal_nodes)


@settings(deadline=None, derandomize=True, max_examples=8)
@given(random_graphs())
def test_inner_graphs_have_the_edges_of_their_types_too(made: Made):
    made.build()
    picture = picture_of(made.graph)

    assert {(a, b) for a, b, _ in edges_of(picture)} == declared_edges(made.graph, picture)
    for inner_picture in picture.inner:
        if inner_picture.name == "Noted (filled)":  # for a field, whatever its body leads to
            assert not edges_of(inner_picture)
            continue
        inner = getattr(made.names, inner_picture.name[: -len("N0")].lower())
        assert {(a, b) for a, b, _ in edges_of(inner_picture)} == declared_edges(
            inner, inner_picture
        )
    for field in (field for box in picture.boxes for field in box.fields):
        assert bool(field.graphs) == ("graph " in field.origin)
    assert to_text(made.graph, width=80).width <= 80
    assert to_mermaid(made.graph).count("subgraph ") == len(picture.inner)


def test_a_box_shows_who_chooses_the_next_node():
    boxes = picture_of(library).boxes

    assert [(box.name, box.tags, box.chooser, box.lm) for box in boxes] == [
        ("Request", ("start",), "certain", ""),
        ("Research", ("may end",), "lm", ""),
        ("Report", (), "code", "local"),
        ("Filed", ("end",), "certain", ""),
    ]
    assert boxes[0].doc == "What a reader wants to know."


def test_a_recalled_field_names_its_possible_sources():
    class Open(Node):
        mood: Literal["calm", "cross"]

        async def __call__(self) -> Calm | Cross: ...

    class Calm(Node):
        mood: Literal["calm", "cross"]

        async def __call__(self) -> Close: ...

    class Cross(Node):
        async def __call__(self) -> Close: ...

    class Close(Node):
        mood: Annotated[Literal["calm", "cross"], Recall()] = Field(init=False)
        opened: Annotated[Open, Recall()] = Field(init=False)
        shown: Annotated[bytes, Recall()] = b""

        async def __call__(self) -> Close | None: ...

    close = picture_of(Graph(start=Open)).boxes[-1]

    # What Calm has hides what Open has, but Cross has nothing of its own.
    assert [(f.name, f.source, f.origin) for f in close.fields] == [
        ("mood", "recall", "from Calm.mood or Open.mood"),
        ("opened", "recall", ""),
        ("shown", "recall", ""),
    ]


def test_a_recall_in_an_inner_graph_names_no_uncertain_source():
    class Topic(Node):
        text: str

        async def __call__(self) -> Wrap: ...

    class Wrap(EndNode):
        found: Annotated[Found, Dep(Graph(start=Find))]

    class Find(Node):
        topic: Annotated[str, Recall()] = Field(init=False)

        async def __call__(self) -> Found: ...

    class Found(EndNode):
        text: str

    inner = picture_of(Graph(start=Topic)).inner[0]

    assert [(f.source, f.origin) for f in inner.boxes[0].fields] == [("recall", "")]


def test_a_dependency_is_shown_with_its_arguments():
    def connect() -> int:
        return 1

    def search(query: str, line: Annotated[int, Dep(connect)], day: str = "") -> str:
        return query

    def rate(item: str, query: Annotated[str, Recall()]) -> int:
        return 1

    class Asked(Node):
        text: str

        async def __call__(self) -> Found: ...

    class Found(EndNode):
        words: list[str]
        query: str
        found: Annotated[str, Dep(search, query="query", day=Recall(Asked))]
        rated: Annotated[list[int], Map(rate, over="words")]

    fields = {field.name: field.origin for field in picture_of(Graph(start=Asked)).boxes[1].fields}
    assert fields["found"] == "search ← (query, Recall(Asked), connect)"
    assert fields["rated"] == "rate ← Recall() for each of words"


class Shade(Enum):
    DARK = 1


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Literal["red", "blue"], "'red' | 'blue'"),
        (Literal["red", 1, True] | None, "'red' | 1 | True | None"),
        (Literal[Shade.DARK], "Shade.DARK"),
        (dict[str, list[int]] | None, "dict[str, list[int]] | None"),
    ],
)
def test_a_literal_is_shown_by_its_values(annotation: Any, text: str):
    cls = create_model("Typed", __base__=Node, value=(annotation, ...), __module__=__name__)

    assert picture_of(Graph(start=cls)).boxes[0].fields[0].type == text


def test_each_inner_graph_is_drawn_once():
    deepest = Graph(start=Summary, name="Deepest")

    class Middle(EndNode):
        seed: str = ""
        found: Annotated[Summary, Dep(deepest)]

    async def look(middle: Annotated[Middle, Dep(Middle)]) -> str: ...

    class Top(EndNode):
        looked: Annotated[str, Dep(look)]
        docs: list[Doc]
        one: Annotated[list[Summary], Map(SumUp, over="docs")]
        two: Annotated[list[Summary], Map(SumUp, over="docs")]

    picture = picture_of(Graph(start=Top))
    assert [(inner.name, inner.used_by) for inner in picture.inner] == [
        ("Middle", ("Top.looked",)),
        ("SumUp", ("Top.one", "Top.two")),
        ("Deepest", ("Middle.found",)),
    ]
    assert [box.name for box in picture.inner[1].boxes] == ["SumUp", "Summary"]
    fields = {field.name: field for field in picture.boxes[0].fields}
    assert fields["looked"].origin == "look ← graph Middle"
    assert fields["one"].graphs == fields["two"].graphs == (picture.inner[1].id,)


def test_a_graph_that_is_its_own_dependency_can_be_drawn():
    class Snake(EndNode):
        tail: Annotated[Any, Dep(lambda: None)]

    ring = Graph(start=Snake)

    class Again(EndNode):
        inner: Annotated[Any, Dep(ring)]

    whole = Graph(start=Again)
    Snake.model_fields["tail"].metadata[:] = [Dep(whole)]
    picture = picture_of(whole)

    assert [graph_picture.name for graph_picture in picture.all] == ["Again", "Snake"]
    assert picture.inner[0].boxes[0].fields[0].graphs == (picture.id,)
    for draw in (to_svg, to_mermaid, to_text):
        assert str(draw(whole))


def test_a_graph_with_problems_is_drawn_as_far_as_possible():
    class Lost(Node):
        found: Nowhere  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

        async def __call__(self) -> Lost: ...

    class Astray(Node):
        async def __call__(self) -> Astray | int: ...

    assert "Lost" in to_svg(Graph(start=Lost))
    assert edges_of(picture_of(Graph(start=Astray))) == {("Astray", "Astray", "certain")}


def test_control_characters_are_replaced_in_pictures():
    class Odd(EndNode):
        ok: Annotated[bool, Gate("a\x00b\nc\ud800d")]

    assert picture_of(Graph(start=Odd)).boxes[0].fields[0].origin == "“a\ufffdb c\ufffdd”"
    assert cut_columns("节点分析", 5) == "节点…"
    assert (cut_columns("abcdef", 6), cut_columns("abcdef", 5)) == ("abcdef", "abcd…")
    assert cells("e\u0301té") == 3


def test_every_kind_of_picture_shows_the_tools_of_a_node():
    graph = tool_runs.GRAPH
    for drawn in (to_text(graph), to_svg(graph), to_mermaid(graph, fields=True)):
        assert "search, read_page, research" in str(drawn)
