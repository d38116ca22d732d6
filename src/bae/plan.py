"""`NodePlan`: the sources of a node class, the functions that compute their values, and the
successors of the class. bae makes the plan once for each class, and never during a step."""

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
    """The fields without a source. The caller, a body or the LM gives their values."""
    context: tuple[FieldPlan, ...] = ()
    """The fields with a source that are resolved before the LM fills the plain fields."""
    after: tuple[FieldPlan, ...] = ()
    """The fields with a source that are resolved after the fill, because they need a plain field:
    maps over it, dependencies bound to it, and fields that need such a map or dependency."""
    sourced: tuple[FieldPlan, ...] = ()
    """All fields with a source: `context`, then `after`."""
    called: tuple[FieldPlan, ...] = ()
    """The fields that may call something: the fields with a source, and the `Tools` field."""
    tools: FieldPlan | None = None
    """The field with the tools that the LM may call before it fills the node."""
    turns: FieldPlan | None = None
    """The `Thread` field. The LM reads its value as messages, not as JSON."""
    any_turns: ClassVar[bool] = False
    """Whether any node class of this process has a `Thread` field. If not, no question has
    turns."""
    text: str = ""
    """The name of the field with the text of the node in a thread. Empty if the text is the JSON of
    the node."""
    factories: frozenset[str] = frozenset()
    """The names of the fields with both a source and a default factory."""
    successors: tuple[type[Node], ...] = ()
    """The node classes that may come next."""
    offered: tuple[type[Node] | type[None], ...] = ()
    """The members of the return type: the successors, and `NoneType` if the run may end."""
    may_end: bool = False
    written: bool = False
    """Whether the body is written, and not empty."""
    lm_parameter: str | None = None
    """The parameter of the body that gets the LM."""
    needs_lm: bool = False
    """Whether the body cannot run without an LM."""
    lm: LM | str | None = None
    """The LM that is pinned to the class, or its name."""
    instruction: str = ""
    """The instruction to an LM that fills the node: the configured text, or the class name."""
    description: str = ""
    """The description of the node for an LM that chooses among several classes. May be empty."""
    shows: Shown | None = None
    """The nodes that a question about the class shows. None is the setting of the graph."""
    shows_limit: int | None = None
    """How many characters of the nodes in `shows` a question shows at most. None is the setting of
    the graph."""
    revealed: frozenset[str] = frozenset()
    """The fields whose secrets an LM sees, from `NodeConfig(show=…)`."""
    problems: list[Problem] = field(default_factory=list[Problem])
    misrouted: bool = False
    """Whether the return type is missing or has members other than nodes and None. The author may
    have meant more successors than `successors` has."""
    unresolved: bool = False
    """Whether a hint of the class has an unresolved name, so that the successors are unknown."""
    provisional: bool = False
    """Whether a hint of the class or of a dependency has an unresolved name. The name may be
    defined later, so the plan is not stored."""

    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.node.__name__

    def without_body(self) -> NodePlan:
        """Return the plan for a graph that consists of this node alone: the LM fills the node, the
        body does not run, and the graph ends."""
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
    """Return the plan of a node class. The first call makes the plan.

    If a hint cannot be resolved, `strict` raises a `HintError`. Otherwise the error is among the
    plan's problems. bae makes a plan with unresolved names again at the next call, because the
    names may then be defined.
    """
    cached = cast(NodePlan | None, cls.__dict__.get("__bae_plan__"))
    if cached is not None:
        return cached
    instruction, description = _read_texts(cls)
    plan = NodePlan(
        cls, lm=_get_setting(cls, "lm"), instruction=instruction, description=description
    )
    plan.shows, plan.shows_limit = _get_setting(cls, "context"), _get_setting(cls, "context_limit")
    plan.revealed = frozenset(_get_setting(cls, "show") or ())
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
        # If no graph contains the base, bae makes its plan only here. This releases the frame.
        if remembers_frame(base):
            plan_of(base)
    return plan


def _hint_problem(plan: NodePlan, error: HintError) -> Problem:
    text = flat(error)
    where, _, rest = text.partition(": ")
    owner, _, member = where.rpartition(".")
    if owner.rpartition(".")[2] == plan.name and member.isidentifier():
        return an_error(error.code, rest, error.fix or "", f"{plan.name}.{member}")
    return an_error(error.code, text, error.fix or "", plan.name)


def _get_setting(cls: type[Node], name: str) -> Any:
    """Return a setting of a class, which may be inherited from a base."""
    configs = (base.__dict__.get("node_config") for base in cls.__mro__)
    settings = (getattr(config, name) for config in configs if config is not None)
    return next((value for value in settings if value is not None), None)


def _read_texts(cls: type[Node]) -> tuple[str, str]:
    """Return the instruction and the description of a class. Subclasses do not inherit these texts,
    but `Box[int]` has the texts of the generic class `Box`."""
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
    lm_fields = [f for f in plan.plain if f.fills != "calls"]
    text = next((f for f in lm_fields if f.fills == "text"), None)
    if text is not None and len(lm_fields) > 1:
        plan.problems.append(_text_not_alone_problem(plan, text, lm_fields))
    if len(lm_fields) < len(plan.plain):
        tools = [f for f in plan.plain if f.fills == "calls"]
        plan.tools, plan.called = tools[0], (*tools,)
        if len(tools) > 1:
            plan.problems.append(_second_tools_problem(plan, tools[1]))
    plan.text = _find_text_field(plan)
    if len(plan.plain) == len(plan.fields):
        return
    sourced = [f for f in plan.fields.values() if f.fills == "source"]
    waiting = [(f.name, f.waits_for) for f in sourced if f.waits_for]
    filled = {f.name for f in plan.plain}
    filled_count = -1
    while filled_count != len(filled):  # a map over a map over a plain field needs two rounds
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
        plan.problems.append(_second_thread_problem(plan, turns[1]))


def _find_text_field(plan: NodePlan) -> str:
    """Return the name of the field with the text of a node: the field in `NodeConfig(text=…)`,
    otherwise the only plain `str` field, otherwise the only `str` field. May be empty."""
    name = cast("str | None", _get_setting(plan.node, "text"))
    if name is not None and name not in plan.fields:
        plan.problems.append(
            an_error(
                "bae-text-unknown",
                f"NodeConfig(text={name!r}) names no field of it",
                f"name one of its fields: {', '.join(plan.fields) or 'it has none'}",
                plan.name,
            )
        )
    if name is not None:
        return name if name in plan.fields else ""
    for fields in plan.plain, plan.fields.values():
        texts = [field.name for field in fields if field.annotation is str]
        if texts:
            return texts[0] if len(texts) == 1 else ""
    return ""


def _second_thread_problem(plan: NodePlan, field: FieldPlan) -> Problem:
    return an_error(
        "bae-thread-twice",
        "is a second field with Thread, but a node can have only one",
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
        plan.problems.extend(problem.at(place) for problem in _check_markers(info))
        return kind_of(None)(name, info)
    return kind_of(markers[0]).make(name, info, markers[0], names)


def _second_tools_problem(plan: NodePlan, field: FieldPlan) -> Problem:
    return an_error(
        "bae-tools-twice",
        "is a second field with Tools, but a node can have only one",
        "put all tools into one field",
        f"{plan.name}.{field.name}",
    )


def _text_not_alone_problem(
    plan: NodePlan, text: FieldPlan, lm_fields: Sequence[FieldPlan]
) -> Problem:
    others = ", ".join(field.name for field in lm_fields if field is not text)
    return an_error(
        "bae-text-not-alone",
        f"the LM answers it in plain text, so it cannot fill other fields of the node: {others}",
        f"give {others} a source, or make another node for it",
        f"{plan.name}.{text.name}",
    )


def _check_markers(info: FieldInfo) -> Iterator[Problem]:
    """Yield a problem for each marker in a position or form that bae does not recognize."""
    bare_classes = [m for m in info.metadata if isinstance(m, type) and issubclass(m, Marker)]
    if bare_classes:
        yield an_error(
            "bae-field-bare",
            f"has the class {bare_classes[0].__name__} as a marker, not an object of the class",
            f"write {bare_classes[0].__name__}(…) with its parentheses",
        )
    if isinstance(info.default, Marker):
        kind = type(info.default).__name__
        yield an_error(
            "bae-field-default",
            f"has a {kind} as its default, but a marker counts only in an annotation",
            f"put it into the annotation: Annotated[…, {kind}(…)]",
        )
    if is_buried(info.annotation):
        yield buried_marker_problem()
        return
    inner_field = _find_sourced_field_in_models(info.annotation)
    if inner_field:
        model = inner_field.partition(".")[0]
        yield an_error(
            "bae-field-buried",
            f"{inner_field} has a source, but only a node's field can: {model} is not a Node",
            f"put the source on a field of the node, or make {model} a Node and write Dep({model})",
        )


def _find_sourced_field_in_models(annotation: Any) -> str:
    """Return the first field with a marker in a model inside a type, as `Model.field`. bae does not
    resolve such a field, because the model is not a node. Empty if there is no such field."""
    ahead, visited = [annotation], dict[int, Any]()  # by identity: some types have no hash
    for type_ in ahead:
        if id(type_) in visited or (isinstance(type_, type) and issubclass(type_, Node)):
            continue
        visited[id(cast(object, type_))] = type_
        if isinstance(type_, type) and issubclass(type_, BaseModel):
            for name, field in type_.__pydantic_fields__.items():
                if any(isinstance(m, Marker) for m in field.metadata):
                    return f"{type_.__name__}.{name}"
                ahead.append(field.annotation)
        else:
            ahead += typing.get_args(type_)
    return ""


def _plan_call(plan: NodePlan, names: Names) -> None:
    owner = next(base for base in plan.node.__mro__ if "__call__" in base.__dict__)
    if owner is Node:
        plan.misrouted = True
        plan.problems.append(
            an_error(
                "bae-node-without-call",
                "has no __call__, so its next nodes are unknown",
                "write `async def __call__(self) -> NextNode: ...` in the class, or `-> None` "
                "where the run ends",
                plan.name,
            )
        )
        return
    call = cast(Any, owner).__call__
    plan.written, parameters = not is_empty_body(call), signature_of(call).parameters
    hints = _read_call_hints(plan.node, owner, call, names)
    _plan_parameters(plan, [*parameters.values()][1:], hints)
    if "return" not in hints:
        plan.misrouted = True
        plan.problems.append(
            an_error(
                "bae-route-unannotated",
                "has no return annotation, so its next nodes are unknown",
                "write `-> NextNode`, or `-> None` where the run ends",
                f"{plan.name}.__call__",
            )
        )
        return
    _plan_route(plan, hints["return"])


def _read_call_hints(cls: type, owner: type, call: Any, names: Names) -> Mapping[str, Any]:
    # The hints are stored on the class that defines the method. A subclass may need them when the
    # frame with the names has been released.
    hints = cast(dict[str, Any] | None, owner.__dict__.get("__bae_call_hints__"))
    if hints is not None:
        return hints
    own_names = names if owner is cls else names_of_class(owner)
    try:
        hints = annotations_of(call, own_names)
    except HintError:
        # A mixin that is not a node has no frame, so the names of the subclass are tried. The
        # result is valid for that subclass only, and not stored.
        return annotations_of(call, own_names.then(names))
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
