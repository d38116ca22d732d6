"""How a dependency is called: one function, generator, context manager, graph or node class becomes
a `CallPlan` that names its inputs, its kind and what it returns. `plan.py` builds them for fields,
`invoke.py` carries them out."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from weakref import WeakKeyDictionary

from bae.assignable import type_name, union_members
from bae.exceptions import HintError
from bae.hints import NOWHERE, Names, annotations_of
from bae.lm.protocol import LM
from bae.markers import FUNCTION_TIMEOUT, SOURCES, Dep, Map
from bae.problem import Problem

if TYPE_CHECKING:
    from bae.graph import Graph

Kind = Literal["async", "sync", "async_generator", "generator", "async_context", "context", "graph"]


class _Missing:
    def __repr__(self) -> str:
        return "<no return annotation>"


MISSING: Final = _Missing()
"""What a function without a return annotation is said to return."""


@dataclass(slots=True, eq=False)
class CallPlan:
    """Everything about calling one dependency, worked out once.

    `inputs` are its own dependencies by parameter name, `free` the parameters that nothing fills:
    an error for a `Dep`, the place of the item for a `Map`.
    """

    fn: Any
    key: Hashable
    name: str
    kind: Kind
    returns: Any = MISSING
    inputs: tuple[tuple[str, Input], ...] = ()
    lm_parameters: tuple[str, ...] = ()
    free: tuple[tuple[str, Any], ...] = ()
    positional: tuple[str, ...] = ()
    graph: Graph[Any] | None = None
    problems: list[Problem] = field(default_factory=list[Problem])

    def timeout(self, marker: Dep | Map) -> float | None:
        """Seconds a call may take under this marker."""
        if isinstance(marker.timeout, int | float) or marker.timeout is None:
            return marker.timeout
        return None if self.kind == "graph" else FUNCTION_TIMEOUT

    def __str__(self) -> str:
        return f"{self.name}({', '.join(name for name, _ in self.inputs)})"


@dataclass(slots=True, frozen=True)
class Input:
    """A dependency as somebody asks for it: what to call, and the options of the marker."""

    call: CallPlan
    marker: Dep


def plan_call(
    fn: Any, names: Names = NOWHERE, _above: tuple[tuple[Hashable, str], ...] = ()
) -> CallPlan:
    """Plan calling `fn`, its own dependencies included. Problems are collected, not raised."""
    if isinstance(fn, FunctionType) and fn in _planned:
        return _planned[fn]
    graph = _as_graph(fn)
    plan = _plan_graph(fn, graph) if graph is not None else _plan_function(fn, names, _above)
    if isinstance(fn, FunctionType) and not plan.problems:
        _planned[fn] = plan
    return plan


def key_of(fn: Any) -> Hashable:
    """What tells one dependency from another: itself, or its identity where it has no hash."""
    try:
        hash(fn)
    except TypeError:
        if isinstance(fn, MethodType):
            return (id(fn.__self__), fn.__func__)
        return ("bae-unhashable", id(fn))
    return cast(Hashable, fn)


def name_of(fn: Any) -> str:
    """A dependency's name in messages, records and pictures."""
    while isinstance(fn, partial):
        fn = cast("partial[Any]", fn).func
    name = getattr(fn, "__qualname__", None) or getattr(fn, "name", None) or type(fn).__name__
    return str(name).rpartition("<locals>.")[2]


def is_lm(annotation: Any) -> bool:
    """Whether a parameter asks for the LM: annotated `LM`, alone or in a union."""
    return any(member is LM for member in union_members(annotation))


_planned: WeakKeyDictionary[FunctionType, CallPlan] = WeakKeyDictionary()


def _as_graph(fn: Any) -> Graph[Any] | None:
    from bae.graph import Graph
    from bae.node import Node

    if isinstance(fn, Graph):
        return cast("Graph[Any]", fn)
    if inspect.isclass(fn) and issubclass(fn, Node):
        return Graph(start=fn)
    return None


def _plan_graph(fn: Any, graph: Graph[Any]) -> CallPlan:
    from bae.plan import plan_of

    start = plan_of(graph.start)
    return CallPlan(
        fn=fn,
        key=key_of(fn),
        name=graph.name,
        kind="graph",
        returns=typing.Union[graph.terminal_nodes] if graph.terminal_nodes else MISSING,  # noqa: UP007
        free=tuple((f.name, f.annotation) for f in start.plain if f.required),
        graph=graph,
    )


def _plan_function(
    fn: Callable[..., Any], names: Names, above: tuple[tuple[Hashable, str], ...]
) -> CallPlan:
    plan = CallPlan(fn=fn, key=key_of(fn), name=name_of(fn), kind=_kind(fn))
    above = (*above, (plan.key, plan.name))
    try:
        hints = annotations_of(fn, names)
    except HintError as error:
        plan.problems.append(
            Problem("error", error.code, "", _flat(error), error.fix or "mend the annotation")
        )
        return plan
    if inspect.isclass(fn):
        plan.returns = fn
    elif "return" in hints:
        plan.returns = _returned(plan, hints["return"])
    _plan_parameters(plan, hints, names, above)
    return plan


def _plan_parameters(
    plan: CallPlan, hints: dict[str, Any], names: Names, above: tuple[tuple[Hashable, str], ...]
) -> None:
    inputs: list[tuple[str, Input]] = []
    lms: list[str] = []
    free: list[tuple[str, Any]] = []
    positional: list[str] = []
    for parameter in _parameters(plan.fn):
        hint = hints.get(parameter.name, parameter.empty)
        marker = _marker(hint)
        if isinstance(marker, Dep):
            key = key_of(marker.fn)
            if any(key == seen for seen, _ in above):
                plan.problems.append(_cycle(above, key))
                continue
            call = plan_call(marker.fn, names, above)
            plan.problems.extend(call.problems)
            _check_input(plan, parameter.name, hint, call)
            inputs.append((parameter.name, Input(call, marker)))
        elif marker is not None:
            plan.problems.append(_misplaced(plan, parameter.name, marker))
        elif is_lm(hint):
            lms.append(parameter.name)
        elif parameter.default is parameter.empty:
            free.append((parameter.name, hint))
        else:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
    plan.inputs, plan.lm_parameters = tuple(inputs), tuple(lms)
    plan.free, plan.positional = tuple(free), tuple(positional)


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):  # some builtins have none; what they need is then unknown
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in signature.parameters.values() if p.kind not in variadic]


def _kind(fn: Callable[..., Any]) -> Kind:
    while isinstance(fn, partial):
        fn = cast("partial[Any]", fn).func
    if not isinstance(fn, FunctionType | MethodType) and not inspect.isclass(fn):
        fn = getattr(fn, "__wrapped__", None) or type(fn).__call__
    inner = inspect.unwrap(fn)
    if inspect.isasyncgenfunction(inner):
        return "async_generator" if inner is fn else "context"
    if inspect.isgeneratorfunction(inner):
        return "generator" if inner is fn else "context"
    return "async" if inspect.iscoroutinefunction(inner) else "sync"


def _returned(plan: CallPlan, hint: Any) -> Any:
    """The type of the value a call ends in: what is yielded, entered or awaited."""
    origin = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    # By identity: many a client can be entered, and is meant to be handed over as it is.
    if origin is AbstractAsyncContextManager or origin is AbstractContextManager:
        plan.kind = "context"
    elif plan.kind == "sync" and origin in (Awaitable, Coroutine):
        return arguments[-1] if arguments else Any
    if plan.kind in ("async", "sync"):
        return hint
    return arguments[0] if arguments else Any


def _marker(hint: Any) -> Any:
    if typing.get_origin(hint) is not typing.Annotated:
        return None
    return next((m for m in typing.get_args(hint)[1:] if isinstance(m, SOURCES)), None)


def _cycle(above: tuple[tuple[Hashable, str], ...], key: Hashable) -> Problem:
    start = next(i for i, (seen, _) in enumerate(above) if seen == key)
    path = " -> ".join([*(name for _, name in above[start:]), above[start][1]])
    return Problem(
        "error",
        "bae-dep-cycle",
        "",
        f"dependencies wait for each other: {path}",
        "break the circle: take one of these Dep parameters out",
    )


def _check_input(plan: CallPlan, parameter: str, hint: Any, call: CallPlan) -> None:
    from bae.assignable import assignable

    plan.problems.extend(unreturned(call))
    if assignable(call.returns, hint) is False:
        plan.problems.append(
            Problem(
                "error",
                "bae-dep-type",
                "",
                f"{plan.name}({parameter}) takes {type_name(hint)}, but {call.name} returns "
                f"{type_name(call.returns)}",
                f"annotate the parameter {type_name(call.returns)}, or give Dep a function that "
                f"returns {type_name(hint)}",
            )
        )
    plan.problems.extend(unfilled(call))


def unreturned(call: CallPlan) -> list[Problem]:
    """The problem of a function that does not say what it returns; none where it does."""
    if call.returns is not MISSING or call.problems:
        return []
    if call.kind == "graph":
        return []  # a graph that never ends is a problem of its own
    inner = inspect.unwrap(call.fn) if callable(call.fn) else call.fn
    annotatable = isinstance(inner, FunctionType | MethodType) and call.name != "<lambda>"
    return [
        Problem(
            "error" if annotatable else "warning",
            "bae-dep-unannotated",
            "",
            f"{call.name} does not say what it returns, so the field's type cannot be proved",
            f"write `def {call.name}(…) -> …`"
            if annotatable
            else "give Dep a function with a return annotation",
        )
    ]


def unfilled(call: CallPlan) -> list[Problem]:
    """The problems of parameters, or start fields of a graph, that nothing can fill."""
    if call.kind == "graph":
        return [
            Problem(
                "error",
                "bae-dep-unfilled",
                "",
                f"{call.name}: nobody gives the start node of a graph used as a Dep its field "
                f"{name}",
                f"give {name} a Dep, a Recall or a default, or use Map(…, over=…) to hand it items",
            )
            for name, _ in call.free
        ]
    return [
        Problem(
            "error",
            "bae-dep-unfilled",
            "",
            f"nothing can fill the parameter {name} of {call.name}",
            "annotate it Annotated[…, Dep(…)] or LM, or give it a default",
        )
        for name, _ in call.free
    ]


def _misplaced(plan: CallPlan, parameter: str, marker: object) -> Problem:
    kind = type(marker).__name__
    return Problem(
        "error",
        "bae-dep-unfilled",
        "",
        f"{plan.name}({parameter}) is annotated {kind}, which only a node's field can be: a "
        "function is called once for the whole run, wherever it stands",
        f"put the {kind} on a field of the node, or use Dep here",
    )


def _flat(error: HintError) -> str:
    return f"{error.message} ({error.path})" if error.path else error.message
