"""Draw the timeline of a run as bars for a terminal, with a row for each piece of work.
Simultaneous work is in the same columns. Long maps and long runs are shortened to a few rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bae.cli.wording import in_one_line
from bae.journal.critical_paths import CriticalPath
from bae.journal.provenance import long
from bae.journal.report import Span, Timeline, TimelineEntry
from bae.sources import SourceFacts, Style, find_source_kind

BarRow = tuple[str, TimelineEntry]
"""The label of a row, and the work that its bar shows."""
ITEMS: Final = 3
"""How many of a map's first items have a row. Of the later items that are not done, at most this
many have a row too."""
NODES: Final = 40
"""How many nodes of a graph have a row."""
_WIDEST: Final = 160
"""The maximum width of a timeline in columns."""
_ROOMY: Final = 60
"""The minimum width of a timeline with start times, in columns."""
_WORTH: Final = 0.01
"""The minimum slack that is printed, in seconds."""
_GAPS: Final = 4
"""The maximum number of gaps that are listed one by one."""
_STYLES: Final[dict[Style, str]] = {
    "given": "bold",
    "trace": "green",
    "call": "cyan",
    "items": "blue",
    "person": "yellow",
    "llm": "magenta",
    "code": "green",
}
_ENTRIES: Final[dict[str, Style]] = {
    "node": "given",
    "item": "items",
    "choice": "llm",
    "fill": "llm",
    "tool": "call",
    "body": "code",
}
"""The styles of work without a source."""
_OUTCOMES: Final = {"failed": "red", "waiting": "yellow", "interrupted": "magenta"}


class Pen(NamedTuple):
    """The characters of bars."""

    work: str = "━"
    node: str = "─"
    gap: str = "╱"
    wait: str = "┅"
    more: str = "…"


_ASCII: Final = Pen("=", "-", "/", ".", "~")


def bars_of(timeline: Timeline, console: Console, *, full: bool = False) -> Iterator[Text]:
    """Yield the lines of a timeline, as wide as the console. With `full`, yield every row."""
    pen = Pen() if console.encoding.lower().startswith("utf") else _ASCII
    rows = rows_of(timeline, full=full, more=pen.more)
    if not rows:
        return
    width = max(40, min(console.width, _WIDEST))
    # Gaps have no length on the axis. The lines below the rows give their lengths.
    since = ["from", *(long(timeline.worked_by(work.start)) for _, work in rows)]
    lasted = ["took", *(long(work.seconds) for _, work in rows)]
    ends = ["", *("" if work.outcome == "done" else work.outcome for _, work in rows)]
    columns = [texts for texts in (since if width >= _ROOMY else [], lasted, ends) if any(texts)]
    widths = [max(map(cell_len, column)) for column in columns]
    right = sum(width + 2 for width in widths)
    room = min(max(cell_len(label) for label, _ in rows), max(8, (width - right) // 2))
    scale = _Scale(timeline, max(8, width - right - room - 2))
    begin, end = "0 s", long(timeline.seconds)
    axis = f"{begin}{' ' * max(1, scale.columns - len(begin) - len(end))}{end}"
    labels = [Text(), *(Text(name, "bold" if w.kind == "node" else "") for name, w in rows)]
    bars = [Text(axis, "dim"), *(_draw_bar(work, scale, pen) for _, work in rows)]
    for index, (line, bar) in enumerate(zip(labels, bars, strict=True)):
        line.truncate(room, overflow="ellipsis" if pen.more == "…" else "crop")
        line.pad_right(room - line.cell_len)
        line.append("  ").append_text(bar)
        for column, wide in zip(columns, widths, strict=True):
            text = column[index]
            if column is ends:
                line.append(f"  {text}", _OUTCOMES.get(text, "dim"))
            else:
                line.append(f"  {text.rjust(wide)}", "dim")
        line.rstrip()
        yield line
    for legend_line in _legend_lines(rows, scale, pen) if scale.gaps else ():
        yield Text(f"{' ' * room}  {legend_line}", style="dim")


def path_lines(path: CriticalPath, ran: Timeline) -> Iterator[Text]:
    """Yield the critical path in words: for each part, the time that the run waited for the part,
    and last the work with the most slack. `ran` is the timeline of the run."""
    if not path.parts:
        return
    exact = "" if path.is_exact else " (estimated: the run is of an old version)"
    share = f"{long(path.seconds)} of {long(ran.seconds)}"
    yield Text(f"critical path: {share}{exact}", "bold")
    for part in path.parts:
        took = "a person was asked" if part.waits else long(part.seconds)
        yield Text(in_one_line(f"  {part.place}  {part.name}  {took}"))
    spare = max(path.slack.items(), key=lambda item: item[1], default=None)
    if spare is not None and spare[1] >= _WORTH:
        (_, place), seconds = spare
        yield Text(in_one_line(f"most slack: {place} could have taken {long(seconds)} longer"))


class _Scale:
    """Maps times to columns. A gap is a time without a process, such as between a crash and the
    resume. All gaps have the same width."""

    def __init__(self, timeline: Timeline, columns: int) -> None:
        self.columns = columns
        self._timeline = timeline
        lives = [*timeline.lives]
        if timeline.end > lives[-1].end:  # the run is parked, and waits until now
            lives.append(Span(timeline.end, timeline.end))
        self._starts = [life.start for life in lives]
        self.gaps = [max(0.0, after.start - life.end) for life, after in pairwise(lives)]
        self._gap_width = 2 if 2 * len(self.gaps) <= columns // 2 else 0
        self._work_width = columns - self._gap_width * len(self.gaps)
        self.gap_columns = {
            self._column(life.end, index) + 1
            for index, life in enumerate(lives[:-1])
            if self._gap_width
        }

    def columns_of(self, spans: Sequence[Span]) -> set[int]:
        """Return the columns that the spans cover. Each span covers at least one column."""
        columns: set[int] = set()
        for span in spans:
            columns.update(range(self._place(span.start), self._place(span.end) + 1))
        return columns

    def _place(self, at: float) -> int:
        life = sum(start <= at for start in self._starts) - 1
        return self._column(at, max(0, life))

    def _column(self, at: float, life: int) -> int:
        total = self._timeline.seconds
        part = self._timeline.worked_by(at) / total if total > 0 else 0.0
        return int(min(1.0, part) * (self._work_width - 1)) + self._gap_width * life


def _draw_bar(work: TimelineEntry, scale: _Scale, pen: Pen) -> Text:
    covered = scale.columns_of(work.spans)
    sign = pen.node if work.kind == "node" else pen.work
    role = _ENTRIES.get(work.kind) or find_source_kind(work.kind).style
    style = "red" if work.outcome == "failed" else _STYLES[role]
    line = Text()
    for column in range(scale.columns):
        if column in scale.gap_columns:
            # During the gap, the work may have waited for a person.
            waits = work.waits and column in covered
            line.append(pen.wait if waits else pen.gap, "yellow" if waits else "dim")
        elif column in covered:
            line.append(sign, style)
        else:
            line.append(" ")
    return line


def _legend_lines(rows: Sequence[BarRow], scale: _Scale, pen: Pen) -> Iterator[str]:
    """Yield the lengths of the gaps, and the meaning of the sign for waiting."""
    lengths = ", ".join(long(gap) for gap in scale.gaps)
    if len(scale.gaps) > _GAPS:
        lengths = f"{len(scale.gaps)} times, {long(sum(scale.gaps))} in all"
    yield f"{pen.gap} no process worked on the run: {lengths}"
    if any(scale.gap_columns & scale.columns_of(w.spans) for _, w in rows if w.waits):
        yield f"{pen.wait} a person was waited for"


def rows_of(timeline: Timeline, *, full: bool = False, more: str = "…") -> list[BarRow]:
    """Return the rows of a timeline. Without `full`, leave out redundant rows, and most of many map
    items or nodes. `more` is the sign before the number of omitted rows."""
    quick = timeline.seconds / 200

    def rows(entries: Sequence[TimelineEntry], indent: str) -> Iterator[BarRow]:
        selected = entries if full else _select_work(entries)
        selected_ids = {id(entry) for entry in selected}
        left_out = [entry for entry in entries if id(entry) not in selected_ids]
        before = None
        if left_out:  # the row before the omitted rows
            earlier = [entry for entry in selected if entry.start <= left_out[0].start]
            before = earlier[-1] if earlier else selected[-1]
        for entry in selected:
            yield in_one_line(f"{indent}{_make_label(entry)}"), entry
            inside = [
                work for work in entry.inside if full or not _is_redundant(work, entry, quick)
            ]
            yield from rows(inside, f"{indent}  ")
            if entry is before:
                yield f"{indent}{more} {len(left_out)} more", _sum_work(left_out)

    return list(rows(timeline.work, ""))


def _select_work(entries: Sequence[TimelineEntry]) -> Sequence[TimelineEntry]:
    """Select the work that has rows. Of many map items, take the first items, and the first later
    items that are not done. Of many nodes, take the first and the last."""
    items = [entry for entry in entries if entry.kind == "item"]
    if len(items) > ITEMS + 1:
        not_done = [item for item in items[ITEMS:] if item.outcome != "done"][:ITEMS]
        return [*(entry for entry in entries if entry.kind != "item"), *items[:ITEMS], *not_done]
    if len(entries) > NODES:
        half = NODES // 2
        return [*entries[:half], *entries[-half:]]
    return entries


def _sum_work(works: Sequence[TimelineEntry]) -> TimelineEntry:
    """Join several pieces of work into one, from the first start to the last end."""
    span = Span(min(work.start for work in works), max(work.end for work in works))
    outcome = next((work.outcome for work in works if work.outcome != "done"), "done")
    return replace(works[0], spans=(span,), outcome=outcome)


def _is_redundant(work: TimelineEntry, parent: TimelineEntry, quick: float) -> bool:
    """Return whether a row for `work` would add nothing to the row of `parent`. This is true for an
    instant body, for a body that is the only work, and for an instant node without inner work,
    such as the start node of a nested graph. Instant work takes at most `quick` seconds."""
    no_time = work.seconds <= quick and work.outcome == "done"
    if work.kind == "node":
        return no_time and not work.inside and len(parent.inside) > 1
    return work.kind == "body" and (no_time or len(parent.inside) == 1)


def _make_label(work: TimelineEntry) -> str:
    step, _, name = work.place.rpartition("/")[2].partition(":")
    field = name.partition(".")[2]
    items = sum(entry.kind == "item" for entry in work.inside) + len(work.marks)
    if work.kind not in _ENTRIES:
        return f"{field} <- {find_source_kind(work.kind).row(SourceFacts(work.name, items))}"
    return {
        "node": f"{step} {work.name}",
        "item": work.name,
        "choice": f"LM chooses {work.name}{', fills it' if work.note else ''}",
        "fill": f"LM fills {work.name}",
        "tool": work.note or work.name,
        "body": f"{work.name}.__call__",
    }[work.kind]
