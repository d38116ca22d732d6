"""The rows of the tree of a run, and functions that draw the rows as colored lines. Lines are cut
to the width of the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

_TURNS: Final = 10
"""Frames of a spinner per second."""
_WIDEST: Final = 80
"""Maximum cells of a value with a note. The limit keeps the note close to the value."""

ViewState = Literal["coming", "going", "done", "failed", "cancelled", "waiting"]
"""The progress of the work that a row shows. `coming` means not started, `going` means in progress,
and `waiting` means waiting for a person."""
Guides = tuple[bool, ...]
"""For each outer level of a row, whether another row follows at this level."""


@dataclass(slots=True)
class ViewRow:
    """A row of the tree. Its texts are a name, a value and a note."""

    guides: Guides
    kind: Literal["node", "field", "lm", "call", "choice", "item", "text", "error", "more"]
    state: ViewState = "done"
    name: str = ""
    value: str = ""
    note: str = ""
    dim: bool = False
    is_error: bool = False
    """Whether the row shows an error that the LM reads, so the run continues."""
    field: str = ""
    """The field of the node that the row is about."""
    block: int = 0
    """A number for rows with aligned columns. With 0, the row is not aligned with others."""

    @property
    def matters(self) -> bool:
        """Whether the row is in progress, or failed."""
        return self.state in ("going", "failed", "waiting") or self.kind in ("text", "error")


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs that a terminal can show: Unicode, or ASCII only."""

    spinner: str
    dots: str

    def writable(self, text: str) -> str:
        """Replace each character of a text that the terminal cannot show."""
        if self is UNICODE or text.isascii():
            return text
        return text.translate(_PLAINLY).encode("ascii", "backslashreplace").decode()

    def spin(self, now: float) -> str:
        """Return the frame of the spinner at a time."""
        return self.spinner[int(now * _TURNS) % len(self.spinner)]


UNICODE: Final = Signs("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "…")
ASCII: Final = Signs("|/-\\", "...")
_PLAINLY: Final = str.maketrans(
    {"…": "...", "·": ".", "━": "#", "─": "-", "│": "|", "→": "->", "✓": "+", "✗": "x"}
)
_MARKS: Final = {
    "failed": ("✗", "bold red"),
    "waiting": ("?", "bold yellow"),
    "cancelled": ("-", "dim"),
    "coming": ("·", "dim"),
}
"""The sign and its style by state of a row."""
_NAMES: Final = {"node": "bold", "field": "cyan", "lm": "magenta", "call": "blue", "more": "dim"}
"""The style of the name by kind of row."""


def signs_for(console: Console) -> Signs:
    """Return the signs that a terminal can show."""
    return ASCII if console.options.ascii_only or console.legacy_windows else UNICODE


def cut_cells(text: str, width: int, dots: str = "…") -> str:
    """Cut a text to a number of terminal cells."""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(dots)
    return set_cell_size(text[: 4 * room], room).rstrip() + dots if room > 0 else dots[:width]


def squeeze_rows(rows: list[ViewRow], room: int) -> list[ViewRow]:
    """Drop rows that do not fit on the screen: first finished rows, then the topmost rows. A row at
    the top has the number of dropped rows."""
    if len(rows) <= room:
        return rows
    if room < 2:
        return rows[-room:]
    matter = [row for row in rows if row.matters][-(room - 1) :]
    spare = room - 1 - len(matter)
    others = [row for row in rows if not row.matters]
    kept_ids = {id(row) for row in (*matter, *(others[-spare:] if spare else ()))}
    more_row = ViewRow((), "more", name=f"… {len(rows) - len(kept_ids):,} more")
    return [more_row, *(row for row in rows if id(row) in kept_ids)]


def draw_rows(rows: Sequence[ViewRow], width: int, now: float, signs: Signs) -> list[Text]:
    """Draw rows as lines. The fields of a node have aligned columns."""
    blocks: dict[int, list[ViewRow]] = {}
    for row in rows:
        row.name, row.value, row.note = map(signs.writable, (row.name, row.value, row.note))
        blocks.setdefault(row.block or id(row), []).append(row)
    columns = {block: _column_widths(block_rows, width) for block, block_rows in blocks.items()}
    return [_draw(row, columns[row.block or id(row)], width, now, signs) for row in rows]


def _column_widths(rows: Sequence[ViewRow], width: int) -> tuple[int, int, int]:
    """Compute the widths of the columns of names, values and notes, for rows of one block. The
    columns are as wide as their texts, if the width of the terminal allows it."""
    room = width - 2 * len(rows[0].guides) - 2
    names, values, notes = (
        max(cell_len(getattr(row, part)) for row in rows) for part in ("name", "value", "note")
    )
    if rows[0].kind == "field":
        names = min(names, max(8, room // 3))
    if rows[0].kind == "call":
        names = min(names, max(8, room // 2))
    rest_width = max(2, room - names - 4)
    notes = min(notes, max(rest_width * 2 // 5, min(28, rest_width // 2), rest_width - values))
    return names, min(values, rest_width - notes, _WIDEST if notes else rest_width), notes


def _draw(
    row: ViewRow, columns: tuple[int, int, int], width: int, now: float, signs: Signs
) -> Text:
    names, values, notes = columns
    failed = row.state == "failed" or row.kind == "error"
    line = Text(no_wrap=True, overflow="crop")
    for has_next in row.guides:
        line.append(signs.writable("│ " if has_next else "  "), "dim")
    if row.kind != "more":
        done_mark = "✓" if row.kind in ("node", "item", "call") else " "
        mark, style = _MARKS.get(row.state, (done_mark, "dim" if row.dim else "green"))
        if row.state == "going":
            mark, style = signs.spin(now), "yellow"
        elif row.is_error:
            mark, style = "!", "yellow"
        line.append(f"{signs.writable(mark)} ", style)
    style = "dim" if row.dim else _NAMES.get(row.kind, "")
    if failed and row.kind != "field":
        style = "bold red" if row.kind == "node" else "red"
    line.append(set_cell_size(cut_cells(row.name, names, signs.dots), names), style)
    if failed:  # show more of an error, even if the columns are then not aligned
        gaps = 2 * (bool(row.name) + bool(row.note))
        values = max(values, width - line.cell_len - cell_len(row.note) - gaps)
    value = cut_cells(row.value, values, signs.dots)
    if row.note:
        value = set_cell_size(value, max(columns[1], cell_len(value)))
    if value:
        style = "red" if failed else "dim" if row.dim else "yellow" if row.is_error else ""
        style = "dim italic" if row.kind == "text" else style
        line.append("  " if row.name else "").append(value, style)
    if row.note:
        line.append("  ").append(cut_cells(row.note, notes, signs.dots), "dim")
    line.truncate(width)
    return line
