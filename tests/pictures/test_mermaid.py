"""What the picture of a graph promises: exactly the nodes and edges of the types, under names that
Mermaid accepts and that are told apart."""

from __future__ import annotations

import re
from typing import Annotated, Any, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from bae import Gate, Graph, Map, Node, Recall

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
    "name",
    [
        *("End", "END", "end", "eNd", "Graph", "graph", "Subgraph", "Flowchart", "Style"),
        *("Class", "Click", "linkStyle", "Default", "interpolate"),
    ],
)
def test_a_class_named_like_a_word_of_mermaids_own_gets_another_identifier(name: str):
    (cls,) = build([([0], True, False)], name=name)
    picture = Picture(Graph(start=cls).to_mermaid())

    assert list(picture.labels.values()) == [name]
    (identifier,) = picture.labels
    assert identifier == f"{name}_2"
    assert picture.edges == [(identifier, "-.->", identifier)]


def test_a_name_that_is_no_identifier_is_still_drawn():
    (cls,) = build([([], True, False)], name="Box[int]")
    picture = Picture(Graph(start=cls).to_mermaid())

    assert picture.labels == {"Box_int_": "Box[int]"}


@pytest.mark.parametrize(
    ("name", "identifier", "label"),
    [
        ("Κόμβος", "Κόμβος", "Κόμβος"),
        ("节点", "节点", "节点"),
        ("x²", "x_", "x²"),
        ("𝒜", "_", "𝒜"),
        ('say "hi"', "say__hi_", "say #quot;hi#quot;"),
        ("<b>&#", "_b___", "#lt;b#gt;#amp;#35;"),
        ("%%{init}%%", "___init___", "#37;#37;{init}#37;#37;"),
        ("`md`", "_md_", "#96;md#96;"),
    ],
)
def test_a_name_means_itself_and_nothing_of_mermaids(name: str, identifier: str, label: str):
    (cls,) = build([([], True, False)], name="N")
    cls.__name__ = name
    assert Picture(Graph(start=cls).to_mermaid()).labels == {identifier: label}


class Doc(BaseModel):
    text: str


class SumUp(Node):
    doc: Doc

    async def __call__(self) -> Summary: ...


class Summary(Node):
    text: str

    async def __call__(self) -> None: ...


class Read(Node):
    docs: list[Doc]
    parts: Annotated[list[Summary], Map(SumUp, over="docs")]

    async def __call__(self) -> Check: ...


class Check(Node):
    ok: Annotated[bool, Gate('Is "that" <all>?')]

    async def __call__(self) -> Read | Report:
        return Report()


class Report(Node):
    parts: Annotated[list[Summary], Recall()]

    async def __call__(self) -> Report | None: ...


def test_fields_and_the_graphs_inside_are_drawn_when_asked_for():
    assert Graph(start=Read).to_mermaid(fields=True) == (
        "flowchart TD\n"
        '    Read[["Read (start)<br/>docs: list[Doc] · given or set by Check<br/>'
        'parts: list[Summary] · map graph SumUp for each of docs"]]\n'
        '    Check{{"Check<br/>ok: bool · gate “Is #quot;that#quot; #lt;all#gt;?”"}}\n'
        '    Report{{"Report (may end)<br/>parts: list[Summary] · recall from Read.parts"}}\n'
        "    Read --> Check\n"
        "    Check -->|code| Read\n"
        "    Check -->|code| Report\n"
        "    Report -.->|LM| Report\n"
        '    subgraph graph_SumUp["SumUp, inside Read.parts"]\n'
        "        direction TD\n"
        '        SumUp["SumUp (start)<br/>doc: Doc · given"]\n'
        '        Summary(["Summary (end)<br/>text: str · LM"])\n'
        "        SumUp --> Summary\n"
        "    end\n"
        '    Read -.-|"parts"| graph_SumUp\n'
    )


def test_a_graph_with_problems_is_drawn_as_far_as_it_is_known():
    class Start(Node):
        async def __call__(self) -> Start | int: ...

    assert Picture(Graph(start=Start).to_mermaid()).edges == [("Start", "-->", "Start")]


NODES = st.tuples(
    st.lists(st.integers(0, 7), max_size=4, unique=True), st.booleans(), st.booleans()
)


@settings(deadline=None, derandomize=True, max_examples=50)
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


RICH = re.compile(r"    (\w+) (-->|-\.->\|LM\||-->\|code\|) (\w+)")


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(NODES, min_size=1, max_size=8), st.sampled_from(["N{}", "Same", "End"]))
def test_with_fields_a_picture_has_the_same_edges_and_says_who_chooses(shape: Any, name: str):
    graph = Graph(start=build(shape, name)[0])
    plain = Picture(graph.to_mermaid())
    found = [RICH.fullmatch(line) for line in graph.to_mermaid(fields=True).splitlines()]

    assert [(edge[1], edge[3]) for edge in found if edge] == [(a, b) for a, _, b in plain.edges]
    assert [edge[2] == "-.->|LM|" for edge in found if edge] == [
        arrow == "-.->" for _, arrow, _ in plain.edges
    ]
