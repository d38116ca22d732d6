"""The display of a run as lines, one for each event. It is for a log file, a pipe, an editor, or a
terminal without cursor movement."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.text import Text

from bae.cli.live.display import Display, RunView, error_of, names_of, task_of
from bae.cli.live.drawing import cut_cells
from bae.cli.wording import count, describe_duration, describe_spending, in_one_line, line_of
from bae.observers import ObservedRun
from bae.plan import plan_of
from bae.records import Record
from bae.run_tree import WorkChange
from bae.sources import find_source_kind
from bae.work import GraphRun, Item, LMQuestion, Source, Step, ToolRun, Work

_NAMES: Final = 16
"""Cells of the column with the subjects of lines."""
_LONGEST: Final = 200
"""Maximum cells of a line outside a terminal."""
_PROGRESS: Final = 1.0
"""Minimum seconds between two lines about the progress of a map or a tool call."""
_ITEMS: Final = 10
"""If a map runs a graph for each item, only the graphs of the first items have lines."""
_ITEM: Final = re.compile(r"(?<!\))\[(\d+)\]")
"""Matches the index of a map item in the path of a graph."""
_TOOL: Final = re.compile(r"[^/]*\(([^()]*)\)\[\d+\]")
"""Matches a tool call in the path of a graph. The line shows only the part in parentheses."""
LineParts = tuple[str, ...]
"""The parts of a line: its subject, its text, and facts such as the duration. Facts are never
cut."""


class PlainLines(Display):
    """Prints a line for each event, with the seconds since the run began."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progressed = 0.0
        self._failed: BaseException | None = None

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Add a record of the run, and print a line for each event that needs a line."""
        with self.lock:
            view = self.add(run, record)
            if any(int(item) >= _ITEMS for item in _ITEM.findall(record.path)):
                return
            for change, work in view.changes:
                line = self._line(view, change, work)
                if line is not None:
                    self._write(line, record.at - view.since, record.path)

    def _write(self, line: LineParts, seconds: float, path: str) -> None:
        name, text, *after = line
        where = re.sub(r"[^/.]*\.", "", path) + "  " if path else ""  # such as `summaries[3]`
        where = _TOOL.sub(r"\1", where)
        text = f"{max(0.0, seconds):6.2f} s  {where}{name:<{_NAMES}}  {text}"
        text = self.signs.writable(in_one_line(text.rstrip()))
        # Cut the value, never the duration.
        facts = ", ".join(filter(None, after))
        facts = self.signs.writable(in_one_line(f"  ({facts})" if facts else ""))
        longest = self.console.width if self.console.is_terminal else _LONGEST
        text = cut_cells(text, max(1, longest - len(facts)), self.signs.dots)
        self.console.print(Text(text + facts), soft_wrap=True)

    def _line(self, view: RunView, change: WorkChange, work: Work) -> LineParts | None:
        """Return the parts of the line about a change, or None if the change has no line."""
        match work:
            case LMQuestion():
                return _question_line(view, change, work)
            case Source():
                return self._source_line(view, change, work)
            case ToolRun():
                return self._call_line(view, change, work)
            case Step() if change == "complete":
                after = (
                    ()
                    if work.fill is None
                    else (describe_duration(work.fill.took), *describe_spending(view.usage(work)))
                )
                return work.name, view.own_values(work), *after
            case Item() if change == "ended" and work.state == "done":
                return self._item_line(view, work)
            case GraphRun() if change == "started" and not work.path:
                if view.history.changes and view.history.changes[-1].at == work.since:
                    return "resumed", f"{count(view.history.complete_steps, 'node')} from before"
            case GraphRun() if change == "ended" and work.outcome not in ("", "ended"):
                # If the error of a dependency or tool has a line, do not print the error again.
                is_known = self._failed is not None and self._failed in _walk_causes(work.error)
                return None if is_known else (work.outcome, error_of(work))
            case _:
                pass
        return None

    def _source_line(self, view: RunView, change: WorkChange, source: Source) -> LineParts | None:
        place = source.place
        match change:
            case "started" if began := find_source_kind(source.kind).began:
                field = f"{place.node}.{place.field}{place.parameter}"
                return f"  {source.by}", f"{began} for {field}"
            case "waiting":
                return "  waits for", f"an answer to {source.by!r}"
            case "ended" if source.origin is not None:
                value = f"{place.field}{place.parameter}={view.source_value(source)}"
                return "  recalled", f"{value}{view.origin(source)}"
            case "ended" if source.state == "failed":
                self._failed = source.error
                return f"  {source.by}", f"failed: {error_of(source)}"
            case "ended" if source.gate is not None and source.gate.parameter:
                return None  # the line of the tool call follows
            case "ended" if source.state == "done":
                subject = source.by if source.gate is None else "answered"
                return f"  {subject}", view.source_value(source), describe_duration(source.took)
            case _:
                return None

    def _call_line(self, view: RunView, change: WorkChange, call: ToolRun) -> LineParts | None:
        match change:
            case "started":
                return "  LM calls", view.call(call)
            case "reported" if call.report is not None:
                done, at = call.report.done, call.report.at
                if at - max(self._progressed, call.started) < _PROGRESS:
                    return None
                self._progressed = at
                total = "" if call.report.total is None else f" of {call.report.total:,g}"
                how_far = "" if done is None else f"{done:,g}{total} "
                return f"  {call.name}", f"{how_far}{view.call_result(call)}"
            case "ended" if call.state == "failed":
                self._failed = call.error
                return f"  {call.name}", f"failed: {error_of(call)}"
            case "ended" if call.state == "done" and call.tool_error is not None:
                call_text = "" if call.was_called else f"{view.call(call)}: "
                return (
                    f"  {call.name}",
                    f"{call_text}error: {view.call_result(call)}",
                    describe_duration(call.took),
                )
            case "ended" if call.state == "done":
                equal_call = f"as {call.reused}" if call.reused else ""
                return (
                    f"  {call.name}",
                    view.call_result(call),
                    describe_duration(call.took),
                    equal_call,
                )
            case _:
                return None

    def _item_line(self, view: RunView, item: Item) -> LineParts | None:
        """Return a line about the progress of a map. Return None if the last line is too recent."""
        source, at = item.source, item.ended or 0.0
        if at - max(self._progressed, source.started) < _PROGRESS:
            return None
        self._progressed = at
        total = view.items(source)
        of = "" if total is None else f" of {total:,}"
        return f"  {source.by}", f"{source.items_done:,}{of} items done"


def _walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__


def _question_line(view: RunView, change: WorkChange, question: LMQuestion) -> LineParts | None:
    kind, cls = question.asker.kind, question.asker.node
    match change:
        case "started" if kind in ("choice", "fill") and (task := task_of(question)):
            return "  LM", f"is {task}"
        case "answered" if question.answers[-1].attempt.verdict != "valid":
            attempt = question.answers[-1].attempt
            errors = "; ".join(attempt.errors) if view.may_quote else ""
            after = f": {errors}" if errors else ""
            return "  LM", f"answer {attempt.number} was {attempt.verdict}{after}"
        case "refused" if question.loop is not None:
            reply = question.loop.refusals[-1]
            return "  LM", f"answer {reply.number} was {view.refusal(reply)}"
        case "restarted":
            restart = question.restarts[-1]
            wait = describe_duration(restart.wait)
            event = f"is asked again{f' in {wait}' if wait else ''}"
            if restart.model:
                event = f"is now {in_one_line(restart.model)},"
            return "  LM", f"{event} after {line_of(restart.error)}"
        case "ended" if question.state == "done":
            after = describe_duration(question.took), *describe_spending(question.usage)
            if question.chosen is not None:
                return "  LM chose", names_of([question.chosen]), *after
            if kind == "fill" and plan_of(cls).after:  # its maps follow
                return "  LM filled", cls.__name__, *after
        case _:
            pass
    return None
