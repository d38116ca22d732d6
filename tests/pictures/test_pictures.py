"""What a picture of a graph promises, whatever it is drawn as: exactly the nodes and edges of the
types, fields by source, and nothing that a name or a description could break. Drawings are read
back, character by character where they are text."""

from __future__ import annotations

import re
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model
from test_mermaid import build

from bae import Dep, Gate, Graph, Map, Node, NodeConfig, Recall
from bae.pictures import Picture, picture_of, to_mermaid, to_svg, to_text
from bae.pictures.texts import cells, cut
from bae.pictures.types import cut_field, type_said
from made_graphs import Made, made_graphs

SVG = "{http://www.w3.org/2000/svg}"
Edge = tuple[str, str, str]


# --- reading pictures back ----------------------------------------------------------------------


def edges_of(picture: Picture) -> set[Edge]:
    return {(arrow.tail, arrow.head, arrow.kind) for arrow in picture.arrows}


def declared(graph: Graph[Any, Any], picture: Picture) -> set[tuple[str, str]]:
    """The edges of the types, by the ids of the picture."""
    ids = dict(zip(graph.nodes, (box.id for box in picture.boxes), strict=True))
    return {(ids[cls], ids[to]) for cls, targets in graph.edges.items() for to in targets}


def svg_groups(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [each for each in root.iter(f"{SVG}g") if each.get("class") == f"g-{kind}"]


def svg_edges(root: ElementTree.Element) -> set[Edge]:
    """Edges by where their lines begin and end, not by what they are said to be."""
    boxes = {
        node.get("id", "").removeprefix("bae-"): numbers(node.find(f"{SVG}path"))
        for node in svg_groups(root, "node")
    }
    found: set[Edge] = set()
    for edge in svg_groups(root, "edge"):
        line, head, *tail = edge.findall(f"{SVG}path")
        first = numbers(tail[0] if tail else line)[0]
        kind = line.get("class", "").rpartition("-")[2]
        found.add((touched(boxes, first), touched(boxes, numbers(head)[0]), kind))
    return found


def numbers(path: ElementTree.Element | None) -> list[tuple[float, float]]:
    assert path is not None
    pairs = re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.get("d", ""))
    return [(float(x), float(y)) for x, y in pairs]


def touched(boxes: dict[str, list[tuple[float, float]]], point: tuple[float, float]) -> str:
    """The box on whose outline a point is."""
    x, y = point
    for name, points in boxes.items():
        left, right = min(x for x, _ in points), max(x for x, _ in points)
        top, bottom = min(y for _, y in points), max(y for _, y in points)
        inside = left - 0.01 <= x <= right + 0.01 and top - 0.01 <= y <= bottom + 0.01
        if inside and (min(abs(x - left), abs(x - right)) < 0.01 or
                       min(abs(y - top), abs(y - bottom)) < 0.01):  # fmt: skip
            return name
    raise AssertionError(f"nothing is at {point}")


UP, RIGHT, DOWN, LEFT = (0, -1), (1, 0), (0, 1), (-1, 0)
TURNS = {
    "─": {RIGHT: RIGHT, LEFT: LEFT},
    "│": {UP: UP, DOWN: DOWN},
    "╭": {UP: RIGHT, LEFT: DOWN},
    "╮": {UP: LEFT, RIGHT: DOWN},
    "╰": {DOWN: RIGHT, LEFT: UP},
    "╯": {DOWN: LEFT, RIGHT: UP},
    "┼": {way: way for way in (UP, RIGHT, DOWN, LEFT)},
}
TURNS |= {"┄": TURNS["─"], "┊": TURNS["│"]}
HEADS = {"▲": UP, "▶": RIGHT, "▼": DOWN, "◀": LEFT}


class Read:
    """A drawing of boxes without fields whose names are N and a number, read back."""

    def __init__(self, text: str) -> None:
        self.rows = text.splitlines()
        self.sides: dict[tuple[int, int], tuple[str, tuple[int, int]]] = {}
        self.names: list[str] = []
        for y, row in enumerate(self.rows):
            # A line may leave at the left of the name, so that its mark stands for the side.
            for name in re.finditer(r"[│║┃┤◇◆] (N\d+) ", row):
                self._box(name[1], name.start(), y - 1)
        self.edges = {edge for start in self.sides for edge in self._edge(start)}

    def at(self, x: int, y: int) -> str:
        return self.rows[y][x] if 0 <= y < len(self.rows) and x < len(self.rows[y]) else " "

    def _box(self, name: str, left: int, top: int) -> None:
        assert self.at(left, top) in "┌╱╔", (name, self.at(left, top))
        right, bottom = left + 1, top + 1
        while self.at(right, top) not in "┐╲╗":
            right += 1
        while self.at(left, bottom) not in "└╲╚":
            bottom += 1
        for x in range(left + 1, right):
            self.sides[x, top] = (name, UP)
            self.sides[x, bottom] = (name, DOWN)
        for y in range(top + 1, bottom):
            self.sides[left, y] = (name, LEFT)
            self.sides[right, y] = (name, RIGHT)
        self.names.append(name)

    def _edge(self, start: tuple[int, int]) -> list[Edge]:
        sign = self.at(*start)
        if sign not in "┬┴├┤◇◆":
            return []
        name, way = self.sides[start]
        kind = {"◇": "code", "◆": "lm"}.get(sign, "certain")
        x, y = start
        while True:
            x, y = x + way[0], y + way[1]
            here = self.at(x, y)
            if here in HEADS:
                assert HEADS[here] == way
                end = (x + way[0], y + way[1])
                assert end in self.sides, f"the line from {start} ends at no box, at {end}"
                return [(name, self.sides[end][0], kind)]
            assert not (here in "─│" and kind == "lm"), (start, x, y)
            assert not (here in "┄┊" and kind != "lm"), (start, x, y)
            way = TURNS[here][way]


NODES = st.tuples(
    st.lists(st.integers(0, 39), max_size=3, unique=True), st.booleans(), st.booleans()
)
SHAPES = st.lists(NODES, min_size=1, max_size=9)


BACK_FROM_THE_NAME = [([1], False, False), ([2], False, False), ([0, 3], False, True),
                      ([1], False, True)]  # fmt: skip
"""From left to right, the line from the last node leaves where its name is."""


@settings(deadline=None, derandomize=True, max_examples=100)
@given(SHAPES, st.sampled_from(["TD", "LR"]))
@example(BACK_FROM_THE_NAME, "LR")
def test_a_drawing_read_back_from_its_characters_has_the_edges_of_the_types(
    shape: Any, direction: Any
):
    graph = Graph(start=build(shape)[0])
    picture = picture_of(graph)
    text = str(to_text(graph, width=10_000, fields=False, direction=direction))
    read = Read(text)

    assert sorted(read.names) == sorted(box.id for box in picture.boxes)
    assert read.edges == edges_of(picture), text
    assert {(a, b) for a, b, _ in read.edges} == declared(graph, picture)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(SHAPES, st.sampled_from(["N{}", "Same", "End", "N[{}]"]), st.sampled_from(["TD", "LR"]))
def test_an_svg_read_back_by_its_lines_has_the_edges_of_the_types(
    shape: Any, name: str, direction: Any
):
    graph = Graph(start=build(shape, name)[0])
    picture = picture_of(graph)
    root = ElementTree.fromstring(to_svg(graph, direction=direction))

    assert svg_edges(root) == edges_of(picture)
    assert {(a, b) for a, b, _ in edges_of(picture)} == declared(graph, picture)
    said = {(e.get("data-from"), e.get("data-to"), e.get("data-kind"))
            for e in svg_groups(root, "edge")}  # fmt: skip
    assert said == edges_of(picture)
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(SHAPES)
def test_a_list_names_every_edge(shape: Any):
    graph = Graph(start=build(shape)[0])
    found: set[tuple[str, str]] = set()
    tail = ""
    for line in str(to_text(graph, compact=True)).splitlines():
        arrow = re.match(r"  [→⇢] (N\d+)", line)
        if arrow:
            found.add((tail, arrow[1]))
        elif line:
            tail = line.split()[0]

    assert found == declared(graph, picture_of(graph))


def test_forty_nodes_with_loops_are_drawn_in_every_way():
    shape = [([place + 1, place // 2, place], False, place % 3 == 0) for place in range(40)]
    graph = Graph(start=build(shape)[0])
    picture = picture_of(graph)

    assert len(picture.boxes) == 40
    assert svg_edges(ElementTree.fromstring(to_svg(graph))) == edges_of(picture)
    for direction in ("TD", "LR"):
        text = to_text(graph, width=10_000, fields=False, direction=direction)
        assert Read(str(text)).edges == edges_of(picture)
    assert to_text(graph, width=80).width <= 80


@pytest.mark.parametrize("length", [1, 2, 12])
def test_a_long_cycle_comes_back_to_its_start(length: int):
    shape = [([(place + 1) % length], False, False) for place in range(length)]
    graph = Graph(start=build(shape)[0])
    read = Read(str(to_text(graph, fields=False)))

    assert (f"N{length - 1}", "N0", "certain") in read.edges
    assert read.edges == edges_of(picture_of(graph))


# --- what is shown ------------------------------------------------------------------------------


class Doc(BaseModel):
    text: str


def get_client() -> str:
    return "client"


async def search(client: Annotated[str, Dep(get_client)]) -> list[Doc]:
    return [Doc(text=client)]


class SumUp(Node):
    doc: Doc

    async def __call__(self) -> Summary: ...


class Summary(Node):
    text: str = Field(description='short & "sweet", <b>not</b> long')

    async def __call__(self) -> None: ...


class Request(Node):
    """What somebody wants to know."""

    topic: str

    async def __call__(self) -> Research: ...


class Research(Node):
    found: Annotated[list[Doc], Dep(search)]
    parts: Annotated[list[Summary], Map(SumUp, over="found")]
    topic: Annotated[str, Recall(Request)]
    note: Annotated[str, Recall()] = ""
    ok: Annotated[bool, Gate("Is <that> all?")]
    gaps: list[str]

    async def __call__(self) -> Research | Report | None: ...


class Report(Node):
    node_config = NodeConfig(lm="local")
    text: str

    async def __call__(self) -> Request | Filed:
        return Filed(place=self.text)


class Filed(Node):
    place: str

    async def __call__(self) -> None: ...


graph = Graph(start=Request, name="Library")


def test_fields_are_shown_with_where_they_come_from():
    research = picture_of(graph).boxes[1]

    assert [(f.name, f.type, f.source, f.origin) for f in research.fields] == [
        ("topic", "str", "recall", "from Request.topic"),
        ("note", "str", "recall", "from Request.topic"),
        ("found", "list[Doc]", "dep", "search ← get_client"),
        ("ok", "bool", "gate", "“Is <that> all?”"),
        ("parts", "list[Summary]", "map", "graph SumUp for each of found"),
        ("gaps", "list[str]", "lm", ""),
    ]


def test_a_plain_field_is_of_whoever_makes_the_node():
    request, _, report, filed = picture_of(graph).boxes

    assert (request.fields[0].source, request.fields[0].origin) == ("given", "or set by Report")
    assert report.fields[0].source == "lm"
    assert filed.fields[0].source == "code"


def test_a_recalled_field_names_the_fields_that_it_may_come_from():
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


def test_a_recall_in_a_graph_inside_says_nothing_that_the_trace_around_could_belie():
    class Topic(Node):
        text: str

        async def __call__(self) -> Wrap: ...

    class Wrap(Node):
        found: Annotated[Found, Dep(Graph(start=Find))]

        async def __call__(self) -> None: ...

    class Find(Node):
        topic: Annotated[str, Recall()] = Field(init=False)

        async def __call__(self) -> Found: ...

    class Found(Node):
        text: str

        async def __call__(self) -> None: ...

    inner = picture_of(Graph(start=Topic)).inner[0]

    assert [(f.source, f.origin) for f in inner.boxes[0].fields] == [("recall", "")]


class Shade(Enum):
    DARK = 1


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Literal["red", "blue"], "'red' | 'blue'"),
        (Literal["red", 1, True] | None, "'red' | 1 | True | None"),
        (list[Literal["a, b", "it's [", "]"]], """list['a, b' | "it's [" | ']']"""),
        (dict[Literal["a", "b"], list[int]], "dict['a' | 'b', list[int]]"),
        (Literal["Literal['x', 'y']"], "\"Literal['x', 'y']\""),
        (Literal[Shade.DARK], "Shade.DARK"),
        (dict[str, list[int]] | None, "dict[str, list[int]] | None"),
    ],
)
def test_a_literal_is_spelled_by_its_values(annotation: Any, said: str):
    assert type_said(annotation) == said


@pytest.mark.parametrize(
    ("said", "most", "kept"),
    [
        ("'sandals' | 'boots' | 'clogs'", 40, "shoe: 'sandals' | 'boots' | 'clogs'"),
        ("'sandals' | 'boots' | 'clogs'", 34, "shoe: 'sandals' | 'boots' | 1 more"),
        ("'sandals' | 'boots' | 'clogs'", 33, "shoe: 'sandals' | 2 more"),
        ("'sandals' | 'boots' | 'clogs'", 20, "shoe: 'sandals' | '…"),
        ("list['sandals' | 'boots' | 'clogs']", 30, "shoe: list['sandals' | 2 more]"),
        ("dict['sandals' | 'boots', int]", 30, "shoe: dict['sandals' | 'boots…"),
        ("'a | b' | 'it is [ long' | 'c'", 28, "shoe: 'a | b' | 2 more"),
    ],
)
def test_a_long_choice_is_cut_after_a_whole_alternative(said: str, most: int, kept: str):
    assert cut_field("shoe", said, most) == kept
    assert cells(kept) <= most


def test_a_field_says_where_it_comes_from_in_one_phrase():
    request, research, *_ = picture_of(graph).boxes

    assert request.fields[0].said == "given by who starts the run, or set by Report"
    assert [field.said for field in research.fields] == [
        "recalled from Request.topic",
        "recalled from Request.topic",
        "what a function or a graph returns: search ← get_client",
        "what a person answers: “Is <that> all?”",
        "what a function or a graph returns for each item: graph SumUp for each of found",
        "filled by the LM",
    ]


def test_boxes_say_how_a_run_goes_on_from_them():
    boxes = picture_of(graph).boxes

    assert [box.name for box in boxes if box.start] == ["Request"]
    assert [(box.name, box.ending, box.chooser) for box in boxes] == [
        ("Request", "never", "certain"),
        ("Research", "may", "lm"),
        ("Report", "never", "code"),
        ("Filed", "always", "certain"),
    ]
    assert boxes[2].lm == "local"
    assert boxes[0].doc == "What somebody wants to know."
    assert re.fullmatch(r"(tests/pictures/)?test_pictures\.py:\d+", boxes[0].place)


def test_graphs_inside_are_pictures_of_their_own_each_once():
    class Twice(Node):
        docs: list[Doc]
        one: Annotated[list[Summary], Map(SumUp, over="docs")]
        two: Annotated[list[Summary], Map(SumUp, over="docs")]

        async def __call__(self) -> None: ...

    picture = picture_of(Graph(start=Twice))
    (inner,) = picture.inner

    assert (inner.name, inner.used_by) == ("SumUp", ("Twice.one", "Twice.two"))
    assert [box.name for box in inner.boxes] == ["SumUp", "Summary"]
    assert {graph for field in picture.boxes[0].fields for graph in field.graphs} == {inner.id}


def test_graphs_inside_graphs_inside_dependencies_are_found():
    deepest = Graph(start=Summary, name="Deepest")

    class Middle(Node):
        seed: str = ""
        found: Annotated[Summary, Dep(deepest)]

        async def __call__(self) -> None: ...

    async def look(middle: Annotated[Middle, Dep(Middle)]) -> str: ...

    class Top(Node):
        looked: Annotated[str, Dep(look)]

        async def __call__(self) -> None: ...

    picture = picture_of(Graph(start=Top))
    assert [each.name for each in picture.inner] == ["Middle", "Deepest"]
    assert picture.boxes[0].fields[0].origin == "look ← graph Middle"


def test_what_a_dependency_is_called_with_is_told():
    def connect() -> int:
        return 1

    def search(query: str, line: Annotated[int, Dep(connect)], day: str = "") -> str:
        return query

    def rate(item: str, query: Annotated[str, Recall()]) -> int:
        return 1

    class Asked(Node):
        text: str

        async def __call__(self) -> Told: ...

    class Told(Node):
        words: list[str]
        query: str
        found: Annotated[str, Dep(search, query="query", day=Recall(Asked))]
        rated: Annotated[list[int], Map(rate, over="words")]

        async def __call__(self) -> None: ...

    fields = {each.name: each.origin for each in picture_of(Graph(start=Asked)).boxes[1].fields}
    assert fields["found"] == "search ← (query, Recall(Asked), connect)"
    assert fields["rated"] == "rate ← Recall() for each of words"


def test_a_graph_that_is_its_own_dependency_is_drawn_all_the_same():
    class Snake(Node):
        tail: Annotated[Any, Dep(lambda: None)]

        async def __call__(self) -> None: ...

    ring = Graph(start=Snake)
    Again = create_model(
        "Again", __base__=Node, inner=(Annotated[Any, Dep(ring)], ...), __module__=__name__
    )

    async def call(self: Node) -> None: ...

    type.__setattr__(Again, "__call__", call)
    whole = Graph(start=Again)
    Snake.model_fields["tail"].metadata[:] = [Dep(whole)]
    picture = picture_of(whole)

    assert [each.name for each in picture.all] == ["Again", "Snake"]
    assert picture.inner[0].boxes[0].fields[0].graphs == (picture.id,)
    for draw in (to_svg, to_mermaid, to_text):
        assert str(draw(whole))


def test_a_graph_with_problems_is_drawn_as_far_as_it_is_known():
    class Lost(Node):
        found: Nowhere  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

        async def __call__(self) -> Lost: ...

    assert [box.name for box in picture_of(Graph(start=Lost)).boxes] == ["Lost"]
    assert "Lost" in to_svg(Graph(start=Lost))


def test_classes_of_one_name_are_told_apart():
    def made(module: str) -> type[Node]:
        return create_model("Same", __base__=Node, __module__=module)

    first, second = made("shop.carts"), made("shop.orders")

    async def on(self: Node): ...

    async def end(self: Node) -> None: ...

    on.__annotations__["return"] = second
    type.__setattr__(first, "__call__", on)
    type.__setattr__(second, "__call__", end)
    twins = Graph(start=first)

    assert [(box.id, box.apart) for box in picture_of(twins).boxes] == [
        ("Same", "shop.carts"),
        ("Same_2", "shop.orders"),
    ]
    text = str(to_text(twins, fields=False))
    assert "Same  shop.carts  start" in text
    assert "Same  shop.orders  end" in text
    assert "shop.orders" in to_svg(twins)


def test_a_class_of_a_file_elsewhere_does_not_tell_where_that_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    box = picture_of(graph).boxes[0]

    assert re.fullmatch(r"test_pictures\.py:\d+", box.place)


# --- names that could break things --------------------------------------------------------------

NAMES = ["Æther", "Κόμβος", "节点分析", "N<b>&amp;", 'Q"uote\'', "A]B", "N\x1b[31m", "e\u0301té",
         "שלום", "😀😀", "--><script>alert(1)</script>", "a\u202eb", "end", "N" * 200]  # fmt: skip


def named(*names: str) -> Graph[Any, Any]:
    classes = build([([1, 0], False, False), ([], True, False)], "N{}")
    for cls, name in zip(classes, names, strict=True):
        cls.__name__ = name
    return Graph(start=classes[0], name=names[0])


@pytest.mark.parametrize("name", NAMES)
def test_no_name_breaks_a_picture(name: str):
    drawn = named(name, name[::-1])
    root = ElementTree.fromstring(to_svg(drawn).encode())

    assert svg_edges(root) == edges_of(picture_of(drawn))
    assert len(svg_groups(root, "node")) == 2
    for text in (str(to_text(drawn)), str(to_text(drawn, ascii_only=True)), to_mermaid(drawn)):
        assert "\x1b" not in text
        text.encode()
    assert str(to_text(drawn, ascii_only=True)).isascii()
    assert to_text(drawn).width <= 80


def test_what_no_file_should_see_is_not_in_it():
    class Odd(Node):
        ok: Annotated[bool, Gate("a\x00b\nc\ud800d")]

        async def __call__(self) -> None: ...

    assert picture_of(Graph(start=Odd)).boxes[0].fields[0].origin == "“a\ufffdb c\ufffdd”"
    ElementTree.fromstring(to_svg(Graph(start=Odd)).encode())


@pytest.mark.parametrize("name", ["节点分析", "😀😀", "e\u0301té"])
def test_boxes_with_wide_and_combining_letters_are_closed(name: str):
    rows = str(to_text(named(name, "B"), fields=False)).splitlines()
    (row,) = [row for row in rows if name in row]
    above = rows[rows.index(row) - 1]

    assert cells(row[: row.index("◆")]) == cells(above.rstrip()[:-1])


def test_text_is_cut_by_its_columns():
    assert cut("节点分析", 5) == "节点…"
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdef", 5) == "abcd…"
    assert cells("e\u0301té") == 3
    assert cut("abcdef", 5, "...") == "ab..."
    assert cut("abcdef", 2, "...") == ".."


# --- text ---------------------------------------------------------------------------------------


def test_a_small_graph_is_drawn_with_boxes_and_lines():
    class Ask(Node):
        text: str

        async def __call__(self) -> Reply | Look: ...

    class Look(Node):
        found: Annotated[list[Doc], Dep(search)]

        async def __call__(self) -> Ask | Reply:
            return Reply(text="")

    class Reply(Node):
        text: str

        async def __call__(self) -> None: ...

    assert str(to_text(Graph(start=Ask))) == SMALL


SMALL = """\
                  ╱──────────────────────────────────╲
                  │ Ask  start                       │
                  ├──────────────────────────────────┤
                  │ given  text: str  or set by Look │
                  ╲─────────◆───────────────────◆────╱
                            ┊ ▲                 ┊
                            ▼ │                 ┊
╱─────────────────────────────◇──────────────╲  ┊
│ Look                                       │  ┊
├────────────────────────────────────────────┤  ┊
│ dep  found: list[Doc]  search ← get_client │  ┊
╲──────────────────────────────◇─────────────╱  ┊
                               │                ┊
                               ▼                ▼
                        ╔═══════════════════════════════╗
                        ║ Reply  end                    ║
                        ╟───────────────────────────────╢
                        ║ LM  text: str  or set by Look ║
                        ╚═══════════════════════════════╝

◆┄┄▶ the LM chooses   ◇──▶ your code chooses
"""


def test_boxes_are_cut_before_a_list_takes_their_place():
    wide = to_text(graph, width=200).width
    narrow = to_text(graph, width=60)

    assert wide > 60
    assert narrow.width <= 60
    assert "┌" in str(narrow)
    assert "…" in str(narrow)


def test_what_does_not_fit_is_a_list_of_names_and_arrows():
    shape = [(list(range(1, 12)), False, False)] + [([], True, False)] * 11
    text = str(to_text(Graph(start=build(shape)[0]), width=80))

    assert "┌" not in text
    assert "  ⇢ N11  if the LM chooses it\n" in text


def test_a_list_says_who_chooses_and_what_leads_back():
    assert str(to_text(graph, compact=True)) == LIST


LIST = """\
Request  start
  given  topic: str  or set by Report
  → Research

Research  may end
  recall  topic: str            from Request.topic
  recall  note: str             from Request.topic
  dep     found: list[Doc]      search ← get_client
  gate    ok: bool              “Is <that> all?”
  map     parts: list[Summary]  graph SumUp for each of found
  LM      gaps: list[str]
  ⇢ Research  again, if the LM chooses it
  ⇢ Report  if the LM chooses it

Report
  LM  text: str
  → Request  back, if the code chooses it
  → Filed  if the code chooses it

Filed  end
  code  place: str

SumUp  the graph inside Research.parts

SumUp  start
  given  doc: Doc
  → Summary

Summary  end
  LM  text: str
"""


def test_only_an_arrow_of_a_loop_leads_back():
    # The last comes after the end among the nodes, and leads to it.
    shape = [([1, 2], False, False), ([3, 0], False, True), ([], True, False), ([2], False, False)]
    text = str(to_text(Graph(start=build(shape)[0]), compact=True))

    assert "  → N0  back, if the code chooses it\n" in text
    assert text.endswith("N3\n  → N2\n")


@pytest.mark.parametrize("width", [20, 40, 80, 160])
@pytest.mark.parametrize("direction", ["TD", "LR"])
def test_no_row_is_wider_than_asked_for(width: int, direction: Any):
    assert to_text(graph, width=width, direction=direction).width <= width


def test_plain_characters_do_without_any_others():
    text = str(to_text(graph, ascii_only=True))

    assert text.isascii()
    assert "search <- get_client" in text
    assert "*..> the LM chooses   o--> your code chooses" in text


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize("direction", ["TD", "LR"])
@pytest.mark.parametrize("names", [("节点分析", "Κόμβος"), ("N" * 200, "é" * 30)])
def test_plain_characters_fit_and_stay_plain_where_text_is_cut(
    names: tuple[str, str], direction: Any, width: int
):
    for drawn in (named(*names), graph):
        text = to_text(drawn, width=width, direction=direction, ascii_only=True)

        assert str(text).isascii()
        assert text.width <= width


def test_boxes_of_plain_characters_are_closed_around_names_that_need_more_of_them():
    assert str(to_text(named("节点", "Né"), fields=False, ascii_only=True)) == SPELLED


SPELLED = """\
/---------------------\\
| \\u8282\\u70b9  start *....
|                     |<...
\\----------*----------/
           :
           v
    #============#
    # N\\xe9  end #
    #============#

*..> the LM chooses
"""


def test_shapes_differ_by_how_the_run_goes_on():
    text = str(to_text(graph))
    corners = {
        name: next(
            above[row.index(name) - 2]
            for above, row in zip(text.splitlines(), text.splitlines()[1:], strict=False)
            if re.search(rf"[│║┃] {name} ", row)
        )
        for name in ("Request", "Research", "Report", "Filed")
    }
    assert corners == {"Request": "┌", "Research": "╱", "Report": "╱", "Filed": "╔"}
    assert "┃ Research" in text
    assert "║ Filed" in text


# --- svg -------------------------------------------------------------------------------


def test_an_svg_refers_to_nothing_and_tells_what_it_shows():
    text = to_svg(graph)
    root = ElementTree.fromstring(text)

    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "The graph Library"
    assert root.findtext(f"{SVG}desc") == (
        "Request leads to Research. Research leads to Research or Report or the end, as the LM "
        "chooses. Report leads to Request or Filed, as the code chooses. Filed leads to the end. "
        "Inside Research.parts, the graph SumUp: SumUp leads to Summary. Summary leads to the end."
    )
    assert text.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text
    links = [each.get("href", "") for each in root.iter(f"{SVG}a")]
    ids = {each.get("id") for each in root.iter()}
    assert links
    assert all(link.removeprefix("#") in ids for link in links)


def test_an_svg_of_one_theme_has_no_other():
    assert "prefers-color-scheme" not in to_svg(graph, theme="dark")
    assert to_svg(graph, theme="dark") != to_svg(graph, theme="light")


def test_an_svg_has_a_legend_of_what_is_there_and_nothing_else():
    def legend(drawn: Graph[Any, Any]) -> list[str | None]:
        (group,) = svg_groups(ElementTree.fromstring(to_svg(drawn)), "legend")
        return [each.text for each in group.iter(f"{SVG}text")]

    assert legend(graph) == [
        "always goes on there",
        "the LM chooses",
        "your code chooses",
        "several ways on",
        "a run may end here",
        "a graph runs inside",
    ]
    assert legend(Graph(start=SumUp)) == ["always goes on there", "a run may end here"]


def test_an_svg_has_the_text_of_all_fields_and_tells_the_rest_on_hovering():
    root = ElementTree.fromstring(to_svg(graph))
    texts = [each.text for each in root.iter(f"{SVG}text")]

    for said in ("Research", "found", ": list[Doc]", "search ← get_client", "“Is <that> all?”"):
        assert said in texts
    (summary,) = [
        field for field in svg_groups(root, "field")
        if 'short & "sweet", <b>not</b> long' in (field.findtext(f"{SVG}title") or "")
    ]  # fmt: skip
    assert summary.get("data-source") == "lm"


def test_without_fields_an_svg_has_the_same_edges():
    root = ElementTree.fromstring(to_svg(graph, fields=False, direction="LR"))
    found = {edge for edge in svg_edges(root) if edge[0] not in ("SumUp", "Summary")}

    assert svg_groups(root, "field") == []
    assert found == edges_of(picture_of(graph))


def test_a_notebook_shows_a_graph_by_its_picture():
    assert graph._repr_svg_() == graph.to_svg() == to_svg(graph)


def test_the_picture_in_the_docs_is_of_the_graph_on_its_page():
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


@settings(deadline=None, derandomize=True, max_examples=12)
@given(made_graphs())
def test_graphs_with_graphs_inside_have_the_edges_of_each(made: Made):
    made.build()
    picture = picture_of(made.graph)
    found = {edge for each in picture.all for edge in edges_of(each)}

    assert {(a, b) for a, b, _ in edges_of(picture)} == declared(made.graph, picture)
    for each in picture.inner:
        inner = getattr(made.names, each.name[: -len("N0")].lower())
        assert {(a, b) for a, b, _ in edges_of(each)} == declared(inner, each)
    assert svg_edges(ElementTree.fromstring(to_svg(made.graph))) == found
    shown = {field.name: field for box in picture.boxes for field in box.fields}
    for name, field in shown.items():
        assert bool(field.graphs) == ("graph " in field.origin), name
    assert to_text(made.graph, width=80).width <= 80
    assert to_mermaid(made.graph).count("subgraph ") == len(picture.inner)
