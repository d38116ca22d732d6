"""A run with a journal resumes where it stopped, for any reason: recorded work is not repeated, and
work in progress is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest

from bae import (
    BaeLMError,
    Dep,
    Graph,
    LimitError,
    Map,
    Node,
    NodeError,
    OpenGate,
)
from bae.exceptions import DepError
from bae.journal import Journal, RunResumed, StepStarted
from bae.testing import ScriptedLM
from journal_graphs import (
    WORLD,
    Outfit,
    Packed,
    Refund,
    Stay,
    get_place,
    get_weather,
    look_up,
    refund,
)
from journal_parts import expect_refusal


class Ask(Node):
    message: str

    async def __call__(self) -> Think:
        WORLD.do("ask")
        return Think(words=self.message.split())


class Think(Node):
    words: list[str]
    weather: Annotated[str, Dep(get_weather)]
    found: Annotated[list[str], Map(look_up, over="words")]

    async def __call__(self) -> Outfit | Stay: ...


graph = Graph(start=Ask, end=(Packed, Stay))
EVERYTHING = {"place", "weather", "ask", "outfit", "packed", "look up a", "look up b"}


def script() -> ScriptedLM:
    return ScriptedLM([Outfit, {"top": "a coat"}])


@pytest.mark.postgres
@pytest.mark.parametrize("trouble", ["place", "weather", "look up b", "ask", "outfit", "packed"])
async def test_a_failed_run_resumes_and_repeats_no_work(journal: Journal, trouble: str):
    lm = script()
    WORLD.failing.add(trouble)
    with pytest.raises((DepError, NodeError)) as caught:
        await graph.arun(Ask(message="a b"), lm, journal=journal, run_id="one")
    assert caught.value.run_id == "one"
    (info,) = await journal.runs()
    assert (info.status, info.owner) == ("failed", None)
    assert trouble in info.error or "raised Trouble" in info.error

    WORLD.mend()
    result = await graph.resume("one", lm, journal=journal)

    assert result.result == Packed(item="a coat", place="Bern")
    assert dict(WORLD.done) == dict.fromkeys(EVERYTHING, 1)
    names = [type(node).__name__ for node in result.trace]
    assert names == ["Ask", "Think", "Outfit", "Packed"]
    assert result.trace[2] == Outfit(message="a b", top="a coat")
    steps = [record.step for record in result.journal.of(StepStarted)]
    assert steps == [0, 1, 2, 3]
    assert len(result.journal.of(RunResumed)) == 1
    (info,) = await journal.runs()
    assert (info.status, info.error) == ("ended", "")


async def test_the_node_limit_includes_nodes_before_a_resume(journal: Journal):
    class Count(Node):
        number: int

        async def __call__(self) -> Count | None:
            WORLD.do(f"count {self.number}")
            return Count(number=self.number + 1) if self.number < 5 else None

    counting = Graph(start=Count)
    with pytest.raises(LimitError):
        await counting.arun(Count(number=0), max_iters=3, journal=journal, run_id="one")
    with pytest.raises(LimitError):
        await counting.resume("one", max_iters=3, journal=journal)
    with pytest.raises(LimitError):
        await counting.resume("one", max_iters=5, journal=journal)
    result = await counting.resume("one", max_iters=6, journal=journal)
    assert [node.number for node in result.trace] == [0, 1, 2, 3, 4, 5]
    assert dict(WORLD.done) == {f"count {n}": 1 for n in range(6)}


async def test_an_unknown_run_id_and_a_taken_run_id_are_refused(journal: Journal):
    with expect_refusal("bae-run-unknown"):
        await graph.resume("nobody", script(), journal=journal)
    await graph.arun(Ask(message="a b"), script(), journal=journal, run_id="one")
    with expect_refusal("bae-run-exists") as caught:
        await graph.arun(Ask(message="a b"), script(), journal=journal, run_id="one")
    assert "resume" in str(caught.value)


async def test_a_streamed_run_is_recorded_in_its_journal(journal: Journal):
    async with graph.stream(Ask(message="a b"), script(), journal=journal, run_id="one") as records:
        seen = [record async for record in records]
    assert records.result.result.item == "a coat"
    stored = await journal.read("one")
    assert stored.info.status == "ended"
    kinds = [line.kind for line in stored.lines]
    told = [type(record).__name__ for record in seen if record.stored]
    assert kinds == told


async def test_dependency_values_of_the_caller_are_recorded(journal: Journal):
    fakes = {get_place: "Ulm"}
    WORLD.failing.add("packed")
    with pytest.raises(NodeError):
        await graph.arun(
            Ask(message="a b"), script(), journal=journal, run_id="one", dep_cache={**fakes}
        )
    WORLD.mend()
    result = await graph.resume("one", journal=journal)  # which asks an LM for no more
    assert result.result == Packed(item="a coat", place="Ulm")
    assert WORLD.done["place"] == 0


async def test_an_object_that_is_not_a_journal_is_refused_with_a_fix(tmp_path: Path):
    with pytest.raises(TypeError, match=r"SQLiteJournal\('runs.db'\)"):
        await graph.arun(Ask(message="a"), script(), journal="runs.db")  # type: ignore[arg-type]


@pytest.mark.postgres
async def test_recover_resumes_forked_and_answered_runs(journal: Journal):
    await refund.arun(Refund(amount=1), journal=journal, run_id="parked")
    await refund.arun(Refund(amount=2), journal=journal, run_id="answered")
    await refund.answer("answered", "approved", True, journal=journal, go_on=False)
    await refund.arun(Refund(amount=3), journal=journal, run_id="done", answer=_yes)
    forked = await refund.fork("done", at=0, journal=journal, amount=4)
    recovered = await refund.recover(journal=journal)
    assert {run.run_id for run in recovered} == {forked, "answered"}
    amounts = {run.run_id: run.result and run.result.trace[-1].amount for run in recovered}
    assert amounts == {forked: 4, "answered": 2}
    assert await refund.recover(journal=journal) == []


async def _yes(gate: OpenGate) -> bool:
    return True


async def test_recover_returns_a_run_that_fails_again_with_its_error(
    journal: Journal,
):
    await refund.arun(Refund(amount=3), journal=journal, run_id="done", answer=_yes)
    forked = await refund.fork("done", at=0, journal=journal)
    WORLD.failing.add("refund")
    (recovered,) = await refund.recover(journal=journal)
    assert recovered.run_id == forked
    assert isinstance(recovered.error, NodeError)
    assert await refund.recover(journal=journal) == []


@pytest.mark.postgres
async def test_a_single_call_starts_or_resumes_a_run(journal: Journal):
    WORLD.failing.add("outfit")
    lm = script()
    for _ in range(2):
        with pytest.raises(NodeError):
            await graph.arun(Ask(message="a b"), lm, journal=journal, run_id="one", resume=True)
    WORLD.mend()
    for _ in range(2):
        result = await graph.arun(
            Ask(message="a b"), lm, journal=journal, run_id="one", resume=True
        )
        assert result.result == Packed(item="a coat", place="Bern")
    assert dict(WORLD.done) == dict.fromkeys(EVERYTHING, 1)


async def test_a_run_that_fails_for_lack_of_an_lm_can_be_resumed_with_an_lm(
    journal: Journal,
):
    WORLD.failing.add("weather")
    with pytest.raises(DepError):
        await graph.arun(Ask(message="a b"), script(), journal=journal, run_id="one")
    WORLD.mend()
    with pytest.raises(BaeLMError):
        await graph.resume("one", journal=journal)
    with pytest.raises(BaeLMError):
        await graph.resume("one", "no-such-lm", journal=journal)
    assert (await journal.runs())[0].owner is None
    result = await graph.resume("one", script(), journal=journal)
    assert result.result == Packed(item="a coat", place="Bern")


async def test_a_run_that_was_answered_without_a_resume_has_no_result(journal: Journal):
    await refund.arun(Refund(amount=3), journal=journal, run_id="one")
    seen = await refund.answer("one", "approved", True, journal=journal, go_on=False)
    with expect_refusal("bae-run-unfinished"):
        seen.result


@pytest.mark.postgres
async def test_a_run_of_another_graph_is_refused(journal: Journal):
    await graph.arun(Ask(message="a b"), script(), journal=journal, run_id="one")
    with expect_refusal("bae-run-graph"):
        await refund.resume("one", journal=journal)
