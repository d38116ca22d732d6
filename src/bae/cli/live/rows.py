"""A run as rows, top to bottom: a row for each node, below it one for each field, with its value
and where that comes from, and for what the LM is doing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Final

from bae.cli.live.drawing import Guides, Row, State
from bae.cli.live.view import RunView
from bae.cli.wording import count, in_one_line, line_of, spent, took
from bae.plan import FieldPlan, plan_of
from bae.run_tree import ITEMS_KEPT
from bae.secrets import may_show
from bae.work import NOTHING_USED, GraphRun, Question, Source, Step

ITEMS: Final = 5
"""Items of a map that are shown at once, where there are many."""
BAR: Final = 12
"""How long the bar of a map is."""
TEXT_LINES: Final = 2
"""Lines of a streaming answer that are shown."""


def squeeze_rows(rows: list[Row], room: int) -> list[Row]:
    """The rows that fit: those of what is done go first, and then the topmost."""
    if len(rows) <= room:
        return rows
    if room < 2:
        return rows[-room:]
    matter = [row for row in rows if row.matters][-(room - 1) :]
    spare = room - 1 - len(matter)
    others = [row for row in rows if not row.matters]
    kept = {id(row) for row in (*matter, *(others[-spare:] if spare else ()))}
    more = Row((), "more", name=f"{len(rows) - len(kept):,} more")
    return [more, *(row for row in rows if id(row) in kept)]


def graph_rows(view: RunView, graph: GraphRun, guides: Guides, now: float) -> Iterator[Row]:
    """The rows of the steps of a graph. Those of the run itself that are on the screen already are
    left out. `now` is for what is in progress."""
    after = -1 if graph.path else view.printed
    steps = [step for step in graph.trace if step.number > after]
    for place, step in enumerate(steps):
        if place and step.number != steps[place - 1].number + 1:
            yield Row(guides, "more", name=count(graph.dropped, "more node"))
        yield from step_rows(view, step, guides, now, last=place == len(steps) - 1)


def step_rows(
    view: RunView, step: Step, guides: Guides, now: float, *, last: bool
) -> Iterator[Row]:
    """The rows of one node."""
    inside = (*guides, not last)
    fields = list(_field_rows(view, step, inside, now))
    yield Row(
        guides, "node", _state(view, step), step.name, "", _about(view, step, now), step.resumed
    )
    for source, row in fields:
        yield row
        if source is not None:
            yield from _source_rows(view, source, inside, now)
    asking = view.asking(step)
    if asking is not None:
        yield from _asking_rows(view, asking, inside, now, always=True)
    if step.choice is not None and step.choice.chosen is not None:
        yield _choice_row(step.choice, inside, step.resumed)
    if step.error is not None and not any(row.state == "failed" for _, row in fields):
        yield Row(inside, "error", "failed", value=view.error(step))


def name_of(cls: type) -> str:
    """The name of what an LM may choose."""
    return "the end" if cls is NoneType else cls.__name__


def _state(view: RunView, step: Step) -> State:
    """How far a step is, as its heading says it: by what is done for a node that is yet to come."""
    state = view.state(step)
    if state != "coming":
        return state
    states = {view.state(source) for source in view.sources(step).values()}
    if view.asking(step) is not None or "going" in states:
        return "going"
    return "waiting" if "waiting" in states else "coming"


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


def _choice_row(choice: Question, guides: Guides, before: bool) -> Row:
    """Where the LM has chosen to continue."""
    offered = " | ".join(map(name_of, plan_of(choice.asker.node).offered))
    seconds = 0.0 if choice.with_fields else choice.took
    note = " · ".join(filter(None, [f"LM chose from {offered}", took(seconds)]))
    name = "" if choice.chosen is None else name_of(choice.chosen)
    return Row(guides, "choice", "done", name, note=note, dim=before)


# --- what the LM is doing, and the graphs inside ------------------------------------------------


def _asking_rows(
    view: RunView, asking: Question, guides: Guides, now: float, *, always: bool
) -> Iterator[Row]:
    """What the LM is doing, and the end of what has arrived of its answer. What it does for a field
    is known from that field's own row, unless something went wrong."""
    last = asking.answers[-1].attempt if asking.answers else None
    retry, said = asking.retry, _task_of(asking)
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
    if always or retry is not None or last is not None:
        yield Row(guides, "lm", "going", "LM", said, took(now - asking.started))
    if asking.text and quoted:
        lines = [line for line in map(str.strip, asking.text.splitlines()) if line]
        for line in lines[-TEXT_LINES:]:
            yield Row(guides, "text", "going", value=in_one_line(line))


def _task_of(asking: Question) -> str:
    if asking.asker.kind == "choice":
        return f"choosing from {' | '.join(map(name_of, asking.offered))}"
    if asking.asker.kind == "fill":
        return f"filling {', '.join(plan.name for plan in plan_of(asking.asker.node).plain)}"
    return "answering"


def _source_rows(view: RunView, source: Source, guides: Guides, now: float) -> Iterator[Row]:
    """What stands below the row of a field: what an LM does for it, and the graphs that run for
    it."""
    asking = view.asking(source)
    if asking is not None and source.kind != "map":  # answers to several items are all mixed up
        yield from _asking_rows(view, asking, guides, now, always=False)
    guides = (*guides, False)
    if source.graph is not None:
        yield from graph_rows(view, source.graph, guides, now)
    items = [(each.index, each.graph) for each in source.items.values() if each.graph]
    shown, more = items, ""
    if max(view.items(source) or 0, len(items)) > ITEMS_KEPT:
        failed = [(i, g) for i, g in items if view.state(g) in ("failed", "waiting")]
        going = [(i, g) for i, g in items if view.state(g) in ("going", "coming")]
        shown = sorted([*failed, *going][:ITEMS], key=lambda pair: pair[0])
        left_out = len(failed) + len(going) - len(shown)
        if failed or going:
            facts = [(left_out, "more in progress"), (source.items_done, "done")]
            more = ", ".join(f"{number:,} {what}" for number, what in facts if number)
    for index, graph in shown:
        yield _item_row(view, index, graph, guides, now)
    if more:
        yield Row(guides, "more", name=more)


def _item_row(view: RunView, index: int, graph: GraphRun, guides: Guides, now: float) -> Row:
    newest, state, error = graph.newest, view.state(graph), view.error(graph)
    note = took(view.lasted(graph, now))
    row = Row(guides, "item", "going" if state == "coming" else state, f"[{index}]", error, note)
    if newest is None or error:
        return row
    row.name += f" {newest.name}"
    if graph.outcome == "ended":
        row.value = view.own_values(newest)
    elif not graph.outcome:
        asking = view.asking(newest)
        going = [each.by for each in newest.sources.values() if each.is_open]
        row.value = f"the LM is {_task_of(asking)}" if asking is not None else ", ".join(going)
    return row


# --- fields -------------------------------------------------------------------------------------


def _field_rows(
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
            _describe_source(view, row, source, now)
            if source.state == "failed" and step.whole:
                row.note += " · its default stands"
        else:
            _describe_field(view, step, plan, row, behind.get(name, ()))
        yield source, row
        for each in sorted(behind.get(name, ()), key=lambda each: len(each.place.parameters)):
            *outer, parameter = each.place.parameters
            below = Row(guides, "field", name=f"{'  ' * len(outer)}<- {parameter}", block=id(step))
            _describe_source(view, below, each, now)
            yield each, below


def _describe_source(view: RunView, row: Row, source: Source, now: float) -> None:
    """Put the value of a field into its row, and where it comes from."""
    state = row.state = view.state(source)
    row.dim = source.resumed
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


def _describe_field(
    view: RunView, step: Step, plan: FieldPlan, row: Row, behind: Sequence[Source]
) -> None:
    """Put what is known into the row of a field that no record tells of by itself."""
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
    row.value = view.value(step, plan.name)
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
