"""Tables that fit the terminal. Where that is narrow the columns that matter least are left out
first, then a long name gets a line of its own above its numbers, and then others go. Where there is
no terminal, nothing is left out: a script reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP: Final = 2
"""Blanks between two columns."""
NARROWEST: Final = 12
"""Cells that the first column keeps, where a name has that many."""
MINOR: Final = 4
"""Columns of this rank, or a higher one, go before a name gets a line of its own."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, whether it has numbers, which stand to the right, and its rank: where
    there is no room, those with the highest are left out first. Those of rank 0 stay."""

    title: str
    right: bool = True
    rank: int = 0


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int | None
) -> list[Text]:
    """The lines of a table no wider than `width`. A row may be shorter than the others."""
    from rich.text import Text

    titles = [Text(column.title, style="bold") for column in columns]
    every = [titles, *rows]
    fitted = _Fitted(columns, every)
    if width is not None:
        fitted.fit(width)
    return [line for row in every for line in fitted.lines(row, width)]


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]
) -> None:
    """Print one on a console."""
    for line in table(columns, rows, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)


class _Fitted:
    """Which columns are shown, and how wide each is."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
        self._columns = columns
        self._names = sorted({row[0].cell_len for row in rows if row})
        self._widths = [
            max((row[at].cell_len for row in rows if at < len(row)), default=0)
            for at in range(len(columns))
        ]
        self._shown = [*range(len(columns))]

    def fit(self, width: int) -> None:
        self._leave_out(MINOR, width)
        if self._too_wide(width):
            whole = self._widths[0]
            self._widths[0] = min(whole, NARROWEST)
            self._leave_out(1, width)
            room = self._widths[0] + max(0, width - self._taken)
            # No wider than a name that fits: the others have lines of their own.
            self._widths[0] = max(each for each in (0, *self._names) if each <= room)

    def lines(self, row: Sequence[Text], width: int | None) -> Iterator[Text]:
        from rich.text import Text

        if row and row[0].cell_len > self._widths[0]:
            name = row[0].copy()
            if width is not None:
                name.truncate(width, overflow="ellipsis")
            yield name
            row = [Text(), *row[1:]]
            if len(row) == 1:
                return
        yield self._line(row, width)

    @property
    def _taken(self) -> int:
        return sum(self._widths[at] + GAP for at in self._shown) - GAP

    def _too_wide(self, width: int) -> bool:
        return self._taken > width

    def _leave_out(self, least: int, width: int) -> None:
        """Leave out columns of a rank, or a higher one, until the others fit."""
        while self._too_wide(width):
            dropped = max(self._shown, key=lambda at: (self._columns[at].rank, at))
            if self._columns[dropped].rank < least:
                return
            self._shown.remove(dropped)

    def _line(self, row: Sequence[Text], width: int | None) -> Text:
        from rich.text import Text

        cells: list[Text] = []
        for at in self._shown:
            cell = row[at].copy() if at < len(row) else Text()
            gap = self._widths[at] - cell.cell_len
            if self._columns[at].right:
                cell.pad_left(gap)
            else:
                cell.pad_right(gap)
            cells.append(cell)
        line = Text(" " * GAP).join(cells)
        line.rstrip()
        if width is not None:
            line.truncate(width, overflow="ellipsis")
        return line
