"""What a metric's word is worth: a `Score` from 0 to 1 with a reason, made of whatever a metric
returns, and an error that teaches where it returns something else or raises. `metrics.py` and the
evaluation call metrics through this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final, cast

from bae.exceptions import BaeError
from bae.threads import in_thread

LONGEST_REASON: Final = 2000
"""How many characters of a reason are kept."""


@dataclass(frozen=True, slots=True)
class Score:
    """How good an answer is, from 0 to 1, and why. Return one from a metric of yours to say what
    was wrong: an optimiser that writes instructions reads it, and tables show it."""

    value: float
    why: str = ""


async def scored(metric: Callable[..., Any], *given: Any, where: str, fix: str = "") -> Score:
    """Call a metric, sync or async, with what is `given`, and take its word for a score.

    A sync one runs in a worker thread, since nobody knows how long it takes. What it raises becomes
    a `BaeError` (`bae-metric-failed`) that says `where`; an error of bae, such as that of a budget
    or of the LM a metric asks, stays itself.
    """
    try:
        returned: Any
        if _is_async(metric):
            returned = metric(*given)
        else:
            returned = await in_thread(metric, *given)
        if isawaitable(returned):
            returned = await returned
    except BaeError:
        raise
    except Exception as error:
        raise BaeError(
            f"{where}: the metric {_name(metric)} raised {type(error).__name__}",
            code="bae-metric-failed",
            cause=error,
            fix=fix or "mend the metric: what it cannot judge it may score with 0",
        ) from error
    return as_score(returned, where=f"{where}: the metric {_name(metric)}")


def as_score(returned: Any, *, where: str) -> Score:
    """A score of what a metric returned: a number from 0 to 1 or a bool, of Python or of numpy, a
    `Score`, or what has a `score` and perhaps a `feedback`, as DSPy's predictions and mappings."""
    why: Any = ""
    value: Any = returned
    if isinstance(returned, Score):
        value, why = returned.value, returned.why
    elif isinstance(value, Mapping):
        said = cast(Mapping[str, Any], value)
        value, why = said.get("score"), said.get("feedback", "")
    elif not _is_number(returned) or hasattr(returned, "score"):  # a Prediction is a number, too
        value, why = getattr(returned, "score", None), getattr(returned, "feedback", "")
    try:
        number = float(value) if _is_number(value) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        said = f"returned {_short(cast(object, returned))}"
        raise _no_score(where, said, "a number from 0 to 1, or a Score")
    if not -_ROUNDING <= number <= 1 + _ROUNDING:
        said = f"gave the score {number!r}"
        raise _no_score(where, said, "scores from 0 to 1: divide by the most that can be reached")
    return Score(min(1.0, max(0.0, number)), str(why or "")[:LONGEST_REASON])


_ROUNDING: Final = 1e-6
"""How far beyond its ends a score may be: a mean of ones is not always one."""


def _is_number(value: object) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__float__")


def _is_async(metric: Callable[..., Any]) -> bool:
    return iscoroutinefunction(metric) or iscoroutinefunction(getattr(metric, "__call__", None))  # noqa: B004  its code is meant


def _name(metric: object) -> str:
    return str(getattr(metric, "__qualname__", "") or type(metric).__qualname__)


def _short(value: object) -> str:
    try:
        said = repr(value)
    except Exception:  # the repr of somebody's object
        said = f"a {type(value).__name__}"
    return said if len(said) <= 200 else f"{said[:200]}…"


def _no_score(where: str, said: str, wanted: str) -> BaeError:
    return BaeError(
        f"{where} {said}, which is no score",
        code="bae-metric-score",
        fix=f"let it return {wanted}",
    )
