"""A run as rows, top to bottom, as many as there is room for: what is in progress and what has
failed before what is done, the newest before the oldest. A node has a row for each field, with its
value and where that comes from, and for what the LM is doing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Final

from bae.cli.live.drawing import Guides, Row, State, Values
from bae.cli.live.view import RunView
from bae.cli.live.wording import count, line_of, spent, took
from bae.cli.texts import in_one_line
from bae.plan import FieldPlan, plan_of
from bae.run_tree import ITEMS_KEPT
from bae.secrets import may_show
from bae.work import NOTHING_USED, GraphRun, Question, Source, Step

ITEMS: Final = 5
"""Items of a map that are shown at once, where there are many."""
EXPANDED: Final = 6
"""Rows that an item must have to be shown with what is in it."""
BAR: Final = 12
"""How long the bar of a map is."""
TEXT_LINES: Final = 2
"""Lines of a streaming answer that are shown."""


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
            more.append(f"{len(failed) + len(going) - len(shown):,} more in progress")
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


# --- one node ------------------------------------------------------------------------------------


def field_rows(
    view: RunView, step: Step, guides: Guides, now: float
) -> Iterator[tuple[Source | None, Row]]:
    """The rows of the fields of a step, each with the source of the value."""
    sources = view.sources(step)
    if step.node_type is None:
        for (name, _), source in sources.items():
            yield source, Row(guides, "field", "going", name)
        return
    behind: dict[str, list[Source]] = {}
    for (name, parameter), source in sources.items():
        if parameter:
            behind.setdefault(name, []).append(source)
    for name, plan in plan_of(step.node_type).fields.items():
        source = sources.get((name, ""))
        row = Row(guides, "field", name=name, dim=step.resumed, block=id(step))
        if source is not None:
            _sourced(view, row, source, now)
            if source.state == "failed" and step.whole:
                row.note += " · its default stands"
        else:
            _without_source(view, step, plan, row, behind.get(name, ()))
        yield source, row
        for each in sorted(behind.get(name, ()), key=_depth):
            below = Row(guides, "field", name=_parameter(each), block=id(step))
            _sourced(view, below, each, now)
            yield each, below


def held(view: RunView, step: Step) -> Values:
    """The values of a node that are its own: those that nothing else has a row for."""
    if step.node is None or step.node_type is None:
        return ()
    plans = plan_of(step.node_type).plain
    return tuple(
        (plan.name, view.value(step, plan)) for plan in plans if plan.name in step.node.__dict__
    )


def asking_rows(
    asking: Question, guides: Guides, now: float, view: RunView, step: Step | None = None
) -> Iterator[Row]:
    """What the LM is doing, and the end of what has arrived of its answer. What it does for a field
    is known from that field's own row, unless something went wrong."""
    last = asking.answers[-1].attempt if asking.answers else None
    retry, said = asking.retry, _doing(asking)
    if last is not None and last.verdict == "valid":
        if retry is None and not asking.text:
            return  # it has been answered, and nothing is known to wait for more
        last = None
    quoted = may_show(view.history.met, following=True)
    if retry is not None:
        wait = took(retry.at + retry.wait - now)
        said += f", again {f'in {wait} ' if wait else ''}after {line_of(retry.error)}"
    elif last is not None:
        reason = in_one_line("; ".join(last.errors) or last.verdict)
        said += f", answer {last.number + 1}" + (f" after: {reason}" if quoted else "")
    if step is not None or retry is not None or last is not None:
        yield Row(guides, "lm", "going", "LM", said, took(now - asking.started))
    if asking.text and quoted:
        lines = [line for line in map(str.strip, asking.text.splitlines()) if line]
        for line in lines[-TEXT_LINES:]:
            yield Row(guides, "text", "going", value=in_one_line(line))


def choice_row(choice: Question, guides: Guides, before: bool) -> Row:
    """Where the LM has chosen to go on."""
    offered = " | ".join(map(name_of, plan_of(choice.asker.node).offered))
    seconds = 0.0 if choice.with_fields else choice.took
    note = " · ".join(filter(None, [f"LM chose from {offered}", took(seconds)]))
    name = "" if choice.chosen is None else name_of(choice.chosen)
    return Row(guides, "choice", "done", name, note=note, dim=before)


def name_of(cls: type) -> str:
    """The name of what an LM may choose."""
    return "the end" if cls is NoneType else cls.__name__


def _doing(asking: Question) -> str:
    if asking.asker.kind == "choice":
        return f"choosing from {' | '.join(map(name_of, asking.offered))}"
    if asking.asker.kind == "fill":
        return f"filling {', '.join(plan.name for plan in plan_of(asking.asker.node).plain)}"
    return "answering"


def _sourced(view: RunView, row: Row, source: Source, now: float) -> None:
    state = row.state = view.state(source)
    row.dim = source.resumed
    # The answers to several items of a map are all mixed up.
    row.asking = view.asking(source) if source.kind != "map" else None
    going = source.since is not None and state == "going"
    said = [took(now - source.started if going else source.took)]
    said += spent(sum((each.paid for each in source.asked), NOTHING_USED))
    by = in_one_line(source.by[:1000])
    match source.kind:
        case "recall":
            said = [_recalled(view, source)]
        case "gate":
            said.insert(0, "answered" if state == "done" else "waits for an answer")
            row.value = by
        case "map":
            total = view.items(source)
            over = f", {count(total, 'item')}" if state == "done" and total is not None else ""
            said.insert(0, f"{by}{over}")
            if state != "done":
                row.value = _progress(source.items_done, total)
        case "dep":
            said.insert(0, by)
    if state == "done":
        row.value = view.source_value(source)
    if source.error is not None and state == "failed":
        row.value = view.error(source)
    if state == "cancelled":
        said = [by if source.kind != "gate" else "", "cancelled"]
    if source.resumed:
        said.append("from before")
    row.note = " · ".join(filter(None, said))


def _without_source(
    view: RunView, step: Step, plan: FieldPlan, row: Row, behind: list[Source] | tuple[()]
) -> None:
    """A field that no record tells of by itself."""
    node = step.node
    called = "" if plan.call is None else plan.call.name
    if node is None or plan.name not in node.__dict__:
        row.state = "coming"
        waits = [each.by for each in behind if each.is_open]
        if waits:
            row.note = f"{called} waits for {', '.join(waits)}"
        elif plan.kind == "plain":
            row.note = "" if _is_given(step) else "LM"
        else:
            row.note = called or plan.kind
        return
    row.value = view.value(step, plan)
    if plan.name not in node.__pydantic_fields_set__:
        row.note = "default"
    elif plan.kind != "plain":
        row.note = f"{called}, called before" if called else plan.kind
    elif step.fill is not None:
        row.note = "LM"
    else:
        row.note = f"from {step.before.name}" if step.before is not None else "given"


def _is_given(step: Step) -> bool:
    """Whether code makes the node, though no record has told of it yet: the body of the one before
    it is written, or there is none before it."""
    if step.fill is not None:
        return False
    before = None if step.before is None else step.before.node_type
    return step.number == 0 or (before is not None and plan_of(before).written)


def _progress(done: int, total: int | None) -> str:
    if not total:
        return f"{done:,} done" if done else ""
    full = min(BAR, BAR * done // total)
    return f"{'━' * full}{'─' * (BAR - full)} {done:,}/{total:,}"


def _recalled(view: RunView, source: Source) -> str:
    if source.origin is None:
        return "recalled"
    path, step, field = source.origin
    found = view.history.step(path, step)
    node = f"step {step}" if found is None else found.name
    return f"recalled from {node}" + ("" if field in ("", source.place.field) else f".{field}")


def _depth(source: Source) -> int:
    return len(source.place.parameters)


def _parameter(source: Source) -> str:
    """How a parameter of the function behind a field is named: `(place)(client)` is `<- client`,
    one further in."""
    names = source.place.parameters
    return f"{'  ' * (len(names) - 1)}<- {names[-1]}"
