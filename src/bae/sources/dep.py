"""`Dep`: the value of a field is the result of a function, a generator or a graph."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic.fields import FieldInfo

from bae.assignable import union_members
from bae.calls import (
    MISSING,
    CallPlan,
    CallPlanning,
    Input,
    plan_below,
    plan_bound,
    plan_call,
    siblings_of,
)
from bae.core_schemas import converts
from bae.exceptions import DepError, Problem
from bae.hints import Names
from bae.markers import Dep
from bae.node import Node
from bae.node_proof import (
    check_arguments,
    check_scope,
    check_type,
    missing_return_problems,
    problems_of,
    unfilled_problems,
)
from bae.sources import FieldPlan

if TYPE_CHECKING:
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.resolver import Resolution
    from bae.scheduling import PendingValue


class DepField(FieldPlan):
    """A field whose value is the result of a call."""

    __slots__ = ("is_of_app", "is_shared", "wanted")
    kind = "dep"
    is_called = True
    noun = "a Dep"
    is_recallable = False
    starts_early = True
    invalid = DepError, "bae-dep-invalid"

    marker: Dep
    wanted: Input

    @classmethod
    def make(cls, name: str, info: FieldInfo, marker: Dep, names: Names) -> Self:
        """Plan a field, and its call. Without a function, the LM fills a node for it."""
        filled = _node_class(info.annotation) if marker.fn is None else None
        if filled is not None:
            from bae.graph import graph_to_fill

            marker = marker.for_graph(graph_to_fill(filled))
        call = plan_call(marker.fn, names)
        field = cls(name, info, marker, call, plan_bound(call, marker))
        field.is_shared, field.is_of_app = marker.cache, marker.scope == "app"
        field.wanted = Input(call, marker, Any, field.bound)
        return field

    @classmethod
    def plan_parameter(
        cls,
        of: CallPlan,
        name: str,
        hint: Any,
        marker: Dep,
        planning: CallPlanning,
        is_required: bool,
    ) -> None:
        """Plan a parameter that gets the result of another call."""
        problem = planning.problem_with(marker.fn)
        if problem is not None:
            of.problems.append(problem)
            return
        call = plan_below(marker.fn, planning)
        bound = plan_bound(call, marker)
        of.inputs += ((name, Input(call, marker, hint, bound)),)
        of.by_value |= call.by_value or bool(bound)

    def draw(self) -> dict[str, Any]:
        """A note that every field has a call of its own."""
        return {} if self.is_shared else {"cache": False}

    def problems(self, plan: NodePlan) -> Iterator[Problem]:
        """The problems of the call and of its arguments, and a type that does not fit."""
        call = cast(CallPlan, self.call)
        yield from problems_of(call)
        yield from check_scope(call, self.marker)
        yield from missing_return_problems(call, self.annotation)
        yield from self.argument_problems(plan)
        returned = call.returns
        if returned is not MISSING and not converts(plan.node, self.name):
            yield from check_type(call, returned, self.annotation)

    def argument_problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Parameters that nothing fills, and the problems of bound parameters."""
        yield from unfilled_problems(cast(CallPlan, self.call), self.marker)
        yield from check_arguments(plan, self)

    def start(self, at: Resolution, place: Place) -> PendingValue:
        """Start the call, or share a call that another field has asked for."""
        if not (self.bound or cast(CallPlan, self.call).by_value):
            return at.flow.dependency(self.wanted, at.run, at.plan.node, place)
        bound = at.siblings(siblings_of(self))
        return at.flow.look_up(self.wanted, at.run, at.plan.node, place, bound)


def _node_class(annotation: Any) -> type[Node] | None:
    """The node class in a type, alone or with None; None if it is another type."""
    members = [member for member in union_members(annotation) if member is not NoneType]
    one = members[0] if len(members) == 1 else None
    if not isinstance(one, type) or not issubclass(one, Node) or one is Node:
        return None
    return one
