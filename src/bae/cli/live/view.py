"""What a display knows of a run: its history, how far each part of it is, and the texts of its
values, which are made once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from bae.cli.live.drawing import State
from bae.cli.wording import WITHHELD, inline_text_of, line_of, text_of
from bae.history import History
from bae.markers import Map
from bae.plan import plan_of
from bae.usage import Usage
from bae.work import NOTHING_USED, GraphRun, Question, Source, Step, Work

if TYPE_CHECKING:
    from bae.records import Record
    from bae.run_tree import Change

MOST_STEPS: Final = 600
"""Steps of one graph that are kept; those between the first and the last of them are dropped."""
_MOST_TEXTS: Final = 5000


class RunView:
    """One run as a display shows it. `past` are the records of a run that is resumed."""

    def __init__(self, past: Iterable[Record] = ()) -> None:
        self.history = History(past, keep=MOST_STEPS)
        self.history.on_change = self._note
        self.changes: list[tuple[Change, Work]] = []
        """What the newest record has changed."""
        self.printed = -1
        """The last step that is on the screen for good, with all before it."""
        self._texts: dict[tuple[Work, str, bool], str] = {}

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
        return work.state if work.state in ("done", "failed", "waiting") else "cancelled"

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
        plans = {} if step.node_type is None else plan_of(step.node_type).fields
        plan = plans.get(source.place.field)
        if plan is None or not isinstance(plan.marker, Map):
            return None
        over = plan.marker.over
        if step.node is not None and over in step.node.__dict__:
            return _length(step.node.__dict__[over])
        found = step.sources.get((over, ""))
        return None if found is None else _length(found.value)

    def value(self, step: Step, name: str, *, inline: bool = False) -> str:
        """The value of a field of a node; `inline` among others in one line."""
        key = (step, f"{name}{step.whole}", inline)
        if key not in self._texts:
            value = None if step.node is None else step.node.__dict__.get(name)
            hidden = is_hidden(step.node_type, name)
            self._keep(key, WITHHELD if hidden else (inline_text_of if inline else text_of)(value))
        return self._texts[key]

    def own_values(self, step: Step) -> str:
        """The values of a node that nothing else has a row for, in one line."""
        if step.node is None or step.node_type is None:
            return ""
        names = [plan.name for plan in plan_of(step.node_type).plain]
        held = [name for name in names if name in step.node.__dict__]
        return " ".join(f"{name}={self.value(step, name, inline=True)}" for name in held)

    def source_value(self, source: Source) -> str:
        """The value that a source has made."""
        key = (source, "", False)
        if key not in self._texts:
            self._keep(key, WITHHELD if hides(source) else text_of(source.value))
        return self._texts[key]

    def error(self, work: Work) -> str:
        """The error that something failed with, in one line."""
        return "" if work.error is None else line_of(work.error)

    def _keep(self, key: tuple[Work, str, bool], text: str) -> None:
        if len(self._texts) > _MOST_TEXTS:
            self._texts.clear()
        self._texts[key] = text

    def _is_old(self, work: Work) -> bool:
        """Whether it came to nothing before the run was resumed, and may now."""
        return work.state != "done" and work.ended is not None and work.ended < self.since


def is_hidden(cls: type[Any] | None, name: str) -> bool:
    """Whether a field is not to be shown at all: it has `repr=False`."""
    info = None if cls is None else cls.__pydantic_fields__.get(name)
    return info is not None and not info.repr


def hides(source: Source) -> bool:
    """Whether the value of a source is not to be shown: it is for a field with `repr=False`, or was
    recalled from one."""
    if is_hidden(source.node_type, source.place.field):
        return True
    if source.origin is None:
        return False
    path, number, field = source.origin
    graph = source.step.graph
    while graph.path != path and graph.source is not None:
        graph = graph.source.step.graph
    step = graph.steps.get(number)
    return step is not None and is_hidden(step.node_type, field)


def _length(value: Any) -> int | None:
    if isinstance(value, list | tuple | set | frozenset | dict):
        return len(cast("list[Any]", value))
    return None
