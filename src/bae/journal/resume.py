"""Resuming runs of a journal, and recovering those that were interrupted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from time import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from bae.exceptions import BaeError, JournalError, describe
from bae.history import History
from bae.journal.compatibility import refuse_changes
from bae.journal.decoder import decode_run, off_loop
from bae.journal.gates import describe_status
from bae.journal.node_codec import node_codec
from bae.journal.resumed import ResumedRecorder
from bae.journal.shape import shape_of
from bae.journal.store import Claim, Journal, RunInfo, StoredRun
from bae.language_model import restore_limits
from bae.node import Node
from bae.recorder import Log, RunJournal
from bae.records import Record, RunResumed, TextArrived
from bae.result import GraphResult, Recovered
from bae.rooms import late_lm
from bae.run import Run, RunOptions
from bae.runner import run_graph
from bae.tasks import all_or_first_error, finish_despite_cancel

if TYPE_CHECKING:
    from bae.graph import Graph

T = TypeVar("T", bound=Node)

_TAKEN: Final = ("bae-run-owned", "bae-run-taken", "bae-run-ended")


async def begin_or_resume(
    graph: Graph[Any, T], start: Node, run: Run, journal: Journal
) -> GraphResult[T]:
    """Run a graph with a journal; if that has a run of the same id, resume that one."""
    options = _options_of(run)
    try:
        await journal.read(run.run_id)
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
        try:
            return await journal.begin_run(graph, start, run)
        except JournalError as late:  # another process has started it in between
            if late.code != "bae-run-exists" or late.run_id != run.run_id:
                raise
    # The secrets of the start node, which no journal stores, are given again here.
    secret = node_codec(type(start)).secret & start.__dict__.keys()
    given = {f"{type(start).__name__}.{name}": start.__dict__[name] for name in secret}
    return await resume(graph, run.run_id, options, journal, given)


async def resume(
    graph: Graph[Any, T],
    run_id: str,
    options: RunOptions,
    journal: Journal,
    given: Mapping[str, Any] | None,
    log: Log | None = None,
    *,
    skip_ended: bool = False,
) -> GraphResult[T]:
    """Resume a run where it stopped. One that has ended is returned as it ended, or refused with
    `bae-run-ended` if `skip_ended`. `log` is the log in memory to continue, if one is being read
    already."""
    graph.prove()
    if given:
        _check_given(graph, given)
    stored = await journal.read(run_id)
    _check_graph(graph, stored)
    if stored.info.status == "ended":
        if skip_ended:
            raise JournalError("the run has ended", run_id=run_id, code="bae-run-ended")
        return await result_of(graph, stored, given)
    changes = await off_loop(len(stored.lines), refuse_changes, stored, graph)
    if not changes and _only_waits(stored, options):
        return await result_of(graph, stored, given)
    before = stored.info
    try:
        claim = await _claim(journal, before)
    except JournalError as error:
        if error.code != "bae-run-ended" or skip_ended:
            raise
        return await result_of(graph, await journal.read(run_id), given)
    run: Run | None = None
    try:
        stored = await journal.read(run_id)
        records, past = await decode_run(graph, stored.lines, given=given)
        run, start = _restored(graph, stored, records, past, options, journal, claim, log)
        said = tuple(str(change) for change in changes)
        recorder = cast(ResumedRecorder, run.recorder)
        recorder.given = given
        recorder.new_fields = frozenset(c.place for c in changes if c.kind == "new")
        await recorder.store(RunResumed(time(), "", _step_count(recorder.past), claim.owner, said))
        return await run_graph(graph, start, run)
    except BaseException as error:
        if run is None or cast(ResumedRecorder, run.recorder).has_claim:  # before the first step
            await _give_up_claim(journal, claim, before, error)
        raise


async def recover(
    graph: Graph[Any, T],
    options: RunOptions,
    journal: Journal,
    concurrency: int,
    given: Mapping[str, Any] | None,
) -> list[Recovered[T]]:
    """Resume all runs of a graph that can continue, so many at once. Those that another process
    takes first are left out."""
    if concurrency < 1:
        raise ValueError(f"concurrency={concurrency}: give a number of runs, 1 or more")
    ids = [info.run_id async for info in _recoverable(graph, journal)]
    found: dict[str, Recovered[T]] = {}
    left = iter(ids)

    async def worker() -> None:
        for run_id in left:
            try:
                # What one run has found is not for the others.
                own = options._replace(dep_cache=dict(options.dep_cache or {}))
                result = await resume(graph, run_id, own, journal, given, skip_ended=True)
                found[run_id] = Recovered(run_id, result)
            except BaeError as error:
                if isinstance(error, JournalError) and error.code in _TAKEN:
                    continue
                found[run_id] = Recovered(run_id, error=error)

    await all_or_first_error(worker for _ in range(min(concurrency, len(ids))))
    return [found[run_id] for run_id in ids if run_id in found]


async def result_of(
    graph: Graph[Any, T], stored: StoredRun, given: Mapping[str, Any] | None
) -> GraphResult[T]:
    """The result of a stored run, as far as it got."""
    records, past = await decode_run(graph, stored.lines, given=given, partial=True)
    run = past.run
    trace = [step.node for step in run.trace if step.whole and step.node is not None]
    gates = tuple(gate for gate in run.gates if gate.address not in stored.answers)
    status = stored.info.status
    waiting = gates if status == "waiting" else ()
    node = trace[-1] if waiting and trace else None
    journal = RunJournal([*records], trace)
    result: GraphResult[T] = GraphResult(list(trace), journal, stored.info.run_id, node, waiting)
    if not waiting and status != "ended":
        answered = status == "waiting"
        result.unfinished = "its gates are answered" if answered else describe_status(stored.info)
    return result


def _options_of(run: Run) -> RunOptions:
    return RunOptions(run.lm, run.max_iters, run.prefetch, run.answer, run.dep_cache)


def _restored(
    graph: Graph[Any, Any],
    stored: StoredRun,
    records: list[Record],
    past: History,
    options: RunOptions,
    journal: Journal,
    claim: Claim,
    log: Log | None,
) -> tuple[Run, Node]:
    """A run that knows what was recorded, and the node it started with."""
    lines, answers = len(stored.lines), stored.answers
    recorder = ResumedRecorder(journal, graph, [*records], past, claim, lines, answers)
    run = Run(
        cast(Any, options.lm),
        past.run.max_iters if options.max_iters is None else options.max_iters,
        options.prefetch,
        options.answer,
        options.dep_cache,
        recorder=recorder,
        run_id=stored.info.run_id,
    )
    if log is not None:  # its reader has read what is there; text is not stored
        known = sum(1 for entry in log if not isinstance(entry, TextArrived))
        log.extend(records[known:])
        recorder.log = log
    if run.lm is None and graph.needs_lm:
        run.lm = late_lm(graph.needs_lm)
    restore_limits(run.lm, run.run_id, past.usage, past.seconds)
    return run, cast("Node", past.run.start)


async def resume_if_answered(
    graph: Graph[Any, T],
    run: Run,
    result: GraphResult[T],
    journal: Journal,
    given: Mapping[str, Any] | None,
) -> GraphResult[T]:
    """Resume a run that stopped at gates if one of them was answered while the rest of the run was
    still in progress, unless another process has resumed it."""
    if not result.waiting:
        return result
    stored = await journal.read(run.run_id)
    if stored.info.status == "ended":
        return await result_of(graph, stored, given)
    answered = any(gate.address in stored.answers for gate in result.waiting)
    if stored.info.status != "waiting" or not answered:
        return result
    try:
        return await resume(graph, run.run_id, _options_of(run), journal, given, run.recorder.log)
    except JournalError as error:
        if error.code != "bae-run-owned":
            raise
        return result


async def _recoverable(graph: Graph[Any, Any], journal: Journal) -> AsyncIterator[RunInfo]:
    """The runs of a graph that have no owner and can continue, the newest first."""
    async for info in journal.every_run(status="interrupted", graph=graph.name):
        yield info
    async for info in journal.every_run(status="waiting", graph=graph.name):
        now = time()
        if any(g.answered or (g.deadline is not None and g.deadline <= now) for g in info.waiting):
            yield info


def _step_count(past: History) -> int:
    """How many nodes the run itself has reached."""
    return sum(step.whole for step in past.run.steps.values())


async def _claim(journal: Journal, before: RunInfo) -> Claim:
    """Claim a run; a cancellation meanwhile leaves it as it was."""
    claims: list[Claim] = []
    try:
        return await finish_despite_cancel(journal.claim(before.run_id), claims.append)
    except asyncio.CancelledError as cancelled:
        for claim in claims:
            await _give_up_claim(journal, claim, before, cancelled)
        raise


async def _give_up_claim(
    journal: Journal, claim: Claim, before: RunInfo, error: BaseException
) -> None:
    """Release a claim that was not used, and leave the run as it was before."""
    release = journal.release(claim, before.status, (), before.waiting, before.error)
    try:
        await finish_despite_cancel(release)
    except asyncio.CancelledError:
        raise
    except Exception as failed:
        error.add_note(f"and the claim on the run could not be released: {describe(failed)}")


def _only_waits(stored: StoredRun, options: RunOptions) -> bool:
    """Whether a parked run would only stop at the same gates again."""
    now, info = time(), stored.info
    return (
        info.status == "waiting"
        and options.answer is None
        and not any(gate.answered for gate in info.waiting)
        and not any(gate.deadline is not None and gate.deadline <= now for gate in info.waiting)
    )


def _check_graph(graph: Graph[Any, Any], stored: StoredRun) -> None:
    info = stored.info
    if info.graph != graph.name and shape_of(graph).hash != info.shape:
        known = {cls.__name__ for cls in graph.plans}
        first = next((line for line in stored.lines if line.kind == "RunStarted"), None)
        begun = json.loads(first.data)["node"]["type"] if first is not None else ""
        if begun not in known:
            raise JournalError(
                f"the run {info.run_id} is one of the graph {info.graph}, and this is {graph.name}",
                run_id=info.run_id,
                code="bae-run-graph",
                fix="resume it with the graph that it was started with",
            )


def _check_given(graph: Graph[Any, Any], given: Mapping[str, Any]) -> None:
    for place in given:
        name, _, field = place.partition(".")
        classes = [cls for each in graph.graphs for cls in each.plans]
        if not any(c.__name__ == name and field in c.__pydantic_fields__ for c in classes):
            raise JournalError(
                f"given has {place!r}, and the graph {graph.name} has no such field",
                code="bae-journal-given",
                fix='name fields as "Class.field"',
            )
