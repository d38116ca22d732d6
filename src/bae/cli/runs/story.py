"""The story of a run as lines for a terminal: a heading, its nodes with their fields, and how it
came out. `bae.journal.report` tells it; this puts it into words and colours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from bae.cli.runs.listing import STYLES
from bae.cli.runs.rows import ITEMS, NODES
from bae.cli.runs.wording import long, spent, when
from bae.cli.texts import WITHHELD, cut, in_one_line
from bae.journal.node_codec import is_node
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.journal.provenance import JudgedAnswer, Provenance
    from bae.journal.report import GraphReport, NodeReport, RunReport

CUT: Final = 100
"""Characters after which a value is cut where there is no terminal to tell how wide it is."""
_LEAST: Final = 20
"""Characters that a value has in any case."""
_ITEM: Final = re.compile(r"\[(\d+)\](?=/|$)")


def heading_of(told: RunReport) -> Iterator[Text]:
    """Which run it is, when it ran and what it used."""
    info, status = told.info, told.timeline.status
    head = Text(f"{in_one_line(info.graph)}, run {in_one_line(info.run_id)}: ", style="bold")
    yield head.append(status, style=STYLES[status])
    so_far = " so far" if status in ("running", "waiting") else ""
    lasted = f"lasted {long(told.seconds)}{so_far}"
    yield Text(f"  started {when(info.started)}, {lasted}", style="dim")
    if info.parent:
        yield Text(f"  forked from {in_one_line(info.parent)}", style="dim")
    if told.usage != Usage():
        yield Text(f"  {in_one_line(spent(told.usage))}", style="dim")
    for resumed in told.resumed:
        yield Text(f"  resumed {when(resumed.at)}", style="dim")
        for change in resumed.changes:
            yield from (
                Text(f"    {in_one_line(line)}", style="dim") for line in change.splitlines()
            )


def story_of(told: RunReport, *, full: bool, width: int | None) -> Iterator[Text]:
    """The nodes of a run, then those of the graphs inside it; lines are cut to `width` unless
    `full` asks for all of it."""
    room = None if full else width or 0
    shown = told.graphs if full else _shown(told.graphs)
    for graph in shown:
        yield Text(f"\n  in {in_one_line(graph.path)}" if graph.path else "", style="bold")
        indent = "    " if graph.path else ""
        first, left_out, last = (graph.nodes, 0, ()) if full else _ends(graph.nodes)
        for node in first:
            yield from _node(node, indent, room)
        if left_out:
            yield Text(f"{indent}  … {left_out} more nodes: --full shows them", style="dim")
        for node in last:
            yield from _node(node, indent, room)

    if len(shown) < len(told.graphs):
        left_out = len(told.graphs) - len(shown)
        said = f"{left_out} more graph{'' if left_out == 1 else 's'} inside"
        yield Text(f"\n  … {said}, for other items or nodes: --full shows them", style="dim")


def _ends(nodes: Sequence[NodeReport]) -> tuple[Sequence[NodeReport], int, Sequence[NodeReport]]:
    """The first and the last of many nodes, and how many are between them."""
    if len(nodes) <= NODES:
        return nodes, 0, ()
    half = NODES // 2
    return nodes[:half], len(nodes) - 2 * half, nodes[-half:]


def _shown(graphs: Sequence[GraphReport]) -> list[GraphReport]:
    """Without the graphs that ran for further items of a map, but for a few that are not done, and
    without those inside nodes that are left out."""
    found: list[GraphReport] = []
    unfinished = 0
    left_out: dict[str, range] = {}  # the steps that are, by path
    for graph in graphs:
        first, _, last = _ends(graph.nodes)
        if last:
            left_out[graph.path] = range(first[-1].step + 1, last[0].step)
        if any(step in left_out.get(path, ()) for path, step in _around(graph.path)):
            continue
        late = any(int(index) >= ITEMS for index in _ITEM.findall(graph.path))
        if late and not all(node.whole for node in graph.nodes):
            unfinished += 1
            late = unfinished > ITEMS
        if not late:
            found.append(graph)
    return found


def _around(path: str) -> Iterator[tuple[str, int]]:
    """The paths of the graphs around one, and the step of each that it belongs to."""
    parts = path.split("/") if path else []
    for index, part in enumerate(parts):
        step = part.partition(":")[0]
        if step.isdecimal():
            yield "/".join(parts[:index]), int(step)


def outcome_of(told: RunReport, journal: str | None) -> Iterator[Text]:
    """How a run came out, and the command to go on with it, in the file of its journal; None where
    it cannot go on there."""
    from bae.cli.loading import is_configured
    from bae.cli.running.commands_to_copy import CommandLine

    info, status = told.info, told.timeline.status
    match status:
        case "ended":
            yield Text(f"ended at {told.ended_at}" if told.ended_at else "ended", style="green")
        case "waiting":
            for gate in info.waiting:
                answered = " (answered)" if gate.answered else ""
                said = f"waits at {gate.address}: {gate.question}{answered}"
                yield Text(in_one_line(said), style="yellow")
        case "failed":
            yield Text(f"failed: {in_one_line(info.error)}", style="red")
        case "running":
            by = f" by {info.owner}" if info.owner else ""
            yield Text(in_one_line(f"running{by}"))
        case _:
            yield Text(status, style=STYLES[status])
    if journal is None or status in ("ended", "running"):
        return
    asks = status == "waiting" and not any(gate.answered for gate in info.waiting)
    said = CommandLine(None if is_configured() else "MODULE", journal)
    line = said.answer_with(info.run_id, None, None) if asks else said.resume(info.run_id)
    yield Text(f"{'answer' if asks else 'go on'} with: {in_one_line(line)}", style="dim")


def _node(node: NodeReport, indent: str, room: int | None) -> Iterator[Text]:
    head = Text(f"{indent}{node.step:>3}  ").append(node.name, style="bold")
    if not node.whole:
        head.append("  (not whole yet)", style="yellow")
    made = _made(node)
    if made:
        head.append(f"   <- {in_one_line(made)}", style="dim")
    yield head
    for call in node.calls:
        yield from _call(call, f"{indent}       ", full=room is None)
    shown = [field for field in node.fields if field.state != "absent"]
    longest = max((len(field.field) for field in shown), default=0)
    for field in shown:
        yield _field(field, f"{indent}       {field.field.ljust(longest)}  ", room)


def _made(node: NodeReport) -> str:
    """How a node came to be, as far as the LM had a hand in it."""
    parts: list[str] = []
    if node.chosen_among:
        parts.append(f"chosen among {', '.join(n or 'the end' for n in node.chosen_among)}")
    if node.filled_in is not None:
        parts.append(f"filled in {long(node.filled_in)}")
    if node.usage != Usage():
        parts.append(spent(node.usage))
    if node.forked_from:
        changed = ", ".join(node.changed) or "nothing"
        parts.append(f"forked from {node.forked_from} with {changed} changed")
    return "; ".join(parts)


def _call(call: JudgedAnswer, indent: str, *, full: bool) -> Iterator[Text]:
    """What went wrong with an answer, or all of it where all is asked for."""
    if call.verdict == "used":
        yield Text(
            f"{indent}{in_one_line(call.by)} asked an LM: {in_one_line(spent(call.usage))}",
            style="dim",
        )
        return
    if call.verdict == "restarted":
        said = f"{call.by}, sent again: {'; '.join(call.errors)}"
        yield Text(f"{indent}{in_one_line(said)}", style="yellow")
        return
    if call.verdict == "valid" and not full:
        return
    said = f"{call.by}, answer {call.number}: {call.verdict}"
    if call.errors:
        errors = "; ".join(call.errors)
        said += f": {errors if full else cut(errors, CUT)}"
    yield Text(f"{indent}{in_one_line(said)}", style="" if call.verdict == "valid" else "yellow")
    if full:
        for title, text in (("asked", call.asked), ("answer", call.answer)):
            yield Text(f"{indent}  {title}:", style="dim")
            lines = ("(not kept)" if text is None else text).splitlines()
            yield from (Text(f"{indent}    {in_one_line(line)}") for line in lines)


def _field(field: Provenance, start: str, room: int | None) -> Text:
    source = in_one_line(_source(field))
    value = in_one_line(_value(field))
    if room is not None:
        source = cut(source, CUT)
        left = CUT if room == 0 else room - len(start) - (len(source) + 6 if source else 0)
        value = cut(value, max(left, _LEAST))
    line = Text(start)
    line.append(value)
    if source:
        style = {"failed": "red", "waiting": "yellow"}.get(field.state, "cyan")
        line.append(f"{'   ' if value else ''}<- {source}", style=style)
    line.rstrip()
    return line


def _source(field: Provenance) -> str:
    """Where the value came from."""
    took = f", {long(field.seconds)}" if field.seconds and field.seconds >= 0.001 else ""
    match field.state:
        case "failed":
            return f"{field.by} failed: {field.error}"
        case "begun":
            return f"{field.by} has begun"
        case "waiting":
            return f"waits for a person: {field.by}"
        case _:
            pass
    match field.source:
        case "recall":
            return f"recalled from {field.by}"
        case "gate":
            return f"answered: {field.by}{took}"
        case "map":
            return f"{field.by} for {len(field.items)} items{took}"
        case "dep":
            return f"{field.by}{took}" if field.origin is None else f"{field.by}, called before"
        case "lm":
            return "LM"
        case "caller":
            return "given"
        case "body":
            return f"returned by {field.by.removesuffix('.__call__')}"
        case "fork":
            return f"changed in the fork from {field.by}"
        case _:
            return field.source


def _value(field: Provenance) -> str:
    match field.kept:
        case "value":
            said = f"{field.value['type']} " if is_node(field.value) else ""
            shown: Any = field.value["fields"] if is_node(field.value) else field.value
            return said + json.dumps(shown, ensure_ascii=False)
        case "live":
            return "(live)"
        case "withheld":
            return WITHHELD
        case _:
            return ""
