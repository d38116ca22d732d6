"""The timeline of a run as bars for a terminal, one row for each piece of work: what was done at
the same time stands above one another. `scale.py` finds the columns; which rows there are is
decided in `rows.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from bae.cli.runs.rows import Row, rows_of
from bae.cli.runs.scale import Scale
from bae.cli.runs.wording import long

if TYPE_CHECKING:
    from rich.console import Console

    from bae.journal.report import Timeline


class Pen(NamedTuple):
    """The characters of bars: whole cells, and the left and the right half of one."""

    work: str = "━╸╺"
    node: str = "─╴╶"
    mark: str = "┿"
    gap: str = "╱"
    wait: str = "┅"
    more: str = "…"


ASCII: Final = Pen("===", "---", "+", "/", ".", "~")
WIDEST: Final = 160
"""Columns beyond which a timeline does not grow."""
_SINCE: Final = "from"
_LASTED: Final = "took"
_NARROWEST: Final = 8
"""Columns that bars have in any case."""
_ROOMY: Final = 60
"""Columns from which on it is said when work began."""
_GAPS: Final = 4
"""How many gaps have their lengths told one by one."""
_STYLES: Final = {
    "node": "bold",
    "dep": "cyan",
    "map": "blue",
    "item": "blue",
    "gate": "yellow",
    "choice": "magenta",
    "fill": "magenta",
    "body": "green",
}
_OUTCOMES: Final = {"failed": "red", "waiting": "yellow", "interrupted": "magenta"}


def bars_of(timeline: Timeline, console: Console, *, full: bool = False) -> Iterator[Text]:
    """The lines of a timeline, as wide as the console. `full` leaves no row out."""
    pen = Pen() if console.encoding.lower().startswith("utf") else ASCII
    rows = rows_of(timeline, full=full, more=pen.more)
    if not rows:
        return
    width = max(40, min(console.width, WIDEST))
    # As the axis has it: the gaps have no length there, and theirs is told below.
    since = [long(timeline.worked_by(row.start)) for row in rows]
    lasted = [long(row.seconds) for row in rows]
    said = ["" if row.outcome == "done" else row.outcome for row in rows]
    rooms = [_longest([_SINCE, *since]), _longest([_LASTED, *lasted]), _longest(said)]
    if width < _ROOMY:
        rooms[0] = 0
    right = sum(room + 2 for room in rooms if room)
    label = min(_longest([row.label for row in rows]), max(8, (width - right) // 2))
    room = max(_NARROWEST, width - right - label - 2)
    scale = Scale(timeline, room)
    yield _axis(scale, label, timeline, rooms)
    for row, *ends in zip(rows, since, lasted, said, strict=True):
        line = Text().append(row.label, "bold" if row.kind == "node" else "")
        line.truncate(label, overflow="ellipsis" if pen.more == "…" else "crop")
        line.pad_right(label - line.cell_len)
        line.append("  ").append_text(_bar(row, scale, pen))
        for text, wide in zip(ends, rooms, strict=True):
            style = _OUTCOMES.get(row.outcome, "dim") if text == row.outcome else "dim"
            if wide:
                line.append("  ").append(text.rjust(wide) if text != row.outcome else text, style)
        line.rstrip()
        yield line
    if scale.gaps:
        yield Text(f"{' ' * label}  {_legend(rows, scale, pen)}", style="dim")


def _legend(rows: Sequence[Row], scale: Scale, pen: Pen) -> str:
    """How long the gaps are, and what a gate has in one."""
    lengths = ", ".join(long(each) for each in scale.gaps)
    if len(scale.gaps) > _GAPS:
        lengths = f"{len(scale.gaps)} times, {long(sum(scale.gaps))} in all"
    said = f"{pen.gap} nobody was at it: {lengths}"
    gates = (scale.halves(row.spans) for row in rows if row.kind == "gate")
    if any(halves[2 * column] for halves in gates for column in scale.gap_columns):
        said += f"   {pen.wait} a person was waited for"
    return said


def _axis(scale: Scale, label: int, timeline: Timeline, rooms: Sequence[int]) -> Text:
    start, end = "0 s", long(timeline.seconds)
    between = max(1, scale.columns - len(start) - len(end))
    titles = f"  {_LASTED.rjust(rooms[1])}"
    if rooms[0]:
        titles = f"  {_SINCE.rjust(rooms[0])}{titles}"
    return Text(f"{' ' * label}  {start}{' ' * between}{end}{titles}", style="dim")


def _bar(row: Row, scale: Scale, pen: Pen) -> Text:
    """The cells of a row. They are looked at in halves, so that bars end where the work did."""
    halves = scale.halves(row.spans)
    whole, left, right = pen.node if row.kind == "node" else pen.work
    marked = {scale.column(at) for at in row.marks}
    style = _OUTCOMES.get(row.outcome, "") if row.outcome == "failed" else ""
    line = Text()
    for column in range(scale.columns):
        if column in scale.gap_columns:
            # A person may be waited for meanwhile.
            waits = row.kind == "gate" and halves[2 * column]
            line.append(pen.wait if waits else pen.gap, _STYLES["gate"] if waits else "dim")
            continue
        first, second = halves[2 * column], halves[2 * column + 1]
        cell = whole if first and second else left if first else right if second else " "
        if column in marked:
            cell = pen.mark
        line.append(cell, style or ("" if cell == " " else _STYLES[row.kind]))
    return line


def _longest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)
