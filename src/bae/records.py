"""The records that a run writes: one small record for each event, in order. Results, usage,
progress displays and journals are all made from these records."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

from bae.exceptions import text_of
from bae.usage import Attempt, Usage

if TYPE_CHECKING:
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.place import Place


Outcome = Literal["ended", "waiting", "failed", "cancelled"]
"""The outcome of a run, or of a graph inside it."""
LMMethod = Literal["make", "decide", "choose_type", "fill"]
"""The methods of an LM that a body or a function may call."""


class Asker(NamedTuple):
    """The part of a run that asks an LM."""

    kind: Literal["fill", "choice", "body", "source"]
    """A "fill" asks for the fields of a node, and a "choice" for the node after it. A "body" is a
    written body. A "source" is a function that computes the value of a field or parameter."""
    node: type[Node]
    field: str = ""
    """The field of a "source"."""
    parameter: str = ""
    """The parameter that a "source" computes, as `(city)`. Empty for the field itself."""
    item: int | None = None
    """The number of the item, if a `Map` calls the function."""

    def __str__(self) -> str:
        name = self.node.__name__
        match self.kind:
            case "fill":
                return f"filling {name}"
            case "choice":
                return f"choosing after {name}"
            case "body":
                return f"{name}.__call__"
            case "source":
                item = "" if self.item is None else f"[{self.item}]"
                return f"{name}.{self.field}{self.parameter}{item}"


ReadUsage = Callable[[Any], tuple[Asker, Usage]]
"""Reads from a record the asker of a question and the usage of one answer."""


class Unstored:
    """The type of `LIVE` and `WITHHELD`. A record has one of these in place of a value that no
    journal has stored."""

    __slots__ = ("_shown",)

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


class Nothing:
    """The type of `NOTHING`."""

    def __repr__(self) -> str:
        return "<nothing recorded>"


NOTHING: Final = Nothing()
"""The result of a search that finds no record. None would be ambiguous: it may be a recorded value,
or the end of a run."""

LIVE: Final = Unstored("<live: made again on resume>")
"""Stands for the value of a dependency that no journal can store."""
WITHHELD: Final = Unstored("<withheld: a secret>")
"""Stands for a secret that was not stored."""


WITHHELD_MESSAGE: Final = "withheld"
"""The message that a journal stores for an error that may quote a secret. If the error has a place,
the place comes before this word."""


class RecordedError(Exception):
    """Stands for an exception in a record that was read from a journal.

    `type_name` is the name of the exception's class. `code` is the code of an error of bae, and
    None for any other exception.
    """

    def __init__(self, type_name: str, message: str, code: str | None = None) -> None:
        super().__init__(type_name, message, code)
        self.type_name = type_name
        self.message = message
        self.code = code

    @property
    def is_withheld(self) -> bool:
        """Whether the journal withheld the message, because it may quote a secret."""
        return self.message.rpartition(": ")[2] == WITHHELD_MESSAGE

    def __str__(self) -> str:
        code = f"[{self.code}] " if self.code else ""
        return f"{code}{self.type_name}: {self.message}" if self.message else self.type_name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


def error_text(error: BaseException) -> str:
    """Return one line with the type and the message of an error in a record."""
    if isinstance(error, RecordedError):
        return f"{error.type_name}: {error.message}" if error.message else error.type_name
    message = text_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class StorageRole(NamedTuple):
    """How a journal stores an attribute of a record."""

    name: str
    """Selects the functions of the journal that write and read the attribute. "json" is a value
    that is stored as plain JSON."""
    type: Any = None
    """The type of the value, for roles that need a type."""
    default: Any = NOTHING
    """The value of the attribute if a line of the journal does not have the attribute."""
    is_omitted: bool = True
    """Whether a line leaves the attribute out if its value is the default."""


StorageRoles = Mapping[str, StorageRole]


def _json(type: Any, default: Any = NOTHING, is_omitted: bool = True) -> StorageRole:
    return StorageRole("json", type, default, is_omitted)


_TEXT: Final = _json(str)
_TEXT_IF_ANY: Final = _json(str, "")
_RUN_ID: Final = StorageRole("run", str)
_RUN_ID_IF_ANY: Final = StorageRole("run", str, "")
_TEXTS: Final = _json(tuple[str, ...])
_NUMBER: Final = _json(float)
_ASKER: Final = StorageRole("asker")
_USAGE: Final = StorageRole("usage")
_NODE: Final = StorageRole("node")
_OF_FIELD: Final = {"node_type": StorageRole("field class"), "field": _TEXT}
_OF_SOURCE: Final = {
    **_OF_FIELD,
    "parameter": _TEXT_IF_ANY,
    "source": StorageRole("source"),
    "by": _TEXT,
}


@dataclass(slots=True, repr=False, eq=False)
class Record:
    """The base of all records."""

    at: float
    """The wall-clock time, in seconds since 1970."""
    path: str
    """The graph of the event: empty in the run itself. For a graph inside the run, the place that
    the graph runs for, as in `2:Report.summaries[3]`: step 2, field `summaries` of `Report`, item
    3."""
    step: int
    """The number of the node that the record is about, from 0 in each graph. For a choice, this is
    the next node. In `RunEnded`, it is the number of nodes so far."""

    stored: ClassVar[StorageRoles] = {}
    """The attributes that a journal stores, or restores from other stored attributes, in the order
    of a line. Empty for a kind of record that is not stored."""

    partial_usage: ClassVar[ReadUsage | None] = None
    """Reads the usage of one answer from the record. None if the record has no usage, or if its
    usage is the total of all answers to a question."""

    is_progress: ClassVar[bool] = False
    """Whether the record is progress of the run. A resumed run does not repeat progress."""

    # Defined once here: generating both methods for each kind would double the import time.
    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__qualname__}({attributes})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)


@dataclass(slots=True, repr=False, eq=False)
class RunStarted(Record):
    """A run, or a graph inside a run, begins at `node`."""

    run_id: str
    graph: str
    node: Node
    max_iters: int = 10

    stored: ClassVar[StorageRoles] = {
        "run_id": _RUN_ID,
        "graph": _TEXT,
        "max_iters": _json(int),
        "node": StorageRole("start node"),
    }


@dataclass(slots=True, repr=False, eq=False)
class StepStarted(Record):
    """A step begins: `node` is complete, in the trace, and about to be called."""

    node: Node
    made: tuple[str, ...] = ()
    """The fields with a source that a default factory filled in place of the source. Empty in a run
    without a journal."""

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {"node": StorageRole("step node")}


@dataclass(slots=True, repr=False, eq=False)
class Returned(Record):
    """A written body has returned `node`. Fields of the node are not resolved yet, or the node
    exceeds the limit `max_iters`.

    Only runs with a journal write this record. In other runs, the node is first in its
    `StepStarted`.
    """

    node: Node

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {"node": _NODE}


@dataclass(slots=True, repr=False, eq=False)
class RunResumed(Record):
    """A process resumes an interrupted run."""

    owner: str
    """The process that resumes the run."""
    changes: tuple[str, ...] = ()
    """The changes of the run's classes since they were last stored."""

    stored: ClassVar[StorageRoles] = {"owner": _TEXT, "changes": _TEXTS}


@dataclass(slots=True, repr=False, eq=False)
class RunForked(Record):
    """A fork begins. The records before this record are copied from the parent run."""

    parent: str
    """The id of the parent run."""
    node: Node
    """The node at which the fork continues."""
    changed: tuple[str, ...] = ()
    """The fields of the node that have new values."""

    stored: ClassVar[StorageRoles] = {"parent": _TEXT, "node": _NODE, "changed": _TEXTS}


@dataclass(slots=True, repr=False, eq=False)
class SourceStarted(Record):
    """Work on the value of a field, or of a parameter, begins."""

    node_type: type[Node]
    field: str
    source: str
    by: str
    """The function, the graph or the question that gives the value."""
    parameter: str = ""
    """The parameter that gets the value: `(place)` for a parameter of the field's function, and
    `(place)(client)` for a parameter of the function that computes `place`. Empty if the field
    itself gets the value."""

    stored: ClassVar[StorageRoles] = _OF_SOURCE


@dataclass(slots=True, repr=False, eq=False)
class SourceEnded(Record):
    """Work on the value of a field, or of a parameter, has ended with `value` or with `error`."""

    node_type: type[Node]
    field: str
    source: str
    by: str
    seconds: float
    value: Any = None
    error: BaseException | None = None
    parameter: str = ""
    called_at: str = ""
    """The place for which the function was called, if that is another place. A run calls a function
    only once for equal arguments."""

    stored: ClassVar[StorageRoles] = {
        **_OF_SOURCE,
        "seconds": _NUMBER,
        "value": StorageRole("outcome"),
    }


@dataclass(slots=True, repr=False, eq=False)
class CallEnded(Record):
    """A function has returned a value for a field of a class outside the graph. A body or a
    function has asked an LM to fill that class, and the run calls the function only once.

    Only journals have this record. The log of a run has a `SourceEnded` in its place.
    """

    node_type: type[Node]
    """The class outside the graph."""
    field: str
    by: str
    seconds: float
    value: Any = None
    parameter: str = ""
    graph: str = ""
    """The name of the graph that has `place`."""
    place: str = ""
    """A place in the graph that uses the function too, and so identifies the function."""
    function: str = ""
    """The module and the name of the function, if no graph of the run uses it."""
    arguments: str = ""
    """A hash of the arguments that come from the run."""
    key: Hashable = None
    """Identifies the function among the functions of the graph. Not stored."""

    stored: ClassVar[StorageRoles] = {
        "node_type": StorageRole("outside class"),
        "field": _TEXT,
        "parameter": _TEXT_IF_ANY,
        "by": _TEXT,
        "seconds": _NUMBER,
        "value": StorageRole("called value"),
        "graph": _TEXT_IF_ANY,
        "place": _TEXT_IF_ANY,
        "function": _TEXT_IF_ANY,
        "arguments": _TEXT_IF_ANY,
    }


@dataclass(slots=True, repr=False, eq=False)
class ClassMet(Record):
    """A body or a function asks an LM about `node_type`, a class outside the graph with a secret.
    From now on, journals and telemetry withhold the questions of bodies and functions, and the
    answers."""

    node_type: type[Node]

    stored: ClassVar[StorageRoles] = {"node_type": StorageRole("secret class")}


@dataclass(slots=True, repr=False, eq=False)
class ItemEnded(Record):
    """The value of one item of a `Map` is computed."""

    node_type: type[Node]
    field: str
    index: int
    value: Any

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {
        **_OF_FIELD,
        "index": _json(int),
        "value": StorageRole("value"),
    }


class Origin(NamedTuple):
    """The place in the trace where a recalled value was found."""

    path: str
    """The graph: empty for the run itself, otherwise the place that the graph runs for."""
    step: int
    field: str
    """The field of the node. Empty if the value is the node itself."""


@dataclass(slots=True, repr=False, eq=False)
class Recalled(Record):
    """A value for a field, or for a parameter, was found in the trace at `origin`."""

    node_type: type[Node]
    field: str
    value: Any
    origin: Origin
    parameter: str = ""

    stored: ClassVar[StorageRoles] = {
        **_OF_FIELD,
        "parameter": _TEXT_IF_ANY,
        "origin": _json(Origin),
        "value": StorageRole("recalled"),
    }


@dataclass(slots=True, repr=False, eq=False)
class TurnStarted(Record):
    """The run begins as a turn of a thread."""

    previous: str
    """The id of the run with the previous turn. Empty for the first turn."""
    number: int
    """The number of turns before this turn."""

    stored: ClassVar[StorageRoles] = {"previous": _RUN_ID_IF_ANY, "number": _json(int)}


@dataclass(slots=True, repr=False, eq=False)
class TurnsShown(Record):
    """A `Thread` field has got the earlier turns of the thread. A journal stores the number of the
    turns, and the runs of the first and the last turn, but not the texts."""

    node_type: type[Node]
    field: str
    value: Any
    first: str = ""
    """The id of the run with the first turn of the value."""
    last: str = ""
    """The id of the run with the last turn of the value."""
    count: int = 0
    """The number of turns in the value."""
    omitted: int = 0
    """The number of older turns that are not in the value."""

    stored: ClassVar[StorageRoles] = {
        **_OF_FIELD,
        "first": _RUN_ID_IF_ANY,
        "last": _RUN_ID_IF_ANY,
        "count": _json(int, 0),
        "omitted": _json(int, 0),
        "value": StorageRole("turns"),
    }

    @property
    def origin(self) -> None:
        """Always None, since the value does not come from the trace."""
        return None

    @property
    def parameter(self) -> str:
        """Always empty, since the value belongs to a field."""
        return ""


Found = Recalled | TurnsShown
"""The record of a value that bae finds without a call, in the trace or in the thread."""


@dataclass(slots=True, repr=False, eq=False)
class GateOpened(Record):
    """The run asks a person at `gate`."""

    gate: OpenGate

    stored: ClassVar[StorageRoles] = {"gate": StorageRole("gate")}


@dataclass(slots=True, repr=False, eq=False)
class ChoiceStarted(Record):
    """The run asks the LM to choose the successor of `node`."""

    node: Node
    offered: tuple[type[Node] | type[None], ...]
    """The classes among which the LM chooses. `NoneType` ends the run."""

    stored: ClassVar[StorageRoles] = {
        "node": StorageRole("previous node"),
        "offered": StorageRole("classes"),
    }


@dataclass(slots=True, repr=False, eq=False)
class ChoiceMade(Record):
    """The LM has chosen the successor of `node`."""

    node: Node
    chosen: type[Node] | type[None]
    seconds: float
    usage: Usage

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {
        "node": StorageRole("previous node"),
        "chosen": StorageRole("class or end"),
        "seconds": _NUMBER,
        "usage": _USAGE,
    }


@dataclass(slots=True, repr=False, eq=False)
class FillStarted(Record):
    """The run asks the LM to fill a node of the class `target`."""

    target: type[Node]
    resolved: dict[str, Any]
    """The values of the fields that are resolved already. The LM sees them as context."""

    stored: ClassVar[StorageRoles] = {
        "target": StorageRole("class"),
        "resolved": StorageRole("context"),
    }


@dataclass(slots=True, repr=False, eq=False)
class FillEnded(Record):
    """The LM has filled `node`."""

    node: Node
    seconds: float
    usage: Usage

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {
        "node": StorageRole("filled node"),
        "seconds": _NUMBER,
        "usage": _USAGE,
    }


@dataclass(slots=True, repr=False, eq=False)
class AnswerJudged(Record):
    """The LM has answered the `asker`. The `attempt` has the answer and the verdict of bae."""

    asker: Asker
    attempt: Attempt

    stored: ClassVar[StorageRoles] = {"asker": _ASKER, "attempt": StorageRole("attempt")}

    partial_usage: ClassVar[ReadUsage | None] = attrgetter("asker", "attempt.usage")


@dataclass(slots=True, repr=False, eq=False)
class AnswerBegan(Record):
    """The first piece of an answer to the `asker` has arrived. Only observed or streamed runs have
    this record."""

    asker: Asker
    attempt: int
    """The number of the answer to this question, from 1. Incomplete answers count too."""


@dataclass(slots=True, repr=False, eq=False)
class FieldText(Record):
    """A new piece of text for a field that an LM fills. Append `delta` to the earlier text of
    `place`.

    Pieces arrive in batches. If the LM does not stream, all pieces arrive at once. The final value
    may differ from the text, because validators may change it. Fields with secrets have no pieces.
    Only observed or streamed runs have these records.
    """

    asker: Asker
    place: Place
    """The place of a string in the answer. Strings inside lists and objects have their own
    places."""
    delta: str
    """The decoded piece."""
    attempt: int
    """The number of the answer to the question."""


@dataclass(slots=True, repr=False, eq=False)
class Thinking(Record):
    """A new piece of a model's thinking before its answer, or of a summary of the thinking. Append
    `delta` to the earlier text of `place`.

    The thinking is not in the prompts of other nodes. Only observed or streamed runs have these
    records.
    """

    asker: Asker
    place: Place
    """The node that the LM fills. If it fills no node, the place of the asker."""
    delta: str
    attempt: int
    """The number of the answer to the question."""


@dataclass(slots=True, repr=False, eq=False)
class TextVoided(Record):
    """The text so far of `places` is void: discard it. The answer was wrong, the text was not part
    of the answer, or the request is sent again. The text of the next answer streams from the
    start."""

    asker: Asker
    places: tuple[Place, ...]
    attempt: int
    """The number of the answer up to which the text is void."""


@dataclass(slots=True, repr=False, eq=False)
class AnswerRestarted(Record):
    """A request failed with `error` and is sent again after `wait` seconds. If text has arrived, it
    is void, and a `TextVoided` before this record has its places."""

    asker: Asker
    error: BaseException
    wait: float
    model: str = ""
    """The LM that a `Fallback` asks now. Empty if the same LM is asked again."""

    stored: ClassVar[StorageRoles] = {
        "asker": _ASKER,
        "error": StorageRole("error"),
        "wait": _NUMBER,
        "model": _TEXT_IF_ANY,
    }


@dataclass(slots=True, repr=False, eq=False)
class LMAnswered(Record):
    """An LM has answered a question of a written body or a dependency. Only runs with a journal
    write this record."""

    asker: Asker
    method: LMMethod
    """The method of the LM that was called."""
    asked: str
    """A hash of the question."""
    target: str
    """The name of the class to build. Empty for a choice."""
    value: Node | type[Node] | type[None] | None
    """The return value of the method."""
    number: int | None = None
    """The number of the question among equal questions of the asker, from 0. None in an old
    journal."""

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {
        "asker": _ASKER,
        "method": _json(LMMethod),
        "asked": _TEXT,
        "target": _TEXT,
        "number": _json(int | None, None, is_omitted=False),
        "value": StorageRole("answer"),
    }

    def conversation(self, target: str) -> str:
        """Return the key of the conversation with tools in which the LM fills a `target`. The key
        is unique among the conversations of the asker."""
        return f"{self.asked}:{self.number}:{target}"


@dataclass(slots=True, repr=False, eq=False)
class LMFailed(Record):
    """A question of a written body to an LM failed with `error`. A replay raises the error again,
    because the body may have caught it.

    The other attributes are as in `LMAnswered`.
    """

    asker: Asker
    method: LMMethod
    asked: str
    target: str
    error: BaseException
    number: int | None = None

    stored: ClassVar[StorageRoles] = {
        "asker": _ASKER,
        "method": _json(LMMethod),
        "asked": _TEXT,
        "target": _TEXT,
        "number": _json(int | None, None, is_omitted=False),
        "error": StorageRole("error"),
    }


@dataclass(slots=True, repr=False, eq=False)
class LMUsed(Record):
    """LM calls of a written body or a dependency, or failed LM calls, have used `usage`."""

    asker: Asker
    usage: Usage

    stored: ClassVar[StorageRoles] = {"asker": _ASKER, "usage": _USAGE}


_QUESTION: Final = {"asker": _ASKER, "question": _TEXT_IF_ANY}


def _lm_text(type: Any, default: Any) -> StorageRole:
    """Return the role of a text from or for an LM. A journal withholds the text if it may contain a
    secret."""
    return StorageRole("said", type, default)


def _call_data(type: Any, default: Any = NOTHING) -> StorageRole:
    """Return the role of the arguments or the result of a tool. The record has masks in place of
    secrets."""
    return StorageRole("called", type, default)


@dataclass(slots=True, repr=False, eq=False)
class ToolsOffered(Record):
    """A conversation with tools begins, or continues in another process."""

    asker: Asker
    target: str
    """The name of the node class that the LM fills."""
    field: str
    """The field of the class that gets the tool calls."""
    tools: tuple[dict[str, Any], ...]
    """The name, the description and the schema of each tool."""
    asked: str = ""
    """The text of the question, if the LM is a backend."""
    question: str = ""
    """Identifies the conversation among the conversations of one body or function."""

    stored: ClassVar[StorageRoles] = {
        **_QUESTION,
        "target": _TEXT,
        "field": _TEXT,
        "tools": StorageRole("tools"),
        "asked": StorageRole("asked", str, ""),
    }


@dataclass(slots=True, repr=False, eq=False)
class RoundMade(Record):
    """The LM has answered in round `number` of a conversation with tools, with tool calls or with
    an answer."""

    asker: Asker
    number: int
    text: str
    """The text of the answer."""
    calls: tuple[dict[str, Any], ...]
    """The id, the name and the arguments of each tool call."""
    usage: Usage
    echo: Any = None
    """Data that the backend must send back to the provider in the next round."""
    ran: tuple[dict[str, Any], ...] = ()
    """The calls that the provider itself has run, with their results."""
    question: str = ""
    """Identifies the conversation among the conversations of one body or function."""
    withheld: bool = False
    """Whether the text was not stored because it may contain a secret, or a redaction has removed
    the text and the arguments."""
    stop: Literal["", "cut-off", "refused"] = ""
    """The reason why the answer did not end normally. Empty if it did."""

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {
        **_QUESTION,
        "number": _json(int),
        "text": _lm_text(str, ""),
        "calls": StorageRole("calls", default=()),
        "usage": _USAGE,
        "echo": StorageRole("echo", Any, None),
        "ran": StorageRole("calls", default=()),
        "withheld": _json(bool, False),
        "stop": _json(Literal["", "cut-off", "refused"], ""),
    }

    partial_usage: ClassVar[ReadUsage | None] = attrgetter("asker", "usage")


@dataclass(slots=True, repr=False, eq=False)
class ToolStarted(Record):
    """The run is about to call a tool, for the LM's tool call `id`."""

    asker: Asker
    id: str
    name: str
    arguments: dict[str, Any]
    question: str = ""

    loop_part: ClassVar[str] = "started"
    """The part of a `bae.work.ToolLoop` that contains the record, by id."""
    stored: ClassVar[StorageRoles] = {
        **_QUESTION,
        "id": _TEXT,
        "name": _TEXT,
        "arguments": _call_data(dict[str, Any]),
    }


@dataclass(slots=True, repr=False, eq=False)
class ToolReported(Record):
    """A tool has reported its progress. Journals do not store this record."""

    asker: Asker
    id: str
    text: str
    done: float | None = None
    total: float | None = None
    question: str = ""

    loop_part: ClassVar[str] = "reports"
    """The part of a `bae.work.ToolLoop` that contains the record, by id."""


@dataclass(slots=True, repr=False, eq=False)
class ToolEnded(Record):
    """A tool call of the LM has ended with a result or an error."""

    asker: Asker
    id: str
    name: str
    arguments: dict[str, Any]
    result: Any
    error: str | None
    """The error that the LM reads. None if the call has a result."""
    seconds: float
    reused: str = ""
    """The id of the equal call whose result is used again. Empty if there is no such call."""
    question: str = ""

    loop_part: ClassVar[str] = "ended"
    """The part of a `bae.work.ToolLoop` that contains the record, by id."""
    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {
        **_QUESTION,
        "id": _TEXT,
        "name": _TEXT,
        "arguments": _call_data(dict[str, Any]),
        "seconds": _NUMBER,
        "reused": _TEXT_IF_ANY,
        "error": _call_data(str | None, None),
        "result": _call_data(Any, None),
    }


@dataclass(slots=True, repr=False, eq=False)
class RoundReplied(Record):
    """An event after round `number` of a conversation with tools, besides the results of its calls.
    The LM reads the `text`, if there is one.

    - "correction": the answer of the LM is invalid. The text has the errors.
    - "refused": `accept` has refused the answer. The text has the reason.
    - "told": a person has sent the text.
    - "steered": `before_round` has returned the text.
    - "accepted": the answer is accepted, and the conversation ends.
    - "cut": the results of the rounds up to this round are left out of the conversation.
    """

    asker: Asker
    number: int
    kind: Literal["correction", "refused", "told", "steered", "accepted", "cut"]
    text: str = ""
    question: str = ""

    stored: ClassVar[StorageRoles] = {
        **_QUESTION,
        "number": _json(int),
        "kind": _json(Literal["correction", "refused", "told", "steered", "accepted", "cut"]),
        "text": _lm_text(str, ""),
    }


ConversationRecord = (
    ToolsOffered | RoundMade | ToolStarted | ToolReported | ToolEnded | RoundReplied
)
"""A record of a conversation with tools."""


@dataclass(slots=True, repr=False, eq=False)
class RunEnded(Record):
    """A run, or a graph inside a run, has ended or stopped."""

    outcome: Outcome
    node: Node | None = None
    """The last node, if the outcome is "ended"."""
    error: BaseException | None = None
    """The error, if the outcome is "failed" or "cancelled"."""
    gates: tuple[OpenGate, ...] = ()
    """The gates without an answer, if the outcome is "waiting"."""

    stored: ClassVar[StorageRoles] = {
        "outcome": _json(Outcome),
        "node": StorageRole("last node"),
        "gates": StorageRole("gates"),
        "error": StorageRole("error", default=None),
    }


KINDS: Final = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
}
"""The classes of records, by name."""


def kinds_with(*roles: str) -> tuple[type[Record], ...]:
    """Return the kinds of records that store an attribute with one of these roles."""
    return tuple(
        kind for kind in KINDS.values() if any(role.name in roles for role in kind.stored.values())
    )
