"""Rows of the tree, and how they are drawn: as lines of text with colors, cut to the width of the
terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

SPINNING: Final = 10
"""Turns of a spinner in a second."""

_WIDEST: Final = 80
"""Cells of a value after which its note stands: else that were far from the others."""

State = Literal["coming", "going", "done", "failed", "cancelled", "waiting"]
"""How far something is. What is `waiting` waits for a person."""
Guides = tuple[bool, ...]
"""For each level around a row, whether something follows there."""


@dataclass(slots=True)
class Row:
    """A row: where it stands, what it is of, and up to three things to say."""

    guides: Guides
    kind: Literal["node", "field", "lm", "choice", "item", "text", "error", "more"]
    state: State = "done"
    name: str = ""
    value: str = ""
    note: str = ""
    dim: bool = False
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

    def said(self, text: str) -> str:
        """A text with nothing in it that cannot be written."""
        if self is UNICODE or text.isascii():
            return text
        return text.translate(_PLAINLY).encode("ascii", "backslashreplace").decode()

    def spin(self, now: float) -> str:
        """The spinner at a time."""
        return self.spinner[int(now * SPINNING) % len(self.spinner)]


UNICODE: Final = Signs("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "✓", "✗", "?", "-", "·", "│", "…", "→")
ASCII: Final = Signs("|/-\\", "+", "x", "?", "-", ".", "|", "...", "->")
_PLAINLY: Final = str.maketrans({"…": "...", "·": "-", "━": "#", "─": "-", "│": "|"})


def signs_for(console: Console) -> Signs:
    """The signs that a terminal can show."""
    return ASCII if console.options.ascii_only or console.legacy_windows else UNICODE


def fitted(text: str, width: int, dots: str = "…") -> str:
    """A text cut to so many cells of a terminal."""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(dots)
    return set_cell_size(text[: 4 * room], room).rstrip() + dots if room > 0 else dots[:width]


def draw_rows(rows: Sequence[Row], width: int, now: float, signs: Signs) -> Iterator[Text]:
    """The lines of rows. Those of one node have their columns under each other."""
    blocks: dict[int, list[Row]] = {}
    for row in rows:
        row.name, row.value, row.note = map(signs.said, (row.name, row.value, row.note))
        if row.kind == "field":
            blocks.setdefault(row.block, []).append(row)
    columns = {block: _column_widths(each, width) for block, each in blocks.items()}
    for row in rows:
        line = Text(no_wrap=True, overflow="crop")
        _append_lead(line, row, now, signs)
        if row.kind == "field":
            _append_field(line, row, columns[row.block], width, signs)
        else:
            _append_free(line, row, max(1, width - line.cell_len), signs)
        line.truncate(width)
        yield line


def _column_widths(rows: Sequence[Row], width: int) -> tuple[int, int, int]:
    """How wide the names, values and notes of fields are: as wide as what is in them, and together
    no wider than the room there is."""
    room = width - 2 * len(rows[0].guides) - 2
    names, values, notes = (
        max(cell_len(getattr(row, part)) for row in rows) for part in ("name", "value", "note")
    )
    names = min(names, max(8, room // 3))
    left = max(2, room - names - 4)
    notes = min(notes, max(left * 2 // 5, min(28, left // 2), left - values))
    return names, max(1, min(values, left - notes, _WIDEST)), max(1, notes)


def _append_field(
    line: Text, row: Row, columns: tuple[int, int, int], width: int, signs: Signs
) -> None:
    names, values, notes = columns
    style = "dim" if row.dim else ""
    line.append(set_cell_size(fitted(row.name, names, signs.dots), names), style or "cyan")
    if row.state == "failed":  # what went wrong is worth an uneven row
        values = max(values, width - line.cell_len - cell_len(row.note) - 4)
    said = fitted(row.value, values, signs.dots)
    if row.note:
        said = set_cell_size(said, min(values, max(columns[1], cell_len(said))))
    if said:
        line.append("  ").append(said, "red" if row.state == "failed" else style)
    if row.note:
        line.append("  ").append(fitted(row.note, notes, signs.dots), "dim")


def _append_free(line: Text, row: Row, room: int, signs: Signs) -> None:
    """A row that is not in columns: the name, as much of the value as there is room for, a note."""
    failed = row.state == "failed"
    style = "dim" if row.dim else {"node": "bold", "lm": "magenta", "more": "dim"}.get(row.kind, "")
    if failed:
        style = "bold red" if row.kind == "node" else "red"
    name = {"more": f"{signs.dots} ", "choice": f"{signs.arrow} "}.get(row.kind, "") + row.name
    line.append(fitted(name, room, signs.dots), style)
    room -= cell_len(name)
    if row.value:
        between = "  " if name else ""
        for_note = min(cell_len(row.note) + 2, room // 2) if row.note else 0
        value = fitted(row.value, max(0, room - len(between) - for_note), signs.dots)
        style = "red" if failed else "dim italic" if row.kind == "text" else ""
        line.append(between).append(value, style)
        room -= len(between) + cell_len(value)
    if row.note and room > 4:
        line.append("  ").append(fitted(row.note, room - 2, signs.dots), "dim")


def _append_lead(line: Text, row: Row, now: float, signs: Signs) -> None:
    for goes_on in row.guides:
        line.append(f"{signs.guide if goes_on else ' '} ", "dim")
    if row.kind == "more":
        return
    done = signs.done if row.kind in ("node", "item") else " "
    sign, style = {
        "going": (signs.spin(now), "yellow"),
        "failed": (signs.failed, "bold red"),
        "waiting": (signs.waiting, "bold yellow"),
        "cancelled": (signs.cancelled, "dim"),
        "coming": (signs.coming, "dim"),
        "done": (done, "dim" if row.dim else "green"),
    }[row.state]
    line.append("  " if row.kind in ("text", "error", "choice") else f"{sign} ", style)
