"""The timeline of a run: what ran when, found in its lines alone. What must hold of every run is
tried on random graphs that are interrupted anywhere."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bae import BaeError, Dep, Gate, Graph, Map, Node
from bae.journal import Line, MemoryJournal, StoredRun
from bae.journal.report import Timeline, TimelineEntry, report_run, timeline
from bae.testing import ScriptedLM
from bounded import BOUND
from end_node import EndNode
from random_graphs import Made, number, random_graphs

pytestmark = pytest.mark.once


def works(found: Timeline) -> dict[str, TimelineEntry]:
    """The work of a run by kind and place."""
    return {f"{work.kind} {work.place}": work for work in found.every()}


def overlap(one: TimelineEntry, other: TimelineEntry) -> bool:
    return one.start < other.end and other.start < one.end


# --- what ran when -------------------------------------------------------------------------------


async def test_only_concurrent_dependencies_overlap_in_the_timeline():
    both = asyncio.Barrier(2)

    async def get_place() -> str:
        await both.wait()  # neither ends before the other has begun
        return "Oslo"

    async def get_weather(place: Annotated[str, Dep(get_place)]) -> str:
        return f"rain in {place}"

    async def get_calendar() -> str:
        await both.wait()
        return "dentist"

    class Day(EndNode):
        weather: Annotated[str, Dep(get_weather)]
        calendar: Annotated[str, Dep(get_calendar)]

    journal = MemoryJournal()
    await Graph(start=Day).arun(Day.model_construct(), journal=journal, run_id="x")
    works_by_place = works(timeline(await journal.read("x")))
    place, weather = works_by_place["dep 0:Day.weather(place)"], works_by_place["dep 0:Day.weather"]
    assert overlap(place, works_by_place["dep 0:Day.calendar"])
    assert place.end <= weather.start
    assert (place.name, weather.name) == ("get_place", "get_weather")
    assert {work.outcome for work in works_by_place.values()} == {"done"}


async def test_the_timeline_separates_lm_work_from_body_work():
    class Middle(Node):
        text: str

        async def __call__(self) -> Last:
            return Last()

    class Last(Node):
        async def __call__(self) -> None: ...

    class First(Node):
        async def __call__(self) -> Middle | Last: ...

    journal = MemoryJournal()
    lm = ScriptedLM(["Middle", {"text": "a"}])
    graph = Graph(start=First)
    await graph.arun(First(), lm, journal=journal, run_id="x")
    run_timeline = timeline(await journal.read("x"))
    assert [f"{work.kind} {work.place} {work.name}" for work in run_timeline.every()] == [
        "node 0:First First",
        "node 1:Middle Middle",
        "choice 1:Middle Middle",
        "fill 1:Middle Middle",
        "body 1:Middle Middle",
        "node 2:Last Last",
    ]
    assert sum(work.usage.calls for work in run_timeline.every()) == 2


async def test_work_released_after_the_failure_of_other_work_is_cancelled():
    begun = asyncio.Event()

    async def forever() -> int:
        begun.set()
        await asyncio.Event().wait()
        return 1

    async def broken() -> int:
        await begun.wait()
        raise ValueError("no")

    class Day(EndNode):
        a: Annotated[int, Dep(forever)]
        b: Annotated[int, Dep(broken)]

    journal = MemoryJournal()
    with pytest.raises(BaeError):
        await Graph(start=Day).arun(Day.model_construct(), journal=journal, run_id="x")
    works_by_place = works(timeline(await journal.read("x")))
    assert works_by_place["dep 0:Day.a"].outcome == "cancelled"
    assert works_by_place["dep 0:Day.b"].outcome == "failed"
    assert works_by_place["dep 0:Day.b"].error == "ValueError: no"
    assert works_by_place["node 0:Day"].outcome == "failed"


class Piece(Node):
    text: str

    async def __call__(self) -> Short: ...


class Short(EndNode):
    text: str


async def upper(text: str) -> str:
    return text.upper()


class Report(EndNode):
    texts: list[str]
    loud: Annotated[list[str], Map(upper, over="texts")]
    short: Annotated[list[Short], Map(Graph(start=Piece, end=Short), over="texts")]


async def report_runs(count: int) -> Timeline:
    journal = MemoryJournal()
    lm = ScriptedLM({Short: lambda asked: {"text": "s"}})
    start = Report.model_construct(texts=["a"] * count)
    await Graph(start=Report).arun(start, lm, journal=journal, run_id="x")
    return timeline(await journal.read("x"))


async def test_map_items_are_marks_or_subgraphs_in_the_timeline():
    works_by_place = works(await report_runs(4))
    assert len(works_by_place["map 0:Report.loud"].marks) == 4
    short = works_by_place["map 0:Report.short"]
    assert [item.place for item in short.inside] == [f"0:Report.short[{i}]" for i in range(4)]
    assert [node.name for node in short.inside[0].inside] == ["Piece", "Short"]
    assert "fill 0:Report.short[3]/1:Short" in works_by_place


async def test_the_gate_of_a_run_that_waited_spans_both_processes():
    class Ask(EndNode):
        sure: Annotated[bool, Gate("Sure?")]

    journal, graph = MemoryJournal(), Graph(start=Ask)
    await graph.arun(Ask.model_construct(), journal=journal, run_id="x")
    waiting = timeline(await journal.read("x"))
    assert works(waiting)["gate 0:Ask.sure"].outcome == "waiting"
    assert works(waiting)["node 0:Ask"].outcome == "waiting"
    await graph.answer("x", "sure", True, journal=journal)
    run_timeline = timeline(await journal.read("x"))
    assert len(run_timeline.lives) == 2
    (span,) = works(run_timeline)["gate 0:Ask.sure"].spans
    assert span.start <= run_timeline.lives[0].end <= run_timeline.lives[1].start <= span.end
    assert works(run_timeline)["gate 0:Ask.sure"].outcome == "done"


async def test_a_retried_body_has_two_spans_and_succeeds():
    fails = [True]

    class Day(Node):
        async def __call__(self) -> None:
            if fails:
                raise ValueError(fails.pop())

    journal, graph = MemoryJournal(), Graph(start=Day)
    with pytest.raises(BaeError):
        await graph.arun(Day(), journal=journal, run_id="x")
    assert works(timeline(await journal.read("x")))["body 0:Day"].outcome == "failed"
    await graph.resume("x", journal=journal)
    body = works(timeline(await journal.read("x")))["body 0:Day"]
    assert (len(body.spans), body.outcome, body.error) == (2, "done", "")


async def test_work_of_a_running_run_lasts_until_now():
    begun = asyncio.Event()

    async def forever() -> int:
        begun.set()
        await asyncio.Event().wait()
        return 1

    class Day(EndNode):
        a: Annotated[int, Dep(forever)]

    journal = MemoryJournal()
    task = asyncio.create_task(
        Graph(start=Day).arun(Day.model_construct(), journal=journal, run_id="x")
    )
    await begun.wait()
    stored = await journal.read("x")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    until = stored.info.lease_until
    now = stored.lines[-1].at + 5
    alive = dataclasses.replace(stored.info, lease_until=now + 60)
    run_timeline = timeline(dataclasses.replace(stored, info=alive), now=now)
    assert (run_timeline.status, run_timeline.end) == ("running", now)
    assert works(run_timeline)["dep 0:Day.a"].outcome == "running"
    assert works(run_timeline)["dep 0:Day.a"].end == now
    gone = dataclasses.replace(stored.info, lease_until=until and now - 1)
    run_timeline = timeline(dataclasses.replace(stored, info=gone), now=now)
    assert (run_timeline.status, run_timeline.end) == ("interrupted", stored.lines[-1].at)
    assert works(run_timeline)["dep 0:Day.a"].outcome == "interrupted"


# --- what waits ----------------------------------------------------------------------------------


async def waiting_for(days: float) -> tuple[StoredRun, float]:
    class Ask(EndNode):
        sure: Annotated[bool, Gate("Sure?")]

    journal = MemoryJournal()
    await Graph(start=Ask).arun(Ask.model_construct(), journal=journal, run_id="x")
    stored = await journal.read("x")
    return stored, stored.lines[-1].at + days * 86400


async def test_an_open_question_and_its_run_last_until_now():
    stored, now = await waiting_for(3)
    run_timeline = timeline(stored, now=now)
    gate = works(run_timeline)["gate 0:Ask.sure"]
    assert (gate.outcome, gate.end, run_timeline.end) == ("waiting", now, now)
    assert gate.seconds == pytest.approx(3 * 86400, abs=1)
    assert run_timeline.seconds < 1
    assert report_run(stored, now=now).seconds == pytest.approx(3 * 86400, abs=1)
    assert stored.info.lasted(now) == pytest.approx(3 * 86400, abs=1)


async def test_a_finished_run_lasts_until_its_last_line():
    stored, now = await waiting_for(0)
    info = dataclasses.replace(stored.info, started=now - 10, updated=now - 4)
    for status, lease, lasted in (
        ("running", now + 9, 10),
        ("running", now - 1, 6),
        ("waiting", None, 10),
        ("ended", None, 6),
        ("failed", None, 6),
        ("cancelled", None, 6),
    ):
        stands = dataclasses.replace(info, status=status, lease_until=lease)
        assert stands.lasted(now) == lasted, status
    # A clock that was set back makes no time negative.
    assert dataclasses.replace(info, status="ended", updated=now - 99).lasted(now) == 0


# --- any run -------------------------------------------------------------------------------------


async def record_interrupted_run(made: Made, stops: list[tuple[str, int]]) -> StoredRun:
    """Record a run that is interrupted a few times and resumed each time."""
    journal = MemoryJournal()

    async def answer(gate: Any) -> bool:
        return number(gate.place) % 2 == 0

    options: dict[str, Any] = {"journal": journal, "prefetch": made.prefetch, "answer": answer}
    work = made.graph.arun(made.start(), made.lm, 40, run_id="x", **options)
    for stop in [*stops, None]:
        made.outside.go_on()
        if stop is not None:
            made.outside.interrupt(*stop)
        made.outside.run = asyncio.create_task(work)
        with suppress(BaeError, asyncio.CancelledError):
            await made.outside.run
        work = made.graph.resume("x", made.lm, **options)
    work.close()
    return await journal.read("x")


def check(stored: StoredRun) -> Timeline:
    """What holds of the timeline of any run."""
    run_timeline = timeline(stored, now=stored.lines[-1].at)
    assert run_timeline.start <= run_timeline.end
    for work in run_timeline.work:
        _check(work, run_timeline.start, run_timeline.end)
    lives = sorted((life.start, life.end) for life in run_timeline.lives)
    for work in run_timeline.every():
        if not work.waits:
            for span in work.spans:
                assert any(start <= span.start <= span.end <= end for start, end in lives), work
    return run_timeline


def _check(work: TimelineEntry, start: float, end: float) -> None:
    assert start <= work.start <= work.end <= end, work
    assert all(span.start <= span.end for span in work.spans), work
    assert all(one.end <= other.start for one, other in pairwise(work.spans)), work
    assert all(start <= mark <= end for mark in work.marks), work
    assert work.place, work
    assert [part.start for part in work.inside] == sorted(part.start for part in work.inside)
    for inner in work.inside:
        _check(inner, work.start, work.end)


def sources(lines: tuple[Line, ...]) -> set[tuple[str, int, str]]:
    """Where sources came to something, by the lines."""
    found: set[tuple[str, int, str]] = set()
    begun: set[tuple[str, int, str]] = set()
    for line in lines:
        if line.kind in ("SourceStarted", "SourceEnded"):
            data = json.loads(line.data)
            place = line.path, line.step, f"{data['field']}{data.get('parameter', '')}"
            if line.kind == "SourceStarted":
                begun.add(place)
            elif "error" not in data and place in begun:
                found.add(place)
    return found


@settings(max_examples=12, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    random_graphs(),
    st.lists(st.tuples(st.sampled_from(["fail", "cancel"]), st.integers(0, 30)), max_size=3),
    st.data(),
)
def test_work_lies_within_the_time_of_the_run_and_of_its_parent(
    made: Made, stops: list[tuple[str, int]], data: Any
):
    async def bounded() -> StoredRun:
        async with asyncio.timeout(BOUND):
            return await record_interrupted_run(made.build(), stops)

    stored = asyncio.run(bounded())
    found = check(stored)
    done = [work for work in found.every() if work.outcome == "done"]
    for path, step, field in sources(stored.lines):
        start = f"{path}/{step}:" if path else f"{step}:"
        assert any(w.place.startswith(start) and w.place.endswith(f".{field}") for w in done), field
    told = report_run(stored)
    if stored.info.status == "ended":
        assert {work.outcome for work in found.work} == {"done"}
        places = {work.place for work in found.work}
        assert places == {f"{node.step}:{node.name}" for node in told.graphs[0].nodes}
    # A crash leaves the first so many lines, whichever they are.
    cut = data.draw(st.integers(1, len(stored.lines)))
    crashed = dataclasses.replace(
        stored,
        lines=stored.lines[:cut],
        info=dataclasses.replace(stored.info, status="running", lease_until=None, error=""),
    )
    found = check(crashed)
    assert found.status == "interrupted"
    assert not any(work.outcome == "running" for work in found.every())
