"""What is wrong with one node class, seen without the graph around it: its sources and the calls
behind them."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Iterator
from types import FunctionType, MethodType, NoneType
from typing import Any, cast

from pydantic import BaseModel

from bae.assignable import assignable, type_name, union_members
from bae.calls import MISSING, CallPlan, Input, every_call, recalled_behind
from bae.core_schemas import converts
from bae.exceptions import Problem, a_warning, an_error
from bae.hints import signature_of
from bae.language_model import is_lm
from bae.markers import Dep, Map, Recall
from bae.plan import FieldPlan, NodePlan


def check_node(plan: NodePlan, is_start: bool = False) -> list[Problem]:
    """The problems of one node class that can be seen without the graph around it."""
    problems = list(plan.problems)
    for field in plan.fields.values():
        place = f"{plan.name}.{field.name}"
        if field.kind == "dep":
            found = _check_dep(plan, field, cast(CallPlan, field.call))
        elif field.kind == "map":
            found = _check_map(plan, field, cast(CallPlan, field.call), cast(Map, field.marker))
        elif field.text is not None:
            found = _check_text(plan, field)
        elif field.kind == "recall" and is_start and field.required:
            found = [recall_on_start()]
        else:
            continue
        problems.extend(problem.at(place) for problem in found)
        required = field.required and is_start
        if required and any(found.required for *_, found in recalled_behind(field)):
            problems.append(recall_on_start().at(place))
    problems.extend(_check_lm(plan))
    problems.extend(_check_shown(plan))
    problems.extend(_one_name_twice(plan))
    return list(dict.fromkeys(problems))


def _check_lm(plan: NodePlan) -> Iterator[Problem]:
    pinned: object = plan.lm
    if pinned is None or (is_lm(pinned) and not isinstance(pinned, type)):
        return
    if isinstance(pinned, str):
        from bae.rooms import name_error

        error = name_error(pinned)
    else:
        from bae.failures import not_an_lm

        error = not_an_lm(pinned)
    if error is not None:
        said = f"NodeConfig pins no LM to it: {error.message}"
        yield an_error("bae-lm-type", said, error.fix or "", plan.name)


def _check_shown(plan: NodePlan) -> Iterator[Problem]:
    known = [*plan.fields, *plan.node.__pydantic_computed_fields__]
    unknown = ", ".join(sorted(plan.revealed.difference(known)))
    if unknown and not plan.unresolved:
        yield an_error(
            "bae-show-unknown",
            f"NodeConfig(show=…) names {unknown}, which is no field of it",
            f"name its fields: {', '.join(known) or 'it has none'}",
            plan.name,
        )


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
    yield from unfilled(below.call, below.marker)
    yield from _check_bound(below.call, below.marker, None)
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
    if call.recalls or marker.bound:
        needs = "called with values of a run"
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


def unfilled(call: CallPlan, marker: Dep | None = None) -> list[Problem]:
    """The problems of parameters, or start fields of a graph, that nothing can fill."""
    bound = () if marker is None else dict(marker.bound)
    what = f"the field {{}} of the start node of {call.name}"
    if call.graph is None:
        what = f"the parameter {{}} of {call.name}"
    return [
        an_error(
            "bae-dep-unfilled",
            f"nothing can fill {what.format(name)}",
            f"rename it: {name} is an option of Dep, which a parameter of that name cannot be "
            "bound with; or give it a default"
            if name in _RESERVED
            else f'bind it to a field of the node, Dep({call.name}, {name}="…"), or to a value of '
            f"the trace, Dep({call.name}, {name}=Recall(…)); or "
            + ("give it a source" if call.graph else f"annotate {name} Annotated[…, Dep(…)] or LM")
            + ", or a default",
        )
        for name, _ in call.free
        if name not in bound
    ]


_RESERVED: typing.Final = ("timeout", "retries", "inline", "cache", "scope")


def _check_bound(call: CallPlan, marker: Dep | Map, plan: NodePlan | None) -> Iterator[Problem]:
    """The problems of the parameters that a marker binds; without a plan, of one on a parameter."""
    kind = type(marker).__name__
    for name, source in marker.bound:
        types = call.bindable
        said = f"{kind}({call.name}, {name}=…)"
        if name not in types:
            yield _unbindable(call, name, said)
            continue
        wanted = types[name]
        if isinstance(source, Recall):
            if wanted is Any:
                yield an_error(
                    "bae-dep-binding",
                    f"{said} recalls a value by the type of {name}, which is not annotated",
                    f"annotate {name} with the type to look for",
                )
            continue
        other = None if plan is None else plan.fields.get(source)
        if other is None:
            names = ", ".join(() if plan is None else plan.fields) or "none"
            has = "a parameter of a function sees no fields"
            if plan is not None:
                has = f"{plan.name} has no such field (it has: {names})"
            yield an_error(
                "bae-dep-binding",
                f"{said} is bound to the field {source!r}, and {has}",
                f"name a field of the same node, or write {name}=Recall(…); for a value of your "
                f"own give {kind} functools.partial({call.name}, {name}={source!r})",
            )
        elif assignable(other.annotation, wanted) is False:
            has, takes = type_name(other.annotation), type_name(wanted)
            yield an_error(
                "bae-dep-type",
                f"{call.name}({name}) takes {takes}, but the field {source} is {has}",
                f"annotate {name} as {has}, or bind it to a field that is {takes}",
            )


def _unbindable(call: CallPlan, name: str, said: str) -> Problem:
    filled = dict((*call.inputs, *call.recalls))
    if name in filled or name in call.lm_parameters:
        by = "LM" if name in call.lm_parameters else type(filled[name].marker).__name__
        why = f"its annotation says {by}, which fills it"
        fix = f"take {by} out of its annotation, or do not bind it"
    else:
        what = "field of its start node" if call.graph else "parameter"
        why = f"{call.name} has no such {what}; it has: {', '.join(call.bindable) or 'none'}"
        fix = "bind one that it has"
    return an_error("bae-dep-binding", f"{said} cannot be bound: {why}", fix)


def check_arguments(plan: NodePlan, field: FieldPlan) -> Iterator[Problem]:
    """The problems of what a function is called with for a field."""
    call, marker = cast(CallPlan, field.call), cast("Dep | Map", field.marker)
    if isinstance(marker, Dep):
        yield from unfilled(call, marker)
    yield from _check_bound(call, marker, plan)
    yield from _check_circle(plan, field)


def _check_dep(plan: NodePlan, field: FieldPlan, call: CallPlan) -> Iterator[Problem]:
    yield from problems_of(call)
    yield from _check_scope(call, cast(Dep, field.marker))
    yield from unreturned(call, field.annotation)
    yield from check_arguments(plan, field)
    if not converts(plan.node, field.name):
        yield from _check_type(call, call.returns, field.annotation)


def _check_type(call: CallPlan, returned: Any, declared: Any) -> Iterator[Problem]:
    if call.returns is not MISSING and assignable(returned, declared) is False:
        made = type_name(returned)
        yield an_error(
            "bae-dep-type",
            f"is {type_name(declared)}, but {call.name} returns {made}",
            f"declare the field {made}, or give it a function that returns {type_name(declared)}",
        )


def _check_text(plan: NodePlan, field: FieldPlan) -> Iterator[Problem]:
    call, declared = field.parse, type_name(field.annotation)
    if call is not None:
        yield from call.problems
        if not _takes_text(call):
            yield an_error(
                "bae-text-parse",
                f"{call.name} cannot parse the answer: it has to take one str, and not be async",
                f"write `def {call.name}(text: str) -> {declared}`",
            )
    made = str if call is None else call.returns
    if made is MISSING or converts(plan.node, field.name):
        return
    if assignable(made, field.annotation) is False:
        by = "the answer of the LM is a str" if call is None else f"{call.name} returns "
        yield an_error(
            "bae-text-type",
            f"is {declared}, but {by}{'' if call is None else type_name(made)}",
            f"declare the field {type_name(made)}, or give Text a function that returns {declared}",
        )


def _takes_text(call: CallPlan) -> bool:
    if call.kind != "sync":
        return False
    try:
        signature_of(call.fn).bind("")
    except TypeError:
        return False
    except ValueError:  # some builtins have no signature
        return True
    return not call.free or assignable(str, call.free[0][1]) is not False


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
    wrong = [*check_arguments(plan, field)]
    if wrong:
        yield from wrong
        return
    element = _element(over.annotation)
    if element is None:
        yield an_error(
            "bae-map-over",
            f"maps over {marker.over}, which is {type_name(over.annotation)} and no list",
            f"declare {marker.over} a list, tuple, set or sequence",
        )
        return
    yield from _check_item(call, element[0], marker)


def _check_item(call: CallPlan, element: Any, marker: Map) -> Iterator[Problem]:
    if call.graph is not None and element is call.graph.start and not marker.bound:
        return
    bound = dict(marker.bound)
    free = [(name, declared) for name, declared in call.free if name not in bound]
    if len(free) != 1:
        takes = ", ".join(name for name, _ in free) or "nothing"
        what = "the required plain fields of its start" if call.graph else "its free parameters"
        yield an_error(
            "bae-map-item",
            f"{call.name} must take the item and nothing else that is not filled, but {what} are: "
            f"{takes}",
            "leave exactly one; bind the others, or give them a Dep or a default",
        )
        return
    name, declared = free[0]
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


def _check_circle(plan: NodePlan, field: FieldPlan) -> Iterator[Problem]:
    """The problem of fields that wait for each other, at the first of them."""
    came_from: dict[str, str] = {}
    ahead = [field.name]
    for name in ahead:
        for other in plan.fields[name].waits_for:
            if other == field.name:
                path = [name]
                while path[-1] != field.name:
                    path.append(came_from[path[-1]])
                yield from _circle(plan, path[::-1])
                return
            if other in plan.fields and other not in came_from:
                came_from[other] = name
                ahead.append(other)


def _circle(plan: NodePlan, names: list[str]) -> Iterator[Problem]:
    around = zip(names, [*names[1:], names[0]], strict=True)
    markers = ((plan.fields[name].marker, other) for name, other in around)
    if all(isinstance(marker, Map) and marker.over == other for marker, other in markers):
        yield an_error("bae-map-over", "maps over itself", "map over a field that is no map of it")
    elif names[0] == next(name for name in plan.fields if name in names):
        path = " -> ".join(f"{plan.name}.{name}" for name in [*names, names[0]])
        yield an_error(
            "bae-dep-cycle",
            f"fields wait for each other: {path}",
            "break the circle: bind one of these parameters to another field",
        )
