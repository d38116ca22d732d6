"""Makes the errors that a run's steps raise, with their messages."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from bae.exceptions import (
    BaeError,
    BaeLMError,
    DepError,
    FillError,
    LimitError,
    NodeError,
    RouteError,
    faults,
)
from bae.language_model import METHODS, RoutingLM
from bae.node import Node
from bae.plan import NodePlan, plan_of
from bae.run import Run

if TYPE_CHECKING:
    from bae.graph import Graph

A = TypeVar("A")


def wrong_start_error(graph: Graph[Any, Any], start: object) -> BaeError:
    is_class = isinstance(start, type)
    value = f"the class {start.__name__}" if is_class else f"an instance of {type(start).__name__}"
    return BaeError(
        f"the graph starts at an instance of {graph.start.__name__}, and was given {value}",
        code="bae-start-type",
        fix=f"build one: {graph.start.__name__}(…)",
    )


def not_an_lm_error(value: object) -> BaeLMError:
    if isinstance(value, type):
        return BaeLMError(
            f"lm={value.__name__} is a class, not an LM",
            code="bae-lm-type",
            fix=f"make one: lm={value.__name__}(…)",
        )
    from bae.rooms import advice_for

    module = type(value).__module__.partition(".")[0]
    missing = [name for name in METHODS if not hasattr(value, name)]
    lacks = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    return BaeLMError(
        f"lm={value!r} is no LM: it has no {lacks}",
        code="bae-lm-type",
        fix=advice_for(module)
        or 'pass a name such as lm="local", a backend of bae.lm, or any object with the four '
        "methods of bae.LM",
    )


def check_awaitable(returned: Awaitable[A], lm: object, method: str) -> Awaitable[A]:
    """Check that an LM's method has returned an awaitable, and return it. Raises `BaeLMError` for
    any other value."""
    value = cast(object, returned)
    if type(value) is CoroutineType or isinstance(value, Awaitable):
        return returned
    lm_class = type(lm).__name__
    is_mock = type(getattr(lm, method, None)).__module__ == "unittest.mock"
    raise BaeLMError(
        f"{lm_class}.{method} is not async: it returned a {type(returned).__name__}, which cannot "
        "be awaited",
        code="bae-lm-sync",
        sent=False,
        fix=f"use unittest.mock.AsyncMock for {method}, with what it is to return as return_value"
        if is_mock
        else f"make it async def: `async def {method}(self, …)` in {lm_class}",
    )


def unknown_dependency_error(key: object) -> BaeError:
    return BaeError(
        f"dep_cache has the key {key!r}, which is no dependency",
        code="bae-dep-cache-key",
        fix="use the function itself as the key: dep_cache={get_weather: value}",
    )


def invalid_answer_error(target: type[Node], error: ValidationError) -> FillError:
    return FillError(
        f"{target.__name__}: the LM's answer is not valid: {'; '.join(faults(error))}",
        node_type=target,
        validation_errors=error.errors(include_url=False),
        attempts=1,
        cause=error,
        fix="have the LM's fill ask again with these errors, a bounded number of times",
    )


def lm_call_error(error: Exception, doing: str, lm: object) -> BaeLMError:
    return BaeLMError(
        f"{type(lm).__name__} raised {type(error).__name__} while {doing}",
        cause=error,
        fix="see the cause",
        trace_note="the nodes that were done are in .trace",
    )


def invalid_choice_error(plan: NodePlan, chosen: object) -> RouteError:
    return RouteError(
        f"{plan.name}: the LM chose {getattr(chosen, '__name__', chosen)!r}, which is not among "
        f"{', '.join(_name(t) for t in plan.offered)}",
        node_type=plan.node,
        code="bae-choice-outside",
        fix="have choose_type return one of the types it was given"
        + (", type(None) to end the run" if plan.may_end else ""),
    )


def wrong_node_error(plan: NodePlan, node: object) -> BaeLMError:
    return BaeLMError(
        f"{plan.name}: the LM filled a {type(node).__name__} instead",
        code="bae-fill-other-type",
        fix="have fill return an instance of the target it was given",
    )


def find_tools_error(lm: object, plan: NodePlan) -> BaeLMError | None:
    """Return the error if an LM cannot call the tools of a node; otherwise None."""
    field = plan.tools
    if field is None:
        return None
    if not isinstance(lm, RoutingLM):
        return no_tools_error(lm, plan.node)
    native = lm.native_tools
    missing = [] if native is None else [n for n in field.provider_tools if n not in native]
    if not missing:
        return None
    return BaeLMError(
        f"{plan.name}.{field.name}: {lm!r} has no tool {', '.join(missing)} of its own; it has: "
        f"{', '.join(sorted(native or ())) or 'none'}",
        code="bae-tool-native",
        sent=False,
        fix="use a model that has it, or a function of yours",
    )


def no_tools_error(lm: object, target: type[Node]) -> BaeLMError:
    """Make the error for an LM that has to fill a node with tools, but cannot call tools."""
    name = type(lm).__name__
    return BaeLMError(
        f"{target.__name__} has tools, but {name} has only the four methods of an LM, which cannot "
        "call tools",
        code="bae-tools-lm",
        sent=False,
        fix=f"make {name} a bae.lm.Backend, or use another LM for {target.__name__}: "
        "NodeConfig(lm=…)",
    )


def step_limit_error(run: Run, *following: type[Node]) -> LimitError:
    """Make the error for a run that has no step left for the next node, which is of one of the
    classes `following`."""
    visited = [type(node) for node in run.trace]
    looped = len({*visited, *following}) < len(visited) + len(following)
    targets = " or ".join(cls.__name__ for cls in following)
    last = " -> ".join([*(cls.__name__ for cls in visited[-3:]), targets])
    return LimitError(
        f"exceeded {run.max_iters} iterations: {targets} would be one more "
        f"({'… ' if len(visited) > 3 else ''}{last})",
        limit="max_iters",
        bound=run.max_iters,
        used=len(run.trace),
        looped=looped,
        fix=f"raise the bound with max_iters={run.max_iters * 2} or max_iters=0 for none"
        + (", or give the loop a way out" if looped else ""),
    )


def body_error(plan: NodePlan, error: Exception) -> NodeError:
    fix, note = f"fix the body of {plan.name}", "the nodes before it are in .trace"
    if isinstance(error, ValidationError):
        is_missing = any(fault["type"] == "missing" for fault in error.errors(include_url=False))
        expected = "all its plain fields" if is_missing else "values that its fields accept"
        fix = (
            f"give {error.title} {expected}; or have the LM fill it, with a parameter "
            f"`lm: LM` and `return await lm.make(self, {error.title})`"
        )
        tools = _find_missing_tools(plan, error)
        if tools:
            fix = (
                f"only an LM that fills {error.title} calls its tools: have the LM fill it, with a "
                f"parameter `lm: LM` and `return await lm.make(self, {error.title})`; or give it "
                f"{tools}=[]"
            )
        note = ""
    return NodeError(
        f"{plan.name}.__call__ raised {type(error).__name__}",
        node_type=plan.node,
        cause=error,
        fix=fix,
        trace_note=note,
    )


def _find_missing_tools(plan: NodePlan, error: ValidationError) -> str:
    """Return the name of the `Tools` field that a body left out of the node that it builds. Return
    an empty text if there is no such field."""
    missing = [
        fault["loc"] for fault in error.errors(include_url=False) if fault["type"] == "missing"
    ]
    for cls in plan.offered:
        if not issubclass(cls, Node) or cls.__name__ != error.title:
            continue
        tools = plan_of(cls).tools
        if tools is not None and (tools.name,) in missing:
            return tools.name
    return ""


def undeclared_route_error(plan: NodePlan, following: object) -> RouteError:
    declared = " | ".join(_name(t) for t in plan.offered)
    name = _name(type(following))
    returned = f"a value of type {name}"
    if inspect.isawaitable(following):
        returned = f"a {name} that was not awaited"
        fix = "write `return await …` there"
        if inspect.iscoroutine(following):
            returned = f"{following.__qualname__}(…), which was not awaited"
            following.close()  # otherwise Python warns, and names a line of bae
    elif following is None:
        returned = "None"
        fix = "end every path of the body in a return, or add None to the return type"
    elif isinstance(following, type):
        returned, fix = f"the class {following.__name__}", f"return {following.__name__}(…)"
    elif not plan.successors:
        fix = f"return nothing: {plan.name} is the result itself, so put the value into a field"
    elif isinstance(following, Node):
        these = f"a {declared}" if len(plan.offered) == 1 else "one of these"
        fix = f"return {these}, or add {name} to the return type"
    else:
        fix = f"return a node: {plan.successors[0].__name__}(…)"
    return RouteError(
        f"{plan.name} returned {returned}, but declares -> {declared}",
        node_type=plan.node,
        fix=fix,
    )


def invalid_values_error(plan: NodePlan, error: Exception) -> BaeError:
    """Make the error for a resolved value, or a complete node, that is not valid."""
    if not isinstance(error, ValidationError):
        message, fix = (
            f"a validator raised {type(error).__name__}",
            f"fix the validators of {plan.name}",
        )
        return _invalid_node_error(plan, f"{plan.name}: {message}", error, fix)
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    field = plan.fields.get(name)
    message = f"{'.'.join(map(str, [plan.name, *first['loc']]))}: {first['msg']}"
    if field is None or field.fills != "source":
        return _invalid_node_error(
            plan, message, error, f"fix what builds {plan.name}, or its validators"
        )
    raised, code = field.invalid
    by = f" from {field.call.name}" if field.call is not None else ""
    return raised(
        f"{message} (the value{by} is {type(first.get('input')).__name__})",
        node_type=plan.node,
        field_name=name,
        code=code,
        cause=error,
        fix=field.invalid_fix,
    )


def _invalid_node_error(plan: NodePlan, message: str, error: Exception, fix: str) -> NodeError:
    return NodeError(message, error, node_type=plan.node, code="bae-node-invalid", fix=fix)


def _name(offered: type) -> str:
    return "None" if offered is NoneType else offered.__name__


def close_error(raised: BaseException) -> DepError:
    return DepError(
        f"all went well, but then closing a dependency raised {type(raised).__name__}",
        code="bae-dep-close",
        cause=raised,
        fix="fix the part of the generator or context manager that cleans up",
    )
