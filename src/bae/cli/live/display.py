"""The base class of all displays. It observes the records of runs, and computes progress, values
and totals. It prints nothing about a run."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from threading import Lock
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Self, cast

from rich.text import Text

from bae.cli.live.drawing import ViewState, signs_for
from bae.cli.wording import (
    WITHHELD,
    call_text,
    count,
    in_lines,
    in_one_line,
    inline_text_of,
    line_of,
    result_text,
    summary_of,
    text_of,
)
from bae.history import History
from bae.plan import plan_of
from bae.secrets import may_show
from bae.usage import Usage
from bae.work import (
    NOTHING_USED,
    GraphRun,
    LMQuestion,
    Source,
    Step,
    ToolLoop,
    ToolRun,
    Work,
)

if TYPE_CHECKING:
    from rich.console import Console

    from bae.observers import ObservedRun
    from bae.records import Record, RoundReplied
    from bae.run_tree import WorkChange

MOST_STEPS: Final = 600
"""Maximum steps of a graph in memory. In a longer graph, steps in the middle are dropped."""
_MOST_TEXTS: Final = 5000
_CALL: Final = 72
"""Maximum characters of a tool call with its arguments."""
_RUNS: Final = 4
"""Maximum runs in memory: the first run, and the newest runs that its bodies started. Runs in
progress are never dropped."""


class Display:
    """A display that shows nothing. Enter the display for the duration of a run, and pass `observe`
    to `bae.observers.observing`."""

    keeps_texts = False
    """Whether to store all streamed text, or only the end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.signs = signs_for(console)
        self.views: dict[ObservedRun, RunView] = {}
        """The first run, and the runs that its bodies started, in order of their start."""
        self.lock = Lock()
        """Protects `views`, because records arrive from several threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the final lines on the screen."""

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Add a record of a run to the display. Any thread may call this method."""
        with self.lock:
            self.add(run, record)

    def add(self, run: ObservedRun, record: Record) -> RunView:
        """Add a record to the view of its run, and return the view. The caller must hold `lock`."""
        view = self.views.get(run)
        if view is None:
            ended = [run for run in [*self.views][1:] if self.views[run].history.run.outcome]
            for old_run in ended[: max(0, len(self.views) + 1 - _RUNS)]:
                del self.views[old_run]
            view = self.views[run] = RunView(run.past, keep_texts=self.keeps_texts)
        view.add(record)
        return view

    def history_of(self, run_id: str) -> History | None:
        """Return the history of a run since its start or last resume. Return None if the run has
        not begun."""
        histories = [view.history for run, view in [*self.views.items()] if run.run_id == run_id]
        return histories[-1] if histories else None

    @property
    def in_thread(self) -> bool:
        """Whether the run belongs to a thread."""
        return any(view.history.turn is not None for view in [*self.views.values()])

    @contextmanager
    def asking(self) -> Generator[None]:
        """Stop drawing while the block asks the user a question."""
        yield

    def say(self, text: str) -> None:
        """Print a line above the display, such as a note that is not about the run."""
        self.console.print(Text(self.signs.writable(in_lines(text, 4)), "dim"), soft_wrap=True)

    def summary(self, usage: Usage | None = None, seconds: float | None = None) -> Text:
        """Summarize the first run in one line: nodes, time and usage. By default, time and usage
        come from the records. Runs that bodies of the first run started are not included."""
        with self.lock:
            view = next(iter(self.views.values()), None) or RunView()
            until = time() if view.history.run.ended is None else view.history.run.ended
            lasted = max(0.0, until - view.since) if view.since else 0.0
            nodes, used = view.history.complete_steps, view.history.usage
        line = summary_of(nodes, lasted if seconds is None else seconds, usage or used)
        return Text(self.signs.writable(line), "dim")


class RunView:
    """One run of a display. If the run is resumed, `past` has its earlier records."""

    def __init__(self, past: Iterable[Record] = (), *, keep_texts: bool = False) -> None:
        self.changes: list[tuple[WorkChange, Work]] = []
        """The changes that the newest record caused."""
        self.history = History(past, keep=MOST_STEPS, keep_texts=keep_texts, on_change=self._note)
        self.printed = -1
        """The number of the last printed step. All earlier steps are printed too. Printed steps are
        no longer redrawn."""
        self._texts: dict[tuple[Work, str, bool], str] = {}

    def add(self, record: Record) -> None:
        """Add the next record of the run."""
        self.changes.clear()
        self.history.add(record)

    def _note(self, change: WorkChange, work: Work) -> None:
        self.changes.append((change, work))

    @property
    def since(self) -> float:
        """The time at which this process started to work on the run."""
        return self.history.lives[-1].start if self.history.lives else 0.0

    @property
    def may_quote(self) -> bool:
        """Whether answers of the LM may be shown. If the run has secrets, the answers could quote
        them."""
        return may_show(self.history.node_types, following=True)

    def time_on(self, work: Work, now: float) -> float:
        """Return the seconds that this process has worked on `work`."""
        finished = sum(span.seconds for span in work.spans if span.start >= self.since)
        return finished if work.since is None else finished + now - work.since

    def sources(self, step: Step) -> dict[tuple[str, str], Source]:
        """Return the sources of a step. Sources that a resumed run starts again are left out."""
        sources = step.sources.items()
        return {
            key: source for key, source in sources if source.items_done or not self._is_old(source)
        }

    def state(self, work: GraphRun | Step | Source) -> ViewState:
        """Return the progress of a graph, a step or a source, for its row."""
        if isinstance(work, Source) and work.gate is not None and work.is_open:
            return "waiting"
        if isinstance(work, Step):
            if work.is_open and not work.is_complete:
                return "coming"
            if work.choice is not None and work.choice.is_open:
                return "going"
            if work.is_complete and self._is_old(work):
                return "done"
        if work.is_open:
            return "going"
        if self._is_old(work):
            return "coming"
        return work.state if work.state in ("done", "failed", "waiting") else "cancelled"

    def _is_old(self, work: Work) -> bool:
        """Return whether work stopped before the resume without a result, and may run again."""
        return work.state != "done" and work.ended is not None and work.ended < self.since

    def asking(self, by: Step | Source) -> LMQuestion | None:
        """Return the open question to the LM for a step or a source, or None."""
        questions = [by.choice, by.fill, *by.asked[-1:]] if isinstance(by, Step) else by.asked[-1:]
        for question in questions:
            if question is not None and question.is_open and task_of(question):
                return question
        return None

    def usage(self, step: Step) -> Usage:
        """Return the usage of all LM calls for a step."""
        choice = None if step.choice is None or step.choice.with_fields else step.choice
        questions = (choice, step.filled_by, *step.asked)
        return sum((question.paid for question in questions if question is not None), NOTHING_USED)

    def items(self, source: Source) -> int | None:
        """Return the number of items that a `Map` works on. Return None if the number is not known,
        or if the source is not a `Map`."""
        value, step = source.value, source.step
        plans = {} if step.node_type is None else plan_of(step.node_type).fields
        plan = None if source.place.parameter else plans.get(source.place.field)
        items_field = "" if plan is None else plan.items_of
        if not items_field and not source.items:
            return None
        if source.state != "done":
            items_source = step.sources.get((items_field, ""))
            value = None if items_source is None else items_source.value
            value = value if step.node is None else step.node.__dict__.get(items_field, value)
        has_length = isinstance(value, list | tuple | set | frozenset | dict)
        return len(cast("list[Any]", value)) if has_length else None

    def value(self, step: Step, name: str, *, inline: bool = False) -> str:
        """Return the value of a field as text. With `inline`, the text is for a line with several
        values."""
        value = None if step.node is None else step.node.__dict__.get(name)
        hidden = _is_hidden(step, name)
        return self._text(step, f"{name}{step.is_complete}", value, hidden=hidden, inline=inline)

    def source_value(self, source: Source) -> str:
        """Return the value of a source as text. Values of hidden fields and of dropped steps are
        masked."""
        hidden = _is_hidden(source, source.place.field)
        if source.origin is not None:
            path, number, field = source.origin
            step = self.history.step(path, number)
            hidden = hidden or step is None or _is_hidden(step, field)
        return self._text(source, "", source.value, hidden=hidden)

    def call(self, call: ToolRun) -> str:
        """Return a tool call with its arguments, such as `search(query='kettle')`."""
        if not self.may_quote:
            return in_one_line(f"{call.name}({'…' if call.arguments else ''})")
        return call_text(call.name, call.arguments, _CALL)

    def call_result(self, call: ToolRun) -> str:
        """Return the result of a tool call as text. If the call failed, return its error. If the
        call is in progress, return what it last reported."""
        if call.is_open:
            report = call.report
            return "" if report is None else in_one_line(report.text)
        if call.state == "running":
            return ""  # bae has not called the tool yet
        if call.state != "done":
            cause = None if call.error is None else call.error.__cause__
            return (error_of(call) if cause is None else line_of(cause)) or call.state
        if not self.may_quote:
            return WITHHELD if call.tool_error is None else f"an error {WITHHELD}"
        if call.tool_error is not None:
            return in_one_line(call.tool_error[:1000])
        key = call, "", False
        if key not in self._texts:
            self._texts[key] = result_text(call.result)
        return self._texts[key]

    def refusal(self, reply: RoundReplied) -> str:
        """Return `refused` with the reason why an answer of the LM was refused."""
        reason = in_one_line(reply.text[:1000]) if self.may_quote else ""
        return f"refused: {reason}" if reason else "refused"

    def own_values(self, step: Step) -> str:
        """Return one line with the values of a node's fields without a source. Tool calls are left
        out if they have rows."""
        if step.node is None or step.node_type is None:
            return ""
        plans = plan_of(step.node_type).plain
        has_rows = step.fill_loop is not None
        names = [plan.name for plan in plans if not (has_rows and plan.fills == "calls")]
        filled = [name for name in names if name in step.node.__dict__]
        return " ".join(f"{name}={self.value(step, name, inline=True)}" for name in filled)

    def _text(
        self, work: Work, name: str, value: Any, *, hidden: bool, inline: bool = False
    ) -> str:
        """Return a value as text. The text is cached, because formatting may be slow and a display
        draws many frames."""
        key = work, name, inline
        if key not in self._texts:
            if len(self._texts) > _MOST_TEXTS:
                self._texts.clear()
            write = inline_text_of if inline else text_of
            self._texts[key] = WITHHELD if hidden else write(value)
        return self._texts[key]

    def origin(self, source: Source) -> str:
        """Return the origin of a recalled value as text, such as ` from Day`. If the recalled field
        has another name than the field of `source`, the text is such as ` from Day.mood`."""
        if source.origin is None:
            return ""
        path, step, field = source.origin
        recalled_step = self.history.step(path, step)
        node = f"step {step}" if recalled_step is None else recalled_step.name
        return f" from {node}" + ("" if field in ("", source.place.field) else f".{field}")


def _is_hidden(work: Step | Source, name: str) -> bool:
    """Return whether a field has `repr=False`, so its value must not be shown."""
    fields: dict[str, Any] = getattr(work.node_type, "__pydantic_fields__", {})
    return name in fields and not fields[name].repr


def error_of(work: Work) -> str:
    """Return the error of failed work in one line, or an empty text."""
    return "" if work.error is None else line_of(work.error)


def names_of(offered: Iterable[type]) -> str:
    """Join the names of the node classes that an LM may choose."""
    return " | ".join("the end" if cls is NoneType else cls.__name__ for cls in offered)


def calls_text(loop: ToolLoop) -> str:
    """Summarize the tool calls of a conversation: `3 calls in 2 rounds: search, read_page`."""
    calls = [*loop.calls.values()]
    if not calls:
        return "no calls"
    names = ", ".join(dict.fromkeys(call.name for call in calls))
    rounds = count(len({call.round for call in calls}), "round")
    return in_one_line(f"{count(len(calls), 'call')} in {rounds}: {names}")


def task_of(asking: LMQuestion) -> str:
    """Describe what the LM is asked to do, such as `filling text, mood`. Return an empty text if
    the LM has no field to fill."""
    if asking.asker.kind == "choice":
        return f"choosing from {names_of(asking.offered)}"
    rounds = f", round {len(asking.loop.rounds) + 1}" if asking.loop and asking.loop.rounds else ""
    if asking.asker.kind == "fill":
        plans = plan_of(asking.asker.node).plain
        names = [plan.name for plan in plans if plan.fills != "calls"]
        if len(names) < len(plans) and not rounds:
            return f"calling tools, or filling {', '.join(names)}" if names else "calling tools"
        return f"filling {', '.join(names)}{rounds}" if names else rounds.removeprefix(", ")
    return f"answering{rounds}"
