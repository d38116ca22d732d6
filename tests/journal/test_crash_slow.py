"""The whole of what `test_crash.py` has a part of: a process is killed around every write that it
makes, at a hundred random instants, and while it resumes what another one has left behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from time import perf_counter

import pytest
import pytest_asyncio

from crash.checks import Reference, Story, all_of, is_sound, uninterrupted
from crash.forks import Forks
from crash.killing import MOMENTS, Kill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that it forks"),
]

INSTANTS = 100
"""How many processes are killed at a random instant."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forks() -> AsyncIterator[Forks]:
    async with Forks() as forks:
        yield forks


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return await uninterrupted(forks, tmp_path_factory.mktemp("uninterrupted"))


@pytest.fixture(autouse=True)
def _say_how_many(forks: Forks) -> Iterator[None]:
    kills, started, since = forks.kills, forks.started, perf_counter()
    yield
    seconds = perf_counter() - since
    print(f"{forks.kills - kills} of {forks.started - started} processes killed, {seconds:.0f} s")


async def test_a_run_killed_around_any_write_ends_as_if_nothing_had_happened(
    forks: Forks, reference: Reference, tmp_path: Path
):
    async def killed(process: int, kill: Kill) -> None:
        story = Story(forks, tmp_path / f"{process}-{kill.write}-{kill.moment}")
        if process:
            await story.parked_as(reference)
        assert await story.to_the_end(reference.effects, [kill]) == reference.outcome
        assert is_sound(story.journal)

    before = forks.kills
    kills = [
        (process, Kill(number, moment))
        for process, writes in enumerate(reference.writes)
        for number, write in enumerate(writes)
        for moment in MOMENTS
        if moment != "handed" or write.startswith("append")
    ]
    await all_of(killed, kills)
    # The order of writes is not the same every time: a kill near the end may come too late.
    assert forks.kills - before > 0.98 * len(kills)


async def test_a_run_killed_around_any_write_of_the_process_that_resumes_it_ends_too(
    forks: Forks, reference: Reference, tmp_path: Path
):
    async def killed(first: int, second: int) -> None:
        story = Story(forks, tmp_path / f"{first}-{second}")
        kills = [Kill(first, "after"), Kill(second, MOMENTS[second % 3])]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    writes = len(reference.writes[0])
    firsts = writes // 6, writes // 2, writes - 12
    kills = [(first, second) for first in firsts for second in range(writes - first + 6)]
    await all_of(killed, kills)


async def test_a_run_killed_at_a_random_instant_ends_as_if_nothing_had_happened(
    forks: Forks, reference: Reference, tmp_path: Path
):
    instants = Random("crash")
    before = forks.kills

    async def killed(number: int) -> None:
        story = Story(forks, tmp_path / f"random-{number}")
        kills = [seconds * instants.random() for seconds in reference.seconds]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome
        assert is_sound(story.journal)

    for part in range(20):
        if forks.kills - before >= INSTANTS:
            break
        await all_of(killed, ((20 * part + number,) for number in range(20)))
    assert forks.kills - before >= INSTANTS


async def test_a_run_that_is_killed_every_few_milliseconds_ends_too(
    forks: Forks, reference: Reference, tmp_path: Path
):
    instants = Random("crash after crash")

    async def killed(number: int) -> None:
        story = Story(forks, tmp_path / f"row-{number}")
        # The later ones live longer, so that there is an end.
        kills = [instants.random() * 0.01 * each for each in range(1, 25)]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    await all_of(killed, ((number,) for number in range(20)))


async def test_many_runs_of_one_file_survive_when_processes_around_them_are_killed(
    forks: Forks, reference: Reference, tmp_path: Path
):
    instants = Random("crash together")
    shared = tmp_path / "shared"
    shared.mkdir()

    async def killed(number: int) -> None:
        story = Story(forks, tmp_path / f"run-{number}", f"run-{number}", shared)
        kills = [instants.random() * 0.2 for _ in range(4)]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    with forks.at_most(6):
        await all_of(killed, ((number,) for number in range(24)))
    assert is_sound(shared / "runs.db")
