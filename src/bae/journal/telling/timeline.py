"""What ran when in a run, in parallel or not, found in its lines alone: one `Work` for each node,
source, LM call and graph inside, as a tree, with the times at which somebody was at it. Commands
and pages draw it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import time
from typing import Literal

from bae.journal.store import Listed, StoredRun
from bae.usage import Usage

WorkKind = Literal["node", "dep", "map", "item", "gate", "choice", "fill", "body"]
"""What a piece of work is: a node from the first thing done for it until it is done itself; a
dependency, a map or one item of it, a question to a person; the LM's choice of a node or what it
fills it with; or the call of a body that somebody has written."""
WorkOutcome = Literal["done", "failed", "waiting", "cancelled", "interrupted", "running"]
"""How it came out. What is "waiting" waits for a person; what is "interrupted" was under way when
the process went away; what is "cancelled" was let go of."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in seconds since 1970."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work of a run.

    - `kind`, `place` and `name`: what it is, where, as `1:Day.weather`, and who does it: the class
      of a node, a function or graph, a question, or the node that the LM chose.
    - `spans`: when somebody was at it; several where it was interrupted and done again, or on.
    - `outcome` and `error`: how it came out; `note`: what else there is to say.
    - `marks`: when the items of a map were done, of which no more is known; those for which graphs
      ran are among `inside`.
    - `usage`: what LM calls used in it, those of what is inside not among them.
    - `inside`: the work that belongs to it, in the order it began. What is inside lies between
      `start` and `end`, but for a question that is open: that lasts until now, whoever is there.
    """

    kind: WorkKind
    place: str
    name: str
    spans: tuple[Span, ...]
    outcome: WorkOutcome
    error: str = ""
    note: str = ""
    marks: tuple[float, ...] = ()
    usage: Usage = Usage()  # noqa: RUF009  it cannot be changed
    inside: tuple[Work, ...] = ()

    @property
    def start(self) -> float:
        """When it began."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """When it was over, or the last that is known of it."""
        return self.spans[-1].end

    @property
    def seconds(self) -> float:
        """How long somebody was at it, the times in between left out."""
        return sum(span.seconds for span in self.spans)

    def every(self) -> Iterator[Work]:
        """This and all that is inside it, as a list would have them."""
        yield self
        for each in self.inside:
            yield from each.every()


@dataclass(frozen=True, slots=True)
class Timeline:
    """What ran when in a run. `lives` are the times in which a process was at it: between two of
    them it was parked, had failed, or was interrupted. All `work` lies between `start` and `end`.

    Times are those of a clock that is never set: where that of the computer was, the lines that
    follow are as far from those before as was measured, and never before them.
    """

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
        """When it was over, or the last that is known of it: now, while it is under way or waits
        for somebody."""
        open_until = (work.end for work in self.every() if work.outcome == "waiting")
        return max(max(life.end for life in self.lives), max(open_until, default=self.start))

    @property
    def seconds(self) -> float:
        """How long processes were at it, the times in between left out."""
        return sum(life.seconds for life in self.lives)

    def worked_by(self, at: float) -> float:
        """For how many seconds processes had been at it, by a time."""
        return sum(min(life.end, at) - life.start for life in self.lives if life.start < at)

    def every(self) -> Iterator[Work]:
        """All pieces of work, as a list would have them."""
        for each in self.work:
            yield from each.every()


def timeline(stored: StoredRun, *, now: float | None = None) -> Timeline:
    """Work out what ran when. `now` is the time at which it is looked at: work of a run that is
    under way lasts until then. A damaged line is raised as `bae-journal-damaged`."""
    from bae.journal.telling.at_work import AtWork

    return AtWork(stored, time() if now is None else now).timeline()
