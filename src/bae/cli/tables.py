"""Tables that fit the terminal: if it is narrow, the columns that matter least are left out.
Without a terminal nothing is left out, since a script reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, whether it has numbers, aligned to the right, and its rank: those with
    the highest are left out first, and those of rank 0 stay."""

    title: str
    right: bool = True
    rank: int = 0


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]
) -> None:
    """Print a table. A row may be shorter than the others; a name that is too long for the first
    column gets a line of its own."""
    for line in table_lines(columns, rows, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int | None
) -> list[Text]:
    """The lines of a table no wider than `width`."""
    from rich.text import Text

    every = [[Text(column.title, "bold") for column in columns], *rows]
    widths = [max(row[at].cell_len for row in every if at < len(row)) for at in range(len(columns))]
    shown = [*range(len(columns))]

    def too_wide() -> bool:
        return width is not None and sum(widths[at] + GAP for at in shown) - GAP > width

    ranked = sorted(shown[1:], key=lambda at: (columns[at].rank, at), reverse=True)
    droppable = [at for at in ranked if columns[at].rank]
    while too_wide() and droppable:
        if columns[droppable[0]].rank < _MINOR and widths[0] > _NARROWEST:
            widths[0] = _NARROWEST  # before a column that matters goes, names have their own lines
            continue
        shown.remove(droppable.pop(0))
    if width is not None and widths[0] == _NARROWEST:
        room = width - sum(widths[at] + GAP for at in shown[1:])
        widths[0] = max(len_ for len_ in (0, *(row[0].cell_len for row in every)) if len_ <= room)
    lines: list[Text] = []
    for row in every:
        cells = [*row]
        if cells and cells[0].cell_len > widths[0]:
            lines.append(cells[0])
            cells[0] = Text()
            if len(cells) == 1:
                continue
        line = Text(" " * GAP).join(
            _aligned(cells[at] if at < len(cells) else Text(), widths[at], columns[at].right)
            for at in shown
        )
        line.rstrip()
        lines.append(line)
    for line in lines:
        if width is not None:
            line.truncate(width, overflow="ellipsis")
    return lines


_MINOR: Final = 4
_NARROWEST: Final = 12


def _aligned(cell: Text, width: int, right: bool) -> Text:
    cell = cell.copy()
    (cell.pad_left if right else cell.pad_right)(width - cell.cell_len)
    return cell
