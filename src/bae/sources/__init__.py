"""The sources of field values. The rest of bae calls the methods of `FieldPlan` for every source.
Each module of this package implements these methods for one kind of source."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic.fields import FieldInfo

from bae.calls import (
    Bound,
    CallPlan,
    CallPlanning,
    call_chain,
    every_call,
    is_by_value,
    siblings_of,
    walk_recalls,
)
from bae.draft import validate_values
from bae.exceptions import BaeError, FieldError, HintError, JournalError, Problem, an_error
from bae.graph_plan import plan_of_graph

if TYPE_CHECKING:
    from bae.hints import Names
    from bae.markers import Marker, OpenGate
    from bae.node import Node
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.prompts.messages import ToolSpec
    from bae.records import Found
    from bae.resolver import Resolution
    from bae.run import Run
    from bae.scheduling import PendingValue
    from bae.sources.recall import RecallField
    from bae.turns import Messages

    Before = dict[type[Node], list[NodePlan]]


Style = Literal["given", "trace", "call", "person", "items", "code", "llm"]
"""The style of a source in pictures and timelines. Every palette has these keys."""


class SourceFacts(NamedTuple):
    """The facts about a value that `FieldPlan.sentence`, `phrase` and `row` put into words."""

    by: str
    """The function, the graph, the question, or the place where the value was found."""
    items: int = 0
    """The number of items of a `Map`, or of tool calls."""
    is_inside: bool = False
    """Whether a graph inside the run computed the value."""
    is_repeated: bool = False
    """Whether bae called the function before, for another field."""
    took: str = ""
    """The duration of the work, as text that begins with a comma."""


class FieldPlan:
    """The plan of one field: its source, and the values that the field accepts.

    Properties that all fields of a kind share are class attributes. For a stored run whose code is
    missing, bae reads them from the class that `find_source_kind` returns for the kind in the
    journal.
    """

    __slots__ = ("annotation", "bound", "call", "info", "marker", "name", "required", "waits_for")

    kind: ClassVar[str]
    """The name of the kind in records, journals and graph shapes."""
    fills: ClassVar[Literal["json", "text", "calls", "source"]] = "source"
    """What supplies the value if neither the caller nor a body passes it. `json` and `text` are the
    LLM's answer in that form. `calls` are the tool calls that the LLM makes before its answer.
    `source` is the source of the field."""
    stored: ClassVar[Literal["node", "answer", "call", "items", "origin", "turns"]] = "call"
    """How a journal stores the value. With `node`, the value is stored in its node. With any other
    word, the value has a journal line of its own: a person's answer, the result of a call, the
    items of a `Map`, the place of a recalled value, or the ids of the runs with the first and the
    last turn."""
    is_called: ClassVar[bool] = False
    """Whether every field of this kind has a `call`."""
    is_remade: ClassVar[bool] = True
    """Whether resuming a run computes the value again if the journal could not store it."""
    is_recallable: ClassVar[bool] = True
    """Whether a `Recall` may find the value."""
    is_immediate: ClassVar[bool] = False
    """Whether `find` returns the value without waiting."""
    starts_early: ClassVar[bool] = False
    """Whether bae may start to compute the value while it still fills the previous node."""
    is_turns: ClassVar[bool] = False
    """Whether an LLM reads the value as earlier turns of a conversation, not as JSON."""
    asks_person: ClassVar[bool] = False
    """Whether a person supplies the value."""
    noun: ClassVar[str]
    """The source in messages, with an article, such as `a Dep`."""
    style: ClassVar[Style] = "call"
    began: ClassVar[str] = "called"
    """The log text when bae starts to compute the value. If empty, the start is not logged."""
    invalid: ClassVar[tuple[type[FieldError], str]]
    """The class and the code of the error for a value that the node rejects."""
    invalid_fix: ClassVar[str] = "return what the field declares, or declare what is returned"
    """The fix in the error for a value that the node rejects."""

    turns_read: float = 0
    """The maximum number of earlier turns that the value has."""
    turn_calls_read: bool = False
    """Whether the earlier turns in the value include their tool calls."""
    question: str = ""
    """The question that a person answers."""
    items_at_once: int = 1
    """The maximum number of items that are computed at the same time."""
    items_of: str = ""
    """The name of the field whose items a `Map` goes over. It is empty for other sources."""
    is_shared: bool = False
    """Whether all fields and parameters of a run share the call, if they need the same value."""
    is_of_app: bool = False
    """Whether all runs of an app share one value."""
    provider_tools: tuple[str, ...] = ()
    """The names of the tools that the LLM's provider must have."""
    tool_specs: tuple[ToolSpec, ...] = ()
    """The tools that are known before a run, as the model reads them."""
    tool_names: tuple[str, ...] = ()
    """The names of the tools that are known before a run."""
    shows_results: bool = False
    """Whether a later question that shows the value includes the results of its tool calls."""
    has_secret_arguments: bool = False
    """Whether the LLM passes a secret to a tool."""
    finds_tools: bool = False
    """Whether a run may find more tools than are known before the run."""
    is_parsed: bool = False
    """Whether a function makes the value from the text of the LLM's answer."""

    name: str
    info: FieldInfo
    marker: Any
    call: CallPlan | None
    """The call that computes the value."""
    bound: Bound
    """The parameters of the call that the marker binds, each with its field or recall."""
    annotation: Any
    required: bool
    waits_for: tuple[str, ...]
    """The names of the fields whose values the call needs, in the same node."""

    def __init__(
        self,
        name: str,
        info: FieldInfo,
        marker: Any = None,
        call: CallPlan | None = None,
        bound: Bound = (),
    ) -> None:
        self.name, self.info, self.marker, self.call, self.bound = name, info, marker, call, bound
        self.annotation = info.annotation
        self.required = info.is_required()
        self.waits_for = tuple([sibling for _, sibling in siblings_of(self)]) if bound else ()

    @classmethod
    def make(cls, name: str, info: FieldInfo, marker: Any, names: Names) -> Self:
        """Plan a field. This raises nothing and examines no graph, because names may still be
        missing and graphs may be unfinished."""
        return cls(name, info, marker)

    @classmethod
    def plan_parameter(
        cls,
        of: CallPlan,
        name: str,
        hint: Any,
        marker: Any,
        planning: CallPlanning,
        is_required: bool,
    ) -> None:
        """Plan a parameter of the call `of` that is annotated with the marker. If only fields may
        have the marker, add a problem to the call instead."""
        written = type(marker).__name__
        of.problems.append(
            an_error(
                "bae-dep-unfilled",
                f"{of.name}({name}) is annotated {written}, but only fields of nodes can be",
                f"put the {written} on a field of the node, and bind the parameter to it: "
                f'Dep({of.name}, {name}="…")',
            )
        )

    # These descriptions are class methods, because a run that is read without its code has no field
    # plans.

    @classmethod
    def sentence(cls, facts: SourceFacts) -> str:
        """Describe the origin of a value in a sentence of `why`, such as `from get_weather()`."""
        return f"from the graph {facts.by}" if facts.is_inside else f"from {facts.by}()"

    @classmethod
    def phrase(cls, facts: SourceFacts) -> str:
        """Describe the origin of a value in a few words, for a line that shows the value."""
        return f"{facts.by}, called before" if facts.is_repeated else f"{facts.by}{facts.took}"

    @classmethod
    def row(cls, facts: SourceFacts) -> str:
        """Name the source of a value in a row of a timeline."""
        return facts.by

    def describe_in_schema(self) -> str:
        """Describe the source in the schema of a node. The schema is hashed into saved prompts, so
        never change this text."""
        return f" from {'' if self.call is None else self.call.name}"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        """Describe the origin of a value in a picture of the graph. `before` has, for each class of
        the graph, the plans of the classes that can come before it. `before` is None for a graph
        that runs inside another graph."""
        return call_chain(self)

    def takes_answer(self, gate: OpenGate) -> bool:
        """Return whether a person's answer to the gate is for this field."""
        return self.asks_person and not gate.parameter

    def answer_type(self, tool: str, names: int) -> Any:
        """Return the type of a person's answer. `tool` is the tool that the question is about, if
        any. `names` is the number of parenthesized names in the place of the question: two in
        `Reply.calls(search)(shop)`."""
        return self.annotation

    def check_answer(self, cls: type[Node], gate: OpenGate, value: Any) -> Any:
        """Check a person's answer to a gate of `cls`, and return the value to store. An invalid
        answer raises the error of the field, or of pydantic."""
        validate_values(cls, {self.name: value})
        return value

    @property
    def is_provisional(self) -> bool:
        """Whether the call for the value needs a name that is not defined yet."""
        return self.call is not None and lacks_name(self.call)

    @property
    def may_wait(self) -> bool:
        """Whether the value may need the answer of a person, who may also be asked in a graph that
        the call runs."""
        graphs = [call.graph for call in every_call(self.call) if call.graph is not None]
        return self.asks_person or any(plan_of_graph(graph).asks_person for graph in graphs)

    @property
    def depends_on_run(self) -> bool:
        """Whether the value may differ between places in a run. It may differ if the call, or a
        call that it waits for, takes a value of the run, runs a graph that recalls values from
        outside, or asks an LLM. The LLM's answers may depend on recalled values too."""
        return is_by_value(self) or any(
            call.lm_parameters or (call.graph is not None and plan_of_graph(call.graph).recalls)
            for call in every_call(self.call)
        )

    def recalls(self) -> Iterator[tuple[str, Hashable, RecallField]]:
        """Return the lookups in the trace that the value needs. Each lookup has a path, a key that
        identifies the parameter, and a plan. The path leads to the parameter, as `(hits)(query)`.
        If the field itself is looked up, the path is empty, and the key is None."""
        return walk_recalls(self)

    def draw(self) -> dict[str, Any]:
        """Return the details that only this kind of field has in the shape of a graph. If a detail
        changes, stored runs see a changed class."""
        return {}

    def problems(self, plan: NodePlan) -> Iterable[Problem]:
        """Return the problems of the field that can be found without the graph."""
        return ()

    def argument_problems(self, plan: NodePlan) -> Iterable[Problem]:
        """Return only those `problems` that are about the arguments of the call."""
        return ()

    def fill_problems(self, plan: NodePlan) -> Iterable[Problem]:
        """Return further problems of the field, for a node that an LLM fills."""
        return ()

    def find_start_problems(self) -> Iterable[Problem]:
        """Return further problems of the field, for a start node that no LLM fills."""
        return ()

    def read_text(self, text: str) -> Any:
        """Return the value of the field for an answer in plain text."""
        return text

    def find(self, run: Run, node_type: type[Node], place: Place) -> tuple[Any, Found] | None:
        """Return the value of an immediate source with its record, or None if there is no value."""
        raise NotImplementedError(self.kind)

    def select_turns(self, known: Messages, count: int, omitted: int) -> Messages | None:
        """Return the value of the field in a stored run: the newest `count` of the `known` turns of
        the thread. `omitted` is the number of older turns that the value leaves out. Return None if
        the field no longer has a `Thread`, or if fewer than `count` turns are known."""
        return None

    def missing(self, run: Run, node_type: type[Node], place: Place) -> BaeError:
        """Return the error of an immediate source that finds no value for a required field."""
        raise NotImplementedError(self.kind)

    def comes_from(self, node_type: type[Node]) -> str | None:
        """Return the name of the previous node's field that supplies the value, if the previous
        node is a `node_type`. Return an empty name if the previous node is itself the value, and
        None if the value may come from elsewhere."""
        return None

    def take(
        self,
        run: Run,
        node_type: type[Node],
        place: Place,
        is_recorded: bool = True,
        records: list[Found] | None = None,
    ) -> tuple[Any, ...]:
        """Return the value of an immediate source in a tuple, or an empty tuple if the default is
        used. Without a value and a default, raise the error of `missing`. If `is_recorded`, write
        the record of the value. If there is a list of `records`, add the record to the list."""
        value = self.find(run, node_type, place)
        if value is not None:
            if records is not None:
                records.append(value[1])
            if is_recorded:
                run.writer.write(value[1])
            return (value[0],)
        if self.required:
            raise self.missing(run, node_type, place)
        return ()

    def start(self, at: Resolution, place: Place) -> PendingValue:
        """Start to compute the value of a source that is not immediate."""
        raise NotImplementedError(self.kind)


def lacks_name(call: CallPlan | None) -> bool:
    """Return whether a name is not defined yet for a call, or for a call that it waits for."""
    problems = (problem for below in every_call(call) for problem in below.problems)
    return any(problem.code == HintError.code for problem in problems)


def lack_names(fields: Iterable[FieldPlan]) -> bool:
    """Return whether a name is not defined yet for the call of any field."""
    return any(field.is_provisional for field in fields)


STARTED: Final = ("dep", "map", "gate")
"""The kinds that write one record when work starts and another when it ends."""
KINDS: Final = ("plain", "recall", "tools", "thread", *STARTED)
"""All kinds, by their names in records, journals and shapes."""
_loaded: dict[str, type[FieldPlan]] = {}


def kind_of(marker: Marker | None) -> type[FieldPlan]:
    """Return the class that plans fields with this marker. For None, return the class for fields
    without a marker."""
    return _load("plain" if marker is None else marker.planned_by)


def find_source_kind(name: str) -> type[FieldPlan]:
    """Return the class for a kind of field. Raise `JournalError` if this version of bae does not
    know the kind."""
    kind = _loaded.get(name)
    if kind is not None:
        return kind
    if name not in KINDS:
        raise JournalError(
            f"a field has the source {name!r}, which this version of bae does not know",
            code="bae-journal-version",
            fix="read the journal with the version of bae that wrote it, or a newer one",
        )
    return _load(name)


def _load(name: str) -> type[FieldPlan]:
    """Return the class for a kind of field, and import its module on first use."""
    kind = _loaded.get(name)
    if kind is None:
        module = import_module(f"bae.sources.{name}")
        kind = _loaded[name] = getattr(module, f"{name.title()}Field")
    return kind
