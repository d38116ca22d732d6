"""The display of a turn of `bae chat` at a terminal. Each finished tool call is a line, and the
reply grows below the tool calls."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from time import time
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Group
from rich.text import Text

from bae.cli.live.display import Display, RunView
from bae.cli.live.drawing import ViewRow, cut_cells, draw_rows
from bae.cli.live.rows import call_row, graph_rows, refusal_row
from bae.cli.live.screen import Redrawn, spinning_line
from bae.cli.values import fields_of, print_node
from bae.cli.wording import describe_duration, describe_spending, in_lines, in_one_line
from bae.plan import plan_of
from bae.records import TextVoided
from bae.work import LMQuestion, Step, ToolRun, Work

if TYPE_CHECKING:
    from rich.console import Console

    from bae.node import Node
    from bae.observers import ObservedRun
    from bae.records import Record
    from bae.run_tree import WorkChange
    from bae.secrets import Copies

_ROWS: Final = 6
"""Maximum rows of work in progress. The newest rows are drawn."""
_LEAST: Final = 3
"""Minimum lines for a growing reply, even if the terminal is too low."""


class TurnScreen(Display):
    """Shows one turn. `ends` are the classes of the graph's end nodes, which have the reply.
    `copies` has the fields that may hold copies of secrets: see `GraphPlan.hidden`."""

    keeps_texts = True

    def __init__(
        self, console: Console, ends: Collection[type[Node]], copies: Copies | None
    ) -> None:
        super().__init__(console)
        self._ends = frozenset(ends)
        self._copies = copies
        self._screen = Redrawn(console, self._make_frame)
        self._printing = Lock()
        """Keeps printed lines in order. The drawing thread never waits for this lock."""
        self._printed_reply = ""
        """The first complete lines of the reply, which are printed and no longer redrawn."""
        self._stopped_reply = ""
        """The part of the reply that had arrived when the user stopped the turn."""
        self._measured: int = 0
        """The length of the complete lines when they were last wrapped and counted."""
        self._thinks_since = 0.0
        self._last_frame: list[Text] = []
        self._began = time()

    def __enter__(self) -> Self:
        self._began = time()
        self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.stop()

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Add a record of the run, and print the work that the record ends."""
        with self._printing:
            with self.lock:
                view = self.add(run, record)
                lines = self._draw([*self._ended_rows(view, record.path)])
                lines += self._thought_line(view, record)
                lines += self._lines_to_print(view)
            self._print(lines)

    @contextmanager
    def asking(self) -> Generator[None]:
        """Hide the work in progress while the block asks the user a question."""
        self._screen.stop()
        try:
            yield
        finally:
            self._screen.start()

    def hold(self) -> None:
        """Remember the part of the reply that has arrived. Call it before the turn is stopped."""
        with self.lock:
            view = next(iter(self.views.values()), None)
            self._stopped_reply = "" if view is None else self._arrived_reply(view)

    def finish(self, node: Node | None) -> None:
        """Print the rest of the reply, after the screen was stopped. `node` is the last node.

        If the turn has no last node, print the tool calls that were cut off, and the part of the
        reply that had arrived.
        """
        with self.lock:
            view = next(iter(self.views.values()), None)
        if node is None:
            self._print(self._draw([] if view is None else [*self._cut_off_rows(view)]))
            self._print_rest(self._stopped_reply or self._printed_reply)
            return
        name = plan_of(type(node)).text
        reply = reply_text(node, self._copies)
        if reply is None:
            print_node(node, self.console, self._copies)
            return
        self._print_rest(in_lines(reply))
        step = None if view is None else view.history.run.newest
        if view is not None and step is not None and step.node_type is type(node):
            plans = [
                field_plan for field_plan in plan_of(type(node)).plain if field_plan.name != name
            ]
            values = [
                f"{plan.name}={view.value(step, plan.name, inline=True)}"
                for plan in plans
                if plan.fills != "calls"
            ]
            if values:
                self._print([self._dim_line(" ".join(values))])

    def footer(self) -> None:
        """Print the time and the cost of the turn."""
        with self.lock:
            view = next(iter(self.views.values()), None)
        if view is not None:
            facts = [
                describe_duration(time() - self._began),
                *describe_spending(view.history.usage),
            ]
            self._print([self._dim_line(" · ".join(filter(None, facts)))])

    # Lines that stay on the screen.

    def _ended_rows(self, view: RunView, path: str) -> Iterator[ViewRow]:
        """Yield rows for the work that the newest record ends."""
        guides = (False,) * (path.count("/") + 1) if path else ()
        now = time()
        for change, work in view.changes:
            for row in self._rows_of_change(view, change, work, now):
                row.guides = guides
                yield row

    def _rows_of_change(
        self, view: RunView, change: WorkChange, work: Work, now: float
    ) -> Iterator[ViewRow]:
        match work:
            case ToolRun() if change == "ended" and work.state in ("done", "failed"):
                yield call_row(view, work, (), now)
            case LMQuestion() if change == "refused" and work.loop is not None:
                yield refusal_row(view, work.loop.refusals[-1], ())
            case LMQuestion() if change == "round" and work.loop is not None:
                number = work.loop.rounds[-1].number
                for call in work.loop.calls.values():
                    if call.is_native and call.round == number:
                        yield call_row(view, call, (), now)
            case Step() if change == "complete" and not work.place.path and self._is_between(work):
                note = " · ".join(
                    [
                        describe_duration(view.time_on(work, now)),
                        *describe_spending(view.usage(work)),
                    ]
                )
                value = view.own_values(work)
                yield ViewRow((), "node", "done", work.name, value, note, dim=True)
            case _:
                return

    def _cut_off_rows(self, view: RunView) -> Iterator[ViewRow]:
        """Yield rows for the tool calls that were in progress when the turn was stopped."""
        for row in graph_rows(view, view.history.run, (), time()):
            if row.kind == "call" and row.state == "cancelled":
                row.guides, row.block = (), 0
                row.value = "cut off: it may have run"
                yield row

    def _is_between(self, step: Step) -> bool:
        """Return whether the node of a step is neither the message nor the reply."""
        return step.number > 0 and step.node_type not in self._ends

    def _thought_line(self, view: RunView, record: Record) -> list[Text]:
        """Return a line with the time that the model has thought, if the model has just stopped
        thinking. Thoughts that a retry has voided get no line."""
        question = self._open_question(view)
        thinks = question is not None and bool(question.thoughts) and not question.text
        if thinks:
            self._thinks_since = self._thinks_since or record.at
        elif self._thinks_since:
            since, self._thinks_since = self._thinks_since, 0.0
            if not isinstance(record, TextVoided):
                duration = describe_duration(record.at - since) or "a moment"
                return [self._dim_line(f"thought for {duration}")]
        return []

    def _lines_to_print(self, view: RunView) -> list[Text]:
        """Return the next complete lines of the reply, if they no longer fit on the screen."""
        reply = self._arrived_reply(view)
        lines: list[Text] = []
        if not reply.startswith(self._printed_reply) and not self._stopped_reply:
            lines.append(self._dim_line("the model begins again: the text above is not the reply"))
            self._printed_reply = ""
        end = reply.rfind("\n") + 1
        if (
            self._stopped_reply
            or end in (len(self._printed_reply), self._measured)
            or not self._has_text_field(view)
        ):
            return lines
        self._measured = end
        wrapped = self._wrap(reply[len(self._printed_reply) : end])
        if len(wrapped) > self._free_lines(0):
            lines += wrapped
            self._printed_reply = reply[:end]
        return lines

    def _has_text_field(self, view: RunView) -> bool:
        step = view.history.run.newest
        return (
            step is not None and step.node_type is not None and bool(plan_of(step.node_type).text)
        )

    def _print_rest(self, reply: str) -> None:
        lines: list[Text] = []
        if not reply.startswith(self._printed_reply):
            lines.append(self._dim_line("the reply has changed; all of it:"))
            self._printed_reply = ""
        unprinted = reply[len(self._printed_reply) :].rstrip()
        lines += self._wrap(unprinted) if unprinted else []
        self._print(lines)

    # Lines that are drawn again and again.

    def frame(self) -> list[Text]:
        """Return the lines of the work in progress, at most as many as the terminal has."""
        now = time()
        with self.lock:
            reply, rows, thoughts = "", list[ViewRow](), ""
            for place, view in enumerate(self.views.values()):
                rows += self._rows_in_progress(view, now)
                question = self._open_question(view)
                if place == 0:
                    reply = self._arrived_reply(view)
                    thoughts = "" if question is None else question.thoughts
        if reply:
            rows = [row for row in rows if row.kind not in ("lm", "text")]
        lines = self._draw(rows[-_ROWS:])
        if thoughts and not reply:
            tail = in_one_line(thoughts.strip()[-self.console.width :])
            lines.append(self._dim_line(f"thinking: {tail}"))
        lines += self._wrap(reply[len(self._printed_reply) :])[-self._free_lines(len(lines)) :]
        waited = describe_duration(now - self._began) or "0 s"
        return [*lines, spinning_line(self, f"{waited} · Ctrl-C stops the turn")]

    def _rows_in_progress(self, view: RunView, now: float) -> Iterator[ViewRow]:
        for row in graph_rows(view, view.history.run, (), now):
            if row.state in ("going", "waiting") and row.kind not in ("node", "more", "choice"):
                row.guides, row.block = (), 0
                yield row
            elif row.kind == "text":
                row.guides = ()
                yield row

    def _make_frame(self) -> Group:
        with suppress(Exception):  # an error would end the drawing thread: repeat the last frame
            self._last_frame = self.frame()
        return Group(*self._last_frame)

    # Texts.

    def _open_question(self, view: RunView) -> LMQuestion | None:
        step = view.history.run.newest
        asking = None if step is None else view.asking(step)
        return asking if view.may_quote else None

    def _arrived_reply(self, view: RunView) -> str:
        """Return the text of the reply that has arrived so far."""
        if not view.may_quote:
            return ""
        texts: list[str] = []
        for place, text in view.history.texts.items():
            step = None if place.path else view.history.step("", place.step)
            if step is None or step.node_type not in self._ends:
                continue
            field = plan_of(step.node_type).text
            if not field:
                texts.append(f"{place.field}: {text}")
            elif place.field == field:
                texts.append(text)
        return in_lines("\n".join(texts))

    def _wrap(self, text: str) -> list[Text]:
        lines = self.signs.writable(text).removesuffix("\n").split("\n") if text else []
        width = max(1, self.console.width)
        wrapped: list[Text] = []
        for line in lines:
            wrapped += Text(line).wrap(self.console, width) if line else [Text()]
        return wrapped

    def _free_lines(self, used: int) -> int:
        return max(_LEAST, self.console.height - used - 3)

    def _dim_line(self, text: str) -> Text:
        width = max(1, self.console.width)
        return Text(cut_cells(self.signs.writable(text), width, self.signs.dots), "dim")

    def _draw(self, rows: list[ViewRow]) -> list[Text]:
        return draw_rows(rows, self.console.size.width, time(), self.signs)

    def _print(self, lines: list[Text]) -> None:
        if lines:
            self.console.print(Text("\n").join(lines), soft_wrap=True)


def reply_text(node: Node, copies: Copies | None = None) -> str | None:
    """Return the reply in the text field of an end node. If the node has no text field, return
    None: the complete node is the reply."""
    name = plan_of(type(node)).text
    value: Any = fields_of(node, copies).get(name) if name else None
    return value if isinstance(value, str) else None
