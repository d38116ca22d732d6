"""Cases a1 and a2: what a framework adds to a step that does nothing but build the next model.

a1 is a loop of one node type, a2 picks one of three at every step by the user's own code. Overhead
is the time above the floor, which does the same steps with no framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks.contenders import BAE, FLOOR, Contender
from benchmarks.report import DASH, Result, Verdict, fewer_samples, figure, notes_of, spread
from benchmarks.sampling import Samples, Settings, interleave
from benchmarks.work import CHAIN_END, CHOICE_END, STEPS, Outcome, expect

TITLES = {
    "a1": f"a1. A chain of {STEPS:,} steps, each building a three-field model (µs a step)",
    "a2": f"a2. A chain of {STEPS:,} three-way choices (µs a step)",
}
MOST_TIMES_FLOOR = 2.5
MOST_OF_SMALLEST = 0.1


def measure(case: str, contenders: Mapping[str, Contender], settings: Settings) -> Result:
    expected = CHAIN_END if case == "a1" else CHOICE_END

    def check(outcome: Outcome) -> None:
        expect(case, (outcome.n, outcome.x, outcome.label), expected)

    runs = {key: one.chain() if case == "a1" else one.choices() for key, one in contenders.items()}
    samples = asyncio.run(interleave(runs, check, settings))
    micros = 1e6 / STEPS
    floor = samples[FLOOR]
    rows = [
        [
            contenders[key].name,
            figure(mine.median * micros),
            spread(mine, micros),
            DASH if key == FLOOR else figure(mine.minus(floor) * micros),
            figure(mine.ratio_to(floor)),
        ]
        for key, mine in samples.items()
    ]
    return Result(
        case=case,
        title=TITLES[case],
        header=["", "median", "lowest–highest", "overhead", "× floor"],
        rows=rows,
        verdicts=judge(case, samples, contenders),
        notes=[
            *notes_of(contenders.values(), case),
            *fewer_samples(samples, {key: one.name for key, one in contenders.items()}),
        ],
        samples=samples,
    )


def judge(
    case: str, samples: Mapping[str, Samples], contenders: Mapping[str, Contender]
) -> list[Verdict]:
    times = f"bae is at most {MOST_TIMES_FLOOR} × the floor"
    share = "bae's overhead is at most 1/10 of the smallest among the others"
    others = {key: mine for key, mine in samples.items() if key not in (FLOOR, BAE)}
    if BAE not in samples or not others:
        why = "bae and at least one other are needed"
        return [Verdict(case, times, why, None), Verdict(case, share, why, None)]
    floor, mine = samples[FLOOR], samples[BAE]
    overheads = {key: other.minus(floor) for key, other in others.items()}
    smallest = min(overheads, key=overheads.__getitem__)
    part = mine.minus(floor) / overheads[smallest]
    ratio = mine.ratio_to(floor)
    return [
        Verdict(case, times, f"{ratio:.2f} ×", ratio <= MOST_TIMES_FLOOR),
        Verdict(
            case, share, f"{part:.3f} of {contenders[smallest].name}'s", part <= MOST_OF_SMALLEST
        ),
    ]
