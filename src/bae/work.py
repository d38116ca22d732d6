"""The parts of a run's work: graphs, steps, sources of fields, and questions to LLMs. They are a
tree, which `bae.history.History` builds from the records of a run."""

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
"""The state of work. Work that is "waiting" waits for a person. Work that is "interrupted" was
running when the process stopped."""

NOTHING_USED: Final = Usage()
TEXT_SHOWN: Final = 600
"""How many of the newest characters `LMQuestion.text` returns."""
CALL_ID: Final = re.compile(r"c[1-9][0-9]{0,8}")
"""The form of a tool call's id."""


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
    """Something that a run does and that takes time."""

    started: float
    state: State = "running"
    ended: float | None = None
    error: BaseException | None = None
    usage: Usage = NOTHING_USED
    """What LLMs used for this work, without the usage of its parts."""
    spans: list[Span] = field(default_factory=list[Span])
    """The times when a process worked on it, without the open span."""
    since: float | None = None
    """The start of the open span; None if nothing works on it now."""
    resumed: bool = False
    """Whether the work ended before the run was resumed."""
    begun: dict[Work, None] | None = None
    """The parts that have begun since all open parts were last ended. Each open part is among these
    parts, or inside one of them."""

    @property
    def inside(self) -> Work | None:
        """The work that this work is part of; None for the run itself."""
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
        """Note that the work starts, or starts again."""
        if self.since is None:
            self.since = at
        self.state, self.ended, self.error = "running", None, None

    def end(self, at: float, state: State = "done", error: BaseException | None = None) -> None:
        """End the work, and close its open span."""
        if self.since is not None:
            self.spans.append(Span(self.since, max(at, self.since)))
            self.since = None
        self.state, self.ended, self.error = state, at, error

    @property
    def is_open(self) -> bool:
        """Whether the run works on it now."""
        return self.since is not None


@dataclass(slots=True, eq=False, kw_only=True)
class LMQuestion(Work):
    """A question to an LLM: a fill, a choice, or a question of a body or a dependency. The work
    ends when the question is answered."""

    asker: Asker
    asked_by: Step | Source | ToolRun
    offered: tuple[type[Node] | type[None], ...] = ()
    """The classes that the LLM may choose from."""
    chosen: type[Node] | type[None] | None = None
    """The class that the LLM chose. `NoneType` means that the run ends."""
    with_fields: bool = False
    """Whether a single answer chose the node and filled it."""
    took: float = 0.0
    """How many seconds the answer took, as measured."""
    answers: list[AnswerJudged] = field(default_factory=list["AnswerJudged"])
    """The answers so far, valid or not."""
    restarts: list[AnswerRestarted] = field(default_factory=list["AnswerRestarted"])
    """The requests that were sent again."""
    texts: dict[Place, str] = field(default_factory=dict[Place, str])
    """The text that has arrived and is not void, by field. It is cleared when the question ends."""
    text_place: Place | None = None
    """The place of the newest text, while an answer arrives."""
    text_since: float = 0.0
    """When the first piece of the arriving answer arrived."""
    thoughts: str = ""
    """The model's thinking since the last answer."""
    retry: AnswerRestarted | None = None
    """The record of the newest restart, until an answer arrives."""
    loop: ToolLoop | None = None
    """The conversation, if the LLM may call tools. If there are several, the newest."""
    calls: list[ToolRun] = field(default_factory=list["ToolRun"])
    """The tool calls that began since the question was last asked."""

    def end_answer(self) -> None:
        """Note that an answer has ended, and that no text is arriving."""
        self.text_place, self.text_since = None, 0.0
        self.thoughts, self.retry = "", None

    def end(self, at: float, state: State = "done", error: BaseException | None = None) -> None:
        """End the question, and clear the text that has arrived."""
        Work.end(self, at, state, error)
        self.texts.clear()
        self.end_answer()

    @property
    def text(self) -> str:
        """The last characters of the text that is arriving."""
        return "" if self.text_place is None else self.texts.get(self.text_place, "")[-TEXT_SHOWN:]

    @property
    def is_last_of_round(self) -> bool:
        """Whether the newest judged answer is the answer of a round. Its usage is then in the
        record of the round, not in the record of the judged answer."""
        return self.loop is not None and self.answers[-1].attempt.usage == NOTHING_USED

    @property
    def waits(self) -> bool:
        """Whether the question waits for a person, who is asked about a tool call or in the graph
        of a call."""
        if self.loop is None:
            return False
        gates = (gate for call_gates in self.loop.gates.values() for gate in call_gates)
        return any(work.state == "waiting" for work in (*gates, *self.loop.calls.values()))

    @property
    def awaits_calls(self) -> bool:
        """Whether the question waits for results of tool calls, so no LLM is working on it."""
        if self.loop is None or not self.loop.rounds:
            return False
        number = self.loop.rounds[-1].number
        calls = self.loop.calls.values()
        return any(call.round == number and call.state != "done" for call in calls)

    @property
    def open_calls(self) -> list[ToolRun]:
        """The tool calls that are running."""
        return [call for call in self.calls if call.is_open]

    @property
    def paid(self) -> Usage:
        """The usage of the question. If the question was interrupted, the usage of the rounds and
        answers until then."""
        if self.usage != NOTHING_USED:
            return self.usage
        rounds = () if self.loop is None else self.loop.rounds
        used = [round_.usage for round_ in rounds] + [
            answer.attempt.usage for answer in self.answers
        ]
        return Usage.total(used)


@dataclass(slots=True, eq=False)
class ToolLoop:
    """A conversation with tools, from the first round until the LLM has filled the node."""

    target: str
    """The name of the node class that the LLM fills."""
    field_name: str
    tools: tuple[dict[str, Any], ...] = ()
    """The name, description and schema of each tool that the LLM is offered."""
    rounds: list[RoundMade] = field(default_factory=list["RoundMade"])
    started: dict[str, ToolStarted] = field(default_factory=dict[str, Any])
    """The starts of calls, by the id of the call."""
    ended: dict[str, ToolEnded] = field(default_factory=dict[str, Any])
    """The ends of calls, by the id of the call."""
    replies: list[RoundReplied] = field(default_factory=list["RoundReplied"])
    """The messages to the LLM, besides the results of its calls."""
    reports: dict[str, ToolReported] = field(default_factory=dict[str, Any])
    """The newest report of each running call, by the id of the call."""
    asked: str = ""
    """The text of the question that begins the conversation; empty if it is not recorded."""
    question: str = ""
    """The key of the conversation. A body or function may have several conversations."""
    calls: dict[str, ToolRun] = field(default_factory=dict[str, "ToolRun"])
    """The calls by id, in the order in which the LLM made them."""
    starts: dict[str, int] = field(default_factory=dict[str, int])
    """How often each call has started, by the id of the call."""
    gates: dict[str, list[Source]] = field(default_factory=dict[str, Any])
    """The gates at which people were asked about a call, by the id of the call."""

    def call(self, id: str) -> Mapping[str, Any] | None:
        """Return the call with this id, as the LLM made it; None if there is no such call."""
        calls = (call for round_ in self.rounds for call in round_.calls)
        return next((call for call in calls if call["id"] == id), None)

    def rounds_before(self, at: float) -> list[RoundMade]:
        """Return the rounds before a time. A question that began at this time did not pay for
        them."""
        return [round_ for round_ in self.rounds if round_.at < at]

    @property
    def refusals(self) -> list[RoundReplied]:
        """The messages with which `Tools(accept=…)` refused answers."""
        return [reply for reply in self.replies if reply.kind == "refused"]

    @property
    def descriptions(self) -> Mapping[str, str]:
        """The description of each tool that the LM read."""
        return {tool["name"]: tool.get("description", "") for tool in self.tools}


def call_number(question: str, id: str) -> int:
    """Return a number for a call that is unique among the calls of a field. It is the item number
    in the places of work inside the call. `question` is the key of the call's conversation."""
    base = (crc32(question.encode()) % 10**9) * 1000 if question else 0
    return base + (int(id[1:]) if CALL_ID.fullmatch(id) else 0)


@dataclass(slots=True, eq=False, kw_only=True)
class ToolRun(Work):
    """A tool call. It begins when bae calls the tool. If bae does not call the tool, the call only
    ends, for example because its arguments are wrong, or it gets the result of an equal call."""

    question: LMQuestion
    """The question whose answer made the call, or after a resume, the question that continues the
    conversation."""
    loop: ToolLoop
    id: str
    name: str
    number: int
    """See `call_number`."""
    round: int = 0
    """The number of the round in which the LLM made the call."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    result: Any = None
    tool_error: str | None = None
    """The error that the LLM reads in place of a result."""
    took: float = 0.0
    """How many seconds the call took."""
    reused: str = ""
    """The id of the equal call whose result this call has; empty if it has a result of its own."""
    was_called: bool = False
    """Whether bae has called the tool."""
    is_native: bool = False
    """Whether the provider has run the call."""
    report: ToolReported | None = None
    """The newest report of the tool."""
    graph: GraphRun | None = None
    """The graph that runs for the call, if the tool is a graph."""
    asked: list[LMQuestion] = field(default_factory=list[LMQuestion])
    """The questions that the tool has asked LLMs, in order."""

    @property
    def step(self) -> Step:
        """The step of the node that the LLM fills, or of the body that asks the LLM."""
        by = self.question.asked_by
        return by if isinstance(by, Step) else by.step

    @property
    def gates(self) -> list[Source]:
        """The gates at which people are asked about the call."""
        return self.loop.gates.get(self.id, [])

    @property
    def place(self) -> Place:
        """The place of the call, with the field of the node, the tool, and the call's number."""
        place, field_name = self.step.place, self.loop.field_name
        node = self.loop.target or place.node
        return Place(place.path, place.step, node, field_name, f"({self.name})", self.number)


@dataclass(slots=True, eq=False, kw_only=True)
class Item(Work):
    """The work on an item of a map. Its start is known only if a graph runs for the item."""

    source: Source
    index: int = 0
    value: Any = None
    graph: GraphRun | None = None
    """The graph that runs for the item."""


@dataclass(slots=True, eq=False, kw_only=True)
class Source(Work):
    """Work on the value of a field, or of a `Dep` parameter of the field's function."""

    place: Place
    node_type: type[Node]
    step: Step
    kind: str
    by: str = ""
    """The name of the function or graph, or the question of a gate."""
    took: float = 0.0
    """How many seconds the value took."""
    value: Any = None
    origin: Origin | None = None
    """Where a recalled value was found."""
    turns: TurnsShown | None = None
    """The turns in the value of a field with `Thread()`."""
    gate: OpenGate | None = None
    items: dict[int, Item] = field(default_factory=dict[int, Item])
    items_done: int = 0
    graph: GraphRun | None = None
    """The graph that computes the value."""
    called_at: str = ""
    """The place whose call returned the value, if the value is shared; empty if the function was
    called for this place."""
    asked: list[LMQuestion] = field(default_factory=list[LMQuestion])
    """The questions that the function has asked LLMs, in order."""
    answered: list[LMAnswered] = field(default_factory=list["LMAnswered"])
    """The answers of LLMs to the function."""
    is_used: bool = False
    """Whether a node was made with the value. If a body has an LLM make another node at the same
    place, that node needs a new value."""

    @property
    def graphs(self) -> Iterator[GraphRun]:
        """The graphs that run for the value, or for the items of a map."""
        for work in (self, *self.items.values()):
            if work.graph is not None:
                yield work.graph


@dataclass(slots=True, eq=False, kw_only=True)
class BodyCall(Work):
    """The call of a written body."""

    step: Step


@dataclass(slots=True, eq=False, kw_only=True)
class Step(Work):
    """A step of a graph: the work that completes a node, and the work that leads to the next
    node."""

    place: Place
    graph: GraphRun
    node_type: type[Node] | None = None
    node: Node | None = None
    """The node; a draft without some fields until the step is complete."""
    is_complete: bool = False
    """Whether the node is complete."""
    completed_at: float = 0.0
    """When the node was complete."""
    completing_record: int = 0
    """The number of the record that completes the node."""
    given: RunStarted | Returned | StepStarted | None = None
    """The record of the node, if a caller or a body built it."""
    filled: FillEnded | None = None
    """The record of the node, if an LLM filled it."""
    forked: RunForked | None = None
    """The record of the node, if a fork replaced it."""
    replaced: Node | None = None
    """The node that the fork replaced."""
    factory_fields: tuple[str, ...] = ()
    """The fields whose default a factory computed."""
    sources: dict[tuple[str, str], Source] = field(default_factory=dict[tuple[str, str], Source])
    """The sources by field and parameter."""
    fill: LMQuestion | None = None
    """The question in which the LLM fills the node."""
    choice: LMQuestion | None = None
    """The question in which the LLM chooses the next node."""
    asked: list[LMQuestion] = field(default_factory=list[LMQuestion])
    """The questions that the body has asked LLMs, in order."""
    answered: list[LMAnswered] = field(default_factory=list["LMAnswered"])
    """The answers of LLMs to the body."""
    failed: list[LMFailed] = field(default_factory=list["LMFailed"])
    """The body's questions that failed, in the process that called the body last."""
    called: BodyCall | None = None
    """The call of the body, if the body is written."""
    loops: dict[tuple[Asker, str], ToolLoop] = field(
        default_factory=dict[tuple["Asker", str], ToolLoop]
    )
    """The conversations with tools of the fill, the body and the sources, by asker and key."""

    @property
    def number(self) -> int:
        """The position of the node in the trace of the graph."""
        return self.place.step

    @property
    def name(self) -> str:
        """The name of the node class; empty if the class is not known yet."""
        return self.place.node

    @property
    def before(self) -> Step | None:
        """The previous step; None if there is none, or if the tree has dropped it."""
        return self.graph.steps.get(self.number - 1)

    @property
    def filled_by(self) -> LMQuestion | None:
        """The question whose answer filled the node. It is the fill, or the choice of the previous
        step if a single answer chose the node and filled it."""
        choice = None if self.before is None else self.before.choice
        return choice if self.fill and choice and choice.with_fields else self.fill

    def tree(self) -> Iterator[Step]:
        """Yield this step, and all steps of the graphs that run for its fields and tool calls."""
        yield self
        for source in self.sources.values():
            for graph in (inner for outer in source.graphs for inner in outer.tree()):
                yield from graph.steps.values()
        for call in self.tool_calls:
            for graph in () if call.graph is None else call.graph.tree():
                yield from graph.steps.values()

    @property
    def tool_calls(self) -> Iterator[ToolRun]:
        """The tool calls in the conversations of the fill, the body and the sources."""
        for loop in self.loops.values():
            yield from loop.calls.values()

    @property
    def fill_loop(self) -> ToolLoop | None:
        """The conversation with tools in which the LLM fills the node."""
        loops = (loop for (asker, _), loop in self.loops.items() if asker.kind == "fill")
        return next(loops, None)

    @property
    def questions(self) -> Iterator[LMQuestion]:
        """The questions to LLMs in this step, with the questions of its sources and tools."""
        for part in self.parts:
            if isinstance(part, Source):
                yield from part.asked
            elif isinstance(part, LMQuestion):
                yield part
        for call in self.tool_calls:
            yield from call.asked


@dataclass(slots=True, eq=False, kw_only=True)
class GraphRun(Work):
    """The run itself, at the empty path, or a graph that runs inside the run."""

    path: str = ""
    name: str = ""
    start: Node | None = None
    max_iters: int = 10
    steps: dict[int, Step] = field(default_factory=dict[int, Step])
    dropped: int = 0
    """How many finished steps the tree has dropped."""
    outcome: Literal["", "ended", "waiting", "failed", "cancelled"] = ""
    """How the graph ended; empty while it runs."""
    end_step: int = -1
    """How many nodes the graph had when it ended."""
    end_error: BaseException | None = None
    gates: tuple[OpenGate, ...] = ()
    """The gates that the graph waits for."""
    source: Source | None = None
    """The source that the graph runs for."""
    item: Item | None = None
    """The item of a map that the graph runs for."""
    call: ToolRun | None = None
    """The tool call that the graph runs for."""
    inner: dict[str, GraphRun] = field(default_factory=dict[str, "GraphRun"])
    """The graphs that run for fields and tool calls of its steps, by path."""

    @property
    def newest(self) -> Step | None:
        """The step with the greatest number."""
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def trace(self) -> list[Step]:
        """The steps of the graph in order."""
        return [self.steps[number] for number in sorted(self.steps)]

    def tree(self) -> Iterator[GraphRun]:
        """Yield this graph and all graphs that run inside it."""
        graphs: list[GraphRun] = [self]
        for graph in graphs:
            yield graph
            graphs += graph.inner.values()
