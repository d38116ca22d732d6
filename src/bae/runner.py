"""The loop of a run. It resolves the fields of a node. Then it calls the node's body, or asks the
LLM for the next node, and continues with that node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter, time
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pydantic import ValidationError

from bae.app_scope import apps, opening_of
from bae.arguments import Arguments
from bae.calls import CallPlan
from bae.draft import empty_draft, from_resolved, set_resolved_values, validate_values
from bae.exceptions import BaeError, add_note
from bae.failures import (
    body_error,
    find_tools_error,
    invalid_answer_error,
    invalid_choice_error,
    invalid_values_error,
    lm_call_error,
    no_tools_error,
    not_an_lm_error,
    step_limit_error,
    undeclared_route_error,
    unknown_dependency_error,
    wrong_node_error,
    wrong_start_error,
)
from bae.file_proof import find_file_error
from bae.given_lm import GivenLM
from bae.graph_plan import plan_of_graph
from bae.invoke import call_within_bounds
from bae.language_model import RoutingLM, ask_lm, is_lm, scene_around, spending_limit
from bae.markers import Dep, Map
from bae.node import Node
from bae.past import NO_PAST
from bae.plan import NodePlan
from bae.records import (
    NOTHING,
    Asker,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    Found,
    LMUsed,
    RunEnded,
)
from bae.resolver import find_ahead, resolve, start_early
from bae.result import GraphResult, RunJournal
from bae.run import HandedOver, Run, Waiting
from bae.secrets import mask_values
from bae.sharing import Dataflow
from bae.tasks import reason_of
from bae.turns import turns_in_use
from bae.usage import Usage, meter_in_force
from bae.writer import writer_in_use

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.language_model import LM, Scene
    from bae.past import FindNext

T = TypeVar("T", bound=Node)
A = TypeVar("A")

_log = logging.getLogger("bae")

LONGEST_HOLD = 0.01
"""Seconds after which a run yields to the event loop, in case its bodies await nothing. The run
checks this at every 16th step only, so short runs rarely pay for it."""
Plans = dict[type[Node], NodePlan]
NOTHING_BOUND: Final[Mapping[str, Any]] = MappingProxyType({})
_Recalls = tuple[dict[str, Any], list[Found]]
_NOTHING_RECALLED: _Recalls = {}, []
NONE: Final[Collection[str]] = ()


async def run_graph(graph: Graph[Any, T], start: Node, run: Run) -> GraphResult[T]:
    """Run a graph from its first node to its last, and close everything that it opened.

    A graph inside a run has a `Run` of its own, whose `outer` is the run around it.
    """
    graph_plan = plan_of_graph(graph)
    hidden = run.scene.hidden
    if run.outer is None:
        _check_start(graph, start, run)
        hidden = graph_plan.hidden
    run.plans = plans = graph_plan.plans
    if run.outer is None:
        opening = opening_of(graph, run) if apps else None
        if opening is not None or graph_plan.has_sources:
            run.flow = Dataflow(run.options.dep_cache)
            run.flow.opening = opening
    failure: BaseException | None = None
    if graph_plan.scene is not None:
        run.scene = graph_plan.scene
    if hidden is not run.scene.hidden:
        run.scene = replace(run.scene, hidden=hidden)
    if graph.context is not None or graph.context_limit is not None:
        run.shows = graph.context or run.shows
        run.shows_limit = graph.context_limit or run.shows_limit
        run.scene = replace(run.scene)  # so that the scene of each run is a distinct object
    # If a body of another run started this run, `scene_around` has the scene of the other run. So
    # the variable is set even if this run has the default scene.
    token = None if scene_around.get() is run.scene else scene_around.set(run.scene)
    writer_token = turns_token = None
    if run.outer is None and (run.writer.journal is not None or writer_in_use.get() is not None):
        # Without a journal, `writer_in_use` is not set: thousands of concurrent runs would take
        # 15 % longer, because setting it makes three more objects for each run.
        writer_token = writer_in_use.set(run.writer)
    try:
        failed_fields: Collection[str] = NONE
        start, is_recorded, find_next = run.past.begin(run, graph, start)
        if not is_recorded:
            await run.writer.begin(run, graph, start)
        if run.outer is None and (run.turns is not None or turns_in_use.get() is not None):
            turns_token = turns_in_use.set(run.turns)
        if graph_plan.is_filled and not start.__dict__:
            previous = next(run.walk_earlier_nodes(), None)
            start, failed_fields = await _fill(run, plans, plans[graph.start], previous)
        await _follow(run, plans, start, failed_fields, find_next)
    except BaseException as caught:
        failure = caught
    if run.flow is not None:
        failure = await _close(run, failure)
        if run.flow.opening is not None and run.outer is None:
            run.flow.opening.leave(run)
    if token is not None:
        scene_around.reset(token)
    if writer_token is not None:
        writer_in_use.reset(writer_token)
    if turns_token is not None:
        turns_in_use.reset(turns_token)
    failure = await _finish(run, failure)
    try:
        return _make_result(run, failure)
    finally:
        del failure  # the traceback and this frame would keep each other alive


async def run_inside(
    call: CallPlan,
    marker: Dep | Map,
    path: str,
    outer: Run,
    item: tuple[Any, ...] = (),
    bound: Mapping[str, Any] = NOTHING_BOUND,
) -> Node:
    """Run a graph as a dependency, or for one item of a map, and return the graph's last node.
    `bound` has values for fields of the start node."""
    graph = cast("Graph[Any, Any]", call.graph)

    tries = 0

    async def once() -> Node:
        nonlocal tries
        tries += 1
        if tries > 1 and outer.flow is not None:
            outer.flow.forget_failures()
        result = await run_graph(graph, _make_first_node(call, item, bound), outer.inside(path))
        if result.waiting:
            raise Waiting(result.waiting)
        return result.trace[-1]

    return await call_within_bounds(call, marker, once, outer)


def _make_first_node(call: CallPlan, item: tuple[Any, ...], bound: Mapping[str, Any]) -> Node:
    graph = cast("Graph[Any, Any]", call.graph)
    start = graph.start
    if plan_of_graph(graph).is_filled:
        return empty_draft(start)
    if not item:
        return start(**bound)
    if type(item[0]) is start:
        return item[0]
    name = next(name for name, _ in call.free if name not in bound)
    return start(**{name: item[0]}, **bound)


def _make_end_record(run: Run, failure: BaseException | None) -> RunEnded:
    """Return the record of a run's outcome."""
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


def _is_tried_again(run: Run, ended: RunEnded) -> bool:
    """Return whether the run has failed, and its owner will try it again."""
    decide = run.options.tries_again
    return (
        not run.path
        and decide is not None
        and ended.error is not None
        and (ended.outcome == "failed" and decide(ended.error))
    )


async def _finish(run: Run, failure: BaseException | None) -> BaseException | None:
    """Record the outcome of a run, and return the error that the run fails with."""
    try:
        ended = _make_end_record(run, failure)
        if isinstance(ended.error, HandedOver):
            await run.writer.hand_over(run)
        elif _is_tried_again(run, ended):
            await run.writer.hand_over(run, ended.error)
        else:
            await run.writer.finish(run, ended)
    except asyncio.CancelledError as cancelled:
        failure = cancelled
    except BaeError as error:
        if failure is None or isinstance(failure, Waiting):
            failure = error
        elif error is not failure:
            add_note(failure, f"and this could not be stored: {error.message}")
    return failure if run.path else run.writer.explain(failure)


def _make_result(run: Run, failure: BaseException | None) -> GraphResult[Any]:
    """Return the result of a run, or raise its failure. A run that waits for a person has a
    result."""
    outermost = run if run.outer is None else run.outermost
    journal = RunJournal(outermost.writer.log, outermost.trace)
    if failure is None:
        return GraphResult(None, list(run.trace), journal, run.run_id)
    if isinstance(failure, Waiting):
        node = failure.node
        if node is None and run.trace:
            node = run.trace[-1]
        return GraphResult(node, list(run.trace), journal, run.run_id, failure.gates)
    if isinstance(failure, BaeError):
        failure.trace = failure.trace or list(run.trace)
        failure.journal, failure.run_id = journal, run.run_id
    try:
        raise failure
    finally:
        del failure  # the traceback and this frame would keep each other alive


async def _close(run: Run, failure: BaseException | None) -> BaseException | None:
    """Cancel the values that were started early and are not needed. In the outermost run, also
    close the resources of its dependencies. Return the error that the run ends with."""
    flow = cast(Dataflow, run.flow)
    try:
        await _release_early_values(run)
    except asyncio.CancelledError as cancelled:
        failure = cancelled
    if run.outer is not None or not flow.closers:
        return failure
    return await flow.close_after(failure)


async def _release_early_values(run: Run) -> None:
    """Release the values that were started early for the run's next node."""
    flow = cast(Dataflow, run.flow)
    if run in flow.ahead:
        await flow.release_early_values(run)


async def _follow(
    run: Run, plans: Plans, node: Node, failed_fields: Collection[str], find_next: FindNext | None
) -> None:
    trace, limit = run.trace, run.max_iters
    log = cast("list[Any]", run.writer.log)
    start_step = run.writer.step_starter(run, plans)
    if find_next is not None:
        start_step = run.past.step_starter(run, start_step or log.append)
    step = 0
    since = now = time()
    following: Node | None
    while True:
        plan = plans[type(node)]
        if plan.sourced:
            node = await _complete(run, plans, plan, node, failed_fields)
            failed_fields = NONE
        trace.append(node)
        now = time()
        if start_step is None:
            log.append(now)
        elif (stored := start_step(now)) is not None:
            await stored
        if not step & 15 and not 0 <= now - since < LONGEST_HOLD:
            # Otherwise bodies that await nothing would block other tasks, and a cancellation.
            await asyncio.sleep(0)
            since = time()
        step += 1
        run.step = step
        if find_next is not None and (next_node := find_next(run)) is not NOTHING:
            following = next_node
        elif plan.written:
            try:
                if plan.lm_parameter is None:
                    following = await node()
                else:
                    following = await _call_with_lm(run, plan, node, plan.lm_parameter)
            except (BaeError, Waiting):
                raise
            except Exception as error:
                if (waiting := Waiting.inside(error)) is not None:
                    raise waiting from error
                raise body_error(plan, error) from error
            if type(following) not in plan.successors and (
                following is not None or not plan.may_end
            ):
                raise undeclared_route_error(plan, following)
            run.returned = following
        elif plan.successors:
            following, failed_fields = await _ask_for_next(run, plans, plan, node)
        else:
            return
        if following is None:
            return
        if step == limit:
            if following is run.returned:
                await run.writer.store_returned_node(run, following)
            raise step_limit_error(run, type(following))
        node = following


async def _complete(
    run: Run, plans: Plans, plan: NodePlan, node: Node, failed_fields: Collection[str]
) -> Node:
    """Resolve the node's missing fields that have a source, and return the complete node. The
    sources of `failed_fields` have failed, so these fields get their default.

    If a field was missing, the complete node is a validated copy. The caller or a body may start
    other runs with the original node, and those runs must not see values of this run.
    """
    absent = [field for field in plan.sourced if field.name not in node.__dict__]
    if len(absent) < len(plan.sourced) and _log.isEnabledFor(logging.DEBUG):
        _log_given(run, plans, plan, node)
    values: dict[str, Any] = {}
    if absent:
        if node is run.returned:
            await run.writer.store_returned_node(run, node)
        left_out = run.past.find_unrecorded_fields(run, plan, absent)
        missing = [f for f in absent if f.name not in failed_fields and f not in left_out]
        try:
            values = await resolve(run, plan, missing, node.__dict__)
        except Waiting as waiting:
            waiting.node = node
            raise
    # If the previous node has a body, the values that were started early are for this node, and are
    # not needed any more. After an empty body, they are for the next node, and still needed.
    if run.trace and plans[type(run.trace[-1])].written:
        await _release_early_values(run)
    if not absent:
        return node
    try:
        return run.past.complete_node(run, node, values)
    except Exception as error:
        raise invalid_values_error(plan, error) from error


def _log_given(run: Run, plans: Plans, plan: NodePlan, node: Node) -> None:
    """Log the fields whose source is not called, because the caller or a body passed the value."""
    if not run.trace or plans[type(run.trace[-1])].written:
        for field in plan.sourced:
            if field.name in node.__dict__:
                place = f"{plan.name}.{field.name}"
                _log.debug("%s: it has a value already, so its source is not asked", place)


async def _call_with_lm(run: Run, plan: NodePlan, node: Node, parameter: str) -> Node | None:
    asker = Asker("body", plan.node)
    has_lm = run.lm is not None or plan.lm is not None
    lm = GivenLM(run, run.step, asker, lambda: run.lm_for(plan)) if has_lm else None
    used: list[Usage] = []
    token = meter_in_force.set((used.append, partial(run.watch, asker)))
    try:
        with nullcontext() if lm is None else lm.waited_for():
            return await node(**{parameter: lm})
    finally:
        meter_in_force.reset(token)
        _note_usage(run, asker, used)


async def _ask_for_next(
    run: Run, plans: Plans, plan: NodePlan, node: Node
) -> tuple[Node | None, Collection[str]]:
    """Return the next node after an empty body, and the names of its fields whose source has
    failed. If there are several successors, the LLM chooses a successor first. Then the LLM fills
    the node. At the last step that `max_iters` allows, it is only asked whether to end the run."""
    is_last = run.step == run.max_iters
    if is_last and not plan.may_end:
        raise step_limit_error(run, *plan.successors)
    target: type[Node] = plan.successors[0]
    if len(plan.offered) > 1:
        chosen, filled, failed_fields = await _choose(run, plans, plan, node)
        if chosen is NoneType or filled is not None:
            return filled, failed_fields
        target = chosen
    if is_last:
        raise step_limit_error(run, target)
    return await _fill(run, plans, plans[target], node)


async def _choose(
    run: Run, plans: Plans, plan: NodePlan, node: Node
) -> tuple[type[Node] | type[None], Node | None, Collection[str]]:
    """Have the LLM choose the next class, and return the class. If the LLM fills the node in the
    same call, also return the node, and the names of its fields whose source has failed."""
    chosen: type[Node] | type[None]
    filled: Node | None
    scene = run.scene_for(plan, node)
    recorded = run.past.choice(run, plan, scene)
    if recorded is not NOTHING:
        return recorded, None, NONE
    lm = cast("LM", run.lm_for(plan))
    recalled: dict[type[Any], _Recalls] = {}
    run.writer.write(ChoiceStarted(time(), run.path, run.step, node, plan.offered))
    asker = Asker("choice", plan.node)
    if not isinstance(lm, RoutingLM):
        arguments = "choose_type", [*plan.offered], mask_values(node, scene.hidden)
        chosen, seconds, used = await _ask_question(run, lm, asker, scene, *arguments)
        filled = None
    else:
        fillable, recalled = options_ahead(run, plans, plan, lm)
        if recalled:
            origins = {cls: run.origins(records) for cls, (_, records) in recalled.items()}
            scene = scene.recalling(origins)
        # Recalled values are passed only if there are any: the `route` of a caller's own LM may
        # not have the parameter.
        optional = [{cls: values for cls, (values, _) in recalled.items()}] if recalled else []
        arguments = "route", node, plan.offered, fillable, *optional
        (chosen, filled), seconds, used = await _ask_question(run, lm, asker, scene, *arguments)
    if chosen not in plan.offered:
        _note_usage(run, asker, [used])
        raise invalid_choice_error(plan, chosen)
    if filled is None:
        await run.writer.store(ChoiceMade(time(), run.path, run.step, node, chosen, seconds, used))
        return chosen, None, NONE
    if type(filled) is not chosen:
        _note_usage(run, asker, [used])
        raise wrong_node_error(plans[cast("type[Node]", chosen)], filled)
    failed_fields: Collection[str] = NONE
    resolved, records = recalled.get(chosen, _NOTHING_RECALLED)
    if chosen in recalled:
        target_plan = plans[type(filled)]
        filled = _set_resolved_values(lm, target_plan, filled, resolved)
        failed_fields = _list_failed_fields(target_plan, resolved)
    place = time(), run.path, run.step
    await run.writer.store(
        ChoiceMade(*place, node, chosen, 0.0, Usage()),
        *records,
        FillStarted(*place, type(filled), resolved),
        FillEnded(*place, filled, seconds, used),
    )
    return chosen, filled, failed_fields


def _list_failed_fields(plan: NodePlan, resolved: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the fields whose source has failed. These fields get their default."""
    return [field.name for field in plan.context if field.name not in resolved]


def options_ahead(
    run: Run, plans: Mapping[type[Node], NodePlan], plan: NodePlan, lm: LM | None
) -> tuple[list[type[Node]], dict[type[Node], _Recalls]]:
    """Return the successors that one answer may choose and fill. Also return the values that are
    recalled for successors, with the records of the recalls.

    One answer cannot do both if another LM than `lm` fills the successor, if bae cannot find the
    successor's values at once, or if the prompt of the fill shows other earlier nodes than the
    prompt of the choice. At the last step that `max_iters` allows, the answer fills no successor.
    """
    fillable: list[type[Node]] = []
    recalled: dict[type[Node], _Recalls] = {}
    shows = run.read_context_setting(plan)
    for target in plan.successors:
        if plans[target].context:
            options = find_ahead(run, plans[target])
            if options is None:
                continue
            recalled[target] = options
        alike = lm is None or run.lm_for(plans[target]) is lm
        if alike and run.step != run.max_iters and run.read_context_setting(plans[target]) == shows:
            fillable.append(target)
    return fillable, recalled


async def _fill(
    run: Run, plans: Plans, plan: NodePlan, previous: Node | None
) -> tuple[Node, Collection[str]]:
    resolved: dict[str, Any] = {}
    records: list[Found] = []
    failed_fields: Collection[str] = NONE
    if plan.context:
        resolved = await resolve(run, plan, plan.context, {}, records)
        if len(resolved) < len(plan.context):
            failed_fields = _list_failed_fields(plan, resolved)
        if cast(Dataflow, run.flow).ahead:
            await _release_early_values(run)
        try:
            validate_values(plan.node, resolved)  # fail before the model is asked
        except Exception as error:
            raise invalid_values_error(plan, error) from error
    scene = run.scene_for(plan, previous)
    if records:
        scene = scene.recalling({plan.node: run.origins(records)})
    recorded = run.past.fill(run, plan, previous, resolved, scene)
    if recorded is not NOTHING:
        return recorded, failed_fields
    lm = run.lm if plan.lm is None else run.lm_for(plan)
    sure = len(plan.offered) == 1 and plan.successors and run.step + 1 != run.max_iters
    if run.options.prefetch and run.flow is not None and sure:
        start_early(run, plans[plan.successors[0]])
    run.writer.write(FillStarted(time(), run.path, run.step, plan.node, resolved))
    if lm is None:  # a run has no LM if no LLM has a field to fill: see `Graph.needs_lm`
        node = from_resolved(plan.node, resolved)
        await run.writer.store(FillEnded(time(), run.path, run.step, node, 0.0, Usage()))
        return node, failed_fields
    asker = Asker("fill", plan.node)
    if plan.tools is not None:
        scene = _with_tools(run, plan, lm, asker, scene)
    arguments = plan.node, resolved, plan.instruction
    node, seconds, used = await _ask_question(
        run, lm, asker, scene, "fill", *arguments, source=previous
    )
    if type(node) is not plan.node:
        _note_usage(run, asker, [used])
        raise wrong_node_error(plan, node)
    if plan.sourced:
        node = _set_resolved_values(lm, plan, node, resolved)
    await run.writer.store(FillEnded(time(), run.path, run.step, node, seconds, used))
    return node, failed_fields


def _with_tools(run: Run, plan: NodePlan, lm: LM, asker: Asker, scene: Scene) -> Scene:
    """Return the scene with the tools of the node, which the LLM may call before it answers."""
    from bae.toolbox import Toolbox

    if not isinstance(lm, RoutingLM):
        raise no_tools_error(lm, plan.node)
    return scene.offering(Toolbox(run, plan, asker, run.step))


def _set_resolved_values(lm: LM, plan: NodePlan, node: Node, resolved: Mapping[str, Any]) -> Node:
    """Return a node that an LLM has filled, with the resolved values of its sources."""
    if isinstance(lm, RoutingLM) and lm.keeps_resolved:
        return node
    try:
        return set_resolved_values(node, resolved)
    except Exception as error:
        raise invalid_values_error(plan, error) from error


async def _ask_question(
    run: Run, lm: LM, asker: Asker, scene: Scene, method: str, *arguments: Any, **keywords: Any
) -> tuple[Any, float, Usage]:
    """Call `method` of an LM with a question. Return the answer, the seconds that it took and the
    usage. If the question fails, record the usage too."""
    started = perf_counter()
    used: list[Usage] = []
    token = meter_in_force.set((used.append, partial(run.watch, asker)))
    scene = scene.storing(run.writer.unstorable)
    try:
        asking = ask_lm(lm, method, scene, *arguments, **keywords)
        if run.is_streamed:
            from bae.answer_stream import stream_for

            asking = stream_for(run, asker).follow(asking)
        answer = await asking
    except BaseException as error:
        _note_usage(run, asker, used)
        if isinstance(error, BaeError | Waiting) or not isinstance(error, Exception):
            raise
        if asker.kind == "fill" and isinstance(error, ValidationError):
            raise invalid_answer_error(asker.node, error) from error
        raise lm_call_error(error, str(asker), lm) from error
    finally:
        meter_in_force.reset(token)
    return answer, perf_counter() - started, Usage.total(used)


def _note_usage(run: Run, asker: Asker, used: Sequence[Usage]) -> None:
    usage = Usage.total(used)
    if usage != Usage():
        run.writer.write(LMUsed(time(), run.path, run.step, asker, usage))


def _check_start(graph: Graph[Any, Any], start: Node, run: Run) -> None:
    """Raise an error if the run cannot start. Otherwise set the LM of the run."""
    if type(start) is not graph.start:
        raise wrong_start_error(graph, start)
    if isinstance(run.lm, str):
        run.lm = run.get_lm(run.lm)
    lm = run.lm
    if not isinstance(lm, RoutingLM | None) and (isinstance(lm, type) or not is_lm(lm)):
        raise not_an_lm_error(lm)
    if type(run.max_iters) is not int or run.max_iters < 0:
        raise ValueError(f"max_iters={run.max_iters}: give a number of nodes, or 0 for no bound")
    for key in run.options.dep_cache or ():
        from_earlier_run = isinstance(key, tuple | Arguments)
        if not from_earlier_run and not callable(key) and not hasattr(key, "arun"):
            raise unknown_dependency_error(key)
    graph.prove()
    if lm is None and graph.needs_lm:
        from bae.rooms import LazyLM, find_default_lm

        # The rest of a resumed run may need no LM, so its LM is found when it is first asked.
        run.lm = (find_default_lm if run.past is NO_PAST else LazyLM)(graph.needs_lm)
    if run.past is NO_PAST and run.lm is not None:
        for plan in plan_of_graph(graph).plans_with_tools:
            refused = find_tools_error(run.lm, plan) if plan.lm is None else None
            if refused is not None:
                raise refused
    for shown_file in plan_of_graph(graph).shown_files if run.past is NO_PAST else ():
        refused = find_file_error(_find_lm(run, shown_file.asking), shown_file)
        if refused is not None:
            raise refused
    if run.lm is not None and (limit := spending_limit.get()) is not None:
        run.lm = limit.charge(run.lm)


def _find_lm(run: Run, plan: NodePlan) -> LM | None:
    """Return the LM that a node asks; None if the LM is pinned and cannot be made. That is no error
    yet, because the run may never reach the node. If it does, asking the LM raises the error."""
    try:
        return run.lm_for(plan)
    except BaeError:
        return None
