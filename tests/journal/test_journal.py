"""What the in-memory journal promises: an append-only list of records that can be read, sliced,
filtered by type, and summed into a `Usage`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import pytest

from bae import Dep, DepError, Graph, Node, Usage
from bae.journal import (
    ChoiceMade,
    FillEnded,
    FillStarted,
    LMUsed,
    Record,
    RunEnded,
    RunJournal,
    RunStarted,
    SourceEnded,
    StepStarted,
)
from bae.lm import metered, report_usage, tell
from bae.usage import CallEvent
from end_node import EndNode


class Noted(EndNode):
    n: int = 0


def steps(count: int) -> list[Record]:
    return [StepStarted(float(n), "", n, Noted(n=n)) for n in range(count)]


def journal_of(*records: Record) -> RunJournal:
    return RunJournal([*records])


def test_a_journal_is_a_sequence_that_can_be_indexed_sliced_and_searched():
    records = steps(5)
    journal = journal_of(*records)

    assert isinstance(journal, Sequence)
    assert journal[0] is records[0]
    assert journal[-1] is records[-1]
    assert journal[1:3] == records[1:3]
    assert journal[::-1] == records[::-1]
    assert journal[3:] == records[3:]
    assert records[2] in journal
    assert journal.index(records[2]) == 2
    assert list(reversed(journal)) == records[::-1]
    with pytest.raises(IndexError):
        journal[5]


def test_a_result_journal_is_read_only():
    journal = journal_of(*steps(2))

    for change in [
        "append",
        "__setitem__",
        "__delitem__",
        "insert",
        "pop",
        "clear",
        "remove",
        "extend",
    ]:
        assert not hasattr(journal, change)


def test_of_picks_records_of_a_type_in_order():
    one, two = steps(2)
    used = LMUsed(0.5, "", 0, "x", Usage(calls=1))
    journal = journal_of(one, used, two)

    assert journal.of(StepStarted) == [one, two]
    assert journal.of(LMUsed) == [used]
    assert journal.of(RunEnded) == []
    assert journal.of(Record) == [one, used, two]


def test_usage_is_the_sum_over_all_records():
    node = Noted()
    journal = journal_of(
        FillEnded(0, "", 0, node, 0.1, Usage(1, 10, 20, 5, 0.25)),
        ChoiceMade(0, "", 0, node, Noted, 0.1, Usage(1, 1, 2, 0, 0.25)),
        StepStarted(0, "", 0, node),
        LMUsed(0, "0:Noted.x", 0, "x", Usage(2, 3, 4, 0, 1.0)),
    )

    assert journal.usage() == Usage(4, 14, 26, 5, 1.5)


def test_nested_collects_the_nodes_of_subgraphs_by_place():
    outer, one, two = Noted(n=0), Noted(n=1), Noted(n=2)
    journal = journal_of(
        StepStarted(0, "", 0, outer),
        StepStarted(0, "0:A.x", 0, one),
        StepStarted(0, "0:A.y[1]", 0, two),
        StepStarted(0, "0:A.x", 1, two),
        FillStarted(0, "0:A.z", 1, Noted, {}),
    )

    assert journal.nested() == {"0:A.x": [one, two], "0:A.y[1]": [two]}


# What a run writes


async def test_a_failed_source_is_recorded_with_its_error():
    error = LookupError("gone")

    def fails() -> int:
        raise error

    class Fails(EndNode):
        x: Annotated[int, Dep(fails)]

    with pytest.raises(DepError) as caught:
        await Graph(start=Fails).arun(Fails())

    journal = caught.value.journal
    (ended,) = journal.of(SourceEnded)
    assert (ended.error, ended.value) == (error, None)
    last = journal[-1]
    assert isinstance(last, RunEnded)
    assert (last.outcome, last.error, last.node) == ("failed", caught.value, None)


async def test_a_subgraph_records_its_start_and_end_under_its_place():
    class Outer(EndNode):
        inner: Annotated[Noted, Dep(Noted)]

    result = await Graph(start=Outer).arun(Outer())

    assert [(r.path, r.graph, r.run_id) for r in result.journal.of(RunStarted)] == [
        ("", "Outer", result.run_id),
        ("0:Outer.inner", "Noted", result.run_id),
    ]
    assert [(r.path, r.outcome) for r in result.journal.of(RunEnded)] == [
        ("0:Outer.inner", "ended"),
        ("", "ended"),
    ]


async def test_a_cancelled_subgraph_is_recorded_as_cancelled():
    under_way = asyncio.Event()

    class Slow(Node):
        async def __call__(self) -> None:
            under_way.set()
            await asyncio.Event().wait()

    async def fails() -> int:
        await under_way.wait()
        raise LookupError

    class Outer(EndNode):
        slow: Annotated[Slow, Dep(Slow)]
        broken: Annotated[int, Dep(fails)]

    with pytest.raises(DepError) as caught:
        async with asyncio.timeout(20):
            await Graph(start=Outer).arun(Outer())

    ended = caught.value.journal.of(RunEnded)
    assert [(r.path, r.outcome) for r in ended] == [("0:Outer.slow", "cancelled"), ("", "failed")]
    assert isinstance(ended[0].error, asyncio.CancelledError)


# Usage


@pytest.mark.parametrize(
    ("one", "two"), [(None, 1.0), (1.0, None), (None, None), (None, 0.0)], ids=str
)
def test_an_unknown_cost_stays_unknown_in_a_sum(one: float | None, two: float | None):
    assert (Usage(cost=one) + Usage(cost=two)).cost is None


def test_a_usage_report_reaches_every_enclosing_meter():
    with metered() as outer:
        report_usage(Usage(calls=1))
        with metered() as inner:
            report_usage(Usage(calls=2))
        report_usage(Usage(calls=3))

    assert outer == [Usage(calls=1), Usage(calls=2), Usage(calls=3)]
    assert inner == [Usage(calls=2)]


def test_every_watcher_receives_every_call_event():
    outer: list[CallEvent] = []
    inner: list[CallEvent] = []
    with metered(outer.append), metered(), metered(inner.append):
        tell("a piece")

    assert outer == inner == ["a piece"]
