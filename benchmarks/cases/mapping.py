"""Case b: what one item of a concurrent map costs, and whether that stays flat as the map grows.

The floor is a semaphore and a task group, as most people would write it; a pool of workers, which
is faster, is shown beside it. Contenders that can bound what is in flight use the same bound. A
contender that would take minutes for the next size, by its last figure, is left out of that size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks.contenders import BAE, FLOOR, Contender
from benchmarks.contenders.floor import map_pool
from benchmarks.report import DASH, Result, Verdict, fewer_samples, figure, notes_of
from benchmarks.sampling import Samples, Settings, interleave, say
from benchmarks.work import MAP_LIMIT, expect, squares

SIZES = (100, 1_000, 10_000)
ROUNDS = {100: 15, 1_000: 11, 10_000: 7}
POOL = "pool"
MOST_TIMES_FLOOR = 4.0
MOST_GROWTH = 1.5
"""Flat means: the most expensive size costs at most this much more per item than the cheapest."""


def too_slow(last: Samples, growth: float, settings: Settings) -> bool:
    # Linear growth is the kindest guess there is, so no contender is left out for a bad projection.
    return last.median * growth > (5 if settings.quick else settings.budget * 0.75)


def measure(case: str, contenders: Mapping[str, Contender], settings: Settings) -> Result:
    names = {key: one.name for key, one in contenders.items()} | {POOL: "by hand, as a pool"}
    field = {key: one.map_items for key, one in contenders.items() if one.map_items}
    field[POOL] = map_pool
    by_size: dict[int, dict[str, Samples]] = {}
    notes = [f"At most {MAP_LIMIT} items in flight, where a contender can be told so."]
    notes += notes_of(contenders.values(), case)
    last: dict[str, Samples] = {}
    for at, size in enumerate(SIZES):
        items = list(range(size))
        expected = squares(items)
        for key in list(field):
            if key in last and too_slow(last[key], size / SIZES[at - 1], settings):
                del field[key]
                notes.append(
                    f"{names[key]}: not run at {size:,}; {SIZES[at - 1]:,} items "
                    f"took it {last[key].median:.1f} s."
                )
        runs = {key: make(items) for key, make in field.items()}
        say(f"  {size:,} items")

        def check(found: list[int], expected: list[int] = expected) -> None:
            expect(f"a map over {len(expected)} items", found, expected)

        last = asyncio.run(interleave(runs, check, settings.at_most(ROUNDS[size])))
        by_size[size] = last
        notes += fewer_samples(last, names, f" at {size:,}")

    def cells(key: str) -> list[str]:
        found = [(by_size[size].get(key), by_size[size][FLOOR], size) for size in SIZES]
        costs = [figure(mine.median / size * 1e6) if mine else DASH for mine, _, size in found]
        times = [figure(mine.ratio_to(floor)) if mine else DASH for mine, floor, _ in found]
        return [names[key], *costs, *times]

    return Result(
        case=case,
        title="b. A map over a list (µs an item)",
        header=["", *(f"{n:,} items" for n in SIZES), *(f"× floor at {n:,}" for n in SIZES)],
        rows=[cells(key) for key in by_size[SIZES[0]]],
        verdicts=judge(case, by_size),
        notes=notes,
        samples={str(size): found for size, found in by_size.items()},
    )


def judge(case: str, by_size: Mapping[int, Mapping[str, Samples]]) -> list[Verdict]:
    times = f"bae is at most {MOST_TIMES_FLOOR:g} × the floor at every size"
    flat = f"bae's cost an item is flat (at most {MOST_GROWTH} × between sizes)"
    if not all(BAE in found for found in by_size.values()):
        return [Verdict(case, target, "bae did not run", None) for target in (times, flat)]
    ratios = {size: found[BAE].ratio_to(found[FLOOR]) for size, found in by_size.items()}
    costs = [found[BAE].median / size for size, found in by_size.items()]
    growth = max(costs) / min(costs)
    floors = [found[FLOOR].median / size for size, found in by_size.items()]
    return [
        Verdict(
            case,
            times,
            ", ".join(f"{ratio:.2f} × at {size:,}" for size, ratio in ratios.items()),
            max(ratios.values()) <= MOST_TIMES_FLOOR,
        ),
        Verdict(
            case,
            flat,
            f"{growth:.2f} ×, the floor {max(floors) / min(floors):.2f} ×",
            growth <= MOST_GROWTH,
        ),
    ]
