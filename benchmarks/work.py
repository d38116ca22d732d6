"""The work every contender does, and the answers it must give.

Nothing here knows a framework: contenders take the constants, do the same steps their own way, and
the cases compare what came out with the expected values below. A contender that skipped a step,
took the wrong branch or dropped an item fails the run instead of looking fast.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from pydantic import BaseModel

STEPS = 1_000
"""Length of the chain and of the row of choices."""

CROWD_STEPS = 5
"""Length of each of the many runs that share one event loop."""

MAP_LIMIT = 50
"""Items in flight at once; below the smallest map, so that the bound is felt in every size."""

GRAPH_SIZE = 200
"""Node types in the graph that is only built."""

FANOUT = 2
"""Successors each of those node types declares."""


class WrongAnswer(Exception):
    """A contender did not do the work it was timed for."""


def expect(what: str, found: object, expected: object) -> None:
    """Refuse a result that is not the expected one. No assert: `python -O` must not skip it."""
    if found != expected:
        shown = f"{found!r}"[:200]
        raise WrongAnswer(f"{what}: expected {expected!r}"[:200] + f", got {shown}")


class Outcome(Protocol):
    """The result of a run: any object with the three fields."""

    n: int
    x: float
    label: str


class Point(BaseModel):
    """The three-field state, for contenders whose state is not itself the step."""

    n: int
    x: float
    label: str


CHAIN_START = {"n": 0, "x": 0.0, "label": "chain"}
CHAIN_END = (STEPS, 0.5 * STEPS, "chain")

KINDS = ("red", "green", "blue")
WEIGHTS = (1.0, 2.0, 3.0)
DONE = len(KINDS)


def pick(n: int) -> int:
    """Return which of the three kinds runs as step `n`, or `DONE` at the end of the row."""
    return DONE if n == STEPS else (n * 5 + n // 7) % 3


CHOICE_START = {"n": 0, "x": 0.0, "label": "choices"}
# Each kind adds its own weight, so the sum is right only if the right kinds ran.
CHOICE_END = (STEPS, sum(WEIGHTS[pick(n)] for n in range(STEPS)), "choices")


def crowd_end(index: int) -> tuple[int, float, str]:
    """Return the answer of run number `index` of the crowd."""
    return (CROWD_STEPS, index + 0.5 * CROWD_STEPS, "crowd")


async def square(item: int) -> int:
    """Square an item. Like a real call, it lets other tasks run once."""
    await asyncio.sleep(0)
    return item * item


def squares(items: list[int]) -> list[int]:
    """Return the answer of the map over `items`."""
    return [item * item for item in items]


# Four uneven levels. Waiting for a whole level before the next costs the sum of each level's
# slowest (0.32 s); waiting only for one's own inputs costs the longest path (0.21 s).
DATAFLOW: dict[str, tuple[float, tuple[str, ...]]] = {
    "north": (0.02, ()),
    "south": (0.09, ()),
    "east": (0.04, ()),
    "rain": (0.08, ("north",)),
    "wind": (0.02, ("south",)),
    "tide": (0.03, ("north", "east")),
    "storm": (0.02, ("rain", "wind")),
    "swell": (0.07, ("wind", "tide")),
    "alert": (0.08, ("storm",)),
    "forecast": (0.01, ("swell",)),
}
DATAFLOW_LEVELS = (
    ("north", "south", "east"),
    ("rain", "wind", "tide"),
    ("storm", "swell"),
    ("alert", "forecast"),
)


async def observe(name: str, *inputs: int) -> int:
    """Wait as long as `name` takes, then return a value that depends on every input."""
    await asyncio.sleep(DATAFLOW[name][0])
    return len(name) + 2 * sum(inputs)


def _value(name: str) -> int:
    return len(name) + 2 * sum(_value(need) for need in DATAFLOW[name][1])


def finish_time(name: str) -> float:
    """Return the earliest second at which `name` can have its value."""
    seconds, needs = DATAFLOW[name]
    return seconds + max((finish_time(need) for need in needs), default=0.0)


DATAFLOW_END = (_value("alert"), _value("forecast"))
CRITICAL_PATH = max(finish_time(name) for name in DATAFLOW)
LEVEL_SUM = sum(max(DATAFLOW[name][0] for name in level) for level in DATAFLOW_LEVELS)
