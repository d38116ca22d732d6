"""Forking: a new run that shares with another all that was before one of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from os import urandom
from time import time
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from bae.draft import hold
from bae.exceptions import JournalError, faults
from bae.journal.decoder import decode_run
from bae.journal.node_codec import node_codec
from bae.journal.recorder import encoder_for
from bae.journal.store import Journal, Line, StoredRun
from bae.node import Node
from bae.plan import plan_of
from bae.records import RunForked

if TYPE_CHECKING:
    from bae.graph import Graph


async def fork(
    graph: Graph[Any, Any],
    run_id: str,
    at: int,
    journal: Journal,
    new_id: str | None,
    changed: Mapping[str, Any],
) -> str:
    """A new run that shares with another all that was before its step `at`."""
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
        raise _no_step(stored, at)
    until = [each for each in stored.lines if each.n <= line.n]
    _, history = await decode_run(graph, until, partial=True)
    node = cast("Node", history.run.steps[at].node)
    other = _changed_node(node, changed, run_id)
    forked = RunForked(time(), "", at, run_id, other, tuple(changed))
    data = encoder_for(graph, journal).encode(forked)
    new_id = urandom(12).hex() if new_id is None else new_id
    upto = line.n
    await journal.fork(run_id, new_id, upto, [Line(upto, "RunForked", forked.at, "", at, data)])
    return new_id


def _no_step(stored: StoredRun, at: int) -> JournalError:
    steps = {e.step for e in stored.lines if not e.path and e.kind in ("StepStarted", "RunForked")}
    said = f"the run {stored.info.run_id} has no step {at}; it has {len(steps)}, from 0"
    fix = "give at= the number of a node in the trace"
    gates = [gate.address for gate in stored.info.waiting if gate.address.startswith(f"{at}:")]
    if gates:
        said += f". It waits for the answer to {', '.join(gates)}, and has not reached that node"
        fix = "answer the gate first, or fork at a node before it"
    return JournalError(said, run_id=stored.info.run_id, code="bae-fork-step", fix=fix)


def _changed_node(node: Node, changed: Mapping[str, Any], run_id: str) -> Node:
    cls = type(node)
    unknown = [name for name in changed if name not in cls.__pydantic_fields__]
    if unknown:
        raise JournalError(
            f"{cls.__name__} has no field {', '.join(unknown)} to change",
            run_id=run_id,
            code="bae-fork-field",
            fix=f"change one of {', '.join(cls.__pydantic_fields__)}",
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
    if not changed:
        return node
    # What stays is valid as it is: validators must not change it a second time.
    held = {n: v for n, v in node.__dict__.items() if n not in changed}
    stays = copy(node)
    hold(stays, held, node.__pydantic_extra__, node.__pydantic_fields_set__.difference(changed))
    whole = cls.__pydantic_fields__.keys() <= held.keys() | changed.keys()
    try:
        return node_codec(cls).joined(stays, changed, whole)
    except ValidationError as error:
        raise JournalError(
            f"{cls.__name__} refuses the changed fields: {'; '.join(faults(error))}",
            run_id=run_id,
            code="bae-fork-field",
            cause=error,
            fix="give values that the fields take",
        ) from error
