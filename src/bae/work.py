"""What a run did, as a tree: graphs, their steps, the sources of fields, and the questions to LMs.
`bae.history.History` builds it from the records of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from bae.place import Place
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.records import (
        AnswerJudged,
        AnswerRestarted,
        Asker,
        FillEnded,
        LMAnswered,
        Origin,
        Returned,
        RunForked,
        RunStarted,
        StepStarted,
    )

State = Literal["running", "done", "failed", "waiting", "cancelled", "interrupted"]
"""How far something is. What is "waiting" waits for a person; what is "interrupted" was running
when the process stopped."""

NOTHING_USED: Final = Usage()


class Span(NamedTuple):
    """A stretch of time, in seconds since 1970."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start


@dataclass(slots=True, eq=False)
class Work:
    """Something that a run does and that takes time.

    `spans` are the times it was worked on, one for each process that did; `since` is the start of
    the one that is open. `usage` is what LMs used for it, without what is inside it.
    """

    started: float
    state: State = "running"
    ended: float | None = None
    error: BaseException | None = None
    usage: Usage = NOTHING_USED
    spans: list[Span] = dataclasses.field(default_factory=list[Span])
    since: float | None = None
    resumed: bool = False
    """Whether it was done before the run was resumed."""

    @property
    def inside(self) -> Work | None:
        """What this is a part of; None for the run itself."""
        return None

    def begin(self, at: float) -> None:
        """Work on it starts, or starts again."""
        if self.since is None:
            self.since = at
        self.state, self.ended, self.error = "running", None, None

    def end(self, at: float, state: State = "done", error: BaseException | None = None) -> None:
        """Nothing works on it any more."""
        if self.since is not None:
            self.spans.append(Span(self.since, max(at, self.since)))
            self.since = None
        self.state, self.ended, self.error = state, at, error

    @property
    def is_open(self) -> bool:
        """Whether something works on it."""
        return self.since is not None

    @property
    def seconds(self) -> float:
        """How long it was worked on, as far as that is over."""
        return sum(span.seconds for span in self.spans)


@dataclass(slots=True, eq=False)
class Question(Work):
    """What an LM is asked, until it has answered: a fill, a choice, or whatever a body or a
    dependency asks."""

    asker: Asker = dataclasses.field(kw_only=True)
    asked_by: Step | Source = dataclasses.field(kw_only=True)
    offered: tuple[type[Node] | type[None], ...] = ()
    chosen: type[Node] | type[None] | None = None
    """What the LM chose; `NoneType` ends the run."""
    with_fields: bool = False
    """Whether one answer chose the node and filled it."""
    took: float = 0.0
    """How long the answer took by the clock that measured it."""
    answers: list[AnswerJudged] = dataclasses.field(default_factory=list["AnswerJudged"])
    restarts: list[AnswerRestarted] = dataclasses.field(default_factory=list["AnswerRestarted"])
    text: str = ""
    """The end of the text that has arrived since the last answer."""
    text_since: float = 0.0
    """When the first of it arrived."""
    retry: AnswerRestarted | None = None
    """Why the request is being sent again."""

    @property
    def inside(self) -> Work:
        """The step or the source that asks."""
        return self.asked_by

    @property
    def paid(self) -> Usage:
        """What it used; where it was cut off, what its answers until then used."""
        if self.usage != NOTHING_USED:
            return self.usage
        return Usage.total(answer.attempt.usage for answer in self.answers)


@dataclass(slots=True, eq=False)
class Item(Work):
    """One item of a map. When it began is known of those that graphs run for."""

    source: Source = dataclasses.field(kw_only=True)
    index: int = 0
    value: Any = None
    graph: GraphRun | None = None

    @property
    def inside(self) -> Work:
        """The map."""
        return self.source


@dataclass(slots=True, eq=False)
class Source(Work):
    """Work on the value of a field, or of a parameter of the function behind it."""

    place: Place = dataclasses.field(kw_only=True)
    node_type: type[Node] = dataclasses.field(kw_only=True)
    step: Step = dataclasses.field(kw_only=True)
    kind: Literal["dep", "map", "gate", "recall"] = dataclasses.field(kw_only=True)
    by: str = ""
    """The function, the graph or the question."""
    took: float = 0.0
    value: Any = None
    origin: Origin | None = None
    """Where a recalled value was found."""
    gate: OpenGate | None = None
    waiting_since: float = 0.0
    """When the gate was opened."""
    items: dict[int, Item] = dataclasses.field(default_factory=dict[int, Item])
    items_done: int = 0
    graph: GraphRun | None = None
    """The graph that makes the value."""
    asked: list[Question] = dataclasses.field(default_factory=list[Question])
    """What the function asked LMs, in order."""
    answered: list[LMAnswered] = dataclasses.field(default_factory=list["LMAnswered"])

    @property
    def inside(self) -> Work:
        """The step."""
        return self.step

    @property
    def question(self) -> Question | None:
        """What the function asked an LM last."""
        return self.asked[-1] if self.asked else None

    @property
    def graphs(self) -> Iterator[GraphRun]:
        """The graphs that run for it."""
        if self.graph is not None:
            yield self.graph
        for item in self.items.values():
            if item.graph is not None:
                yield item.graph


@dataclass(slots=True, eq=False)
class BodyCall(Work):
    """The call of a written body."""

    step: Step = dataclasses.field(kw_only=True)

    @property
    def inside(self) -> Work:
        """The step."""
        return self.step


@dataclass(slots=True, eq=False)
class Step(Work):
    """One node of a graph, from the first work for it until it has led on.

    `node` is the node as far as it is known: a draft until the step is `whole`. `given`, `filled`
    and `forked` are the records that hold it.
    """

    place: Place = dataclasses.field(kw_only=True)
    graph: GraphRun = dataclasses.field(kw_only=True)
    node_type: type[Node] | None = None
    node: Node | None = None
    whole: bool = False
    whole_at: float = 0.0
    whole_count: int = 0
    """The number of the record that says so."""
    given: RunStarted | Returned | StepStarted | None = None
    """The record of a node that a caller or a body made."""
    filled: FillEnded | None = None
    forked: RunForked | None = None
    replaced: Node | None = None
    """The node that a fork put another in the place of."""
    made: tuple[str, ...] = ()
    """The fields whose default a factory made."""
    sources: dict[tuple[str, str], Source] = dataclasses.field(
        default_factory=dict[tuple[str, str], Source]
    )
    """By field and parameter."""
    fill: Question | None = None
    choice: Question | None = None
    """The LM's choice of what follows this node."""
    asked: list[Question] = dataclasses.field(default_factory=list[Question])
    """What the body asked LMs, in order."""
    answered: list[LMAnswered] = dataclasses.field(default_factory=list["LMAnswered"])
    """What an LM answered the body."""
    called: BodyCall | None = None

    @property
    def inside(self) -> Work:
        """The graph."""
        return self.graph

    @property
    def number(self) -> int:
        """Its place in the trace of the graph."""
        return self.place.step

    @property
    def name(self) -> str:
        """The name of the node class; empty while it is not known."""
        return self.place.node

    @property
    def before(self) -> Step | None:
        """The step before it, as far as it is kept."""
        return self.graph.steps.get(self.number - 1)

    @property
    def body(self) -> Question | None:
        """What the body asked an LM last."""
        return self.asked[-1] if self.asked else None

    @property
    def filled_by(self) -> Question | None:
        """The question whose answer filled the node: its fill, or the choice before it where one
        answer did both."""
        before = self.before
        if self.fill is not None and self.fill.with_fields and before is not None:
            return before.choice
        return self.fill

    def field(self, name: str) -> Source | None:
        """The source of a field."""
        return self.sources.get((name, ""))

    @property
    def questions(self) -> Iterator[Question]:
        """What LMs were asked, in this step and by its sources."""
        for source in self.sources.values():
            yield from source.asked
        if self.fill is not None:
            yield self.fill
        yield from self.asked
        if self.choice is not None:
            yield self.choice


@dataclass(slots=True, eq=False)
class GraphRun(Work):
    """The run itself, at the empty path, or a graph that runs inside it."""

    path: str = ""
    name: str = ""
    start: Node | None = None
    max_iters: int = 10
    steps: dict[int, Step] = dataclasses.field(default_factory=dict[int, Step])
    dropped: int = 0
    """How many steps that are long over are not kept."""
    outcome: Literal["", "ended", "waiting", "failed", "cancelled"] = ""
    """How it came out; empty while it runs."""
    end_step: int = -1
    """How many nodes it had when it came out."""
    end_error: BaseException | None = None
    gates: tuple[OpenGate, ...] = ()
    source: Source | None = None
    """What it runs for."""
    item: Item | None = None

    @property
    def inside(self) -> Work | None:
        """The source that the graph runs for."""
        return self.source

    @property
    def newest(self) -> Step | None:
        """The step it is at."""
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def trace(self) -> list[Step]:
        """Its steps in order."""
        return [self.steps[number] for number in sorted(self.steps)]

    def tree(self) -> Iterator[GraphRun]:
        """This graph and all that run inside it."""
        yield self
        for step in self.steps.values():
            for source in step.sources.values():
                for graph in source.graphs:
                    yield from graph.tree()
