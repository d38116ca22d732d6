"""The loop: make the node whole, call it or let the LM go on from it, take the next. One step does
one step's work; everything about classes was planned before. `graph.py` is the way in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from time import perf_counter, time
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from bae.calls import CallPlan
from bae.dataflow import Dataflow
from bae.draft import complete, from_resolved, validated, with_resolved
from bae.exceptions import BaeError
from bae.failures import (
    body_failed,
    chosen_outside,
    close_failed,
    filled_other,
    filled_wrong,
    invalid,
    lm_failed,
    not_a_dependency,
    not_an_lm,
    other_start,
    too_many,
    undeclared,
)
from bae.invoke import bounded
from bae.language_model import RoutingLM, is_lm, with_limit
from bae.markers import Dep, Map
from bae.node import Node
from bae.plan import FieldPlan, NodePlan
from bae.records import (
    Asker,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    LMUsed,
    RunEnded,
    RunStarted,
    StepStarted,
)
from bae.resolver import resolve, start_early
from bae.result import GraphResult
from bae.run import NONE, NOTHING, Run, Waiting
from bae.tasks import gone, reason_of
from bae.usage import Usage, collected

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.running.keeper import Keeper
    from bae.lm import LM

T = TypeVar("T", bound=Node)
A = TypeVar("A")

LONGEST_HOLD = 0.01
"""Seconds after which a run lets others have the event loop, in case its bodies await nothing. It
looks at the clock every 16 steps: short runs that do await need not give way as well."""
Plans = dict[type[Node], NodePlan]


async def run_graph(graph: Graph[Any, T], start: Node, run: Run) -> GraphResult[T]:
    """One run from its first node to its last, with everything it opened closed.

    Graphs inside a run come through here too, with a `Run` of their own that knows the outer one.
    """
    if run.outer is None:
        _check_start(graph, start, run)
    failure: BaseException | None = None
    try:
        if run.keeper is None:
            run.emit(RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters))
        else:
            await run.keeper.begin(run, graph, start)
        await _follow(run, graph.plans, start)
    except BaseException as caught:
        failure = caught
    if run.flow is not None:
        failure = await _close(run, failure)
    ended = _ending(run, failure)
    if run.keeper is None:
        run.log.append(ended)
    else:
        failure = await _kept(run, run.keeper, ended, failure)
    try:
        return _over(run, failure)
    finally:
        del failure, ended  # the traceback holds this frame; without this both are kept alive


async def run_inside(
    call: CallPlan,
    marker: Dep | Map,
    path: str,
    outer: Run,
    item: tuple[Any, ...] = (),
) -> Node:
    """A graph as a dependency of a run, or for one item of a map: the node it ends at."""
    graph = cast("Graph[Any, Any]", call.graph)

    tries = 0

    async def once() -> Node:
        nonlocal tries
        tries += 1
        if tries > 1:
            if outer.flow is not None:
                outer.flow.forget_failures()
            if outer.keeper is not None:
                outer.keeper.forget(path)
        result = await run_graph(graph, _first_node(call, item), outer.inside(path))
        if result.waiting:
            raise Waiting(result.waiting)
        return result.trace[-1]

    return await bounded(call, marker, once)


def _first_node(call: CallPlan, item: tuple[Any, ...]) -> Node:
    start = cast("Graph[Any, Any]", call.graph).start
    if not item:
        return start()
    if type(item[0]) is start:
        return item[0]
    return start(**{call.free[0][0]: item[0]})


def _ending(run: Run, failure: BaseException | None) -> RunEnded:
    """The record of how a run came out."""
    place = time(), run.path, run.step
    if failure is None:
        return RunEnded(*place, "ended", run.trace[-1])
    if isinstance(failure, Waiting):
        return RunEnded(*place, "waiting", None, None, failure.gates)
    if isinstance(failure, asyncio.CancelledError):
        reason = reason_of(failure)
        if reason is None:
            return RunEnded(*place, "cancelled", None, failure)
        failure = reason
    return RunEnded(*place, "failed", None, failure)


async def _kept(
    run: Run, keeper: Keeper, ended: RunEnded, failure: BaseException | None
) -> BaseException | None:
    """Store how a run came out; answers what it is to fail with then."""
    try:
        await keeper.over(run, ended)
    except asyncio.CancelledError as cancelled:
        return cancelled
    except BaeError as error:
        if failure is None or isinstance(failure, Waiting):
            return error
        if error is not failure:
            failure.add_note(f"and this could not be stored: {error.message}")
    return failure


def _over(run: Run, failure: BaseException | None) -> GraphResult[Any]:
    """Hand out how a run came out: a result or an exception."""
    if failure is None:
        return GraphResult(list(run.trace), run.journal, run.run_id)
    if isinstance(failure, Waiting):
        node = failure.node
        if node is None and run.trace:
            node = run.trace[-1]
        return GraphResult(list(run.trace), run.journal, run.run_id, node, failure.gates)
    if isinstance(failure, BaeError):
        failure.trace = failure.trace or list(run.trace)
        failure.journal, failure.run_id = run.journal, run.run_id
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
        failure = cancelled
    if run.outer is not None:
        return failure
    try:
        raised = await flow.close(None if isinstance(failure, Waiting) else failure)
    except asyncio.CancelledError as cancelled:
        return cancelled
    if raised is None:
        return failure
    if failure is not None and not isinstance(failure, Waiting):
        failure.add_note(f"and then {type(raised).__name__} was raised: {raised}")
        return failure
    return close_failed(raised)


async def _let_go(run: Run, flow: Dataflow) -> None:
    if run.ahead is not None:
        ahead, run.ahead = run.ahead, None
        await gone([task for flight in ahead for task in [*flight.orphans, *flow.release(flight)]])


async def _follow(run: Run, plans: Plans, node: Node) -> None:
    trace, log, path, limit, keeper = run.trace, run.log, run.path, run.max_iters, run.keeper
    step = 0
    fresh = False
    if keeper is not None:
        node = keeper.first(path, node)
    since = now = time()
    following: Node | None
    while True:
        plan = plans[type(node)]
        if plan.sourced:
            node = await _make_whole(run, plans, plan, node)
        trace.append(node)
        now = time()
        if keeper is None:
            log.append(StepStarted(now, path, step, node) if path else now)
        else:
            stored = keeper.step(run, step, node, plan, fresh)
            if stored is not None:
                try:
                    await stored
                except Exception as error:
                    broken = keeper.broke(error)
                    if broken is error:
                        raise
                    raise broken from error
        if not step & 15 and not 0 <= now - since < LONGEST_HOLD:
            # Bodies that await nothing would keep everybody else, and a cancellation, waiting.
            await asyncio.sleep(0)
            since = time()
        step += 1
        run.step = step
        fresh = False
        if (
            keeper is not None
            and not keeper.begins
            and (found := keeper.after(run, step, plan)) is not NOTHING
        ):
            following = found
        elif plan.written:
            try:
                if plan.lm_parameter is None:
                    following = await node()
                else:
                    following = await _call_with_lm(run, plan, node, plan.lm_parameter)
            except BaeError:
                raise
            except Exception as error:
                raise body_failed(plan, error) from error
            if type(following) not in plan.successors and (
                following is not None or not plan.may_end
            ):
                raise undeclared(plan, following)
            if keeper is not None and following is not None:
                fresh = keeper.is_left_to_step(run, step, following, plans[type(following)])
                if not fresh:
                    await keeper.returned(run, step, following)
        elif plan.successors:
            following = await _go_on(run, plans, plan, node)
        else:
            return
        if following is None:
            return
        if step == limit:
            raise too_many(run, following)
        node = following


async def _make_whole(run: Run, plans: Plans, plan: NodePlan, node: Node) -> Node:
    """The node with the fields resolved that have a source and are not there, validated whole.

    It is a copy where something was resolved: the node that a caller or a body holds on to may
    stand at the start of other runs, and theirs is not to know what this one found.
    """
    given_up, run.given_up = run.given_up, NONE
    absent = [field for field in plan.sourced if field.name not in node.__dict__]
    values: dict[str, Any] = {}
    without: Sequence[FieldPlan] = ()
    if absent:
        if run.keeper is not None:
            without = run.keeper.left_out(run, plan, absent)
        missing = [f for f in absent if f.name not in given_up and f not in without]
        try:
            values = await resolve(run, plan, missing, node.__dict__)
        except Waiting as waiting:
            waiting.node = node
            raise
    # After a node that the LM has filled, what was started early is for the one that follows it.
    if run.ahead is not None and plans[type(run.trace[-1])].written:
        await _let_go(run, cast(Dataflow, run.flow))
    if not absent:
        return node
    if plan.factories and run.keeper is not None:
        values = {**run.keeper.defaults(run, plan), **values}
    whole = copy(node)
    try:
        if run.keeper is not None and any(field.required for field in without):
            return run.keeper.without(node, values)
        complete(whole, values)
    except Exception as error:
        raise invalid(plan, error) from error
    return whole


async def _call_with_lm(run: Run, plan: NodePlan, node: Node, parameter: str) -> Node | None:
    asker = Asker("body", plan.node)
    if run.keeper is None:
        lm = run.lm_for(plan)
    else:
        lm = run.keeper.lm(run, run.step, asker, lambda: run.lm_for(plan))
    with collected(partial(run.watch, asker)) as used:
        try:
            return await node(**{parameter: lm})
        finally:
            _note_usage(run, asker, Usage.total(used))


async def _go_on(run: Run, plans: Plans, plan: NodePlan, node: Node) -> Node | None:
    """An empty body: the LM chooses among the successors, where there are several, and fills."""
    target: type[Node] = plan.successors[0]
    if len(plan.offered) > 1:
        chosen, filled = await _choose(run, plans, plan, node)
        if chosen is NoneType or filled is not None:
            return filled
        target = chosen
    if run.step == run.max_iters:
        raise too_many(run, target)
    return await _fill(run, plans, plans[target], node)


async def _choose(
    run: Run, plans: Plans, plan: NodePlan, node: Node
) -> tuple[type[Node] | type[None], Node | None]:
    """Where to go on, and the node itself where the LM has filled it in the same call."""
    if run.keeper is not None:
        known = run.keeper.chosen(run, plan)
        if known is not None:
            return known, None
    lm = cast("LM", run.lm_for(plan))
    run.emit(ChoiceStarted(time(), run.path, run.step, node, plan.offered))
    doing = Asker("choice", plan.node)
    if not isinstance(lm, RoutingLM):
        chosen, seconds, used = await _answer(
            run, lm, doing, lambda: lm.choose_type(plan.offered, dict(node))
        )
        filled = None
    else:
        fillable: tuple[type[Node], ...] = ()
        if run.step != run.max_iters:
            fillable = tuple(t for t in plan.successors if run.lm_for(plans[t]) is lm)
        (chosen, filled), seconds, used = await _answer(
            run, lm, doing, lambda: lm.route(node, plan.offered, fillable)
        )
    if chosen not in plan.offered:
        _note_usage(run, doing, used)
        raise chosen_outside(plan, chosen)
    if filled is None:
        await run.keep(ChoiceMade(time(), run.path, run.step, node, chosen, seconds, used))
        return chosen, None
    if type(filled) is not chosen:
        _note_usage(run, doing, used)
        raise filled_other(plans[cast("type[Node]", chosen)], filled)
    place = time(), run.path, run.step
    await run.keep(
        ChoiceMade(*place, node, chosen, 0.0, Usage()),
        FillStarted(*place, type(filled), {}),
        FillEnded(*place, filled, seconds, used),
    )
    return chosen, filled


async def _fill(run: Run, plans: Plans, plan: NodePlan, source: Node) -> Node:
    if run.keeper is not None:
        known = run.keeper.filled(run, plan)
        if known is not None:
            return known
    resolved: dict[str, Any] = {}
    if plan.context:
        resolved = await resolve(run, plan, plan.context, {})
        run.given_up = frozenset(f.name for f in plan.context if f.name not in resolved)
        await _let_go(run, cast(Dataflow, run.flow))
        try:
            validated(plan.node, resolved)  # the model is not asked in vain
        except Exception as error:
            raise invalid(plan, error) from error
    if run.keeper is not None:
        known = run.keeper.replayed(run, plan, resolved, source)
        if known is not None:
            return known
    lm = run.lm_for(plan)
    sure = len(plan.offered) == 1 and plan.successors and run.step + 1 != run.max_iters
    if run.prefetch and run.flow is not None and sure:
        start_early(run, plans[plan.successors[0]])
    run.emit(FillStarted(time(), run.path, run.step, plan.node, resolved))
    if lm is None:  # and there is nothing to ask it for: see `Graph.needs_lm`
        node = from_resolved(plan.node, resolved)
        await run.keep(FillEnded(time(), run.path, run.step, node, 0.0, Usage()))
        return node
    doing = Asker("fill", plan.node)
    node, seconds, used = await _answer(
        run, lm, doing, lambda: lm.fill(plan.node, resolved, plan.name, source=source), plan.node
    )
    if type(node) is not plan.node:
        _note_usage(run, doing, used)
        raise filled_other(plan, node)
    if plan.sourced and not isinstance(lm, RoutingLM):  # backends never touch these fields
        try:
            node = with_resolved(node, resolved)
        except Exception as error:
            raise invalid(plan, error) from error
    await run.keep(FillEnded(time(), run.path, run.step, node, seconds, used))
    return node


async def _answer(
    run: Run,
    lm: LM,
    doing: Asker,
    ask: Callable[[], Awaitable[A]],
    target: type[Node] | None = None,
) -> tuple[A, float, Usage]:
    """What the LM answers, how long it took and what it used; that of a failure is noted too."""
    started = perf_counter()
    with collected(partial(run.watch, doing)) as used:
        try:
            answer = await ask()
        except BaseException as error:
            _note_usage(run, doing, Usage.total(used))
            if isinstance(error, BaeError) or not isinstance(error, Exception):
                raise
            if target is not None and isinstance(error, ValidationError):
                raise filled_wrong(target, error) from error
            raise lm_failed(error, str(doing), lm) from error
    return answer, perf_counter() - started, Usage.total(used)


def _note_usage(run: Run, asker: Asker, used: Usage) -> None:
    if used != Usage():
        run.emit(LMUsed(time(), run.path, run.step, asker, used))


def _check_start(graph: Graph[Any, Any], start: Node, run: Run) -> None:
    if type(start) is not graph.start:
        raise other_start(graph, start)
    if isinstance(run.lm, str):
        run.lm = run.named(run.lm)
    if run.lm is not None and (isinstance(run.lm, type) or not is_lm(run.lm)):
        raise not_an_lm(run.lm)
    if type(run.max_iters) is not int or run.max_iters < 0:
        raise ValueError(f"max_iters={run.max_iters}: give a number of nodes, or 0 for no bound")
    for key in run.dep_cache or ():
        if not callable(key) and not hasattr(key, "arun") and not isinstance(key, tuple):
            raise not_a_dependency(key)
    graph.prove()
    if run.lm is None and graph.needs_lm:
        from bae.lm.registry import default_lm

        run.lm = default_lm(graph.needs_lm)
    if run.lm is not None:
        run.lm = with_limit(run.lm)
    if graph.has_sources:
        run.flow = Dataflow(run.dep_cache)
        if run.keeper is not None:
            run.flow.known(run.keeper.past.deps)
