"""Find the gates of stored runs, and store answers to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from bae.approvals import Approval, check_approval_scope
from bae.exceptions import GateError, JournalError, describe, faults
from bae.files import visible
from bae.graph_plan import plan_of_graph
from bae.journal.compatibility import refuse_changes
from bae.journal.decoder import graph_at, off_loop, read_history
from bae.journal.node_codec import dump_gate_answer, node_codec
from bae.journal.store import Journal, store_answer
from bae.journal.stored_runs import RunInfo, StoredRun
from bae.node import Node
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.markers import OpenGate
    from bae.result import GraphResult
    from bae.run import RunOptions

T = TypeVar("T", bound=Node)


def all_gates(stored: StoredRun) -> list[tuple[OpenGate, bool]]:
    """Return the gates that a run has reached, in order, each with True if the run has used an
    answer to the gate. The node classes are stand-ins."""
    sources = read_history(stored).gates.values()
    return [(s.gate, s.state == "done") for s in sources if s.gate is not None]


def open_gates(stored: StoredRun) -> list[OpenGate]:
    """Return the gates to which a run has not used an answer yet."""
    return [gate for gate, is_answered in all_gates(stored) if not is_answered]


def find_gate(stored: StoredRun, name: str) -> OpenGate:
    """Return the open gate with the name `name`: the gate's address, its place as `Node.field`, its
    field alone, or the id of its tool call. Raises `GateError` if not exactly one open gate has
    this name, or if an answer is already stored or comes too late."""
    run_id = stored.info.run_id
    gates = all_gates(stored)
    unanswered = [
        gate for gate, is_used in gates if not is_used and gate.address not in stored.answers
    ]
    matches = [gate for gate, _ in gates if name in gate.names]
    open_matches = [gate for gate in matches if gate in unanswered]
    if len(open_matches) > 1:
        listed = ", ".join(gate.address for gate in open_matches)
        raise GateError(
            f"the run {run_id} waits at {len(open_matches)} gates called {name}: {listed}",
            code="bae-gate-ambiguous",
            fix="name one of these",
        )
    if not matches:
        waiting = ", ".join(gate.address for gate in unanswered)
        waits = waiting or f"no answer: {describe_status(stored.info)}"
        raise GateError(
            f"the run {run_id} has no open gate {name}; it waits for {waits}",
            code="bae-gate-unknown",
            fix="name an open gate by its address, as Node.field, or by the field alone; name the "
            "gate of a tool call by the id of the call, too, as c3",
        )
    if not open_matches:
        raise _answered_error(matches[0], stored)
    gate = open_matches[0]
    if gate.deadline is not None and gate.deadline <= time():
        raise GateError(
            f"{gate.place}: the time to answer {gate.question!r} is over",
            field_name=gate.field_name,
            code="bae-gate-timeout",
            fix="resume the run: it continues "
            + ("without the answer" if gate.parameter else "with the field's default"),
        )
    return gate


def _describe_answers(gate: OpenGate) -> str:
    """Describe the answers that a gate accepts."""
    if gate.type is not Approval:
        return "what the field declares"
    return "True, False or an Approval, whose `arguments` are all that the tool is called with"


async def answer_gate(
    graph: Graph[Any, T],
    run_id: str,
    field: str,
    value: Any,
    options: RunOptions,
    journal: Journal,
    given: Mapping[str, Any] | None,
    go_on: bool,
    by: str = "",
) -> GraphResult[T]:
    """Store the answer to a gate that a run waits for. If `go_on`, resume the run. Returns the
    run's result so far."""
    from bae.journal.resume import result_of, resume

    stored = await journal.read(run_id)
    if stored.info.status == "cancelled":
        raise GateError(
            f"the run {run_id} was cancelled, and takes no answer",
            code="bae-gate-cancelled",
            fix=f"graph.resume({run_id!r}, …) continues the run, which then asks again",
        )
    gate = await off_loop(len(stored.lines), find_gate, stored, field)
    gate, text, files = await encode_answer(graph, stored, gate, value)
    is_secret = not gate.parameter and gate.field_name in node_codec(gate.node_type).secret
    if is_secret and not journal.secrets:
        raise JournalError(
            f"{gate.place} is a secret, and an answer that is given before the run is resumed "
            "would have to be stored",
            run_id=run_id,
            code="bae-journal-secret",
            fix="answer it while the run is in progress: graph.resume(run_id, …, answer=…); or use "
            "a journal with secrets=True",
        )
    if not await store_answer(journal, run_id, gate.address, text, by, files):
        raise _answered_error(gate, await journal.read(run_id))
    if go_on:
        try:
            return await resume(graph, run_id, options, journal, given)
        except JournalError as error:
            # The process that owns the run sees the answer when the run stops.
            if error.code != "bae-run-owned":
                raise
    return await result_of(graph, await journal.read(run_id), given, journal)


async def encode_answer(
    graph: Graph[Any, Any], stored: StoredRun, gate: OpenGate, value: Any
) -> tuple[OpenGate, str, dict[str, bytes]]:
    """Prepare an answer to a gate of a run. Returns the gate with the class and type of the graph,
    the answer in its stored form, and the files in the answer. Raises `GateError` if the answer
    does not fit."""
    run_id, name, field = stored.info.run_id, gate.node_type.__name__, gate.field_name
    plans = plan_of_graph(graph_at(graph, gate.path)).plans
    node_type = next((cls for cls in plans if cls.__name__ == name), None)
    plan = None if node_type is None else plan_of(node_type).fields.get(field)
    if node_type is None or plan is None or not plan.takes_answer(gate):
        await off_loop(len(stored.lines), refuse_changes, stored, graph)
        raise JournalError(
            f"{graph.name} has no gate {name}.{field}, where the run waits at {gate.address}",
            run_id=run_id,
            code="bae-run-changed",
            fix="answer it with the graph that the run was started with",
        )
    tool = "" if gate.call is None else gate.call.name
    answer_type = plan.answer_type(tool, gate.parameter.count("("))
    gate = replace(gate, node_type=node_type, type=answer_type)
    try:
        with visible(stored.files):  # the answer may refer to a file of the run
            value = plan.check_answer(node_type, gate, value)
            check_approval_scope(value, stored.info.thread)
            return gate, *dump_gate_answer(gate, value)
    except JournalError:
        raise
    except Exception as error:  # a validator may raise anything
        why = "; ".join(faults(error)) if isinstance(error, ValidationError) else describe(error)
        raise GateError(
            f"{gate.place}: the answer to {gate.question!r} does not fit: {why}",
            node_type=node_type,
            field_name=field,
            code="bae-gate-invalid",
            cause=error,
            fix=f"answer with {_describe_answers(gate)}; the run still waits",
        ) from error


def describe_status(info: RunInfo) -> str:
    """Describe the status of a run as a clause."""
    return {
        "running": "it is in progress, or was interrupted",
        "ended": "it has ended",
        "failed": "it has failed",
        "cancelled": "it was cancelled",
    }.get(info.status, f"it is {info.status}")


def _answered_error(gate: OpenGate, stored: StoredRun) -> GateError:
    run_id, who = stored.info.run_id, stored.answered_by.get(gate.address)
    by = f" by {who}" if who else ""
    return GateError(
        f"{gate.place}: {gate.question!r} has an answer already{by}, and the first one counts",
        field_name=gate.field_name,
        code="bae-gate-answered",
        fix=f"resume the run: graph.resume({run_id!r}, …); await journal.why({run_id!r}, "
        f"{gate.place!r}) shows the answer",
    )
