"""What ran when in a stored run: one entry for each node, source, LM call and graph inside, as a
tree. It needs no code of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import time
from types import NoneType
from typing import Literal

from bae.history import History
from bae.journal.lines import read_history
from bae.journal.store import Listed, StoredRun
from bae.records import error_text
from bae.usage import Usage
from bae.work import NOTHING_USED, GraphRun, Item, Question, Source, Span, Step
from bae.work import Work as Done

WorkKind = Literal["node", "dep", "map", "item", "gate", "choice", "fill", "body"]
"""What an entry is: a node from the first work for it until it has led on; a dependency, a map or
one item of it, a question to a person; the LM's choice or fill; or the call of a written body."""
WorkOutcome = Literal["done", "failed", "waiting", "cancelled", "interrupted", "running"]
"""How it came out. What is "waiting" waits for a person; what is "interrupted" was running when the
process stopped."""


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work of a run.

    - `kind`, `place` and `name`: what it is, where, as `1:Day.weather`, and who does it: the class
      of a node, a function or graph, a question, or the node that the LM chose.
    - `spans`: when it was worked on; several if it was interrupted and resumed.
    - `outcome` and `error`: how it came out; `note`: what else there is to know.
    - `marks`: when the items of a map were done, if no more is known of them; those that graphs ran
      for are `inside`.
    - `usage`: what LM calls used for it, without what is inside it.
    - `inside`: the work that belongs to it, in the order it began. It lies between `start` and
      `end`, except for a question that is open: that lasts until now.
    """

    kind: WorkKind
    place: str
    name: str
    spans: tuple[Span, ...]
    outcome: WorkOutcome
    error: str = ""
    note: str = ""
    marks: tuple[float, ...] = ()
    usage: Usage = NOTHING_USED
    inside: tuple[Work, ...] = ()

    @property
    def start(self) -> float:
        """When it began."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """When it ended, or the last that is known of it."""
        return self.spans[-1].end

    @property
    def seconds(self) -> float:
        """How long it was worked on, without the times in between."""
        return sum(span.seconds for span in self.spans)

    def every(self) -> Iterator[Work]:
        """This and everything inside it, depth first."""
        yield self
        for each in self.inside:
            yield from each.every()


@dataclass(frozen=True, slots=True)
class Timeline:
    """What ran when in a run. `lives` are the times in which a process worked on it: in between it
    was parked, had failed, or was interrupted. All `work` lies between `start` and `end`."""

    run_id: str
    graph: str
    status: Listed
    lives: tuple[Span, ...]
    work: tuple[Work, ...]

    @property
    def start(self) -> float:
        """When the run began."""
        return min(life.start for life in self.lives)

    @property
    def end(self) -> float:
        """When it ended, or the last that is known of it: now, while it runs or waits for a
        person."""
        open_until = (work.end for work in self.every() if work.outcome == "waiting")
        return max(max(life.end for life in self.lives), max(open_until, default=self.start))

    @property
    def seconds(self) -> float:
        """How long processes worked on it."""
        return sum(life.seconds for life in self.lives)

    def worked_by(self, at: float) -> float:
        """For how many seconds processes had worked on it at a time."""
        return sum(min(life.end, at) - life.start for life in self.lives if life.start < at)

    def every(self) -> Iterator[Work]:
        """All work, depth first."""
        for each in self.work:
            yield from each.every()


def timeline(stored: StoredRun, *, now: float | None = None) -> Timeline:
    """Work out what ran when. `now` is the time of looking: work of a run in progress lasts until
    then. A damaged line is raised as `bae-journal-damaged`."""
    now = time() if now is None else now
    history, status = read_history(stored), stored.info.standing(now)
    if history.alive:
        if status == "running":
            history.stop(max(now, history.last), "running")
        else:
            history.stop()
    lives = history.lives or [Span(stored.info.started, stored.info.started)]
    builder = _Builder(history, lives, now if status == "waiting" else None)
    work = builder.steps(history.run) if "" in history.graphs else []
    return Timeline(stored.info.run_id, stored.info.graph, status, tuple(lives), _in_order(work))


class _Builder:
    def __init__(self, history: History, lives: Sequence[Span], waits_until: float | None) -> None:
        self._history = history
        self._lives = lives
        self._waits_until = waits_until

    def steps(self, graph: GraphRun) -> list[Work]:
        found: list[Work] = []
        for step in graph.trace:
            if step.name and (step.node is not None or step.spans or step.sources):
                entry = self._step(step)
                found += [] if entry is None else [entry]
        return found

    def _step(self, step: Step) -> Work | None:
        place = str(step.place)
        inside = [entry for s in step.sources.values() if (entry := self._source(s)) is not None]
        before = step.before
        if before is not None and _leads_to(before.choice):
            inside += self._question("choice", place, before.choice)
        if step.fill is not None and not step.fill.with_fields:
            inside += self._question("fill", place, step.fill)
        if step.called is not None:
            usage = Usage.total(question.usage for question in step.asked)
            inside += self._entry("body", place, step.name, step.called, usage=usage)
        following = step.graph.steps.get(step.number + 1)
        if not _leads_to(step.choice) or following is None:
            inside += self._question("choice", place, step.choice)
        spans = self._spans(step, inside)
        outcome, error = _outcome(step)
        if step.whole and step.called is None and outcome in ("cancelled", "interrupted"):
            outcome, error = "done", ""
        if not spans:
            return None
        return Work("node", place, step.name, spans, outcome, error, inside=_in_order(inside))

    def _source(self, source: Source) -> Work | None:
        if source.kind == "recall" or not (source.spans or source.items or source.graph):
            return None
        inside = [] if source.graph is None else self.steps(source.graph)
        items = [source.items[index] for index in sorted(source.items)]
        for item in items:
            if item.graph is not None:
                inside += self._item(source, item)
        marks = tuple(i.ended for i in items if i.graph is None and i.ended is not None)
        outcome, error = _outcome(source)
        spans = self._spans(source, inside)
        if source.kind == "gate" and source.spans:
            # The person is waited for all the time, whether a process runs or not.
            waits = outcome == "waiting" and self._waits_until is not None
            end = max(source.spans[-1].end, self._waits_until or 0.0 if waits else 0.0)
            spans = (Span(source.spans[0].start, end),)
        if not spans:
            return None
        usage = Usage.total(question.usage for question in source.asked)
        name = source.by or source.place.field
        of = str(source.place), name, spans, outcome, error, "", marks, usage
        return Work(source.kind, *of, _in_order(inside))

    def _item(self, source: Source, item: Item) -> list[Work]:
        if item.graph is None:
            return []
        place = str(source.place._replace(item=item.index))
        return self._entry("item", place, f"[{item.index}]", item, self.steps(item.graph))

    def _question(
        self, kind: Literal["choice", "fill"], place: str, question: Question | None
    ) -> list[Work]:
        if question is None or not question.spans:
            return []
        if kind == "fill":
            asked = question.took or question.usage != NOTHING_USED or question.state != "done"
            name = question.asker.node.__name__
            return self._entry(kind, place, name, question) if asked else []
        names = [_choice_name(each) for each in question.offered]
        name = " | ".join(names) if question.chosen is None else _choice_name(question.chosen)
        note = "and filled in the same call" if question.with_fields else ""
        return self._entry(kind, place, name, question, note=note)

    def _entry(
        self,
        kind: WorkKind,
        place: str,
        name: str,
        done: Done,
        inside: Sequence[Work] = (),
        usage: Usage | None = None,
        note: str = "",
    ) -> list[Work]:
        spans = self._spans(done, inside)
        if not spans:
            return []
        used = done.usage if usage is None else usage
        outcome, error = _outcome(done)
        return [Work(kind, place, name, spans, outcome, error, note, (), used, _in_order(inside))]

    def _spans(self, done: Done, inside: Iterable[Work]) -> tuple[Span, ...]:
        """When it was worked on: in each life, at least while something inside it was."""
        inner = [span for work in inside if work.kind != "gate" for span in work.spans]
        gates = [Span(w.start, w.start) for w in inside if w.kind == "gate"]
        every = [*done.spans, *inner, *gates]
        found: list[Span] = []
        for number, life in enumerate(self._lives):
            until = self._lives[number + 1].start if number + 1 < len(self._lives) else None
            here = [
                s for s in every if s.start >= life.start and (until is None or s.start < until)
            ]
            if here:
                found.append(Span(min(s.start for s in here), max(s.end for s in here)))
        return tuple(found)


def _in_order(work: Iterable[Work]) -> tuple[Work, ...]:
    return tuple(sorted(work, key=lambda each: each.start))


def _outcome(done: Done) -> tuple[WorkOutcome, str]:
    return done.state, "" if done.error is None else error_text(done.error)


def _leads_to(choice: Question | None) -> bool:
    """Whether the LM chose a node, and not the end."""
    return choice is not None and choice.chosen not in (None, NoneType)


def _choice_name(cls: type) -> str:
    return "the end" if cls is NoneType else cls.__name__
