"""Random graphs with a journal, interrupted anywhere and any number of times: they have the result
of an uninterrupted run, and recorded work is not repeated. Replays have the same result without
calls, forks repeat the work after the step, and a run is read back as it was written."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from bae import BaeError, GraphResult, JournalError, Node, OpenGate
from bae.journal import Journal, Line, LMAnswered, MemoryJournal, Record, StoredRun
from bae.journal.decoder import decode
from bae.records import LIVE, RecordedError
from bounded import BOUND
from random_graphs import Made, number, random_graphs

pytestmark = pytest.mark.once

few_or_many = pytest.mark.parametrize(
    "examples", [12, pytest.param(150, marks=pytest.mark.slow)], ids=["few", "many"]
)


def check(
    examples: int, promise: Callable[..., Coroutine[Any, Any, None]], *of: st.SearchStrategy[Any]
) -> None:
    """Check a promise with so many examples."""

    # Rare graphs are for long searches, not for the test of a change.
    @settings(max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.tuples(*of))
    def in_time(drawn: tuple[Any, ...]) -> None:
        async def main() -> None:
            async with asyncio.timeout(BOUND):
                await promise(*drawn)

        asyncio.run(main())

    in_time()


LIMIT = 40
stops = st.lists(
    st.tuples(st.sampled_from(["fail", "cancel"]), st.integers(0, 30)), min_size=1, max_size=4
)


# Running the programs


class Came:
    """The outcome of a run: its trace, and how it ended."""

    def __init__(self, trace: Sequence[Node], error: BaseException | None) -> None:
        self.trace = list(trace)
        self.error = "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
        self.given = [node.model_fields_set for node in trace]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Came) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{self.trace!r} {self.error}"


def yes(gate: OpenGate) -> bool:
    return number(gate.place) % 2 == 0  # not by its address: who asks first may differ


async def cancellable(made: Made, work: Coroutine[Any, Any, GraphResult[Any]]) -> GraphResult[Any]:
    """Await a run as a task that its effects can cancel."""
    made.outside.run = asyncio.create_task(work)
    return await made.outside.run


async def to_the_end(made: Made, journal: Journal, run_id: str, begin: bool) -> GraphResult[Any]:
    """Begin or resume a run, and answer its gates until it ends."""

    async def answer(gate: OpenGate) -> bool:
        await made.outside.act(f"gate {gate.place}", 1)
        return yes(gate)

    options: dict[str, Any] = {
        "journal": journal,
        # Whether sources are asked early changes nothing, where it is not in vain.
        "prefetch": made.prefetch is begin and not made.in_vain,
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


async def run_to_end(made: Made, journal: MemoryJournal, run_id: str, begin: bool = True) -> Came:
    """The outcome of an uninterrupted run, or of the rest of a run."""
    made.outside.go_on()
    watch(made, journal, run_id)
    failure: BaeError | None = None
    try:
        over: Any = await to_the_end(made, journal, run_id, begin)
    except BaeError as error:
        over = failure = error
    stored = await journal.read(run_id)
    status = "ended" if failure is None else "failed"
    assert (over.run_id, stored.info.status, stored.info.owner) == (run_id, status, None)
    assert_alike(made, [*over.journal], stored)
    return Came(over.trace, failure)


def watch(made: Made, journal: MemoryJournal, run_id: str) -> None:
    def lines() -> Any:
        reading = journal.read(run_id)
        try:
            reading.send(None)  # it waits for nothing, and effects are no coroutines
        except StopIteration as read:
            return read.value.lines
        except JournalError:
            return ()

    made.outside.lines = lines


def assert_alike(made: Made, live: Sequence[Record], stored: StoredRun) -> None:
    """Check that the stored run reads as it was written, errors as far as possible."""
    live = [record for record in live if record.stored]
    read, _ = decode(made.graph, stored.lines)
    assert [type(one).__name__ for one in live] == [type(one).__name__ for one in read]
    for one, two in zip(live, read, strict=True):
        for field in dataclasses.fields(one):
            was, now = getattr(one, field.name), getattr(two, field.name)
            if isinstance(was, BaseException):
                kind = was.type_name if isinstance(was, RecordedError) else type(was).__name__
                assert isinstance(now, RecordedError)
                assert now.type_name == kind
            elif isinstance(one, LMAnswered) and isinstance(was, Node) and isinstance(now, dict):
                assert now["type"] == type(was).__name__  # its class is none of the graph's
            else:
                assert is_alike(now, was), (field.name, one, two)


def is_alike(now: object, was: object) -> bool:
    """Whether something reads as it was, but for what no journal holds."""
    if now is LIVE:
        return True
    if isinstance(now, Node) and type(now) is type(was):
        return all(is_alike(value, vars(was)[name]) for name, value in vars(now).items())
    if isinstance(now, dict) and isinstance(was, dict):
        return all(is_alike(value, was[name]) for name, value in now.items())
    return now == was


def without_people(done: Counter[str]) -> Counter[str]:
    """Effects, except for the effects of answering gates."""
    return Counter({what: times for what, times in done.items() if not what.startswith("gate")})


PARTS = ("thread", "wrong", "lm answer Choice", "opening")
"""Effects that are not recorded at once, being parts of something: a call in a thread, a request
that was answered wrongly, the first of two requests that a body makes by one call of `lm.decide`.
Where the run is interrupted before the rest, they are done again. So is what opens something."""


def assert_once(made: Made, wanted: Counter[str], stopped: int) -> None:
    """That every effect happened as often as it does in one go."""
    done = made.outside.done
    for what in {*done, *wanted}:
        again = what.startswith(PARTS)
        most = wanted[what] * (1 + stopped if again else 1)
        assert wanted[what] <= done[what] <= most, what


async def in_one_go(made: Made) -> tuple[Came, Counter[str]]:
    """The outcome and the effects of a run without interruptions. Resets the graph afterwards."""
    came = await run_to_end(made, MemoryJournal(), "one")
    done = made.outside.done
    made.outside.__init__()
    return came, done


# The promises


@few_or_many
def test_any_interrupted_run_resumes_with_the_same_result(examples: int):
    async def promise(made: Made, stops: list[tuple[str, int]]) -> None:
        wanted, effects = await in_one_go(made.build())
        journal = MemoryJournal()
        watch(made, journal, "one")
        begin, stopped = True, 0
        came: Came | None = None
        for how, at in stops:
            made.outside.interrupt("cancel" if made.retries else how, at)
            try:
                result = await to_the_end(made, journal, "one", begin)
                came = Came(result.trace, None)
                break
            except (BaeError, asyncio.CancelledError) as error:
                event(f"{how}: {type(error).__name__}")
                stopped += 1
            begin = False
            stored = await journal.read("one")
            assert stored.info.owner is None
            assert stored.info.status in ("failed", "cancelled")
            decode(made.graph, stored.lines)
        if came is None:
            came = await run_to_end(made, journal, "one", begin=False)
        assert came == wanted
        assert_once(made, effects, stopped)
        await assert_replays(made, journal, "one", wanted)

    check(examples, promise, random_graphs(), stops)


async def assert_replays(made: Made, journal: Journal, run_id: str, wanted: Came) -> None:
    made.outside.__init__()
    try:
        result = await made.graph.replay(run_id, journal=journal, dep_cache=made.stand_ins)
    except BaeError as error:
        came = Came(error.trace, error)
    else:
        came = Came(result.trace, None)
    assert came == wanted
    bodies = ("Main", "Inner")
    assert [what for what in made.outside.done if not what.startswith(bodies)] == []


@few_or_many
def test_any_run_killed_after_any_line_resumes_with_the_same_result(
    examples: int,
):
    async def promise(made: Made, cuts: list[int]) -> None:
        made.build()
        journal = MemoryJournal()
        wanted = await run_to_end(made, journal, "one")
        before = made.outside.when
        await assert_replays(made, journal, "one", wanted)
        for cut in cuts:
            stored = await journal.read("one")
            kept = 1 + cut % len(stored.lines)
            while kept < len(stored.lines) and stored_with_the_one_before(stored.lines, kept):
                kept += 1
            note(f"killed after line {kept - 1} of {len(stored.lines)}")
            made.outside.__init__()
            journal = MemoryJournal()
            await journal.put(cut_run(stored, kept))
            assert await run_to_end(made, journal, "one", begin=False) == wanted
            again = without_people(made.outside.done)
            assert_what_was_left(before, again, kept)
            before = [*still_done(before, again, kept), *made.outside.when]
        await assert_replays(made, journal, "one", wanted)

    check(
        examples, promise, random_graphs(), st.lists(st.integers(0, 10_000), min_size=1, max_size=3)
    )


def stored_with_the_one_before(lines: Sequence[Line], n: int) -> bool:
    """Whether a line is one of several that are handed to the store together: a choice that was
    filled in the same call."""
    pair = lines[n - 1].kind, lines[n].kind
    one_call = pair in (("ChoiceMade", "FillStarted"), ("FillStarted", "FillEnded"))
    return one_call and lines[n - 1].at == lines[n].at


def cut_run(stored: StoredRun, lines: int) -> StoredRun:
    """A run as a process leaves it that is killed when so many lines are stored."""
    info = dataclasses.replace(
        stored.info, status="running", owner=None, lease_until=None, waiting=(), error=""
    )
    return dataclasses.replace(stored, info=info, lines=stored.lines[:lines])


def assert_what_was_left(
    before: Sequence[tuple[str, int, int]], again: Counter[str], kept: int
) -> None:
    """Check that the work after a number of lines is the work without a record in them."""
    # A record follows its effect at once, or after the one that says what an LM used.
    must = Counter(what for what, lines, _ in before if lines >= kept)
    may = Counter(what for what, lines, _ in before if lines + 2 > kept)
    for what in {*must, *again}:
        if not what.startswith((*PARTS, "gate")):
            assert must[what] <= again[what] <= may[what], what


def still_done(
    before: Sequence[tuple[str, int, int]], again: Counter[str], kept: int
) -> list[tuple[str, int, int]]:
    """The work that had a record when the run was killed."""
    left = again.copy()
    for what, lines, _ in before:
        left[what] -= lines >= kept
    found: list[tuple[str, int, int]] = []
    for what, lines, steps in reversed(before):
        if lines < kept <= lines + 1 and left[what] > 0:
            left[what] -= 1  # it was done, and its record was not there yet
        elif lines < kept:
            found.append((what, lines, steps))
    return found[::-1]


@few_or_many
def test_a_fork_without_changes_repeats_only_the_work_after_its_step(
    examples: int,
):
    async def promise(made: Made, at: int) -> None:
        made.build()
        journal = MemoryJournal()
        wanted = await run_to_end(made, journal, "one")
        step = at % len(wanted.trace)
        after = Counter(what for what, _, steps in made.outside.when if steps > step)
        made.outside.__init__()
        forked = await made.graph.fork("one", at=step, journal=journal, new_id="two")
        assert await run_to_end(made, journal, forked, begin=False) == wanted
        for what in {*after, *made.outside.done}:
            assert made.outside.done[what] == after[what] or what.startswith(PARTS), what
        await assert_replays(made, journal, "two", wanted)

    check(examples, promise, random_graphs(gates=False), st.integers(0, 100))
