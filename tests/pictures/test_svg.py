"""What an SVG of a graph promises: the edges of the types, read back from its lines, text that
nothing can break, and no reference to another file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae import Graph
from bae.pictures import picture_of, to_mermaid, to_svg, to_text
from drawn_graphs import SHAPES, Edge, SumUp, edges_of, library, make_graph, make_named_graph

SVG = "{http://www.w3.org/2000/svg}"
Points = list[tuple[float, float]]


def read(graph: Graph[Any, Any], **options: Any) -> ElementTree.Element:
    return ElementTree.fromstring(to_svg(graph, **options).encode())


def groups(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [element for element in root.iter(f"{SVG}g") if f"g-{kind}" in element.get("class", "")]


def find_edges(root: ElementTree.Element) -> set[Edge]:
    """Edges by where their lines begin and end; each graph has coordinates of its own."""
    found: set[Edge] = set()
    for graph in groups(root, "graph"):
        boxes = {node.get("id", "").removeprefix("bae-"): corners(node[1])
                 for node in groups(graph, "node")}  # fmt: skip
        for edge in groups(graph, "edge"):
            _, line, head, *tail = edge
            kind = edge.get("class", "").rpartition("-")[2]
            first = numbers((tail or [line])[0])[0]
            found.add(
                (find_touched_box(boxes, first), find_touched_box(boxes, numbers(head)[0]), kind)
            )
    return found


def numbers(element: ElementTree.Element) -> Points:
    text = element.get("d") or element.get("points") or ""
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", text)]


def corners(shape: ElementTree.Element) -> Points:
    if shape.get("points"):
        return numbers(shape)
    x, y, width, height = (float(shape.get(name, "")) for name in ("x", "y", "width", "height"))
    return [(x, y), (x + width, y + height)]


def find_touched_box(boxes: dict[str, Points], point: tuple[float, float]) -> str:
    """The box on whose outline a point is."""
    x, y = point
    for name, points in boxes.items():
        left, right = min(x for x, _ in points), max(x for x, _ in points)
        top, bottom = min(y for _, y in points), max(y for _, y in points)
        if left <= x <= right and top <= y <= bottom and (x in (left, right) or y in (top, bottom)):
            return name
    raise AssertionError(f"nothing is at {point}")


@settings(deadline=None, derandomize=True, max_examples=30)
@given(SHAPES, st.sampled_from(["N{}", "Same", "N[{}]"]), st.sampled_from(["TD", "LR"]))
def test_an_svg_has_the_edges_of_the_types(shape: Any, name: str, direction: Any):
    graph = make_graph(shape, name)
    root = read(graph, direction=direction)

    assert find_edges(root) == edges_of(picture_of(graph))
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


def test_an_svg_includes_the_inner_graphs():
    expected = {
        edge for graph_picture in picture_of(library).all for edge in edges_of(graph_picture)
    }

    assert find_edges(read(library)) == expected
    plain = read(library, fields=False, direction="LR")
    assert find_edges(plain) == expected
    assert groups(plain, "field") == []


NAMES = ["Κόμβος", "节点分析", "N<b>&amp;", 'Q"uote\'', "A]B", "N\x1b[31m", "e\u0301té", "שלום",
         "😀😀", "--><script>alert(1)</script>", "a\u202eb", "end", "N" * 200]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_class_name_breaks_an_svg(name: str):
    drawn = make_named_graph(name, name[::-1])

    assert find_edges(read(drawn)) == edges_of(picture_of(drawn))
    for text in (str(to_text(drawn)), str(to_text(drawn, ascii_only=True)), to_mermaid(drawn)):
        assert "\x1b" not in text
        text.encode()
    assert str(to_text(drawn, ascii_only=True)).isascii()
    assert to_text(drawn).width <= 80


def test_an_svg_has_no_external_references_and_a_description():
    text = to_svg(library)
    root = ElementTree.fromstring(text)

    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "The graph Library"
    assert root.findtext(f"{SVG}desc") == (
        "Request  start\n  → Research\n\n"
        "Research  may end\n  ⇢ Research  again, if the LM chooses it\n"
        "  ⇢ Report  if the LM chooses it\n\n"
        "Report\n  → Request  back, if your code chooses it\n"
        "  → Filed  if your code chooses it\n\nFiled  end\n\n"
        "SumUp  the graph inside Research.parts\n\nSumUp  start\n  → Summary\n\nSummary  end\n"
    )
    assert text.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    assert "url(" not in text
    assert "@import" not in text


def test_an_svg_legend_explains_only_the_used_symbols():
    def legend(drawn: Graph[Any, Any]) -> list[str | None]:
        found = groups(read(drawn), "legend")
        return [element.text for group in found for element in group.iter(f"{SVG}text")]

    assert legend(library) == ["the LM chooses", "your code chooses", "a graph runs inside"]
    assert legend(Graph(start=SumUp)) == []


def test_an_svg_has_the_text_of_all_fields_and_descriptions_on_hovering():
    root = read(library)
    texts = [element.text for element in root.iter(f"{SVG}text")]

    for text in ("Research", "found", ": list[Doc]", "search ← get_client", "“Is <that> all?”"):
        assert text in texts
    titles = [field.findtext(f"{SVG}title") for field in groups(root, "field")]
    assert 'text: str\nLM\nshort & "sweet", <b>not</b> long' in titles


def test_a_notebook_shows_the_picture_of_a_graph():
    assert library._repr_svg_() == library.to_svg() == to_svg(library)
    assert "prefers-color-scheme:dark" in to_svg(library)
    assert "prefers-color-scheme" not in to_svg(library, theme="dark")
    assert to_svg(library, theme="dark") != to_svg(library, theme="light")


def test_the_picture_in_the_docs_shows_the_graph_on_its_page():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "pictures.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert code is not None
    module = ModuleType("refunds")
    sys.modules["refunds"] = module
    try:
        exec(compile(code[1], "refunds.py", "exec", dont_inherit=True), vars(module))
        drawn = to_svg(module.graph)
    finally:
        del sys.modules["refunds"]
    assert (docs / "assets" / "refunds.svg").read_text("utf-8") == drawn
