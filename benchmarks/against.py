"""Has a change made runs without a journal slower? The cases a1 and d with this checkout's bae and
that of another checkout, in turns, each sample in a process of its own:

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


def check(outcome: Outcome) -> None:
    expect("a1", (outcome.n, outcome.x, outcome.label), CHAIN_END)


def chain() -> float:
    """Seconds of the best of a few runs of a1 in this process."""
    runs = {BAE: load(BAE).chain()}
    return min(asyncio.run(interleave(runs, check, Settings(rounds=5)))[BAE])


def chain_in(source: Path) -> float:
    """The same with the bae of another checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.against", "--chain"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])},
        capture_output=True,
        text=True,
        check=True,
    )
    where, seconds = json.loads(done.stdout.splitlines()[-1])
    expect("the bae that ran", Path(where).resolve(), (source / "bae" / "__init__.py").resolve())
    return float(seconds)


def crowd_in(source: Path) -> float:
    """Seconds of a smaller case d."""
    os.environ["PYTHONPATH"] = str(source)
    return child(BAE, CROWD)["seconds"]


def main() -> int:
    made = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    made.add_argument("other", type=Path, help="another checkout of this repository")
    made.add_argument("--rounds", type=int, default=ROUNDS)
    options = made.parse_args()
    sources = {"this": ROOT / "src", "other": options.other / "src"}
    for name, take, unit in (("a1", chain_in, 1e6 / STEPS), ("d", crowd_in, 1e6 / CROWD)):
        found = {key: Samples() for key in sources}
        for number in range(options.rounds):
            for key in sources if number % 2 else reversed(sources):
                found[key].append(take(sources[key]))
        for key, mine in found.items():
            print(f"{name:3} {key:6} {figure(mine.median * unit)} µs ({spread(mine, unit)})")
        print(f"{name:3} this / other: {found['this'].ratio_to(found['other']):.3f}", flush=True)
    return 0


if __name__ == "__main__":
    if "--chain" in sys.argv:
        go_offline()
        import bae

        print(json.dumps([bae.__file__, chain()]))
    else:
        sys.exit(main())
