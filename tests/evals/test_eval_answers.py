"""Cases that have answers for the gates of their runs."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from bae import BaeError, Dep, Gate, Graph, Node, OpenGate
from bae.evals import Case, evaluate
from bae.testing import ScriptedLM


class Order(Node):
    item: str

    async def __call__(self) -> Refund: ...


class Refund(Node):
    approved: Annotated[bool, Gate("Refund it?")]
    until: Annotated[date, Gate("Until when?")]
    pin: Annotated[SecretStr | None, Gate("The PIN?")] = None

    async def __call__(self) -> None: ...


orders = Graph(start=Order)


class Checking(Node):
    fine: Annotated[bool, Gate("Is it fine?")]

    async def __call__(self) -> None: ...


class Parcel(Node):
    checked: Annotated[Checking, Dep(Graph(start=Checking))]

    async def __call__(self) -> None: ...


class Sending(Node):
    item: str

    async def __call__(self) -> Parcel: ...


ANSWERS = {"Refund.approved": True, "Refund.until": "2026-02-03", "Refund.pin": "4711"}


async def asked(case: Case, graph: Graph[Any, Any] = orders, **more: Any) -> Any:
    found = await evaluate(graph, [case], {"script": ScriptedLM()}, **more)
    return found.contenders[0].cases[0]


async def test_a_case_answers_the_gates_of_its_run_with_values_of_json() -> None:
    expected = {"approved": True, "until": "2026-02-03"}
    result = await asked(Case({"item": "hat"}, expected=expected, answers=ANSWERS))
    assert (result.outcome, result.score) == ("ended", 1.0)


async def test_gates_of_a_graph_inside_are_answered_too() -> None:
    case = Case({"item": "hat"}, answers={"Checking.fine": True})
    result = await asked(case, Graph(start=Sending))
    assert result.outcome == "ended", result.error
    assert result.end["fields"]["checked"]["fine"] is True


async def test_a_gate_that_a_case_has_no_answer_for_is_asked_of_whatever_answers_all() -> None:
    met: list[str] = []

    async def answer(gate: OpenGate) -> Any:
        met.append(gate.place)
        return date(2026, 1, 1) if gate.field_name == "until" else None

    case = Case({"item": "hat"}, answers={"Refund.approved": False})
    result = await asked(case, answer=answer)
    assert result.outcome == "ended"
    assert sorted(met) == ["Refund.pin", "Refund.until"]
    left = await asked(case)
    assert left.failed
    assert "Refund.until: Until when?" in left.error
    assert '"answers": {"Refund.' in left.error


async def test_answers_are_in_the_report_but_for_secrets() -> None:
    result = await asked(Case({"item": "hat"}, answers=ANSWERS))
    assert result.asked["answers"] == {"Refund.approved": True, "Refund.until": "2026-02-03"}


async def test_answers_that_fit_no_gate_are_refused_before_anything_runs() -> None:
    for answers, says in (
        ({"Refund.aproved": True}, "did you mean Refund.approved?"),
        ({"Refund.until": "soon"}, "answers.Refund.until: "),
        ("yes", "answers: Input should be a valid dictionary"),
    ):
        with pytest.raises(BaeError) as caught:
            await asked(Case({"item": "hat"}, answers=answers))  # pyright: ignore[reportArgumentType]
        assert caught.value.code == "bae-cases-invalid"
        assert says in caught.value.message
