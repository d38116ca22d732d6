"""`Dep`: a function, a generator or a graph computes the value of a field."""

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
    """The plan of a field with a `Dep`."""

    __slots__ = ("dep_input", "is_of_app", "is_shared")
    kind = "dep"
    is_called = True
    noun = "a Dep"
    is_recallable = False
    starts_early = True
    invalid = DepError, "bae-dep-invalid"

    marker: Dep
    dep_input: Input

    @classmethod
    def make(cls, name: str, info: FieldInfo, marker: Dep, names: Names) -> Self:
        """Plan a field and its call. For `Dep()` without a function, the call has the LLM fill a
        node of the field's class."""
        node_class = _find_node_class(info.annotation) if marker.fn is None else None
        if node_class is not None:
            from bae.graph import graph_to_fill

            marker = marker.for_graph(graph_to_fill(node_class))
        call = plan_call(marker.fn, names)
        field = cls(name, info, marker, call, plan_bound(call, marker))
        field.is_shared, field.is_of_app = marker.cache, marker.scope == "app"
        field.dep_input = Input(call, marker, Any, field.bound)
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
        """Return `cache` only if each field has a call of its own."""
        return {} if self.is_shared else {"cache": False}

    def problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Yield the problems of the call and its arguments, and a return type that does not fit."""
        call = cast(CallPlan, self.call)
        yield from problems_of(call)
        yield from check_scope(call, self.marker)
        yield from missing_return_problems(call, self.annotation)
        yield from self.argument_problems(plan)
        returned = call.returns
        if returned is not MISSING and not converts(plan.node, self.name):
            yield from check_type(call, returned, self.annotation)

    def argument_problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Yield the parameters that nothing fills, and the problems of bound parameters."""
        yield from unfilled_problems(cast(CallPlan, self.call), self.marker)
        yield from check_arguments(plan, self)

    def start(self, at: Resolution, place: Place) -> PendingValue:
        """Start the call, or share a call that was started for another field or parameter."""
        if not (self.bound or cast(CallPlan, self.call).by_value):
            return at.flow.dependency(self.dep_input, at.run, at.plan.node, place)
        bound = at.siblings(siblings_of(self))
        return at.flow.look_up(self.dep_input, at.run, at.plan.node, place, bound)


def _find_node_class(annotation: Any) -> type[Node] | None:
    """Return the node class in an annotation such as `Facts` or `Facts | None`. Return None for any
    other annotation."""
    members = [member for member in union_members(annotation) if member is not NoneType]
    node_class = members[0] if len(members) == 1 else None
    if not isinstance(node_class, type) or not issubclass(node_class, Node) or node_class is Node:
        return None
    return node_class
