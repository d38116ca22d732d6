"""Resuming runs of a journal, recovering interrupted runs, and forking a run at a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from copy import copy
from os import urandom
from time import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pydantic import ValidationError

from bae.draft import hold
from bae.exceptions import BaeError, JournalError, add_note, describe, faults
from bae.files import File, collect_files, visible
from bae.journal.cancellation import count_requests
from bae.journal.compatibility import refuse_changes
from bae.journal.decoder import decode_run, off_loop
from bae.journal.earlier_turns import turns_of
from bae.journal.gates import describe_status
from bae.journal.lines import parse_line
from bae.journal.node_codec import node_codec
from bae.journal.past import ResumedPast
from bae.journal.run_checks import check_names, check_thread
from bae.journal.run_writer import JournalWriter, encoder_for
from bae.journal.shape import shape_of
from bae.journal.store import Journal, keeps_files, without_files
from bae.journal.stored_runs import Claim, Line, RunInfo, StoredRun, fork_info
from bae.node import Node
from bae.plan import plan_of
from bae.records import RunForked, RunResumed
from bae.result import GraphResult, Recovered, RunJournal
from bae.run import Run, RunOptions
from bae.runner import run_graph
from bae.tasks import all_or_first_error, finish_despite_cancel
from bae.turns import TurnOptions

if TYPE_CHECKING:
    from bae.graph import Graph

T = TypeVar("T", bound=Node)

_TAKEN: Final = ("bae-run-owned", "bae-run-taken", "bae-run-ended", "bae-thread-busy")


async def begin_or_resume(
    graph: Graph[Any, T], start: Node, run: Run, journal: Journal
) -> GraphResult[T]:
    """Run a graph with a journal. If the journal has a run with the same id, resume that run."""
    try:
        await journal.read(run.run_id)
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
        try:
            result = await run_graph(graph, start, run)
            return await continue_if_answered(graph, run, result)
        except JournalError as late:  # another process has started the run in the meantime
            if late.code != "bae-run-exists" or late.run_id != run.run_id:
                raise
    # Pass on the secrets of the start node, which no journal stores.
    secret = node_codec(type(start)).secret & start.__dict__.keys()
    given = {f"{type(start).__name__}.{name}": start.__dict__[name] for name in secret}
    return await resume(graph, run.run_id, run.options, journal, given)


async def resume(
    graph: Graph[Any, T],
    run_id: str,
    options: RunOptions,
    journal: Journal,
    given: Mapping[str, Any] | None,
    earlier: JournalWriter | None = None,
    *,
    skip_ended: bool = False,
) -> GraphResult[T]:
    """Resume a run where it stopped. If the run has ended, return its result; with `skip_ended`,
    raise `bae-run-ended` instead. If this process has just worked on the run, `earlier` is the
    writer that it used. The resumed run continues that writer's log, because observers may be
    reading the log."""
    graph.prove()
    _check_given(graph, given or {})
    stored = await journal.read(run_id)
    before = stored.info
    _check_graph(graph, stored)
    ended = before.status == "ended"
    if ended and not skip_ended:
        return await result_of(graph, stored, given, journal)
    changes = [] if ended else await off_loop(len(stored.lines), refuse_changes, stored, graph)
    only_waits = before.status == "waiting" and options.answer is None and not before.can_continue()
    if only_waits and not changes:
        return await result_of(graph, stored, given, journal)
    claims: list[Claim] = []
    writer: JournalWriter | None = None
    try:
        claim = await finish_despite_cancel(journal.claim(run_id), claims.append)
        requests = count_requests(stored.answers)
        stored = await journal.read(run_id)
        turns = await turns_of(journal, graph, stored)
        records, past = await decode_run(
            graph, stored.lines, files=stored.files, given=given, turns=turns
        )
        new = frozenset(change.place for change in changes if change.kind == "new")
        writer = JournalWriter(journal, [*records])
        writer.continue_run(graph, claim, stored)
        writer.message_count = past.message_count
        if options.max_iters is None:
            options = options._replace(max_iters=past.run.max_iters)
        thread = before.thread
        turn = None if thread is None else TurnOptions(thread)
        options = options._replace(turn=turn, metadata=before.metadata)
        run = Run(options, writer=writer, run_id=run_id)
        run.turns = turns
        run.past = ResumedPast(graph, past, writer, stored.answers, new)
        if earlier is not None:  # readers of its log have read the stored records already
            earlier.log.extend(records[earlier.lines :])
            writer.log = earlier.log
        run.restore_limits(past.usage, past.seconds)
        steps = sum(step.is_complete for step in past.run.steps.values())
        change_texts = tuple(str(change) for change in changes)
        await writer.store(RunResumed(time(), "", steps, claim.owner, change_texts))
        if thread is not None and past.turn is None:  # it stopped before its turn was stored
            await writer.begin_turn(run, graph, thread)
        writer.watch(run_id, requests)
        with visible(stored.files):
            result = await run_graph(graph, cast("Node", past.run.start), run)
    except BaseException as error:
        if writer is not None:
            await writer.stop_watching()
        if claims and (writer is None or writer.has_claim):  # run_graph has not released it
            await give_up_claim(journal, claims[0], before, error)
        ended = isinstance(error, JournalError) and error.code == "bae-run-ended"
        if claims or skip_ended or not ended:
            raise
    else:
        return await continue_if_answered(graph, run, result, given)
    return await result_of(graph, await journal.read(run_id), given, journal)


async def recover(
    graph: Graph[Any, T],
    options: RunOptions,
    journal: Journal,
    concurrency: int,
    given: Mapping[str, Any] | None,
) -> list[Recovered[T]]:
    """Start the queued runs of a graph and resume its other runs that can continue, `concurrency`
    at once. The result leaves out runs that another process claims first."""
    if concurrency < 1:
        raise ValueError(f"concurrency={concurrency}: give a number of runs, 1 or more")
    ids = [info.run_id async for info in recoverable(graph, journal)]
    recovered: dict[str, Recovered[T]] = {}
    remaining_ids = iter(ids)

    async def worker() -> None:
        for run_id in remaining_ids:
            try:
                # Each run gets its own cache of dependencies.
                run_options = options._replace(dep_cache=dict(options.dep_cache or {}))
                result = await resume(graph, run_id, run_options, journal, given, skip_ended=True)
                recovered[run_id] = Recovered(run_id, result)
            except BaeError as error:
                if isinstance(error, JournalError) and error.code in _TAKEN:
                    continue
                recovered[run_id] = Recovered(run_id, error=error)

    await all_or_first_error(worker for _ in range(min(concurrency, len(ids))))
    return [recovered[run_id] for run_id in ids if run_id in recovered]


async def continue_if_answered(
    graph: Graph[Any, T],
    run: Run,
    result: GraphResult[T],
    given: Mapping[str, Any] | None = None,
) -> GraphResult[T]:
    """Resume a run that has just stopped at gates, if one of these gates was answered before the
    run stopped. If another process has ended the run since, return the final result. In all other
    cases, return `result`."""
    if not result.waiting:
        return result
    earlier = cast(JournalWriter, run.writer)
    journal = earlier.journal
    stored = await journal.read(run.run_id)
    if stored.info.status == "ended":
        return await result_of(graph, stored, given, journal)
    answered = any(gate.address in stored.answers for gate in result.waiting)
    if stored.info.status != "waiting" or not answered:
        return result
    try:
        return await resume(
            graph, run.run_id, run.options._replace(lm=run.lm), journal, given, earlier
        )
    except JournalError as error:
        if error.code != "bae-run-owned":
            raise
        return result


async def fork(
    graph: Graph[Any, Any],
    run_id: str,
    at: int,
    journal: Journal,
    new_id: str | None,
    changed: Mapping[str, Any],
    thread: str | None = None,
) -> str:
    """Make a run that shares everything before the step `at` with the run `run_id`. Return the id
    of the new run."""
    stored = await journal.read(run_id)
    if thread is not None and stored.info.thread not in (None, thread):
        raise JournalError(
            f"the run {run_id} is a turn of the thread {stored.info.thread!r}, and its fork cannot "
            f"belong to the thread {thread!r}, which has other earlier turns",
            run_id=run_id,
            code="bae-fork-thread",
            fix=f"give thread={stored.info.thread!r}, or none; graph.thread(…).fork({thread!r}) "
            "makes a new thread with copies of turns",
        )
    line, files = await fork_line(graph, stored, at, journal, changed)
    new_id = urandom(12).hex() if new_id is None else new_id
    check_names(new_id, graph.name)
    if thread is not None:
        check_thread(thread)
    upto = line.n
    if files.keys() <= stored.files.keys():
        await journal.fork(run_id, new_id, upto, [line], thread=thread)
    else:  # with a new file, which a fork that shares lines cannot add
        if not keeps_files(journal):
            raise without_files(journal)
        info = fork_info(stored.info, new_id, [line], thread)
        lines = (*stored.lines[:upto], line)
        new = StoredRun(info, stored.shape, lines, {}, {**stored.files, **files})
        await journal.create(new, claim=False)
    return new_id


async def fork_line(
    graph: Graph[Any, Any],
    stored: StoredRun,
    at: int,
    journal: Journal,
    changed: Mapping[str, Any],
) -> tuple[Line, dict[str, bytes]]:
    """Return the first line that a fork adds to its shared lines, and the files in the node of that
    line."""
    run_id = stored.info.run_id
    kinds = ("StepStarted", "RunForked")
    steps = {line.step: line.n for line in stored.lines if not line.path and line.kind in kinds}
    if at not in steps:
        message = f"the run {run_id} has no step {at}; it has {len(steps)}, from 0"
        fix = "give at= the number of a node in the trace"
        gates = [gate.address for gate in stored.info.waiting if gate.address.startswith(f"{at}:")]
        if gates:
            message += (
                f". It waits for the answer to {', '.join(gates)}, and has not reached that node"
            )
            fix = "answer the gate first, or fork at a node before it"
        raise JournalError(message, run_id=run_id, code="bae-fork-step", fix=fix)
    upto = steps[at]
    turns = await turns_of(journal, graph, stored, strict=False)
    before = stored.lines[: upto + 1]
    _, past = await decode_run(graph, before, files=stored.files, partial=True, turns=turns)
    with visible(stored.files):  # a changed field may name a file of the run
        node = _change_node(cast("Node", past.run.steps[at].node), changed, run_id)
    forked = RunForked(time(), "", at, run_id, node, tuple(changed))
    with collect_files() as collected_files:
        data = encoder_for(graph, journal).encode(forked)
    line = Line(upto, "RunForked", forked.at, "", at, data)
    files = {
        collected_file.hash: collected_file.data
        for collected_file in collected_files.values()
        if isinstance(collected_file, File)
    }
    return line, files


async def result_of(
    graph: Graph[Any, T], stored: StoredRun, given: Mapping[str, Any] | None, journal: Journal
) -> GraphResult[T]:
    """Return the result of a stored run, as far as the run got."""
    turns = await turns_of(journal, graph, stored, strict=False)
    records, past = await decode_run(
        graph, stored.lines, files=stored.files, given=given, partial=True, turns=turns
    )
    run = past.run
    trace = [step.node for step in run.trace if step.is_complete and step.node is not None]
    gates = tuple(gate for gate in run.gates if gate.address not in stored.answers)
    status = stored.info.status
    waiting = gates if status == "waiting" else ()
    node = trace[-1] if waiting and trace else None
    log = RunJournal([*records], trace)
    result: GraphResult[T] = GraphResult(node, list(trace), log, stored.info.run_id, waiting)
    if not waiting and status != "ended":
        answered = status == "waiting"
        result.unfinished = "its gates are answered" if answered else describe_status(stored.info)
    return result


async def recoverable(graph: Graph[Any, Any], journal: Journal) -> AsyncIterator[RunInfo]:
    """Yield the runs of a graph that have no owner and can continue: queued runs, the oldest first,
    then interrupted runs, and then parked runs whose gate was answered or is past its deadline, the
    newest first."""
    queued = [info async for info in journal.every_run(status="queued", graph=graph.name)]
    now = time()
    for info in reversed(queued):
        if info.is_due(now):
            yield info
    async for info in journal.every_run(status="interrupted", graph=graph.name):
        yield info
    async for info in journal.every_run(status="waiting", graph=graph.name):
        if info.can_continue():
            yield info


async def give_up_claim(
    journal: Journal, claim: Claim, before: RunInfo, error: BaseException
) -> None:
    """Release an unused claim after an error, and restore the status of the run from `before`."""
    release = journal.release(claim, before.status, (), before.waiting, before.error)
    try:
        await finish_despite_cancel(release)
    except asyncio.CancelledError:
        raise
    except Exception as failed:
        add_note(error, f"and the claim on the run could not be released: {describe(failed)}")


def _check_graph(graph: Graph[Any, Any], stored: StoredRun) -> None:
    info = stored.info
    if info.graph != graph.name and shape_of(graph).hash != info.shape:
        first = parse_line(stored.lines[0]).get("node") if stored.lines else None
        if getattr(first, "type", "") not in {cls.__name__ for cls in graph.nodes}:
            raise JournalError(
                f"the run {info.run_id} belongs to the graph {info.graph}, not to {graph.name}",
                run_id=info.run_id,
                code="bae-run-graph",
                fix="resume it with the graph that it was started with",
            )


def _check_given(graph: Graph[Any, Any], given: Mapping[str, Any]) -> None:
    for place in given:
        name, _, field = place.partition(".")
        classes = [cls for inner in graph.graphs for cls in inner.nodes]
        if not any(c.__name__ == name and field in c.__pydantic_fields__ for c in classes):
            raise JournalError(
                f"given has {place!r}, and the graph {graph.name} has no such field",
                code="bae-journal-given",
                fix='name fields as "Class.field"',
            )


def _change_node(node: Node, changed: Mapping[str, Any], run_id: str) -> Node:
    cls = type(node)
    unknown = [name for name in changed if name not in cls.__pydantic_fields__]
    if unknown:
        raise JournalError(
            f"{cls.__name__} has no field {', '.join(unknown)} to change",
            run_id=run_id,
            code="bae-fork-field",
            fix=f"change one of {', '.join(cls.__pydantic_fields__)}"
            + ("; the id of the new run is new_id=" if "run_id" in unknown else ""),
        )
    withheld = [
        field.name
        for field in plan_of(cls).plain
        if field.required and field.name not in node.__dict__ and field.name not in changed
    ]
    if withheld:
        example = ", ".join(f"{name}=…" for name in withheld)
        raise JournalError(
            f"{cls.__name__} needs {', '.join(withheld)}, which the journal does not have: it was "
            "withheld as a secret, or redacted",
            run_id=run_id,
            places=[f"{cls.__name__}.{name}" for name in withheld],
            code="bae-journal-secret",
            fix=f"give it to the fork: {example}",
        )
    turns = plan_of(cls).turns
    if turns is not None and turns.name not in changed and turns.name in node.__dict__:
        # Leave out the earlier turns: the fork finds them again in the runs of the thread.
        values = {n: v for n, v in node.__dict__.items() if n != turns.name}
        node = copy(node)
        hold(node, values, node.__pydantic_extra__, node.__pydantic_fields_set__ - {turns.name})
    if not changed:
        return node
    # Unchanged values are valid already: validators must not change them a second time.
    values = {n: v for n, v in node.__dict__.items() if n not in changed}
    rest = copy(node)
    hold(rest, values, node.__pydantic_extra__, node.__pydantic_fields_set__.difference(changed))
    is_complete = cls.__pydantic_fields__.keys() <= values.keys() | changed.keys()
    try:
        return node_codec(cls).join_values(rest, changed, is_complete)
    except ValidationError as error:
        raise JournalError(
            f"{cls.__name__} refuses the changed fields: {'; '.join(faults(error))}",
            run_id=run_id,
            code="bae-fork-field",
            cause=error,
            fix="give values that the fields take",
        ) from error
