"""Answering a gate that a run of a journal waits for. `open_gates.py` finds it, `resuming.py` goes
on with the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from bae.draft import validated
from bae.exceptions import GateError, JournalError, faults
from bae.journal.compatibility import refuse_changes
from bae.journal.decoder import graph_at, off_loop
from bae.journal.node_codec import node_codec
from bae.journal.running.open_gates import find_gate
from bae.journal.running.resuming import Options, as_it_stands, check_journal, resume
from bae.journal.store import Journal
from bae.node import Node
from bae.result import GraphResult

if TYPE_CHECKING:
    from bae.graph import Graph

T = TypeVar("T", bound=Node)


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
    check_journal(journal)
    stored = await journal.read(run_id)
    gate = find_gate(stored, field)
    around = graph_at(graph, gate.path)
    node_type = next((cls for cls in around.plans if cls.__name__ == gate.node), None)
    if node_type is None:
        await off_loop(len(stored.lines), refuse_changes, stored, graph)
        raise JournalError(
            f"{graph.name} has no node {gate.node}, where the run waits at {gate.address}",
            run_id=run_id,
            code="bae-run-changed",
            fix="answer it with the graph that the run was begun with",
        )
    try:
        validated(node_type, {gate.field: value})
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
    _refuse_secret(journal, node_type, gate.field, run_id)
    if not await journal.answer(
        run_id, gate.address, node_codec(node_type).dump_answer(gate.field, value)
    ):
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
    return await as_it_stands(graph, await journal.read(run_id), given)


def _refuse_secret(journal: Journal, node_type: type[Node], field: str, run_id: str) -> None:
    if journal.secrets or field not in node_codec(node_type).secret:
        return
    raise JournalError(
        f"{node_type.__name__}.{field} is a secret, and an answer that is given before the run "
        "goes on would have to be stored",
        run_id=run_id,
        code="bae-journal-secret",
        fix="answer it while the run is under way: graph.resume(run_id, …, answer=…); or keep the "
        "run in a journal with secrets=True",
    )
