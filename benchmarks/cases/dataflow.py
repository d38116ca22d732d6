"""Case c: ten waits of different lengths in four levels, against the longest path through them.

A framework that starts a wait as soon as its own inputs are there ends with the longest path; one
that finishes a level before it begins the next ends with the sum of each level's slowest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks.contenders import BAE, Contender
from benchmarks.report import DASH, Result, Verdict, figure, notes_of, spread
from benchmarks.sampling import Settings, interleave
from benchmarks.work import CRITICAL_PATH, DATAFLOW_END, LEVEL_SUM, expect

MOST_OVER_PATH = 1.05
ROUNDS = 11


def measure(case: str, contenders: Mapping[str, Contender], settings: Settings) -> Result:
    def check(found: tuple[int, int]) -> None:
        expect("the two forecasts", found, DATAFLOW_END)

    runs = {key: one.dataflow() for key, one in contenders.items() if one.dataflow}
    samples = asyncio.run(interleave(runs, check, settings.at_most(ROUNDS)))
    rows = [
        [
            one.name,
            figure(samples[key].median * 1e3),
            spread(samples[key], 1e3),
            f"{samples[key].median / CRITICAL_PATH - 1:+.1%}",
        ]
        if key in samples
        else [one.name, DASH, DASH, DASH]
        for key, one in contenders.items()
    ]
    target = "bae ends within 5% of the longest path"
    if BAE in samples:
        over = samples[BAE].median / CRITICAL_PATH
        verdict = Verdict(case, target, f"{over - 1:+.1%}", over <= MOST_OVER_PATH)
    else:
        verdict = Verdict(case, target, "bae did not run", None)
    return Result(
        case=case,
        title=f"c. An uneven dependency graph, longest path {CRITICAL_PATH * 1e3:.0f} ms (ms)",
        header=["", "median", "lowest–highest", "over the longest path"],
        rows=rows,
        verdicts=[verdict],
        notes=[
            f"Level by level it would take {LEVEL_SUM * 1e3:.0f} ms.",
            *notes_of(contenders.values(), case),
        ],
        samples=samples,
    )
