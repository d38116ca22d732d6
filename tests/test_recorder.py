"""What is promised of the recorder that a run writes through."""

import pytest

from bae import Graph, Node
from bae.place import Place
from bae.recorder import NOTHING, Recorder, checked_store
from bae.records import RunEnded, RunStarted, StepStarted
from bae.run import Run
from bae.runner import run_graph


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


async def test_a_recorder_of_ones_own_sees_the_run_begin_every_step_and_the_end():
    seen: list[str] = []

    class Seen(Recorder):
        async def begin(self, run, graph, start):
            seen.append("begin")
            return await super().begin(run, graph, start)

        def step_starter(self, run, plans):
            start_step = super().step_starter(run, plans)

            def start(now: float):
                seen.append(f"step {run.step}")
                return start_step(now)

            return start

        async def finish(self, run, ended):
            seen.append(ended.outcome)
            await super().finish(run, ended)

    run = Run(recorder=Seen())
    result = await run_graph(graph, Count(n=1), run)
    assert seen == ["begin", "step 0", "step 1", "ended"]
    assert len(result.journal) == 4


def test_a_recorder_without_a_journal_knows_of_no_past():
    recorder, run, plan = Recorder(), Run(), graph.plans[Count]
    assert not recorder.looks_back
    assert not recorder.stores
    assert recorder.recorded_next(run) is NOTHING
    assert recorder.recorded_choice(run, plan) is None
    assert recorder.recorded_fill(run, plan, Count(n=1)) is None
    assert recorder.recorded_items(Place(), Count) == {}


def test_what_is_no_journal_is_refused_with_how_to_make_one():
    with pytest.raises(TypeError, match=r"SQLiteJournal\(.runs\.db.\)"):
        checked_store("runs.db")
    with pytest.raises(TypeError, match="is no Journal"):
        checked_store(3)
