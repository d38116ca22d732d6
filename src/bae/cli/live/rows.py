"""The picture of a run as rows, top to bottom, as many as there is room for: what is under way and
what has failed before what is done, the newest before the oldest. `fields.py` has the rows of one
node, `drawing.py` makes lines of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bae.cli.live.fields import asking_rows, choice_row, field_rows, held
from bae.cli.live.folding import RunPicture
from bae.cli.live.picture import GraphPicture, Spot, State, Step
from bae.cli.live.row import Guides, Row
from bae.cli.live.source_records import FEW
from bae.cli.live.wording import count, spent, took

ITEMS: Final = 5
"""Items of a map that are shown at once, where there are many."""
EXPANDED: Final = 6
"""Rows that an item must have to be shown with what is in it."""


def rows_of(picture: RunPicture, now: float, room: int) -> list[Row]:
    """The rows of a run, at most so many. `now` is for what is under way."""
    return _Layout(picture, now).graph(picture.whole, (), max(1, room))


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
    def __init__(self, picture: RunPicture, now: float) -> None:
        self._picture = picture
        self._now = now

    def graph(self, graph: GraphPicture, guides: Guides, room: int) -> list[Row]:
        """The steps of a graph. Where they do not all fit, older ones get a row each, and the
        oldest none."""
        blocks: list[list[Row]] = []
        left = room
        steps = [step for step in graph.newest_first() if step.number > graph.shown]
        left_out = 0 if graph.shown >= 0 else graph.left_out
        hidden = left_out
        for place, step in enumerate(steps):
            older = len(steps) - place - 1 + left_out
            free = left - 1 if older else left  # a row says how many are not shown
            if place and free < 1:
                hidden += len(steps) - place
                break
            block = self._step(graph, step, guides, not place, room if place else max(1, free))
            if place and len(block) > free - min(older, 2):
                block = [self._compact(step, guides)]
            blocks.append(block)
            left -= len(block)
        rows = [row for block in reversed(blocks) for row in block]
        if hidden and left > 0:
            rows.insert(self._gap(graph, blocks), Row(guides, "more", name=_more(hidden)))
        return rows

    def _gap(self, graph: GraphPicture, blocks: Sequence[Sequence[Row]]) -> int:
        """Where the steps are missing: at the top, or after the first ones where these fit."""
        if len(blocks) < len(graph.steps) or graph.shown >= 0:
            return 0
        numbers = sorted(graph.steps)
        ahead = next((i for i, number in enumerate(numbers) if number != numbers[0] + i), 0)
        return sum(len(block) for block in blocks[len(blocks) - ahead :])

    def _step(
        self, graph: GraphPicture, step: Step, guides: Guides, last: bool, room: int
    ) -> list[Row]:
        inside = (*guides, not last)
        fields = list(field_rows(self._picture, graph, step, inside, self._now))
        head = Row(guides, "node", _state(step), step.name, note=self._about(step), dim=step.before)
        tail: list[Row] = []
        if step.asking is not None:
            tail += asking_rows(step.asking, inside, self._now, self._picture, step)
        if step.choice is not None:
            tail.append(choice_row(step.choice, inside, step.before))
        if step.error and not any(row.state == "failed" for _, _, row in fields):
            tail.append(Row(inside, "error", "failed", value=step.error))
        nests = sum(1 for _, spots, _ in fields if spots)
        spare = room - 1 - len(fields) - len(tail)
        rows = [head]
        for name, spots, row in fields:
            rows.append(row)
            if row.asking is not None:
                rows += asking_rows(row.asking, inside, self._now, self._picture)
            if spots and spare >= nests:
                rows += self._inside(step, name, spots, (*inside, False), spare // nests)
        return squeezed([*rows, *tail], room)

    def _inside(
        self, step: Step, field: str, spots: Sequence[Spot], guides: Guides, room: int
    ) -> list[Row]:
        """The graphs that run for a field: the one of a dependency, or those of a map."""
        items = [(spot.item, step.graphs[spot]) for spot in spots if spot.item is not None]
        if len(items) < len(spots):
            return self.graph(next(step.graphs[s] for s in spots if s.item is None), guides, room)
        source = step.sources.get((field, ""))
        total = source.total if source is not None else None
        if max(total or 0, len(items)) <= FEW and len(items) <= room:
            rows: list[Row] = []
            each = (room - len(items)) // max(1, len(items))
            for item, graph in items:
                rows.append(self._item(item, graph, guides))
                if each >= EXPANDED and graph.outcome not in ("ended", "cancelled"):
                    rows += self.graph(graph, (*guides, False), each)
            return rows
        failed = [(i, g) for i, g in items if g.outcome in ("failed", "waiting")]
        going = [(i, g) for i, g in items if not g.outcome]
        shown = [*failed, *going][: max(0, min(ITEMS, room - 1))]
        rows = [self._item(item, graph, guides) for item, graph in sorted(shown, key=_number)]
        more: list[str] = []
        if len(failed) + len(going) > len(shown):
            more.append(f"{len(failed) + len(going) - len(shown):,} more under way")
        if source is not None and source.done and (going or failed):
            more.append(f"{source.done:,} done")
        if more:
            rows.append(Row(guides, "more", name=", ".join(more)))
        return rows

    def _item(self, item: int, graph: GraphPicture, guides: Guides) -> Row:
        newest = graph.newest
        note = took((graph.ended or self._now) - graph.began)
        row = Row(guides, "item", _STATES[graph.outcome], f"[{item}]", graph.error, note)
        if newest is None or graph.error:
            return row
        row.name += f" {newest.name}"
        if graph.outcome == "ended":
            row.value = held(newest)
        elif not graph.outcome:
            row.value = _doing(newest)
        return row

    def _compact(self, step: Step, guides: Guides) -> Row:
        note = took(step.ended - step.began) if step.ended and not step.before else ""
        return Row(guides, "node", step.state, step.name, held(step), note, dim=step.before)

    def _about(self, step: Step) -> str:
        if step.before:
            return "from before"
        usage = step.usage if step.asking is None else step.usage + step.asking.usage
        under_way = step.state in ("coming", "going")
        said = [took((self._now if under_way else step.ended) - step.began), *spent(usage)]
        if step.answers > 1:
            said.append(count(step.answers, "answer"))
        if step.state == "cancelled":
            said.append("cancelled")
        return " · ".join(filter(None, said))


def _doing(step: Step) -> str:
    """What is under way at a step, in a few words."""
    if step.asking is not None:
        return "the LM is choosing" if step.asking.doing == "choosing" else "the LM is filling it"
    return ", ".join(each.by for each in step.sources.values() if each.state == "going")


def _state(step: Step) -> State:
    """How far a step is, as its heading says it: by what is done for a node that is yet to come."""
    if step.state != "coming":
        return step.state
    states = {source.state for source in step.sources.values()}
    if step.asking is not None or "going" in states:
        return "going"
    return "waiting" if "waiting" in states else "coming"


def _more(nodes: int) -> str:
    return f"{nodes:,} more node{'' if nodes == 1 else 's'}"


def _number(pair: tuple[int, GraphPicture]) -> int:
    return pair[0]


_STATES: Final[dict[str, State]] = {
    "": "going",
    "ended": "done",
    "waiting": "waiting",
    "failed": "failed",
    "cancelled": "cancelled",
}
