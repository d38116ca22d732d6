"""What is wrong with one node class, seen without the graph around it: its sources and the calls
behind them."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Iterator
from types import FunctionType, MethodType, NoneType
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from bae.assignable import assignable, type_name, union_members
from bae.calls import MISSING, CallPlan, Input, every_call
from bae.core_schemas import converts
from bae.exceptions import Problem, a_warning, an_error
from bae.language_model import is_lm
from bae.markers import Dep, Map
from bae.plan import FieldPlan, NodePlan

if TYPE_CHECKING:
    from bae.node import Node


def check_node(plan: NodePlan, is_start: bool = False) -> list[Problem]:
    """The problems of one node class that can be seen without the graph around it."""
    problems = list(plan.problems)
    for field in plan.fields.values():
        place = f"{plan.name}.{field.name}"
        if field.kind == "dep":
            found = _check_dep(
                plan.node, field, cast(CallPlan, field.call), cast(Dep, field.marker)
            )
        elif field.kind == "map":
            found = _check_map(plan, field, cast(CallPlan, field.call), cast(Map, field.marker))
        elif field.kind == "recall" and is_start and field.required:
            found = [recall_on_start()]
        else:
            continue
        problems.extend(problem.at(place) for problem in found)
    problems.extend(_check_lm(plan))
    problems.extend(_one_name_twice(plan))
    return list(dict.fromkeys(problems))


def _check_lm(plan: NodePlan) -> Iterator[Problem]:
    pinned: object = plan.lm
    if pinned is None or (is_lm(pinned) and not isinstance(pinned, type)):
        return
    if isinstance(pinned, str):
        from bae.rooms import misnamed_lm

        error = misnamed_lm(pinned)
    else:
        from bae.failures import not_an_lm

        error = not_an_lm(pinned)
    if error is not None:
        said = f"NodeConfig pins no LM to it: {error.message}"
        yield an_error("bae-lm-type", said, error.fix or "", plan.name)


def _one_name_twice(plan: NodePlan) -> Iterator[Problem]:
    names = [cls.__name__ for cls in plan.successors]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield an_error(
            "bae-route-same-name",
            f"returns two classes named {name}, which the LM cannot tell apart",
            "rename one of them",
            f"{plan.name}.__call__",
        )


def recall_on_start() -> Problem:
    return an_error(
        "bae-recall-start",
        "Recall() on the start node: there is no trace before it",
        "have the caller give the value, or use Dep",
    )


def approvals_of_the_unseen(plan: NodePlan) -> Iterator[Problem]:
    """The yes-or-no questions of a node class that an LM fills: a gate is asked first, since its
    answer is context for the LM, so that a person would approve what is not there yet."""
    if not plan.plain:
        return
    names = ", ".join(field.name for field in plan.plain)
    it = "them" if len(plan.plain) > 1 else "it"
    for field in plan.fields.values():
        members = {member for member in union_members(field.annotation) if member is not NoneType}
        if field.kind == "gate" and members == {bool}:
            yield a_warning(
                "bae-gate-before-fill",
                f"the question is asked before the LM fills {names}, so the person does not "
                f"see {it}",
                f"put the gate on a node after {plan.name}, one that shows {names}; or on a node "
                "before it, where the answer is for the LM to work with",
                f"{plan.name}.{field.name}",
            )


def problems_of(call: CallPlan) -> Iterator[Problem]:
    """What is wrong with a call and with whatever it waits for, all the way down.

    Not for use while planning: it looks into graphs, whose nodes may be what is being planned.
    """
    for caller in every_call(call):
        yield from caller.problems
        for parameter, below in caller.inputs:
            yield from _check_input(caller, parameter, below)


def _check_input(caller: CallPlan, parameter: str, below: Input) -> Iterator[Problem]:
    yield from unreturned(below.call, below.wanted)
    returned = below.call.returns
    if assignable(returned, below.wanted) is False:
        takes, made = type_name(below.wanted), type_name(returned)
        yield an_error(
            "bae-dep-type",
            f"{caller.name}({parameter}) takes {takes}, but {below.call.name} returns {made}",
            f"annotate the parameter {made}, or give Dep a function that returns {takes}",
        )
    yield from unfilled(below.call)
    yield from _check_scope(below.call, below.marker)


def _check_scope(call: CallPlan, marker: Dep) -> Iterator[Problem]:
    """What a value of the app would need that only a run has."""
    if marker.scope != "app":
        return
    for parameter, below in call.inputs:
        if below.marker.scope != "app":
            yield an_error(
                "bae-dep-scope",
                f"{call.name} is opened once for all runs, but its parameter {parameter} is made "
                f"for each run by {below.call.name}",
                f'write Dep({below.call.name}, scope="app") there, or take scope="app" from '
                f"{call.name}",
            )
    needs = "a graph, which runs inside a run" if call.graph is not None else ""
    if call.lm_parameters:
        needs = f"given the LM of a run, as {call.lm_parameters[0]}"
    if needs:
        yield an_error(
            "bae-dep-scope",
            f"{call.name} cannot be opened once for all runs: it is {needs}",
            'take scope="app" from it, and give it to what all runs can share',
        )


def unreturned(call: CallPlan, wanted: Any = Any) -> list[Problem]:
    """The problem of a function that does not say what it returns; none where it does."""
    if call.returns is not MISSING:
        return []
    if call.kind == "graph":
        return []  # a graph that never ends is a problem of its own
    inner = inspect.unwrap(call.fn) if callable(call.fn) else call.fn
    written = isinstance(inner, FunctionType | MethodType)
    annotatable = written and not call.name.endswith("<lambda>")  # a lambda cannot say
    return [
        Problem(
            "error" if annotatable else "warning",
            "bae-dep-unannotated",
            "",
            f"{call.name} does not say what it returns, so it cannot be proved to fit",
            f"write `def {call.name}(…) -> {'…' if wanted is Any else type_name(wanted)}`"
            if annotatable
            else "give Dep a function with a return annotation",
        )
    ]


def unfilled(call: CallPlan) -> list[Problem]:
    """The problems of parameters, or start fields of a graph, that nothing can fill."""
    if call.kind == "graph":
        return [
            an_error(
                "bae-dep-unfilled",
                f"{call.name}: nothing fills the field {name} of the start node of a graph "
                "used as a Dep",
                f"give {name} a Dep, a Recall or a default, or use Map(…, over=…) to hand it items",
            )
            for name, _ in call.free
        ]
    return [
        an_error(
            "bae-dep-unfilled",
            f"nothing can fill the parameter {name} of {call.name}",
            "a Dep sees no field of its node: to look something up by a value of the run, call "
            f"{call.name} in a written body, use Map over the field, or give Dep a graph that "
            f"recalls the value; otherwise annotate {name} Annotated[…, Dep(…)] or LM, or give it "
            "a default",
        )
        for name, _ in call.free
    ]


def _check_dep(cls: type[Node], field: FieldPlan, call: CallPlan, marker: Dep) -> Iterator[Problem]:
    yield from problems_of(call)
    yield from _check_scope(call, marker)
    yield from unreturned(call, field.annotation)
    yield from unfilled(call)
    if not converts(cls, field.name):
        yield from _check_type(call, call.returns, field.annotation)


def _check_type(call: CallPlan, returned: Any, declared: Any) -> Iterator[Problem]:
    if call.returns is not MISSING and assignable(returned, declared) is False:
        made = type_name(returned)
        yield an_error(
            "bae-dep-type",
            f"is {type_name(declared)}, but {call.name} returns {made}",
            f"declare the field {made}, or give it a function that returns {type_name(declared)}",
        )


def _check_map(plan: NodePlan, field: FieldPlan, call: CallPlan, marker: Map) -> Iterator[Problem]:
    yield from problems_of(call)
    yield from unreturned(call)
    if assignable(call.returns, field.annotation) is True and field.annotation is not Any:
        declared = type_name(field.annotation)
        yield an_error(
            "bae-dep-type",
            f"is {declared}, but Map makes a list of what {call.name} returns",
            f"declare the field list[{declared}]",
        )
    elif not converts(plan.node, field.name):
        yield from _check_type(call, list[call.returns], field.annotation)
    over = plan.fields.get(marker.over)
    if over is None:
        names = ", ".join(name for name in plan.fields if name != field.name) or "none"
        yield an_error(
            "bae-map-over",
            f"maps over {marker.over!r}, and {plan.name} has no such field (it has: {names})",
            "name a field of the same node that holds a list",
        )
        return
    if _maps_in_a_circle(plan, field):
        yield an_error("bae-map-over", "maps over itself", "map over a field that is no map of it")
        return
    element = _element(over.annotation)
    if element is None:
        yield an_error(
            "bae-map-over",
            f"maps over {marker.over}, which is {type_name(over.annotation)} and no list",
            f"declare {marker.over} a list, tuple, set or sequence",
        )
        return
    yield from _check_item(call, element[0])


def _check_item(call: CallPlan, element: Any) -> Iterator[Problem]:
    if call.graph is not None and element is call.graph.start:
        return
    if len(call.free) != 1:
        takes = ", ".join(name for name, _ in call.free) or "nothing"
        what = "the required plain fields of its start" if call.graph else "its free parameters"
        yield an_error(
            "bae-map-item",
            f"{call.name} must take the item and nothing else that is not filled, but {what} are: "
            f"{takes}",
            "leave exactly one; give the others a Dep or a default",
        )
        return
    name, declared = call.free[0]
    if assignable(element, declared) is False:
        yield an_error(
            "bae-map-item",
            f"{call.name}({name}) takes {type_name(declared)}, but the items are "
            f"{type_name(element)}",
            f"annotate {name} as {type_name(element)}, or map over another field",
        )


def _element(annotation: Any) -> tuple[Any] | None:
    """The type of the items of a list-like annotation, or None where it is not list-like."""
    elements: list[Any] = []
    for member in union_members(annotation):
        if isinstance(member, typing.NewType):
            inside = _element(member.__supertype__)
            if inside is None:
                return None
            elements.extend(inside)
            continue
        origin = typing.get_origin(member) or member
        if origin is Any:
            return (Any,)
        if not isinstance(origin, type) or issubclass(
            origin, str | bytes | collections.abc.Mapping
        ):
            return None
        if not issubclass(origin, collections.abc.Iterable):
            return None
        if issubclass(origin, BaseModel) and origin.__iter__ is BaseModel.__iter__:
            return None  # iterating a model gives its fields, which is no list of items
        arguments = typing.get_args(member)
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            elements.extend(arguments)
        else:
            elements.append(arguments[0] if arguments else Any)
    return (typing.Union[tuple(elements)] if elements else Any,)  # noqa: UP007


def _maps_in_a_circle(plan: NodePlan, field: FieldPlan) -> bool:
    seen: set[str] = set()
    current: FieldPlan | None = field
    while current is not None and isinstance(current.marker, Map):
        if current.name in seen:
            return True
        seen.add(current.name)
        current = plan.fields.get(current.marker.over)
    return False
