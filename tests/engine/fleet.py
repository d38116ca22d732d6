"""Worker processes for tests, which are killed, stopped and replaced, and what they have done."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from bae.journal import Journal
from engine import shop

TESTS = Path(__file__).parent.parent


@dataclass
class Fleet:
    """Workers on one journal, and the file that their effects write to."""

    folder: Path
    where: str
    lease: float = 2.0
    concurrency: int = 5
    address: str = ""
    seconds: float = 0.05
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    started: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "effects"

    def start(self) -> subprocess.Popen[str]:
        """One more worker."""
        path = os.pathsep.join(
            [str(TESTS), str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        known = {**os.environ, "PYTHONPATH": path, "SHOP_LOG": str(self.log)}
        known["SHOP_SECONDS"] = str(self.seconds)
        given = [self.where, str(self.lease), str(self.concurrency)]
        given += [self.address] if self.address else []
        self.started += 1
        with (self.folder / f"worker-{self.started}").open("w") as errors:
            worker = subprocess.Popen(
                [sys.executable, "-m", "engine.worker_program", *given],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=known,
            )
        self.workers.append(worker)
        return worker

    def replace(self, random: Random) -> None:
        """Kill a worker as a crash does, and start another one."""
        worker = random.choice(self.workers)
        worker.kill()
        self.workers.remove(worker)
        self._forget(worker)
        self.start()

    def stop(self) -> None:
        """Kill all."""
        for worker in self.workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGCONT)
            worker.kill()
            self._forget(worker)

    @staticmethod
    def _forget(worker: subprocess.Popen[str]) -> None:
        worker.wait(30)
        if worker.stdout is not None:
            worker.stdout.close()

    def effects(self) -> list[list[str]]:
        """What was written: the time, "begin" or "end", the run, the step, the process, the
        token."""
        if not self.log.exists():
            return []
        return [line.split() for line in self.log.read_text().splitlines()]

    async def until(self, wanted: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for something that processes do."""
        async with asyncio.timeout(seconds):
            while not wanted():  # noqa: ASYNC110  other processes do it
                await asyncio.sleep(0.02)

    async def until_effects(self, count: int) -> None:
        """Wait until so many effects have begun."""
        await self.until(lambda: len([e for e in self.effects() if e[1] == "begin"]) >= count)

    def errors(self) -> str:
        """What the workers have logged, for a test that fails."""
        files = sorted(self.folder.glob("worker-*"))
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in files)


@asynccontextmanager
async def fleet_of(count: int, folder: Path, where: str, **more: Any) -> AsyncIterator[Fleet]:
    """So many workers inside the block."""
    fleet = Fleet(folder, where, **more)
    try:
        for _ in range(count):
            fleet.start()
        yield fleet
    finally:
        fleet.stop()


async def submit_orders(journal: Journal, count: int, engine: Any = None) -> list[str]:
    """So many runs, queued."""
    ids = [f"order-{number}" for number in range(count)]
    for run_id in ids:
        await shop.orders.submit(
            shop.Order(run=run_id), journal=journal, run_id=run_id, engine=engine
        )
    return ids


async def all_ended(fleet: Fleet, journal: Journal, ids: list[str], seconds: float) -> None:
    """Wait for all runs, and check that each has ended as if nothing had happened."""
    try:
        async with asyncio.timeout(seconds):
            for run_id in ids:
                result = await shop.orders.result(run_id, journal=journal)
                assert [getattr(node, "step", 5) for node in result.trace] == [0, 1, 2, 3, 4, 5]
    except TimeoutError:
        left = [i async for i in journal.every_run() if i.status != "ended"]
        raise AssertionError(
            f"{len(left)} runs have not ended: {left[:3]}\n{fleet.errors()}"
        ) from None


@dataclass
class Repeats:
    """What the effects of runs say."""

    again: int
    """Effects that began more than once: their process died in between."""
    after_stored: list[str]
    """Effects that began although their result was in the journal."""
    missing: list[str]


async def repeats(fleet: Fleet, journal: Journal, ids: list[str]) -> Repeats:
    """Compare what was done with what is stored."""
    begun: dict[tuple[str, int], list[float]] = defaultdict(list)
    ended: set[tuple[str, int]] = set()
    for at, what, run_id, step, *_ in fleet.effects():
        if what == "begin":
            begun[run_id, int(step)].append(float(at))
        else:
            ended.add((run_id, int(step)))
    after_stored: list[str] = []
    for run_id in ids:
        stored = await journal.read(run_id)  # which refuses a gap
        kept = {line.step - 1: line.at for line in stored.lines if line.kind == "StepStarted"}
        for step in range(shop.STEPS):
            late = [at for at in begun[run_id, step] if at > kept[step]]
            after_stored += [f"{run_id} step {step} at {at}, stored at {kept[step]}" for at in late]
    wanted = {(run_id, step) for run_id in ids for step in range(shop.STEPS)}
    missing = [f"{run_id} step {step}" for run_id, step in sorted(wanted - ended)]
    return Repeats(sum(len(each) - 1 for each in begun.values()), after_stored, missing)
