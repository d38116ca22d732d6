"""Gates: a field whose value a person gives. `resolver.py` starts one like any other source."""

from __future__ import annotations

import asyncio
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
from bae.markers import Gate, OpenGate
from bae.plan import FieldPlan, NodePlan
from bae.records import GateOpened
from bae.run import NOTHING, Answer, Waiting

ATTEMPTS = 3
"""How often a gate is asked when the answers do not fit."""


async def ask_gate(
    flight: Flight, plan: NodePlan, field: FieldPlan, gate: Gate, known: Mapping[str, Any]
) -> Any:
    """Ask a person, again when the answer does not fit the field; without anybody to ask, say what
    the run waits for."""
    run, step = flight.place.run, flight.place.step
    opened = OpenGate(
        gate.question, plan.node, field.name, field.annotation, dict(known), None, run.path, step
    )
    since = None
    if run.keeper is not None:
        answered = run.keeper.answered(opened, plan)
        if answered is not NOTHING:
            return answered
        since = run.keeper.opened(opened)
    now = time()
    if gate.timeout is not None:
        opened = replace(opened, deadline=(since or now) + gate.timeout)
    if since is None:
        run.emit(GateOpened(now, run.path, step, opened))
    value = await _answer(run.answer, opened, plan, field, gate)
    if run.keeper is not None:
        value = await run.keeper.settle(run, opened, plan, value)
    return value


async def _answer(
    answer_with: Answer | None, opened: OpenGate, plan: NodePlan, field: FieldPlan, gate: Gate
) -> Any:
    """What is answered in time, or the default of the field."""
    if opened.deadline is not None and opened.deadline <= time():
        return _default(opened, field, gate)
    if answer_with is None:
        raise Waiting([opened])
    if opened.deadline is None:
        return await _ask(answer_with, opened, plan, field)
    bound = asyncio.timeout(opened.deadline - time())
    try:
        async with bound:
            return await _ask(answer_with, opened, plan, field)
    except TimeoutError:
        if not bound.expired():
            raise
    return _default(opened, field, gate)


async def _ask(answer_with: Answer, opened: OpenGate, plan: NodePlan, field: FieldPlan) -> Any:
    last: ValidationError | None = None
    for _ in range(ATTEMPTS):
        try:
            answering = answer_with(opened)
            if not isawaitable(answering):
                raise _sync_answer(opened)
            answer = await answering
        except (BaeError, Waiting):  # an answerer that raises Waiting leaves the gate open
            raise
        except Exception as error:
            raise GateError(
                f"{opened.place}: answering {opened.question!r} raised {type(error).__name__}",
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
        f"{opened.place}: {ATTEMPTS} answers to {opened.question!r} were not "
        f"{type_name(field.annotation)}: {opened.problem}",
        gates=[opened],
        node_type=plan.node,
        field_name=field.name,
        code="bae-gate-invalid",
        cause=last,
        fix=f"answer with a {type_name(field.annotation)}",
    )


def _default(opened: OpenGate, field: FieldPlan, gate: Gate) -> Any:
    """What stands when nobody has answered in time."""
    if not field.required:
        return field.info.get_default(call_default_factory=True, validated_data={})
    raise GateError(
        f"{opened.place}: nobody answered {opened.question!r} within {gate.timeout:g} s",
        gates=[opened],
        node_type=opened.node_type,
        field_name=opened.field_name,
        code="bae-gate-timeout",
        fix="give the field a default, which stands then, or the gate more time",
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
