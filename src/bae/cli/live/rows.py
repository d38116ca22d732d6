"""A run as rows, top to bottom, as many as there is room for: what is in progress and
what has failed before what is done, the newest before the oldest. `fields.py` has the rows of one
node, `drawing.py` makes lines of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bae.cli.live.fields import asking_rows, choice_row, field_rows, held
from bae.cli.live.row import Guides, Row, State
from bae.cli.live.wording import count, spent, took
from bae.run_tree import ITEMS_KEPT
from bae.work import GraphRun, Source, Step

if TYPE_CHECKING:
    from bae.cli.live.runs import RunView

ITEMS: Final = 5
"""Items of a map that are shown at once, where there are many."""
EXPANDED: Final = 6
"""Rows that an item must have to be shown with what is in it."""


def rows_of(view: RunView, now: float, room: int) -> list[Row]:
    """The rows of a run, at most so many. `now` is for what is in progress."""
    return _Layout(view, now).graph(view.history.run, (), max(1, room))


def squeezed(rows: list[Row], room: int) -> list[Row]:
    """Rows made fit, the first of which stays: those of what is done go first, then the topmost."""
    if len(rows) <= room:
        return rows
    if room < 3:
        return rows[:room]
    first, rest = rows[0], rows[1:]
    matter = [row for row in rest if row.matters][-(room - 2) :]
    spare = room - 2 - len(matter)
    others = [row for row in rest if not row.matters]
    kept = {id(row) for row in (*matter, *(others[-spare:] if spare else ()))}
    more = Row(rest[0].guides, "more", name=f"{len(rest) - len(kept):,} more")
    return [first, more, *(row for row in rest if id(row) in kept)]


class _Layout:
    def __init__(self, view: RunView, now: float) -> None:
        self._view = view
        self._now = now

    def _printed(self, graph: GraphRun) -> int:
        """The last step that is on the screen already."""
        return -1 if graph.path else self._view.printed

    def graph(self, graph: GraphRun, guides: Guides, room: int) -> list[Row]:
        """The steps of a graph. Where they do not all fit, older ones get a row each, and the
        oldest none."""
        blocks: list[list[Row]] = []
        left = room
        printed = self._printed(graph)
        steps = [step for step in reversed(graph.trace) if step.number > printed]
        left_out = 0 if printed >= 0 else graph.dropped
        hidden = left_out
        for place, step in enumerate(steps):
            older = len(steps) - place - 1 + left_out
            free = left - 1 if older else left  # a row says how many are not shown
            if place and free < 1:
                hidden += len(steps) - place
                break
            block = self._step(step, guides, not place, room if place else max(1, free))
            if place and len(block) > free - min(older, 2):
                block = [self._compact(step, guides)]
            blocks.append(block)
            left -= len(block)
        rows = [row for block in reversed(blocks) for row in block]
        if hidden and left > 0:
            rows.insert(self._gap(graph, blocks), Row(guides, "more", name=_more(hidden)))
        return rows

    def _gap(self, graph: GraphRun, blocks: Sequence[Sequence[Row]]) -> int:
        """Where the steps are missing: at the top, or after the first ones where these fit."""
        if len(blocks) < len(graph.steps) or self._printed(graph) >= 0:
            return 0
        numbers = sorted(graph.steps)
        ahead = next((i for i, number in enumerate(numbers) if number != numbers[0] + i), 0)
        return sum(len(block) for block in blocks[len(blocks) - ahead :])

    def _step(self, step: Step, guides: Guides, last: bool, room: int) -> list[Row]:
        inside = (*guides, not last)
        view, asking = self._view, self._view.asking(step)
        fields = list(field_rows(view, step, inside, self._now))
        about = self._about(step)
        head = Row(guides, "node", self._state(step), step.name, note=about, dim=step.resumed)
        tail: list[Row] = []
        if asking is not None:
            tail += asking_rows(asking, inside, self._now, view, step)
        if step.choice is not None and step.choice.chosen is not None:
            tail.append(choice_row(step.choice, inside, step.resumed))
        if step.error is not None and not any(row.state == "failed" for _, row in fields):
            tail.append(Row(inside, "error", "failed", value=view.error(step)))
        nests = sum(source is not None and any(source.graphs) for source, _ in fields)
        spare = room - 1 - len(fields) - len(tail)
        rows = [head]
        for source, row in fields:
            rows.append(row)
            if row.asking is not None:
                rows += asking_rows(row.asking, inside, self._now, view)
            if source is not None and any(source.graphs) and spare >= nests:
                rows += self._inside(source, (*inside, False), spare // nests)
        return squeezed([*rows, *tail], room)

    def _inside(self, source: Source, guides: Guides, room: int) -> list[Row]:
        """The graphs that run for a field: the one of a dependency, or those of a map."""
        if source.graph is not None:
            return self.graph(source.graph, guides, room)
        items = [(each.index, each.graph) for each in source.items.values() if each.graph]
        if max(self._view.items(source) or 0, len(items)) <= ITEMS_KEPT and len(items) <= room:
            rows: list[Row] = []
            each = (room - len(items)) // max(1, len(items))
            for item, graph in items:
                rows.append(self._item(item, graph, guides))
                if each >= EXPANDED and graph.outcome not in ("ended", "cancelled"):
                    rows += self.graph(graph, (*guides, False), each)
            return rows
        failed = [(i, g) for i, g in items if self._view.state(g) in ("failed", "waiting")]
        going = [(i, g) for i, g in items if self._view.state(g) in ("going", "coming")]
        shown = [*failed, *going][: max(0, min(ITEMS, room - 1))]
        rows = [self._item(item, graph, guides) for item, graph in sorted(shown, key=_number)]
        more: list[str] = []
        if len(failed) + len(going) > len(shown):
            more.append(f"{len(failed) + len(going) - len(shown):,} more under way")
        if source.items_done and (going or failed):
            more.append(f"{source.items_done:,} done")
        if more:
            rows.append(Row(guides, "more", name=", ".join(more)))
        return rows

    def _item(self, item: int, graph: GraphRun, guides: Guides) -> Row:
        newest, state, error = graph.newest, self._view.state(graph), self._view.error(graph)
        note = took(self._view.lasted(graph, self._now))
        row = Row(guides, "item", "going" if state == "coming" else state, f"[{item}]", error, note)
        if newest is None or error:
            return row
        row.name += f" {newest.name}"
        if graph.outcome == "ended":
            row.value = held(self._view, newest)
        elif not graph.outcome:
            row.value = self._doing(newest)
        return row

    def _compact(self, step: Step, guides: Guides) -> Row:
        note = took(self._view.lasted(step, self._now))
        if step.is_open or step.resumed:
            note = ""
        value = held(self._view, step)
        return Row(guides, "node", self._view.state(step), step.name, value, note, step.resumed)

    def _about(self, step: Step) -> str:
        if step.resumed:
            return "from before"
        said = [took(self._view.lasted(step, self._now)), *spent(self._view.usage(step))]
        filled = step.filled_by
        if filled is not None and filled.usage.attempts > 1:
            said.append(count(filled.usage.attempts, "answer"))
        if self._view.state(step) == "cancelled":
            said.append("cancelled")
        return " · ".join(filter(None, said))

    def _doing(self, step: Step) -> str:
        """What is in progress at a step, in a few words."""
        asking = self._view.asking(step)
        if asking is not None:
            choosing = asking.asker.kind == "choice"
            return "the LM is choosing" if choosing else "the LM is filling it"
        return ", ".join(each.by for each in step.sources.values() if each.is_open)

    def _state(self, step: Step) -> State:
        """How far a step is, as its heading says it: by what is done for a node that is yet to
        come."""
        state = self._view.state(step)
        if state != "coming":
            return state
        states = {self._view.state(source) for source in self._view.sources(step).values()}
        if self._view.asking(step) is not None or "going" in states:
            return "going"
        return "waiting" if "waiting" in states else "coming"


def _more(nodes: int) -> str:
    return f"{nodes:,} more node{'' if nodes == 1 else 's'}"


def _number(pair: tuple[int, GraphRun]) -> int:
    return pair[0]
