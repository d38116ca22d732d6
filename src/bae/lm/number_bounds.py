"""Numbers in a bounded schema: a least and a greatest value, and an end to the digits after the
point. `bounds.py` bounds the rest."""

from __future__ import annotations

import math
from typing import Any, Final

LARGEST: Final = 10**15 - 1
"""No number is asked for beyond this one; a float can still tell whole numbers apart there."""

PLACES: Final = 4
"""Digits after the point, more in a range so narrow that it needs them."""

MOST_PLACES: Final = 9


def bounded_integer(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of a whole number with both its ends; None where there is none between them."""
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    lows = [math.ceil(low)] if low is not None else []
    lows += [math.floor(above) + 1] if above is not None else []
    highs = [math.floor(high)] if high is not None else []
    highs += [math.ceil(below) - 1] if below is not None else []
    low, high = _ends(max(lows, default=None), min(highs, default=None))
    step = schema.get("multipleOf", 1)
    step = int(step) if step == int(step) and step > 0 else 1  # a broken one is for validation
    if -(-low // step) * step > high:
        return None
    made = {"type": "integer", "minimum": low, "maximum": high}
    return made if step == 1 else {**made, "multipleOf": step}


def bounded_number(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of a number with both its ends and a step; None where none is between them."""
    lows = [each for k in ("minimum", "exclusiveMinimum") if (each := schema.get(k)) is not None]
    highs = [each for k in ("maximum", "exclusiveMaximum") if (each := schema.get(k)) is not None]
    low, high = _ends(max(lows, default=None), min(highs, default=None))
    open_low = schema.get("exclusiveMinimum") == low
    open_high = schema.get("exclusiveMaximum") == high
    if low > high or (low == high and (open_low or open_high)):
        return None
    if low == high:
        return {"enum": [low]}
    made: dict[str, Any] = {
        "type": "number",
        "exclusiveMinimum" if open_low else "minimum": low,
        "exclusiveMaximum" if open_high else "maximum": high,
    }
    step = schema.get("multipleOf")
    if step is None:
        # As many digits as tell a thousand values apart. Finer steps are more than engines take.
        places = max(PLACES, 3 - math.floor(math.log10(high - low)))
        step = 10.0**-places if places <= MOST_PLACES else None
    return made if step is None else {**made, "multipleOf": step}


def _ends(low: Any, high: Any) -> tuple[Any, Any]:
    """Both ends, drawn in where they are missing or far out."""
    if low is None or (low < -LARGEST and (high is None or high > -LARGEST)):
        low = -LARGEST if high is None or high > -LARGEST else high - LARGEST
    if high is None or (high > LARGEST and low < LARGEST):
        high = LARGEST if low < LARGEST else low + LARGEST
    return low, high
