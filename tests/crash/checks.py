"""One run through all processes until it has ended, and the checks after each process: no
acknowledged work is lost or repeated, and work in progress is repeated at most once."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

from bae.journal import RunInfo
from bae.journal.decoder import decode
from crash import newsroom
from crash.acknowledged import calls, count_effects
from crash.child import Action, Job, Outcome, Report, Task
from crash.effects import Happened
from crash.forks import Forks
from crash.killing import MOMENTS, Kill, open_journal

DEATH_IS_SEEN = sys.platform == "linux"
"""Whether others see at once that the owner of a run has died; elsewhere its lease must be over."""
LEASE = 30.0 if DEATH_IS_SEEN else 0.2
AT_ONCE = 12
"""The number of concurrent stories."""


@dataclass(frozen=True)
class Reference:
    """The run without a kill: its outcome, its effects, and the journal writes of its two
    processes."""

    outcome: Outcome
    effects: Counter[str]
    writes: tuple[list[str], list[str]]
    seconds: tuple[float, float]
    parked: Path
    """A folder with the parked run, from which processes continue."""


@dataclass(frozen=True)
class Standing:
    """A run as its journal has it at a moment."""

    info: RunInfo | None
    unanswered: int
    lines: int
    done: Counter[str]

    @property
    def next(self) -> Action:
        """The next job that continues the run."""
        if self.info is None:
            return "begin"
        return "answer" if self.unanswered else "resume"


NOTHING = Standing(None, 0, 0, Counter())


class Story:
    """One run, `run_id`, in its own or a shared journal, and the work of all processes on it."""

    def __init__(
        self, forks: Forks, folder: Path, run_id: str = "run", of: Path | str | None = None
    ):
        self.forks = forks
        self.run_id = run_id
        self.journal = of if isinstance(of, str) else (of or folder) / "runs.db"
        folder.mkdir(parents=True, exist_ok=True)
        self.effects = folder / f"{run_id}.effects"
        self.process = 0
        self.outcome: Outcome | None = None
        """How the run ended, from the process that saw it end."""
        self.reports: list[Report | None] = []
        self.standing = NOTHING

    async def parked_as(self, reference: Reference) -> None:
        """Begin with the run as it is at its gate."""
        for file in reference.parked.iterdir():
            shutil.copy(file, self.effects.parent)
        if not isinstance(self.journal, Path):
            async with open_journal(reference.parked / "runs.db") as parked:
                run = await parked.read("run")
            async with open_journal(self.journal) as journal:
                await journal.put(run)
        self.process = 1
        self.standing = await self.look()

    async def to_the_end(
        self, expected: Counter[str], kills: Sequence[Kill | float | None] = ()
    ) -> Outcome:
        """Let processes continue the run, one after another, until it has ended. `kills` has the
        time of each kill: around a write, after a number of seconds, or None."""
        left = iter(kills)
        most = self.process + len(kills) + 4
        while self.outcome is None:
            assert self.process < most, f"{self.process} processes, and no end"
            await self.one_process(next(left, None), expected)
        assert self.standing.done == expected, _difference(self.standing.done, expected)
        return self.outcome

    async def one_process(
        self, kill: Kill | float | None = None, expected: Counter[str] | None = None
    ) -> None:
        """Let one process continue the run, and check its work."""
        await self.lease_over()
        job = self.job(kill if isinstance(kill, Kill) else None)
        report = await self.forks.run(job, kill if isinstance(kill, float) else None)
        await self.check(report, expected)

    def job(self, kill: Kill | None = None) -> Job:
        """What the next process does."""
        return Job(str(self.journal), [self.task()], LEASE, kill)

    def task(self) -> Task:
        """What the next process does with the run."""
        return Task(self.run_id, self.standing.next, str(self.effects), self.process)

    async def check(self, report: Report | None, expected: Counter[str] | None = None) -> None:
        """What must hold after each process, killed or not."""
        before, after = self.standing, await self.look()
        happened = Happened(self.effects)
        begun = happened.by(self.process)
        once = Counter({name: n for name, n in begun.items() if name not in newsroom.REMADE})
        remade = begun - once
        if expected is not None:
            too_often = once - (expected - before.done)
            assert not too_often, f"done before, and begun again: {too_often}"
            assert not after.done - expected, f"recorded too often: {after.done - expected}"
        assert all(n == 1 for n in remade.values()), f"made anew more than once: {remade}"
        lost = before.done - after.done
        assert not lost, f"acknowledged, and lost: {lost}"
        assert happened.kept < after.lines, f"line {happened.kept} was acknowledged, and is lost"
        invented = after.done - happened.ended
        assert not invented, f"recorded, and never done: {invented}"
        self.reports.append(report)
        self.process += 1
        self.standing = after
        if report is not None:
            outcome = report.outcomes[self.run_id]
            assert not outcome.raised, outcome.raised
            if before.info is None or before.info.status != "ended":
                paid, asked = calls(after.done), calls(happened.total())
                assert paid <= outcome.calls <= asked, f"{outcome.calls} calls: {paid} to {asked}"
            if not outcome.waiting:
                self.outcome = outcome

    async def look(self) -> Standing:
        """Open the journal, list its runs and read every one of them."""
        mine = NOTHING
        async with open_journal(self.journal) as journal:
            for info in await journal.runs(limit=100):
                stored = await journal.read(info.run_id)
                assert [line.n for line in stored.lines] == list(range(len(stored.lines)))
                records, _ = decode(newsroom.graph, stored.lines)
                if info.run_id == self.run_id:
                    done = count_effects(records)
                    unanswered = sum(not gate.answered for gate in stored.info.waiting)
                    mine = Standing(stored.info, unanswered, len(stored.lines), done)
        return mine

    async def lease_over(self) -> None:
        """Wait until the owner of the run, if it has one, counts as dead."""
        if DEATH_IS_SEEN:
            return
        until = None if self.standing.info is None else self.standing.info.lease_until
        if until is not None:
            await asyncio.sleep(max(0.0, until - time()) + 0.001)


async def run_uninterrupted(forks: Forks, folder: Path) -> Reference:
    """Run the graph once without kills: to its gate, and to its end."""
    story = Story(forks, folder / "reference")
    await story.one_process()
    assert story.outcome is None
    parked = shutil.copytree(folder / "reference", folder / "parked")
    await story.one_process()
    first, second = story.reports
    assert first is not None
    assert second is not None
    assert story.outcome is not None
    happened = Happened(story.effects)
    begun = happened.by(0) + happened.by(1)
    effects = Counter({name: n for name, n in begun.items() if name not in newsroom.REMADE})
    assert story.standing.done == effects, _difference(story.standing.done, effects)
    return Reference(
        story.outcome,
        effects,
        (first.writes, second.writes),
        (first.seconds, second.seconds),
        parked,
    )


async def run_stories(
    story: Callable[..., Coroutine[Any, Any, None]], cases: Iterable[tuple[Any, ...]]
) -> None:
    """Run one story for each case, some at the same time. All stories run to their ends, and their
    failures are reported together."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(case: tuple[Any, ...]) -> str:
        async with limit:
            try:
                await story(*case)
            except AssertionError as error:
                return f"{case}: {error}"
        return ""

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in cases]
    wrong = [task.result() for task in tasks if task.result()]
    assert not wrong, f"{len(wrong)} of {len(tasks)} came out wrong\n" + "\n".join(wrong)


def one_of_each(writes: Sequence[str]) -> Iterator[Kill]:
    """Kills around one write of each kind that is waited for: before it, or after it."""
    of_kind: dict[str, list[int]] = {}
    for number, write in enumerate(writes):
        if not write.startswith("note"):
            of_kind.setdefault(" ".join(write.split()[:2]), []).append(number)
    for place, numbers in enumerate(of_kind.values()):
        yield Kill(numbers[len(numbers) // 2], "after" if place % 2 else "before")


def every_one(writes: Sequence[str]) -> Iterator[Kill]:
    """Kills at every moment of every write."""
    for number, write in enumerate(writes):
        for moment in MOMENTS:
            if moment != "handed" or write.startswith("append"):
                yield Kill(number, moment)


def is_sound(journal: Path) -> bool:
    """Whether SQLite finds nothing wrong with a file."""
    with closing(sqlite3.connect(journal)) as connection:
        return connection.execute("pragma integrity_check").fetchall() == [("ok",)]


def _difference(one: Counter[str], other: Counter[str]) -> str:
    return f"too many: {one - other}; missing: {other - one}"
