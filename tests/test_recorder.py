"""What is promised of the recorder that a run writes through."""

import pytest

from bae import Graph, Node
from bae.recorder import checked_store
from bae.records import RunEnded, RunStarted, StepStarted


class Count(Node):
    n: int

    async def __call__(self) -> "Count | None":
        return Count(n=self.n - 1) if self.n else None


graph = Graph(start=Count, end=Count)


async def test_a_run_without_a_journal_has_the_same_records_read_once_or_twice():
    result = await graph.arun(Count(n=2))
    kinds = [type(record) for record in result.journal]
    assert kinds == [RunStarted, StepStarted, StepStarted, StepStarted, RunEnded]
    assert [*result.journal] == [*result.journal]
    steps = result.journal.of(StepStarted)
    assert [(step.path, step.step, step.node) for step in steps] == [
        ("", n, node) for n, node in enumerate(result.trace)
    ]
    assert [step.at for step in steps] == sorted(step.at for step in steps)


def test_what_is_no_journal_is_refused_with_how_to_make_one():
    with pytest.raises(TypeError, match=r"SQLiteJournal\(.runs\.db.\)"):
        checked_store("runs.db")
    with pytest.raises(TypeError, match="is no Journal"):
        checked_store(3)
