"""Takes samples, each contender in a process of its own that lives as long as the benchmark does
and works only when it is asked to. Run as a module, this file is such a process.

Every sample has a new store in a new folder, one short run before the clock starts, and a check of
what came out.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.durable.contenders import CONTENDERS, Opened
from benchmarks.durable.work import check
from benchmarks.offline import go_offline
from benchmarks.sampling import Samples, say, turns

WARM_UP = 20
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ask:
    """The size of one sample: the number of concurrent runs and of steps in each."""

    steps: int
    heavy: bool = False
    runs: int = 1
    warm: bool = True
    resume: bool = False
    """Whether the time is that of finishing runs that were interrupted at their last step."""


@dataclass(frozen=True)
class Sample:
    """The result of a sample. `size` is the size of all files of the store after it is closed."""

    seconds: float
    size: int
    pragmas: str


class Team:
    """The processes, by contender, and the folder their stores are made in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def ask(self, key: str, wanted: Ask) -> Sample:
        """Take one sample of one contender while no other contender runs."""
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = _start_process(key, self.folder)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(wanted)) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{CONTENDERS[key].name} gave up on {wanted}: see above")
        return Sample(**json.loads(line))

    def close(self) -> None:
        for process in self._processes.values():
            process.communicate()


def _start_process(key: str, folder: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", __name__, key, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def team(folder: Path | None) -> Iterator[Team]:
    """Yield the processes. They end with the block, and their stored files are deleted."""
    with TemporaryDirectory(prefix="bae-durable-", dir=folder) as temporary:
        processes = Team(Path(temporary))
        try:
            yield processes
        finally:
            processes.close()


def interleave(
    people: Team, keys: Iterable[str], wanted: Ask, rounds: int, budget: float
) -> dict[str, list[Sample]]:
    """Take a sample of each contender in every round, and change the order from round to round. A
    contender that has spent `budget` seconds sits out the remaining rounds."""
    keys = list(keys)
    samples: dict[str, list[Sample]] = {key: [] for key in keys}
    spent = dict.fromkeys(keys, 0.0)
    for number, order in enumerate(turns(keys, rounds)):
        for key in order:
            if number and spent[key] + samples[key][-1].seconds > budget:
                continue
            start = time.perf_counter()
            samples[key].append(people.ask(key, wanted))
            spent[key] += time.perf_counter() - start
    return samples


def seconds_of(found: Mapping[str, list[Sample]]) -> dict[str, Samples]:
    """Return only the times."""
    return {key: Samples(one.seconds for one in mine) for key, mine in found.items()}


async def _sample(key: str, wanted: Ask, folder: Path) -> Sample:
    open_store = CONTENDERS[key].load()
    with TemporaryDirectory(dir=folder) as temporary:
        store = Path(temporary)
        async with open_store(store, CONTENDERS[key].setting) as ready:
            if wanted.warm:
                check(await ready.run("warm-up", WARM_UP, wanted.heavy), WARM_UP, wanted.heavy)
            if ready.prepare is not None:
                await ready.prepare(wanted.steps, wanted.heavy)
            gc.collect()
            seconds = await (_time_resume if wanted.resume else _run)(ready, wanted)
            pragmas = ready.pragmas()
        return Sample(seconds, _size(store), pragmas)


async def _run(ready: Opened, wanted: Ask) -> float:
    names = [f"run-{number}" for number in range(wanted.runs)]
    start = time.perf_counter()
    if wanted.runs == 1:
        outcomes = [await ready.run(names[0], wanted.steps, wanted.heavy)]
    else:
        outcomes = await asyncio.gather(
            *(ready.run(name, wanted.steps, wanted.heavy) for name in names)
        )
    seconds = time.perf_counter() - start
    for outcome in outcomes:
        check(outcome, wanted.steps, wanted.heavy)
    return seconds


async def _time_resume(ready: Opened, wanted: Ask) -> float:
    assert ready.interrupt is not None
    assert ready.resume is not None
    await ready.interrupt("interrupted", wanted.steps, wanted.heavy)
    start = time.perf_counter()
    outcome = await ready.resume("interrupted", wanted.heavy)
    seconds = time.perf_counter() - start
    check(outcome, wanted.steps, wanted.heavy)
    return seconds


def _size(store: Path) -> int:
    """Return the size of all files, after the log is merged into the database file."""
    connection = sqlite3.connect(store / "store.db")
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    return sum(file.stat().st_size for file in store.iterdir())


def main(arguments: list[str]) -> None:
    key, folder = arguments
    go_offline()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a library is not a reply
    for line in sys.stdin:
        wanted: dict[str, Any] = json.loads(line)
        sample = asyncio.run(_sample(key, Ask(**wanted), Path(folder)))
        replies.write(json.dumps(asdict(sample)) + "\n")
        replies.flush()


def available(keys: Iterable[str]) -> list[str]:
    """Return the contenders whose libraries are installed."""
    installed: list[str] = []
    for key in keys:
        try:
            CONTENDERS[key].load()
        except ImportError as error:
            say(f"{key} takes no part: {error}")
        else:
            installed.append(key)
    return installed


if __name__ == "__main__":
    main(sys.argv[1:])
