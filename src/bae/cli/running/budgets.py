"""`--budget calls=20,tokens=50000,cost=0.10,seconds=60`: what a run may spend, or work of many
runs."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from bae.lm.policies.budget import Budget

LIMITS: Final = ("calls", "tokens", "cost", "seconds")


def budget_option(what: str) -> Any:
    """The option, as a command has it for what it does: `the run`."""
    return typer.Option(
        "--budget",
        metavar="LIMITS",
        show_default=False,
        help=f"What {what} may spend, as `calls=20,cost=0.10`: `calls` of the language model, "
        "`tokens` in and out, `cost` in US dollars, `seconds` on the clock.",
    )


BudgetLimits = Annotated[str | None, budget_option("the run")]


def budget_of(said: str | None) -> Budget | None:
    """The budget that a command line asks for. Raises `typer.BadParameter`."""
    if said is None:
        return None
    from bae.lm.policies.budget import Budget

    limits: dict[str, float] = {}
    for part in said.split(","):
        name, equals, amount = (each.strip() for each in part.partition("="))
        if not equals or name not in LIMITS:
            raise _wrong(f"{part.strip()!r} is none of {', '.join(f'{n}=…' for n in LIMITS)}")
        if name in limits:
            raise _wrong(f"{name} is there twice")
        limits[name] = _number(name, amount)
    whole = {name: int(limits[name]) for name in ("calls", "tokens") if name in limits}
    return Budget(
        calls=whole.get("calls"),
        tokens=whole.get("tokens"),
        cost=limits.get("cost"),
        seconds=limits.get("seconds"),
        scope="--budget",
    )


def _number(name: str, amount: str) -> float:
    plain = amount.removeprefix("$").replace("_", "")
    try:
        number = float(plain)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0 or (name in LIMITS[:2] and number != int(number)):
        kind = "a whole number" if name in LIMITS[:2] else "a number"
        raise _wrong(f"{name}={amount} is not {kind}, 0 or more")
    return number


def _wrong(message: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"{message}. Write it as calls=20,tokens=50000", param_hint="'--budget'"
    )
