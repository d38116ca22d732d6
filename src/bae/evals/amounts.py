"""Numbers of evaluations in a few characters, for tables: those of `page.py`, and those that the
command line prints. None of them makes a number look better than it is by rounding it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bae.evals.intervals import Interval
    from bae.usage import Usage


def score(value: float) -> str:
    """A score: `0.82`. Less than 1 is never rounded up to it, nor more than 0 down."""
    for digits in (2, 3, 4):
        said = f"{value:.{digits}f}"
        if (value >= 1 or float(said) < 1) and (value <= 0 or float(said) > 0):
            return said
    return "0.9999" if value > 0.5 else "0.0001"


def scored(found: Interval | None) -> str:
    """A score with its interval: `0.82 [0.70, 0.90]`."""
    if found is None:
        return "-"
    return f"{score(found.mean)} [{found.low:.2f}, {found.high:.2f}]"


def changed(found: Interval | None) -> str:
    """A difference with its interval: `+0.19 [+0.05, +0.33]`."""
    if found is None:
        return "-"
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def share(part: float | None) -> str:
    """A part of all: `97 %`. Less than all is never rounded up to it."""
    if part is None:
        return "-"
    percent = round(100 * part)
    return f"{min(percent, 99) if part < 1 else percent} %"


def many(number: int) -> str:
    """A number of tokens: `812`, `12.4k`, `1.3M`."""
    for size, sign in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{sign}"
    return str(number)


def dollars(cost: float | None) -> str:
    """Money; `?` where nobody knows."""
    if cost is None:
        return "?"
    if not cost:
        return "$0"
    return f"${cost:,.2f}" if cost >= 0.99995 else _cents(cost)


def judged(used: Usage) -> str:
    """What judging used: `judged with 6 LM calls · 1,234 tokens · $0.02`."""
    calls = f"{used.calls:,} LM call{'' if used.calls == 1 else 's'}"
    tokens = f"{used.tokens:,} token{'' if used.tokens == 1 else 's'}"
    cost = "cost unknown" if used.cost is None else dollars(used.cost)
    return f"judged with {calls} · {tokens} · {cost}"


def seconds(amount: float) -> str:
    """A time: `0.41s`, `12s`."""
    return f"{amount:.2f}s" if amount < 9.995 else f"{amount:.0f}s"


def _cents(cost: float) -> str:
    return f"${cost:.4f}" if cost >= 0.0001 else f"${cost:.1e}"
