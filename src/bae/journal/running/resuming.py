"""Runs that have a journal: begun, and resumed. `graph.py` is the way in, `keeper.py` what such a
run writes through; `answering.py` answers their gates and `forking.py` forks them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from weakref import WeakSet

from bae.exceptions import JournalError, ProofError, describe
from bae.graph import every_graph
from bae.journal.compatibility import refuse_changes
from bae.journal.decoder import decoded, off_loop
from bae.journal.keepable import unkeepable
from bae.journal.lines import Encoder
from bae.journal.node_codec import node_codec
from bae.journal.running.keeper import Keeper, to_the_end
from bae.journal.running.open_gates import standing
from bae.journal.running.recording import Recording
from bae.journal.shape import shape_of
from bae.journal.store import Claim, Journal, RunInfo, StoredRun
from bae.lm.policies.budget import restore_budgets
from bae.lm.registry import LazyLM
from bae.node import Node
from bae.records import (
    Record,
    RunEnded,
    RunForked,
    RunResumed,
    StepStarted,
    TextArrived,
)
from bae.result import GraphResult
from bae.run import Run
from bae.run_log import Log, RunJournal
from bae.runner import run_graph
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm import LM
    from bae.run import Answer

T = TypeVar("T", bound=Node)

_KEEPABLE: Final[WeakSet[Graph[Any, Any]]] = WeakSet()
"""The graphs that are known to have nothing in a plain field that no journal holds."""


class Options(NamedTuple):
    """The parameters of `Graph.resume` that are those of `Graph.arun`."""

    lm: LM | str | None
    max_iters: int | None
    prefetch: bool
    answer: Answer | None
    dep_cache: dict[Any, Any] | None


async def begin(graph: Graph[Any, T], start: Node, run: Run, journal: Journal) -> GraphResult[T]:
    """Run a graph with a journal."""
    check_journal(journal)
    if not run.run_id or not isinstance(cast(object, run.run_id), str):
        raise ValueError(f"run_id={run.run_id!r}: give a text that is not empty, or None")
    graph.prove()
    if graph not in _KEEPABLE:
        _prove_keepable(graph)
    run.keeper = Keeper(
        journal,
        encoder_for(graph, journal),
        begun=lambda: restore_budgets(run.lm, run.run_id, Usage(), 0.0),
    )
    result = await run_graph(graph, start, run)
    return await _answered_meanwhile(graph, run, result, journal, None)


async def begin_or_resume(
    graph: Graph[Any, T], start: Node, run: Run, journal: Journal
) -> GraphResult[T]:
    """Run a graph with a journal; where that has a run of the same id, go on with that one."""
    check_journal(journal)
    options = Options(run.lm, run.max_iters, run.prefetch, run.answer, run.dep_cache)
    try:
        await journal.read(run.run_id)
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
        try:
            return await begin(graph, start, run, journal)
        except JournalError as late:  # somebody else has begun it in between
            if late.code != "bae-run-exists" or late.run_id != run.run_id:
                raise
    # The secrets of the start node, which no journal has, are given again here.
    secret = node_codec(type(start)).secret & start.__dict__.keys()
    given = {f"{type(start).__name__}.{name}": start.__dict__[name] for name in secret}
    return await resume(graph, run.run_id, options, journal, given)


def _prove_keepable(graph: Graph[Any, Any]) -> None:
    problems = unkeepable(graph)
    if problems:
        listed = "\n".join(str(problem) for problem in problems)
        raise ProofError(
            f"the graph {graph.name} cannot run with a journal:\n{listed}",
            problems=problems,
            fix="graph.validate(journal=True) lists all that a journal makes of a graph",
        )
    _KEEPABLE.add(graph)


async def resume(
    graph: Graph[Any, T],
    run_id: str,
    options: Options,
    journal: Journal,
    given: Mapping[str, Any] | None,
    log: Log | None = None,
) -> GraphResult[T]:
    """Go on with a run where it was. `log` is what it is written to in memory, where somebody
    reads that already."""
    check_journal(journal)
    graph.prove()
    if given:
        _check_given(graph, given)
    stored = await journal.read(run_id)
    _check_graph(graph, stored)
    if stored.info.status == "ended":
        return await as_it_stands(graph, stored, given)
    changes = await off_loop(len(stored.lines), refuse_changes, stored, graph)
    if not changes and _only_waits(stored, options):
        return await as_it_stands(graph, stored, given)
    before = stored.info
    try:
        claim = await _claimed(journal, before)
    except JournalError as error:
        if error.code != "bae-run-ended":
            raise
        return await as_it_stands(graph, await journal.read(run_id), given)
    run: Run | None = None
    try:
        stored = await journal.read(run_id)
        records = await decoded(graph, stored.lines, given=given)
        run, start = _taken_up(graph, stored, records, options, journal, claim, log)
        said = tuple(str(change) for change in changes)
        keeper = cast(Keeper, run.keeper)
        keeper.past.new_fields = frozenset(c.place for c in changes if c.kind == "field-new")
        await keeper.keep(run, RunResumed(time(), "", keeper.past.steps, claim.owner, said))
        result = await run_graph(graph, start, run)
    except BaseException as error:
        if run is None or run.keeper is None or run.keeper.has_claim:  # before the first step
            await _put_back(journal, claim, before, error)
        raise
    return await _answered_meanwhile(graph, run, result, journal, given)


def _taken_up(
    graph: Graph[Any, Any],
    stored: StoredRun,
    records: list[Record],
    options: Options,
    journal: Journal,
    claim: Claim,
    log: Log | None,
) -> tuple[Run, Node]:
    """A run that knows what was recorded, and the node it was begun with."""
    past = Recording(records)
    past.answers = stored.answers
    if options.max_iters is None:
        options = options._replace(max_iters=past.max_iters)
    run = Run(*options, log=[*records], run_id=stored.info.run_id)  # pyright: ignore[reportArgumentType] - no None is left
    if log is not None:  # somebody reads it, and has read what is there; text is not stored
        known = sum(1 for entry in log if not isinstance(entry, TextArrived))
        log.extend(records[known:])
        run.log = log
    run.keeper = Keeper(journal, encoder_for(graph, journal), past, claim, len(stored.lines))
    if run.lm is None and graph.needs_lm:
        run.lm = LazyLM(graph.needs_lm)  # what is left to do may ask for none
    restore_budgets(run.lm, run.run_id, past.usage, past.seconds)
    return run, past.started[""]


async def _answered_meanwhile(
    graph: Graph[Any, T],
    run: Run,
    result: GraphResult[T],
    journal: Journal,
    given: Mapping[str, Any] | None,
) -> GraphResult[T]:
    """A run that came to a stop at gates goes on where somebody answered one while the rest of it
    was still under way, unless they have taken the run up themselves."""
    if not result.waiting:
        return result
    stored = await journal.read(run.run_id)
    if stored.info.status == "ended":
        return await as_it_stands(graph, stored, given)
    answered = any(gate.address in stored.answers for gate in result.waiting)
    if stored.info.status != "waiting" or not answered:
        return result
    options = Options(run.lm, run.max_iters, run.prefetch, run.answer, run.dep_cache)
    try:
        return await resume(graph, run.run_id, options, journal, given, run.log)
    except JournalError as error:
        if error.code != "bae-run-owned":
            raise
        return result


async def as_it_stands(
    graph: Graph[Any, T], stored: StoredRun, given: Mapping[str, Any] | None
) -> GraphResult[T]:
    """What is recorded of a run, as a result."""
    records = await decoded(graph, stored.lines, given=given, partial=True)
    trace = _trace_of(records)
    ended = [r for r in records if isinstance(r, RunEnded) and not r.path]
    gates = tuple(
        gate for gate in (ended[-1].gates if ended else ()) if gate.address not in stored.answers
    )
    status = stored.info.status
    waiting = gates if status == "waiting" else ()
    node = trace[-1] if waiting and trace else None
    journal = RunJournal([*records], trace)
    result: GraphResult[T] = GraphResult(list(trace), journal, stored.info.run_id, node, waiting)
    if not waiting and status != "ended":
        answered = "its gates are answered" if status == "waiting" else standing(stored.info)
        result.unfinished = answered
    return result


def _trace_of(records: list[Any]) -> list[Node]:
    nodes: dict[int, Node] = {}
    for record in records:
        if isinstance(record, StepStarted | RunForked) and not record.path:
            nodes[record.step] = record.node
    return [nodes[step] for step in sorted(nodes)]


async def _claimed(journal: Journal, before: RunInfo) -> Claim:
    """Claim a run; a cancellation meanwhile leaves it as it was."""
    claims: list[Claim] = []
    try:
        return await to_the_end(journal.claim(before.run_id), claims.append)
    except asyncio.CancelledError as cancelled:
        for claim in claims:
            await _put_back(journal, claim, before, cancelled)
        raise


async def _put_back(journal: Journal, claim: Claim, before: RunInfo, error: BaseException) -> None:
    """Give up a claim that came to nothing, and leave the run as it was before."""
    put = journal.release(claim, before.status, (), before.waiting, before.error)
    try:
        await to_the_end(put)
    except asyncio.CancelledError:
        raise
    except Exception as failed:
        error.add_note(f"and the run could not be given up: {describe(failed)}")


def encoder_for(graph: Graph[Any, Any], journal: Journal) -> Encoder:
    return Encoder(graph, secrets=journal.secrets, prompts=journal.prompts)


def _only_waits(stored: StoredRun, options: Options) -> bool:
    """Whether a parked run would come to nothing but the same gates."""
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
                fix="resume it with the graph that it was begun with",
            )


def _check_given(graph: Graph[Any, Any], given: Mapping[str, Any]) -> None:
    for place in given:
        name, _, field = place.partition(".")
        classes = [cls for each in every_graph(graph) for cls in each.plans]
        if not any(c.__name__ == name and field in c.__pydantic_fields__ for c in classes):
            raise JournalError(
                f"given has {place!r}, and the graph {graph.name} has no such field",
                code="bae-journal-given",
                fix='name fields as "Class.field"',
            )


def check_journal(journal: object) -> None:
    if not isinstance(journal, Journal):
        hint = ""
        if isinstance(journal, str) or hasattr(journal, "__fspath__"):
            hint = f": journal=SQLiteJournal({str(cast(Any, journal))!r})"
        raise TypeError(f"journal={journal!r} is no Journal; give one of bae.journal{hint}")
