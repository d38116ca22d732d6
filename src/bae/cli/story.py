"""Print runs for `bae runs`: a list of runs, or one run with its heading, nodes, fields and
outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from time import time
from typing import Any, Final

from rich.text import Text

from bae.cli.outcome import short_id
from bae.cli.printing import Column, out, print_table
from bae.cli.timeline import ITEMS, NODES
from bae.cli.wording import WITHHELD, count, cut_text, describe_spending, in_one_line
from bae.files import with_placeholders
from bae.journal.node_codec import is_node
from bae.journal.provenance import JudgedAnswer, MadeCall, Provenance, ToolRound, long, when
from bae.journal.report import GraphReport, NodeReport, RunReport
from bae.journal.stored_runs import RunInfo
from bae.sources import SourceFacts, find_source_kind
from bae.usage import Usage

STYLES: Final = {
    "queued": "blue",
    "ended": "green",
    "failed": "red",
    "waiting": "yellow",
    "interrupted": "magenta",
    "running": "cyan",
    "cancelled": "dim",
}
"""The color of each status."""
_CUT: Final = 100
"""Maximum characters of a value if the output is not a terminal."""
CALLS: Final = 10
"""Maximum number of tool calls shown for a node."""
_LEAST: Final = 20
"""Minimum characters of a value, however narrow the terminal is."""
_GRAPHS: Final = 8
"""Number of graphs that are always shown, including the run itself."""


# --- a list of runs -----------------------------------------------------------------------------


def print_runs(infos: Sequence[RunInfo]) -> None:
    """Print a table of runs. If the output is not a terminal, ids are complete and times are
    absolute, for scripts."""
    console, now = out(), time()
    rows: list[list[Text]] = []
    for info in infos:
        status = info.standing(now)
        run_id, began = info.run_id, when(info.started)
        if console.is_terminal:
            run_id, began = short_id(run_id), _describe_age(info.started, now)
        cells = [run_id, info.graph, status, began, long(info.lasted(now)), _describe_run(info)]
        styles = ["", "", STYLES[status], "", "", "dim"]
        rows.append([Text(in_one_line(c), s) for c, s in zip(cells, styles, strict=True)])
    titles = ("RUN", "GRAPH", "STATUS", "STARTED", "LASTED", "")
    print_table(console, [Column(title, right=False) for title in titles], rows)


def _describe_age(at: float, now: float) -> str:
    seconds = max(0.0, now - at)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return f"{int(seconds)} s ago"


def _describe_run(info: RunInfo) -> str:
    """Describe a run by its open questions, its error, its parent, or the process that works on
    it."""
    if info.waiting and info.status == "waiting":
        return "; ".join(
            f"{gate.place}: {gate.question}{' (answered)' if gate.answered else ''}"
            for gate in info.waiting
        )
    if info.error and info.status == "failed":
        return info.error
    if info.parent:
        return f"forked from {info.parent}"
    return f"by {info.owner}" if info.status == "running" and info.owner else ""


# --- one run ------------------------------------------------------------------------------------


def heading_lines(report: RunReport) -> Iterator[Text]:
    """Yield the heading of a run: name, status, times, usage, files and resumes."""
    info, status = report.info, report.timeline.status
    head = Text(f"{in_one_line(info.graph)}, run {in_one_line(info.run_id)}: ", style="bold")
    yield head.append(status, style=STYLES[status])
    so_far = " so far" if status in ("running", "waiting") else ""
    yield _dim(f"  started {when(info.started)}, lasted {long(report.seconds)}{so_far}")
    if info.parent:
        yield _dim(f"  forked from {info.parent}")
    if info.thread is not None:
        yield _dim(f"  thread {in_one_line(info.thread)}")
    if info.metadata:
        yield _dim(f"  metadata {in_one_line(json.dumps(info.metadata, ensure_ascii=False))}")
    if report.usage != Usage():
        yield _dim(f"  {describe_usage(report.usage)}")
    for file in report.files:
        yield _dim(f"  {in_one_line(file.about)}")
    for resumed in report.resumed:
        yield _dim(f"  resumed {when(resumed.at)}")
        for change in resumed.changes:
            yield from (_dim(f"    {line}") for line in change.splitlines())


def node_lines(report: RunReport, *, full: bool, width: int | None) -> Iterator[Text]:
    """Yield lines for the nodes of a run, then for the nodes of its nested graphs. Unless `full` is
    true, some nodes and graphs are left out, and values are cut to fit `width`."""
    room = None if full else width or 0
    graphs = report.graphs if full else _select_graphs(report.graphs)
    for graph in graphs:
        yield Text(f"\n  in {in_one_line(graph.path)}" if graph.path else "", style="bold")
        indent = "    " if graph.path else ""
        first, left_out, last = (graph.nodes, 0, ()) if full else _split_ends(graph.nodes)
        for node in first:
            yield from _node_lines(node, indent, room)
        if left_out:
            yield _dim(f"{indent}  … {left_out} more nodes: --full shows them")
        for node in last:
            yield from _node_lines(node, indent, room)
    if len(graphs) < len(report.graphs):
        left_out = len(report.graphs) - len(graphs)
        text = f"{left_out} more graph{'' if left_out == 1 else 's'} inside"
        yield Text(f"\n  … {text}: --full shows them", style="dim")


def outcome_lines(report: RunReport) -> Iterator[Text]:
    """Yield lines for the outcome of a run, or for the gates that it waits at."""
    info, status = report.info, report.timeline.status
    match status:
        case "ended":
            yield Text(f"ended at {report.ended_at}" if report.ended_at else "ended", style="green")
        case "waiting":
            for gate in info.waiting:
                answered = " (answered)" if gate.answered else ""
                text = f"waits at {gate.address}: {gate.question}{answered}"
                yield Text(in_one_line(text), style="yellow")
        case "failed":
            yield Text(f"failed: {in_one_line(info.error)}", style="red")
        case "running":
            yield Text(in_one_line(f"running by {info.owner}" if info.owner else "running"))
        case _:
            yield Text(status, style=STYLES[status])


def describe_usage(usage: Usage) -> str:
    """Describe the usage of LM calls in one line."""
    parts = [count(usage.calls, "LM call"), *describe_spending(usage)]
    parts += ["cost unknown"] if usage.cost is None else []
    return ", ".join([*parts, *usage.models])


def _dim(text: str) -> Text:
    return Text(in_one_line(text), style="dim")


def _split_ends(
    nodes: Sequence[NodeReport],
) -> tuple[Sequence[NodeReport], int, Sequence[NodeReport]]:
    """Return the first nodes, the number of nodes to leave out, and the last nodes."""
    if len(nodes) <= NODES:
        return nodes, 0, ()
    half = NODES // 2
    return nodes[:half], len(nodes) - 2 * half, nodes[-half:]


def _select_graphs(graphs: Sequence[GraphReport]) -> Sequence[GraphReport]:
    """Return the run itself, its first nested graphs, and a few later graphs that are
    unfinished."""
    rest = [graph for graph in graphs[_GRAPHS:] if not all(node.whole for node in graph.nodes)]
    return [*graphs[:_GRAPHS], *rest[:ITEMS]]


def _node_lines(node: NodeReport, indent: str, room: int | None) -> Iterator[Text]:
    head = Text(f"{indent}{node.step:>3}  ").append(node.name, style="bold")
    if not node.whole:
        head.append("  (not complete yet)", style="yellow")
    if making := _describe_making(node):
        head.append(f"   <- {in_one_line(making)}", style="dim")
    yield head
    for call in node.calls:
        yield from _answer_lines(call, f"{indent}       ", full=room is None)
    fields = [field for field in node.fields if field.state != "absent"]
    longest = max((len(field.field) for field in fields), default=0)
    for field in fields:
        yield _make_field_line(field, f"{indent}       {field.field.ljust(longest)}  ", room)
        if field.is_calls and room is not None:
            yield from _call_lines(field.calls, f"{indent}         ", room)
    listed = {call.place for field in fields for call in field.calls}
    for round_ in node.rounds:
        if room is None:
            yield from _round_lines(round_, f"{indent}       ")
        elif not any(call.place in listed for call in round_.calls):
            yield from _call_lines(round_.calls, f"{indent}         ", room)


def _describe_making(node: NodeReport) -> str:
    """Describe how a node was made: by a choice, a fill, tool rounds or a fork."""
    parts: list[str] = []
    if node.chosen_among:
        parts.append(f"chosen among {', '.join(n or 'the end' for n in node.chosen_among)}")
    if node.filled_in is not None:
        parts.append(f"filled in {long(node.filled_in)}")
    if node.rounds:
        parts.append(count(len(node.rounds), "round"))
    if node.usage != Usage():
        parts.append(describe_usage(node.usage))
    if node.forked_from:
        changed = ", ".join(node.changed) or "nothing"
        parts.append(f"forked from {node.forked_from} with {changed} changed")
    return "; ".join(parts)


def _answer_lines(call: JudgedAnswer, indent: str, *, full: bool) -> Iterator[Text]:
    """Yield lines for an LM answer. Without `full`, the lines have the error of an invalid answer,
    and the usage of a call by a body. With `full`, the prompt and the answer follow."""
    if call.verdict == "used":
        yield _dim(f"{indent}{call.by} asked an LM: {describe_usage(call.usage)}")
        return
    if call.verdict == "valid" and not full:
        return
    errors = "; ".join(call.errors)
    if call.verdict == "restarted":
        again = f"{call.model} was asked after" if call.model else "sent again"
        message = f"{call.by}, {again}: {errors}"
    else:
        message = f"{call.by}, answer {call.number}: {call.verdict}"
        message += f" by {call.model}" if full and call.model else ""
        message += f": {errors if full else cut_text(errors, _CUT)}" if errors else ""
    yield Text(f"{indent}{in_one_line(message)}", style="" if call.verdict == "valid" else "yellow")
    if full and call.verdict != "restarted":
        thinking = [("thinking", call.thinking)] if call.thinking else []
        for title, text in (("asked", call.asked), *thinking, ("answer", call.answer)):
            yield _dim(f"{indent}  {title}:")
            lines = ("(not kept)" if text is None else text).splitlines()
            yield from (Text(f"{indent}    {in_one_line(line)}") for line in lines)


def _call_lines(calls: Sequence[MadeCall], indent: str, room: int) -> Iterator[Text]:
    """Yield a line for each tool call. Of many calls, show only the first and the last."""
    half = CALLS // 2
    shown_calls = calls if len(calls) <= CALLS else (*calls[:half], *calls[-half:])
    for call in shown_calls:
        if len(calls) > CALLS and call is shown_calls[half]:
            yield _dim(f"{indent}… {len(calls) - len(shown_calls)} more calls: --full shows them")
        yield _make_call_line(call, indent, room)


def _make_call_line(call: MadeCall, indent: str, room: int) -> Text:
    took = f"   {long(call.seconds)}" if call.seconds >= 0.001 else ""
    took += f"   as {call.reused}" if call.reused else ""
    took += f"   {call.person} by a person" if call.person else ""
    line, free = Text(indent), (room or _CUT) - len(indent) - len(took) - 4
    line.append(cut_text(in_one_line(call.text), max(free // 2, _LEAST)), style="cyan")
    style = "" if call.state == "done" else "yellow"
    outcome = cut_text(in_one_line(_describe_outcome(call)), max(free - line.cell_len, _LEAST))
    return line.append(" -> ").append(outcome, style=style).append(took, style="dim")


def _describe_outcome(call: MadeCall) -> str:
    """Return the result of a tool call, or the reason why it has no result."""
    match call.state:
        case "done":
            return json.dumps(with_placeholders(call.result), ensure_ascii=False)
        case "failed":
            return f"error: {call.error}"
        case "waiting":
            return "waits for a person"
        case "begun":
            return "begun, without a result"
        case "asked":
            return "not begun"


def _round_lines(round_: ToolRound, indent: str) -> Iterator[Text]:
    """Yield all lines of a tool round: the LM's text, its calls with arguments and results, and the
    replies of bae."""
    yield Text(f"{indent}{in_one_line(f'{round_.by}, round {round_.number}')}")
    if round_.text:
        yield _dim(f"{indent}  text:")
        yield from (Text(f"{indent}    {in_one_line(line)}") for line in round_.text.splitlines())
    for call in round_.calls:
        took = f", {long(call.seconds)}" if call.seconds else ""
        took += f", {call.person} by a person" if call.person else ""
        yield _dim(f"{indent}  {call.id}: {call.name}{took}")
        yield Text(f"{indent}    {in_one_line(call.text)}", style="cyan")
        is_text = call.state == "done" and isinstance(call.result, str)
        for line in (str(call.result) if is_text else _describe_outcome(call)).splitlines():
            yield Text(f"{indent}    {in_one_line(line)}")
    for reply in round_.told:
        yield Text(f"{indent}  told: {in_one_line(reply)}", style="yellow")


def _make_field_line(field: Provenance, start: str, room: int | None) -> Text:
    source, value = in_one_line(_describe_source(field)), in_one_line(_describe_value(field))
    if room is not None:
        source = cut_text(source, _CUT)
        free = _CUT if room == 0 else room - len(start) - (len(source) + 6 if source else 0)
        value = cut_text(value, max(free, _LEAST))
    line = Text(start).append(value)
    if source:
        style = {"failed": "red", "waiting": "yellow"}.get(field.state, "cyan")
        line.append(f"{'   ' if value else ''}<- {source}", style=style)
    line.rstrip()
    return line


def _describe_source(field: Provenance) -> str:
    """Describe the source of a field's value, or why the field has no value."""
    took = f", {long(field.seconds)}" if field.seconds and field.seconds >= 0.001 else ""
    by_state = {
        "failed": f"{field.by} failed: {field.error}",
        "begun": f"{field.by} has begun",
        "waiting": f"waits for a person: {field.by}",
    }
    by_source = {
        "lm": "LM",
        "default": "default",
        "caller": "given",
        "body": f"returned by {field.by.removesuffix('.__call__')}",
        "fork": f"changed in the fork from {field.by}",
    }
    if field.state in by_state or field.source in by_source:
        return by_state.get(field.state) or by_source[field.source]
    item_count = len(field.items) or len(field.calls)
    source_facts = SourceFacts(
        field.by, item_count, is_repeated=field.origin is not None, took=took
    )
    return find_source_kind(field.source).phrase(source_facts)


def _describe_value(field: Provenance) -> str:
    if field.is_calls and field.calls:
        return ", ".join(dict.fromkeys(call.name for call in field.calls))
    if field.kept != "value":
        return {"live": "(live)", "withheld": WITHHELD}.get(field.kept, "")
    type_prefix = f"{field.value['type']} " if is_node(field.value) else ""
    content: Any = field.value["fields"] if is_node(field.value) else field.value
    return type_prefix + json.dumps(with_placeholders(content), ensure_ascii=False)
