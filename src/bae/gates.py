"""Gates: a field whose value a person gives. `resolver.py` starts one like any other source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import isawaitable
from time import time
from typing import Any

from pydantic import ValidationError

from bae.assignable import type_name
from bae.dataflow import Flight
from bae.draft import validated
from bae.exceptions import BaeError, GateError, faults
from bae.journal.records import GateOpened
from bae.markers import Gate, OpenGate
from bae.plan import FieldPlan, NodePlan
from bae.run import Waiting

ATTEMPTS = 3
"""How often a gate is asked when the answers do not fit."""


async def ask_gate(
    flight: Flight, plan: NodePlan, field: FieldPlan, gate: Gate, known: Mapping[str, Any]
) -> Any:
    """Ask a person, again when the answer does not fit the field; without anybody to ask, say what
    the run waits for."""
    run = flight.place.run
    opened = OpenGate(
        gate.question, plan.node, field.name, field.annotation, dict(known), path=run.path
    )
    run.emit(GateOpened(time(), run.path, flight.place.step, opened))
    if run.answer is None:
        raise Waiting([opened])
    last: ValidationError | None = None
    for _ in range(ATTEMPTS):
        try:
            answering = run.answer(opened)
            if not isawaitable(answering):
                raise _sync_answer(opened)
            answer = await answering
        except BaeError:
            raise
        except Exception as error:
            raise GateError(
                f"{opened.place}: answering {gate.question!r} raised {type(error).__name__}",
                gates=[opened],
                node_type=plan.node,
                field_name=field.name,
                cause=error,
                fix="mend the callable given as answer=…",
            ) from error
        try:
            validated(plan.node, {field.name: answer})
            return answer  # the node validates it once more, as it does every value
        except ValidationError as error:
            opened = replace(opened, problem="; ".join(faults(error)))
            last = error
    raise GateError(
        f"{opened.place}: {ATTEMPTS} answers to {gate.question!r} were not "
        f"{type_name(field.annotation)}: {opened.problem}",
        gates=[opened],
        node_type=plan.node,
        field_name=field.name,
        code="bae-gate-invalid",
        cause=last,
        fix=f"answer with a {type_name(field.annotation)}",
    )


def _sync_answer(gate: OpenGate) -> GateError:
    return GateError(
        f"{gate.place}: what was given as answer= is not async, so it would hold up the run",
        gates=[gate],
        node_type=gate.node_type,
        field_name=gate.field_name,
        fix="write `async def answer(gate): …`; ask a terminal in it with "
        "`await asyncio.to_thread(input, gate.question)`",
    )
