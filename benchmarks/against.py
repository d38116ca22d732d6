"""Has a change made bae slower or larger? The bae of this checkout and that of another one, in
turns, each sample in a process of its own:

    git worktree add /tmp/before some-commit
    python -m benchmarks.against /tmp/before

It prints both and the ratio of this one to the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.cases.crowd import child
from benchmarks.contenders import BAE, load
from benchmarks.offline import go_offline
from benchmarks.report import figure, spread
from benchmarks.sampling import Samples, Settings, interleave
from benchmarks.work import CHAIN_END, STEPS, Outcome, expect

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 15
CROWD = 3_000
DURABLE_STEPS = 400
DURABLE_RUNS = 100


def chain() -> float:
    """Seconds a step of a1: the best of a few runs."""

    def check(outcome: Outcome) -> None:
        expect("a1", (outcome.n, outcome.x, outcome.label), CHAIN_END)

    runs = {BAE: load(BAE).chain()}
    return min(asyncio.run(interleave(runs, check, Settings(rounds=5)))[BAE]) / STEPS


def build() -> float:
    """Seconds to define and build a graph of 200 node types: the best of a few."""
    define = load(BAE).define
    assert define is not None

    def once() -> float:
        start = time.perf_counter()
        define().build()
        return time.perf_counter() - start

    return min(once() for _ in range(5))


def lm_step() -> float:
    """Seconds a step that an LM chooses and fills: the best of a few runs."""
    from benchmarks.lm_steps import STEPS, with_bae

    async def best() -> float:
        taken: list[float] = []
        for _ in range(6):
            start = time.perf_counter()
            await with_bae()
            taken.append(time.perf_counter() - start)
        return min(taken)

    return asyncio.run(best()) / STEPS


def durable_step() -> float:
    """Seconds a step of one run that a file keeps: the best of a few."""
    return min(asyncio.run(durable(1, DURABLE_STEPS)) for _ in range(3)) / DURABLE_STEPS


def durable_runs() -> float:
    """Seconds a run of five steps, of a hundred at once that a file keeps: the best of a few."""
    return min(asyncio.run(durable(DURABLE_RUNS, 5)) for _ in range(5)) / DURABLE_RUNS


async def durable(runs: int, steps: int) -> float:
    """Seconds that so many runs at once take."""
    from benchmarks.durable.contenders.bae_journal import opened

    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder), "full") as store:
            await store.run("warm-up", 5, False)
            start = time.perf_counter()
            await asyncio.gather(*(store.run(f"run-{n}", steps, False) for n in range(runs)))
            return time.perf_counter() - start


SAMPLES: dict[str, tuple[Callable[[], float], str]] = {
    "chain": (chain, "a1, µs a step"),
    "build": (build, "e, µs to define and build"),
    "lm": (lm_step, "a step that an LM chooses and fills, µs"),
    "durable": (durable_step, "a step that a file keeps, µs"),
    "durable-runs": (durable_runs, "a run of five steps, 100 at once that a file keeps, µs"),
}


def sample_in(source: Path, name: str) -> float:
    """A sample with the bae of some checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.against", "--sample", name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    where, seconds = json.loads(done.stdout.splitlines()[-1])
    expect("the bae that ran", Path(where).resolve(), (source / "bae" / "__init__.py").resolve())
    return float(seconds)


def crowd_in(source: Path) -> dict[str, float]:
    """A smaller case d: its seconds and its bytes."""
    os.environ["PYTHONPATH"] = str(source)
    return child(BAE, CROWD)


def main() -> int:
    made = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    made.add_argument("other", type=Path, nargs="?", help="another checkout of this repository")
    made.add_argument("--rounds", type=int, default=ROUNDS)
    made.add_argument("--sample", choices=SAMPLES, help="print one sample of this checkout alone")
    options = made.parse_args()
    if options.sample:
        return one_sample(options.sample)
    if options.other is None:
        made.error("name another checkout")
    sources = {"this": ROOT / "src", "other": options.other / "src"}
    found = {name: {key: Samples() for key in sources} for name in SAMPLES}
    times, sizes = ({key: Samples() for key in sources} for _ in range(2))
    for number in range(options.rounds):
        for key in sources if number % 2 else reversed(sources):
            for name in SAMPLES:
                found[name][key].append(sample_in(sources[key], name))
            crowd = crowd_in(sources[key])
            times[key].append(crowd["seconds"])
            sizes[key].append(crowd["bytes"])
    for name, (_, title) in SAMPLES.items():
        show(title, found[name], 1e6)
    show("d, µs a run", times, 1e6 / CROWD)
    show("d, KiB a run", sizes, 1 / 1024 / CROWD)
    return 0


def one_sample(name: str) -> int:
    """Print which bae ran, and its seconds."""
    go_offline()
    import bae

    print(json.dumps([bae.__file__, SAMPLES[name][0]()]))
    return 0


def show(what: str, found: dict[str, Samples], scale: float) -> None:
    """Both, and their ratio."""
    shown = ", ".join(
        f"{key} {figure(mine.median * scale)} ({spread(mine, scale)})"
        for key, mine in found.items()
    )
    print(f"{what}: {shown}; this is {found['this'].ratio_to(found['other']):.3f} × the other")


if __name__ == "__main__":
    sys.exit(main())
