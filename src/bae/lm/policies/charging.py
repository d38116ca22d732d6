"""Sending a request to a model: the one place where requests are counted. They are charged to the
budgets around them, inside all policies, so that retries count and answers from a cache do not;
and one that fails is reported. What an answer used, `asking.py` reports, which judges it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bae.exceptions import BaeLMError, BudgetError
from bae.lm.policies.holds import Hold, around, current
from bae.usage import Usage, collected, report

if TYPE_CHECKING:
    from bae.lm.backend import Answer, Backend, Prompt
    from bae.lm.foreign import Foreign
    from bae.lm.policies.budget import Budget
    from bae.lm.policies.policy import Policy

T = TypeVar("T")


def in_force() -> tuple[Budget, ...]:
    """The budgets that a request made here is charged to, the outermost first."""
    scope = current.get()
    return () if scope is None else scope.budgets


async def charged(backend: Backend, prompt: Prompt) -> Answer:
    """Ask a backend once, with the request charged to the budgets in force.

    Each is checked before the request is sent. A policy sends none itself: what is inside it does,
    and is charged then.
    """
    kinds = _kinds()
    if isinstance(backend, kinds.policy):
        return _checked(backend, await backend.answer(prompt))
    foreign = isinstance(backend, kinds.foreign)
    scope, hold = current.get(), None
    if scope is not None:
        asked_under = around.get()
        if asked_under is not None:
            asked_under.give_back()
        hold = Hold(scope, backend, prompt)
    # An LM that is no backend may ask backends in its turn, and these are charged themselves.
    token = around.set(hold if foreign else None)
    reported: list[Usage] = []
    since = perf_counter()
    try:
        if foreign:
            with collected() as reported:
                answer = _checked(backend, await backend.answer(prompt))
        else:
            answer = _checked(backend, await backend.answer(prompt))
    except BaseException as error:
        used = Usage.total(reported) if reported else _used_in_vain(backend, error)
        if used is not None:
            used = _signed(used, backend, since)
            report(used)
        if hold is not None:
            if used is None:
                hold.give_back()
            else:
                hold.settle(hold.at_least(used))
        raise
    finally:
        around.reset(token)
    used = _signed(Usage.total(reported) if reported else answer.usage, backend, since)
    if hold is not None and hold.settle(used) and used.cost is None:
        for budget in hold.budgets:
            if budget.cost is not None:
                report(used)
                raise budget.cost_unknown(backend.model)
    return kinds.answer(answer.text, used, answer.stop, answer.value)


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


def _checked(backend: Backend, answer: object) -> Answer:
    if isinstance(answer, _kinds().answer):
        return answer
    name = type(backend).__name__
    raise BaeLMError(
        f"{name}.answer returned {repr(answer)[:200]}, which is no Answer",
        code="bae-lm-answer-type",
        fix=f"have {name}.answer return an Answer: return Answer(text, Usage(calls=1, …))",
    )


def _used_in_vain(backend: Backend, error: BaseException) -> Usage | None:
    """What a request that failed used, as far as anybody knows; None where none was sent."""
    if isinstance(error, BudgetError):
        return None
    free = backend.free
    if isinstance(error, BaeLMError):
        if not error.sent:
            return None
        if error.usage is not None:
            return error.usage
        free = free or error.status in _NOTHING_DONE
    return Usage(calls=1, cost=0.0 if free else None)


def _signed(used: Usage, backend: Backend, since: float) -> Usage:
    models = used.models or ((backend.model,) if backend.model else ())
    # In full, as `replace` takes three times as long, and this is done for every request.
    return Usage(
        used.calls,
        used.input_tokens,
        used.output_tokens,
        used.cached_tokens,
        used.cost,
        used.attempts,
        perf_counter() - since,
        models,
    )


class _Kinds(NamedTuple):
    answer: type[Answer]
    foreign: type[Foreign]
    policy: type[Policy]


@cache
def _kinds() -> _Kinds:
    # Imported late, as these import this; and not for every request.
    from bae.lm.backend import Answer
    from bae.lm.foreign import Foreign
    from bae.lm.policies.policy import Policy

    return _Kinds(Answer, Foreign, Policy)


_NOTHING_DONE = frozenset({*range(400, 500), 500, 503, 529} - {408})
"""HTTP statuses that providers send without having asked a model, or without charging for it. The
other ones of 500 and above may come from between: the model may have answered."""
