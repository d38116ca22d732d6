"""Where the values of fields come from. `FieldPlan` has what the program asks of every source; each
module of this package answers it for one kind of source, and no other module tells kinds apart."""

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
from bae.draft import validated
from bae.exceptions import BaeError, FieldError, HintError, JournalError, Problem, an_error

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
"""How pictures and timelines show where a value comes from: every palette has these keys."""


class Told(NamedTuple):
    """What is known of a value that a source has given, for the words about it."""

    by: str
    """The function, the graph, the question, or the place where the value was found."""
    items: int = 0
    is_inside: bool = False
    """Whether a graph of the run made it."""
    is_repeated: bool = False
    """Whether the function was called before, for another field."""
    took: str = ""
    """How long it took, with a comma before it."""


class FieldPlan:
    """One field: where its value comes from, and what it may be.

    What is the same for all fields of a kind is an attribute of the class: runs are also read
    without their code, by the name of the kind.
    """

    __slots__ = ("annotation", "bound", "call", "info", "marker", "name", "required", "waits_for")

    kind: ClassVar[str]
    """The name of the kind in records, journals and shapes of graphs."""
    fills: ClassVar[Literal["json", "text", "calls", "source"]] = "source"
    """What gives the value: the LM's answer, in JSON or as text, or the tool calls that the LM
    makes before it, unless the caller or a body gives it; or a source."""
    stored: ClassVar[Literal["node", "answer", "call", "items", "origin", "turns"]] = "call"
    """How a journal stores the value: with the node, or in a line as a person's answer, as what a
    call returned, by items, as the place where it was found, or as the runs of a thread."""
    is_called: ClassVar[bool] = False
    """Whether every such field has a `call`."""
    is_remade: ClassVar[bool] = True
    """Whether a value that no journal can hold is made, or found, again when a run is resumed."""
    is_recallable: ClassVar[bool] = True
    """Whether a `Recall` finds the value."""
    is_immediate: ClassVar[bool] = False
    """Whether `find` has the value without waiting."""
    starts_early: ClassVar[bool] = False
    """Whether work on the value may start while the node before is still being filled."""
    is_turns: ClassVar[bool] = False
    """Whether an LM reads the value as earlier turns of a conversation, and not as JSON."""
    asks_person: ClassVar[bool] = False
    """Whether a person gives the value."""
    noun: ClassVar[str]
    """The source of such a field, as `a Dep`."""
    style: ClassVar[Style] = "call"
    began: ClassVar[str] = "called"
    """What happens when work on the value starts, for a log; empty where it is told later."""
    invalid: ClassVar[tuple[type[FieldError], str]]
    """The error and its code where the node refuses the value of a source."""
    invalid_fix: ClassVar[str] = "return what the field declares, or declare what is returned"

    turns_read: float = 0
    """How many earlier turns of the thread the value may have."""
    turn_calls_read: bool = False
    """Whether it has the tool calls of these turns too."""
    question: str = ""
    """What a person is asked."""
    items_at_once: int = 1
    """How many items of the value are made at the same time, at most."""
    items_of: str = ""
    """The field of the node that has one entry for each item of the value; empty for none."""
    is_shared: bool = False
    """Whether one call serves all that ask for the same value in a run."""
    is_of_app: bool = False
    """Whether one value serves all runs of an app."""
    provider_tools: tuple[str, ...] = ()
    """The names of the tools that the provider of the LM must have."""
    tool_specs: tuple[ToolSpec, ...] = ()
    """What a model is told of the tools that are known before a run."""
    tool_names: tuple[str, ...] = ()
    """The names of the tools, as far as they are known before a run."""
    shows_results: bool = False
    """Whether later questions show the results of tool calls in the value too."""
    has_secret_arguments: bool = False
    """Whether an LM gives a tool a secret."""
    finds_tools: bool = False
    """Whether a run may find more tools for the LM than are known before."""
    is_parsed: bool = False
    """Whether the value is made from the LM's answer, and is not the answer itself."""

    name: str
    info: FieldInfo
    marker: Any
    call: CallPlan | None
    """What is called for the value."""
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
        is looked into."""
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
        """Plan a parameter of a call that has the marker. Most are for fields alone."""
        written = type(marker).__name__
        of.problems.append(
            an_error(
                "bae-dep-unfilled",
                f"{of.name}({name}) is annotated {written}, which only a node's field can be",
                f"put the {written} on a field of the node, and bind the parameter to it: "
                f'Dep({of.name}, {name}="…")',
            )
        )

    # The words of a source. Those of a run that is read without its code come by the class alone.

    @classmethod
    def sentence(cls, told: Told) -> str:
        """Where a value came from, for `why`: `from get_weather()`."""
        return f"from the graph {told.by}" if told.is_inside else f"from {told.by}()"

    @classmethod
    def phrase(cls, told: Told) -> str:
        """Where a value came from, beside the value."""
        return f"{told.by}, called before" if told.is_repeated else f"{told.by}{told.took}"

    @classmethod
    def row(cls, told: Told) -> str:
        """What makes a value, in a row of a timeline."""
        return told.by

    def schema_words(self) -> str:
        """The source in the schema of a node. It is hashed into saved prompts: never change it."""
        return f" from {'' if self.call is None else self.call.name}"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        """Where the value of a field of `cls` comes from, in a picture. `before` are the plans that
        lead to each class of the graph; None where another graph is around it."""
        return call_chain(self)

    def takes_answer(self, gate: OpenGate) -> bool:
        """Whether a person's answer to a gate is for this field."""
        return self.asks_person and not gate.parameter

    def answer_type(self, tool: str, names: int) -> Any:
        """The type of a person's answer. For a question about a call of a `tool`, `names` is how
        many names its place has after the field."""
        return self.annotation

    def check_answer(self, cls: type[Node], gate: OpenGate, value: Any) -> Any:
        """A person's answer as it is to be stored. Raises what the field of `cls`, or pydantic,
        refuses it with."""
        validated(cls, {self.name: value})
        return value

    @property
    def is_provisional(self) -> bool:
        """Whether a name is missing in what is called for the value: it may be defined later."""
        return self.call is not None and lacks_name(self.call)

    @property
    def may_wait(self) -> bool:
        """Whether a person may have to answer before the value is there."""
        graphs = [call.graph for call in every_call(self.call) if call.graph is not None]
        return self.asks_person or any(graph.asks_person for graph in graphs)

    @property
    def depends_on_run(self) -> bool:
        """Whether the value can depend on where in the run it is asked for: on its arguments, or,
        here or further down, on what a graph recalls from the run around it, or on what a function
        has the LM make, which may recall too."""
        return is_by_value(self) or any(
            call.lm_parameters or (call.graph is not None and call.graph.recalls)
            for call in every_call(self.call)
        )

    def recalls(self) -> Iterator[tuple[str, Hashable, RecallField]]:
        """What is looked up in the trace for the value: the way to the parameter, as
        `(hits)(query)`, or empty for the field itself; a key; and what is looked up."""
        return recalled_behind(self)

    def draw(self) -> dict[str, Any]:
        """What the shape of a graph has of the field, besides what it has of every field. Another
        key, or value, is a change of the class for runs that are stored."""
        return {}

    def problems(self, plan: NodePlan) -> Iterable[Problem]:
        """What the proof reports of the field, seen without the graph around its node."""
        return ()

    def argument_problems(self, plan: NodePlan) -> Iterable[Problem]:
        """Which of these are about the arguments of the call."""
        return ()

    def fill_problems(self, plan: NodePlan) -> Iterable[Problem]:
        """What the proof reports of the field of a node that an LM fills."""
        return ()

    def given_problems(self) -> Iterable[Problem]:
        """What the proof reports of the field of a start node that no LM fills."""
        return ()

    def read_text(self, text: str) -> Any:
        """The value for an answer in plain text."""
        return text

    def find(self, run: Run, node_type: type[Node], place: Place) -> tuple[Any, Found] | None:
        """The value of an immediate source, and its record; None where there is none."""
        raise NotImplementedError(self.kind)

    def shown_turns(self, known: Messages, count: int, omitted: int) -> Messages | None:
        """The value that the field had, by how many turns it was; None where it is no longer of
        turns, or there are fewer."""
        return None

    def missing(self, run: Run, node_type: type[Node], place: Place) -> BaeError:
        """The error of an immediate source that finds nothing, and has no default."""
        raise NotImplementedError(self.kind)

    def comes_from(self, node_type: type[Node]) -> str | None:
        """The field that the value comes from where a node of this class is the previous one; an
        empty text is the node itself. None where it may come from elsewhere."""
        return None

    def take(
        self,
        run: Run,
        node_type: type[Node],
        place: Place,
        is_recorded: bool = True,
        records: list[Found] | None = None,
    ) -> tuple[Any, ...]:
        """The value of an immediate source, recorded for its place; nothing where its default is
        used. Raises `missing` where it has none. Its record is added to `records`."""
        found = self.find(run, node_type, place)
        if found is not None:
            if records is not None:
                records.append(found[1])
            if is_recorded:
                run.writer.write(found[1])
            return (found[0],)
        if self.required:
            raise self.missing(run, node_type, place)
        return ()

    def start(self, at: Resolution, place: Place) -> PendingValue:
        """Start the work on the value of another source."""
        raise NotImplementedError(self.kind)


def lacks_name(call: CallPlan | None) -> bool:
    """Whether a name is missing in a call, or in what it waits for."""
    every = (problem for each in every_call(call) for problem in each.problems)
    return any(problem.code == HintError.code for problem in every)


def lack_names(fields: Iterable[FieldPlan]) -> bool:
    """Whether a name is missing in what fields call."""
    return any(field.is_provisional for field in fields)


STARTED: Final = ("dep", "map", "gate")
"""The names of the kinds whose work is recorded when it starts and when it ends."""
KINDS: Final = ("plain", "recall", "tools", "thread", *STARTED)
"""The names of all kinds, as records, journals and shapes have them."""
_loaded: dict[str, type[FieldPlan]] = {}


def kind_of(marker: Marker | None) -> type[FieldPlan]:
    """The class of the fields that have a marker, or none."""
    return _load("plain" if marker is None else marker.planned_by)


def kind_named(name: str) -> type[FieldPlan]:
    """The class of the fields of a kind. Raises `JournalError` where this version has none."""
    found = _loaded.get(name)
    if found is not None:
        return found
    if name not in KINDS:
        raise JournalError(
            f"a field has the source {name!r}, which this version of bae does not know",
            code="bae-journal-version",
            fix="read the journal with the version of bae that wrote it, or a newer one",
        )
    return _load(name)


def _load(name: str) -> type[FieldPlan]:
    """The class in the module of a kind, which is loaded when it is first used."""
    found = _loaded.get(name)
    if found is None:
        module = import_module(f"bae.sources.{name}")
        found = _loaded[name] = getattr(module, f"{name.title()}Field")
    return found
