"""The work of a run as a tree: graphs, their steps, the sources of fields, and the questions to
LMs. `bae.history.History` builds it from the records of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from zlib import crc32

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
        LMFailed,
        Origin,
        Returned,
        RoundMade,
        RoundReplied,
        RunForked,
        RunStarted,
        StepStarted,
        ToolEnded,
        ToolReported,
        ToolStarted,
        TurnsShown,
    )

State = Literal["running", "done", "failed", "waiting", "cancelled", "interrupted"]
"""The state of work. "waiting" is for a person; "interrupted" was running when the process
stopped."""

NOTHING_USED: Final = Usage()
TEXT_SHOWN: Final = 600
"""How many characters `LMQuestion.text` has: the newest."""
CALL_ID: Final = re.compile(r"c[1-9][0-9]{0,8}")
"""The ids of tool calls."""


class Span(NamedTuple):
    """A stretch of time, in seconds since 1970."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return self.end - self.start


@dataclass(slots=True, eq=False)
class Work:
    """Something that a run does and that takes time.

    `spans` are the times when a process worked on it; `since` is the start of the open span.
    `usage` is what LMs used for it, without the work inside it.
    """

    started: float
    state: State = "running"
    ended: float | None = None
    error: BaseException | None = None
    usage: Usage = NOTHING_USED
    spans: list[Span] = field(default_factory=list[Span])
    since: float | None = None
    resumed: bool = False
    """Whether it was finished before the run was resumed."""
    begun: dict[Work, None] | None = None
    """The parts that have begun since all of them were closed. Any open part is among them, or
    inside one of them."""

    @property
    def inside(self) -> Work | None:
        """The work that this is a part of; None for the run itself."""
        match self:
            case LMQuestion():
                return self.asked_by
            case ToolRun():
                return self.question
            case Source() | BodyCall():
                return self.step
            case Step():
                return self.graph
            case GraphRun() if self.call is not None:
                return self.call
            case Item() | GraphRun():
                return self.source
            case _:
                return None

    @property
    def parts(self) -> Iterator[Work]:
        """The direct parts of this work."""
        parts: tuple[Work | None, ...] = ()
        match self:
            case GraphRun():
                parts = (*self.steps.values(),)
            case Step():
                asked = (self.fill, *self.asked, self.choice)
                parts = (*self.sources.values(), *asked, self.called)
            case Source():
                parts = (self.graph, *self.items.values(), *self.asked)
            case Item():
                parts = (self.graph,)
            case LMQuestion():
                parts = (*self.calls,)
            case ToolRun():
                parts = (self.graph, *self.asked)
            case _:
                pass
        return (part for part in parts if part is not None)

    def begin(self, at: float) -> None:
        """Work on it starts, or starts again."""
        if self.since is None:
            self.since = at
        self.state, self.ended, self.error = "running", None, None

    def end(self, at: float, state: State = "done", error: BaseException | None = None) -> None:
        """End the work: nothing works on it any more."""
        if self.since is not None:
            self.spans.append(Span(self.since, max(at, self.since)))
            self.since = None
        self.state, self.ended, self.error = state, at, error

    @property
    def is_open(self) -> bool:
        """Whether something works on it now."""
        return self.since is not None


@dataclass(slots=True, eq=False, kw_only=True)
class LMQuestion(Work):
    """A question to an LM, until it is answered: a fill, a choice, or a question of a body or a
    dependency."""

    asker: Asker
    asked_by: Step | Source | ToolRun
    offered: tuple[type[Node] | type[None], ...] = ()
    chosen: type[Node] | type[None] | None = None
    """The class that the LM chose; `NoneType` ends the run."""
    with_fields: bool = False
    """For a choice: whether one answer chose the node and filled it."""
    took: float = 0.0
    """How long the answer took, as measured."""
    answers: list[AnswerJudged] = field(default_factory=list["AnswerJudged"])
    restarts: list[AnswerRestarted] = field(default_factory=list["AnswerRestarted"])
    texts: dict[Place, str] = field(default_factory=dict[Place, str])
    """The text of each field that has arrived and is not void, until the question has ended."""
    text_place: Place | None = None
    """The place of the newest text of the answer that is arriving."""
    text_since: float = 0.0
    """When the first piece of the answer arrived."""
    thoughts: str = ""
    """The model's thinking since the last answer."""
    retry: AnswerRestarted | None = None
    """Why the request is being sent again."""
    loop: ToolLoop | None = None
    """The conversation, if the LM may call tools; of several, the newest."""
    calls: list[ToolRun] = field(default_factory=list["ToolRun"])
    """The tool calls that began since the question was asked, or asked again."""

    def end_answer(self) -> None:
        """Note that an answer has ended, so nothing is arriving."""
        self.text_place, self.text_since = None, 0.0
        self.thoughts, self.retry = "", None

    def end(self, at: float, state: State = "done", error: BaseException | None = None) -> None:
        """End the question. Its answer is stored elsewhere."""
        Work.end(self, at, state, error)
        self.texts.clear()
        self.end_answer()

    @property
    def text(self) -> str:
        """The end of the newest text."""
        return "" if self.text_place is None else self.texts.get(self.text_place, "")[-TEXT_SHOWN:]

    @property
    def is_last_of_round(self) -> bool:
        """Whether the last answer ended a round: the record of the round then has its usage."""
        return self.loop is not None and self.answers[-1].attempt.usage == NOTHING_USED

    @property
    def waits(self) -> bool:
        """Whether a person is asked about a tool call, or in the graph that runs for a call."""
        if self.loop is None:
            return False
        gates = (gate for each in self.loop.gates.values() for gate in each)
        return any(work.state == "waiting" for work in (*gates, *self.loop.calls.values()))

    @property
    def awaits_calls(self) -> bool:
        """Whether calls of the last round have no result yet, so that no LM is working."""
        if self.loop is None or not self.loop.rounds:
            return False
        number = self.loop.rounds[-1].number
        calls = self.loop.calls.values()
        return any(call.round == number and call.state != "done" for call in calls)

    @property
    def open_calls(self) -> list[ToolRun]:
        """The calls that are running."""
        return [call for call in self.calls if call.is_open]

    @property
    def paid(self) -> Usage:
        """Its usage; if it was cut off, the usage of its answers until then."""
        if self.usage != NOTHING_USED:
            return self.usage
        rounds = () if self.loop is None else self.loop.rounds
        used = [round_.usage for round_ in rounds] + [
            answer.attempt.usage for answer in self.answers
        ]
        return Usage.total(used)


@dataclass(slots=True, eq=False)
class ToolLoop:
    """A conversation with tools, until the LM has filled the node: its rounds, the calls that have
    started and ended, by id, and the other messages to the LM."""

    target: str
    field_name: str
    tools: tuple[dict[str, Any], ...] = ()
    rounds: list[RoundMade] = field(default_factory=list["RoundMade"])
    started: dict[str, ToolStarted] = field(default_factory=dict[str, Any])
    ended: dict[str, ToolEnded] = field(default_factory=dict[str, Any])
    replies: list[RoundReplied] = field(default_factory=list["RoundReplied"])
    reports: dict[str, ToolReported] = field(default_factory=dict[str, Any])
    """The newest report of each running call."""
    asked: str = ""
    """The text of the question that the conversation begins with, if it is recorded."""
    question: str = ""
    """The key among the conversations of one body or function."""
    calls: dict[str, ToolRun] = field(default_factory=dict[str, "ToolRun"])
    """The calls by id, in the order in which the LM made them."""
    starts: dict[str, int] = field(default_factory=dict[str, int])
    """How often each call has started."""
    gates: dict[str, list[Source]] = field(default_factory=dict[str, Any])
    """The gates of each call that a person was asked about."""

    def call(self, id: str) -> Mapping[str, Any] | None:
        """The call of an id, as the LM made it."""
        made = (call for round_ in self.rounds for call in round_.calls)
        return next((call for call in made if call["id"] == id), None)

    def rounds_before(self, at: float) -> list[RoundMade]:
        """The rounds before a time. A question that began at that time did not pay for them."""
        return [made for made in self.rounds if made.at < at]

    @property
    def refusals(self) -> list[RoundReplied]:
        """The messages with which `Tools(accept=…)` refused answers."""
        return [reply for reply in self.replies if reply.kind == "refused"]

    @property
    def descriptions(self) -> Mapping[str, str]:
        """The description of each tool that the LM read."""
        return {tool["name"]: tool.get("description", "") for tool in self.tools}


def call_number(question: str, id: str) -> int:
    """The number of a call among all calls of one field: the item number in places of work for the
    call. `question` tells the questions of one body or function apart."""
    base = (crc32(question.encode()) % 10**9) * 1000 if question else 0
    return base + (int(id[1:]) if CALL_ID.fullmatch(id) else 0)


@dataclass(slots=True, eq=False, kw_only=True)
class ToolRun(Work):
    """One call of a tool. It begins when the tool is called. A call that is answered without that
    only ends: its arguments are wrong, or it gets the result of an equal call."""

    question: LMQuestion
    """The question to the LM that made the call, or repeated it."""
    loop: ToolLoop
    id: str
    name: str
    number: int
    round: int = 0
    """The number of the round in which the LM made the call."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    result: Any = None
    told: str | None = None
    """The error that the LM reads in place of a result."""
    took: float = 0.0
    reused: str = ""
    """The id of an equal call whose result this is."""
    was_called: bool = False
    """Whether the tool was called."""
    is_native: bool = False
    """Whether the provider has run it."""
    report: ToolReported | None = None
    """The newest report of the tool."""
    graph: GraphRun | None = None
    """The graph that runs for it."""
    asked: list[LMQuestion] = field(default_factory=list[LMQuestion])
    """The questions of the tool to LMs, in order."""

    @property
    def step(self) -> Step:
        """The step of the node that is filled, or of the body that has it filled."""
        by = self.question.asked_by
        return by if isinstance(by, Step) else by.step

    @property
    def gates(self) -> list[Source]:
        """The gates at which a person is asked about it."""
        return self.loop.gates.get(self.id, [])

    @property
    def place(self) -> Place:
        """The place of the call: the field of its node, the tool, and the number of the call."""
        place, field_name = self.step.place, self.loop.field_name
        node = self.loop.target or place.node
        return Place(place.path, place.step, node, field_name, f"({self.name})", self.number)


@dataclass(slots=True, eq=False, kw_only=True)
class Item(Work):
    """One item of a map. Its start is known only if a graph runs for it."""

    source: Source
    index: int = 0
    value: Any = None
    graph: GraphRun | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Source(Work):
    """Work on the value of a field, or of a parameter of the function behind it."""

    place: Place
    node_type: type[Node]
    step: Step
    kind: str
    by: str = ""
    """The function, the graph or the question."""
    took: float = 0.0
    value: Any = None
    origin: Origin | None = None
    """Where a recalled value was found."""
    turns: TurnsShown | None = None
    """The earlier turns of a thread that the value has."""
    gate: OpenGate | None = None
    items: dict[int, Item] = field(default_factory=dict[int, Item])
    items_done: int = 0
    graph: GraphRun | None = None
    """The graph that computes the value."""
    called_at: str = ""
    """The place that the function was called for with equal arguments, if that was another."""
    asked: list[LMQuestion] = field(default_factory=list[LMQuestion])
    """The questions of the function to LMs, in order."""
    answered: list[LMAnswered] = field(default_factory=list["LMAnswered"])
    taken: bool = False
    """Whether an LM has made a node with the value, so that the next node has its own."""

    @property
    def graphs(self) -> Iterator[GraphRun]:
        """The graphs that run for it."""
        for each in (self, *self.items.values()):
            if each.graph is not None:
                yield each.graph


@dataclass(slots=True, eq=False, kw_only=True)
class BodyCall(Work):
    """The call of a written body."""

    step: Step


@dataclass(slots=True, eq=False, kw_only=True)
class Step(Work):
    """One node of a graph, from the first work for it until it has led to the next node.

    `node` is the node as far as it is known: a draft until the step is `whole`. `given`, `filled`
    and `forked` are the records that hold it.
    """

    place: Place
    graph: GraphRun
    node_type: type[Node] | None = None
    node: Node | None = None
    whole: bool = False
    whole_at: float = 0.0
    whole_count: int = 0
    """The number of the record that completes it."""
    given: RunStarted | Returned | StepStarted | None = None
    """The record of a node that a caller or a body built."""
    filled: FillEnded | None = None
    forked: RunForked | None = None
    replaced: Node | None = None
    """The node that a fork has replaced."""
    made: tuple[str, ...] = ()
    """The fields whose default a factory computed."""
    sources: dict[tuple[str, str], Source] = field(default_factory=dict[tuple[str, str], Source])
    """By field and parameter."""
    fill: LMQuestion | None = None
    choice: LMQuestion | None = None
    """The LM's choice of the next node."""
    asked: list[LMQuestion] = field(default_factory=list[LMQuestion])
    """The questions of the body to LMs, in order."""
    answered: list[LMAnswered] = field(default_factory=list["LMAnswered"])
    """The answers of an LM to the body."""
    failed: list[LMFailed] = field(default_factory=list["LMFailed"])
    """The questions of the body that failed, in the process that called it last."""
    called: BodyCall | None = None
    loops: dict[tuple[Asker, str], ToolLoop] = field(
        default_factory=dict[tuple["Asker", str], ToolLoop]
    )
    """The conversations with tools that filled the node, or that its body had with an LM."""

    @property
    def number(self) -> int:
        """The position in the trace of the graph."""
        return self.place.step

    @property
    def name(self) -> str:
        """The name of the node class; empty if it is not known yet."""
        return self.place.node

    @property
    def before(self) -> Step | None:
        """The previous step, if it is kept."""
        return self.graph.steps.get(self.number - 1)

    @property
    def filled_by(self) -> LMQuestion | None:
        """The question whose answer filled the node: its fill, or the choice before it if one
        answer did both."""
        choice = None if self.before is None else self.before.choice
        return choice if self.fill and choice and choice.with_fields else self.fill

    def tree(self) -> Iterator[Step]:
        """This step, and the steps of all graphs that run for its fields."""
        yield self
        for source in self.sources.values():
            for graph in (inner for each in source.graphs for inner in each.tree()):
                yield from graph.steps.values()
        for call in self.tool_calls:
            for graph in () if call.graph is None else call.graph.tree():
                yield from graph.steps.values()

    @property
    def tool_calls(self) -> Iterator[ToolRun]:
        """The tool calls, in the conversation that filled the node and in conversations of its body
        and its sources."""
        for loop in self.loops.values():
            yield from loop.calls.values()

    @property
    def fill_loop(self) -> ToolLoop | None:
        """The conversation with tools that filled the node."""
        loops = (loop for (asker, _), loop in self.loops.items() if asker.kind == "fill")
        return next(loops, None)

    @property
    def questions(self) -> Iterator[LMQuestion]:
        """The questions to LMs in this step, of its sources and of tools that were called."""
        for part in self.parts:
            if isinstance(part, Source):
                yield from part.asked
            elif isinstance(part, LMQuestion):
                yield part
        for call in self.tool_calls:
            yield from call.asked


@dataclass(slots=True, eq=False, kw_only=True)
class GraphRun(Work):
    """The run itself, at the empty path, or a graph that runs inside it."""

    path: str = ""
    name: str = ""
    start: Node | None = None
    max_iters: int = 10
    steps: dict[int, Step] = field(default_factory=dict[int, Step])
    dropped: int = 0
    """How many finished steps are not kept."""
    outcome: Literal["", "ended", "waiting", "failed", "cancelled"] = ""
    """Its outcome; empty while it runs."""
    end_step: int = -1
    """How many nodes it had when it ended."""
    end_error: BaseException | None = None
    gates: tuple[OpenGate, ...] = ()
    source: Source | None = None
    """The work that it runs for."""
    item: Item | None = None
    call: ToolRun | None = None
    """The tool call that it runs for."""
    inner: dict[str, GraphRun] = field(default_factory=dict[str, "GraphRun"])
    """The graphs that run for fields of its nodes, by path."""

    @property
    def newest(self) -> Step | None:
        """The current step."""
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def trace(self) -> list[Step]:
        """Its steps in order."""
        return [self.steps[number] for number in sorted(self.steps)]

    def tree(self) -> Iterator[GraphRun]:
        """This graph and all graphs that run inside it."""
        graphs: list[GraphRun] = [self]
        for graph in graphs:
            yield graph
            graphs += graph.inner.values()
