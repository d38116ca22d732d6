"""The records that a run writes: one small record for each event, in order. Progress displays,
results and usage read them; there is no second account."""

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
    """Who asks the LM: the `fill` of a node, the `choice` after a node, the `body` of a node, or a
    `source`, which is the function behind a field, or behind a `parameter` of that function. `item`
    is the number of the item that the function of a map is called for."""

    kind: Literal["fill", "choice", "body", "source"]
    node: type[Node]
    field: str = ""
    parameter: str = ""
    item: int | None = None

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


class Unstored:
    """Stands in a record for a value that no journal stores: `LIVE` or `WITHHELD`."""

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
"""Stands for a place without a record, since None may be a value, or the end."""

LIVE: Final = Unstored("<live: made again on resume>")
"""The value of a dependency that no journal can store."""
WITHHELD: Final = Unstored("<withheld: a secret>")
"""A secret that was not stored."""


WITHHELD_MESSAGE: Final = "withheld"
"""The message of an error that may quote a secret, after the place of the error if it has one."""


class RecordedError(Exception):
    """Stands for the exception that was raised, in a record that was read from a journal.
    `type_name` is the name of its class, and `code` its code if it was an error of bae."""

    def __init__(self, type_name: str, message: str, code: str | None = None) -> None:
        super().__init__(type_name, message, code)
        self.type_name = type_name
        self.message = message
        self.code = code

    @property
    def is_withheld(self) -> bool:
        """Whether the message was not stored."""
        return self.message.rpartition(": ")[2] == WITHHELD_MESSAGE

    def __str__(self) -> str:
        code = f"[{self.code}] " if self.code else ""
        return f"{code}{self.type_name}: {self.message}" if self.message else self.type_name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


def error_text(error: BaseException) -> str:
    """One line for the error of a record: its type and its message."""
    if isinstance(error, RecordedError):
        return f"{error.type_name}: {error.message}" if error.message else error.type_name
    message = text_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class StorageRole(NamedTuple):
    """How an attribute of a record is stored. The journal has a function that writes and a function
    that reads each role, by `name`. Plain JSON has the `type` of the value. A line that leaves the
    attribute out has the `default`; it is left out if `is_omitted` and the value is the default."""

    name: str
    type: Any = None
    default: Any = NOTHING
    is_omitted: bool = True


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
    """The attributes that all records share.

    `at` is the wall-clock time in seconds. `step` counts the nodes of the (sub)graph. `path` is
    empty in the run itself. For a graph inside the run, it is the place that the graph runs for, as
    in `2:Report.summaries[3]`: step 2, field `summaries` of `Report`, item 3.
    """

    at: float
    path: str
    step: int

    stored: ClassVar[StorageRoles] = {}
    """The attributes that a journal stores, or restores from stored attributes, in the order of a
    line. Empty for a kind that is not stored."""

    partial_usage: ClassVar[ReadUsage | None] = None
    """Reads the asker of a question and the usage of one answer from a record, if a later record
    has the usage of all answers."""

    is_progress: ClassVar[bool] = False
    """Whether the record is progress of the run: a resumed run does not write it again."""

    # Written by hand, not generated for each kind: that would double the time to load the module.
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__qualname__}({shown})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)


@dataclass(slots=True, repr=False, eq=False)
class RunStarted(Record):
    """A run, or a graph inside it, begins at `node`."""

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
    """`node` is complete, in the trace, and about to be called. `made` are the fields with a source
    that a default factory filled instead; only runs with a journal record them."""

    node: Node
    made: tuple[str, ...] = ()

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {"node": StorageRole("step node")}


@dataclass(slots=True, repr=False, eq=False)
class Returned(Record):
    """The written body of the node at `step` has returned `node`, which is not complete yet or is
    one node too many. Only runs with a journal write it; others have the next `StepStarted`."""

    node: Node

    is_progress: ClassVar[bool] = True
    stored: ClassVar[StorageRoles] = {"node": _NODE}


@dataclass(slots=True, repr=False, eq=False)
class RunResumed(Record):
    """An interrupted run is resumed by `owner`; `changes` lists what has changed in its classes
    since."""

    owner: str
    changes: tuple[str, ...] = ()

    stored: ClassVar[StorageRoles] = {"owner": _TEXT, "changes": _TEXTS}


@dataclass(slots=True, repr=False, eq=False)
class RunForked(Record):
    """A fork begins. It shares the records before this record with the run `parent`, and continues
    at `node`, in which the fields `changed` have new values."""

    parent: str
    node: Node
    changed: tuple[str, ...] = ()

    stored: ClassVar[StorageRoles] = {"parent": _TEXT, "node": _NODE, "changed": _TEXTS}


@dataclass(slots=True, repr=False, eq=False)
class SourceStarted(Record):
    """Work on a value for a field begins: `by` names the function, graph or question."""

    node_type: type[Node]
    field: str
    source: str
    by: str
    parameter: str = ""
    """The parameter that gets the value, if the field itself does not: `(place)` of the field's
    function, or further down, `(place)(client)`."""

    stored: ClassVar[StorageRoles] = _OF_SOURCE


@dataclass(slots=True, repr=False, eq=False)
class SourceEnded(Record):
    """The value of a field is computed, or `error` has the reason why not."""

    node_type: type[Node]
    field: str
    source: str
    by: str
    seconds: float
    value: Any = None
    error: BaseException | None = None
    parameter: str = ""
    called_at: str = ""
    """The place that the function was called for, if it was another place: a run calls a function
    once for equal arguments."""

    stored: ClassVar[StorageRoles] = {
        **_OF_SOURCE,
        "seconds": _NUMBER,
        "value": StorageRole("outcome"),
    }


@dataclass(slots=True, repr=False, eq=False)
class CallEnded(Record):
    """A function that the run calls once has returned a value for a field of `node_type`. That is a
    class outside the graph: a body or a function asks an LM to fill it.

    `place` is another user of the function, in the `graph` of that name. If no graph of the run
    uses it, `function` is its module and name. `arguments` is a hash of the arguments that come
    from the run. Only journals have this record; the log of a run has a `SourceEnded`.
    """

    node_type: type[Node]
    field: str
    by: str
    seconds: float
    value: Any = None
    parameter: str = ""
    graph: str = ""
    place: str = ""
    function: str = ""
    arguments: str = ""
    key: Hashable = None
    """Identifies the function among the functions of the graph; not stored."""

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
    """A body or a function asks an LM about `node_type`, a class outside the graph that holds a
    secret. Questions of bodies and functions from here on, and their answers, are not shown."""

    node_type: type[Node]

    stored: ClassVar[StorageRoles] = {"node_type": StorageRole("secret class")}


@dataclass(slots=True, repr=False, eq=False)
class ItemEnded(Record):
    """One item of a `Map` is finished."""

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
    """Where in the trace a recalled value was found."""

    path: str
    step: int
    field: str


@dataclass(slots=True, repr=False, eq=False)
class Recalled(Record):
    """A value was found in the trace: in the field `origin.field` of the node at `origin.step`, in
    the run or the graph inside it at `origin.path`. An empty field is the node itself."""

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
    """The run begins as a turn of a thread, after the run `previous`; empty for the first turn.
    `number` counts the turns before it."""

    previous: str
    number: int

    stored: ClassVar[StorageRoles] = {"previous": _RUN_ID_IF_ANY, "number": _json(int)}


@dataclass(slots=True, repr=False, eq=False)
class TurnsShown(Record):
    """A field has the earlier turns of the thread: the turns of `count` runs, from `first` to
    `last`. `omitted` turns come before these. Journals store only the runs, not their texts."""

    node_type: type[Node]
    field: str
    value: Any
    first: str = ""
    last: str = ""
    count: int = 0
    omitted: int = 0

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
        """None: the value does not come from the trace."""
        return None

    @property
    def parameter(self) -> str:
        """Empty: it is the value of a field."""
        return ""


Found = Recalled | TurnsShown
"""The record of a value that is found at once."""


@dataclass(slots=True, repr=False, eq=False)
class GateOpened(Record):
    """A person is asked."""

    gate: OpenGate

    stored: ClassVar[StorageRoles] = {"gate": StorageRole("gate")}


@dataclass(slots=True, repr=False, eq=False)
class ChoiceStarted(Record):
    """The LM is asked to choose the successor of `node`."""

    node: Node
    offered: tuple[type[Node] | type[None], ...]

    stored: ClassVar[StorageRoles] = {
        "node": StorageRole("previous node"),
        "offered": StorageRole("classes"),
    }


@dataclass(slots=True, repr=False, eq=False)
class ChoiceMade(Record):
    """The LM has chosen."""

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
    """The LM is asked to fill a `target`, with `resolved` as its context."""

    target: type[Node]
    resolved: dict[str, Any]

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
    """The LM has answered the `asker`, and the answer was found valid or not."""

    asker: Asker
    attempt: Attempt

    stored: ClassVar[StorageRoles] = {"asker": _ASKER, "attempt": StorageRole("attempt")}

    partial_usage: ClassVar[ReadUsage | None] = attrgetter("asker", "attempt.usage")


@dataclass(slots=True, repr=False, eq=False)
class AnswerBegan(Record):
    """The first piece of an answer to the `asker` has arrived. `attempt` counts the answers to the
    question from 1, including incomplete answers. Only observed or streamed runs have it."""

    asker: Asker
    attempt: int


@dataclass(slots=True, repr=False, eq=False)
class FieldText(Record):
    """A piece of the text of a field that an LM fills, decoded: append `delta` to the text of
    `place` so far. Each string of an answer has a place, including strings inside lists and
    objects.

    Pieces arrive in batches; if the LM does not stream, all at once. `attempt` is the number of the
    answer. The final value may differ, since validators may change it. Fields that may not be shown
    have no pieces. Only observed or streamed runs have these records.
    """

    asker: Asker
    place: Place
    delta: str
    attempt: int


@dataclass(slots=True, repr=False, eq=False)
class Thinking(Record):
    """A piece of a model's thinking before it answers, or of a summary of it: append `delta` to the
    text of `place`. That is the node that is filled, otherwise the place that asks. No prompt of
    another node has it. Only observed or streamed runs have these records.
    """

    asker: Asker
    place: Place
    delta: str
    attempt: int


@dataclass(slots=True, repr=False, eq=False)
class TextVoided(Record):
    """The text of `places` up to this `attempt` is void: the request is sent again, the answer was
    wrong, or the text was not part of it. The text of the next answer streams again."""

    asker: Asker
    places: tuple[Place, ...]
    attempt: int


@dataclass(slots=True, repr=False, eq=False)
class AnswerRestarted(Record):
    """A request failed with `error` and is sent again after `wait` seconds. Text that has arrived
    is void: a `TextVoided` before this record has its places. `model` is the LM that a `Fallback`
    asks now; empty if the same LM is asked again."""

    asker: Asker
    error: BaseException
    wait: float
    model: str = ""

    stored: ClassVar[StorageRoles] = {
        "asker": _ASKER,
        "error": StorageRole("error"),
        "wait": _NUMBER,
        "model": _TEXT_IF_ANY,
    }


@dataclass(slots=True, repr=False, eq=False)
class LMAnswered(Record):
    """An LM that a written body or a dependency asks has answered.

    `method` is the method of the LM that was called, and `asked` a hash of the question. `target`
    is the name of the class to build, empty for a choice. `value` is the returned node, class or
    None. `number` counts the equal questions of one asker, in the order in which they were asked;
    None in a journal that does not number them. Only runs with a journal write it.
    """

    asker: Asker
    method: LMMethod
    asked: str
    target: str
    value: Node | type[Node] | type[None] | None
    number: int | None = None

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
        """The key of the conversation with tools in which the LM fills a `target`, among the
        conversations of the asker."""
        return f"{self.asked}:{self.number}:{target}"


@dataclass(slots=True, repr=False, eq=False)
class LMFailed(Record):
    """A question of a written body to an LM failed with `error`, which the body may have caught: a
    replay raises it again. The other attributes are those of `LMAnswered`."""

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
    """The usage of LM calls that a written body or a dependency made, or that failed."""

    asker: Asker
    usage: Usage

    stored: ClassVar[StorageRoles] = {"asker": _ASKER, "usage": _USAGE}


_QUESTION: Final = {"asker": _ASKER, "question": _TEXT_IF_ANY}


def _lm_text(type: Any, default: Any) -> StorageRole:
    """A text from or for an LM: not stored if it may contain a secret."""
    return StorageRole("said", type, default)


def _call_data(type: Any, default: Any = NOTHING) -> StorageRole:
    """The arguments or the result of a tool: the writer has masked secrets in it."""
    return StorageRole("called", type, default)


@dataclass(slots=True, repr=False, eq=False)
class ToolsOffered(Record):
    """A conversation with tools begins, or continues in another process. The `asker` has the LM
    fill a `target`, whose `field` gets the calls. `question` tells the questions of one body or
    function apart. `tools` have the name, the description and the schema of each tool. `asked` is
    the text of the question, if the LM is a backend."""

    asker: Asker
    target: str
    field: str
    tools: tuple[dict[str, Any], ...]
    asked: str = ""
    question: str = ""

    stored: ClassVar[StorageRoles] = {
        **_QUESTION,
        "target": _TEXT,
        "field": _TEXT,
        "tools": StorageRole("tools"),
        "asked": StorageRole("asked", str, ""),
    }


@dataclass(slots=True, repr=False, eq=False)
class RoundMade(Record):
    """The LM has answered in round `number` of a conversation with tools: with `calls`, each with
    its id, name and arguments, or with an answer in `text`. `echo` is data that its backend needs
    back after calls, and `ran` are calls that the provider has run itself, with their results.
    `withheld` is True if the text was not stored because it may contain a secret, or if a redaction
    has removed the text and the arguments. `stop` is "cut-off" or "refused" if the answer did not
    end normally.
    """

    asker: Asker
    number: int
    text: str
    calls: tuple[dict[str, Any], ...]
    usage: Usage
    echo: Any = None
    ran: tuple[dict[str, Any], ...] = ()
    question: str = ""
    withheld: bool = False
    stop: Literal["", "cut-off", "refused"] = ""

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
    """A tool is about to be called, for the call `id` of the LM."""

    asker: Asker
    id: str
    name: str
    arguments: dict[str, Any]
    question: str = ""

    kept_in: ClassVar[str] = "started"
    stored: ClassVar[StorageRoles] = {
        **_QUESTION,
        "id": _TEXT,
        "name": _TEXT,
        "arguments": _call_data(dict[str, Any]),
    }


@dataclass(slots=True, repr=False, eq=False)
class ToolReported(Record):
    """A tool reports its progress. Not stored."""

    asker: Asker
    id: str
    text: str
    done: float | None = None
    total: float | None = None
    question: str = ""

    kept_in: ClassVar[str] = "reports"


@dataclass(slots=True, repr=False, eq=False)
class ToolEnded(Record):
    """A call of the LM has its result, or an error that the LM reads. `error` is None if there is a
    result. `reused` names the equal call whose result this is."""

    asker: Asker
    id: str
    name: str
    arguments: dict[str, Any]
    result: Any
    error: str | None
    seconds: float
    reused: str = ""
    question: str = ""

    kept_in: ClassVar[str] = "ended"
    """The part of a `bae.work.ToolLoop` that holds the record, by id."""
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
    """A message that the LM reads after round `number`, besides the results of its calls.

    A "correction" says what is wrong with its answer, "refused" why `accept` refused it, "told" is
    a message of a person, "steered" a text of `before_round`, and "accepted" ends the conversation.
    "cut" leaves the results of the rounds up to this round out of the conversation.
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
    """A run, or a graph inside it, is over."""

    outcome: Outcome
    node: Node | None = None
    error: BaseException | None = None
    gates: tuple[OpenGate, ...] = ()

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
"""All kinds of records, by name."""


def kinds_with(*roles: str) -> tuple[type[Record], ...]:
    """The kinds that store an attribute in one of these roles."""
    return tuple(
        kind for kind in KINDS.values() if any(role.name in roles for role in kind.stored.values())
    )
