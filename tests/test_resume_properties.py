"""Random graphs with a journal, interrupted anywhere and any number of times: what they come to is
what the same graph comes to in one go, and what was recorded is not done again. Replays come to the
same with nothing called, forks do again what was after the step, and what is read of a run is what
it wrote."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

import bae.invoke
from bae import BaeError, GraphResult, JournalError, Node, OpenGate
from bae.journal import Journal, MemoryJournal, Record, StoredRun, TextArrived
from bae.journal.decoding import RecordedError, decode
from bounded import BOUND
from made_graphs import Made, Outside, made_graphs, number

many = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LIMIT = 40
stops = st.lists(
    st.tuples(st.sampled_from(["fail", "cancel"]), st.integers(0, 30)), min_size=1, max_size=4
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(bae.invoke, "FIRST_PAUSE", 0.0)


# Running the programs


class Came:
    """What a run came to: its trace, and how it ended."""

    def __init__(self, trace: Sequence[Node], error: BaseException | None) -> None:
        self.trace = list(trace)
        self.error = "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
        self.given = [node.model_fields_set for node in trace]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Came) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{self.trace!r} {self.error}"


def yes(gate: OpenGate) -> bool:
    return number(gate.address) % 2 == 0


async def cancellable(made: Made, work: Coroutine[Any, Any, GraphResult[Any]]) -> GraphResult[Any]:
    """Await a run as a task that its effects can cancel."""
    made.outside.run = asyncio.create_task(work)
    return await made.outside.run


async def to_the_end(made: Made, journal: Journal, run_id: str, begin: bool) -> GraphResult[Any]:
    """Begin a run, or go on with one, and answer its gates until it ends."""

    async def answer(gate: OpenGate) -> bool:
        await made.outside.act(f"gate {gate.address}", 1)
        return yes(gate)

    options: dict[str, Any] = {
        "journal": journal,
        "prefetch": made.prefetch,
        "answer": None if made.parked else answer,
    }
    if begin:
        run = made.graph.arun(made.start(), made.lm, LIMIT, run_id=run_id, **options)
    else:
        run = made.graph.resume(run_id, made.lm, **options)
    result = await cancellable(made, run)
    while result.waiting:
        gate = result.waiting[0]
        assert (await journal.read(run_id)).info.owner is None
        work = made.graph.answer(run_id, gate.address, yes(gate), made.lm, **options)
        try:
            result = await cancellable(made, work)
        except BaeError as error:
            if error.code != "bae-gate-answered":
                raise
            result = await cancellable(made, made.graph.resume(run_id, made.lm, **options))
    return result


async def whole(made: Made, journal: MemoryJournal, run_id: str, begin: bool = True) -> Came:
    """What a run comes to that nobody interrupts, or the rest of one."""
    made.outside.go_on()
    watch(made, journal, run_id)
    try:
        result = await to_the_end(made, journal, run_id, begin)
    except BaeError as error:
        stored = await journal.read(run_id)
        assert error.run_id == run_id
        assert_alike(made, [*error.journal], stored)
        return Came(error.trace, error)
    stored = await journal.read(run_id)
    assert (stored.info.status, stored.info.owner) == ("ended", None)
    assert_alike(made, [*result.journal], stored)
    return Came(result.trace, None)


def watch(made: Made, journal: MemoryJournal, run_id: str) -> None:
    def lines() -> Any:
        run = journal._runs.get(run_id)  # pyright: ignore[reportPrivateUsage]
        return () if run is None else run.lines

    made.outside.lines = lines


def assert_alike(made: Made, live: Sequence[Record], stored: StoredRun) -> None:
    """That what is stored reads as what the run wrote, errors as far as they can be."""
    live = [record for record in live if not isinstance(record, TextArrived)]
    read = decode(made.graph, stored.lines)
    assert [type(one).__name__ for one in live] == [type(one).__name__ for one in read]
    for one, two in zip(live, read, strict=True):
        for field in dataclasses.fields(one):
            was, now = getattr(one, field.name), getattr(two, field.name)
            if isinstance(was, BaseException):
                kind = was.type_name if isinstance(was, RecordedError) else type(was).__name__
                assert isinstance(now, RecordedError)
                assert now.type_name == kind
            else:
                assert now == was, (field.name, one, two)


def bounded(work: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(BOUND):
            await work

    asyncio.run(main())


def without_people(done: Counter[str]) -> Counter[str]:
    """Effects, but for those of whoever answers gates."""
    return Counter({what: times for what, times in done.items() if not what.startswith("gate")})


def assert_once(made: Made, wanted: Counter[str], stopped: int) -> None:
    """That every effect happened as often as it does in one go; those in threads may have been
    under way when the run was stopped."""
    done = without_people(made.outside.done)
    for what in {*done, *wanted}:
        most = wanted[what] + (stopped if what.startswith("thread") else 0)
        assert wanted[what] <= done[what] <= most, what


async def in_one_go(made: Made) -> tuple[Came, Counter[str]]:
    made.build()
    came = await whole(made, MemoryJournal(), "one")
    return came, without_people(made.outside.done)


# The promises


@many
@given(made_graphs(), stops)
def test_a_run_interrupted_anywhere_comes_to_the_same_and_does_nothing_twice(
    made: Made, stops: list[tuple[str, int]]
):
    async def work() -> None:
        wanted, effects = await in_one_go(made)
        made.build()
        journal = MemoryJournal()
        watch(made, journal, "one")
        begin, stopped = True, 0
        for how, at in stops:
            made.outside.interrupt(how, at)
            try:
                await to_the_end(made, journal, "one", begin)
                break
            except (BaeError, asyncio.CancelledError) as error:
                event(f"{how}: {type(error).__name__}")
                stopped += 1
            begin = False
            stored = await journal.read("one")
            assert stored.info.owner is None
            assert stored.info.status in ("failed", "cancelled")
            decode(made.graph, stored.lines)
        if not stopped:
            return
        came = await whole(made, journal, "one", begin=False)
        wanted = rebuilt(made, wanted)
        assert came == wanted
        assert_once(made, effects, stopped)

    bounded(work())


def rebuilt(made: Made, came: Came) -> Came:
    """The same by the classes of today."""
    return came


@many
@given(made_graphs())
def test_a_replay_comes_to_the_same_with_nothing_called_but_bodies(made: Made):
    async def work() -> None:
        made.build()
        journal = MemoryJournal()
        wanted = await whole(made, journal, "one")
        made.outside.done.clear()
        try:
            result = await made.graph.replay("one", journal=journal)
        except BaeError as error:
            came = Came(error.trace, error)
        else:
            came = Came(result.trace, None)
        assert came == wanted
        bodies = ("Main", "Inner")
        assert [what for what in made.outside.done if not what.startswith(bodies)] == []

    bounded(work())
