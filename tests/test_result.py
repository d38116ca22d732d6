"""What a `GraphResult` promises: the nodes in order, the last node, the cost, the open gates, and
the journal behind them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from bae import LM, BaeError, Dep, Gate, GateError, Graph, Map, Node, Usage
from bae.journal import LMUsed, RunEnded, RunJournal, RunStarted, StepStarted
from bae.lm import report_usage
from bae.testing import ScriptedLM
from bounded import error_from, run
from end_node import EndNode, leading_to
from toy_backend import FourMethods


class End(EndNode):
    text: str


Middle = leading_to(End, name="Middle", n=int)


class Start(leading_to(Middle)):  # type: ignore[misc]
    topic: str = "t"


class Other(EndNode): ...


def script() -> ScriptedLM:
    return ScriptedLM([{"n": 1}, {"text": "done"}])


async def test_the_trace_has_every_node_in_order():
    start = Start()
    result = await Graph(start=Start, end=End).arun(start, script())

    assert [type(node) for node in result.trace] == [Start, Middle, End]
    assert repr(result) == "<GraphResult Start -> Middle -> End>"
    assert result.trace[0] is start
    assert result.result is result.trace[-1]
    assert result.result.text == "done"


async def test_runs_of_a_graph_have_their_own_ids_traces_and_journals():
    graph = Graph(start=Start)
    results = await asyncio.gather(
        *(graph.arun(Start(), ScriptedLM([{"n": n}, {"text": "x"}])) for n in range(50))
    )

    assert [result.trace[1].n for result in results] == [*range(50)]
    assert len({result.run_id for result in results}) == 50
    for result in results:
        assert [r.node for r in result.journal.of(StepStarted)] == result.trace
        assert result.journal.of(RunStarted)[0].run_id == result.run_id


async def test_the_journal_of_a_result_does_not_depend_on_its_trace():
    start = Start()
    result = await Graph(start=Start, name="a name").arun(start, script())
    trace = [*result.trace]
    result.trace.clear()

    assert isinstance(result.journal, RunJournal)
    first, last = result.journal[0], result.journal[-1]
    assert isinstance(first, RunStarted)
    assert (first.graph, first.node, first.path) == ("a name", start, "")
    assert isinstance(last, RunEnded)
    assert (last.outcome, last.node, last.error) == ("ended", trace[-1], None)
    assert [record.node for record in result.journal.of(StepStarted)] == trace
    assert [record.step for record in result.journal.of(StepStarted)] == [0, 1, 2]
    assert [*result.journal] == [*result.journal]  # however often it is read
    times = [record.at for record in result.journal]
    assert times == sorted(times)


# Usage


async def test_usage_counts_every_llm_call():
    lm = ScriptedLM([Middle, {"n": "not a number"}, {"n": 1}, {"text": "x"}])

    assert (await run(Forks(), lm)).usage == Usage(calls=4, attempts=4)


class Metered(FourMethods):
    """An LM whose every call has a price."""

    def __init__(self, cost: float | None = 0.5) -> None:
        self.price = Usage(1, 10, 5, 2, cost)

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        report_usage(self.price)
        return target(**resolved, **{"n": 1} if target is Middle else {"text": "x"})

    async def choose_type(self, types: Any, context: Any) -> Any:
        report_usage(self.price)
        return types[0]


async def test_an_unknown_cost_of_one_call_makes_the_total_unknown():
    result = await Graph(start=Start).arun(Start(), Metered(cost=None))

    assert result.usage == Usage(2, 20, 10, 4, None)


async def test_llm_calls_of_bodies_deps_maps_and_subgraphs_are_counted_once():
    async def dep(lm: LM) -> int:
        return (await lm.make(Other(), Middle)).n

    def sync_dep(lm: LM) -> int:
        report_usage(Usage(1, 10, 5, 2, 0.5))  # in a worker thread
        return 1

    async def item(x: int, lm: LM) -> int:
        return (await lm.make(Other(), Middle)).n

    class Begin(Node):
        one: Annotated[int, Dep(dep)]
        two: Annotated[int, Dep(sync_dep)]
        items: list[int]
        mapped: Annotated[list[int], Map(item, over="items")]
        inner: Annotated[End, Dep(Start)]

        async def __call__(self, lm: LM) -> End:
            await lm.make(self, Middle)
            return await lm.make(self, End)

    result = await Graph(start=Begin).arun(Begin(items=[1, 2, 3]), Metered())

    # One each for the functions, one an item, two for the graph inside and two in the body.
    assert result.usage.calls == 1 + 1 + 3 + 2 + 2
    assert result.usage.cost == 9 * 0.5
    assert [str(record.asker) for record in result.journal.of(LMUsed)].count("Begin.__call__") == 1


Forks = leading_to(Middle, End, name="Forks")


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        ([LookupError()], 1),
        ([Middle, LookupError()], 2),
        ([Middle, {"n": "x"}, {"n": "y"}, {"n": "z"}], 4),
    ],
    ids=["choosing", "filling", "validating"],
)
async def test_usage_before_a_failure_of_the_llm_is_counted(script: Any, calls: int):
    error = await error_from(BaeError, Graph(start=Forks).arun(Forks(), ScriptedLM(script)))

    assert error.journal.usage().calls == calls


# Waiting


class Asking(Node):
    async def __call__(self) -> Approval:
        return Approval(amount=3)


class Approval(EndNode):
    amount: int
    fine: Annotated[bool, Gate("is it fine?")]
    who: Annotated[str, Gate("who says so?")]


async def test_a_waiting_run_has_no_result_and_explains_why():
    result = await run(Asking())
    with pytest.raises(GateError) as caught:
        result.result

    error = caught.value
    assert error.code == "bae-gate-unanswered"
    assert error.gates == result.waiting
    assert "Approval.fine: is it fine?; Approval.who: who says so?" in error.message
    assert "answer=…" in (error.fix or "")
    assert (error.trace, error.journal) == (result.trace, result.journal)
    assert error.run_id == result.run_id
    assert repr(result) == "<GraphResult Asking waiting for Approval.fine, Approval.who>"
