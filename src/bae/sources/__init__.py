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
    """Facts about a value from a source. The texts that describe the value are made from them."""

    by: str
    """The function, the graph, the question, or the place where the value was found."""
    items: int = 0
    is_inside: bool = False
    """Whether a graph inside the run computed it."""
    is_repeated: bool = False
    """Whether the function was called before, for another field."""
    took: str = ""
    """How long the work took, as a text that begins with a comma."""


class FieldPlan:
    """One field: its source, and the values that it accepts.

    Properties that all fields of a kind share are class attributes. A run can be read without its
    code: the journal has the name of the kind, which leads to the class.
    """

    __slots__ = ("annotation", "bound", "call", "info", "marker", "name", "required", "waits_for")

    kind: ClassVar[str]
    """The name of the kind in records, journals and shapes of graphs."""
    fills: ClassVar[Literal["json", "text", "calls", "source"]] = "source"
    """What supplies the value, unless the caller or a body gives it: the LM's answer, in JSON or as
    text; the tool calls that the LM makes before its answer; or a source."""
    stored: ClassVar[Literal["node", "answer", "call", "items", "origin", "turns"]] = "call"
    """How a journal stores the value: with the node, or in a line of its own. The line has a
    person's answer, the result of a call, items, the place where the value was found, or the runs
    of a thread."""
    is_called: ClassVar[bool] = False
    """Whether every field of the kind has a `call`."""
    is_remade: ClassVar[bool] = True
    """Whether resuming computes or finds a value again if a journal could not store it."""
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
    """The name of the source in messages, with its article, such as `a Dep`."""
    style: ClassVar[Style] = "call"
    began: ClassVar[str] = "called"
    """The log text when work on the value starts; empty if it is logged later."""
    invalid: ClassVar[tuple[type[FieldError], str]]
    """The class and code of the error for a value from the source that the node refuses."""
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
    """The field that a `Map` goes over: each entry of the field gives one item of the value. Empty
    for other sources."""
    is_shared: bool = False
    """Whether all fields and parameters that need the same value in a run share one call."""
    is_of_app: bool = False
    """Whether all runs of an app share one value."""
    provider_tools: tuple[str, ...] = ()
    """The names of the tools that the provider of the LM must have."""
    tool_specs: tuple[ToolSpec, ...] = ()
    """The tools that are known before a run, as they are described to the model."""
    tool_names: tuple[str, ...] = ()
    """The names of the tools, as far as they are known before a run."""
    shows_results: bool = False
    """Whether later questions that show the value also show the results of its tool calls."""
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
        """Plan a field. Names may still be missing, and graphs may be unfinished. So this raises
        nothing, and examines no graph."""
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
        """Plan a parameter with the marker. Most markers are only for fields: then the call gets a
        problem."""
        written = type(marker).__name__
        of.problems.append(
            an_error(
                "bae-dep-unfilled",
                f"{of.name}({name}) is annotated {written}, which only a node's field can be",
                f"put the {written} on a field of the node, and bind the parameter to it: "
                f'Dep({of.name}, {name}="…")',
            )
        )

    # Descriptions of a source. They are class methods: a run that is read without its code has no
    # plans of fields.

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
        """The origin of the value of a field of `cls`, in a picture. `before` has, for each class
        of the graph, the plans of the classes that can come before it. It is None if the graph runs
        inside another graph."""
        return call_chain(self)

    def takes_answer(self, gate: OpenGate) -> bool:
        """Whether a person's answer to a gate is for this field."""
        return self.asks_person and not gate.parameter

    def answer_type(self, tool: str, names: int) -> Any:
        """The type of a person's answer. If the question is about a call of `tool`, `names` is
        the number of names in parentheses after the field, in the place of the question."""
        return self.annotation

    def check_answer(self, cls: type[Node], gate: OpenGate, value: Any) -> Any:
        """Check a person's answer to a question of `cls`, and return it as it is stored. Raises
        the error of the field, or of pydantic, if the answer is refused."""
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
        """Whether the value may differ between places in the run. It may depend on arguments, on
        values that a graph recalls from the run around it, or on the answers of an LM that a
        function asks, since they may depend on recalled values too. The call and all calls below it
        are checked."""
        return is_by_value(self) or any(
            call.lm_parameters or (call.graph is not None and plan_of_graph(call.graph).recalls)
            for call in every_call(self.call)
        )

    def recalls(self) -> Iterator[tuple[str, Hashable, RecallField]]:
        """The lookups in the trace that the value needs. Each has a path, a key and the plan of
        the lookup. The path leads to a parameter, as `(hits)(query)`; it is empty for the field
        itself."""
        return recalled_behind(self)

    def draw(self) -> dict[str, Any]:
        """The details in the shape of a graph that only this kind of field has. If a detail
        changes, the class counts as changed for stored runs."""
        return {}

    def problems(self, plan: NodePlan) -> Iterable[Problem]:
        """The problems of the field that can be found without the graph of its node."""
        return ()

    def argument_problems(self, plan: NodePlan) -> Iterable[Problem]:
        """The part of `problems` that is about the arguments of the call."""
        return ()

    def fill_problems(self, plan: NodePlan) -> Iterable[Problem]:
        """Further problems of the field if an LM fills its node."""
        return ()

    def given_problems(self) -> Iterable[Problem]:
        """Further problems of the field if its node is the start node and no LM fills it."""
        return ()

    def read_text(self, text: str) -> Any:
        """The value for an answer in plain text."""
        return text

    def find(self, run: Run, node_type: type[Node], place: Place) -> tuple[Any, Found] | None:
        """The value of an immediate source, and its record; None if there is no value."""
        raise NotImplementedError(self.kind)

    def shown_turns(self, known: Messages, count: int, omitted: int) -> Messages | None:
        """The value that the field had: the newest `count` of the `known` turns. None if the field
        no longer has turns, or if fewer turns are known."""
        return None

    def missing(self, run: Run, node_type: type[Node], place: Place) -> BaeError:
        """The error of an immediate source that finds nothing, and has no default."""
        raise NotImplementedError(self.kind)

    def comes_from(self, node_type: type[Node]) -> str | None:
        """The field that supplies the value if the previous node is a `node_type`. Empty if the
        node itself is the value. None if the value may come from elsewhere."""
        return None

    def take(
        self,
        run: Run,
        node_type: type[Node],
        place: Place,
        is_recorded: bool = True,
        records: list[Found] | None = None,
    ) -> tuple[Any, ...]:
        """The value of an immediate source in a tuple, or an empty tuple if the default is used.
        Raises the error of `missing` if there is neither. The record of the value is written if
        `is_recorded`, and added to `records`."""
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
"""The names of the kinds that write a record when work starts and another when it ends."""
KINDS: Final = ("plain", "recall", "tools", "thread", *STARTED)
"""The names of all kinds, as in records, journals and shapes."""
_loaded: dict[str, type[FieldPlan]] = {}


def kind_of(marker: Marker | None) -> type[FieldPlan]:
    """The class that plans fields with this marker; None stands for fields without a marker."""
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
