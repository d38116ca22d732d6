"""Makes the rows of a run. Each node has a row. Below it are rows for its fields, with values and
sources, and for the current work of the LM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bae.cli.live.display import RunView, calls_text, error_of, names_of, task_of
from bae.cli.live.drawing import Guides, ViewRow, ViewState
from bae.cli.wording import count, describe_duration, describe_spending, in_one_line, line_of
from bae.plan import FieldPlan, plan_of
from bae.records import RoundReplied
from bae.run_tree import MAX_ITEM_GRAPHS
from bae.work import NOTHING_USED, GraphRun, LMQuestion, Source, Step, ToolLoop, ToolRun

_ITEMS: Final = 5
"""Maximum rows for the items of a map."""
_CALLS: Final = 8
"""Maximum rows for finished tool calls. The newest calls are shown."""
_BAR: Final = 12
"""Cells of a progress bar."""
_TEXT_LINES: Final = 2
"""Maximum lines of a streaming answer."""


def graph_rows(view: RunView, graph: GraphRun, guides: Guides, now: float) -> Iterator[ViewRow]:
    """Yield the rows of a graph's steps, without the steps that are already printed. `now` is the
    current time, for the duration of work in progress."""
    after = -1 if graph.path else view.printed
    steps = [step for step in graph.trace if step.number > after]
    for place, step in enumerate(steps):
        if place and step.number != steps[place - 1].number + 1:
            yield ViewRow(guides, "more", name=f"… {count(graph.dropped, 'more node')}")
        yield from step_rows(view, step, guides, now, last=place == len(steps) - 1)


def step_rows(
    view: RunView, step: Step, guides: Guides, now: float, *, last: bool
) -> Iterator[ViewRow]:
    """Yield the rows of one node. `last` says that no other node follows in the graph."""
    inside, dim = (*guides, not last), step.resumed
    fields = list(_field_rows(view, step, inside, now))
    asking, choice = view.asking(step), step.choice
    state = view.state(step)
    if state == "coming":  # sources or the LM may already work for the node
        states = {view.state(source) for source in view.sources(step).values()}
        waits = asking is not None and asking.waits and not asking.open_calls
        is_going = (asking is not None and not waits) or "going" in states
        state = "going" if is_going else "waiting" if waits or "waiting" in states else "coming"
    yield ViewRow(guides, "node", state, step.name, "", _describe_step(view, step, now), dim)
    loop, below = step.fill_loop, (*inside, False)
    for index, (source, row) in enumerate(fields):
        yield row
        if source is not None:
            yield from _source_rows(view, source, inside, now)
        is_last = index + 1 == len(fields) or fields[index + 1][1].field != row.field
        if loop is not None and row.field == loop.field_name and is_last:
            calls = [*loop.calls.values()]
            yield from _round_rows(view, calls, loop.refusals, below, now)
    for question in step.asked:
        yield from _round_rows(view, question.calls, _refusals_of(question), below, now)
    if asking is not None and not asking.awaits_calls:
        yield from _asking_rows(view, asking, inside, now, always=True)
    if choice is not None and choice.chosen is not None:
        parts = [f"LM chose from {names_of(plan_of(choice.asker.node).offered)}"]
        parts += [] if choice.with_fields else [describe_duration(choice.took)]
        name = f"→ {names_of([choice.chosen])}"
        yield ViewRow(inside, "choice", name=name, note=" · ".join(filter(None, parts)), dim=dim)
    failed = [row for _, row in fields if row.state == "failed"]
    failed_calls = [call for call in step.tool_calls if call.state == "failed"]
    if step.error is not None and not failed and not failed_calls:
        yield ViewRow(inside, "error", value=error_of(step))


def _describe_step(view: RunView, step: Step, now: float) -> str:
    if step.resumed:
        return "from before"
    parts = [describe_duration(view.time_on(step, now)), *describe_spending(view.usage(step))]
    filled = step.filled_by
    if step.fill_loop is not None:
        parts.append(count(len(step.fill_loop.rounds), "round"))
    elif filled is not None and filled.usage.attempts > 1:
        parts.append(count(filled.usage.attempts, "answer"))
    if view.state(step) == "cancelled":
        parts.append("cancelled")
    return " · ".join(filter(None, parts))


# --- the LM's work, and nested graphs -------------------------------------------------------------


def _asking_rows(
    view: RunView, asking: LMQuestion, guides: Guides, now: float, *, always: bool
) -> Iterator[ViewRow]:
    """Yield a row for an open question to the LM, and rows for the end of the streaming answer.

    Without `always`, the row of the question is left out, unless the LM is asked again. This is for
    questions of a field, because the row of the field already shows that work is in progress.
    """
    last = asking.answers[-1].attempt if asking.answers else None
    retry, task = asking.retry, task_of(asking)
    if last is not None and asking.loop is not None and _is_refused(asking.loop, last.number):
        last = None  # the next round has begun, and `task` has its number
    if last is not None and last.verdict == "valid":
        if retry is None and not asking.text:
            return  # the LM has answered, and no other answer is expected
        last = None
    if retry is not None:
        wait = describe_duration(retry.at + retry.wait - now)
        again = f"by {in_one_line(retry.model)}" if retry.model else "again"
        task += f", {again} {f'in {wait} ' if wait else ''}after {line_of(retry.error)}"
    elif last is not None:
        reason = in_one_line("; ".join(last.errors) or last.verdict)
        task += f", answer {last.number + 1}" + (f" after: {reason}" if view.may_quote else "")
    if always or retry is not None or last is not None:
        yield ViewRow(guides, "lm", "going", "LM", task, describe_duration(now - asking.started))
    if view.may_quote:
        name, text = "thinks", asking.thoughts
        if asking.text_place is not None:
            name, text = asking.text_place.value_text, asking.text
        lines = [line for line in map(str.strip, text.splitlines()) if line][-_TEXT_LINES:]
        if lines:
            lines[0] = f"{name}: {lines[0]}"
        for line in lines:
            yield ViewRow(guides, "text", value=in_one_line(line))


def _is_refused(loop: ToolLoop, number: int) -> bool:
    """Return whether another round follows the round `number`, because the LM called tools or its
    answer was refused."""
    return number < len(loop.rounds) or any(
        reply.number == number and reply.kind in ("correction", "refused") for reply in loop.replies
    )


def _refusals_of(question: LMQuestion) -> list[RoundReplied]:
    """List the refused answers to a question, since it was last asked."""
    refusals = [] if question.loop is None else question.loop.refusals
    return [reply for reply in refusals if reply.at >= question.started]


def _round_rows(
    view: RunView,
    calls: Sequence[ToolRun],
    refusals: Sequence[RoundReplied],
    guides: Guides,
    now: float,
) -> Iterator[ViewRow]:
    """Yield a row for each tool call, with the rows of the call's graph, and a row for each refused
    answer. If there are many calls, earlier finished calls are left out."""
    pending = list(refusals[-_CALLS:])
    matters = [call for call in calls if call.is_open or call.state == "waiting"]
    shown_calls = [call for call in calls if call in matters or call in calls[-_CALLS:]]
    if left_out := len(calls) - len(shown_calls):
        yield ViewRow(guides, "more", name=f"… {count(left_out, 'earlier call')}")
    for call in shown_calls:
        while pending and pending[0].number < call.round:
            yield refusal_row(view, pending.pop(0), guides)
        row = call_row(view, call, guides, now)
        row.block = id(calls[0])
        yield row
        if call.is_open and call.graph is not None:
            yield from graph_rows(view, call.graph, (*guides, False), now)
    yield from (refusal_row(view, reply, guides) for reply in pending)


def call_row(view: RunView, call: ToolRun, guides: Guides, now: float) -> ViewRow:
    """Make the row of a tool call, with its result and its duration."""
    row = ViewRow(guides, "call", name=view.call(call), value=view.call_result(call))
    row.dim = call.resumed
    is_open = call.is_open
    parts = [describe_duration(now - call.started if is_open else call.took)]
    if is_open:
        row.state, report = "going", call.report
        if report is not None and report.done is not None:
            bar = _progress(report.done, report.total)
            row.value = f"{bar} {row.value}".strip()
    elif call.state == "done":
        row.is_error = call.tool_error is not None
        parts += [f"as {call.reused}"] if call.reused else []
        parts += ["from before"] if call.resumed else []
    elif call.state == "waiting":
        row.state, row.value, parts = "waiting", "", ["waits for a person"]
    else:
        states: dict[str, ViewState] = {"failed": "failed", "running": "coming"}
        row.state = states.get(call.state, "cancelled")
    row.note = " · ".join(filter(None, parts))
    return row


def refusal_row(view: RunView, reply: RoundReplied, guides: Guides) -> ViewRow:
    """Make the row of a refused answer."""
    is_old = reply.at < view.since
    return ViewRow(guides, "call", value=view.refusal(reply), dim=is_old, is_error=True)


def _source_rows(view: RunView, source: Source, guides: Guides, now: float) -> Iterator[ViewRow]:
    """Yield the rows below a field: tool calls, questions to the LM, and nested graphs."""
    asking = view.asking(source)
    for question in source.asked:
        refusals = _refusals_of(question)
        yield from _round_rows(view, question.calls, refusals, (*guides, False), now)
    # A map asks several questions at once. Show none of them here.
    if asking is not None and view.items(source) is None:
        yield from _asking_rows(view, asking, guides, now, always=False)
    guides = (*guides, False)
    if source.graph is not None:
        yield from graph_rows(view, source.graph, guides, now)
    items = [(item.index, item.graph) for item in source.items.values() if item.graph]
    if max(view.items(source) or 0, len(items)) <= MAX_ITEM_GRAPHS:
        yield from (_item_row(view, index, graph, guides, now) for index, graph in items)
        return
    failed = [(i, g) for i, g in items if view.state(g) in ("failed", "waiting")]
    going = [(i, g) for i, g in items if view.state(g) in ("going", "coming")]
    for index, graph in sorted([*failed, *going][:_ITEMS], key=lambda item: item[0]):
        yield _item_row(view, index, graph, guides, now)
    if failed or going:
        left_out = max(0, len(failed) + len(going) - _ITEMS)
        facts = [(left_out, "more in progress"), (source.items_done, "done")]
        if rest := ", ".join(f"{number:,} {what}" for number, what in facts if number):
            yield ViewRow(guides, "more", name=f"… {rest}")


def _item_row(view: RunView, index: int, graph: GraphRun, guides: Guides, now: float) -> ViewRow:
    newest, state, error = graph.newest, view.state(graph), error_of(graph)
    note = describe_duration(view.time_on(graph, now))
    row = ViewRow(
        guides, "item", "going" if state == "coming" else state, f"[{index}]", error, note
    )
    if newest is not None and not error:
        row.name += f" {newest.name}"
        if graph.outcome == "ended":
            row.value = view.own_values(newest)
        elif asking := view.asking(newest):
            names = ", ".join(call.name for call in asking.open_calls)
            task = names or ("waiting for a person" if asking.waits else "")
            row.value = in_one_line(task) if task else f"the LM is {task_of(asking)}"
        elif not graph.outcome:
            row.value = ", ".join(source.by for source in newest.sources.values() if source.is_open)
    return row


# --- fields -------------------------------------------------------------------------------------


def _field_rows(
    view: RunView, step: Step, guides: Guides, now: float
) -> Iterator[tuple[Source | None, ViewRow]]:
    """Yield a source and its row for each field of a step, and for each parameter of the field's
    function. A field without a recorded source has None as its source."""
    sources = view.sources(step)
    plans = {} if step.node_type is None else plan_of(step.node_type).fields
    for name in plans or dict.fromkeys(name for name, _ in sources):
        source = sources.get((name, ""))
        parameter_sources = [
            parameter_source
            for (field, route), parameter_source in sources.items()
            if field == name and route
        ]
        row = ViewRow(guides, "field", name=name, dim=step.resumed, block=id(step), field=name)
        if source is not None:
            _describe_source(view, row, source, now)
            if source.state == "failed" and step.is_complete:
                row.note += " · its default is used"
        elif name in plans:
            _describe_field(view, step, plans[name], row, parameter_sources)
        yield source, row
        for parameter_source in sorted(
            parameter_sources, key=lambda source: len(source.place.parameters)
        ):
            *outer, parameter = parameter_source.place.parameters
            below = ViewRow(guides, "field", name=f"{'  ' * len(outer)}<- {parameter}")
            below.block, below.field = id(step), name
            _describe_source(view, below, parameter_source, now)
            yield parameter_source, below


def _describe_source(view: RunView, row: ViewRow, source: Source, now: float) -> None:
    """Set the state, the value and the note of a row from the source of its field."""
    state = row.state = view.state(source)
    row.dim = source.resumed
    is_going = source.since is not None and state == "going"
    parts = [describe_duration(now - source.started if is_going else source.took)]
    parts += describe_spending(sum((question.paid for question in source.asked), NOTHING_USED))
    source_name = in_one_line(source.by[:1000])
    if source.origin is not None:
        parts = [f"recalled{view.origin(source)}"]
    elif source.gate is not None:
        parts.insert(0, "answered" if state == "done" else "waits for an answer")
        row.value = source_name
    else:
        total = view.items(source)
        item_count = f", {count(total, 'item')}" if state == "done" and total is not None else ""
        parts.insert(0, f"{source_name}{item_count}")
        row.value = _progress(source.items_done, total)
    if state == "done":
        row.value = view.source_value(source)
    elif state == "failed" and source.error is not None:
        row.value = error_of(source)
    elif state == "cancelled":
        parts = ["" if source.gate is not None else source_name, "cancelled"]
    if source.resumed:
        parts.append("from before")
    row.note = " · ".join(filter(None, parts))


def _describe_field(
    view: RunView, step: Step, plan: FieldPlan, row: ViewRow, parameter_sources: Sequence[Source]
) -> None:
    """Set the state, the value and the note of a row whose field has no recorded source."""
    node, previous_type = step.node, step.before and step.before.node_type
    called = "" if plan.call is None else plan.call.name
    loop = step.fill_loop
    if loop is not None and loop.field_name == plan.name:
        row.state = "coming" if node is None or not step.is_complete else "done"
        row.value, row.note = calls_text(loop), "LM"
        return
    if node is None or plan.name not in node.__dict__:
        row.state = "coming"
        if waits := [source.by for source in parameter_sources if source.is_open]:
            row.note = f"{called} waits for {', '.join(waits)}"
        elif plan.fills == "source":
            row.note = called or plan.kind
        elif step.fill is not None or (
            previous_type is not None and not plan_of(previous_type).written
        ):
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


def _progress(done: float, total: float | None) -> str:
    if not total:
        return f"{done:,g} done" if done else ""
    full = max(0, min(_BAR, int(_BAR * done / total)))
    return f"{'━' * full}{'─' * (_BAR - full)} {done:,g}/{total:,g}"
