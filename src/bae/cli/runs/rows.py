"""Which rows the timeline of a run has, and what they are called: the work as a list, indented by
what it belongs to, with long maps and long runs shortened to a few rows and how many more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bae.cli.texts import in_one_line
from bae.journal.report import Span

if TYPE_CHECKING:
    from bae.journal.report import Timeline, Work, WorkKind

ITEMS: Final = 3
"""How many items of a map have a row, and as many that did not end well."""
NODES: Final = 40
"""How many nodes of one graph have a row."""
_WORST: Final = ("failed", "interrupted", "cancelled", "waiting", "running", "done")
"""How work comes out, the worst first."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a piece of work, or several that are told in one."""

    kind: WorkKind
    label: str
    spans: tuple[Span, ...]
    outcome: str
    marks: tuple[float, ...] = ()

    @property
    def start(self) -> float:
        """When it began."""
        return self.spans[0].start

    @property
    def seconds(self) -> float:
        """How long somebody was at it."""
        return sum(span.seconds for span in self.spans)


def rows_of(timeline: Timeline, *, full: bool = False, more: str = "…") -> list[Row]:
    """The rows of a timeline; all of them, or those that fit somebody's eye. `more` stands before
    how many are left out."""
    quick = timeline.seconds / 200
    return list(_rows(timeline.work, 0, quick, full, more))


def _rows(every: Sequence[Work], depth: int, quick: float, full: bool, more: str) -> Iterator[Row]:
    shown = every if full else _shown(every)
    known = {id(each) for each in shown}
    left_out = [each for each in every if id(each) not in known]
    for each in shown:
        indent = "  " * depth
        yield Row(
            each.kind, in_one_line(f"{indent}{_label(each)}"), each.spans, each.outcome, each.marks
        )
        inside = [work for work in each.inside if full or not _is_dull(work, each, quick)]
        yield from _rows(inside, depth + 1, quick, full, more)
        if left_out and each is _before(shown, left_out):
            yield _summed(left_out, f"{indent}{more} {len(left_out)} more")


def _shown(every: Sequence[Work]) -> Sequence[Work]:
    """The first few of many, and of those that did not end well."""
    items = [each for each in every if each.kind == "item"]
    if len(items) > ITEMS + 1:
        bad = [each for each in items[ITEMS:] if each.outcome != "done"][:ITEMS]
        return [*(each for each in every if each.kind != "item"), *items[:ITEMS], *bad]
    if len(every) > NODES:
        half = NODES // 2
        return [*every[:half], *every[-half:]]
    return every


def _before(shown: Sequence[Work], left_out: Sequence[Work]) -> Work:
    """After which of the rows it is said that some are left out."""
    earlier = [each for each in shown if each.start <= left_out[0].start]
    return earlier[-1] if earlier else shown[-1]


def _summed(works: Sequence[Work], label: str) -> Row:
    """Several in one row: when somebody was at any of them, and the worst that became of one."""
    spans: list[Span] = []
    for span in sorted((span for work in works for span in work.spans), key=lambda s: s.start):
        if spans and span.start <= spans[-1].end:
            spans[-1] = Span(spans[-1].start, max(spans[-1].end, span.end))
        else:
            spans.append(span)
    outcome = min((work.outcome for work in works), key=_WORST.index)
    return Row(works[0].kind, label, tuple(spans), outcome)


def _is_dull(work: Work, around: Work, quick: float) -> bool:
    """Whether the row around it says it all: a body that took no time, or was all there was, or
    the node that a graph inside was begun with."""
    no_time = work.seconds <= quick and work.outcome == "done"
    if work.kind == "node":
        return no_time and not work.inside and len(around.inside) > 1
    return work.kind == "body" and (no_time or len(around.inside) == 1)


def _label(work: Work) -> str:
    last = work.place.rpartition("/")[2]
    step, _, named = last.partition(":")
    field = named.partition(".")[2]
    match work.kind:
        case "node":
            return f"{step} {work.name}"
        case "dep":
            return f"{field} <- {work.name}"
        case "map":
            count = sum(each.kind == "item" for each in work.inside) + len(work.marks)
            return f"{field} <- {work.name} x {count}"
        case "item":
            return work.name
        case "gate":
            return f"{field} <- a person"
        case "choice":
            return f"LM chooses {work.name}{', fills it' if work.note else ''}"
        case "fill":
            return f"LM fills {work.name}"
        case "body":
            return f"{work.name}.__call__"
