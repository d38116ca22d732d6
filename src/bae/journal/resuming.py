"""Runs that have a journal: begun, resumed, answered and forked. `graph.py` is the way in,
`keeper.py` what such a run writes through."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from os import urandom
from time import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from weakref import WeakSet

from pydantic import ValidationError

from bae.draft import validated
from bae.exceptions import GateError, JournalError, ProofError, faults
from bae.journal.changes import refuse_changes
from bae.journal.decoding import decode, graph_at
from bae.journal.encoding import Encoder
from bae.journal.keeper import Keeper, to_the_end
from bae.journal.of_run import RunJournal
from bae.journal.open_gates import find_gate
from bae.journal.recording import Recording
from bae.journal.records import RunEnded, RunForked, RunResumed, StepStarted
from bae.journal.store import Claim, Journal, Line, StoredRun
from bae.journal.values import dump_field, unkeepable
from bae.lm.policies.carrying import carry_over
from bae.node import Node
from bae.result import GraphResult
from bae.run import Run
from bae.runner import run_graph

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
    _check_journal(journal)
    graph.prove()
    if graph not in _KEEPABLE:
        _prove_keepable(graph)
    run.keeper = Keeper(journal, _encoder(graph, journal))
    carry_over(run, run.keeper.past)
    return await _to_a_stop(graph, start, run, journal)


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
) -> GraphResult[T]:
    """Go on with a run where it was."""
    _check_journal(journal)
    graph.prove()
    stored = await journal.read(run_id)
    if stored.info.status == "ended":
        return _as_it_stands(graph, stored, given)
    changes = refuse_changes(stored, graph)
    claim = await _claimed(journal, run_id, stored)
    try:
        stored = await journal.read(run_id)
        records = decode(graph, stored.lines, given=given)
    except BaseException as error:
        await _put_back(journal, claim, stored, error)
        raise
    past = Recording(records)
    past.answers = stored.answers
    if options.max_iters is None:
        options = options._replace(max_iters=past.max_iters)
    run = Run(*options, log=[*records], run_id=run_id)  # pyright: ignore[reportArgumentType] - no None is left
    run.keeper = Keeper(journal, _encoder(graph, journal), past, claim, len(stored.lines))
    carry_over(run, past)
    said = tuple(str(change) for change in changes)
    try:
        await run.keeper.keep(run, RunResumed(time(), "", len(past.nodes), claim.owner, said))
    except BaseException as error:
        await _put_back(journal, claim, stored, error)
        raise
    return await _to_a_stop(graph, past.started[""], run, journal)


async def answer(
    graph: Graph[Any, T],
    run_id: str,
    field: str,
    value: Any,
    options: Options,
    journal: Journal,
    given: Mapping[str, Any] | None,
    go_on: bool,
) -> GraphResult[T]:
    """Answer a gate that a run waits for, and go on with the run."""
    _check_journal(journal)
    stored = await journal.read(run_id)
    gate = find_gate(stored, field)
    around = graph_at(graph, gate.path)
    node_type = next((cls for cls in around.plans if cls.__name__ == gate.node), None)
    if node_type is None:
        refuse_changes(stored, graph)
        raise JournalError(
            f"{graph.name} has no node {gate.node}, where the run waits at {gate.address}",
            run_id=run_id,
            code="bae-run-changed",
            fix="answer it with the graph that the run was begun with",
        )
    try:
        checked = validated(node_type, {gate.field: value})[gate.field]
    except ValidationError as error:
        raise GateError(
            f"{gate.place}: the answer to {gate.question!r} does not fit: "
            f"{'; '.join(faults(error))}",
            node_type=node_type,
            field_name=gate.field,
            code="bae-gate-invalid",
            cause=error,
            fix="answer with what the field declares; the run still waits",
        ) from error
    if not await journal.answer(run_id, gate.address, dump_field(node_type, gate.field, checked)):
        raise GateError(
            f"{gate.place}: {gate.question!r} has an answer already, and the first one stands",
            node_type=node_type,
            field_name=gate.field,
            code="bae-gate-answered",
            fix="look at what was answered: await journal.why(run_id, place)",
        )
    if go_on:
        try:
            return await resume(graph, run_id, options, journal, given)
        except JournalError as error:
            # Whoever has it sees the answer when the run comes to a stop.
            if error.code != "bae-run-owned":
                raise
    return _as_it_stands(graph, await journal.read(run_id), given)


async def fork(
    graph: Graph[Any, Any],
    run_id: str,
    at: int,
    journal: Journal,
    new_id: str | None,
    changed: Mapping[str, Any],
) -> str:
    """A new run that shares with another all that was before its step `at`."""
    _check_journal(journal)
    stored = await journal.read(run_id)
    line = next(
        (
            line
            for line in reversed(stored.lines)
            if not line.path and line.step == at and line.kind in ("StepStarted", "RunForked")
        ),
        None,
    )
    if line is None:
        steps = [e.step for e in stored.lines if not e.path and e.kind == "StepStarted"]
        raise JournalError(
            f"the run {run_id} has no step {at}; it has {len(steps)}, from 0",
            run_id=run_id,
            code="bae-fork-step",
            fix="give at= the number of a node in the trace",
        )
    until = [each for each in stored.lines if each.n <= line.n]
    node = Recording(decode(graph, until, partial=True)).nodes["", at]
    other = _with(node, changed, run_id)
    forked = RunForked(time(), "", at, run_id, other, tuple(changed))
    data = _encoder(graph, journal).encode(forked)
    new_id = urandom(12).hex() if new_id is None else new_id
    upto = line.n
    await journal.fork(run_id, new_id, upto, [Line(upto, "RunForked", forked.at, "", at, data)])
    return new_id


async def _to_a_stop(
    graph: Graph[Any, T], start: Node, run: Run, journal: Journal
) -> GraphResult[T]:
    """Run until there is an end, or nobody has answered any gate that is waited for."""
    while True:
        result = await run_graph(graph, start, run)
        if not result.waiting:
            return result
        answers = (await journal.read(run.run_id)).answers
        if not any(gate.address in answers for gate in result.waiting):
            return result
        # Somebody answered while the rest of the run was still under way.
        claim = await to_the_end(journal.claim(run.run_id))
        keeper = cast(Keeper, run.keeper)
        past = Recording(run.journal)
        past.answers = answers
        log, options = run.log, (run.lm, run.max_iters, run.prefetch, run.answer, run.dep_cache)
        run = Run(*options, run_id=run.run_id)
        run.log = log
        run.keeper = keeper.going_on(past, claim)
        await run.keeper.keep(run, RunResumed(time(), "", len(past.nodes), claim.owner))


def _as_it_stands(
    graph: Graph[Any, T], stored: StoredRun, given: Mapping[str, Any] | None
) -> GraphResult[T]:
    """What is recorded of a run, as a result."""
    records = decode(graph, stored.lines, given=given, partial=True)
    trace = _trace_of(records)
    ended = [r for r in records if isinstance(r, RunEnded) and not r.path]
    gates = tuple(
        gate for gate in (ended[-1].gates if ended else ()) if gate.address not in stored.answers
    )
    waiting = gates if stored.info.status == "waiting" else ()
    node = trace[-1] if waiting and trace else None
    return GraphResult(
        list(trace), RunJournal([*records], trace), stored.info.run_id, node, waiting
    )


def _trace_of(records: list[Any]) -> list[Node]:
    nodes: dict[int, Node] = {}
    for record in records:
        if isinstance(record, StepStarted | RunForked) and not record.path:
            nodes[record.step] = record.node
    return [nodes[step] for step in sorted(nodes)]


def _with(node: Node, changed: Mapping[str, Any], run_id: str) -> Node:
    cls = type(node)
    unknown = [name for name in changed if name not in cls.__pydantic_fields__]
    if unknown:
        raise JournalError(
            f"{cls.__name__} has no field {', '.join(unknown)} to change",
            run_id=run_id,
            code="bae-fork-field",
            fix=f"change one of {', '.join(cls.__pydantic_fields__)}",
        )
    held = {n: v for n, v in node.__dict__.items() if n in cls.__pydantic_fields__}
    extra: dict[str, Any] = node.__pydantic_extra__ or {}
    try:
        return cls(**{**held, **extra, **changed})
    except ValidationError as error:
        raise JournalError(
            f"{cls.__name__} refuses the changed fields: {'; '.join(faults(error))}",
            run_id=run_id,
            code="bae-fork-field",
            cause=error,
            fix="give values that the fields take",
        ) from error


async def _claimed(journal: Journal, run_id: str, stored: StoredRun) -> Claim:
    """Claim a run; a cancellation meanwhile leaves it as it was."""
    claims: list[Claim] = []
    try:
        return await to_the_end(journal.claim(run_id), claims.append)
    except asyncio.CancelledError as cancelled:
        for claim in claims:
            await _put_back(journal, claim, stored, cancelled)
        raise


async def _put_back(
    journal: Journal, claim: Claim, stored: StoredRun, error: BaseException
) -> None:
    """Give up a claim that came to nothing, and leave the run as it was."""
    info = stored.info
    try:
        await journal.release(claim, info.status, (), info.waiting, info.error)
    except JournalError as failed:
        error.add_note(f"and the run could not be given up: {failed.message}")


def _encoder(graph: Graph[Any, Any], journal: Journal) -> Encoder:
    return Encoder(graph, secrets=journal.secrets, prompts=journal.prompts)


def _check_journal(journal: object) -> None:
    if not isinstance(journal, Journal):
        hint = ""
        if isinstance(journal, str) or hasattr(journal, "__fspath__"):
            hint = f": journal=SQLiteJournal({str(cast(Any, journal))!r})"
        raise TypeError(f"journal={journal!r} is no Journal; give one of bae.journal{hint}")
