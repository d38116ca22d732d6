"""What the picture of a graph promises: exactly the nodes and edges of the types, under names that
Mermaid accepts and that are told apart."""

from __future__ import annotations

import re
from typing import Any, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import create_model

from bae import Graph, Node

NODE = re.compile(r'    (\w+)(?:\(\["(?P<round>.+)"\]\)|\["(?P<square>.+)"\])')
EDGE = re.compile(r"    (\w+) (-->|-\.->) (\w+)")


class Picture:
    """A drawing read back."""

    def __init__(self, text: str) -> None:
        first, *lines = text.splitlines()
        assert first == "flowchart TD"
        assert text.endswith("\n")
        self.labels: dict[str, str] = {}
        self.rounded: set[str] = set()
        self.edges: list[tuple[str, str, str]] = []
        for line in lines:
            node, edge = NODE.fullmatch(line), EDGE.fullmatch(line)
            assert (node is None) != (edge is None), line
            if node:
                assert node[1] not in self.labels
                self.labels[node[1]] = node["round"] or node["square"]
                if node["round"]:
                    self.rounded.add(node[1])
            elif edge:
                self.edges.append((edge[1], edge[2], edge[3]))


def build(shape: list[tuple[list[int], bool, bool]], name: str = "N{}") -> list[type[Node]]:
    """Node classes: for each its successors, whether it may end, whether its body is written."""
    classes = [create_model(name.format(i), __base__=Node) for i in range(len(shape))]
    for cls, (onward, may_end, written) in zip(classes, shape, strict=True):
        targets = [classes[i % len(classes)] for i in onward]
        ends = [None] if may_end or not targets else []
        call = written_body() if written else empty_body()
        call.__annotations__ = {"return": Union[(*targets, *ends)]}
        type.__setattr__(cls, "__call__", call)
    return classes


def empty_body() -> Any:
    async def call(self: Node): ...

    return call


def written_body() -> Any:
    async def call(self: Node):
        raise NotImplementedError

    return call


def test_a_small_graph_is_drawn_as_a_flowchart():
    class Ask(Node):
        async def __call__(self) -> Answer | Clarify: ...

    class Clarify(Node):
        async def __call__(self) -> Ask:
            return Ask()

    class Answer(Node):
        async def __call__(self) -> None: ...

    assert Graph(start=Ask).to_mermaid() == (
        "flowchart TD\n"
        '    Ask["Ask"]\n'
        '    Answer(["Answer"])\n'
        '    Clarify["Clarify"]\n'
        "    Ask -.-> Answer\n"
        "    Ask -.-> Clarify\n"
        "    Clarify --> Ask\n"
    )


def test_an_arrow_is_dotted_where_the_lm_chooses_to_go_on_or_to_stop():
    class Loop(Node):
        async def __call__(self) -> Loop | None: ...

    assert Picture(Graph(start=Loop).to_mermaid()).edges == [("Loop", "-.->", "Loop")]


def test_two_classes_of_one_name_get_identifiers_of_their_own_and_keep_their_label():
    classes = build([([1], False, False), ([2], False, False), ([], True, False)], name="Same")
    picture = Picture(Graph(start=classes[0]).to_mermaid())

    assert picture.labels == {"Same": "Same", "Same_2": "Same", "Same_3": "Same"}
    assert [(a, b) for a, _, b in picture.edges] == [("Same", "Same_2"), ("Same_2", "Same_3")]


def test_a_made_up_identifier_does_not_take_the_name_of_a_class():
    shape = [([1], False, False), ([2], False, False), ([], True, False)]
    classes = build(shape, name="Same")
    classes[1].__name__ = "Same_2"
    picture = Picture(Graph(start=classes[0]).to_mermaid())

    assert sorted(picture.labels.values()) == ["Same", "Same", "Same_2"]
    assert len(picture.labels) == 3


@pytest.mark.parametrize(
    "name", ["End", "END", "end", "eNd", "Graph", "graph", "Subgraph", "Flowchart"]
)
def test_a_class_named_like_a_word_of_mermaids_own_gets_another_identifier(name: str):
    (cls,) = build([([0], True, False)], name=name)
    picture = Picture(Graph(start=cls).to_mermaid())

    assert list(picture.labels.values()) == [name]
    (identifier,) = picture.labels
    assert identifier.lower() not in {"end", "graph", "subgraph", "flowchart"}
    assert picture.edges == [(identifier, "-.->", identifier)]


def test_a_name_that_is_no_identifier_is_still_drawn():
    (cls,) = build([([], True, False)], name="Box[int]")
    picture = Picture(Graph(start=cls).to_mermaid())

    assert picture.labels == {"Box_int_": "Box[int]"}


def test_a_graph_with_problems_is_drawn_as_far_as_it_is_known():
    class Start(Node):
        async def __call__(self) -> Start | int: ...

    assert Picture(Graph(start=Start).to_mermaid()).edges == [("Start", "-->", "Start")]


NODES = st.tuples(
    st.lists(st.integers(0, 7), max_size=4, unique=True), st.booleans(), st.booleans()
)


@settings(deadline=None)
@given(st.lists(NODES, min_size=1, max_size=8), st.sampled_from(["N{}", "Same", "End", "N[{}]"]))
def test_a_picture_has_exactly_the_nodes_and_edges_of_the_types(shape: Any, name: str):
    classes = build(shape, name)
    graph = Graph(start=classes[0])
    picture = Picture(graph.to_mermaid())
    # Nodes are drawn in the order of the graph, so positions tell classes of one name apart.
    identifiers = dict(zip(graph.nodes, picture.labels, strict=True))

    assert [picture.labels[identifiers[cls]] for cls in graph.nodes] == [
        cls.__name__ for cls in graph.nodes
    ]
    assert sorted((a, b) for a, _, b in picture.edges) == sorted(
        (identifiers[cls], identifiers[target])
        for cls, targets in graph.edges.items()
        for target in targets
    )
    assert picture.rounded == {identifiers[cls] for cls in graph.terminal_nodes}
    for cls in graph.nodes:
        arrows = {arrow for a, arrow, _ in picture.edges if a == identifiers[cls]}
        _, _, written = shape[classes.index(cls)]
        several = len(cls.successors()) + cls.is_terminal() > 1
        if cls.successors():
            assert arrows == {"-.->" if several and not written else "-->"}
