"""`Map`: the value of a field is a list with a call's result for each item of another field."""

from __future__ import annotations

import collections.abc
import typing
from collections.abc import Collection, Coroutine, Iterable, Iterator
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from bae.assignable import assignable, type_name, union_members
from bae.calls import MISSING, CallPlan, plan_bound, plan_call, siblings_of
from bae.core_schemas import converts
from bae.exceptions import DepError, Problem, an_error
from bae.hints import Names
from bae.invoke import invoke
from bae.markers import Map, OpenGate
from bae.node_proof import check_arguments, check_type, missing_return_problems, problems_of
from bae.records import ItemEnded
from bae.run import Waiting
from bae.scheduling import PendingValue
from bae.sharing import Dataflow, lm_of, sibling_values
from bae.sources import FieldPlan, SourceFacts
from bae.tasks import all_or_first_error

if TYPE_CHECKING:
    from bae.node import Node
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.resolver import Resolution
    from bae.sources import Before


class MapField(FieldPlan):
    """The plan of a field with a `Map`."""

    __slots__ = ("items_at_once", "items_of")
    kind = "map"
    is_called = True
    noun = "a Map"
    style = "items"
    began = "called for each item,"
    stored = "items"
    invalid = DepError, "bae-map-invalid"

    marker: Map

    @classmethod
    def make(cls, name: str, info: FieldInfo, marker: Map, names: Names) -> Self:
        """Plan a field, and the call for one item."""
        call = plan_call(marker.fn, names)
        field = cls(name, info, marker, call, plan_bound(call, marker))
        field.items_of, field.items_at_once = marker.over, marker.limit
        field.waits_for = (marker.over, *field.waits_for)
        return field

    def draw(self) -> dict[str, Any]:
        return {"over": self.items_of}

    @classmethod
    def sentence(cls, facts: SourceFacts) -> str:
        suffix = f"for each of {facts.items} items" if facts.items else "for one item"
        return f"from {facts.by} {suffix}"

    @classmethod
    def phrase(cls, facts: SourceFacts) -> str:
        return f"{facts.by} for {facts.items} items{facts.took}"

    @classmethod
    def row(cls, facts: SourceFacts) -> str:
        return f"{facts.by} x {facts.items}"

    def describe_in_schema(self) -> str:
        return f"{super().describe_in_schema()} for each of {self.items_of}"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        return f"{super().origin(cls, before)} for each of {self.items_of}"

    def problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Yield the problems of the call and its arguments, and types of the items or of the field
        that do not fit."""
        call = cast(CallPlan, self.call)
        yield from problems_of(call)
        yield from missing_return_problems(call)
        if assignable(call.returns, self.annotation) is True and self.annotation is not Any:
            declared = type_name(self.annotation)
            yield an_error(
                "bae-dep-type",
                f"is {declared}, but Map makes a list of what {call.name} returns",
                f"declare the field list[{declared}]",
            )
        elif call.returns is not MISSING and not converts(plan.node, self.name):
            yield from check_type(call, list[call.returns], self.annotation)
        over = plan.fields.get(self.items_of)
        if over is None:
            names = ", ".join(name for name in plan.fields if name != self.name) or "none"
            yield an_error(
                "bae-map-over",
                f"maps over {self.items_of!r}, and {plan.name} has no such field (it has: {names})",
                "name a field of the same node that holds a list",
            )
            return
        problems = [*self.argument_problems(plan)]
        if problems:
            yield from problems
            return
        element = _find_item_type(over.annotation)
        if element is None:
            yield an_error(
                "bae-map-over",
                f"maps over {self.items_of}, which is {type_name(over.annotation)} and no list",
                f"declare {self.items_of} a list, tuple, set or sequence",
            )
            return
        yield from _check_item(call, element[0], self.marker)

    def argument_problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Return the problems of bound parameters."""
        return check_arguments(plan, self)

    def start(self, at: Resolution, place: Place) -> PendingValue:
        """Wait for the items, then start the calls."""
        inputs = at.siblings([("", self.items_of), *siblings_of(self)])
        call, compute = cast(CallPlan, self.call), partial(self._map, at.flow)
        node = at.plan.node
        value = PendingValue(at.run, node, place, call.name, self.kind, compute, inputs, call)
        return at.flow.add_map(value, self)

    async def _map(self, flow: Dataflow, pending: PendingValue) -> list[Any]:
        """Compute the results for all items, in the order of the items. The first failure cancels
        the other calls and is raised by itself, not in a group. An item that waits for a person
        does not stop the other items: `Waiting` is raised after them. The workers share one
        iterator of items, so a slow item delays only its worker."""
        call, bound = cast(CallPlan, self.call), dict(siblings_of(self))
        shared = pending.arguments() | sibling_values(pending, {"": self.items_of, **bound})
        items: Collection[Any] = tuple(in_order(shared.pop("")))
        place, run, node_type = pending.place, pending.run, pending.node_type
        stored_results = run.past.items(place, node_type)
        results: list[Any] = [None] * len(items)
        gates: list[OpenGate] = []
        numbered = enumerate(items)

        if call.graph is None:
            parameter = next(name for name, _ in call.free if name not in shared)

            def compute(index: int, item: Any) -> Coroutine[Any, Any, Any]:
                # Each item has an LM of its own, which numbers its questions.
                lm = call.lm_parameters and lm_of(pending, index)
                arguments = shared | dict.fromkeys(call.lm_parameters, lm)
                return invoke(call, self.marker, {**arguments, parameter: item}, flow, run)
        else:
            from bae.runner import run_inside

            def compute(index: int, item: Any) -> Coroutine[Any, Any, Any]:
                path = str(place._replace(item=index))
                return run_inside(call, self.marker, path, run, (item,), shared)

        async def worker() -> None:
            for index, item in numbered:
                if index in stored_results:
                    results[index] = stored_results[index]
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
                await run.writer.store(
                    ItemEnded(time(), place.path, place.step, node_type, place.field, index, value)
                )

        await all_or_first_error(worker for _ in range(min(self.marker.limit, len(items))))
        if gates:
            raise Waiting(gates)
        return results


def _check_item(call: CallPlan, element: Any, marker: Map) -> Iterator[Problem]:
    """Yield a problem unless the call has exactly one free parameter, whose type fits the items."""
    if call.graph is not None and element is call.graph.start and not marker.bound:
        return
    bound = dict(marker.bound)
    free = [(name, declared) for name, declared in call.free if name not in bound]
    if len(free) != 1:
        names = ", ".join(name for name, _ in free) or "nothing"
        parameters = (
            "the required plain fields of its start" if call.graph else "its free parameters"
        )
        yield an_error(
            "bae-map-item",
            f"{call.name} must have exactly one free parameter, for the item, "
            f"but {parameters} are: {names}",
            "leave exactly one free; bind the others, or give them a Dep or a default",
        )
        return
    name, declared = free[0]
    if assignable(element, declared) is False:
        yield an_error(
            "bae-map-item",
            f"{call.name}({name}) takes {type_name(declared)}, but the items are "
            f"{type_name(element)}",
            f"annotate {name} as {type_name(element)}, or map over another field",
        )


def _find_item_type(annotation: Any) -> tuple[Any] | None:
    """Return a tuple with the type of the items of a list-like annotation. Return None for other
    annotations."""
    elements: list[Any] = []
    for member in union_members(annotation):
        if isinstance(member, typing.NewType):
            inner = _find_item_type(member.__supertype__)
            if inner is None:
                return None
            elements.extend(inner)
            continue
        origin = typing.get_origin(member) or member
        if origin is Any:
            return (Any,)
        if not isinstance(origin, type) or issubclass(
            origin, str | bytes | collections.abc.Mapping
        ):
            return None
        if not issubclass(origin, collections.abc.Iterable):
            return None
        if issubclass(origin, BaseModel) and origin.__iter__ is BaseModel.__iter__:
            return None  # iterating a model yields its fields, not items
        arguments = typing.get_args(member)
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            elements.extend(arguments)
        else:
            elements.append(arguments[0] if arguments else Any)
    return (typing.Union[tuple(elements)] if elements else Any,)  # noqa: UP007


def in_order(over: Iterable[Any]) -> Iterable[Any]:
    """Return the items in the order that numbers them. The items of a set are sorted, because the
    order of a set differs in every process: a run that resumes in another process must know which
    items are finished."""
    return sorted(over, key=text_to_sort_by) if _is_set(over) else over


def _is_set(value: object) -> bool:
    return isinstance(value, set | frozenset)


def text_to_sort_by(item: Any) -> str:
    """Return a sort key for an item. Items of equal value and type have the same key in every
    process."""
    if isinstance(item, tuple) or _is_set(item):
        return f"[{','.join(map(text_to_sort_by, in_order(cast('Iterable[Any]', item))))}]"
    try:
        text = to_json(item, inf_nan_mode="constants").decode()
    except Exception:  # a serializer may raise anything; no journal stores such a value
        text = repr(item)
    return f"{text} {type(item).__qualname__}"
