"""`CallPlan`: how a dependency is called. It names the inputs, the kind and the return type of a
function, generator, context manager, graph or node class."""

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
"""The kinds that open something, which is closed after the run."""


DEEPEST: Final = 100
"""How many functions may wait for each other in a chain."""

MISSING: Final = object()
"""The return type of a function without a return annotation."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class CallPlan:
    """Everything about calling one dependency, computed once.

    `inputs` are its own dependencies by parameter name.
    """

    fn: Any
    key: Hashable
    name: str
    kind: CallKind
    declared: Any = MISSING
    """The return annotation of the function; for a graph, read `returns`."""
    inputs: tuple[tuple[str, Input], ...] = ()
    recalls: tuple[tuple[str, RecallField], ...] = ()
    """The parameters that are looked up in the trace."""
    by_value: bool = False
    """Whether the result depends on values of the run: on these parameters, or on those of a
    function that it waits for. It is then called once for equal values."""
    lm_parameters: tuple[str, ...] = ()
    needs_lm: bool = False
    """Whether it cannot be called without an LM."""
    borrowed: bool = False
    """Whether its hints needed names that are visible only to the class that uses it."""
    stays: bool = False
    """Whether the plan holds for its function everywhere, now and later."""
    unfilled: tuple[tuple[str, Any], ...] = ()
    """The function's parameters that nothing fills; for a graph, read `free`."""
    optional: tuple[tuple[str, Any], ...] = ()
    """The function's parameters that only a default fills."""
    positional: tuple[str, ...] = ()
    graph: Graph[Any, Any] | None = None
    depth: int = 1
    """How many calls the longest chain from this call on has."""
    problems: list[Problem] = field(default_factory=list[Problem])
    """The problems of the function itself; `problems_of` has those below it too."""

    @property
    def opens(self) -> bool:
        """Whether a call opens something that is closed after the run."""
        return self.kind in OPENING

    @property
    def returns(self) -> Any:
        """The type of the final value of a call; `MISSING` if it is not annotated."""
        # Look into a graph late: planning its nodes may have led here in the first place.
        if self.graph is None:
            return self.declared
        ends = self.graph.terminal_nodes
        return typing.Union[ends] if ends else MISSING  # noqa: UP007

    @property
    def free(self) -> tuple[tuple[str, Any], ...]:
        """The parameters that nothing fills, or the plain fields of a graph's start node, by name.
        They are errors for a `Dep`, and the place of the item for a `Map`."""
        if self.graph is None:
            return self.unfilled
        plain = plan_of_graph(self.graph).given_fields
        return tuple((field.name, field.annotation) for field in plain if field.required)

    @property
    def bindable(self) -> dict[str, Any]:
        """The types of the parameters that a marker can bind, by name: free or with a default."""
        if self.graph is None:
            return dict((*self.unfilled, *self.optional))
        return {field.name: field.annotation for field in plan_of_graph(self.graph).given_fields}

    def __str__(self) -> str:
        return f"{self.name}({', '.join(name for name, _ in self.inputs)})"


class Input(NamedTuple):
    """A dependency as a parameter or field asks for it: the call, the options of the marker, the
    declared type, and the bindings to a field by name, or to a recalled value."""

    call: CallPlan
    marker: Dep
    wanted: Any = Any
    bound: Bound = ()

    @property
    def is_shared(self) -> bool:
        """Whether all that ask for the same value in a run share one call."""
        return self.marker.cache

    @property
    def is_of_app(self) -> bool:
        """Whether all runs of an app share one value."""
        return self.marker.scope == "app"


Bound = tuple[tuple[str, "str | RecallField"], ...]


def is_by_value(asked: FieldPlan | Input) -> bool:
    """Whether the value depends on values of the run; see `CallPlan.by_value`."""
    return bool(asked.bound) or (asked.call is not None and asked.call.by_value)


def recalls_of(asked: FieldPlan | Input) -> Iterator[tuple[str, RecallField]]:
    """The parameters of a field or input that are looked up in the trace."""
    if asked.call is not None:
        yield from asked.call.recalls
    for name, source in asked.bound:
        if not isinstance(source, str):
            yield name, source


def recalled_behind(asked: FieldPlan | Input) -> Iterator[tuple[str, Hashable, RecallField]]:
    """The looked-up parameters behind a field or input, at any depth, each once: its path, such as
    `(hits)(query)`, its key, and its recall field."""
    ahead: list[tuple[str, FieldPlan | Input]] = [("", asked)]
    seen: set[tuple[CallPlan | None, Bound]] = set()
    for way, each in ahead:
        if (each.call, each.bound) not in seen:
            seen.add((each.call, each.bound))
            key = None if each.call is None else each.call.key
            for name, recall in recalls_of(each):
                yield f"{way}({name})", (key, name, recall.marker), recall
            below = () if each.call is None else each.call.inputs
            ahead += [(f"{way}({name})", recall) for name, recall in below if is_by_value(recall)]


def siblings_of(asked: FieldPlan | Input) -> Iterator[tuple[str, str]]:
    """The parameters that get the value of another field of the node, and that field."""
    for name, source in asked.bound:
        if isinstance(source, str):
            yield name, source


def plan_bound(call: CallPlan, marker: Dep | Map) -> Bound:
    """The bindings of a marker. The proof reports their problems."""
    if not marker.bound:
        return ()
    from bae.sources.recall import recalled_parameter

    types = call.bindable if call.graph is None else _types_at_start(call.graph)
    return tuple(
        (name, each)
        if isinstance(each, str)
        else (name, recalled_parameter(name, types.get(name, Any), each))
        for name, each in marker.bound
    )


def _types_at_start(graph: Graph[Any, Any]) -> dict[str, Any]:
    # Not from the plan of the class: planning that class may have led here.
    rebuild(graph.start)
    return {name: info.annotation for name, info in graph.start.__pydantic_fields__.items()}


def plan_call(fn: Any, names: Names = NOWHERE) -> CallPlan:
    """Plan calling `fn`, its own dependencies included. Problems are collected, not raised."""
    return plan_below(fn, CallPlanning(names, {}, {}))


def plan_below(fn: Any, planning: CallPlanning) -> CallPlan:
    """Plan a call that another call may wait for."""
    # A chain as long as `DEEPEST` takes three frames for each call: this frame, the frame of its
    # parameters, and that of the source of a parameter.
    key = key_of(fn)
    plan = _kept_plan(fn) or planning.made.get(key)
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
    planning.made[key] = plan
    # A plan with problems is made again, since missing names may be defined by then. A plan with
    # borrowed names may mean something else where another class uses it.
    below_stay = all(below.call.stays for _, below in plan.inputs)
    plan.stays = below_stay and not (plan.problems or plan.borrowed)
    if isinstance(fn, FunctionType) and plan.stays:
        fn.__dict__[_PLAN] = plan
    return plan


def key_of(fn: Any) -> Hashable:
    """The key of a dependency: itself, or its identity if it has no hash."""
    try:
        hash(fn)
    except TypeError:
        return ("unhashable", id(fn))
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


_PLAN = "__bae_call__"


class CallPlanning(NamedTuple):
    """The state of planning one dependency with all dependencies below it."""

    names: Names
    above: dict[Hashable, str]
    """The functions that wait for the current plan, with their names."""
    made: dict[Hashable, CallPlan]

    def problem_with(self, fn: Any) -> Problem | None:
        """Why the current plan cannot wait for `fn`: a circle, or a chain that is too long."""
        key = key_of(fn)
        if key in self.above:
            return _cycle(self.above, key)
        if len(self.above) >= DEEPEST:
            chain = [*self.above.values(), name_of(fn)]
            return too_deep("dependencies wait for each other", chain, DEEPEST)
        return None


def _kept_plan(fn: Any) -> CallPlan | None:
    plan = fn.__dict__.get(_PLAN) if isinstance(fn, FunctionType) else None
    # A decorator's wrapper copies the attributes of the wrapped function.
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
    """The annotations of a function; its return type is noted. None if they cannot be resolved."""
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
        plan.declared = Any  # unknown, so no problem is reported for it
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
    if plan.depth == DEEPEST + 1:  # the calls around it are too deep as well; report it once
        chain = [plan.name]
        while plan.inputs:
            plan = max((below.call for _, below in plan.inputs), key=lambda call: call.depth)
            chain.append(plan.name)
        problems.append(too_deep("dependencies wait for each other", chain, DEEPEST))


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = signature_of(fn)
    except (ValueError, TypeError):  # some builtins have no signature: their needs are unknown
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given: set[str] = set()
    while isinstance(fn, partial):
        given.update(cast("partial[Any]", fn).keywords)
        fn = cast("partial[Any]", fn).func
    return [p for n, p in signature.parameters.items() if n not in given and p.kind not in variadic]


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
    """The type of the final value of a call: the yielded, entered or awaited value."""
    origin = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    # Only this exact class: many clients are context managers, and are handed over unentered.
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
    """Whether a source marker is somewhere inside a type, where bae does not look for it."""
    alias = getattr(annotation, "__value__", None)  # of a `type` statement
    if alias is not None:
        return _marker(alias) is not None or is_buried(alias)
    return any(
        _marker(argument) is not None or is_buried(argument)
        for argument in typing.get_args(annotation)
    )


def buried_marker_problem(whose: str = "") -> Problem:
    """The problem of a marker inside a type."""
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
    """The problem of a chain of functions or graphs that is longer than the bound."""
    names = " -> ".join([*chain[:3], "…", *chain[-2:]])
    return an_error(
        "bae-dep-depth",
        f"{len(chain)} {what}, and {bound} can: {names}",
        "make the chain shorter: let one function call some of the others, or replace nested "
        "graphs by the nodes of one graph",
    )


def every_call(call: CallPlan | None) -> list[CallPlan]:
    """A call and every call it waits for, at any depth, each once."""
    calls = [] if call is None else [call]
    seen = set(calls)
    for each in calls:
        for _, below in each.inputs:
            if below.call not in seen:
                seen.add(below.call)
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
    """The message of a hint's error in one line. A name that is not defined needs no cause."""
    message = error.message
    if error.cause is not None and not isinstance(error.cause, NameError):
        message += f": {describe(error.cause)}"
    return f"{message} ({error.path})" if error.path else message


def asked_at(asked: FieldPlan | Input, parameter: str) -> FieldPlan | Input | None:
    """The parameter that `(city)(client)` leads to from a field; None if there is none. An empty
    path leads to the field itself."""
    for name in parameter[1:-1].split(")(") if parameter else ():
        below = None if asked.call is None else dict(asked.call.inputs).get(name)
        if below is None:
            return dict(recalls_of(asked)).get(name)  # it has nothing below it
        asked = below
    return asked


def call_at(asked: FieldPlan | Input, parameter: str) -> CallPlan | None:
    """The call of that parameter; None for a gate, and if there is no such parameter."""
    matching = asked_at(asked, parameter)
    return None if matching is None else matching.call


def routes(call: CallPlan | None) -> Iterator[str]:
    """The paths to a call and to every call it waits for, as `(city)(client)`: one for each."""
    ways = {} if call is None else {call: ""}
    ahead = [*ways]
    for each in ahead:
        yield ways[each]
        for parameter, below in each.inputs:
            if below.call not in ways:
                ways[below.call] = f"{ways[each]}({parameter})"
                ahead.append(below.call)


_LONGEST_CHAIN: Final = 12
"""How many calls are named for one field."""


def call_chain(field: FieldPlan) -> str:
    """A call with the calls that it waits for: `get_weather ← get_location`."""
    left = _LONGEST_CHAIN

    def text_of(asked: FieldPlan | Input) -> str:
        nonlocal left
        left -= 1
        call = cast(CallPlan, asked.call)
        name = f"graph {call.name}" if call.graph is not None else call.name
        below = [name for _, name in siblings_of(asked)]
        below += [str(recall.marker) for _, recall in recalls_of(asked)]
        below += [text_of(each) if left > 0 else "…" for _, each in call.inputs]
        below = list(dict.fromkeys(below))
        if len(below) > 1:
            below = [f"({', '.join(below)})"]
        return " ← ".join([name, *below])

    return text_of(field) if field.call is not None else ""
