"""Rows of the tree, and how they are drawn: as lines of text with colors, cut to the width of the
terminal. Values are written out here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from rich.cells import cell_len, chop_cells
from rich.text import Text

from bae.cli.live.values import Shown
from bae.work import Question

if TYPE_CHECKING:
    from rich.console import Console

SPINNING: Final = 10
"""Turns of a spinner in a second."""
WIDEST: Final = 60
"""Cells after which notes stand, however long a value is: else they were far from the others."""


State = Literal["coming", "going", "done", "failed", "cancelled", "waiting"]
"""How far something is. What is `waiting` waits for a person."""

Values = tuple[tuple[str, Shown], ...]
"""Values with their names, in one line."""
Guides = tuple[bool, ...]
"""For each level around a row, whether something follows there."""


@dataclass(slots=True)
class Row:
    """A row: where it stands, what it is of, and up to three things to say. Values are written out
    when it is drawn."""

    guides: Guides
    kind: Literal["node", "field", "lm", "choice", "item", "text", "error", "more"]
    state: State = "done"
    name: str = ""
    value: str | Shown | Values = ""
    note: str = ""
    dim: bool = False
    asking: Question | None = None
    """What the LM is doing for the field of this row."""
    block: int = 0
    """Rows of one block have their columns under each other."""

    @property
    def matters(self) -> bool:
        """Whether it is in progress, or went wrong."""
        return self.state in ("going", "failed", "waiting") or self.kind == "text"


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters that lines are drawn with."""

    spinner: str
    done: str
    failed: str
    waiting: str
    cancelled: str
    coming: str
    guide: str
    dots: str
    arrow: str
    encoding: str = ""

    def said(self, text: str) -> str:
        """A text with nothing in it that cannot be written."""
        if not self.encoding or text.isascii():
            return text
        plain = text.translate(_PLAINLY).encode(self.encoding, "backslashreplace")
        return plain.decode(self.encoding)


UNICODE: Final = Signs("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "✓", "✗", "?", "-", "·", "│", "…", "→")
ASCII: Final = Signs("|/-\\", "+", "x", "?", "-", ".", "|", "...", "->", "ascii")
_PLAINLY: Final = str.maketrans({"…": "...", "·": "-", "━": "#", "─": "-", "│": "|"})


def signs_for(console: Console) -> Signs:
    """The signs that a terminal can show."""
    if not console.options.ascii_only and not console.legacy_windows:
        return UNICODE
    try:
        "".encode(console.encoding)
    except LookupError:
        return ASCII
    return replace(ASCII, encoding=console.encoding)


def drawn(rows: Sequence[Row], width: int, now: float, signs: Signs) -> Iterator[Text]:
    """The lines of rows. Those of one node have their columns under each other."""
    said = [(signs.said(r.name), signs.said(_value(r)), signs.said(r.note)) for r in rows]
    columns: dict[int, _Columns] = {}
    for row, (name, value, note) in zip(rows, said, strict=True):
        if row.kind == "field":
            columns.setdefault(row.block, _Columns(width - 2 * len(row.guides) - 2)).hold(
                cell_len(name), cell_len(value), cell_len(note)
            )
    for row, texts in zip(rows, said, strict=True):
        line = Text(no_wrap=True, overflow="crop")
        _lead(line, row, now, signs)
        if row.kind == "field":
            _field(line, row, *texts, columns[row.block], signs)
        else:
            _free(line, row, *texts, max(1, width - line.cell_len), signs)
        line.truncate(width)
        yield line


@dataclass(slots=True)
class _Columns:
    """How wide the columns of a block are: as wide as what is in them, and together no wider than
    the room there is."""

    room: int
    names: int = 0
    values: int = 0
    short: int = 0
    """How wide those values are that are no wider than `WIDEST`."""
    notes: int = 0

    def hold(self, name: int, value: int, note: int) -> None:
        self.names = max(self.names, name)
        self.values = max(self.values, value)
        self.short = max(self.short, value if value <= WIDEST else 0)
        self.notes = max(self.notes, note)

    def widths(self) -> tuple[int, int, int]:
        names = min(self.names, max(8, self.room // 3))
        left = max(2, self.room - names - 4)
        notes = min(self.notes, max(left * 2 // 5, min(28, left // 2), left - self.values))
        values = min(self.values, left - notes)
        if values > WIDEST:  # the terminal is wide: a longer value has what its own row leaves it
            values = self.short or WIDEST
        return names, max(1, values), max(1, notes)


def fitted(text: str, width: int, dots: str = "…") -> str:
    """A text cut to so many cells of a terminal."""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(dots)
    if room <= 0:
        return dots[: max(0, width)]
    first = chop_cells(text[: 4 * room], room)
    return f"{first[0] if first else ''}{dots}"


def _field(
    line: Text, row: Row, name: str, value: str, note: str, columns: _Columns, signs: Signs
) -> None:
    names, values, notes = columns.widths()
    style = "dim" if row.dim else ""
    line.append(_padded(fitted(name, names, signs.dots), names), style or "cyan")
    wide = cell_len(value) > WIDEST and values <= WIDEST < columns.room - names - 4 - notes
    if wide or row.state == "failed":  # what went wrong is worth an uneven row
        left = columns.room - names - 4 - min(notes, cell_len(note))
        values = max(values, min(cell_len(value), left))
    said = fitted(value, values, signs.dots)
    if note:
        said = _padded(said, values)
    if said:
        line.append("  ").append(said, "red" if row.state == "failed" else style)
    if note:
        line.append("  ").append(fitted(note, notes, signs.dots), "dim")


def _free(line: Text, row: Row, name: str, value: str, note: str, room: int, signs: Signs) -> None:
    """A row that is not in columns: the name, as much of the value as there is room for, a note."""
    failed = row.state == "failed"
    style = _STYLES.get(row.kind, "")
    if row.dim:
        style = "dim"
    if failed:
        style = f"{style} red" if row.kind == "node" else "red"
    if row.kind == "more":
        name = f"{signs.dots} {name}"
    elif row.kind == "choice":
        name = f"{signs.arrow} {name}"
    line.append(fitted(name, room, signs.dots), style)
    room -= cell_len(name)
    if value:
        between = "  " if name else ""
        note_size = min(cell_len(note) + 2, room // 2) if note else 0
        value = fitted(value, max(0, room - len(between) - note_size), signs.dots)
        style = "red" if failed else "dim italic" if row.kind == "text" else ""
        line.append(between).append(value, style)
        room -= len(between) + cell_len(value)
    if note and room > 4:
        line.append("  ").append(fitted(note, room - 2, signs.dots), "dim")


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _lead(line: Text, row: Row, now: float, signs: Signs) -> None:
    for goes_on in row.guides:
        line.append(f"{signs.guide if goes_on else ' '} ", "dim")
    if row.kind in ("text", "error", "choice"):
        line.append("  ")
        return
    if row.kind == "more":
        return
    match row.state:
        case "going":
            turn = int(now * SPINNING) % len(signs.spinner)
            line.append(f"{signs.spinner[turn]} ", "yellow")
        case "failed":
            line.append(f"{signs.failed} ", "bold red")
        case "waiting":
            line.append(f"{signs.waiting} ", "bold yellow")
        case "cancelled":
            line.append(f"{signs.cancelled} ", "dim")
        case "coming":
            line.append(f"{signs.coming} ", "dim")
        case "done":
            done = signs.done if row.kind in ("node", "item") else " "
            line.append(f"{done} ", "dim" if row.dim else "green")


def _value(row: Row) -> str:
    value = row.value
    if isinstance(value, str):
        return value
    if isinstance(value, Shown):
        return value.text
    return " ".join(f"{name}={each.inline}" for name, each in value)


_STYLES: Final = {"node": "bold", "lm": "magenta", "more": "dim"}
