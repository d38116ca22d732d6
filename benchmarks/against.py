"""Has a change made runs without a stored journal slower or larger? The cases a1 and d with the bae
of this checkout and with that of another one, in turns, each sample in a process of its own:

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


def crowd_in(source: Path) -> dict[str, float]:
    """A smaller case d: its seconds and its bytes."""
    os.environ["PYTHONPATH"] = str(source)
    return child(BAE, CROWD)


def main() -> int:
    made = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    made.add_argument("other", type=Path, help="another checkout of this repository")
    made.add_argument("--rounds", type=int, default=ROUNDS)
    options = made.parse_args()
    sources = {"this": ROOT / "src", "other": options.other / "src"}
    steps, times, sizes = ({key: Samples() for key in sources} for _ in range(3))
    for number in range(options.rounds):
        for key in sources if number % 2 else reversed(sources):
            steps[key].append(chain_in(sources[key]))
            crowd = crowd_in(sources[key])
            times[key].append(crowd["seconds"])
            sizes[key].append(crowd["bytes"])
    show("a1, µs a step", steps, 1e6 / STEPS)
    show("d, µs a run", times, 1e6 / CROWD)
    show("d, KiB a run", sizes, 1 / 1024 / CROWD)
    return 0


def show(what: str, found: dict[str, Samples], scale: float) -> None:
    """Both, and their ratio."""
    shown = ", ".join(
        f"{key} {figure(mine.median * scale)} ({spread(mine, scale)})"
        for key, mine in found.items()
    )
    print(f"{what}: {shown}; this is {found['this'].ratio_to(found['other']):.3f} × the other")


if __name__ == "__main__":
    if "--chain" in sys.argv:
        go_offline()
        import bae

        print(json.dumps([bae.__file__, chain()]))
    else:
        sys.exit(main())
