"""`NodePlan`: the fields of a node class by source, the calls behind them, and the successors of
the class. It is made once per class and never during a step."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from inspect import Parameter, cleandoc
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bae.assignable import type_name, union_members
from bae.calls import buried_marker_problem, flat, is_buried, is_lm
from bae.exceptions import HintError, Problem, an_error
from bae.hints import (
    Names,
    annotations_of,
    forget_frame,
    is_empty_body,
    names_of_class,
    remembers_frame,
    signature_of,
)
from bae.markers import Marker
from bae.node import Node, NodeConfig, finish_class
from bae.sources import FieldPlan, kind_of, lack_names

if TYPE_CHECKING:
    from bae.language_model import LM, Shown


@dataclass(slots=True, eq=False)
class NodePlan:
    """Everything that a run needs to know about a node class."""

    node: type[Node]
    fields: dict[str, FieldPlan] = field(default_factory=dict[str, FieldPlan])
    plain: tuple[FieldPlan, ...] = ()
    context: tuple[FieldPlan, ...] = ()
    """Sourced fields that are resolved before the LM fills the plain fields."""
    after: tuple[FieldPlan, ...] = ()
    """Maps over fields of the LM, and dependencies bound to such fields, directly or indirectly."""
    sourced: tuple[FieldPlan, ...] = ()
    called: tuple[FieldPlan, ...] = ()
    """Fields with something to call behind them: the sourced fields, and the tools of an LM."""
    tools: FieldPlan | None = None
    """The field with the tools that the LM may call before it fills the node."""
    turns: FieldPlan | None = None
    """The field whose value is read as earlier turns of a conversation, not as JSON."""
    any_turns: ClassVar[bool] = False
    """Whether any node class of this process has such a field. If not, no question has turns."""
    text: str = ""
    """The field with the text of the node in a thread; empty if the whole node is the text."""
    factories: frozenset[str] = frozenset()
    """Sourced fields with a default factory."""
    successors: tuple[type[Node], ...] = ()
    offered: tuple[type[Node] | type[None], ...] = ()
    may_end: bool = False
    written: bool = False
    lm_parameter: str | None = None
    needs_lm: bool = False
    """Whether the body cannot run without an LM."""
    lm: LM | str | None = None
    instruction: str = ""
    """The instruction to an LM that fills the node: as configured, or the class name."""
    description: str = ""
    """The description of the node for an LM that chooses among several; may be empty."""
    shows: Shown | None = None
    shows_limit: int | None = None
    """Which nodes a question about the class shows, and how many characters of them. None is the
    setting of the graph."""
    revealed: frozenset[str] = frozenset()
    """The fields whose secrets an LM sees, from `NodeConfig(show=…)`."""
    problems: list[Problem] = field(default_factory=list[Problem])
    misrouted: bool = False
    """Whether its return type is missing, or has members other than nodes and None. The author may
    then mean other successors too."""
    unresolved: bool = False
    """Whether a name was missing, so that the successors are not known."""
    provisional: bool = False
    """Whether a name was missing here or in a dependency; it may be defined later."""

    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.node.__name__

    def without_body(self) -> NodePlan:
        """The plan of a node that is filled and then the end: its body is not run."""
        plan = copy(self)
        plan.successors, plan.offered, plan.may_end = (), (NoneType,), True
        plan.written = plan.needs_lm = plan.misrouted = False
        plan.lm_parameter = None
        plan.problems = [p for p in self.problems if not _is_about_body(plan, p)]
        return plan


def _is_about_body(plan: NodePlan, problem: Problem) -> bool:
    return problem.place == f"{plan.name}.__call__" or problem.code == "bae-node-without-call"


_SELF: Any = typing.Self


def plan_of(cls: type[Node], strict: bool = False) -> NodePlan:
    """The plan of a node class, made on first use.

    With `strict`, a hint that cannot be resolved is raised; otherwise it is one of the problems. A
    plan with unresolved names is made again the next time, since they may be defined by then.
    """
    cached = cast(NodePlan | None, cls.__dict__.get("__bae_plan__"))
    if cached is not None:
        return cached
    instruction, description = _own_words(cls)
    plan = NodePlan(cls, lm=_setting(cls, "lm"), instruction=instruction, description=description)
    plan.shows, plan.shows_limit = _setting(cls, "context"), _setting(cls, "context_limit")
    plan.revealed = frozenset(_setting(cls, "show") or ())
    names = names_of_class(cls)
    try:
        if cls.__bae_sourced__ is None:
            finish_class(cls)
        _plan_fields(plan, names)
        _plan_call(plan, names)
    except HintError as error:
        if strict:
            raise
        plan.unresolved = plan.provisional = True
        plan.problems.append(_hint_problem(plan, error))
        return plan
    if lack_names(plan.fields.values()):
        plan.provisional = True
        return plan
    type.__setattr__(cls, "__bae_plan__", plan)
    forget_frame(cls)
    for base in cls.__mro__[1:]:
        if remembers_frame(base):  # a base that no graph leads to would never release it
            plan_of(base)
    return plan


def _hint_problem(plan: NodePlan, error: HintError) -> Problem:
    text = flat(error)
    where, _, rest = text.partition(": ")
    owner, _, member = where.rpartition(".")
    if owner.rpartition(".")[2] == plan.name and member.isidentifier():
        return an_error(error.code, rest, error.fix or "", f"{plan.name}.{member}")
    return an_error(error.code, text, error.fix or "", plan.name)


def _setting(cls: type[Node], name: str) -> Any:
    """A setting of a class that its subclasses inherit."""
    configs = (base.__dict__.get("node_config") for base in cls.__mro__)
    settings = (getattr(config, name) for config in configs if config is not None)
    return next((value for value in settings if value is not None), None)


def _own_words(cls: type[Node]) -> tuple[str, str]:
    """The instruction and the description of a class, which its subclasses do not inherit. A
    generic class has the same words for all its parameters."""
    origin = cls.__pydantic_generic_metadata__["origin"]
    config = cast(NodeConfig | None, (origin or cls).__dict__.get("node_config"))
    if config is None:
        return cls.__name__, ""
    instruction = config.instruction or cls.__name__
    return cleandoc(instruction), cleandoc(config.description or "")


def _plan_fields(plan: NodePlan, names: Names) -> None:
    for name, info in plan.node.__pydantic_fields__.items():
        plan.fields[name] = _plan_field(plan, name, info, names)
    plan.plain = tuple([f for f in plan.fields.values() if f.fills != "source"])
    asked = [f for f in plan.plain if f.fills != "calls"]
    text = next((f for f in asked if f.fills == "text"), None)
    if text is not None and len(asked) > 1:
        plan.problems.append(_text_not_alone(plan, text, asked))
    if len(asked) < len(plan.plain):
        tools = [f for f in plan.plain if f.fills == "calls"]
        plan.tools, plan.called = tools[0], (*tools,)
        if len(tools) > 1:
            plan.problems.append(_tools_twice(plan, tools[1]))
    plan.text = _text_field(plan)
    if len(plan.plain) == len(plan.fields):
        return
    sourced = [f for f in plan.fields.values() if f.fills == "source"]
    waiting = [(f.name, f.waits_for) for f in sourced if f.waits_for]
    filled = {f.name for f in plan.plain}
    filled_count = -1
    while filled_count != len(filled):  # a map over a map over a plain field is found in two rounds
        filled_count = len(filled)
        filled.update(name for name, over in waiting if not filled.isdisjoint(over))
    plan.context = tuple(f for f in sourced if f.name not in filled)
    plan.after = tuple(f for f in sourced if f.name in filled)
    plan.sourced = plan.context + plan.after
    plan.called = plan.sourced + plan.called
    plan.factories = frozenset(f.name for f in sourced if f.info.default_factory is not None)
    turns = [f for f in sourced if f.is_turns]
    if turns:
        plan.turns = turns[0]
        NodePlan.any_turns = True
    if len(turns) > 1:
        plan.problems.append(_turns_twice(plan, turns[1]))


def _text_field(plan: NodePlan) -> str:
    """The field with the text of a node: the named field, otherwise the only text field."""
    named = cast("str | None", _setting(plan.node, "text"))
    if named is not None and named not in plan.fields:
        plan.problems.append(
            an_error(
                "bae-text-unknown",
                f"NodeConfig(text={named!r}) names no field of it",
                f"name one of its fields: {', '.join(plan.fields) or 'it has none'}",
                plan.name,
            )
        )
    if named is not None:
        return named if named in plan.fields else ""
    for fields in plan.plain, plan.fields.values():
        texts = [field.name for field in fields if field.annotation is str]
        if texts:
            return texts[0] if len(texts) == 1 else ""
    return ""


def _turns_twice(plan: NodePlan, field: FieldPlan) -> Problem:
    return an_error(
        "bae-thread-twice",
        "is a second field with Thread, and a question has one conversation before it",
        "keep one of them",
        f"{plan.name}.{field.name}",
    )


def _plan_field(plan: NodePlan, name: str, info: FieldInfo, names: Names) -> FieldPlan:
    place = f"{plan.name}.{name}"
    markers = [m for m in info.metadata if isinstance(m, Marker)]
    if len(markers) > 1:
        kinds = " and ".join(type(m).__name__ for m in markers)
        plan.problems.append(
            an_error("bae-field-sources", f"has {kinds}", "keep one of them", place)
        )
    if not markers:
        plan.problems.extend(problem.at(place) for problem in _missed_markers(info))
        return kind_of(None)(name, info)
    return kind_of(markers[0]).make(name, info, markers[0], names)


def _tools_twice(plan: NodePlan, field: FieldPlan) -> Problem:
    return an_error(
        "bae-tools-twice",
        "is a second field with Tools, and a node is filled in one conversation",
        "put all tools into one field",
        f"{plan.name}.{field.name}",
    )


def _text_not_alone(plan: NodePlan, text: FieldPlan, asked: Sequence[FieldPlan]) -> Problem:
    others = ", ".join(field.name for field in asked if field is not text)
    return an_error(
        "bae-text-not-alone",
        f"the LM answers it in plain text, and can fill no other field with it: {others}",
        f"give {others} a source, or make another node for it",
        f"{plan.name}.{text.name}",
    )


def _missed_markers(info: FieldInfo) -> Iterator[Problem]:
    """Sources that are written in a place, or in a form, that bae does not recognize."""
    bare = [m for m in info.metadata if isinstance(m, type) and issubclass(m, Marker)]
    if bare:
        yield an_error(
            "bae-field-bare",
            f"has the class {bare[0].__name__} for a marker, not one of its objects",
            f"write {bare[0].__name__}(…) with its parentheses",
        )
    if isinstance(info.default, Marker):
        kind = type(info.default).__name__
        yield an_error(
            "bae-field-default",
            f"has a {kind} for its default, where it is a value like any other",
            f"put it into the annotation: Annotated[…, {kind}(…)]",
        )
    if is_buried(info.annotation):
        yield buried_marker_problem()
        return
    inside = _in_model(info.annotation)
    if inside:
        model = inside.partition(".")[0]
        yield an_error(
            "bae-field-buried",
            f"{inside} has a source, where it is not seen: {model} is a model, and no Node",
            f"put the source on a field of the node, or make {model} a Node and write Dep({model})",
        )


def _in_model(annotation: Any) -> str:
    """The field with a source in a model inside a type: bae resolves only the fields of nodes."""
    ahead, seen = [annotation], dict[int, Any]()  # by identity: some types have no hash
    for each in ahead:
        if id(each) in seen or (isinstance(each, type) and issubclass(each, Node)):
            continue
        seen[id(cast(object, each))] = each
        if isinstance(each, type) and issubclass(each, BaseModel):
            for name, field in each.__pydantic_fields__.items():
                if any(isinstance(m, Marker) for m in field.metadata):
                    return f"{each.__name__}.{name}"
                ahead.append(field.annotation)
        else:
            ahead += typing.get_args(each)
    return ""


def _plan_call(plan: NodePlan, names: Names) -> None:
    owner = next(base for base in plan.node.__mro__ if "__call__" in base.__dict__)
    if owner is Node:
        plan.misrouted = True
        plan.problems.append(
            an_error(
                "bae-node-without-call",
                "has no __call__, so nothing says where it leads",
                "write `async def __call__(self) -> NextNode: ...` in the class, or `-> None` "
                "where the run ends",
                plan.name,
            )
        )
        return
    call = cast(Any, owner).__call__
    plan.written, parameters = not is_empty_body(call), signature_of(call).parameters
    hints = _call_hints(plan.node, owner, call, names)
    _plan_parameters(plan, [*parameters.values()][1:], hints)
    if "return" not in hints:
        plan.misrouted = True
        plan.problems.append(
            an_error(
                "bae-route-unannotated",
                "has no return annotation, so nothing says where it leads",
                "write `-> NextNode`, or `-> None` where the run ends",
                f"{plan.name}.__call__",
            )
        )
        return
    _plan_route(plan, hints["return"])


def _call_hints(cls: type, owner: type, call: Any, names: Names) -> Mapping[str, Any]:
    # Stored on the class that wrote the method: its frame is released once it is planned, and a
    # subclass made later still needs these names.
    hints = cast(dict[str, Any] | None, owner.__dict__.get("__bae_call_hints__"))
    if hints is not None:
        return hints
    own = names if owner is cls else names_of_class(owner)
    try:
        hints = annotations_of(call, own)
    except HintError:
        # A mixin that is no node has no frame; the names of a subclass are for that subclass only.
        return annotations_of(call, own.then(names))
    type.__setattr__(owner, "__bae_call_hints__", hints)
    return hints


def _plan_parameters(
    plan: NodePlan, parameters: Sequence[Parameter], hints: Mapping[str, Any]
) -> None:
    for parameter in parameters:
        if is_lm(hints.get(parameter.name)):
            if plan.lm_parameter is None and parameter.kind is not parameter.POSITIONAL_ONLY:
                plan.lm_parameter = parameter.name
                plan.needs_lm = parameter.default is parameter.empty
                continue
        elif parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        plan.problems.append(
            an_error(
                "bae-node-parameter",
                f"nothing can fill its parameter {parameter.name}",
                "annotate one parameter LM; make other values fields of the node",
                f"{plan.name}.__call__",
            )
        )


def _plan_route(plan: NodePlan, hint: Any) -> None:
    successors: list[type[Node]] = []
    offered: list[type[Node] | type[None]] = []
    for member in union_members(hint):
        if member is NoneType or member is None:
            plan.may_end = True
            offered.append(NoneType)
            continue
        if member is _SELF:
            member = plan.node
        if isinstance(member, type) and issubclass(member, Node) and member is not Node:
            if member not in successors:
                successors.append(member)
                offered.append(member)
            continue
        plan.misrouted = True
        plan.problems.append(
            an_error(
                "bae-route-not-a-node",
                f"returns {type_name(member)}, which is not a node class of its own"
                if member is Node
                else f"returns {type_name(member)}, which is not a Node",
                "return Node subclasses, or None to end the run",
                f"{plan.name}.__call__",
            )
        )
    plan.successors, plan.offered = tuple(successors), tuple(offered)
