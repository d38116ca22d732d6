"""What a run writes down, one small record for each thing that happened, in order. Progress
displays, results and usage read these; nothing else keeps a second account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bae.usage import Attempt, Usage

if TYPE_CHECKING:
    from bae.markers import OpenGate
    from bae.node import Node


@dataclass(slots=True)
class Record:
    """The part all records share.

    `at` is the wall-clock time in seconds, `step` counts the nodes of the (sub)graph, `path` is
    empty in the run itself and names the place of a graph that runs inside it, as in
    `2:Report.summaries[3]`: step 2, field `summaries` of `Report`, item 3.
    """

    at: float
    path: str
    step: int


@dataclass(slots=True)
class RunStarted(Record):
    """A run, or a graph inside it, begins at `node`."""

    run_id: str
    graph: str
    node: Node
    max_iters: int = 10


@dataclass(slots=True)
class StepStarted(Record):
    """`node` is whole, in the trace, and about to be called. `made` are the fields with a source
    that have a default instead, where a factory has made that; only runs with a journal say so."""

    node: Node
    made: tuple[str, ...] = ()


@dataclass(slots=True)
class Returned(Record):
    """The written body of the node at `step` has returned `node`, which is not whole yet or is one
    node too many. Only runs with a journal write it: elsewhere the next step says it."""

    node: Node


@dataclass(slots=True)
class RunResumed(Record):
    """A run that was interrupted goes on, under `owner`; `changes` says what is different about
    its classes since."""

    owner: str
    changes: tuple[str, ...] = ()


@dataclass(slots=True)
class RunForked(Record):
    """From here on the run is one of its own: it shares what was written before with the run
    `parent`, and goes on at `node`, with `changed` fields that are others than there."""

    parent: str
    node: Node
    changed: tuple[str, ...] = ()


@dataclass(slots=True)
class SourceStarted(Record):
    """Work on a value for a field begins: `by` names the function, graph or question."""

    node_type: type[Node]
    field: str
    source: Literal["dep", "map", "gate"]
    by: str
    route: str = ""
    """Whose value it is where it is not the field's own: that of a parameter of the function behind
    the field, as `(place)`, or of one further down, as `(place)(client)`."""


@dataclass(slots=True)
class SourceEnded(Record):
    """A value for a field is there, or `error` says why not."""

    node_type: type[Node]
    field: str
    source: Literal["dep", "map", "gate"]
    by: str
    seconds: float
    value: Any = None
    error: BaseException | None = None
    route: str = ""


@dataclass(slots=True)
class ItemEnded(Record):
    """One item of a `Map` is done."""

    node_type: type[Node]
    field: str
    index: int
    value: Any


class Origin(NamedTuple):
    """Where in the trace a recalled value stands."""

    path: str
    step: int
    field: str


@dataclass(slots=True)
class Recalled(Record):
    """A value was found in the trace: in the field `origin.field` of the node at `origin.step` of
    the run, or the graph inside it, at `origin.path`; an empty field is the node itself."""

    node_type: type[Node]
    field: str
    value: Any
    origin: Origin


@dataclass(slots=True)
class GateOpened(Record):
    """A person is asked."""

    gate: OpenGate


@dataclass(slots=True)
class ChoiceStarted(Record):
    """The LM is asked where to go on from `node`."""

    node: Node
    offered: tuple[type[Node] | type[None], ...]


@dataclass(slots=True)
class ChoiceMade(Record):
    """The LM has chosen."""

    node: Node
    chosen: type[Node] | type[None]
    seconds: float
    usage: Usage


@dataclass(slots=True)
class FillStarted(Record):
    """The LM is asked to fill a `target`, with `resolved` as its context."""

    target: type[Node]
    resolved: dict[str, Any]


@dataclass(slots=True)
class FillEnded(Record):
    """The LM has filled `node`."""

    node: Node
    seconds: float
    usage: Usage


@dataclass(slots=True)
class AnswerJudged(Record):
    """The LM has answered while doing what `by` says, and the answer was found valid or not."""

    by: str
    attempt: Attempt


@dataclass(slots=True)
class TextArrived(Record):
    """A piece of an answer that streams in; what it belongs to is in `by`."""

    by: str
    text: str


@dataclass(slots=True)
class AnswerRestarted(Record):
    """A request failed with `error` and is sent again after `wait` seconds: the text that has
    arrived for `by` since the last answer was judged is void."""

    by: str
    error: BaseException
    wait: float


@dataclass(slots=True)
class LMAnswered(Record):
    """An LM that a written body or a dependency asks by itself, as `by` says, has answered.

    `method` is the method of the LM that was called, `asked` a hash of what it was asked, and
    `target` the name of what it was to build, empty for a choice. `value` is the node, the class or
    the None it returned. Only runs with a journal write it.
    """

    by: str
    method: Literal["make", "decide", "choose_type", "fill"]
    asked: str
    target: str
    value: Node | type[Node] | type[None] | None


@dataclass(slots=True)
class LMUsed(Record):
    """Calls that a written body or a dependency made by itself, or that failed."""

    by: str
    usage: Usage


@dataclass(slots=True)
class RunEnded(Record):
    """A run, or a graph inside it, is over."""

    outcome: Literal["ended", "waiting", "failed", "cancelled"]
    node: Node | None = None
    error: BaseException | None = None
    gates: tuple[OpenGate, ...] = ()
