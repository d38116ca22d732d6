"""What a drawing for a terminal promises: it fits into its columns, and its characters can be read
back as the edges of the types."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bae import Dep, Graph, Node
from bae.pictures import picture_of, to_text
from bae.pictures.picture import cells
from drawn_graphs import SHAPES, Doc, Edge, edges_of, library, make_graph, make_named_graph, search

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


BACK_FROM_THE_NAME = [([1], False, False), ([2], False, False), ([0, 3], False, True),
                      ([1], False, True)]  # fmt: skip
"""From left to right, the line from the last node leaves where its name is."""


@settings(deadline=None, derandomize=True, max_examples=60)
@given(SHAPES, st.sampled_from(["TD", "LR"]))
@example(BACK_FROM_THE_NAME, "LR")
@example([([1], False, False), ([0], False, False)], "TD")
@example([([i + 1, i // 2, i], False, i % 3 == 0) for i in range(40)], "TD")
def test_a_drawing_read_back_from_its_characters_has_the_edges_of_the_types(
    shape: Any, direction: Any
):
    graph = make_graph(shape)
    picture = picture_of(graph)
    text = str(to_text(graph, width=10_000, fields=False, direction=direction))
    read = Read(text)

    assert sorted(read.names) == sorted(box.id for box in picture.boxes)
    assert read.edges == edges_of(picture), text


@settings(deadline=None, derandomize=True, max_examples=40)
@given(SHAPES)
def test_a_list_names_every_edge(shape: Any):
    graph = make_graph(shape)
    found: set[tuple[str, str]] = set()
    tail = ""
    for line in str(to_text(graph, compact=True)).splitlines():
        arrow = re.match(r"  [→⇢] (N\d+)", line)
        if arrow:
            found.add((tail, arrow[1]))
        elif line:
            tail = line.split()[0]

    assert found == {(a, b) for a, b, _ in edges_of(picture_of(graph))}


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

◆┄┄▶ the LM chooses
◇──▶ your code chooses
"""


def test_a_list_shows_who_chooses_and_which_edges_lead_back():
    assert str(to_text(library, compact=True)) == LIST


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
  → Request  back, if your code chooses it
  → Filed  if your code chooses it

Filed  end
  code  place: str

SumUp  the graph inside Research.parts

SumUp  start
  given  doc: Doc
  → Summary

Summary  end
  LM  text: str
"""


def test_text_in_boxes_is_cut_before_a_list_replaces_the_boxes():
    narrow = to_text(library, width=60)

    assert to_text(library, width=200).width > 60
    assert narrow.width <= 60
    assert "┌" in str(narrow)
    assert "…" in str(narrow)
    star = [(list(range(1, 12)), False, False)] + [([], True, False)] * 11
    text = str(to_text(make_graph(star), width=80))
    assert "┌" not in text
    assert "  ⇢ N11  if the LM chooses it\n" in text


@pytest.mark.parametrize("width", [20, 40, 80, 160])
@pytest.mark.parametrize("direction", ["TD", "LR"])
def test_no_row_is_wider_than_the_terminal(width: int, direction: Any):
    assert to_text(library, width=width, direction=direction).width <= width
    for drawn in (
        library,
        make_named_graph("节点分析", "Κόμβος"),
        make_named_graph("N" * 200, "é" * 30),
    ):
        text = to_text(drawn, width=width, direction=direction, ascii_only=True)

        assert str(text).isascii()
        assert text.width <= width


def test_plain_characters_replace_all_symbols():
    text = str(to_text(library, ascii_only=True))

    assert "search < get_client" in text
    assert "*..> the LM chooses\no--> your code chooses\n" in text
    assert str(to_text(make_named_graph("节点", "Né"), fields=False, ascii_only=True)) == SPELLED


SPELLED = """\
/-------------\\
| ????  start *...+
|             |<..+
\\------*------/
       :
       v
  #=========#
  # N?  end #
  #=========#

*..> the LM chooses
"""


@pytest.mark.parametrize("name", ["节点分析", "😀😀", "e\u0301té"])
def test_boxes_with_wide_and_combining_letters_have_aligned_borders(name: str):
    rows = str(to_text(make_named_graph(name, "B"), fields=False)).splitlines()
    (row,) = [row for row in rows if name in row]
    above = rows[rows.index(row) - 1]

    assert cells(row[: row.index("◆")]) == cells(above.rstrip()[:-1])
