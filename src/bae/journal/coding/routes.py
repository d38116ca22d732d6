"""From a field to what is called for it: a route such as `(place)(client)` leads from the function
behind the field to a parameter of it, and on to one of the function behind that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bae.place import Place

if TYPE_CHECKING:
    from bae.calls import CallPlan, Input
    from bae.plan import FieldPlan


def asked_at(field: FieldPlan, route: str) -> FieldPlan | Input | None:
    """What asks for a value: the field, or the parameter that `route` leads to; None where there
    is no such parameter."""
    asked: FieldPlan | Input = field
    for parameter in Place(parameter=route).parameters:
        below = None if asked.call is None else dict(asked.call.inputs).get(parameter)
        if below is None:
            return None
        asked = below
    return asked


def call_at(field: FieldPlan, route: str) -> CallPlan | None:
    """What is called there; None for a gate, and where there is no such parameter."""
    asked = asked_at(field, route)
    return None if asked is None else asked.call


def routes(call: CallPlan | None, before: str = "") -> Iterator[str]:
    """The ways to a call and to whatever it waits for."""
    if call is not None:
        yield before
        for parameter, below in call.inputs:
            yield from routes(below.call, f"{before}({parameter})")
