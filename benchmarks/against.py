"""Has a change made bae slower or larger? Measures the bae of this checkout and of another checkout
in turns, each sample in a process of its own:

    git worktree add /tmp/before some-commit
    python -m benchmarks.against /tmp/before

It prints both figures and the ratio of this checkout to the other. Times are processor time of all
threads, so other programs on the machine matter little.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from benchmarks.cases.cold_start import PROGRAMS
from benchmarks.cases.crowd import child
from benchmarks.contenders import BAE, load
from benchmarks.offline import go_offline
from benchmarks.report import figure, spread
from benchmarks.sampling import Samples
from benchmarks.work import STEPS, expect

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 20
CROWD = 10_000
DURABLE_STEPS = 400
DURABLE_RUNS = 100


async def best_of(times: int, work: Callable[[], Awaitable[object]]) -> float:
    """Return the processor time of some work: the best of a few samples."""
    seconds: list[float] = []
    for _ in range(times):
        gc.collect()
        start = time.process_time()
        await work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def chain() -> float:
    """Return the seconds per step of case a1."""
    return asyncio.run(best_of(15, load(BAE).chain())) / STEPS


def choices() -> float:
    """Return the seconds per step of case a2."""
    return asyncio.run(best_of(15, load(BAE).choices())) / STEPS


def build() -> float:
    """Return the seconds to define and build a graph of 200 node types."""
    define = load(BAE).define
    assert define is not None

    async def once() -> None:
        define().build()

    return asyncio.run(best_of(5, once))


def lm_step() -> float:
    """Return the seconds per step that an LLM chooses and fills."""
    from benchmarks.lm_steps import STEPS, with_bae

    return asyncio.run(best_of(6, with_bae)) / STEPS


def cold_start() -> float:
    """Return the seconds of a program that starts, runs two steps and exits."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAMS[BAE], encoding="utf-8")
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def used() -> float:
            before = getrusage(RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, program], env=environment, check=True, stdout=subprocess.DEVNULL
            )
            after = getrusage(RUSAGE_CHILDREN)
            return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

        used()  # compiles bytecode
        return min(used() for _ in range(5))


def crowd() -> float:
    """Return the seconds per run of case d."""
    run = load(BAE).crowd()

    async def measure() -> float:
        await asyncio.gather(*map(run, range(50)))
        return await best_of(1, lambda: asyncio.gather(*map(run, range(CROWD))))

    return asyncio.run(measure()) / CROWD


def durable_step() -> float:
    """Return the seconds per step of one run in a journal file: the best of a few samples."""
    return min(asyncio.run(durable(1, DURABLE_STEPS)) for _ in range(3)) / DURABLE_STEPS


def durable_runs() -> float:
    """Return the seconds per run of five steps, with a hundred runs at once in a journal file: the
    best of a few samples."""
    return min(asyncio.run(durable(DURABLE_RUNS, 5)) for _ in range(5)) / DURABLE_RUNS


async def durable(runs: int, steps: int) -> float:
    """Return the seconds that this number of concurrent runs takes."""
    from benchmarks.durable.contenders.bae_journal import open_store

    with tempfile.TemporaryDirectory() as folder:
        async with open_store(Path(folder), "full") as store:
            await store.run("warm-up", 5, False)
            start = time.process_time()
            await asyncio.gather(*(store.run(f"run-{n}", steps, False) for n in range(runs)))
            return time.process_time() - start


SAMPLES: dict[str, tuple[Callable[[], float], str]] = {
    "chain": (chain, "a1, µs a step"),
    "choices": (choices, "a2, µs a step"),
    "build": (build, "e, µs to define and build"),
    "cold": (cold_start, "g, µs a program"),
    "crowd": (crowd, "d, µs a run"),
    "lm": (lm_step, "a step that an LM chooses and fills, µs"),
    "durable": (durable_step, "a step that a file keeps, µs"),
    "durable-runs": (durable_runs, "a run of five steps, 100 at once that a file keeps, µs"),
}


def sample_in(source: Path, name: str) -> float:
    """Take a sample with the bae of a checkout."""
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.against", "--sample", name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    where, seconds = json.loads(process.stdout.splitlines()[-1])
    expect("the bae that ran", Path(where).resolve(), (source / "bae" / "__init__.py").resolve())
    return float(seconds)


def bytes_in(source: Path) -> float:
    """Return the memory that a run of case d adds."""
    os.environ["PYTHONPATH"] = str(source)
    return child(BAE, CROWD)["bytes"] / CROWD


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sample", choices=SAMPLES, help="print one sample of this checkout alone")
    options = parser.parse_args()
    if options.sample:
        return one_sample(options.sample)
    if options.other is None:
        parser.error("name another checkout")
    sources = {"this": ROOT / "src", "other": options.other / "src"}
    samples = {name: {key: Samples() for key in sources} for name in SAMPLES}
    sizes = {key: Samples() for key in sources}
    for number in range(options.rounds):
        for key in sources if number % 2 else reversed(sources):
            for name in SAMPLES:
                samples[name][key].append(sample_in(sources[key], name))
            sizes[key].append(bytes_in(sources[key]))
    for name, (_, title) in SAMPLES.items():
        show(title, samples[name], 1e6)
    show("d, KiB a run", sizes, 1 / 1024)
    return 0


def one_sample(name: str) -> int:
    """Print which bae ran, and its seconds."""
    go_offline()
    import bae

    print(json.dumps([bae.__file__, SAMPLES[name][0]()]))
    return 0


def show(what: str, found: dict[str, Samples], scale: float) -> None:
    """Print both figures and their ratio."""
    shown = ", ".join(
        f"{key} {figure(mine.median * scale)} ({spread(mine, scale)})"
        for key, mine in found.items()
    )
    print(f"{what}: {shown}; this is {found['this'].ratio_to(found['other']):.3f} × the other")


if __name__ == "__main__":
    sys.exit(main())
