"""`CallPlan` says how to call a dependency: a function, generator, context manager, graph or node
class. It has the dependency's inputs, kind and return type."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from bae.assignable import union_members
from bae.exceptions import HintError, Problem, an_error, describe
from bae.graph_plan import plan_of_graph
from bae.hints import NOWHERE, Names, annotations_of, rebuild, signature_of
from bae.language_model import LM
from bae.markers import Dep, Map, Marker

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.sources import FieldPlan
    from bae.sources.recall import RecallField

CallKind = Literal["async", "sync", "async_generator", "generator", "context", "graph"]


OPENING: Final = ("generator", "async_generator", "context")
"""The kinds of calls that open a resource. bae closes the resource after the run."""


DEEPEST: Final = 100
"""The maximum length of a chain of functions in which each function waits for the next."""

MISSING: Final = object()
"""The return type of a function without a return annotation."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class CallPlan:
    """How to call one dependency. bae computes the plan once."""

    fn: Any
    key: Hashable
    name: str
    kind: CallKind
    declared: Any = MISSING
    """The type of a call's final value, from the function's return annotation. For a graph, read
    `returns`."""
    inputs: tuple[tuple[str, Input], ...] = ()
    """The parameters that are dependencies themselves."""
    recalls: tuple[tuple[str, RecallField], ...] = ()
    """The parameters that are looked up in the trace."""
    by_value: bool = False
    """Whether the result depends on values of the run, because the function, or a function that it
    waits for, has a parameter that is looked up in the trace. A run then calls the function once
    for equal arguments."""
    lm_parameters: tuple[str, ...] = ()
    """The parameters that take the LM."""
    needs_lm: bool = False
    """Whether the function cannot be called without an LM."""
    borrowed: bool = False
    """Whether the function's hints use names that only the class with the field can see."""
    stays: bool = False
    """Whether the plan is also right where another class uses the function."""
    unfilled: tuple[tuple[str, Any], ...] = ()
    """The function's parameters without a source or a default. For a graph, read `free`."""
    optional: tuple[tuple[str, Any], ...] = ()
    """The function's parameters without a source that have a default."""
    positional: tuple[str, ...] = ()
    """The parameters that can only be passed by position."""
    graph: Graph[Any, Any] | None = None
    depth: int = 1
    """The number of calls in the longest chain that begins with this call."""
    problems: list[Problem] = field(default_factory=list[Problem])
    """The problems of this function. `problems_of` adds the problems of the functions that it waits
    for."""

    @property
    def opens(self) -> bool:
        """Whether a call opens a resource, which bae closes after the run."""
        return self.kind in OPENING

    @property
    def returns(self) -> Any:
        """The type of a call's final value; `MISSING` if the function has no return annotation."""
        # Read the graph only now: this plan may have been made while the graph was being planned.
        if self.graph is None:
            return self.declared
        ends = self.graph.terminal_nodes
        return typing.Union[ends] if ends else MISSING  # noqa: UP007

    @property
    def free(self) -> tuple[tuple[str, Any], ...]:
        """The names and types of the parameters without a source or a default. For a graph, these
        are the required plain fields of its start node. A `Dep` must bind all of them. A `Map` must
        bind all but one, which gets the item."""
        if self.graph is None:
            return self.unfilled
        plain = plan_of_graph(self.graph).start_fields
        return tuple((field.name, field.annotation) for field in plain if field.required)

    @property
    def bindable(self) -> dict[str, Any]:
        """The types of the parameters that a marker can bind, by name: all parameters without a
        source."""
        if self.graph is None:
            return dict((*self.unfilled, *self.optional))
        return {field.name: field.annotation for field in plan_of_graph(self.graph).start_fields}

    def __str__(self) -> str:
        return f"{self.name}({', '.join(name for name, _ in self.inputs)})"


class Input(NamedTuple):
    """One use of a dependency, by a parameter or a field."""

    call: CallPlan
    marker: Dep
    """The marker with its options, such as the timeout."""
    declared_type: Any = Any
    """The declared type of the parameter or field."""
    bound: Bound = ()
    """The bindings that the marker makes."""

    @property
    def is_shared(self) -> bool:
        """Whether a run calls the function once for all parameters and fields that need the same
        value."""
        return self.marker.cache

    @property
    def is_of_app(self) -> bool:
        """Whether all runs of an app share one value."""
        return self.marker.scope == "app"


Bound = tuple[tuple[str, "str | RecallField"], ...]
"""The names of parameters, each with the name of the node's field that it gets, or with the plan of
the value that it recalls."""


def is_by_value(asked: FieldPlan | Input) -> bool:
    """Return whether the value depends on values of the run: see `CallPlan.by_value`."""
    return bool(asked.bound) or (asked.call is not None and asked.call.by_value)


def recalls_of(asked: FieldPlan | Input) -> Iterator[tuple[str, RecallField]]:
    """Yield the parameters of a field or input that are looked up in the trace."""
    if asked.call is not None:
        yield from asked.call.recalls
    for name, source in asked.bound:
        if not isinstance(source, str):
            yield name, source


def walk_recalls(asked: FieldPlan | Input) -> Iterator[tuple[str, Hashable, RecallField]]:
    """Yield the parameters that are looked up in the trace for a field or input: the parameters of
    its call, and of all calls that this call waits for, without duplicates. Each parameter has its
    path, such as `(hits)(query)`, its key and its plan."""
    ahead: list[tuple[str, FieldPlan | Input]] = [("", asked)]
    visited: set[tuple[CallPlan | None, Bound]] = set()
    for path, source in ahead:
        if (source.call, source.bound) not in visited:
            visited.add((source.call, source.bound))
            key = None if source.call is None else source.call.key
            for name, recall in recalls_of(source):
                yield f"{path}({name})", (key, name, recall.marker), recall
            below = () if source.call is None else source.call.inputs
            ahead += [(f"{path}({name})", input) for name, input in below if is_by_value(input)]


def siblings_of(asked: FieldPlan | Input) -> Iterator[tuple[str, str]]:
    """Yield the parameters that are bound to a field of the node, with the name of the field."""
    for name, source in asked.bound:
        if isinstance(source, str):
            yield name, source


def plan_bound(call: CallPlan, marker: Dep | Map) -> Bound:
    """Return the bindings of a marker. The proof reports invalid bindings."""
    if not marker.bound:
        return ()
    from bae.sources.recall import recalled_parameter

    types = call.bindable if call.graph is None else _types_at_start(call.graph)
    return tuple(
        (name, source)
        if isinstance(source, str)
        else (name, recalled_parameter(name, types.get(name, Any), source))
        for name, source in marker.bound
    )


def _types_at_start(graph: Graph[Any, Any]) -> dict[str, Any]:
    # Not from the plan of the start class: bae may be about to make that plan.
    rebuild(graph.start)
    return {name: info.annotation for name, info in graph.start.__pydantic_fields__.items()}


def plan_call(fn: Any, names: Names = NOWHERE) -> CallPlan:
    """Plan how to call `fn` and its own dependencies. Problems are collected, not raised."""
    return plan_below(fn, CallPlanning(names, {}, {}))


def plan_below(fn: Any, planning: CallPlanning) -> CallPlan:
    """Plan how to call `fn`, as a part of `planning`."""
    # Each call in a chain takes three stack frames. `DEEPEST` keeps a chain below Python's limit.
    key = key_of(fn)
    plan = _stored_plan(fn) or planning.plans.get(key)
    if plan is not None:
        return plan
    graph = _as_graph(fn)
    if fn is None:
        plan = CallPlan(fn, key, "Dep()", "sync", Any, problems=[_nothing_to_call()])
    elif graph is not None:
        name = graph.start.__name__ if plan_of_graph(graph).is_filled else graph.name
        plan = CallPlan(fn=fn, key=key, name=name, kind="graph", graph=graph)
    else:
        plan = CallPlan(fn=fn, key=key, name=name_of(fn), kind=_kind(fn))
        hints = _hints(plan, planning.names)
        if hints is not None:
            _plan_parameters(plan, hints, planning)
    planning.plans[key] = plan
    # A plan with problems is not stored, because missing names may be defined later. A plan with
    # borrowed names is not stored either: in another class the names may mean something else.
    below_stay = all(below.call.stays for _, below in plan.inputs)
    plan.stays = below_stay and not (plan.problems or plan.borrowed)
    if isinstance(fn, FunctionType) and plan.stays:
        fn.__dict__[_PLAN] = plan
    return plan


def key_of(fn: Any) -> Hashable:
    """Return the key of a dependency: the dependency itself, or its identity if it has no hash."""
    try:
        hash(fn)
    except TypeError:
        return ("unhashable", id(fn))
    return cast(Hashable, fn)


def name_of(fn: Any) -> str:
    """Return the name of a dependency for messages, records and pictures."""
    while isinstance(fn, partial):
        fn = cast("partial[Any]", fn).func
    name = getattr(fn, "__qualname__", None) or getattr(fn, "name", None) or type(fn).__name__
    return str(name).rpartition("<locals>.")[2]


def is_lm(annotation: Any) -> bool:
    """Return whether a parameter takes the LM: its annotation is `LM`, alone or in a union."""
    return any(member is LM for member in union_members(annotation))


_PLAN = "__bae_call__"


class CallPlanning(NamedTuple):
    """The state while bae plans a dependency and all dependencies that it waits for."""

    names: Names
    """The names that the class with the field can see."""
    above: dict[Hashable, str]
    """The names of the functions that wait for the call being planned, by key."""
    plans: dict[Hashable, CallPlan]
    """The finished plans, by key."""

    def problem_with(self, fn: Any) -> Problem | None:
        """Return the problem that there would be if the call being planned waited for `fn`: a
        circle, or a chain that is too long. Return None if `fn` is no problem."""
        key = key_of(fn)
        if key in self.above:
            return _cycle(self.above, key)
        if len(self.above) >= DEEPEST:
            chain = [*self.above.values(), name_of(fn)]
            return too_deep("dependencies wait for each other", chain, DEEPEST)
        return None


def _stored_plan(fn: Any) -> CallPlan | None:
    plan = fn.__dict__.get(_PLAN) if isinstance(fn, FunctionType) else None
    # A decorator may have copied the attributes of the wrapped function, its plan included.
    return plan if plan is not None and plan.fn is fn else None


def _as_graph(fn: Any) -> Graph[Any, Any] | None:
    from bae.graph import Graph
    from bae.node import Node

    if isinstance(fn, Graph):
        return cast("Graph[Any, Any]", fn)
    if inspect.isclass(fn) and issubclass(fn, Node):
        return Graph(start=fn)
    return None


def _hints(plan: CallPlan, names: Names) -> dict[str, Any] | None:
    """Return the annotations of a function, and set the return type of its plan. Return None if the
    annotations cannot be resolved."""
    try:
        try:
            hints = annotations_of(plan.fn)
        except HintError:
            plan.borrowed = True
            hints = annotations_of(plan.fn, names)
    except HintError as error:
        plan.problems.append(
            an_error(error.code, flat(error), error.fix or "correct the annotation")
        )
        plan.declared = Any  # so that bae reports no second problem about the type
        return None
    if inspect.isclass(plan.fn):
        plan.declared = plan.fn
    elif "return" in hints:
        plan.declared = _final_type(plan, hints["return"])
    return hints


def _plan_parameters(plan: CallPlan, hints: dict[str, Any], planning: CallPlanning) -> None:
    above = planning.above
    above[plan.key] = plan.name
    lms: list[str] = []
    free: list[tuple[str, Any]] = []
    optional: list[tuple[str, Any]] = []
    positional: list[str] = []
    problems = plan.problems
    for parameter in _parameters(plan.fn):
        hint = hints.get(parameter.name, Any)
        marker = _marker(hint)
        if marker is not None:
            from bae.sources import kind_of

            is_required = parameter.default is parameter.empty
            kind_of(marker).plan_parameter(
                plan, parameter.name, hint, marker, planning, is_required
            )
        elif is_buried(hint):
            plan.problems.append(buried_marker_problem(f"{plan.name}({parameter.name}): "))
        elif is_lm(hint):
            lms.append(parameter.name)
            plan.needs_lm |= parameter.default is parameter.empty
        elif parameter.default is parameter.empty:
            free.append((parameter.name, hint))
        else:
            optional.append((parameter.name, hint))
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
    del above[plan.key]
    plan.lm_parameters = tuple(lms)
    plan.unfilled, plan.optional, plan.positional = tuple(free), tuple(optional), tuple(positional)
    plan.depth = 1 + max((below.call.depth for _, below in plan.inputs), default=0)
    if plan.depth == DEEPEST + 1:  # calls that wait for this call are deeper: report only this one
        chain = [plan.name]
        while plan.inputs:
            plan = max((below.call for _, below in plan.inputs), key=lambda call: call.depth)
            chain.append(plan.name)
        problems.append(too_deep("dependencies wait for each other", chain, DEEPEST))


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = signature_of(fn)
    except (ValueError, TypeError):  # some builtins have no signature: bae passes them nothing
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    bound: set[str] = set()
    while isinstance(fn, partial):
        bound.update(cast("partial[Any]", fn).keywords)
        fn = cast("partial[Any]", fn).func
    return [p for n, p in signature.parameters.items() if n not in bound and p.kind not in variadic]


def _kind(fn: Callable[..., Any]) -> CallKind:
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


def _final_type(plan: CallPlan, hint: Any) -> Any:
    """Return the type of a call's final value: the yielded, entered or awaited value."""
    origin = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    # Only these exact classes: many clients are context managers too, and bae does not enter them.
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
    return next((m for m in typing.get_args(hint)[1:] if isinstance(m, Marker)), None)


def is_buried(annotation: Any) -> bool:
    """Return whether a source marker is somewhere inside a type, where bae ignores it."""
    alias = getattr(annotation, "__value__", None)  # of a `type` statement
    if alias is not None:
        return _marker(alias) is not None or is_buried(alias)
    return any(
        _marker(argument) is not None or is_buried(argument)
        for argument in typing.get_args(annotation)
    )


def buried_marker_problem(whose: str = "") -> Problem:
    """Make the problem of a marker that is inside a type."""
    return an_error(
        "bae-field-buried",
        f"{whose}a source marker is inside its type, where it is not seen",
        "put Annotated outermost, on a field of the node: Annotated[T | None, Dep(…)]",
    )


def _cycle(above: dict[Hashable, str], key: Hashable) -> Problem:
    start = [*above].index(key)
    path = " -> ".join([*[*above.values()][start:], above[key]])
    return an_error(
        "bae-dep-cycle",
        f"dependencies wait for each other: {path}",
        "break the circle: take one of these Dep parameters out",
    )


def too_deep(what: str, chain: list[str], bound: int) -> Problem:
    """Make the problem of a chain of functions or graphs that is longer than `bound`."""
    names = " -> ".join([*chain[:3], "…", *chain[-2:]])
    return an_error(
        "bae-dep-depth",
        f"{len(chain)} {what}, but at most {bound} may: {names}",
        "make the chain shorter: let one function call some of the others, or replace nested "
        "graphs by the nodes of one graph",
    )


def every_call(call: CallPlan | None) -> list[CallPlan]:
    """Return a call and all calls that it waits for, at any depth and without duplicates."""
    calls = [] if call is None else [call]
    visited = set(calls)
    for current in calls:
        for _, below in current.inputs:
            if below.call not in visited:
                visited.add(below.call)
                calls.append(below.call)
    return calls


def _nothing_to_call() -> Problem:
    return an_error(
        "bae-dep-nothing",
        "Dep() names nothing to call: without a function it works only on a field of a node "
        "whose type is one node class that the LM fills",
        "declare such a field, and bind parameters to it; or give Dep a function, a Graph or a "
        "Node class",
    )


def flat(error: HintError) -> str:
    """Return the message of a `HintError` in one line. The line has the cause, unless the cause is
    only that a name is not defined."""
    message = error.message
    if error.cause is not None and not isinstance(error.cause, NameError):
        message += f": {describe(error.cause)}"
    return f"{message} ({error.path})" if error.path else message


def find_input(asked: FieldPlan | Input, parameter: str) -> FieldPlan | Input | None:
    """Return the parameter at a path, such as `(city)(client)`, from a field or input. Return None
    if there is no such parameter. For an empty path, return the field or input itself."""
    for name in parameter[1:-1].split(")(") if parameter else ():
        below = None if asked.call is None else dict(asked.call.inputs).get(name)
        if below is None:
            return dict(recalls_of(asked)).get(name)  # a recalled value has no parameters
        asked = below
    return asked


def find_call_at(asked: FieldPlan | Input, parameter: str) -> CallPlan | None:
    """Return the call for the parameter at a path from a field or input. Return None if there is no
    such parameter, or if it has no call, as a gate or a recalled value."""
    matching = find_input(asked, parameter)
    return None if matching is None else matching.call


def routes(call: CallPlan | None) -> Iterator[str]:
    """Yield one path, such as `(city)(client)`, to each call that a call waits for, at any depth.
    The first path is empty, for the call itself."""
    paths = {} if call is None else {call: ""}
    ahead = [*paths]
    for current in ahead:
        yield paths[current]
        for parameter, below in current.inputs:
            if below.call not in paths:
                paths[below.call] = f"{paths[current]}({parameter})"
                ahead.append(below.call)


_LONGEST_CHAIN: Final = 12
"""How many calls `call_chain` names for one field."""


def call_chain(field: FieldPlan) -> str:
    """Return the names of a field's call and of the calls that it waits for, such as
    `get_weather ← get_location`."""
    remaining = _LONGEST_CHAIN

    def text_of(asked: FieldPlan | Input) -> str:
        nonlocal remaining
        remaining -= 1
        call = cast(CallPlan, asked.call)
        name = f"graph {call.name}" if call.graph is not None else call.name
        below = [name for _, name in siblings_of(asked)]
        below += [str(recall.marker) for _, recall in recalls_of(asked)]
        below += [text_of(input) if remaining > 0 else "…" for _, input in call.inputs]
        below = list(dict.fromkeys(below))
        if len(below) > 1:
            below = [f"({', '.join(below)})"]
        return " ← ".join([name, *below])

    return text_of(field) if field.call is not None else ""
