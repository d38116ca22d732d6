"""The gates that a run has reached and nobody has answered, read from its lines alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import time
from typing import Any, cast

from bae.exceptions import GateError
from bae.journal.store import RunInfo, StoredRun


@dataclass(frozen=True, slots=True)
class GateLine:
    """A gate as the lines of a run tell of it."""

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
    """All gates that a run has reached, in the order it did."""
    return [gate for gate, _ in _gates(stored)]


def _gates(stored: StoredRun) -> list[tuple[GateLine, bool]]:
    """All gates that a run has reached, and whether it has taken an answer there."""
    found: dict[tuple[str, int, str, str], tuple[GateLine, bool]] = {}
    for line in stored.lines:
        if line.kind == "GateOpened":
            said = _data(line.data)
            spot = line.path, line.step, said["node"], said["field"]
            gate = GateLine(
                said["gate"],
                line.path,
                said["node"],
                said["field"],
                said["question"],
                said.get("deadline"),
            )
            found[spot] = gate, False
        elif line.kind == "SourceEnded":
            said = _data(line.data)
            spot = line.path, line.step, said["node"], said["field"]
            if said["source"] == "gate" and "error" not in said and spot in found:
                found[spot] = found[spot][0], True
    return list(found.values())


def find_gate(stored: StoredRun, wanted: str) -> GateLine:
    """The open gate that `wanted` names: by its address, as `Node.field`, or by the field alone."""
    run_id = stored.info.run_id
    gates = _gates(stored)
    known = [(g, taken) for g, taken in gates if wanted in (g.address, g.place, g.field)]
    named = [gate for gate, _ in known]
    fitting = [gate for gate, taken in known if not taken and gate.address not in stored.answers]
    if len(fitting) == 1:
        gate = fitting[0]
        if gate.deadline is not None and gate.deadline <= time():
            raise GateError(
                f"{gate.place}: the time to answer {gate.question!r} is over",
                field_name=gate.field,
                code="bae-gate-timeout",
                fix="resume the run: it goes on with the field's default",
            )
        return gate
    if named and not fitting:
        raise GateError(
            f"{named[0].place}: {named[0].question!r} has an answer already, and the first one "
            "stands",
            field_name=named[0].field,
            code="bae-gate-answered",
            fix=f"go on with the run: graph.resume({run_id!r}, …)",
        )
    if fitting:
        listed = ", ".join(gate.address for gate in fitting)
        raise GateError(
            f"the run {run_id} waits at {len(fitting)} gates called {wanted}: {listed}",
            code="bae-gate-ambiguous",
            fix="name one of these",
        )
    waiting = ", ".join(g.address for g in open_gates(stored) if g.address not in stored.answers)
    said = f"it waits for {waiting}" if waiting else f"it waits for nobody: {standing(stored.info)}"
    raise GateError(
        f"the run {run_id} has no open gate {wanted}; {said}",
        code="bae-gate-unknown",
        fix="name an open gate by its address, as Node.field, or by the field alone",
    )


def standing(info: RunInfo) -> str:
    """How it is with a run, as a clause."""
    return {
        "running": "it is under way, or was interrupted",
        "ended": "it has ended",
        "failed": "it has failed",
        "cancelled": "it was cancelled",
    }.get(info.status, f"it is {info.status}")


def _data(text: str) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(text))
