"""Processes that run a graph on a journal in Postgres are killed at any instant: the run has the
same outcome, and recorded work is not repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from bae.journal import PostgresJournal
from crash.checks import Reference, Story, every_one, one_of_each, run_stories, run_uninterrupted
from crash.forks import Forks
from crash.killing import Kill
from postgres_server import PostgresServer

pytest.importorskip("asyncpg")
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def make_database(postgres: PostgresServer) -> Callable[[], str]:
    """Makes databases with tables."""
    like = postgres.new_database()
    async with PostgresJournal(like) as journal:
        await journal.upgrade()
    return lambda: postgres.new_database(like)


def some(writes: Sequence[str]) -> list[Kill]:
    """Kills around one write of each call of a journal."""
    found: dict[str, Kill] = {}
    for kill in one_of_each(writes):
        found.setdefault(writes[kill.write].partition(" ")[0], kill)
    return [*found.values()]


@pytest.mark.parametrize(
    "which",
    [
        some,
        pytest.param(one_of_each, marks=pytest.mark.slow),
        pytest.param(every_one, marks=pytest.mark.slow),
    ],
)
async def test_a_run_killed_around_any_write_resumes_with_the_same_outcome(
    which: Callable[[Sequence[str]], Sequence[Kill]],
    forks: Forks,
    reference: Reference,
    make_database: Callable[[], str],
    tmp_path: Path,
):
    async def killed(process: int, kill: Kill) -> None:
        folder = tmp_path / f"{process}-{kill.write}-{kill.moment}"
        story = Story(forks, folder, of=make_database())
        if process:
            await story.parked_as(reference)
        assert await story.to_the_end(reference.effects, [kill]) == reference.outcome

    before = forks.kills
    kills = [
        (process, kill) for process, writes in enumerate(reference.writes) for kill in which(writes)
    ]
    await run_stories(killed, kills)
    assert forks.kills - before > 0.9 * len(kills)


@pytest.mark.parametrize("stories", [2, pytest.param(60, marks=pytest.mark.slow)])
async def test_a_run_killed_at_random_instants_repeatedly_still_finishes(
    stories: int,
    forks: Forks,
    reference: Reference,
    make_database: Callable[[], str],
    tmp_path: Path,
):
    instants = Random("crash in Postgres")

    async def killed(number: int) -> None:
        story = Story(forks, tmp_path / f"random-{number}", of=make_database())
        first, second = (seconds * instants.random() for seconds in reference.seconds)
        kills = [Kill(20, "after"), first, Kill(9, "before"), second]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    before = forks.kills
    await run_stories(killed, ((number,) for number in range(stories)))
    assert forks.kills >= before + stories


@pytest.mark.parametrize("runs", [3, pytest.param(24, marks=pytest.mark.slow)])
async def test_runs_of_one_database_survive_kills_of_other_processes(
    runs: int,
    forks: Forks,
    reference: Reference,
    make_database: Callable[[], str],
    tmp_path: Path,
):
    instants = Random("crash together in Postgres")
    shared = make_database()

    async def killed(number: int) -> None:
        story = Story(forks, tmp_path / f"run-{number}", f"run-{number}", shared)
        kills = [instants.random() for _ in range(3)]
        assert await story.to_the_end(reference.effects, kills) == reference.outcome

    with forks.at_most(6):
        await run_stories(killed, ((number,) for number in range(runs)))
    async with PostgresJournal(shared) as journal:
        assert [info.status for info in await journal.runs()] == ["ended"] * runs
