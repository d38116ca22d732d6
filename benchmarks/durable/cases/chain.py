"""One run after another: the cost of a step that is stored before the next step begins."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.durable.contenders import BAE, BAE_MEMORY, CONTENDERS, FLOOR, LIBRARIES, library
from benchmarks.durable.samples import Ask, Sample, Team, interleave, seconds_of
from benchmarks.report import Result, Verdict, fewer_samples, figure, spread
from benchmarks.sampling import Samples, Settings

STEPS = 500
QUICK_STEPS = 200
MOST_TIMES_FLOOR = 1.6


def measure(people: Team, keys: list[str], settings: Settings) -> list[Result]:
    stored = [key for key in keys if key != BAE_MEMORY]
    return [_table(people, stored, settings, heavy) for heavy in (False, True)]


def _table(people: Team, keys: list[str], settings: Settings, heavy: bool) -> Result:
    steps = QUICK_STEPS if settings.quick else STEPS
    wanted = Ask(steps, heavy)
    samples = interleave(people, keys, wanted, settings.rounds, settings.budget)
    times = seconds_of(samples)
    micros = 1e6 / steps
    nodes = "nodes of 2 KB" if heavy else "small nodes"
    return Result(
        case="chain",
        title=f"A chain of {steps} steps with {nodes}, one run at a time (µs a step)",
        header=["", "median", "lowest–highest", "× floor", "SQLite", "survives a power cut"],
        rows=[
            [
                CONTENDERS[key].name,
                figure(mine.median * micros),
                spread(mine, micros),
                figure(mine.ratio_to(times[FLOOR])) if FLOOR in times else "",
                samples[key][0].pragmas,
                "yes" if CONTENDERS[key].safe else "no",
            ]
            for key, mine in times.items()
        ],
        verdicts=judge(times, nodes),
        notes=fewer_samples(times, {key: CONTENDERS[key].name for key in times}),
        samples=times | {"sizes": _sizes(samples)},
    )


def _sizes(found: Mapping[str, list[Sample]]) -> dict[str, int]:
    return {key: mine[0].size for key, mine in found.items()}


def judge(times: Mapping[str, Samples], nodes: str) -> list[Verdict]:
    floor = f"{nodes}: bae is at most {MOST_TIMES_FLOOR} × the floor"
    ahead = f"{nodes}: bae is ahead of the three at every setting that survives a power cut"
    others = {
        key: mine
        for key, mine in times.items()
        if library(key) in LIBRARIES and CONTENDERS[key].safe
    }
    if BAE not in times or FLOOR not in times:
        why = "bae and the floor are needed"
        return [Verdict("chain", floor, why, None), Verdict("chain", ahead, why, None)]
    ratio = times[BAE].ratio_to(times[FLOOR])
    fastest = {
        name: min(
            (mine.ratio_to(times[BAE]) for key, mine in others.items() if library(key) == name),
            default=0.0,
        )
        for name in LIBRARIES
    }
    shown = ", ".join(f"{_short_name(name)} {fastest[name]:.2f} × bae" for name in LIBRARIES)
    return [
        Verdict("chain", floor, f"{ratio:.2f} ×", ratio <= MOST_TIMES_FLOOR),
        Verdict("chain", ahead, shown, all(one > 1 for one in fastest.values())),
    ]


def _short_name(name: str) -> str:
    return CONTENDERS[name].name.partition(",")[0]
