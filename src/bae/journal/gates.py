"""Gates of stored runs: which ones are open, and answering one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from bae.draft import validated
from bae.exceptions import GateError, JournalError, faults
from bae.journal.compatibility import refuse_changes
from bae.journal.decoder import graph_at, off_loop
from bae.journal.node_codec import node_codec
from bae.journal.store import Journal, RunInfo, StoredRun
from bae.node import Node

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.result import GraphResult
    from bae.run import RunOptions

T = TypeVar("T", bound=Node)


@dataclass(frozen=True, slots=True)
class GateLine:
    """A gate as the lines of a run have it."""

    address: str
    path: str
    node: str
    field: str
    question: str
    deadline: float | None

    @property
    def place(self) -> str:
        """The field the answer is for, as `Node.field`."""
        return f"{self.node}.{self.field}"


def open_gates(stored: StoredRun) -> list[GateLine]:
    """The gates of a run that have no answer yet, in the order it reached them."""
    return [gate for gate, taken in _gates(stored) if not taken]


def all_gates(stored: StoredRun) -> list[GateLine]:
    """All gates that a run has reached, in order."""
    return [gate for gate, _ in _gates(stored)]


def _gates(stored: StoredRun) -> list[tuple[GateLine, bool]]:
    """All gates that a run has reached, and whether it has taken an answer there."""
    found: dict[tuple[str, int, str, str], tuple[GateLine, bool]] = {}
    for line in stored.lines:
        if line.kind not in ("GateOpened", "SourceEnded"):
            continue
        data: dict[str, Any] = json.loads(line.data)
        node, field = data["node"], data["field"]
        spot = line.path, line.step, node, field
        if line.kind == "GateOpened":
            asked = data["question"], data.get("deadline")
            found[spot] = GateLine(data["gate"], line.path, node, field, *asked), False
        elif data["source"] == "gate" and "error" not in data and spot in found:
            found[spot] = found[spot][0], True
    return list(found.values())


def find_gate(stored: StoredRun, wanted: str) -> GateLine:
    """The open gate that `wanted` names: by its address, as `Node.field`, or by the field alone."""
    run_id = stored.info.run_id
    gates = _gates(stored)
    known = [(g, taken) for g, taken in gates if wanted in (g.address, g.place, g.field)]
    fitting = [gate for gate, taken in known if not taken and gate.address not in stored.answers]
    if len(fitting) > 1:
        listed = ", ".join(gate.address for gate in fitting)
        raise GateError(
            f"the run {run_id} waits at {len(fitting)} gates called {wanted}: {listed}",
            code="bae-gate-ambiguous",
            fix="name one of these",
        )
    if fitting:
        gate = fitting[0]
        if gate.deadline is not None and gate.deadline <= time():
            raise GateError(
                f"{gate.place}: the time to answer {gate.question!r} is over",
                field_name=gate.field,
                code="bae-gate-timeout",
                fix="resume the run: it continues with the field's default",
            )
        return gate
    if known:
        raise _answered(known[0][0], run_id)
    waiting = ", ".join(g.address for g in open_gates(stored) if g.address not in stored.answers)
    waits = waiting or f"no answer: {describe_status(stored.info)}"
    raise GateError(
        f"the run {run_id} has no open gate {wanted}; it waits for {waits}",
        code="bae-gate-unknown",
        fix="name an open gate by its address, as Node.field, or by the field alone",
    )


async def answer_gate(
    graph: Graph[Any, T],
    run_id: str,
    field: str,
    value: Any,
    options: RunOptions,
    journal: Journal,
    given: Mapping[str, Any] | None,
    go_on: bool,
) -> GraphResult[T]:
    """Store the answer to a gate that a run waits for, and resume the run if `go_on`."""
    from bae.journal.resume import result_of, resume

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
            fix="answer it with the graph that the run was started with",
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
        raise _answered(gate, run_id, node_type)
    if go_on:
        try:
            return await resume(graph, run_id, options, journal, given)
        except JournalError as error:
            # The process that owns it sees the answer when the run stops.
            if error.code != "bae-run-owned":
                raise
    return await result_of(graph, await journal.read(run_id), given)


def describe_status(info: RunInfo) -> str:
    """The status of a run, as a clause."""
    return {
        "running": "it is in progress, or was interrupted",
        "ended": "it has ended",
        "failed": "it has failed",
        "cancelled": "it was cancelled",
    }.get(info.status, f"it is {info.status}")


def _answered(gate: GateLine, run_id: str, node_type: type[Node] | None = None) -> GateError:
    return GateError(
        f"{gate.place}: {gate.question!r} has an answer already, and the first one counts",
        node_type=node_type,
        field_name=gate.field,
        code="bae-gate-answered",
        fix=f"resume the run: graph.resume({run_id!r}, …); await journal.why({run_id!r}, "
        f"{gate.place!r}) shows the answer",
    )


def _refuse_secret(journal: Journal, node_type: type[Node], field: str, run_id: str) -> None:
    if journal.secrets or field not in node_codec(node_type).secret:
        return
    raise JournalError(
        f"{node_type.__name__}.{field} is a secret, and an answer that is given before the run "
        "is resumed would have to be stored",
        run_id=run_id,
        code="bae-journal-secret",
        fix="answer it while the run is in progress: graph.resume(run_id, …, answer=…); or use a "
        "journal with secrets=True",
    )
