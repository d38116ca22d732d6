"""The problems of one node class without the graph around it: of its sources, and of the calls
behind them."""

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
    """The problems of one node class that do not need the graph around it."""
    problems = list(plan.problems)
    for field in plan.fields.values():
        place = f"{plan.name}.{field.name}"
        problems.extend(problem.at(place) for problem in field.problems(plan))
        required = field.required and is_start
        if required and any(recall.required for *_, recall in field.recalls()):
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
        message = f"NodeConfig pins no LM to it: {error.message}"
        yield an_error("bae-lm-type", message, error.fix or "", plan.name)


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


def problems_of(call: CallPlan) -> Iterator[Problem]:
    """The problems of a call and of every call it waits for, at any depth.

    Do not call it while planning: it looks into graphs, whose nodes may be in the process of being
    planned.
    """
    for caller in every_call(call):
        yield from caller.problems
        for parameter, below in caller.inputs:
            yield from check_input(caller, parameter, below)


def check_input(caller: CallPlan, parameter: str, below: Input) -> Iterator[Problem]:
    yield from missing_return_problems(below.call, below.wanted)
    returned = below.call.returns
    if assignable(returned, below.wanted) is False:
        takes, made = type_name(below.wanted), type_name(returned)
        yield an_error(
            "bae-dep-type",
            f"{caller.name}({parameter}) takes {takes}, but {below.call.name} returns {made}",
            f"annotate the parameter {made}, or give Dep a function that returns {takes}",
        )
    yield from unfilled_problems(below.call, below.marker)
    yield from _check_bound(below.call, below.marker, None)
    yield from check_scope(below.call, below.marker)


def check_scope(call: CallPlan, marker: Dep) -> Iterator[Problem]:
    """The problems of a value of the app that needs something only a run has."""
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


def missing_return_problems(call: CallPlan, wanted: Any = Any) -> list[Problem]:
    """The problem of a function without a return annotation; empty if it has one."""
    if call.returns is not MISSING:
        return []
    if call.kind == "graph":
        return []  # a graph that never ends is a problem of its own
    inner = inspect.unwrap(call.fn) if callable(call.fn) else call.fn
    written = isinstance(inner, FunctionType | MethodType)
    annotatable = written and not call.name.endswith("<lambda>")  # a lambda cannot have one
    return [
        Problem(
            "error" if annotatable else "warning",
            "bae-dep-unannotated",
            "",
            f"{call.name} does not say what it returns, so it cannot be proved to fit",
            f"write `{_keyword(call)} {call.name}(…) -> {_return_annotation(call, wanted)}`"
            if annotatable
            else "give Dep a function with a return annotation",
        )
    ]


def _keyword(call: CallPlan) -> str:
    """The beginning of a function's definition."""
    behind = inspect.unwrap(call.fn)
    is_async = inspect.iscoroutinefunction(behind) or inspect.isasyncgenfunction(behind)
    return "async def" if is_async else "def"


def _return_annotation(call: CallPlan, wanted: Any) -> str:
    """The return annotation for a function that makes the wanted value."""
    value = "…" if wanted is Any else type_name(wanted)
    behind = inspect.unwrap(call.fn)
    if inspect.isasyncgenfunction(behind):
        return f"AsyncIterator[{value}]"
    return f"Iterator[{value}]" if inspect.isgeneratorfunction(behind) else value


def unfilled_problems(call: CallPlan, marker: Dep | None = None) -> list[Problem]:
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
            + ", or a default"
            + _to_fill(call),
        )
        for name, _ in call.free
        if name not in bound
    ]


def _to_fill(call: CallPlan) -> str:
    """A note on `Dep()`, if a node class runs as a graph and may be meant to be filled."""
    if not inspect.isclass(call.fn) or call.graph is None:
        return ""
    return f"; Annotated[{call.name}, Dep()] is a {call.name} that the LM fills"


_RESERVED: typing.Final = ("timeout", "retries", "inline", "cache", "scope")


def _check_bound(call: CallPlan, marker: Dep | Map, plan: NodePlan | None) -> Iterator[Problem]:
    """The problems of the parameters that a marker binds. Without a plan, the marker is on a
    parameter."""
    kind = type(marker).__name__
    for name, source in marker.bound:
        types = call.bindable
        message = f"{kind}({call.name}, {name}=…)"
        if name not in types:
            yield _unbindable(call, name, message)
            continue
        wanted = types[name]
        if not isinstance(source, str):
            if wanted is Any:
                yield an_error(
                    "bae-dep-binding",
                    f"{message} recalls a value by the type of {name}, which is not annotated",
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
                f"{message} is bound to the field {source!r}, and {has}",
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


def _unbindable(call: CallPlan, name: str, message: str) -> Problem:
    filled = dict((*call.inputs, *call.recalls))
    if name in filled or name in call.lm_parameters:
        by = "LM" if name in call.lm_parameters else type(filled[name].marker).__name__
        why = f"its annotation says {by}, which fills it"
        fix = f"take {by} out of its annotation, or do not bind it"
    else:
        what = "field of its start node" if call.graph else "parameter"
        why = f"{call.name} has no such {what}; it has: {', '.join(call.bindable) or 'none'}"
        fix = "bind one that it has"
    return an_error("bae-dep-binding", f"{message} cannot be bound: {why}", fix)


def check_arguments(plan: NodePlan, field: FieldPlan) -> Iterator[Problem]:
    """The problems of bound parameters, and of fields that wait for each other."""
    yield from _check_bound(cast(CallPlan, field.call), field.marker, plan)
    yield from _check_circle(plan, field)


def check_type(call: CallPlan, returned: Any, declared: Any) -> Iterator[Problem]:
    """The problem of a value that does not fit its field."""
    if assignable(returned, declared) is False:
        made = type_name(returned)
        yield an_error(
            "bae-dep-type",
            f"is {type_name(declared)}, but {call.name} returns {made}",
            f"declare the field {made}, or give it a function that returns {type_name(declared)}"
            + (_to_fill(call) if call.fn in union_members(declared) else ""),
        )


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
    if all(plan.fields[name].items_of == other for name, other in around):
        yield an_error("bae-map-over", "maps over itself", "map over a field that is no map of it")
    elif names[0] == next(name for name in plan.fields if name in names):
        path = " -> ".join(f"{plan.name}.{name}" for name in [*names, names[0]])
        yield an_error(
            "bae-dep-cycle",
            f"fields wait for each other: {path}",
            "break the circle: bind one of these parameters to another field",
        )
