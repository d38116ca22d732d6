"""The sources of field values. `FieldPlan` has the methods that the program calls for every source.
Each module of this package implements them for one kind of source; no other module tells kinds
apart."""

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
    recalled_behind,
    siblings_of,
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
"""How pictures and timelines show the source of a value: every palette has these keys."""


class Told(NamedTuple):
    """The facts about a value from a source, for the words about it."""

    by: str
    """The function, the graph, the question, or the place where the value was found."""
    items: int = 0
    is_inside: bool = False
    """Whether a graph inside the run computed it."""
    is_repeated: bool = False
    """Whether the function was called before, for another field."""
    took: str = ""
    """The time it took, with a comma before it."""


class FieldPlan:
    """One field: its source, and the values that it accepts.

    Properties that all fields of a kind share are attributes of the class: runs are also read
    without their code, by the name of the kind.
    """

    __slots__ = ("annotation", "bound", "call", "info", "marker", "name", "required", "waits_for")

    kind: ClassVar[str]
    """The name of the kind in records, journals and shapes of graphs."""
    fills: ClassVar[Literal["json", "text", "calls", "source"]] = "source"
    """What supplies the value, unless the caller or a body gives it: the LM's answer, in JSON or as
    text; the tool calls that the LM makes before it; or a source."""
    stored: ClassVar[Literal["node", "answer", "call", "items", "origin", "turns"]] = "call"
    """How a journal stores the value: with the node, or in a line of its own. The line has a
    person's answer, the result of a call, items, the place where the value was found, or the runs
    of a thread."""
    is_called: ClassVar[bool] = False
    """Whether every field of the kind has a `call`."""
    is_remade: ClassVar[bool] = True
    """Whether a value that no journal can store is computed, or found, again on resume."""
    is_recallable: ClassVar[bool] = True
    """Whether a `Recall` finds the value."""
    is_immediate: ClassVar[bool] = False
    """Whether `find` has the value without waiting."""
    starts_early: ClassVar[bool] = False
    """Whether work on the value may start while the previous node is still being filled."""
    is_turns: ClassVar[bool] = False
    """Whether an LM reads the value as earlier turns of a conversation, not as JSON."""
    asks_person: ClassVar[bool] = False
    """Whether a person supplies the value."""
    noun: ClassVar[str]
    """The source of such a field, as `a Dep`."""
    style: ClassVar[Style] = "call"
    began: ClassVar[str] = "called"
    """The log text when work on the value starts; empty if it is logged later."""
    invalid: ClassVar[tuple[type[FieldError], str]]
    """The error code for a value of the source that the node refuses."""
    invalid_fix: ClassVar[str] = "return what the field declares, or declare what is returned"

    turns_read: float = 0
    """How many earlier turns of the thread the value may have."""
    turn_calls_read: bool = False
    """Whether it has the tool calls of these turns too."""
    question: str = ""
    """The question to a person."""
    items_at_once: int = 1
    """How many items of the value are computed at the same time, at most."""
    items_of: str = ""
    """The field of the node with one entry for each item of the value; empty for none."""
    is_shared: bool = False
    """Whether all that ask for the same value in a run share one call."""
    is_of_app: bool = False
    """Whether all runs of an app share one value."""
    provider_tools: tuple[str, ...] = ()
    """The names of the tools that the provider of the LM must have."""
    tool_specs: tuple[ToolSpec, ...] = ()
    """The descriptions for the model of the tools that are known before a run."""
    tool_names: tuple[str, ...] = ()
    """The names of the tools, as far as they are known before a run."""
    shows_results: bool = False
    """Whether later questions show the results of tool calls in the value too."""
    has_secret_arguments: bool = False
    """Whether an LM passes a secret to a tool."""
    finds_tools: bool = False
    """Whether a run may find more tools for the LM than are known before."""
    is_parsed: bool = False
    """Whether the value is parsed from the LM's answer, instead of being the answer."""

    name: str
    info: FieldInfo
    marker: Any
    call: CallPlan | None
    """The call that computes the value."""
    bound: Bound
    """The parameters of the call that the marker binds."""
    annotation: Any
    required: bool
    waits_for: tuple[str, ...]
    """The fields of the node whose values it needs."""

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
        """Plan a field. Names may be missing and graphs unfinished: nothing is raised, and no graph
        is examined."""
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
        """Plan a parameter of a call that has the marker. Most markers are only for fields."""
        written = type(marker).__name__
        of.problems.append(
            an_error(
                "bae-dep-unfilled",
                f"{of.name}({name}) is annotated {written}, which only a node's field can be",
                f"put the {written} on a field of the node, and bind the parameter to it: "
                f'Dep({of.name}, {name}="…")',
            )
        )

    # The words about a source. A run that is read without its code needs only the class for them.

    @classmethod
    def sentence(cls, told: Told) -> str:
        """The origin of a value, for `why`: `from get_weather()`."""
        return f"from the graph {told.by}" if told.is_inside else f"from {told.by}()"

    @classmethod
    def phrase(cls, told: Told) -> str:
        """The origin of a value, in words beside the value."""
        return f"{told.by}, called before" if told.is_repeated else f"{told.by}{told.took}"

    @classmethod
    def row(cls, told: Told) -> str:
        """The source of a value, in a row of a timeline."""
        return told.by

    def schema_words(self) -> str:
        """The source in the schema of a node. It is hashed into saved prompts: never change it."""
        return f" from {'' if self.call is None else self.call.name}"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        """The origin of the value of a field of `cls`, in a picture. `before` has the plans that
        lead to each class of the graph; None if another graph is around it."""
        return call_chain(self)

    def takes_answer(self, gate: OpenGate) -> bool:
        """Whether a person's answer to a gate is for this field."""
        return self.asks_person and not gate.parameter

    def answer_type(self, tool: str, names: int) -> Any:
        """The type of a person's answer. For a question about a call of a `tool`, `names` is how
        many names its place has after the field."""
        return self.annotation

    def check_answer(self, cls: type[Node], gate: OpenGate, value: Any) -> Any:
        """A person's answer in the form in which it is stored. Raises the error with which the
        field of `cls`, or pydantic, refuses it."""
        validate_values(cls, {self.name: value})
        return value

    @property
    def is_provisional(self) -> bool:
        """Whether a name is missing in the call for the value; it may be defined later."""
        return self.call is not None and lacks_name(self.call)

    @property
    def may_wait(self) -> bool:
        """Whether a person may have to answer before the value is known."""
        graphs = [call.graph for call in every_call(self.call) if call.graph is not None]
        return self.asks_person or any(plan_of_graph(graph).asks_person for graph in graphs)

    @property
    def depends_on_run(self) -> bool:
        """Whether the value may depend on the place in the run that asks for it: on its arguments,
        on values that a graph recalls from the run around it, or on an LM's answers to a function,
        which may recall too. The call, or any call below it, may be the cause."""
        return is_by_value(self) or any(
            call.lm_parameters or (call.graph is not None and plan_of_graph(call.graph).recalls)
            for call in every_call(self.call)
        )

    def recalls(self) -> Iterator[tuple[str, Hashable, RecallField]]:
        """The look-ups in the trace for the value: the path to the parameter, as `(hits)(query)`,
        or empty for the field itself; a key; and the look-up."""
        return recalled_behind(self)

    def draw(self) -> dict[str, Any]:
        """The details of the field in the shape of a graph, besides those of every field. For
        stored runs, another key or value is a change of the class."""
        return {}

    def problems(self, plan: NodePlan) -> Iterable[Problem]:
        """The problems that the proof reports of the field without the graph around its node."""
        return ()

    def argument_problems(self, plan: NodePlan) -> Iterable[Problem]:
        """The problems among these that are about the arguments of the call."""
        return ()

    def fill_problems(self, plan: NodePlan) -> Iterable[Problem]:
        """The problems that the proof reports of a field if an LM fills its node."""
        return ()

    def given_problems(self) -> Iterable[Problem]:
        """The problems that the proof reports of a field of a start node that no LM fills."""
        return ()

    def read_text(self, text: str) -> Any:
        """The value for an answer in plain text."""
        return text

    def find(self, run: Run, node_type: type[Node], place: Place) -> tuple[Any, Found] | None:
        """The value of an immediate source, and its record; None if there is no value."""
        raise NotImplementedError(self.kind)

    def shown_turns(self, known: Messages, count: int, omitted: int) -> Messages | None:
        """The value that the field had, from the number of its turns. None if the field no longer
        has turns, or if there are fewer turns."""
        return None

    def missing(self, run: Run, node_type: type[Node], place: Place) -> BaeError:
        """The error of an immediate source that finds nothing, and has no default."""
        raise NotImplementedError(self.kind)

    def comes_from(self, node_type: type[Node]) -> str | None:
        """The field that the value comes from if the previous node is of this class; an empty text
        is the node itself. None if it may come from elsewhere."""
        return None

    def take(
        self,
        run: Run,
        node_type: type[Node],
        place: Place,
        is_recorded: bool = True,
        records: list[Found] | None = None,
    ) -> tuple[Any, ...]:
        """The value of an immediate source, recorded for its place; empty if its default is used.
        Raises `missing` if there is neither. The record is added to `records`."""
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
        """Start the work on the value of a source that is not immediate."""
        raise NotImplementedError(self.kind)


def lacks_name(call: CallPlan | None) -> bool:
    """Whether a name is missing in a call, or in a call that it waits for."""
    every = (problem for each in every_call(call) for problem in each.problems)
    return any(problem.code == HintError.code for problem in every)


def lack_names(fields: Iterable[FieldPlan]) -> bool:
    """Whether a name is missing in the calls of fields."""
    return any(field.is_provisional for field in fields)


STARTED: Final = ("dep", "map", "gate")
"""The names of the kinds with records when their work starts and when it ends."""
KINDS: Final = ("plain", "recall", "tools", "thread", *STARTED)
"""The names of all kinds, as in records, journals and shapes."""
_loaded: dict[str, type[FieldPlan]] = {}


def kind_of(marker: Marker | None) -> type[FieldPlan]:
    """The class of the fields with a marker, or without any."""
    return _load("plain" if marker is None else marker.planned_by)


def kind_named(name: str) -> type[FieldPlan]:
    """The class of the fields of a kind. Raises `JournalError` if this version has none."""
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
    """The class in the module of a kind, which is loaded when it is first used."""
    kind = _loaded.get(name)
    if kind is None:
        module = import_module(f"bae.sources.{name}")
        kind = _loaded[name] = getattr(module, f"{name.title()}Field")
    return kind
