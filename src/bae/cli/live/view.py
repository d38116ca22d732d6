"""The runs that a display shows: mostly one, and those that its bodies start by themselves. Each is
a history, with the texts of its values, which are made once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from bae.cli.live.drawing import Row, State
from bae.cli.live.values import Shown, is_hidden
from bae.cli.live.wording import count, line_of
from bae.history import History
from bae.markers import Map
from bae.plan import plan_of
from bae.run_tree import Change
from bae.usage import Usage
from bae.work import NOTHING_USED, GraphRun, Question, Source, Step, Work

if TYPE_CHECKING:
    from bae.observers import ObservedRun
    from bae.plan import FieldPlan
    from bae.records import Record

MOST_STEPS: Final = 600
"""Steps of one graph that are kept; those between the first and the last of them are dropped."""
MOST_TEXTS: Final = 5000
OTHERS: Final = 3
"""Runs that are shown beside the first."""


class RunView:
    """One run as a display shows it: its history, and the texts of values, which are made once.
    `past` are the records of a run that is resumed."""

    def __init__(self, past: Iterable[Record] = ()) -> None:
        self.history = History(past, keep=MOST_STEPS)
        self.history.on_change = self._note
        self.changes: list[tuple[Change, Work]] = []
        """What the newest record has changed."""
        self.printed = -1
        """The last step that stays on the screen for good, with all before it."""
        self._texts: dict[tuple[Work, str, bool], Shown] = {}
        self._errors: dict[Work, str] = {}

    def add(self, record: Record) -> None:
        """Take in the next record."""
        self.changes = []
        self.history.add(record)

    def _note(self, change: Change, work: Work) -> None:
        self.changes.append((change, work))

    @property
    def since(self) -> float:
        """When this process began to work on the run."""
        return self.history.lives[-1].start if self.history.lives else 0.0

    def lasted(self, work: Work, now: float) -> float:
        """How long this process has worked on something."""
        over = sum(span.seconds for span in work.spans if span.start >= self.since)
        return over if work.since is None else over + now - work.since

    def sources(self, step: Step) -> dict[tuple[str, str], Source]:
        """The sources of a step, without those that came to nothing before the run was resumed."""
        return {
            key: source
            for key, source in step.sources.items()
            if source.items_done or not self._is_old(source)
        }

    def state(self, work: GraphRun | Step | Source) -> State:
        """How far something is."""
        if isinstance(work, Source) and work.kind == "gate" and work.is_open:
            return "waiting"
        if isinstance(work, Step):
            if work.is_open and not work.whole:
                return "coming"
            if work.choice is not None and work.choice.is_open:
                return "going"
            if work.whole and self._is_old(work):
                return "done"
        if work.is_open:
            return "going"
        if self._is_old(work):
            return "coming"
        return _STATES.get(work.state, "cancelled")

    def asking(self, by: Step | Source) -> Question | None:
        """What the LM is being asked."""
        asked = [by.choice, by.fill, *by.asked[-1:]] if isinstance(by, Step) else by.asked[-1:]
        for question in asked:
            if question is None or not question.is_open:
                continue
            if question.asker.kind != "fill" or plan_of(question.asker.node).plain:
                return question
        return None

    def usage(self, step: Step) -> Usage:
        """What the LM has used for a step."""
        choice = None if step.choice is None or step.choice.with_fields else step.choice
        asked = (choice, step.filled_by, *step.asked)
        return sum((each.paid for each in asked if each is not None), NOTHING_USED)

    def items(self, source: Source) -> int | None:
        """How many items a map goes over, where that is known already."""
        if source.state == "done":
            return _length(source.value)
        step = source.step
        plan = (
            None
            if step.node_type is None
            else plan_of(step.node_type).fields.get(source.place.field)
        )
        if plan is None or not isinstance(plan.marker, Map):
            return None
        over = plan.marker.over
        if step.node is not None and over in step.node.__dict__:
            return _length(step.node.__dict__[over])
        found = step.sources.get((over, ""))
        return None if found is None else _length(found.value)

    def value(self, step: Step, plan: FieldPlan) -> Shown:
        """The value of a field of a node."""
        value = None if step.node is None else step.node.__dict__.get(plan.name)
        return self._text((step, plan.name, step.whole), value, is_hidden(plan.info))

    def source_value(self, source: Source) -> Shown:
        """The value that a source has made."""
        return self._text((source, "", True), source.value, hides(source))

    def error(self, work: Work) -> str:
        """The error that something failed with, in one line."""
        if work.error is None:
            return ""
        if work not in self._errors:
            self._errors[work] = line_of(work.error)
        return self._errors[work]

    def _text(self, key: tuple[Work, str, bool], value: Any, hidden: bool) -> Shown:
        found = self._texts.get(key)
        if found is None:
            if len(self._texts) > MOST_TEXTS:
                self._texts.clear()
            found = self._texts[key] = Shown(value, hidden=hidden)
        return found

    def _is_old(self, work: Work) -> bool:
        """Whether it came to nothing before the run was resumed, and may now."""
        return work.state != "done" and work.ended is not None and work.ended < self.since


class RunViews:
    """Runs in the order they began."""

    def __init__(self) -> None:
        self._of: dict[ObservedRun, RunView] = {}
        self._dropped = 0

    def __iter__(self) -> Iterator[RunView]:
        return iter(self._of.values())

    def add(self, run: ObservedRun, record: Record) -> RunView:
        """Take in a record of a run."""
        view = self._of.get(run)
        if view is None:
            if len(self._of) > OTHERS:
                self._drop_one()
            view = self._of[run] = RunView(run.past)
        view.add(record)
        return view

    def rows(self, now: float, room: int) -> list[Row]:
        """The rows of all of them, at most so many: the first run has half of the room at least."""
        from bae.cli.live.rows import rows_of  # which reads views

        if not self._of:
            return []
        first, *others = self._of.values()
        below: list[Row] = []
        share = room // (2 * len(others)) if others else 0
        for view in others:
            if share > 1:
                run = view.history.run
                state = "done" if run.outcome == "ended" else "going"
                below.append(Row((), "item", state, run.name or "a run", "a run of its own"))
                below += rows_of(view, now, share - 1)
        if self._dropped:
            below.append(Row((), "more", name=f"{count(self._dropped, 'more run')} done"))
        return [*rows_of(first, now, max(1, room - len(below))), *below][:room]

    @property
    def steps(self) -> int:
        """How many nodes of the first run are done or in progress."""
        for view in self:
            return len(view.history.run.steps) + view.history.run.dropped
        return 0

    def leave_out_done(self) -> None:
        """Have no more rows of nodes of the first run that are done: they are on the screen."""
        for view in [*self][:1]:
            steps = view.history.run.steps
            done = [number for number, step in steps.items() if view.state(step) == "done"]
            view.printed = max(done, default=view.printed)

    def sum(self, now: float) -> tuple[int, Usage, float]:
        """The nodes of the first run, what it used, and how long it has lasted. A run that another
        one starts counts for itself."""
        for view in self:
            history = view.history
            until = now if history.run.ended is None else history.run.ended
            seconds = max(0.0, until - view.since) if view.since else 0.0
            return history.whole_steps, history.usage, seconds
        return 0, Usage(), 0.0

    def _drop_one(self) -> None:
        """Drop another run, one that is over where there is one."""
        _, *others = self._of
        over = [run for run in others if self._of[run].history.run.outcome]
        del self._of[over[0] if over else others[0]]
        self._dropped += 1


def hides(source: Source) -> bool:
    """Whether the value of a source is not to be shown: it is for a field with `repr=False`, or was
    recalled from one."""
    if is_hidden(source.node_type.__pydantic_fields__.get(source.place.field)):
        return True
    if source.origin is None:
        return False
    path, number, field = source.origin
    graph = source.step.graph
    while graph.path != path and graph.source is not None:
        graph = graph.source.step.graph
    step = graph.steps.get(number)
    found = None if step is None or step.node_type is None else step.node_type.__pydantic_fields__
    return found is not None and is_hidden(found.get(field))


def _length(value: Any) -> int | None:
    if isinstance(value, list | tuple | set | frozenset | dict):
        return len(cast("list[Any]", value))
    return None


_STATES: Final[dict[str, State]] = {
    "done": "done",
    "failed": "failed",
    "waiting": "waiting",
}
