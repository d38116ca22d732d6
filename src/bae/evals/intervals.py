"""Confidence intervals for the mean of scores, and for the mean difference between two sets of
scores over the same cases."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of `n` scores and its confidence interval. Printed as `0.82 [0.70, 0.90]`."""

    mean: float
    low: float
    high: float
    n: int
    level: float = 0.95
    """The confidence level."""

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 is outside the interval. If so, a difference is significant."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def interval(scores: Sequence[float], *, level: float = 0.95) -> Interval | None:
    """Return the mean of scores from 0 to 1 with its confidence interval, or None without scores.

    If all scores are 0 or 1, this is Wilson's interval. Otherwise it is a bootstrap interval. One
    worst possible score is added for the lower bound, and one best possible score for the upper
    bound. The scores get uniformly random weights many times. At level 0.95, the lower bound is the
    2.5th percentile of the weighted mean, and the upper bound is the 97.5th percentile. The added
    score represents unseen cases: after ten scores of nearly 1, the mean may still be as low as
    0.69.

    The cases must be independent. The random weights have a fixed seed, so the same scores give the
    same interval, in any order.
    """
    values = _check_scores("interval(scores)", scores)
    _check_level(level)
    if not values:
        return None
    n, mean = len(values), math.fsum(values) / len(values)
    low, high = _wilson(mean, n, level) if _is_binary(values) else _bootstrap(values, 0.0, level)
    return _clip_interval(mean, low, high, n, level, 0.0)


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, level: float = 0.95
) -> Interval | None:
    """Return the mean gain of `after` over `before` with its confidence interval, or None without
    scores. `before` and `after` must have scores for the same cases in the same order.

    If all scores are 0 or 1, this is Newcombe's interval for pairs (method 10, based on Wilson's).
    Otherwise it is the bootstrap of `interval` over the differences, with -1 or 1 as the added
    score. Therefore even a uniform gain of 0.1 needs about forty pairs to be significant. With ten
    pairs, a total loss in one unseen case would cancel this gain.
    """
    first, second = _check_scores("before", before), _check_scores("after", after)
    _check_level(level)
    if len(first) != len(second):
        raise ValueError(
            f"paired_difference: {len(first)} scores before and {len(second)} after; give both for "
            "the same cases, in the same order"
        )
    if not first:
        return None
    differences = [y - x for x, y in zip(first, second, strict=True)]
    if _is_binary(first) and _is_binary(second):
        low, high = _newcombe(first, second, level)
    else:
        low, high = _bootstrap(differences, -1.0, level)
    n = len(first)
    return _clip_interval(math.fsum(differences) / n, low, high, n, level, -1.0)


def _check_scores(name: str, scores: Sequence[float]) -> list[float]:
    for score in scores:
        if not 0 <= score <= 1:
            raise ValueError(f"{name}: {score!r} is no score from 0 to 1")
    return [float(score) for score in scores]


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level!r}: give a share between 0 and 1, such as 0.95")


def _is_binary(values: Sequence[float]) -> bool:
    return all(value in (0.0, 1.0) for value in values)


def _clip_interval(
    mean: float, low: float, high: float, n: int, level: float, least: float
) -> Interval:
    """Return the interval, clipped to possible scores, and extended if rounding has put the mean
    outside."""
    mean = min(1.0, max(least, mean))
    low, high = min(mean, max(least, low)), max(mean, min(1.0, high))
    return Interval(mean, low, high, n, level)


def _wilson(share: float, n: int, level: float) -> tuple[float, float]:
    z = -NormalDist().inv_cdf((1 - level) / 2)
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # For a share of 0 or 1, one bound is exact. Computing it would add a rounding error.
    low = 0.0 if share == 0 else (middle - reach) / scale
    high = 1.0 if share == 1 else (middle + reach) / scale
    return low, high


def _newcombe(before: list[float], after: list[float], level: float) -> tuple[float, float]:
    n = len(before)
    pairs = list(zip(after, before, strict=True))
    both, gained = pairs.count((1.0, 1.0)), pairs.count((1.0, 0.0))
    lost, neither = pairs.count((0.0, 1.0)), pairs.count((0.0, 0.0))
    p, q = (both + gained) / n, (both + lost) / n
    p_low, p_high = _wilson(p, n, level)
    q_low, q_high = _wilson(q, n, level)
    cross = both * neither - gained * lost
    if cross > 0:  # method 10 has this correction for few pairs
        cross = max(cross - n / 2, 0)
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    phi = cross / math.sqrt(margins) if margins else 0.0

    def reach(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

    return p - q - reach(p - p_low, q_high - q), p - q + reach(p_high - p, q - q_low)


def _bootstrap(values: list[float], least: float, level: float) -> tuple[float, float]:
    """Return the bounds of the mean under random weights. The lower bound includes an unseen value
    of `least`, the upper bound an unseen value of 1."""
    ordered = sorted(values)  # so that the order of cases does not matter
    lows: list[float] = []
    highs: list[float] = []
    for unseen, weights in _weights(len(values)):
        total = sum(map(mul, weights, ordered))
        lows.append(total + unseen * least)
        highs.append(total + unseen)
    cut = int(len(lows) * (1 - level) / 2)
    return sorted(lows)[cut], sorted(highs)[-1 - cut]


@lru_cache(maxsize=4)
def _weights(n: int) -> list[tuple[float, list[float]]]:
    """Return samples of random weights that sum to 1. A sample has the weight of the unseen value,
    and the weights of `n` values."""
    chance = random.Random(n)
    samples: list[tuple[float, list[float]]] = []
    for _ in range(max(400, min(1000, 200_000 // n))):
        drawn = [chance.expovariate(1.0) for _ in range(n + 1)]
        total = sum(drawn)
        samples.append((drawn[-1] / total, [weight / total for weight in drawn[:-1]]))
    return samples
