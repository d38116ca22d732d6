"""The loop: make the node whole, call it or let the LM go on from it, take the next. One step does
one step's work; everything about classes was planned before. `graph.py` is the way in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter, time
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from bae.calls import CallPlan
from bae.dataflow import Dataflow, gone
from bae.draft import complete, validated
from bae.exceptions import (
    BaeError,
    BaeLMError,
    DepError,
    GateError,
    LimitError,
    NodeError,
    RecallError,
    RouteError,
)
from bae.invoke import bounded
from bae.journal.memory import MemoryJournal
from bae.journal.records import (
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    LMUsed,
    Record,
    RunEnded,
    RunStarted,
    StepStarted,
)
from bae.lm.usage import Usage, metered
from bae.markers import Dep, Map
from bae.node import Node
from bae.plan import NodePlan
from bae.resolver import resolve, start_early
from bae.result import GraphResult
from bae.run import Answer, Run, Waiting

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm import LM

T = TypeVar("T", bound=Node)
Plans = dict[type[Node], NodePlan]


async def run_graph(
    graph: Graph[T],
    start: Node,
    *,
    lm: LM | None,
    max_iters: int,
    prefetch: bool,
    answer: Answer | None,
    dep_cache: dict[Any, Any] | None,
    emit: Callable[[Record], None] | None = None,
    journal: MemoryJournal | None = None,
) -> GraphResult[T]:
    """One run from its first node to its last, with everything it opened closed."""
    _check_start(graph, start, lm, max_iters)
    journal = MemoryJournal() if journal is None else journal
    run = Run(
        run_id=os.urandom(12).hex(),
        lm=lm,
        answer=answer,
        max_iters=max_iters,
        prefetch=prefetch,
        emit=journal.append if emit is None else emit,
        flow=Dataflow(dep_cache) if graph.has_sources else None,
    )
    try:
        waiting = await _from_start_to_end(run, graph, start)
    except BaeError as error:
        _attach(error, run, journal)
        raise
    if waiting is None:
        return GraphResult(run.trace, journal, run.run_id)
    stopped_at = waiting.node or run.trace[-1]
    return GraphResult(run.trace, journal, run.run_id, stopped_at, waiting.gates)


async def run_inside(
    call: CallPlan,
    marker: Dep | Map,
    path: str,
    outer: Run,
    flow: Dataflow,
    item: tuple[Any, ...] = (),
) -> Node:
    """A graph as a dependency of a run, or for one item of a map: the node it ends at."""
    graph = cast("Graph[Any]", call.graph)

    async def once() -> Node:
        run = Run(
            run_id=outer.run_id,
            lm=outer.lm,
            answer=outer.answer,
            max_iters=outer.max_iters,
            prefetch=outer.prefetch,
            emit=outer.emit,
            flow=flow,
            path=path,
            outer=outer,
        )
        waiting = await _from_start_to_end(run, graph, _first_node(call, item))
        if waiting is not None:
            raise waiting
        return run.trace[-1]

    return await bounded(call, marker, once)


def _first_node(call: CallPlan, item: tuple[Any, ...]) -> Node:
    start = cast("Graph[Any]", call.graph).start
    if not item:
        return start()
    if isinstance(item[0], start):
        return item[0]
    return start(**{call.free[0][0]: item[0]})


async def _from_start_to_end(run: Run, graph: Graph[Any], start: Node) -> Waiting | None:
    """Follow a graph and say in the journal how it ended; answers the gates it waits for."""
    run.emit(RunStarted(time(), run.path, 0, run.run_id, graph.name, start))
    failure: BaseException | None = None
    waiting: Waiting | None = None
    try:
        await _follow(run, graph.plans, start)
    except Waiting as caught:
        waiting = caught
    except BaseException as caught:
        failure = caught
    if run.flow is not None:
        failure = await _close(run, failure)
    gates = waiting.gates if waiting is not None else ()
    if failure is None:
        outcome = "ended" if waiting is None else "waiting"
        node = run.trace[-1] if waiting is None else None
        run.emit(RunEnded(time(), run.path, run.step, outcome, node, None, gates))
        return waiting
    outcome = "cancelled" if isinstance(failure, asyncio.CancelledError) else "failed"
    run.emit(RunEnded(time(), run.path, run.step, outcome, None, failure))
    try:
        raise failure
    finally:
        del failure  # the traceback holds this frame; without this they keep each other alive


async def _close(run: Run, failure: BaseException | None) -> BaseException | None:
    """Cancel what was started early for nothing; in the outermost run, close what was opened."""
    flow = cast(Dataflow, run.flow)
    try:
        await _let_go(run, flow)
    except asyncio.CancelledError as cancelled:
        failure = failure or cancelled
    if run.outer is not None:
        return failure
    raised = await flow.close(failure)
    if raised is None or isinstance(failure, asyncio.CancelledError):
        return failure
    if isinstance(raised, asyncio.CancelledError):
        return raised
    if failure is not None:
        failure.add_note(f"and then {type(raised).__name__} was raised: {raised}")
        return failure
    return DepError(
        f"the run ended, but closing a dependency raised {type(raised).__name__}",
        code="bae-dep-close",
        cause=raised,
        fix="mend the part of the generator or context manager that cleans up",
    )


async def _let_go(run: Run, flow: Dataflow) -> None:
    if run.ahead:
        ahead, run.ahead = run.ahead, []
        await gone([task for flight in ahead for task in [*flight.orphans, *flow.release(flight)]])


async def _follow(run: Run, plans: Plans, node: Node) -> None:
    trace, emit, path, limit = run.trace, run.emit, run.path, run.max_iters
    step = 0
    following: Node | None
    while True:
        plan = plans[type(node)]
        if plan.sourced:
            await _make_whole(run, plan, node)
        trace.append(node)
        emit(StepStarted(time(), path, step, node))
        step += 1
        run.step = step
        if plan.written:
            try:
                if plan.lm_parameter is None:
                    following = await node()
                else:
                    following = await _call_with_lm(run, plan, node, plan.lm_parameter)
            except BaeError:
                raise
            except Exception as error:
                raise _body_failed(plan, error) from error
            if type(following) not in plan.successors and (
                following is not None or not plan.may_end
            ):
                raise _undeclared(plan, following)
        elif plan.successors:
            following = await _go_on(run, plans, plan, node)
        else:
            return
        if following is None:
            return
        if step == limit:
            raise _too_many(run, following)
        node = following


async def _make_whole(run: Run, plan: NodePlan, node: Node) -> None:
    """Resolve the fields that have a source and are not there, and validate the node whole."""
    missing = [field for field in plan.sourced if field.name not in node.__dict__]
    if not missing:
        return
    try:
        values = await resolve(run, plan, missing, node.__dict__)
    except Waiting as waiting:
        waiting.node = node
        raise
    await _let_go(run, cast(Dataflow, run.flow))
    try:
        complete(node, values)
    except ValidationError as error:
        raise _invalid(plan, error) from error


async def _call_with_lm(run: Run, plan: NodePlan, node: Node, parameter: str) -> Node | None:
    with metered() as used:
        try:
            return await node(**{parameter: plan.lm or run.lm})
        finally:
            _note_usage(run, f"{plan.name}.__call__", used)


async def _go_on(run: Run, plans: Plans, plan: NodePlan, node: Node) -> Node | None:
    """An empty body: the LM chooses among the successors, where there are several, and fills."""
    target: type[Node] = plan.successors[0]
    if len(plan.offered) > 1:
        chosen = await _choose(run, plan, node)
        if chosen is NoneType:
            return None
        target = chosen
    if run.step == run.max_iters:
        raise _too_many(run, target)
    return await _fill(run, plans, plans[target], node)


async def _choose(run: Run, plan: NodePlan, node: Node) -> type[Node] | type[None]:
    lm = cast("LM", plan.lm or run.lm)
    context = dict(node)
    run.emit(ChoiceStarted(time(), run.path, run.step, node, plan.offered))
    started = perf_counter()
    with metered() as used:
        try:
            chosen = await lm.choose_type(plan.offered, context)
            if chosen not in plan.offered:
                raise RouteError(
                    f"{plan.name}: the LM chose {getattr(chosen, '__name__', chosen)!r}, which is "
                    f"not among {', '.join(_name(t) for t in plan.offered)}",
                    node_type=plan.node,
                    code="bae-choice-outside",
                    fix="have choose_type return one of the types it was given",
                )
        except BaseException as error:
            _note_usage(run, f"choosing after {plan.name}", used)
            if isinstance(error, BaeError) or not isinstance(error, Exception):
                raise
            raise _lm_failed(error, f"choosing where to go on from {plan.name}", lm) from error
    seconds = perf_counter() - started
    total = Usage.total(used)
    run.emit(ChoiceMade(time(), run.path, run.step, node, chosen, seconds, total))
    return chosen


async def _fill(run: Run, plans: Plans, plan: NodePlan, source: Node) -> Node:
    lm = cast("LM", plan.lm or run.lm)
    resolved: dict[str, Any] = {}
    if plan.context:
        resolved = await resolve(run, plan, plan.context, {})
        await _let_go(run, cast(Dataflow, run.flow))
        try:
            resolved = validated(plan.node, resolved)
        except ValidationError as error:
            raise _invalid(plan, error) from error
    if run.prefetch and run.flow is not None and len(plan.offered) == 1 and plan.successors:
        start_early(run, plans[plan.successors[0]])
    run.emit(FillStarted(time(), run.path, run.step, plan.node, resolved))
    started = perf_counter()
    with metered() as used:
        try:
            node = await lm.fill(plan.node, resolved, plan.name, source=source)
            if type(node) is not plan.node:
                raise BaeLMError(
                    f"{plan.name}: the LM filled a {type(node).__name__} instead",
                    code="bae-fill-other-type",
                    fix="have fill return an instance of the target it was given",
                )
        except BaseException as error:
            _note_usage(run, f"filling {plan.name}", used)
            if isinstance(error, BaeError) or not isinstance(error, Exception):
                raise
            raise _lm_failed(error, f"filling {plan.name}", lm) from error
    seconds = perf_counter() - started
    run.emit(FillEnded(time(), run.path, run.step, node, seconds, Usage.total(used)))
    return node


def _note_usage(run: Run, by: str, used: list[Usage]) -> None:
    if used:
        run.emit(LMUsed(time(), run.path, run.step, by, Usage.total(used)))


def _lm_failed(error: Exception, doing: str, lm: object) -> BaeLMError:
    return BaeLMError(
        f"{type(lm).__name__} raised {type(error).__name__} while {doing}",
        cause=error,
        fix="see the cause; the nodes that were done are in .trace",
    )


def _check_start(graph: Graph[Any], start: Node, lm: LM | None, max_iters: int) -> None:
    if type(start) is not graph.start:
        raise BaeError(
            f"the graph starts at {graph.start.__name__}, not at a {type(start).__name__}",
            code="bae-start-type",
            fix=f"give it a {graph.start.__name__}(…)",
        )
    if max_iters < 0:
        raise ValueError(f"max_iters={max_iters}: give a number of nodes, or 0 for no bound")
    graph.prove()
    if lm is None and graph.needs_lm:
        raise BaeLMError(
            f"there is no LM, and {graph.needs_lm}",
            code="bae-lm-missing",
            fix="pass lm=…, or pin one with node_config = NodeConfig(lm=…); in tests use "
            "bae.testing.ScriptedLM",
        )


def _attach(error: BaeError, run: Run, journal: MemoryJournal) -> None:
    if not error.trace:
        error.trace = list(run.trace)
    if error.journal is None:
        error.journal, error.run_id = journal, run.run_id


def _too_many(run: Run, following: Node | type[Node]) -> LimitError:
    name = following.__name__ if isinstance(following, type) else type(following).__name__
    last = " -> ".join(type(node).__name__ for node in run.trace[-3:])
    return LimitError(
        f"{run.max_iters} nodes have run and {name} would be one more (… {last} -> {name})",
        limit="max_iters",
        bound=run.max_iters,
        used=len(run.trace),
        fix=f"raise the bound with max_iters={run.max_iters * 2} or max_iters=0 for none, or give "
        "the loop a way out",
    )


def _body_failed(plan: NodePlan, error: Exception) -> NodeError:
    return NodeError(
        f"{plan.name}.__call__ raised {type(error).__name__}",
        node_type=plan.node,
        cause=error,
        fix=f"mend the body of {plan.name}; the nodes before it are in .trace",
    )


def _undeclared(plan: NodePlan, following: object) -> RouteError:
    returned = "None" if following is None else f"a {type(following).__name__}"
    declared = " | ".join(_name(t) for t in plan.offered)
    return RouteError(
        f"{plan.name} returned {returned}, but declares -> {declared}",
        node_type=plan.node,
        fix=f"return one of these, or add {returned.removeprefix('a ')} to the return type",
    )


def _invalid(plan: NodePlan, error: ValidationError) -> BaeError:
    """A resolved value, or the node as a whole, that the model refuses."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    field = plan.fields.get(name)
    said = f"{plan.name}.{name}: {first['msg']}" if name else f"{plan.name}: {first['msg']}"
    if field is None or field.kind == "plain":
        return NodeError(
            said,
            node_type=plan.node,
            cause=error,
            code="bae-node-invalid",
            fix=f"mend what builds {plan.name}, or its validators",
        )
    kinds = {"recall": RecallError, "gate": GateError}
    by = f" from {field.call.name}" if field.call is not None else ""
    return kinds.get(field.kind, DepError)(
        f"{said} (the value{by} is {type(first.get('input')).__name__})",
        node_type=plan.node,
        field_name=name,
        code=f"bae-{field.kind}-invalid",
        cause=error,
        fix="return what the field declares, or declare what is returned",
    )


def _name(offered: type) -> str:
    return "None" if offered is NoneType else offered.__name__
