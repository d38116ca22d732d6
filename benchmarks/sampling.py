"""Takes samples in turn: every round each contender runs once, and the order turns round by round.

A slow minute of the machine then falls on all contenders alike, and ratios are taken inside a
round before their median is. Set-up and a checked warm-up run come before the clock starts.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """How long to measure."""

    rounds: int = 15
    sample_seconds: float = 0.05
    """Short runs are repeated until a sample takes about this long."""
    budget: float = 45.0
    """A contender that has spent this many seconds in one table sits out the rounds left."""
    quick: bool = False

    def at_most(self, rounds: int) -> Settings:
        """Return the same settings with fewer rounds, for cases with long samples."""
        return Settings(min(self.rounds, rounds), self.sample_seconds, self.budget, self.quick)


class Samples(list[float]):
    """Seconds per run, one figure per round."""

    @property
    def median(self) -> float:
        return statistics.median(self)

    def ratio_to(self, other: Samples) -> float:
        """Return the median of the ratios of each round, for the rounds that both took part in."""
        return statistics.median(a / b for a, b in zip(self, other, strict=False))

    def minus(self, other: Samples) -> float:
        """Return the median of the differences of each round."""
        return statistics.median(a - b for a, b in zip(self, other, strict=False))


def say(text: str) -> None:
    """Print progress to standard error, so that the report can be piped."""
    print(text, file=sys.stderr, flush=True)


def turns(keys: list[str], rounds: int) -> list[list[str]]:
    """Return the order of each round. Every contender goes first equally often."""
    return [keys[at % len(keys) :] + keys[: at % len(keys)] for at in range(rounds)]


async def _sample(
    run: Callable[[], Awaitable[T]], check: Callable[[T], None], repeats: int
) -> float:
    gc.collect()
    results: list[T] = []
    start = time.perf_counter()
    for _ in range(repeats):
        results.append(await run())
    seconds = time.perf_counter() - start
    for result in results:
        check(result)
    return seconds / repeats


async def interleave(
    runs: Mapping[str, Callable[[], Awaitable[T]]],
    check: Callable[[T], None],
    settings: Settings,
) -> dict[str, Samples]:
    """Time every run, round by round; `check` raises when a result is not the expected one."""
    samples = {key: Samples() for key in runs}
    spent = dict.fromkeys(runs, 0.0)
    repeats: dict[str, int] = {}
    for key, run in runs.items():
        warm_up = await _sample(run, check, 1)
        repeats[key] = max(1, round(settings.sample_seconds / warm_up))
    for number, order in enumerate(turns(list(runs), settings.rounds)):
        for key in order:
            if number and spent[key] + samples[key].median * repeats[key] > settings.budget:
                continue
            seconds = await _sample(runs[key], check, repeats[key])
            samples[key].append(seconds)
            spent[key] += seconds * repeats[key]
    return samples
