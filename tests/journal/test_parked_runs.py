"""Runs that wait for people: parked at a gate, answered once, by whom and when it suits them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from bae import Dep, Gate, GateError, Graph, Map, Node, OpenGate
from bae.journal import Journal
from end_node import EndNode
from journal_parts import expect_refusal


class Refund(EndNode):
    amount: int
    approved: Annotated[bool, Gate("Refund?")]


class Two(EndNode):
    first: Annotated[int, Gate("first?")]
    second: Annotated[int, Gate("second?")]


class Check(EndNode):
    word: str
    ok: Annotated[bool, Gate("spelt right?")]


class Batch(EndNode):
    words: list[str]
    checks: Annotated[list[Check], Map(Check, over="words")]


refund, two, batch = Graph(start=Refund), Graph(start=Two), Graph(start=Batch)


async def test_an_invalid_answer_is_refused_and_the_run_still_waits(journal: Journal):
    await refund.arun(Refund(amount=1), journal=journal, run_id="one")
    with pytest.raises(GateError) as caught:
        await refund.answer("one", "approved", "perhaps", journal=journal)
    assert caught.value.code == "bae-gate-invalid"
    assert "Refund.approved" in str(caught.value)
    result = await refund.answer("one", "approved", "yes", journal=journal)
    assert result.result.approved is True


async def test_an_answer_whose_validator_raises_is_refused(
    journal: Journal,
):
    def look_up(value: int) -> str:
        return {1: "one"}[value]

    class Pick(EndNode):
        number: Annotated[Any, AfterValidator(look_up), Gate("which?")]

    graph = Graph(start=Pick)
    await graph.arun(Pick(), journal=journal, run_id="one")
    with pytest.raises(GateError, match="KeyError") as caught:
        await graph.answer("one", "number", 2, journal=journal)
    assert caught.value.code == "bae-gate-invalid"
    assert (await graph.answer("one", "number", 1, journal=journal)).result.number == "one"


async def test_an_answer_for_a_removed_gate_is_refused(journal: Journal):
    def refunds(**fields: Any) -> Graph[Any, Any]:
        async def call(self: Node) -> None: ...

        names = {"__module__": __name__, "__call__": call}
        return Graph(start=type("Refund", (Node,), {**names, "__annotations__": fields}))

    before = refunds(amount=int, approved=Annotated[bool, Gate("Refund?")])
    await before.arun(before.start(amount=1), journal=journal, run_id="one")
    for graph in (
        refunds(amount=int, allowed=Annotated[bool, Gate("Refund?")]),
        refunds(amount=int, approved=Annotated[bool, Dep(lambda: True)]),
    ):
        with expect_refusal("bae-run-changed"):
            await graph.answer("one", "approved", True, journal=journal)
    assert (await before.answer("one", "approved", True, journal=journal)).result.approved


@pytest.mark.postgres
async def test_the_first_answer_wins(journal: Journal):
    await refund.arun(Refund(amount=1), journal=journal, run_id="one")
    waiting = await refund.answer("one", "approved", False, journal=journal, go_on=False)
    assert waiting.waiting == ()
    with pytest.raises(GateError) as caught:
        await refund.answer("one", "approved", True, journal=journal)
    assert caught.value.code == "bae-gate-answered"
    result = await refund.resume("one", journal=journal)
    assert result.result.approved is False
    with pytest.raises(GateError) as caught:  # nor once it was taken
        await refund.answer("one", "approved", True, journal=journal)
    assert caught.value.code == "bae-gate-answered"


async def test_an_answer_to_a_closed_gate_is_refused_with_the_open_gates(journal: Journal):
    await two.arun(Two(), journal=journal, run_id="one")
    with pytest.raises(GateError) as caught:
        await two.answer("one", "third", 1, journal=journal)
    assert caught.value.code == "bae-gate-unknown"
    assert "0:Two.first, 0:Two.second" in str(caught.value)


@pytest.mark.postgres
async def test_an_answer_during_other_work_is_read_when_that_work_ends(
    journal: Journal,
):
    reached, go = asyncio.Event(), asyncio.Event()

    async def slow() -> int:
        reached.set()
        await go.wait()
        return 7

    class Both(EndNode):
        number: Annotated[int, Dep(slow)]
        ok: Annotated[bool, Gate("ok?")]

    both = Graph(start=Both)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(both.arun(Both(), journal=journal, run_id="one"))
        await reached.wait()
        await both.answer("one", "ok", True, journal=journal)
        go.set()
    assert running.result().result == Both(number=7, ok=True)
    assert (await journal.runs())[0].status == "ended"


class Timed(EndNode):
    ok: Annotated[bool, Gate("ok?", timeout=3600)] = False


async def test_a_gate_with_a_timeout_waits_and_reports_its_deadline(journal: Journal):
    result = await Graph(start=Timed).arun(Timed(), journal=journal, run_id="one")
    (gate,) = result.waiting
    (info,) = await journal.runs()
    assert info.waiting[0].deadline == gate.deadline
    again = await Graph(start=Timed).resume("one", journal=journal)
    assert again.waiting[0].deadline == gate.deadline
    assert (await journal.runs())[0].status == "waiting"
    done = await Graph(start=Timed).answer("one", "ok", True, journal=journal)
    assert done.result.ok is True


@pytest.mark.postgres
async def test_a_gate_uses_its_default_after_its_timeout_or_fails(
    journal: Journal,
):
    class Late(EndNode):
        ok: Annotated[bool, Gate("ok?", timeout=1e-6)] = True

    class Strict(EndNode):
        ok: Annotated[bool, Gate("ok?", timeout=1e-6)]

    async def after_the_time(start: Node) -> Any:
        late = Graph(start=type(start))
        result = await late.arun(start, journal=journal, run_id=late.name)
        return await late.resume(late.name, journal=journal) if result.waiting else result

    assert (await after_the_time(Late())).result.ok is True
    with pytest.raises(GateError) as caught:
        await after_the_time(Strict())
    assert caught.value.code == "bae-gate-timeout"


async def test_a_gate_timeout_ends_the_wait_for_a_slow_answerer():
    async def never(gate: OpenGate) -> Any:
        await asyncio.Event().wait()

    class Soon(EndNode):
        ok: Annotated[bool, Gate("ok?", timeout=0.01)] = True

    result = await Graph(start=Soon).arun(Soon(), answer=never)
    assert result.result == Soon(ok=True)


def test_an_invalid_gate_timeout_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        Gate("ok?", timeout=0)


async def test_a_fork_asks_people_again(journal: Journal):
    class Ask(Node):
        amount: int

        async def __call__(self) -> Approve:
            return Approve(amount=self.amount)

    class Approve(EndNode):
        amount: int
        approved: Annotated[bool, Gate("Refund?")]

    asking = Graph(start=Ask)
    await asking.arun(Ask(amount=1), journal=journal, run_id="two")
    await asking.answer("two", "approved", True, journal=journal)
    forked = await asking.fork("two", at=0, journal=journal, amount=1000)
    result = await asking.resume(forked, journal=journal)
    assert [gate.place for gate in result.waiting] == ["Approve.approved"]


@pytest.mark.postgres
async def test_an_answer_of_another_process_wins_over_a_later_answer(journal: Journal):
    asked, go = asyncio.Event(), asyncio.Event()

    async def slowly(gate: OpenGate) -> bool:
        asked.set()
        await go.wait()
        return False

    async with asyncio.TaskGroup() as group:
        running = group.create_task(
            refund.arun(Refund(amount=1), journal=journal, run_id="one", answer=slowly)
        )
        await asked.wait()
        await refund.answer("one", "approved", True, journal=journal)
        go.set()
    assert running.result().result.approved is True


async def test_a_parked_run_that_cannot_be_resumed_stays_parked(journal: Journal):
    await refund.arun(Refund(amount=1), journal=journal, run_id="one")
    with pytest.raises(ValueError, match="max_iters"):
        await refund.answer("one", "approved", True, max_iters=-1, journal=journal)
    (info,) = await journal.runs()
    assert (info.status, info.owner) == ("waiting", None)
    assert [gate.place for gate in info.waiting] == ["Refund.approved"]
    result = await refund.resume("one", journal=journal)
    assert result.result.approved is True


@pytest.mark.postgres
async def test_a_recovering_process_leaves_running_runs_alone(journal: Journal):
    reached, go = asyncio.Event(), asyncio.Event()

    async def slow() -> int:
        reached.set()
        await go.wait()
        return 1

    class Both(EndNode):
        number: Annotated[int, Dep(slow)]
        ok: Annotated[bool, Gate("ok?")]

    both = Graph(start=Both)
    for number in range(20):
        reached.clear()
        go.clear()
        run_id = f"run {number}"
        async with asyncio.TaskGroup() as group:
            running = group.create_task(both.arun(Both(), journal=journal, run_id=run_id))
            await reached.wait()
            await both.answer(run_id, "ok", True, journal=journal, go_on=False)
            go.set()
            for _ in range(number):
                await asyncio.sleep(0)
            recovering = group.create_task(both.recover(journal=journal))
        assert all(run.error is None for run in recovering.result())
        stored = await both.resume(run_id, journal=journal)
        assert stored.result == Both(number=1, ok=True)
        assert running.result().run_id == run_id


async def test_gates_in_map_items_have_distinct_addresses(journal: Journal):
    result = await batch.arun(Batch(words=["a", "b"]), journal=journal, run_id="one")
    addresses = [gate.address for gate in result.waiting]
    assert addresses == ["0:Batch.checks[0]/0:Check.ok", "0:Batch.checks[1]/0:Check.ok"]
    with pytest.raises(GateError) as caught:
        await batch.answer("one", "Check.ok", True, journal=journal)
    assert caught.value.code == "bae-gate-ambiguous"
    assert addresses[1] in str(caught.value)
    result = await batch.answer("one", addresses[1], True, journal=journal)
    assert [gate.address for gate in result.waiting] == [addresses[0]]
    result = await batch.answer("one", "Check.ok", False, journal=journal)
    assert [check.ok for check in result.result.checks] == [False, True]
