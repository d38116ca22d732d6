"""How the values of maps and gates are made: one call for each item of a map, and a person's answer
at a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from inspect import isawaitable
from time import time
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import to_json

from bae.assignable import type_name
from bae.calls import CallPlan, siblings_of
from bae.draft import validated
from bae.exceptions import BaeError, GateError, faults
from bae.invoke import invoke
from bae.markers import Gate, Map, OpenGate
from bae.plan import FieldPlan, NodePlan
from bae.recorder import NOTHING
from bae.records import GateOpened, ItemEnded
from bae.run import GateAnswerer, Waiting
from bae.scheduling import PendingValue
from bae.sharing import Dataflow, lm_of, sibling_values
from bae.tasks import all_or_first_error

ATTEMPTS = 3
"""How often a gate is asked when the answers do not fit."""


async def map_items(
    pending: PendingValue, field: FieldPlan, marker: Map, flow: Dataflow
) -> list[Any]:
    """The results for all items, in their order; the first failure cancels the others and is raised
    as itself. Workers draw items from one iterator, so a slow item delays only its worker."""
    call, bound = cast(CallPlan, field.call), dict(siblings_of(field))
    shared = pending.arguments() | sibling_values(pending, {"": marker.over, **bound})
    items: Collection[Any] = tuple(in_order(shared.pop("")))
    place, run, node_type = pending.place, pending.run, pending.node_type
    done = run.recorder.recorded_items(place, node_type)
    results: list[Any] = [None] * len(items)
    gates: list[OpenGate] = []
    numbered = enumerate(items)

    if call.graph is None:
        parameter = next(name for name, _ in call.free if name not in shared)

        def compute(index: int, item: Any) -> Coroutine[Any, Any, Any]:
            # Each item has an LM of its own, which numbers its questions.
            lms = dict.fromkeys(call.lm_parameters, call.lm_parameters and lm_of(pending, index))
            return invoke(call, marker, {**shared, **lms, parameter: item}, flow, run)
    else:
        from bae.runner import run_inside

        def compute(index: int, item: Any) -> Coroutine[Any, Any, Any]:
            path = str(place._replace(item=index))
            return run_inside(call, marker, path, run, (item,), shared)

    async def worker() -> None:
        for index, item in numbered:
            if index in done:
                results[index] = done[index]
                continue
            try:
                results[index] = value = await compute(index, item)
            except Waiting as waiting:
                gates.extend(waiting.gates)
                continue
            except BaseException:
                if pending.failed_item is None:
                    pending.failed_item = index
                raise
            await run.recorder.store(
                ItemEnded(time(), place.path, place.step, node_type, place.field, index, value)
            )

    await all_or_first_error(worker for _ in range(min(marker.limit, len(items))))
    if gates:
        raise Waiting(gates)
    return results


async def ask_gate(
    pending: PendingValue, plan: NodePlan, field: FieldPlan, gate: Gate, known: Mapping[str, Any]
) -> Any:
    """Ask a person, again if the answer does not fit the field; without an `answer` callable, raise
    what the run waits for."""
    run, path, step = pending.run, pending.place.path, pending.place.step
    opened = OpenGate(
        gate.question, plan.node, field.name, field.annotation, dict(known), None, path, step
    )
    answered = run.recorder.recorded_answer(opened)
    if answered is not NOTHING:
        return answered
    since, now = run.recorder.opened.get(opened.address), time()
    if gate.timeout is not None:
        opened = replace(opened, deadline=(since or now) + gate.timeout)
    if since is None:
        run.recorder.write(GateOpened(now, path, step, opened))
    value = await _answer(run.answer, opened, field, gate)
    return await run.recorder.settle_answer(run, opened, value)


def in_order(over: Iterable[Any]) -> Iterable[Any]:
    """The items of a collection in the order they are numbered by. A set has another order in every
    process, so its items are sorted by their JSON: a run that is resumed in another process must
    know which of them are done."""
    return sorted(over, key=text_to_sort_by) if _is_set(over) else over


def _is_set(value: object) -> bool:
    return isinstance(value, set | frozenset)


def text_to_sort_by(item: Any) -> str:
    """A text that is the same for an equal value in every process, its type included."""
    if isinstance(item, tuple) or _is_set(item):
        return f"[{','.join(map(text_to_sort_by, in_order(cast('Iterable[Any]', item))))}]"
    try:
        text = to_json(item, inf_nan_mode="constants").decode()
    except Exception:  # whatever a type does when it is written: no journal stores such a value
        text = repr(item)
    return f"{text} {type(item).__qualname__}"


async def _answer(
    answer_with: GateAnswerer | None, opened: OpenGate, field: FieldPlan, gate: Gate
) -> Any:
    """The answer that is given in time, or the default of the field."""
    if opened.deadline is not None and opened.deadline <= time():
        return _default(opened, field, gate)
    if answer_with is None:
        raise Waiting([opened])
    bound = asyncio.timeout(None if opened.deadline is None else opened.deadline - time())
    try:
        async with bound:
            return await _ask(answer_with, opened)
    except TimeoutError:
        if not bound.expired():
            raise
    return _default(opened, field, gate)


async def _ask(answer_with: GateAnswerer, opened: OpenGate) -> Any:
    last: ValidationError | None = None
    for _ in range(ATTEMPTS):
        try:
            answering = answer_with(opened)
            if not isawaitable(answering):
                raise _error(
                    opened,
                    "the callable given as answer= is not async, so it would block the run",
                    "write `async def answer(gate): …`; ask a terminal in it with "
                    "`await asyncio.to_thread(input, gate.question)`",
                )
            answer = await answering
        except (BaeError, Waiting):  # an answerer that raises Waiting leaves the gate open
            raise
        except Exception as error:
            said = f"answering {opened.question!r} raised {type(error).__name__}"
            fix = "fix the callable given as answer=…"
            raise _error(opened, said, fix, cause=error) from error
        try:
            validated(opened.node_type, {opened.field_name: answer})
            return answer  # the node validates it once more, as it does every value
        except ValidationError as error:
            opened = replace(opened, problem="; ".join(faults(error)))
            last = error
    wanted = type_name(opened.type)
    said = f"{ATTEMPTS} answers to {opened.question!r} were not {wanted}: {opened.problem}"
    raise _error(opened, said, f"answer with a {wanted}", "bae-gate-invalid", last)


def _default(opened: OpenGate, field: FieldPlan, gate: Gate) -> Any:
    """The default of the field, when there is no answer in time."""
    if not field.required:
        return field.info.get_default(call_default_factory=True, validated_data={})
    raise _error(
        opened,
        f"no answer to {opened.question!r} within {gate.timeout:g} s",
        "give the field a default, which is used then, or the gate more time",
        "bae-gate-timeout",
    )


def _error(
    opened: OpenGate,
    said: str,
    fix: str,
    code: str = GateError.code,
    cause: Exception | None = None,
) -> GateError:
    return GateError(
        f"{opened.place}: {said}",
        gates=[opened],
        node_type=opened.node_type,
        field_name=opened.field_name,
        code=code,
        cause=cause,
        fix=fix,
    )
