"""What the Mermaid picture of a graph promises: exactly the nodes and edges of the types, under
distinct names that Mermaid accepts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae import Graph
from bae.pictures import picture_of
from drawn_graphs import SHAPES, build, edges_of, library, make_graph

NODE = re.compile(r'^    (\w+)(\(\[|\[)"(.+)"\]\)?$', re.MULTILINE)
EDGE = re.compile(r"^    (\w+) (-->|-\.->) (\w+)$", re.MULTILINE)
RICH = re.compile(r"^    (\w+) (-->|-\.->\|LM\||-->\|code\|) (\w+)$", re.MULTILINE)


def read(graph: Graph[Any, Any]) -> tuple[dict[str, str], set[str], list[tuple[str, str, str]]]:
    """A drawing read back: labels by identifier, the boxes that are round, and the edges."""
    text = graph.to_mermaid()
    nodes, edges = NODE.findall(text), EDGE.findall(text)
    assert text.startswith("flowchart TD\n    ")
    assert text.count("\n") == 1 + len(nodes) + len(edges)
    labels = {identifier: label for identifier, _, label in nodes}
    assert len(labels) == len(nodes)
    return labels, {identifier for identifier, opening, _ in nodes if opening == "(["}, edges


def test_classes_that_share_a_name_get_unique_identifiers():
    classes = build([([1], False, False), ([2], False, False), ([], True, False)], name="Same")
    classes[2].__name__ = "Same_2"
    labels, _, edges = read(Graph(start=classes[0]))

    label = f"{classes[0].__module__}.Same"
    assert labels == {"Same": label, "Same_2": label, "Same_2_2": "Same_2"}
    assert [(a, b) for a, _, b in edges] == [("Same", "Same_2"), ("Same_2", "Same_2_2")]


@pytest.mark.parametrize(
    ("name", "identifier", "label"),
    [
        ("Κόμβος", "______", "Κόμβος"),
        ("Box[int]", "Box_int_", "Box[int]"),
        ("x²", "x_", "x²"),
        ('say "hi"', "say__hi_", "say #34;hi#34;"),
        ("<b>&#", "_b___", "#60;b#62;#38;#35;"),
        ("%%{init}%%", "___init___", "#37;#37;{init}#37;#37;"),
        ("`md`", "_md_", "#96;md#96;"),
        *((word, f"{word}_2", word) for word in ("eNd", "Subgraph", "linkStyle", "Default")),
    ],
)
def test_a_class_name_has_no_special_meaning_in_mermaid(name: str, identifier: str, label: str):
    (cls,) = build([([], True, False)], name="N")
    cls.__name__ = name
    assert read(Graph(start=cls))[0] == {identifier: label}


def test_a_flowchart_with_fields_includes_the_inner_graphs():
    assert library.to_mermaid() == (
        "flowchart TD\n"
        '    Request["Request"]\n'
        '    Research(["Research"])\n'
        '    Report["Report"]\n'
        '    Filed(["Filed"])\n'
        "    Request --> Research\n"
        "    Research -.-> Research\n"
        "    Research -.-> Report\n"
        "    Report --> Request\n"
        "    Report --> Filed\n"
    )
    assert library.to_mermaid(fields=True) == (
        "flowchart TD\n"
        '    Request["Request (start)<br/>topic: str · given or set by Report"]\n'
        '    Research{{"Research (may end)<br/>topic: str · recall from Request.topic<br/>'
        "note: str · recall from Request.topic<br/>found: list[Doc] · dep search ← get_client<br/>"
        "ok: bool · gate “Is #60;that#62; all?”<br/>"
        'parts: list[Summary] · map graph SumUp for each of found<br/>gaps: list[str] · LM"}}\n'
        '    Report{{"Report<br/>text: str · LM"}}\n'
        '    Filed(["Filed (end)<br/>place: str · code"])\n'
        "    Request --> Research\n"
        "    Research -.->|LM| Research\n"
        "    Research -.->|LM| Report\n"
        "    Report -->|code| Request\n"
        "    Report -->|code| Filed\n"
        '    subgraph graph_SumUp["SumUp, inside Research.parts"]\n'
        "        direction TD\n"
        '        SumUp["SumUp (start)<br/>doc: Doc · given"]\n'
        '        Summary(["Summary (end)<br/>text: str · LM"])\n'
        "        SumUp --> Summary\n"
        "    end\n"
        '    Research -.-|"parts"| graph_SumUp\n'
    )


@settings(deadline=None, derandomize=True, max_examples=30)
@given(SHAPES, st.sampled_from(["N{}", "Same", "End", "N[{}]"]))
def test_a_flowchart_has_the_nodes_and_edges_of_the_picture(shape: Any, name: str):
    graph = make_graph(shape, name)
    (labels, rounded, edges), shown = read(graph), picture_of(graph)

    assert list(labels.items()) == [(box.id, box.name) for box in shown.boxes]
    assert rounded == {box.id for box in shown.boxes if box.ending != "never"}
    lines = {"lm": "-.->", "code": "-->", "certain": "-->"}
    assert edges == [(a.tail, lines[a.kind], a.head) for a in shown.arrows]
    kinds = {"-.->|LM|": "lm", "-->|code|": "code", "-->": "certain"}
    rich = RICH.findall(graph.to_mermaid(fields=True))
    assert {(tail, head, kinds[line]) for tail, line, head in rich} == edges_of(shown)
