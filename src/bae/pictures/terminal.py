"""A graph as text for a terminal: boxes and lines where they fit into the columns there are, and
otherwise a list that names every arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from bae.pictures.canvas import ASCII, UNICODE, Canvas, Marks, Piece
from bae.pictures.contents import ArrowKind, Box, Picture, Shown
from bae.pictures.layout import Size, Spacing, arrange
from bae.pictures.texts import cells, cut, in_ascii
from bae.pictures.types import cut_field

Direction = Literal["TD", "LR"]

DOWN: Final = Spacing(
    apart=3, beside=2, joins=2, inset=2, tail=1, track=1, head=1, loop=4, loop_at=(1, 2)
)
ACROSS: Final = Spacing(
    apart=1, beside=1, joins=1, inset=1, tail=2, track=2, head=3, loop=3, loop_at=(2, 5)
)
WIDEST: Final = (64, 58, 52, 46, 40, 34, 28)
"""How wide the text in a box may be: the first of these that fits into the columns is taken."""

SAID: Final[dict[ArrowKind, str]] = {
    "certain": "",
    "lm": "if the LM chooses it",
    "code": "if the code chooses it",
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture as rows of text. Each row has pieces of text with a role each, such as "name" or
    "source-lm", to be coloured; `str` has the text alone."""

    rows: tuple[tuple[Piece, ...], ...]

    @property
    def width(self) -> int:
        """How many columns it takes."""
        return max((sum(cells(text) for text, _ in row) for row in self.rows), default=0)

    def __str__(self) -> str:
        return "".join("".join(text for text, _ in row) + "\n" for row in self.rows)


def draw_text(
    picture: Picture,
    *,
    width: int = 80,
    fields: bool = True,
    direction: Direction = "TD",
    ascii_only: bool = False,
    compact: bool = False,
) -> Drawing:
    """The picture in at most `width` columns. Where boxes and lines would need more, or with
    `compact`, it is a list."""
    marks = ASCII if ascii_only else UNICODE
    if ascii_only:
        picture = _spelled(picture)
    rows: list[Sequence[Piece]] = []
    boxed: list[Picture] = []
    for each in picture.all:
        if rows:
            rows.append(())
        if each is not picture:
            rows += [_heading(each), ()]
        drawn = None if compact else _boxes(each, width, fields, direction, marks)
        if drawn is not None:
            boxed.append(each)
        rows += drawn if drawn is not None else _list(each, width, fields, marks)
    if boxed:
        rows += _legend(boxed, marks, width)
    return Drawing(tuple(tuple(_fitted(row, width, marks)) for row in rows))


def _spelled(picture: Picture) -> Picture:
    """The picture with all its text in ASCII, before anything is measured or cut."""
    return replace(
        picture,
        name=in_ascii(picture.name),
        boxes=tuple(
            replace(
                box,
                name=in_ascii(box.name),
                apart=in_ascii(box.apart),
                fields=tuple(
                    replace(
                        field,
                        name=in_ascii(field.name),
                        type=in_ascii(field.type),
                        origin=in_ascii(field.origin),
                    )
                    for field in box.fields
                ),
            )
            for box in picture.boxes
        ),
        used_by=tuple(in_ascii(each) for each in picture.used_by),
        inner=tuple(_spelled(each) for each in picture.inner),
    )


def _fitted(row: Sequence[Piece], width: int, marks: Marks) -> Sequence[Piece]:
    """A row without what is beyond the last column."""
    if sum(cells(text) for text, _ in row) <= width:
        return row
    kept: list[Piece] = []
    for text, role in row:
        kept.append((cut(text, width, marks.dots), role))
        width -= cells(text)
        if width <= 0:
            break
    return kept


def _heading(picture: Picture) -> list[Piece]:
    return [
        (picture.name, "name"),
        (f"  the graph inside {', '.join(picture.used_by)}", "note"),
    ]


def _boxes(
    picture: Picture, width: int, fields: bool, direction: Direction, marks: Marks
) -> list[list[Piece]] | None:
    across = direction == "LR"
    loops = {a for a, b in picture.edges if a == b}
    for widest in WIDEST:
        texts = [_text(box, min(widest, width - 4), fields, marks) for box in picture.boxes]
        sizes: list[Size] = []
        for place, text in enumerate(texts):
            inner = max(sum(cells(piece) for piece, _ in row) for row in text)
            rule = len(text) > 1
            # A line from a box to itself needs two rows to leave and come back at.
            height = max(len(text) + rule, 2 if place in loops else 1) + 2
            sizes.append(Size(max(inner, 5 if place in loops else 1) + 4, height))
        laid = arrange(sizes, picture.edges, ACROSS if across else DOWN, across=across)
        if laid.width > width:
            continue
        canvas = Canvas(laid.width, laid.height, marks)
        for box, (x, y), size, text in zip(
            picture.boxes, laid.corners, laid.sizes, texts, strict=True
        ):
            canvas.box(x, y, size.width, size.height, box, rule=len(text) > 1)
            _write(canvas, x, y, text)
        for arrow, line in zip(picture.arrows, laid.lines, strict=True):
            canvas.line(line, arrow.kind)
        return canvas.rows()
    return None


def _write(canvas: Canvas, x: int, y: int, text: list[list[Piece]]) -> None:
    for place, row in enumerate(text):
        column, at = x + 2, y + 1 + place + (place > 0)  # under the name is the rule
        for piece, role in row:
            canvas.put(column, at, piece, role)
            column += cells(piece)


def _text(box: Box, widest: int, fields: bool, marks: Marks) -> list[list[Piece]]:
    """The rows of a box: its name, and a row for each field."""
    rows = [_title(box, widest, marks)]
    if not fields:
        return rows
    sources = max((cells(field.source) for field in box.fields), default=0)
    room = widest - sources - 2
    told = [field for field in box.fields if field.origin]
    longest = max((cells(field.origin) for field in told), default=0)
    # Where there is not enough room for both, the name and where it comes from get half of it each.
    most = max(room // 2 - 1, room - longest - 2)
    names = {
        field: cut_field(field.name, field.type, most if field.origin else room, marks.dots)
        for field in box.fields
    }
    column = max((cells(names[field]) for field in told), default=0)
    for field, name in names.items():
        source = "LM" if field.source == "lm" else field.source
        row: list[Piece] = [(source.ljust(sources), f"source-{field.source}"), ("  ", "")]
        if not field.origin:
            row += _named(field, name)
        else:
            row += _named(field, name)
            row.append((" " * (column - cells(name) + 2), ""))
            row.append((cut(field.origin, room - column - 2, marks.dots), "origin"))
        rows.append(row)
    return rows


def _named(field: Shown, said: str) -> list[Piece]:
    return [(said[: len(field.name)], "field"), (said[len(field.name) :], "type")]


def _title(box: Box, widest: int, marks: Marks) -> list[Piece]:
    tags = _tags(box)
    room = widest - sum(cells(tag) + 2 for tag, _ in tags)
    title: list[Piece] = [(cut(box.name, room, marks.dots), "name")]
    if box.apart:
        left = room - cells(box.name) - 2
        if left > 4:
            title.append((f"  {cut(box.apart, left, marks.dots)}", "note"))
    for tag, role in tags:
        title.append((f"  {tag}", role))
    return title


def _tags(box: Box) -> list[Piece]:
    tags: list[Piece] = []
    if box.start:
        tags.append(("start", "start"))
    if box.ending != "never":
        tags.append(("end" if box.ending == "always" else "may end", "end"))
    return tags


def _legend(pictures: list[Picture], marks: Marks, width: int) -> list[list[Piece]]:
    """What the lines and shapes that are there mean, in as many rows as it takes."""
    boxes = [box for picture in pictures for box in picture.boxes]
    kinds = {arrow.kind for picture in pictures for arrow in picture.arrows}
    entries: list[tuple[str, str, str]] = []
    if "lm" in kinds:
        entries.append((_sample(marks, "lm"), "arrow-lm", "the LM chooses"))
    if "code" in kinds:
        entries.append((_sample(marks, "code"), "arrow-code", "your code chooses"))
    if any(box.inner for box in boxes):
        entries.append((f"{marks.holds} {marks.holds}", "outline", "a graph runs inside"))
    if not entries:
        return []
    rows: list[list[Piece]] = [[], []]
    for sample, role, meaning in entries:
        taken = sum(cells(text) for text, _ in rows[-1])
        if rows[-1] and taken + cells(sample) + len(meaning) + 4 > width:
            rows.append([])
        elif rows[-1]:
            rows[-1].append(("   ", ""))
        rows[-1] += [(sample, role), (f" {meaning}", "note")]
    return rows


def _sample(marks: Marks, kind: ArrowKind) -> str:
    return marks.tails[kind][2] + marks.lines[kind][10] * 2 + marks.heads[2]


def _list(picture: Picture, width: int, fields: bool, marks: Marks) -> list[list[Piece]]:
    """Every box under the one before it, with its fields and its arrows."""
    names = {
        box.id: f"{box.name} ({box.apart})" if box.apart else box.name for box in picture.boxes
    }
    rows: list[list[Piece]] = []
    for box in picture.boxes:
        if rows:
            rows.append([])
        title: list[Piece] = [(names[box.id], "name")]
        for tag, role in _tags(box):
            title.append((f"  {tag}", role))
        rows.append(title)
        if fields:
            rows += [[("  ", ""), *row] for row in _text(box, width - 2, True, marks)[1:]]
        for arrow in picture.arrows:
            if arrow.tail != box.id:
                continue
            row: list[Piece] = [
                (f"  {marks.listed[arrow.kind]} ", f"arrow-{arrow.kind}"),
                (names[arrow.head], "name"),
            ]
            said = "back" if arrow in picture.loops_back else ""
            said = "again" if arrow.head == arrow.tail else said
            notes = [note for note in (said, SAID[arrow.kind]) if note]
            if notes:
                row.append((f"  {', '.join(notes)}", "note"))
            rows.append(row)
    return rows
