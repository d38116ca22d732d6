"""`Map` at work: one call for each item, so many at once and no more, results in the order of the
items. Workers draw items from one iterator, so a slow item holds up nobody but its worker."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable
from time import time
from typing import Any, cast

from pydantic_core import to_json

from bae.calls import CallPlan
from bae.dataflow import Dataflow, Flight, lm_of
from bae.draft import validated
from bae.invoke import invoke
from bae.markers import Map, OpenGate
from bae.records import ItemEnded
from bae.run import Waiting
from bae.tasks import all_or_first_error


async def fan_out(flight: Flight, call: CallPlan, marker: Map, flow: Dataflow) -> list[Any]:
    """The results for all items; the first failure cancels the others and is raised as itself,
    the flight remembering which item it was."""
    shared = flight.arguments()
    over = shared.pop("")
    if not flight.inputs[0][1].given:
        over = validated(flight.place.node_type, {marker.over: over})[marker.over]
    items: Collection[Any] = tuple(in_order(over))
    place, run = flight.place, flight.place.run
    for name in call.lm_parameters:
        shared[name] = lm_of(flight)
    done = {} if run.keeper is None else run.keeper.items(place)
    results: list[Any] = [None] * len(items)
    gates: list[OpenGate] = []
    numbered = enumerate(items)

    if call.graph is None:
        parameter = call.free[0][0]

        def one(index: int, item: Any) -> Coroutine[Any, Any, Any]:
            return invoke(call, marker, {**shared, parameter: item}, flow)
    else:
        from bae.runner import run_inside

        def one(index: int, item: Any) -> Coroutine[Any, Any, Any]:
            return run_inside(call, marker, f"{place.path}[{index}]", run, (item,))

    async def worker() -> None:
        for index, item in numbered:
            if index in done:
                results[index] = done[index]
                continue
            try:
                results[index] = value = await one(index, item)
            except Waiting as waiting:
                gates.extend(waiting.gates)
                continue
            except BaseException:
                if flight.item is None:
                    flight.item = index
                raise
            await run.keep(
                ItemEnded(time(), run.path, place.step, place.node_type, place.field, index, value)
            )

    await all_or_first_error(worker for _ in range(min(marker.limit, len(items))))
    if gates:
        raise Waiting(gates)
    return results


def in_order(over: Iterable[Any]) -> Iterable[Any]:
    """The items of a collection in the order they are numbered by. A set has another one in every
    process, so its items are sorted by what they are as JSON: a run that goes on elsewhere has to
    know which of them are done."""
    return sorted(over, key=_text) if _is_set(over) else over


def _is_set(value: object) -> bool:
    return isinstance(value, set | frozenset)


def _text(item: Any) -> str:
    if isinstance(item, tuple) or _is_set(item):
        return f"[{','.join(map(_text, in_order(cast('Iterable[Any]', item))))}]"
    try:
        text = to_json(item, inf_nan_mode="constants").decode()
    except Exception:  # whatever a type does when it is written: no journal keeps such a thing
        text = repr(item)
    return f"{text} {type(item).__qualname__}"
