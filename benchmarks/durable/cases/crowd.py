"""Many runs at once on one event loop and one store: the cost of a step."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.durable.contenders import BAE, BAE_NORMAL, BY_HAND, CONTENDERS
from benchmarks.durable.samples import Ask, Team, interleave, seconds_of
from benchmarks.report import DASH, Result, Verdict, fewer_samples, figure, spread
from benchmarks.sampling import Samples, Settings

SIZES = (100, 1_000)
STEPS = 10
TAKING_PART = (BY_HAND, BAE, BAE_NORMAL, "burr-wal", "langgraph-sync", "dbos-wal")
LONGEST = 40.0
"""Seconds: what would take a contender longer than this is not asked of it."""
MOST_TIMES_HAND = 3.0


def measure(people: Team, keys: list[str], settings: Settings) -> list[Result]:
    mine = [key for key in keys if key in TAKING_PART]
    results: list[Result] = []
    before: dict[str, Samples] = {}
    for runs in SIZES:
        slow = [key for key in mine if _guess(before.get(key), runs) > _longest(settings)]
        able = [key for key in mine if key not in slow]
        samples = interleave(people, able, Ask(STEPS, runs=runs), settings.rounds, settings.budget)
        before = seconds_of(samples)
        results.append(_table(before, slow, runs))
    return results


def _longest(settings: Settings) -> float:
    return LONGEST / 5 if settings.quick else LONGEST


def _guess(before: Samples | None, runs: int) -> float:
    return before.median * runs / SIZES[0] if before else 0.0


def _table(times: Mapping[str, Samples], slow: list[str], runs: int) -> Result:
    micros = 1e6 / (STEPS * runs)
    hand = times.get(BY_HAND)
    names = {key: CONTENDERS[key].name for key in [*times, *slow]}
    return Result(
        case="crowd",
        title=f"{runs:,} runs of {STEPS} steps at once (µs a step)",
        header=["", "median", "lowest–highest", "× by hand"],
        rows=[
            [
                names[key],
                figure(mine.median * micros),
                spread(mine, micros),
                figure(mine.ratio_to(hand)) if hand else DASH,
            ]
            for key, mine in times.items()
        ],
        verdicts=[judge(times, runs)],
        notes=[
            *fewer_samples(times, names),
            *(f"{names[key]}: not run, it would take over half a minute." for key in slow),
        ],
        samples=dict(times),
    )


def judge(times: Mapping[str, Samples], runs: int) -> Verdict:
    target = f"{runs:,} runs at once: bae is at most {MOST_TIMES_HAND:g} × a group commit by hand"
    if BAE not in times or BY_HAND not in times:
        return Verdict("crowd", target, "bae and the one by hand are needed", None)
    ratio = times[BAE].ratio_to(times[BY_HAND])
    return Verdict("crowd", target, f"{ratio:.2f} ×", ratio <= MOST_TIMES_HAND)
