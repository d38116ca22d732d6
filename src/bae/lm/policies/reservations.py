"""What requests in progress take of the budgets around them. Which budgets are in force is known to
the context; a request that several callers wait for is paid by one of them at a time."""

from __future__ import annotations

import json
from asyncio import Future, get_running_loop
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from bae.exceptions import BudgetError
from bae.language_model import SpendingLimit, spending_limit
from bae.usage import Usage, meter_in_force

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.lm.prompts import Prompt

BYTES_PER_TOKEN = 4
"""For English text with the usual tokenizers. Bytes, since other scripts take more bytes a letter
and more tokens too."""

MOST_SCHEMAS = 1000
"""Schemas whose size is remembered."""


class _Charging(SpendingLimit):
    def charge(self, lm: LM) -> LM:
        """The LM itself where it is a backend; any other through an adapter, which is one."""
        from bae.lm.adapter import LMAdapter
        from bae.lm.backend import Backend

        return lm if isinstance(lm, Backend) else LMAdapter(lm)


@dataclass(frozen=True, eq=False)
class Scope(_Charging):
    """A budget whose block was entered, and the scope around it."""

    budget: Budget
    outer: Scope | SharedScope | None

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Those that a request made here is charged to: the outermost first, each once."""
        found = () if self.outer is None else self.outer.budgets
        return (*found, *(each for each in self.budget.line() if each not in found))


class Payer:
    """A caller who waits for a shared request: the scope it is in, the reservation that it was
    itself asked under, and where its usage and events are reported."""

    def __init__(self) -> None:
        self.scope = scope_in_force.get()
        self.under = asked_under.get()
        self.meter = meter_in_force.get()
        self.turn: Future[None] = get_running_loop().create_future()
        self.refused: BudgetError | None = None


class SharedScope(_Charging):
    """The scope of a request that several wait for. One of them pays at a time."""

    def __init__(self, payer: Payer) -> None:
        self.payer = payer
        self.reservations: set[Reservation] = set()

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Those of the caller who pays now."""
        scope = self.payer.scope
        return () if scope is None else scope.budgets

    def pass_to(self, payer: Payer) -> None:
        """Have another caller pay, for what is in progress too. Raises `BudgetError` where the
        budgets of that caller do not allow it; then nothing changes."""
        open_ones = list(self.reservations)
        if open_ones and payer.under is not None:
            payer.under.give_back()
        if payer.scope is not None and payer.scope.budgets:
            for each in open_ones:
                each.measure()
        with LOCK:
            before, self.payer = self.payer, payer
            try:
                for each in open_ones:
                    each.book()
            except BudgetError:
                self.payer = before
                for each in open_ones:
                    each.book(check=False)
                raise

    def give_back(self) -> None:
        """Give back what is reserved for the question asked here, as it is charged by itself."""
        if self.payer.under is not None:
            self.payer.under.give_back()


class Reservation:
    """What one request takes of its budgets while it is in progress. Making one raises
    `BudgetError` where a budget does not allow the request."""

    def __init__(self, scope: Scope | SharedScope, backend: Backend, prompt: Prompt) -> None:
        self.scope = scope
        self.backend = backend
        self.prompt = prompt
        self.budgets: tuple[Budget, ...] = ()
        self.tokens = 0  # until it is measured
        self.cost: float | None = 0.0
        self._open = True
        if scope.budgets:
            self.measure()
        with LOCK:
            self.book()
            for shared in _shared_scopes(scope):
                shared.reservations.add(self)

    def measure(self) -> None:
        """Estimate the least that the request uses."""
        if not self.tokens:
            self.tokens = estimated_tokens(self.prompt)
            self.cost = self.backend.least_cost(Usage(1, self.tokens, 1))

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
        """Take nothing after all: nothing was sent, or it is charged by itself."""
        self.settle(None)

    def settle(self, used: Usage | None) -> bool:
        """End the request with what it used. Returns whether that was charged here."""
        with LOCK:
            if not self._open:
                return False
            self._open = False
            for budget in self.budgets:
                budget.put_back(self, used)
            for shared in _shared_scopes(self.scope):
                shared.reservations.discard(self)
            return True

    def at_least(self, used: Usage) -> Usage:
        """What to charge for a request whose usage is not fully known: its estimate, so that the
        budget holds and can still be used."""
        if used.cost is not None:
            return used
        if not used.tokens:
            used = replace(used, input_tokens=self.tokens)
        if all(budget.cost is None for budget in self.budgets):
            return used
        return replace(used, cost=self.backend.least_cost(used))


def _shared_scopes(scope: Scope | SharedScope | None) -> Iterator[SharedScope]:
    """All shared requests that a scope is part of."""
    while scope is not None:
        if isinstance(scope, SharedScope):
            yield scope
            scope = scope.payer.scope
        else:
            scope = scope.outer


def budgets_in_force() -> tuple[Budget, ...]:
    """The budgets that a request made here is charged to, the outermost first."""
    scope = scope_in_force.get()
    return () if scope is None else scope.budgets


def estimated_tokens(prompt: Prompt) -> int:
    """About how many tokens the prompt has, its schema included, and at least one. Budgets and rate
    limits need a number before anything is sent, and correct it by the usage of the answer."""
    size = _size(prompt.system) + _size(prompt.text) + _schema_size(prompt.schema)
    for turn in prompt.turns:
        size += _size(turn.answer) + _size(turn.correction)
    for example in prompt.examples:
        size += _size(example.asked) + _size(example.answer)
    return max(1, size // BYTES_PER_TOKEN)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _schema_size(schema: Mapping[str, Any]) -> int:
    # Schemas are made once per class: the same object comes again and again.
    known = _sizes.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_sizes) >= MOST_SCHEMAS:
            _sizes.clear()
        known = _sizes[id(schema)] = schema, len(json.dumps(schema, default=str))
    return known[1]


_sizes: dict[int, tuple[Mapping[str, Any], int]] = {}

LOCK = Lock()
"""Held for a moment while budgets are read and written, by any thread and for all budgets."""

scope_in_force = cast("ContextVar[Scope | SharedScope | None]", spending_limit)
"""The scope that requests made here are charged in."""

asked_under: ContextVar[Reservation | SharedScope | None] = ContextVar(
    "bae_asked_under", default=None
)
"""What is reserved for a question to an LM that may ask backends in turn: these are charged
themselves, and it is given back."""
