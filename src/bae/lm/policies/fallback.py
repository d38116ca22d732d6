"""The policy `Fallback`: if an LM fails for a reason that may not affect another LM, the next LM is
asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from bae.exceptions import BaeLMError, BudgetError, add_note, describe
from bae.failures import check_awaitable
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.policies.budget import Budget, budgets_in_force
from bae.lm.policies.policy import Policy, as_backend, budgets_of, identity_of
from bae.lm.requests import worth_retrying
from bae.usage import Restart, report_usage, tell

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.node import Node
    from bae.usage import Usage

FallbackOn = int | str | type[Exception] | Callable[[Exception], bool]
"""A condition for asking the next LM: an HTTP status, an error code, an exception class, or a
function that returns True for the error. "refused" means that the model refused to answer."""

LONGEST_SKIP: Final = 600.0
"""The most seconds for which a failed LM is asked last, even if its provider asks for a longer
wait."""

_REFUSED: Final = "refused"
_ALL_FAILED: Final = "bae-lm-all-failed"
_CODES: Final = frozenset(
    {
        "bae-lm-rate-limited",  # not retryable if it means that the money is used up
        "bae-lm-rate-wait",
        "bae-lm-unavailable",
        "bae-lm-unreachable",
        "bae-lm-timeout",
    }
)
_NO_MONEY: Final = 402
_OF_PROVIDER: Final = frozenset({"bae-lm-unauthorized", "bae-lm-not-found"})
"""Errors that every request to the same LM gets. By default they are raised at once. If `on`
matches such an error, the next LM is asked, and the failed LM is asked last for a while."""


@dataclass(frozen=True, slots=True)
class FallbackStatistics:
    """The counts of one LM of a `Fallback`."""

    model: str
    asked: int
    """Requests to the LM."""

    answered: int
    """Requests that the LM answered."""

    failed: int
    """Requests that failed in a way that makes bae ask the next LM."""

    skipped_for: float
    """For so many seconds from now, the other LMs are asked first."""


class _Candidate:
    """An LM of a `Fallback` with its counts. Before the time `until`, the LM is asked last."""

    __slots__ = ("answered", "asked", "failed", "lm", "until")

    def __init__(self, lm: Backend) -> None:
        self.lm = lm
        self.asked = self.answered = self.failed = 0
        self.until = 0.0


class Fallback(Policy):
    """Asks the next LM if an LM fails for a reason that may not affect the next LM:
    `Fallback("anthropic", "openai:gpt-5-mini")`.

    The next LM is asked in these cases:

    - The provider is overloaded, unreachable, too slow or broken.
    - A rate limit or the money is used up.
    - A budget around the failed LM alone is used up.
    - The error matches a condition in `on`: an HTTP status, an error code, an exception class, a
      function, or "refused" for refusals.

    Other errors are raised at once, because an answer from another LM would hide them: a wrong key,
    a wrong name, a request that the provider refuses, a prompt that is too long. If an answer is
    invalid, the same LM corrects it.

    A failed LM is asked last for `skip_for` seconds, or longer if its provider asks for a longer
    wait. With `skip_for=0`, the order never changes. If all LMs fail, `BaeLMError` with the code
    `bae-lm-all-failed` lists the errors and has them in `.failures`.

    The usage of the run names the LMs that were asked. The records of the run have the error of
    each failed LM. Each request counts against the budgets around it. `clock` is for tests.
    """

    def __init__(
        self,
        first: LM | str,
        *others: LM | str,
        on: Iterable[FallbackOn] = (),
        skip_for: float = 30.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if not others:
            raise TypeError("Fallback(lm): give two LMs or more, as Fallback(first, second)")
        if not isinstance(cast(object, skip_for), int | float) or not (
            isfinite(skip_for) and skip_for >= 0
        ):
            raise ValueError(f"Fallback(skip_for={skip_for!r}): give 0 or more seconds")
        super().__init__(first)
        self._candidates = [
            _Candidate(self.inner),
            *(_Candidate(as_backend(lm)) for lm in others),
        ]
        self._on = tuple(map(_check_condition, (on,) if isinstance(on, int | str) else on))
        self.skip_for = skip_for
        self._clock = clock

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LMs in turn until one answers."""
        if not self.runs_tools and prompt.question.scene.toolbox is not None:
            self._check_tools()
        failures: list[tuple[Backend, Exception]] = []
        order = self._order()
        for candidate, following in zip(order, [*order[1:], None], strict=True):
            candidate.asked += 1
            try:
                answer = await check_awaitable(
                    candidate.lm.request(prompt), candidate.lm, "request"
                )
                if answer.stop != _REFUSED or _REFUSED not in self._on or following is None:
                    candidate.answered += 1
                    candidate.until = 0.0
                    return answer
                report_usage(answer.usage)  # the next answer reports only its own usage
                error: Exception = _refusal(candidate.lm, answer)
            except Exception as raised:
                if not self._falls_back(raised):
                    for lm, failure in failures:
                        add_note(raised, f"asked after {lm!r} had failed: {describe(failure)}")
                    raise
                error = raised
                self._skip(candidate, raised)
            candidate.failed += 1
            failures.append((candidate.lm, error))
            if following is not None:
                tell(Restart(error, 0.0, following.lm.model or type(following.lm).__name__))
        raise _all_failed(failures)

    def budgets(self) -> list[Budget]:
        """Return the budgets that count the requests to every LM."""
        first, *others = (budgets_of(candidate.lm) for candidate in self._candidates)
        return [budget for budget in first if all(budget in other for other in others)]

    def statistics(self) -> tuple[FallbackStatistics, ...]:
        """Return the counts of each LM, in the order of the constructor."""
        now = self._clock()
        return tuple(
            FallbackStatistics(
                candidate.lm.model,
                candidate.asked,
                candidate.answered,
                candidate.failed,
                max(0.0, candidate.until - now),
            )
            for candidate in self._candidates
        )

    def _check_tools(self) -> None:
        if any(lm.runs_tools for lm in self.inners):
            raise BaeLMError(
                f"{self!r} mixes LMs that run tools themselves with backends for which bae runs"
                " tools: an LM of one kind could not continue a conversation of the other kind",
                code="bae-tools-lm",
                sent=False,
                fix="for nodes with tools, give a Fallback of backends only",
            )

    def _order(self) -> list[_Candidate]:
        """Return the LMs in the order to ask them. LMs that failed recently come last."""
        now = self._clock()
        return sorted(self._candidates, key=lambda candidate: candidate.until > now)

    def _falls_back(self, error: Exception) -> bool:
        if isinstance(error, BudgetError):
            # A budget around the whole `Fallback` would refuse the next LM too.
            return error.budget not in budgets_in_force()
        if failures := _failures_inside(error):
            return any(map(self._falls_back, failures))
        return may_pass_elsewhere(error) or any(
            _matches(error, condition) for condition in self._on
        )

    def _skip(self, candidate: _Candidate, error: Exception) -> None:
        code = error.code if isinstance(error, BaeLMError) else ""
        if self.skip_for and (may_pass_elsewhere(error) or code in _OF_PROVIDER):
            wait = min(getattr(error, "retry_after", None) or 0.0, LONGEST_SKIP)
            candidate.until = self._clock() + max(self.skip_for, wait)

    # Attributes and methods that combine all LMs

    @property
    def inners(self) -> tuple[Backend, ...]:
        """The wrapped LMs, in the order of the constructor."""
        return tuple(candidate.lm for candidate in self._candidates)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The class, model and settings of each LM. With them, a cache around the `Fallback` shares
        no entry with a cache around one LM."""
        return {"fallback": [{**identity_of(lm), "settings": lm.settings} for lm in self.inners]}

    @property
    def secrets(self) -> Iterable[str]:
        """The API keys that the LMs send."""
        return [secret for lm in self.inners for secret in lm.secrets]

    @property
    def answers_unions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether all LMs can follow a schema with alternatives."""
        return all(lm.answers_unions for lm in self.inners)

    @property
    def one_call(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether all LMs may choose and fill in one request."""
        return all(lm.one_call for lm in self.inners)

    @property
    def free(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether all LMs are free."""
        return all(lm.free for lm in self.inners)

    @property
    def calls_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether all LMs have native tool calls. If not, every LM calls tools by structured
        output, so that any LM can continue a conversation."""
        return all(lm.calls_tools for lm in self.inners)

    @property
    def runs_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether bae runs the tool loop for all LMs."""
        return all(lm.runs_tools for lm in self.inners)

    @property
    def native_tools(self) -> frozenset[str] | None:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The tools that every LM's provider runs."""
        common: frozenset[str] | None = None
        for lm in self.inners:
            tools = lm.native_tools
            common = tools if common is None or tools is None else common & tools
        return common

    @property
    def takes_files(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The kinds of files that every LM takes."""
        first, *others = (lm.takes_files for lm in self.inners)
        return first.intersection(*others)

    @property
    def context_window(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The smallest known context window."""
        known = [lm.context_window for lm in self.inners if lm.context_window is not None]
        return min(known, default=None)

    @property
    def attempts(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The largest `attempts` of the LMs."""
        return max(lm.attempts for lm in self.inners)

    @property
    def retries(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """How often bae asks all LMs again after all LMs have failed: the smallest `retries` of the
        LMs. If an LM is a `Retry`, this is 0."""
        return min(lm.retries for lm in self.inners)

    def least_cost(self, usage: Usage) -> float | None:
        """Return the lowest cost of a request with this usage. None if the cost of an LM will
        stay unknown."""
        costs = [lm.least_cost(usage) for lm in self.inners]
        return None if None in costs else min(cost for cost in costs if cost is not None)

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """Return the types in `fillable` that every LM may fill in the answer with the choice."""
        for lm in self.inners:
            fillable = lm.at_once(previous, fillable)
        return fillable

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run to the budgets inside the `Fallback`."""
        for lm in self.inners:
            lm.restore(run_id, used, seconds)

    async def reject(self, prompt: Prompt) -> None:
        """Report an invalid answer to all LMs."""
        for lm in self.inners:
            await lm.reject(prompt)

    async def aclose(self) -> None:
        """Close all LMs, then raise the first error."""
        errors: list[Exception] = []
        for lm in self.inners:
            try:
                await lm.aclose()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.inners))})"


def may_pass_elsewhere(error: Exception) -> bool:
    """Return whether another LM may answer a request that failed with this error. The error's type,
    code and status decide, as in the table in `docs/policies.md`."""
    if worth_retrying(error) or any(map(may_pass_elsewhere, _failures_inside(error))):
        return True
    return isinstance(error, BaeLMError) and (error.code in _CODES or error.status == _NO_MONEY)


def _failures_inside(error: Exception) -> list[Exception]:
    """Return the errors of an inner `Fallback` whose LMs all failed. Empty for other errors."""
    if not isinstance(error, BaeLMError) or error.code != _ALL_FAILED:
        return []
    return [failure for failure in error.failures if isinstance(failure, Exception)]


def _matches(error: Exception, condition: FallbackOn) -> bool:
    if isinstance(condition, int):
        return getattr(error, "status", None) == condition
    if isinstance(condition, str):
        return getattr(error, "code", None) == condition
    if isinstance(condition, type):
        return isinstance(error, condition)
    return bool(condition(error))


def _check_condition(condition: FallbackOn) -> FallbackOn:
    """Return an item of `on`. Raise ValueError if no error can match the item."""
    item: Any = condition
    match item:
        case bool():
            is_valid = False
        case int():
            is_valid = 300 <= item <= 599
        case str():
            is_valid = item == _REFUSED or item.startswith("bae-")
        case type():
            is_valid = issubclass(item, Exception)
        case _:
            is_valid = callable(item)
    if not is_valid:
        raise ValueError(
            f'Fallback(on={item!r}): give HTTP statuses, codes of errors as "bae-lm-not-found", '
            'classes of errors, functions that return True for an error, or "refused"'
        )
    return condition


def _refusal(lm: Backend, answer: Answer) -> BaeLMError:
    return BaeLMError(
        f"{lm!r} refused to answer: {' '.join(answer.text.split())[:500] or 'it gave no reason'}",
        code="bae-fill-refused",
    )


def _all_failed(failures: Sequence[tuple[Backend, Exception]]) -> BaseException:
    """Return the error to raise after all LMs have failed."""
    errors = [error for _, error in failures]
    waits = [getattr(error, "retry_after", None) for error in errors if worth_retrying(error)]
    lines = "; ".join(
        f"{number}. {_describe_failure(*failure)}" for number, failure in enumerate(failures, 1)
    )
    return BaeLMError(
        f"none of {len(failures)} LMs has answered: {lines}",
        code=_ALL_FAILED,
        retryable=bool(waits),
        retry_after=min((wait for wait in waits if wait), default=None) if all(waits) else None,
        sent=any(getattr(error, "sent", True) for error in errors),
        failures=errors,
        fix="see .failures for each error; bae.lm.Retry(Fallback(…)) asks all of them again",
    )


def _describe_failure(lm: Backend, error: Exception) -> str:
    message = error.message if isinstance(error, BaeLMError | BudgetError) else describe(error)
    return f"{lm!r}: {message}"
