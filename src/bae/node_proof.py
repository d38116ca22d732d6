"""The part of the proof that needs one node class alone: checks of its sources, and of the
functions that compute their values."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any, cast

from bae.assignable import assignable, type_name, union_members
from bae.calls import MISSING, CallPlan, Input, every_call
from bae.exceptions import Problem, an_error
from bae.language_model import is_lm
from bae.markers import Dep, Map
from bae.plan import FieldPlan, NodePlan


def check_node(plan: NodePlan, is_start: bool = False) -> list[Problem]:
    """Return the problems of a node class that can be found without its graph."""
    problems = list(plan.problems)
    for field in plan.fields.values():
        place = f"{plan.name}.{field.name}"
        problems.extend(problem.at(place) for problem in field.problems(plan))
        required = field.required and is_start
        if required and any(recall.required for *_, recall in field.recalls()):
            problems.append(recall_on_start().at(place))
    problems.extend(_check_lm(plan))
    problems.extend(_check_shown(plan))
    problems.extend(_check_names(plan))
    return list(dict.fromkeys(problems))


def _check_lm(plan: NodePlan) -> Iterator[Problem]:
    pinned: object = plan.lm
    if pinned is None or (is_lm(pinned) and not isinstance(pinned, type)):
        return
    if isinstance(pinned, str):
        from bae.rooms import name_error

        error = name_error(pinned)
    else:
        from bae.failures import not_an_lm_error

        error = not_an_lm_error(pinned)
    if error is not None:
        message = f"NodeConfig(lm=…) is not an LM: {error.message}"
        yield an_error("bae-lm-type", message, error.fix or "", plan.name)


def _check_shown(plan: NodePlan) -> Iterator[Problem]:
    names = [*plan.fields, *plan.node.__pydantic_computed_fields__]
    unknown = ", ".join(sorted(plan.revealed.difference(names)))
    if unknown and not plan.unresolved:
        yield an_error(
            "bae-show-unknown",
            f"NodeConfig(show=…) names {unknown}, but the node has no such field",
            f"name its fields: {', '.join(names) or 'it has none'}",
            plan.name,
        )


def _check_names(plan: NodePlan) -> Iterator[Problem]:
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


def problems_of(call: CallPlan) -> Iterator[Problem]:
    """Yield the problems of a call and of the calls that it waits for, at any depth.

    Use it only after planning. It reads the plans of graphs, which may be incomplete before.
    """
    for caller in every_call(call):
        yield from caller.problems
        for parameter, below in caller.inputs:
            yield from check_input(caller, parameter, below)


def check_input(caller: CallPlan, parameter: str, below: Input) -> Iterator[Problem]:
    yield from missing_return_problems(below.call, below.declared_type)
    returned = below.call.returns
    if assignable(returned, below.declared_type) is False:
        takes, returns = type_name(below.declared_type), type_name(returned)
        yield an_error(
            "bae-dep-type",
            f"{caller.name}({parameter}) takes {takes}, but {below.call.name} returns {returns}",
            f"annotate the parameter {returns}, or give Dep a function that returns {takes}",
        )
    yield from unfilled_problems(below.call, below.marker)
    yield from _check_bound(below.call, below.marker, None)
    yield from check_scope(below.call, below.marker)


def check_scope(call: CallPlan, marker: Dep) -> Iterator[Problem]:
    """Yield the problems of an app-scoped value that needs something only a run has."""
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
    obstacle = "a graph, which runs inside a run" if call.graph is not None else ""
    if call.lm_parameters:
        obstacle = f"given the LM of a run, as {call.lm_parameters[0]}"
    if call.recalls or marker.bound:
        obstacle = "called with values of a run"
    if obstacle:
        yield an_error(
            "bae-dep-scope",
            f"{call.name} cannot be opened once for all runs: it is {obstacle}",
            'remove scope="app" from it, and set it where all runs can share the value',
        )


def missing_return_problems(call: CallPlan, declared_type: Any = Any) -> list[Problem]:
    """Return the problem of a function without a return annotation. Empty if it has one."""
    if call.returns is not MISSING:
        return []
    if call.kind == "graph":
        return []  # the proof reports a graph without an end itself
    function = inspect.unwrap(call.fn) if callable(call.fn) else call.fn
    is_function = isinstance(function, FunctionType | MethodType)
    annotatable = is_function and not call.name.endswith("<lambda>")  # a lambda cannot have one
    return [
        Problem(
            "error" if annotatable else "warning",
            "bae-dep-unannotated",
            "",
            f"{call.name} has no return annotation, so bae cannot check that its value fits",
            f"write `{_find_keyword(call)} {call.name}(…) -> "
            f"{_suggest_annotation(call, declared_type)}`"
            if annotatable
            else "give Dep a function with a return annotation",
        )
    ]


def _find_keyword(call: CallPlan) -> str:
    """Return the keyword that defines the function: `def` or `async def`."""
    function = inspect.unwrap(call.fn)
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return "async def" if is_async else "def"


def _suggest_annotation(call: CallPlan, declared_type: Any) -> str:
    """Return an annotation for the function that fits the declared type."""
    value = "…" if declared_type is Any else type_name(declared_type)
    function = inspect.unwrap(call.fn)
    if inspect.isasyncgenfunction(function):
        return f"AsyncIterator[{value}]"
    return f"Iterator[{value}]" if inspect.isgeneratorfunction(function) else value


def unfilled_problems(call: CallPlan, marker: Dep | None = None) -> list[Problem]:
    """Return a problem for each parameter that nothing can fill. The parameters of a graph are the
    fields of its start node."""
    bound = () if marker is None else dict(marker.bound)
    place = f"the field {{}} of the start node of {call.name}"
    if call.graph is None:
        place = f"the parameter {{}} of {call.name}"
    return [
        an_error(
            "bae-dep-unfilled",
            f"nothing can fill {place.format(name)}",
            f"rename it, or give it a default: {name} is an option of Dep, so a parameter of that "
            "name cannot be bound"
            if name in _RESERVED
            else f'bind it to a field of the node, Dep({call.name}, {name}="…"), or to a value of '
            f"the trace, Dep({call.name}, {name}=Recall(…)); or "
            + ("give it a source" if call.graph else f"annotate {name} Annotated[…, Dep(…)] or LM")
            + ", or a default"
            + _note_on_fill(call),
        )
        for name, _ in call.free
        if name not in bound
    ]


def _note_on_fill(call: CallPlan) -> str:
    """Return a note on `Dep()`, if a node class runs as a graph. The author may have wanted the LM
    to fill the node."""
    if not inspect.isclass(call.fn) or call.graph is None:
        return ""
    return f"; Annotated[{call.name}, Dep()] is a {call.name} that the LM fills"


_RESERVED: typing.Final = ("timeout", "retries", "inline", "cache", "scope")


def _check_bound(call: CallPlan, marker: Dep | Map, plan: NodePlan | None) -> Iterator[Problem]:
    """Yield the problems of the parameters that a marker binds. `plan` is None if the marker is on
    a parameter of a function, which sees no fields."""
    kind = type(marker).__name__
    for name, source in marker.bound:
        types = call.bindable
        message = f"{kind}({call.name}, {name}=…)"
        if name not in types:
            yield _unbindable_problem(call, name, message)
            continue
        parameter_type = types[name]
        if not isinstance(source, str):
            if parameter_type is Any:
                yield an_error(
                    "bae-dep-binding",
                    f"{message} recalls a value by the type of {name}, which is not annotated",
                    f"annotate {name} with the type to look for",
                )
            continue
        other = None if plan is None else plan.fields.get(source)
        if other is None:
            names = ", ".join(() if plan is None else plan.fields) or "none"
            reason = "a parameter of a function sees no fields"
            if plan is not None:
                reason = f"{plan.name} has no such field (it has: {names})"
            yield an_error(
                "bae-dep-binding",
                f"{message} is bound to the field {source!r}, and {reason}",
                f"name a field of the same node, or write {name}=Recall(…); for a value of your "
                f"own give {kind} functools.partial({call.name}, {name}={source!r})",
            )
        elif assignable(other.annotation, parameter_type) is False:
            field_type, takes = type_name(other.annotation), type_name(parameter_type)
            yield an_error(
                "bae-dep-type",
                f"{call.name}({name}) takes {takes}, but the field {source} is {field_type}",
                f"annotate {name} as {field_type}, or bind it to a field that is {takes}",
            )


def _unbindable_problem(call: CallPlan, name: str, message: str) -> Problem:
    sources = dict((*call.inputs, *call.recalls))
    if name in sources or name in call.lm_parameters:
        source = "LM" if name in call.lm_parameters else type(sources[name].marker).__name__
        reason = f"its annotation says {source}, which fills it"
        fix = f"take {source} out of its annotation, or do not bind it"
    else:
        kind = "field of its start node" if call.graph else "parameter"
        reason = f"{call.name} has no such {kind}; it has: {', '.join(call.bindable) or 'none'}"
        fix = "bind one that it has"
    return an_error("bae-dep-binding", f"{message} cannot be bound: {reason}", fix)


def check_arguments(plan: NodePlan, field: FieldPlan) -> Iterator[Problem]:
    """Yield the problems of a field's bound parameters, and of fields that wait for each other."""
    yield from _check_bound(cast(CallPlan, field.call), field.marker, plan)
    yield from _check_circle(plan, field)


def check_type(call: CallPlan, returned: Any, declared: Any) -> Iterator[Problem]:
    """Yield the problem of a return type that does not fit the type of the field."""
    if assignable(returned, declared) is False:
        returns = type_name(returned)
        yield an_error(
            "bae-dep-type",
            f"is {type_name(declared)}, but {call.name} returns {returns}",
            f"declare the field {returns}, or give it a function that returns {type_name(declared)}"
            + (_note_on_fill(call) if call.fn in union_members(declared) else ""),
        )


def _check_circle(plan: NodePlan, field: FieldPlan) -> Iterator[Problem]:
    """Yield the problem of a field that waits for itself, directly or through other fields."""
    came_from: dict[str, str] = {}
    ahead = [field.name]
    for name in ahead:
        for other in plan.fields[name].waits_for:
            if other == field.name:
                path = [name]
                while path[-1] != field.name:
                    path.append(came_from[path[-1]])
                yield from _report_circle(plan, path[::-1])
                return
            if other in plan.fields and other not in came_from:
                came_from[other] = name
                ahead.append(other)


def _report_circle(plan: NodePlan, names: list[str]) -> Iterator[Problem]:
    edges = zip(names, [*names[1:], names[0]], strict=True)
    if all(plan.fields[name].items_of == other for name, other in edges):
        yield an_error(
            "bae-map-over", "maps over itself", "map over a field that does not need this map"
        )
    elif names[0] == next(name for name in plan.fields if name in names):
        path = " -> ".join(f"{plan.name}.{name}" for name in [*names, names[0]])
        yield an_error(
            "bae-dep-cycle",
            f"fields wait for each other: {path}",
            "break the circle: bind one of these parameters to another field",
        )
