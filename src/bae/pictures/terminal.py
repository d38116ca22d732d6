"""`to_text`, which draws a graph as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bae.pictures.layout import Point, Size, Spacing, arrange, layers
from bae.pictures.picture import (
    CHOOSERS,
    ArrowKind,
    Box,
    Direction,
    Picture,
    cell_width,
    cells,
    cut_columns,
    legend_of,
    picture_of,
)

if TYPE_CHECKING:
    from bae.graph import Graph

StyledText = tuple[str, str]
"""A text and its role, such as "name" or "source-lm". The role sets the color."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture as rows of text for a terminal. `str(drawing)` is the text without colors."""

    rows: tuple[tuple[StyledText, ...], ...]
    """The rows. Each row has pieces of text, and each piece has a role, such as "name" or
    "source-lm", for coloring."""

    @property
    def width(self) -> int:
        """The width of the picture in columns."""
        return max(map(row_length, self.rows), default=0)

    def __str__(self) -> str:
        return "".join("".join(text for text, _ in row) + "\n" for row in self.rows)


def to_text(
    graph: Graph[Any, Any],
    *,
    width: int = 80,
    fields: bool = True,
    direction: Direction = "TD",
    ascii_only: bool = False,
    compact: bool = False,
) -> Drawing:
    """Draw the graph as text of at most `width` columns. You can print the result.

    If boxes and lines need more columns, or with `compact`, the drawing is a list of the nodes and
    their arrows.
    """
    picture = picture_of(graph)
    rows: list[Sequence[StyledText]] = []
    boxed: list[Picture] = []
    for part in picture.all:
        if part is not picture:
            used_by = f"  the graph inside {', '.join(part.used_by)}"
            rows += [(), [(part.name, "name"), (used_by, "note")], ()]
        drawing = None if compact else _boxes(part, width, fields, across=direction == "LR")
        if drawing is not None:
            boxed.append(part)
        rows += drawing if drawing is not None else _list(part, width, fields)
    legend = legend_of(boxed)
    rows += [()] if legend else []
    for sign, meaning in legend:
        sample, role = SAMPLES[sign], "outline" if sign == "inner" else f"arrow-{sign}"
        rows.append([(sample, role), (f" {meaning}", "note")])
    spell = to_ascii if ascii_only else str
    return Drawing(tuple(tuple((spell(t), role) for t, role in _fit(row, width)) for row in rows))


Heading = tuple[int, int]
UP, RIGHT, DOWN, LEFT = (0, -1), (1, 0), (0, 1), (-1, 0)
HEADS: Final = {UP: "▲", RIGHT: "▶", DOWN: "▼", LEFT: "◀"}
TAILS: Final = {UP: "┴", RIGHT: "├", DOWN: "┬", LEFT: "┤"}
TURNS: Final = {
    frozenset({LEFT, RIGHT}): "─",
    frozenset({UP, DOWN}): "│",
    frozenset({RIGHT, DOWN}): "╭",
    frozenset({LEFT, DOWN}): "╮",
    frozenset({RIGHT, UP}): "╰",
    frozenset({LEFT, UP}): "╯",
}
GOES_ON, CHOOSES, ENDS, MAY_END = "┌┐└┘─│", "╱╲╲╱─│", "╔╗╚╝═║", "╱╲╲╱═│"
"""The characters of a box's outline: the four corners, the horizontal sides and the vertical
sides."""
HOLDS: Final = "┃"
"""The character of the vertical sides of a box with a subgraph."""
JOINTS: Final = {"│": "├┤", "║": "╟╢", "┃": "┠┨"}
"""The left and right ends of the rule under a box's name, by the character of the box's vertical
sides."""
CHOICES: Final[dict[ArrowKind, str]] = {"lm": "◆", "code": "◇"}
LISTED: Final[dict[ArrowKind, str]] = {"certain": "→", "code": "→", "lm": "⇢"}
SAMPLES: Final = {"lm": "◆┄┄▶", "code": "◇──▶", "inner": "┃  ┃"}
DASHED: Final = str.maketrans("─│", "┄┊")
ASCII: Final = {
    **str.maketrans("─│┄┊═║┃╱╲▲▶▼◀◆◇…←→⇢“”", '-|.:=#I/\\^>v<*o~<>>""'),
    **str.maketrans(dict.fromkeys("╭╮╰╯┼┌┐└┘├┤┬┴", "+")),
    **str.maketrans(dict.fromkeys("╔╗╚╝╟╢", "#")),
    **str.maketrans(dict.fromkeys("┠┨", "I")),
}
SPACING: Final = Spacing(
    apart=3, beside=2, joins=2, inset=2, tail=1, track=1, head=1, loop=4, loop_at=(1, 2)
)
SPACING_ACROSS: Final = Spacing(
    apart=1, beside=1, joins=1, inset=1, tail=2, track=2, head=3, loop=3, loop_at=(2, 5)
)
WIDEST, NARROWEST = 64, 28
"""The maximum and the minimum width to which the text of a box is cut. If boxes of the minimum
width do not fit, the drawing is a list."""


def to_ascii(text: str) -> str:
    """Convert a text to ASCII. The result has the same width in columns."""
    plain = text.translate(ASCII)
    return "".join(char if char.isascii() else "?" * cell_width(char) for char in plain)


def _fit(row: Sequence[StyledText], width: int) -> list[StyledText]:
    """Cut a row to `width` columns."""
    pieces: list[StyledText] = []
    for text, role in row:
        if width > 0:
            pieces.append((cut_columns(text, width), role))
        width -= cells(text)
    return pieces


def _boxes(
    picture: Picture, width: int, fields: bool, *, across: bool
) -> list[list[StyledText]] | None:
    """Draw boxes and lines. If they need more than `width` columns, return None."""
    loops = {a for a, b in picture.edges if a == b}
    rows = layers(len(picture.boxes), picture.edges)[0]
    # The boxes of a row share the columns, so boxes in full rows are cut first. Each attempt leaves
    # more columns spare for lines and cuts the boxes further.
    shared = [max(rows) + 1 if across else rows.count(row) for row in rows]
    spacing = SPACING_ACROSS if across else SPACING
    previous_sizes: list[Size] = []
    for spare in range(7, 44, 4):
        texts = [
            box_rows(box, max(NARROWEST, min(WIDEST, width // many - spare)), fields=fields)
            for box, many in zip(picture.boxes, shared, strict=True)
        ]
        sizes: list[Size] = []
        for place, text in enumerate(texts):
            # A box with an arrow back to itself needs two rows: the arrow leaves in one row and
            # comes back in the other.
            least = (5, 2) if place in loops else (1, 1)
            height = max(len(text) + (len(text) > 1), least[1])
            sizes.append(Size(max(*map(row_length, text), least[0]) + 4, height + 2))
        if sizes == previous_sizes:
            continue  # the layout would be the same as before
        previous_sizes = sizes
        layout = arrange(sizes, picture.edges, spacing, across=across)
        if layout.width > width:
            continue
        canvas = _Canvas(layout.width, layout.height)
        for box, corner, size, text in zip(
            picture.boxes, layout.corners, layout.sizes, texts, strict=True
        ):
            canvas.box(box, corner, size, text)
        for arrow, line in zip(picture.arrows, layout.lines, strict=True):
            canvas.line(line, arrow.kind)
        return canvas.rows()
    return None


def _list(picture: Picture, width: int, fields: bool) -> list[list[StyledText]]:
    """Write a picture as a list of the boxes, with their fields and their arrows."""
    names = {box.id: box.name for box in picture.boxes}
    back = layers(len(picture.boxes), picture.edges)[1]
    rows: list[list[StyledText]] = []
    for box in picture.boxes:
        rows += [[]] if rows else []
        rows.append([(names[box.id], "name"), *((f"  {tag}", "note") for tag in box.tags)])
        rows += [[("  ", ""), *row] for row in box_rows(box, width - 2, fields=fields)[1:]]
        for place, arrow in enumerate(picture.arrows):
            if arrow.tail != box.id:
                continue
            mark = f"  {LISTED[arrow.kind]} "
            again = "again" if arrow.head == arrow.tail else "back" if place in back else ""
            who = CHOOSERS[arrow.kind]
            note = ", ".join(filter(None, [again, who and f"if {who} it"]))
            rows.append([(mark, f"arrow-{arrow.kind}"), (names[arrow.head], "name")])
            rows[-1] += [(f"  {note}", "note")] if note else []
    return rows


def box_rows(box: Box, widest: int, *, fields: bool) -> list[list[StyledText]]:
    """Return the rows of text in a box: a row with the name, and with `fields` a row for each
    field."""
    tags: list[StyledText] = [
        (f"  {tag}", "start" if tag == "start" else "end") for tag in box.tags
    ]
    rows = [[(cut_columns(box.name, widest - row_length(tags)), "name"), *tags]]
    visible_fields = box.fields if fields else ()
    sources = max((len(field.label) for field in visible_fields), default=0)
    room = widest - sources - 2
    # If name, type and origin together do not fit into `room`, the origin gets at most a third.
    most = max(room * 2 // 3, room - max((cells(f.origin) for f in visible_fields), default=0) - 2)
    column = min(
        most, max((cells(f"{f.name}: {f.type}") for f in visible_fields if f.origin), default=0)
    )
    for field in visible_fields:
        name = cut_columns(f"{field.name}: {field.type}", column if field.origin else room)
        split = len(field.name)
        row = [
            (field.label, f"source-{field.style}"),
            (" " * (sources - len(field.label) + 2), ""),
        ]
        row += [(name[:split], "field"), (name[split:], "type")]
        if field.origin:
            row.append((" " * (column - cells(name) + 2), ""))
            row.append((cut_columns(field.origin, room - column - 2), "origin"))
        rows.append(row)
    return rows


def row_length(row: Sequence[StyledText]) -> int:
    """Return the width of a row in columns."""
    return sum(cells(text) for text, _ in row)


class _Canvas:
    """A drawing in rows of cells. Each cell has a character and its role. After a wide character,
    the next cell is empty."""

    def __init__(self, width: int, height: int) -> None:
        self.cells: list[list[StyledText]] = [[(" ", "")] * width for _ in range(height)]
        self.line_cells: set[Point] = set()

    def put(self, x: int, y: int, text: str, role: str) -> None:
        """Write a text into the cells from (x, y) to the right."""
        row = self.cells[y]
        for char in text:
            width = cell_width(char)
            if width == 0:
                row[x - 1] = (row[x - 1][0] + char, row[x - 1][1])
            else:
                row[x : x + width] = [(char, role), *[("", role)] * (width - 1)]
            x += width

    def box(self, box: Box, corner: Point, size: Size, text: list[list[StyledText]]) -> None:
        """Draw a box with its text. Its outline shows how the run continues from the box."""
        x, y = corner
        shape = GOES_ON
        if box.ending == "always":
            shape = ENDS
        elif box.chooser != "certain":
            shape = MAY_END if box.ending == "may" else CHOOSES
        upper_left, upper_right, lower_left, lower_right, level, side = shape
        side = HOLDS if box.inner else side
        inside, last = size.width - 2, y + size.height - 1
        self.put(x, y, upper_left + level * inside + upper_right, "outline")
        for row in range(y + 1, last):
            self.put(x, row, side, "outline")
            self.put(x + inside + 1, row, side, "outline")
        self.put(x, last, lower_left + level * inside + lower_right, "outline")
        if len(text) > 1:
            before, after = JOINTS[side]
            self.put(x, y + 2, before + "─" * inside + after, "outline")
        for place, pieces in enumerate(text):
            column, row = x + 2, y + 1 + place + (place > 0)  # the rule is under the name
            for piece, role in pieces:
                self.put(column, row, piece, role)
                column += cells(piece)

    def line(self, points: Sequence[Point], kind: ArrowKind) -> None:
        """Draw an arrow through the points."""
        path, first, last = _cells_on(points)
        role = f"arrow-{kind}"
        x, y = path[0]
        on_rule = any(self.cells[y][x][0] in pair for pair in JOINTS.values())
        self.put(x, y, CHOICES.get(kind) or ("┼" if on_rule else TAILS[first]), role)
        for before, here, after in zip(path, path[1:-2], path[2:], strict=False):
            mark = TURNS[frozenset({_step(here, before), _step(here, after)})]
            mark = "┼" if here in self.line_cells else mark
            self.line_cells.add(here)
            self.put(*here, mark.translate(DASHED) if kind == "lm" else mark, role)
        self.put(*path[-2], HEADS[last], role)

    def rows(self) -> list[list[StyledText]]:
        """Return the rows of the drawing. Neighboring cells with the same role form one piece of
        text. Spaces at the end of a row are left out."""
        rows: list[list[StyledText]] = []
        for row in self.cells:
            pieces: list[StyledText] = []
            while row and not row[-1][0].strip() and row[-1][0] != "":
                row.pop()
            for text, role in row:
                if pieces and (pieces[-1][1] == role or text in ("", " ")):
                    pieces[-1] = (pieces[-1][0] + text, pieces[-1][1])
                else:
                    pieces.append((text, role))
            rows.append(pieces)
        return rows


def _cells_on(points: Sequence[Point]) -> tuple[list[Point], Heading, Heading]:
    """Return every cell of a line, from the outline of one box to the outline of the other box, and
    the directions in which the line leaves and arrives.

    A box at 3 with a length of 4 fills the cells 3 to 6, but the layout says that the box ends at
    7. If a line is at the box's right or lower side, its point is therefore 7, and the cell of the
    outline is 6. At the left or upper side, the point and the cell are both 3.
    """
    first, last = _step(points[0], points[1]), _step(points[-2], points[-1])
    (x, y), (end_x, end_y) = points[0], points[-1]
    start = (x - first[0], y - first[1]) if first in (DOWN, RIGHT) else points[0]
    end = (end_x + last[0], end_y + last[1]) if last in (UP, LEFT) else points[-1]
    path = [start]
    for corner in (*points[1:-1], end):
        while path[-1] != corner:
            (x, y), (dx, dy) = path[-1], _step(path[-1], corner)
            path.append((x + dx, y + dy))
    return path, first, last


def _step(here: Point, there: Point) -> Heading:
    (x, y), (to_x, to_y) = here, there
    return (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
