"""Charging requests to the budgets around them. The budgets in force are known to the context, so
that what a run does in subgraphs, maps and pinned LMs is counted; a request is charged where it is
sent, inside all policies, so that retries count and answers from a cache do not. The accounts are
in `budget.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from bae.lm.usage import Usage, report

if TYPE_CHECKING:
    from bae.lm.backend import Answer, Backend, Prompt
    from bae.lm.policies.budget import Budget
    from bae.lm.protocol import LM

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A budget that was entered, the scope around it, and all the budgets in force in it."""

    budget: Budget
    outer: Scope | None
    budgets: tuple[Budget, ...]


current: ContextVar[Scope | None] = ContextVar("bae_budget_scope", default=None)


def in_force() -> tuple[Budget, ...]:
    """The budgets that a request made here is charged to, the outermost first."""
    entered = current.get()
    return () if entered is None else entered.budgets


def counted(lm: LM) -> LM:
    """The LM as a run asks it: where budgets are in force, one that is no backend is asked through
    one, so that it is charged too."""
    if current.get() is None:
        return lm
    from bae.lm.policies.policy import as_backend

    return as_backend(lm)


async def charged(backend: Backend, prompt: Prompt) -> Answer:
    """Ask a backend once, with the request charged to the budgets in force.

    Each is checked before the request is sent. A policy sends none itself: what is inside it does,
    and is charged then.
    """
    entered = current.get()
    if entered is None:
        return await backend.answer(prompt)
    from bae.lm.foreign import Foreign
    from bae.lm.policies.policy import Policy

    if isinstance(backend, Policy):
        return await backend.answer(prompt)
    outer = _around.get()
    if outer is not None:
        outer.give_back()
    hold = Hold(entered.budgets, backend, prompt)
    # An LM that is no backend may ask backends in its turn, and these are charged themselves.
    token = _around.set(hold if isinstance(backend, Foreign) else None)
    sent = perf_counter()
    used = Usage(calls=1)
    try:
        answer = await backend.answer(prompt)
        used = answer.usage
    finally:
        _around.reset(token)
        hold.settle(replace(used, seconds=perf_counter() - sent))
    if used.cost is None:
        for budget in entered.budgets:
            if budget.cost is not None:
                report(used)
                raise budget.cost_unknown(backend.model)
    return answer


async def in_time(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask, and stop when the time of a budget in force is over, whatever is being waited for."""
    short: Budget | None = None
    left = 0.0
    for budget in in_force():
        remaining = budget.remaining.seconds
        if remaining is not None and (short is None or remaining < left):
            short, left = budget, remaining
    if short is None:
        return await ask()
    if left <= 0:
        raise short.spent("seconds")
    bound = asyncio.timeout(left)
    try:
        async with bound:
            return await ask()
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise short.spent("seconds", cause=error) from error


class Hold:
    """What one request takes of its budgets while it is under way."""

    __slots__ = ("budgets", "cost", "open", "tokens")

    def __init__(self, budgets: tuple[Budget, ...], backend: Backend, prompt: Prompt) -> None:
        self.budgets = budgets
        self.tokens = 0
        self.cost = 0.0
        if any(budget.tokens is not None or budget.cost is not None for budget in budgets):
            from bae.lm.policies.estimate import estimated_tokens

            self.tokens = estimated_tokens(prompt)
        for budget in budgets:
            if budget.cost is not None:
                least = backend.least_cost(Usage(1, self.tokens, 1))
                if least is None:
                    raise budget.cost_unknown(backend.model)
                self.cost = least
        with LOCK:
            # All or none: a request that one of them refuses takes nothing of the others.
            for budget in budgets:
                budget.check(self)
            for budget in budgets:
                budget.take(self)
        self.open = True

    def give_back(self) -> None:
        """Take nothing after all: what was held for is charged by itself."""
        self._close(None)

    def settle(self, used: Usage) -> None:
        """The request is over, and this is what it used."""
        self._close(used)

    def _close(self, used: Usage | None) -> None:
        with LOCK:
            if self.open:
                self.open = False
                for budget in self.budgets:
                    budget.put_back(self, used)


LOCK = Lock()
"""Held for a moment while budgets are read and written, by any thread and for all budgets."""

_around: ContextVar[Hold | None] = ContextVar("bae_budget_around", default=None)
