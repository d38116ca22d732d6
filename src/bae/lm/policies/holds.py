"""What requests that are under way take of the budgets around them. The budgets in force are known
to the context; work that several wait for is paid by one of them at a time. `charging.py` makes
the holds, and the accounts are in `budget.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, cast

from bae.exceptions import BudgetError
from bae.language_model import SpendingLimit, spending_limit
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.lm.backend import Backend, Prompt
    from bae.lm.policies.budget import Budget


class _Charging(SpendingLimit):
    __slots__ = ()

    def charge(self, lm: LM) -> LM:
        """The LM itself where it is a backend, and one that is none through an adapter."""
        from bae.lm.backend import Backend
        from bae.lm.foreign import Foreign

        return lm if isinstance(lm, Backend) else Foreign(lm)


@dataclass(frozen=True, slots=True, eq=False)
class Scope(_Charging):
    """A budget that was entered, and the scope around it."""

    budget: Budget
    outer: Scope | Shared | None

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Those that a request made here is charged to: the outermost first, each once."""
        found = () if self.outer is None else self.outer.budgets
        return (*found, *(each for each in self.budget.line() if each not in found))


class Payer:
    """One who waits for shared work: the scope it stands in, and the hold it is asked under."""

    __slots__ = ("around", "scope")

    def __init__(self) -> None:
        self.scope = current.get()
        self.around = around.get()


class Shared(_Charging):
    """The scope of work that several wait for: one of them pays at a time."""

    def __init__(self, payer: Payer) -> None:
        self.payer = payer
        self.holds: set[Hold] = set()

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Those of whoever pays now."""
        scope = self.payer.scope
        return () if scope is None else scope.budgets

    def pass_to(self, payer: Payer) -> None:
        """Have another pay, also for what is under way. Raises `BudgetError` where the budgets of
        that one do not allow for it; then all is as before."""
        holds = list(self.holds)
        if holds and payer.around is not None:
            payer.around.give_back()
        if payer.scope is not None and payer.scope.budgets:
            for hold in holds:
                hold.measure()
        with LOCK:
            before, self.payer = self.payer, payer
            try:
                for hold in holds:
                    hold.book()
            except BudgetError:
                self.payer = before
                for hold in holds:
                    hold.book(check=False)
                raise

    def give_back(self) -> None:
        """Give back what is held for the question that is asked here: it is charged by itself."""
        if self.payer.around is not None:
            self.payer.around.give_back()


class Hold:
    """What one request takes of its budgets while it is under way. Making one raises `BudgetError`
    where a budget does not allow for the request."""

    __slots__ = ("_measured", "_open", "backend", "budgets", "cost", "prompt", "scope", "tokens")

    def __init__(self, scope: Scope | Shared, backend: Backend, prompt: Prompt) -> None:
        self.scope = scope
        self.backend = backend
        self.prompt = prompt
        self.budgets: tuple[Budget, ...] = ()
        self.tokens = 0
        self.cost: float | None = 0.0
        self._measured = False
        self._open = True
        if scope.budgets:
            self.measure()
        with LOCK:
            self.book()
            for shared in _shared(scope):
                shared.holds.add(self)

    def measure(self) -> None:
        """Estimate what the request comes to at least."""
        if not self._measured:
            from bae.lm.policies.estimate import estimated_tokens

            self.tokens = estimated_tokens(self.prompt)
            self.cost = self.backend.least_cost(Usage(1, self.tokens, 1))
            self._measured = True

    def book(self, *, check: bool = True) -> None:
        """Take from the budgets in force now, and from no others; with the lock held."""
        if not self._open:
            return
        wanted = self.scope.budgets
        added = [budget for budget in wanted if budget not in self.budgets]
        if check:
            # All or none: a request that one of them refuses takes nothing of the others.
            for budget in added:
                budget.check(self)
        for budget in added:
            budget.take(self)
        for budget in self.budgets:
            if budget not in wanted:
                budget.put_back(self, None)
        self.budgets = wanted

    def give_back(self) -> None:
        """Take nothing after all: none was sent, or what was held for is charged by itself."""
        self._close(None)

    def settle(self, used: Usage) -> bool:
        """The request is over, and this is what it used. Tells whether that was charged here."""
        return self._close(used)

    def at_least(self, used: Usage) -> Usage:
        """What to charge for a request of which not all is known: what it came to at least, so
        that a budget holds and can still be used."""
        if used.cost is not None:
            return used
        if not used.tokens:
            used = replace(used, input_tokens=self.tokens)
        if all(budget.cost is None for budget in self.budgets):
            return used
        return replace(used, cost=self.backend.least_cost(used))

    def _close(self, used: Usage | None) -> bool:
        with LOCK:
            if not self._open:
                return False
            self._open = False
            for budget in self.budgets:
                budget.put_back(self, used)
            for shared in _shared(self.scope):
                shared.holds.discard(self)
            return True


def _shared(scope: Scope | Shared | None) -> Iterator[Shared]:
    """All shared work that a scope is part of."""
    while scope is not None:
        if isinstance(scope, Shared):
            yield scope
            scope = scope.payer.scope
        else:
            scope = scope.outer


LOCK = Lock()
"""Held for a moment while budgets are read and written, by any thread and for all budgets."""

current = cast("ContextVar[Scope | Shared | None]", spending_limit)
"""The scope that requests made here are charged in."""

around: ContextVar[Hold | Shared | None] = ContextVar("bae_budget_around", default=None)
"""What is held for the question that an LM is asked which may ask backends in its turn: these are
charged themselves, and it is given back."""
