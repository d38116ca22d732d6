"""Sixty runs on three workers, one of which is killed before your eyes: `make scale-demo`.

The journal is in Postgres and Temporal hands the runs to workers. Both servers come from PyPI and
run on this machine while the demo does; nothing leaves it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from orders import STEPS, Order, graph
from servers import postgres, temporal
from worker import LEASE

from bae.engine import TemporalEngine, queue_status
from bae.journal import Journal, PostgresJournal

HERE = Path(__file__).resolve().parent
RUNS = 60
PATIENCE = 300


class Workers:
    """The worker processes, by name."""

    def __init__(self, url: str, address: str, folder: Path) -> None:
        self._arguments = [str(HERE / "worker.py"), url, address]
        self.folder, self.log = folder, folder / "steps"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        variables = {**os.environ, "SCALE_LOG": str(self.log), "SCALE_WORKER": name}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *self._arguments], env=variables, stdout=log, stderr=log
            )

    def steps(self) -> list[tuple[str, str]]:
        """Return the worker of each step that has begun, with the step."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [(worker, step) for worker, _, step in (line.partition(" ") for line in lines)]

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


def main() -> int:
    """Run the demo, and print its outcome."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bae-scale-")))
        url = stack.enter_context(postgres(folder))
        address = stack.enter_context(temporal(folder))
        print(f"Postgres is at {url}, and Temporal at {address}.")
        workers = Workers(url, address, folder)
        stack.callback(workers.stop)
        code = asyncio.run(watch(url, address, workers))
        os.environ["BAE_JOURNAL"] = url
        bae("engine", "status")
        bae("runs", "list", "--limit", "3")
    return code


async def watch(url: str, address: str, workers: Workers) -> int:
    """Submit the runs, kill a worker, and wait until all runs have ended."""
    async with PostgresJournal(url, lease=LEASE) as journal:
        await journal.upgrade()
        for name in ("worker-1", "worker-2", "worker-3"):
            workers.start(name)
        engine = TemporalEngine(address, heartbeat=LEASE)
        for number in range(RUNS):
            run_id = f"order-{number}"
            await graph.submit(Order(number=number), journal=journal, run_id=run_id, engine=engine)
        print(f"{RUNS} runs of {len(STEPS)} steps are submitted; three workers start.\n")
        begun, victim, killed = time.monotonic(), workers.processes["worker-2"], False
        while (ended := await show(journal, begun)) < RUNS:
            if not killed and Counter(worker for worker, _ in workers.steps())["worker-2"] >= 20:
                killed = True
                print(f"\n$ kill -9 {victim.pid}   # worker-2, at work on five runs\n")
                victim.kill()
            if time.monotonic() - begun > PATIENCE:
                print(f"only {ended} of {RUNS} runs have ended", file=sys.stderr)
                return 1
            await asyncio.sleep(1)
        return await report(journal, workers)


async def show(journal: Journal, begun: float) -> int:
    """Print the status of the runs, and return how many have ended."""
    status = await queue_status(journal)
    ended = len(await journal.runs(status="ended", limit=RUNS))
    counts = f"{status.queued.total():3} queued, {status.running.total():3} in progress"
    counts += f", {status.interrupted.total():3} interrupted, {ended:3} ended"
    owners = ", ".join(str(count) for count in sorted(status.owners.values(), reverse=True))
    print(
        f"{time.monotonic() - begun:5.1f} s  {counts}   by worker: {owners or 'none'}", flush=True
    )
    return ended


async def report(journal: Journal, workers: Workers) -> int:
    """Compare the real effects with the expected effects."""
    steps = workers.steps()
    by_worker = ", ".join(
        f"{name}: {count}" for name, count in sorted(Counter(w for w, _ in steps).items())
    )
    times = Counter(step for _, step in steps)
    again = sorted(step for step, count in times.items() if count > 1)
    print(f"\nAll {RUNS} runs have ended. Steps begun, {by_worker}.")
    print(f"Begun again, since their worker was killed in them: {', '.join(again) or 'none'}.")
    wanted = {f"{number} {step}" for number in range(RUNS) for step in STEPS}
    results = [await graph.result(f"order-{number}", journal=journal) for number in range(RUNS)]
    is_complete = times.keys() == wanted and [r.result.number for r in results] == [*range(RUNS)]
    print("Every step of every run was done." if is_complete else "Steps are missing.")
    return 0 if is_complete else 1


def bae(*arguments: str) -> None:
    """Print a command of bae, and run it."""
    print(f"\n$ bae {shlex.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "bae", *arguments], check=False)


def end_on(number: int, frame: FrameType | None) -> None:
    """Clean up as after Ctrl-C, if a signal ends the process or its terminal is closed."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end_on)
    raise SystemExit(main())
