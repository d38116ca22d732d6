"""The run as lines, one for each thing that happens, where there is no terminal or one that cannot
move its cursor: a log file, a pipe, an editor."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from rich.console import Console

from bae.cli.live.display import Display
from bae.cli.live.drawing import fitted
from bae.cli.live.rows import name_of
from bae.cli.live.view import RunView
from bae.cli.wording import count, in_lines, in_one_line, line_of, spent, took
from bae.observers import ObservedRun
from bae.plan import plan_of
from bae.records import Record
from bae.run_tree import Change
from bae.secrets import may_show
from bae.work import GraphRun, Item, Question, Source, Step, Work

_NAMES: Final = 16
"""How wide the column of names is."""
_LONGEST: Final = 200
"""Cells after which a line is cut where it is not for a terminal."""
_PROGRESS: Final = 1.0
"""Seconds between two lines about the items of a map."""
_ITEMS: Final = 10
"""Items of a map whose graphs are written of: the first ones."""
Line = tuple[str, ...]
"""What a line is about, what there is to say, and then facts that are never cut off."""


class PlainLines(Display):
    """Writes a line for each thing that happens, with the seconds since the run began."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progressed = 0.0
        self._failed = ""

    def say(self, text: str) -> None:
        """Write a line about something beside the run."""
        self._put(self.signs.said(in_lines(text, 4)))

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take in a record, and write of it."""
        with self.lock:
            view = self.add(run, record)
            if record.path and _is_far(record.path):
                return
            for change, work in view.changes:
                line = self._line(view, change, work)
                if line is not None:
                    self._write(line, record.at - view.since, record.path)

    def _write(self, line: Line, seconds: float, path: str) -> None:
        name, said, *after = line
        where = f"{_inside(path)}  " if path else ""
        said = f"{max(0.0, seconds):6.2f} s  {where}{name:<{_NAMES}}  {said}"
        longest = self.console.width if self.console.is_terminal else _LONGEST
        said = self.signs.said(in_one_line(said.rstrip()))
        # What is cut is the value, and never how long it took.
        facts = ", ".join(filter(None, after))
        facts = self.signs.said(in_one_line(f"  ({facts})" if facts else ""))
        self._put(fitted(said, max(1, longest - len(facts)), self.signs.dots) + facts)

    def _put(self, line: str) -> None:
        file = self.console.file
        with suppress(OSError, ValueError):  # its reader is gone, which is nothing to the run
            file.write(f"{line}\n")
            file.flush()

    def _line(self, view: RunView, change: Change, work: Work) -> Line | None:
        """The name and the text of a line; None of what is not worth one."""
        match work:
            case Question():
                return self._asked(view, change, work)
            case Source():
                return self._sourced(view, change, work)
            case Step() if change == "whole":
                said = view.own_values(work)
                if work.fill is None:
                    return work.name, said
                return work.name, said, took(work.fill.took), *spent(view.usage(work))
            case Item() if change == "ended" and work.state == "done":
                return self._progress(view, work)
            case GraphRun() if change == "started" and not work.path:
                if view.history.changes and view.history.changes[-1].at == work.since:
                    return "resumed", f"{count(view.history.whole_steps, 'node')} from before"
            case GraphRun() if change == "ended" and work.outcome not in ("", "ended"):
                error = view.error(work)
                # Where the line of a dependency has it, how the command ends has it again.
                return None if self._failed and self._failed in error else (work.outcome, error)
            case _:
                pass
        return None

    def _asked(self, view: RunView, change: Change, question: Question) -> Line | None:
        kind, cls = question.asker.kind, question.asker.node
        match change:
            case "started" if kind == "choice":
                return "  LM", f"is choosing from {' | '.join(map(name_of, question.offered))}"
            case "started" if kind == "fill":
                plain = [plan.name for plan in plan_of(cls).plain]
                return ("  LM", f"is filling {', '.join(plain)}") if plain else None
            case "answered" if question.answers[-1].attempt.verdict != "valid":
                attempt = question.answers[-1].attempt
                quoted = may_show(view.history.met, following=True)
                errors = "; ".join(attempt.errors) if quoted else ""
                after = f": {errors}" if errors else ""
                return "  LM", f"answer {attempt.number} was {attempt.verdict}{after}"
            case "restarted":
                restart = question.restarts[-1]
                wait = took(restart.wait)
                said = f"is asked again{f' in {wait}' if wait else ''}"
                return "  LM", f"{said} after {line_of(restart.error)}"
            case "ended" if question.state == "done":
                after = took(question.took), *spent(question.usage)
                if question.chosen is not None:
                    return "  LM chose", name_of(question.chosen), *after
                if kind == "fill" and plan_of(cls).after:  # its maps are yet to come
                    return "  LM filled", cls.__name__, *after
            case _:
                pass
        return None

    def _sourced(self, view: RunView, change: Change, source: Source) -> Line | None:
        place = source.place
        match change:
            case "started" if source.kind != "gate":
                each = " for each item," if source.kind == "map" else ""
                field = f"{place.node}.{place.field}{place.parameter}"
                return f"  {source.by}", f"called{each} for {field}"
            case "waiting":
                return "  waits for", f"an answer to {source.by!r}"
            case "ended" if source.kind == "recall" and source.origin is not None:
                found = view.history.step(source.origin.path, source.origin.step)
                name = "" if found is None else f" from {found.name}"
                return (
                    "  recalled",
                    f"{place.field}{place.parameter}={view.source_value(source)}{name}",
                )
            case "ended" if source.state in ("done", "failed"):
                by = "  answered" if source.kind == "gate" else f"  {source.by}"
                if source.state == "done":
                    return by, view.source_value(source), took(source.took)
                self._failed = view.error(source)
                return by, f"failed: {self._failed}"
            case _:
                return None

    def _progress(self, view: RunView, item: Item) -> Line | None:
        """How far a map is, now and then."""
        source, at = item.source, item.ended or 0.0
        if at - max(self._progressed, source.started) < _PROGRESS:
            return None
        self._progressed = at
        total = view.items(source)
        of = "" if total is None else f" of {total:,}"
        return f"  {source.by}", f"{source.items_done:,}{of} items done"


def _inside(path: str) -> str:
    """Where in the run a graph inside it runs: `summaries[3]`."""
    parts = [part.partition(":")[2].partition(".")[2] or part for part in path.split("/")]
    return "/".join(parts)


def _is_far(path: str) -> bool:
    """Whether a graph is that of an item which is not among the first."""
    numbers = [part[part.rindex("[") + 1 : -1] for part in path.split("/") if part.endswith("]")]
    return any(number.isdecimal() and int(number) >= _ITEMS for number in numbers)
