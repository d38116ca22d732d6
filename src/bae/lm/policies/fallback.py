"""A line of LMs. If one fails for a reason that may not affect the next, the next is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from bae.exceptions import BaeLMError, BudgetError, add_note, describe
from bae.failures import awaitable
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
"""An error after which the next LM is asked: an HTTP status, an error code, an exception class, or
a function that returns True for the error. "refused" means that the model refused to answer."""

LONGEST_SKIP: Final = 600.0
"""The most seconds for which a failed LM is asked last, even if its provider asks for more."""

_REFUSED: Final = "refused"
_ALL_FAILED: Final = "bae-lm-all-failed"
_CODES: Final = frozenset(
    {
        "bae-lm-rate-limited",  # also used when the money is used up, which is not retryable
        "bae-lm-rate-wait",
        "bae-lm-unavailable",
        "bae-lm-unreachable",
        "bae-lm-timeout",
    }
)
_NO_MONEY: Final = 402
_OF_PROVIDER: Final = frozenset({"bae-lm-unauthorized", "bae-lm-not-found"})
"""Errors that would repeat with the same LM. By default they are raised, and no other LM is
asked."""


@dataclass(frozen=True, slots=True)
class FallbackStatistics:
    """How often an LM of a `Fallback` was `asked`, `answered` and `failed`. For the next
    `skipped_for` seconds the other LMs are asked first."""

    model: str
    asked: int
    answered: int
    failed: int
    skipped_for: float


class _Line:
    """An LM of the line with its counts, and the time until which it is asked last."""

    __slots__ = ("answered", "asked", "failed", "lm", "until")

    def __init__(self, lm: Backend) -> None:
        self.lm = lm
        self.asked = self.answered = self.failed = 0
        self.until = 0.0


class Fallback(Policy):
    """Asks the first LM. If it fails for a reason that may not affect the next LM, asks the next:
    `Fallback("anthropic", "openai:gpt-5-mini")`.

    The next LM is asked if a provider is overloaded, unreachable, too slow or broken, if a rate
    limit or the money is used up, or if a budget around that LM alone is used up. Other errors are
    raised at once, since another LM would hide them: a wrong key, a wrong name, a request that the
    provider refuses, a prompt that is too long. An invalid answer is corrected by the same LM. Use
    `on` for further errors: HTTP statuses, error codes, exception classes, functions, and "refused"
    for refusals.

    A failed LM is asked last for `skip_for` seconds, or longer if its provider asks for it. 0 keeps
    the order. If all LMs fail, `BaeLMError` with the code `bae-lm-all-failed` lists the errors, and
    has them in `.failures`.

    The usage and the records of the run name the LM that answered, and the errors of the others.
    Each request is charged to the budgets around it. `clock` is for tests.
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
        self._line = [_Line(self.inner), *(_Line(as_backend(lm)) for lm in others)]
        self._on = tuple(map(_check_condition, (on,) if isinstance(on, int | str) else on))
        self.skip_for = skip_for
        self._clock = clock

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LMs in turn until one answers."""
        if not self.runs_tools and prompt.question.scene.toolbox is not None:
            self._check_tools()
        failures: list[tuple[Backend, Exception]] = []
        order = self._order()
        for each, following in zip(order, [*order[1:], None], strict=True):
            each.asked += 1
            try:
                answer = await awaitable(each.lm.request(prompt), each.lm, "request")
                if answer.stop != _REFUSED or _REFUSED not in self._on or following is None:
                    each.answered += 1
                    each.until = 0.0
                    return answer
                report_usage(answer.usage)  # the final answer reports only its own usage
                error: Exception = _refusal(each.lm, answer)
            except Exception as raised:
                if not self._falls_back(raised):
                    for lm, before in failures:
                        add_note(raised, f"asked after {lm!r} had failed: {describe(before)}")
                    raise
                error = raised
                self._skip(each, raised)
            each.failed += 1
            failures.append((each.lm, error))
            if following is not None:
                tell(Restart(error, 0.0, following.lm.model or type(following.lm).__name__))
        raise _all_failed(failures)

    def budgets(self) -> list[Budget]:
        """The budgets that the requests to each of the LMs are charged to."""
        first, *others = (budgets_of(each.lm) for each in self._line)
        return [budget for budget in first if all(budget in other for other in others)]

    def statistics(self) -> tuple[FallbackStatistics, ...]:
        """The counts of each LM, in their order."""
        now = self._clock()
        return tuple(
            FallbackStatistics(
                each.lm.model, each.asked, each.answered, each.failed, max(0.0, each.until - now)
            )
            for each in self._line
        )

    def _check_tools(self) -> None:
        if any(lm.runs_tools for lm in self.inners):
            raise BaeLMError(
                f"{self!r} has LMs that call tools by themselves beside backends, for which bae"
                " calls them: none could continue the conversation of another",
                code="bae-tools-lm",
                sent=False,
                fix="give a Fallback of backends alone to nodes with tools",
            )

    def _order(self) -> list[_Line]:
        """The LMs in the order to ask them. LMs that failed recently come last."""
        now = self._clock()
        return sorted(self._line, key=lambda each: each.until > now)

    def _falls_back(self, error: Exception) -> bool:
        if isinstance(error, BudgetError):
            # A budget around this policy would refuse the others too.
            return error.budget not in budgets_in_force()
        if failures := _failures_inside(error):
            return any(map(self._falls_back, failures))
        return may_pass_elsewhere(error) or any(_matches(error, each) for each in self._on)

    def _skip(self, line: _Line, error: Exception) -> None:
        code = error.code if isinstance(error, BaeLMError) else ""
        if self.skip_for and (may_pass_elsewhere(error) or code in _OF_PROVIDER):
            wanted = min(getattr(error, "retry_after", None) or 0.0, LONGEST_SKIP)
            line.until = self._clock() + max(self.skip_for, wanted)

    # What the LMs have in common

    @property
    def inners(self) -> tuple[Backend, ...]:
        """The LMs, in the order in which they are asked."""
        return tuple(each.lm for each in self._line)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The class, model and settings of each LM. A cache around this policy therefore shares no
        entry with a cache of one of the LMs."""
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
        """Whether all LMs have native tool calls. Otherwise all call tools by structured
        output, so that any LM can continue a conversation."""
        return all(lm.calls_tools for lm in self.inners)

    @property
    def runs_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether bae runs the tool loop for all LMs."""
        return all(lm.runs_tools for lm in self.inners)

    @property
    def native_tools(self) -> frozenset[str] | None:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The tools that the providers of
        all LMs run."""
        common: frozenset[str] | None = None
        for lm in self.inners:
            own = lm.native_tools
            common = own if common is None or own is None else common & own
        return common

    @property
    def takes_files(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The kinds of files that all LMs take."""
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
        """How often all LMs are asked again after all have failed: the smallest `retries` of the
        LMs, which is 0 with `Retry` inside."""
        return min(lm.retries for lm in self.inners)

    def least_cost(self, usage: Usage) -> float | None:
        """The lowest cost of a request, or None if the cost of one of the LMs will stay unknown."""
        costs = [lm.least_cost(usage) for lm in self.inners]
        return None if None in costs else min(cost for cost in costs if cost is not None)

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """The types in `fillable` that every LM may fill in the answer that chooses."""
        for lm in self.inners:
            fillable = lm.at_once(previous, fillable)
        return fillable

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run to the budgets inside."""
        for lm in self.inners:
            lm.restore(run_id, used, seconds)

    async def reject(self, prompt: Prompt) -> None:
        """Report an invalid answer to all LMs."""
        for lm in self.inners:
            await lm.reject(prompt)

    async def aclose(self) -> None:
        """Close all LMs. The first error is raised when all are closed."""
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
    """Whether another LM may answer a request that failed with this error. Decides by the type,
    code and status of the error; the table in `docs/policies.md` shows them."""
    if worth_retrying(error) or any(map(may_pass_elsewhere, _failures_inside(error))):
        return True
    return isinstance(error, BaeLMError) and (error.code in _CODES or error.status == _NO_MONEY)


def _failures_inside(error: Exception) -> list[Exception]:
    """The errors of all LMs of an inner `Fallback`, if all its LMs failed."""
    if not isinstance(error, BaeLMError) or error.code != _ALL_FAILED:
        return []
    return [failure for failure in error.failures if isinstance(failure, Exception)]


def _matches(error: Exception, wanted: FallbackOn) -> bool:
    if isinstance(wanted, int):
        return getattr(error, "status", None) == wanted
    if isinstance(wanted, str):
        return getattr(error, "code", None) == wanted
    if isinstance(wanted, type):
        return isinstance(error, wanted)
    return bool(wanted(error))


def _check_condition(wanted: FallbackOn) -> FallbackOn:
    """Return an item of `on`. Raises ValueError if no error can match it."""
    given: Any = wanted
    match given:
        case bool():
            is_right = False
        case int():
            is_right = 300 <= given <= 599
        case str():
            is_right = given == _REFUSED or given.startswith("bae-")
        case type():
            is_right = issubclass(given, Exception)
        case _:
            is_right = callable(given)
    if not is_right:
        raise ValueError(
            f'Fallback(on={given!r}): give HTTP statuses, codes of errors as "bae-lm-not-found", '
            'classes of errors, functions that say so of an error, or "refused"'
        )
    return wanted


def _refusal(lm: Backend, answer: Answer) -> BaeLMError:
    return BaeLMError(
        f"{lm!r} refused to answer: {' '.join(answer.text.split())[:500] or 'it gave no reason'}",
        code="bae-fill-refused",
    )


def _all_failed(failures: Sequence[tuple[Backend, Exception]]) -> BaseException:
    """The error after all LMs have failed."""
    errors = [error for _, error in failures]
    waits = [getattr(error, "retry_after", None) for error in errors if worth_retrying(error)]
    lines = "; ".join(
        f"{number}. {_failure_line(*each)}" for number, each in enumerate(failures, 1)
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


def _failure_line(lm: Backend, error: Exception) -> str:
    message = error.message if isinstance(error, BaeLMError | BudgetError) else describe(error)
    return f"{lm!r}: {message}"
