"""A sheet of character cells to draw boxes and lines on. What is drawn has a role beside its
character, so that whoever prints it can add colour. `terminal.py` draws on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bae.pictures.contents import ArrowKind, Box
from bae.pictures.texts import cell_width

Piece = tuple[str, str]
"""A text and its role."""

UP, RIGHT, DOWN, LEFT = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters to draw with."""

    lines: dict[ArrowKind, dict[int, str]]
    tails: dict[ArrowKind, dict[int, str]]
    heads: dict[int, str]
    goes_on: str
    """The corners of a box, and its sides: above, at the right, below, at the left."""
    chooses: str
    ends: str
    may_end: str
    holds: str
    """The sides of a box with a graph inside."""
    rule: str
    """What parts the name from the fields."""
    joints: dict[str, str]
    """For each side of a box, how the rule joins it at the left and at the right."""
    listed: dict[ArrowKind, str]
    """What stands for an arrow in a list."""
    dots: str
    """Where text was cut."""


def _line(across: str, down: str, corners: str) -> dict[int, str]:
    upper_left, upper_right, lower_left, lower_right = corners
    return {
        LEFT | RIGHT: across,
        UP | DOWN: down,
        RIGHT | DOWN: upper_left,
        LEFT | DOWN: upper_right,
        RIGHT | UP: lower_left,
        LEFT | UP: lower_right,
        UP | RIGHT | DOWN | LEFT: "┼" if corners == "╭╮╰╯" else "+",
    }


def _tail(up: str, right: str, down: str, left: str) -> dict[int, str]:
    return {UP: up, RIGHT: right, DOWN: down, LEFT: left}


UNICODE: Final = Marks(
    lines={
        "certain": _line("─", "│", "╭╮╰╯"),
        "code": _line("─", "│", "╭╮╰╯"),
        "lm": _line("┄", "┊", "╭╮╰╯"),
    },
    tails={"certain": _tail(*"┴├┬┤"), "code": _tail(*"◇◇◇◇"), "lm": _tail(*"◆◆◆◆")},
    heads=_tail(*"▲▶▼◀"),
    goes_on="┌┐└┘─│─│",
    chooses="╱╲╲╱─│─│",
    ends="╔╗╚╝═║═║",
    may_end="╱╲╲╱═│═│",
    holds="┃",
    rule="─",
    joints={"│": "├┤", "║": "╟╢", "┃": "┠┨"},
    listed={"certain": "→", "code": "→", "lm": "⇢"},
    dots="…",
)
ASCII: Final = Marks(
    lines={
        "certain": _line("-", "|", "++++"),
        "code": _line("-", "|", "++++"),
        "lm": _line(".", ":", "...."),
    },
    tails={"certain": _tail(*"++++"), "code": _tail(*"oooo"), "lm": _tail(*"****")},
    heads=_tail(*"^>v<"),
    goes_on="++++-|-|",
    chooses="/\\\\/-|-|",
    ends="####=#=#",
    may_end="/\\\\/=|=|",
    holds="I",
    rule="-",
    joints={"|": "++", "#": "##", "I": "II"},
    listed={"certain": "->", "code": "->", "lm": "..>"},
    dots="...",
)


class Canvas:
    """Rows of cells. A wide character takes its cell and leaves the next one empty."""

    def __init__(self, width: int, height: int, marks: Marks) -> None:
        self.marks = marks
        self._cells: list[list[Piece]] = [[(" ", "")] * width for _ in range(height)]
        self._ways: dict[tuple[int, int], int] = {}

    def put(self, x: int, y: int, text: str, role: str = "") -> None:
        """Write a text from a cell on to the right."""
        row = self._cells[y]
        for c in text:
            width = cell_width(c)
            if width == 0:
                row[x - 1] = (row[x - 1][0] + c, row[x - 1][1])
                continue
            row[x] = (c, role)
            for beside in range(1, width):
                row[x + beside] = ("", role)
            x += width

    def box(self, x: int, y: int, width: int, height: int, box: Box, rule: bool) -> None:
        """Draw the outline of a box; its shape says how the run goes on from it. With a `rule`
        there is a line under the name."""
        marks, role = self.marks, "outline"
        shape = marks.goes_on
        if box.ending == "always":
            shape = marks.ends
        elif box.chooser != "certain":
            shape = marks.may_end if box.ending == "may" else marks.chooses
        upper_left, upper_right, lower_left, lower_right, top, right, bottom, left = shape
        if box.inner:
            right = left = marks.holds
        self.put(x, y, upper_left + top * (width - 2) + upper_right, role)
        for row in range(y + 1, y + height - 1):
            self.put(x, row, left, role)
            self.put(x + width - 1, row, right, role)
        self.put(x, y + height - 1, lower_left + bottom * (width - 2) + lower_right, role)
        if rule:
            before, after = marks.joints[left]
            self.put(x, y + 2, before + marks.rule * (width - 2) + after, role)

    def line(self, points: Sequence[tuple[int, int]], kind: ArrowKind) -> None:
        """Draw an arrow along points. The first and the last are beyond the outlines of their boxes
        by as much as a layout in whole numbers says: see `_cells_of`."""
        cells, first, last = _cells_of(points)
        role = f"arrow-{kind}"
        x, y = cells[0]
        self.put(x, y, self.marks.tails[kind][first], role)
        ways = self.marks.lines[kind]
        for place in range(1, len(cells) - 2):
            before, here, after = cells[place - 1], cells[place], cells[place + 1]
            way = _way(here, before) | _way(here, after)
            if here in self._ways:
                way = UP | RIGHT | DOWN | LEFT
            self._ways[here] = way
            self.put(*here, ways[way], role)
        x, y = cells[-2]
        self.put(x, y, self.marks.heads[last], role)

    def rows(self) -> list[list[Piece]]:
        """What is drawn: each row as pieces of one role, without what is empty at its end."""
        found: list[list[Piece]] = []
        for row in self._cells:
            pieces: list[Piece] = []
            for text, role in row:
                if pieces and (pieces[-1][1] == role or text in ("", " ")):
                    pieces[-1] = (pieces[-1][0] + text, pieces[-1][1])
                else:
                    pieces.append((text, role))
            while pieces:
                kept = pieces[-1][0].rstrip()
                if kept:
                    pieces[-1] = (kept, pieces[-1][1])
                    break
                pieces.pop()
            found.append(pieces)
        return found


def _way(here: tuple[int, int], there: tuple[int, int]) -> int:
    (x, y), (to_x, to_y) = here, there
    if x == to_x:
        return UP if to_y < y else DOWN
    return LEFT if to_x < x else RIGHT


def _cells_of(points: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], int, int]:
    """Every cell that a line passes, from the outline of one box to that of the other, and the
    directions in which it leaves and arrives.

    A box at 3 that is 4 long fills the cells 3 to 6, and the layout has it end at 7: a line that
    leaves towards higher numbers starts one cell before its first point, which is on the outline;
    one that leaves towards lower numbers starts at it. The same holds where it arrives.
    """
    first, last = _way(points[0], points[1]), _way(points[-2], points[-1])
    ends = [points[0], *points[1:-1], points[-1]]
    if first in (DOWN, RIGHT):
        ends[0] = _step(points[0], first, -1)
    if last in (UP, LEFT):
        ends[-1] = _step(points[-1], last, 1)
    cells = [ends[0]]
    for end in ends[1:]:
        while cells[-1] != end:
            cells.append(_step(cells[-1], _way(cells[-1], end), 1))
    return cells, first, last


def _step(point: tuple[int, int], way: int, by: int) -> tuple[int, int]:
    x, y = point
    return {
        UP: (x, y - by),
        RIGHT: (x + by, y),
        DOWN: (x, y + by),
        LEFT: (x - by, y),
    }[way]
