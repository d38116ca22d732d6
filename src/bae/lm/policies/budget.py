"""Budgets: limits on calls, tokens, cost and time. `with budget:` counts every request in the
block. bae checks a request before it is sent, and reserves a share of the budget until the request
ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from math import isfinite
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, cast

from bae.exceptions import BudgetError, add_note
from bae.files import in_use
from bae.language_model import SpendingLimit, spending_limit
from bae.lm.file_limits import estimated_tokens
from bae.usage import Usage, normalize_usage, read_amount

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.lm.backend import Backend
    from bae.prompts.messages import Prompt

T = TypeVar("T", int, float)

Limit = Literal["calls", "tokens", "cost", "seconds"]
_LIMITS: Final[tuple[Limit, ...]] = ("calls", "tokens", "cost", "seconds")

BYTES_PER_TOKEN = 4
"""An estimate for English text with common tokenizers. bae counts bytes instead of letters, because
scripts with more bytes per letter also need more tokens."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of a budget. None means no limit, or an unknown amount."""

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


class Budget:
    """Limits on calls, tokens, cost and time, and a count of the usage.

    `with Budget(calls=50) as budget:` counts every request in the block, also in subgraphs, maps
    and threads. Budgets nest: a request is charged to every budget in whose block it is sent, and
    to the outer budgets (`within`) of these budgets.

    - `calls`: the most requests, including failed requests. Requests in progress count, so
      concurrent requests cannot exceed the limit.
    - `tokens`: the most input and output tokens. If the estimate of a prompt does not fit, the
      request is refused.
    - `cost`: the most US dollars. The price of the model must be known.
    - `seconds`: the most wall-clock time since the budget was first entered or used. When the time
      is over, requests in progress are cancelled.
    - `scope`: the name of the budget in errors.
    - `within`: the outer budget.
    - `quiet`: whether the block ends without an error if this budget ran out. The error is in
      `.error`.
    - `spent`, `elapsed`: the usage and the seconds to begin with.
    - `clock`: returns the time in seconds.

    A refused request raises `BudgetError`, and nothing is sent. The answer to the last request may
    exceed the limits on tokens and cost. Then the next request is refused.

    If a request was cancelled, or the provider does not report its usage, at least the estimate of
    the prompt is charged.

    To continue with a budget later, store `dump()` and load it with `Budget.restored`.
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
        self._used = normalize_usage(spent or Usage())
        self._reserved = Usage()
        self._clock = clock
        self._earlier_seconds = read_amount(elapsed) or 0.0
        self._started_at: float | None = None
        self._runs: set[str] = set()

    @property
    def usage(self) -> Usage:
        """The usage so far, without requests in progress."""
        return self._used

    @property
    def elapsed(self) -> float:
        """Seconds since the budget was first entered or used, plus the earlier seconds of a
        restored budget and of resumed runs."""
        current = 0.0 if self._started_at is None else self._clock() - self._started_at
        return self._earlier_seconds + current

    @property
    def remaining(self) -> Remaining:
        """What is left after the usage so far and the reservations of requests in progress. Never
        below 0."""
        used = self._used + self._reserved
        return Remaining(
            _subtract(self.calls, used.calls),
            _subtract(self.tokens, used.tokens),
            None if used.cost is None else _subtract(self.cost, used.cost),
            _subtract(self.seconds, self.elapsed),
        )

    def dump(self) -> dict[str, Any]:
        """Return the limits and the usage so far, as JSON values."""
        return {
            "scope": self.scope,
            "limits": {name: getattr(self, name) for name in _LIMITS},
            "spent": {**asdict(self._used), "models": list(self._used.models)},
            "elapsed": self.elapsed,
        }

    @classmethod
    def restored(cls, dumped: Mapping[str, Any], within: Budget | None = None) -> Budget:
        """Load a dumped budget with its limits and usage. The usage of requests that were in
        progress at the time of the dump is not included."""
        spent: dict[str, Any] = {**dumped["spent"], "models": tuple(dumped["spent"]["models"])}
        rest = {name: dumped[name] for name in ("scope", "elapsed")}
        return cls(**dumped["limits"], **rest, within=within, spent=Usage(**spent))

    def __enter__(self) -> Self:
        """Count the requests of this task, and of tasks that it starts, until the block ends."""
        scope_in_force.set(self.scope_here())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """End the block, in the same context in which it began. Nested blocks may end in any
        order."""
        self.error = self._find_own_error(error)
        scope = scope_in_force.get()
        entered = [] if scope is None else list(scope.entered)
        if self in entered:
            del entered[len(entered) - 1 - entered[::-1].index(self)]
            scope_in_force.set(Scope(*entered) if entered else None)
        else:
            message = (
                f"the block of {self!r} began in another context, and is still active there: enter"
                " and leave it in one function, not in a fixture or a callback that another task"
                " runs"
            )
            if error is None:
                raise RuntimeError(message)
            add_note(error, message)
        return self.quiet and self.error is not None

    def scope_here(self) -> Scope:
        """Return the active scope with this budget added. Starts the clocks of this budget and of
        its outer budgets."""
        for budget in self.line():
            if budget._started_at is None:
                budget._started_at = budget._clock()
        outer = scope_in_force.get()
        return Scope(self) if outer is None else Scope(*outer.entered, self)

    def line(self) -> tuple[Budget, ...]:
        """Return this budget and its outer budgets (`within`), the outermost first."""
        return (self,) if self.within is None else (*self.within.line(), self)

    def carry(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run. Each run is charged once."""
        if run_id not in self._runs:
            self._runs.add(run_id)
            self._used += normalize_usage(used)
            self._earlier_seconds += read_amount(seconds) or 0.0

    # `Reservation` calls `check` and `book` while it holds `_LOCK`.

    def check(self, reservation: Reservation) -> None:
        """Raise `BudgetError` if a request does not fit into what is left."""
        committed = self._used + self._reserved
        if self.calls is not None and committed.calls >= self.calls:
            raise self.spent("calls")
        if self.tokens is not None and committed.tokens + reservation.tokens > self.tokens:
            raise self.spent("tokens", reservation.tokens)
        if self.cost is not None:
            if committed.cost is None:
                raise self.cost_unknown(", ".join(committed.models))
            if reservation.cost is None:
                raise self.cost_unknown(reservation.backend.model)
            # With Budget(cost=0), free models may still be asked.
            if committed.cost + reservation.cost > self.cost or (committed.cost >= self.cost > 0):
                raise self.spent("cost", reservation.cost)
        if self.seconds is not None and self.elapsed >= self.seconds:
            raise self.spent("seconds")

    def book(self, reservation: Reservation, used: Usage | None, *, ended: bool) -> None:
        """Reserve the share of a request. If the request has `ended`, release its share and charge
        its usage, `used`."""
        sign = -1 if ended else 1
        cost = sign * (reservation.cost or 0.0)
        self._reserved += Usage(sign, sign * reservation.tokens, cost=cost)
        if not self._reserved.calls:
            self._reserved = Usage()  # a sum of floats may not return to exactly zero
        if used is not None:
            self._used += used

    def spent(
        self, limit: Limit, needed: float = 0, cause: BaseException | None = None
    ) -> BudgetError:
        """Return the error for an exhausted limit of this budget. `needed` is the share of the
        refused request."""
        fix = f"raise the limit with Budget({limit}=…), or ask for less"
        bound = getattr(self, limit) or 0
        if limit == "seconds":
            used, reason = self.elapsed, f"the {bound:g} s are over"
        else:
            used, reserved = getattr(self._used, limit) or 0, getattr(self._reserved, limit)
            unit = limit.removesuffix("s") if bound == 1 else limit
            if limit == "cost":
                reason = f"${used:.4f} of ${bound:.4f} spent"
                reason += f" and ${reserved:.4f} or more in progress" if reserved else ""
                reason += f", and this request costs ${needed:.4f} or more" if needed else ""
            else:
                about = "" if limit == "calls" else "about "
                reason = f"{used} of {bound:g} {unit} spent"
                reason += f" and {about}{reserved} more in progress" if reserved else ""
                reason += f", and this request is about {needed:g}" if needed else ""
        note = "the nodes that were done are in .trace"
        return self._error(limit, bound, used, reason, fix, trace_note=note, cause=cause)

    def cost_unknown(self, model: str) -> BudgetError:
        """Return the error for a limit on cost if the cost of a request is unknown."""
        from bae.lm.extras import install_line, is_there

        fix = "limit calls or tokens instead"
        if not is_there("genai_prices"):
            fix = f"install the price list with {install_line('prices')}, or {fix}"
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
        self, limit: Limit, bound: float, used: float, reason: str, fix: str, **more: Any
    ) -> BudgetError:
        details: dict[str, Any] = {
            "limit": limit,
            "bound": bound,
            "used": used,
            "scope": self.scope,
        }
        message = f"{self.scope}: {reason}"
        return BudgetError(message, **details, usage=self._used, budget=self, fix=fix, **more)

    def _find_own_error(self, error: BaseException | None) -> BudgetError | None:
        """Return the error of this budget among `error` and its causes, or None."""
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


class Scope(SpendingLimit):
    """The budgets of the blocks around a request. `entered` are the budgets whose blocks were
    entered, the outermost first. `budgets` also has their outer budgets. A request is charged once
    to each of `budgets`."""

    def __init__(self, *entered: Budget) -> None:
        self.entered = entered
        self.budgets = tuple(
            dict.fromkeys(charged for budget in entered for charged in budget.line())
        )

    def charge(self, lm: LM) -> LM:
        """Return the LM as a backend whose requests are charged. An LM that is no backend is
        wrapped in an adapter."""
        from bae.lm.adapter import LMAdapter
        from bae.lm.backend import Backend

        return lm if isinstance(lm, Backend) else LMAdapter(lm)

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run to all budgets. Each run is charged once."""
        for budget in self.budgets:
            budget.carry(run_id, used, seconds)


class Reservation:
    """The share that a request reserves of its budgets while it is in progress. The constructor
    raises `BudgetError` if a budget does not allow the request."""

    def __init__(self, budgets: tuple[Budget, ...], backend: Backend, prompt: Prompt) -> None:
        self.budgets = budgets
        self.backend = backend
        self.tokens = estimate_tokens(prompt)
        self.cost = read_amount(backend.least_cost(Usage(1, self.tokens, 1)))
        self.least_calls = 1
        """The fewest calls to charge. It is 0 after a backend has answered, because the backend's
        request is charged separately."""
        self._open = True
        with _LOCK:
            # Check all budgets before booking any: a refused request must reserve nothing.
            for budget in budgets:
                budget.check(self)
            for budget in budgets:
                budget.book(self, None, ended=False)

    def settle(self, used: Usage | None) -> bool:
        """End the request and charge its usage. Pass None if nothing was sent, or if the request is
        charged elsewhere. Returns False if the request had already ended."""
        with _LOCK:
            if not self._open:
                return False
            self._open = False
            if used is not None and used.calls < self.least_calls:
                used = replace(used, calls=self.least_calls)
            for budget in self.budgets:
                budget.book(self, used, ended=True)
            return True

    def at_least(self, used: Usage) -> Usage:
        """Return the usage to charge for a request that was sent. If the provider reports no tokens
        or no cost, or reports 0, the estimate is charged instead, so that limits still work."""
        if not (used.calls or self.least_calls):
            return used
        missing = not used.input_tokens
        if missing:
            tokens = at_least_estimated(used, self.tokens)
            used = replace(used, input_tokens=tokens - used.output_tokens)
        if all(budget.cost is None for budget in self.budgets) or not (missing or not used.cost):
            return used
        least = read_amount(self.backend.least_cost(used))
        return replace(used, cost=None if least is None else max(used.cost or 0.0, least))


def budgets_in_force() -> tuple[Budget, ...]:
    """Return the budgets that a request in this context is charged to, the outermost first."""
    scope = scope_in_force.get()
    return () if scope is None else scope.budgets


def estimate_tokens(prompt: Prompt | str) -> int:
    """Estimate the tokens of a text, or of a prompt with its schema, tools and files.

    A text has one token for every four bytes, and at least one token. Budgets and rate limits use
    the estimate until the answer reports its usage.
    """
    if isinstance(prompt, str):
        texts = [prompt]
    else:
        texts = [prompt.system, *(message.text for message in prompt.conversation)]
        texts.append(json.dumps(prompt.schema, default=str))
        for tool in prompt.tools:
            texts += tool.name, tool.description, json.dumps(tool.schema, default=str)
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    tokens = max(1, size // BYTES_PER_TOKEN)
    if in_use() and not isinstance(prompt, str):
        tokens += sum(estimated_tokens(part.file) for part in prompt.files)
    return tokens


def at_least_estimated(used: Usage, estimate: int) -> int:
    """Return the tokens of a request. If the provider does not report the tokens of the prompt,
    return at least the estimate."""
    return used.tokens if used.input_tokens else max(used.output_tokens, estimate)


def _subtract(limit: T | None, used: T) -> T | None:
    return None if limit is None else max(0, limit - used)


_LOCK = Lock()
"""Locks all budgets while a thread reads and writes them."""

scope_in_force = cast("ContextVar[Scope | None]", spending_limit)
"""The active scope. A request in this context is charged to its budgets."""

current_reservation: ContextVar[Reservation | None] = ContextVar("bae_asked_under", default=None)
"""The reservation for a question to an LM that may ask backends. When a backend sends a request,
the reservation is released, because the backend's request is charged separately."""
