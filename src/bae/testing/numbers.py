"""Numbers for `samples`: within bounds, open or closed, and a multiple of what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor, inf, nextafter
from random import Random
from typing import Any


def number_for(schema: Mapping[str, Any], random: Random, *, whole: bool) -> int | float | None:
    """A number that fits the keywords of a schema; None where there is none.

    A whole number wherever one fits: it is valid as a float, and as a decimal of any precision.
    """
    bounds = _Bounds(schema)
    step = Fraction(str(schema.get("multipleOf", 1)))
    if whole:
        step = Fraction(step.numerator)  # the least multiple of the step that is whole
    exact = whole or "multipleOf" in schema
    for finer in range(1 if exact else 30):
        found = bounds.multiple(step / 10**finer, random)
        if found is not None:
            value = int(found) if found.denominator == 1 else float(found)
            if whole or bounds.holds_as_float(value):
                return value
    if exact:
        return None
    # Between two bounds that close, floats have to be counted one by one.
    nearest = nextafter(float(bounds.low), inf) if bounds.low is not None else None
    return nearest if nearest is not None and bounds.holds_as_float(nearest) else None


class _Bounds:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.low, self.low_open = _tighter(
            schema.get("minimum"), schema.get("exclusiveMinimum"), max
        )
        self.high, self.high_open = _tighter(
            schema.get("maximum"), schema.get("exclusiveMaximum"), min
        )

    def multiple(self, step: Fraction, random: Random) -> Fraction | None:
        """A multiple of `step` within the bounds, near the lower one."""
        first = last = None
        if self.low is not None:
            first = ceil(self.low / step)
            first += self.low_open and first * step == self.low
        if self.high is not None:
            last = floor(self.high / step)
            last -= self.high_open and last * step == self.high
        if first is None:
            first = 0 if last is None or last >= 0 else last - 100
        last = first + 100 if last is None else min(last, first + 100)
        return random.randint(first, last) * step if first <= last else None

    def holds_as_float(self, value: float) -> bool:
        """Whether `value`, rounded to a float, is still within."""
        try:
            rounded = Fraction(float(value))
        except OverflowError:
            return False
        low = None if self.low is None else Fraction(float(self.low))
        high = None if self.high is None else Fraction(float(self.high))
        above = low is None or rounded > low or (rounded == low and not self.low_open)
        below = high is None or rounded < high or (rounded == high and not self.high_open)
        return above and below


def _tighter(closed: Any, opened: Any, pick: Any) -> tuple[Fraction | None, bool]:
    if isinstance(opened, bool):  # how older drafts wrote it
        return (None if closed is None else Fraction(str(closed))), opened
    if closed is None and opened is None:
        return None, False
    if closed is None or opened is None:
        return Fraction(str(opened if closed is None else closed)), closed is None
    bound: Fraction = pick(Fraction(str(closed)), Fraction(str(opened)))
    return bound, bound == Fraction(str(opened))
