"""Case d: many short runs at once on one event loop, each contender in a process of its own.

Every step gives up the loop once, so all runs are in flight together, which the child process
checks. It times the crowd and reads the memory it added. Run as a module, this file is that child.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.contenders import BAE, FLOOR, Contender, load
from benchmarks.memory import peak, reset_peak
from benchmarks.offline import go_offline
from benchmarks.report import DASH, Result, Verdict, figure, notes_of, spread
from benchmarks.sampling import Samples, Settings, say, turns
from benchmarks.work import CROWD_STEPS, Outcome, crowd_end, expect

SIZE = 10_000
QUICK_SIZE = 1_000
WARM_UP = 50
ROUNDS = 5
BUDGETS = 3
"""The slowest take half a minute a sample; this lets them have three samples all the same."""
MOST_TIMES_FLOOR = 2.5
ROOT = Path(__file__).resolve().parents[2]


async def _crowd(contender: Contender, size: int) -> dict[str, float]:
    run = contender.crowd()
    in_flight = most_in_flight = 0

    async def one(index: int) -> Outcome:
        nonlocal in_flight, most_in_flight
        in_flight += 1
        most_in_flight = max(most_in_flight, in_flight)
        outcome = await run(index)
        in_flight -= 1
        return outcome

    await asyncio.gather(*(one(index) for index in range(WARM_UP)))
    gc.collect()
    reset_peak()
    before = peak()
    start = time.perf_counter()
    outcomes = await asyncio.gather(*(one(index) for index in range(size)))
    seconds = time.perf_counter() - start
    added = peak() - before
    for index, outcome in enumerate(outcomes):
        expect(f"run {index}", (outcome.n, outcome.x, outcome.label), crowd_end(index))
    expect("runs in flight at once", most_in_flight, size)
    return {"seconds": seconds, "bytes": added}


def child(key: str, size: int) -> dict[str, float]:
    """Measure one contender in a fresh process."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, "-m", __name__, key, str(size)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"case d, {key}: {process.stderr.strip()[-2000:]}")
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


def measure(case: str, contenders: Mapping[str, Contender], settings: Settings) -> Result:
    size = QUICK_SIZE if settings.quick else SIZE
    rounds = min(settings.rounds, ROUNDS)
    times = {key: Samples() for key in contenders}
    memory: dict[str, list[float]] = {key: [] for key in contenders}
    for number, order in enumerate(turns(list(contenders), rounds)):
        say(f"  round {number + 1} of {rounds}")
        for key in order:
            if number and sum(times[key]) + times[key].median > BUDGETS * settings.budget:
                continue
            sample = child(key, size)
            times[key].append(sample["seconds"])
            memory[key].append(sample["bytes"])
    held = {key: statistics.median(found) / size for key, found in memory.items()}
    micros = 1e6 / size
    rows = [
        [
            one.name,
            figure(times[key].median * micros),
            spread(times[key], micros),
            DASH if key == FLOOR else figure(times[key].ratio_to(times[FLOOR])),
            figure(held[key] / 1024),
            str(len(times[key])),
        ]
        for key, one in contenders.items()
    ]
    return Result(
        case=case,
        title=f"d. {size:,} concurrent runs of {CROWD_STEPS} steps on one loop",
        header=["", "µs a run", "lowest–highest", "× floor", "KiB a run", "samples"],
        rows=rows,
        verdicts=judge(case, times, held, contenders, whole=size == SIZE),
        notes=notes_of(contenders.values(), case),
        samples={"seconds": times, "bytes": memory},
    )


def judge(
    case: str,
    times: Mapping[str, Samples],
    held: Mapping[str, float],
    contenders: Mapping[str, Contender],
    *,
    whole: bool,
) -> list[Verdict]:
    """Return the verdicts. A smaller crowd has none, because the garbage collector's share grows
    with the crowd."""
    faster = f"bae is at most {MOST_TIMES_FLOOR} × the floor"
    leaner = "bae holds less memory a run than any other but the floor"
    others = [key for key in held if key not in (FLOOR, BAE)]
    if BAE not in held or not others:
        why = "bae and at least one other are needed"
        return [Verdict(case, faster, why, None), Verdict(case, leaner, why, None)]
    ratio = times[BAE].ratio_to(times[FLOOR])
    least = min(others, key=held.__getitem__)
    sizes = f"{held[BAE] / 1024:.1f} KiB, {contenders[least].name} {held[least] / 1024:.1f} KiB"
    return [
        Verdict(case, faster, f"{ratio:.2f} ×", ratio <= MOST_TIMES_FLOOR if whole else None),
        Verdict(case, leaner, sizes, held[BAE] < held[least] if whole else None),
    ]


def main(arguments: list[str]) -> None:
    key, size = arguments
    go_offline()
    figures: dict[str, Any] = asyncio.run(_crowd(load(key), int(size)))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
