"""A run as rows, top to bottom: a row for each node, below it one for each field, with its value
and where that comes from, and for what the LM is doing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bae.cli.live.display import RunView, error_of, names_of, task_of
from bae.cli.live.drawing import Guides, ViewRow
from bae.cli.wording import count, in_one_line, line_of, spent, took
from bae.plan import FieldPlan, plan_of
from bae.run_tree import ITEMS_KEPT
from bae.work import NOTHING_USED, GraphRun, LMQuestion, Source, Step

_ITEMS: Final = 5
"""Items of a map that are shown at once, where there are many."""
_BAR: Final = 12
"""How long the bar of a map is."""
_TEXT_LINES: Final = 2
"""Lines of a streaming answer that are shown."""


def graph_rows(view: RunView, graph: GraphRun, guides: Guides, now: float) -> Iterator[ViewRow]:
    """The rows of the steps of a graph. Those of the run itself that are on the screen already are
    left out. `now` is for what is in progress."""
    after = -1 if graph.path else view.printed
    steps = [step for step in graph.trace if step.number > after]
    for place, step in enumerate(steps):
        if place and step.number != steps[place - 1].number + 1:
            yield ViewRow(guides, "more", name=f"… {count(graph.dropped, 'more node')}")
        yield from step_rows(view, step, guides, now, last=place == len(steps) - 1)


def step_rows(
    view: RunView, step: Step, guides: Guides, now: float, *, last: bool
) -> Iterator[ViewRow]:
    """The rows of one node."""
    inside, dim = (*guides, not last), step.resumed
    fields = list(_field_rows(view, step, inside, now))
    asking, choice = view.asking(step), step.choice
    state = view.state(step)
    if state == "coming":  # what is done for it already
        states = {view.state(source) for source in view.sources(step).values()}
        going = asking is not None or "going" in states
        state = "going" if going else "waiting" if "waiting" in states else "coming"
    yield ViewRow(guides, "node", state, step.name, "", _about(view, step, now), dim)
    for source, row in fields:
        yield row
        if source is not None:
            yield from _source_rows(view, source, inside, now)
    if asking is not None:
        yield from _asking_rows(view, asking, inside, now, always=True)
    if choice is not None and choice.chosen is not None:
        said = [f"LM chose from {names_of(plan_of(choice.asker.node).offered)}"]
        said += [] if choice.with_fields else [took(choice.took)]
        name = f"→ {names_of([choice.chosen])}"
        yield ViewRow(inside, "choice", name=name, note=" · ".join(filter(None, said)), dim=dim)
    if step.error is not None and not any(row.state == "failed" for _, row in fields):
        yield ViewRow(inside, "error", value=error_of(step))


def _about(view: RunView, step: Step, now: float) -> str:
    if step.resumed:
        return "from before"
    said = [took(view.lasted(step, now)), *spent(view.usage(step))]
    filled = step.filled_by
    if filled is not None and filled.usage.attempts > 1:
        said.append(count(filled.usage.attempts, "answer"))
    if view.state(step) == "cancelled":
        said.append("cancelled")
    return " · ".join(filter(None, said))


# --- what the LM is doing, and the graphs inside ------------------------------------------------


def _asking_rows(
    view: RunView, asking: LMQuestion, guides: Guides, now: float, *, always: bool
) -> Iterator[ViewRow]:
    """What the LM is doing, and the end of what has arrived of its answer. What it does for a field
    is known from that field's own row, unless something went wrong."""
    last = asking.answers[-1].attempt if asking.answers else None
    retry, said = asking.retry, task_of(asking)
    if last is not None and last.verdict == "valid":
        if retry is None and not asking.text:
            return  # it has been answered, and nothing is known to wait for more
        last = None
    if retry is not None:
        wait = took(retry.at + retry.wait - now)
        said += f", again {f'in {wait} ' if wait else ''}after {line_of(retry.error)}"
    elif last is not None:
        reason = in_one_line("; ".join(last.errors) or last.verdict)
        said += f", answer {last.number + 1}" + (f" after: {reason}" if view.may_quote else "")
    if always or retry is not None or last is not None:
        yield ViewRow(guides, "lm", "going", "LM", said, took(now - asking.started))
    if asking.text and view.may_quote:
        lines = [line for line in map(str.strip, asking.text.splitlines()) if line]
        for line in lines[-_TEXT_LINES:]:
            yield ViewRow(guides, "text", value=in_one_line(line))


def _source_rows(view: RunView, source: Source, guides: Guides, now: float) -> Iterator[ViewRow]:
    """What is below the row of a field: what an LM does for it, and the graphs that run for
    it."""
    asking = view.asking(source)
    if asking is not None and view.items(source) is None:  # answers to items are all mixed up
        yield from _asking_rows(view, asking, guides, now, always=False)
    guides = (*guides, False)
    if source.graph is not None:
        yield from graph_rows(view, source.graph, guides, now)
    items = [(each.index, each.graph) for each in source.items.values() if each.graph]
    if max(view.items(source) or 0, len(items)) <= ITEMS_KEPT:
        yield from (_item_row(view, index, graph, guides, now) for index, graph in items)
        return
    failed = [(i, g) for i, g in items if view.state(g) in ("failed", "waiting")]
    going = [(i, g) for i, g in items if view.state(g) in ("going", "coming")]
    for index, graph in sorted([*failed, *going][:_ITEMS], key=lambda item: item[0]):
        yield _item_row(view, index, graph, guides, now)
    if failed or going:
        left_out = max(0, len(failed) + len(going) - _ITEMS)
        facts = [(left_out, "more in progress"), (source.items_done, "done")]
        if said := ", ".join(f"{number:,} {what}" for number, what in facts if number):
            yield ViewRow(guides, "more", name=f"… {said}")


def _item_row(view: RunView, index: int, graph: GraphRun, guides: Guides, now: float) -> ViewRow:
    newest, state, error = graph.newest, view.state(graph), error_of(graph)
    note = took(view.lasted(graph, now))
    row = ViewRow(
        guides, "item", "going" if state == "coming" else state, f"[{index}]", error, note
    )
    if newest is not None and not error:
        row.name += f" {newest.name}"
        if graph.outcome == "ended":
            row.value = view.own_values(newest)
        elif asking := view.asking(newest):
            row.value = f"the LM is {task_of(asking)}"
        elif not graph.outcome:
            row.value = ", ".join(each.by for each in newest.sources.values() if each.is_open)
    return row


# --- fields -------------------------------------------------------------------------------------


def _field_rows(
    view: RunView, step: Step, guides: Guides, now: float
) -> Iterator[tuple[Source | None, ViewRow]]:
    """The rows of the fields of a step, each with the source of the value."""
    sources = view.sources(step)
    plans = {} if step.node_type is None else plan_of(step.node_type).fields
    for name in plans or dict.fromkeys(name for name, _ in sources):
        source = sources.get((name, ""))
        behind = [each for (field, route), each in sources.items() if field == name and route]
        row = ViewRow(guides, "field", name=name, dim=step.resumed, block=id(step))
        if source is not None:
            _describe_source(view, row, source, now)
            if source.state == "failed" and step.whole:
                row.note += " · its default is used"
        elif name in plans:
            _describe_field(view, step, plans[name], row, behind)
        yield source, row
        for each in sorted(behind, key=lambda each: len(each.place.parameters)):
            *outer, parameter = each.place.parameters
            below = ViewRow(
                guides, "field", name=f"{'  ' * len(outer)}<- {parameter}", block=id(step)
            )
            _describe_source(view, below, each, now)
            yield each, below


def _describe_source(view: RunView, row: ViewRow, source: Source, now: float) -> None:
    """Put the value of a field into its row, and where it comes from."""
    state = row.state = view.state(source)
    row.dim = source.resumed
    going = source.since is not None and state == "going"
    said = [took(now - source.started if going else source.took)]
    said += spent(sum((each.paid for each in source.asked), NOTHING_USED))
    by = in_one_line(source.by[:1000])
    if source.origin is not None:
        said = [f"recalled{view.origin(source)}"]
    elif source.gate is not None:
        said.insert(0, "answered" if state == "done" else "waits for an answer")
        row.value = by
    else:
        total = view.items(source)
        over = f", {count(total, 'item')}" if state == "done" and total is not None else ""
        said.insert(0, f"{by}{over}")
        row.value = _progress(source.items_done, total)
    if state == "done":
        row.value = view.source_value(source)
    elif state == "failed" and source.error is not None:
        row.value = error_of(source)
    elif state == "cancelled":
        said = ["" if source.gate is not None else by, "cancelled"]
    if source.resumed:
        said.append("from before")
    row.note = " · ".join(filter(None, said))


def _describe_field(
    view: RunView, step: Step, plan: FieldPlan, row: ViewRow, behind: Sequence[Source]
) -> None:
    """Put what is known into the row of a field that no record tells of by itself."""
    node, before = step.node, step.before and step.before.node_type
    called = "" if plan.call is None else plan.call.name
    if node is None or plan.name not in node.__dict__:
        row.state = "coming"
        if waits := [each.by for each in behind if each.is_open]:
            row.note = f"{called} waits for {', '.join(waits)}"
        elif plan.fills == "source":
            row.note = called or plan.kind
        elif step.fill is not None or (before is not None and not plan_of(before).written):
            row.note = "LM"
        return
    row.value = view.value(step, plan.name)
    if plan.name not in node.__pydantic_fields_set__:
        row.note = "default"
    elif plan.fills == "source":
        row.note = f"{called}, called before" if called else plan.kind
    elif step.fill is not None:
        row.note = "LM"
    else:
        row.note = f"from {step.before.name}" if step.before is not None else "given"


def _progress(done: int, total: int | None) -> str:
    if not total:
        return f"{done:,} done" if done else ""
    full = min(_BAR, _BAR * done // total)
    return f"{'━' * full}{'─' * (_BAR - full)} {done:,}/{total:,}"
