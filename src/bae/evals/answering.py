"""Answers that a case has for the gates of its run, so that a graph which asks people can be
evaluated. `fitting.py` has them checked before anything runs, `case_runs.py` gives them to the
run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bae.exceptions import describe, faults
from bae.markers import Gate
from bae.plan import plan_of
from bae.run import Waiting

if TYPE_CHECKING:
    from bae.evals.cases import Case
    from bae.evals.fitting import Fitting
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.run import Answer


def answer_problems(fitting: Fitting, case: Case) -> Iterator[str]:
    """What is wrong with the answers of a case: gates that are none, values that do not fit."""
    gates = gates_of(fitting)
    for place, value in case.answers.items():
        if place not in gates:
            near = get_close_matches(place, gates, n=1)
            known = f"there are {', '.join(gates)}" if gates else "the graph has none"
            hint = f"did you mean {near[0]}?" if near else known
            yield f"answers.{place}: there is no such gate, {hint}"
            continue
        cls, name = gates[place]
        try:
            fitting.expectation(cls, {name: value})
        except ValidationError as error:
            yield from (f"answers.{cls.__name__}.{each}" for each in faults(error))
        except Exception as error:
            yield f"answers.{place}: {cls.__name__} raised {describe(error)}"


def answerer(fitting: Fitting, case: Case, otherwise: Answer | None) -> Answer | None:
    """What answers the gates of a run of a case: the case, and for gates that it has no answer to
    whatever answers those of all cases."""
    if not case.answers:
        return otherwise
    gates = {met: place for place, met in gates_of(fitting).items()}

    async def answer(gate: OpenGate) -> Any:
        met = (gate.node_type, gate.field_name)
        place = gates.get(met, "")
        if place in case.answers:
            return fitting.expectation(gate.node_type, {met[1]: case.answers[place]})[met[1]]
        if otherwise is None:
            raise Waiting([gate])
        return await otherwise(gate)

    return answer


def gates_of(fitting: Fitting) -> Mapping[str, tuple[type[Node], str]]:
    """The gates of a graph and of graphs in it, by what cases call them: `Refund.approved`."""
    return {
        f"{called}.{field.name}": (cls, field.name)
        for cls, called in fitting.names.items()
        for field in plan_of(cls, strict=True).fields.values()
        if isinstance(field.marker, Gate)
    }
