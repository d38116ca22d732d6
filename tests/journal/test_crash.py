"""A process that runs a graph may be killed at any instant: the run resumes in another process and
has the same outcome, finished work is not repeated, and the journal is always readable."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from time import perf_counter, time
from typing import TextIO

import pytest
import pytest_asyncio

from bae.journal import SQLiteJournal
from bounded import BOUND
from crash import waiting_run
from crash.checks import (
    Reference,
    Story,
    every_one,
    is_sound,
    one_of_each,
    run_stories,
    run_uninterrupted,
)
from crash.child import Job, Task
from crash.effects import Happened
from crash.forks import Forks
from crash.killing import MOMENTS, Kill

pytestmark = [
    pytest.mark.once,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that it forks"),
]


@pytest.fixture(scope="module")
def forks() -> Forks:
    return Forks()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return await run_uninterrupted(forks, tmp_path_factory.mktemp("uninterrupted"))


@pytest.fixture(autouse=True)
def _say_how_many(forks: Forks) -> Iterator[None]:
    kills, started, since = forks.kills, forks.started, perf_counter()
    yield
    seconds = perf_counter() - since
    print(f"{forks.kills - kills} of {forks.started - started} processes killed, {seconds:.0f} s")


@pytest.mark.parametrize("which", [one_of_each, pytest.param(every_one, marks=pytest.mark.slow)])
async def test_a_run_killed_around_any_write_resumes_with_the_same_outcome(
    which: Callable[[Sequence[str]], Iterator[Kill]],
    forks: Forks,
    reference: Reference,
    tmp_path: Path,
):
    async def killed(process: int, kill: Kill) -> None:
        story = Story(forks, tmp_path / f"{process}-{kill.write}-{kill.moment}")
        if process:
            await story.parked_as(reference)
        assert await story.to_the_end(reference.effects, [kill]) == reference.outcome
        assert is_sound(story.journal)

    before, written = forks.kills, enumerate(reference.writes)
    kills = [(process, kill) for process, writes in written for kill in which(writes)]
    await run_stories(killed, kills)
    # The order of writes is not the same every time: a kill near the end may come too late.
    assert forks.kills - before > 0.95 * len(kills)


@pytest.mark.slow
async def test_a_run_killed_around_any_write_of_a_resume_still_finishes(
    forks: Forks, reference: Reference, tmp_path: Path
):
    async def killed(first: int, second: int) -> None:
        story = Story(forks, tmp_path / f"{first}-{second}")
        kills = [Kill(first, "after"), Kill(second, MOMENTS[second % 3])]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    writes = len(reference.writes[0])
    firsts = writes // 6, writes // 2, writes - 12
    kills = [(first, second) for first in firsts for second in range(writes - first + 6)]
    await run_stories(killed, kills)


async def test_a_run_that_is_killed_repeatedly_still_finishes(
    forks: Forks, reference: Reference, tmp_path: Path
):
    async def killed(every: int) -> None:
        story = Story(forks, tmp_path / f"every-{every}")
        kills = [Kill(every, "after" if n % 2 else "before") for n in range(8)]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    await run_stories(killed, [(9,), (40,)])


@pytest.mark.parametrize("stories", [4, pytest.param(100, marks=pytest.mark.slow)])
async def test_a_run_killed_at_a_random_instant_resumes_with_the_same_outcome(
    stories: int, forks: Forks, reference: Reference, tmp_path: Path
):
    instants = Random("crash")

    async def killed(number: int) -> None:
        story = Story(forks, tmp_path / f"random-{number}")
        kills = [seconds * instants.random() for seconds in reference.seconds]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome
        assert is_sound(story.journal)

    await run_stories(killed, ((number,) for number in range(stories)))


@pytest.mark.slow
async def test_a_run_that_is_killed_every_few_milliseconds_still_finishes(
    forks: Forks, reference: Reference, tmp_path: Path
):
    instants = Random("crash after crash")

    async def killed(number: int) -> None:
        story = Story(forks, tmp_path / f"row-{number}")
        # The later ones live longer, so that there is an end.
        kills = [instants.random() * 0.01 * n for n in range(1, 25)]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    await run_stories(killed, ((number,) for number in range(20)))


@pytest.mark.parametrize("runs", [3, pytest.param(24, marks=pytest.mark.slow)])
async def test_runs_of_one_file_survive_kills_of_other_processes(
    runs: int, forks: Forks, reference: Reference, tmp_path: Path
):
    instants = Random("crash together")
    shared = tmp_path / "shared"
    shared.mkdir()

    async def killed(number: int) -> None:
        story = Story(forks, tmp_path / f"run-{number}", f"run-{number}", shared)
        kills = [instants.random() * 0.2 for _ in range(4)]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    with forks.at_most(6):
        await run_stories(killed, ((number,) for number in range(runs)))
    async with SQLiteJournal(shared / "runs.db") as journal:
        assert [info.status for info in await journal.runs()] == ["ended"] * runs
    assert is_sound(shared / "runs.db")


@pytest.fixture
def pipes(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"pipe-{number}" for number in range(2)]
    for pipe in made:
        os.mkfifo(pipe)
    return made


async def test_exactly_one_process_takes_over_the_run_of_a_dead_process(
    forks: Forks, pipes: list[Path], tmp_path: Path
):
    first, second = pipes
    journal, effects = tmp_path / "runs.db", tmp_path / "effects"
    dying = forks.start(Job(str(journal), [Task("run", "begin", str(effects), 0, str(first))], 0.1))
    with await at_the_pipe(first):
        dying.send(signal.SIGKILL)
        assert await dying.report() is None
    await wait_for_expired_lease(journal)

    tasks = [Task("run", "resume", str(effects), number, str(second)) for number in range(1, 6)]
    rivals = [forks.start(Job(str(journal), [task], 60.0, at_once=True)) for task in tasks]
    for rival in rivals:
        await rival.begun
    for rival in rivals:
        rival.go()
    reports = asyncio.as_completed([rival.report() for rival in rivals])
    lost = [await next(reports) for _ in rivals[1:]]
    assert [told.outcomes["run"].code for told in lost] == ["bae-run-owned"] * 4
    with await at_the_pipe(second) as pipe:
        pipe.write("at last")
    (won,) = [await report for report in reports]
    assert won.outcomes["run"].trace == [["Waiting", {"text": "at last"}]]
    begun = [count["wait_at_pipe"] for count in Happened(effects).begun.values()]
    assert begun == [1, 1]


async def test_a_suspended_process_learns_that_its_run_was_taken_over(
    forks: Forks, pipes: list[Path], tmp_path: Path
):
    first, second = pipes
    journal, effects = tmp_path / "runs.db", tmp_path / "effects"
    asleep = forks.start(
        Job(str(journal), [Task("run", "begin", str(effects), 0, str(first))], 0.1)
    )
    with await at_the_pipe(first) as pipe:
        with closing(sqlite3.connect(journal)) as file:
            file.execute("begin immediate")  # so that it does not hold up the others as it sleeps
            await asleep.stop()
        await wait_for_expired_lease(journal)
        other = forks.start(
            Job(str(journal), [Task("run", "resume", str(effects), 1, str(second))], 60.0)
        )
        with await at_the_pipe(second) as other_pipe:
            other_pipe.write("the other")
        pipe.write("the first")
        asleep.send(signal.SIGCONT)
    ended, told = await other.report(), await asleep.report()
    assert ended.outcomes["run"].trace == [["Waiting", {"text": "the other"}]]
    assert told.outcomes["run"].code == "bae-run-taken"
    async with SQLiteJournal(journal) as opened:
        result = await waiting_run.graph.resume("run", journal=opened)
    assert result.result == waiting_run.Waiting(text="the other")


async def at_the_pipe(pipe: Path) -> TextIO:
    """The end of a pipe to write to, as soon as a reader waits at the other end."""
    opening = asyncio.ensure_future(asyncio.to_thread(pipe.open, "w"))
    try:
        async with asyncio.timeout(BOUND):
            return await asyncio.shield(opening)
    except BaseException:
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # or the thread would wait for ever
        (await opening).close()
        raise


async def wait_for_expired_lease(path: Path) -> None:
    """Wait until the owner of the run counts as dead."""
    async with SQLiteJournal(path) as journal, asyncio.timeout(BOUND):
        while True:
            (info,) = await journal.runs()
            if info.lease_until is None or info.lease_until < time():
                return
            await asyncio.sleep(info.lease_until - time() + 0.001)
