"""How large the files of a store are after so many steps with nodes of 2 KB."""

from __future__ import annotations

from benchmarks.durable.contenders import BAE, CONTENDERS, FLOOR, LIBRARIES, library
from benchmarks.durable.samples import Ask, Team
from benchmarks.report import Result, Verdict
from benchmarks.sampling import Settings

LENGTHS = (250, 500, 1_000, 2_000)
TAKING_PART = (FLOOR, BAE, "burr-wal", "langgraph-sync", "dbos-wal")
MOST_UNEVEN = 1.05
"""The last thousand steps against the five hundred before them, a step."""


def measure(people: Team, keys: list[str], settings: Settings) -> list[Result]:
    mine = [key for key in keys if key in TAKING_PART]
    sizes = {
        key: [people.ask(key, Ask(steps, True, warm=False)).size for steps in LENGTHS]
        for key in mine
    }
    return [
        Result(
            case="size",
            title="Size on disk with nodes of 2 KB, all files of the store (KB)",
            header=["", *(f"{steps:,} steps" for steps in LENGTHS), "bytes a step"],
            rows=[
                [
                    CONTENDERS[key].name,
                    *(f"{size / 1000:,.0f}" for size in found),
                    f"{_slope(found, 2):,.0f}",
                ]
                for key, found in sizes.items()
            ],
            verdicts=judge(sizes),
            notes=[
                "Measured when the store is closed and its log is in the file; what a step adds is "
                f"taken between {LENGTHS[-2]:,} and {LENGTHS[-1]:,}."
            ],
            samples=dict(sizes),
        )
    ]


def _slope(found: list[int], at: int) -> float:
    return (found[at + 1] - found[at]) / (LENGTHS[at + 1] - LENGTHS[at])


def judge(sizes: dict[str, list[int]]) -> list[Verdict]:
    linear = "bae's store grows linearly"
    smallest = "bae's store is the smallest after 1,000 steps"
    others = {key: found for key, found in sizes.items() if library(key) in LIBRARIES}
    if BAE not in sizes or not others:
        why = "bae and at least one other are needed"
        return [Verdict("size", linear, why, None), Verdict("size", smallest, why, None)]
    uneven = _slope(sizes[BAE], 2) / _slope(sizes[BAE], 1)
    at = LENGTHS.index(1_000)
    next_one = min(others, key=lambda key: others[key][at])
    mine, theirs = sizes[BAE][at], others[next_one][at]
    return [
        Verdict(
            "size",
            linear,
            f"{_slope(sizes[BAE], 1):,.0f} bytes a step, then {_slope(sizes[BAE], 2):,.0f}",
            1 / MOST_UNEVEN <= uneven <= MOST_UNEVEN,
        ),
        Verdict(
            "size",
            smallest,
            f"{mine / 1000:,.0f} KB, {CONTENDERS[next_one].name} {theirs / 1000:,.0f} KB",
            mine < theirs,
        ),
    ]
