"""How far a mean of scores can be trusted: confidence intervals for one set of scores, and for the
difference between two sets over the same cases. `report.py` prints them, and the optimiser's
comparison of before and after decides by them. Standard library alone; nothing is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

MANY = 200
"""Beyond this many scores a bound is worked out from their moments, which then say the same."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of `n` scores, and the bounds between which the true one is, at this level.

    Printed, it is `0.82 [0.70, 0.90]`.
    """

    mean: float
    low: float
    high: float
    n: int
    level: float = 0.95

    @property
    def excludes_zero(self) -> bool:
        """Whether zero is outside: of a difference, whether there is one at all."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def interval(scores: Sequence[float], *, level: float = 0.95) -> Interval | None:
    """The mean of scores from 0 to 1 with its interval; None where there are none.

    Scores of 0 and 1 alone have Wilson's interval, which holds its level on average over the
    truths there can be. Others have Gaffke's: the scores, and one more that is the worst there can
    be, are weighted in all ways alike, and the lower bound is the mean that all but a 40th of the
    weightings (at the level 0.95) exceed; so for the upper bound with the best. Since a score that
    was never met takes part, scores that all are nearly the same give no certainty: ten of about
    1 leave room for a mean of 0.69. No scores from 0 to 1 are known for which it holds the truth
    less often than its level says, and mostly it does so more often: that is conjectured, and borne
    out by simulation, rather than proved. On 0 and 1 alone it would be Clopper and Pearson's
    interval, for which it is proved.

    It takes cases that are independent of each other. Nothing is drawn: the same scores have the
    same interval, in whatever order they come.
    """
    values = _checked("interval(scores)", scores)
    _check_level(level)
    if not values:
        return None
    n, mean = len(values), math.fsum(values) / len(values)
    low, high = _wilson(mean, n, level) if _binary(values) else _gaffke(values, 0.0, level)
    return _within(mean, low, high, n, level, 0.0)


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, level: float = 0.95
) -> Interval | None:
    """By how much `after` is better on average, the scores of one case at one place in both; None
    where there are none.

    Scores of 0 and 1 alone have Newcombe's interval for pairs (his method 10). The differences of
    others have Gaffke's, as `interval` says, with a pair that was never met and differs by as much
    as can be, -1 or 1. So it takes some forty pairs to be certain of a gain of 0.1, however alike
    they are: to lose everything in one case of eleven would undo it, and may not have shown.
    """
    first, second = _checked("before", before), _checked("after", after)
    _check_level(level)
    if len(first) != len(second):
        raise ValueError(
            f"paired_difference: {len(first)} scores before and {len(second)} after; give both for "
            "the same cases, in the same order"
        )
    if not first:
        return None
    n = len(first)
    differences = [y - x for x, y in zip(first, second, strict=True)]
    mean = math.fsum(differences) / n
    if _binary(first) and _binary(second):
        low, high = _newcombe(first, second, level)
    else:
        low, high = _gaffke(differences, -1.0, level)
    return _within(mean, low, high, n, level, -1.0)


def _checked(name: str, scores: Sequence[float]) -> list[float]:
    values: list[float] = []
    for score in scores:
        try:
            value = float(score)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: {score!r} is no score from 0 to 1")
        values.append(value)
    return values


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level!r}: give a share between 0 and 1, such as 0.95")


def _binary(values: Sequence[float]) -> bool:
    return all(value in (0.0, 1.0) for value in values)


def _within(mean: float, low: float, high: float, n: int, level: float, least: float) -> Interval:
    """The interval inside what is possible, and around the mean whatever rounding did."""
    mean = min(1.0, max(least, mean))
    low, high = min(mean, max(least, low)), max(mean, min(1.0, high))
    return Interval(mean, low, high, n, level)


def _wilson(share: float, n: int, level: float) -> tuple[float, float]:
    z = -NormalDist().inv_cdf(_tail(level))
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    whole = 1 + z * z / n
    # At the ends one bound is exact, and is not left to rounding.
    low = 0.0 if share == 0 else (middle - reach) / whole
    high = 1.0 if share == 1 else (middle + reach) / whole
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
    if cross > 0:  # the correction for few pairs that is part of the method
        cross = max(cross - n / 2, 0)
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    phi = cross / math.sqrt(margins) if margins else 0.0

    def reach(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

    return p - q - reach(p - p_low, q_high - q), p - q + reach(p_high - p, q - q_low)


def _tail(level: float) -> float:
    # Of both sides the small share is reckoned with: near 1 the other would be rounded to 1.
    return (1 - level) / 2


def _gaffke(values: list[float], least: float, level: float) -> tuple[float, float]:
    # Sorted, so that not even the rounding knows in which order cases ended.
    low = _lower_bound(sorted([least, *values]), _tail(level))
    high = -_lower_bound(sorted([-1.0, *(-value for value in values)]), _tail(level))
    return low, high


def _lower_bound(points: list[float], tail: float) -> float:
    """What the mean of these, weighted in all ways alike, is below in this share of the ways."""
    if points[0] == points[-1]:
        return points[0]
    if len(points) > MANY:
        return _from_moments(points, tail)
    goal, least_share = NormalDist().inv_cdf(tail), tail / 1000

    def beyond(mean: float) -> float:
        # As a normal deviate the share is nearly straight, so that few steps lead to the goal.
        share = min(1 - 1e-9, max(least_share, _share_below(points, mean)))
        return NormalDist().inv_cdf(share) - goal

    return _crossing(beyond, points[0], points[-1])


def _share_below(points: list[float], mean: float) -> float:
    """In which share of all ways to weight them (uniform on the simplex) the mean of the points is
    below this one. It is built up from fewer points, by sums of what is positive alone, so that it
    is right for tiny shares and for points that are equal."""
    above = [point - mean for point in points if point >= mean]
    below = [mean - point for point in points if point < mean]
    shares = [1.0] * len(below)  # by how many of those below take part; none of those above yet
    for up in above:
        share = 0.0
        for place, down in enumerate(below):
            share = shares[place] = (up * share + down * shares[place]) / (up + down)
    return shares[-1] if shares else 0.0


def _crossing(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises from below zero to above it is zero: by chords. An end that stays
    twice counts half (the Illinois rule), so that both ends come closer."""
    at_low, at_high = rising(low), rising(high)
    stayed = 0
    for _ in range(60):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        found = rising(middle)
        if abs(found) < 1e-7:
            return middle
        if found < 0:
            low, at_low = middle, found
            at_high /= 2 if stayed > 0 else 1
            stayed = 1
        else:
            high, at_high = middle, found
            at_low /= 2 if stayed < 0 else 1
            stayed = -1
    return low


def _from_moments(points: list[float], tail: float) -> float:
    """The same bound from the mean, the variance and the skewness (Cornish and Fisher)."""
    n = len(points)
    mean = math.fsum(points) / n
    second = math.fsum((point - mean) ** 2 for point in points) / n
    third = math.fsum((point - mean) ** 3 for point in points) / n
    spread = math.sqrt(second / (n + 1))
    skew = 2 * third / ((n + 1) * (n + 2)) / spread**3
    z = NormalDist().inv_cdf(tail)
    return mean + spread * (z + (z * z - 1) * skew / 6)
