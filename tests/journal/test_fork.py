"""A forked run shares the lines before a step with its parent, and continues separately from
there."""

from __future__ import annotations

from typing import Annotated

import pytest

from bae import Dep, Gate, Graph, JournalError, Node, Recall
from bae.journal import Journal, MemoryJournal, RunForked, StoredRun
from bae.testing import ScriptedLM
from end_node import EndNode
from journal_graphs import WORLD, get_place
from journal_parts import expect_refusal


class Ask(Node):
    message: str

    async def __call__(self) -> Mood: ...


class Mood(Node):
    place: Annotated[str, Dep(get_place)]
    mood: str

    async def __call__(self) -> Outfit:
        WORLD.do("mood")
        return Outfit(top=f"for {self.mood} in {self.place}")


class Outfit(Node):
    top: str
    message: Annotated[str, Recall(Ask)]

    async def __call__(self) -> None:
        WORLD.do("outfit")


graph = Graph(start=Ask, end=Outfit)


async def record_run(journal: Journal) -> None:
    await graph.arun(
        Ask(message="up"), ScriptedLM([{"mood": "glad"}]), journal=journal, run_id="one"
    )
    WORLD.done.clear()


@pytest.mark.postgres
async def test_a_fork_continues_from_the_changed_node(journal: Journal):
    await record_run(journal)
    before = await journal.read("one")
    new = await graph.fork("one", at=1, journal=journal, mood="glum")
    result = await graph.resume(new, ScriptedLM([]), journal=journal)
    assert await journal.read("one") == before
    assert (await journal.read(new)).info.parent == "one"
    assert result.result == Outfit(top="for glum in Bern", message="up")
    assert result.trace[:2] == [Ask(message="up"), Mood(place="Bern", mood="glum")]
    assert WORLD.done == {"mood": 1, "outfit": 1}
    assert [(r.parent, r.changed) for r in result.journal.of(RunForked)] == [("one", ("mood",))]


@pytest.mark.postgres
async def test_forks_of_a_run_are_listed_newest_first(journal: Journal):
    await record_run(journal)
    for name in ("a", "b", "c"):
        await graph.fork("one", at=1, journal=journal, new_id=name)
    await graph.fork("c", at=1, journal=journal, new_id="of-c")
    assert [info.run_id for info in await journal.forks("one")] == ["c", "b", "a"]
    assert [info.run_id for info in await journal.forks("one", limit=1)] == ["c"]
    assert [info.run_id for info in await journal.forks("c")] == ["of-c"]
    assert await journal.forks("a") == []
    with expect_refusal("bae-run-unknown"):
        await journal.forks("none")


async def test_an_unknown_step_and_an_invalid_change_are_fork_errors(
    journal: Journal,
):
    await record_run(journal)
    with expect_refusal("bae-fork-step"):
        await graph.fork("one", at=7, journal=journal)
    for change in ({"colour": "red"}, {"mood": 3}):
        with expect_refusal("bae-fork-field"):
            await graph.fork("one", at=1, journal=journal, **change)
    with expect_refusal("bae-fork-field") as raised:
        await graph.fork("one", at=1, journal=journal, run_id="two")
    assert "the id of the new run is new_id=" in (raised.value.fix or "")
    assert len(await journal.runs()) == 1


class Trip(EndNode):
    at: int
    journal: str
    changed: int


async def test_a_field_named_like_a_parameter_of_fork_can_be_changed(journal: Journal):
    trips = Graph(start=Trip)
    await trips.arun(Trip(at=1, journal="red", changed=0), journal=journal, run_id="trip")
    other = {"at": 2, "journal": "blue", "changed": 1}
    new = await trips.fork("trip", at=0, journal=journal, changed=other)
    assert (await trips.resume(new, journal=journal)).trace == [Trip.model_validate(other)]


class Refund(EndNode):
    amount: int
    approved: Annotated[bool, Gate("May I?")]


async def test_a_fork_at_the_node_that_a_run_waits_for_reports_the_gate(journal: Journal):
    refunds = Graph(start=Refund)
    await refunds.arun(Refund(amount=1), journal=journal, run_id="refund")
    with pytest.raises(JournalError, match=r"the answer to 0:Refund\.approved") as caught:
        await refunds.fork("refund", at=0, journal=journal)
    assert caught.value.code == "bae-fork-step"


async def test_recover_does_not_read_runs_that_only_wait():
    class Watched(MemoryJournal):
        async def read(self, run_id: str) -> StoredRun:
            reads.append(run_id)
            return await super().read(run_id)

    reads: list[str] = []
    refunds, journal = Graph(start=Refund), Watched()
    for number in range(5):
        await refunds.arun(Refund(amount=number), journal=journal, run_id=f"r{number}")
    await refunds.answer("r3", "approved", True, journal=journal, go_on=False)
    reads.clear()
    done = await refunds.recover(journal=journal, concurrency=2)
    assert [run.run_id for run in done] == ["r3"]
    assert set(reads) == {"r3"}
    with pytest.raises(ValueError, match="concurrency=0"):
        await refunds.recover(journal=journal, concurrency=0)


@pytest.mark.postgres
async def test_a_redacted_field_is_reported_when_a_fork_needs_it(journal: Journal):
    refunds = Graph(start=Refund)
    await refunds.arun(Refund(amount=1), journal=journal, run_id="refund")
    await journal.redact("refund", "Refund.amount")
    with pytest.raises(JournalError, match=r"needs Refund\.amount.* or redacted") as caught:
        await refunds.answer("refund", "approved", True, journal=journal)
    assert caught.value.code == "bae-journal-secret"
    assert 'given={"Refund.amount": …}' in (caught.value.fix or "")
