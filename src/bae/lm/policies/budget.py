"""Budgets: limits on calls, tokens, cost and time, as scopes that nest. `with budget:` counts every
request made inside the block; the policy `Budgeted` counts those to one LM. A request is checked
before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, cast

from bae.exceptions import BudgetError
from bae.lm.backend import Answer, Prompt
from bae.lm.policies.policy import Policy
from bae.lm.policies.reservations import (
    Reservation,
    Scope,
    SharedScope,
    budgets_in_force,
    scope_in_force,
)
from bae.lm.requests import in_time
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.language_model import LM

T = TypeVar("T", int, float)

Limit = Literal["calls", "tokens", "cost", "seconds"]
_LIMITS: Final[tuple[Limit, ...]] = ("calls", "tokens", "cost", "seconds")


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of a budget; None where there is no limit, or it is unknown."""

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


class Budget:
    """Limits on what may be spent, and what has been. Enter it, `with Budget(calls=50) as budget:`,
    and every request in the block is counted, in subgraphs, maps and threads too.

    - `calls`: requests sent, failed ones too. Those in progress are counted, so concurrent ones
      cannot exceed the limit. A request that was cancelled or cut off is charged the estimate of
      its prompt, where its usage is unknown.
    - `tokens`: in and out. A request is refused when the estimate of its prompt does not fit.
    - `cost`: in US dollars. The price of the model has to be known.
    - `seconds`: on the clock, from the moment the budget is first entered or used. Requests in
      progress are cut off then.

    The last request may exceed the limits on tokens and cost by what the model answers; the next is
    refused. A refused request raises `BudgetError`, and nothing is sent. Budgets nest: a request is
    charged to all whose blocks it is in, and to those that these are `within`. With `quiet=True`
    the block ends without an error when this budget, and no other, ran out; it is in `.error`.

    To continue with a budget later, store `dump()` and read it back with `Budget.restored`.
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        tokens: int | None = None,
        cost: float | None = None,
        seconds: float | None = None,
        scope: str = "budget",
        within: Budget | None = None,
        quiet: bool = False,
        spent: Usage | None = None,
        elapsed: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        for name, value in zip(_LIMITS, (calls, tokens, cost, seconds), strict=True):
            if value is not None and not (isfinite(value) and value >= 0):
                raise ValueError(f"Budget({name}={value!r}): give 0 or more, or None for no limit")
        self.calls = calls
        self.tokens = tokens
        self.cost = cost
        self.seconds = seconds
        self.scope = scope
        self.within = within
        self.quiet = quiet
        self.error: BudgetError | None = None
        self._used = spent or Usage()
        self._held_calls = 0
        self._held_tokens = 0
        self._held_cost = 0.0
        self._clock = clock
        self._before = elapsed
        self._since: float | None = None
        self._runs: set[str] = set()

    @property
    def usage(self) -> Usage:
        """What has been spent, without requests in progress."""
        return self._used

    @property
    def elapsed(self) -> float:
        """Seconds since the budget was first entered or used; 0 before."""
        running = 0.0 if self._since is None else self._clock() - self._since
        return self._before + running

    @property
    def remaining(self) -> Remaining:
        """What is left, less what is in progress; never below zero."""
        used = self._used
        return Remaining(
            _left(self.calls, used.calls + self._held_calls),
            _left(self.tokens, used.tokens + self._held_tokens),
            None if used.cost is None else _left(self.cost, used.cost + self._held_cost),
            _left(self.seconds, self.elapsed),
        )

    def dump(self) -> dict[str, Any]:
        """The limits and what has been spent, as JSON values."""
        return {
            "scope": self.scope,
            "limits": {name: getattr(self, name) for name in _LIMITS},
            "spent": {**asdict(self._used), "models": list(self._used.models)},
            "elapsed": self.elapsed,
        }

    @classmethod
    def restored(cls, dumped: Mapping[str, Any], within: Budget | None = None) -> Budget:
        """The budget that was dumped, with as much spent. Requests that were in progress then are
        not included."""
        spent: dict[str, Any] = {**dumped["spent"], "models": tuple(dumped["spent"]["models"])}
        rest = {name: dumped[name] for name in ("scope", "elapsed")}
        return cls(**dumped["limits"], **rest, within=within, spent=Usage(**spent))

    def __enter__(self) -> Self:
        """Count requests from here on, in this task and those it starts."""
        scope_in_force.set(self.scope_in(scope_in_force.get()))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """End the block. Blocks may end in any order, each in the context it began in."""
        self.error = self._own(error)
        inside: list[Budget] = []
        scope = scope_in_force.get()
        while isinstance(scope, Scope) and scope.budget is not self:
            inside.append(scope.budget)
            scope = scope.outer
        if isinstance(scope, Scope):
            left = scope.outer
            for budget in reversed(inside):
                left = Scope(budget, left)
            scope_in_force.set(left)
        else:
            message = (
                f"the block of {self!r} ends in another context than it began in, where it is still"
                " in force: enter and leave it in one function, not in a fixture or a callback that"
                " another task runs"
            )
            if error is None:
                raise RuntimeError(message)
            error.add_note(message)
        return self.quiet and self.error is not None

    def scope_in(self, outer: Scope | SharedScope | None) -> Scope:
        """The scope of this budget inside another. Its clock starts, where it has not yet."""
        for budget in self.line():
            budget.begin()
        return Scope(self, outer)

    def line(self) -> tuple[Budget, ...]:
        """This budget and those it is `within`, the outermost first."""
        return (self,) if self.within is None else (*self.within.line(), self)

    def begin(self) -> None:
        """Start the clock, once."""
        if self._since is None:
            self._since = self._clock()

    def carry(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge what a stored run had spent before it came under this budget, once."""
        if run_id not in self._runs:
            self._runs.add(run_id)
            self._used += used
            self._before += seconds

    # `Reservation` calls the next three with its lock held.

    def check(self, reservation: Reservation) -> None:
        """Raise where a request does not fit, beside what is spent and in progress."""
        used = self._used
        if self.calls is not None and used.calls + self._held_calls >= self.calls:
            raise self.spent("calls")
        if self.tokens is not None:
            taken = used.tokens + self._held_tokens
            if taken >= self.tokens or taken + reservation.tokens > self.tokens:
                raise self.spent("tokens", reservation.tokens)
        if self.cost is not None:
            if used.cost is None:
                raise self.cost_unknown(", ".join(used.models))
            if reservation.cost is None:
                raise self.cost_unknown(reservation.backend.model)
            taken = used.cost + self._held_cost
            # A limit of nothing is for models that are free.
            if taken + reservation.cost > self.cost or (taken >= self.cost > 0):
                raise self.spent("cost", reservation.cost)
        if self.seconds is not None and self.elapsed >= self.seconds:
            raise self.spent("seconds")

    def take(self, reservation: Reservation) -> None:
        """Reserve what a request needs while it is in progress."""
        self._held_calls += 1
        self._held_tokens += reservation.tokens
        self._held_cost += reservation.cost or 0.0

    def put_back(self, reservation: Reservation, used: Usage | None) -> None:
        """Release what was reserved, and add what was used in its place."""
        self._held_calls -= 1
        self._held_tokens -= reservation.tokens
        # Sums of floats do not return to zero by themselves.
        self._held_cost = self._held_cost - (reservation.cost or 0.0) if self._held_calls else 0.0
        if used is not None:
            self._used += used

    def spent(
        self, limit: Limit, needed: float = 0, cause: BaseException | None = None
    ) -> BudgetError:
        """The error for a limit of this budget."""
        used = self._used
        match limit:
            case "calls":
                bound, amount, held = self.calls or 0, used.calls, self._held_calls
                said = f"{amount} of {_many(bound, 'call')} spent"
                said += f" and {held} more in progress" if held else ""
            case "tokens":
                bound, amount, held = self.tokens or 0, used.tokens, self._held_tokens
                said = f"{amount} of {_many(bound, 'token')} spent"
                said += f" and about {held} more in progress" if held else ""
                said += f", and this request is about {needed:g}"
            case "cost":
                bound, amount, held = self.cost or 0.0, used.cost or 0.0, self._held_cost
                said = f"${amount:.4f} of ${bound:.4f} spent"
                said += f" and ${held:.4f} or more in progress" if held else ""
                said += f", and this request costs ${needed:.4f} or more" if needed else ""
            case "seconds":
                bound, amount = self.seconds or 0.0, self.elapsed
                said = f"the {bound:g} s are over"
        fix = f"raise the limit with Budget({limit}=…), or ask for less; the nodes that were done "
        return self._error(limit, bound, amount, said, f"{fix}are in .trace", cause=cause)

    def cost_unknown(self, model: str) -> BudgetError:
        """The error for a limit on cost where the cost of a request is unknown."""
        from bae.lm.extras import is_there

        fix = "limit calls or tokens instead"
        if not is_there("genai_prices"):
            fix = f"install the price list with pip install 'bae-graphs[prices]', or {fix}"
        bound = self.cost or 0.0
        return self._error(
            "cost",
            bound,
            self._used.cost or 0.0,
            f"the cost is limited to ${bound:.4f}, and the price of {model or 'the model'} is"
            " unknown",
            f"{fix}; a backend of your own reports it in least_cost and in Usage(cost=…)",
            code="bae-budget-cost-unknown",
        )

    def _error(
        self, limit: Limit, bound: float, used: float, said: str, fix: str, **more: Any
    ) -> BudgetError:
        what: dict[str, Any] = {"limit": limit, "bound": bound, "used": used, "scope": self.scope}
        message = f"{self.scope}: {said}"
        return BudgetError(message, **what, usage=self._used, budget=self, fix=fix, **more)

    def _own(self, error: BaseException | None) -> BudgetError | None:
        """What this budget raised, where that is the error or the cause of it."""
        while error is not None:
            if isinstance(error, BudgetError) and error.budget is self:
                return error
            error = error.__cause__
        return None

    def __repr__(self) -> str:
        limits = (
            f"{name}={value:g}" for name in _LIMITS if (value := getattr(self, name)) is not None
        )
        return f"Budget({', '.join([*limits, f'scope={self.scope!r}'])})"


class Budgeted(Policy):
    """Charges the requests to an LM to a budget: `Budgeted(lm, Budget(calls=100))`.

    One budget may serve several LMs, and charges each request once, however often it is around it.
    Answers from a cache inside are free, and every retry inside is charged.
    """

    def __init__(self, lm: LM | str, budget: Budget) -> None:
        super().__init__(lm)
        if not isinstance(cast(object, budget), Budget):
            raise TypeError(f"Budgeted(lm, {budget!r}): give a Budget, as Budget(calls=100)")
        self.budget = budget

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside, where the budget has something left."""
        outer = scope_in_force.get()
        scope_in_force.set(self.budget.scope_in(outer))
        try:
            return await in_time(lambda: self.ask(prompt))
        finally:
            scope_in_force.set(outer)


def restore_budgets(lm: object, run_id: str, usage: Usage, seconds: float) -> None:
    """Charge what a run had used, and how long it took, to the budgets that it is under from here
    on: those in force, and those around its LM. Each is charged for a run once: a budget that was
    around the run when it spent that, in this process, has it already."""
    budgets = list(budgets_in_force())
    while isinstance(lm, Policy):
        if isinstance(lm, Budgeted):
            budgets += lm.budget.line()
        lm = lm.inner
    for budget in budgets:
        budget.carry(run_id, usage, seconds)


def _left(limit: T | None, used: T) -> T | None:
    return None if limit is None else max(0, limit - used)


def _many(number: float, unit: str) -> str:
    return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"
